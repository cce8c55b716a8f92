"""Find redundant and dead transfers of a schedule, and drop them.

Two data-flow analyses, as in a compiler, over the versions of cells (dependencies.py: a cell is one rank's copy of a
chunk, a version its value between two writes):

- Redundant (value numbering, forwards): copies keep the identity of the value that they read; a row that writes the
  value that the cell already holds changes nothing.
- Dead (liveness, backwards): a version is live if an output depends on it; a row that writes a version that is not
  live is not needed.

Both are repeated until nothing changes, since a dead write can hide that a later row only restores the old value.

Example: allgather of 2 ranks with the rows 0 -> 1 block 0, 1 -> 0 block 1, 1 -> 0 block 0. The last one returns to rank
0 the block that it has: redundant.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from antiphon.core.columns import Bools, Longs, dense, order_of, pointers, ranges, starts
from antiphon.core.dependencies import Versions, versions
from antiphon.core.schedule import COPY, REDUCE, Schedule


@dataclass(frozen=True, eq=False)
class Waste:
    """Rows that write the value that a cell already has, and rows whose value does not reach an output."""

    redundant: Longs
    dead: Longs

    def __bool__(self) -> bool:
        return bool(len(self.redundant) or len(self.dead))


def by_step(schedule: Schedule) -> list[Longs]:
    """Return the rows of every nonempty step, in order of time. One sort.

    >>> from antiphon.core.example import star
    >>> by_step(star())
    [array([0, 1]), array([2, 3])]
    """
    order = order_of(schedule.step, max(schedule.steps, 1))
    return np.split(order, np.flatnonzero(starts(schedule.step[order]))[1:]) if len(order) else []


def chunk_pairs(schedule: Schedule, side: str) -> tuple[Longs, Longs, Longs]:
    """Return (chunk, rank, row of the relation) for all data at the beginning ("pre") or wanted at the end ("post").
    O(pairs).

    >>> from antiphon.core.example import of_rows
    >>> chunk_pairs(of_rows("allgather", 2, [(0, 0, 0, 1, 0), (0, 1, 1, 0, 0)]), "post")
    (array([0, 0, 1, 1]), array([0, 1, 0, 1]), array([0, 1, 2, 3]))
    """
    relation = schedule.collective.relation
    ptr = pointers(getattr(relation, f"{side}_block"), schedule.collective.blocks)
    block = schedule.chunks.block
    count = ptr[block + 1] - ptr[block]
    at = ranges(ptr[block], count)
    rank: Longs = getattr(relation, f"{side}_rank")[at].astype(np.int64)
    return np.repeat(np.arange(len(block)), count), rank, at


def first_cells(schedule: Schedule, side: str) -> tuple[Longs, Longs]:
    """Return the slot-0 cells of `chunk_pairs`, as numbered by `versions`, and their rows in the relation. O(pairs).

    >>> from antiphon.core.example import star
    >>> first_cells(star(), "pre")
    (array([0, 1, 2]), array([0, 1, 2]))
    """
    chunk, rank, at = chunk_pairs(schedule, side)
    return (chunk * schedule.collective.ranks + rank) * schedule.slots, at


def first_and_filled(schedule: Schedule, derived: Versions) -> Bools:
    """Return per version whether it is the first of its cell and the cell holds data at the beginning. O(n log n).

    >>> from antiphon.core.example import of_rows
    >>> chain = of_rows("broadcast", 3, [(0, 0, 0, 1, 0), (1, 0, 1, 2, 0)], roots=(0,))
    >>> first_and_filled(chain, versions(chain))  # of rank 0; before and after of ranks 1 and 2
    array([ True, False, False, False, False])
    """
    cells, _ = first_cells(schedule, "pre")
    begin = np.flatnonzero(derived.initial)
    holding = np.zeros(len(derived), np.bool_)
    holding[begin] = np.isin(derived.cell[begin], cells)
    return holding


def plain_copies(schedule: Schedule) -> Schedule:
    """Turn a single reduction into an empty cell into a copy. O(n log n).

    >>> from antiphon.core.example import of_rows
    >>> plain_copies(of_rows("broadcast", 3, [(0, 0, 0, 1, 1), (1, 0, 1, 2, 1)], roots=(0,))).op
    array([0, 0], dtype=uint8)
    """
    if not (schedule.op == REDUCE).any():
        return schedule
    derived = versions(schedule)
    alone = np.bincount(derived.write, minlength=len(derived)) == 1
    before = derived.write - 1  # a written version is never the first of its cell
    empty = derived.initial[before] & ~first_and_filled(schedule, derived)[before]
    lone = (schedule.op == REDUCE) & alone[derived.write] & empty
    if schedule.joint is not None:  # the rows of a joint have one op: all become copies, or none
        leads = schedule.leads
        lone &= np.bincount(leads[~lone], minlength=schedule.transfers)[leads] == 0
    return replace(schedule, op=np.where(lone, COPY, schedule.op)) if lone.any() else schedule


def _identify_values(schedule: Schedule, derived: Versions) -> tuple[Longs, Bools]:
    """Return an identity for every version's value (copies keep it), and the rows that write the value already there.

    O(n log n). The last row writes the value that rank 1 has:

    >>> from antiphon.core.example import of_rows
    >>> rows = of_rows("broadcast", 3, [(0, 0, 0, 1, 0), (1, 0, 1, 2, 0), (2, 0, 2, 1, 0)], roots=(0,))
    >>> value, again = _identify_values(rows, versions(rows))
    >>> value.tolist(), again.tolist()
    ([-1, 2, -1, -1, 5, -1], [False, False, True])
    """
    value = np.arange(1, len(derived) + 1, dtype=np.int64)  # at first, every version has an identity of its own
    cells, at = first_cells(schedule, "pre")
    relation = schedule.collective.relation
    begin = np.flatnonzero(derived.initial)
    order = order_of(cells, len(schedule.chunks) * schedule.collective.ranks * schedule.slots)
    cells, at = cells[order], at[order]
    place = np.searchsorted(cells, derived.cell[begin])
    # Cells that begin with one contribution get a negative identity shared by all replicas of it.
    alone = starts(cells) & np.append(starts(cells)[1:], True)  # begins with a single contribution
    inside = place < len(cells)
    hit = np.zeros(len(begin), np.bool_)
    hit[inside] = (cells[place[inside]] == derived.cell[begin[inside]]) & alone[place[inside]]
    top = int(relation.pre_id.max(initial=0)) + 1
    key = derived.chunk[begin[hit]] * top + relation.pre_id[at[place[hit]]]
    value[begin[hit]] = -1 - dense(key, len(schedule.chunks) * top)[1]
    empty = derived.initial.copy()
    empty[begin] = ~np.isin(derived.cell[begin], cells)
    alone_write = np.bincount(derived.write, minlength=len(derived)) == 1
    again = np.zeros(schedule.transfers, np.bool_)
    for rows in by_step(schedule):
        read, write = derived.read[rows], derived.write[rows]
        carries = alone_write[write] & ((schedule.op[rows] == COPY) | empty[write - 1])
        value[write[carries]] = value[read[carries]]
        again[rows] = carries & (value[read] == value[write - 1]) & ~empty[write - 1]
    return value, again


def _find_needed(schedule: Schedule, derived: Versions) -> Bools:
    """Return the rows whose value reaches an output, going backwards through the steps. O(n log n).

    A scatter to ranks 1 and 2; rank 1 does not need the block of rank 2:

    >>> from antiphon.core.example import of_rows
    >>> rows = [(0, 1, 0, 1, 0), (0, 2, 0, 2, 0), (1, 2, 0, 1, 0)]
    >>> scatter = of_rows("scatter", 3, rows, roots=(0,))
    >>> _find_needed(scatter, versions(scatter))
    array([ True,  True, False])
    """
    live = np.zeros(len(derived) + 1, np.bool_)  # the last entry stands for cells that no row touches
    cells, _ = first_cells(schedule, "post")
    live[derived.last_of(cells)] = True
    live[-1] = False
    needed = np.zeros(schedule.transfers, np.bool_)
    # Backward pass. Invariant: live[v] is true if some output depends on version v.
    for rows in reversed(by_step(schedule)):
        write = derived.write[rows]
        is_live = live[write]
        needed[rows] = is_live
        live[derived.read[rows[is_live]]] = True
        # A reduction also needs the value that was in the cell before.
        live[write[is_live & (schedule.op[rows] == REDUCE)] - 1] = True
    return needed


def waste(schedule: Schedule) -> Waste:
    """Find redundant and dead rows. O(n log n) and a loop over steps, repeated until there are none.

    It is repeated because a dead write hides that a later row only restores the value.

    The last row returns to rank 0 its own block:

    >>> from antiphon.core.example import of_rows
    >>> rows = [(0, 0, 0, 1, 0), (0, 1, 1, 0, 0), (1, 0, 1, 0, 0)]
    >>> waste(of_rows("allgather", 2, rows)).redundant
    array([2])
    """
    remaining = np.arange(schedule.transfers)
    redundant: list[Longs] = []
    dead: list[Longs] = []
    while len(remaining):
        current = schedule.take(remaining)
        _, again = _identify_values(current, versions(current))
        lean = remaining[~again]
        fewer = schedule.take(lean)
        needed = _find_needed(fewer, versions(fewer))
        redundant.append(remaining[again])
        dead.append(lean[~needed])
        if needed.all() and not again.any():
            break
        remaining = lean[needed]
    nothing = [np.zeros(0, np.int64)]
    return Waste(np.sort(np.concatenate(redundant or nothing)), np.sort(np.concatenate(dead or nothing)))


def unjoined(schedule: Schedule) -> Schedule:
    """Return the schedule without joints, for runtimes without switches that multicast or combine."""
    return schedule if schedule.joint is None else replace(schedule, joint=None)


def clean(schedule: Schedule) -> Schedule:
    """Return a schedule with the same result without redundant and dead transfers."""
    vain = waste(schedule)
    if not vain:
        return schedule
    keep = np.ones(schedule.transfers, np.bool_)
    keep[vain.redundant] = keep[vain.dead] = False
    return schedule.take(np.flatnonzero(keep))
