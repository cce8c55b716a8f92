"""Recursive doubling: partners at distance 1, 2, 4, ... exchange all they have; log2 P steps.

If P is no power of two, P - 2^k ranks fold into a neighbour before and receive the result after: two more steps
(Thakur, Rabenseifner and Gropp 2005; SCCL, section 3.1). As radix-2 recursive multiplying: radix/mixed.py.

Example: P = 4 allgather: 0-1 and 2-3 exchange a block; then 0-2 and 1-3 exchange two blocks.
"""

from __future__ import annotations

from collections.abc import Iterator

from antiphon.core.request import Request
from antiphon.core.schedule import Schedule
from antiphon.planners.radix.mixed import allgather_rounds, allreduce_whole, doubling_radices
from antiphon.planners.shared.rows import Order, finish_schedule, refuse_too_many_transfers


def recursive_doubling(request: Request, *, order: Order = None) -> Iterator[Schedule]:
    """Yield one schedule. Allreduce: O(P log P) transfers, log2 P times nbytes sent per rank; allgather: O(P^2)."""
    collective = request.collective
    ranks = len(collective.members)
    rows = ranks * ranks if collective.kind == "allgather" else ranks * (ranks.bit_length() + 2)
    refuse_too_many_transfers("recursive-doubling", request, rows)
    make = allgather_rounds if collective.kind == "allgather" else allreduce_whole
    schedule = make(collective, order, doubling_radices(ranks), far=False)  # partners at distance 1 first
    yield finish_schedule(schedule, request, "recursive-doubling", {"order": order})
