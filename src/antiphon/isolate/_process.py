"""The parent side of one isolated process: start it, give it jobs, read its messages, enforce its budget, end it.

Stopping escalates: SIGTERM asks the process to hand over its best result and end; after `grace` seconds, or when it
has overrun its CPU budget by a tenth, the process and everything that it started are killed. `look` must be called
regularly, because that is where budgets are checked.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any, Generic, TypeVar

from antiphon.isolate import _child
from antiphon.isolate._child import CHANNEL, ENDED, RAISED, READY, RETURNED, SAID, STARVED, Say
from antiphon.isolate._meter import Meter

START = 120.0  # CPU seconds for a program to get ready
GRACE = 2.0  # seconds to hand over what is half done, after being told to stop
NUDGE = 0.05  # seconds between two times of telling
OVERRUN, OVERRUN_SECONDS = 1.1, 0.2  # maximum CPU time while it is stopping: factor of the budget, plus seconds
SETTLE = 1.0  # seconds in which one that has closed its channel ends
_PROGRAM = "from antiphon.isolate._child import program; program()"
_QUIET = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
Job = TypeVar("Job")


class Lost(Exception):
    """There is no answer; says why. `begun`: whether the job had begun; `died`: whether its process did, or else the
    work raised what is no AntiphonError, or returned what cannot be handed over."""

    def __init__(self, message: str, *, begun: bool = True, died: bool = True) -> None:
        super().__init__(message)
        self.begun, self.died = begun, died


class Starved(Lost):
    """The work wanted more memory than there is for it."""


class Stopped(Exception):
    """The work was stopped at the end of its budget."""


@dataclass(frozen=True)
class Said:
    """What a job tells while it works."""

    value: Any


@dataclass(frozen=True)
class Ended:
    """How a job ended: what it returned, or the AntiphonError that it raised, or Stopped, or Lost."""

    result: Any


@dataclass(frozen=True)
class Terms(Generic[Job]):
    """Options of a pool: `work(job, say)` runs in the worker process.

    `seconds`: CPU budget of a job, computed when it begins (None: unlimited). `memory`: bytes that a process may
    allocate beyond its size at the start. `grace`: seconds for the work to return a partial result after TimedOut has
    been raised in it, at the end of its budget or at Ctrl-C; it is killed earlier if it exceeds its budget by OVERRUN.
    `prepare`: runs once in a worker before its first job, without a budget. `watch`: with `as_done`, called at
    every check, TICK or sooner, with the jobs in progress and the CPU seconds of each. `fork`: workers are forked from
    this process, which takes milliseconds, where `can_fork`; else they are programs of their own.
    """

    work: Callable[[Job, Say], Any]
    workers: int = 1
    seconds: Callable[[Job], float | None] = lambda job: None
    memory: int | None = None
    grace: float = 0.0
    prepare: Callable[[], None] | None = None
    watch: Callable[[Sequence[tuple[Job, float]]], None] | None = None
    fork: bool = False


class Process(Generic[Job]):
    """A process, its job, and what it has used for it. `job` given: forked for just that one; else a worker, which
    does one job after another.
    """

    def __init__(self, terms: Terms[Job], *job: Job) -> None:
        self.terms, self.is_worker = terms, not job
        self.ready = not self.is_worker
        self.running, self.result = True, None
        self.stopping = 0.0  # time of the request to stop, 0 if none
        self._code: int | None = None
        self.limit: float | None = terms.seconds(*job) if job else START
        self.channel, theirs = Pipe(duplex=True)
        try:
            spawned = self.is_worker and not (terms.fork and can_fork())
            self.pid = _spawn_program(theirs) if spawned else self._fork_child(theirs, *job)
        finally:
            theirs.close()
        self.meter = Meter(self.pid)
        self.job: Job | None = None
        if job:
            self.job = self.given = job[0]
        elif spawned:
            self._send_message((terms.work, terms.prepare, terms.memory))

    def _fork_child(self, theirs: Connection, *job: Job) -> int:
        end_threads_of_solvers()
        parent, terms = os.getpid(), self.terms
        pid = os.fork()
        if not pid:
            try:
                self.channel.close()
                if job:
                    _child.forked(theirs, parent, terms.work, job[0], terms.memory, bool(terms.grace))
                else:
                    _child.forked_worker(theirs, parent, terms.work, terms.prepare, terms.memory)
            finally:
                os._exit(0)
        return pid

    def give(self, job: Job) -> None:
        self.job, self.limit = job, self.terms.seconds(job)
        self.meter.start()
        self._send_message(job)

    def _send_message(self, message: Any) -> None:
        with suppress(OSError):  # it has died: that is seen when it is listened to
            self.channel.send(message)

    def hear(self) -> Said | Ended | None:
        """Its next message, for which `channel` is ready; None where it is ready for a job."""
        try:
            kind, value = self.channel.recv()
        except Exception:  # it has ended, or what it sent cannot be read
            return self._end_of_lost()
        if kind == SAID:
            return Said(value)
        # it has imported everything; the limit for starting ends
        if kind == READY:
            self.ready, self.limit = True, None
            return None
        assert kind == ENDED
        result = self._stopped_error() if self.stopping else _result_of(*value)
        self.job = self.limit = None
        # a stopped one may be in any state
        if not self.is_worker or self.stopping:
            self.end()
        return Ended(result)

    def look(self) -> Ended | None:
        """Whether it is over its budget, or dead while what it began keeps its channel open: how it ended then."""
        if self.stopping:
            return self._insist_on_end()
        if self.limit is not None and self.meter.over(self.limit):
            # over the limit for starting, not for a job
            if not self.ready:
                return self._end_with(Lost(f"its process was not ready within {self.limit:g} s", begun=False))
            if not self.terms.grace:
                return self._end_with(self._stopped_error())
            self.stop()
            return None
        # dead, and everything that it has sent was read
        if self._wait_for_exit(os.WNOHANG) is not None and not self.channel.poll():
            return self._end_of_lost()
        return None

    def stop(self) -> None:
        """Ask it to hand over what is half done and end; `look` insists."""
        self.stopping = self.stopping or time.monotonic()

    def _insist_on_end(self) -> Ended | None:
        with suppress(OSError):
            os.kill(self.pid, signal.SIGTERM)
        # repeated SIGTERM: the first may arrive while it is in a handler or before it has installed one
        late = time.monotonic() - self.stopping >= self.terms.grace
        if self.limit is not None:
            late |= self.meter.over(OVERRUN * self.limit + OVERRUN_SECONDS)
        return self._end_with(self._stopped_error()) if late else None

    def _stopped_error(self) -> Stopped:
        return Stopped("stopped" if self.limit is None else f"stopped after {self.limit:.3g} s of CPU time")

    def _end_of_lost(self) -> Ended:
        end = time.monotonic() + SETTLE
        while self._wait_for_exit(os.WNOHANG) is None and time.monotonic() < end:
            time.sleep(0.01)
        return self._end_with(Lost(how(self._code), begun=self.ready))

    def _end_with(self, result: Any) -> Ended:
        self.end()
        return Ended(result)

    def end(self) -> None:
        """Kill the process; a worker also with its descendants."""
        if not self.running:
            return
        self.running = False
        if self.is_worker:
            with suppress(OSError):  # nobody is left, or a worker that was just forked has no group of its own yet
                os.killpg(self.pid, signal.SIGKILL)
        if self._code is None:
            with suppress(OSError):
                os.kill(self.pid, signal.SIGKILL)
        self._wait_for_exit(0)
        self.channel.close()

    def _wait_for_exit(self, options: int) -> int | None:
        if self._code is None:
            try:
                pid, status = os.waitpid(self.pid, options)
            except ChildProcessError:  # somebody else has waited for it
                pid, status = self.pid, 0
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code


def _spawn_program(theirs: Connection) -> int:
    """Start a program of its own, which needs no fork; multiprocessing would run the user's main program again.

    Its group is its own: Ctrl-C is for us, and it ends with its descendants. What it prints goes nowhere.
    """
    source_folder = str(Path(__file__).parents[2])
    paths = dict.fromkeys([source_folder, *(str(Path(p or ".").resolve()) for p in sys.path)])
    quiet = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in range(3)]
    environment = {**os.environ, **_QUIET, "PYTHONPATH": os.pathsep.join(paths)}
    return os.posix_spawn(
        sys.executable, [sys.executable, "-P", "-c", _PROGRAM], environment,
        file_actions=[*quiet, (os.POSIX_SPAWN_DUP2, theirs.fileno(), CHANNEL)], setsid=True,
    )  # fmt: skip


def _result_of(how: str, value: Any) -> Any:
    if how in (RETURNED, RAISED):
        return value
    return (Starved if how == STARVED else Lost)(value, died=False)


def how(code: int | None) -> str:
    """How a process ended, in words."""
    if code is None:
        return "what its process sent could not be read"
    if code >= 0:
        return f"its process ended with exit code {code}"
    killed = ", as computers end what takes too much memory" if code == -signal.SIGKILL else ""
    return f"its process was ended by signal {signal.Signals(-code).name}{killed}"


# HiGHS keeps threads for all of a process. A fork does not take them along, and a mixed-integer program in the child
# would wait for them for ever; so they are ended before each fork. HiGHS starts new ones when it next runs.


def can_fork() -> bool:
    """Whether a child can solve linear programs, too. False where another SciPy has no way to end HiGHS' threads."""
    core = sys.modules.get("scipy.optimize._highspy._core")
    return core is None or _end_of_threads(core) is not None


def end_threads_of_solvers() -> None:
    core = sys.modules.get("scipy.optimize._highspy._core")
    end = None if core is None else _end_of_threads(core)
    if end is not None:
        end(True)


def _end_of_threads(core: Any) -> Callable[[bool], None] | None:
    function: Callable[[bool], None] | None = getattr(getattr(core, "_Highs", None), "resetGlobalScheduler", None)
    return function
