"""Run many jobs in isolated processes: `as_done` yields results as they come, `in_order` in the order of the jobs.

One loop per pool: start processes up to `workers`, wait until one is readable or due for a check, yield its message,
assign it the next job. Each round also checks budgets (`Process.check`), by the CPU time that `_meter` reads, so a
child cannot exceed its limit by ignoring signals. Ctrl-C that comes while messages are read is raised after them, so
that no message is read halfway.

Example: jobs a, b, c on two workers, c done before a. `as_done` yields b, c, a; `in_order` yields a, b, c, and starts
c while a still runs.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from multiprocessing.connection import wait
from typing import Any

from antiphon.errors import AntiphonError, TimedOut
from antiphon.isolate._here import run_here
from antiphon.isolate._meter import TICK
from antiphon.isolate._process import (
    CAN_ISOLATE,
    STOP_INTERVAL,
    Ended,
    Job,
    Lost,
    PoolTerms,
    Process,
    Sent,
    Stopped,
    can_fork,
)

MAX_WORKERS = 4  # more processes compete for caches and memory
MAX_AHEAD = 3  # `in_order`: jobs per worker that may be begun before their results are consumed
MAX_FAILED_STARTS = 3  # after this many workers that never got ready, no more are started
MIN_WAIT = 0.02  # seconds between two checks, at least

# Process, its job, message. (process, None, None): it is ready for a job; (process, None, Ended): it ended without one
Event = tuple[Process[Job], Job | None, Sent | Ended | None]


def available_processors() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def usual_workers() -> int:
    """Return the number of processors that this process may use, up to MAX_WORKERS."""
    return max(1, min(available_processors(), MAX_WORKERS))


class _Listener:
    """Reads the messages of processes.

    Ctrl-C while a message is read takes effect after the messages read so far were yielded, since the pipe is unusable
    after half a message. A second Ctrl-C takes effect at once.
    """

    def __init__(self) -> None:
        self._interrupted = False

    def wait_for_events(self, processes: Sequence[Process[Job]]) -> list[Event[Job]]:
        """Wait until a process has a message or must be checked, and return the events (perhaps none)."""
        self.interrupt()
        ready = wait([process.channel for process in processes], _seconds_until_check(processes))
        # Only the main thread can install a handler; elsewhere Ctrl-C does not interrupt the read anyway. Nor is there
        # anything to delay where no function handles it (SIG_IGN, SIG_DFL).
        handler = signal.getsignal(signal.SIGINT)
        if not callable(handler) or threading.current_thread() is not threading.main_thread():
            return _read_messages(processes, ready)
        signal.signal(signal.SIGINT, self._remember_interrupt)
        try:
            return _read_messages(processes, ready)
        finally:
            signal.signal(signal.SIGINT, handler)

    def interrupt(self) -> None:
        """Raise a Ctrl-C that was remembered."""
        if self._interrupted:
            self._interrupted = False
            signal.raise_signal(signal.SIGINT)

    def _remember_interrupt(self, number: int, frame: object) -> None:
        if self._interrupted:
            raise KeyboardInterrupt
        self._interrupted = True


def _read_messages(processes: Sequence[Process[Job]], ready: Sequence[object]) -> list[Event[Job]]:
    """Read one message of each process that is `ready`, and check the budgets of all."""
    events: list[Event[Job]] = []
    for process in processes:
        job = process.job
        if process.channel in ready:
            events.append((process, job, process.receive()))
        if process.running and (ended := process.check()) is not None:  # also if it sends without pause
            events.append((process, job, ended))
    return events


def _seconds_until_check(processes: Sequence[Process[Any]]) -> float:
    """Return the seconds until one of these processes must be checked: from MIN_WAIT to TICK."""
    if any(process.stopping for process in processes):
        return STOP_INTERVAL
    # a process and its descendants may use all processors at once, and so reach the limit that much sooner
    processors = available_processors()
    seconds_left = [
        (process.limit - process.meter.used) / processors for process in processes if process.limit is not None
    ]
    return min([TICK, *(max(seconds, MIN_WAIT) for seconds in seconds_left)])


def as_done(
    jobs: Iterable[Job], terms: PoolTerms[Job], is_needed: Callable[[Job], bool] = lambda job: True
) -> Generator[tuple[Job, Sent | Ended], None, None]:
    """Yield (job, Sent) for intermediate results and (job, Ended) for the end of each job, as they come.

    `terms.work` and jobs must be picklable. A worker gets the next job when it has finished one; a stopped or lost
    worker is replaced. With `terms.grace`, Ctrl-C is raised after the running jobs have returned their best results. If
    no worker gets ready, the remaining jobs are Lost. Jobs that are no longer needed (`is_needed`) are dropped or
    killed; nothing is yielded for them.
    """
    if not CAN_ISOLATE:
        yield from run_here(jobs, terms, is_needed)
        return
    waiting, pool, failed_starts = deque(jobs), list[Process[Job]](), 0
    listener = _Listener()
    try:
        while waiting or pool:
            waiting = _drop_unneeded(waiting, pool, is_needed)
            if not waiting and not pool:
                break
            # a worker per waiting or running job, up to the limit; none if workers fail to start
            pool_size = (
                0
                if failed_starts >= MAX_FAILED_STARTS
                else min(terms.workers, len(waiting) + sum(p.job is not None for p in pool))
            )
            while len(pool) < pool_size:
                pool.append(Process(terms))
            if not pool:
                yield waiting.popleft(), Ended(Lost("no process gets ready here", begun=False))
                continue
            for process, job, event in listener.wait_for_events(pool):
                if event is not None and job is not None:
                    yield job, event
                elif event is not None:  # the process ended before it got a job
                    failed_starts += 1
                elif waiting:  # here and below, the process asks for a job
                    process.assign(terms.update(waiting.popleft()))  # the job may use results of earlier ones
                else:
                    process.end()
            pool[:] = [process for process in pool if process.running]
            if terms.watch is not None:
                terms.watch([(process.job, process.meter.used) for process in pool if process.job is not None])
    except KeyboardInterrupt:
        if terms.grace:
            yield from _collect_last_results(listener, pool)
        raise
    finally:
        for process in pool:
            process.end()
        listener.interrupt()


def _drop_unneeded(waiting: Iterable[Job], pool: list[Process[Job]], is_needed: Callable[[Job], bool]) -> deque[Job]:
    """Kill the processes whose jobs are no longer needed, and return the waiting jobs that are needed."""
    for process in pool:
        if process.job is not None and not is_needed(process.job):
            process.end()
    pool[:] = [process for process in pool if process.running]
    return deque(job for job in waiting if is_needed(job))


def _collect_last_results(
    listener: _Listener, pool: Sequence[Process[Job]]
) -> Generator[tuple[Job, Sent | Ended], None, None]:
    """Stop all processes after Ctrl-C, and yield what their jobs still return: intermediate results, and values or
    errors of jobs that end by themselves.
    """
    for process in pool:
        process.stop()
    # reading also checks the processes, which kills them when their grace is over
    while working := [process for process in pool if process.running and process.job is not None]:
        for _, job, event in listener.wait_for_events(working):
            if job is None or event is None or (isinstance(event, Ended) and isinstance(event.result, Stopped)):
                continue  # no `Ended` for a job that Ctrl-C stopped: the caller raises KeyboardInterrupt
            yield job, event


def in_order(
    jobs: Iterable[Job], terms: PoolTerms[Job], is_needed: Callable[[Job], bool] = lambda job: True,
    on_message: Callable[[Any], None] = lambda value: None,
) -> Generator[tuple[Job, Any], None, None]:  # fmt: skip
    """Yield (job, result) for every needed job, in order: what `terms.work` returned, Stopped or Lost. AntiphonErrors
    are raised in their turn.

    The results do not depend on the number of workers: each job has a process of its own, forked from this one, so
    `terms.work` need not be picklable. A job that earlier results make needless (`is_needed`, called after each result)
    is killed and dropped. `on_message` receives intermediate results at once. Once `terms.seconds(job)`, a job's
    budget, raises TimedOut, no more jobs begin, and the error is raised after the results of those that have begun.
    """
    if not CAN_ISOLATE:
        yield from _in_order_here(jobs, terms, is_needed, on_message)
        return
    remaining = iter(jobs)
    started = deque[Process[Job]]()
    listener = _Listener()
    budget_error: TimedOut | None = None  # from terms.seconds
    jobs_left = True
    try:
        while True:
            # start jobs ahead of the first unfinished one, but only a few: memory holds their results
            while (
                jobs_left
                and sum(p.running for p in started) < terms.workers
                and len(started) < MAX_AHEAD * terms.workers
            ):
                job = next(remaining, None)
                jobs_left = job is not None
                if job is not None and is_needed(job):
                    try:
                        started.append(Process(terms, job))
                    except TimedOut as error:
                        jobs_left, budget_error = False, error
            if not started:
                break
            # results are yielded in order, so wait for the oldest process
            if started[0].running:
                for process, _, event in listener.wait_for_events([p for p in started if p.running]):
                    if isinstance(event, Sent):
                        on_message(event.value)
                    elif event is not None:
                        process.result = event.result
                continue
            first = started.popleft()
            if isinstance(first.result, AntiphonError):
                raise first.result
            yield first.first_job, first.result
            for other in [p for p in started if not is_needed(p.first_job)]:
                other.end()
                started.remove(other)
        if budget_error is not None:
            raise budget_error
    finally:
        for process in started:
            process.end()
        listener.interrupt()


def _in_order_here(
    jobs: Iterable[Job], terms: PoolTerms[Job], is_needed: Callable[[Job], bool], on_message: Callable[[Any], None]
) -> Generator[tuple[Job, Any], None, None]:
    """Do what `in_order` does, with all jobs in this process."""
    for job, event in run_here(jobs, terms, is_needed):
        if isinstance(event, Sent):
            on_message(event.value)
        elif isinstance(event.result, AntiphonError):
            raise event.result
        else:
            yield job, event.result


def stream_job(job: Job, terms: PoolTerms[Job], *, own_program: bool = False) -> Generator[Any, None, None]:
    """Yield the intermediate results of one job; then raise its AntiphonError, Stopped or Lost, if it ended so.

    It runs in a process forked from this one; with `own_program`, or where forking is unsafe (`can_fork`), in a program
    of its own, which costs a tenth of a second and discards what the job prints. With `terms.grace`, Ctrl-C is raised
    after its last results.
    """
    events = as_done([job], terms) if own_program or not can_fork() else _fork_job(job, terms)
    with closing(events):
        for _, event in events:
            if isinstance(event, Sent):
                yield event.value
            elif isinstance(event.result, BaseException):
                raise event.result


def _fork_job(job: Job, terms: PoolTerms[Job]) -> Generator[tuple[Job, Sent | Ended], None, None]:
    """Do the same as `as_done` for one job, in a process forked from this one."""
    process, listener = Process(terms, job), _Listener()
    try:
        while process.running:
            yield from ((job, event) for _, _, event in listener.wait_for_events([process]) if event is not None)
    except KeyboardInterrupt:
        if terms.grace:
            yield from _collect_last_results(listener, [process])
        raise
    finally:
        process.end()
        listener.interrupt()


def run_in_child(
    function: Callable[..., Any], *args: Any, seconds: float | None = None, memory: int | None = None
) -> Any:
    """Return `function(*args)`, computed in a forked process. Raises its AntiphonError, Stopped or Lost."""
    terms = PoolTerms[int](lambda job, send: function(*args), seconds=lambda job: seconds, memory=memory)
    ((_, result),) = in_order([0], terms)  # a single job; its value, 0, is not used
    if isinstance(result, Stopped | Lost):
        raise result
    return result
