"""The parent's side of one isolated process: start it, assign jobs, read its messages, enforce its budget, end it.

A `Process` is forked for one job, or a worker that gets one job after another (`assign`). Its owner calls
`receive` when its pipe is readable and `check` regularly, because that is where budgets are enforced. Both return
`Ended` when the job is over: with its value, or with an exception that says why there is none.

Stopping escalates: SIGTERM raises TimedOut within the job (_child.py), which may then send its best result (`Sent`) and
should end. However it ends, `Ended` then has `Stopped` as its result. After `grace` seconds, or a tenth over its CPU
budget, the process is killed, a worker with its descendants.

Example: budget 10 s, grace 2 s. At 10 s of CPU time `check` sends SIGTERM, and repeats it; the job sends its best
result at 10.5 s and ends. If it ignored the signal, it would be killed at 11.05 s of CPU time.
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
from antiphon.isolate._child import CHANNEL, ENDED, RAISED, READY, RETURNED, SENT, STARVED, Send
from antiphon.isolate._meter import Meter

CAN_ISOLATE = hasattr(os, "fork") and os.path.exists("/proc/self/stat")  # whether jobs can have processes of their own
START_SECONDS = 120.0  # CPU seconds until a worker must be ready for its first job
GRACE = 2.0  # usual seconds for a job to send its best result after SIGTERM
STOP_INTERVAL = 0.05  # seconds between two SIGTERM to the same process
# A job that is stopping may use OVERRUN times its CPU budget plus OVERRUN_SECONDS, then it is killed: with its exit and
# the work of this process, a command stays within 1.3 times a budget of 1 s.
OVERRUN = 1.1
OVERRUN_SECONDS = 0.05
SETTLE = 1.0  # seconds to wait for the exit of a process that has closed its pipe
_PROGRAM = "from antiphon.isolate._child import run_worker_program; run_worker_program()"
# Workers run side by side, so the numerical libraries of each use one thread.
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
Job = TypeVar("Job")


class Lost(Exception):
    """The job has no result, for the reason in the message.

    `begun`: whether the job had begun. `died`: whether its process died; otherwise the job raised an error that is no
    AntiphonError, or returned a value that cannot be pickled.
    """

    def __init__(self, message: str, *, begun: bool = True, died: bool = True) -> None:
        super().__init__(message)
        self.begun, self.died = begun, died


class Starved(Lost):
    """The job needed more memory than its limit."""


class Stopped(Exception):
    """The job was stopped at the end of its budget."""


@dataclass(frozen=True)
class Sent:
    """An intermediate result of a job."""

    value: Any


@dataclass(frozen=True)
class Ended:
    """The end of a job. `result`: its value, the AntiphonError that it raised, Stopped, or Lost."""

    result: Any


@dataclass(frozen=True)
class PoolTerms(Generic[Job]):
    """Options of a pool of processes."""

    work: Callable[[Job, Send], Any]  # work(job, send) runs in the child; send(value) returns an intermediate result
    workers: int = 1  # the most jobs at a time
    seconds: Callable[[Job], float | None] = lambda job: None  # CPU budget, computed when a job begins; None: unlimited
    memory: int | None = None  # bytes that a process may allocate beyond its size at the start
    # Seconds for the work to return a partial result after TimedOut has been raised in it, at the end of its budget or
    # at Ctrl-C. The job is killed earlier if it exceeds its budget by OVERRUN.
    grace: float = 0.0
    prepare: Callable[[], None] | None = None  # runs once in a worker before its first job, without a budget
    # With `as_done` (_pool.py), called every _meter.TICK seconds or sooner with the running jobs and their CPU seconds
    watch: Callable[[Sequence[tuple[Job, float]]], None] | None = None
    # Workers are forked from this process, which takes milliseconds, if `can_fork`; else they are separate programs.
    fork: bool = False
    # With `as_done`, changes a job when a worker begins it, to use results of earlier jobs
    update: Callable[[Job], Job] = lambda job: job


class Process(Generic[Job]):
    """A child process with its current job and the CPU time used for it.

    With `job` (none or one) it is forked for that job; without, it is a worker that runs one job after another.
    """

    def __init__(self, terms: PoolTerms[Job], *job: Job) -> None:
        self.terms, self.is_worker = terms, not job
        self.ready = not self.is_worker
        self.running, self.result = True, None  # `in_order` (_pool.py) sets the result
        self.stopping = 0.0  # time.monotonic() of the request to stop, 0 if none
        self._code: int | None = None
        # CPU seconds of the job, or of a worker's start; None: unlimited
        self.limit: float | None = terms.seconds(*job) if job else START_SECONDS
        self.channel, child_channel = Pipe(duplex=True)
        try:
            spawned = self.is_worker and not (terms.fork and can_fork())
            self.pid = _spawn_program(child_channel) if spawned else self._fork_child(child_channel, *job)
        finally:
            child_channel.close()
        self.meter = Meter(self.pid)
        self.job: Job | None = None
        if job:
            self.job = self.first_job = job[0]  # `job` is None once it has ended; the pool still needs `first_job` then
        elif spawned:
            self._send_message((terms.work, terms.prepare, terms.memory))

    def _fork_child(self, child_channel: Connection, *job: Job) -> int:
        """Fork; the child runs its jobs and exits. Return its process id."""
        end_threads_of_solvers()
        parent, terms = os.getpid(), self.terms
        pid = os.fork()
        if not pid:
            try:
                self.channel.close()
                if job:
                    _child.run_forked_job(child_channel, parent, terms.work, job[0], terms.memory, bool(terms.grace))
                else:
                    _child.run_forked_worker(child_channel, parent, terms.work, terms.prepare, terms.memory)
            finally:
                os._exit(0)
        return pid

    def assign(self, job: Job) -> None:
        """Give a ready worker its next job, with a fresh budget."""
        self.job, self.limit = job, self.terms.seconds(job)
        self.meter.start()
        self._send_message(job)

    def _send_message(self, message: Any) -> None:
        with suppress(OSError):  # it has died, which `receive` reports
            self.channel.send(message)

    def receive(self) -> Sent | Ended | None:
        """Return the child's next message, once `channel` is readable; None if the child is ready for a job."""
        try:
            kind, value = self.channel.recv()
        except Exception:  # it has ended, or its message cannot be read
            return self._end_of_lost()
        if kind == SENT:
            return Sent(value)
        if kind == READY:  # a worker has started, or its job is over; the limit for starting no longer applies
            self.ready, self.limit = True, None
            return None
        assert kind == ENDED
        result = stopped_error(self.limit) if self.stopping else result_of(*value)
        self.job = self.limit = None
        # a stopped worker may be in any state, so it is not used again
        if not self.is_worker or self.stopping:
            self.end()
        return Ended(result)

    def check(self) -> Ended | None:
        """Return how the job ended if it is over its budget, or if the process is dead; else None.

        A dead process is not noticed by its pipe while a descendant keeps that open.
        """
        if self.stopping:
            return self._insist_on_end()
        if self.limit is not None and self.meter.exceeds(self.limit):
            if not self.ready:  # a worker that has not started
                return self._end_with(Lost(f"its process was not ready within {self.limit:g} s", begun=False))
            if not self.terms.grace:
                return self._end_with(stopped_error(self.limit))
            self.stop()
            return None
        # dead, and all its messages have been read
        if self._wait_for_exit(os.WNOHANG) is not None and not self.channel.poll():
            return self._end_of_lost()
        return None

    def stop(self) -> None:
        """Ask the job to send its best result and end; `check` sends the signals."""
        self.stopping = self.stopping or time.monotonic()

    def _insist_on_end(self) -> Ended | None:
        """Send SIGTERM, and kill the process once its grace is over."""
        # at each check again, since the first may have arrived before the child had installed its handler
        with suppress(OSError):
            os.kill(self.pid, signal.SIGTERM)
        late = time.monotonic() - self.stopping >= self.terms.grace
        if self.limit is not None:
            late |= self.meter.exceeds(OVERRUN * self.limit + OVERRUN_SECONDS)
        return self._end_with(stopped_error(self.limit)) if late else None

    def _end_of_lost(self) -> Ended:
        """Return the end of a process that died, with its exit code in words."""
        end = time.monotonic() + SETTLE
        while self._wait_for_exit(os.WNOHANG) is None and time.monotonic() < end:
            time.sleep(0.01)
        return self._end_with(Lost(describe_exit(self._code), begun=self.ready))

    def _end_with(self, result: Any) -> Ended:
        self.end()
        return Ended(result)

    def end(self) -> None:
        """Kill the process; a worker also with its descendants."""
        if not self.running:
            return
        self.running = False
        if self.is_worker:
            with suppress(OSError):  # the group is empty, or a worker just forked has none yet
                os.killpg(self.pid, signal.SIGKILL)
        if self._code is None:
            with suppress(OSError):
                os.kill(self.pid, signal.SIGKILL)
        self._wait_for_exit(0)
        self.channel.close()

    def _wait_for_exit(self, options: int) -> int | None:
        """Return the exit code (negative: a signal), or None if the process still runs. `options`: 0 waits for its end,
        os.WNOHANG does not wait.
        """
        if self._code is None:
            try:
                pid, status = os.waitpid(self.pid, options)
            except ChildProcessError:  # other code of this process has waited for it, so its status is lost
                pid, status = self.pid, 0
            if pid:  # 0: it still runs
                self._code = os.waitstatus_to_exitcode(status)
        return self._code


def _spawn_program(child_channel: Connection) -> int:
    """Start a worker as a program of its own, for where forking is unsafe. Return its process id.

    Not by multiprocessing, which would import the user's main program again. It has a process group of its own, so that
    Ctrl-C does not reach it and its descendants can be killed with it. What it prints is discarded.
    """
    source_folder = str(Path(__file__).parents[2])
    paths = dict.fromkeys([source_folder, *(str(Path(p or ".").resolve()) for p in sys.path)])
    discard_output = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in range(3)]
    environment = {**os.environ, **_ONE_THREAD, "PYTHONPATH": os.pathsep.join(paths)}
    return os.posix_spawn(
        sys.executable, [sys.executable, "-P", "-c", _PROGRAM], environment,
        file_actions=[*discard_output, (os.POSIX_SPAWN_DUP2, child_channel.fileno(), CHANNEL)], setsid=True,
    )  # fmt: skip


def stopped_error(seconds: float | None) -> Stopped:
    """Return the error of a job that was stopped. `seconds`: its budget."""
    return Stopped("stopped" if seconds is None else f"stopped after {seconds:.3g} s of CPU time")


def result_of(outcome: str, value: Any) -> Any:
    """Return the result of a job (`Ended.result`) for the contents of an ENDED message (_child.py)."""
    if outcome in (RETURNED, RAISED):
        return value
    return (Starved if outcome == STARVED else Lost)(value, died=False)


def describe_exit(code: int | None) -> str:
    """Return in words how a process ended. `code`: negative for a signal."""
    if code is None:
        return "what its process sent could not be read"
    if code >= 0:
        return f"its process ended with exit code {code}"
    killed = ", as computers end what takes too much memory" if code == -signal.SIGKILL else ""
    return f"its process was ended by signal {signal.Signals(-code).name}{killed}"


# HiGHS (SciPy's solver) keeps a pool of threads. A fork does not copy threads, so a mixed-integer program in the child
# would wait for them forever. They are ended before each fork; HiGHS starts new ones when it next runs.


def can_fork() -> bool:
    """Return whether forking is possible and safe: False if HiGHS is loaded and this SciPy cannot end its threads."""
    if not CAN_ISOLATE:
        return False
    core = sys.modules.get("scipy.optimize._highspy._core")
    return core is None or _end_of_threads(core) is not None


def end_threads_of_solvers() -> None:
    """End the threads of HiGHS, if it is loaded."""
    core = sys.modules.get("scipy.optimize._highspy._core")
    end = None if core is None else _end_of_threads(core)
    if end is not None:
        end(True)  # noqa: FBT003 (wait for them)


def _end_of_threads(core: Any) -> Callable[[bool], None] | None:
    """Return the function of HiGHS that ends its threads, or None if this SciPy has none."""
    function: Callable[[bool], None] | None = getattr(getattr(core, "_Highs", None), "resetGlobalScheduler", None)
    return function
