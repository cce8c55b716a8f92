"""Prepare a machine for drawing: nodes with labels, links merged per pair and kind, identical ranks or boxes folded.

`graph_of` turns a topology into a `DrawnGraph`: a `DrawnEdge` stands for all links of one kind between two nodes, both
ways. A machine with too many nodes is folded (`fold_nodes`): first the equal ranks of each switch become one node, a
stack; if that is not enough, each box of a cluster does. For 32 boxes of 8 GPUs, 256 circles become 32 stacks of 8
ranks.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property

from antiphon.core.topology import Topology
from antiphon.units import format_bandwidth

RANK, SWITCH, STACK = "rank", "switch", "stack"
# a box of a cluster, or another container of nodes, at the beginning of a place
_CONTAINER = re.compile(r"((?:host|box|node|group|dc)\d+)/")


@dataclass(frozen=True)
class DrawnNode:
    """A node as drawn: a rank, a switch, or a stack of ranks that are drawn as one.

    `shape`: RANK, SWITCH or STACK. `place`: its path in the machine, such as "host0/gpu3".
    `ranks`: the ranks that it stands for.
    `members`: the nodes of the machine that it stands for, if they are several.
    """

    shape: str
    label: str
    place: str
    ranks: tuple[int, ...] = ()
    members: tuple[int, ...] = ()

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
        """The box of a cluster that it is in, or ""."""
        match = _CONTAINER.match(self.place)
        return match[1] if match else ""


@dataclass(frozen=True)
class DrawnEdge:
    """All links of one kind between two nodes: bytes per second from a to b and back, and the limits they share."""

    a: int
    b: int
    kind: str
    forward: Fraction
    backward: Fraction
    limits: tuple[str, ...] = ()
    count: int = 1  # number of equal edges that folding merged, each with these bandwidths

    @property
    def bandwidth(self) -> Fraction:
        """The bandwidth of all of them together, in one direction."""
        return self.count * max(self.forward, self.backward)

    def speed(self, back: bool = False) -> str:
        """Return the bandwidth of one direction as text: 25 GB/s, or 24 x 25 GB/s."""
        bandwidth_text = format_bandwidth(self.backward if back else self.forward)
        return bandwidth_text if self.count == 1 else f"{self.count} x {bandwidth_text}"

    @property
    def symmetric(self) -> bool:
        return self.forward == self.backward


@dataclass(frozen=True)
class DrawnGraph:
    """The machine as drawn. `limits`: shared limits by name, each described in words."""

    nodes: tuple[DrawnNode, ...]
    edges: tuple[DrawnEdge, ...]
    limits: dict[str, str] = field(default_factory=dict)

    @cached_property
    def neighbours(self) -> list[list[int]]:
        """The neighbours of every node, ascending."""
        neighbour_sets: list[set[int]] = [set() for _ in self.nodes]
        for edge in self.edges:
            neighbour_sets[edge.a].add(edge.b)
            neighbour_sets[edge.b].add(edge.a)
        return [sorted(neighbours) for neighbours in neighbour_sets]

    def is_tree(self, nodes: Sequence[int]) -> bool:
        """Return whether these nodes form a tree whose leaves are the ranks."""
        inside = set(nodes)
        degree = {node: sum(other in inside for other in self.neighbours[node]) for node in nodes}
        are_ranks_leaves = all(degree[n] == 1 for n in nodes if self.nodes[n].shape != SWITCH)
        return are_ranks_leaves and sum(degree.values()) == 2 * (len(nodes) - 1) and self._is_connected(nodes)

    def _is_connected(self, nodes: Sequence[int]) -> bool:
        """Return whether all of these nodes reach each other through these nodes alone."""
        inside, stack = set(nodes), [nodes[0]]
        inside.discard(nodes[0])
        while stack:
            new_nodes = [other for other in self.neighbours[stack.pop()] if other in inside]
            inside.difference_update(new_nodes)
            stack += new_nodes
        return not inside


def graph_of(topology: Topology) -> DrawnGraph:
    """Return the graph of every rank and switch, with an edge per pair of nodes and kind of link. O(links)."""
    nodes = [DrawnNode(RANK, str(r), topology.places[r], (r,)) for r in range(topology.ranks)]
    for switch in range(topology.ranks, topology.nodes):
        place = topology.places[switch]
        label = place.rpartition("/")[2]  # routers of grids are many, and drawn small without one
        nodes.append(DrawnNode(SWITCH, "" if label == "router" else label[:16], place))
    # shared limits: those of both directions ("card0 out", "card0 in") become one ("card0") if they are equal
    limit_names: dict[int, list[str]] = defaultdict(list)  # names of the limits of each link
    limits: dict[str, str] = {}
    sizes = {limit.name: (limit.bandwidth, len(limit.links)) for limit in topology.limits}
    for limit in topology.limits:
        description = f"{format_bandwidth(limit.bandwidth)} shared by {len(limit.links)} links"
        name = re.sub(r" (out|in)$", "", limit.name)
        if name != limit.name and sizes.get(f"{name} out") == sizes.get(f"{name} in"):
            limits[name] = f"{description}, each way"
        else:
            name = limit.name
            limits[name] = description
        for link in limit.links:
            limit_names[link].append(name)
    speeds: dict[tuple[int, int, str], Fraction] = defaultdict(Fraction)
    shared: dict[tuple[int, int, str], set[str]] = defaultdict(set)
    ends = zip(topology.link_src.tolist(), topology.link_dst.tolist(), topology.link_type.tolist(), strict=True)
    for link, (a, b, kind) in enumerate(ends):
        type_ = topology.types[kind]
        speeds[a, b, type_.kind] += type_.bandwidth
        if link in limit_names:
            shared[min(a, b), max(a, b), type_.kind].update(limit_names[link])
    return DrawnGraph(tuple(nodes), _gather_edges(speeds, shared), limits)


def _gather_edges(
    speeds: dict[tuple[int, int, str], Fraction], shared: dict[tuple[int, int, str], set[str]]
) -> tuple[DrawnEdge, ...]:
    """Return an edge per pair of nodes and kind, from bandwidths by (from, to, kind), and the names of shared limits by
    (lower node, higher node, kind).
    """
    pairs = sorted({(min(a, b), max(a, b), kind) for a, b, kind in speeds})
    zero = Fraction(0)
    return tuple(
        DrawnEdge(
            a,
            b,
            kind,
            forward=speeds.get((a, b, kind), zero),
            backward=speeds.get((b, a, kind), zero),
            limits=tuple(sorted(shared[a, b, kind])),
        )
        for a, b, kind in pairs
    )


def fold_nodes(graph: DrawnGraph, max_nodes: int) -> DrawnGraph:
    """Return a graph of at most `max_nodes` nodes, if folding can do it.

    Equal ranks of a switch are drawn as one; if that is not enough, every box of a cluster is.
    """
    for folded in fold_levels(graph):
        graph = folded
        if len(graph.nodes) <= max_nodes:
            break
    return graph


def fold_levels(graph: DrawnGraph) -> Iterator[DrawnGraph]:
    """Yield the graph, the graph with the equal ranks of every switch as one, and that with every box as one node."""
    yield graph
    graph = _merge_nodes(graph, _leaf_names(graph))
    yield graph
    yield _merge_nodes(graph, [node.container for node in graph.nodes])


def _leaf_names(graph: DrawnGraph) -> list[str]:
    """Return a name per node, by which `_merge_nodes` merges: the same for ranks with equal links to one switch only.

    "" for all other nodes.
    """
    links_between = defaultdict(list)  # by pair of nodes: kind and speeds, from the first node to the second and back
    for edge in graph.edges:
        links_between[edge.a, edge.b].append((edge.kind, edge.forward, edge.backward))
        links_between[edge.b, edge.a].append((edge.kind, edge.backward, edge.forward))
    names = []
    for number, node in enumerate(graph.nodes):
        is_leaf = node.shape == RANK and len(graph.neighbours[number]) == 1
        switch = graph.neighbours[number][0] if is_leaf else -1
        names.append(f"{switch} {sorted(links_between[number, switch])}" if is_leaf else "")
    return names


def _merge_nodes(graph: DrawnGraph, names: Sequence[str]) -> DrawnGraph:
    """Merge nodes of the same name into one, a stack. If the name is that of a box, so is the label of the stack."""
    number_of_name: dict[str, int] = {}
    new_number, members = [], defaultdict(list)  # of each old node its new number; of each new node its old numbers
    representatives: list[DrawnNode] = []  # of each new node, the first old one
    for number, name in enumerate(names):
        if not name or name not in number_of_name:
            number_of_name[name] = len(representatives)
            representatives.append(graph.nodes[number])
            new_number.append(len(representatives) - 1)
        else:
            new_number.append(number_of_name[name])
        members[new_number[-1]].append(number)
    nodes = []
    for number, node in enumerate(representatives):
        ranks = tuple(rank for old in members[number] for rank in graph.nodes[old].ranks)
        if len(members[number]) > 1 and ranks:
            box = node.container if names[members[number][0]] == node.container else ""
            place = box or node.place.rpartition("/")[0] or node.place
            inside = tuple(n for old in members[number] for n in graph.nodes[old].members or (old,))
            nodes.append(DrawnNode(STACK, box or f"{len(ranks)} ranks", place, ranks, inside))
        else:
            nodes.append(node if node.members else replace(node, members=(members[number][0],)))
    merged: dict[tuple[int, int, str, Fraction, Fraction], list[DrawnEdge]] = defaultdict(list)
    for edge in graph.edges:
        a, b = new_number[edge.a], new_number[edge.b]
        if a != b:
            forward, backward = (edge.forward, edge.backward) if a < b else (edge.backward, edge.forward)
            merged[min(a, b), max(a, b), edge.kind, forward, backward].append(edge)
    edges = [
        DrawnEdge(
            *key, tuple(sorted({name for e in equal_edges for name in e.limits})), sum(e.count for e in equal_edges)
        )
        for key, equal_edges in sorted(merged.items())
    ]
    return replace(graph, nodes=tuple(nodes), edges=tuple(edges))
