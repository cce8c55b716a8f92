"""Fractional packing of trees by column generation: a linear program with one row per link and shared limit.

    maximize  sum_j gain_j t_j
    such that for every group g of trees (those of one root):   sum of their rates = sum_j share_gj t_j
              for every row (a link, a shared limit, or an orbit of such):   load <= capacity

There are exponentially many trees (columns), so they are generated: solve the program over the trees known so far; its
dual gives a price per row; a tree that costs less than its group's worth at these prices improves the optimum. Add the
cheapest tree of each group (pricing.py) and repeat. If no tree is cheaper than its worth, the program is optimal: the
prices then prove the rate by weak duality. A hop between ranks takes the cheapest path through switches, so paths need
not be enumerated.

Example: broadcast from 0 to 1 and 2 on unit links between all pairs. With the star 0>1, 0>2 alone the rate is 1. Its
links now have prices, 1>2 and 2>1 are free, so a path such as 0>1>2 is cheaper; with both paths the rate is 2, the cut
bound.

HiGHS finds the optimum in floats; `Master.solve_exactly` then solves the basis in rationals. Ranks that only relay make
pricing NP-hard (Steiner trees); then only the cut can prove the rate. With symmetries (shared/orbits) only one root per
orbit has trees, and a row is an orbit of links or limits.

Depth matters for latency, so `Search` looks for the best rate first and then for the least depth that attains it.

For an allreduce on machines whose links differ by direction (`pack_allreduce_lp`), trees in to and out of every root r
carry the same w_r, and the sum of the w_r is maximized. Exhaustive search on small machines found nothing faster.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from operator import attrgetter, itemgetter

import numpy as np
from numpy.typing import NDArray

from antiphon.core.bounds.cuts import tightest_cut
from antiphon.core.bounds.network import network_of
from antiphon.core.portable import dot, exp
from antiphon.core.reshape import reverse
from antiphon.core.topology import Topology
from antiphon.errors import Infeasible, Invalid
from antiphon.planners.shared.orbits import Table, free_group, rows_of
from antiphon.planners.trees.exact_solve import simple_ratio
from antiphon.planners.trees.master import TINY, Column, Master, Point
from antiphon.planners.trees.pricing import FAR, HopPrices, Parents, PricedHops, tree_of
from antiphon.planners.trees.to_schedule import Forest, Tree

_SIMPLE = (12, 200, 5000)  # largest denominators tried for exact prices
_DEEPER = 4  # depths tried beyond the least possible, before depth is left free
_FINE = 2**28  # float prices are rounded to this part of the greatest: sums over trees stay in int64
_BETTER = 1e-8  # a column must promise this part of the value
_WARM = 6  # trees per group by growing prices, before the first linear program
_MOST_ROUNDS = 2000
_PATIENCE = 8  # rounds with a depth limit and without gain
_TRIES = 6  # random restarts per shallow tree once the quick heuristic stops helping
_DOUBTS = 3  # times that prices may indicate an unreachable target


@dataclass(frozen=True)
class Packing:
    """Root r's trees carry demand[r] * rate bytes per second in total. No packing of trees exceeds `bound`."""

    rate: Fraction
    firsts: tuple[Tree, ...]
    bound: Fraction
    forest: Forest = field(compare=False)

    @property
    def trees(self) -> tuple[Tree, ...]:
        return self.forest.trees

    @property
    def proved(self) -> bool:
        """Whether no packing is faster."""
        return self.rate == self.bound

    @property
    def depth(self) -> int:
        return max((tree.depth for tree in self.firsts), default=0)


def pack_lp(topology: Topology, demand: Mapping[int, int], sinks: Sequence[int], *, hops: int | None = None) -> Packing:
    """Pack trees from every root to all sinks (and the root itself), as fast as possible, then as shallow as possible.

    `hops`: maximum depth; the bound is still that of trees of any depth. Each round solves a linear program with links
    + limits + roots rows and prices a tree per root, O(ranks^3) at worst.
    """
    needed = _check_demand(topology, demand, sinks)
    return _pack_columns(topology, needed, sinks, hops, View.plain(topology, sorted(needed)))


def pack_orbits(
    topology: Topology, demand: Mapping[int, int], sinks: Sequence[int], view: View | None = None
) -> Packing | None:
    """Pack by symmetry: trees of one root per orbit and their images. None if the machine has no useful symmetry."""
    needed = _check_demand(topology, demand, sinks)
    view = view or View.of(topology, needed, sinks, 0)
    return _pack_columns(topology, needed, sinks, None, view) if view.alike > 1 else None


@dataclass(frozen=True, eq=False)
class View:
    """A machine modulo some of its symmetries: one root per orbit, and the orbit of every resource."""

    group: Table
    roots: list[int]
    row_of: Table

    @property
    def alike(self) -> int:
        return len(self.group)

    @staticmethod
    def of(
        topology: Topology, demand: Mapping[int, int], sinks: Sequence[int], seed: int, group: Table | None = None
    ) -> View:
        """Compute the view. `group`: known symmetries; they must preserve demands and sinks, and move every root."""
        group = free_group(topology, demand, sinks, seed) if group is None else group
        first_image = group[:, : topology.ranks].min(axis=0).tolist()
        return View(group, [root for root in sorted(demand) if first_image[root] == root], rows_of(topology, group))

    @staticmethod
    def plain(topology: Topology, roots: list[int]) -> View:
        """Return the view without symmetry."""
        group = np.arange(topology.nodes + topology.links + len(topology.limits))[None]
        return View(group, roots, rows_of(topology, group))


def _pack_columns(
    topology: Topology, demand: dict[int, int], sinks: Sequence[int], hops: int | None, view: View
) -> Packing:
    network = network_of(topology)
    supply: dict[tuple[int, ...], int] = {(root,): weight for root, weight in demand.items()}
    _, cut = tightest_cut(network, supply, sorted(set(sinks)))
    groups, share = [Rooted(root) for root in view.roots], [{0: demand[root]} for root in view.roots]
    search = Search(lambda: Generation(topology, groups, share, [1], sinks, cut, view.row_of, view.alike), cut)
    # Edmonds, and splitting off balanced switches: the cut bound is attained
    attained = not topology.limits and network.balanced
    best = search.find_best(hops, largest_eccentricity(topology, groups, sinks), attained)
    scale = topology.resources.scale
    firsts = tuple(Tree(view.roots[column.group], rate * scale, column.tree) for column, rate in best.rates)
    return Packing(best.value * scale, firsts, best.bound * scale, Forest(topology, view.group, firsts))


@dataclass(frozen=True)
class Found:
    """A packing and an upper bound, in units of the capacities."""

    value: Fraction
    bound: Fraction
    rates: list[tuple[Column, Fraction]]

    @property
    def depth(self) -> int:
        return max(column.depth for column, _ in self.rates)


class Search:
    """One problem at several depths; generated columns are shared between them."""

    def __init__(self, make: Callable[[], Generation], bound: Fraction) -> None:
        self.make, self.bound = make, bound
        self.pool: list[Column] = []

    def find_best(self, hops: int | None, first: int, attained: bool) -> Found:
        """Return the best packing at the requested depth; by default the best rate at the least depth that has it.

        `attained`: trees that reach all ranks are known to attain the bound, if deep enough, so shallow ones are tried
        straight away.
        """
        if hops is not None:
            packing = self.pack_at_depth(hops, self.bound)
            if packing is None:
                raise Infeasible(f"no tree of at most {hops} hops reaches all: allow at least {first} hops")
            return packing
        unlimited = None if attained and self.make().solve_exactly else self.pack_at_depth(None, self.bound)
        goal = self.bound if unlimited is None else unlimited.value
        last = first + _DEEPER if unlimited is None else min(first + 3 * _DEEPER, unlimited.depth - 1)
        # the rate is known; now find the least depth that has it
        packing = self._find_shallowest(first, last, goal)
        if packing is not None:
            return replace(packing, bound=self.bound)
        unlimited = unlimited or self.pack_at_depth(None, self.bound)
        assert unlimited is not None, "all sinks are within reach"
        return unlimited

    def _find_shallowest(self, first: int, last: int, goal: Fraction) -> Found | None:
        """Return the packing that meets the goal at the first depth found to have one; depths advance by two while
        far from it.
        """
        missed, depth = first - 1, first
        while depth <= last:
            packing = self.pack_at_depth(depth, goal, True)
            if packing is not None and packing.value >= goal:
                between = self.pack_at_depth(depth - 1, goal, True) if missed + 1 < packing.depth == depth else None
                return between if between is not None and between.value >= goal else packing
            missed = depth
            far = packing is None or 2 * packing.value < goal
            depth += 2 if far and depth + 1 < last else 1
        return None

    def pack_at_depth(self, hops: int | None, target: Fraction, all_or_nothing: bool = False) -> Found | None:
        """Return the best packing found with at most `hops` hops; None if it cannot reach all sinks."""
        generation = self.make()
        if not generation.add_first_columns(hops):
            return None
        for column in self.pool:
            if hops is None or column.depth <= hops:
                generation.master.add_column(column)
        point, bound = generation.generate_columns(hops, target, all_or_nothing)
        self.pool = generation.master.columns
        # rational solution of the float basis; if it fails, a feasible rounding
        exact = generation.master.solve_exactly(point)
        rates, t = generation.master.round_solution(point) if exact is None else exact
        value = sum((g * v for g, v in zip(generation.master.gain, t, strict=True)), Fraction(0))
        if generation.solve_exactly and hops is None and value < self.bound:
            proved = prove_bound(generation, point, value)
            self.bound = min(self.bound, proved, proved if bound is None else bound)
        return Found(value, self.bound, rates)


def prove_bound(generation: Generation, point: Point, value: Fraction) -> Fraction:
    """Return an upper bound from the prices at a float optimum, made integral: usually they are simple ratios."""
    best: Fraction | None = None
    for max_denominator in _SIMPLE:
        # the optimal prices are rational; guess them from floats, and if they prove nothing better, go finer
        prices = simple_ratio(point.price, max_denominator)
        prices = whole_prices(point.price, generation.fine) if prices is None else prices
        priced = generation.price_all(prices, None)
        assert priced is not None
        bound = generation.master.dual_bound(prices, priced[0])
        best = bound if best is None else min(best, bound)
        if best <= value:
            break
    assert best is not None
    return best


def _check_demand(topology: Topology, demand: Mapping[int, int], sinks: Sequence[int]) -> dict[int, int]:
    """Return the roots with a positive demand. Raises Infeasible if a sink is out of reach of one, naming the first."""
    needed = {root: int(weight) for root, weight in demand.items() if weight}
    for root in sorted(needed):
        if needed[root] < 0 or not 0 <= root < topology.ranks:
            raise Invalid(f"demand of rank {root}: expected ranks 0 to {topology.ranks - 1}, weights of 0 or more")
    check_reach(topology, sorted(needed), sinks)
    if not any(set(sinks) - {root} for root in needed):
        raise Invalid("nothing must move: name a root with a demand, and a rank other than it")
    return needed


def check_reach(topology: Topology, roots: Sequence[int], sinks: Sequence[int], back: bool = False) -> None:
    """Raise Infeasible if a sink is out of reach of a root, naming the first. `back`: the machine is a reversed one."""
    ends, fares = {*roots, *sinks}, HopPrices(topology)
    first = roots[:1]
    if (
        first
        and ends <= fares.reachable_from(first).keys()
        and ends <= HopPrices(reverse(topology)).reachable_from(first).keys()
    ):
        return  # everyone reaches the first root, and it reaches everyone
    for root in roots:
        lost = sorted(set(sinks) - fares.reachable_from([root]).keys())
        if lost:
            ranks = "ranks " if len(lost) > 1 else "rank "
            ranks += ", ".join(map(str, lost[:8])) + (", ..." if len(lost) > 8 else "")
            direction = f"from {ranks} to rank {root}" if back else f"from rank {root} to {ranks}"
            raise Infeasible(f"topology {topology.name}: no links that carry data lead {direction}; join them")


def largest_eccentricity(topology: Topology, groups: Sequence[Rooted], sinks: Sequence[int]) -> int:
    """Return the most hops that any tree needs."""
    hops_by_direction = {
        turned: HopPrices(reverse(topology) if turned else topology) for turned in {g.turned for g in groups}
    }
    reached = (hops_by_direction[group.turned].reachable_from([group.root]) for group in groups)
    return max(distance[sink] for distance in reached for sink in sinks)


@dataclass(frozen=True)
class InAndOut:
    """`rate`: of the whole vector, bytes per second. No packing of such trees exceeds `bound`.

    `trees_in` are trees of the reversed machine (core.reshape.reverse: links keep their numbers): a hop leads from the
    parent down, and reduced data take its path backwards, last link first.
    """

    rate: Fraction
    trees_in: tuple[Tree, ...]
    trees_out: tuple[Tree, ...]
    bound: Fraction

    @property
    def proved(self) -> bool:
        """Whether no packing of such trees is faster."""
        return self.rate == self.bound

    @property
    def depth(self) -> int:
        return max(max((tree.depth for tree in trees), default=0) for trees in (self.trees_in, self.trees_out))


def pack_allreduce_lp(topology: Topology, members: Sequence[int]) -> InAndOut:
    """Return the fastest trees in and out with common roots, then shallow; every member may be a root.

    Each round solves a linear program of links + limits + 2 members rows and prices two trees per member.
    """
    roots = sorted(set(members))
    if len(roots) < 2:
        raise Invalid("allreduce: nothing must move among fewer than 2 ranks")
    check_reach(topology, roots[:1], roots)
    check_reach(reverse(topology), roots[:1], roots, back=True)
    out, into = network_of(topology).degrees()
    # each member must send and receive everything at least once
    limit = Fraction(min(int(degree[rank]) for degree in (out, into) for rank in roots))  # all data pass every member
    row_of = View.plain(topology, roots).row_of
    groups = [Rooted(root, turned) for turned in (False, True) for root in roots]
    share = [{at: 1} for _ in range(2) for at in range(len(roots))]
    search = Search(lambda: Generation(topology, groups, share, [1] * len(roots), roots, limit, row_of, 1), limit)
    best = search.find_best(None, largest_eccentricity(topology, groups, roots), False)
    scale = topology.resources.scale
    trees: dict[bool, list[Tree]] = {False: [], True: []}
    for column, rate in best.rates:
        group = groups[column.group]
        trees[group.turned].append(Tree(group.root, rate * scale, column.tree))
    up, down = (tuple(sorted(trees[turned], key=attrgetter("root"))) for turned in (True, False))
    return InAndOut(best.value * scale, up, down, best.bound * scale)


@dataclass(frozen=True)
class Rooted:
    """The trees of one root; `turned`: on the reversed machine."""

    root: int
    turned: bool = False


class Generation:
    """One packing problem: rows (each resource belongs to one), groups of trees, and the objective.

    `exact`: all usable ranks must be reached, so cheapest trees are computed exactly. `alike`: number of images of a
    tree that load the rows (see shared/orbits); 1 without symmetry.
    """

    def __init__(
        self, topology: Topology, groups: Sequence[Rooted], share: Sequence[dict[int, int]], gain: Sequence[int],
        sinks: Sequence[int], unit: Fraction, row_of: NDArray[np.int64], alike: int,
    ) -> None:  # fmt: skip
        self.topology, self.groups, self.sinks, self.alike = topology, list(groups), sorted(set(sinks)), alike
        self.fares = HopPrices(topology)
        self.ranks = [_useful_ranks(topology, group, self.sinks) for group in self.groups]
        self.solve_exactly = all(
            len({group.root, *self.sinks}) == len(ranks) for group, ranks in zip(self.groups, self.ranks, strict=True)
        )  # else relays make it Steiner trees
        resources = topology.resources
        self.row_of = row_of
        table = np.array(resources.capacity, object)[resources.klass]
        capacity = [0] * (int(self.row_of.max(initial=-1)) + 1)
        for row, c in zip(self.row_of.tolist(), table.tolist(), strict=True):
            capacity[row] += int(c)
        self.master = Master(capacity, share, gain, unit)
        self.tries = min(_TRIES, 2**12 // topology.ranks**2)
        self.fine = min(_FINE, FAR // self.fares.most)
        self.limits: list[list[int]] = [[] for _ in range(topology.links)]
        for number, limit in enumerate(topology.limits):
            for link in limit.links:
                self.limits[link].append(topology.links + number)

    def make_column(self, number: int, quote: PricedHops, parents: Parents) -> Column:
        """Return a tree as a column: how often it loads each row, summed over its images."""
        group = self.groups[number]
        hops = quote.tree_hops(parents, group.root, group.turned)
        load: dict[int, int] = {}
        for _, hop in hops:
            for link in hop.path:
                for resource in (link, *self.limits[link]):
                    row = int(self.row_of[resource])
                    load[row] = load.get(row, 0) + self.alike
        rows = sorted(load)
        return Column(number, tuple(rows), tuple(load[row] for row in rows), hops)

    def price_tree(self, number: int, quote: PricedHops, hops: int | None, tries: int) -> tuple[int, Parents] | None:
        """Return the cost and parents of a group's cheapest tree found, at most `hops` deep."""
        group = self.groups[number]
        cost = quote.cost.T if group.turned else quote.cost
        parents = tree_of(cost, group.root, hops, self.sinks, self.ranks[number], quote.far, tries)
        return None if parents is None else (quote.tree_price(cost, parents), parents)

    def price_all(
        self, prices: Sequence[int], hops: int | None, tries: int = 0
    ) -> tuple[list[int], list[Column]] | None:
        """Return, at integral prices of rows, every group's cheapest cost and tree; None if a group has no tree."""
        big = max(prices, default=0) * self.fares.most >= FAR
        quote = self.fares.price_hops(np.array(prices, object if big else np.int64)[self.row_of])
        costs, columns = [], []
        for number in range(len(self.groups)):
            cheapest_tree = self.price_tree(number, quote, hops, tries)
            if cheapest_tree is None:
                return None
            costs.append(cheapest_tree[0] * self.alike)
            columns.append(self.make_column(number, quote, cheapest_tree[1]))
        return costs, columns

    def add_first_columns(self, hops: int | None) -> bool:
        """Add initial columns at prices that grow with load (as in multiplicative weights). False if some root has
        no tree.
        """
        capacity = np.array([float(c) for c in self.master.capacity])
        load = np.zeros(len(capacity))
        for _ in range(_WARM):
            steep = exp(3.0 * (load / capacity) / max(float((load / capacity).max()), 1e-12)) / capacity
            priced = self.price_all(whole_prices(steep, 2**20), hops)
            if priced is None:
                return False
            for column in priced[1]:
                self.master.add_column(column)
                load[list(column.rows)] += column.times
        return True

    def generate_columns(
        self, hops: int | None, target: Fraction, all_or_nothing: bool
    ) -> tuple[Point, Fraction | None]:
        """Add columns until none helps or the target is met; return the optimum and the best bound on any packing.

        The bound is valid only without a depth limit and if trees are exactly cheapest. With a depth limit the search
        gives up once the value stalls, or (all_or_nothing) once prices on heuristic trees indicate that the target is
        out of reach.
        """
        master, best = self.master, None
        goal = float(target / master.unit) * (1 - TINY)
        smooth: NDArray[np.float64] | None = None
        still, before, doubts = 0, 0.0, 0
        for _ in range(_MOST_ROUNDS):
            point = master.solve_floats()
            still = 0 if point.value > before * (1 + 1e-6) else still + 1
            before = max(point.value, before)
            if point.value >= goal or (hops is not None and still >= _PATIENCE):
                break
            # stabilization: duals oscillate between rounds, so price at a running average, too
            smooth = point.price if smooth is None else 0.6 * smooth + 0.4 * point.price
            rounds = [(*self._price_round(point, price, hops, 0), price) for price in (smooth, point.price)]
            added = any(helped for _, helped, _ in rounds)
            bound, _, price = min(rounds, key=itemgetter(0))
            if hops is None:
                best = bound if best is None else min(best, bound)
            # heuristic trees: the bound is no proof, so retry with more effort before giving up
            doubtful = hops is not None and all_or_nothing and bound < target
            if doubtful and self.tries:
                bound, helped = self._price_round(point, price, hops, self.tries)
                doubtful, added = bound < target, added or helped
            if hops is not None and self.tries and not added:
                added = self._price_round(point, point.price, hops, 4 * self.tries)[1]
            doubts += doubtful
            met = best is not None and point.value >= float(best / master.unit) * (1 - TINY)
            if not added or doubts >= _DOUBTS or met:
                break
        return point, best

    def _price_round(
        self, point: Point, price: NDArray[np.float64], hops: int | None, tries: int
    ) -> tuple[Fraction, bool]:
        """Return the bound that the cheapest trees would prove if they were exact, and whether some of them help as
        columns.
        """
        ints = whole_prices(price, self.fine)
        priced = self.price_all(ints, hops, tries)
        assert priced is not None, "the first columns reached all sinks"
        # weak duality: (sum of capacity * price) / (cost of the cheapest trees) bounds every packing
        bound = self.master.dual_bound(ints, priced[0])
        fresh = [self.master.add_column(column) for column in priced[1] if self._is_improving(point, column)]
        return bound, any(fresh)

    def _is_improving(self, point: Point, column: Column) -> bool:
        """Return whether a column costs less than its group's worth (negative reduced cost)."""
        cost = float(dot(point.price[list(column.rows)], np.array(column.times, float)))
        return cost < point.worth[column.group] - _BETTER * max(point.value, 1e-30) / len(self.groups)


def _useful_ranks(topology: Topology, group: Rooted, sinks: Sequence[int]) -> list[int]:
    """Return the ranks that a tree of the group may pass: reachable from its root, and from which some sink is
    reachable.
    """
    ahead = HopPrices(reverse(topology) if group.turned else topology)
    behind = HopPrices(topology if group.turned else reverse(topology))
    reached = ahead.reachable_from([group.root])
    return sorted({group.root, *sinks, *(reached.keys() & behind.reachable_from(sinks).keys())})


def whole_prices(prices: NDArray[np.float64], fine: int) -> list[int]:
    """Scale float prices to integers, the largest `fine`."""
    top = float(prices.max(initial=0.0)) or 1.0
    return [int(v) for v in np.rint(np.maximum(prices, 0.0) / top * fine).tolist()]
