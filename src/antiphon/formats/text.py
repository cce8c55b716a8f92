"""Format millions of similar lines from columns of integers, for exports of messages: a second or two per million.

Pieces of text from several `add` calls are interleaved by their *place*. One `%` per batch formats thousands of pieces
at once: the templates of a batch are joined, and its numbers become one tuple.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from antiphon.core.columns import Longs, concat_ranges, order_of

_BATCH = 2**18  # pieces of text that are formatted at once


class Lines:
    """Pieces of text, each with a place; `text` writes them in the order of places, equal places as they were added."""

    def __init__(self) -> None:
        self.templates: list[bytes] = []
        self.widths: list[int] = []  # numbers that each template takes
        # one array per call of `add`: places and templates of its pieces, and their numbers, one piece after another
        self.places: list[Longs] = []
        self.kinds: list[Longs] = []
        self.numbers: list[Longs] = []

    def add(self, places: ArrayLike, template: str, *numbers: NDArray[Any]) -> None:
        """Add a piece at each of these places (whole numbers from 0): the template with its row's numbers for %d."""
        self.mixed(places, (template,), np.zeros(len(np.asarray(places)), np.int64), *numbers)

    def mixed(self, places: ArrayLike, templates: Sequence[str], kinds: Longs, *numbers: NDArray[Any]) -> None:
        """Add pieces; piece i has the template templates[kinds[i]], which takes the first columns, one for each %d."""
        at = np.asarray(places, np.int64)
        widths = [template.count("%d") for template in templates]
        values = np.empty((len(at), len(numbers)), np.int64)
        for i, column in enumerate(numbers):
            values[:, i] = column
        is_used = np.arange(len(numbers)) < np.array(widths)[kinds][:, None]
        self.places.append(at)
        self.kinds.append(kinds + len(self.templates))
        self.numbers.append(values[is_used])
        self.templates += [template.encode() for template in templates]
        self.widths += widths

    def text(self) -> Iterator[bytes]:
        """Yield the text in batches. O(pieces), and one sort of their places.

        >>> lines = Lines()
        >>> lines.add([0, 2], "begin %d:", np.array([7, 8]))
        >>> lines.add([0, 3], " %d to %d; ", np.array([1, 2]), np.array([3, 4]))
        >>> b"".join(lines.text())
        b'begin 7: 1 to 3; begin 8: 2 to 4; '
        """
        place = np.concatenate(self.places) if self.places else np.zeros(0, np.int64)
        if not len(place):
            return
        kind = np.concatenate(self.kinds)
        width = np.array(self.widths, np.int64)[kind]
        begin = np.cumsum(width) - width
        numbers = np.concatenate(self.numbers)
        order = order_of(place, int(place.max()) + 1)
        for start in range(0, len(order), _BATCH):
            batch = order[start : start + _BATCH]
            template = b"".join(map(self.templates.__getitem__, kind[batch].tolist()))
            yield template % tuple(numbers[concat_ranges(begin[batch], width[batch])].tolist())
