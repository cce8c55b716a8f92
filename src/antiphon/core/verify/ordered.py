"""Check that contributions are combined in ascending order of their ids, as operators that do not commute need it.

The operands of a combination are taken in the order of their least contributions (docs/schedule.md, "Combine order"),
so a value is a product of contributions in a certain order. That order ascends if and only if it does in each operand,
and each operand ends before the next one begins: so the least and the greatest contribution of every cell decide.

Example: rank 0 holds 0, rank 1 holds 1, rank 2 holds 2. If rank 0 receives 2 and in a later step 1, its value is 0, 2,
1: out of order. If it receives both in one step, or 1 and 2 combined, it is 0, 1, 2.
"""

from __future__ import annotations

import numpy as np

from antiphon.core.columns import Longs
from antiphon.core.schedule import REDUCE, Schedule
from antiphon.core.verify.layout import ChunkRows, Demand, split_batches
from antiphon.core.verify.report import Fault, row_fault

_NOTHING = 2**40  # the least contribution of an empty cell; above every id


def find_order_fault(schedule: Schedule) -> Fault | None:
    """Return the first transfer that a required value depends on and that combines contributions out of order.

    The schedule must be legal; each batch takes about ten array operations per step, O(n log n) for n rows.

    >>> from antiphon.core.example import of_rows, star
    >>> find_order_fault(star()) is None  # ranks 1 and 2 arrive in one step
    True
    >>> rows = [(0, 0, 2, 0, 1), (1, 0, 1, 0, 1), (2, 0, 0, 1, 0), (2, 0, 0, 2, 0)]  # step, chunk, src, dst, op
    >>> find_order_fault(of_rows("allreduce", 3, rows)).message
    'step 1, chunk 0: the reduce from rank 1 to rank 0 combines contributions out of order'
    """
    if schedule.joint is not None:
        rows = np.flatnonzero((schedule.joint >= 0) & (schedule.op == REDUCE))
        # A joint with several senders combines; it occurs several times among the distinct (joint, sender) pairs.
        joint_of_pair, _ = np.unique(np.stack([schedule.joint[rows], schedule.src[rows]]), axis=1)
        combining_joints = joint_of_pair[1:][joint_of_pair[1:] == joint_of_pair[:-1]]
        is_combined = np.isin(schedule.joint[rows], combining_joints)
        if is_combined.any():
            row = int(rows[is_combined][0])
            return row_fault("order", schedule, row, "is combined in a switch, in an order that nothing defines")
    for batch in split_batches(schedule, Demand.of(schedule.collective)):
        faulty_row = _track_order(batch)
        if faulty_row >= 0:
            return row_fault("order", schedule, int(batch.rows[faulty_row]), "combines contributions out of order")
    return None


def _track_order(batch: ChunkRows) -> int:
    """Return a row of the batch that spoils the order of a required value, the first of its chunk; -1: none does."""
    lowest, highest = np.full(batch.cells, _NOTHING), np.full(batch.cells, -1)
    np.minimum.at(lowest, batch.pre, batch.pre_id)
    np.maximum.at(highest, batch.pre, batch.pre_id)
    spoiled_by = np.full(batch.cells, -1)  # the row that brought the value of a cell out of order; -1: it is in order
    for rows, src, dst in batch.steps():
        # Operands: the cells that rows read, and the written cells that are reduced into and hold something.
        reduces = batch.reduces[rows]
        own_operands = np.unique(dst[reduces])
        own_operands = own_operands[lowest[own_operands] < _NOTHING]
        cell, read = np.concatenate([dst, own_operands]), np.concatenate([src, own_operands])
        row = np.concatenate([rows, np.full(len(own_operands), -1)])  # -1: no row brings it
        order = np.lexsort([row, lowest[read], cell])  # by cell written, then by least contribution
        cell, read, row = cell[order], read[order], row[order]
        is_next = cell[1:] == cell[:-1]  # whether an operand is of the same combination as the one before it
        overlaps = is_next & (highest[read[:-1]] >= lowest[read[1:]])
        # A row that brings one of the two operands; at most one of them is brought by none (-1), the cell's own value.
        spoiling: Longs = np.where(overlaps, np.maximum(row[1:], row[:-1]), -1)
        first = np.flatnonzero(np.concatenate([[True], ~is_next]))
        spoiled = np.maximum(spoiled_by[read], np.concatenate([[-1], spoiling]))
        # all reads of a step precede its writes
        new_state = (np.minimum.reduceat(lowest[read], first), np.maximum.reduceat(highest[read], first),
               np.maximum.reduceat(spoiled, first))  # fmt: skip
        lowest[cell[first]], highest[cell[first]], spoiled_by[cell[first]] = new_state
    faulty = spoiled_by[batch.post]
    faulty = faulty[faulty >= 0]
    return int(faulty.min()) if len(faulty) else -1
