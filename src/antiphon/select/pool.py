"""Run all tasks of a tuning: the quick ones first in this process, the others in worker processes, one per core.

A task (task.py) tries one planner with its options, or computes the bounds of a collective; its results are messages.

    1. Order the tasks by the effort that planners declare, tasks with options later, bounds last.
    2. Run tasks in this process until HEAD_START CPU seconds are spent, so that a first result is known at once and
       forked workers inherit loaded models and planners. A timer of the CPU time (SIGPROF) interrupts a task that
       exceeds its budget.
    3. Give the others to worker processes, bounds first, then the longest two, then quick and long ones
       alternately. Tasks whose results can no longer matter (sufficiency.py) are skipped or stopped.

Workers are forked if the loaded solvers allow it, which takes milliseconds. Otherwise a worker is a new Python process,
which imports everything again for about two seconds; this process runs tasks by itself for that long.

A candidate that exceeds its budget is stopped. A candidate that crashes ends only its process. Both are reported, and
the other candidates go on. Planners of other packages, and those that declare it (`can.process`), always run in a
worker.

Budgets are CPU seconds, not wall-clock seconds, so results do not depend on the load of the computer, on the number of
workers, or on which process computed them. The exception is a candidate that its budget ended: a faster computer may
finish it. Tasks stop each other by the times so far, so they stay on this computer, in the pool of processes that runs
the independent jobs of `isolate.run_jobs`, too, and do not go to a cluster.

Example: tasks bounds, ring (1 ms), trees (2 s), compose (5 s), two workers. ring runs here; then one worker starts with
the bounds and the other with compose, and whichever is free first takes trees.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from functools import partial

from antiphon.isolate import (
    CAN_ISOLATE,
    GRACE,
    Ended,
    Lost,
    PoolTerms,
    Send,
    Starved,
    Stopped,
    as_done,
    can_fork,
    can_interrupt,
    interrupted_after,
)  # fmt: skip
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
HEAD_START_UNFORKED = 2.0  # likewise if workers cannot be forked: starting one takes about as long
WARM_LIMIT = 120.0  # CPU seconds for a model to load or compile
WATCH_INTERVAL = 2.0  # seconds between two `AtWork` messages
BOUND_LIMIT = 120.0  # CPU seconds for the bounds of a collective
Report = Callable[[Message | AtWork], None]  # receives each message
Needed = Callable[[Task], bool]  # whether the result of a task can still matter
Update = Callable[[Task], Task]  # returns a task that is about to begin, with the best times so far (`Task.rivals`)


def limit_of(context: Context, task: Task) -> float:
    """Return the CPU seconds after which a task is stopped."""
    return BOUND_LIMIT if task.entry is None else context.budget


def overrun_message(context: Context, task: Task) -> Done:
    """Return the end of a task that exceeded its budget."""
    reason = f"stopped after {limit_of(context, task):.3g} s of CPU time"
    advice = "; give it more with a greater budget" if task.entry is not None else ""
    return Done(task.index, TIMED_OUT, reason + advice, BUDGET)


def run_tasks(
    context: Context, tasks: Sequence[Task], workers: int, report: Report, is_needed: Needed = lambda task: True,
    update: Update = lambda task: task,
) -> None:  # fmt: skip
    """Run all tasks; `report` receives every message at once, in this thread. workers=0: only this process.

    Tasks that `is_needed` rejects, given the messages so far, are skipped or stopped. A task begins as `update` returns
    it.
    """
    cache = ScheduleCache()
    workers = workers if CAN_ISOLATE else 0
    waiting = deque(sorted(tasks, key=lambda task: (task.entry is None, expected_effort(task))))  # bounds come last
    # The timer can interrupt only the main thread. In another thread all tasks are left to workers.
    if workers == 0 or can_interrupt():
        with suppress(_OverrunError), interrupted_after(WARM_LIMIT, _OverrunError):
            warm_up(context)
        begin = time.process_time()
        head_start = HEAD_START if can_fork() else HEAD_START_UNFORKED
        for _ in range(len(waiting)):
            if workers and time.process_time() - begin > head_start:
                break
            task = waiting.popleft()
            if not is_needed(task):
                continue
            # if it must not run in this process, or is not quick: leave it to the workers, at the end of the queue
            if workers and (_needs_process(task) or (task.entry is not None and task.entry.can.composes)):
                waiting.append(task)
                continue
            report(AtWork(((task.index, 0.0),)))
            _run_here(context, cache, update(task), report)
    if waiting:
        ordered = order_for_workers(waiting)
        _run_in_workers(context, cache, ordered, min(workers, len(ordered)), report, is_needed, update)


def order_for_workers(tasks: Iterable[Task]) -> list[Task]:
    """Return the tasks in the order for workers: bounds first, then alternately long and quick ones.

    By expected effort: the second greatest, the greatest, the least, the next greatest, the next least, ...

    So one worker begins with a long task while another, after the bounds, runs quick ones, whose results may make long
    ones unnecessary. The second greatest is first: begun later, it would end last. The greatest often ends early.
    """
    bounds = [task for task in tasks if task.entry is None]
    by_effort = deque(sorted((task for task in tasks if task.entry is not None), key=expected_effort))
    # turns 0 and 1 take the two greatest, later turns the least and the greatest of the others
    alternating = [
        by_effort.popleft() if turn > 1 and turn % 2 == 0 else by_effort.pop() for turn in range(len(by_effort))
    ]
    # the first two were popped in the order greatest, second; begin with the second
    return [*bounds, *alternating[1::-1], *alternating[2:]]


def _needs_process(task: Task) -> bool:
    """Return whether the planner must not run in this process: it is not ours, or declares so."""
    entry = task.entry
    return entry is not None and (not entry.is_builtin or entry.can.process)


# ---- in this process ----


class _OverrunError(BaseException):
    """The CPU timer expired. Not an Exception, so that no planner catches it."""


def _run_here(context: Context, cache: ScheduleCache, task: Task, report: Report) -> None:
    """Run a task in this process, within its budget."""
    has_ended = False
    try:
        with interrupted_after(limit_of(context, task), _OverrunError):
            for message in run_task(context, cache, task):
                has_ended = isinstance(message, Done)
                report(message)
    except _OverrunError:
        if not has_ended:
            report(overrun_message(context, task))


# ---- in worker processes ----


def _run_in_workers(
    context: Context, cache: ScheduleCache, tasks: Sequence[Task], workers: int, report: Report, is_needed: Needed,
    update: Update,
) -> None:  # fmt: skip
    """Run tasks on forked workers, each with its budget."""
    ends: dict[int, Done] = {}  # by task, its last message
    cache.last_schedule = None  # else every worker would hold a copy of that schedule
    last_watch = time.monotonic()

    def watch(tasks: Sequence[tuple[Task, float]]) -> None:
        nonlocal last_watch
        if time.monotonic() >= last_watch + WATCH_INTERVAL:
            last_watch = time.monotonic()
            report(AtWork(tuple((task.index, seconds) for task, seconds in tasks)))

    terms = PoolTerms[Task](
        partial(_run_in_worker, context, cache), workers=workers, seconds=partial(limit_of, context), grace=GRACE,
        prepare=partial(warm_up, context),  # where workers are not forked; forked ones inherit the loaded model
        watch=watch, fork=True, update=update,
    )  # fmt: skip
    with closing(as_done(tasks, terms, is_needed)) as messages:
        try:
            for task, message in messages:
                if isinstance(message, Ended):
                    _report_end(context, cache, task, message.result, ends.pop(task.index, None), report)
                elif isinstance(message.value, Done):
                    ends[task.index] = message.value  # reported once the worker has confirmed the end of the task
                else:
                    report(message.value)
        except KeyboardInterrupt:
            # Report tasks that are complete, though their worker has not confirmed it. The others were interrupted.
            for done in ends.values():
                if done.status == OK:
                    report(done)
            raise


def _run_in_worker(context: Context, cache: ScheduleCache, task: Task, send: Send) -> None:
    """Run a task in a worker process; send each message to the parent process."""
    for message in run_task(context, cache, task):
        send(message)


def _report_end(
    context: Context, cache: ScheduleCache, task: Task, result: object, done: Done | None, report: Report
) -> None:  # fmt: skip
    """Report how a task ended.

    `done`: the last message of the task itself, None if it sent none. Of a task that was stopped only OK counts.
    """
    if isinstance(result, Lost) and not result.begun:  # no worker could be started: run it here
        _run_here(context, cache, task, report)
    elif isinstance(result, Stopped) and (done is None or done.status != OK):
        report(overrun_message(context, task))
    elif isinstance(result, Starved):
        report(Done(task.index, FAILED, OUT_OF_MEMORY, MEMORY))
    elif isinstance(result, Lost):
        report(Done(task.index, FAILED, one_line(str(result)), CRASH if result.died else ""))
    else:
        assert done is not None
        report(done)
