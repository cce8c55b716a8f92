"""Find trees of switches that join ranks, over which switches can reduce and multicast.

Input of `switch_trees`: a machine, its members, and the abilities that switches need. Output: the best trees
(`SwitchTree`), each with the members as leaves and with a link each way between neighbours. A reduction or multicast
by switches (a joint) needs such a tree: the paths between its ranks meet at switches, which combine or copy the data.

A shortest-path search from every switch, as the root of a tree (the hub), gives the candidates. Those whose branching
switches have the abilities stay. Of these the best reach the fewest ranks that are not members; ties: the widest, then
those of the fewest levels.

Example: 8 GPUs in a box with 4 parallel NVSwitches: 4 trees of equal width, each one switch with the GPUs below it; the
data are shared between them.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from antiphon.core.columns import AnyInts, Longs, distinct, order_of, run_starts
from antiphon.core.routes import Routes
from antiphon.core.topology import Topology

MOST_HUBS = 64  # hubs tried, those nearest to the ranks first
MOST_TREES = 8  # trees used at the same time, each for a share of the data


@dataclass(frozen=True, eq=False)
class SwitchTree:
    """A tree as paths from its root (the hub) to every rank; row i describes the i-th rank (position i).

    `node[i]`: the nodes from the hub down to the rank. `down[i, j]`: the link from the j-th of them to the next;
    `up[i, j]`: the one back. -1 beyond the rank.
    """

    node: NDArray[np.int64]
    up: NDArray[np.int64]
    down: NDArray[np.int64]

    @property
    def ranks(self) -> Longs:
        """The ranks by position."""
        depth = (self.up >= 0).sum(axis=1)
        ranks: Longs = self.node[np.arange(len(depth)), depth]
        return ranks

    @property
    def links(self) -> Longs:
        """All links of the tree, ascending."""
        return distinct(np.concatenate([side[side >= 0] for side in (self.up, self.down)]))

    def find_paths(self, src: Longs, dst: Longs) -> Routes:
        """Return a path through the tree from every rank of `src` to that of `dst`, both given by position."""
        levels = self.up.shape[1]
        # number of common ancestors: the length of the common prefix
        common_nodes = np.cumprod(self.node[src] == self.node[dst], axis=1).sum(axis=1)[:, None]
        level = np.arange(levels)[None, :]
        below = level >= common_nodes - 1
        # a row is from the hub down, so reversed it is from the rank up
        rising, falling = self.up[src][:, ::-1], self.down[dst]
        links = np.concatenate([rising, falling], axis=1)
        on_path = np.concatenate([below[:, ::-1], below], axis=1) & (links >= 0)
        ptr = np.concatenate([[0], np.cumsum(on_path.sum(axis=1))]).astype(np.int64)
        return Routes(ptr, links[on_path].astype(np.int32))

    def branching_switches(self, topology: Topology) -> Longs:
        """Return the switches with three neighbours or more in the tree: there data are combined or copied."""
        out_degree = np.bincount(topology.link_src[self.links], minlength=topology.nodes)
        return np.flatnonzero(out_degree >= 3)

    def narrowest_bandwidth(self, topology: Topology) -> Fraction:
        """Return the bandwidth of the narrowest link."""
        return min(topology.types[kind].bandwidth for kind in np.unique(topology.link_type[self.links]).tolist())

    def joint_limit(self, topology: Topology) -> int:
        """Return the number of joints that its switches serve at once; 0 if none states a limit."""
        limits = (topology.ability(node).at_once for node in self.branching_switches(topology).tolist())
        return min((count for count in limits if count), default=0)


def switch_trees(
    topology: Topology, members: AnyInts, *, multicast: bool = False, reduce: bool = False, through: bool = False
) -> list[SwitchTree]:
    """Return the best trees of switches with these abilities that join the members; all of them if several are equal.

    Best are those that reach the fewest other ranks (a box's own switches rather than the fabric's), then the widest,
    then those of the fewest levels. `through`: some switch must forward what it combined. A search from every switch.
    """
    trees = []
    for predecessor, distance in _find_hubs(topology, members):
        tree = _build_tree(topology, members, predecessor, distance)
        if _is_able(topology, tree, multicast or through, reduce or through, through):
            reached = int((distance[: topology.ranks] > 0).sum())
            trees.append(((-reached, tree.narrowest_bandwidth(topology), -tree.up.shape[1]), tree))
    best = max((quality for quality, _ in trees), default=None)
    distinct_trees: dict[bytes, SwitchTree] = {}  # by their links
    for quality, tree in trees:
        if quality == best:
            distinct_trees.setdefault(tree.links.tobytes(), tree)
    return list(distinct_trees.values())[:MOST_TREES]


def usable_trees(topology: Topology, trees: list[SwitchTree]) -> tuple[list[SwitchTree], int]:
    """Return the trees to use at the same time, and the number of joints that each may serve at once (0: no limit).

    The limit of a switch is divided between the trees, which may share switches.
    """
    joints_at_once = min((count for tree in trees if (count := tree.joint_limit(topology))), default=0)
    if not joints_at_once:
        return trees, 0
    if joints_at_once < len(trees):  # not one joint for each tree: use a single tree
        return trees[:1], joints_at_once
    return trees, joints_at_once // len(trees)


def _find_hubs(topology: Topology, members: AnyInts) -> list[tuple[Longs, Longs]]:
    """Return, for each possible hub, the predecessor of every node on the path from the hub, and its distance.

    A hub is a switch that reaches all members, and back, through switches. Those whose farthest member is nearest come
    first.
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import dijkstra

    if not topology.switches:
        return []
    nodes = topology.nodes
    src, dst = topology.link_src.astype(np.int64), topology.link_dst.astype(np.int64)
    # links out of switches that have an opposite: the tree is used both ways
    leads_down = (src >= topology.ranks) & np.isin(src * nodes + dst, dst * nodes + src)
    pair = distinct(src[leads_down] * nodes + dst[leads_down])
    graph = csr_array((np.ones(len(pair)), (pair // nodes, pair % nodes)), shape=(nodes, nodes))
    switches = np.arange(topology.ranks, nodes)
    # by switch, the distance of its farthest member; infinite if one is out of reach
    farthest = dijkstra(graph, unweighted=True, indices=switches)[:, members].max(axis=1)
    hubs = switches[np.argsort(farthest, kind="stable")][: min(int(np.isfinite(farthest).sum()), MOST_HUBS)]
    if not len(hubs):
        return []
    distance, predecessor = dijkstra(graph, unweighted=True, indices=hubs, return_predecessors=True)
    distance = np.where(np.isfinite(distance), distance, 0).astype(np.int64)
    return [(predecessor[i].astype(np.int64), distance[i]) for i in range(len(hubs))]


def _build_tree(topology: Topology, members: AnyInts, predecessor: Longs, distance: Longs) -> SwitchTree:
    """Return the tree of the paths from a hub to the members, by the widest links."""
    depth = distance[members]
    node = np.full((len(members), int(depth.max()) + 1), -1, np.int64)
    current, remaining_hops = np.array(members, np.int64), depth.copy()
    rows = np.arange(len(members))
    # walk from all ranks to the hub at once, until each has arrived
    while len(rows):
        node[rows, remaining_hops[rows]] = current[rows]
        rows = rows[remaining_hops[rows] > 0]
        current[rows], remaining_hops[rows] = predecessor[current[rows]], remaining_hops[rows] - 1
    parent, child = node[:, :-1], node[:, 1:]
    exists = child >= 0
    up, down = np.full(parent.shape, -1, np.int64), np.full(parent.shape, -1, np.int64)
    up[exists] = _widest_links(topology, child[exists], parent[exists])
    down[exists] = _widest_links(topology, parent[exists], child[exists])
    return SwitchTree(node, up, down)


def _widest_links(topology: Topology, src: Longs, dst: Longs) -> Longs:
    """Return the widest link of each pair, the first of equals."""
    distinct_widths = sorted({kind.bandwidth for kind in topology.types}, reverse=True)
    # per link its place among the bandwidths, 0: the widest
    width_order = np.array([distinct_widths.index(kind.bandwidth) for kind in topology.types])[topology.link_type]
    key = topology.link_src.astype(np.int64) * topology.nodes + topology.link_dst
    order = order_of(key * len(distinct_widths) + width_order, bound=topology.nodes**2 * len(distinct_widths))
    first = np.flatnonzero(run_starts(key[order]))
    widest: Longs = order[first[np.searchsorted(key[order][first], src * topology.nodes + dst)]]
    return widest


def _is_able(topology: Topology, tree: SwitchTree, multicast: bool, reduce: bool, through: bool) -> bool:
    """Return whether the switches of a tree have these abilities where they need them."""
    for node in tree.branching_switches(topology).tolist():
        ability = topology.ability(node)
        if (multicast and not ability.multicast) or (reduce and not ability.reduce):
            return False
    inner = distinct(tree.node[:, :-1][tree.up >= 0])
    abilities = [topology.ability(node) for node in inner.tolist()]
    # sending a sum on to a multicast without a rank in between needs one switch that can do both
    return not through or any(each.through and each.reduce and each.multicast for each in abilities)
