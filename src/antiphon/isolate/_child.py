"""The worker side of an isolated process: limits, and messages to the parent. Imports nothing else of the package."""

from __future__ import annotations

import ctypes
import os
import pickle
import queue
import resource
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
CHANNEL = 3  # the descriptor by which a program of its own talks with who started it
READY, SAID, ENDED = "ready", "said", "ended"
RETURNED, RAISED, STARVED, BROKEN = "returned", "raised", "starved", "broken"  # how a job ends
AGAIN = 0.2  # CPU seconds
_END_WITH_PARENT = 1  # of prctl: PR_SET_PDEATHSIG
Say = Callable[[Any], None]


class UnsendableError(Exception):
    """A message that cannot be pickled, with the reason."""


class Voice:
    """Sends whole messages: a signal to stop that comes meanwhile takes effect after. It is sent again and again, and
    raised again where the work goes on all the same."""

    def __init__(self, channel: Connection) -> None:
        self.channel = channel
        self.sending = self.told = False
        self.raised = -AGAIN

    def send(self, kind: str, value: Any = None) -> None:
        try:
            data = pickle.dumps((kind, value), protocol=pickle.HIGHEST_PROTOCOL)  # half a message would spoil all
        except (MemoryError, TimedOut):
            raise
        except Exception as error:
            raise UnsendableError(f"what it made cannot be handed over: {type(error).__name__}: {error}") from None
        self.sending = True
        try:
            self.channel.send_bytes(data)
        finally:
            self.sending = False
        if self.told:
            self._raise_stopped()

    def say(self, value: Any) -> None:
        self.send(SAID, value)

    def stop(self, number: int, frame: Any) -> None:
        if self.sending:
            self.told = True
        elif time.process_time() - self.raised >= AGAIN:
            self._raise_stopped()

    def _raise_stopped(self) -> None:
        self.told, self.raised = False, time.process_time()
        raise TimedOut("stopped")


def do(voice: Voice, work: Callable[[Any, Say], Any], job: Any, memory: int | None) -> None:
    """Do one job and send its result, or the error that it raised."""
    try:
        how, value = RETURNED, work(job, voice.say)
    except AntiphonError as error:
        how, value = RAISED, error
    except MemoryError:
        limit = "" if memory is None else f": more than {memory / GIB:g} GiB"
        how, value = STARVED, f"out of memory{limit}"
    except UnsendableError as error:
        how, value = BROKEN, str(error)
    except BaseException as error:  # told to the parent, which reports it and goes on
        how, value = BROKEN, in_words(error)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it ends by itself
    voice.told = False
    try:
        voice.send(ENDED, (how, value))
    except OSError:
        os._exit(1)  # nobody listens any more
    except UnsendableError as error:
        voice.send(ENDED, (BROKEN, str(error)))


def in_words(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return f"it asked to end the whole process (sys.exit: {error.code})"
    name = "" if isinstance(error, AntiphonError) else f"{type(error).__name__}: "
    return f"{name}{error}"


def forked(
    channel: Connection, parent: int, work: Callable[[Any, Say], Any], job: Any, memory: int | None, grace: bool
) -> None:
    """Run one job in a forked process, which ignores Ctrl-C and ends with its parent, even if that is killed.

    `grace`: whether SIGTERM raises TimedOut in the work."""
    _end_with_parent(parent)
    if memory is not None:
        _limit_memory(memory)
    voice = Voice(channel)
    if grace:
        signal.signal(signal.SIGTERM, voice.stop)
    do(voice, work, job, memory)


def _end_with_parent(parent: int) -> None:
    """Ignore Ctrl-C, which is for the parent, and let the kernel kill this forked process when its parent ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_END_WITH_PARENT, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # it ended before that
        os._exit(1)


def forked_worker(
    channel: Connection, parent: int, work: Callable[[Any, Say], Any], prepare: Callable[[], None] | None,
    memory: int | None,
) -> None:  # fmt: skip
    """Run one job after another in a forked process with a group of its own, until its channel is closed."""
    os.setsid()
    _end_with_parent(parent)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # until it has a job
    # what it prints goes nowhere; new files, since another thread of the parent may have held the locks of these
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(null, descriptor)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = sys.stderr = open(null, "w", encoding="utf-8")  # noqa: SIM115
    _serve(Voice(channel), _start_reading(channel), work, prepare, memory)


def program() -> None:
    """Run one job after another in a worker program, until its channel is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends its processes
    channel = Connection(CHANNEL)
    os.set_inheritable(CHANNEL, False)
    orders = _start_reading(channel)
    _serve(Voice(channel), orders, *orders.get())


def _start_reading(channel: Connection) -> queue.SimpleQueue[Any]:
    """Return the queue of the parent's orders, which a thread fills."""
    orders: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_read_orders, args=(channel, orders), daemon=True).start()
    return orders


def _serve(
    voice: Voice, orders: queue.SimpleQueue[Any], work: Callable[[Any, Say], Any],
    prepare: Callable[[], None] | None, memory: int | None,
) -> None:  # fmt: skip
    """Do the jobs of the queue, without end."""
    if memory is not None:
        _limit_memory(memory)
    if prepare is not None:
        with suppress(Exception, SystemExit):  # it comes again where it is reported
            prepare()
    while True:
        voice.send(READY)
        job = orders.get()
        signal.signal(signal.SIGTERM, voice.stop)
        do(voice, work, job, memory)


def _read_orders(channel: Connection, orders: queue.SimpleQueue[Any]) -> None:
    """Queue the orders of the parent. When it is gone, kill this process group at once.

    Likewise where an order cannot be read: the parent then reports that job."""
    try:
        while True:
            orders.put(channel.recv())
    except Exception:
        os.killpg(0, signal.SIGKILL)


def _limit_memory(memory: int) -> None:
    """Limit the address space to `memory` bytes more than are in use."""
    with open("/proc/self/statm", encoding="ascii") as file:
        bytes_in_use = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (bytes_in_use + memory, resource.RLIM_INFINITY))
