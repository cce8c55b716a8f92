"""Two binary trees, each for half of the data: every rank is inside at most one of them, so that all ports are busy.

Sanders, Speck and Träff 2009 ("Two-tree algorithms for full bandwidth broadcast, reduction and scan"); NCCL uses them
for allreduce since 2.4. Pipelined in p pieces, a broadcast takes ceil(log2 P) + p - 1 steps, and every rank sends at
most nbytes in it; allreduce takes 2 ceil(log2 P) + p - 1 steps, and every rank sends at most 2 nbytes.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from antiphon.core.collective import Collective
from antiphon.core.columns import Longs
from antiphon.core.request import Request
from antiphon.core.schedule import Schedule
from antiphon.core.transform import compose
from antiphon.planners.shared.rows import (
    Order,
    Seats,
    collective_among,
    finish_schedule,
    per_root,
    plan_backwards,
    refuse_more_than_fits,
    rows_to_schedule,
)

PIECES = 16


def double_binary_tree(request: Request, *, order: Order = None, pieces: int = PIECES) -> Iterator[Schedule]:
    """Yields one schedule of O(P) transfers per root. `pieces`: pipelining depth."""
    topology, collective = request.topology, request.collective
    roots = max(len(collective.roots), 1)
    refuse_more_than_fits("double-binary-tree", topology, collective, 4 * roots * len(collective.members))
    options = {"order": order, "pieces": pieces}
    yield finish_schedule(_plan(collective, order), topology, collective, "double-binary-tree", options, pieces)


def _plan(collective: Collective, order: Order) -> Schedule:
    if collective.kind == "broadcast":
        return per_root(collective, lambda single: _broadcast(single, order))
    if collective.kind == "reduce":
        return plan_backwards(collective, lambda single: _plan(single, order))
    root = int(Seats.in_order(collective, order).rank[0])
    return compose(
        _plan(collective_among(collective, "reduce", root), order),
        _plan(collective_among(collective, "broadcast", root), order),
    )


def _broadcast(collective: Collective, order: Order) -> Schedule:
    """The root, seat 0, hands each tree its half.

    Among four: half 0 by rank 2 to ranks 1 and 3, half 1 by rank 3 to ranks 2 and 1:

    >>> schedule = _broadcast(Collective("broadcast", 4, roots=(0,)), None)
    >>> rows = list(zip(schedule.step.tolist(), schedule.chunk.tolist(), schedule.src.tolist(), schedule.dst.tolist()))
    >>> rows[:3], rows[3:]
    ([(1, 0, 2, 1), (0, 0, 0, 2), (1, 0, 2, 3)], [(1, 1, 3, 2), (0, 1, 0, 3), (1, 1, 3, 1)])
    """
    seats = Seats.in_order(collective, order, collective.roots[0])
    below = len(seats) - 1
    seat = np.arange(1, below + 1)
    parent = _parents(below)
    other = below + 1 - seat if below % 2 == 0 else seat % below + 1  # seat i plays in tree 1 the part other[i] has
    name = np.concatenate([[0], other])  # in tree 2: so that whoever has children in one is a leaf in the other
    depth = _depths(parent)
    step = np.concatenate([depth, depth]) - 1
    src, dst = np.concatenate([parent, name[parent]]), np.concatenate([seat, name[seat]])
    return rows_to_schedule(collective, seats, step, np.repeat([0, 1], below), src, dst, parts=2)


def _parents(number: int) -> Longs:
    """Parents of nodes 1..number in a binary tree in order: odd nodes are leaves, 0 is above the top."""
    node = np.arange(1, number + 1)
    bit = node & -node
    up = (node ^ bit) | (bit << 1)
    return np.where(up <= number, up, node ^ bit)


def _depths(parent: Longs) -> Longs:
    up = np.concatenate([[0], parent])
    depth = np.zeros(len(up), np.int64)
    above = np.arange(len(up))
    while above.any():
        depth += above > 0
        above = up[above]
    return depth[1:]
