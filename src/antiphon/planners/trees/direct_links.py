"""Represent machines without switches as graphs with integral capacities, and turn sets of edges back into trees.

spanning.py, fewest.py and blink_packing.py work on these graphs. `directed_machine` turns each link into an arc between
the members. `undirected_machine` turns each pair of opposite links of equal bandwidth into one edge, for trees that are
used in both directions. Both raise Unsupported at a switch, or at a shared limit that is narrower than its links
together. Capacities become integers in the largest unit that divides them all: 25 and 50 GB/s become 1 and 2 units of
25 GB/s.

`tree_of_edges` and `tree_of_arcs` make a `SpanningTree` of a set of edges or arcs. A tree of edges gets the middle of
its longest path as its root, which makes it as shallow as possible: a path of 5 ranks has depth 2.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from math import gcd
from typing import NamedTuple

from antiphon.core.topology import Topology
from antiphon.errors import Invalid, Unsupported, list_first
from antiphon.planners.shared.reach import Hop, reroot_tree
from antiphon.planners.shared.tree_schedules import SpanningTree, hops_of_parents


class LinkPair(NamedTuple):
    """Two opposite links between vertices a and b, each with this capacity: `forward` from a to b, and `back`."""

    a: int
    b: int
    capacity: int
    forward: int
    back: int


class DirectLink(NamedTuple):
    """A link from vertex a to vertex b. `capacity`: in units. `path`: the number of the link, in a tuple for `Hop`."""

    a: int
    b: int
    capacity: int
    path: tuple[int, ...]


@dataclass(frozen=True)
class Undirected:
    """A graph of edges: vertex i is rank members[i]; a capacity of 1 is `unit` bytes/s."""

    members: tuple[int, ...]
    unit: Fraction
    edges: tuple[LinkPair, ...]

    @property
    def vertices(self) -> int:
        """Number of vertices."""
        return len(self.members)


@dataclass(frozen=True)
class Directed:
    """A graph of arcs: vertex i is rank members[i]; a capacity of 1 is `unit` bytes/s."""

    members: tuple[int, ...]
    unit: Fraction
    arcs: tuple[DirectLink, ...]

    @property
    def vertices(self) -> int:
        """Number of vertices."""
        return len(self.members)


def undirected_machine(
    topology: Topology, members: Iterable[int] | None = None, unit: Fraction = Fraction(0)
) -> Undirected:
    """Return the graph of these ranks (default: all) and of their links, paired with their opposites.

    Raises Unsupported at a switch, a shared limit narrower than its links together, or a link without an equal
    opposite; Invalid if a rank is cut off. `unit`: as for `directed_machine`. O(links log links).
    """
    machine = directed_machine(topology, members, unit)
    # pair each link with an earlier one of equal capacity in the opposite direction
    unpaired: dict[tuple[int, int, int], list[int]] = {}
    edges = []
    for arc in machine.arcs:
        a, b, capacity, (link,) = arc
        opposite_links = unpaired.get((b, a, capacity))
        if opposite_links:
            edges.append(LinkPair(b, a, capacity, forward=opposite_links.pop(0), back=link))
        else:
            unpaired.setdefault((a, b, capacity), []).append(link)
    unpaired_link = min((link for links in unpaired.values() for link in links), default=None)
    if unpaired_link is not None:
        ends = f"{topology.link_src[unpaired_link]} to {topology.link_dst[unpaired_link]}"
        raise Unsupported(
            f"link {unpaired_link} of {topology.name} (rank {ends}) has no equal link back, so no tree can be used "
            f"both ways; use reducescatter and allgather instead"
        )
    edges.sort()
    _check_connected(topology, machine.members, [(e.a, e.b) for e in edges])
    return Undirected(machine.members, machine.unit, tuple(edges))


def directed_machine(
    topology: Topology, members: Iterable[int] | None = None, unit: Fraction = Fraction(0)
) -> Directed:
    """Return the graph of these ranks (default: all) and of the links between them.

    Capacities are in the largest unit that divides all bandwidths. `unit`: a further number that this unit must divide,
    such as a rate of trees; 0: none. Raises Unsupported at a switch, or at a shared limit narrower than its links
    together. O(links).
    """
    ranks = tuple(range(topology.ranks) if members is None else sorted(set(members)))
    if not ranks or ranks[0] < 0 or ranks[-1] >= topology.ranks:
        raise Invalid(f"members: expected ranks of {topology.name} (0 to {topology.ranks - 1})")
    number = {rank: i for i, rank in enumerate(ranks)}
    member_links = []
    for link, (a, b) in enumerate(zip(topology.link_src.tolist(), topology.link_dst.tolist(), strict=True)):
        if a in number and b in number:
            member_links.append((number[a], number[b], link))
        elif (a in number and b >= topology.ranks) or (b in number and a >= topology.ranks):
            raise Unsupported(
                f"{topology.name}: link {link} leads through a switch; trees over direct links need ranks without "
                f"switches in between; use planner trees"
            )
    _check_limits(topology, {link for *_, link in member_links})
    speeds = [topology.bandwidth(link) for *_, link in member_links]
    unit = reduce(_common_unit, speeds, unit) or Fraction(1)  # 1: without links any unit will do
    arcs = [
        DirectLink(a, b, int(speed / unit), (link,)) for (a, b, link), speed in zip(member_links, speeds, strict=True)
    ]
    return Directed(ranks, unit, tuple(arcs))


def _common_unit(x: Fraction, y: Fraction) -> Fraction:
    """Return the greatest number that divides both."""
    denominator = x.denominator * y.denominator
    return Fraction(gcd(x.numerator * y.denominator, y.numerator * x.denominator), denominator)


def _check_limits(topology: Topology, links: set[int]) -> None:
    """Raise Unsupported if a shared limit has less bandwidth than the links `links` in it together."""
    for limit in topology.limits:
        if sum((topology.bandwidth(link) for link in limit.links if link in links), Fraction(0)) > limit.bandwidth:
            raise Unsupported(
                f"shared limit {limit.name} of {topology.name} is narrower than its links together; use "
                f"planner trees, which takes it into account"
            )


def _check_connected(topology: Topology, members: Sequence[int], pairs: Sequence[tuple[int, int]]) -> None:
    """Raise Invalid unless these pairs connect all members."""
    neighbours: list[list[int]] = [[] for _ in members]
    for a, b in pairs:
        neighbours[a].append(b)
        neighbours[b].append(a)
    # breadth-first search; the queue grows while it is read
    reached, queue = {0}, [0]
    for v in queue:
        new = [w for w in dict.fromkeys(neighbours[v]) if w not in reached]
        reached.update(new)
        queue.extend(new)
    names = [str(rank) for v, rank in enumerate(members) if v not in reached]
    if names:
        shown = list_first(names)
        raise Invalid(
            f"{topology.name}: no links join rank {members[0]} to rank{'s' * (len(names) > 1)} {shown}; add links, or "
            f"leave them out"
        )


def longest_path(vertices: int, pairs: Sequence[tuple[int, int]]) -> list[int]:
    """Return a longest path of a tree. O(vertices)."""
    neighbours: list[list[int]] = [[] for _ in range(vertices)]
    for a, b in pairs:
        neighbours[a].append(b)
        neighbours[b].append(a)
    start = 0
    # two breadth-first searches: the farthest vertex from anywhere is an end of a longest path
    for _ in range(2):
        previous, queue = {start: -1}, [start]
        for v in queue:
            for w in neighbours[v]:
                if w not in previous:
                    previous[w] = v
                    queue.append(w)
        start = queue[-1]
    path = [start]
    while previous[path[-1]] >= 0:
        path.append(previous[path[-1]])
    return path


def radius(vertices: int, pairs: Sequence[tuple[int, int]]) -> int:
    """Return the depth of the tree of these edges when its root is in the middle."""
    return len(longest_path(vertices, pairs)) // 2


def tree_of_edges(machine: Undirected, chosen: Iterable[int], rate: Fraction) -> SpanningTree:
    """Return the tree of these edges (by number), its root in the middle, which gives the least depth."""
    edges = [machine.edges[e] for e in chosen]
    path = longest_path(machine.vertices, [(edge.a, edge.b) for edge in edges])
    # the one or two vertices in the middle: the root is the one of lower number
    root = min(path[(len(path) - 1) // 2 : len(path) // 2 + 1])
    hops = [
        (machine.members[edge.b], Hop(machine.members[edge.a], (edge.forward,), depth=0, back=(edge.back,)))
        for edge in edges
    ]
    return SpanningTree(machine.members[root], rate, tuple(sorted(reroot_tree(hops, machine.members[root]).items())))


def tree_of_arcs(machine: Directed, root: int, chosen: Iterable[int], rate: Fraction) -> SpanningTree:
    """Return the tree of these arcs (by number) out of the root (a rank)."""
    arc_into = {machine.members[machine.arcs[e].b]: machine.arcs[e] for e in chosen}
    parents = {rank: machine.members[arc.a] for rank, arc in arc_into.items()}
    return SpanningTree(root, rate, hops_of_parents(parents, root, lambda _, rank: arc_into[rank].path))
