"""What commands that work for long share: options for planners, and ways to tell how far they are."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from antiphon.cli.output import working
from antiphon.errors import Invalid
from antiphon.options import parse_options, plain_value

Tell = Callable[[str], None]
EVERY = 5.0  # seconds between two lines in a log


def options_of(given: list[str] | None) -> dict[str, Any]:
    """--option key=value, each given once."""
    told = parse_options(given or (), "--option", "key=value")
    return {key: plain_value(value) for key, value in told.items()}


def joined(options: dict[str, Any], named: dict[str, Any]) -> dict[str, Any]:
    """Options by --option and by their own names (--steps 2), where those were given."""
    given = {key: value for key, value in named.items() if value is not None}
    for key in given:
        if key in options:
            raise Invalid(f"{key} is given twice: by --{key} and by --option; leave one of them out")
    return {**options, **given}


@contextmanager
def progress(start: str, *, log: bool = True) -> Iterator[tuple[Tell, Tell]]:
    """Two ways of telling, both on stderr: what may vanish again, and what stays.

    On a terminal the first is one changing line. In a log it is a line for every candidate (none without `log`): what
    each engine does with it would be too much. What went wrong stays in any case.
    """
    if not sys.stderr.isatty():
        yield lambda text: say(text) if _matters(text) or (log and text.startswith("trying ")) else None, say
        return
    from rich.console import Console
    from rich.markup import escape

    console = Console(stderr=True, highlight=False, soft_wrap=True)
    with console.status(escape(start)) as status:

        def keep(text: str) -> None:
            console.print(text, markup=False)

        yield lambda text: keep(text) if _matters(text) else status.update(escape(text)), keep


class NowAndThen:
    """Where stderr is no terminal, at most a line every few seconds: long work shows that it goes on."""

    def __init__(self) -> None:
        self.last = time.monotonic()

    def tell(self, text: str) -> None:
        if time.monotonic() >= self.last + EVERY and not sys.stderr.isatty():
            self.last = time.monotonic()
            say(text)


@contextmanager
def beats() -> Iterator[Tell]:
    """For a log: the last of what was told, again every few seconds, with the seconds since the beginning; so that one
    long piece of work is not silent either."""
    latest, over, begin = ["starting"], threading.Event(), time.monotonic()

    def tell(text: str) -> None:
        latest[0] = text

    def beat() -> None:
        while not over.wait(EVERY):
            say(f"{latest[0]} ({time.monotonic() - begin:.0f} s)")

    beating = threading.Thread(target=beat, daemon=True)
    beating.start()
    try:
        yield tell
    finally:
        over.set()
        beating.join()


@contextmanager
def compiling() -> Iterator[None]:
    """A compiler is silent for a minute; in a log, too, something shows that it is at work."""
    if sys.stderr.isatty():
        with working("compiling"):
            yield
        return
    with beats() as tell:
        tell("compiling")
        yield


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _matters(text: str) -> bool:
    return text.startswith("no ") or "without it" in text
