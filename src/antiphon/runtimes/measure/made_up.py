"""The data of a run: every process makes what it holds, and what it must end with, by itself.

Each contribution (block, id) is random numbers seeded by these two, so no process needs the data of another. Whole
numbers, minima, maxima and data that is only moved must come out exactly; sums and products of floating-point numbers
may differ from those in float64 by rounding:

    m contributions, combined in any order, are rounded at most m times in the accumulator type and at most m
    times when stored. So the error of a sum is at most ((1 + u)^m (1 + v)^m - 1) * sum |x|, with u and v the
    unit roundoffs of the two types (the second falls away where they are one); of a product, with |product|.

To it comes the rounding of the value compared with, which is computed in float64.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.core.collective import Collective
from antiphon.core.columns import Longs, order_of, pointers
from antiphon.core.datatypes import accumulator, average, combine_of
from antiphon.core.interpret.buffers import Side, sides

Array = NDArray[Any]
Key = tuple[int, tuple[int, ...]]  # a block and the contributions that a rank is promised of it
WINDOW = 2**17  # elements handled at once


@dataclass(frozen=True, eq=False)
class MadeUp:
    """The data of one collective at one size. `keep`: in memory what has been made, for who plays all ranks."""

    collective: Collective
    unit: int
    dtype: np.dtype[Any]
    op: str
    in_place: bool = False
    seed: int = 0
    keep: bool = False

    def rank(self, rank: int) -> RankData:
        return RankData(self, rank)

    @cached_property
    def most(self) -> int:
        return int(self.collective.ids_per_block.max(initial=1))

    @cached_property
    def sides(self) -> tuple[tuple[Side, Longs], tuple[Side, Longs]]:
        """Input and output, and where those of each rank begin."""
        first, last = sides(self.collective, self.in_place)
        ranks = self.collective.ranks
        return (first, pointers(first.rank, ranks)), (last, pointers(last.rank, ranks))

    @cached_property
    def relation(self) -> tuple[Longs, Longs, Longs, Longs]:
        """Rows of `pre` and of `post` by rank, and where those of each rank begin."""
        relation, ranks = self.collective.relation, self.collective.ranks
        before, after = order_of(relation.pre_rank, ranks), order_of(relation.post_rank, ranks)
        return before, pointers(relation.pre_rank[before], ranks), after, pointers(relation.post_rank[after], ranks)

    @cached_property
    def everyone(self) -> dict[int, tuple[int, ...]]:
        """Per block all its contributions."""
        relation, found = self.collective.relation, dict[int, set[int]]()
        for block, name in zip(relation.pre_block.tolist(), relation.pre_id.tolist(), strict=True):
            found.setdefault(block, set()).add(name)
        return {block: tuple(sorted(names)) for block, names in found.items()}

    @cached_property
    def kept(self) -> dict[Any, Any]:
        return {}

    def contribution(self, block: int, name: int) -> Array:
        if (block, name) in self.kept:
            found: Array = self.kept[block, name]
            return found
        random = np.random.default_rng([self.seed, block, name])
        count = int(self.collective.weights[block]) * self.unit
        made = random_values(random, count, self.dtype, self.op, self.most)
        if self.keep:
            self.kept[block, name] = made
        return made

    def promised(self, key: Key) -> tuple[Array, Array | None]:
        """What must come out, and how far each element may be off; None: not at all."""
        if key in self.kept:
            found: tuple[Array, Array | None] = self.kept[key]
            return found
        rows = [self.contribution(key[0], name) for name in key[1]]
        total = combined(rows, self.dtype, self.op)
        made = total, _limit(rows, total, self.dtype, self.op)
        if self.keep:
            self.kept[key] = made
        return made


class RankData:
    """Input and expected output of one rank. `sizes`: elements of both buffers."""

    def __init__(self, made: MadeUp, rank: int) -> None:
        self.made, self.rank = made, rank
        (first, first_at), (last, last_at) = made.sides
        self.sizes = int(first.size[rank]) * made.unit, int(last.size[rank]) * made.unit
        self._first, self._last = self._places(first, first_at), self._places(last, last_at)
        before, before_at, after, after_at = made.relation
        relation = made.collective.relation
        self._held: dict[int, list[int]] = {}
        mine = before[before_at[rank] : before_at[rank + 1]]
        for block, name in sorted(zip(relation.pre_block[mine].tolist(), relation.pre_id[mine].tolist(), strict=True)):
            self._held.setdefault(block, []).append(name)
        self._wanted: dict[int, Key] = {}
        mine = after[after_at[rank] : after_at[rank + 1]]
        for block, want in zip(relation.post_block[mine].tolist(), relation.post_want[mine].tolist(), strict=True):
            self._wanted[block] = block, made.everyone[block] if want < 0 else tuple(relation.wants[want])

    def _places(self, side: Side, at: Longs) -> list[tuple[int, slice]]:
        here, unit = slice(int(at[self.rank]), int(at[self.rank + 1])), self.made.unit
        weights = self.made.collective.weights
        return [
            (block, slice(start * unit, (start + int(weights[block])) * unit))
            for block, start in zip(side.block[here].tolist(), side.start[here].tolist(), strict=True)
        ]

    def fill(self, buffer: Array) -> None:
        """The input, where it belongs."""
        dtype, wide = self.made.dtype, accumulator(self.made.dtype)
        for block, place in self._first:
            names = self._held.get(block, [])
            total = self.made.contribution(block, names[0]) if names else np.zeros(0, dtype)
            for name in names[1:]:
                other = self.made.contribution(block, name)
                total = combine_of(self.made.op)(total.astype(wide), other.astype(wide)).astype(dtype)
            if names:
                buffer[place] = total

    def count_wrong(self, buffer: Array) -> int:
        """How many elements of the output are not what the collective defines."""
        return sum(_wrong(buffer[place], *self.made.promised(self._wanted[block])) for block, place in self._last)

    def outputs(self, buffer: Array) -> Iterator[tuple[Key, Array]]:
        """Every promised block, and what stands in its place."""
        for block, place in self._last:
            yield self._wanted[block], buffer[place]


def combined(rows: list[Array], dtype: np.dtype[Any], op: str) -> Array:
    """Contributions as one by plain NumPy: in float64 where rounding is at stake."""
    if len(rows) == 1:
        return rows[0]
    combine, exact = combine_of(op), _exact(dtype, op)
    total = rows[0].astype(dtype if exact else np.float64)
    with np.errstate(all="ignore"):
        for row in rows[1:]:  # row by row: wide copies of all rows would be many times the data
            combine(total, row, out=total)
    if op != "avg":
        return total
    return np.asarray(average(total, len(rows)) if exact else total / len(rows))


def _exact(dtype: np.dtype[Any], op: str) -> bool:
    return dtype.kind in "iu" or op in ("min", "max")


def _limit(rows: list[Array], total: Array, dtype: np.dtype[Any], op: str) -> Array | None:
    """How far each element may be off by rounding; None where it must be exact."""
    if len(rows) == 1 or _exact(dtype, op):
        return None
    m, size = len(rows), np.abs(total)
    if op != "prod":
        size = np.zeros(len(total))
        for row in rows:
            size += np.abs(row)
    relative = growth(dtype, m) / (m if op == "avg" else 1)
    return np.asarray(size * relative + m * smallest(dtype))


def _wrong(got: Array, value: Array, limit: Array | None) -> int:
    """How many are further apart than the limit, or not a number: in windows that stay in the caches."""
    if limit is None:
        return int(np.count_nonzero(got != value))
    wrong = 0
    for low in range(0, len(got), WINDOW):
        here = slice(low, low + WINDOW)
        near = np.abs(got[here].astype(np.float64) - value[here]) <= limit[here]
        wrong += len(near) - int(np.count_nonzero(near))
    return wrong


def growth(dtype: np.dtype[Any], m: int) -> float:
    """The greatest relative error of a sum of m numbers of this type against the same in float64."""
    stored, held = (float(_finfo(one).eps) / 2 for one in (dtype, accumulator(dtype)))
    own = m * np.log1p(stored) + (m * np.log1p(held) if held != stored else 0.0)
    return float(np.expm1(own) + np.expm1(m * np.log1p(2.0**-53)))


def smallest(dtype: np.dtype[Any]) -> float:
    """The smallest number above 0: what underflows may lose so much each time."""
    return float(_finfo(dtype).smallest_subnormal)


def _finfo(dtype: np.dtype[Any]) -> Any:
    if dtype.name == "bfloat16" or dtype.itemsize == 1:
        import ml_dtypes

        finfo: Any = ml_dtypes.finfo
        return finfo(dtype)
    return np.finfo(dtype)


def random_values(random: np.random.Generator, count: int, dtype: np.dtype[Any], op: str, contributions: int) -> Array:
    """Numbers with all bits in use, so that rounding and wrapping around matter; no combination overflows."""
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        found = random.integers(limits.min, limits.max, count, dtype, endpoint=True)
        return found | dtype.type(1) if op == "prod" else found  # products of even numbers soon are 0
    if op == "prod":
        most = 8.0 if dtype.itemsize > 1 else 4.0  # of float8 the largest number is e^6
        size = np.exp(random.uniform(-1.0, 1.0, count) * min(1.0, most / contributions))
        return np.asarray(np.where(random.random(count) < 0.5, -size, size).astype(dtype))
    drawn = np.float64 if dtype.itemsize == 8 else np.float32
    scale = 0.9876 * min(1.0, 2.0**14 / contributions)  # what is drawn are multiples of one number: adding is exact
    out = np.empty(count, dtype)
    for low in range(0, count, WINDOW):
        here = out[low : low + WINDOW]
        here[:] = (random.random(len(here), drawn) * 2.0 - 1.0) * scale
    return out
