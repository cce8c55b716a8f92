"""Analyse a schedule before it runs: which cells each write combines, and in which order.

A cell is one rank's copy of a chunk (rank, chunk, slot). Input: a schedule. Output: an `Analysis`, which lists for
every write of a cell its *operands*: the cells that are read, and the cell's own value if it takes part. All rows that
write one cell in one step form a *group*. Operands are combined in the order of the least contribution that they
contain, so that the result does not depend on the order of rows. Illegal rows (races, reads of empty cells) are errors.

Chunks are independent, so the steps of each chunk are renumbered 0, 1, 2, ... on their own: its *levels*. All chunks
are then processed level by level together, however their steps interleave; a pipeline of a thousand pieces has as few
levels as one piece. The schedule's columns `pieces` and `local` (the work in a rank's own memory at the end) do not
affect the result and are ignored.

Example (`core.example.star`): on level 0 the cell of rank 0 combines its own value with those of ranks 1 and 2; on
level 1 the cells of ranks 1 and 2 become copies of it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from antiphon.core.columns import (
    Bools,
    Longs,
    concat_ranges,
    distinct_pairs,
    order_of,
    pair_keys,
    pointers,
    run_starts,
    unique_inverse,
)
from antiphon.core.schedule import COPY, Schedule
from antiphon.errors import Invalid

EMPTY = 2**40  # stands for the least contribution of an empty cell; above every id


@dataclass(frozen=True, eq=False)
class BufferCells:
    """The cells of inputs or of outputs, in order of rank, block, chunk."""

    pair: Longs  # the index of (rank, block) among all that the buffers have, in ascending order (`Side` in buffers.py)
    rank: Longs
    chunk: Longs
    cell: Longs  # its number; until `_cell_keys` has numbered cells, the chunk
    count: Longs  # of outputs: the number of contributions required


@dataclass(frozen=True, eq=False)
class Analysis:
    """A legal schedule as groups of writes.

    Cells are numbered in order of chunk. A group is all writes of one cell on one level; groups are sorted by level,
    within a level by descending number of operands.
    """

    schedule: Schedule
    cell_chunk: Longs  # per cell its chunk
    inputs: BufferCells
    outputs: BufferCells
    dst: Longs  # per group the cell that it writes
    level: Longs  # per group
    first: Longs  # group g has the operands first[g] to first[g] + count[g] - 1, in the order of combining
    count: Longs
    operand: Longs  # per operand the cell read
    row: Longs  # per operand the transfer that brings it; -1: the cell's own value

    @property
    def levels(self) -> int:
        return int(self.level[-1]) + 1 if len(self.level) else 0


@dataclass(eq=False)
class _Rows:
    """The rows ordered by (level, cell written), and their groups."""

    order: Longs  # row numbers
    src: Longs  # cell read
    dst: Longs  # cell written
    level: Longs
    head: Longs  # where each group begins in `order`
    size: Longs  # per group the number of its rows
    copies: Bools  # per group: whether it contains a copy
    races: Bools  # per group: whether it has a copy and other writes


def analyse(schedule: Schedule) -> Analysis:
    """Check all rows and fix the order of every combination; Invalid names the first illegal row.

    O(n log n) for n rows, and about 20 microseconds per level.

    In `core.example.star` cells 0, 1, 2 are the chunk at ranks 0, 1, 2. On level 0 cell 0 combines three values: its
    own, that of cell 1 and that of cell 2. On level 1 cells 1 and 2 are copies of it.

    >>> from antiphon.core.example import star
    >>> groups = analyse(star())
    >>> groups.dst.tolist(), groups.level.tolist(), groups.count.tolist()
    ([0, 1, 2], [0, 1, 1], [3, 1, 1])
    >>> [(groups.operand[a:a+n].tolist(), groups.row[a:a+n].tolist()) for a, n in zip(groups.first, groups.count)]
    [([0, 1, 2], [-1, 0, 1]), ([0], [2]), ([0], [3])]
    """
    # The chunks must cover every block that some rank must end with; a block without receivers needs none.
    is_needed = np.isin(np.arange(schedule.collective.blocks), schedule.collective.relation.post_block)
    if (gap := schedule.chunks.find_gap(schedule.collective.weights * is_needed)) is not None:
        why, _ = gap
        raise Invalid(why)
    inputs, outputs = _find_ends(schedule)
    rows = schedule.transfers
    cells, cell_number = _cell_keys(schedule, inputs, outputs)
    src, dst = cell_number[:rows], cell_number[rows : 2 * rows]
    input_cell, output_cell = np.split(cell_number[2 * rows :], [len(inputs.pair)])
    inputs, outputs = replace(inputs, cell=input_cell), replace(outputs, cell=output_cell)
    # Per cell the least contribution that it holds, before the first step; EMPTY marks cells without data.
    least_id = np.full(len(cells), EMPTY, np.int64)
    least_id[input_cell] = least_ids(schedule)[inputs.pair]
    grouped = _group_rows(schedule, src, dst, len(cells))
    row_least, own_least = _carry_least(grouped, least_id)
    _refuse_faults(schedule, grouped, row_least)
    _refuse_missing(outputs, least_id)
    chunk = cells // (schedule.collective.ranks * schedule.slots)
    group_of, operand, row = _order_operands(grouped, row_least, own_least)
    count = np.bincount(group_of, minlength=len(grouped.head)).astype(np.int64)
    begin = np.cumsum(count) - count
    level = grouped.level[grouped.head]
    max_operands = int(count.max(initial=0))
    # by level, then by descending number of operands
    order = order_of(
        level * (max_operands + 1) + (max_operands - count), bound=(int(level.max(initial=0)) + 1) * (max_operands + 1)
    )
    return Analysis(
        schedule, cell_chunk=chunk, inputs=inputs, outputs=outputs, dst=grouped.dst[grouped.head][order],
        level=level[order], first=begin[order], count=count[order], operand=operand, row=row,
    )  # fmt: skip


def _find_ends(schedule: Schedule) -> tuple[BufferCells, BufferCells]:
    """List the chunks that each rank has and those that it must end with; `cell` is filled in later. O(n log n).

    >>> from antiphon.core.example import of_rows
    >>> inputs, outputs = _find_ends(of_rows("allgather", 2, [(0, 0, 0, 1, 0), (0, 1, 1, 0, 0)]))
    >>> [list(zip(ends.rank.tolist(), ends.chunk.tolist())) for ends in (inputs, outputs)]
    [[(0, 0), (1, 1)], [(0, 0), (0, 1), (1, 0), (1, 1)]]
    """
    collective, chunks = schedule.collective, schedule.chunks
    relation = collective.relation
    by_block = order_of(chunks.block.astype(np.int64), bound=collective.blocks)
    bounds = pointers(chunks.block, collective.blocks)

    def list_chunks(rank: NDArray[np.int32], block: NDArray[np.int32]) -> BufferCells:
        ranks, blocks = distinct_pairs(rank, block)
        chunk_count = bounds[blocks + 1] - bounds[blocks]
        chunk = by_block[concat_ranges(bounds[blocks], chunk_count)]
        pair = np.repeat(np.arange(len(ranks)), chunk_count)
        return BufferCells(pair, ranks[pair], chunk, chunk, np.ones(len(chunk), np.int64))

    inputs = list_chunks(relation.pre_rank, relation.pre_block)
    outputs = list_chunks(relation.post_rank, relation.post_block)
    lengths = np.array([*map(len, relation.wants), 0], np.int64)  # one more, for the index of want -1
    count = np.where(
        relation.post_want < 0, collective.contributions_per_block[relation.post_block], lengths[relation.post_want]
    )
    # the rows of the relation are sorted by block, the pairs of `outputs` by rank
    by_rank = np.lexsort([relation.post_block, relation.post_rank])
    return inputs, replace(outputs, count=count[by_rank][outputs.pair])


def _cell_keys(schedule: Schedule, inputs: BufferCells, outputs: BufferCells) -> tuple[Longs, Longs]:
    """Number the cells that rows or ends mention, ascending by (chunk, rank, slot). O(n log n).

    Return the keys of all cells, (chunk * ranks + rank) * slots + slot, and the cell number of each mention, in this
    order: cells that rows read, cells that they write, inputs, outputs.

    >>> from antiphon.core.example import of_rows
    >>> two = of_rows("allgather", 2, [(0, 0, 0, 1, 0), (0, 1, 1, 0, 0)])
    >>> _cell_keys(two, *_find_ends(two))
    (array([0, 1, 2, 3]), array([0, 3, 1, 2, 0, 3, 0, 2, 1, 3]))
    """
    ranks, slots = np.int64(schedule.collective.ranks), schedule.slots
    chunk = np.concatenate([schedule.chunk, schedule.chunk, inputs.chunk, outputs.chunk])
    rank = np.concatenate([schedule.src, schedule.dst, inputs.rank, outputs.rank])
    bound = len(schedule.chunks) * int(ranks)
    pairs, number = unique_inverse(chunk * ranks + rank, bound=bound)
    if slots == 1:
        return pairs, number
    slot = np.zeros(len(number), np.int64)
    slot[: 2 * schedule.transfers] = np.concatenate([schedule.slot("src"), schedule.slot("dst")])
    cells, number = unique_inverse(number * slots + slot, bound=len(pairs) * slots)
    return pairs[cells // slots] * slots + cells % slots, number


def least_ids(schedule: Schedule) -> Longs:
    """Return the least contribution id of each distinct (rank, block) of the input, in that order. O(n log n).

    >>> from antiphon.core.example import star
    >>> least_ids(star()).tolist()
    [0, 1, 2]
    """
    relation = schedule.collective.relation
    order = np.lexsort([relation.pre_id, relation.pre_block, relation.pre_rank])
    key = pair_keys(relation.pre_rank, relation.pre_block)[order]
    return relation.pre_id[order][run_starts(key)].astype(np.int64)


def _row_levels(schedule: Schedule) -> Longs:
    """Return for every row the index of its step among the steps of its chunk. O(n log n).

    >>> from antiphon.core.example import of_rows
    >>> rows = [(3, 0, 0, 1, 0), (5, 1, 1, 2, 0), (9, 0, 1, 2, 0), (9, 1, 2, 0, 0)]  # steps 3 and 9, steps 5 and 9
    >>> _row_levels(of_rows("allgather", 3, rows)).tolist()
    [0, 0, 1, 1]
    """
    distinct_steps, step_index = unique_inverse(schedule.step.astype(np.int64), bound=schedule.steps or 1)
    key = schedule.chunk * np.int64(max(len(distinct_steps), 1)) + step_index
    order = order_of(key, bound=len(schedule.chunks) * max(len(distinct_steps), 1))
    # Number the distinct (chunk, step) pairs; a level is that number counted from the first pair of the chunk.
    pair_number = np.cumsum(run_starts(key[order]))
    starts_chunk = run_starts(schedule.chunk[order])
    first_pair = pair_number[starts_chunk][np.cumsum(starts_chunk) - 1]
    level = np.empty(schedule.transfers, np.int64)
    level[order] = pair_number - first_pair
    return level


def _group_rows(schedule: Schedule, src: Longs, dst: Longs, cells: int) -> _Rows:
    """Sort rows by (level, cell written); those that write one cell on one level form a group. O(n log n).

    >>> from antiphon.core.example import star
    >>> rows = _group_rows(star(), np.array([1, 2, 0, 0]), np.array([0, 0, 1, 2]), 3)
    >>> rows.order.tolist(), rows.head.tolist(), rows.size.tolist(), rows.copies.tolist()
    ([0, 1, 2, 3], [0, 2, 3], [2, 1, 1], [False, True, True])
    """
    level = _row_levels(schedule)
    # Rows with equal (level, cell) form a group.
    key = level * cells + dst
    order = order_of(key, bound=(int(level.max(initial=0)) + 1) * max(cells, 1))
    head = np.flatnonzero(run_starts(key[order]))
    size = np.diff(np.append(head, len(order)))
    copy = (schedule.op[order] == COPY).astype(np.int64)
    copies = np.add.reduceat(copy, head) if len(head) else copy
    return _Rows(
        order, src[order], dst[order], level[order], head, size, copies=copies > 0, races=(copies > 0) & (size > 1)
    )


def _carry_least(rows: _Rows, least_id: Longs) -> tuple[Longs, Longs]:
    """Propagate the least contribution of every cell through the levels; `least_id` is updated to the final state.

    Return it per row for the cell read, and per group for the cell's own value (EMPTY if that is not an operand).
    O(rows).

    >>> from antiphon.core.example import star
    >>> rows = _group_rows(star(), np.array([1, 2, 0, 0]), np.array([0, 0, 1, 2]), 3)
    >>> least = np.array([0, 1, 2])
    >>> row_least, own_least = _carry_least(rows, least)
    >>> row_least.tolist(), (own_least < EMPTY).tolist(), least.tolist()
    ([1, 2, 0, 0], [True, False, False], [0, 0, 0])
    """
    row_least = np.empty(len(rows.order), np.int64)
    own_least = np.empty(len(rows.head), np.int64)
    written = rows.dst[rows.head]
    group_level = rows.level[rows.head]
    level_starts = np.flatnonzero(run_starts(group_level)) if len(group_level) else group_level
    group_bounds = np.append(level_starts, len(written))
    row_bounds = np.append(rows.head[level_starts], len(rows.order))
    levels = zip(group_bounds[:-1], group_bounds[1:], row_bounds[:-1], row_bounds[1:], strict=True)
    # Level by level. Invariant: least_id describes all cells before this level; reads come before writes.
    for group_begin, group_end, row_begin, row_end in levels:
        read = least_id[rows.src[row_begin:row_end]]
        row_least[row_begin:row_end] = read
        cells = written[group_begin:group_end]
        group_own_least = np.where(rows.copies[group_begin:group_end], EMPTY, least_id[cells])
        own_least[group_begin:group_end] = group_own_least
        if group_end - group_begin < row_end - row_begin:  # some group has several rows
            read = np.minimum.reduceat(read, rows.head[group_begin:group_end] - row_begin)
        least_id[cells] = np.minimum(read, group_own_least)
    return row_least, own_least


def _order_operands(rows: _Rows, row_least: Longs, own_least: Longs) -> tuple[Longs, Longs, Longs]:
    """Return the group, cell and row of every operand, sorted by group and least contribution. O(n log n).

    If least contributions are equal (something is counted twice), the own value comes first, then by cell read.

    A group of two rows and its own value, which is the second by contribution (1), then a copy:

    >>> order, src, dst, level = np.array([[0, 1, 2], [1, 2, 0], [0, 0, 1], [0, 0, 1]])
    >>> rows = _Rows(order, src, dst, level, np.array([0, 2]), np.array([2, 1]), np.array([False, True]), None)
    >>> _order_operands(rows, np.array([2, 0, 0]), np.array([1, EMPTY]))
    (array([0, 0, 0, 1]), array([2, 0, 1, 0]), array([ 1, -1,  0,  2]))
    """
    group = np.repeat(np.arange(len(rows.head)), rows.size)
    own_groups = np.flatnonzero(own_least < EMPTY)
    if len(own_groups) == 0 and len(group) == len(rows.head):
        return group, rows.src, rows.order
    group = np.concatenate([group, own_groups])
    # Sort key: group, then least contribution; the lowest bit puts the cell's own value before an equal operand. Ids
    # are below 2^31, and rows that read empty cells are refused by now, so twice an id fits `pair_keys`.
    key = pair_keys(group, np.concatenate([row_least * 2 + 1, own_least[own_groups] * 2]))
    cell = np.concatenate([rows.src, rows.dst[rows.head[own_groups]]])
    row = np.concatenate([rows.order, np.full(len(own_groups), -1)])
    order = np.argsort(key)
    sorted_key = key[order]
    if np.any(sorted_key[1:] == sorted_key[:-1]):
        order = np.lexsort([cell, key])
    return group[order], cell[order], row[order]


def _refuse_faults(schedule: Schedule, rows: _Rows, row_least: Longs) -> None:
    """Raise Invalid for the fault of the earliest step: a fault can cause others in its chunk, but only later ones."""
    race = np.repeat(rows.races, rows.size)
    faulty = np.flatnonzero((row_least == EMPTY) | race | (rows.src == rows.dst))
    if not len(faulty):
        return
    faulty_rows = rows.order[faulty]
    # Report the earliest faulty row in the order of steps, chunks and ranks.
    columns = (schedule.dst, schedule.src, schedule.chunk, schedule.step)
    earliest = np.lexsort([column[faulty_rows] for column in columns])[0]
    row, position = int(faulty_rows[earliest]), int(faulty[earliest])
    step, chunk = int(schedule.step[row]), int(schedule.chunk[row])
    src, dst = (_place_text(schedule, side, row) for side in ("src", "dst"))
    begin = f"step {step}, chunk {chunk}"
    if rows.src[position] == rows.dst[position]:
        raise Invalid(f"{begin}: {src} sends to itself; remove this transfer")
    if row_least[position] == EMPTY:
        raise Invalid(f"{begin}: {src} sends to {dst} what it does not hold; bring it there in an earlier step")
    group = int(np.searchsorted(rows.head, position, side="right")) - 1
    members = rows.order[rows.head[group] : rows.head[group] + rows.size[group]]
    senders = ", ".join(str(int(r)) for r in np.sort(schedule.src[members])[:8])
    raise Invalid(f"{begin}: ranks {senders} write to {dst} in one step, not all to be combined: a race; use two steps")


def _place_text(schedule: Schedule, side: str, row: int) -> str:
    """Return a rank, and its slot if not 0, in words."""
    slot = int(schedule.slot(side)[row])
    return f"rank {int(getattr(schedule, side)[row])}" + (f" (slot {slot})" if slot else "")


def _refuse_missing(outputs: BufferCells, least_id: Longs) -> None:
    """Raise Invalid if an output cell is empty at the end."""
    missing = np.flatnonzero(least_id[outputs.cell] == EMPTY)
    if len(missing):
        i = int(missing[0])
        raise Invalid(f"rank {int(outputs.rank[i])} must end with chunk {int(outputs.chunk[i])}, but nothing brings it")
