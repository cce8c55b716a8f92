"""The data of a run under MPI: each process makes what it holds, and what it must end with, by itself.

Every contribution (block, id) is random numbers seeded by these two, so no process needs the data of another. Whole
numbers, minima, maxima and data that is only moved must come out exactly; sums and products of floating-point numbers
may differ from those in float64 by rounding (`_case` says how far).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.core.collective import Collective
from antiphon.core.datatypes import accumulator, average, combine_of
from antiphon.core.interpret.buffers import sides
from antiphon.run._case import growth, random_values, smallest

Array = NDArray[Any]


class RankData:
    """Input and expected output of one rank at one size."""

    def __init__(
        self, collective: Collective, rank: int, unit: int, dtype: np.dtype[Any], op: str, in_place: bool, seed: int
    ) -> None:
        self.collective, self.rank, self.unit, self.dtype, self.op, self.seed = collective, rank, unit, dtype, op, seed
        relation = collective.relation
        first, last = sides(collective, in_place)
        self.sizes = int(first.size[rank]) * unit, int(last.size[rank]) * unit
        self._most = int(collective.ids_per_block.max(initial=1))
        self._held: dict[int, list[int]] = {}
        mine = np.flatnonzero(relation.pre_rank == rank)
        for block, name in sorted(zip(relation.pre_block[mine].tolist(), relation.pre_id[mine].tolist(), strict=True)):
            self._held.setdefault(block, []).append(name)
        self._wanted: dict[int, list[int]] = {}
        mine = np.flatnonzero(relation.post_rank == rank)
        for block, want in zip(relation.post_block[mine].tolist(), relation.post_want[mine].tolist(), strict=True):
            ids = relation.pre_id[relation.pre_block == block] if want < 0 else relation.wants[want]
            self._wanted[block] = np.unique(ids).tolist() if want < 0 else list(ids)
        self._first = self._places(first)
        self._last = self._places(last)

    def _places(self, side: Any) -> list[tuple[int, slice]]:
        mine = np.flatnonzero(side.rank == self.rank)
        weights = self.collective.weights
        found = []
        for block, start in zip(side.block[mine].tolist(), side.start[mine].tolist(), strict=True):
            found.append((block, slice(start * self.unit, (start + int(weights[block])) * self.unit)))
        return found

    def _contribution(self, block: int, name: int) -> Array:
        random = np.random.default_rng([self.seed, block, name])
        return random_values(random, int(self.collective.weights[block]) * self.unit, self.dtype, self.op, self._most)

    def fill(self, buffer: Array) -> None:
        """The input, where it belongs."""
        for block, place in self._first:
            names = self._held[block]
            total = self._contribution(block, names[0])
            for name in names[1:]:
                other = self._contribution(block, name)
                wide = accumulator(self.dtype)
                total = combine_of(self.op)(total.astype(wide), other.astype(wide)).astype(self.dtype)
            buffer[place] = total

    def count_wrong(self, buffer: Array) -> int:
        """How many elements of the output are not what the collective defines."""
        wrong = 0
        for block, place in self._last:
            rows = [self._contribution(block, name) for name in self._wanted[block]]
            wrong += _wrong(buffer[place], rows, self.op)
        return wrong

    def blocks_out(self, buffer: Array) -> Iterator[tuple[int, Array]]:
        for block, place in self._last:
            yield block, buffer[place]


def _wrong(got: Array, rows: list[Array], op: str) -> int:
    if len(rows) == 1:
        return int(np.count_nonzero(got != rows[0]))
    combine, whole = combine_of(op), got.dtype.kind in "iu"
    exact = whole or op in ("min", "max")
    wide = got.dtype if exact else np.dtype(np.float64)
    total = rows[0].astype(wide)
    size = np.abs(total) if not exact else total
    with np.errstate(all="ignore"):
        for row in rows[1:]:
            total = combine(total, row.astype(wide))
            if not exact and op != "prod":
                size += np.abs(row.astype(wide))
    if exact:
        return int(np.count_nonzero(got != (average(total, len(rows)) if op == "avg" else total)))
    if op == "prod":
        size = np.abs(total)
    if op == "avg":
        total, size = total / len(rows), size / len(rows)
    limit = size * growth(got.dtype, len(rows)) + len(rows) * smallest(got.dtype)
    return int(np.count_nonzero(~(np.abs(got.astype(wide) - total) <= limit)))
