"""The command line. Results go to stdout, progress to stderr; errors are one line.

Exit codes: 0 done; 1 the answer is no (invalid plan, infeasible, budget spent); 2 wrong usage or bad input.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence

import typer

from antiphon.cli import costs, later, listing, machine, plans, tuning
from antiphon.errors import AntiphonError

app = typer.Typer(
    name="antiphon",
    help="Plan collective communication for the machine it will run on, with schedules proven correct.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    epilog="Example: antiphon plan allreduce dgx1v -o plan.json && antiphon verify plan.json",
)
listing.register(app)
machine.register(app)
plans.register(app)
costs.register(app)
tuning.register(app)
later.register(app)


def _say(message: str) -> None:
    line = " ".join(message.split())
    print(f"antiphon: {line}", file=sys.stderr)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and leave with its exit code; nothing a user does ends in a traceback."""
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:  # noqa: PLR0911 (an exit code for each way to end)
    """Run one command; its exit code."""
    command = typer.main.get_command(app)
    for stream in (sys.stdout, sys.stderr):  # a name that this terminal cannot show must not end in a traceback
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        code = command.main(
            args=None if arguments is None else list(arguments), prog_name="antiphon", standalone_mode=False
        )
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except AntiphonError as error:
        _say(str(error))
        return error.exit_code
    except typer.Exit as done:
        return int(done.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        _say("interrupted")
        return 130
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
        _say(f"{error.format_message()} (see antiphon --help)")
        return 2
