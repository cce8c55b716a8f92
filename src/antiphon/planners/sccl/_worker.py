"""Work done in a process of its own: it can be stopped, may crash, and its memory has a limit."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import resource
import signal
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from antiphon.errors import AntiphonError

GIB = 2**30
_END_WITH_PARENT = 1  # of prctl: PR_SET_PDEATHSIG


class Lost(Exception):
    """The worker ended without an answer; says how."""


class Late(Exception):
    """The worker was stopped at the end of its time."""


def apart(function: Callable[..., Any], *args: Any, seconds: float | None = None, memory: int | None = None) -> Any:
    """`function(*args)` in a forked process: what it returns, or the AntiphonError it raises.

    Raises Late after so many seconds, Lost if the process dies or takes more than `memory` bytes beyond its own.
    Whatever interrupts the caller ends the process, too.
    """
    context = multiprocessing.get_context("fork")
    mine, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(theirs, os.getpid(), memory, function, args), daemon=True)
    process.start()
    theirs.close()
    try:
        if not mine.poll(seconds):
            raise Late(f"stopped after {seconds:g} s")
        try:
            good, value = mine.recv()
        except EOFError:
            process.join()
            raise Lost(how(process.exitcode)) from None
    finally:
        if process.is_alive():
            process.kill()
        process.join()
        mine.close()
    if good:
        return value
    if isinstance(value, AntiphonError):
        raise value
    raise Lost(str(value))


def how(code: int | None) -> str:
    """How a worker ended, in words."""
    if code is not None and code < 0:
        return f"the worker was ended by signal {signal.Signals(-code).name}"
    return f"the worker ended with code {code}"


def bound_to(parent: int) -> None:
    """This process leaves Ctrl-C to its parent, and ends with it (on Linux even if that is killed)."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_END_WITH_PARENT, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:  # it ended before that
            os._exit(1)


def outcome(memory: int | None, function: Callable[..., Any], *args: Any) -> tuple[bool, Any]:
    """True and what the function returns, or False and its AntiphonError or, in words, what else went wrong."""
    try:
        if memory is not None:
            with open("/proc/self/statm", encoding="ascii") as file:
                taken = int(file.read().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (taken + memory, resource.RLIM_INFINITY))
        return True, function(*args)
    except AntiphonError as error:
        return False, error
    except MemoryError:
        return False, f"out of memory: more than {(memory or 0) / GIB:g} GiB; allow more, or ask for fewer chunks"
    except Exception as error:  # told to the parent, which reports it and goes on
        return False, f"{type(error).__name__}: {error}"


def _answer(
    out: Connection, parent: int, memory: int | None, function: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    bound_to(parent)
    out.send(outcome(memory, function, *args))
    out.close()
