"""Shortest paths over the links there are, from rank to rank: for machines on which nothing regular fits.

Every rank that has data to spread sends it along a tree of shortest paths; ranks on the way pass it on, also
ranks that take no part. So it plans every collective on every connected machine: irregular allocations,
machines that lost links. Steps are the fewest possible for what needs no combining; the paths of different
trees are spread over links of equal use, but no bandwidth is promised.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from antiphon.core.collective import DUAL, Collective
from antiphon.core.columns import narrow
from antiphon.core.reshape import reverse
from antiphon.core.routes import Routes, out_links
from antiphon.core.schedule import COPY, Schedule, cut
from antiphon.core.topology import Topology
from antiphon.core.transform import compose, dual, invert
from antiphon.errors import Invalid, Unsupported

SPREADING = ("broadcast", "scatter", "allgather", "alltoall")
MOST_ROWS = 2**24


@dataclass(frozen=True)
class Hop:
    """How a rank is reached: from which rank, over which links, after how many hops."""

    parent: int
    path: tuple[int, ...]
    depth: int


def relay(
    topology: Topology,
    collective: Collective,
    *,
    nbytes: int | None = None,
    profile: Any = None,
    budget: float | None = None,
    seed: int = 0,
    by: str = "blocks",
    pieces: int = 1,
) -> Iterator[Schedule]:
    """Yields one schedule: O(ranks * (ranks + links)) to find the trees, a row per block and hop.

    What combines is what spreads, the other way round. `by`, for allreduce: "blocks" makes it a reducescatter
    and an allgather, "tree" a reduction to the most central member and a broadcast from it. `pieces`: pipelining.
    """
    if by not in ("blocks", "tree"):
        raise Invalid(f"option by: expected blocks or tree, got {by!r}")
    if collective.kind == "allreduce":
        made = _allreduce(topology, collective, by)
    elif collective.kind in SPREADING:
        made = _spread(_Trees(topology), collective)
    elif collective.kind in DUAL:
        made = _gathered(topology, collective)
    else:
        raise Unsupported(f"planner relay does not plan {collective.kind} collectives; it plans the eight known ones")
    options = {"by": by, "pieces": pieces}
    yield replace(made, pieces=pieces, provenance={"planner": "relay", "options": options})


class _Trees:
    """Shortest-path trees, each with links that earlier ones used little."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.out = out_links(topology)
        self.head = topology.link_dst.tolist()
        self.width = [float(topology.bandwidth(link) / topology.unit) for link in range(topology.links)]
        self.used = [0.0] * topology.links
        self.known: dict[int, dict[int, Hop]] = {}
        self.near: dict[int, dict[int, tuple[tuple[int, ...], ...]]] = {}

    def neighbours(self, rank: int) -> dict[int, tuple[tuple[int, ...], ...]]:
        """The ranks one step away, and the ways there: all parallel links, or one path through switches."""
        if rank not in self.near:
            found: dict[int, list[tuple[int, ...]]] = {}
            came: dict[int, tuple[int, ...]] = {rank: ()}
            queue = deque([rank])
            while queue:
                node = queue.popleft()
                for link in self.out[node]:
                    head, path = self.head[link], (*came[node], link)
                    if head < self.topology.ranks:
                        if head != rank and (node == rank or head not in found):
                            found.setdefault(head, []).append(path)
                    elif head not in came:
                        came[head] = path
                        queue.append(head)
            self.near[rank] = {head: tuple(paths) for head, paths in found.items()}
        return self.near[rank]

    def of(self, source: int) -> dict[int, Hop]:
        """How every rank within reach is reached from the source."""
        if source not in self.known:
            tree = {source: Hop(-1, (), 0)}
            level = [source]
            while level:
                reach: dict[int, list[tuple[int, tuple[int, ...]]]] = {}
                for rank in level:
                    for head, paths in self.neighbours(rank).items():
                        if head not in tree:
                            reach.setdefault(head, []).extend((rank, path) for path in paths)
                level = sorted(reach)
                for head in level:
                    parent, path = min(reach[head], key=lambda way: (self._worst(way[1]), way))
                    tree[head] = Hop(parent, path, tree[parent].depth + 1)
                    for link in path:
                        self.used[link] += 1 / self.width[link]
            self.known[source] = tree
        return self.known[source]

    def _worst(self, path: tuple[int, ...]) -> float:
        return max(self.used[link] + 1 / self.width[link] for link in path)


def _spread(trees: _Trees, collective: Collective) -> Schedule:
    """Every block from the rank that has it to all that want it, along the tree of that rank."""
    relation = collective.relation
    source = dict(zip(relation.pre_block.tolist(), relation.pre_rank.tolist(), strict=True))
    rows: set[tuple[int, int, int]] = set()  # (block, depth of the receiver, receiver): once for each block
    for block, want in zip(relation.post_block.tolist(), relation.post_rank.tolist(), strict=True):
        tree, at = trees.of(source[block]), want
        if want not in tree:
            raise Unsupported(
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
    trees: _Trees, collective: Collective, source: dict[int, int], rows: list[tuple[int, int, int]]
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


def _gathered(topology: Topology, collective: Collective) -> Schedule:
    """The spreading collective on the machine with all links turned, run backwards."""
    turned = _spread(_Trees(reverse(topology)), dual(collective)[0])
    return invert(turned)


def _allreduce(topology: Topology, collective: Collective, by: str) -> Schedule:
    def part(kind: str, *roots: int) -> Collective:
        return Collective(kind, collective.ranks, collective.members, roots)

    if by == "blocks":
        first, second = part("reducescatter"), part("allgather")
    else:
        centre = _centre(_Trees(topology), collective.members)
        first, second = part("reduce", centre), part("broadcast", centre)
    return compose(_gathered(topology, first), _spread(_Trees(topology), second))


def _centre(trees: _Trees, members: tuple[int, ...]) -> int:
    """The member whose farthest member is nearest."""

    def farthest(source: int) -> int:
        tree = trees.of(source)
        return max(tree[other].depth if other in tree else len(members) ** 2 for other in members)

    return min(members, key=lambda member: (farthest(member), member))
