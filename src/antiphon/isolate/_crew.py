"""Run many jobs on a pool of isolated processes: `as_done` yields results as they come, `in_order` in the order of
jobs.

One loop per pool: start processes up to `workers`, wait until one is readable or due for a check, pass on its
message, give it the next job. Budgets are enforced here, by the CPU time that `_meter` reads, so a worker cannot
exceed its limit by ignoring signals. Ctrl-C is remembered while messages are read and raised afterwards, so no result
is lost halfway.
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
from antiphon.isolate._meter import TICK
from antiphon.isolate._process import NUDGE, Ended, Job, Lost, Process, Said, Stopped, Terms, can_fork

MOST_WORKERS = 4
AHEAD = 3  # jobs per worker that are begun before their results are consumed
STILLBORN = 3  # processes that never got ready, after which no more are started
SOONEST = 0.02  # seconds from one look to the next

Told = tuple[Process[Job], Job | None, Said | Ended | None]


def available_processors() -> int:
    """The processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def usual_workers() -> int:
    """The processors that this process may use, up to MOST_WORKERS."""
    return max(1, min(available_processors(), MOST_WORKERS))


class _Listener:
    """Hears what processes say. Ctrl-C that comes while a message is read takes effect when what was heard has been
    handed on, for what follows half a message cannot be read; a second one takes effect at once."""

    def __init__(self) -> None:
        self._interrupted = False

    def hear(self, processes: Sequence[Process[Job]]) -> list[Told[Job]]:
        """Wait for any process: return messages with their jobs, None for a process ready for a job, and ends."""
        self.interrupt()
        ready = wait([process.channel for process in processes], _seconds_until_look(processes))
        # only the main thread can install a handler; elsewhere Ctrl-C does not interrupt the read anyway
        handler = signal.getsignal(signal.SIGINT)
        if not callable(handler) or threading.current_thread() is not threading.main_thread():
            return _read_messages(processes, ready)
        signal.signal(signal.SIGINT, self._remember_interrupt)
        try:
            return _read_messages(processes, ready)
        finally:
            signal.signal(signal.SIGINT, handler)

    def interrupt(self) -> None:
        """Let a remembered Ctrl-C take effect."""
        if self._interrupted:
            self._interrupted = False
            signal.raise_signal(signal.SIGINT)

    def _remember_interrupt(self, number: int, frame: object) -> None:
        if self._interrupted:
            raise KeyboardInterrupt
        self._interrupted = True


def _read_messages(processes: Sequence[Process[Job]], ready: Sequence[object]) -> list[Told[Job]]:
    events: list[Told[Job]] = []
    for process in processes:
        job = process.job
        if process.channel in ready:
            events.append((process, job, process.hear()))
        if process.running and (ended := process.look()) is not None:  # also those that talk all the time
            events.append((process, job, ended))
    return events


def _seconds_until_look(processes: Sequence[Process[Any]]) -> float:
    """Seconds until one of them must be looked at."""
    if any(process.stopping for process in processes):
        return NUDGE
    # a process and its descendants may use several processors at once, and so reach the limit that much sooner
    processors = available_processors()
    seconds_left = [
        (process.limit - process.meter.used) / processors for process in processes if process.limit is not None
    ]
    return min([TICK, *(max(seconds, SOONEST) for seconds in seconds_left)])


def as_done(
    jobs: Iterable[Job], terms: Terms[Job], is_needed: Callable[[Job], bool] = lambda job: True
) -> Generator[tuple[Job, Said | Ended], None, None]:
    """What jobs say while they work, and how each ended, as it comes. `work` and jobs must be picklable.

    A process takes the next job when it has finished one; a stopped or lost one is replaced. With `grace`,
    Ctrl-C is raised after the last words of what was at work. If no process gets ready, the remaining jobs are Lost.
    Jobs that are no longer needed (`is_needed`) are dropped, or ended without a word.
    """
    line, crew, stillborn = deque(jobs), list[Process[Job]](), 0
    listener = _Listener()
    try:
        while line or crew:
            line = _drop_unneeded(line, crew, is_needed)
            if not line and not crew:
                break
            # a process per waiting or running job, up to the limit; none if processes fail to start
            crew_size = (
                0 if stillborn >= STILLBORN else min(terms.workers, len(line) + sum(p.job is not None for p in crew))
            )
            while len(crew) < crew_size:
                crew.append(Process(terms))
            if not crew:
                yield line.popleft(), Ended(Lost("no process gets ready here", begun=False))
                continue
            for process, job, event in listener.hear(crew):
                # (process, job, event): a message or the end of a job, an end without a job, or a request for work
                if event is not None and job is not None:
                    yield job, event
                elif event is not None:
                    stillborn += 1
                elif line:
                    process.give(line.popleft())
                else:
                    process.end()
            crew[:] = [process for process in crew if process.running]
            if terms.watch is not None:
                terms.watch([(process.job, process.meter.used) for process in crew if process.job is not None])
    except KeyboardInterrupt:
        if terms.grace:
            yield from _last_words(listener, crew)
        raise
    finally:
        for process in crew:
            process.end()
        listener.interrupt()


def _drop_unneeded(line: Iterable[Job], crew: list[Process[Job]], is_needed: Callable[[Job], bool]) -> deque[Job]:
    """End the processes whose jobs are no longer needed, and return the waiting jobs that are."""
    for process in crew:
        if process.job is not None and not is_needed(process.job):
            process.end()
    crew[:] = [process for process in crew if process.running]
    return deque(job for job in line if is_needed(job))


def _last_words(listener: _Listener, crew: Sequence[Process[Job]]) -> Generator[tuple[Job, Said | Ended], None, None]:
    for process in crew:
        process.stop()
    # `stop` has asked them; `hear` insists when their grace is over
    while working := [process for process in crew if process.running and process.job is not None]:
        for _, job, event in listener.hear(working):
            if job is None or event is None or (isinstance(event, Ended) and isinstance(event.result, Stopped)):
                continue  # stopped by Ctrl-C, not at the end of its budget: KeyboardInterrupt follows
            yield job, event


def in_order(
    jobs: Iterable[Job], terms: Terms[Job], is_needed: Callable[[Job], bool] = lambda job: True,
    heard: Callable[[Any], None] = lambda value: None,
) -> Generator[tuple[Job, Any], None, None]:  # fmt: skip
    """Every needed job with what `work` returned, or with Stopped or Lost; AntiphonErrors are raised in their turn.

    The results do not depend on the number of workers: a job sees nothing of those before it, results are yielded in
    the order of the jobs, and a job that earlier results make needless (`is_needed` is asked after each)
    is ended and dropped. `heard` hears at once what jobs say. No more begin once `terms.seconds` raises TimedOut, which
    is raised after those that have begun.
    """
    waiting = iter(jobs)
    line = deque[Process[Job]]()
    listener = _Listener()
    ended: TimedOut | None = None
    jobs_left = True
    try:
        while True:
            # start jobs ahead of the first unfinished one, but only a few: memory holds their results
            while jobs_left and sum(p.running for p in line) < terms.workers and len(line) < AHEAD * terms.workers:
                job = next(waiting, None)
                jobs_left = job is not None
                if job is not None and is_needed(job):
                    try:
                        line.append(Process(terms, job))
                    except TimedOut as error:
                        jobs_left, ended = False, error
            if not line:
                break
            # results are yielded in order, so wait for the first in the line
            if line[0].running:
                for process, _, event in listener.hear([p for p in line if p.running]):
                    if isinstance(event, Said):
                        heard(event.value)
                    elif event is not None:
                        process.result = event.result
                continue
            first = line.popleft()
            if isinstance(first.result, AntiphonError):
                raise first.result
            yield first.given, first.result
            for other in [p for p in line if not is_needed(p.given)]:
                other.end()
                line.remove(other)
        if ended is not None:
            raise ended
    finally:
        for process in line:
            process.end()
        listener.interrupt()


def stream_job(job: Job, terms: Terms[Job], *, own_program: bool = False) -> Generator[Any, None, None]:
    """Yield what a job says while it works; then raise how it ended: its AntiphonError, Stopped or Lost, if any.

    It works in a process forked from this one, or with `own_program` in a program of its own, which costs a tenth of a
    second, and in which what it prints goes nowhere. With `terms.grace`, Ctrl-C is raised after its last words.
    """
    events = as_done([job], terms) if own_program or not can_fork() else _fork_job(job, terms)
    with closing(events):
        for _, event in events:
            if isinstance(event, Said):
                yield event.value
            elif isinstance(event.result, BaseException):
                raise event.result


def _fork_job(job: Job, terms: Terms[Job]) -> Generator[tuple[Job, Said | Ended], None, None]:
    """As `as_done` for one job, in a process forked from this one."""
    process, listener = Process(terms, job), _Listener()
    try:
        while process.running:
            yield from ((job, event) for _, _, event in listener.hear([process]) if event is not None)
    except KeyboardInterrupt:
        if terms.grace:
            yield from _last_words(listener, [process])
        raise
    finally:
        process.end()
        listener.interrupt()


def apart(function: Callable[..., Any], *args: Any, seconds: float | None = None, memory: int | None = None) -> Any:
    """`function(*args)` in a forked process: what it returns. Raises its AntiphonError, Stopped or Lost."""
    terms = Terms[int](lambda job, say: function(*args), seconds=lambda job: seconds, memory=memory)
    ((_, result),) = in_order([0], terms)
    if isinstance(result, Stopped | Lost):
        raise result
    return result
