"""The three streams of a process, whatever whoever started it made of them."""

from __future__ import annotations

import contextlib
import io
import os
import sys

_NAMES = ("stdin", "stdout", "stderr")


def open_all() -> list[str]:
    """Put /dev/null in the place of what is closed, whose number the next file would get: the names of those.

    A name that this terminal cannot show must not end in a traceback.
    """
    closed = []
    for number, name in enumerate(_NAMES):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # it takes the least number that is free, which is this one
            closed.append(name)
        if getattr(sys, name) is None:
            mode = "w" if number else "r"
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    return closed


def say(message: str) -> None:
    """One line to stderr, if anybody can hear it."""
    line = " ".join(message.split())
    with contextlib.suppress(OSError, ValueError):
        print(f"antiphon: {line}", file=sys.stderr, flush=True)


def flush() -> OSError | None:
    """Everything out; what went wrong with it, once: what cannot be written is dropped, or Python would complain when
    it ends, in words and with an exit code of its own."""
    wrong = None
    for stream in (sys.stderr, sys.stdout):
        try:
            stream.flush()
        except OSError as error:
            wrong = error if stream is sys.stdout else None
            drop(stream)
        except ValueError:
            pass  # a program that called us has closed it
    return wrong


def drop(stream: object) -> None:
    with contextlib.suppress(OSError, ValueError):
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, stream.fileno())  # type: ignore[attr-defined]
        os.close(nothing)
