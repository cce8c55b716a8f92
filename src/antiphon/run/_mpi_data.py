"""The data of a run under MPI: each process makes what it holds, and what it must end with, by itself.

Every contribution (block, id) is random numbers seeded by these two, so no process needs the data of another. Whole
numbers, minima, maxima and data that is only moved must come out exactly; sums and products of floating-point numbers
may differ from those in float64 by rounding: m contributions, in any order, are rounded at most m times in the
accumulator type (unit roundoff v) and at most m times when stored (u), so that the error is at most
((1 + u)^m (1 + v)^m - 1) times the sum of the magnitudes (of a product: times its magnitude).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.core.collective import Collective
from antiphon.core.datatypes import accumulator, average, combine_of
from antiphon.core.interpret.buffers import sides

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
        return values(random, int(self.collective.weights[block]) * self.unit, self.dtype, self.op, self._most)

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
    limit = size * _growth(got.dtype, len(rows)) + len(rows) * float(_finfo(got.dtype).smallest_subnormal)
    return int(np.count_nonzero(~(np.abs(got.astype(wide) - total) <= limit)))


def _growth(dtype: np.dtype[Any], m: int) -> float:
    stored, held = (float(_finfo(one).eps) / 2 for one in (dtype, accumulator(dtype)))
    own = m * np.log1p(stored) + (m * np.log1p(held) if held != stored else 0.0)
    return float(np.expm1(own) + np.expm1(m * np.log1p(2.0**-53)))


def _finfo(dtype: np.dtype[Any]) -> Any:
    if dtype.name == "bfloat16":
        import ml_dtypes

        finfo: Any = ml_dtypes.finfo
        return finfo(dtype)
    return np.finfo(dtype)


def values(random: np.random.Generator, count: int, dtype: np.dtype[Any], op: str, contributions: int) -> Array:
    """Numbers with all bits in use, none of whose combinations overflows; whole numbers wrap around."""
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        found = random.integers(limits.min, limits.max, count, dtype, endpoint=True)
        return found | dtype.type(1) if op == "prod" else found  # products of even numbers soon are 0
    if op == "prod":
        size = np.exp(random.uniform(-1.0, 1.0, count) * min(1.0, 8.0 / contributions))
        return np.asarray(np.where(random.random(count) < 0.5, -size, size).astype(dtype))
    return (
        np.asarray((random.random(count, np.float32) * 2.0 - 1.0).astype(dtype))
        if dtype.itemsize < 8
        else (np.asarray(random.uniform(-1.0, 1.0, count).astype(dtype)))
    )
