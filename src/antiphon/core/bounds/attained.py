"""Decide on small machines whether a bound is attained: the best packing of trees, by column generation.

A tree is a set of routes between ranks (docs/bounds.md, "Attained on small machines"). The linear program over all
trees

    minimise T   such that   the rates of the trees of each block sum to its weight,
                             the load of each link or limit is at most capacity * T

has exponentially many columns, so they are generated. Solve the program over the trees so far; its dual prices every
link; find the cheapest tree of each block at these prices and add it. When no tree is new, the program is optimal. It
is stopped as soon as T reaches the bound, and the rates are then recomputed as exact fractions.

The cheapest tree that joins a root to a set of ranks is a Steiner tree, found by dynamic programming over subsets
(Dreyfus and Wagner 1971):

    cost[S, r] = min over ranks q of  distance(r, q) + min over splits S = A + B of  cost[A, q] + cost[B, q]

in 3^ranks small steps, which is why only machines up to MOST_RANKS are tried. Effort is counted, never timed, so that
results do not depend on the speed of the machine.

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

MOST_RANKS = 8
MOST_SWITCHES = 8
MOST_LINKS = 256
MOST_ROUNDS = 60  # programs solved
MOST_COLUMNS = 1500  # trees in the last of them
_CLOSE = 1e-9
_KINDS = ("broadcast", "allgather", "reduce", "reducescatter", "allreduce")

Floats = NDArray[np.float64]
Route = tuple[int, ...]


@dataclass(frozen=True)
class _TreeRequest:
    """Trees of a block that are worth having: `way` out of a root to `ends`, or from `ends` into it."""

    block: int
    way: str
    root: int
    ends: tuple[int, ...]
    row: int  # the program's equation that counts its rate, and how
    sign: int
    also: int | None = None  # a second one: of allreduce, the balance of its root


def packing_of(topology: Topology, collective: Collective, bound: Fraction) -> Packing | None:
    """A packing of trees that takes just the time `bound` (weight over bytes per second); None: none was found."""
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
    """min T, so that the rates of trees sum to what blocks weigh and none carries more than capacity * T.

    Rates in parts of all weight, T in parts of the bound; so `capacity` is what can be carried within the bound.
    """

    def __init__(self, topology: Topology, collective: Collective, bound: Fraction) -> None:
        self.topology, self.collective, self.bound = topology, collective, bound
        bandwidth = [topology.bandwidth(link) for link in range(topology.links)]
        self.exact = [*bandwidth, *(limit.bandwidth for limit in topology.limits)]
        self.limits_of: list[list[int]] = [[] for _ in range(topology.links)]
        for number, limit in enumerate(topology.limits):
            for link in limit.links:
                self.limits_of[link].append(topology.links + number)
        self.wanted, self.right = _requested_trees(collective)
        self.weight = sum(self.right)
        self.capacity = np.array([float(c * bound / self.weight) for c in self.exact])
        self.columns: dict[tuple[int, frozenset[Route]], Floats] = {}  # (wanted, routes) -> load of every resource

    def find_packing(self) -> Packing | None:
        prices = 1 / self.capacity
        # Column generation. Invariant: `prices` are the dual prices of the last program (at first: the narrower, the
        # dearer).
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
        """Time, the rate of every column, the price of every resource. None where blocks cannot be served yet."""
        from scipy.optimize import linprog

        scale = 1 / np.maximum(self.capacity, 1)  # so that wide and narrow links both have entries near 1
        loads = np.array(list(self.columns.values())).T
        above = np.hstack([loads, -self.capacity[:, None]]) * scale[:, None]
        level = np.zeros((len(self.right), len(self.columns) + 1))
        for at, (which, _) in enumerate(self.columns):
            for row, sign in self._row_entries(which):
                level[row, at] = sign
        cost = np.zeros(len(self.columns) + 1)
        cost[-1] = 1
        right = [x / self.weight for x in self.right]
        result = linprog(cost, A_ub=above, b_ub=np.zeros(len(above)), A_eq=level, b_eq=right, method="highs")
        if result.status:
            return None
        return float(result.x[-1]), result.x[:-1], np.maximum(-result.ineqlin.marginals, 0.0) * scale

    def _row_entries(self, which: int) -> list[tuple[int, int]]:
        tree = self.wanted[which]
        counted = [(tree.row, tree.sign)]
        return counted if tree.also is None else [*counted, (tree.also, -1)]

    def _exact_packing(self, rates: Floats) -> Packing | None:
        """The same trees at exact rates: what the full links and the blocks' weights determine."""
        keys = list(self.columns)
        used = [at for at in range(len(keys)) if rates[at] > _CLOSE]
        loads = np.array([self.columns[keys[at]] for at in used])
        # Complementary slackness: a full link carries exactly its capacity. These equations determine the rates
        # exactly.
        full = np.flatnonzero(dot(loads.T, rates[used]) >= self.capacity * (1 - 1e-7)).tolist()
        rows = [[Fraction(int(loads[i][r])) for i in range(len(used))] + [self.exact[r] * self.bound] for r in full]
        for number, right in enumerate(self.right):
            entries = [dict(self._row_entries(keys[at][0])).get(number, 0) for at in used]
            rows.append([*map(Fraction, entries), Fraction(right)])
        exact = _solve_exactly(rows, len(used))
        if exact is None or min(exact) < 0:
            return None
        trees = tuple(
            Tree(w.block, w.way, w.root, rate, tuple(sorted(keys[at][1])))
            for at, rate in zip(used, exact, strict=True)
            if rate and (w := self.wanted[keys[at][0]])
        )
        try:
            time_of = packed_time(self.topology, self.collective, Packing(trees))
        except Invalid:
            return None
        return Packing(trees) if time_of == self.bound else None

    # ---- trees ----

    def _cheapest_trees(self, prices: Floats) -> dict[tuple[int, frozenset[Route]], Floats]:
        """For everything wanted its cheapest tree at these prices of links and limits."""
        cost = prices[: self.topology.links].copy()
        for link, limits in enumerate(self.limits_of):
            cost[link] += prices[limits].sum()
        # Break ties by length, so that zero prices do not produce detours.
        cost += 1e-12 * (1 + cost.max())  # of equally cheap ways the shortest
        columns: dict[tuple[int, frozenset[Route]], Floats] = {}
        for direction in ("out", "in"):
            numbers = [number for number, w in enumerate(self.wanted) if w.way == direction]
            if not numbers:
                continue
            paths = _CheapestPaths(self.topology, cost, direction == "in")
            ends = sorted({end for number in numbers for end in self.wanted[number].ends})
            trees = _Steiner(paths, ends)
            for number in numbers:
                tree = self.wanted[number]
                routes = trees.cheapest_tree(tree.root, tree.ends)
                if routes is not None:
                    columns[number, frozenset(routes)] = self._load_of_routes(routes)
        return columns

    def _load_of_routes(self, routes: Sequence[Route]) -> Floats:
        load = np.zeros(len(self.capacity))
        for link in itertools.chain.from_iterable(routes):
            load[[link, *self.limits_of[link]]] += 1
        return load


def _requested_trees(collective: Collective) -> tuple[list[_TreeRequest], list[int]]:
    """Which trees to look for, and the right side of the equations that their rates keep."""
    members, roots, weights = collective.members, collective.roots, collective.weights.tolist()
    kind = collective.kind
    if (
        kind == "allreduce"
    ):  # into a root and out of it again, whichever rank that is; equation r + 1: in = out at rank r
        halves = [
            _TreeRequest(0, direction, root, members, *((0, 1, root + 1) if direction == "out" else (root + 1, 1)))
            for root in range(collective.ranks)
            for direction in ("in", "out")
        ]
        return halves, [weights[0]] + [0] * collective.ranks
    direction = "out" if kind in ("broadcast", "allgather") else "in"
    ends = roots if kind in ("broadcast", "reduce") else members
    blocks = [block for block in range(collective.blocks) if weights[block]]
    return (
        [_TreeRequest(block, direction, ends[block], members, row, 1) for row, block in enumerate(blocks)],
        [weights[block] for block in blocks],
    )


class _CheapestPaths:
    """Cheapest ways between ranks: hops through switches alone, and hops one after another.

    With `back` all links are turned round, so that a tree out of a root is one into it.
    """

    def __init__(self, topology: Topology, cost: Floats, back: bool) -> None:
        nodes, self.ranks, self.back = topology.nodes, topology.ranks, back
        self.far = np.full((nodes, nodes), np.inf)
        self.link = np.full((nodes, nodes), -1)
        self.middle = np.full((nodes, nodes), -1)
        tails, heads = topology.link_src.tolist(), topology.link_dst.tolist()
        for link, (a, b) in enumerate(zip(tails, heads, strict=True)):
            at = (b, a) if back else (a, b)
            if cost[link] < self.far[at]:
                self.far[at], self.link[at] = cost[link], link
        # Floyd-Warshall. Invariant: far[a, b] is the shortest distance through the middles processed so far.
        for middle in [*range(self.ranks, nodes), *range(self.ranks)]:  # switches first: then middles are inside hops
            through = self.far[:, middle, None] + self.far[None, middle, :]
            better = through < self.far
            np.fill_diagonal(better, False)
            self.far[better] = through[better]
            self.middle[better] = middle
        np.fill_diagonal(self.far, 0.0)

    def nodes_between(self, a: int, b: int) -> list[int]:
        """All nodes on the way but the last."""
        middle = int(self.middle[a, b])
        return [a] if middle < 0 else self.nodes_between(a, middle) + self.nodes_between(middle, b)

    def hops_between(self, a: int, b: int) -> list[tuple[int, int, Route]]:
        """From rank to rank, each with its links."""
        path = [*self.nodes_between(a, b), b]
        stops = [i for i, node in enumerate(path) if node < self.ranks]
        hops = []
        for i, j in itertools.pairwise(stops):
            links = [int(self.link[pair]) for pair in itertools.pairwise(path[i : j + 1])]
            hops.append((path[i], path[j], tuple(links[::-1] if self.back else links)))
        return hops


@cache
def _subset_splits(count: int, size: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """The sets of `size` of `count` things, and of each its first halves: every split once."""
    sets = [sum(1 << i for i in chosen) for chosen in itertools.combinations(range(count), size)]
    halves = []
    for chosen_set in sets:
        rest = chosen_set & (chosen_set - 1)  # without its lowest: that stays in the second half
        halves.append([half for half in _list_subsets(rest) if half])
    return np.array(sets), np.array(halves)


def _list_subsets(full_set: int) -> list[int]:
    subsets, subset = [], full_set
    while True:
        subsets.append(subset)
        if not subset:
            return subsets
        subset = (subset - 1) & full_set


@dataclass
class _Steiner:
    """The cheapest trees out of any rank to any of the sets of `ends`: cost[set, rank], and how it came about."""

    paths: _CheapestPaths
    ends: list[int]
    cost: Floats = field(init=False)
    step: NDArray[Any] = field(init=False)  # [set, rank]: the rank to which to go first
    half: NDArray[Any] = field(init=False)  # [set, rank]: the part served by one branch at that rank

    def __post_init__(self) -> None:
        ranks, count = self.paths.ranks, len(self.ends)
        far = self.paths.far[:ranks, :ranks]
        self.cost = np.full((1 << count, ranks), np.inf)
        self.cost[0] = 0
        self.step = np.zeros((1 << count, ranks), np.int64)
        self.half = np.zeros((1 << count, ranks), np.int64)
        for i, end in enumerate(self.ends):
            self.cost[1 << i], self.step[1 << i] = far[:, end], end
        # Dreyfus-Wagner by size of the set: smaller sets are complete, so both halves of a split are known.
        for size in range(2, count + 1):
            sets, halves = _subset_splits(count, size)
            joined = self.cost[halves] + self.cost[sets[:, None] - halves]  # set, split, rank
            best = joined.argmin(axis=1)
            at_rank = np.take_along_axis(joined, best[:, None, :], axis=1)[:, 0, :]
            self.half[sets] = np.take_along_axis(halves, best, axis=1)
            total = far[None, :, :] + at_rank[:, None, :]  # set, from, by way of
            self.step[sets] = total.argmin(axis=2)
            self.cost[sets] = total.min(axis=2)

    def cheapest_tree(self, root: int, ends: Sequence[int]) -> list[Route] | None:
        """The routes of a cheapest tree; None where some end is out of reach."""
        end_set = sum(1 << i for i, end in enumerate(self.ends) if end in ends and end != root)
        if not np.isfinite(self.cost[end_set, root]):
            return None
        hops = self._collect_hops(end_set, root)
        entered_by: dict[int, tuple[int, Route]] = {}
        reached, todo = {root}, [root]
        # The union of the hops may contain a rank twice; a search from the root keeps one way into each rank.
        while todo:  # where ways meet, one is enough
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
        if not end_set:
            return []
        to = int(self.step[end_set, rank])
        hops = self.paths.hops_between(rank, to) if to != rank else []
        if end_set & (end_set - 1):
            half = int(self.half[end_set, to])
            hops += self._collect_hops(half, to) + self._collect_hops(end_set - half, to)
        return hops


def _solve_exactly(rows: list[list[Fraction]], unknowns: int) -> list[Fraction] | None:
    """The solution of equations (right side last), by elimination; None where there is none or more than one."""
    remaining, at = rows, 0
    # Gauss-Jordan elimination in fractions. Invariant: the first `at` columns are unit vectors.
    for column in range(unknowns):
        pivot = next((i for i in range(at, len(remaining)) if remaining[i][column]), None)
        if pivot is None:
            return None
        remaining[at], remaining[pivot] = remaining[pivot], remaining[at]
        head = remaining[at][column]
        remaining[at] = [x / head for x in remaining[at]]
        for i, row in enumerate(remaining):
            if i != at and row[column]:
                times = row[column]
                remaining[i] = [x - times * y if y else x for x, y in zip(row, remaining[at], strict=True)]
        at += 1
    if any(row[-1] for row in remaining[at:]):
        return None
    return [row[-1] for row in remaining[:at]]
