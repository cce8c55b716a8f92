"""The three standard streams, which may be closed, broken or full: a command must neither write its result into another
file nor end in a traceback because of that."""

from __future__ import annotations

import contextlib
import io
import os
import sys

from antiphon.show.columns import paragraph

_NAMES = ("stdin", "stdout", "stderr")


def open_all() -> list[str]:
    """Open /dev/null in place of closed streams, as the next file would get their descriptors; return their names.

    Characters that the terminal cannot show are escaped, instead of raising UnicodeEncodeError.
    """
    closed = []
    for number, name in enumerate(_NAMES):  # `number`: file descriptor
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is this one
            closed.append(name)
        if getattr(sys, name) is None:
            mode = "w" if number else "r"
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    return closed


def say(message: str) -> None:
    """Print one line to stderr, if it is open; on a terminal it is broken between words."""
    line = f"antiphon: {' '.join(message.split())}"
    with contextlib.suppress(OSError, ValueError):
        lines = paragraph(line, first="") if sys.stderr.isatty() else [line]
        print("\n".join(lines), file=sys.stderr, flush=True)


def flush() -> OSError | None:
    """Write all output; return the error of stdout, if any. Output that cannot be written is dropped, as Python would
    otherwise end with a message and an exit code of its own."""
    stdout_error = None
    for stream in (sys.stderr, sys.stdout):
        try:
            stream.flush()
        except OSError as error:
            stdout_error = error if stream is sys.stdout else None
            drop(stream)
        except ValueError:
            pass  # a program that called us has closed it
    return stdout_error


def drop(stream: object) -> None:
    """Redirect a stream to /dev/null, so that later writes to it do not fail."""
    with contextlib.suppress(OSError, ValueError):
        null_file = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null_file, stream.fileno())  # type: ignore[attr-defined]
        os.close(null_file)
