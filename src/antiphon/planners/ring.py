"""The ring: every rank sends to the next one, around a cycle (what NCCL does; Blink, section 2).

On P ranks, per direction: allgather and reducescatter take P-1 steps, allreduce both one after the other,
broadcast a chain of P-1 hops in pieces. Over a cycle of links of bandwidth b each way, with both directions in
use, allgather takes (P-1)/P * nbytes / 2b at zero latency: optimal where the ring is all the links there are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from antiphon.core.collective import Collective
from antiphon.core.columns import Ints, narrow
from antiphon.core.routes import NO_ROUTES, Routes, shortest_routes
from antiphon.core.schedule import COPY, REDUCE, Schedule, cut
from antiphon.core.topology import Topology
from antiphon.core.transform import compose, merge, split
from antiphon.errors import Invalid, Unsupported
from antiphon.planners._cycles import link_table, widest_cycle

MOST_TRANSFERS = 2**28
BROADCAST_PIECES = 32
MOST_PARTS = 8


@dataclass(frozen=True)
class Circle:
    """Members in the order of the ring; hop i goes from order[i] to order[i+1] by route[i] of the table."""

    order: Ints
    route: Ints
    table: Routes


def ring(
    topology: Topology,
    collective: Collective,
    *,
    nbytes: int | None = None,
    profile: Any = None,
    budget: float | None = None,
    seed: int = 0,
    order: str | int | Sequence[int] | None = None,
    directions: int = 2,
    pieces: int | None = None,
) -> Iterator[Schedule]:
    """Yields one schedule. O(P^2) transfers.

    `order`: the ring to use, e.g. "0,3,2,1"; found by itself otherwise: the cycle of direct links whose
    narrowest link is widest, else member order over routes through switches. `directions`: 2 = half the data
    each way round. `pieces`: pipelining depth, by default 32 for broadcast and 1 otherwise.
    """
    if directions not in (1, 2):
        raise Invalid(f"option directions: a ring goes round in 1 or 2 directions, got {directions}")
    rows = len(collective.members) ** 2 * directions * (2 if collective.kind == "allreduce" else 1)
    if rows > MOST_TRANSFERS:
        raise Unsupported(
            f"a ring of {len(collective.members)} ranks needs about {rows} transfers; at most {MOST_TRANSFERS}"
        )
    cycle = _given(order, collective) if order is not None else _found(topology, collective)
    ways = [cycle] if directions == 1 else [cycle, [cycle[0], *cycle[:0:-1]]]
    circles = [_circle(topology, way) for way in ways if _goes(topology, way)]
    if not circles:
        raise Unsupported(
            f"planner ring: on topology {topology.name} some rank of the circle {','.join(map(str, cycle))} has no "
            "link or path through switches to the next; give another by --option order=..."
        )
    parts = _width(topology, circles)
    made = split(merge([_PLAN[collective.kind](collective, circle) for circle in circles]), parts)
    depth = pieces if pieces is not None else BROADCAST_PIECES if collective.kind == "broadcast" else 1
    options = {"order": ",".join(map(str, cycle)), "directions": len(circles), "pieces": depth}
    yield replace(made, pieces=depth, provenance={"planner": "ring", "options": options})


def _given(order: str | int | Sequence[int], collective: Collective) -> list[int]:
    try:
        cycle = [int(rank) for rank in (str(order).split(",") if isinstance(order, str | int) else order)]
    except ValueError:
        raise Invalid(f"option order: expected ranks such as 0,3,2,1, got {order!r}") from None
    if sorted(cycle) != list(collective.members):
        raise Invalid("option order: must name every rank that takes part exactly once")
    return cycle


def _found(topology: Topology, collective: Collective) -> list[int]:
    cycle, complete = widest_cycle(topology, collective.members)
    if cycle:
        return cycle
    if not topology.switches:
        how = "has no cycle of direct links" if complete else "shows no cycle of direct links within the search limit"
        raise Unsupported(
            f"planner ring: topology {topology.name} {how} through all ranks that take part; give one by "
            "--option order=..., or use a machine with switches"
        )
    return list(collective.members)


def _goes(topology: Topology, cycle: list[int]) -> bool:
    """Whether every hop has a link or a path through switches."""
    try:
        _circle(topology, cycle)
    except Invalid:
        return False
    return True


def _circle(topology: Topology, cycle: list[int]) -> Circle:
    """The hops of a cycle: unambiguous direct links need no route, all else names one."""
    following = [*cycle[1:], cycle[0]]
    pairs = list(zip(cycle, following, strict=True))
    links = link_table(topology, tuple(cycle))
    keys = topology.link_src.astype(np.int64) * topology.nodes + topology.link_dst
    number = dict(zip(*np.unique(keys, return_counts=True), strict=True))
    if all(pair in links and number[pair[0] * topology.nodes + pair[1]] == 1 for pair in pairs):
        return Circle(np.array(cycle, np.int32), np.full(len(cycle), -1, np.int32), NO_ROUTES)
    table, route = shortest_routes(topology, cycle, following)
    return Circle(np.array(cycle, np.int32), route, table)


def _width(topology: Topology, circles: list[Circle]) -> int:
    """How many chunks a hop can carry in one round: the unit links of the narrowest hop, where they are few."""
    widths = []
    for circle in circles:
        used = circle.table.links
        if not len(used):
            links = link_table(topology, tuple(circle.order.tolist()))
            pairs = zip(circle.order.tolist(), np.roll(circle.order, -1).tolist(), strict=True)
            used = np.array([links[pair] for pair in pairs], np.int32)
        widths.append(min(topology.bandwidth(link) for link in used.tolist()) / topology.unit)
    width = min(widths)
    return int(width) if width.denominator == 1 and width <= MOST_PARTS else 1


def _hops(collective: Collective, circle: Circle, behind: int, op: int) -> Schedule:
    """P-1 steps; at step s position j passes on the chunk of position j - s - behind."""
    size = len(circle.order)
    step, here = np.divmod(np.arange((size - 1) * size), size)
    member = np.searchsorted(np.array(collective.members), circle.order)  # position -> its block
    return Schedule(
        collective, cut(collective, 1),
        step, member[(here - step - behind) % size], circle.order[here], circle.order[(here + 1) % size],
        np.full(len(step), op, np.uint8), route=circle.route[here], routes=circle.table,
    )  # fmt: skip


def _allgather(collective: Collective, circle: Circle) -> Schedule:
    return _hops(collective, circle, 0, COPY)


def _reducescatter(collective: Collective, circle: Circle) -> Schedule:
    return _hops(collective, circle, 1, REDUCE)


def _allreduce(collective: Collective, circle: Circle) -> Schedule:
    def part(kind: str) -> Collective:
        return Collective(kind, collective.ranks, collective.members)

    made = compose(_reducescatter(part("reducescatter"), circle), _allgather(part("allgather"), circle))
    return replace(made, collective=collective)  # its one block may have any weight


def _broadcast(collective: Collective, circle: Circle) -> Schedule:
    """A chain from every root around the ring."""
    size = len(circle.order)
    step = np.tile(np.arange(size - 1), len(collective.roots))
    block = np.repeat(np.arange(len(collective.roots)), size - 1)
    start = np.array([int(np.flatnonzero(circle.order == root)[0]) for root in collective.roots])
    here = (start[block] + step) % size
    return Schedule(
        collective, cut(collective, 1), narrow(step), narrow(block), circle.order[here],
        circle.order[(here + 1) % size], np.full(len(step), COPY, np.uint8), route=circle.route[here],
        routes=circle.table,
    )  # fmt: skip


_PLAN = {
    "allgather": _allgather,
    "reducescatter": _reducescatter,
    "allreduce": _allreduce,
    "broadcast": _broadcast,
}
