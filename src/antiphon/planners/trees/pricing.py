"""The cheapest trees under prices of links and shared limits: what column generation asks for.

Prices are whole numbers, so every answer is exact, and an exact pricing run proves a bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.core.topology import Topology
from antiphon.planners.shared.reach import Hop

FAR = 2**60  # dearer than any tree of int64 prices

Costs = NDArray[Any]  # ranks x ranks: what the cheapest hop costs
Parents = list[int]  # per rank the rank it is reached from; -1 for the root and ranks left out


class Fares:
    """A machine's hops between ranks, straight or through switches, with what each costs."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        resources = topology.resources
        self.limit_ptr, self.limit_of = resources.limit_ptr, resources.limit_of
        nodes = topology.nodes
        key = topology.link_src.astype(np.int64) * nodes + topology.link_dst
        self.order = np.argsort(key, kind="stable")
        self.pairs, self.first = np.unique(key[self.order], return_index=True)
        self.size = np.diff([*self.first, len(self.order)])
        # of two trees as cheap the one over fewer links: prices are multiplied by more than those can be, a link adds 1
        self.step = 1 << (topology.ranks * (topology.switches + 1)).bit_length()
        widest = int(np.diff(self.limit_ptr).max(initial=0)) + 1
        self.most = 4 * self.step * widest * topology.ranks * (topology.switches + 1)  # of any tree at prices of 1
        self.owner = np.repeat(np.arange(topology.links), np.diff(self.limit_ptr))

    def at(self, price: NDArray[Any]) -> Quote:
        """The cheapest hops at these prices, one per link and shared limit. O(switches * nodes^2)."""
        topology = self.topology
        nodes, ranks, links = topology.nodes, topology.ranks, topology.links
        each = price[:links] * self.step + 1
        if len(self.owner):
            np.add.at(each, self.owner, price[self.limit_of] * self.step)
        offered = each[self.order]
        least = np.minimum.reduceat(offered, self.first)
        chosen = self.order[self._first_least(offered, least)]
        far: Any = FAR if price.dtype != object else (int(each.sum()) + 1) * 4 * ranks
        cost = np.full(nodes * nodes, far, price.dtype)
        cost[self.pairs] = least
        link = np.full(nodes * nodes, -1, np.int64)
        link[self.pairs] = chosen
        cost, via = cost.reshape(nodes, nodes), np.full((nodes, nodes), -1, np.int64)
        for switch in range(ranks, nodes):
            tails = np.flatnonzero(cost[:, switch] < far)
            heads = np.flatnonzero(cost[switch] < far)
            block = np.ix_(tails, heads)
            through = cost[tails, switch][:, None] + cost[switch, heads][None, :]
            better = through < cost[block]
            cost[block] = np.where(better, through, cost[block])
            via[block] = np.where(better, switch, via[block])
        hops = cost[:ranks, :ranks].copy()
        hops[np.arange(ranks), np.arange(ranks)] = far
        return Quote(self, hops, far, link.reshape(nodes, nodes), via)

    def reached(self, starts: Sequence[int]) -> dict[int, int]:
        """The ranks that data from these can reach, and after how many hops. O(links)."""
        ranks, out = self.topology.ranks, self.out
        seen, level, depth = dict.fromkeys(starts, 0), [*starts], 0
        while level:
            depth += 1
            todo, level = level, []
            for node in todo:
                for head in out[node]:
                    if head not in seen:
                        seen[head] = depth
                        (todo if head >= ranks else level).append(head)
        return {node: deep for node, deep in seen.items() if node < ranks}

    @cached_property
    def out(self) -> list[list[int]]:
        """The nodes that links lead to, of every node."""
        found: list[list[int]] = [[] for _ in range(self.topology.nodes)]
        for tail, head in zip(*(part.tolist() for part in np.divmod(self.pairs, self.topology.nodes)), strict=True):
            found[tail].append(head)
        return found

    def _first_least(self, offered: NDArray[Any], least: NDArray[Any]) -> NDArray[np.int64]:
        if len(least) == len(offered):
            return self.first
        hit = np.flatnonzero(offered == np.repeat(least, self.size))
        pair = np.repeat(np.arange(len(least)), self.size)[hit]
        return hit[np.unique(pair, return_index=True)[1]]


class Quote:
    """All cheapest hops at some prices."""

    def __init__(self, fares: Fares, cost: Costs, far: int, link: NDArray[np.int64], via: NDArray[np.int64]) -> None:
        self.fares, self.cost, self.far, self._link, self._via = fares, cost, far, link, via
        self._known: dict[tuple[int, int], tuple[int, ...]] = {}

    def path(self, a: int, b: int) -> tuple[int, ...]:
        """The links of the cheapest hop."""
        if (a, b) not in self._known:
            switch = int(self._via[a, b])
            whole = (int(self._link[a, b]),) if switch < 0 else self.path(a, switch) + self.path(switch, b)
            self._known[a, b] = whole
        return self._known[a, b]

    def price(self, cost: Costs, parents: Parents) -> int:
        """What a tree costs, at the prices as they were given. `cost`: ours, or ours turned round."""
        return sum(int(cost[p, v]) // self.fares.step for v, p in enumerate(parents) if p >= 0)

    def hops(self, parents: Parents, root: int, turned: bool = False) -> tuple[tuple[int, Hop], ...]:
        """The tree as hops, in order of ranks. `turned`: parents are those of the machine with all links turned."""
        depth = {root: 0}

        def deep(rank: int) -> int:
            trail = []
            while rank not in depth:
                trail.append(rank)
                rank = parents[rank]
            for down, at in enumerate(reversed(trail), start=depth[rank] + 1):
                depth[at] = down
            return depth[trail[0]] if trail else depth[rank]

        found = []
        for rank, parent in enumerate(parents):
            if parent >= 0:
                path = self.path(rank, parent)[::-1] if turned else self.path(parent, rank)
                found.append((rank, Hop(parent, path, deep(rank))))
        return tuple(found)


def cheapest(cost: Costs, root: int, far: float) -> Parents | None:
    """The cheapest tree from the root to all ranks (Chu and Liu; Edmonds); None where some are out of reach.

    Cycles are contracted until there are none, then opened from the outermost in. O(ranks^3) at worst, on columns.

    Where a cycle is contracted, a hop a -> v into it costs cost[a, v] - (the cheapest hop to v): what is paid more for
    v being reached from outside, as the others of the cycle keep their hops.

    From rank 0 hops to 1 and 2 cost 9 and 10, one between 1 and 2 costs 1. The cheapest of all are 2 -> 1 and 1 -> 2, a
    cycle; to enter it at 1 costs 9 - 1 = 8 more, at 2 10 - 1 = 9. So 1 is reached from 0, and 2 from 1:

    >>> cheapest(np.array([[99, 9, 10], [99, 99, 1], [99, 1, 99]]), 0, 99)
    [-1, 0, 1]
    """
    count = len(cost)
    ids = list(range(count))  # the node behind every row of the matrix
    cost = cost.copy()
    cost[:, root] = far
    tail = np.repeat(np.arange(count)[:, None], count, axis=1)  # the hop behind every entry
    head = np.repeat(np.arange(count)[None, :], count, axis=0)
    up = list(range(count))  # node -> the contracted node it lies in, or itself
    inside: dict[int, list[int]] = {}  # contracted node -> the nodes of its cycle
    hop: dict[int, tuple[int, int]] = {}  # node -> the cheapest hop to it, as (rank, rank)
    while True:
        # every node but the root takes its cheapest hop
        best = cost.argmin(axis=0)
        columns = np.arange(len(ids))
        least = cost[best, columns]
        start = ids.index(root)
        if any(value >= far for at, value in enumerate(least.tolist()) if at != start):
            return None
        for at, node in enumerate(ids):
            if at != start:
                hop[node] = (int(tail[best[at], at]), int(head[best[at], at]))
        cycles = _cycles(best.tolist(), start)
        if not cycles:
            break
        # each cycle becomes one node, in the row and column of its first
        keep = np.ones(len(ids), bool)
        for cycle in cycles:
            new = len(up)
            up.append(new)
            inside[new] = [ids[at] for at in cycle]
            for at in cycle:
                up[ids[at]] = new
            rows = np.array(cycle)
            # into it: the formula above, by the cheapest entrance from each node
            entering = cost[:, rows] - least[rows][None, :]
            entering[cost[:, rows] >= far] = far
            lead = rows[0]
            pick, all_rows = entering.argmin(axis=1), columns
            cost[:, lead] = entering[all_rows, pick]
            tail[:, lead], head[:, lead] = tail[all_rows, rows[pick]], head[all_rows, rows[pick]]
            # out of it: from whichever of its nodes is cheapest
            pick = rows[cost[rows].argmin(axis=0)]
            row, row_tail, row_head = cost[pick, columns], tail[pick, columns], head[pick, columns]
            cost[lead], tail[lead], head[lead] = row, row_tail, row_head
            cost[lead, lead] = far
            keep[rows[1:]] = False
            ids[lead] = new
        left = np.flatnonzero(keep)
        block = np.ix_(left, left)
        cost, tail, head = cost[block], tail[block], head[block]
        ids = [ids[at] for at in left.tolist()]
    return _opened(count, root, up, inside, hop)


def _cycles(best: Sequence[int], start: int) -> list[list[int]]:
    """The cycles of a map that takes every node to its parent, each in ascending order; `start` has none.

    >>> _cycles([0, 2, 1, 1], 0)
    [[1, 2]]
    """
    state = [0] * len(best)
    state[start] = -1
    found = []
    for first in range(len(best)):
        at, mark = first, first + 1
        while state[at] == 0:
            state[at] = mark
            at = best[at]
        if state[at] == mark:
            cycle, now = [at], best[at]
            while now != at:
                cycle.append(now)
                now = best[now]
            found.append(sorted(cycle))
        now = first
        while state[now] == mark:
            state[now] = -1
            now = best[now]
    return found


def _opened(
    count: int, root: int, up: list[int], inside: dict[int, list[int]], hop: dict[int, tuple[int, int]]
) -> Parents:
    """The tree: the hop into a contracted node is that of the node of its cycle where it enters, which loses its own.

    The cycle 1, 2 of `cheapest` is node 3, entered by 0 -> 1:

    >>> _opened(3, 0, [0, 3, 3, 3], {3: [1, 2]}, {1: (2, 1), 2: (1, 2), 3: (0, 1)})
    [-1, 0, 1]
    """
    for node in sorted(inside, reverse=True):
        _, entered = hop[node]
        at = entered
        while up[at] != node:
            at = up[at]
        hop[at] = hop[node]
    return [-1 if rank == root else hop[rank][0] for rank in range(count)]


def shallow(cost: Costs, root: int, most: int, far: int, tries: int = 0) -> Parents | None:
    """A cheap tree at most `most` hops deep; None if none is found.

    Not always the cheapest (that is NP-hard from two hops on): three are grown and made better hop by hop, and three
    more for each of `tries` at costs that are shaken a little. O(ranks^2) each, and for every betterment.
    """
    best, least = None, far
    rng = np.random.default_rng(most)
    some = int(cost[cost < far].max(initial=0)) // 2
    for number in range(1 + tries):
        seen = cost
        if number:
            seen = cost + some * rng.integers(0, 64, cost.shape) // 64
            seen[cost >= far] = far
        for tree in _begun(seen, root, most, far):
            parents = _bettered(cost, tree, most)
            total = sum(int(cost[p, v]) for v, p in enumerate(parents) if p >= 0)
            if total < least:
                best, least = parents, total
    return best


def _begun(cost: Costs, root: int, most: int, far: int) -> list[Parents]:
    """Trees to make better: in layers, grown hop by hop, and what of the cheapest of any depth is not too deep."""
    free = cheapest(cost, root, far)
    if free is None:
        return []
    bare = [-1] * len(cost)
    begun = [_layered(cost, root, most, far), *(_grown(cost, root, most, far, given) for given in (bare, free))]
    return [tree for tree in begun if tree is not None]


def _layered(cost: Costs, root: int, most: int, far: int) -> Parents | None:
    """Breadth first: every rank at its least depth, by the cheapest hop from the layer above.

    >>> _layered(np.array([[99, 2, 5, 99], [99, 99, 1, 6], [99, 99, 99, 1], [99, 99, 99, 99]]), 0, 2, 99)
    [-1, 0, 0, 2]
    """
    parents = np.full(len(cost), -1, np.int64)
    left = np.ones(len(cost), bool)
    left[root] = False
    layer = np.array([root])
    for _ in range(most):
        if not left.any():
            break
        offered = cost[layer]
        best = offered.argmin(axis=0)
        near = left & (offered[best, np.arange(len(cost))] < far)
        parents[near] = layer[best[near]]
        left &= ~near
        layer = np.flatnonzero(near)
        if not layer.size:
            break
    return None if left.any() else parents.tolist()


def _grown(cost: Costs, root: int, most: int, far: int, given: Parents) -> Parents | None:
    """Prim's way: the cheapest hop out of the tree, again and again; of equal ones the least deep.

    It begins with what of a given tree is not too deep.

    From rank 0, at most 2 hops deep. With nothing given: 1 from 0 at 2, then 2 from 1 at 1, which is as deep as may be,
    so that 3 is had from 1, at 6. With 2 from 0 given, 3 can be had from 2, at 1:

    >>> cost = np.array([[99, 2, 5, 99], [99, 99, 1, 6], [99, 99, 99, 1], [99, 99, 99, 99]])
    >>> _grown(cost, 0, 2, 99, [-1, -1, -1, -1]), _grown(cost, 0, 2, 99, [-1, -1, 0, -1])
    ([-1, 0, 1, 1], [-1, 0, 0, 2])
    """
    count = len(cost)
    parents = np.array(given, np.int64)
    # what is in the tree: by its depth there; the others are out, at most + 1
    depth = np.full(count, most + 1, np.int64)
    depth[root] = 0
    for deep in range(1, most + 1):
        depth[(depth > most) & (parents >= 0) & (depth[parents] == deep - 1)] = deep
    out = depth > most
    # rank that is out -> its cheapest hop from the tree: `offered`, by `parents`, to be at `depth`
    grown = np.flatnonzero(depth < most)
    best = grown[cost[grown].argmin(axis=0)]
    offered = np.where(out, cost[best, np.arange(count)], far)
    parents[out] = best[out]
    depth[out] = depth[best[out]] + 1
    for _ in range(int(out.sum())):
        at = int(offered.argmin())
        least = offered[at]
        if least >= far:
            return None
        ties = np.flatnonzero(offered == least)
        if len(ties) > 1:
            at = int(ties[depth[ties].argmin()])
        out[at] = False  # it joins, and offers its own hops to those that are out
        offered[at] = far
        deep = int(depth[at]) + 1
        if deep <= most:
            better = out & ((cost[at] < offered) | ((cost[at] == offered) & (deep < depth) & (offered < far)))
            offered[better] = cost[at][better]
            parents[better] = at
            depth[better] = deep
    return parents.tolist()


def _bettered(cost: Costs, parents: Parents, most: int) -> Parents:
    """Ranks are hung elsewhere, with all below them, as long as that makes the tree cheaper."""
    count = len(cost)
    every = np.arange(count)
    tree = np.array(parents, np.int64)
    root = int(np.flatnonzero(tree < 0)[0])
    above = np.where(tree < 0, root, tree)
    for _ in range(4 * count):
        depth, height, below = _shape(above, root)
        now = cost[above, every]
        gain = now[None, :] - cost
        gain[(depth[:, None] + 1 + height[None, :] > most) | below] = 0
        gain[:, root] = 0
        where = gain.argmax(axis=0)
        worth = gain[where, every]
        first = int(worth.argmax())
        if worth[first] <= 0:
            break
        if height[first]:
            above[first] = where[first]
            continue
        # leaves do not get in each other's way, unless one is to hang on another that moves
        moved, used = np.zeros(count, bool), np.zeros(count, bool)
        leaves = np.flatnonzero((worth > 0) & (height == 0))
        for rank in leaves[np.argsort(-worth[leaves], kind="stable")].tolist():
            to = int(where[rank])
            if not moved[to] and not used[rank]:
                moved[rank] = used[to] = True
                above[rank] = to
    above[root] = -1
    return above.tolist()


def _shape(above: NDArray[np.int64], root: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """Depth and height of every rank, and below[u, v]: whether u lies under v (or is v)."""
    count, every = len(above), np.arange(len(above))
    below = np.zeros((count, count), bool)
    depth, height = np.zeros(count, np.int64), np.zeros(count, np.int64)
    at, far = every.copy(), 0
    while True:
        below[every, at] = True
        np.maximum.at(height, at, np.where(depth >= far, far, 0))
        if np.all(at == root):
            return depth, height, below
        depth += at != root
        at = above[at]
        far += 1
