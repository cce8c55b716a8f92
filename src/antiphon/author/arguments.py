"""Check and convert the arguments of statements of hand-written schedules: ranks, buffers, indices and links.

Each method of `Arguments` accepts what Python users pass: one number or several, of Python or NumPy, or a slice. Errors
name the argument, the allowed range and the user's line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import SupportsIndex

from antiphon.author.layout import INPUT, OUTPUT, Layout
from antiphon.errors import Invalid, quote

Ranks = SupportsIndex | Iterable[SupportsIndex]  # SupportsIndex: Python's and NumPy's whole numbers
Index = SupportsIndex | slice | Iterable[SupportsIndex]
MAX_INDEX = 2**31  # indices are int32
MAX_VALUES = 2**22  # values read of one argument: an iterator may be endless


class Arguments:
    """Convert arguments for a machine with this many `ranks` and `links`. `layout`: the sizes of inputs and outputs.

    `make_error` returns an error with this text and the user's line.
    """

    def __init__(self, layout: Layout, ranks: int, links: int, make_error: Callable[[str], Invalid]) -> None:
        self._layout, self._ranks, self._links, self._make_error = layout, ranks, links, make_error

    def buffer(self, buffer: object) -> str:
        """Return the name of a buffer."""
        if not isinstance(buffer, str) or not buffer:
            raise self._make_error(f'buffer: expected "input", "output" or a name for scratch, got {quote(buffer)}')
        return buffer

    def ranks(self, ranks: Ranks) -> list[int]:
        """Return the numbers of one rank or several."""
        return [self.integer(rank, "rank", self._ranks) for rank in self._as_list(ranks)]

    def start(self, index: SupportsIndex) -> int:
        """Return the index at which a statement begins to write."""
        return self.integer(index, "index", MAX_INDEX)

    def links(self, links: Iterable[SupportsIndex]) -> tuple[int, ...]:
        """Return the numbers of the links of a route."""
        if not isinstance(links, Iterable) or isinstance(links, str):
            raise self._make_error(f"via: expected the numbers of links, such as [3, 8], got {quote(links)}")
        return tuple(self.integer(link, "via", self._links) for link in self._as_list(links))

    def indices(self, index: tuple[object, ...], rank: int, buffer: str) -> Iterable[int]:
        """Return the indices that `w[rank, buffer, *index]` selects.

        `index`: a tuple with the user's index, or () for all of an input or output. Scratch has no size, so a selection
        of it needs an end.
        """
        selection = index[0] if index else slice(None)
        subject, has_end = f"index of rank {rank}'s {buffer}", buffer in (INPUT, OUTPUT)
        limit = self._layout.size(rank, buffer) if has_end else MAX_INDEX
        if not isinstance(selection, slice):
            return [self.integer(position, subject, limit) for position in self._as_list(selection)]
        if not has_end and selection.stop is None:
            raise self._make_error(f"{subject}: scratch is as large as you make it; name the places, such as 0:4")
        first = 0 if selection.start is None else self.integer(selection.start, subject, limit + 1)
        stop = limit if selection.stop is None else self.integer(selection.stop, subject, limit + 1)
        stride = 1 if selection.step is None else self.integer(selection.step, f"step of the {subject}", MAX_INDEX)
        if not stride or first > stop:
            text = f"{subject}: expected places in ascending order, such as 0:4, got {quote(selection)}"
            raise self._make_error(text)
        return range(first, stop, stride)

    def _as_list(self, values: object) -> list[object]:
        """Return several values as a list. Anything else, such as a number or a text, becomes a list of one, which
        `integer` checks.
        """
        if isinstance(values, str) or not isinstance(values, Iterable):
            return [values]
        try:
            read = list(islice(values, MAX_VALUES + 1))
        except TypeError:  # an array that holds one number
            return [values]
        if len(read) > MAX_VALUES:
            raise self._make_error(f"more than {MAX_VALUES} numbers in one argument; use several statements")
        return read

    def integer(self, value: object, subject: str, bound: int) -> int:
        """Return `value` as a whole number from 0 to `bound` - 1. `subject`: what errors call it."""
        try:  # True and False have __index__, too, but are no numbers here
            number = -1 if isinstance(value, bool) else int(value.__index__())  # type: ignore[attr-defined]
        except (AttributeError, TypeError, ValueError):
            number = -1
        if not 0 <= number < bound:
            upto = f"from 0 to {bound - 1}" if bound else "but there is none"
            raise self._make_error(f"{subject}: expected a whole number {upto}, got {quote(value)}")
        return number
