"""The binomial tree over seats: in every step whoever has the data passes it on."""

from __future__ import annotations

import numpy as np

from antiphon.core.collective import Collective
from antiphon.core.columns import Longs, ranges
from antiphon.core.schedule import Schedule
from antiphon.planners.shared.rows import Order, Seats, lay


def edges(ranks: int) -> tuple[Longs, Longs, Longs, Longs]:
    """(step, parent, child, how many are in the child's subtree) of the tree over seats 0..ranks-1.

    The farthest partner comes first: a subtree is a run of neighbours, and short hops are the many ones.
    """
    depth = (ranks - 1).bit_length()
    step = np.repeat(np.arange(depth), 1 << np.arange(depth))
    reach = 1 << (depth - 1 - step)
    parent = ranges(np.zeros(depth, np.int64), 1 << np.arange(depth)) * reach * 2
    child = parent + reach
    there = child < ranks
    step, parent, child, reach = step[there], parent[there], child[there], reach[there]
    return step, parent, child, np.minimum(reach, ranks - child)


def broadcast(collective: Collective, order: Order) -> Schedule:
    """From a single root, which sits at seat 0. P - 1 rows."""
    seats = Seats.of(collective, order, collective.roots[0])
    step, parent, child, _ = edges(len(seats))
    return lay(collective, seats, step, np.zeros_like(step), parent, child)


def scatter(collective: Collective, order: Order) -> Schedule:
    """From a single root: every rank gets the parts of its whole subtree. O(P log P) rows."""
    seats = Seats.of(collective, order, collective.roots[0])
    step, parent, child, size = edges(len(seats))
    block = seats.member[ranges(child, size)]
    return lay(collective, seats, np.repeat(step, size), block, np.repeat(parent, size), np.repeat(child, size))
