"""The planner `ring`: every rank sends to the next one of a cycle, as NCCL does (Blink, section 2).

Input: any collective. Output: one schedule around one cycle of all members, in one direction or, by default, half of
the data each way. The cycle is the user's, or the widest cycle of direct links (cycles.py), or, over switches, the
ranks in order. circles.py plans the collective; routes are added at the end.

On P ranks, per direction: allgather and reducescatter take P - 1 steps, allreduce both one after the other, broadcast a
chain of P - 1 hops in pieces (slices). Over links of bandwidth b each way, with both directions in use, allgather takes
(P - 1) / P * nbytes / 2b at zero latency: optimal if the machine has no other links.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

import numpy as np

from antiphon.core.collective import Collective
from antiphon.core.request import Request
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.core.transform import split
from antiphon.errors import Unsupported
from antiphon.options import Option
from antiphon.planners.rings.circles import CHAIN_PIECES, CHAINS, plan_around, plan_both_ways, refuse_too_long
from antiphon.planners.rings.cycles import widest_cycle
from antiphon.planners.shared.reach import suggest_planners
from antiphon.planners.shared.routing import Paths, find_paths, narrowest_link
from antiphon.planners.shared.rows import ChainPieces, Directions, finish_schedule, parse_order

MOST_CHUNKS = 8  # a block is split into at most this many chunks


RingOrder = Annotated[
    str | int | Sequence[int] | None,
    Option(
        "the ring, such as 0,3,2,1 (default: the cycle of direct links whose narrowest link is widest, else by number "
        "over routes through switches)"
    ),
]


def ring(
    request: Request, *, order: RingOrder = None, directions: Directions = 2, pieces: ChainPieces = None
) -> Iterator[Schedule]:
    """Yield one schedule. O(P^2) transfers; broadcast and reduce O(P), alltoall O(P^3)."""
    topology, collective = request.topology, request.collective
    is_shorter = collective.kind == "alltoall" and directions == 2
    refuse_too_long("ring", topology, collective, 0.5 if is_shorter else directions)
    cycle = parse_order(order, collective) if order is not None else _find_cycle(topology, collective)
    orientations = [cycle] if directions == 1 else [cycle, [cycle[0], *cycle[:0:-1]]]
    hops = [_route_cycle(topology, oriented) for oriented in orientations]
    # directions in which every rank has a path to the next; if there is none, `finish_schedule` raises the error
    possible = [i for i, routing in enumerate(hops) if not len(routing.unreachable)] or [0]
    chunks = _chunks_per_block(topology, [hops[i] for i in possible])
    schedule = split(
        plan_both_ways(collective, cycle) if len(possible) == 2 else plan_around(collective, orientations[possible[0]]),
        chunks,
    )
    depth = pieces if pieces is not None else CHAIN_PIECES if collective.kind in CHAINS else 1
    options = {"order": ",".join(map(str, cycle)), "directions": len(possible), "pieces": depth}
    yield finish_schedule(schedule, topology, collective, "ring", options, depth)


def _find_cycle(topology: Topology, collective: Collective) -> list[int]:
    """Return the widest cycle of direct links, or the members in order if switches join them."""
    cycle, complete = widest_cycle(topology, collective.members)
    if cycle:
        return cycle
    if not topology.switches:
        how = "has no cycle of direct links" if complete else "shows no cycle of direct links within the search limit"
        alternatives = suggest_planners(topology, collective, "relay", "compose", other="a machine with switches")
        raise Unsupported(
            f"planner ring: topology {topology.name} {how} through all ranks that take part; give one by "
            f"--option order=..., {alternatives}"
        )
    return list(collective.members)


def _route_cycle(topology: Topology, cycle: Sequence[int]) -> Paths:
    """Return the path from every rank of the cycle to the next."""
    ranks = np.array(cycle, np.int32)
    return find_paths(topology, ranks, np.roll(ranks, -1))


def _chunks_per_block(topology: Topology, hops: Sequence[Paths]) -> int:
    """Return the number of chunks to split a block into: the width of the narrowest hop in unit links.

    So a round, in which a unit link carries one chunk, fills that hop. 1 if the width is not a small whole number.
    """
    links = [narrowest_link(topology, routing) for routing in hops if not len(routing.unreachable)]
    if not links:
        return 1
    width = min(topology.bandwidth(link) for link in links) / topology.unit
    return int(width) if width.denominator == 1 and width <= MOST_CHUNKS else 1
