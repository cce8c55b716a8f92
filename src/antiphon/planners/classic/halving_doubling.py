"""Recursive halving, then recursive doubling: partners exchange halves, quarters, ..., and back again.

Allreduce on P = 2^k ranks takes 2k steps, and every rank sends 2 (P-1)/P nbytes: as much as it must. Otherwise
P - 2^k ranks fold into a neighbour before and are told after: two more steps and up to 2 nbytes more (GenTree,
section 2.1, there RHD; Thakur, Rabenseifner and Gropp 2005).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from antiphon.core.collective import Collective
from antiphon.core.request import Request
from antiphon.core.schedule import Schedule
from antiphon.core.transform import compose, invert
from antiphon.errors import Invalid, quote
from antiphon.planners.classic.seats import scatter
from antiphon.planners.radix.mixed import allgather, core_of, doubling, reversal
from antiphon.planners.shared.rows import (
    Order,
    Seats,
    collective_among,
    finish_schedule,
    fold_extra_ranks,
    per_root,
    plan_backwards,
    refuse_more_than_fits,
)


def halving_doubling(
    request: Request, *, order: Order = None, large: str = "near", pieces: int = 1
) -> Iterator[Schedule]:
    """Yields one schedule of O(P^2) transfers.

    `large`: "near" exchanges the large parts with neighbours and the small ones far away, which suits machines with a
    hierarchy; "far" the other way round, as in the textbook. Messages of allreduce are runs of memory with both, those
    of allgather and reducescatter, where every rank's part has its place, with "far" only. Broadcast is a
    binomial scatter and an allgather, reduce the same backwards. `pieces`: pipelining depth.
    """
    topology, collective = request.topology, request.collective
    if large not in ("near", "far"):
        raise Invalid(f"option large: the large parts go near or far, got {quote(large)}")
    ranks = len(collective.members)
    refuse_more_than_fits("halving-doubling", topology, collective, 2 * ranks * ranks * max(len(collective.roots), 1))
    options = {"order": order, "large": large, "pieces": pieces}
    yield finish_schedule(_plan(collective, order, large), topology, collective, "halving-doubling", options, pieces)


def _plan(collective: Collective, order: Order, large: str) -> Schedule:
    kind = collective.kind
    if kind == "allgather":
        return allgather(collective, order, doubling(len(collective.members)), large == "near")
    if kind in ("reducescatter", "reduce"):
        return plan_backwards(collective, lambda single: _plan(single, order, large))
    if kind == "broadcast":
        return per_root(collective, lambda single: _broadcast(single, order, large))
    return _allreduce(collective, order, large)


def _broadcast(collective: Collective, order: Order, large: str) -> Schedule:
    first = scatter(collective_among(collective, "scatter", collective.roots[0]), order)
    return compose(first, _plan(collective_among(collective, "allgather"), order, large))


def _allreduce(collective: Collective, order: Order, large: str) -> Schedule:
    seats = Seats.in_order(collective, order)
    radices = doubling(len(seats))
    core = core_of(len(seats), radices.size)
    inner = seats.rank[core.seat]
    gathered = _plan(Collective("allgather", collective.ranks, tuple(inner.tolist())), inner.tolist(), large)
    exchange = compose(invert(gathered), gathered)
    place = np.empty(len(inner), np.int32)  # of each member's part: which rank owns which is free
    place[np.argsort(np.argsort(inner))] = reversal(radices) if large == "near" else np.arange(len(inner))
    runs = replace(exchange, chunk=place[exchange.chunk])
    return fold_extra_ranks(collective, runs, seats.rank[core.extra], seats.rank[core.partner])
