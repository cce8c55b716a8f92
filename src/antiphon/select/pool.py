"""Do many tasks: the first few in this process, what is left in processes set apart, one per core.

A candidate that overruns its budget is stopped, one that kills its process costs only that process; both are
reported, and the rest goes on. What is found does not depend on where it was found.
"""

from __future__ import annotations

import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from types import FrameType

from antiphon.isolate import GRACE, Ended, Lost, Say, Starved, Stopped, Terms, as_done
from antiphon.registry import effort_of_planner
from antiphon.select.task import (  # fmt: skip
    BUDGET,
    CRASH,
    FAILED,
    MEMORY,
    OK,
    OUT_OF_MEMORY,
    TIMED_OUT,
    AtWork,
    Context,
    Done,
    Message,
    Task,
    one_line,
    warm,
    work,
)

LATER = 8.0  # by how much other options of a planner are taken to need more than its usual ones
HEAD_START = 2.0  # CPU seconds in this process before others are started: starting them takes about as much
WARM_LIMIT = 120.0  # CPU seconds for a model to load or compile
WATCH = 2.0  # seconds from one report of who is at work to the next
BOUND_LIMIT = 120.0  # CPU seconds for the bounds of a collective
Tell = Callable[[Message | AtWork], None]


def limit_of(context: Context, task: Task) -> float:
    """CPU seconds after which a task is stopped."""
    return BOUND_LIMIT if task.entry is None else context.budget


def overran(context: Context, task: Task) -> Done:
    what = f"stopped after {limit_of(context, task):.3g} s of CPU time"
    more = "; give it more with a greater budget" if task.entry is not None else ""
    return Done(task.index, TIMED_OUT, what + more, BUDGET)


def run_tasks(context: Context, tasks: Sequence[Task], workers: int, tell: Tell) -> None:
    """Do all tasks; `tell` hears, in this thread, of everything as it is found. workers=0: none but this process.

    Those of planners that take least come first, so that something good is soon known; and those that need no process
    of their own. Those of planners that are not built in, or that ask for it, always get one.
    """
    left = deque(sorted(tasks, key=lambda task: (task.entry is None, _expected(task))))  # candidates first
    if workers == 0 or _can_interrupt():
        with suppress(_OverrunError), _interrupted_after(WARM_LIMIT):
            warm(context)
        begin = time.process_time()
        for _ in range(len(left)):
            if workers and time.process_time() - begin > HEAD_START:
                break
            task = left.popleft()
            if workers and _apart(task):
                left.append(task)
                continue
            _here(context, task, tell)
    if left:
        ordered = sorted(left, key=lambda task: (task.entry is not None, _expected(task)))  # bounds may take long
        _there(context, ordered, min(workers, len(ordered)), tell)


def _expected(task: Task) -> tuple[float, int]:
    """What a task may take against others, as the planner's entry says; of equals the first. Options beside the usual
    ones wait until other planners had their turn: they mostly bring less than another planner does."""
    if task.entry is None:
        return 0.0, task.index
    return effort_of_planner(task.planner, task.entry) * (LATER if task.options else 1.0), task.index


def _apart(task: Task) -> bool:
    """Whether it must not share this process."""
    entry = task.entry
    return entry is not None and (not entry.own or bool(entry.can.get("process")))


# ---- in this process ----


class _OverrunError(BaseException):
    """Not an Exception, so that no planner takes it for one of its own."""


def _can_interrupt() -> bool:
    return threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGPROF) is not None


@contextmanager
def _interrupted_after(seconds: float) -> Iterator[None]:
    """Ends what is inside by _OverrunError after so much CPU time. A timer that somebody else has set is put back, less
    the time spent."""
    if not _can_interrupt():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise _OverrunError

    begin = time.process_time()
    handler = signal.signal(signal.SIGPROF, stop)
    left, interval = signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, handler)
        if left:
            signal.setitimer(signal.ITIMER_PROF, max(left - (time.process_time() - begin), 1e-3), interval)


def _here(context: Context, task: Task, tell: Tell) -> None:
    done = False
    try:
        with _interrupted_after(limit_of(context, task)):
            for message in work(context, task):
                done = isinstance(message, Done)
                tell(message)
    except _OverrunError:
        if not done:
            tell(overran(context, task))


# ---- in processes set apart ----


def _there(context: Context, tasks: Sequence[Task], workers: int, tell: Tell) -> None:
    ends: dict[int, Done] = {}
    context.last.clear()  # it would go along to every process, which knows nothing of its loads
    reported = time.monotonic()

    def watch(tasks: Sequence[tuple[Task, float]]) -> None:
        nonlocal reported
        if time.monotonic() >= reported + WATCH:
            reported = time.monotonic()
            tell(AtWork(tuple((task.index, seconds) for task, seconds in tasks)))

    terms = Terms[Task](
        partial(_do, context), workers, partial(limit_of, context), grace=GRACE, prepare=partial(warm, context),
        watch=watch,
    )  # fmt: skip
    with closing(as_done(tasks, terms)) as heard:
        try:
            for task, told in heard:
                if isinstance(told, Ended):
                    _end(context, task, told.result, ends.pop(task.index, None), tell)
                elif isinstance(told.value, Done):
                    ends[task.index] = told.value
                else:
                    tell(told.value)
        except KeyboardInterrupt:  # what was done had yet to end; what was stopped by it says its budget was spent
            for done in ends.values():
                if done.status == OK:
                    tell(done)
            raise


def _do(context: Context, task: Task, say: Say) -> None:
    for message in work(context, task):
        say(message)


def _end(context: Context, task: Task, result: object, said: Done | None, tell: Tell) -> None:
    """Tell how a task ended. What was raised in it when it was told to stop is no failure of its own."""
    if isinstance(result, Lost) and not result.begun:  # better slowly than not at all
        _here(context, task, tell)
    elif isinstance(result, Stopped) and (said is None or said.status != OK):
        tell(overran(context, task))
    elif isinstance(result, Starved):
        tell(Done(task.index, FAILED, OUT_OF_MEMORY, MEMORY))
    elif isinstance(result, Lost):
        tell(Done(task.index, FAILED, one_line(str(result)), CRASH if result.died else ""))
    else:
        assert said is not None
        tell(said)
