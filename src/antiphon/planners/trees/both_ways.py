"""Machines of links alike both ways as undirected edges, and undirected trees as trees that data flows down.

Suited: ranks joined directly, every link with an equal one back. Switches and shared limits are not: there reduce-
scatter and allgather by forests do better, or a linear program is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from math import gcd
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from antiphon.core.bounds.network import Network
from antiphon.core.bounds.partition import weakest_partition
from antiphon.core.columns import Longs
from antiphon.core.topology import Topology
from antiphon.errors import Invalid, Unsupported
from antiphon.planners.shared.reach import Hop
from antiphon.planners.trees.tree import Tree


class Edge(NamedTuple):
    """Joins vertices a and b (numbers among the members); whole capacity in units; the link a to b and the one back."""

    a: int
    b: int
    capacity: int
    there: int
    back: int


class Arc(NamedTuple):
    """From a vertex to a vertex, with whole capacity in units, over these links."""

    a: int
    b: int
    capacity: int
    path: tuple[int, ...]


@dataclass(frozen=True)
class Undirected:
    """Ranks (vertex i is rank members[i]) and the edges between them; capacity 1 is `unit` bytes/s."""

    members: tuple[int, ...]
    unit: Fraction
    edges: tuple[Edge, ...]

    @property
    def vertices(self) -> int:
        return len(self.members)


@dataclass(frozen=True)
class Directed:
    """Ranks and the arcs between them; capacity 1 is `unit` bytes/s."""

    members: tuple[int, ...]
    unit: Fraction
    arcs: tuple[Arc, ...]

    @property
    def vertices(self) -> int:
        return len(self.members)


@dataclass(frozen=True)
class Strength:
    """tau = the least capacity between the parts over (parts - 1), in units, and a partition that has it."""

    tau: Fraction
    parts: tuple[tuple[int, ...], ...]


def undirected(topology: Topology, members: Iterable[int] | None = None, unit: Fraction = Fraction(0)) -> Undirected:
    """The links between these ranks (default: all), in pairs there and back. O(links log links).

    Unsupported where a switch or a narrow shared limit is met or a link has no equal one back; Invalid where some
    rank is cut off.
    """
    whole = directed(topology, members, unit)
    waiting: dict[tuple[int, int, int], list[int]] = {}
    edges = []
    for arc in whole.arcs:
        a, b, capacity, (link,) = arc
        back = waiting.get((b, a, capacity))
        if back:
            edges.append(Edge(b, a, capacity, back.pop(0), link))
        else:
            waiting.setdefault((a, b, capacity), []).append(link)
    alone = min((link for links in waiting.values() for link in links), default=None)
    if alone is not None:
        ends = f"{topology.link_src[alone]} to {topology.link_dst[alone]}"
        raise Unsupported(
            f"link {alone} of {topology.name} (rank {ends}) has no equal link back, so no tree can be used both ways; "
            f"use reducescatter and allgather instead"
        )
    edges.sort()
    _check_connected(topology, whole.members, [(e.a, e.b) for e in edges])
    return Undirected(whole.members, whole.unit, tuple(edges))


def directed(topology: Topology, members: Iterable[int] | None = None, unit: Fraction = Fraction(0)) -> Directed:
    """The links between these ranks (default: all) as arcs. O(links). Unsupported as for `undirected`.

    The unit is the greatest of which all bandwidths, and `unit` if given, are whole multiples.
    """
    ranks = tuple(range(topology.ranks) if members is None else sorted(set(members)))
    if not ranks or ranks[0] < 0 or ranks[-1] >= topology.ranks:
        raise Invalid(f"members: expected ranks of {topology.name} (0 to {topology.ranks - 1})")
    number = {rank: i for i, rank in enumerate(ranks)}
    inner = []
    for link, (a, b) in enumerate(zip(topology.link_src.tolist(), topology.link_dst.tolist(), strict=True)):
        if a in number and b in number:
            inner.append((number[a], number[b], link))
        elif (a in number and b >= topology.ranks) or (b in number and a >= topology.ranks):
            raise Unsupported(
                f"{topology.name}: link {link} leads through a switch; trees over undirected links need ranks joined "
                f"directly, use forests there"
            )
    _check_limits(topology, {link for *_, link in inner})
    speeds = [topology.bandwidth(link) for *_, link in inner]
    unit = reduce(_common, speeds, unit) or Fraction(1)
    arcs = [Arc(a, b, int(speed / unit), (link,)) for (a, b, link), speed in zip(inner, speeds, strict=True)]
    return Directed(ranks, unit, tuple(arcs))


def _common(x: Fraction, y: Fraction) -> Fraction:
    """The greatest number of which both are whole multiples."""
    denominator = x.denominator * y.denominator
    return Fraction(gcd(x.numerator * y.denominator, y.numerator * x.denominator), denominator)


def _check_limits(topology: Topology, links: set[int]) -> None:
    for limit in topology.limits:
        if sum((topology.bandwidth(link) for link in limit.links if link in links), Fraction(0)) > limit.bandwidth:
            raise Unsupported(
                f"shared limit {limit.name} of {topology.name} is narrower than its links; the linear program over "
                f"pairs of ranks takes it into account"
            )


def _check_connected(topology: Topology, members: Sequence[int], pairs: Sequence[tuple[int, int]]) -> None:
    near: list[list[int]] = [[] for _ in members]
    for a, b in pairs:
        near[a].append(b)
        near[b].append(a)
    seen, queue = {0}, [0]
    for v in queue:
        fresh = [w for w in dict.fromkeys(near[v]) if w not in seen]
        seen.update(fresh)
        queue.extend(fresh)
    lost = [str(rank) for v, rank in enumerate(members) if v not in seen]
    if lost:
        shown = ", ".join(lost[:8]) + (", ..." if len(lost) > 8 else "")
        raise Invalid(
            f"{topology.name}: no links join rank {members[0]} to rank{'s' * (len(lost) > 1)} {shown}; add links, or "
            f"leave them out"
        )


def strength(machine: Undirected) -> Strength:
    """tau exactly, by `core.bounds.partition`: O(ranks * Newton rounds) maximum flows. At least two ranks."""
    if machine.vertices < 2:
        raise Invalid("one rank alone has no trees to pack; give at least two ranks")
    tau, parts = weakest(machine.vertices, [edge[:3] for edge in machine.edges])
    return Strength(tau, tuple(tuple(machine.members[v] for v in part) for part in parts))


def weakest(vertices: int, edges: Sequence[tuple[int, int, int]]) -> tuple[Fraction, list[list[int]]]:
    """The same for a graph of edges (a, b, capacity)."""
    tail, head, capacity = merged([*edges, *((b, a, c) for a, b, c in edges)])
    parts, ratio = weakest_partition(Network(vertices, vertices, tail, head, capacity), range(vertices))
    return ratio / 2, sorted(sorted(part) for part in parts)


def merged(arcs: Iterable[tuple[int, int, int]]) -> tuple[Longs, Longs, NDArray[Any]]:
    """Tails, heads and capacities, one for each joined pair."""
    total: dict[tuple[int, int], int] = {}
    for a, b, capacity in arcs:
        total[a, b] = total.get((a, b), 0) + capacity
    pairs = sorted(total)
    capacities = [total[pair] for pair in pairs]
    small = sum(capacities) * 4 < 2**62
    tail, head = (np.array([pair[i] for pair in pairs], np.int64) for i in (0, 1))
    return tail, head, np.array(capacities, np.int64 if small else object)


def ends(vertices: int, pairs: Sequence[tuple[int, int]]) -> tuple[list[int], list[int]]:
    """A longest path of a tree, and how far every vertex is from where it begins. O(vertices)."""
    near: list[list[int]] = [[] for _ in range(vertices)]
    for a, b in pairs:
        near[a].append(b)
        near[b].append(a)
    start = 0
    for _ in range(2):
        depth, came = [-1] * vertices, [-1] * vertices
        depth[start] = 0
        queue = [start]
        for v in queue:
            for w in near[v]:
                if depth[w] < 0:
                    depth[w], came[w] = depth[v] + 1, v
                    queue.append(w)
        start = queue[-1]
    path = [start]
    while came[path[-1]] >= 0:
        path.append(came[path[-1]])
    return path, depth


def radius(vertices: int, pairs: Sequence[tuple[int, int]]) -> int:
    """The depth of a tree that hangs from its middle."""
    return len(ends(vertices, pairs)[0]) // 2


def laid(machine: Undirected, chosen: Iterable[int], rate: Fraction, root: int | None = None) -> Tree:
    """The tree of these edges, hung from a rank, or from its middle: the vertex with the least depth."""
    edges = [machine.edges[e] for e in chosen]
    if root is None:
        path, _ = ends(machine.vertices, [(edge.a, edge.b) for edge in edges])
        middle = path[len(path) // 2 : len(path) // 2 + 1] if len(path) % 2 else path[len(path) // 2 - 1 :][:2]
        top = min(middle)
    else:
        top = machine.members.index(root)
    near: list[list[tuple[int, int, int]]] = [[] for _ in machine.members]
    for edge in edges:
        near[edge.a].append((edge.b, edge.there, edge.back))
        near[edge.b].append((edge.a, edge.back, edge.there))
    depth, queue = {top: 0}, [top]
    hops = []
    for v in queue:
        for w, down, up in sorted(near[v]):
            if w not in depth:
                depth[w] = depth[v] + 1
                queue.append(w)
                hops.append((machine.members[w], Hop(machine.members[v], (down,), depth[w], (up,))))
    return Tree(machine.members[top], rate, tuple(sorted(hops)))


def hung(machine: Directed, root: int, chosen: Iterable[int], rate: Fraction) -> Tree:
    """The arborescence of these arcs from the root."""
    into = {machine.arcs[e].b: machine.arcs[e] for e in chosen}
    depth = {machine.members.index(root): 0}
    hops = []
    for v in into:
        trail = [v]
        while trail[-1] not in depth:
            trail.append(into[trail[-1]].a)
        for w in reversed(trail[:-1]):
            depth[w] = depth[into[w].a] + 1
            hops.append((machine.members[w], Hop(machine.members[into[w].a], into[w].path, depth[w])))
    return Tree(root, rate, tuple(sorted(hops)))
