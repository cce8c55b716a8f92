"""The front of all commands, and how each way to end becomes an exit code."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from antiphon import __version__
from antiphon.cli._output import StoppedEarly
from antiphon.errors import AntiphonError

app = typer.Typer(
    name="antiphon",
    help="Plan collective communication for the machine it will run on, with schedules proven correct.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    epilog="Example: antiphon tune allreduce dgx1v -o plan.json --report report.html",
)


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


def _say(message: str) -> None:
    line = " ".join(message.split())
    print(f"antiphon: {line}", file=sys.stderr)


def _usage(error: Any, named: str) -> int:
    """Wrong usage, in typer's words and in one line; a group of commands alone shows what it has. `named`: the command,
    where the error does not know it."""
    context = getattr(error, "ctx", None)
    where = context.command_path.strip() if context is not None else named
    said = error.format_message().rstrip(".")
    if said.startswith("Usage:"):
        print(error.format_message(), file=sys.stderr)
    else:
        _say(f"{said} (see {where} --help)")
    return 2


def run(command: Any, arguments: Sequence[str] | None = None) -> int:  # noqa: PLR0911 (an exit code for each way to end)
    """Run one command; its exit code."""
    for stream in (sys.stdout, sys.stderr):  # a name that this terminal cannot show must not end in a traceback
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        code = command.main(
            args=None if arguments is None else list(arguments), prog_name="antiphon", standalone_mode=False
        )
        sys.stdout.flush()
        if code == StoppedEarly.exit_code:  # typer makes this of Ctrl-C
            _say("interrupted")
        return code if isinstance(code, int) else 0
    except AntiphonError as error:
        _say(str(error))
        return error.exit_code
    except typer.Exit as done:
        return int(done.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        _say("interrupted")
        return StoppedEarly.exit_code
    except BrokenPipeError:  # the reader has gone (antiphon ... | head): not an error, and nothing more to say
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except SystemExit:  # the same, noticed while the result was written
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except MemoryError:
        _say("out of memory: the machine or the schedule asked for is too large for this computer; try a smaller one")
        return 2
    except OSError as error:
        _say(f"{error.filename or 'input or output'}: {error.strerror or error}")
        return 2
    except Exception as error:
        if not hasattr(error, "format_message"):  # typer's own complaints about usage have it, bugs of ours do not
            if os.environ.get("ANTIPHON_DEBUG"):
                raise
            _say(f"internal error, please report it: {type(error).__name__}: {error} (ANTIPHON_DEBUG=1 shows where)")
            return 70
        first = next(iter(sys.argv[1:] if arguments is None else arguments), "")
        return _usage(error, f"antiphon {first}" if first in command.commands else "antiphon")
