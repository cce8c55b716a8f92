"""The command line: results go to stdout, progress to stderr; errors are one line.

Exit codes: 0 done; 1 the answer is no (invalid plan, infeasible, budget spent); 2 wrong usage or bad input; 130
ended by Ctrl-C and 143 by SIGTERM, with what was found until then where the command keeps it.

`main` takes out --json and rewrites old spellings, loads the files of the requested command (`table`), runs it
(`_app.run`, which turns every error into one line and an exit code), and flushes stdout. This file imports next to
nothing: loading a command takes a while, and Ctrl-C must be handled meanwhile.
"""

from __future__ import annotations

# isort: off
import antiphon.cli.early_signals  # before all others

# isort: on

import ctypes
import sys
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

from antiphon.cli.old_spellings import respell
from antiphon.cli.signals import Signals
from antiphon.cli.streams import flush, open_all, say

if TYPE_CHECKING:
    import typer.core


# Bytes of a freed block; larger ones go back to the system, which bounds the memory held. Older versions of the GNU C
# library refuse more than the second number.
LARGEST_REUSED = (2**28, 2**25)
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and leave with its exit code; nothing a user does ends in a traceback."""
    signals = Signals()
    signals.install()  # never restored, as the process ends with this command
    keep_freed_memory()
    sys.exit(_run(arguments, signals))


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code. For programs: signal handlers are restored afterwards."""
    signals = Signals()
    signals.install()
    try:
        return _run(arguments, signals)
    finally:
        signals.restore()


def _run(arguments: Sequence[str] | None, signals: Signals) -> int:
    """Run one command with the handlers of `signals` installed; return its exit code."""
    if "stdout" in open_all():  # the names of the streams that were closed when the process started
        say("stdout is closed: there is nowhere to write the result to; to drop it, redirect it to /dev/null")
        return 2
    words, as_json = _take_json(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    words, warnings = respell(words)
    for warning in warnings:
        say(warning)
    command = application()
    command.commands.load(words)  # type: ignore[attr-defined]
    from antiphon.cli._app import run as run_one

    code = run_one(command, words, signals, as_json)
    stdout_error = flush()
    # a reader that has gone (antiphon ... | head) is no error
    if stdout_error is None or isinstance(stdout_error, BrokenPipeError):
        return code
    say(f"stdout: {stdout_error.strerror}")
    return code or 2


def _take_json(words: Sequence[str]) -> tuple[list[str], bool]:
    """Return the words without --json, and whether it was among them; words after -- are those of another program."""
    end = words.index("--") if "--" in words else len(words)
    own_words = [word for word in words[:end] if word != "--json"]
    return [*own_words, *words[end:]], len(own_words) < end


def keep_freed_memory() -> None:
    """Let the C library reuse the memory of freed arrays; by default it returns large blocks to the system at once.

    Clearing pages anew for every temporary array took a third of the CPU time of commands on thousands of ranks.
    Forked worker processes inherit the settings.
    """
    if sys.platform != "linux":
        return
    allocator = ctypes.CDLL(None)
    if hasattr(allocator, "mallopt"):  # the GNU C library
        for largest in LARGEST_REUSED:
            if allocator.mallopt(_M_MMAP_THRESHOLD, largest):  # 0: refused
                break
        allocator.mallopt(_M_TRIM_THRESHOLD, -1)  # never return memory


@cache
def application() -> typer.core.TyperGroup:
    """Return the group of all commands, whose files are imported when they are first used."""
    import typer.main

    from antiphon.cli._app import app
    from antiphon.cli.table import GROUPS, OLD_COMMANDS, Commands

    group = typer.main.get_group(app)
    group.commands = Commands(GROUPS, OLD_COMMANDS)  # type: ignore[assignment]  # read-only
    return group
