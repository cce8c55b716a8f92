"""Decide on small machines whether a bound is attained: the best packing of trees, by column generation.

Input: a topology, a collective and a bound on its time. Output: trees with exact rates that together do the collective
in just that time (a `Packing`), or None. Each tree carries a share of one block, its *rate*, along routes between
ranks: "out" of a root to all ranks that want the block, or "in" to a root from all ranks that contribute. The linear
program over all trees

    minimise T   such that   the rates of the trees of each block sum to its weight (its relative size),
                             the load of each link or shared limit is at most capacity * T

has exponentially many columns, so they are generated: solve the program over the trees so far; its dual values price
every link; add the cheapest tree of each block at these prices. When no tree is new, the program is optimal. The loop
stops as soon as T reaches the bound, and the rates are then recomputed as exact fractions. `Master` (master.py) solves
an equivalent program: T is 1, and the amount of data that the trees carry is maximised.

The cheapest tree that joins a root to a set of ranks is a Steiner tree, found by dynamic programming over subsets
(Dreyfus and Wagner 1971):

    cost[S, r] = min over ranks q of  distance(r, q) + min over splits S = A + B of  cost[A, q] + cost[B, q]

in 3^ranks small steps, which is why only machines up to MOST_RANKS are tried. Effort is counted, never timed, so that
results do not depend on the speed of the computer. See docs/bounds.md, "Attained on small machines".

Example: a broadcast from rank 0 on a triangle of unit links. The trees 0->1->2 and 0->2->1 at rate 1/2 each load the
links out of 0 by 1/2: T = 1/2, which meets the cut around rank 0.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.core.bounds.master import Column, Master, MasterPoint
from antiphon.core.bounds.packing import packed_time
from antiphon.core.bounds.witness import Packing, Tree
from antiphon.core.collective import Collective
from antiphon.core.topology import Topology
from antiphon.errors import Invalid

MOST_RANKS = 8  # larger machines are not tried
MOST_SWITCHES = 8
MOST_LINKS = 256  # 16 nodes have 240 pairs, so only parallel links exceed it
MOST_ROUNDS = 60  # linear programs solved before giving up
MOST_COLUMNS = 1500  # trees in one program before giving up
_CLOSE = 1e-9  # relative distance at which a floating-point time counts as equal to the bound
# Collectives for which trees that attain the bound are searched
_KINDS = ("broadcast", "allgather", "reduce", "reducescatter", "allreduce")

Floats = NDArray[np.float64]
Route = tuple[int, ...]  # links


@dataclass(frozen=True)
class _TreeRequest:
    """A kind of tree to look for.

    `block`: the tree carries a share of this block. `direction`: "out" of `root` to all `ends`, or "in" from all
    `ends` to `root`. `share`: how much such trees carry together. {j: factor} stands for factor * t_j, where t_0, t_1,
    ... are the unknown amounts of data of the program (master.py).
    """

    block: int
    direction: str
    root: int
    ends: tuple[int, ...]
    share: dict[int, int]


def packing_of(topology: Topology, collective: Collective, bound: Fraction) -> Packing | None:
    """Return a packing of trees that takes just the time `bound` (weight over bytes per second), or None if none is
    found."""
    if (
        collective.kind not in _KINDS
        or topology.ranks > MOST_RANKS
        or topology.switches > MOST_SWITCHES
        or topology.links > MOST_LINKS
        or not bound
    ):
        return None
    return _TreeRates(topology, collective, bound).find_packing()


class _TreeRates:
    """The linear program over trees (master.py), whose optimum is the least time that trees take."""

    def __init__(self, topology: Topology, collective: Collective, bound: Fraction) -> None:
        self.topology, self.collective, self.bound = topology, collective, bound
        resources = topology.resources
        # `class_of` has an entry per resource
        capacity = [resources.scaled_capacity(resource) for resource in range(len(resources.class_of))]
        # per link the shared limits on it, numbered as resources
        self.limits_of = np.split(resources.limit_of, resources.limit_ptr[1:-1])
        self.requests, self.weight = _requested_trees(collective)
        amount_count = len({amount for request in self.requests for amount in request.share})
        # amount of data in time 1 that meets the bound; scaled capacities are bytes per second divided by `scale`
        goal = self.weight / (bound * resources.scale)
        self.master = Master(
            capacity, [request.share for request in self.requests], gain=[1] * amount_count, rate_scale=goal
        )

    def find_packing(self) -> Packing | None:
        """Run the column generation; return the exact packing, or None if the bound is not reached."""
        master = self.master
        prices = 1 / np.array(master.capacity, float)
        # Column generation. Invariant: `prices` are the dual values of the last program (at first 1 / capacity).
        for _ in range(MOST_ROUNDS):
            is_new = [master.add_column(column) for column in self._cheapest_trees(prices)]
            # No new tree: the program is optimal and above the bound. Too many: give up, the question stays open.
            if not any(is_new) or len(master.columns) > MOST_COLUMNS:
                return None
            try:
                point = master.solve_floats()
            except ArithmeticError:  # the solver failed numerically: the question stays open
                return None
            if point.value >= 1 - _CLOSE:  # in units of the rate at which the bound is met
                return self._exact_packing(point)
            prices = np.maximum(point.price, 0.0)
        return None

    def _exact_packing(self, point: MasterPoint) -> Packing | None:
        """Return the trees with a rate above 0.

        The exact rates solve the equations of the links that are full and of the weights of the blocks.
        """
        exact = self.master.solve_exactly(point)
        if exact is None:
            return None
        rates, amounts = exact
        # weight per amount: the rates of each block's trees shall add up to its weight
        unit = self.weight / sum(amounts, Fraction(0))
        trees = []
        for column, rate in rates:
            request = self.requests[column.group]
            trees.append(Tree(request.block, request.direction, request.root, rate * unit, column.tree))
        packing = Packing(tuple(trees))
        try:
            time = packed_time(self.topology, self.collective, packing)
        except Invalid:
            return None
        return packing if time == self.bound else None

    # ---- trees ----

    def _cheapest_trees(self, prices: Floats) -> Iterator[Column]:
        """Yield the cheapest tree for each request at these prices of links and limits."""
        cost = prices[: self.topology.links].copy()
        for link, limits in enumerate(self.limits_of):
            cost[link] += prices[limits].sum()
        # A small cost per link breaks ties by length, so that links of price 0 do not produce detours.
        cost += 1e-12 * (1 + cost.max())
        for direction in ("out", "in"):
            numbers = [number for number, request in enumerate(self.requests) if request.direction == direction]
            if not numbers:
                continue
            paths = _CheapestPaths(self.topology, cost, direction == "in")
            ends = sorted({end for number in numbers for end in self.requests[number].ends})
            steiner = _Steiner(paths, ends)
            for number in numbers:
                request = self.requests[number]
                routes = steiner.cheapest_tree(request.root, request.ends)
                if routes is not None:
                    yield self._make_column(number, routes)

    def _make_column(self, number: int, routes: Sequence[Route]) -> Column:
        """Return a tree with the number of times that it loads every link and shared limit."""
        load: Counter[int] = Counter()
        for link in itertools.chain.from_iterable(routes):
            load.update((link, *self.limits_of[link].tolist()))
        rows = sorted(load)
        # the routes end at different nodes (`cheapest_tree`); sorted, so that equal trees are equal columns
        return Column(number, tuple(rows), tuple(load[row] for row in rows), tuple(sorted(routes)))


def _requested_trees(collective: Collective) -> tuple[list[_TreeRequest], int]:
    """Return which trees to look for, and the sum of all amounts that stands for all data.

    The rates of a request's trees add up to its shares of the amounts (master.py). An allreduce has an amount per root,
    in units of weight; others have one amount, 1, of which each block's share is its weight.
    """
    members, roots, weights = collective.members, collective.roots, collective.weights.tolist()
    kind = collective.kind
    if kind == "allreduce":
        # Any rank may be a root; data go into it and out of it again. Amount r is that of root r: the trees into it
        # carry as much as those out of it, and the amounts of all roots together are all data.
        requests = []
        for root in range(collective.ranks):
            requests.append(_TreeRequest(block=0, direction="in", root=root, ends=members, share={root: 1}))
            requests.append(_TreeRequest(block=0, direction="out", root=root, ends=members, share={root: 1}))
        return requests, weights[0]
    direction = "out" if kind in ("broadcast", "allgather") else "in"
    tree_roots = roots if kind in ("broadcast", "reduce") else members
    blocks = [block for block in range(collective.blocks) if weights[block]]
    return [_TreeRequest(block, direction, tree_roots[block], members, {0: weights[block]}) for block in blocks], 1


class _CheapestPaths:
    """Cheapest paths between nodes (Floyd-Warshall), split into hops from rank to rank.

    With `back` all links are reversed, so that a tree out of a root becomes one into it. Of the cheapest path from a to
    b, `far[a, b]` is the cost, and `middle[a, b]` a node on it, or -1 if it is the single link `link[a, b]`.
    """

    def __init__(self, topology: Topology, cost: Floats, back: bool) -> None:
        nodes, self.ranks, self.back = topology.nodes, topology.ranks, back
        self.far = np.full((nodes, nodes), np.inf)
        self.link = np.full((nodes, nodes), -1)
        self.middle = np.full((nodes, nodes), -1)
        tails, heads = topology.link_src.tolist(), topology.link_dst.tolist()
        for link, (a, b) in enumerate(zip(tails, heads, strict=True)):
            pair = (b, a) if back else (a, b)
            if cost[link] < self.far[pair]:
                self.far[pair], self.link[pair] = cost[link], link
        # Floyd-Warshall. Invariant: far[a, b] is the shortest distance through the middles processed so far.
        # Of equally cheap paths the first found counts. Switches are tried first, so that a path through switches wins
        # over one that relays at ranks.
        for middle in [*range(self.ranks, nodes), *range(self.ranks)]:
            through = self.far[:, middle, None] + self.far[None, middle, :]
            better = through < self.far
            np.fill_diagonal(better, False)
            self.far[better] = through[better]
            self.middle[better] = middle
        np.fill_diagonal(self.far, 0.0)

    def nodes_between(self, a: int, b: int) -> list[int]:
        """Return all nodes of the cheapest path from a to b except b."""
        middle = int(self.middle[a, b])
        return [a] if middle < 0 else self.nodes_between(a, middle) + self.nodes_between(middle, b)

    def hops_between(self, a: int, b: int) -> list[tuple[int, int, Route]]:
        """Return the hops of the cheapest path: (from rank, to rank, links between them)."""
        path = [*self.nodes_between(a, b), b]
        stops = [i for i, node in enumerate(path) if node < self.ranks]
        hops = []
        for i, j in itertools.pairwise(stops):
            links = [int(self.link[pair]) for pair in itertools.pairwise(path[i : j + 1])]
            hops.append((path[i], path[j], tuple(links[::-1] if self.back else links)))
        return hops


@cache
def _subset_splits(count: int, size: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the subsets of `size` out of `count` elements as bit masks, and for each the first half of every split.

    The second half of a split always holds the lowest element, so that every split is listed once.
    """
    sets = [sum(1 << i for i in chosen) for chosen in itertools.combinations(range(count), size)]
    halves = []
    for chosen_set in sets:
        all_but_lowest = chosen_set & (chosen_set - 1)  # clears the lowest bit
        halves.append([half for half in _list_subsets(all_but_lowest) if half])
    return np.array(sets), np.array(halves)


def _list_subsets(full_set: int) -> list[int]:
    """Return all subsets of a bit mask, the full set first."""
    subsets, subset = [], full_set
    while True:
        subsets.append(subset)
        if not subset:
            return subsets
        subset = (subset - 1) & full_set


@dataclass
class _Steiner:
    """Cheapest trees from any rank to every subset of `ends`, as a table of the Dreyfus-Wagner recursion.

    A set of ends is a bit mask. `cost[set, rank]`: cost of the cheapest tree that joins the rank to the set.
    `branching[set, rank]`: the rank at which this tree first branches. `half[set, rank]`: the subset that one of the
    two branches at `rank` serves, if the tree branches there.
    """

    paths: _CheapestPaths
    ends: list[int]
    cost: Floats = field(init=False)
    branching: NDArray[Any] = field(init=False)
    half: NDArray[Any] = field(init=False)

    def __post_init__(self) -> None:
        ranks, count = self.paths.ranks, len(self.ends)
        far = self.paths.far[:ranks, :ranks]
        self.cost = np.full((1 << count, ranks), np.inf)
        self.cost[0] = 0
        self.branching = np.zeros((1 << count, ranks), np.int64)
        self.half = np.zeros((1 << count, ranks), np.int64)
        for i, end in enumerate(self.ends):
            self.cost[1 << i], self.branching[1 << i] = far[:, end], end
        # Dreyfus-Wagner by size of the set: smaller sets are complete, so both halves of a split are known.
        for size in range(2, count + 1):
            sets, halves = _subset_splits(count, size)
            joined = self.cost[halves] + self.cost[sets[:, None] - halves]  # axes: set, split, rank
            best = joined.argmin(axis=1)
            at_rank = np.take_along_axis(joined, best[:, None, :], axis=1)[:, 0, :]
            self.half[sets] = np.take_along_axis(halves, best, axis=1)
            total = far[None, :, :] + at_rank[:, None, :]  # axes: set, root, branching rank
            self.branching[sets] = total.argmin(axis=2)
            self.cost[sets] = total.min(axis=2)

    def cheapest_tree(self, root: int, ends: Sequence[int]) -> list[Route] | None:
        """Return the routes of a cheapest tree from `root` to `ends`; None if some end cannot be reached."""
        end_set = sum(1 << i for i, end in enumerate(self.ends) if end in ends and end != root)
        if not np.isfinite(self.cost[end_set, root]):
            return None
        hops = self._collect_hops(end_set, root)
        entered_by: dict[int, tuple[int, Route]] = {}
        reached, todo = {root}, [root]
        # The union of the hops may enter a rank twice; a search from the root keeps one hop into each rank.
        while todo:
            node = todo.pop()
            for a, b, route in hops:
                if a == node and b not in reached:
                    reached.add(b)
                    entered_by[b] = a, route
                    todo.append(b)
        routes: dict[int, Route] = {}
        for end in ends:
            node = end
            while node != root and node not in routes:
                parent, routes[node] = entered_by[node]
                node = parent
        return list(routes.values())

    def _collect_hops(self, end_set: int, rank: int) -> list[tuple[int, int, Route]]:
        """Follow the table: return all hops of the tree from a rank to a set of ends."""
        if not end_set:
            return []
        branch = int(self.branching[end_set, rank])
        hops = self.paths.hops_between(rank, branch) if branch != rank else []
        if end_set & (end_set - 1):  # several ends
            half = int(self.half[end_set, branch])
            hops += self._collect_hops(half, branch) + self._collect_hops(end_set - half, branch)
        return hops
