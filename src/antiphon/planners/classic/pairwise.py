"""Pairwise exchange: in step s every rank exchanges with the partner s away, and sends exactly what that one needs.

P - 1 steps, one partner at a time, and no byte more than needed: for large alltoalls (Thakur, Rabenseifner and Gropp
2005). With P a power of two the partner is i xor s, so that pairs exchange in both directions; otherwise a rank sends
to i + s and receives from i - s. Either way each step is a permutation, without contention at the ends.

Example: P = 4. Step 1: 0-1 and 2-3 exchange; step 2: 0-2 and 1-3; step 3: 0-3 and 1-2.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from antiphon.core.collective import Collective
from antiphon.core.request import Request
from antiphon.core.schedule import Schedule
from antiphon.planners.shared.rows import (
    Order,
    Seats,
    finish_schedule,
    plan_backwards,
    plan_in_halves,
    refuse_too_many_transfers,
    rows_to_schedule,
)


def pairwise(request: Request, *, order: Order = None) -> Iterator[Schedule]:
    """Yield one schedule of O(P^2) transfers. `order`: the order of the members, from which partners are counted."""
    collective = request.collective
    ranks = len(collective.members)
    refuse_too_many_transfers("pairwise", request, ranks * (ranks - 1) * (2 if collective.kind == "allreduce" else 1))
    yield finish_schedule(_plan_collective(collective, order), request, "pairwise", {"order": order})


def _plan_collective(collective: Collective, order: Order) -> Schedule:
    """Return the schedule; a reducescatter is the allgather run backwards, an allreduce both one after the other."""
    if collective.kind == "reducescatter":
        return plan_backwards(collective, lambda dual: _plan_collective(dual, order))
    if collective.kind == "allreduce":
        return plan_in_halves(collective, lambda half: _plan_collective(half, order))
    seats = Seats.in_order(collective, order)
    size = len(seats)
    # every pair of step and sender, step by step
    step, src = (x.ravel() for x in np.meshgrid(np.arange(1, size), np.arange(size), indexing="ij"))
    dst = src ^ step if size & (size - 1) == 0 else (src + step) % size
    is_allgather = collective.kind == "allgather"
    # an allgather's block is the sender's; an alltoall's is numbered by receiver, then sender, among the members
    block = seats.member[src] if is_allgather else seats.member[dst] * size + seats.member[src]
    return rows_to_schedule(collective, seats, step - 1, block, src, dst)
