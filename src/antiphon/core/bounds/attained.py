"""Decide on small machines whether a bound is attained: the best packing of trees, by column generation.

Input: a topology, a collective and a bound on its time. Output: trees with exact rates that together do the collective
in just that time (a `Packing`), or None. Each tree carries a share of one block, its *rate*, along routes between
ranks: "out" of a root to all ranks that want the block, or "in" to a root from all ranks that contribute. The linear
program over all trees

    minimise T   such that   the rates of the trees of each block sum to its weight (its relative size),
                             the load of each link or shared limit is at most capacity * T

has exponentially many columns, so they are generated: solve the program over the trees so far; its dual values price
every link; add the cheapest tree of each block at these prices. When no tree is new, the program is optimal. The loop
stops as soon as T reaches the bound, and the rates are then recomputed as exact fractions.

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
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.core.bounds.packing import packed_time
from antiphon.core.bounds.witness import Packing, Tree
from antiphon.core.collective import Collective
from antiphon.core.portable import dot
from antiphon.core.topology import Topology
from antiphon.errors import Invalid

MOST_RANKS = 8  # larger machines are not tried
MOST_SWITCHES = 8
MOST_LINKS = 256
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
    `ends` to `root`. `row`, `sign`: the equation of the program in which the rates of such trees are summed, and with
    which sign. `second_row`: another equation in which they count with sign -1; for an allreduce it says that all that
    leaves a root by trees "out" has come to it by trees "in".
    """

    block: int
    direction: str
    root: int
    ends: tuple[int, ...]
    row: int
    sign: int
    second_row: int | None = None


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
    """The linear program over trees: minimise T so that rates sum to block weights and no load exceeds capacity * T.

    Rates are fractions of the total weight and T is a fraction of the bound, so `capacity` is what a link or limit
    carries within the bound. `columns`: the trees so far, as (index into `requests`, routes) -> load of every link and
    limit.
    """

    def __init__(self, topology: Topology, collective: Collective, bound: Fraction) -> None:
        self.topology, self.collective, self.bound = topology, collective, bound
        bandwidth = [topology.bandwidth(link) for link in range(topology.links)]
        self.exact = [*bandwidth, *(limit.bandwidth for limit in topology.limits)]
        self.limits_of: list[list[int]] = [[] for _ in range(topology.links)]
        for number, limit in enumerate(topology.limits):
            for link in limit.links:
                self.limits_of[link].append(topology.links + number)
        self.requests, self.row_sums = _requested_trees(collective)
        self.weight = sum(self.row_sums)
        self.capacity = np.array([float(c * bound / self.weight) for c in self.exact])
        self.columns: dict[tuple[int, frozenset[Route]], Floats] = {}

    def find_packing(self) -> Packing | None:
        """Run the column generation; return the exact packing, or None if the bound is not reached."""
        prices = 1 / self.capacity
        # Column generation. Invariant: `prices` are the dual values of the last program (at first 1 / capacity).
        for _ in range(MOST_ROUNDS):
            new = self._cheapest_trees(prices)
            before = len(self.columns)
            self.columns |= new
            # No new tree: the program is optimal and above the bound. Too many: give up, the question stays open.
            if len(self.columns) == before or len(self.columns) > MOST_COLUMNS:
                return None
            solution = self._solve_program()
            if solution is None:
                return None
            time, rates, prices = solution
            if time <= 1 + _CLOSE:
                return self._exact_packing(rates)
        return None

    # ---- the program ----

    def _solve_program(self) -> tuple[float, Floats, Floats] | None:
        """Return T, the rate of every column and the price of every resource; None if the trees so far cannot serve all
        blocks."""
        from scipy.optimize import linprog

        scale = 1 / np.maximum(self.capacity, 1)  # so that wide and narrow links both have entries near 1
        loads = np.array(list(self.columns.values())).T
        above = np.hstack([loads, -self.capacity[:, None]]) * scale[:, None]
        level = np.zeros((len(self.row_sums), len(self.columns) + 1))
        for column, (request, _) in enumerate(self.columns):
            for row, sign in self._row_entries(request):
                level[row, column] = sign
        cost = np.zeros(len(self.columns) + 1)
        cost[-1] = 1
        row_sums = [x / self.weight for x in self.row_sums]
        result = linprog(cost, A_ub=above, b_ub=np.zeros(len(above)), A_eq=level, b_eq=row_sums, method="highs")
        if result.status:
            return None
        return float(result.x[-1]), result.x[:-1], np.maximum(-result.ineqlin.marginals, 0.0) * scale

    def _row_entries(self, request: int) -> list[tuple[int, int]]:
        """Return the (equation, sign) pairs in which the rate of a tree for this request counts."""
        tree = self.requests[request]
        entries = [(tree.row, tree.sign)]
        return entries if tree.second_row is None else [*entries, (tree.second_row, -1)]

    def _exact_packing(self, rates: Floats) -> Packing | None:
        """Return the trees with a rate above 0, at exact rates: full links and the weights of blocks determine them."""
        keys = list(self.columns)
        used = [column for column in range(len(keys)) if rates[column] > _CLOSE]
        loads = np.array([self.columns[keys[column]] for column in used])
        # Complementary slackness: a full link carries exactly its capacity. These equations determine the rates
        # exactly.
        full = np.flatnonzero(dot(loads.T, rates[used]) >= self.capacity * (1 - 1e-7)).tolist()
        rows = [[Fraction(int(loads[i][r])) for i in range(len(used))] + [self.exact[r] * self.bound] for r in full]
        for number, row_sum in enumerate(self.row_sums):
            entries = [dict(self._row_entries(keys[column][0])).get(number, 0) for column in used]
            rows.append([*map(Fraction, entries), Fraction(row_sum)])
        exact = _solve_exactly(rows, len(used))
        if exact is None or min(exact) < 0:
            return None
        trees = tuple(
            Tree(request.block, request.direction, request.root, rate, tuple(sorted(keys[column][1])))
            for column, rate in zip(used, exact, strict=True)
            if rate and (request := self.requests[keys[column][0]])
        )
        try:
            time = packed_time(self.topology, self.collective, Packing(trees))
        except Invalid:
            return None
        return Packing(trees) if time == self.bound else None

    # ---- trees ----

    def _cheapest_trees(self, prices: Floats) -> dict[tuple[int, frozenset[Route]], Floats]:
        """Return the cheapest tree for each request at these prices of links and limits, with its loads."""
        cost = prices[: self.topology.links].copy()
        for link, limits in enumerate(self.limits_of):
            cost[link] += prices[limits].sum()
        # A small cost per link breaks ties by length, so that links of price 0 do not produce detours.
        cost += 1e-12 * (1 + cost.max())
        columns: dict[tuple[int, frozenset[Route]], Floats] = {}
        for direction in ("out", "in"):
            numbers = [number for number, request in enumerate(self.requests) if request.direction == direction]
            if not numbers:
                continue
            paths = _CheapestPaths(self.topology, cost, direction == "in")
            ends = sorted({end for number in numbers for end in self.requests[number].ends})
            trees = _Steiner(paths, ends)
            for number in numbers:
                tree = self.requests[number]
                routes = trees.cheapest_tree(tree.root, tree.ends)
                if routes is not None:
                    columns[number, frozenset(routes)] = self._load_of_routes(routes)
        return columns

    def _load_of_routes(self, routes: Sequence[Route]) -> Floats:
        """Return the load of every link and shared limit if each route carries a rate of 1."""
        load = np.zeros(len(self.capacity))
        for link in itertools.chain.from_iterable(routes):
            load[[link, *self.limits_of[link]]] += 1
        return load


def _requested_trees(collective: Collective) -> tuple[list[_TreeRequest], list[int]]:
    """Return which trees to look for, and the right-hand side of the equations for their rates."""
    members, roots, weights = collective.members, collective.roots, collective.weights.tolist()
    kind = collective.kind
    if kind == "allreduce":
        # Any rank may be a root; data go into it and out of it again. Equation 0: the trees "out" carry all data.
        # Equation r + 1: the trees into root r carry as much as those out of it.
        requests = []
        for root in range(collective.ranks):
            requests.append(_TreeRequest(0, "in", root, members, row=root + 1, sign=1))
            requests.append(_TreeRequest(0, "out", root, members, row=0, sign=1, second_row=root + 1))
        return requests, [weights[0]] + [0] * collective.ranks
    direction = "out" if kind in ("broadcast", "allgather") else "in"
    ends = roots if kind in ("broadcast", "reduce") else members
    blocks = [block for block in range(collective.blocks) if weights[block]]
    return (
        [_TreeRequest(block, direction, ends[block], members, row, 1) for row, block in enumerate(blocks)],
        [weights[block] for block in blocks],
    )


class _CheapestPaths:
    """Cheapest paths between nodes (Floyd-Warshall), split into hops from rank to rank.

    With `back` all links are reversed, so that a tree out of a root becomes one into it.
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
        for middle in [*range(self.ranks, nodes), *range(self.ranks)]:  # switches first: then middles are inside hops
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
            joined = self.cost[halves] + self.cost[sets[:, None] - halves]  # set, split, rank
            best = joined.argmin(axis=1)
            at_rank = np.take_along_axis(joined, best[:, None, :], axis=1)[:, 0, :]
            self.half[sets] = np.take_along_axis(halves, best, axis=1)
            total = far[None, :, :] + at_rank[:, None, :]  # set, from, by way of
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
                before, routes[node] = entered_by[node]
                node = before
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


def _solve_exactly(rows: list[list[Fraction]], unknowns: int) -> list[Fraction] | None:
    """Solve linear equations (right-hand side last) by elimination; None if there is no solution or more than one."""
    remaining, done = rows, 0
    # Gauss-Jordan elimination in fractions. Invariant: the first `done` columns are unit vectors.
    for column in range(unknowns):
        pivot = next((i for i in range(done, len(remaining)) if remaining[i][column]), None)
        if pivot is None:
            return None
        remaining[done], remaining[pivot] = remaining[pivot], remaining[done]
        head = remaining[done][column]
        remaining[done] = [x / head for x in remaining[done]]
        for i, row in enumerate(remaining):
            if i != done and row[column]:
                factor = row[column]
                remaining[i] = [x - factor * y if y else x for x, y in zip(row, remaining[done], strict=True)]
        done += 1
    if any(row[-1] for row in remaining[done:]):
        return None
    return [row[-1] for row in remaining[:done]]
