"""Track contributions exactly: bit sets where each may appear once, saturating counts otherwise.

Every cell has a set of contribution ids, 64 per word. A step combines, for each written cell, the sets that arrive
and, for a reduction, the old set: the union by OR. Adding a contribution twice is detected by counting: the size of
the union is then less than the sum of the sizes.

Example: cell A holds {0, 1}, cell B holds {1, 2}. Reducing B into A gives the union {0, 1, 2} of size 3, but 2 + 2 =
4: contribution 1 is counted twice, and the cell is marked in `has_repeats`.

Where a relation wants a contribution several times, counts replace bits. They saturate at one more than the greatest
number wanted, which is exact: sums never fall again. Contributions are processed in windows so that the state stays
below MAX_STATE_BYTES.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from antiphon.core.columns import (
    AnyInts,
    Bools,
    Longs,
    concat_ranges,
    order_of,
    run_starts,
    set_bits,
    unique_inverse,
    word_count,
)
from antiphon.core.verify.layout import ChunkRows

MAX_STATE_BYTES = 2**24  # bytes of cell state held at once
ROWS_PER_GROUP = 2**16  # rows combined at once


def number_contributions(batch: ChunkRows, wants: Sequence[tuple[int, ...]]) -> tuple[Longs, Longs, int]:
    """Number the contributions of each chunk from 0.

    A *pre row* is a contribution that a cell begins with (`batch.pre`: its cell), a *post row* what a cell must end
    with (`batch.post`: its cell); the `owner` of either is its chunk, as an index into `batch.chunks`. `wants`: the
    multisets of contributions that `batch.post_want` numbers; its -1 stands for all contributions.

    Return the number of every pre row's id, the number of ids per chunk, and how often any id is wanted at most.
    """
    id_bound = int(batch.pre_id.max(initial=0)) + 1
    keys, position = unique_inverse(
        batch.pre_owner * id_bound + batch.pre_id, bound=max(len(batch.chunks), 1) * id_bound
    )
    per_chunk = np.bincount(keys // id_bound, minlength=len(batch.chunks))
    base = np.cumsum(per_chunk) - per_chunk
    max_count = max((max(np.unique(w, return_counts=True)[1], default=1) for w in wants), default=1)
    return position - base[batch.pre_owner], per_chunk, int(max_count)


def _group_by_cell(dst: AnyInts, cells: int) -> tuple[Longs, Longs]:
    """Return the order of rows by cell, and where each cell's rows begin in it."""
    order = order_of(dst, bound=cells)
    return order, np.flatnonzero(run_starts(dst[order]))


class _Writes(NamedTuple):
    """Cells written in one step, each once, and what is combined into them."""

    cells: AnyInts
    adds: Bools  # per cell, whether its old value is an operand, too
    read: AnyInts  # the cells read: those whose values go to cells[i] begin at first[i]
    first: Longs


def _slice_writes(batch: ChunkRows, rows: Longs, src: AnyInts, dst: AnyInts) -> Iterator[_Writes]:
    """Yield the writes of one step, about ROWS_PER_GROUP rows at a time."""
    order, first = _group_by_cell(dst, batch.cells)
    read, write, reduces = src[order], dst[order], batch.reduces[rows][order]
    # Take whole written cells until about ROWS_PER_GROUP rows are together; at least one cell per slice.
    begin = 0
    while begin < len(first):
        end = max(begin + 1, int(np.searchsorted(first, first[begin] + ROWS_PER_GROUP)))
        low, high = int(first[begin]), int(first[end]) if end < len(first) else len(dst)
        heads = first[begin:end]
        # The first row of a cell stands for all: several may write only if all reduce, which trees.py has checked.
        yield _Writes(write[heads], reduces[heads], read[low:high], heads - low)
        begin = end


@dataclass(frozen=True, eq=False)
class Bits:
    """The contributions of every cell."""

    state: NDArray[np.uint64]  # a row of words per cell: bit i % 64 of word i // 64 is contribution i
    has_repeats: Bools  # per cell, whether it has some contribution twice


def track_sets(batch: ChunkRows, ids: Longs, words: int) -> Bits:
    """Track sets of contributions. O(rows * words); the state is cells * words * 8 bytes."""
    state = np.zeros((batch.cells, words), np.uint64)
    has_repeats = np.zeros(batch.cells, np.bool_)
    set_bits(state, batch.pre, ids)
    for rows, src, dst in batch.steps():
        writes = []
        for cells, adds, read, first in _slice_writes(batch, rows, src, dst):
            operands = state[read]
            union = np.bitwise_or.reduceat(operands, first)
            is_repeated = np.logical_or.reduceat(has_repeats[read], first)
            # size_sum: the sum of the sizes of all operands, with repetition.
            size_sum = np.add.reduceat(np.bitwise_count(operands).sum(axis=1, dtype=np.int64), first)
            old_set = np.where(adds[:, None], state[cells], np.uint64(0))
            size_sum += np.bitwise_count(old_set).sum(axis=1, dtype=np.int64)
            union |= old_set
            is_repeated |= adds & has_repeats[cells]
            # |union| < sum of sizes: some contribution arrived twice.
            is_repeated |= np.bitwise_count(union).sum(axis=1, dtype=np.int64) != size_sum
            writes.append((cells, union, is_repeated))
        for cells, union, is_repeated in writes:  # all reads of a step precede its writes
            state[cells], has_repeats[cells] = union, is_repeated
    return Bits(state, has_repeats)


def track_counts(batch: ChunkRows, ids: Longs, low: int, high: int, max_count: int) -> NDArray[np.int64]:
    """Count in every cell each contribution with a number in low..high-1, up to `max_count` + 1.

    Saturating is exact here: sums never fall again, and more than `max_count` is too many.
    """
    state = np.zeros((batch.cells, high - low), np.int64)
    in_range = (ids >= low) & (ids < high)
    np.add.at(state, (batch.pre[in_range], ids[in_range] - low), 1)
    np.minimum(state, max_count + 1, out=state)
    for rows, src, dst in batch.steps():
        writes = []
        for cells, adds, read, first in _slice_writes(batch, rows, src, dst):
            total = np.add.reduceat(state[read], first)
            total += np.where(adds[:, None], state[cells], 0)
            writes.append((cells, np.minimum(total, max_count + 1)))
        for cells, total in writes:
            state[cells] = total
    return state


def count_per_window(batch: ChunkRows) -> int:
    """Return the number of contributions that `track_counts` may count at once: each takes 8 bytes in every cell."""
    return max(1, MAX_STATE_BYTES // (8 * max(batch.cells, 1)))


def holds_exactly(batch: ChunkRows, wants: Sequence[tuple[int, ...]]) -> Bools:
    """Return per post row whether its cell holds exactly what it must. `wants`: see `number_contributions`."""
    ids, per_chunk, max_count = number_contributions(batch, wants)
    is_set = max_count == 1 and not _has_repeats(batch)
    width = int(per_chunk.max(initial=1))
    if is_set:
        # No contribution may occur twice, so a bit per contribution decides.
        words = word_count(width)
        bits = track_sets(batch, ids, words)
        wanted_bits = np.zeros((len(batch.post), words), np.uint64)
        set_bits(wanted_bits, *_wanted_pairs(batch, ids, wants))
        is_equal: Bools = (bits.state[batch.post] == wanted_bits).all(axis=1)
        return is_equal & ~bits.has_repeats[batch.post]
    is_right = np.ones(len(batch.post), np.bool_)
    # Multisets: exact counts, in windows of contributions that keep the state within MAX_STATE_BYTES.
    span = count_per_window(batch)
    row, number = _wanted_pairs(batch, ids, wants)
    for low in range(0, width, span):
        high = min(low + span, width)
        state = track_counts(batch, ids, low, high, max_count)
        want_counts = np.zeros((len(batch.post), high - low), np.int64)
        in_range = (number >= low) & (number < high)
        np.add.at(want_counts, (row[in_range], number[in_range] - low), 1)
        is_right &= (state[batch.post] == want_counts).all(axis=1)
    return is_right


def _has_repeats(batch: ChunkRows) -> bool:
    """Return whether some cell begins with the same contribution twice."""
    order = np.lexsort((batch.pre_id, batch.pre))
    cell, contribution = batch.pre[order], batch.pre_id[order]
    return bool(((cell[1:] == cell[:-1]) & (contribution[1:] == contribution[:-1])).any())


def _wanted_pairs(batch: ChunkRows, ids: Longs, wants: Sequence[tuple[int, ...]]) -> tuple[Longs, Longs]:
    """Return (post row, number of a wanted id) pairs: all ids of the chunk once, or the listed multiset.

    >>> from antiphon.core.example import star
    >>> from antiphon.core.verify.layout import Demand, split_batches
    >>> [batch] = split_batches(star(), Demand.of(star().collective))
    >>> ids, _, _ = number_contributions(batch, ())
    >>> [column.tolist() for column in _wanted_pairs(batch, ids, ())]  # all three ids at every rank
    [[0, 0, 0, 1, 1, 1, 2, 2, 2], [0, 1, 2, 0, 1, 2, 0, 1, 2]]
    """
    id_bound = int(batch.pre_id.max(initial=0)) + 1
    keys = batch.pre_owner * id_bound + batch.pre_id
    order = order_of(keys, bound=max(len(batch.chunks), 1) * id_bound)
    distinct_rows = order[run_starts(keys[order])]
    id_keys, number, owner = keys[distinct_rows], ids[distinct_rows], batch.pre_owner[distinct_rows]
    rows: list[Longs] = []
    numbers: list[Longs] = []
    # begin: CSR from chunk to its distinct contributions.
    begin = np.searchsorted(owner, np.arange(len(batch.chunks) + 1))
    wants_all = np.flatnonzero(batch.post_want < 0)
    size = (begin[1:] - begin[:-1])[batch.post_owner[wants_all]]
    rows.append(np.repeat(wants_all, size))
    numbers.append(number[concat_ranges(begin[batch.post_owner[wants_all]], size)])
    # Every wanted id is that of a pre row, so `searchsorted` finds it: `relation_of` (collective.py) refuses others.
    for row in np.flatnonzero(batch.post_want >= 0).tolist():
        want = np.array(wants[batch.post_want[row]], np.int64)
        rows.append(np.full(len(want), row, np.int64))
        numbers.append(number[np.searchsorted(id_keys, batch.post_owner[row] * id_bound + want)])
    return np.concatenate(rows), np.concatenate(numbers)
