"""Run jobs one after another in this process, for systems where processes cannot be isolated (macOS, Windows).

Isolation needs `fork`, and /proc for CPU times: Linux. Elsewhere planning works all the same, with what a single
process can do:

    budget    an exception is raised in the job's thread (`interrupted_after`), so it waits for C code to return
    results   intermediate results are yielded when the job has ended, or Ctrl-C has ended it
    memory    not limited; a job that crashes ends the program

Example: budget 10 s, with grace (the job may catch the end of its budget). After 10 s of CPU time TimedOut is raised in
the job, which sends its best result so far and ends; the job counts as Stopped, as where its process gets a signal.
"""

from __future__ import annotations

import ctypes
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any

from antiphon.errors import TimedOut
from antiphon.isolate._child import Send, outcome_of
from antiphon.isolate._meter import TICK
from antiphon.isolate._process import CAN_ISOLATE, Ended, Job, PoolTerms, Sent, Stopped, result_of, stopped_error


class _AskedToEnd(TimedOut):
    """The budget of a job is spent; it may catch this and send its best result."""

    def __init__(self) -> None:
        super().__init__("stopped")


class _KilledError(BaseException):
    """The budget of a job without grace is spent. No `except Exception` of the job catches it."""


def run_here(
    jobs: Iterable[Job], terms: PoolTerms[Job], is_needed: Callable[[Job], bool]
) -> Generator[tuple[Job, Sent | Ended], None, None]:
    """Yield (job, Sent) and (job, Ended) for one needed job after another, as `as_done` (_pool) does with processes."""
    if terms.prepare is not None:
        terms.prepare()
    for job in jobs:
        if not is_needed(job):
            continue
        messages: list[Any] = []
        result: Any = None
        interrupts: list[KeyboardInterrupt] = []
        seconds, begin = terms.seconds(job), time.process_time()
        try:
            with interrupted_after(seconds, _AskedToEnd if terms.grace else _KilledError):
                result = result_of(*outcome_of(partial(_work, terms, interrupts), job, messages.append, memory=None))
        except (_AskedToEnd, _KilledError):  # outside of outcome_of: after the job's end, before the timer was disarmed
            result = stopped_error(seconds)
        for message in messages:
            yield job, Sent(message)
        if interrupts:
            raise interrupts[0]
        # a job that returns after the end of its budget counts as stopped, as in a process
        overrun = seconds is not None and time.process_time() - begin >= seconds
        yield job, Ended(stopped_error(seconds) if overrun and not isinstance(result, Stopped) else result)


def _work(terms: PoolTerms[Job], interrupts: list[KeyboardInterrupt], job: Job, send: Send) -> Any:
    """Do the work on a job. Ctrl-C is added to `interrupts`, as `outcome_of` turns it into a result of the job and
    `run_here` must raise it for the whole program.
    """
    try:
        return terms.work(job, send)
    except KeyboardInterrupt as error:
        interrupts.append(error)
        raise


# ---- budgets ----


def can_interrupt() -> bool:
    """Return whether `interrupted_after` interrupts this thread: on Linux only the main one, which gets signals.

    Elsewhere it interrupts any thread, if need be by a watching one. On Linux other threads leave jobs with a budget to
    processes of their own, so they need none.
    """
    return not CAN_ISOLATE or _gets_signals()


def _gets_signals() -> bool:
    """Return whether this thread can be interrupted by the signal of a CPU timer, SIGPROF."""
    is_main = threading.current_thread() is threading.main_thread()
    # None: a handler that Python did not install, which must stay
    return hasattr(signal, "setitimer") and is_main and signal.getsignal(signal.SIGPROF) is not None


@contextmanager
def interrupted_after(seconds: float | None, error: type[BaseException]) -> Iterator[None]:
    """Raise `error` in the `with` block after this many CPU seconds (None: never), if `can_interrupt`."""
    if seconds is None or not can_interrupt():
        yield
    elif _gets_signals():
        with _interrupted_by_signal(seconds, error):
            yield
    else:
        with _interrupted_by_thread(seconds, error):
            yield


@contextmanager
def _interrupted_by_signal(seconds: float, error: type[BaseException]) -> Iterator[None]:
    """Let the CPU timer raise the error.

    A timer that was set before is restored afterwards, with its remaining time reduced by the time spent.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        raise error

    begin = time.process_time()
    handler = signal.signal(signal.SIGPROF, stop)
    remaining, interval = signal.setitimer(signal.ITIMER_PROF, seconds)  # those of the timer set before; 0, 0: none
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, handler)
        if remaining:  # at least 1 ms, as 0 would disarm it
            signal.setitimer(signal.ITIMER_PROF, max(remaining - (time.process_time() - begin), 1e-3), interval)


@contextmanager
def _interrupted_by_thread(seconds: float, error: type[BaseException]) -> Iterator[None]:
    """Let another thread watch the CPU time and raise the error in this one, between two instructions of Python."""
    thread, ended, lock = ctypes.c_ulong(threading.get_ident()), threading.Event(), threading.Lock()
    end = time.process_time() + seconds
    raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc  # (thread, error class, or None to cancel one)

    def watch() -> None:
        while (remaining := end - time.process_time()) > 0:
            if ended.wait(min(remaining, TICK)):
                return
        with lock:
            if not ended.is_set():
                raise_in(thread, ctypes.py_object(error))

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        with lock:
            ended.set()
        raise_in(thread, None)  # cancel an error that is set but not yet raised
