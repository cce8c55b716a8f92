"""The child's side of an isolated process: apply the limits, run jobs, and send messages to the parent.

A child is started in one of three forms: forked for one job (`run_forked_job`), forked as a worker for one job after
another (`run_forked_worker`), or as a program of its own (`run_worker_program`). Parent and child share a pipe:

    child -> parent    (READY, None)            waiting for a job (workers only)
                       (SENT, value)            an intermediate result of the job
                       (ENDED, (outcome, value))   `outcome` is RETURNED, RAISED (an error of this package),
                                                   STARVED (out of memory) or BROKEN (any other error)
    parent -> child    the job

SIGTERM means: stop, and return the best result so far. It raises TimedOut in the job. A worker ends when the parent
closes the pipe. Imports nothing else of the package but the errors, so that a program starts fast.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from antiphon.errors import AntiphonError, TimedOut

GIB = 2**30
CHANNEL = 3  # file descriptor of the pipe to the parent, in a program of its own
READY, SENT, ENDED = "ready", "sent", "ended"
RETURNED, RAISED, STARVED, BROKEN = "returned", "raised", "starved", "broken"  # outcomes of a job
RAISE_INTERVAL = 0.2  # CPU seconds of this process between two TimedOut in a job that catches the first and goes on
_END_WITH_PARENT = 1  # PR_SET_PDEATHSIG of prctl
Send = Callable[[Any], None]  # sends an intermediate result of a job to the parent


class UnsendableError(Exception):
    """A message that cannot be pickled, with the reason."""


class Sender:
    """Sends messages to the parent, and turns SIGTERM into TimedOut, but never in the middle of a message.

    The parent repeats SIGTERM; TimedOut is raised again if the job caught it and goes on.
    """

    def __init__(self, channel: Connection) -> None:
        self.channel = channel
        self.sending = self.stop_pending = False  # stop_pending: SIGTERM came while a message was being sent
        self.last_raise = -RAISE_INTERVAL  # time.process_time() of the last TimedOut; at first long enough ago

    def send(self, kind: str, value: Any = None) -> None:
        """Send a message to the parent. Raises UnsendableError if the value cannot be pickled."""
        # pickle before sending: the parent could not read on after half a message
        try:
            data = pickle.dumps((kind, value), protocol=pickle.HIGHEST_PROTOCOL)
        except (MemoryError, TimedOut):
            raise
        except Exception as error:
            raise UnsendableError(f"what it made cannot be handed over: {type(error).__name__}: {error}") from None
        self.sending = True
        try:
            self.channel.send_bytes(data)
        finally:
            self.sending = False
        if self.stop_pending:
            self._raise_stopped()

    def send_result(self, value: Any) -> None:
        self.send(SENT, value)

    def stop(self, number: int, frame: Any) -> None:
        """Handle SIGTERM: raise TimedOut in the job, at once or after the message that is being sent."""
        if self.sending:
            self.stop_pending = True
        elif time.process_time() - self.last_raise >= RAISE_INTERVAL:
            self._raise_stopped()

    def _raise_stopped(self) -> None:
        self.stop_pending, self.last_raise = False, time.process_time()
        raise TimedOut("stopped")


def run_job(sender: Sender, work: Callable[[Any, Send], Any], job: Any, memory: int | None) -> None:
    """Run one job and send its result, or the error that it raised.

    `memory`: the limit in bytes that the caller has set, for the message only; None: no limit.
    """
    outcome, value = outcome_of(work, job, sender.send_result, memory)
    # The job is over: nothing is left to stop. (A SIGTERM just before this line ends the process without ENDED: the
    # parent then reports it as lost.)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sender.stop_pending = False
    try:
        sender.send(ENDED, (outcome, value))
    except OSError:
        os._exit(1)  # the parent is gone
    except UnsendableError as error:
        sender.send(ENDED, (BROKEN, str(error)))


def outcome_of(work: Callable[[Any, Send], Any], job: Any, send: Send, memory: int | None) -> tuple[str, Any]:
    """Run one job; return its outcome (RETURNED, ...) with its value, or with the error that it raised."""
    try:
        return RETURNED, work(job, send)
    except AntiphonError as error:
        return RAISED, error
    except MemoryError:
        limit = "" if memory is None else f": more than {memory / GIB:g} GiB"
        return STARVED, f"out of memory{limit}"
    except UnsendableError as error:
        return BROKEN, str(error)
    except BaseException as error:  # the parent reports it and goes on
        return BROKEN, describe_error(error)


def describe_error(error: BaseException) -> str:
    """Return the error as text, with its class unless it is an error of this package."""
    if isinstance(error, SystemExit):
        return f"it asked to end the whole process (sys.exit: {error.code})"
    name = "" if isinstance(error, AntiphonError) else f"{type(error).__name__}: "
    return f"{name}{error}"


def run_forked_job(
    channel: Connection, parent: int, work: Callable[[Any, Send], Any], job: Any, memory: int | None, grace: bool
) -> None:
    """Run one job in a forked process, which ignores Ctrl-C and ends when its parent ends, even by SIGKILL.

    `parent`: the parent's process id. `memory`: bytes that the process may use beyond those at its start (None: no
    limit). `grace`: whether SIGTERM raises TimedOut in the job; otherwise SIGTERM kills the process.
    """
    _end_with_parent(parent)
    if memory is not None:
        _limit_memory(memory)
    sender = Sender(channel)
    if grace:
        signal.signal(signal.SIGTERM, sender.stop)
    run_job(sender, work, job, memory)


def _end_with_parent(parent: int) -> None:
    """Ignore Ctrl-C, which is for the parent, and let the kernel kill this forked process when its parent ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_END_WITH_PARENT, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # the parent ended before prctl took effect
        os._exit(1)


def run_forked_worker(
    channel: Connection, parent: int, work: Callable[[Any, Send], Any], prepare: Callable[[], None] | None,
    memory: int | None,
) -> None:  # fmt: skip
    """Run one job after another in a forked process with a process group of its own, until its channel is closed.

    `prepare`: see `_serve`; the other parameters are those of `run_forked_job`.
    """
    os.setsid()
    _end_with_parent(parent)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # until it has a job
    # Discard its output. The file objects are new ones: the inherited ones may be locked, if another thread of the
    # parent was printing at the fork.
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(null, descriptor)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = sys.stderr = open(null, "w", encoding="utf-8")  # noqa: SIM115
    _serve(Sender(channel), _start_reading(channel), work, prepare, memory)


def run_worker_program() -> None:
    """Run one job after another in a worker program, until its channel is closed.

    `Process` (_process.py) starts it in a session of its own, so that it can kill its whole process group.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends its processes
    channel = Connection(CHANNEL)
    os.set_inheritable(CHANNEL, False)
    messages = _start_reading(channel)
    work, prepare, memory = messages.get()  # the first message, from `Process` (_process.py); the others are jobs
    _serve(Sender(channel), messages, work, prepare, memory)


def _start_reading(channel: Connection) -> queue.SimpleQueue[Any]:
    """Return the queue of the parent's messages, which a thread fills."""
    messages: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_read_messages_of_parent, args=(channel, messages), daemon=True).start()
    return messages


def _serve(
    sender: Sender, messages: queue.SimpleQueue[Any], work: Callable[[Any, Send], Any],
    prepare: Callable[[], None] | None, memory: int | None,
) -> None:  # fmt: skip
    """Call `prepare` once, then run the jobs of the queue, forever; `_read_messages_of_parent` ends the process."""
    if memory is not None:
        _limit_memory(memory)
    if prepare is not None:
        with suppress(Exception, SystemExit):  # the same error comes again in a job, where it is reported
            prepare()
    while True:
        sender.send(READY)
        job = messages.get()
        signal.signal(signal.SIGTERM, sender.stop)  # `run_job` ignores SIGTERM from the end of the job on
        run_job(sender, work, job, memory)


def _read_messages_of_parent(channel: Connection, messages: queue.SimpleQueue[Any]) -> None:
    """Queue the messages of the parent. When the parent is gone, kill this process group at once.

    Likewise if a message cannot be read: the parent then reports that the job is lost.
    """
    try:
        while True:
            messages.put(channel.recv())
    except Exception:
        os.killpg(0, signal.SIGKILL)


def _limit_memory(memory: int) -> None:
    """Limit the address space to `memory` bytes more than are in use."""
    import resource

    with open("/proc/self/statm", encoding="ascii") as file:
        bytes_in_use = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (bytes_in_use + memory, resource.RLIM_INFINITY))
