"""Two binary trees, each for half of the data: every rank is an inner node of at most one, so that all ranks send.

In a pipelined binary tree inner nodes send everything twice and leaves send nothing. With a second tree in which leaves
and inner nodes change places, and half of the data for each, every rank sends at most nbytes and receives nbytes
(Sanders, Speck and Träff 2009, "Two-tree algorithms for full bandwidth broadcast, reduction and scan"; NCCL uses them
for allreduce since 2.4). In p pieces a broadcast takes ceil(log2 P) + p - 1 steps; allreduce 2 ceil(log2 P) + p - 1,
and every rank sends at most 2 nbytes.

Example: 4 ranks, root 0: tree one 0 > 2 > {1, 3}, tree two 0 > 3 > {2, 1}. Ranks 2 and 3 are inner nodes once each.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from antiphon.core.collective import Collective
from antiphon.core.columns import Longs
from antiphon.core.request import Request
from antiphon.core.schedule import Schedule
from antiphon.planners.shared.rows import (
    Order,
    Pieces,
    Seats,
    finish_schedule,
    per_root,
    plan_backwards,
    plan_in_halves,
    refuse_too_many_transfers,
    rows_to_schedule,
)

PIECES = 16  # default number of slices


def double_binary_tree(request: Request, *, order: Order = None, pieces: Pieces = PIECES) -> Iterator[Schedule]:
    """Yield one schedule of O(P) transfers per root."""
    collective = request.collective
    roots = max(len(collective.roots), 1)
    # per root and rank: two trees, which an allreduce uses twice
    refuse_too_many_transfers("double-binary-tree", request, 4 * roots * len(collective.members))
    options = {"order": order, "pieces": pieces}
    yield finish_schedule(_plan_collective(collective, order), request, "double-binary-tree", options, pieces)


def _plan_collective(collective: Collective, order: Order) -> Schedule:
    """Return a broadcast, a reduce, or both for an allreduce."""
    if collective.kind == "broadcast":
        return per_root(collective, lambda single: _plan_broadcast(single, order))
    if collective.kind == "reduce":
        return plan_backwards(collective, lambda dual: _plan_collective(dual, order))
    root = int(Seats.in_order(collective, order).rank[0])
    return plan_in_halves(collective, lambda half: _plan_collective(half, order), ("reduce", "broadcast"), root)


def _plan_broadcast(collective: Collective, order: Order) -> Schedule:
    """Plan a broadcast; the root, seat 0, gives each tree its half.

    Among four: half 0 by rank 2 to ranks 1 and 3, half 1 by rank 3 to ranks 2 and 1:

    >>> schedule = _plan_broadcast(Collective("broadcast", 4, roots=(0,)), None)
    >>> rows = list(zip(schedule.step.tolist(), schedule.chunk.tolist(), schedule.src.tolist(), schedule.dst.tolist()))
    >>> rows[:3], rows[3:]
    ([(1, 0, 2, 1), (0, 0, 0, 2), (1, 0, 2, 3)], [(1, 1, 3, 2), (0, 1, 0, 3), (1, 1, 3, 1)])
    """
    seats = Seats.in_order(collective, order, collective.roots[0])
    last_seat = len(seats) - 1
    seat = np.arange(1, last_seat + 1)
    parent = _tree_parents(last_seat)
    # tree 2 is the mirror image of tree 1 (P odd) or tree 1 rotated by one (P even): leaves become inner nodes
    image = last_seat + 1 - seat if last_seat % 2 == 0 else seat % last_seat + 1
    seat_in_tree_2 = np.concatenate([[0], image])  # node of tree 1 -> seat
    depth = _tree_depths(parent)
    step = np.concatenate([depth, depth]) - 1
    src, dst = np.concatenate([parent, seat_in_tree_2[parent]]), np.concatenate([seat, seat_in_tree_2[seat]])
    return rows_to_schedule(collective, seats, step, np.repeat([0, 1], last_seat), src, dst, chunks_per_block=2)


def _tree_parents(count: int) -> Longs:
    """Return the parents of nodes 1..count in an in-order binary tree: odd nodes are leaves, 0 is above the top."""
    node = np.arange(1, count + 1)
    # the lowest set bit is the node's height: its parent has the next higher bit, on one side or the other
    bit = node & -node
    parent = (node ^ bit) | (bit << 1)
    return np.where(parent <= count, parent, node ^ bit)


def _tree_depths(parent: Longs) -> Longs:
    """Return the depths of all nodes but the root 0, whose depth is 0."""
    parent_of = np.concatenate([[0], parent])
    depth = np.zeros(len(parent_of), np.int64)
    ancestor = np.arange(len(parent_of))
    while ancestor.any():
        depth += ancestor > 0
        ancestor = parent_of[ancestor]
    return depth[1:]
