"""What a statement is given: ranks, buffers, indices and links, each checked and made plain."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import SupportsIndex

from antiphon.author.ground import INPUT, OUTPUT, Ground
from antiphon.errors import Invalid, quote

Ranks = SupportsIndex | Iterable[SupportsIndex]
Index = SupportsIndex | slice | Iterable[SupportsIndex]
MOST_INDEX = 2**31
MOST = 2**22  # of what is named at once


class Given:
    """Reads it, for a machine of so many ranks and links. `wrong`: the error that tells the user's line."""

    def __init__(self, ground: Ground, ranks: int, links: int, wrong: Callable[[str], Invalid]) -> None:
        self._ground, self._ranks, self._links, self._wrong = ground, ranks, links, wrong

    def buffer(self, given: object) -> str:
        if not isinstance(given, str) or not given:
            raise self._wrong(f'buffer: expected "input", "output" or a name for scratch, got {quote(given)}')
        return given

    def ranks(self, given: Ranks) -> list[int]:
        return [self.whole(rank, "rank", self._ranks) for rank in self._several(given)]

    def start(self, given: SupportsIndex) -> int:
        return self.whole(given, "index", MOST_INDEX)

    def links(self, given: Iterable[SupportsIndex]) -> tuple[int, ...]:
        if not isinstance(given, Iterable) or isinstance(given, str):
            raise self._wrong(f"via: expected the numbers of links, such as [3, 8], got {quote(given)}")
        return tuple(self.whole(link, "via", self._links) for link in self._several(given))

    def indices(self, given: tuple[object, ...], rank: int, buffer: str) -> Iterable[int]:
        """Those that are named; without a name all of an input or output. Scratch has as many as one likes."""
        asked = given[0] if given else slice(None)
        what, bounded = f"index of rank {rank}'s {buffer}", buffer in (INPUT, OUTPUT)
        most = self._ground.size(rank, buffer) if bounded else MOST_INDEX
        if not isinstance(asked, slice):
            return [self.whole(one, what, most) for one in self._several(asked)]
        if not bounded and asked.stop is None:
            raise self._wrong(f"{what}: scratch is as large as you make it; name the places, such as 0:4")
        first = 0 if asked.start is None else self.whole(asked.start, what, most + 1)
        stop = most if asked.stop is None else self.whole(asked.stop, what, most + 1)
        by = 1 if asked.step is None else self.whole(asked.step, f"step of the {what}", MOST_INDEX)
        if not by or first > stop:
            raise self._wrong(f"{what}: expected places in ascending order, such as 0:4, got {quote(asked)}")
        return range(first, stop, by)

    def _several(self, given: object) -> list[object]:
        if isinstance(given, str) or not isinstance(given, Iterable):
            return [given]
        try:
            return list(islice(given, MOST))
        except TypeError:  # an array that holds one number
            return [given]

    def whole(self, given: object, what: str, bound: int) -> int:
        """A whole number below a bound, also NumPy's."""
        try:
            number = -1 if isinstance(given, bool) else int(given.__index__())  # type: ignore[attr-defined]
        except (AttributeError, TypeError, ValueError):
            number = -1
        if not 0 <= number < bound:
            upto = f"from 0 to {bound - 1}" if bound else "but there is none"
            raise self._wrong(f"{what}: expected a whole number {upto}, got {quote(given)}")
        return number
