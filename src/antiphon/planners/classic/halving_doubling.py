"""Recursive halving, then recursive doubling: partners exchange halves, quarters, ..., and back again (Rabenseifner).

Reducescatter by halving: in each of log2 P steps a rank exchanges half of its remaining part with a partner and keeps
the other half. Allgather by doubling is the reverse. Allreduce on P = 2^k ranks takes 2k steps, and every rank sends 2
(P-1)/P nbytes, which is optimal. For other P, also for a reducescatter or an allgather alone, let 2^k be the largest
power below it: P - 2^k ranks send their data to a neighbour before (they fold) and receive the result after: for an
allreduce two more steps and up to 2 nbytes more (GenTree, section 2.1, there RHD; Thakur, Rabenseifner and Gropp 2005).

Example: P = 4, near first: 0-1 and 2-3 exchange halves, 0-2 and 1-3 exchange quarters; then quarters, then halves back.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated

import numpy as np

from antiphon.core.collective import Collective
from antiphon.core.request import Request
from antiphon.core.schedule import Schedule
from antiphon.core.transform import compose, invert
from antiphon.options import Option
from antiphon.planners.classic.binomial import binomial_scatter
from antiphon.planners.radix.mixed import allgather_rounds, core_of, digit_reversal, doubling_radices
from antiphon.planners.shared.rows import (
    Order,
    Pieces,
    Seats,
    collective_among,
    finish_schedule,
    fold_extra_ranks,
    per_root,
    plan_backwards,
    refuse_too_many_transfers,
)

Large = Annotated[
    str,
    Option(
        "near: exchange the large messages with neighbours, for machines with a hierarchy; far: as in the textbook",
        choices=("near", "far"),
    ),
]


def halving_doubling(
    request: Request, *, order: Order = None, large: Large = "near", pieces: Pieces = 1
) -> Iterator[Schedule]:
    """Yield one schedule of O(P^2) transfers.

    Every message of an allreduce is contiguous in memory with both values of `large`. Messages of allgather and
    reducescatter are contiguous with "far" only, since there the position of every rank's part is prescribed. Broadcast
    is a binomial scatter and an allgather; reduce is the same backwards.
    """
    collective = request.collective
    ranks = len(collective.members)
    refuse_too_many_transfers("halving-doubling", request, 2 * ranks * ranks * max(len(collective.roots), 1))
    options = {"order": order, "large": large, "pieces": pieces}
    yield finish_schedule(_plan_collective(collective, order, large), request, "halving-doubling", options, pieces)


def _plan_collective(collective: Collective, order: Order, large: str) -> Schedule:
    """Return the schedule; `large`: the option."""
    kind = collective.kind
    if kind == "allgather":
        # messages grow from round to round, so the farthest partners come first if the large ones shall stay near
        return allgather_rounds(collective, order, doubling_radices(len(collective.members)), far=large == "near")
    if kind in ("reducescatter", "reduce"):
        return plan_backwards(collective, lambda dual: _plan_collective(dual, order, large))
    if kind == "broadcast":
        return per_root(collective, lambda single: _plan_broadcast(single, order, large))
    return _plan_allreduce(collective, order, large)


def _plan_broadcast(collective: Collective, order: Order, large: str) -> Schedule:
    """Return a binomial scatter from the root, then an allgather."""
    first = binomial_scatter(collective_among(collective, "scatter", collective.roots[0]), order)
    return compose(first, _plan_collective(collective_among(collective, "allgather"), order, large))


def _plan_allreduce(collective: Collective, order: Order, large: str) -> Schedule:
    """Return the allreduce; ranks beyond the largest power of 2 fold."""
    seats = Seats.in_order(collective, order)
    radices = doubling_radices(len(seats))
    # radices.size: their product, 2^k. The 2^k seats that take part, and the extra ones with their partners
    core = core_of(len(seats), radices.size)
    core_ranks = seats.rank[core.seat]
    gather = Collective("allgather", collective.ranks, tuple(core_ranks.tolist()))
    allgather = _plan_collective(gather, core_ranks.tolist(), large)
    allreduce = compose(invert(allgather), allgather)
    # which rank owns which part in between is free: choose it such that messages are contiguous
    ranks = len(core_ranks)
    # by chunk its new part; so far, chunk i is the allgather's block of the i-th lowest rank that takes part
    part_of = np.empty(ranks, np.int32)
    part_of[np.argsort(np.argsort(core_ranks))] = digit_reversal(radices) if large == "near" else np.arange(ranks)
    contiguous = replace(allreduce, chunk=part_of[allreduce.chunk])
    return fold_extra_ranks(collective, contiguous, seats.rank[core.extra], seats.rank[core.partner])
