"""Second stage of lowering: decide where transferred data go, which values are combined, and how scratch is reused.

Input is the first stage (rows.py): the places of all values; a *place* is a rank, a user's buffer and a shift. Output
is `Moves`, `Folds` and `Slots`, of which lowering.py makes operations.

- A *row* of the schedule (a transfer) goes straight to the place of its value, or into a *stretch* of scratch (buffer
  space of the program): if its value has no place in a user's buffer, or if the row waits there until a fold combines
  it with others.
- A *fold* makes a *version* (a chunk at a rank after one of its writes) from several operands. A *group* is all writes
  of one version. Folds of neighbouring chunks whose operands are neighbours, too, are merged into one.
- Stretches are assigned to *slots* of equal length, which are reused: like registers, by the lifetimes of the
  stretches.

Example: rank 0 of a star of three ranks adds what ranks 1 and 2 send. Both rows wait in stretches of scratch, and one
fold adds these and the rank's own input. The sum then goes straight to the outputs of ranks 1 and 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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
    class_whole: Longs  # per class its length: whole units of weight ...
    class_part: Longs  # ... and a numerator over the line's denominator
    class_pieces: Longs  # per class


def assign_stretches(
    line: DataLine, ranks: int, where: tuple[Longs, Longs, Longs, Longs], life: tuple[Longs, Longs], lag: int
) -> Slots:
    """Assign every stretch a slot of its class. O(n log n).

    `where`: rank, first and last point, and pieces of each stretch. `life`: the times of its first and last use. The
    stretch that begins next takes the slot that has been free for longest. A slot is free `lag` steps after its last
    use, so that the receives of a step need not wait for the folds of the step before. Whether a slot is free when
    stretch k begins depends only on the number of stretches begun and ended, so no loop is needed.

    Stretches of rank 0, as long as the first block, in use from 0 to 2, from 1 to 5 and from 3 to 4: the third takes
    the slot of the first.

    >>> from antiphon.core.example import star
    >>> point, same = np.zeros(3, np.int64), np.ones(3, np.int64)
    >>> life = np.array([0, 1, 3]), np.array([2, 5, 4])
    >>> slots = assign_stretches(DataLine.of(star()), 1, (point, point, same, same), life, 0)
    >>> slots.slot.tolist(), slots.before.tolist(), slots.ptr.tolist()
    ([0, 1, 0], [-1, -1, 0], [0, 2])
    """
    rank, begin, end, pieces = where
    # The length as units + numerators / denominator, normalized to 0 <= numerators < denominator.
    units, numerators = line.units[end] - line.units[begin], line.numerators[end] - line.numerators[begin]
    units, numerators = units - (numerators < 0), numerators % line.denominator
    # Stretches of one class (length and pieces) can share slots; a pool is a class at a rank.
    slot_class = number_rows(units, numerators, pieces)
    class_count = int(slot_class.max(initial=-1)) + 1
    class_head = np.zeros(class_count, np.int64)
    class_head[slot_class] = np.arange(len(slot_class))
    pool = number_rows(rank, slot_class)
    pools = int(pool.max(initial=-1)) + 1
    number = np.zeros(pools, np.int64)
    number[pool] = np.arange(len(pool))
    # Times count half steps: + 1 because a slot is free only after its last use, 2 * lag for `lag` steps.
    index, before, slot_counts = _assign_slots(pool, pools, life[0], life[1] + 1 + 2 * lag)
    base = np.cumsum(slot_counts) - slot_counts
    of_rank, of_kind = rank[number], slot_class[number]
    ptr = pointers(np.repeat(of_rank, slot_counts), ranks)
    slot = base[pool] + index - ptr[rank] if len(rank) else index
    return Slots(
        slot,
        before,
        ptr,
        np.repeat(of_kind, slot_counts),
        units[class_head],
        numerators[class_head],
        pieces[class_head],
    )


def _assign_slots(pool: Longs, pools: int, begin: Longs, free: Longs) -> tuple[Longs, Longs, Longs]:
    """Return per stretch its slot in its pool and the stretch that had it before; per pool the number of slots.
    O(n log n).

    One pool; the slot of the first is free from 2 on:

    >>> _assign_slots(np.zeros(3, np.int64), 1, np.array([0, 1, 3]), np.array([2, 6, 5]))
    (array([0, 1, 0]), array([-1, -1,  0]), array([2]))
    """
    count = len(pool)
    if not count:
        return pool, pool, np.zeros(pools, np.int64)
    span = int(max(begin.max(), free.max())) + 1
    # Sort by pool and time with one key: pool * span + time.
    order, by_end = order_of(pool * span + begin, pools * span), order_of(pool * span + free, pools * span)
    head = pointers(pool[order], pools)
    pool_sorted = pool[order]
    # Per stretch of a pool: `nth` stretches began before it, and `freed` slots are free again when it begins.
    nth = np.arange(count) - head[pool_sorted]
    freed = (
        np.searchsorted((pool * span + free)[by_end], (pool * span + begin)[order], side="right") - head[pool_sorted]
    )
    # Slots after stretch k: the running maximum of begun - freed, that is of the stretches alive at once.
    slots = np.maximum.accumulate(nth + 1 - freed + pool_sorted * (count + 1)) - pool_sorted * (
        count + 1
    )  # slots so far
    slots_before = np.where(nth > 0, np.concatenate([[0], slots[:-1]]), 0)
    # If the maximum does not grow, a free slot exists: take the one that is free for longest.
    reuses = slots == slots_before
    before = np.full(count, -1, np.int64)
    before[order[reuses]] = by_end[(head[pool_sorted] + nth - slots_before)[reuses]]
    index = np.full(count, -1, np.int64)
    index[order[~reuses]] = slots[~reuses] - 1
    # Pointer jumping: each stretch finds the first owner of its slot in O(log n) rounds.
    root = np.where(before >= 0, before, np.arange(count))
    while True:
        further = root[root]
        if np.array_equal(further, root):
            break
        root = further
    last = np.append(run_starts(pool_sorted)[1:], True)
    return index[root], before, slots[last]


# ---- moves and folds ----


@dataclass(frozen=True, eq=False)
class Moves:
    """Where the data of rows go. Neighbouring rows of one message share a stretch."""

    folded: Bools  # per group: a fold makes its version
    crossing: Longs  # rows from rank to rank, by message, in the order in which they travel
    message: Longs  # per crossing row its message
    joined: Bools  # per crossing row: its data continue where those of the row before it end, in the same message
    messages: int
    inner: Longs  # rows inside a rank that are copied by an operation of their own
    stretch: Longs  # per row its stretch of scratch, -1: none
    waiting: Bools  # per row: it stays in its stretch until a fold takes it
    head: Longs  # per stretch its first row
    tail: Longs  # per stretch its last row
    base: Longs  # per version its place, or number of places + its stretch


def moves(prepared: Prepared, staged: bool = False) -> Moves:
    """Decide for every row whether it goes straight to its place or into scratch (`staged`: all that cross).
    O(n log n).

    Rank 0 of `core.example.star` adds the data of rows 0 and 1, which wait in stretches 1 and 0 of its scratch; rows 2
    and 3 go straight to the outputs of ranks 1 and 2.

    >>> from antiphon.core.example import star
    >>> from antiphon.lower.rows import prepare
    >>> movement = moves(prepare(star(), False))
    >>> movement.folded.tolist(), movement.waiting.tolist(), movement.stretch.tolist()
    ([True, False, False], [True, True, False, False], [1, 0, -1, -1])
    >>> movement.crossing.tolist(), movement.message.tolist()
    ([1, 0, 2, 3], [0, 1, 2, 3])
    """
    schedule, values = prepared.schedule, prepared.values
    order = values.order
    read, write = order.read.astype(np.int64), order.write.astype(np.int64)
    group = values.group[write]
    # A fold makes versions of several operands, and versions that may not come straight to their place because the old
    # version there is read in the same step.
    clash = values.overwritten & values.read_at_overwrite
    folded = (values.count > 1) | clash[values.version - 1]
    local = schedule.src == schedule.dst
    if staged:  # what crosses waits in scratch, and a fold copies it to its place in a user's buffer
        folded[np.unique(group[~local])] |= values.place[values.version[np.unique(group[~local])]] >= 0
    # `late`: local rows whose source is overwritten in the step in which they read it.
    late = values.overwritten[read].copy()
    late[late] = values.moment[read[late] + 1] == prepared.time[late]
    # Rows that wait in scratch for their fold: those that cross, and those whose source is overwritten in this step.
    waiting = folded[group] & (~local | late)
    hidden = values.place[write] < 0
    # `bare`: folds with a result in scratch and no operand waiting there yet; its first row lends its stretch.
    bare = folded & (values.place[values.version] < 0)
    bare[group[waiting]] = False
    real = np.flatnonzero((values.row >= 0) & bare[values.owner])
    waiting[values.row[real][run_starts(values.owner[real])]] = True  # a result in scratch takes an operand's place
    stays = waiting | (~folded[group] & hidden)
    crossing, message, joined = _sort_messages(prepared, local)
    inner = np.flatnonzero(local & (waiting | ~folded[group]))
    # Stretches of scratch: one for neighbours that cross together, one for each row inside a rank.
    stretch = np.full(schedule.transfers, -1, np.int64)
    is_stored = stays[crossing]
    # A stretch begins at a row that is stored in scratch, unless it continues such a row before it.
    fresh = is_stored & ~(joined & np.concatenate([[False], is_stored[:-1]]))[: len(is_stored)]
    number = np.cumsum(fresh) - 1
    stretch[crossing[is_stored]] = number[is_stored]
    own = inner[stays[inner]]
    stretch[own] = np.arange(len(own)) + int(fresh.sum())
    # ... and ends where the next row does not continue it.
    ending = is_stored & np.append(~(joined & is_stored)[1:], True)[: len(is_stored)]
    head = np.concatenate([crossing[fresh], own])
    tail = np.concatenate([crossing[ending], own])
    # Versions without a place in a user's buffer lie in the stretch of their row, or of their first operand.
    base = values.place.copy()
    # Versions that a single row brings lie where the row lies.
    straight = np.flatnonzero(~folded[group] & hidden)
    base[write[straight]] = len(prepared.places) + stretch[straight]
    # A fold's result overwrites its first waiting operand, so it needs no scratch of its own.
    into = np.flatnonzero((values.row >= 0) & folded[values.owner])
    into = into[waiting[values.row[into]] & hidden[values.row[into]]]
    first = into[run_starts(values.owner[into])]
    base[values.version[values.owner[first]]] = len(prepared.places) + stretch[values.row[first]]
    count = int(message[-1]) + 1 if len(message) else 0
    return Moves(folded, crossing, message, joined, count, inner, stretch, waiting, head, tail, base)


def _sort_messages(prepared: Prepared, local: Bools) -> tuple[Longs, Longs, Bools]:
    """Return the crossing rows by message and, within it, by position of their data; the message of each row; and
    whether it continues where the row before ends. O(n log n).

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
    inside: list[tuple[NDArray[Any], int]] = [(line.place[chunk], len(line.place))]
    if slots > 1:
        inside += [(schedule.slot("src")[rows], slots), (schedule.slot("dst")[rows], slots)]
    order = order_of(*pack_columns((table.of_row[rows], len(table)), *inside))
    rows = rows[order]
    chunk, new = schedule.chunk[rows], run_starts(table.of_row[rows])
    # Pipelined chunks stay separate: each piece is sent at its own time.
    joined = ~new & (line.pieces[chunk] == 1)
    joined[1:] &= line.end[chunk[:-1]] == line.begin[chunk[1:]]
    return rows, np.cumsum(new) - 1, joined


@dataclass(frozen=True, eq=False)
class Folds:
    """The folds. Neighbouring groups whose operands are contiguous are one fold."""

    groups: Longs  # the groups that folds make, by rank, moment and position on the line
    fold: Longs  # per group its fold, -1: none
    head: Longs  # per fold its first group
    tail: Longs  # per fold its last group
    operands: Longs  # of all folds: the operands of the first group, as positions among those of `Values`
    count: Longs  # per fold the number of its operands
    base: Longs  # per operand of `Values` its place, or number of places + its stretch


def folds(prepared: Prepared, movement: Moves) -> Folds:
    """Return the folds and where their operands lie. O(n log n).

    In `core.example.star` there is one fold of three operands: the input of rank 0 (place 0) and stretches 1 and 0,
    whose numbers follow those of the six places.

    >>> from antiphon.core.example import star
    >>> from antiphon.lower.rows import prepare
    >>> prepared = prepare(star(), False)
    >>> folding = folds(prepared, moves(prepared))
    >>> folding.fold.tolist(), folding.operands.tolist(), folding.base[folding.operands].tolist()
    ([0, -1, -1], [0, 1, 2], [0, 7, 6])
    """
    values, line = prepared.values, prepared.line
    # Operands that wait in scratch lie in their row's stretch, all others where their version lies.
    is_held = values.row >= 0
    is_held[is_held] = movement.waiting[values.row[is_held]]
    base = movement.base[values.operand]
    base[is_held] = len(prepared.places) + movement.stretch[values.row[is_held]]
    groups = np.flatnonzero(movement.folded)
    version = values.version[groups]
    chunk, rank = values.order.chunk[version], values.order.rank[version]
    count = values.count[groups]
    count_bound = int(count.max(initial=0)) + 1
    # Only folds of one rank, moment and number of operands can be joined.
    key, bound = pack_columns(
        (rank, prepared.schedule.collective.ranks), (values.moment[version], prepared.times), (count, count_bound)
    )
    order = order_of(*pack_columns((key, bound), (line.place[chunk], len(line.place))))
    groups, key, chunk, count = groups[order], key[order], chunk[order], count[order]
    joined = ~run_starts(key) & (line.pieces[chunk] == 1)
    joined[1:] &= line.end[chunk[:-1]] == line.begin[chunk[1:]]
    # Neighbours are joined if their results share a base, and so do their operands, one by one.
    home = movement.base[values.version[groups]]
    joined[1:] &= home[1:] == home[:-1]
    if len(groups):
        at = concat_ranges(values.first[groups], count)
        operand_base = base[at]
        # Operand i of a group is compared with operand i of the group before, which has as many.
        position = np.arange(len(at)) - np.repeat(count, count)
        same = operand_base == operand_base[np.maximum(position, 0)]
        joined &= np.logical_and.reduceat(same, np.cumsum(count) - count)
    number = np.full(len(movement.folded), -1, np.int64)
    number[groups] = np.cumsum(~joined) - 1
    head = groups[~joined]
    tail = groups[np.append(~joined[1:], True)[: len(groups)]]
    of = values.count[head]
    return Folds(groups, number, head, tail, concat_ranges(values.first[head], of), of, base)
