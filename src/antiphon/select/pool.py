"""Do many tasks: the quick ones first in this process, the others in worker processes, one per core.

    1. Order the tasks by the effort that planners declare, tasks with options later, bounds last.
    2. Do tasks in this process until HEAD_START CPU seconds are spent, so that a first answer is known at once and the
       workers find the model and the planners loaded. A timer of the CPU time (SIGPROF) interrupts one that overruns
       its budget.
    3. Give the rest to worker processes, bounds first, then long and quick ones in turn. Tasks whose results can no
       longer matter (`sufficiency`) are skipped or stopped.

Workers are forked where the solvers allow it, which takes milliseconds. Elsewhere they are programs of their own, which
load everything anew for about two seconds, so this process goes on that long by itself.

A candidate that overruns its budget is stopped, one that kills its process costs only that process; both are reported,
and the others go on. Planners of other packages, and those that ask for it, always get a process of their own.

Budgets are CPU seconds, not seconds on the clock: results do not depend on the load of the computer, the number of
workers, or on which process made them. An exception is a candidate that its budget ended: a faster computer may finish.
"""

from __future__ import annotations

import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from types import FrameType

from antiphon.isolate import GRACE, Ended, Lost, Say, Starved, Stopped, Terms, as_done, can_fork
from antiphon.select.schedule_cache import ScheduleCache
from antiphon.select.sufficiency import expected_effort
from antiphon.select.task import (
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
    run_task,
    warm_up,
)  # fmt: skip

HEAD_START = 0.3  # CPU seconds in this process before workers are forked
HEAD_START_OF_PROGRAMS = 2.0  # likewise where they are programs of their own: starting them takes about as much
WARM_LIMIT = 120.0  # CPU seconds for a model to load or compile
WATCH = 2.0  # seconds from one report of what is at work to the next
BOUND_LIMIT = 120.0  # CPU seconds for the bounds of a collective
Tell = Callable[[Message | AtWork], None]
Needed = Callable[[Task], bool]


def limit_of(context: Context, task: Task) -> float:
    """Return the CPU seconds after which a task is stopped."""
    return BOUND_LIMIT if task.entry is None else context.budget


def overrun_message(context: Context, task: Task) -> Done:
    reason = f"stopped after {limit_of(context, task):.3g} s of CPU time"
    advice = "; give it more with a greater budget" if task.entry is not None else ""
    return Done(task.index, TIMED_OUT, reason + advice, BUDGET)


def run_tasks(
    context: Context, tasks: Sequence[Task], workers: int, tell: Tell, is_needed: Needed = lambda task: True
) -> None:
    """Do all tasks; `tell` receives, in this thread, every message at once. workers=0: only this process.

    Tasks that `is_needed` rejects, given the messages so far, are skipped or stopped.

    Planners with the least effort come first, so that something good is soon known. Planners that are not built in, or
    that ask for it (`can.process`), always get a process of their own.
    """
    cache = ScheduleCache()
    waiting = deque(sorted(tasks, key=lambda task: (task.entry is None, expected_effort(task))))  # bounds come last
    # only the main thread gets the signal of the timer; in other threads workers do everything, if there are any
    if workers == 0 or _can_interrupt():
        with suppress(_OverrunError), _interrupted_after(WARM_LIMIT):
            warm_up(context)
        begin = time.process_time()
        head_start = HEAD_START if can_fork() else HEAD_START_OF_PROGRAMS
        for _ in range(len(waiting)):
            if workers and time.process_time() - begin > head_start:
                break
            task = waiting.popleft()
            if not is_needed(task):
                continue
            # to the end of the queue, for the workers
            if workers and (_needs_process(task) or _plans_groups(task)):
                waiting.append(task)
                continue
            _do_here(context, cache, task, tell)
    if waiting:
        ordered = order_for_workers(waiting)
        _do_in_workers(context, cache, ordered, min(workers, len(ordered)), tell, is_needed)


def order_for_workers(tasks: Iterable[Task]) -> list[Task]:
    """Return the bounds, then by expected effort the greatest, the least, the next greatest, the next least, ...

    So one worker begins with what takes longest, and another does the quick ones, which may make the long ones
    needless.
    """
    bounds = [task for task in tasks if task.entry is None]
    by_effort = deque(sorted((task for task in tasks if task.entry is not None), key=expected_effort))
    alternating = [by_effort.popleft() if turn % 2 else by_effort.pop() for turn in range(len(by_effort))]
    return [*bounds, *alternating]


def _needs_process(task: Task) -> bool:
    entry = task.entry
    return entry is not None and (not entry.own or entry.can.process)


def _plans_groups(task: Task) -> bool:
    """Return whether the task asks many planners for many groups, and is so no quick one."""
    return task.entry is not None and task.entry.can.composes


# ---- in this process ----


class _OverrunError(BaseException):
    """Not an Exception, so that no planner catches it as one of its own."""


def _can_interrupt() -> bool:
    return threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGPROF) is not None


@contextmanager
def _interrupted_after(seconds: float) -> Iterator[None]:
    """Raise _OverrunError in the block after so much CPU time. A timer that was set before is restored, less the time
    spent."""
    if not _can_interrupt():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise _OverrunError

    begin = time.process_time()
    handler = signal.signal(signal.SIGPROF, stop)
    remaining, interval = signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, handler)
        if remaining:
            signal.setitimer(signal.ITIMER_PROF, max(remaining - (time.process_time() - begin), 1e-3), interval)


def _do_here(context: Context, cache: ScheduleCache, task: Task, tell: Tell) -> None:
    done = False
    try:
        with _interrupted_after(limit_of(context, task)):
            for message in run_task(context, cache, task):
                done = isinstance(message, Done)
                tell(message)
    except _OverrunError:
        if not done:
            tell(overrun_message(context, task))


# ---- in worker processes ----


def _do_in_workers(
    context: Context, cache: ScheduleCache, tasks: Sequence[Task], workers: int, tell: Tell, is_needed: Needed
) -> None:
    ends: dict[int, Done] = {}
    cache.forget_last()  # every process would get a copy, without its loads
    reported = time.monotonic()

    def watch(tasks: Sequence[tuple[Task, float]]) -> None:
        nonlocal reported
        if time.monotonic() >= reported + WATCH:
            reported = time.monotonic()
            tell(AtWork(tuple((task.index, seconds) for task, seconds in tasks)))

    terms = Terms[Task](
        partial(_do_in_worker, context, cache), workers, partial(limit_of, context), grace=GRACE,
        prepare=partial(warm_up, context), watch=watch, fork=True,
    )  # fmt: skip
    with closing(as_done(tasks, terms, is_needed)) as messages:
        try:
            for task, message in messages:
                if isinstance(message, Ended):
                    _tell_end(context, cache, task, message.result, ends.pop(task.index, None), tell)
                elif isinstance(message.value, Done):
                    ends[task.index] = message.value  # counts once its process has ended the task
                else:
                    tell(message.value)
        except KeyboardInterrupt:  # tasks that were done, but not ended; those stopped by it state a spent budget
            for done in ends.values():
                if done.status == OK:
                    tell(done)
            raise


def _do_in_worker(context: Context, cache: ScheduleCache, task: Task, say: Say) -> None:
    for message in run_task(context, cache, task):
        say(message)


def _tell_end(
    context: Context, cache: ScheduleCache, task: Task, result: object, done: Done | None, tell: Tell
) -> None:  # fmt: skip
    """Report how a task ended. An error that it raised when it was stopped is no failure of its own."""
    if isinstance(result, Lost) and not result.begun:  # no process got ready: slow is better than nothing
        _do_here(context, cache, task, tell)
    elif isinstance(result, Stopped) and (done is None or done.status != OK):
        tell(overrun_message(context, task))
    elif isinstance(result, Starved):
        tell(Done(task.index, FAILED, OUT_OF_MEMORY, MEMORY))
    elif isinstance(result, Lost):
        tell(Done(task.index, FAILED, one_line(str(result)), CRASH if result.died else ""))
    else:
        assert done is not None
        tell(done)
