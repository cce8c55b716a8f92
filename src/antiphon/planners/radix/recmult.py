"""Recursive multiplying: in every round k ranks exchange all data that they have, at distances 1, k, k^2, ...

See section III.B of the paper on parameterized collectives (docs/planners/radix.md). With k = 2 it is recursive
doubling.

Number the ranks in base k. In round i all ranks that differ only in digit i exchange, so after it each knows the data
of all ranks that agree with it in the later digits. That takes log_k P rounds with k - 1 messages per rank each: fewer
rounds than doubling, at the price of more simultaneous messages, which NICs with several ports handle well.

If P is no power of k, it is written as a product of radices up to k (mixed.py), or some ranks fold, as in MPICH. Those
beyond the largest power of k give their data to a partner first and get the result last.

Example: P = 9, k = 3: round 0 among {0,1,2}, {3,4,5}, {6,7,8}; round 1 among {0,3,6}, {1,4,7}, {2,5,8}.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from antiphon.core.collective import Collective
from antiphon.core.request import Request
from antiphon.core.schedule import Schedule
from antiphon.planners.radix.mixed import (
    Fold,
    LargeAllreduce,
    Radices,
    Radix,
    RoundRadices,
    RoundSize,
    allgather_rounds,
    allreduce_in_parts,
    allreduce_whole,
    choose_radices,
    edges,
    powers_above,
    resolve_k,
    rows_needed,
)
from antiphon.planners.shared.rows import (
    Order,
    Pieces,
    Seats,
    finish_schedule,
    per_root,
    plan_backwards,
    refuse_too_many_transfers,
    rows_to_schedule,
)


def recmult(
    request: Request,
    *,
    k: RoundSize = None,
    radices: RoundRadices = None,
    fold: Fold = False,
    large: LargeAllreduce = False,
    order: Order = None,
    pieces: Pieces = 1,
) -> Iterator[Schedule]:
    """Yield one schedule: O(P^2) transfers; broadcast and reduce O(P), allreduce of whole vectors O(P k log_k P)."""
    collective = request.collective
    resolved = choose_radices(len(collective.members), k, radices, fold)
    is_tree = collective.kind in ("broadcast", "reduce")
    rows = len(collective.roots) * resolved.ranks if is_tree else rows_needed(collective.kind, resolved, large)
    refuse_too_many_transfers("recmult", request, rows)
    levels = _tree_levels(resolved, k, radices) if is_tree else resolved
    schedule = _plan_collective(collective, order, levels, large)
    options = {
        "k": None if radices is not None else resolve_k(k, resolved.ranks), "radices": radices and str(resolved),
        "fold": fold or None, "large": large or None, "order": order, "pieces": pieces,
    }  # fmt: skip
    facts = {"radices": str(levels), "rounds": schedule.steps}
    yield finish_schedule(schedule, request, "recmult", options, pieces, facts)


def _plan_collective(collective: Collective, order: Order, radices: Radices, large: bool) -> Schedule:
    """Return the schedule, nearest partners first; `large`: an allreduce as a reducescatter and an allgather."""
    kind = collective.kind
    if kind == "allgather":
        return allgather_rounds(collective, order, radices, far=False)
    if kind == "broadcast":
        return per_root(collective, lambda single: _plan_tree(single, order, radices.rounds))
    if kind in ("reducescatter", "reduce"):
        return plan_backwards(collective, lambda dual: _plan_collective(dual, order, radices, large))
    return (allreduce_in_parts if large else allreduce_whole)(collective, order, radices, far=False)


def _tree_levels(resolved: Radices, k: int | None, radices: Radix | None) -> Radices:
    """Return the levels of a tree, the nearest first: it needs no folding, as the outermost level need not be full."""
    if radices is not None:
        outermost = -(-resolved.ranks // resolved.size)  # size: the product of the radices
        return Radices((*resolved.rounds, outermost) if outermost > 1 else resolved.rounds, resolved.ranks)
    max_radix = resolve_k(k, resolved.ranks)
    return Radices(powers_above(resolved.ranks, max_radix), resolved.ranks)


def _plan_tree(collective: Collective, order: Order, levels: tuple[int, ...]) -> Schedule:
    """Return the k-nomial tree from a single root, which sits at seat 0. P - 1 rows."""
    seats = Seats.in_order(collective, order, collective.roots[0])
    step, parent, child, _ = edges(len(seats), levels)  # the last: sizes of subtrees
    return rows_to_schedule(collective, seats, step, chunk=np.zeros_like(step), src=parent, dst=child)
