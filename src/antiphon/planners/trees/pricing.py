"""Find the cheapest directed tree out of a root, given a price per link: the pricing step of column generation.

Column generation (columns.py) improves a packing of trees by asking again and again for the cheapest tree at the
current prices of links and shared limits. Input: integral prices; output: each rank's parent in the tree (`Parents`).
With integral prices a cheapest tree is exact, and so is the bound on packings that it proves. `far` is always the price
of a missing hop, above that of any tree.

    `HopPrices`, `PricedHops`   price of the cheapest hop between any two ranks: over one link, or through switches
    `cheapest_tree`             minimum-cost arborescence over all ranks (Chu and Liu 1965; Edmonds 1967)
    `shallow_tree`              the same with a depth limit: NP-hard, so a heuristic
    `tree_of`                   trees that need not reach all ranks (Steiner trees, also NP-hard): best of three methods

Example: from rank 0, hops to 1 and 2 cost 9 and 10, and a hop between 1 and 2 costs 1 either way. The cheapest tree is
0 > 1 > 2, for 10; with a depth limit of 1 it is 0 > 1, 0 > 2, for 19.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.core.topology import Topology
from antiphon.planners.shared.reach import Hop
from antiphon.planners.shared.tree_schedules import hops_of_parents

FAR = 2**60  # price of a missing hop: above any tree's cost, and sums of a few still fit int64
Costs = NDArray[Any]  # [from rank, to rank]: price of the cheapest hop
Parents = list[int]  # per rank the rank that it receives from; -1 for the root and ranks left out
Matrix = NDArray[np.int64]


class HopPrices:
    """A machine's hops between ranks, prepared to be priced repeatedly.

    Parallel links are grouped by their ends. `max_tree_cost`: upper bound on the cost of any tree if all prices are 1,
    so at prices up to FAR // `max_tree_cost` every tree costs less than FAR.
    """

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        resources = topology.resources
        self.limit_ptr, self.limit_of = resources.limit_ptr, resources.limit_of
        nodes = topology.nodes
        key = topology.link_src.astype(np.int64) * nodes + topology.link_dst
        self.order = np.argsort(key, kind="stable")
        # ends of links as tail * nodes + head, and where the links of each pair begin in `order`
        self.pairs, self.first = np.unique(key[self.order], return_index=True)
        self.size = np.diff([*self.first, len(self.order)])  # parallel links per pair
        # of equal prices the one with fewer links counts as cheaper: prices are multiplied by more links than any tree
        # has, and each link adds 1
        self.scale = 1 << (topology.ranks * (topology.switches + 1)).bit_length()
        prices_per_link = int(np.diff(self.limit_ptr).max(initial=0)) + 1  # at most: its own and its limits'
        # 4: room for the 1 that each link adds, and for costs perturbed by up to a half (`shallow_tree`)
        self.max_tree_cost = 4 * self.scale * prices_per_link * topology.ranks * (topology.switches + 1)
        self.owner = np.repeat(np.arange(topology.links), np.diff(self.limit_ptr))  # link of each entry of limit_of

    def _cheapest_of_pairs(self, link_cost: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Return for each of `pairs` the cost of its cheapest link, and this link, the first of equals."""
        ordered = link_cost[self.order]
        cheapest = np.minimum.reduceat(ordered, self.first)
        if len(self.first) == len(ordered):  # no parallel links
            return cheapest, self.order[self.first]
        pair = np.repeat(np.arange(len(cheapest)), self.size)
        candidates = np.flatnonzero(ordered == cheapest[pair])
        _, first = np.unique(pair[candidates], return_index=True)
        return cheapest, self.order[candidates[first]]

    def price_hops(self, price: NDArray[Any]) -> PricedHops:
        """Return the cheapest hops at these prices (of links, then of shared limits). O(switches * nodes^2)."""
        topology = self.topology
        nodes, ranks, links = topology.nodes, topology.ranks, topology.links
        # a link costs its own price and that of its shared limits; the 1 prefers fewer links among equal prices
        link_cost = price[:links] * self.scale + 1
        if len(self.owner):
            np.add.at(link_cost, self.owner, price[self.limit_of] * self.scale)
        cheapest_of_pair, cheapest_link = self._cheapest_of_pairs(link_cost)
        # above any tree's cost; 4 as for `max_tree_cost`. Prices too large for int64 are Python ints, of type object
        far: Any = FAR if price.dtype != object else (int(link_cost.sum()) + 1) * 4 * ranks
        cost = np.full(nodes * nodes, far, price.dtype)
        cost[self.pairs] = cheapest_of_pair
        link = np.full(nodes * nodes, -1, np.int64)
        link[self.pairs] = cheapest_link
        cost, via = cost.reshape(nodes, nodes), np.full((nodes, nodes), -1, np.int64)
        # Floyd and Warshall over switches only: ranks never relay within a hop
        for switch in range(ranks, nodes):
            tails = np.flatnonzero(cost[:, switch] < far)
            heads = np.flatnonzero(cost[switch] < far)
            block = np.ix_(tails, heads)
            through = cost[tails, switch][:, None] + cost[switch, heads][None, :]
            better = through < cost[block]
            cost[block] = np.where(better, through, cost[block])
            via[block] = np.where(better, switch, via[block])
        # a rank does not send to itself
        hops = cost[:ranks, :ranks].copy()
        hops[np.arange(ranks), np.arange(ranks)] = far
        return PricedHops(self, hops, far, link.reshape(nodes, nodes), via)


class PricedHops:
    """The cheapest hops between all ranks at given prices: their `cost` (`far` where there is none) and their links."""

    def __init__(self, hop_prices: HopPrices, cost: Costs, far: int, link: Matrix, via: Matrix) -> None:
        """`link`, `via`: by ends, the link of a direct hop, and the switch that an indirect one passes (-1: none)."""
        self.hop_prices, self.cost, self.far, self._link, self._via = hop_prices, cost, far, link, via
        self._paths: dict[tuple[int, int], tuple[int, ...]] = {}

    def path_of(self, a: int, b: int) -> tuple[int, ...]:
        """Return the links of the cheapest hop from node a to node b."""
        if (a, b) not in self._paths:
            switch = int(self._via[a, b])
            path = (int(self._link[a, b]),) if switch < 0 else self.path_of(a, switch) + self.path_of(switch, b)
            self._paths[a, b] = path
        return self._paths[a, b]

    def tree_price(self, cost: Costs, parents: Parents) -> int:
        """Return the cost of a tree at the original prices, without the 1 per link that breaks ties.

        `cost`: that of these hops, or its transpose for a tree of the reversed machine.
        """
        return sum(int(cost[p, v]) // self.hop_prices.scale for v, p in enumerate(parents) if p >= 0)

    def tree_hops(self, parents: Parents, root: int, of_reversed: bool = False) -> tuple[tuple[int, Hop], ...]:
        """Return every rank of the tree with the hop that leads to it.

        `of_reversed`: `parents` is a tree of the reversed machine, so its hops are taken from end to start.
        """
        parent_of = {rank: parent for rank, parent in enumerate(parents) if parent >= 0}
        if of_reversed:
            return hops_of_parents(parent_of, root, lambda parent, rank: self.path_of(rank, parent)[::-1])
        return hops_of_parents(parent_of, root, self.path_of)


def cheapest_tree(cost: Costs, root: int, far: float) -> Parents | None:
    """Return the cheapest tree from the root to all ranks (Chu and Liu; Edmonds); None where some are out of reach.

    Every rank takes its cheapest incoming hop. If these form cycles, each cycle is contracted to one node and the
    search repeated; at the end cycles are opened again, the outermost first. A hop a -> v into a contracted cycle
    costs cost[a, v] - (the cheapest hop to v): the extra cost of reaching v from outside, since the other nodes of the
    cycle keep their hops. O(ranks^3) at worst, in NumPy columns. Costs and `far` may be floats, too.

    From rank 0 hops to 1 and 2 cost 9 and 10, one between 1 and 2 costs 1. The cheapest of all are 2 -> 1 and 1 -> 2, a
    cycle; to enter it at 1 costs 9 - 1 = 8 more, at 2 10 - 1 = 9. So 1 is reached from 0, and 2 from 1:

    >>> cheapest_tree(np.array([[99, 9, 10], [99, 99, 1], [99, 1, 99]]), 0, 99)
    [-1, 0, 1]
    """
    count = len(cost)
    node_at = list(range(count))  # the node of every row and column of the matrix
    cost = cost.copy()
    cost[:, root] = far
    tail = np.repeat(np.arange(count)[:, None], count, axis=1)  # the ranks of the hop that every entry stands for
    head = np.repeat(np.arange(count)[None, :], count, axis=0)
    contracted_into = list(range(count))  # node -> the contracted node it lies in, or itself
    cycle_nodes: dict[int, list[int]] = {}  # contracted node -> the nodes of its cycle
    hop: dict[int, tuple[int, int]] = {}  # node -> the cheapest hop to it, as (rank, rank)
    while True:
        # every node but the root takes its cheapest hop
        best = cost.argmin(axis=0)
        columns = np.arange(len(node_at))
        cheapest_hop = cost[best, columns]
        start = node_at.index(root)
        if any(value >= far for column, value in enumerate(cheapest_hop.tolist()) if column != start):
            return None
        ends = zip(tail[best, columns].tolist(), head[best, columns].tolist(), strict=True)
        hop.update((node, end) for node, end in zip(node_at, ends, strict=True) if node != root)
        cycles = _find_cycles(best.tolist(), start)
        if not cycles:
            break
        # each cycle becomes one node, in the row and column of its first
        keep = np.ones(len(node_at), bool)
        for cycle in cycles:
            new = len(contracted_into)
            contracted_into.append(new)
            cycle_nodes[new] = [node_at[i] for i in cycle]
            for node in cycle_nodes[new]:
                contracted_into[node] = new
            rows = np.array(cycle)
            lead, *merged = cycle
            # hops into it: by the formula above, the cheapest entrance from each node
            entering = cost[:, rows] - cheapest_hop[rows][None, :]
            entering[cost[:, rows] >= far] = far
            entrance = entering.argmin(axis=1)
            cost[:, lead] = entering[columns, entrance]
            tail[:, lead], head[:, lead] = tail[columns, rows[entrance]], head[columns, rows[entrance]]
            # hops out of it: from the cheapest of its nodes
            leaving = rows[cost[rows].argmin(axis=0)]
            row, row_tail, row_head = cost[leaving, columns], tail[leaving, columns], head[leaving, columns]
            cost[lead], tail[lead], head[lead] = row, row_tail, row_head
            cost[lead, lead] = far
            keep[merged] = False
            node_at[lead] = new
        remaining = np.flatnonzero(keep)
        block = np.ix_(remaining, remaining)
        cost, tail, head = cost[block], tail[block], head[block]
        node_at = [node_at[i] for i in remaining.tolist()]
    return _open_cycles(count, root, contracted_into, cycle_nodes, hop)


def _find_cycles(best: Sequence[int], start: int) -> list[list[int]]:
    """Return the cycles of a map that takes every node to its parent, each in ascending order; `start` has none.

    >>> _find_cycles([0, 2, 1, 1], 0)
    [[1, 2]]
    """
    met_by = [-1] * len(best)  # node -> the first node of the walk to the parents that met it; -1: none yet
    met_by[start] = start
    cycles = []
    for first in range(len(best)):
        node = first
        while met_by[node] < 0:
            met_by[node] = first
            node = best[node]
        if met_by[node] == first != start:  # met again by the same walk: a new cycle
            cycle, other = [node], best[node]
            while other != node:
                cycle.append(other)
                other = best[other]
            cycles.append(sorted(cycle))
    return cycles


def _open_cycles(
    count: int,
    root: int,
    contracted_into: list[int],
    cycle_nodes: dict[int, list[int]],
    hop: dict[int, tuple[int, int]],
) -> Parents:
    """Return the tree: the hop into a contracted node replaces that of the node where it enters the cycle.

    The cycle 1, 2 of `cheapest_tree` is node 3, entered by 0 -> 1:

    >>> _open_cycles(3, 0, [0, 3, 3, 3], {3: [1, 2]}, {1: (2, 1), 2: (1, 2), 3: (0, 1)})
    [-1, 0, 1]
    """
    for node in sorted(cycle_nodes, reverse=True):
        _, entered = hop[node]
        # from the rank that the hop ends at up to the member of this cycle that contains it
        while contracted_into[entered] != node:
            entered = contracted_into[entered]
        hop[entered] = hop[node]
    parents = {rank: parent for rank, (parent, _) in hop.items()}
    return [-1 if rank == root else parents[rank] for rank in range(count)]


def shallow_tree(cost: Costs, root: int, max_depth: int, far: int, restarts: int = 0) -> Parents | None:
    """Return a cheap tree at most `max_depth` hops deep; None if none is found.

    Finding the cheapest is NP-hard from two hops on. Three trees are grown (`_start_trees`) and improved hop by hop
    (`_improve_tree`), and three more at randomly perturbed costs for each of `restarts`. O(ranks^2) per tree and per
    improvement.
    """
    best, best_cost = None, far
    rng = np.random.default_rng(max_depth)  # any fixed seed: the same input gives the same tree
    # add up to half of the highest cost, in 64 equal steps: a random fraction in whole numbers
    max_shift, shifts = int(cost[cost < far].max(initial=0)) // 2, 64
    for number in range(1 + restarts):
        perturbed_cost = cost
        if number:
            perturbed_cost = cost + max_shift * rng.integers(0, shifts, cost.shape) // shifts
            perturbed_cost[cost >= far] = far
        for tree in _start_trees(perturbed_cost, root, max_depth, far):
            parents = _improve_tree(cost, tree, max_depth)
            if tree_cost(cost, parents) < best_cost:
                best, best_cost = parents, tree_cost(cost, parents)
    return best


def _start_trees(cost: Costs, root: int, max_depth: int, far: int) -> list[Parents]:
    """Return up to three trees to improve.

    They are grown by layer, by price, and by price starting with the upper hops of the cheapest tree of any depth.
    """
    unlimited = cheapest_tree(cost, root, far)  # of any depth
    if unlimited is None:
        return []
    grown = [_grow_by_price(cost, root, max_depth, far, start) for start in ([-1] * len(cost), unlimited)]
    return [tree for tree in (grow_by_layer(cost, root, max_depth, far), *grown) if tree is not None]


def grow_by_layer(cost: Costs, root: int, max_depth: int, far: float) -> Parents | None:
    """Return a breadth-first tree: every rank at its least depth, by the cheapest hop from the layer above.

    Costs and `far` may be floats, too.

    >>> grow_by_layer(np.array([[99, 2, 5, 99], [99, 99, 1, 6], [99, 99, 99, 1], [99, 99, 99, 99]]), 0, 2, 99)
    [-1, 0, 0, 2]
    """
    parents = np.full(len(cost), -1, np.int64)
    unreached = np.ones(len(cost), bool)
    unreached[root] = False
    layer = np.array([root])
    for _ in range(max_depth):
        if not unreached.any():
            break
        layer_cost = cost[layer]
        best = layer_cost.argmin(axis=0)
        reached = unreached & (layer_cost[best, np.arange(len(cost))] < far)
        parents[reached] = layer[best[reached]]
        unreached &= ~reached
        layer = np.flatnonzero(reached)
        if not layer.size:
            break
    return None if unreached.any() else parents.tolist()


def _grow_by_price(cost: Costs, root: int, max_depth: int, far: int, start_parents: Parents) -> Parents | None:
    """Grow a tree like Prim: always the cheapest hop out of the tree, ties by least depth.

    It starts with those ranks of `start_parents` that are not too deep.

    From rank 0, at most 2 hops deep. With no start: 1 from 0 at 2, then 2 from 1 at 1, which is at the depth limit, so
    3 is reached from 1, at 6. Starting with 2 from 0, 3 can be reached from 2, at 1:

    >>> cost = np.array([[99, 2, 5, 99], [99, 99, 1, 6], [99, 99, 99, 1], [99, 99, 99, 99]])
    >>> _grow_by_price(cost, 0, 2, 99, [-1, -1, -1, -1]), _grow_by_price(cost, 0, 2, 99, [-1, -1, 0, -1])
    ([-1, 0, 1, 1], [-1, 0, 0, 2])
    """
    count = len(cost)
    parents = np.array(start_parents, np.int64)
    # depth in the tree; ranks not in it have max_depth + 1
    depth = np.full(count, max_depth + 1, np.int64)
    depth[root] = 0
    for deep in range(1, max_depth + 1):
        depth[(depth > max_depth) & (parents >= 0) & (depth[parents] == deep - 1)] = deep
    out = depth > max_depth
    # for ranks outside the tree: the price of their cheapest hop from it (`offered`), the parent and the depth that
    # this hop would give them
    grown = np.flatnonzero(depth < max_depth)
    best = grown[cost[grown].argmin(axis=0)]
    offered = np.where(out, cost[best, np.arange(count)], far)
    parents[out] = best[out]
    depth[out] = depth[best[out]] + 1
    for _ in range(int(out.sum())):
        at = int(offered.argmin())
        lowest = offered[at]
        if lowest >= far:
            return None
        # of equally cheap ones the shallowest, which leaves most room below
        ties = np.flatnonzero(offered == lowest)
        if len(ties) > 1:
            at = int(ties[depth[ties].argmin()])
        out[at] = False  # joins the tree, and offers its own hops to ranks outside
        offered[at] = far
        deep = int(depth[at]) + 1
        if deep <= max_depth:
            # ranks to which its hop is cheaper than the best so far, or as cheap and less deep (`far`: no hop at all)
            is_shallower = (cost[at] == offered) & (deep < depth) & (offered < far)
            better = out & ((cost[at] < offered) | is_shallower)
            offered[better] = cost[at][better]
            parents[better] = at
            depth[better] = deep
    return parents.tolist()


def _improve_tree(cost: Costs, parents: Parents, max_depth: int) -> Parents:
    """Return the tree after moving ranks, with their subtrees, to other parents while that makes it cheaper."""
    count = len(cost)
    all_ranks = np.arange(count)
    tree = np.array(parents, np.int64)
    root = int(np.flatnonzero(tree < 0)[0])
    parent_of = np.where(tree < 0, root, tree)
    for _ in range(4 * count):  # nearly always ends sooner; bounds the time
        depth, height, below = tree_shape(parent_of, root)
        hop_cost = cost[parent_of, all_ranks]
        # gain[u, v]: what moving v below u saves; 0 where u is below v or the subtree of v would become too deep
        gain = hop_cost[None, :] - cost
        gain[(depth[:, None] + 1 + height[None, :] > max_depth) | below] = 0
        gain[:, root] = 0
        # the best new parent of every rank, and what it saves
        new_parent = gain.argmax(axis=0)
        saving = gain[new_parent, all_ranks]
        first = int(saving.argmax())
        if saving[first] <= 0:
            break
        if height[first]:
            parent_of[first] = new_parent[first]
            continue
        # several leaves may move at once, unless one would hang below another that moves
        moved, fixed = np.zeros(count, bool), np.zeros(count, bool)  # fixed: another moved below it
        leaves = np.flatnonzero((saving > 0) & (height == 0))
        for rank in leaves[np.argsort(-saving[leaves], kind="stable")].tolist():
            parent = int(new_parent[rank])
            if not moved[parent] and not fixed[rank]:
                moved[rank] = fixed[parent] = True
                parent_of[rank] = parent
    parent_of[root] = -1
    return parent_of.tolist()


def tree_shape(
    parent_of: NDArray[np.int64], root: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """Return the depth of every rank, the height of its subtree, and below[u, v]: whether u lies under v (or is v).

    `parent_of`: per rank its parent; the root's is itself.
    """
    count, all_ranks = len(parent_of), np.arange(len(parent_of))
    below = np.zeros((count, count), bool)
    depth, height = np.zeros(count, np.int64), np.zeros(count, np.int64)
    # all ranks climb one hop at a time until all are at the root
    ancestor, climbed = all_ranks.copy(), 0
    while True:
        below[all_ranks, ancestor] = True
        # a rank still climbing (its depth grew with every hop so far) is `climbed` hops below its `ancestor`, so the
        # ancestor's subtree is at least that high
        is_climbing = depth >= climbed
        np.maximum.at(height, ancestor, np.where(is_climbing, climbed, 0))
        if np.all(ancestor == root):
            return depth, height, below
        depth += ancestor != root
        ancestor = parent_of[ancestor]
        climbed += 1


def tree_of(
    cost: Costs, root: int, max_depth: int | None, sinks: Sequence[int], useful: Sequence[int], far: int,
    restarts: int = 0,
) -> Parents | None:  # fmt: skip
    """Return a cheap tree from the root to the sinks, at most `max_depth` hops deep.

    `useful`: the ranks that may be in the tree: root, sinks and ranks that may relay. `restarts`: as for
    `shallow_tree`. The tree is the cheapest if every useful rank is root or sink and `max_depth` is None. Otherwise it
    is the cheapest of up to three: over root and sinks alone; over all useful ranks, with branches that reach no sink
    removed; and over the ranks on shortest paths between sinks. The third, only without a depth limit, is the
    metric-closure heuristic for Steiner trees. None if none is found.
    """
    required = sorted({root, *sinks})
    if len(required) == len(cost):
        return (
            cheapest_tree(cost, root, far) if max_depth is None else shallow_tree(cost, root, max_depth, far, restarts)
        )
    trees = [_tree_within(cost, root, max_depth, required, far, restarts)]
    if len(useful) > len(required):
        nearby_ranks = useful if max_depth is None else _near_ranks(cost, root, max_depth, required, useful, far)
        trees.append(_prune_tree(_tree_within(cost, root, max_depth, nearby_ranks, far, restarts), required))
    if len(useful) > len(required) and max_depth is None:
        path_ranks = _ranks_on_shortest_paths(cost, root, required, far)
        if path_ranks is not None:
            trees.append(_prune_tree(_tree_within(cost, root, max_depth=None, ranks=path_ranks, far=far), required))
    candidates = [parents for parents in trees if parents is not None]
    return min(candidates, key=lambda parents: tree_cost(cost, parents)) if candidates else None


def tree_cost(cost: Costs, parents: Parents) -> int:
    """Return the sum of the prices of a tree's hops."""
    return sum(int(cost[p, v]) for v, p in enumerate(parents) if p >= 0)


def _tree_within(
    cost: Costs, root: int, max_depth: int | None, ranks: Sequence[int], far: int, restarts: int = 0
) -> Parents | None:  # fmt: skip
    """Return a cheap tree over these ranks alone, numbered like `cost`; None if none is found."""
    cost_within, root_index = cost[np.ix_(ranks, ranks)], list(ranks).index(root)
    tree = (
        cheapest_tree(cost_within, root_index, far)
        if max_depth is None
        else shallow_tree(cost_within, root_index, max_depth, far, restarts)
    )
    if tree is None:
        return None
    parents = [-1] * len(cost)
    for rank, parent in zip(ranks, tree, strict=True):
        parents[rank] = ranks[parent] if parent >= 0 else -1
    return parents


def _near_ranks(
    cost: Costs, root: int, max_depth: int, need: Sequence[int], useful: Sequence[int], far: int
) -> list[int]:
    """Return the needed ranks and the useful ones less than `max_depth` hops away."""
    near_root = np.zeros(len(cost), bool)
    near_root[root] = True
    for _ in range(max_depth - 1):
        near_root = near_root | (cost[near_root] < far).any(axis=0)
    return sorted({*need, *(rank for rank in useful if near_root[rank])})


def _prune_tree(parents: Parents | None, need: Sequence[int]) -> Parents | None:
    """Remove branches that lead to no rank of `need`."""
    if parents is None:
        return None
    needed: set[int] = set()
    for rank in need:
        at = rank
        while at >= 0 and at not in needed:
            needed.add(at)
            at = parents[at]
    return [parent if rank in needed else -1 for rank, parent in enumerate(parents)]


def _ranks_on_shortest_paths(cost: Costs, root: int, need: Sequence[int], far: int) -> list[int] | None:
    """Return the ranks on the cheapest tree over shortest paths between the ranks of `need`. O(ranks^3)."""
    count = len(cost)
    distance, via = cost.copy(), np.full((count, count), -1, np.int64)
    # Floyd and Warshall; `via`: a rank on the shortest path, -1 if that is a single hop
    for middle in range(count):
        through = distance[:, middle][:, None] + distance[middle][None, :]
        better = through < distance
        distance = np.where(better, through, distance)
        via[better] = middle
    parents = _tree_within(distance, root, max_depth=None, ranks=need, far=far)
    if parents is None:
        return None
    ranks: set[int] = set(need)
    # expand the tree's hops, which are shortest paths, into the ranks on them
    todo = [(p, v) for v, p in enumerate(parents) if p >= 0]
    while todo:
        a, b = todo.pop()
        middle = int(via[a, b])
        if middle >= 0:
            ranks.add(middle)
            todo += [(a, middle), (middle, b)]
    return sorted(ranks)
