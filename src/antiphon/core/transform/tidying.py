"""Find redundant and dead transfers of a schedule, and drop them.

Two data-flow analyses, as in a compiler, over the versions of cells. A cell is one rank's copy of a chunk, a version
its value between two writes (dependencies.py). The versions of a cell have consecutive numbers, so a row that writes
version v finds version v - 1 in the cell. Several rows of a step may write one version, if they reduce.

- Redundant (value numbering, forwards): copies keep the identity of the value that they read; a row that writes the
  value that the cell already holds changes nothing.
- Dead (liveness, backwards): a version is live if an output depends on it; a row that writes a version that is not
  live is not needed.

Both are repeated until nothing changes: if a dead row overwrites a value and a later row writes it again, the later one
is redundant only once the dead one is gone.

Example: allgather of 2 ranks with the rows 0 -> 1 block 0, 1 -> 0 block 1, 1 -> 0 block 0. The last one returns to rank
0 the block that it has: redundant.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from antiphon.core.columns import (
    Bools,
    Longs,
    concat_ranges,
    order_of,
    pointers,
    run_starts,
    unique_inverse,
)
from antiphon.core.dependencies import Versions, versions
from antiphon.core.schedule import COPY, REDUCE, Schedule


@dataclass(frozen=True, eq=False)
class UnneededRows:
    """Rows of a schedule that are not needed."""

    redundant: Longs  # rows that write the value that the cell already has
    dead: Longs  # rows whose value does not reach an output

    def __bool__(self) -> bool:
        return bool(len(self.redundant) or len(self.dead))


def by_step(schedule: Schedule) -> list[Longs]:
    """Return the rows of every nonempty step, in order of time. One sort.

    An allreduce of three ranks: 1 and 2 send to 0 in step 0 (rows 0 and 1), which answers in step 1 (rows 2 and 3):

    >>> from antiphon.core.example import star
    >>> by_step(star())
    [array([0, 1]), array([2, 3])]
    """
    order = order_of(schedule.step, bound=max(schedule.steps, 1))
    return np.split(order, np.flatnonzero(run_starts(schedule.step[order]))[1:]) if len(order) else []


def chunk_pairs(schedule: Schedule, side: str) -> tuple[Longs, Longs, Longs]:
    """Return (chunk, rank, entry of the relation) for all data at the beginning ("pre") or wanted at the end ("post").
    O(pairs).

    Rows in the examples of this file are (step, chunk, source, destination, op), with op 0 a copy and 1 a reduction:

    >>> from antiphon.core.example import of_rows
    >>> chunk_pairs(of_rows("allgather", 2, [(0, 0, 0, 1, 0), (0, 1, 1, 0, 0)]), "post")
    (array([0, 0, 1, 1]), array([0, 1, 0, 1]), array([0, 1, 2, 3]))
    """
    relation = schedule.collective.relation
    ptr = pointers(getattr(relation, f"{side}_block"), schedule.collective.blocks)
    block = schedule.chunks.block
    count = ptr[block + 1] - ptr[block]
    entry = concat_ranges(ptr[block], count)
    rank: Longs = getattr(relation, f"{side}_rank")[entry].astype(np.int64)
    return np.repeat(np.arange(len(block)), count), rank, entry


def slot0_cells(schedule: Schedule, side: str) -> tuple[Longs, Longs]:
    """Return the slot-0 cells of `chunk_pairs`, as numbered by `versions`, and their entries in the relation. O(pairs).

    An allreduce of three ranks has one chunk, so a cell per rank; each begins with a contribution:

    >>> from antiphon.core.example import star
    >>> slot0_cells(star(), "pre")
    (array([0, 1, 2]), array([0, 1, 2]))
    """
    chunk, rank, entry = chunk_pairs(schedule, side)
    return (chunk * schedule.collective.ranks + rank) * schedule.slots, entry


def initial_with_data(schedule: Schedule, history: Versions) -> Bools:
    """Return per version whether it is the initial one of its cell and the cell then holds data. O(n log n).

    >>> from antiphon.core.example import of_rows
    >>> chain = of_rows("broadcast", 3, [(0, 0, 0, 1, 0), (1, 0, 1, 2, 0)], roots=(0,))
    >>> initial_with_data(chain, versions(chain))  # rank 0's only version; rank 1's before and after; rank 2's likewise
    array([ True, False, False, False, False])
    """
    cells, _ = slot0_cells(schedule, "pre")
    initial = np.flatnonzero(history.initial)
    with_data = np.zeros(len(history), np.bool_)
    with_data[initial] = np.isin(history.cell[initial], cells)
    return with_data


def plain_copies(schedule: Schedule) -> Schedule:
    """Replace each reduction that is the only one to write into an empty cell in its step by a copy. O(n log n).

    >>> from antiphon.core.example import of_rows
    >>> plain_copies(of_rows("broadcast", 3, [(0, 0, 0, 1, 1), (1, 0, 1, 2, 1)], roots=(0,))).op
    array([0, 0], dtype=uint8)
    """
    if not (schedule.op == REDUCE).any():
        return schedule
    history = versions(schedule)
    sole_writer = np.bincount(history.write, minlength=len(history)) == 1  # per version
    before = history.write - 1  # a written version is never the initial one of its cell
    empty = history.initial[before] & ~initial_with_data(schedule, history)[before]
    to_copy = (schedule.op == REDUCE) & sole_writer[history.write] & empty
    if schedule.joint is not None:  # the rows of a joint have one op: all become copies, or none
        first_row = schedule.leads  # per row the first one of its joint
        to_copy &= np.bincount(first_row[~to_copy], minlength=schedule.transfers)[first_row] == 0
    return replace(schedule, op=np.where(to_copy, COPY, schedule.op)) if to_copy.any() else schedule


def _single_contributions(schedule: Schedule, history: Versions) -> tuple[Longs, Longs]:
    """Return the initial versions of cells that begin with exactly one contribution, and an identity of each.

    Identities are negative, and equal where the chunk and the contribution (`pre_id` of the relation) are equal.
    """
    relation = schedule.collective.relation
    cells, entries = slot0_cells(schedule, "pre")
    order = order_of(cells, bound=len(schedule.chunks) * schedule.collective.ranks * schedule.slots)
    cells, entries = cells[order], entries[order]
    single = run_starts(cells) & np.append(run_starts(cells)[1:], True)  # cells that are listed once
    cells, entries = cells[single], entries[single]
    initial = np.flatnonzero(history.initial)
    position = np.searchsorted(cells, history.cell[initial])
    is_single = np.append(cells, -1)[position] == history.cell[initial]  # the -1 is no cell
    initial, entries = initial[is_single], entries[position[is_single]]
    ids = int(relation.pre_id.max(initial=0)) + 1
    key = history.chunk[initial] * ids + relation.pre_id[entries]
    _, number = unique_inverse(key, bound=len(schedule.chunks) * ids)
    return initial, -1 - number


def _identify_values(schedule: Schedule, history: Versions) -> tuple[Longs, Bools]:
    """Return an identity of every version's value (copies keep it), and the rows that write the value already there.

    A single contribution has a negative identity (`_single_contributions`), any other value its version plus 1.

    O(n log n). The last row writes the value that rank 1 has:

    >>> from antiphon.core.example import of_rows
    >>> rows = of_rows("broadcast", 3, [(0, 0, 0, 1, 0), (1, 0, 1, 2, 0), (2, 0, 2, 1, 0)], roots=(0,))
    >>> value, redundant = _identify_values(rows, versions(rows))
    >>> value.tolist(), redundant.tolist()
    ([-1, 2, -1, -1, 5, -1], [False, False, True])
    """
    value = np.arange(1, len(history) + 1, dtype=np.int64)  # at first, every version has an identity of its own
    initial_single, shared_identity = _single_contributions(schedule, history)
    value[initial_single] = shared_identity
    empty = history.initial & ~initial_with_data(schedule, history)
    sole_writer = np.bincount(history.write, minlength=len(history)) == 1
    redundant = np.zeros(schedule.transfers, np.bool_)
    for rows in by_step(schedule):
        read, write = history.read[rows], history.write[rows]
        copies = sole_writer[write] & ((schedule.op[rows] == COPY) | empty[write - 1])
        value[write[copies]] = value[read[copies]]
        # An empty cell has the identity of its own version, so only a row that reads this cell, or an empty copy of it,
        # writes that again. Such a row is not redundant but illegal, which is for the verifier to report.
        redundant[rows] = copies & (value[read] == value[write - 1]) & ~empty[write - 1]
    return value, redundant


def _find_needed(schedule: Schedule, history: Versions) -> Bools:
    """Return the rows whose value reaches an output, going backwards through the steps. O(n log n).

    A scatter to ranks 1 and 2; rank 1 does not need the block of rank 2:

    >>> from antiphon.core.example import of_rows
    >>> rows = [(0, 1, 0, 1, 0), (0, 2, 0, 2, 0), (1, 2, 0, 1, 0)]
    >>> scatter = of_rows("scatter", 3, rows, roots=(0,))
    >>> _find_needed(scatter, versions(scatter))
    array([ True,  True, False])
    """
    live = np.zeros(len(history) + 1, np.bool_)  # the last entry, index -1, stands for cells that no row touches
    cells, _ = slot0_cells(schedule, "post")
    live[history.last_of(cells)] = True
    live[-1] = False
    needed = np.zeros(schedule.transfers, np.bool_)
    # Backward pass. Invariant: live[v] is true if some output depends on version v.
    for rows in reversed(by_step(schedule)):
        write = history.write[rows]
        is_live = live[write]
        needed[rows] = is_live
        live[history.read[rows[is_live]]] = True
        # A reduction also needs the value that was in the cell before.
        live[write[is_live & (schedule.op[rows] == REDUCE)] - 1] = True
    return needed


def find_unneeded(schedule: Schedule) -> UnneededRows:
    """Find redundant and dead rows. O(n log n) and a loop over steps, repeated until there are none.

    The last row returns to rank 0 its own block:

    >>> from antiphon.core.example import of_rows
    >>> rows = [(0, 0, 0, 1, 0), (0, 1, 1, 0, 0), (1, 0, 1, 0, 0)]
    >>> find_unneeded(of_rows("allgather", 2, rows)).redundant
    array([2])
    """
    remaining = np.arange(schedule.transfers)
    redundant: list[Longs] = []
    dead: list[Longs] = []
    while len(remaining):
        current = schedule.take(remaining)
        _, is_redundant = _identify_values(current, versions(current))
        not_redundant = remaining[~is_redundant]
        smaller = schedule.take(not_redundant)
        is_needed = _find_needed(smaller, versions(smaller))
        redundant.append(remaining[is_redundant])
        dead.append(not_redundant[~is_needed])
        if is_needed.all() and not is_redundant.any():
            break
        remaining = not_redundant[is_needed]
    nothing = [np.zeros(0, np.int64)]
    return UnneededRows(np.sort(np.concatenate(redundant or nothing)), np.sort(np.concatenate(dead or nothing)))


def unjoined(schedule: Schedule) -> Schedule:
    """Return the schedule without joints, for runtimes without switches that multicast or combine."""
    return schedule if schedule.joint is None else replace(schedule, joint=None)


def clean(schedule: Schedule) -> Schedule:
    """Return a schedule with the same result without redundant and dead transfers."""
    wasted = find_unneeded(schedule)
    if not wasted:
        return schedule
    keep = np.ones(schedule.transfers, np.bool_)
    keep[wasted.redundant] = keep[wasted.dead] = False
    return schedule.take(np.flatnonzero(keep))
