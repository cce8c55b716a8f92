"""Prepare a schedule for verification: split its chunks, which are independent, into batches that fit the caches.

A cell is a (chunk, rank, slot): slot 0 is a rank's copy of the chunk, slots above 0 are private extra copies. `pre`
cells hold a contribution at the start; `post` cells must hold a `want` at the end: -1 for all contributions of the
block, else an index into `Relation.wants`. Within a batch cells are numbered 0, 1, ... so that the state of all cells
is one array. A batch holds up to CELLS cells, or ROWS rows if chunks touch few of their cells; such batches are
renumbered to the cells that occur.

Example: 1000 chunks on 4096 ranks have 4 million cells: one batch. 10,000 chunks make ten batches, each read once by a
radix sort of the rows by batch number.

`ChunkRows.steps` iterates over steps. Only the order of a chunk's own steps matters, so if many chunks take turns the
steps are renumbered per chunk: a pipeline of a thousand pieces becomes as few steps as one piece.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from antiphon.core.collective import Collective
from antiphon.core.columns import (
    AnyInts,
    Bools,
    Ints,
    Longs,
    dense,
    distinct,
    order_of,
    pointers,
    ranges,
    starts,
)
from antiphon.core.schedule import REDUCE, Schedule

CELLS = 2**22  # cells of a batch: 16 MB of int32
ROWS = 2**22  # rows of a batch of chunks that touch few of their cells


@dataclass(frozen=True, eq=False)
class Demand:
    """The ranks that have and that need each block of a collective, in CSR form by block."""

    pre_ptr: Longs
    pre_rank: Ints
    pre_id: Ints
    post_ptr: Longs
    post_rank: Ints
    post_want: Ints

    @staticmethod
    def of(collective: Collective) -> Demand:
        r, blocks = collective.relation, collective.blocks
        pre, post = pointers(r.pre_block, blocks), pointers(r.post_block, blocks)
        return Demand(pre, r.pre_rank, r.pre_id, post, r.post_rank, r.post_want)


@dataclass(frozen=True, eq=False)
class ChunkRows:
    """The rows of a batch of chunks, with cells numbered 0..cells-1 within the batch."""

    chunks: Longs  # the chunks of this batch, ascending
    cells: int
    rows: Longs  # row numbers in the schedule
    time: Ints
    src: AnyInts  # cell read
    dst: AnyInts  # cell written
    reduces: Bools
    owner: AnyInts  # row -> index into chunks
    pre: Longs  # initial contributions: cell, owner, contribution id
    pre_owner: Longs
    pre_id: Ints
    post: Longs  # final requirements: cell, owner, rank, want
    post_owner: Longs
    post_rank: Ints
    post_want: Ints

    def only(self, owners: Longs) -> ChunkRows:
        """Return the batch with only these of its chunks (cells keep their numbers)."""
        keep = np.zeros(len(self.chunks), np.bool_)
        keep[owners] = True
        new = np.cumsum(keep) - 1
        row, pre, post = keep[self.owner], keep[self.pre_owner], keep[self.post_owner]
        return ChunkRows(
            self.chunks[keep], self.cells, self.rows[row], self.time[row], self.src[row], self.dst[row],
            self.reduces[row], new[self.owner[row]], self.pre[pre], new[self.pre_owner[pre]], self.pre_id[pre],
            self.post[post], new[self.post_owner[post]], self.post_rank[post], self.post_want[post],
        )  # fmt: skip

    def compact(self) -> ChunkRows:
        """Return the batch with only the cells that occur, renumbered."""
        every = np.concatenate([self.src, self.dst, self.pre, self.post])
        cells, new = dense(every, max(self.cells, 1))
        a, b, c = np.cumsum([len(self.src), len(self.dst), len(self.pre)])
        return ChunkRows(
            self.chunks, len(cells), self.rows, self.time, new[:a], new[a:b], self.reduces, self.owner,
            new[b:c], self.pre_owner, self.pre_id, new[c:], self.post_owner, self.post_rank, self.post_want,
        )  # fmt: skip

    def steps(self) -> Iterator[tuple[Longs, AnyInts, AnyInts]]:
        """Yield the indices of the batch's rows with the cells they read and write, step by step.

        If many chunks take turns, each chunk's steps are counted on their own, so that few steps with many rows each
        remain.

        >>> from antiphon.core.example import star
        >>> [batch] = split_batches(star(), Demand.of(star().collective))
        >>> batch.time.tolist(), batch.src.tolist(), batch.dst.tolist()  # one chunk at three ranks: three cells
        ([0, 0, 1, 1], [1, 2, 0, 0], [0, 0, 1, 2])
        >>> [(rows.tolist(), src.tolist(), dst.tolist()) for rows, src, dst in batch.steps()]
        [([0, 1], [1, 2], [0, 0]), ([2, 3], [0, 0], [1, 2])]
        """
        if not len(self.rows):
            return
        when = self.time.astype(np.int64)
        sorted_already = bool((when[1:] >= when[:-1]).all())  # as most planners emit them
        step_count = int(np.count_nonzero(starts(when))) if sorted_already else len(distinct(when))
        # Few rows per step: renumber steps within each chunk, so that each NumPy call has more to do.
        if step_count * 256 > len(when) and len(self.chunks) > 1:
            _, place = dense(when, int(when.max()) + 1)
            key = self.owner.astype(np.int64) * step_count + place
            order = order_of(key, len(self.chunks) * step_count)
            new = np.cumsum(starts(key[order])) - 1
            first = starts(self.owner[order])
            base = np.repeat(new[first], np.diff(np.append(np.flatnonzero(first), len(new))))
            when = np.empty(len(key), np.int64)
            when[order] = new - base
            sorted_already = False
        order = np.arange(len(when)) if sorted_already else order_of(when, int(when.max()) + 1)
        cuts = np.flatnonzero(starts(when[order]))
        src, dst = (self.src, self.dst) if sorted_already else (self.src[order], self.dst[order])
        for a, b in zip(cuts, np.append(cuts[1:], len(order)), strict=True):
            yield order[a:b], src[a:b], dst[a:b]


def split_batches(schedule: Schedule, demand: Demand) -> Iterator[ChunkRows]:
    """Yield the chunks of a schedule in batches. Linear in rows (one radix sort) and in the relation."""
    chunks, width = len(schedule.chunks), schedule.collective.ranks * schedule.slots
    # Greedy cut of the ascending chunks: a new batch begins when the running weight passes a multiple of the limit.
    per_chunk = np.bincount(schedule.chunk, minlength=chunks)
    # Most cells are never touched: size batches by rows, and compact the cells.
    sparse = chunks * width > 16 * (schedule.transfers + 1)
    weight = np.maximum(per_chunk, 1) if sparse else np.maximum(per_chunk * (CELLS // ROWS), width)
    number = (np.cumsum(weight) - weight) // (ROWS if sparse else CELLS)
    _, number = dense(number, int(number[-1]) + 1) if chunks else (number, number)
    total = int(number[-1]) + 1 if chunks else 0
    kind: Any = np.uint16 if total < 2**16 else np.int64  # NumPy sorts 16 bits by radix
    small: AnyInts = number.astype(kind)[schedule.chunk]
    order = np.argsort(small, kind="stable") if total > 1 else np.arange(schedule.transfers)
    row_ptr, chunk_ptr = pointers(small, total), pointers(number, total)
    for i in range(total):
        own_chunks = np.arange(chunk_ptr[i], chunk_ptr[i + 1])
        rows = order[row_ptr[i] : row_ptr[i + 1]] if total > 1 else order
        batch = _make_batch(schedule, demand, own_chunks, rows, width, is_only_batch=total == 1)
        yield batch.compact() if sparse else batch


def _make_batch(
    schedule: Schedule, demand: Demand, chunks: Longs, rows: Longs, width: int, *, is_only_batch: bool
) -> ChunkRows:
    """Build one batch: number its cells, and list its initial contributions and final requirements."""
    pick = slice(None) if is_only_batch else rows
    number: Any = np.int32 if len(chunks) * width < 2**31 else np.int64  # half the memory traffic, if it fits
    owner: AnyInts = schedule.chunk[pick].astype(number) - number(chunks[0])
    slots = number(schedule.slots)
    base = owner * number(width)
    # Cell number: (chunk within the batch) * width + rank * slots + slot, with width = ranks * slots.
    src, dst = base + schedule.src[pick] * slots, base + schedule.dst[pick] * slots
    if schedule.src_slot is not None:
        src += schedule.src_slot[pick]
    if schedule.dst_slot is not None:
        dst += schedule.dst_slot[pick]
    of = schedule.chunks.block[chunks]

    def expand(ptr: Longs) -> tuple[Longs, Longs]:
        count = ptr[of + 1] - ptr[of]
        return ranges(ptr[of], count), np.repeat(np.arange(len(chunks)), count)

    have, have_owner = expand(demand.pre_ptr)
    need, need_owner = expand(demand.post_ptr)
    return ChunkRows(
        chunks, len(chunks) * width, rows, schedule.step[pick], src, dst, schedule.op[pick] == REDUCE, owner,
        have_owner * width + demand.pre_rank[have] * slots, have_owner, demand.pre_id[have],
        need_owner * width + demand.post_rank[need] * slots, need_owner, demand.post_rank[need],
        demand.post_want[need],
    )  # fmt: skip
