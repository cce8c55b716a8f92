"""Level by level: reducescatter within groups, then among the groups, and the allgathers backwards.

`hierarchical-ring` goes around a ring in every level, `hierarchical-ps` lets everyone in a group serve a part
(GenTree, section 3.3 and Figure 5: m x n hierarchical co-located PS). With fan-ins f1 x f2 x ... an allreduce takes
2 * sum(f - 1) steps with rings, 2 * levels with servers; either way every rank sends 2 (P-1)/P nbytes, most of it to
the nearest ranks: (f1 - 1)/f1 nbytes each way within the innermost groups. Rings among groups that differ in size
are in `_groups`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from antiphon.core.collective import Collective
from antiphon.core.columns import Longs
from antiphon.core.request import Request
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.core.transform import compose, merge
from antiphon.errors import Invalid, Unsupported
from antiphon.planners.shared.digits import BACK, DIRECT, RING, factorisations, gather_digits, given_fans
from antiphon.planners.shared.groups import Groups, given_groups, goes, placed_groups, plan_groups
from antiphon.planners.shared.places import nested_groups
from antiphon.planners.shared.routing import joined
from antiphon.planners.shared.rows import (
    Order,
    Seats,
    backwards,
    finish,
    given_order,
    lay,
    part,
    per_root,
    refuse_more_than_fits,
)

Fans = str | int | Sequence[int]


def hierarchical_ps(
    request: Request, *, fanins: Fans = "all", order: Order = None, pieces: int = 1
) -> Iterator[Schedule]:
    """Yields one schedule for fan-ins such as "6x4" (the first level first, among neighbours), by default one for every
    factorisation of P that the links allow (64 at most, fewest levels first; the first is plain co-located PS).
    O(P^2) transfers each.
    """
    topology, collective = request.topology, request.collective
    ranks = len(collective.members)
    refuse_more_than_fits("hierarchical-ps", collective, 2 * ranks * ranks)
    candidates = factorisations(ranks) if fanins == "all" else [given_fans(fanins, ranks)]
    if not topology.switches and fanins == "all":  # which of them the direct links allow
        seating = given_order(order, collective)
        candidates = [fans for fans in candidates if _goes(topology, seating, fans, DIRECT)] or candidates[:1]
    for fans in candidates:
        options = {"fanins": "x".join(map(str, fans)), "order": order, "pieces": pieces}
        made = _plan(collective, order, fans, DIRECT)
        yield finish(made, topology, collective, "hierarchical-ps", options, pieces)


def hierarchical_ring(
    request: Request, *, fanins: Fans | None = None, order: Order = None, directions: int = 2, pieces: int | None = None
) -> Iterator[Schedule]:
    """Yields one schedule of O(P^2) transfers; broadcast and reduce, chains among groups and within them: O(P).

    `fanins`: such as "8x4", rings of 8 within rings of 4, or "3+4", groups of 3 and 4 ranks; by default the groups that
    the places of the ranks show (boxes, racks), else the squarest factorisation that the links allow.
    `directions`: 2 = half the data each way round. `pieces`: pipelining depth, by default 32 for broadcast and
    reduce, else 1.
    """
    topology, collective = request.topology, request.collective
    if directions not in (1, 2):
        raise Invalid(f"option directions: a ring goes round in 1 or 2 directions, got {directions}")
    ranks = len(collective.members)
    refuse_more_than_fits("hierarchical-ring", collective, 2 * ranks * ranks * directions)
    fans, seating = _levels(topology, collective, fanins, order)
    chain = collective.kind in ("broadcast", "reduce")
    depth = pieces if pieces is not None else 32 if chain else 1
    named = ",".join(map(str, seating))
    told = str(fans) if isinstance(fans, Groups) else "x".join(map(str, fans))
    options = {"fanins": told, "order": named, "directions": directions, "pieces": depth}
    if isinstance(fans, Groups):
        made = merge([plan_groups(collective, seating, fans, way) for way in (1, -1)[:directions]])
    else:
        made = merge([_plan(collective, seating, fans, way) for way in (RING, BACK)[:directions]])
    yield finish(made, topology, collective, "hierarchical-ring", options, depth)


def _plan(collective: Collective, order: Order, fans: Sequence[int], way: str) -> Schedule:
    kind = collective.kind
    if kind == "allgather":
        seats = Seats.of(collective, order)
        moves = gather_digits(fans, range(len(fans))[::-1], way)  # far away first, while there is little to send
        return lay(collective, seats, moves.step, seats.member[moves.origin], moves.src, moves.dst)
    if kind == "broadcast":
        return per_root(collective, lambda one: _chains(one, order, fans, way))
    if kind in ("reducescatter", "reduce"):
        return backwards(collective, lambda one: _plan(one, order, fans, way))
    parts = (part(collective, half) for half in ("reducescatter", "allgather"))
    first, second = (_plan(half, order, fans, way) for half in parts)
    return compose(first, second)


def _chains(collective: Collective, order: Order, fans: Sequence[int], way: str) -> Schedule:
    """A chain through the outermost level from the root, from each of these through the next level, and so on."""
    seats = Seats.of(collective, order)
    have = np.flatnonzero(seats.rank == collective.roots[0])
    when = np.zeros(1, np.int64)  # the step from which each can send
    turn = -1 if way == BACK else 1
    rows: list[tuple[Longs, Longs, Longs]] = []
    for level in range(len(fans))[::-1]:
        f, t = fans[level], int(np.prod(fans[:level], dtype=np.int64))
        digit = have // t % f
        hop = np.arange(f)[:, None]
        seat = have + ((digit + turn * hop) % f - digit) * t
        rows.append(((when + hop[:-1]).ravel(), seat[:-1].ravel(), seat[1:].ravel()))
        have, when = seat.ravel(), (when + hop).ravel()
    step, src, dst = (np.concatenate(column) for column in zip(*rows, strict=True))
    return lay(collective, seats, step, np.zeros_like(step), src, dst)


def _levels(
    topology: Topology, collective: Collective, fanins: Fans | None, order: Order
) -> tuple[list[int] | Groups, list[int]]:
    """The fan-ins, innermost first, or groups of unequal size; and the ranks in an order in which groups are runs."""
    ranks = len(collective.members)
    if isinstance(fanins, str) and set(fanins) & set("+*()"):
        return given_groups(fanins, ranks), given_order(order, collective)
    if fanins is not None:
        return given_fans(fanins, ranks), given_order(order, collective)
    if order is None:
        groups, seating = placed_groups(topology, collective.members)
        if not groups.even() and goes(topology, seating, groups):
            return groups, seating
        fans, seating = nested_groups(topology, collective.members)
        if len(fans) > 1 and _goes(topology, seating, fans):
            return fans, seating
    seating = given_order(order, collective)
    candidates = factorisations(ranks)
    candidates.sort(key=lambda fans: (len(fans) == 1, len(fans), max(fans), [-f for f in fans]))
    for fans in candidates:
        if _goes(topology, seating, fans):
            return fans, seating
    raise Unsupported(
        f"planner hierarchical-ring: no factorisation of the {ranks} ranks makes rings of links or paths through "
        f"switches on {topology.name}; use planner ring, multi-ring or relay, or give --option fanins=... (4x2, or 3+4 "
        "for unequal groups) and order=..."
    )


def _goes(topology: Topology, seating: Sequence[int], fans: Sequence[int], way: str = RING) -> bool:
    """Whether every hop of every ring both ways, or all within every group, has a link or a path through switches."""
    rank, here = np.array(seating, np.int32), np.arange(len(seating))
    src, dst = [], []
    stride = 1
    for f in fans:
        digit = here // stride % f
        away = np.arange(1, f)[:, None] if way == DIRECT else np.array([[1], [f - 1]])
        to = here + ((digit + away) % f - digit) * stride
        src.append(np.broadcast_to(rank, to.shape).ravel())
        dst.append(rank[to].ravel())
        stride *= f
    return joined(topology, np.concatenate(src), np.concatenate(dst))
