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
from antiphon.core.transform import merge, split
from antiphon.errors import Unsupported
from antiphon.options import Option
from antiphon.planners.rings.circles import (
    CHAIN_PIECES,
    CHAINS,
    exchange_in_pairs,
    plan_around,
    plan_both_ways,
    refuse_too_long,
)
from antiphon.planners.rings.cycles import widest_cycle
from antiphon.planners.shared.pipelining import best_pieces
from antiphon.planners.shared.reach import suggest_planners
from antiphon.planners.shared.routing import PairPaths, find_paths, narrowest_link
from antiphon.planners.shared.rows import Directions, finish_schedule, parse_order

MOST_UNDIVIDED_RANKS = 64  # every rank sends P / 2 whole vectors: with more ranks, too much data
MOST_CHUNKS = 8  # a block is split into at most this many chunks

RingOrder = Annotated[
    str | int | Sequence[int] | None,
    Option(
        "the ring, such as 0,3,2,1 (default: the cycle of direct links whose narrowest link is widest, else by number "
        "over routes through switches)"
    ),
]


Pieces = Annotated[
    int | None,
    Option("pipelining depth (default: for broadcast and reduce the best for one size, else 32; else 1)", minimum=1),
]
Undivided = Annotated[
    bool | None,
    Option(
        "allreduce of whole vectors between pairs of neighbours, in P / 2 steps; false: only in parts (default: both, "
        "for an even number of ranks up to 64 on direct links, without `pieces`)"
    ),
]


def ring(
    request: Request, *, order: RingOrder = None, directions: Directions = 2, pieces: Pieces = None,
    undivided: Undivided = None,
) -> Iterator[Schedule]:  # fmt: skip
    """Yield a schedule; for an allreduce on direct links without `pieces` also one that exchanges whole vectors.

    O(P^2) transfers; broadcast and reduce O(P), alltoall O(P^3).
    """
    topology, collective = request.topology, request.collective
    # trips around the cycle; in an alltoall both ways each block takes the shorter way
    trips = 0.5 if collective.kind == "alltoall" and directions == 2 else directions
    refuse_too_long("ring", request, trips)
    cycle = parse_order(order, collective) if order is not None else _find_cycle(topology, collective)
    orientations = [cycle] if directions == 1 else [cycle, [cycle[0], *cycle[:0:-1]]]
    paths = [_route_cycle(topology, oriented) for oriented in orientations]
    # directions in which every rank has a path to the next; if there is none, `finish_schedule` raises the error
    usable = [i for i, routing in enumerate(paths) if not len(routing.unreachable)] or [0]
    chunks = _chunks_per_block(topology, [paths[i] for i in usable])
    schedule = split(
        plan_both_ways(collective, cycle) if len(usable) == 2 else plan_around(collective, orientations[usable[0]]),
        chunks,
    )
    slices = pieces if pieces is not None else _default_pieces(schedule, request)
    options = {"order": ",".join(map(str, cycle)), "directions": len(usable), "pieces": slices}
    if not undivided:
        yield finish_schedule(schedule, request, "ring", options, slices)
    pairable = collective.kind == "allreduce" and len(cycle) % 2 == 0 and len(usable) == 2
    if undivided and not pairable:
        raise Unsupported(
            "planner ring: whole vectors need an allreduce of an even number of ranks and both directions"
        )
    # By default yield both. Pieces serve large messages, for which shares of the vector are better.
    by_default = undivided is None and pieces is None and 2 < len(cycle) <= MOST_UNDIVIDED_RANKS
    if undivided or (by_default and pairable and not topology.switches):
        # the second half begins one rank later, so that both together use all links
        halves = [exchange_in_pairs(collective, order) for order in (cycle, [*cycle[1:], cycle[0]])]
        exchange = split(merge(halves), chunks)
        yield finish_schedule(exchange, request, "ring", {**options, "undivided": True}, slices)


def _default_pieces(schedule: Schedule, request: Request) -> int:
    """Return the number of slices of a chain: the best for one size, CHAIN_PIECES for several or any; 1 if no chain."""
    if request.collective.kind not in CHAINS:
        return 1
    if request.nbytes is None or request.also:
        return CHAIN_PIECES
    routed = finish_schedule(schedule, request, "ring", {})
    return best_pieces(routed, request.topology, request.nbytes, request.profile)


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
            f"option order=..., {alternatives}"
        )
    return list(collective.members)


def _route_cycle(topology: Topology, cycle: Sequence[int]) -> PairPaths:
    """Return the path from every rank of the cycle to the next."""
    ranks = np.array(cycle, np.int32)
    return find_paths(topology, ranks, np.roll(ranks, -1))


def _chunks_per_block(topology: Topology, paths: Sequence[PairPaths]) -> int:
    """Return the number of chunks to split a block into: the width of the narrowest hop in unit links.

    So a round, in which a unit link carries one chunk, fills that hop. 1 if the width is not a small whole number.
    """
    links = [narrowest_link(topology, routing) for routing in paths if not len(routing.unreachable)]
    if not links:
        return 1
    width = min(topology.bandwidth(link) for link in links) / topology.unit
    return int(width) if width.denominator == 1 and width <= MOST_CHUNKS else 1
