"""Prepare a schedule for verification: split its chunks into batches that fit the processor's caches.

Chunks are verified independently, so each batch (`ChunkRows`) is checked alone, by trees.py, sets.py and ordered.py.
A cell is a (chunk, rank, slot): slot 0 is a rank's copy of the chunk, slots above 0 are private extra copies. `pre`
cells hold a contribution at the start; `post` cells must hold a `want` at the end: -1 for all contributions of the
block, else an index into `Relation.wants`. Within a batch cells are numbered 0, 1, ... so that the state of all cells
is one array. A batch holds up to MAX_CELLS cells, or MAX_ROWS rows if chunks touch few of their cells; such batches are
renumbered to the cells that occur.

Example: 1000 chunks on 4096 ranks have 4 million cells: one batch. 10,000 chunks make ten batches. The rows are sorted
by batch once (a radix sort), so that those of a batch are neighbours.

`ChunkRows.steps` iterates over steps. Only the order of a chunk's own steps matters, so if steps hold few rows on
average they are renumbered per chunk: a thousand chunks that follow one another along a path of 7 hops occupy 1006
steps, but 7 after renumbering.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from antiphon.core.collective import Collective
from antiphon.core.columns import (
    AnyInts,
    Bools,
    Ints,
    Longs,
    concat_ranges,
    distinct,
    order_of,
    pointers,
    run_starts,
    unique_inverse,
)
from antiphon.core.schedule import REDUCE, Schedule

MAX_CELLS = 2**22  # cells of a batch: 16 MB of int32
MAX_ROWS = 2**22  # rows of a batch of chunks that touch few of their cells
CELLS_PER_ROW = 16  # with more cells than this per row, most cells are never touched
MIN_ROWS_PER_CALL = 256  # on average; with fewer, steps are renumbered, so that each NumPy call has more to do


@dataclass(frozen=True, eq=False)
class Demand:
    """The ranks that have and that need each block of a collective, in CSR form by block."""

    pre_ptr: Longs
    pre_rank: Ints
    pre_id: Ints  # number of the contribution
    post_ptr: Longs
    post_rank: Ints
    post_want: Ints  # -1: all contributions; else an index into `Relation.wants`

    @staticmethod
    def of(collective: Collective) -> Demand:
        relation, blocks = collective.relation, collective.blocks  # rows of a relation are sorted by block
        pre_ptr, post_ptr = pointers(relation.pre_block, blocks), pointers(relation.post_block, blocks)
        return Demand(pre_ptr, relation.pre_rank, relation.pre_id, post_ptr, relation.post_rank, relation.post_want)


@dataclass(frozen=True, eq=False)
class ChunkRows:
    """The rows of a batch of chunks, with cells numbered 0..cells-1 within the batch."""

    chunks: Longs  # the chunks of this batch, ascending
    cells: int
    rows: Longs  # row numbers in the schedule
    step: Ints  # of every row, as in the schedule
    src: AnyInts  # cell read
    dst: AnyInts  # cell written
    reduces: Bools
    owner: AnyInts  # row -> its chunk, as an index into `chunks`
    pre: Longs  # per initial contribution, its cell
    pre_owner: Longs  # its chunk, as an index into `chunks`
    pre_id: Ints  # its number
    post: Longs  # per cell that must hold a result at the end, the cell
    post_owner: Longs  # its chunk, as an index into `chunks`
    post_rank: Ints  # its rank
    post_want: Ints  # as in `Demand`

    def only(self, owners: Longs) -> ChunkRows:
        """Return the batch with only these of its chunks (cells keep their numbers)."""
        keep = np.zeros(len(self.chunks), np.bool_)
        keep[owners] = True
        new_owner = np.cumsum(keep) - 1
        row, pre, post = keep[self.owner], keep[self.pre_owner], keep[self.post_owner]
        return replace(
            self, chunks=self.chunks[keep],
            rows=self.rows[row], step=self.step[row], src=self.src[row], dst=self.dst[row],
            reduces=self.reduces[row], owner=new_owner[self.owner[row]],
            pre=self.pre[pre], pre_owner=new_owner[self.pre_owner[pre]], pre_id=self.pre_id[pre],
            post=self.post[post], post_owner=new_owner[self.post_owner[post]],
            post_rank=self.post_rank[post], post_want=self.post_want[post],
        )  # fmt: skip

    def compact(self) -> ChunkRows:
        """Return the batch with only the cells that occur, renumbered."""
        # `bound` of `unique_inverse` and `order_of`, here and below: a number greater than every value
        touched = np.concatenate([self.src, self.dst, self.pre, self.post])
        cells, new_cell = unique_inverse(touched, bound=max(self.cells, 1))
        src, dst, pre, post = np.split(new_cell, np.cumsum([len(self.src), len(self.dst), len(self.pre)]))
        return replace(self, cells=len(cells), src=src, dst=dst, pre=pre, post=post)

    def steps(self) -> Iterator[tuple[Longs, AnyInts, AnyInts]]:
        """Yield the indices of the batch's rows with the cells they read and write, step by step.

        If steps hold few rows on average, each chunk's steps are numbered on their own, so that few steps with many
        rows each remain.

        >>> from antiphon.core.example import star
        >>> [batch] = split_batches(star(), Demand.of(star().collective))
        >>> batch.step.tolist(), batch.src.tolist(), batch.dst.tolist()  # one chunk at three ranks: three cells
        ([0, 0, 1, 1], [1, 2, 0, 0], [0, 0, 1, 2])
        >>> [(rows.tolist(), src.tolist(), dst.tolist()) for rows, src, dst in batch.steps()]
        [([0, 1], [1, 2], [0, 0]), ([2, 3], [0, 0], [1, 2])]
        """
        if not len(self.rows):
            return
        step = self.step.astype(np.int64)
        sorted_already = bool((step[1:] >= step[:-1]).all())  # as most planners emit them
        step_count = int(np.count_nonzero(run_starts(step))) if sorted_already else len(distinct(step))
        if step_count * MIN_ROWS_PER_CALL > len(step) and len(self.chunks) > 1:
            _, step_index = unique_inverse(step, bound=int(step.max()) + 1)
            key = self.owner.astype(np.int64) * step_count + step_index
            order = order_of(key, bound=len(self.chunks) * step_count)
            # Number all (chunk, step) pairs, and subtract the number of the chunk's first pair.
            pair = np.cumsum(run_starts(key[order])) - 1
            begins_chunk = run_starts(self.owner[order])
            rows_per_chunk = np.diff(np.append(np.flatnonzero(begins_chunk), len(pair)))
            step = np.empty(len(key), np.int64)
            step[order] = pair - np.repeat(pair[begins_chunk], rows_per_chunk)
            sorted_already = False
        order = np.arange(len(step)) if sorted_already else order_of(step, bound=int(step.max()) + 1)
        step_begins = np.flatnonzero(run_starts(step[order]))
        src, dst = (self.src, self.dst) if sorted_already else (self.src[order], self.dst[order])
        for begin, end in zip(step_begins, np.append(step_begins[1:], len(order)), strict=True):
            yield order[begin:end], src[begin:end], dst[begin:end]


def split_batches(schedule: Schedule, demand: Demand) -> Iterator[ChunkRows]:
    """Yield the chunks of a schedule in batches. Linear in rows (one radix sort) and in the relation."""
    chunks, width = len(schedule.chunks), schedule.collective.ranks * schedule.slots  # width: cells of a chunk
    # Greedy cut of the ascending chunks: a new batch begins when the running size passes a multiple of the limit.
    rows_of_chunk = np.bincount(schedule.chunk, minlength=chunks)
    # If most cells are never touched, size batches by rows and compact the cells. Otherwise a chunk counts for its
    # cells or its rows, whichever are the greater share of their limit.
    sparse = chunks * width > CELLS_PER_ROW * (schedule.transfers + 1)
    size = np.maximum(rows_of_chunk, 1) if sparse else np.maximum(rows_of_chunk * (MAX_CELLS // MAX_ROWS), width)
    batch_of = (np.cumsum(size) - size) // (MAX_ROWS if sparse else MAX_CELLS)  # per chunk
    # A chunk larger than the limit leaves numbers unused: close the gaps.
    _, batch_of = unique_inverse(batch_of, bound=int(batch_of[-1]) + 1) if chunks else (batch_of, batch_of)
    total = int(batch_of[-1]) + 1 if chunks else 0
    key_type: Any = np.uint16 if total < 2**16 else np.int64  # NumPy sorts 16 bits by radix
    batch_of_row: AnyInts = batch_of.astype(key_type)[schedule.chunk]
    order = np.argsort(batch_of_row, kind="stable") if total > 1 else np.arange(schedule.transfers)
    # `pointers` only counts, so the rows need not be sorted: row_ptr delimits each batch's rows in `order`.
    row_ptr, chunk_ptr = pointers(batch_of_row, total), pointers(batch_of, total)
    for i in range(total):
        own_chunks = np.arange(chunk_ptr[i], chunk_ptr[i + 1])
        rows = order[row_ptr[i] : row_ptr[i + 1]] if total > 1 else order
        batch = _make_batch(schedule, demand, own_chunks, rows, width, is_only_batch=total == 1)
        yield batch.compact() if sparse else batch


def _make_batch(
    schedule: Schedule, demand: Demand, chunks: Longs, rows: Longs, width: int, *, is_only_batch: bool
) -> ChunkRows:
    """Build one batch: number its cells, and list its initial contributions and final requirements."""
    row_index = slice(None) if is_only_batch else rows
    index_type: Any = np.int32 if len(chunks) * width < 2**31 else np.int64  # half the memory traffic, if it fits
    owner: AnyInts = schedule.chunk[row_index].astype(index_type) - index_type(chunks[0])
    slots = index_type(schedule.slots)
    base = owner * index_type(width)
    # Cell number: (chunk within the batch) * width + rank * slots + slot, with width = ranks * slots.
    src, dst = base + schedule.src[row_index] * slots, base + schedule.dst[row_index] * slots
    if schedule.src_slot is not None:
        src += schedule.src_slot[row_index]
    if schedule.dst_slot is not None:
        dst += schedule.dst_slot[row_index]
    block = schedule.chunks.block[chunks]

    def expand(ptr: Longs) -> tuple[Longs, Longs]:
        """Return the entries of the demand for all chunks of the batch, and the chunk of each."""
        count = ptr[block + 1] - ptr[block]
        return concat_ranges(ptr[block], count), np.repeat(np.arange(len(chunks)), count)

    pre_entry, pre_owner = expand(demand.pre_ptr)
    post_entry, post_owner = expand(demand.post_ptr)
    return ChunkRows(
        chunks=chunks, cells=len(chunks) * width, rows=rows, step=schedule.step[row_index], src=src, dst=dst,
        reduces=schedule.op[row_index] == REDUCE, owner=owner,
        pre=pre_owner * width + demand.pre_rank[pre_entry] * slots, pre_owner=pre_owner,
        pre_id=demand.pre_id[pre_entry],
        post=post_owner * width + demand.post_rank[post_entry] * slots, post_owner=post_owner,
        post_rank=demand.post_rank[post_entry], post_want=demand.post_want[post_entry],
    )  # fmt: skip
