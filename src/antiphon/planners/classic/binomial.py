"""Broadcast and scatter along a binomial tree, in which every rank that has the data forwards it in each step.

Other planners build on these. A seat is a position in the option `order`, rotated so that the root is at seat 0.
"""

from __future__ import annotations

import numpy as np

from antiphon.core.collective import Collective
from antiphon.core.columns import concat_ranges
from antiphon.core.schedule import Schedule
from antiphon.planners.radix.mixed import edges, powers_above
from antiphon.planners.shared.rows import Order, Seats, rows_to_schedule


def binomial_broadcast(collective: Collective, order: Order) -> Schedule:
    """Plan a broadcast from a single root, which sits at seat 0. P - 1 rows."""
    seats = Seats.in_order(collective, order, collective.roots[0])
    step, parent, child, _ = edges(len(seats), powers_above(len(seats), k=2))
    return rows_to_schedule(collective, seats, step, np.zeros_like(step), parent, child)


def binomial_scatter(collective: Collective, order: Order) -> Schedule:
    """Plan a scatter from a single root: every rank gets the blocks of its whole subtree. O(P log P) rows.

    The subtree of a seat is `size` consecutive seats, itself the first.
    """
    seats = Seats.in_order(collective, order, collective.roots[0])
    step, parent, child, size = edges(len(seats), powers_above(len(seats), k=2))
    block = seats.member[concat_ranges(child, size)]
    return rows_to_schedule(
        collective, seats, np.repeat(step, size), block, np.repeat(parent, size), np.repeat(child, size)
    )
