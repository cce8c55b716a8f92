"""Plan level by level: reducescatter within groups, then among the groups, and the allgathers in the opposite order.

`hierarchical-ring` uses a ring in every level; `hierarchical-ps` a co-located parameter server: every rank of a group
reduces a part of the data directly from all others (GenTree, section 3.3 and Figure 5: m x n hierarchical co-located
PS). The number of ranks, or subgroups, that form a group of a level is its fan-in. Groups of 4 x 2 among ranks 0..7,
allreduce:

    1. reducescatter within 0..3 and within 4..7: ranks 0 and 4 then have the sums of quarter 0 of their groups, ...
    2. reducescatter between rank i and rank 4 + i, who share quarter i: each has the total of one eighth
    3. allgather between them, then within the groups, the same exchanges backwards

With fan-ins f1 x f2 x ... an allreduce takes 2 * sum(f - 1) steps with rings, 2 * levels with servers; either way every
rank sends 2 (P-1)/P nbytes, most of it to the nearest ranks: (f1 - 1)/f1 nbytes each way within the innermost groups.
In the example 2 * (3 + 1) = 8 steps with rings, 4 with servers, and a ring of 8 would take 14.

Groups may differ in size (shared/groups.py): then the data are cut into stretches such that in each stretch the same
ranks, one per group, exchange. `Spans` list for each of several owners its intervals of the data; an owner is a block,
all seats together, or an outermost group. Positions are whole units, so small that every stretch is a multiple of one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

import numpy as np

from antiphon.core.collective import Collective
from antiphon.core.request import Request
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.core.transform import Placement, Spans, assemble_parts, merge
from antiphon.errors import Unsupported
from antiphon.options import Option
from antiphon.planners.shared.groups import (
    Groups,
    SeatExchange,
    SizePath,
    delay_after,
    find_stretches,
    groups_from_places,
    list_exchanges,
    list_factorizations,
    nested_groups,
    parse_fanins,
    parse_groups,
    plan_chains,
    reverse_placements,
    units_per_seat,
)
from antiphon.planners.shared.routing import are_joined
from antiphon.planners.shared.rows import (
    ChainPieces,
    Directions,
    Order,
    Pieces,
    Seats,
    collective_among,
    finish_schedule,
    parse_order,
    per_root,
    refuse_too_many_transfers,
    rows_to_schedule,
)
from antiphon.planners.shared.rows import plan_backwards as dual_backwards

# How the ranks of a group exchange their data
DIRECT = "direct"  # each sends to all others, in one step
RING = "ring"  # around a ring
BACK = "back"  # around the ring in the other direction
MAX_TRANSFERS = 2**24  # of all schedules of `hierarchical_ps` together; spans of data that `_has_links` examines
DEFAULT_CHAIN_PIECES = 32  # slices of a broadcast or reduce: most hops of the chains overlap, messages stay large
Fans = str | int | Sequence[int]


AllFans = Annotated[
    Fans,
    Option("fan-ins of the levels, such as 6x4, neighbours first (all: every factorisation of P that the links allow)"),
]
LevelFans = Annotated[
    Fans | None,
    Option(
        "8x4, rings of 8 within rings of 4, or 3+4, groups of 3 and 4 ranks (default: what the places of the ranks "
        "show, else the squarest factorisation that the links allow)"
    ),
]


def hierarchical_ps(
    request: Request, *, fanins: AllFans = "all", order: Order = None, pieces: Pieces = 1
) -> Iterator[Schedule]:
    """Yield one schedule, or one for every factorisation, fewest levels first (the first is plain co-located PS).

    These are at most 64, and beyond 362 ranks only the first ones, with 16 million transfers together. O(P^2) transfers
    each.
    """
    topology, collective = request.topology, request.collective
    ranks = len(collective.members)
    refuse_too_many_transfers("hierarchical-ps", request, 2 * ranks * ranks)
    candidates = list_factorizations(ranks) if fanins == "all" else [parse_fanins(fanins, ranks)]
    # keep those that the direct links allow; if there are none, `finish_schedule` raises the error for the first
    if not topology.switches and fanins == "all":
        seating = parse_order(order, collective)
        candidates = [
            fans for fans in candidates if _has_links(topology, seating, Groups.of_fans(fans), DIRECT)
        ] or candidates[:1]
    for fans in candidates[: max(MAX_TRANSFERS // (2 * ranks * ranks), 1)]:
        options = {"fanins": "x".join(map(str, fans)), "order": order, "pieces": pieces}
        schedule = _plan(collective, parse_order(order, collective), Groups.of_fans(fans), DIRECT)
        yield finish_schedule(schedule, request, "hierarchical-ps", options, pieces)


def hierarchical_ring(
    request: Request,
    *,
    fanins: LevelFans = None,
    order: Order = None,
    directions: Directions = 2,
    pieces: ChainPieces = None,
) -> Iterator[Schedule]:
    """Yield one schedule of O(P^2) transfers; broadcast and reduce, chains among groups and within them: O(P)."""
    topology, collective = request.topology, request.collective
    ranks = len(collective.members)
    refuse_too_many_transfers("hierarchical-ring", request, 2 * ranks * ranks * directions)
    fans, seating = _choose_levels(topology, collective, fanins, order)
    # data of one root cannot be divided among ranks, so they go along a chain through the groups, in pieces
    chain = collective.kind in ("broadcast", "reduce")
    slices = pieces if pieces is not None else DEFAULT_CHAIN_PIECES if chain else 1
    order_text = ",".join(map(str, seating))
    fanin_text = str(fans) if isinstance(fans, Groups) else "x".join(map(str, fans))
    options = {"fanins": fanin_text, "order": order_text, "directions": directions, "pieces": slices}
    groups = fans if isinstance(fans, Groups) else Groups.of_fans(fans)
    schedule = merge([_plan(collective, seating, groups, direction) for direction in (RING, BACK)[:directions]])
    yield finish_schedule(schedule, request, "hierarchical-ring", options, slices)


def _plan(collective: Collective, seating: Sequence[int], groups: Groups, direction: str) -> Schedule:
    """Return the schedule for one direction of the rings (or DIRECT)."""
    kind = collective.kind
    if kind == "broadcast":
        return per_root(collective, lambda single: plan_chains(single, seating, groups, -1 if direction == BACK else 1))
    if kind == "reduce":
        return dual_backwards(collective, lambda single: _plan(single, seating, groups, direction))
    size, units = len(seating), units_per_seat(groups)
    seats = Seats.in_order(collective, seating)
    # `block_spans`: the stretches of every block of the collective (owner b: block b). `exchange_spans`: the same data
    # for `list_exchanges`, which takes one owner (all seats begin with equal fractions of its data, in order) or an
    # owner per outermost group (which begins with its data).
    as_one = np.array([0, size])  # `grouped(as_one)` puts the stretches of all `size` owners under one
    fractions = Spans.side_by_side(np.full(size, units))
    exchange_spans = fractions.take(seats.member).grouped(as_one)  # from the order of members to that of seats
    if kind != "allreduce":
        block_spans = fractions  # a block per member
    elif groups.is_even():
        block_spans = fractions.grouped(as_one)
    else:
        # Every outermost group, large or small, holds an equal fraction of the only block. So in either half of the
        # allreduce every group sends and receives as much as any other, which fractions by size would not achieve.
        block_spans = Spans.side_by_side(np.array([len(groups.subgroups) * units]))
        exchange_spans = Spans.side_by_side(np.full(len(groups.subgroups), units))
    allgathers = _chain_exchanges(list_exchanges(groups, exchange_spans), seats, direction)
    reducescatters = [] if kind == "allgather" else reverse_placements(allgathers)
    placements = [*reducescatters, *(delay_after(allgathers, reducescatters) if kind != "reducescatter" else [])]
    # with blocks of equal weight, as in all parts of a schedule; `finish_schedule` restores the weights
    return assemble_parts(placements, collective_among(collective, kind), block_spans)


def _chain_exchanges(gathers: Sequence[SeatExchange], seats: Seats, direction: str) -> list[Placement]:
    """Plan every exchange; each starts as soon as the exchange that brings its data is done."""
    # The step at which an exchange is done, by its path: relative sizes of the groups that exchange, from the outermost
    # level to its own. `list_exchanges` lists one exchange per path. Before the outermost exchanges comes the path ().
    end_step: dict[SizePath, int] = {(): 0}
    placements = []
    for exchange in gathers:
        placements.append(
            Placement(
                _plan_within(exchange.sizes, direction),
                seats.rank[exchange.seats].astype(np.int64),
                exchange.where,
                start=end_step[exchange.path[:-1]],
            )
        )
        end_step[exchange.path] = placements[-1].stop
    return placements


def _plan_within(sizes: Sequence[int], direction: str) -> Schedule:
    """Plan an allgather among the ranks of a group, of blocks of these sizes, one per rank."""
    allgather = Collective("allgather", len(sizes), weights=np.array(sizes))
    seats = Seats.in_order(allgather)
    hop, sender = (x.ravel() for x in np.indices((len(sizes) - 1, len(sizes))))
    if direction == DIRECT:
        # everybody sends its own block to all others in step 0
        receiver = (sender + hop + 1) % len(sizes)
        return rows_to_schedule(allgather, seats, step=hop * 0, chunk=sender, src=sender, dst=receiver)
    # in step `hop`, a rank forwards the block that has come `hop` hops around the ring to it
    sign = -1 if direction == BACK else 1
    block, receiver = (sender - sign * hop) % len(sizes), (sender + sign) % len(sizes)
    return rows_to_schedule(allgather, seats, step=hop, chunk=block, src=sender, dst=receiver)


def _choose_levels(
    topology: Topology, collective: Collective, fanins: Fans | None, order: Order
) -> tuple[list[int] | Groups, list[int]]:
    """Return the fan-ins (innermost first) or groups of unequal size, and an order of ranks where groups are
    contiguous.
    """
    ranks = len(collective.members)
    if isinstance(fanins, str) and set(fanins) & set("+*()"):
        return parse_groups(fanins, ranks), parse_order(order, collective)
    if fanins is not None:
        return parse_fanins(fanins, ranks), parse_order(order, collective)
    if order is None:
        groups, seating = groups_from_places(topology, collective.members)
        if not groups.is_even() and _has_links(topology, seating, groups):
            return groups, seating
        fans, seating = nested_groups(topology, collective.members)
        if len(fans) > 1 and _has_links(topology, seating, Groups.of_fans(fans)):
            return fans, seating
    seating = parse_order(order, collective)
    candidates = list_factorizations(ranks)
    # two levels before more, and one last; of equally many levels the smallest largest fan-in, for the fewest steps;
    # ties: the largest fan-ins innermost
    candidates.sort(key=lambda fans: (len(fans) == 1, len(fans), max(fans), [-f for f in fans]))
    for fans in candidates:
        if _has_links(topology, seating, Groups.of_fans(fans)):
            return fans, seating
    raise Unsupported(
        f"planner hierarchical-ring: no factorisation of the {ranks} ranks makes rings of links or paths through "
        f"switches on {topology.name}; use planner ring, multi-ring or relay, or give option fanins=... (4x2, or 3+4 "
        "for unequal groups) and order=..."
    )


def _has_links(topology: Topology, seating: Sequence[int], groups: Groups, direction: str = RING) -> bool:
    """Return whether every hop of every ring in both directions has a link or a path through switches.

    With DIRECT: every pair of ranks that exchange. False if unequal groups cut the data into so many stretches that
    listing the exchanges takes too long, so that the caller tries other groups.
    """
    size = len(seating)
    if groups.subgroups:
        edges, _ = find_stretches(groups.subgroups)
        if size * len(groups.subgroups) * len(edges) > MAX_TRANSFERS:
            return False
    rank, src, dst = np.array(seating, np.int32), [], []
    for exchange in list_exchanges(groups, Spans.side_by_side(np.array([size * units_per_seat(groups)]))):
        for distance in range(1, exchange.width) if direction == DIRECT else (1, -1):
            src.append(rank[exchange.seats].ravel())
            dst.append(np.roll(rank[exchange.seats], -distance, axis=1).ravel())
    return are_joined(topology, np.concatenate(src), np.concatenate(dst))
