"""The binomial tree: in every step each rank that has the data sends it to one that has not, so their number doubles.

It takes ceil(log2 P) steps for broadcast, reduce, scatter and gather on any number P of ranks; allreduce, allgather and
reducescatter are made of two of these (Thakur, Rabenseifner and Gropp 2005). Optimal in steps, so good for small
messages; the root sends the whole message log2 P times, so bad for large ones.

Example: P = 8: 0 > 4; then 0 > 2, 4 > 6; then 0 > 1, 2 > 3, 4 > 5, 6 > 7.
"""

from __future__ import annotations

from collections.abc import Iterator

from antiphon.core.collective import Collective
from antiphon.core.request import Request
from antiphon.core.schedule import Schedule
from antiphon.planners.classic.binomial import binomial_broadcast, binomial_scatter
from antiphon.planners.shared.rows import (
    HALVES_AT_ROOT,
    Order,
    Pieces,
    Seats,
    finish_schedule,
    per_root,
    plan_backwards,
    plan_in_halves,
    refuse_too_many_transfers,
)


def binomial_tree(request: Request, *, order: Order = None, pieces: Pieces = 1) -> Iterator[Schedule]:
    """Yield one schedule: O(P) transfers per root for broadcast, reduce and allreduce, O(P log P) for scatter and
    gather, O(P^2) otherwise.

    Allreduce is a reduce to the first rank of `order` and a broadcast from it; allgather a gather and a broadcast;
    reducescatter a reduce and a scatter.
    """
    collective = request.collective
    ranks, roots = len(collective.members), max(len(collective.roots), 1)
    quadratic = collective.kind in ("allgather", "reducescatter")  # the whole tree carries one block per rank
    refuse_too_many_transfers("binomial-tree", request, roots * ranks * (ranks if quadratic else ranks.bit_length()))
    options = {"order": order, "pieces": pieces}
    yield finish_schedule(_plan_collective(collective, order), request, "binomial-tree", options, pieces)


def _plan_collective(collective: Collective, order: Order) -> Schedule:
    """Return the schedule of one collective, composed of two halves if it has no tree of its own."""
    kind = collective.kind
    if kind == "broadcast":
        return per_root(collective, lambda single: binomial_broadcast(single, order))
    if kind == "scatter":
        return per_root(collective, lambda single: binomial_scatter(single, order))
    if kind in ("reduce", "gather"):
        return plan_backwards(collective, lambda dual: _plan_collective(dual, order))
    root = int(Seats.in_order(collective, order).rank[0])
    return plan_in_halves(collective, lambda half: _plan_collective(half, order), HALVES_AT_ROOT[kind], root)
