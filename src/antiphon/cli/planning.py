"""Progress of long-running commands on stderr.

On a terminal progress is one line that is overwritten (`progress`). In a log (stderr is no terminal) it is a line per
candidate, or the last line repeated every few seconds (`repeat_in_log`).
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from antiphon.cli.output import working

Tell = Callable[[str], None]  # prints a line of progress
LOG_INTERVAL = 5.0  # seconds between two lines in a log


@contextmanager
def progress(start: str, *, log: bool = True) -> Iterator[tuple[Tell, Tell]]:
    """Yield two functions that print on stderr: one for lines that may be overwritten, one for lines that stay.

    In a log the first prints only lines that begin with "trying", one per candidate; none if not `log`. Lines that
    report a problem always stay.
    """
    if not sys.stderr.isatty():

        def print_in_log(text: str) -> None:
            if _is_problem(text) or (log and text.startswith("trying ")):
                say(text)

        yield print_in_log, say
        return
    from rich.console import Console
    from rich.markup import escape

    console = Console(stderr=True, highlight=False, soft_wrap=True)
    with console.status(escape(start)) as status:

        def keep(text: str) -> None:
            console.print(text, markup=False)

        def show(text: str) -> None:
            if _is_problem(text):
                keep(text)
            else:
                status.update(escape(text))

        yield show, keep


class ThrottledLog:
    """Prints at most a line every few seconds into a log, to show that long work goes on."""

    def __init__(self) -> None:
        self.last = time.monotonic()

    def tell(self, text: str) -> None:
        if time.monotonic() >= self.last + LOG_INTERVAL and not sys.stderr.isatty():
            self.last = time.monotonic()
            say(text)


@contextmanager
def repeat_in_log(print_at_once: str | None = None) -> Iterator[Tell]:
    """Repeat in a log the last line every few seconds, with the seconds since the beginning, so that long work is never
    silent. The first line that contains `print_at_once` is printed at once.
    """
    last_line, has_ended, begin = "starting", threading.Event(), time.monotonic()

    def print_line() -> None:
        say(f"{last_line} ({time.monotonic() - begin:.0f} s)")

    def tell(text: str) -> None:
        nonlocal last_line, print_at_once
        last_line = text
        if print_at_once is not None and print_at_once in text:
            print_at_once = None
            print_line()

    def repeat() -> None:
        while not has_ended.wait(LOG_INTERVAL):
            print_line()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield tell
    finally:
        has_ended.set()
        thread.join()


@contextmanager
def compiling() -> Iterator[None]:
    """Show on a terminal or in a log that a compiler is at work, which prints nothing for up to a minute."""
    if sys.stderr.isatty():
        with working("compiling"):
            yield
        return
    with repeat_in_log() as tell:
        tell("compiling")
        yield


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _is_problem(text: str) -> bool:
    """Return whether a line of progress reports something missing ("no ...", "... without it")."""
    return text.startswith("no ") or "without it" in text
