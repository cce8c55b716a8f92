"""Recursive doubling: partners at distance 1, 2, 4, ... exchange all they have.

log2 P steps. With P no power of two, P - 2^k ranks fold into a neighbour before and are told after: two more steps
(Thakur, Rabenseifner and Gropp 2005; SCCL, section 3.1).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from antiphon.core.collective import Collective
from antiphon.core.request import Request
from antiphon.core.schedule import REDUCE, Schedule
from antiphon.planners.classic.hypercube import allgather, core_of
from antiphon.planners.shared.rows import Order, Seats, finish, folded, lay, refuse_more_than_fits


def recursive_doubling(request: Request, *, order: Order = None) -> Iterator[Schedule]:
    """Yields one schedule. Allreduce: O(P log P) transfers, log2 P times nbytes sent per rank; allgather: O(P^2)."""
    topology, collective = request.topology, request.collective
    ranks = len(collective.members)
    rows = ranks * ranks if collective.kind == "allgather" else ranks * (ranks.bit_length() + 2)
    refuse_more_than_fits("recursive-doubling", collective, rows)
    made = allgather(collective, order) if collective.kind == "allgather" else _allreduce(collective, order)
    yield finish(made, topology, collective, "recursive-doubling", {"order": order})


def _allreduce(collective: Collective, order: Order) -> Schedule:
    seats = Seats.of(collective, order)
    core = core_of(len(seats))
    here = np.arange(len(core.seat))
    bits = range(len(core.seat).bit_length() - 1)
    src = np.concatenate([here for _ in bits] or [here[:0]])
    dst = np.concatenate([here ^ (1 << bit) for bit in bits] or [here[:0]])
    step = np.repeat(np.arange(len(bits)), len(here))
    made = lay(collective, seats, step, np.zeros_like(step), core.seat[src], core.seat[dst], REDUCE)
    return folded(collective, made, seats.rank[core.extra], seats.rank[core.partner])
