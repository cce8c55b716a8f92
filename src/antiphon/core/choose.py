"""Choose which schedule serves a call: the one mechanism behind plans, tables and running process groups.

A *page* is the object that is chosen: an entry of a plan (`Plan.chooser`) or a compiled program (a process group). Any
object with a method `page(call)` is a chooser; `SizeChooser` chooses by ranges of bytes. Every process of a call
chooses by itself and all must choose the same page, so a choice may depend only on the call and on data that all
processes share.

Example: after `pages.add("tree", 0, 4096, "allreduce")` and `pages.add("ring", 0, None, "allreduce")`, a call of 1000
bytes gets "tree" (added first) and one of 5000 bytes "ring".
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Generic, NamedTuple, Protocol, TypeVar

Page = TypeVar("Page")
Page_co = TypeVar("Page_co", covariant=True)


class Call(NamedTuple):
    """The properties of a call that all its processes know."""

    kind: str  # of the collective
    nbytes: int
    root: int = -1  # -1: the collective has none
    members: tuple[int, ...] = ()  # the process group, in its order; () if only one group exists


class Chooser(Protocol[Page_co]):
    """The interface of choosers."""

    def page(self, call: Call) -> Page_co | None:
        """Return the page that serves the call, or None."""


class SizeChooser(Generic[Page]):
    """A chooser by ranges of bytes, separate for every (kind, root, group).

    Of the pages whose range start <= nbytes < stop (None: no upper end) holds the size, the first one added is chosen.
    """

    def __init__(self) -> None:
        # (kind, root, group) -> where its ranges begin, ascending from 0, and the page of each range (None: none yet)
        self._ranges: dict[tuple[str, int, tuple[int, ...]], tuple[list[int], list[Page | None]]] = {}

    def add(
        self, page: Page, start: int, stop: int | None, kind: str = "", root: int = -1, members: tuple[int, ...] = ()
    ) -> None:
        """Add a page for the part of its range that no earlier page serves. O(ranges).

        `kind`, `root`, `members`: of the calls that it serves, as in `Call`. `kind` may be left out ("") where it does
        not matter, if the calls leave it empty, too.
        """
        starts, pages = self._ranges.setdefault((kind, root, members), ([0], [None]))
        first = _split_at(starts, pages, start)
        last = len(starts) if stop is None else _split_at(starts, pages, stop)
        for i in range(first, last):
            if pages[i] is None:
                pages[i] = page

    def page(self, call: Call) -> Page | None:
        """Return the page that serves the call, or None. O(log ranges)."""
        kind, nbytes, root, members = call
        starts, pages = self._ranges.get((kind, root, members), ([0], [None]))
        return None if nbytes < 0 else pages[bisect_right(starts, nbytes) - 1]


def _split_at(starts: list[int], pages: list[Page | None], at: int) -> int:
    """Return the index of the range that begins at `at`, splitting a range if none does."""
    number = bisect_left(starts, at)
    if number == len(starts) or starts[number] != at:
        starts.insert(number, at)
        pages.insert(number, pages[number - 1])
    return number
