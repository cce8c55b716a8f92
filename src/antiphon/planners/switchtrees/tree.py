"""Choose roots for a tree of switches, and store it in arrays with the figures of every link.

Input: the tree without a root (`UnrootedTree`), the machine and GenModel's parameters. `candidate_roots` yields where
the root may be; `root_tree` returns the `RootedTree` for one of them.

The position of the root matters: plans are chosen from the leaves to the root, and the root's step is the last.
Candidates are the middle of the tree, the most balanced switch, and the narrowest link, in whose middle an extra switch
may stand.

Nodes are numbered in preorder, a node before those below it, and servers (the members) in the same order. So subtrees
are contiguous: the nodes below v are v+1 .. end[v]-1 and its servers low[v] .. high[v]-1. Sums over subtrees are
differences of prefix sums, and "is below" is a comparison.

Isomorphic subtrees get equal numbers (`shape`), so that their plans are chosen once: bottom-up, a subtree's number
depends on the figures of its link upwards and on the numbers of its children (Aho, Hopcroft and Ullman).

Example: root R with leaf switches A (servers a, b) and B (c): preorder R A a b B c, end = 6 4 3 4 6 6, and the servers
of A are low = 0 to high = 2.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from antiphon.core.columns import Floats, Longs
from antiphon.core.topology import Topology
from antiphon.cost import Profile
from antiphon.planners.switchtrees.graph import UnrootedTree

MIDDLE = -2  # number of the extra switch in the middle of a link, as a node of the graph
Root = int | tuple[int, int]  # a switch, or two: the middle of the link between them


class LinkFigures(NamedTuple):
    """The figures of a link, or of a bundle of parallel links, in one direction."""

    latency: float  # seconds
    beta: float  # seconds per byte
    epsilon: float  # incast: further seconds per byte, for every sender to one receiver beyond `w_t` senders
    w_t: int  # the most senders without incast


NO_LINK = LinkFigures(0.0, 0.0, 0.0, 0)  # above the root


@dataclass(frozen=True, eq=False)
class Direction:
    """By node, the `LinkFigures` of the link to its parent in one direction, as columns."""

    latency: Floats
    beta: Floats
    epsilon: Floats
    w_t: Longs
    link: Longs  # the number of the link, of parallel links the first; -1: half of a link, below a root in its middle


@dataclass(frozen=True, eq=False)
class RootedTree:
    """A rooted tree: node 0 is the root; the nodes below v are v+1 .. end[v]-1, the servers low[v] .. high[v]-1."""

    names: tuple[str, ...]
    parent: Longs
    end: Longs
    low: Longs
    high: Longs
    leaf: Longs  # by server, its node
    member: Longs  # by server, its number among the members of the collective
    up: Direction
    down: Direction
    shape: Longs  # equal for isomorphic subtrees, links upwards included

    @property
    def servers(self) -> int:
        """Number of servers."""
        return len(self.leaf)

    @cached_property
    def children(self) -> list[list[int]]:
        """By node, the nodes directly below it."""
        children: list[list[int]] = [[] for _ in self.names]
        for node, parent in enumerate(self.parent.tolist()):
            if parent >= 0:
                children[parent].append(node)
        return children

    @cached_property
    def alpha(self) -> Floats:
        """By switch, the latency of the longest path through it, from a server below one child to one below another.

        0 for servers, and for switches with a single child.
        """
        # latency to the farthest server below, upwards and downwards
        far = [np.zeros(len(self.parent)) for _ in range(2)]
        out = np.zeros(len(self.parent))
        # nodes are in preorder, so descending numbers visit children before their parents
        for node in range(len(out) - 1, -1, -1):
            below = self.children[node]
            if not below:
                continue
            ends = [
                latency_to[below] + direction.latency[below]
                for latency_to, direction in zip(far, (self.up, self.down), strict=True)
            ]
            for latency_to, reach in zip(far, ends, strict=True):
                latency_to[node] = reach.max()
            if len(below) > 1:
                out[node] = _largest_pair(*ends)
        return out


def _largest_pair(up: Floats, down: Floats) -> float:
    """Return the largest sum of an element of `up` and one of `down` with different indices."""
    i, j = int(up.argmax()), int(down.argmax())
    # if both maxima have the same index, one of the two must take its second largest
    if i != j:
        return float(up[i] + down[j])
    return float(max(up[i] + np.delete(down, i).max(), np.delete(up, j).max() + down[j]))


def candidate_roots(graph: UnrootedTree, topology: Topology) -> Iterator[Root]:
    """Yield where the root may be: the tree's middle, the most balanced switch, the narrowest link between switches."""
    yielded: set[Root] = set()
    for root in (*_middle_roots(graph), *_balanced_roots(graph), *_narrowest_roots(graph, topology)):
        if root not in yielded:
            yielded.add(root)
            yield root


def _middle_roots(graph: UnrootedTree) -> list[Root]:
    """Return the center of the tree: a switch, or a link and both its ends. Found by removing leaves round by round."""
    degree = [len(neighbours) for neighbours in graph.neighbours]
    leaves = [node for node in range(len(degree)) if degree[node] <= 1]
    remaining = len(degree)
    # Jordan: removing all leaves again and again ends with one or two nodes in the middle
    while remaining > 2:
        remaining -= len(leaves)
        next_leaves = []
        for node in leaves:
            degree[node] = 0
            for other in graph.neighbours[node]:
                degree[other] -= 1
                if degree[other] == 1:
                    next_leaves.append(other)
        leaves = next_leaves if remaining > 0 else leaves
    middle = sorted(node for node in leaves if node >= graph.servers)
    return [(middle[0], middle[1]), *middle] if len(middle) == 2 else [*middle]


def _balanced_roots(graph: UnrootedTree) -> list[Root]:
    """Return the switch whose largest branch has fewest servers, and its link to the next best neighbour.

    A branch of a node: the nodes that one of its links leads to. Nodes below `graph.servers` are servers, all others
    switches.
    """
    order, parent = _preorder(graph, graph.servers)
    below = [int(node < graph.servers) for node in range(len(order))]
    largest_branch = [0] * len(order)
    for node in reversed(order):
        # the branch above the node has all servers that are not below it
        largest_branch[node] = max(largest_branch[node], graph.servers - below[node])
        if parent[node] >= 0:
            below[parent[node]] += below[node]
            largest_branch[parent[node]] = max(largest_branch[parent[node]], below[node])
    best = min(range(graph.servers, len(graph.names)), key=lambda node: (largest_branch[node], node))
    switches_beside = [node for node in graph.neighbours[best] if node >= graph.servers]
    if not switches_beside:
        return [best]
    other = min(switches_beside, key=lambda node: (largest_branch[node], node))
    return [best, (min(best, other), max(best, other))]


def _narrowest_roots(graph: UnrootedTree, topology: Topology) -> list[Root]:
    """Return the link between two switches with least bandwidth, and both its ends."""
    width = [float(kind.bandwidth) for kind in topology.types]
    widths = [
        (sum(width[kind] for kind in topology.link_type[links].tolist()), pair)
        for pair, links in graph.links.items()
        if graph.servers <= pair[0] < pair[1]
    ]
    if not widths:
        return []
    _, pair = min(widths)
    return [pair, *pair]


def _preorder(graph: UnrootedTree, start: int) -> tuple[list[int], list[int]]:
    """Return the nodes in preorder from a start, and each node's parent."""
    parent = [-1] * len(graph.neighbours)
    order, pending, visited = [], [start], {start}
    while pending:
        node = pending.pop()
        order.append(node)
        for other in reversed(graph.neighbours[node]):
            if other not in visited:
                visited.add(other)
                parent[other] = node
                pending.append(other)
    return order, parent


def root_tree(graph: UnrootedTree, root: Root, topology: Topology, profile: Profile) -> RootedTree:
    """Return the tree from this root. `topology`: with the profile's figures. O(nodes log nodes + links)."""
    order, parent = _split_link(graph, root) if isinstance(root, tuple) else _preorder(graph, root)
    position = {node: i for i, node in enumerate(order)}
    parents = np.array([-1, *(position[parent[node]] for node in order[1:])], np.int64)
    # subtree sizes give the end of every subtree; running counts of servers in preorder give low and high
    is_server = np.array([0 <= node < graph.servers for node in order])
    servers_so_far = np.cumsum(is_server)
    size = np.ones(len(order), np.int64)
    for node in range(len(order) - 1, 0, -1):
        size[parents[node]] += size[node]
    end = np.arange(len(order)) + size
    low = servers_so_far - is_server
    high = servers_so_far[end - 1]
    # figures of every node's link upwards, in both directions
    links = _Links(graph, topology, profile)
    rows = [(NO_LINK, NO_LINK)]  # by node: upwards, downwards
    link_numbers = [(-1, -1)]
    for node in order[1:]:
        to, latency_factor = parent[node], 1.0
        # an end of a split link: figures of the whole link to the other end, with half of its latency. Each direction
        # of the link is counted once, at the end that sends upwards; so the number downwards is -1
        if to == MIDDLE and isinstance(root, tuple):
            to, latency_factor = root[1 - root.index(node)], 0.5
        rows.append((links.bundle_figures(node, to, latency_factor), links.bundle_figures(to, node, latency_factor)))
        link_numbers.append((graph.links[node, to][0], -1 if latency_factor < 1 else graph.links[to, node][0]))
    up, down = (_make_direction([row[i] for row in rows], [pair[i] for pair in link_numbers]) for i in (0, 1))
    name = "-".join(graph.names[node] for node in root) if isinstance(root, tuple) else graph.names[root]
    return RootedTree(
        names=(name, *(graph.names[node] for node in order[1:])), parent=parents, end=end, low=low, high=high,
        leaf=np.flatnonzero(is_server), up=up, down=down, shape=_label_subtrees(parents, rows),
        member=np.array([node for node in order if 0 <= node < graph.servers], np.int64),
    )  # fmt: skip


def _make_direction(figures: Sequence[LinkFigures], links: Sequence[int]) -> Direction:
    """Return the figures of every node's link as columns, with the link's number."""
    latency, beta, epsilon, w_t = (np.array(column) for column in zip(*figures, strict=True))
    return Direction(latency, beta, epsilon, w_t, np.array(links, np.int64))


def _split_link(graph: UnrootedTree, root: tuple[int, int]) -> tuple[list[int], list[int]]:
    """Return preorder and parents, as `_preorder`, from an extra switch in the middle of the link between two nodes."""
    first, second = root
    order, parent = _preorder(graph, first)
    second_half = {second}
    for node in order:
        if parent[node] in second_half:
            second_half.add(node)
    for end in root:
        parent[end] = MIDDLE
    first_half = [node for node in order if node not in second_half]
    return [MIDDLE, *first_half, *(node for node in order if node in second_half)], parent


def _label_subtrees(parent: Longs, rows: Sequence[object]) -> Longs:
    """Return a number per subtree such that isomorphic ones have equal numbers. `rows`: figures of links upwards."""
    children: list[list[int]] = [[] for _ in rows]
    number: dict[tuple[object, ...], int] = {}
    out = np.zeros(len(rows), np.int64)
    for node in range(len(rows) - 1, -1, -1):
        # equal link figures and equal lists of subtrees (AHU); children in order, so mirrored subtrees may differ
        key = (rows[node], *children[node])
        out[node] = number.setdefault(key, len(number))
        if node:
            children[parent[node]].append(int(out[node]))
    return out


class _Links:
    """The figures of the bundle of parallel links from one node of the graph to a neighbour, cached."""

    def __init__(self, graph: UnrootedTree, topology: Topology, profile: Profile) -> None:
        self.graph, self.topology, self.profile = graph, topology, profile
        self.width = [float(kind.bandwidth) for kind in topology.types]
        self.limits: dict[int, list[int]] = {}
        for number, limit in enumerate(topology.limits):
            for link in limit.links:
                self.limits.setdefault(link, []).append(number)
        self.figures_of: dict[tuple[int, float], LinkFigures] = {}  # by type of link and factor, of single links

    def bundle_figures(self, a: int, b: int, latency_factor: float = 1.0) -> LinkFigures:
        """Return the figures from a to b within shared limits, the latency times the factor."""
        links = self.graph.links[a, b]
        key = (int(self.topology.link_type[links[0]]), latency_factor)
        if len(links) > 1 or links[0] in self.limits:
            return self._measure_bundle(links, latency_factor)
        if key not in self.figures_of:
            self.figures_of[key] = self._measure_bundle(links, latency_factor)
        return self.figures_of[key]

    def _measure_bundle(self, links: list[int], latency_factor: float) -> LinkFigures:
        """Return the figures of these links together: the worst latency and incast, the total bandwidth."""
        kinds = [int(self.topology.link_type[link]) for link in links]
        shared: dict[int, float] = {}
        unlimited_width = 0.0
        for link, kind in zip(links, kinds, strict=True):
            limits = self.limits.get(link)
            if limits:
                narrowest = min(limits, key=lambda i: self.topology.limits[i].bandwidth)
                # links in one shared limit have at most its bandwidth together
                shared[narrowest] = shared.get(narrowest, 0.0) + self.width[kind]
            else:
                unlimited_width += self.width[kind]
        total = unlimited_width + sum(
            min(width, float(self.topology.limits[i].bandwidth)) for i, width in shared.items()
        )
        types = [self.topology.types[kind] for kind in sorted(set(kinds))]
        incasts = [self.profile.incast[t.kind] for t in types if t.kind in self.profile.incast]
        worst_incast = max(incasts, key=lambda incast: incast.epsilon, default=None)
        epsilon, w_t = (worst_incast.epsilon, worst_incast.w_t) if worst_incast is not None else (0.0, 0)
        return LinkFigures(latency_factor * max(t.latency for t in types), 1 / total, epsilon, w_t)
