"""Which page serves a call: the one place behind plans, books and running groups.

Any object with `page(call)` is a chooser; `Pages` chooses by ranges of bytes. All processes of a call choose for
themselves and must choose alike, so a chooser depends only on the call and on data that all of them share.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Generic, NamedTuple, Protocol, TypeVar

Page = TypeVar("Page")
Page_co = TypeVar("Page_co", covariant=True)


class Call(NamedTuple):
    """What all processes of a call know of it. `root`: -1 where there is none. `members`: the process group, in its
    order; () where only one is meant."""

    kind: str
    nbytes: int
    root: int = -1
    members: tuple[int, ...] = ()


class Chooser(Protocol[Page_co]):
    """What chooses a page for a call."""

    def page(self, call: Call) -> Page_co | None:
        """The page by which the call goes; None where there is none for it."""


class Pages(Generic[Page]):
    """A chooser by ranges of bytes: of the pages added for calls of this kind, root and group the first, in the order
    of adding, whose range start <= nbytes < stop (None: without end) holds the size."""

    def __init__(self) -> None:
        # of each kind, root and group where its ranges begin, ascending from 0, and the page from there on
        self._ranges: dict[tuple[str, int, tuple[int, ...]], tuple[list[int], list[Page | None]]] = {}

    def add(
        self, page: Page, start: int, stop: int | None, kind: str = "", root: int = -1, members: tuple[int, ...] = ()
    ) -> None:
        """A page that comes after those that are there: it takes what is free of its range. O(ranges)."""
        starts, pages = self._ranges.setdefault((kind, root, members), ([0], [None]))
        first = _cut(starts, pages, start)
        last = len(starts) if stop is None else _cut(starts, pages, stop)
        for i in range(first, last):
            if pages[i] is None:
                pages[i] = page

    def page(self, call: Call) -> Page | None:
        """O(log ranges)."""
        kind, nbytes, root, members = call
        ranges = self._ranges.get((kind, root, members))
        if ranges is None or nbytes < 0:
            return None
        return ranges[1][bisect_right(ranges[0], nbytes) - 1]


def _cut(starts: list[int], pages: list[Page | None], at: int) -> int:
    """The number of the range that begins there, made where there is none."""
    number = bisect_left(starts, at)
    if number == len(starts) or starts[number] != at:
        starts.insert(number, at)
        pages.insert(number, pages[number - 1])
    return number
