"""The front of all commands, and how each way to end becomes an exit code."""

from __future__ import annotations

import errno
import os
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from antiphon import __version__
from antiphon.cli.output import StoppedEarly
from antiphon.cli.signals import Signals
from antiphon.cli.streams import drop
from antiphon.errors import AntiphonError, Invalid, Missing, UnlikelyInput

app = typer.Typer(
    name="antiphon",
    help="Plan collective communication for the machine it will run on, with schedules proven correct.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    epilog="Example: antiphon tune allreduce dgx1v -o plan.json --report report.html",
)

_BARE = re.compile("--[a-z][a-z-]*=")
_UNWRITTEN = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.EIO, errno.EBADF)


def _version(asked: bool) -> None:
    if asked:
        print(f"antiphon {__version__}")
        raise typer.Exit


@app.callback()
def _front(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    pass  # what comes before any command; the help is that of the app


def _usage(error: Any, signals: Signals, named: str) -> int:
    """Wrong usage, in typer's words and in one line; a group of commands alone shows what it has. `named`: the command,
    where the error does not know it."""
    context = getattr(error, "ctx", None)
    where = context.command_path.strip() if context is not None else named
    said = error.format_message().rstrip(".")
    if said.startswith("Usage:"):
        print(error.format_message(), file=sys.stderr)
    else:
        signals.tell(f"{said} (see {where} --help)")
    return 2


def run(command: Any, arguments: Sequence[str] | None, signals: Signals) -> int:
    """Run one command; its exit code. While it runs signals raise KeyboardInterrupt, which is told here."""
    try:
        signals.breaks = True
        code = _ended(command, arguments, signals)
        signals.breaks = False
    except BaseException:  # one more signal, while the first was told
        signals.breaks = False
        if not signals.first:
            raise
        code = signals.exit_code()
    return code


def _refuse_empty(arguments: Sequence[str]) -> None:
    """An option with nothing as its value is most often a variable of a script that is not set."""
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    for before, one in zip(["", *own], own, strict=False):
        option = before if not one else one[:-1] if _BARE.fullmatch(one) else ""
        if option.startswith("-"):
            raise Invalid(f"{option}: its value is empty; leave the option out, or say which")


@contextmanager
def _warnings_on_stderr(signals: Signals) -> Iterator[None]:
    """Print what is unlikely in the input as a line on stderr, each once."""
    printed: set[str] = set()
    show_other = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if not issubclass(category, UnlikelyInput):
            show_other(message, category, *where, **more)
        elif str(message) not in printed:
            printed.add(str(message))
            signals.tell(f"warning: {message}")

    with warnings.catch_warnings():
        warnings.simplefilter("always", UnlikelyInput)
        warnings.showwarning = show
        yield


def _ended(command: Any, arguments: Sequence[str] | None, signals: Signals) -> int:
    with _warnings_on_stderr(signals):
        return _exit_code(command, arguments, signals)


def _exit_code(command: Any, arguments: Sequence[str] | None, signals: Signals) -> int:
    try:
        _refuse_empty(sys.argv[1:] if arguments is None else arguments)
        code = command.main(
            args=None if arguments is None else list(arguments), prog_name="antiphon", standalone_mode=False
        )
        signals.breaks = False
    except (KeyboardInterrupt, typer.Abort):
        signals.breaks = False
        code = StoppedEarly.exit_code
    except BaseException as error:
        signals.breaks = False
        return _why(error, command, arguments, signals)
    if code == StoppedEarly.exit_code:  # typer makes this of Ctrl-C
        signals.tell(signals.said())
        return signals.exit_code()
    return code if isinstance(code, int) else 0


def _why(error: BaseException, command: Any, arguments: Sequence[str] | None, signals: Signals) -> int:  # noqa: PLR0911
    """Tell an error; the exit code that goes with it."""
    if isinstance(error, StoppedEarly):
        signals.tell(str(error))
        return signals.exit_code()
    if isinstance(error, typer.Exit):
        return int(error.exit_code)
    if signals.first and not (isinstance(error, AntiphonError) and not isinstance(error, Missing)):
        signals.tell(signals.said())  # a library may make anything of it
        return signals.exit_code()
    if isinstance(error, AntiphonError):
        signals.tell(str(error))
        return error.exit_code
    if isinstance(error, BrokenPipeError | SystemExit):  # the reader has gone (antiphon ... | head): not an error
        drop(sys.stdout)
        return 0
    if isinstance(error, MemoryError):
        signals.tell(
            "out of memory: the machine or the schedule asked for is too large for this computer; try a smaller one"
        )
        return 2
    if isinstance(error, OSError):
        where = error.filename or ("stdout" if error.errno in _UNWRITTEN else "input or output")
        if where == "stdout":
            drop(sys.stdout)  # what could not be written would be tried again at the end
        signals.tell(f"{where}: {error.strerror or error}")
        return 2
    if not isinstance(error, Exception):
        raise error
    if hasattr(error, "format_message"):  # typer's own complaints about usage have it, bugs of ours do not
        first = next(iter(sys.argv[1:] if arguments is None else arguments), "")
        return _usage(error, signals, f"antiphon {first}" if first in command.commands else "antiphon")
    if os.environ.get("ANTIPHON_DEBUG"):
        raise error
    signals.tell(f"internal error, please report it: {type(error).__name__}: {error} (ANTIPHON_DEBUG=1 shows where)")
    return 70
