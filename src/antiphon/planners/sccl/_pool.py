"""Jobs done side by side, each in a forked process of its own, with results in the order of the jobs.

What comes of it does not depend on how many workers there are: a job sees nothing of those before it, results are
handed on in order, and a job that earlier results make needless is stopped and its result dropped. Processes end with
their time, with the caller (Ctrl-C, an early return, even SIGKILL on Linux), and may die: then their result is Lost.

HiGHS keeps threads for all of a process. A fork does not take them along, and a mixed-integer program in the child
would wait for them for ever; so they are ended before each fork. HiGHS starts new ones when it next runs.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any, Generic, TypeVar

from antiphon.errors import AntiphonError, TimedOut
from antiphon.planners.sccl._worker import Late, Lost, bound_to, how, outcome

MOST_WORKERS = 4
AHEAD = 3  # jobs begun or done before they are asked for, per worker
LOOK = 0.5  # seconds after which to see whether a silent process still lives

Tell = Callable[[str], None]
Job = TypeVar("Job")


@dataclass(frozen=True)
class Terms(Generic[Job]):
    """How jobs are done. `work`: run in the child; `seconds`: how long the next may take, TimedOut if it may not begin;
    `wanted`: whether a job is still of use, after all results so far.
    """

    work: Callable[[Job, Tell], Any]
    wanted: Callable[[Job], bool]
    seconds: Callable[[], float]
    workers: int
    memory: int | None = None
    tell: Tell = lambda text: None


def usual_workers() -> int:
    """The processors that this process may use, up to MOST_WORKERS."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(count, MOST_WORKERS))


def can_fork() -> bool:
    """Whether a child can solve linear programs, too. False where another SciPy has no way to end HiGHS' threads."""
    core = sys.modules.get("scipy.optimize._highspy._core")
    return hasattr(os, "fork") and (core is None or _end_of_threads(core) is not None)


def _end_of_threads(core: Any) -> Callable[[bool], None] | None:
    found: Callable[[bool], None] | None = getattr(getattr(core, "_Highs", None), "resetGlobalScheduler", None)
    return found


def side_by_side(jobs: Iterable[Job], terms: Terms[Job]) -> Generator[tuple[Job, Any], None, None]:
    """Every wanted job with what `work` returned, or with Late or Lost; AntiphonErrors are raised in their turn."""
    waiting = iter(jobs)
    line: deque[_Child[Job]] = deque()
    ended: TimedOut | None = None
    more = True
    try:
        while True:
            while more and sum(c.running for c in line) < terms.workers and len(line) < AHEAD * terms.workers:
                job = next(waiting, None)
                more = job is not None
                if job is not None and terms.wanted(job):
                    try:
                        line.append(_Child(job, terms))
                    except TimedOut as error:  # those begun may be done by now
                        more, ended = False, error
            if not line:
                break
            if line[0].running:
                _hear(line, terms.tell)
                continue
            first = line.popleft()
            if isinstance(first.result, AntiphonError):
                raise first.result
            yield first.job, first.result
            for child in [c for c in line if not terms.wanted(c.job)]:
                child.end()
                line.remove(child)
        if ended is not None:
            raise ended
    finally:
        for child in line:
            child.end()


def _hear(line: Iterable[_Child[Any]], tell: Tell) -> None:
    """Wait for any of them, as long as all have time left."""
    alive = [child for child in line if child.running]
    first = min(child.until for child in alive) - time.monotonic()
    ready = wait([child.inbox for child in alive], max(0.0, min(first, LOOK)))
    for child in alive:
        if child.inbox in ready:
            child.hear(tell)
        else:
            child.look()


class _Child(Generic[Job]):
    """One forked process, and what became of it."""

    def __init__(self, job: Job, terms: Terms[Job]) -> None:
        self.job, self.seconds = job, terms.seconds()
        self.until = time.monotonic() + self.seconds
        self.running, self.result = True, None
        core = sys.modules.get("scipy.optimize._highspy._core")
        end_of_threads = None if core is None else _end_of_threads(core)
        if end_of_threads is not None:
            end_of_threads(True)
        self.inbox, outbox = Pipe(duplex=False)
        parent = os.getpid()
        self.pid = os.fork()
        if not self.pid:
            try:
                bound_to(parent)
                _serve(outbox, job, terms)
            finally:
                os._exit(0)
        outbox.close()

    def hear(self, tell: Tell) -> None:
        """Take its next message, or see that there will be none."""
        try:
            kind, value = self.inbox.recv()
        except (EOFError, OSError):
            self.end(Lost(how(self._wait(0))))
            return
        if kind == "tell":
            tell(value)
        else:
            self.end(value)

    def look(self) -> None:
        """End it if it is late; it may also be dead while a process that it began keeps the pipe open."""
        if time.monotonic() >= self.until:
            self.end(Late(f"stopped after {self.seconds:g} s"))
        elif (code := self._wait(os.WNOHANG)) is not None and not self.inbox.poll():
            self.end(Lost(how(code)))

    def end(self, result: Any = None) -> None:
        """The process is gone after this, whatever it does."""
        if not self.running:
            return
        self.running, self.result = False, result
        if self._code is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self._wait(0)
        self.inbox.close()

    _code: int | None = None

    def _wait(self, options: int) -> int | None:
        if self._code is None:
            try:
                pid, status = os.waitpid(self.pid, options)
            except ChildProcessError:  # somebody else has waited for it
                pid, status = self.pid, 0
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code


def _serve(out: Connection, job: Job, terms: Terms[Job]) -> None:
    """In the child: do the job and send what comes of it."""
    good, value = outcome(terms.memory, terms.work, job, lambda text: out.send(("tell", text)))
    out.send(("done", value if good or isinstance(value, AntiphonError) else Lost(value)))
    out.close()
