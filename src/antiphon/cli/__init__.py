"""The command line. Results go to stdout, progress to stderr; errors are one line.

Exit codes: 0 done; 1 the answer is no (invalid plan, infeasible, budget spent); 2 wrong usage or bad input.

This file imports next to nothing: loading all commands takes a while, and Ctrl-C must be heard meanwhile.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from types import FrameType
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    import typer.core

_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and leave with its exit code; nothing a user does ends in a traceback."""
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command; its exit code."""
    with _ctrl_c_leaves_at_once():
        command = application()
        from antiphon.cli._app import run as run_one
    return run_one(command, arguments)


@cache
def application() -> typer.core.TyperGroup:
    """All commands."""
    import typer

    from antiphon.cli import (
        bench,
        build,
        costs,
        export,
        fit,
        frontier,
        lab,
        listing,
        machine,
        plans,
        reproduce,
        tuning,
    )
    from antiphon.cli._app import app

    for module in (listing, machine, plans, frontier, costs, tuning, bench, fit, build, export, lab, reproduce):
        module.register(app)
    return cast("typer.core.TyperGroup", typer.main.get_command(app))


@contextmanager
def _ctrl_c_leaves_at_once() -> Iterator[None]:
    """While modules are loaded nothing is lost by leaving; an exception there may come out as some other one."""
    usual = threading.current_thread() is threading.main_thread() and (
        signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
    if usual:
        signal.signal(signal.SIGINT, _leave)
    try:
        yield
    finally:
        if usual:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _leave(number: int, frame: FrameType | None) -> None:
    os.write(2, b"antiphon: interrupted\n")
    os._exit(_INTERRUPTED)
