"""Contributions tracked exactly: sets of bits where each must be there once, saturating counts otherwise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from antiphon.core.columns import AnyInts, Bools, Longs, dense, order_of, ranges, starts
from antiphon.core.verify.layout import ChunkRows

STATE = 2**24  # bytes of cell state held at once
ROWS = 2**16  # rows combined at once


def wanted(block: ChunkRows, wants: Sequence[tuple[int, ...]]) -> tuple[Longs, Longs, int]:
    """Every pre row's id numbered within its chunk; ids per chunk; how often any id is wanted at most."""
    top = int(block.pre_id.max(initial=0)) + 1
    keys, place = dense(block.pre_owner * top + block.pre_id, max(len(block.chunks), 1) * top)
    per_chunk = np.bincount(keys // top, minlength=len(block.chunks))
    base = np.cumsum(per_chunk) - per_chunk
    most = max((max(np.unique(w, return_counts=True)[1], default=1) for w in wants), default=1)
    return place - base[block.pre_owner], per_chunk, int(most)


def _groups(dst: AnyInts, cells: int) -> tuple[Longs, Longs]:
    """Order of rows by cell, and where each cell's rows begin in it."""
    order = order_of(dst, cells)
    return order, np.flatnonzero(starts(dst[order]))


def _slices(first: Longs) -> Iterator[tuple[int, int]]:
    """Runs of whole groups of at most about ROWS rows."""
    begin = 0
    while begin < len(first):
        end = max(begin + 1, int(np.searchsorted(first, first[begin] + ROWS)))
        yield begin, end
        begin = end


@dataclass(frozen=True, eq=False)
class Bits:
    """Which contributions every cell has, and whether it has any of them twice."""

    state: NDArray[np.uint64]
    over: Bools


def bits(block: ChunkRows, ids: Longs, words: int) -> Bits:
    """Track sets of contributions. O(rows * words); the state is cells * words * 8 bytes."""
    state = np.zeros((block.cells, words), np.uint64)
    over = np.zeros(block.cells, np.bool_)
    np.bitwise_or.at(state, (block.pre, ids >> 6), np.uint64(1) << (ids & 63).astype(np.uint64))
    for rows, src, dst in block.steps():
        order, first = _groups(dst, block.cells)
        reduces = block.reduces[rows][order]
        read, write = src[order], dst[order]
        done = []
        for a, b in _slices(first):
            lo, hi = int(first[a]), int(first[b]) if b < len(first) else len(dst)
            local = first[a:b] - lo
            taken = state[read[lo:hi]]
            union = np.bitwise_or.reduceat(taken, local)
            twice = np.logical_or.reduceat(over[read[lo:hi]], local)
            number = np.add.reduceat(np.bitwise_count(taken).sum(axis=1, dtype=np.int64), local)
            cells, adds = write[lo:hi][local], reduces[lo:hi][local]
            old = np.where(adds[:, None], state[cells], np.uint64(0))
            number += np.bitwise_count(old).sum(axis=1, dtype=np.int64)
            union |= old
            twice |= adds & over[cells]
            twice |= np.bitwise_count(union).sum(axis=1, dtype=np.int64) != number
            done.append((cells, union, twice))
        for cells, union, twice in done:  # all reads of a step come before its writes
            state[cells], over[cells] = union, twice
    return Bits(state, over)


def counts(block: ChunkRows, ids: Longs, low: int, high: int, most: int) -> NDArray[np.int64]:
    """How often every cell has each contribution with a number in low..high-1, counted up to most + 1.

    Saturating is exact for what it is asked: sums never fall again, and more than `most` is too many.
    """
    state = np.zeros((block.cells, high - low), np.int64)
    mine = (ids >= low) & (ids < high)
    np.add.at(state, (block.pre[mine], ids[mine] - low), 1)
    np.minimum(state, most + 1, out=state)
    for rows, src, dst in block.steps():
        order, first = _groups(dst, block.cells)
        reduces = block.reduces[rows][order]
        done = []
        for a, b in _slices(first):
            lo, hi = int(first[a]), int(first[b]) if b < len(first) else len(dst)
            local = first[a:b] - lo
            total = np.add.reduceat(state[src[order[lo:hi]]], local)
            cells, adds = dst[order[lo:hi]][local], reduces[lo:hi][local]
            total += np.where(adds[:, None], state[cells], 0)
            done.append((cells, np.minimum(total, most + 1)))
        for cells, total in done:
            state[cells] = total
    return state


def right(block: ChunkRows, wants: Sequence[tuple[int, ...]]) -> Bools:
    """Per post row of the block: does its cell hold exactly what is wanted? Chunks batch by batch."""
    ids, per_chunk, most = wanted(block, wants)
    plain = most == 1 and not _repeats(block)
    width = int(per_chunk.max(initial=1))
    if plain:
        words = (width + 63) // 64
        have = bits(block, ids, words)
        want = np.zeros((len(block.post), words), np.uint64)
        row, number = _want_rows(block, ids, wants)
        np.bitwise_or.at(want, (row, number >> 6), np.uint64(1) << (number & 63).astype(np.uint64))
        same: Bools = (have.state[block.post] == want).all(axis=1)
        return same & ~have.over[block.post]
    good = np.ones(len(block.post), np.bool_)
    span = max(1, STATE // (8 * max(block.cells, 1)))
    row, number = _want_rows(block, ids, wants)
    for low in range(0, width, span):
        high = min(low + span, width)
        state = counts(block, ids, low, high, most)
        want_counts = np.zeros((len(block.post), high - low), np.int64)
        mine = (number >= low) & (number < high)
        np.add.at(want_counts, (row[mine], number[mine] - low), 1)
        good &= (state[block.post] == want_counts).all(axis=1)
    return good


def _repeats(block: ChunkRows) -> bool:
    """Whether some cell begins with the same contribution twice."""
    order = np.lexsort((block.pre_id, block.pre))
    cell, name = block.pre[order], block.pre_id[order]
    return bool(((cell[1:] == cell[:-1]) & (name[1:] == name[:-1])).any())


def _want_rows(block: ChunkRows, ids: Longs, wants: Sequence[tuple[int, ...]]) -> tuple[Longs, Longs]:
    """(post row, wanted id number) pairs: all ids of the chunk once, or the listed multiset.

    >>> from antiphon.core.example import star
    >>> from antiphon.core.verify.layout import Demand, blocks
    >>> [block] = blocks(star(), Demand.of(star().collective))
    >>> ids, _, _ = wanted(block, ())
    >>> [column.tolist() for column in _want_rows(block, ids, ())]  # all three ids at every rank
    [[0, 0, 0, 1, 1, 1, 2, 2, 2], [0, 1, 2, 0, 1, 2, 0, 1, 2]]
    """
    top = int(block.pre_id.max(initial=0)) + 1
    keys = block.pre_owner * top + block.pre_id
    order = order_of(keys, max(len(block.chunks), 1) * top)
    keep = order[starts(keys[order])]
    known, number, owner = keys[keep], ids[keep], block.pre_owner[keep]
    rows: list[Longs] = []
    numbers: list[Longs] = []
    begin = np.searchsorted(owner, np.arange(len(block.chunks) + 1))
    every = np.flatnonzero(block.post_want < 0)
    size = (begin[1:] - begin[:-1])[block.post_owner[every]]
    rows.append(np.repeat(every, size))
    numbers.append(number[ranges(begin[block.post_owner[every]], size)])
    for row in np.flatnonzero(block.post_want >= 0).tolist():
        want = np.array(wants[block.post_want[row]], np.int64)
        rows.append(np.full(len(want), row, np.int64))
        numbers.append(number[np.searchsorted(known, block.post_owner[row] * top + want)])
    return np.concatenate(rows), np.concatenate(numbers)
