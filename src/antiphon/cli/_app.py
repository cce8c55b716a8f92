"""The options before any command (--version, completion), and how each way to end becomes an exit code.

`run` executes a command within typer and catches everything: errors of this package become a line on stderr and, under
--json, an object on stdout, with the exit code of their class; Ctrl-C is reported once; a full disk or a closed pipe is
named; anything else is an internal error, exit code 70.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shlex
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from antiphon import __version__
from antiphon.cli import completion
from antiphon.cli.kinds import WithHeadings, epilog
from antiphon.cli.output import JsonOutput, StoppedEarly, emit_error
from antiphon.cli.signals import Signals
from antiphon.cli.streams import drop, say
from antiphon.errors import AntiphonError, Invalid, Missing, UnlikelyInput, near_miss
from antiphon.show.columns import width

app = typer.Typer(
    name="antiphon",
    cls=WithHeadings,
    help="Plan collective communication for the machine it will run on, with schedules proven correct.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    epilog=epilog("tune allreduce dgx1v -o plan.json -o report.html"),
)

_EMPTY_OPTION = re.compile("--[a-z][a-z-]*=")  # an option with an empty value
# Options by names that other tools have for them.
NAMES_ELSEWHERE = {
    "--size": "--nbytes", "--sizes": "--nbytes", "--bytes": "--nbytes", "--out": "--output", "--algorithm": "--planner",
    "--algo": "--planner", "--jobs": "--workers", "--time-limit": "--budget", "--format": "--to",
}  # fmt: skip
# Errors of writing. If such an error has no file name, it was stdout that could not be written.
_WRITE_ERRORS = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.EIO, errno.EBADF)


# typer calls these three functions in any case; False or "" means that the option is not used.
def _print_version(value: bool) -> None:
    if value:
        print(f"antiphon {__version__}")
        raise typer.Exit


def _show_completion(context: typer.Context, shell: str) -> None:
    if shell:
        print(completion.show(shell, context.command), end="")
        raise typer.Exit


def _install_completion(context: typer.Context, shell: str) -> None:
    if shell:
        print(completion.install(shell, context.command))
        raise typer.Exit


@app.callback()
def _global_options(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
    show_completion: Annotated[
        str,
        typer.Option(
            completion.SHOW, metavar="[SHELL]", callback=_show_completion, is_eager=True,
            help="Print the completion script for bash, zsh or fish, and exit.",
        ),
    ] = "",
    install_completion: Annotated[
        str,
        typer.Option(
            completion.INSTALL, metavar="[SHELL]", callback=_install_completion, is_eager=True,
            help="Write that script where the shell looks for it, and exit.",
        ),
    ] = "",
) -> None:  # fmt: skip
    pass  # the options are handled by their callbacks; a docstring here would replace the help of the app


KINDS = ("Invalid", "Unsupported", "Infeasible", "NotFound", "TimedOut", "Missing")  # public classes of errors


class _Reporter:
    """Report how one command failed: a line on stderr and, under --json, an object on stdout.

    Methods return the exit code.
    """

    def __init__(self, signals: Signals, arguments: Sequence[str]) -> None:
        self.signals = signals
        self.arguments = list(arguments)

    def fail(self, kind: str, message: str, exit_code: int) -> int:
        """Report an error and return its exit code. `kind`: its public class."""
        self._emit(kind, message, exit_code)
        self.signals.print_last_line(message)
        return exit_code

    def stop(self, message: str = "") -> int:
        """Report that a signal ended the command."""
        return self.fail("Interrupted", message or self.signals.text(), self.signals.exit_code())

    def refuse_usage(self, error: Any, command_name: str) -> int:
        """Report wrong usage, in typer's words and in one line; a group without a command prints its commands.

        `command_name`: the command, in case the error does not know it.
        """
        context = getattr(error, "ctx", None)
        command_path = context.command_path.strip() if context is not None else command_name
        message = error.format_message().rstrip(".")
        option_name = getattr(error, "option_name", None)
        # Two of click's errors name an option. Only that for an unknown option has a context; that for a missing or
        # needless value has none, and keeps click's words.
        if context is not None and option_name:
            message = _unknown_option(option_name, context.command)
        # typer's own suggestions, which newer versions add, are less near
        if context is not None and (match := re.match("No such command '(.+?)'", message)):
            message = match[0] + self._hint_at_command(match[1], context.command)
        if message.startswith("Usage:"):  # a group without a command: click's message is the help of the group
            self._emit("Usage", f"no command given (see {command_path} --help)", exit_code=2)
            print(error.format_message(), file=sys.stderr)
            return 2
        return self.fail("Usage", f"{message} (see {command_path} --help)", exit_code=2)

    def _hint_at_command(self, name: str, group: Any) -> str:
        """Return what to add to the error for a command that the group lacks; "" if nothing is likely."""
        from antiphon.core.collective import kind_named

        if kind_named(name) and "tune" in group.commands:
            return f"; what is to be done with it comes first: antiphon tune {shlex.join(self.arguments)}"
        suggestion = near_miss(name, [other for other, command in group.commands.items() if not command.hidden])
        return f"; did you mean {suggestion!r}?" if suggestion else ""

    def _emit(self, kind: str, message: str, exit_code: int) -> None:
        """Print the error under --json."""
        with contextlib.suppress(OSError):  # stdout is full or closed: the line on stderr remains
            emit_error(kind, " ".join(message.split()), exit_code)


def _unknown_option(name: str, command: Any) -> str:
    """Return what to print for an option that the command does not have, with the one that was most likely meant."""
    spellings = [spelling for parameter in command.params for spelling in parameter.opts]
    suggestion = NAMES_ELSEWHERE.get(name)
    if suggestion not in spellings:
        suggestion = near_miss(name, spellings)
    return f"no such option: {name}" + (f"; did you mean {suggestion}?" if suggestion else "")


def run(command: Any, arguments: Sequence[str], signals: Signals, as_json: bool) -> int:
    """Run one command; return its exit code. While it runs, signals raise KeyboardInterrupt, which is reported here."""
    JsonOutput.requested, JsonOutput.has_result = as_json, False
    try:
        signals.raises_interrupt = True
        with _warnings_on_stderr():
            code = _exit_code(command, arguments, signals)
        signals.raises_interrupt = False
    except BaseException:  # one more signal, while the first was reported
        signals.raises_interrupt = False
        if not signals.first:
            raise
        code = signals.exit_code()
    return code


def _refuse_empty(arguments: Sequence[str]) -> None:
    """Refuse an option with an empty value: most often a variable of a script that is not set."""
    # words after "--" are the user's program (`lab run -- PROGRAM`)
    own_words = arguments[: arguments.index("--")] if "--" in arguments else arguments
    for previous, word in zip(["", *own_words], own_words, strict=False):
        # two forms: `--name ""`, where `word` is empty and `previous` the option, and `--name=`
        option = previous if not word else word[:-1] if _EMPTY_OPTION.fullmatch(word) else ""
        if option.startswith("-"):
            raise Invalid(f"{option}: its value is empty; give a value or leave the option out")


@contextmanager
def _warnings_on_stderr() -> Iterator[None]:
    """Print warnings about unlikely input as lines on stderr, each once. A signal meanwhile interrupts the command."""
    printed: set[str] = set()
    show_by_default = warnings.showwarning

    # `where`: file name and line, and where to print; as of `warnings.showwarning`
    def show(message: Warning | str, category: type[Warning], *where: Any, **where_by_name: Any) -> None:
        if not issubclass(category, UnlikelyInput):
            show_by_default(message, category, *where, **where_by_name)
        elif str(message) not in printed:
            printed.add(str(message))
            say(f"warning: {message}")

    with warnings.catch_warnings():
        warnings.simplefilter("always", UnlikelyInput)
        warnings.showwarning = show
        yield


def _exit_code(command: Any, arguments: Sequence[str], signals: Signals) -> int:
    """Run a command within typer, report how it failed if it did, and return its exit code."""
    reporter = _Reporter(signals, arguments)
    try:
        _refuse_empty(arguments)
        code = command.main(
            args=completion.with_shell(arguments), prog_name="antiphon", standalone_mode=False,
            help_option_names=["--help", "-h"], terminal_width=width(),
        )  # fmt: skip
        signals.raises_interrupt = False
    except (KeyboardInterrupt, typer.Abort):
        signals.raises_interrupt = False
        code = StoppedEarly.exit_code
    except BaseException as error:
        signals.raises_interrupt = False
        return _report(error, command, reporter)
    if code == StoppedEarly.exit_code:  # typer may return this code for Ctrl-C instead of raising KeyboardInterrupt
        return reporter.stop()
    return code if isinstance(code, int) else 0


def _report(error: BaseException, command: Any, reporter: _Reporter) -> int:  # noqa: PLR0911
    """Report an error; return its exit code."""
    if isinstance(error, StoppedEarly):
        return reporter.stop(str(error))
    if isinstance(error, typer.Exit):
        return int(error.exit_code)
    # After a signal, an error that is not ours may be the KeyboardInterrupt as a library passed it on, and Missing an
    # import that it broke off.
    if reporter.signals.first and (isinstance(error, Missing) or not isinstance(error, AntiphonError)):
        return reporter.stop()
    if isinstance(error, AntiphonError):
        kind = next((base.__name__ for base in type(error).__mro__ if base.__name__ in KINDS), "Failed")
        return reporter.fail(kind, str(error), error.exit_code)
    # the reader has gone (antiphon ... | head), which click turns into SystemExit: not an error
    if isinstance(error, BrokenPipeError | SystemExit):
        drop(sys.stdout)
        return 0
    if isinstance(error, MemoryError):
        return reporter.fail(
            "Memory",
            "out of memory: the machine or the schedule asked for is too large for this computer; try a smaller one",
            exit_code=2,
        )
    if isinstance(error, OSError):
        file_name = error.filename or ("stdout" if error.errno in _WRITE_ERRORS else "input or output")
        if file_name == "stdout":
            drop(sys.stdout)  # else Python would try to write it again at its end
        return reporter.fail("System", f"{file_name}: {error.strerror or error}", exit_code=2)
    if not isinstance(error, Exception):
        raise error
    if hasattr(error, "format_message"):  # typer's own complaints about usage have it, bugs of ours do not
        word = next(iter(reporter.arguments), "")
        return reporter.refuse_usage(error, f"antiphon {word}" if word in command.commands else "antiphon")
    if os.environ.get("ANTIPHON_DEBUG"):
        raise error
    message = f"internal error, please report it: {type(error).__name__}: {error} (ANTIPHON_DEBUG=1 shows where)"
    return reporter.fail("Internal", message, exit_code=70)  # EX_SOFTWARE of sysexits.h
