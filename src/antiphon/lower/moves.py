"""Second stage of lowering: decide where transferred data go, which values are combined, and how scratch is reused.

The input is the first stage (rows.py): the places of all values. All blocks stand one behind the other on a *line*; the
borders of chunks are *points* on it, at units + numerators / denominator, in units of weight. A *place* is a rank, a
user's buffer, and the shift from positions on the line to positions in the buffer. The output is `DataMoves`, `Folds`
and `Slots`, which lowering.py converts to operations.

- A *row* of the schedule (a transfer) goes straight to the place of its value, or into a *stretch* of scratch (buffer
  space of the program). It goes there if its value has no place in a user's buffer, or to wait until a fold
  combines it with others.
- A *fold* makes a *version* (a chunk at a rank after one of its writes) from several operands. A *group* is all writes
  of one version. The versions of a chunk at a rank have successive numbers: v - 1 is the one before v. Folds of
  neighbouring chunks whose operands are neighbours, too, are merged into one.
- Stretches are assigned to *slots* of equal length, which are reused: like registers, by the lifetimes of the
  stretches.
- A *base* states where data lie: the number of a place, or the number of places plus that of a stretch.

Example: rank 0 of a star of three ranks adds what ranks 1 and 2 send. Both rows wait in stretches of scratch, and one
fold adds these and the rank's own input. The sum then goes straight to the outputs of ranks 1 and 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from antiphon.core.columns import Bools, Longs, concat_ranges, number_rows, order_of, pack_columns, pointers, run_starts
from antiphon.core.messages import messages
from antiphon.lower.rows import DataLine, Prepared


@dataclass(frozen=True, eq=False)
class Slots:
    """The slots of stretches. Slots of a class have equal lengths and pieces."""

    slot: Longs  # per stretch its slot, numbered from 0 at each rank
    before: Longs  # per stretch the stretch that had its slot before, -1: none
    ptr: Longs  # rank r has the slots ptr[r] to ptr[r + 1] - 1
    of_class: Longs  # per slot its class
    class_whole: Longs  # per class the whole units of its length, in weight
    class_numerator: Longs  # per class the rest of its length, as a numerator over the line's denominator
    class_pieces: Longs  # per class the number of pieces in which its data are sent


class ScratchStretches(NamedTuple):
    """Stretches of scratch to be assigned.

    Times count half steps: data of step t move at 2 * t, folds follow at 2 * t + 1.
    """

    rank: Longs
    begin: Longs  # first point on the line
    end: Longs  # last point on the line
    pieces: Longs  # number of pieces in which the data are sent
    first_use: Longs  # time
    last_use: Longs  # time


def assign_stretches(line: DataLine, ranks: int, stretches: ScratchStretches, lag: int) -> Slots:
    """Assign every stretch a slot of its class. O(n log n).

    The stretch that begins next takes the slot that has been free for longest. A slot is free `lag` steps after its
    last use, so that the receives of a step need not wait for the folds of the step before. Whether a slot is free when
    stretch k begins depends only on the number of stretches begun and ended, so no loop is needed.

    Stretches of rank 0, as long as the first block, in use from half step 0 to 2, from 1 to 5 and from 3 to 4: the
    third takes the slot of the first.

    >>> from antiphon.core.example import star
    >>> zeros, ones = np.zeros(3, np.int64), np.ones(3, np.int64)
    >>> first_use, last_use = np.array([0, 1, 3]), np.array([2, 5, 4])
    >>> columns = {"rank": zeros, "begin": zeros, "end": ones, "pieces": ones}
    >>> stretches = ScratchStretches(**columns, first_use=first_use, last_use=last_use)
    >>> slots = assign_stretches(DataLine.of(star()), ranks=1, stretches=stretches, lag=0)
    >>> slots.slot.tolist(), slots.before.tolist(), slots.ptr.tolist()
    ([0, 1, 0], [-1, -1, 0], [0, 2])
    """
    rank, begin, end, pieces, first_use, last_use = stretches
    # The length as units + numerators / denominator, normalized to 0 <= numerators < denominator.
    units, numerators = line.units[end] - line.units[begin], line.numerators[end] - line.numerators[begin]
    units, numerators = units - (numerators < 0), numerators % line.denominator  # borrow a unit where negative
    # Stretches of one class (length and pieces) can share slots; a pool is a class at a rank.
    slot_class = number_rows(units, numerators, pieces)
    class_count = int(slot_class.max(initial=-1)) + 1
    stretch_of_class = np.zeros(class_count, np.int64)  # any one of the class
    stretch_of_class[slot_class] = np.arange(len(slot_class))
    pool = number_rows(rank, slot_class)
    pools = int(pool.max(initial=-1)) + 1
    stretch_of_pool = np.zeros(pools, np.int64)  # any one of the pool
    stretch_of_pool[pool] = np.arange(len(pool))
    # + 1 because a slot is free only after its last use; 2 * lag half steps are `lag` steps.
    index, before, slot_counts = _assign_slots(pool, pools, first_use, last_use + 1 + 2 * lag)
    first_slot = np.cumsum(slot_counts) - slot_counts  # per pool, over all ranks
    rank_of_pool, class_of_pool = rank[stretch_of_pool], slot_class[stretch_of_pool]
    ptr = pointers(np.repeat(rank_of_pool, slot_counts), ranks)
    slot = first_slot[pool] + index - ptr[rank] if len(rank) else index
    return Slots(
        slot,
        before,
        ptr,
        of_class=np.repeat(class_of_pool, slot_counts),
        class_whole=units[stretch_of_class],
        class_numerator=numerators[stretch_of_class],
        class_pieces=pieces[stretch_of_class],
    )


def _assign_slots(pool: Longs, pools: int, begin: Longs, free: Longs) -> tuple[Longs, Longs, Longs]:
    """Return per stretch its slot in its pool and the stretch that had it before; per pool the number of slots.

    `begin`, `free`: per stretch the times at which it begins, and at which its slot is free again. O(n log n).

    One pool; the slot of the first is free from 2 on:

    >>> _assign_slots(np.zeros(3, np.int64), pools=1, begin=np.array([0, 1, 3]), free=np.array([2, 6, 5]))
    (array([0, 1, 0]), array([-1, -1,  0]), array([2]))
    """
    count = len(pool)
    if not count:
        return pool, pool, np.zeros(pools, np.int64)
    span = int(max(begin.max(), free.max())) + 1
    # Sort by pool and time with one key: pool * span + time.
    order, by_end = order_of(pool * span + begin, pools * span), order_of(pool * span + free, pools * span)
    pool_sorted = pool[order]
    pool_begin = pointers(pool_sorted, pools)[pool_sorted]  # per stretch in this order, where its pool begins
    # Per stretch of a pool: `begun` stretches began before it, and `freed` slots are free again when it begins.
    begun = np.arange(count) - pool_begin
    freed = np.searchsorted((pool * span + free)[by_end], (pool * span + begin)[order], side="right") - pool_begin
    # Slots after stretch k: the running maximum of begun + 1 - freed, that is of the stretches alive at once.
    # The offset per pool keeps the maximum of one pool from the next: begun + 1 - freed is from 1 to `count`.
    pool_offset = pool_sorted * (count + 1)
    slots = np.maximum.accumulate(begun + 1 - freed + pool_offset) - pool_offset
    slots_before = np.where(begun > 0, np.concatenate([[0], slots[:-1]]), 0)
    # If the maximum does not grow, a free slot exists: take the one that is free for longest.
    reuses = slots == slots_before
    before = np.full(count, -1, np.int64)
    # Of the `begun` stretches before, begun - slots_before reused slots, in the order in which those became free.
    before[order[reuses]] = by_end[(pool_begin + begun - slots_before)[reuses]]
    index = np.full(count, -1, np.int64)
    index[order[~reuses]] = slots[~reuses] - 1
    # Pointer jumping: each stretch finds the first owner of its slot in O(log n) rounds.
    root = np.where(before >= 0, before, np.arange(count))
    while True:
        grandparent = root[root]
        if np.array_equal(grandparent, root):
            break
        root = grandparent
    last = np.append(run_starts(pool_sorted)[1:], True)
    return index[root], before, slots[last]


# ---- moves and folds ----


@dataclass(frozen=True, eq=False)
class DataMoves:
    """Where the data of rows go. Neighbouring rows of one message share a stretch."""

    folded: Bools  # per group: a fold makes its version
    crossing: Longs  # rows from rank to rank, by message, in the order in which they travel
    message: Longs  # per crossing row its message
    joined: Bools  # per crossing row: its data continue where those of the row before it end, in the same message
    inner: Longs  # rows inside a rank that are copied by an operation of their own
    stretch: Longs  # per row its stretch of scratch, -1: none
    waiting: Bools  # per row: it stays in its stretch until a fold combines it
    head: Longs  # per stretch its first row
    tail: Longs  # per stretch its last row
    base: Longs  # per version: the base that states where it lies


def moves(prepared: Prepared, staged: bool = False) -> DataMoves:
    """Decide for every row whether it goes straight to its place or into scratch. O(n log n).

    `staged`: every row from rank to rank goes into scratch. The arrays of `Values` used here are, per row:
    `version_table.read` and `version_table.write` (the versions that it reads and writes). Per version: `place`
    (-1: in scratch), `overwritten` (the next version has the same place), `read_at_overwrite` (it is read in the step
    that writes the next one), `moment` (of its step; rows have `time`, on the same scale), `group`. Per group:
    `version` (that it writes), `count` (of its operands), `first` (operand). Per operand: `row` (that brings it, -1:
    the cell's own value), `owner` (its group).

    Rank 0 of `core.example.star` adds the data of rows 0 and 1, which wait in stretches 1 and 0 of its scratch; rows 2
    and 3 go straight to the outputs of ranks 1 and 2.

    >>> from antiphon.core.example import star
    >>> from antiphon.lower.rows import prepare
    >>> movement = moves(prepare(star(), in_place=False))
    >>> movement.folded.tolist(), movement.waiting.tolist(), movement.stretch.tolist()
    ([True, False, False], [True, True, False, False], [1, 0, -1, -1])
    >>> movement.crossing.tolist(), movement.message.tolist()
    ([1, 0, 2, 3], [0, 1, 2, 3])
    """
    schedule, values = prepared.schedule, prepared.values
    read, write = values.version_table.read.astype(np.int64), values.version_table.write.astype(np.int64)
    group = values.group[write]
    # A fold makes versions of several operands, and versions that may not come straight to their place because the old
    # version there is read in the same step. The old version has the number before: no group writes a cell's first
    # version, which is its initial value.
    must_wait = values.overwritten & values.read_at_overwrite
    folded = (values.count > 1) | must_wait[values.version - 1]
    local = schedule.src == schedule.dst
    if staged:  # rows from rank to rank wait in scratch, and a fold copies them to their place in a user's buffer
        folded[np.unique(group[~local])] |= values.place[values.version[np.unique(group[~local])]] >= 0
    # `reads_overwritten`: local rows whose source is overwritten in the step in which they read it.
    reads_overwritten = values.overwritten[read].copy()
    reads_overwritten[reads_overwritten] = (
        values.moment[read[reads_overwritten] + 1] == prepared.time[reads_overwritten]
    )
    # Rows that wait in scratch for their fold: those from rank to rank, and those whose source is overwritten.
    waiting = folded[group] & (~local | reads_overwritten)
    has_no_place = values.place[write] < 0
    # If a fold's result lies in scratch and no operand waits there yet, the row of its first transferred operand is
    # made to wait: the result overwrites it.
    lacks_stretch = folded & (values.place[values.version] < 0)
    lacks_stretch[group[waiting]] = False
    transferred = np.flatnonzero((values.row >= 0) & lacks_stretch[values.owner])
    waiting[values.row[transferred][run_starts(values.owner[transferred])]] = True
    in_scratch = waiting | (~folded[group] & has_no_place)
    crossing, message, joined = _sort_messages(prepared, local)
    inner = np.flatnonzero(local & (waiting | ~folded[group]))
    # Stretches of scratch: one for neighbours that cross together, one for each row inside a rank.
    stretch = np.full(schedule.transfers, -1, np.int64)
    crossing_in_scratch = in_scratch[crossing]
    # A stretch begins at a row in scratch, unless it continues such a row before it. (Without rows, shifted arrays have
    # one entry, which [:rows] cuts off.)
    rows = len(crossing)
    previous_in_scratch = np.concatenate([[False], crossing_in_scratch[:-1]])[:rows]
    begins = crossing_in_scratch & ~(joined & previous_in_scratch)
    stretch_number = np.cumsum(begins) - 1
    stretch[crossing[crossing_in_scratch]] = stretch_number[crossing_in_scratch]
    inner_in_scratch = inner[in_scratch[inner]]
    stretch[inner_in_scratch] = np.arange(len(inner_in_scratch)) + int(begins.sum())
    # A stretch ends where the next row does not continue it.
    ends = crossing_in_scratch & np.append(~(joined & crossing_in_scratch)[1:], True)[:rows]
    head = np.concatenate([crossing[begins], inner_in_scratch])
    tail = np.concatenate([crossing[ends], inner_in_scratch])
    # Versions without a place in a user's buffer lie in the stretch of their row, or of their first operand.
    base = values.place.copy()
    # Versions without a place that a single row brings, without a fold, lie where the row lies.
    unfolded = np.flatnonzero(~folded[group] & has_no_place)
    base[write[unfolded]] = len(prepared.places) + stretch[unfolded]
    # A fold's result overwrites its first waiting operand, so it needs no scratch of its own.
    operands = np.flatnonzero((values.row >= 0) & folded[values.owner])
    operands = operands[waiting[values.row[operands]] & has_no_place[values.row[operands]]]
    first = operands[run_starts(values.owner[operands])]
    base[values.version[values.owner[first]]] = len(prepared.places) + stretch[values.row[first]]
    return DataMoves(folded, crossing, message, joined, inner, stretch, waiting, head, tail, base)


def _sort_messages(prepared: Prepared, local: Bools) -> tuple[Longs, Longs, Bools]:
    """Return the crossing rows by message and, within it, by position of their data; the message of each row; and
    whether it continues where the row before ends. `local`: by row, whether it stays in its rank. O(n log n).

    Rows 1, 2, 0 are one message, with thirds 0, 1 and 2 of a block:

    >>> from antiphon.core.example import of_rows
    >>> from antiphon.lower.rows import prepare
    >>> rows = [(0, 2, 0, 1, 0), (0, 0, 0, 1, 0), (0, 1, 0, 1, 0)]
    >>> _sort_messages(prepare(of_rows("broadcast", 2, rows, roots=(0,), parts=3), False), np.zeros(3, bool))
    (array([1, 2, 0]), array([0, 0, 0]), array([False,  True,  True]))
    """
    schedule, line = prepared.schedule, prepared.line
    rows, table = np.flatnonzero(~local), messages(schedule)
    chunk, slots = schedule.chunk[rows], schedule.slots
    keys_within: list[tuple[NDArray[Any], int]] = [(line.position[chunk], len(line.position))]
    if slots > 1:
        keys_within += [(schedule.slot("src")[rows], slots), (schedule.slot("dst")[rows], slots)]
    # `pack_columns` makes one sort key of columns, each given with a bound of its values.
    order = order_of(*pack_columns((table.of_row[rows], len(table)), *keys_within))
    rows = rows[order]
    chunk, starts_message = schedule.chunk[rows], run_starts(table.of_row[rows])
    # Pipelined chunks stay separate: each piece is sent at its own time.
    joined = ~starts_message & (line.pieces[chunk] == 1)
    joined[1:] &= line.end[chunk[:-1]] == line.begin[chunk[1:]]
    return rows, np.cumsum(starts_message) - 1, joined


@dataclass(frozen=True, eq=False)
class Folds:
    """The folds, by rank, moment and position on the line. Neighbouring groups whose operands are contiguous are one
    fold."""

    fold: Longs  # per group its fold, -1: none
    head: Longs  # per fold its first group
    tail: Longs  # per fold its last group
    operands: Longs  # for each fold in turn: the operands (of `Values`) of its first group
    count: Longs  # per fold the number of its operands
    base: Longs  # per operand of `Values`: the base that states where it lies


def folds(prepared: Prepared, movement: DataMoves) -> Folds:
    """Return the folds and where their operands lie. O(n log n).

    In `core.example.star` there is one fold of three operands: the input of rank 0 (place 0) and stretches 1 and 0,
    whose numbers follow those of the six places.

    >>> from antiphon.core.example import star
    >>> from antiphon.lower.rows import prepare
    >>> prepared = prepare(star(), in_place=False)
    >>> folding = folds(prepared, moves(prepared))
    >>> folding.fold.tolist(), folding.operands.tolist(), folding.base[folding.operands].tolist()
    ([0, -1, -1], [0, 1, 2], [0, 7, 6])
    """
    values, line = prepared.values, prepared.line
    # Operands that wait in scratch lie in their row's stretch, all others where their version (`operand`) lies.
    is_waiting = values.row >= 0
    is_waiting[is_waiting] = movement.waiting[values.row[is_waiting]]
    base = movement.base[values.operand]
    base[is_waiting] = len(prepared.places) + movement.stretch[values.row[is_waiting]]
    groups = np.flatnonzero(movement.folded)
    version = values.version[groups]
    chunk, rank = values.version_table.chunk[version], values.version_table.rank[version]
    count = values.count[groups]
    count_bound = int(count.max(initial=0)) + 1
    # Only folds of one rank, moment and number of operands can be joined.
    key, bound = pack_columns(
        (rank, prepared.schedule.collective.ranks), (values.moment[version], prepared.times), (count, count_bound)
    )
    order = order_of(*pack_columns((key, bound), (line.position[chunk], len(line.position))))
    groups, key, chunk, count = groups[order], key[order], chunk[order], count[order]
    joined = ~run_starts(key) & (line.pieces[chunk] == 1)
    joined[1:] &= line.end[chunk[:-1]] == line.begin[chunk[1:]]
    # Neighbours are joined if their results share a base, and so do their operands, one by one.
    result_base = movement.base[values.version[groups]]
    joined[1:] &= result_base[1:] == result_base[:-1]
    if len(groups):
        operand_base = base[concat_ranges(values.first[groups], count)]
        # Operand i of a group is compared with operand i of the group before, which has as many.
        counterpart = np.arange(len(operand_base)) - np.repeat(count, count)
        in_same_operand = operand_base == operand_base[np.maximum(counterpart, 0)]
        joined &= np.logical_and.reduceat(in_same_operand, np.cumsum(count) - count)
    fold = np.full(len(movement.folded), -1, np.int64)
    fold[groups] = np.cumsum(~joined) - 1
    head = groups[~joined]
    tail = groups[np.append(~joined[1:], True)[: len(groups)]]  # [: len]: without groups, append makes one entry
    operand_count = values.count[head]
    operands = concat_ranges(values.first[head], operand_count)
    return Folds(fold, head, tail, operands, operand_count, base)
