"""Prepare a machine for drawing: nodes with labels, links merged per pair and kind, identical boxes folded into
stacks.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property

from antiphon.core.topology import Topology
from antiphon.units import format_bandwidth

RANK, SWITCH, STACK = "rank", "switch", "stack"
_CONTAINER = re.compile(r"((?:host|box|node|group|dc)\d+)/")


@dataclass(frozen=True)
class Node:
    """Something drawn: a rank, a switch, or a stack of ranks (`ranks` lists them)."""

    shape: str
    label: str
    place: str
    ranks: tuple[int, ...] = ()

    @property
    def half(self) -> tuple[float, float]:
        """Half its width and half its height, in pixels."""
        if self.shape == RANK:
            return 17.0, 17.0
        if self.shape == STACK:
            return 38.0, 21.0
        return (max(16.0, 3.9 * len(self.label) + 9), 14.0) if self.label else (9.0, 9.0)

    @property
    def container(self) -> str:
        """The box of a cluster it stands in, or nothing."""
        match = _CONTAINER.match(self.place)
        return match[1] if match else ""


@dataclass(frozen=True)
class Edge:
    """All links of one kind between two nodes: bytes per second from a to b and back, and the limits they share."""

    a: int
    b: int
    kind: str
    forward: Fraction
    backward: Fraction
    limits: tuple[str, ...] = ()
    times: int = 1  # number of equal links drawn as one, each of this speed

    @property
    def bandwidth(self) -> Fraction:
        """What they carry together, one way."""
        return self.times * max(self.forward, self.backward)

    def speed(self, back: bool = False) -> str:
        """One way, as people write it: 25 GB/s, or 24 x 25 GB/s."""
        each = format_bandwidth(self.backward if back else self.forward)
        return each if self.times == 1 else f"{self.times} x {each}"

    @property
    def symmetric(self) -> bool:
        return self.forward == self.backward


@dataclass(frozen=True)
class Graph:
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    limits: dict[str, str] = field(default_factory=dict)  # name -> bandwidth, and the number of links that share it

    @cached_property
    def near(self) -> list[list[int]]:
        """The neighbours of every node, ascending."""
        neighbours: list[set[int]] = [set() for _ in self.nodes]
        for edge in self.edges:
            neighbours[edge.a].add(edge.b)
            neighbours[edge.b].add(edge.a)
        return [sorted(near) for near in neighbours]

    def is_tree(self, among: Sequence[int]) -> bool:
        """Whether these nodes are joined without any cycle, ranks at the ends."""
        inside = set(among)
        degree = {node: sum(other in inside for other in self.near[node]) for node in among}
        ends = all(degree[n] == 1 for n in among if self.nodes[n].shape != SWITCH)
        return ends and sum(degree.values()) == 2 * (len(among) - 1) and self._is_connected(among)

    def _is_connected(self, among: Sequence[int]) -> bool:
        inside, stack = set(among), [among[0]]
        inside.discard(among[0])
        while stack:
            fresh = [other for other in self.near[stack.pop()] if other in inside]
            inside.difference_update(fresh)
            stack += fresh
        return not inside


def graph_of(topology: Topology) -> Graph:
    """Every rank and switch, and a line per pair and kind. O(links)."""
    nodes = [Node(RANK, str(r), topology.places[r], (r,)) for r in range(topology.ranks)]
    for switch in range(topology.ranks, topology.nodes):
        place = topology.places[switch]
        last = place.rpartition("/")[2]
        nodes.append(Node(SWITCH, "" if last == "router" else last[:16], place))
    named: dict[int, list[str]] = defaultdict(list)
    limits: dict[str, str] = {}
    sizes = {limit.name: (limit.bandwidth, len(limit.links)) for limit in topology.limits}
    for limit in topology.limits:
        how = f"{format_bandwidth(limit.bandwidth)} shared by {len(limit.links)} links"
        name = re.sub(r" (out|in)$", "", limit.name)
        if name != limit.name and sizes.get(f"{name} out") == sizes.get(f"{name} in"):
            limits[name] = f"{how}, each way"
        else:
            name = limit.name
            limits[name] = how
        for link in limit.links:
            named[link].append(name)
    speeds: dict[tuple[int, int, str], Fraction] = defaultdict(Fraction)
    shared: dict[tuple[int, int, str], set[str]] = defaultdict(set)
    ends = zip(topology.link_src.tolist(), topology.link_dst.tolist(), topology.link_type.tolist(), strict=True)
    for link, (a, b, kind) in enumerate(ends):
        type_ = topology.types[kind]
        speeds[a, b, type_.kind] += type_.bandwidth
        if link in named:
            shared[min(a, b), max(a, b), type_.kind].update(named[link])
    return Graph(tuple(nodes), _gather_edges(speeds, shared), limits)


def _gather_edges(
    speeds: dict[tuple[int, int, str], Fraction], shared: dict[tuple[int, int, str], set[str]]
) -> tuple[Edge, ...]:
    pairs = sorted({(min(a, b), max(a, b), kind) for a, b, kind in speeds})
    zero = Fraction(0)
    return tuple(
        Edge(
            a,
            b,
            kind,
            speeds.get((a, b, kind), zero),
            speeds.get((b, a, kind), zero),
            tuple(sorted(shared[a, b, kind])),
        )
        for a, b, kind in pairs
    )


def fold_nodes(graph: Graph, max_nodes: int) -> Graph:
    """The same with alike ranks of a switch drawn as one where there are more than `max_nodes` nodes; if that does not
    do, with every box of a cluster drawn as one."""
    if len(graph.nodes) > max_nodes:
        graph = _merge_nodes(graph, _leaf_names(graph))
    if len(graph.nodes) > max_nodes:
        graph = _merge_nodes(graph, [node.container for node in graph.nodes])
    return graph


def _leaf_names(graph: Graph) -> list[str]:
    """A common name for the ranks that hang on one switch, by nothing else and alike."""
    speed = {}
    for edge in graph.edges:
        speed[edge.a, edge.b] = speed[edge.b, edge.a] = (edge.kind, edge.forward, edge.backward)
    names = []
    for number, node in enumerate(graph.nodes):
        is_leaf = node.shape == RANK and len(graph.near[number]) == 1
        names.append(f"{graph.near[number][0]} {speed[number, graph.near[number][0]]}" if is_leaf else "")
    return names


def _merge_nodes(graph: Graph, names: Sequence[str]) -> Graph:
    """Nodes of the same name become a stack in the place of the first, called by its box if that is its name."""
    first: dict[str, int] = {}
    new_number, members = [], defaultdict(list)
    representatives: list[Node] = []
    for number, name in enumerate(names):
        if not name or name not in first:
            first[name] = len(representatives)
            representatives.append(graph.nodes[number])
            new_number.append(len(representatives) - 1)
        else:
            new_number.append(first[name])
        members[new_number[-1]].append(number)
    nodes = []
    for number, node in enumerate(representatives):
        ranks = tuple(rank for old in members[number] for rank in graph.nodes[old].ranks)
        if len(members[number]) > 1 and ranks:
            box = node.container if names[members[number][0]] == node.container else ""
            place = box or node.place.rpartition("/")[0] or node.place
            nodes.append(Node(STACK, box or f"{len(ranks)} ranks", place, ranks))
        else:
            nodes.append(node)
    together: dict[tuple[int, int, str, Fraction, Fraction], list[Edge]] = defaultdict(list)
    for edge in graph.edges:
        a, b = new_number[edge.a], new_number[edge.b]
        if a != b:
            forward, backward = (edge.forward, edge.backward) if a < b else (edge.backward, edge.forward)
            together[min(a, b), max(a, b), edge.kind, forward, backward].append(edge)
    edges = [
        Edge(*key, tuple(sorted({name for e in alike for name in e.limits})), sum(e.times for e in alike))
        for key, alike in sorted(together.items())
    ]
    return replace(graph, nodes=tuple(nodes), edges=tuple(edges))
