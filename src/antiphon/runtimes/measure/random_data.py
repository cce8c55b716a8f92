"""The random data of a run: every process generates its input and its expected output by itself.

A collective combines contributions: the input of rank `id` to a block. `RankData.fill` writes a rank's input,
`count_wrong` compares its output. Each contribution (block, id) consists of random numbers seeded by these two, so no
process needs the data of another.
Integers, minima, maxima and data that is only moved must be exact. Sums and products of floating-point numbers may
differ from those in float64 by rounding:

    m contributions, combined in any order, are rounded at most m times in the accumulator type and at most m
    times when stored. So the error of a sum is at most ((1 + u)^m (1 + v)^m - 1) * sum |x|, with u and v the
    unit roundoffs of the two types (the second falls away where they are one); of a product, with |product|.

In addition there is the rounding of the reference, which is computed in float64.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from antiphon.core.collective import Collective
from antiphon.core.columns import Longs, order_of, pointers
from antiphon.core.datatypes import accumulator, average, combine_of
from antiphon.core.interpret.buffers import Side, sides

Array = NDArray[Any]
Key = tuple[int, tuple[int, ...]]  # a block and the contributions to it that a rank must end with
WINDOW = 2**17  # elements handled at once


@dataclass(frozen=True, eq=False)
class RandomData:
    """The data of one collective at one size. `keep`: cache it, for a process that has all ranks."""

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
    def max_contributions(self) -> int:
        return int(self.collective.contributions_per_block.max(initial=1))

    @cached_property
    def sides(self) -> tuple[tuple[Side, Longs], tuple[Side, Longs]]:
        """Input and output, each with the positions at which the rows of every rank begin in it."""
        input_side, output_side = sides(self.collective, self.in_place)
        ranks = self.collective.ranks
        return (input_side, pointers(input_side.rank, ranks)), (output_side, pointers(output_side.rank, ranks))

    @cached_property
    def relation(self) -> tuple[Longs, Longs, Longs, Longs]:
        """Rows of `pre` and of `post` sorted by rank, and where those of each rank begin."""
        relation, ranks = self.collective.relation, self.collective.ranks
        pre_rows, post_rows = order_of(relation.pre_rank, ranks), order_of(relation.post_rank, ranks)
        return (
            pre_rows,
            pointers(relation.pre_rank[pre_rows], ranks),
            post_rows,
            pointers(relation.post_rank[post_rows], ranks),
        )

    @cached_property
    def all_contributions(self) -> dict[int, tuple[int, ...]]:
        """All contributions per block."""
        relation, ids_of = self.collective.relation, dict[int, set[int]]()
        for block, contributor in zip(relation.pre_block.tolist(), relation.pre_id.tolist(), strict=True):
            ids_of.setdefault(block, set()).add(contributor)
        return {block: tuple(sorted(contributors)) for block, contributors in ids_of.items()}

    @cached_property
    def cache(self) -> dict[Any, Any]:
        return {}

    def contribution(self, block: int, contributor: int) -> Array:
        """Return the numbers of one contribution to a block."""
        if (block, contributor) in self.cache:
            cached: Array = self.cache[block, contributor]
            return cached
        # The seed identifies the contribution: all processes draw the same numbers.
        random = np.random.default_rng([self.seed, block, contributor])
        count = int(self.collective.weights[block]) * self.unit
        values = random_values(random, count, self.dtype, self.op, self.max_contributions)
        if self.keep:
            self.cache[block, contributor] = values
        return values

    def expected_of(self, key: Key) -> tuple[Array, Array | None]:
        """Return the expected value, and the allowed error of each element; None if it must be exact."""
        if key in self.cache:
            cached: tuple[Array, Array | None] = self.cache[key]
            return cached
        block, contributors = key
        rows = [self.contribution(block, contributor) for contributor in contributors]
        total = combine_rows(rows, self.dtype, self.op)
        expected = total, _error_limit(rows, total, self.dtype, self.op)
        if self.keep:
            self.cache[key] = expected
        return expected


class BufferSizes(NamedTuple):
    """Elements of the buffers of a rank."""

    input: int
    output: int


class RankData:
    """Input and expected output of one rank."""

    def __init__(self, data: RandomData, rank: int) -> None:
        self.data, self.rank = data, rank
        (input_side, input_starts), (output_side, output_starts) = data.sides
        self.sizes = BufferSizes(int(input_side.size[rank]) * data.unit, int(output_side.size[rank]) * data.unit)
        self._input_places, self._output_places = (
            self._place_slices(input_side, input_starts),
            self._place_slices(output_side, output_starts),
        )
        pre_rows, pre_starts, post_rows, post_starts = data.relation
        relation = data.collective.relation
        # by block of the input: whose contributions to it this rank begins with
        self._contributors: dict[int, list[int]] = {}
        rows = pre_rows[pre_starts[rank] : pre_starts[rank + 1]]
        pairs = zip(relation.pre_block[rows].tolist(), relation.pre_id[rows].tolist(), strict=True)
        for block, contributor in sorted(pairs):
            self._contributors.setdefault(block, []).append(contributor)
        self._expected: dict[int, Key] = {}
        rows = post_rows[post_starts[rank] : post_starts[rank + 1]]
        for block, want in zip(relation.post_block[rows].tolist(), relation.post_want[rows].tolist(), strict=True):
            self._expected[block] = block, data.all_contributions[block] if want < 0 else tuple(relation.wants[want])

    def _place_slices(self, side: Side, starts: Longs) -> list[tuple[int, slice]]:
        """Return the blocks of this rank's input or output, with their places in the buffer."""
        rows, unit = slice(int(starts[self.rank]), int(starts[self.rank + 1])), self.data.unit
        weights = self.data.collective.weights
        return [
            (block, slice(start * unit, (start + int(weights[block])) * unit))
            for block, start in zip(side.block[rows].tolist(), side.start[rows].tolist(), strict=True)
        ]

    def fill(self, buffer: Array) -> None:
        """Write the input into a buffer."""
        dtype, wide = self.data.dtype, accumulator(self.data.dtype)
        for block, place in self._input_places:
            contributors = self._contributors.get(block, [])
            total = self.data.contribution(block, contributors[0]) if contributors else np.zeros(0, dtype)
            for contributor in contributors[1:]:
                other = self.data.contribution(block, contributor)
                total = combine_of(self.data.op)(total.astype(wide), other.astype(wide)).astype(dtype)
            if contributors:
                buffer[place] = total

    def count_wrong(self, buffer: Array) -> int:
        """Count the elements of the output that differ from the definition of the collective."""
        return sum(
            _count_wrong(buffer[place], *self.data.expected_of(self._expected[block]))
            for block, place in self._output_places
        )

    def outputs(self, buffer: Array) -> Iterator[tuple[Key, Array]]:
        """Yield the key of every expected block, and its elements in the buffer."""
        for block, place in self._output_places:
            yield self._expected[block], buffer[place]


def combine_rows(rows: list[Array], dtype: np.dtype[Any], op: str) -> Array:
    """Combine contributions by plain NumPy, in float64 where results are rounded."""
    if len(rows) == 1:
        return rows[0]
    combine, exact = combine_of(op), _is_exact(dtype, op)
    total = rows[0].astype(dtype if exact else np.float64)
    with np.errstate(all="ignore"):
        for row in rows[1:]:  # row by row, as wide copies of all rows would be many times the data
            combine(total, row, out=total)
    if op != "avg":
        return total
    return np.asarray(average(total, len(rows)) if exact else total / len(rows))


def _is_exact(dtype: np.dtype[Any], op: str) -> bool:
    return dtype.kind in "iu" or op in ("min", "max")


def _error_limit(rows: list[Array], total: Array, dtype: np.dtype[Any], op: str) -> Array | None:
    """Return the rounding error that each element may have; None if it must be exact."""
    if len(rows) == 1 or _is_exact(dtype, op):
        return None
    m, size = len(rows), np.abs(total)
    if op != "prod":
        size = np.zeros(len(total))
        for row in rows:
            size += np.abs(row)
    # Error <= ((1 + u)^m (1 + v)^m - 1) * size, plus one underflow per operation; avg divides by m.
    relative = rounding_growth(dtype, m) / (m if op == "avg" else 1)
    underflow = float(_float_limits(dtype).smallest_subnormal)  # its maximum loss: the smallest number above 0
    return np.asarray(size * relative + m * underflow)


def _count_wrong(actual: Array, value: Array, limit: Array | None) -> int:
    """Count elements that differ by more than the limit, or are NaN, in windows that fit into the caches."""
    if limit is None:
        return int(np.count_nonzero(actual != value))
    wrong = 0
    for low in range(0, len(actual), WINDOW):
        window = slice(low, low + WINDOW)
        near = np.abs(actual[window].astype(np.float64) - value[window]) <= limit[window]
        wrong += len(near) - int(np.count_nonzero(near))
    return wrong


def rounding_growth(dtype: np.dtype[Any], m: int) -> float:
    """Return the maximum relative error of a sum of m numbers of this type, compared to float64."""
    stored, wide = (float(_float_limits(float_type).eps) / 2 for float_type in (dtype, accumulator(dtype)))
    # In logarithms: (1 + u)^m - 1 would lose all digits for small u.
    own_growth = m * np.log1p(stored) + (m * np.log1p(wide) if wide != stored else 0.0)
    return float(np.expm1(own_growth) + np.expm1(m * np.log1p(2.0**-53)))  # 2^-53: unit roundoff of float64


def _float_limits(dtype: np.dtype[Any]) -> Any:
    """Return the `finfo` of a floating-point type, also of those that NumPy lacks."""
    if dtype.name == "bfloat16" or dtype.itemsize == 1:
        import ml_dtypes

        finfo: Any = ml_dtypes.finfo
        return finfo(dtype)
    return np.finfo(dtype)


def random_values(random: np.random.Generator, count: int, dtype: np.dtype[Any], op: str, contributions: int) -> Array:
    """Return numbers that use all bits, so that rounding and overflow of integers matter; floats do not overflow."""
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        values = random.integers(limits.min, limits.max, count, dtype, endpoint=True)
        return values | dtype.type(1) if op == "prod" else values  # products of even numbers soon become 0
    if op == "prod":
        # the logarithm of a product is at most this: the largest number of float16 is e^11, of float8_e4m3fn e^6
        spread = 8.0 if dtype.itemsize > 1 else 4.0
        size = np.exp(random.uniform(-1.0, 1.0, count) * min(1.0, spread / contributions))
        return np.asarray(np.where(random.random(count) < 0.5, -size, size).astype(dtype))
    drawn = np.float64 if dtype.itemsize == 8 else np.float32
    # Drawn numbers are multiples of a power of two, whose sums are exact: 0.9876 gives them bits that rounding loses.
    # The other factor keeps sums of many contributions below 2^14, within float16.
    scale = 0.9876 * min(1.0, 2.0**14 / contributions)
    out = np.empty(count, dtype)
    for low in range(0, count, WINDOW):
        window = out[low : low + WINDOW]
        window[:] = (random.random(len(window), drawn) * 2.0 - 1.0) * scale
    return out
