"""Recursive doubling: partners at distance 1, 2, 4, ... exchange all they have.

log2 P steps. With P no power of two, P - 2^k ranks fold into a neighbour before and are told after: two more steps
(Thakur, Rabenseifner and Gropp 2005; SCCL, section 3.1).
"""

from __future__ import annotations

from collections.abc import Iterator

from antiphon.core.request import Request
from antiphon.core.schedule import Schedule
from antiphon.planners.radix.mixed import allgather, doubling, whole_vectors
from antiphon.planners.shared.rows import Order, finish_schedule, refuse_more_than_fits


def recursive_doubling(request: Request, *, order: Order = None) -> Iterator[Schedule]:
    """Yields one schedule. Allreduce: O(P log P) transfers, log2 P times nbytes sent per rank; allgather: O(P^2)."""
    topology, collective = request.topology, request.collective
    ranks = len(collective.members)
    rows = ranks * ranks if collective.kind == "allgather" else ranks * (ranks.bit_length() + 2)
    refuse_more_than_fits("recursive-doubling", topology, collective, rows)
    make = allgather if collective.kind == "allgather" else whole_vectors
    schedule = make(collective, order, doubling(ranks), False)
    yield finish_schedule(schedule, topology, collective, "recursive-doubling", {"order": order})
