"""Progress of long work on stderr: a bar on a terminal, lines in a log."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from antiphon.cli.planning import ThrottledLog, repeat_in_log


@contextmanager
def show_progress(log: bool = False, unit: str = "planner calls") -> Iterator[Callable[[int, int, str], None]]:
    """Yield a function that shows progress: (done, total, text).

    On a terminal it moves a bar on stderr. Otherwise it prints a line for the first result, then one every few seconds,
    also between two calls.

    `log`: without a terminal, print only when the function is called, at most once every few seconds. `unit`: what is
    counted, named only in lines that are printed without `log`.
    """
    if not sys.stderr.isatty() and log:
        lines = ThrottledLog()
        yield lambda done, total, text: lines.tell(f"{done} of {total}: {text}")
        return
    if not sys.stderr.isatty():
        from antiphon.select.ledger import BEST_SO_FAR

        # a text with these words reports the first result
        with repeat_in_log(print_at_once=BEST_SO_FAR) as print_line:
            yield lambda done, total, text: print_line(progress_line(done, total, text, unit))
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        line = bar.add_task("starting", total=None)
        yield lambda done, total, text: bar.update(line, completed=done, total=total, description=text)


def progress_line(done: int, total: int, text: str, unit: str = "planner calls") -> str:
    """Return a line for a log. `text`: what is at work, else what was done last."""
    from antiphon.select.ledger import AT_WORK

    return f"{done} of {total} {unit} done; {'' if AT_WORK in text else 'last: '}{text}"
