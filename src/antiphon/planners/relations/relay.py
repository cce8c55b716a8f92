"""Trees over the links there are, from rank to rank: for machines on which nothing regular fits.

Every rank that has data to spread sends it along a tree; ranks on the way pass it on, also ranks that take no part.
So it plans every collective on every connected machine: irregular allocations, machines that lost links. Custom
collectives are planned from their relation alone (blocks.py).

One tree per source is of shortest paths: steps are the fewest possible for what needs no combining, but one tree
uses few of the links. Several trees, in pieces, share the data and use more of them: see _many_trees.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from antiphon.core.collective import Collective
from antiphon.core.columns import narrow
from antiphon.core.loads import timeline
from antiphon.core.request import Request
from antiphon.core.reshape import reverse
from antiphon.core.routes import Routes
from antiphon.core.schedule import COPY, Schedule, cut
from antiphon.core.topology import Topology
from antiphon.core.transform import compose, dual, invert
from antiphon.errors import Infeasible, Invalid, Unsupported, quote
from antiphon.planners.relations._many_trees import ROUNDS, pack, reduce_and_spread, spread
from antiphon.planners.relations.blocks import by_relation
from antiphon.planners.shared.reach import Reach

SPREADING = ("broadcast", "scatter", "allgather", "alltoall")
SHARED = ("broadcast", "reduce", "allgather", "reducescatter", "allreduce")  # whose trees all carry the same everywhere
MOST_ROWS = 2**24
PIECES = (8, 32, 128, 512)  # of several trees, where none are asked for


def relay(
    request: Request, *, by: str = "blocks", trees: int | None = None, pieces: int | None = None
) -> Iterator[Schedule]:
    """Yields a schedule on one tree of shortest paths per source, then, where that is faster for large sizes, some on
    several trees that share the data, by pieces. What combines is what spreads, the other way round.

    `trees`: 1: just the former; more: just the latter, of at most so many trees. `by`, for allreduce on single trees:
    "blocks" makes it a reducescatter and an allgather, "tree" a reduction to the most central member and a broadcast
    from it. `pieces`: pipelining. O(ranks * (ranks + links)) to find the trees, 16 times that for several; a row per
    block, or share of it, and hop.
    """
    topology, collective = request.topology, request.collective
    if by not in ("blocks", "tree"):
        raise Invalid(f"option by: expected blocks or tree, got {by!r}")
    if trees is not None and (isinstance(trees, bool) or not isinstance(trees, int) or trees < 1):
        raise Invalid(f"option trees: expected a whole number of 1 or more, got {quote(trees)}")
    slowest = None
    if trees in (None, 1):
        single = replace(_single(topology, collective, by), pieces=pieces or 1)
        told = {"by": by} if collective.kind == "allreduce" else {}
        yield _signed(single, {**told, "trees": 1, "pieces": pieces or 1})
        slowest = timeline(single, topology).total
    if trees == 1:
        return
    found = _several(topology, collective, trees or ROUNDS) if collective.kind in SHARED else None
    if found is None:
        if trees is not None:
            raise Unsupported(_no_trees(topology, collective))
        return
    many, used = found
    for depth in (pieces,) if pieces is not None else PIECES:
        piped = replace(many, pieces=depth)
        if slowest is None or timeline(piped, topology).total < slowest:
            yield _signed(piped, {"trees": used, "pieces": depth})


def _signed(schedule: Schedule, options: dict[str, Any]) -> Schedule:
    return replace(schedule, provenance={"planner": "relay", "options": options})


def _no_trees(topology: Topology, collective: Collective) -> str:
    if collective.kind not in SHARED:
        return f"planner relay: {collective.kind} is planned on one tree per source only; use trees=1"
    return f"planner relay: no more than one tree per rank can be found on {topology.name}; use trees=1"


# ---- one tree per source ----


def _single(topology: Topology, collective: Collective, by: str) -> Schedule:
    if collective.kind == "custom":
        return by_relation(topology, collective)
    if collective.kind == "allreduce":
        return _allreduce(topology, collective, by)
    if collective.kind in SPREADING:
        return _spread(Reach(topology), collective)
    return _turned(topology, collective, lambda machine, wanted: _spread(Reach(machine), wanted))


def _turned(topology: Topology, collective: Collective, make: Callable[[Topology, Collective], Schedule]) -> Schedule:
    """The spreading collective on the machine with all links turned, run backwards."""
    return invert(make(reverse(topology), dual(collective)[0]))


def _sources(collective: Collective) -> dict[int, int]:
    """Of every block the rank that has it."""
    relation = collective.relation
    return dict(zip(relation.pre_block.tolist(), relation.pre_rank.tolist(), strict=True))


def _spread(trees: Reach, collective: Collective) -> Schedule:
    """Every block from the rank that has it to all that want it, along the tree of that rank."""
    relation, source = collective.relation, _sources(collective)
    rows: set[tuple[int, int, int]] = set()  # (block, depth of the receiver, receiver): once for each block
    for block, want in zip(relation.post_block.tolist(), relation.post_rank.tolist(), strict=True):
        tree, at = trees.of(source[block]), want
        if want not in tree:
            raise Infeasible(
                f"planner relay: no links lead from rank {source[block]} to rank {want} of {trees.topology.name}, "
                "not even by way of others; no planner can do that"
            )
        while at != source[block] and (block, tree[at].depth, at) not in rows:
            rows.add((block, tree[at].depth, at))
            at = tree[at].parent
        if len(rows) > MOST_ROWS:
            raise Unsupported(f"planner relay: more than {MOST_ROWS} transfers; use planner ring, or fewer ranks")
    return _schedule(trees, collective, source, sorted(rows))


def _schedule(
    trees: Reach, collective: Collective, source: dict[int, int], rows: list[tuple[int, int, int]]
) -> Schedule:
    hops = [trees.of(source[block])[to] for block, _, to in rows]
    paths: dict[tuple[int, ...], int] = {}
    route = [paths.setdefault(hop.path, len(paths)) for hop in hops]
    table = np.array(rows, np.int64).reshape(-1, 3)
    block, depth, to = (narrow(table[:, i]) for i in range(3))
    sender = np.array([hop.parent for hop in hops], np.int32)
    return Schedule(
        collective, cut(collective, 1), depth - 1, block, sender, to, np.full(len(rows), COPY, np.uint8),
        route=np.array(route, np.int32), routes=Routes.of(paths),
    )  # fmt: skip


def _allreduce(topology: Topology, collective: Collective, by: str) -> Schedule:
    def part(kind: str, *roots: int) -> Collective:
        return Collective(kind, collective.ranks, collective.members, roots)

    if by == "blocks":
        first, second = part("reducescatter"), part("allgather")
    else:
        centre = _centre(Reach(topology), collective.members)
        first, second = part("reduce", centre), part("broadcast", centre)
    return compose(_single(topology, first, by), _single(topology, second, by))


def _centre(trees: Reach, members: tuple[int, ...]) -> int:
    """The member whose farthest member is nearest."""

    def farthest(source: int) -> int:
        tree = trees.of(source)
        return max(tree[other].depth if other in tree else len(members) ** 2 for other in members)

    return min(members, key=lambda member: (farthest(member), member))


# ---- several ----


def _several(topology: Topology, collective: Collective, most: int) -> tuple[Schedule, int] | None:
    """On several trees per source, and on how many; None where these cannot be grown."""
    if len(collective.members) < 2:
        return None
    if collective.kind == "allreduce":
        found = pack(Reach(topology), collective.members[:1], collective.members, most, both=True)
        return (reduce_and_spread(collective, found), found.most) if found is not None else None
    if collective.kind in SPREADING:
        return _spread_several(topology, collective, most)
    turned = _spread_several(reverse(topology), dual(collective)[0], most)
    return (invert(turned[0]), turned[1]) if turned is not None else None


def _spread_several(topology: Topology, collective: Collective, most: int) -> tuple[Schedule, int] | None:
    source = _sources(collective)
    found = pack(Reach(topology), sorted(set(source.values())), collective.members, most, both=False)
    return (spread(collective, found, source), found.most) if found is not None else None
