"""A cheap tree of bounded depth: which ranks become hubs is searched greedily, at prices of links.

Cheapest spanning trees of bounded depth are NP-hard (they hold facility location), so no optimum is promised. A tree
begins as one of fewest hops, or grows by the cheapest ways; then, as long as that saves anything, the rank that saves
most becomes the parent of all whose parent it can be for less, within the depth.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.core.columns import Longs
from antiphon.core.topology import Topology

Floats = NDArray[np.float64]
FAR = 1e30  # the price of a way that is not there
WORTH = 1e-9  # the least part of the price that a change must save


class Ways:
    """What the cheapest way from each rank to each other costs, through switches alone, and which links it takes."""

    def __init__(self, topology: Topology, ranks: Longs, links: Longs) -> None:
        """By these links alone. Ranks enter as themselves and are left as numbers beyond all nodes, so that no way
        leads through one."""
        self.ranks, self.nodes, self.taken = ranks, topology.nodes, links
        src, dst = topology.link_src[links].astype(np.int64), topology.link_dst[links].astype(np.int64)
        self.tail = np.where(src < topology.ranks, src + topology.nodes, src)
        self.head = dst
        self.size = topology.nodes + topology.ranks

    def priced(self, price: Floats) -> tuple[Floats, NDArray[np.int32], Longs]:
        """(price by ranks, predecessors, number of the cheapest link by ends)."""
        import scipy.sparse as sp
        from scipy.sparse.csgraph import dijkstra

        price = price[self.taken]
        order = np.lexsort((price, self.head, self.tail))
        first = np.ones(len(order), bool)
        first[1:] = (np.diff(self.tail[order]) != 0) | (np.diff(self.head[order]) != 0)
        kept = order[first]
        graph = sp.csr_array((price[kept], (self.tail[kept], self.head[kept])), shape=(self.size, self.size))
        far, before = dijkstra(graph, indices=self.ranks + self.nodes, return_predecessors=True)
        cost = far[:, self.ranks]
        cost[~np.isfinite(cost)] = FAR
        np.fill_diagonal(cost, FAR)
        key = self.tail[kept] * self.size + self.head[kept]
        ascending = np.argsort(key)
        return cost, before, np.stack([key[ascending], self.taken[kept[ascending]]])

    def links(self, found: tuple[Any, NDArray[np.int32], Longs], tail: int, head: int) -> tuple[int, ...]:
        """The links of the cheapest way, by places in `ranks`."""
        _, before, (key, link) = found
        path = []
        node, start = int(self.ranks[head]), int(self.ranks[tail]) + self.nodes
        while node != start:
            last = int(before[tail, node])
            path.append(int(link[np.searchsorted(key, last * self.size + node)]))
            node = last
        return tuple(path[::-1])


@dataclass(frozen=True, eq=False)
class Grown:
    """By places: every rank's parent (-1: the root's), and its depth; how many hubs were looked for."""

    parent: Longs
    depth: Longs
    hubs: int


def grown(cost: Floats, root: int, most: int, hubs: int, near: bool = False) -> Grown | None:
    """A tree out of the root whose depth is at most `most`; None where there is none. `near`: it begins rank by rank
    by the cheapest ways, if that reaches all, else with the fewest hops. `hubs`: no more are looked for. O(ranks^2) per
    hub."""
    begun = (_nearest(cost, root, most) if near else None) or _fewest_hops(cost, root, most)
    return None if begun is None else _improved(cost, root, most, hubs, *begun)


def _improved(cost: Floats, root: int, most: int, hubs: int, parent: Longs, depth: Longs) -> Grown:
    """As long as that saves anything the rank that saves most becomes the parent of all whose parent it can be for
    less."""
    count = len(cost)
    everyone = np.arange(count)
    looked = 0
    while looked < min(4 * count, hubs):
        looked += 1
        height = _heights(parent, depth)
        paid = cost[parent, everyone]
        paid[root] = 0
        saved = paid[None, :] - cost  # by [new parent, rank]
        saved[(depth[:, None] + 1 + height[None, :]) > most] = 0
        saved[:, root] = 0
        np.maximum(saved, 0, out=saved)
        _without_own(saved, parent, depth)
        gain = saved.sum(axis=1)
        hub = int(gain.argmax())
        if gain[hub] <= WORTH * (paid.sum() + WORTH):
            break
        moved = np.flatnonzero(saved[hub] > 0)
        parent[moved] = hub
        depth = _depths(parent, root)
    return Grown(parent, depth, looked)


def _nearest(cost: Floats, root: int, most: int) -> tuple[Longs, Longs] | None:
    """Rank by rank, always the one that the cheapest way leads to from a rank that is not too deep; None where the
    others are too deep then.

    >>> cost = np.array([[FAR, 2, 3], [FAR, FAR, 1], [FAR, FAR, FAR]])
    >>> [part.tolist() for part in _nearest(cost, 0, 2)]
    [[-1, 0, 1], [0, 1, 2]]
    >>> [part.tolist() for part in _nearest(cost, 0, 1)]
    [[-1, 0, 0], [0, 1, 1]]
    """
    count = len(cost)
    parent, depth = np.full(count, -1, np.int64), np.full(count, -1, np.int64)
    depth[root] = 0
    by, price = np.full(count, root), cost[root].copy()
    price[root] = np.inf
    for _ in range(count - 1):
        rank = int(price.argmin())
        if price[rank] >= FAR:
            return None
        parent[rank], depth[rank] = by[rank], depth[by[rank]] + 1
        price[rank] = np.inf
        if depth[rank] < most:
            less = (cost[rank] < price) & (depth < 0)
            by[less], price[less] = rank, cost[rank][less]
    return parent, depth


def _fewest_hops(cost: Floats, root: int, most: int) -> tuple[Longs, Longs] | None:
    """Level by level, each rank from the cheapest of the level before."""
    count = len(cost)
    parent, depth = np.full(count, -1, np.int64), np.full(count, -1, np.int64)
    depth[root] = 0
    for level in range(most):
        tails, heads = np.flatnonzero(depth == level), np.flatnonzero(depth < 0)
        if not len(heads) or not len(tails):
            break
        some = cost[np.ix_(tails, heads)]
        best = some.argmin(axis=0)
        reached = some[best, np.arange(len(heads))] < FAR
        parent[heads[reached]] = tails[best[reached]]
        depth[heads[reached]] = level + 1
    return None if (depth < 0).any() else (parent, depth)


def _heights(parent: Longs, depth: Longs) -> Longs:
    """How far the farthest rank below each is."""
    height = np.zeros(len(parent), np.int64)
    for level in range(int(depth.max()), 0, -1):
        here = np.flatnonzero(depth == level)
        np.maximum.at(height, parent[here], height[here] + 1)
    return height


def _depths(parent: Longs, root: int) -> Longs:
    depth = np.full(len(parent), -1, np.int64)
    depth[root] = 0
    todo = depth < 0
    while todo.any():
        ready = todo & (depth[parent] >= 0)
        depth[ready] = depth[parent[ready]] + 1
        todo &= ~ready
    return depth


def _without_own(saved: Floats, parent: Longs, depth: Longs) -> None:
    """No rank may hang below itself: what is above a hub cannot become its child."""
    everyone = np.arange(len(parent))
    above: Longs = everyone
    for _ in range(int(depth.max())):
        above = np.where(parent[above] >= 0, parent[above], above)
        saved[everyone, above] = 0
    saved[everyone, everyone] = 0
