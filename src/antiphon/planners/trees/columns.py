"""Pack trees by column generation: a linear program whose variables are the rates of trees.

Input: a machine, the demand of every root (its relative amount of data) and the sinks, the ranks that receive all of
it. Output (`TreePacking`): trees with exact rates that fit all links and shared limits, their total rate, and an upper
bound on the rate of any packing. The linear program has a variable per tree and a row per link or shared limit:

    maximize    t                                                   (the rate of the packing)
    such that   for every root r:   sum of the rates of its trees = demand[r] * t
                for every row:      sum over trees of (rate * how often the tree uses the row) <= capacity

There are exponentially many trees (columns), so they are generated: solve the linear program over the trees known so
far. Its dual has a price per row and, per root, a worth (the dual value of the root's equation). A tree that costs less
than its root's worth at these prices improves the optimum. Add the cheapest tree of each root (pricing.py) and repeat.
If no tree costs less than its root's worth, the solution is optimal, and the prices prove its rate by weak duality:

    rate of any packing <= (sum of capacity * price) / (sum over roots of demand * cost of the root's cheapest tree)

A hop between ranks takes the cheapest path through switches, so paths need not be enumerated.

Example: broadcast from 0 to 1 and 2 on unit links between all pairs. With the star 0>1, 0>2 alone the rate is 1. Its
links now have prices, 1>2 and 2>1 are free, so a path such as 0>1>2 is cheaper; with both paths the rate is 2, the cut
bound.

HiGHS finds the optimum in floats; `Master.solve_exactly` then solves its basis in rationals. Ranks that only relay make
pricing NP-hard (Steiner trees); then only the cut bound can prove the rate. With symmetries (shared/orbits.py) only one
root of each orbit has trees; the others use images of these, and a row stands for an orbit of links or limits.

Depth matters for latency, so `DepthSearch` looks for the best rate first and then for the least depth that attains it.

For an allreduce on machines whose links differ by direction (`pack_allreduce_lp`) every root r has two groups of
trees, in to r and out of r. Both carry the same weight w_r, and the sum of the w_r is maximized. Exhaustive search on
small machines found nothing faster.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from operator import attrgetter, itemgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from antiphon.core.bounds.cuts import tightest_cut
from antiphon.core.bounds.exact_solve import simple_ratio
from antiphon.core.bounds.master import TINY, Column, Master, MasterPoint
from antiphon.core.bounds.network import network_of
from antiphon.core.bounds.step_search import steps_from
from antiphon.core.portable import exp, row_dot
from antiphon.core.reshape import reverse
from antiphon.core.topology import Topology
from antiphon.errors import Infeasible, Invalid, list_first
from antiphon.planners.shared.orbits import Symmetries, free_group, orbit_rows
from antiphon.planners.shared.tree_schedules import SpanningTree
from antiphon.planners.trees.pricing import FAR, HopPrices, Parents, PricedHops, tree_of
from antiphon.planners.trees.to_schedule import Forest

_SIMPLE = (12, 200, 5000)  # largest denominators tried for exact prices
_EXTRA_DEPTHS = 4  # depths tried beyond the least possible, before depth is left free ...
_EXTRA_DEPTHS_AFTER = 12  # ... and if the packing of free depth is known already, as long as they are below its depth
_PRICE_SCALE = 2**28  # float prices become integers up to this: sums over trees stay in int64
_MIN_SAVING = 1e-8  # a column must cost less than its group's worth by this fraction of the value
_FIRST_TREES = 6  # trees per group at prices that grow with load, before the first linear program
_LOAD_SHARPNESS = 3.0  # for these trees, the price per capacity of the fullest row is e^3 times that of an empty one
_MOST_ROUNDS = 2000  # rounds of pricing per packing problem
_PATIENCE = 8  # rounds without gain, with a depth limit, before giving up
_MIN_GAIN = 1e-6  # relative: a round that gains less counts as without gain
_OLD_WEIGHT = 0.6  # weight of earlier prices in the running average of prices
_RESTARTS = 6  # random restarts per shallow tree once the quick heuristic finds no better tree
_MOST_DOUBTS = 3  # rounds whose prices indicate that the target is out of reach, before giving up


@dataclass(frozen=True)
class TreePacking:
    """Packed trees; those of root r carry demand[r] * rate bytes per second in total. No packing exceeds rate
    `bound`.
    """

    rate: Fraction
    representatives: tuple[SpanningTree, ...]  # the trees of one root per orbit
    bound: Fraction
    forest: Forest = field(compare=False)  # all trees, by symmetries

    @property
    def trees(self) -> tuple[SpanningTree, ...]:
        """All trees of all roots."""
        return self.forest.trees

    @property
    def proved(self) -> bool:
        """Whether no packing is faster."""
        return self.rate == self.bound

    @property
    def depth(self) -> int:
        """Hops of the deepest tree."""
        return max((tree.depth for tree in self.representatives), default=0)


def pack_lp(
    topology: Topology, demand: Mapping[int, int], sinks: Sequence[int], *, hops: int | None = None
) -> TreePacking:
    """Pack trees from every root to all sinks (and the root itself), as fast as possible, then as shallow as possible.

    `hops`: maximum depth; the bound is still that of trees of any depth. Each round solves a linear program with links
    + limits + roots rows and prices a tree per root, O(ranks^3) at worst.
    """
    root_demand = _check_demand(topology, demand, sinks)
    view = QuotientView.without_symmetry(topology, sorted(root_demand))
    return _pack_columns(topology, root_demand, sinks, hops, view)


def pack_orbits(
    topology: Topology, demand: Mapping[int, int], sinks: Sequence[int], view: QuotientView | None = None
) -> TreePacking | None:
    """Pack trees of one root per orbit; the other roots use their images. None if the machine has no useful symmetry.

    `view`: the symmetries, if known. Otherwise as `pack_lp`, with fewer rows and roots.
    """
    root_demand = _check_demand(topology, demand, sinks)
    view = view or QuotientView.of(topology, root_demand, sinks, seed=0)
    return _pack_columns(topology, root_demand, sinks, hops=None, view=view) if view.images > 1 else None


@dataclass(frozen=True, eq=False)
class QuotientView:
    """A machine modulo some of its symmetries: one root per orbit, and the orbit of every link and shared limit."""

    group: Symmetries  # a row per symmetry: the image of every node, link and limit
    roots: list[int]  # one per orbit
    row_of: NDArray[np.int64]  # by link, then by limit: the number of its orbit

    @property
    def images(self) -> int:
        """Number of images of a tree, itself included."""
        return len(self.group)

    @staticmethod
    def of(
        topology: Topology, demand: Mapping[int, int], sinks: Sequence[int], seed: int, group: Symmetries | None = None
    ) -> QuotientView:
        """Return the view by symmetries that preserve demands and sinks and move every root: `group`, or those
        found.
        """
        group = free_group(topology, demand, sinks, seed) if group is None else group
        first_image = group[:, : topology.ranks].min(axis=0).tolist()  # by rank, the least rank of its orbit
        return QuotientView(
            group, [root for root in sorted(demand) if first_image[root] == root], orbit_rows(topology, group)
        )

    @staticmethod
    def without_symmetry(topology: Topology, roots: list[int]) -> QuotientView:
        """Return the view in which every root, link and limit is an orbit of its own."""
        group = np.arange(topology.nodes + topology.links + len(topology.limits))[None]
        return QuotientView(group, roots, orbit_rows(topology, group))


def _pack_columns(
    topology: Topology, demand: dict[int, int], sinks: Sequence[int], hops: int | None, view: QuotientView
) -> TreePacking:
    """Pack the trees of one root per orbit; `hops`: maximum depth, None to choose it."""
    network = network_of(topology)
    # `tightest_cut` has a key per set of ranks that hold the same data: here a root alone
    supply: dict[tuple[int, ...], int] = {(root,): weight for root, weight in demand.items()}
    _, cut_rate = tightest_cut(network, supply, sorted(set(sinks)))
    # trees of a root carry demand[root] * t[0], where t[0] is the only variable besides the rates and is maximized
    groups, share = [TreeGroup(root) for root in view.roots], [{0: demand[root]} for root in view.roots]
    search = DepthSearch(
        lambda: ColumnGeneration(
            topology, groups, share, gain=[1], sinks=sinks, unit=cut_rate, row_of=view.row_of, images=view.images
        ),
        cut_rate,
    )
    # by Edmonds' theorem, and by splitting off balanced switches, trees of some depth attain the cut bound
    attained = not topology.limits and network.balanced
    best = search.find_best(hops, largest_eccentricity(topology, groups, sinks), attained)
    scale = topology.resources.scale
    representatives = tuple(
        SpanningTree(view.roots[column.group], rate * scale, column.tree) for column, rate in best.rates
    )
    return TreePacking(
        best.value * scale, representatives, best.bound * scale, Forest(topology, view.group, representatives)
    )


@dataclass(frozen=True)
class DepthPacking:
    """A packing with some maximum depth, and an upper bound for any depth, in units of the capacities."""

    value: Fraction
    bound: Fraction
    rates: list[tuple[Column, Fraction]]

    @property
    def depth(self) -> int:
        """Hops of the deepest tree."""
        return max(_depth_of(column) for column, _ in self.rates)


def _depth_of(column: Column) -> int:
    """Return the hops from the root to the farthest rank of a tree, whose column holds every rank with its hop."""
    return max((hop.depth for _, hop in column.tree), default=0)


class DepthSearch:
    """One packing problem, solved for several maximum depths; generated columns are shared between them."""

    def __init__(self, make: Callable[[], ColumnGeneration], bound: Fraction) -> None:
        """`make`: returns the problem without columns. `bound`: an upper bound on its value."""
        self.make, self.bound = make, bound
        self.pool: list[Column] = []

    def find_best(self, hops: int | None, first: int, attained: bool) -> DepthPacking:
        """Return the best packing of depth `hops`; without `hops`, one of the best rate at the least depth found.

        `first`: the fewest hops that reach all sinks. `attained`: trees that are deep enough are known to attain the
        bound, so that the problem of unlimited depth need not be solved first.
        """
        if hops is not None:
            packing = self.pack_at_depth(hops, self.bound)
            if packing is None:
                raise Infeasible(f"no tree of at most {hops} hops reaches all: allow at least {first} hops")
            return packing
        free_packing = None if attained and self.make().is_exact else self.pack_at_depth(hops=None, target=self.bound)
        goal = self.bound if free_packing is None else free_packing.value
        last = (
            first + _EXTRA_DEPTHS if free_packing is None else min(first + _EXTRA_DEPTHS_AFTER, free_packing.depth - 1)
        )
        # the rate is known; now find the least depth that has it
        packing = self._find_shallowest(first, last, goal)
        if packing is not None:
            return replace(packing, bound=self.bound)
        free_packing = free_packing or self.pack_at_depth(hops=None, target=self.bound)
        assert free_packing is not None, "all sinks are within reach"
        return free_packing

    def _find_shallowest(self, first: int, last: int, goal: Fraction) -> DepthPacking | None:
        """Return a packing that meets the goal, at the least depth from `first` to `last` found to have one, or None.

        Depths advance by two while the value is below half the goal; then the depth between is tried last.
        """
        last_missed, depth = first - 1, first
        while depth <= last:
            packing = self.pack_at_depth(depth, goal, all_or_nothing=True)
            if packing is not None and packing.value >= goal:
                packing_between = (
                    self.pack_at_depth(depth - 1, goal, all_or_nothing=True)
                    if packing.depth == depth and last_missed + 1 < depth
                    else None
                )
                return packing_between if packing_between is not None and packing_between.value >= goal else packing
            last_missed = depth
            is_far = packing is None or 2 * packing.value < goal
            depth += 2 if is_far and depth + 1 < last else 1
        return None

    def pack_at_depth(self, hops: int | None, target: Fraction, all_or_nothing: bool = False) -> DepthPacking | None:
        """Return the best packing found with at most `hops` hops; None if no tree of that depth reaches all sinks.

        `target`: the value at which to stop. `all_or_nothing`: a lower value is of no use.
        """
        generation = self.make()
        if not generation.add_first_columns(hops):
            return None
        for column in self.pool:
            if hops is None or _depth_of(column) <= hops:
                generation.master.add_column(column)
        point, bound = generation.generate_columns(hops, target, all_or_nothing)
        self.pool = generation.master.columns
        # rational solution of the float basis; if it fails, a feasible rounding
        exact = generation.master.solve_exactly(point)
        rates, t = generation.master.round_solution(point) if exact is None else exact
        value = sum((g * v for g, v in zip(generation.master.gain, t, strict=True)), Fraction(0))
        if generation.is_exact and hops is None and value < self.bound:
            proved = prove_bound(generation, point, value)
            self.bound = min(self.bound, proved, proved if bound is None else bound)
        return DepthPacking(value, self.bound, rates)


def prove_bound(generation: ColumnGeneration, point: MasterPoint, value: Fraction) -> Fraction:
    """Return an upper bound on any packing, by the prices at a float optimum, made integral to be exact.

    `value`: that of the packing; a bound that meets it need not be improved.
    """
    best: Fraction | None = None
    for max_denominator in _SIMPLE:
        # optimal prices are usually simple ratios: guess them from floats; if they do not prove the value, allow
        # larger denominators
        prices = simple_ratio(point.price, max_denominator)
        prices = whole_prices(point.price, generation.price_scale) if prices is None else prices
        priced = generation.price_all(prices, max_depth=None)
        assert priced is not None
        bound = generation.master.dual_bound(prices, priced.costs)
        best = bound if best is None else min(best, bound)
        if best <= value:
            break
    assert best is not None
    return best


def _check_demand(topology: Topology, demand: Mapping[int, int], sinks: Sequence[int]) -> dict[int, int]:
    """Return the roots with a positive demand. Raises Infeasible if a root cannot reach a sink, naming the
    first such.
    """
    roots_demand = {root: int(weight) for root, weight in demand.items() if weight}
    for root in sorted(roots_demand):
        if roots_demand[root] < 0 or not 0 <= root < topology.ranks:
            raise Invalid(f"demand of rank {root}: expected ranks 0 to {topology.ranks - 1}, weights of 0 or more")
    check_reach(topology, sorted(roots_demand), sinks)
    if not any(set(sinks) - {root} for root in roots_demand):
        raise Invalid("nothing must move: name a root with a demand, and a rank other than it")
    return roots_demand


def check_reach(topology: Topology, roots: Sequence[int], sinks: Sequence[int], is_backward: bool = False) -> None:
    """Raise Infeasible if a root cannot reach a sink, naming the first such root.

    `is_backward`: the machine is a reversed one, so the message names the direction of the original links.
    """
    if not roots:
        return
    ends, first_root = sorted({*roots, *sinks}), roots[0]
    both_ways = (steps_from(topology, first_root, backwards=backwards) for backwards in (False, True))
    if all((steps[ends] < topology.nodes).all() for steps in both_ways):  # `steps_from`: nodes means out of reach
        return  # everyone reaches the first root, and it reaches everyone
    for root in roots:
        steps = steps_from(topology, root)
        unreachable = [sink for sink in sorted(set(sinks)) if steps[sink] == topology.nodes]
        if unreachable:
            ranks = f"{'ranks' if len(unreachable) > 1 else 'rank'} {list_first(unreachable)}"
            direction = f"from {ranks} to rank {root}" if is_backward else f"from rank {root} to {ranks}"
            raise Infeasible(f"topology {topology.name}: no links that carry data lead {direction}; join them")


def largest_eccentricity(topology: Topology, groups: Sequence[TreeGroup], sinks: Sequence[int]) -> int:
    """Return the greatest distance, in hops, between a group's root and a sink: the least depth that all trees need."""
    return max(int(steps_from(topology, group.root, backwards=group.inward)[list(sinks)].max()) for group in groups)


@dataclass(frozen=True)
class InAndOut:
    """Trees of an allreduce, in to roots and out of them, with equal rates in and out per root.

    `rate`: bytes of nbytes per second. `bound`: a rate that no packing of such trees exceeds.
    `trees_in`: trees of the reversed machine (core.reshape.reverse: links keep their numbers), so their hops lead away
    from the root; reduced data take the links of a hop backwards, last link first.
    """

    rate: Fraction
    trees_in: tuple[SpanningTree, ...]
    trees_out: tuple[SpanningTree, ...]
    bound: Fraction

    @property
    def proved(self) -> bool:
        """Whether no packing of such trees is faster."""
        return self.rate == self.bound


def pack_allreduce_lp(topology: Topology, members: Sequence[int]) -> InAndOut:
    """Return the fastest trees in to and out of common roots, then the shallowest; every member may be a root.

    Each round solves a linear program of (links + limits + 2 * members) rows and prices two trees per member.
    """
    roots = sorted(set(members))
    if len(roots) < 2:
        raise Invalid("allreduce: nothing must move among fewer than 2 ranks")
    check_reach(topology, roots[:1], roots)
    check_reach(reverse(topology), roots[:1], roots, is_backward=True)
    out, into = network_of(topology).node_capacities()
    # upper bound: all data enter and leave every member at least once
    limit = Fraction(min(int(degree[rank]) for degree in (out, into) for rank in roots))
    row_of = QuotientView.without_symmetry(topology, roots).row_of
    groups = [TreeGroup(root, inward) for inward in (False, True) for root in roots]
    # the trees out of root number i carry t[i] together, and so do those in to it; the sum of t is maximized
    share = [{i: 1} for _ in range(2) for i in range(len(roots))]
    search = DepthSearch(
        lambda: ColumnGeneration(
            topology, groups, share, gain=[1] * len(roots), sinks=roots, unit=limit, row_of=row_of, images=1
        ),
        limit,
    )
    best = search.find_best(hops=None, first=largest_eccentricity(topology, groups, roots), attained=False)
    scale = topology.resources.scale
    trees: dict[bool, list[SpanningTree]] = {False: [], True: []}
    for column, rate in best.rates:
        group = groups[column.group]
        trees[group.inward].append(SpanningTree(group.root, rate * scale, column.tree))
    up, down = (tuple(sorted(trees[inward], key=attrgetter("root"))) for inward in (True, False))
    return InAndOut(best.value * scale, up, down, best.bound * scale)


@dataclass(frozen=True)
class TreeGroup:
    """The group of trees with one root. `inward`: they are trees of the reversed machine, that is, in to the root."""

    root: int
    inward: bool = False


class PricedColumns(NamedTuple):
    """By group the cost of its cheapest tree, and the tree as a column of the program."""

    costs: list[int]
    columns: list[Column]


class ColumnGeneration:
    """Column generation for one packing problem; `master` is its linear program over the columns so far.

    The program maximizes the sum of gain[j] * t[j]; the trees of group g must carry the sum of share[g][j] * t[j].
    `unit`: about the optimum, in units of the capacities; floats are scaled by it.
    `row_of`: by link and limit, its row in the linear program.
    `images`: number of images of a tree under the symmetries, which load the rows together; 1 without symmetry.
    `is_exact`: whether cheapest trees can be computed exactly: whether no rank only relays.
    """

    def __init__(
        self, topology: Topology, groups: Sequence[TreeGroup], share: Sequence[dict[int, int]], gain: Sequence[int],
        sinks: Sequence[int], unit: Fraction, row_of: NDArray[np.int64], images: int,
    ) -> None:  # fmt: skip
        self.topology, self.groups, self.sinks, self.images = topology, list(groups), sorted(set(sinks)), images
        self.hop_prices = HopPrices(topology)
        self.ranks = [_useful_ranks(topology, group, self.sinks) for group in self.groups]
        self.is_exact = all(
            len({group.root, *self.sinks}) == len(ranks) for group, ranks in zip(self.groups, self.ranks, strict=True)
        )
        resources = topology.resources
        self.row_of = row_of
        # by link, then by limit (one capacity per class of equal ones), in units of `resources.scale`
        capacities = np.array(resources.capacity, object)[resources.class_of]
        capacity = [0] * (int(self.row_of.max(initial=-1)) + 1)
        for row, c in zip(self.row_of.tolist(), capacities.tolist(), strict=True):
            capacity[row] += int(c)
        self.master = Master(capacity, share, gain, unit)
        self.restarts = min(_RESTARTS, 2**12 // topology.ranks**2)  # none above 64 ranks: each takes ranks^2 steps
        self.limits_of = [resources.limits_of(link) for link in range(topology.links)]
        # at prices up to this every tree costs less than FAR
        self.price_scale = min(_PRICE_SCALE, FAR // self.hop_prices.max_tree_cost)

    def make_column(self, number: int, priced_hops: PricedHops, parents: Parents) -> Column:
        """Return a tree of group `number` as a column: how often it loads each row, summed over its images."""
        group = self.groups[number]
        hops = priced_hops.tree_hops(parents, group.root, group.inward)
        load: dict[int, int] = {}
        for _, hop in hops:
            for link in hop.path:
                for resource in (link, *self.limits_of[link]):
                    row = int(self.row_of[resource])
                    load[row] = load.get(row, 0) + self.images
        rows = sorted(load)
        return Column(number, tuple(rows), tuple(load[row] for row in rows), hops)

    def price_tree(
        self, number: int, priced_hops: PricedHops, max_depth: int | None, restarts: int
    ) -> tuple[int, Parents] | None:
        """Return the cost and parents of the cheapest tree found for a group, at most `max_depth` hops deep."""
        group = self.groups[number]
        cost = priced_hops.cost.T if group.inward else priced_hops.cost
        parents = tree_of(cost, group.root, max_depth, self.sinks, self.ranks[number], priced_hops.far, restarts)
        return None if parents is None else (priced_hops.tree_price(cost, parents), parents)

    def price_all(self, prices: Sequence[int], max_depth: int | None, restarts: int = 0) -> PricedColumns | None:
        """Return every group's cheapest cost and tree at integral prices of rows; None if a group has no tree.

        `max_depth`: in hops. `restarts`: of the heuristic for trees of limited depth.
        """
        exceeds_int64 = max(prices, default=0) * self.hop_prices.max_tree_cost >= FAR
        priced_hops = self.hop_prices.price_hops(np.array(prices, object if exceeds_int64 else np.int64)[self.row_of])
        costs, columns = [], []
        for number in range(len(self.groups)):
            cheapest_tree = self.price_tree(number, priced_hops, max_depth, restarts)
            if cheapest_tree is None:
                return None
            cost, parents = cheapest_tree
            costs.append(cost * self.images)
            columns.append(self.make_column(number, priced_hops, parents))
        return PricedColumns(costs, columns)

    def add_first_columns(self, max_depth: int | None) -> bool:
        """Add initial columns at prices that grow with load (multiplicative weights); False if some root has no
        tree.
        """
        capacity = np.array([float(c) for c in self.master.capacity])
        load = np.zeros(len(capacity))
        for _ in range(_FIRST_TREES):
            fullest = max(float((load / capacity).max()), 1e-12)  # 1e-12: no load yet
            load_prices = exp(_LOAD_SHARPNESS * (load / capacity) / fullest) / capacity
            priced = self.price_all(whole_prices(load_prices, 2**20), max_depth)  # to six digits
            if priced is None:
                return False
            for column in priced.columns:
                self.master.add_column(column)
                load[list(column.rows)] += column.times
        return True

    def generate_columns(
        self, max_depth: int | None, target: Fraction, all_or_nothing: bool
    ) -> tuple[MasterPoint, Fraction | None]:
        """Add columns until none improves the optimum or the target is met.

        Of an optimum of the program (`MasterPoint`), `value` is in units of `master.rate_scale`, `price` by row, and
        `worth` by group: a tree that costs less at the prices improves the optimum.

        Return the optimum and an upper bound on any packing. The bound holds only if trees are exactly cheapest
        (`is_exact`); it is None with a depth limit. With a depth limit the search gives up once the value stalls or,
        with `all_or_nothing`, once the prices indicate that the target is out of reach.
        """
        master, best = self.master, None
        goal = float(target / master.rate_scale) * (1 - TINY)
        average_price: NDArray[np.float64] | None = None
        stalled_rounds, before, doubts = 0, 0.0, 0
        for _ in range(_MOST_ROUNDS):
            point = master.solve_floats()
            stalled_rounds = 0 if point.value > before * (1 + _MIN_GAIN) else stalled_rounds + 1
            before = max(point.value, before)
            if point.value >= goal or (max_depth is not None and stalled_rounds >= _PATIENCE):
                break
            # stabilization: duals oscillate between rounds, so price at a running average, too
            average_price = (
                point.price
                if average_price is None
                else (_OLD_WEIGHT * average_price + (1 - _OLD_WEIGHT) * point.price)
            )
            # by prices: the bound, whether a column was added, and these prices
            rounds = [
                (*self._price_round(point, price, max_depth, restarts=0), price)
                for price in (average_price, point.price)
            ]
            added = any(improved for _, improved, _ in rounds)
            bound, _, price = min(rounds, key=itemgetter(0))  # the prices that prove more
            if max_depth is None:
                best = bound if best is None else min(best, bound)
            # heuristic trees: the bound is no proof, so retry with more effort before giving up
            is_doubtful = max_depth is not None and all_or_nothing and bound < target
            if is_doubtful and self.restarts:
                bound, improved = self._price_round(point, price, max_depth, self.restarts)
                is_doubtful, added = bound < target, added or improved
            if max_depth is not None and self.restarts and not added:
                _, added = self._price_round(point, point.price, max_depth, 4 * self.restarts)  # a last, longer attempt
            doubts += is_doubtful
            is_met = best is not None and point.value >= float(best / master.rate_scale) * (1 - TINY)
            # stop once no tree improves the optimum, the target seems out of reach, or the bound is met
            if not added or doubts >= _MOST_DOUBTS or is_met:
                break
        return point, best

    def _price_round(
        self, point: MasterPoint, price: NDArray[np.float64], max_depth: int | None, restarts: int
    ) -> tuple[Fraction, bool]:
        """Add the cheapest trees at these prices that improve the optimum.

        Return an upper bound on every packing, valid if the trees are exactly cheapest, and whether any tree was added.
        """
        ints = whole_prices(price, self.price_scale)
        priced = self.price_all(ints, max_depth, restarts)
        assert priced is not None, "the first columns reached all sinks"
        # weak duality: (sum of capacity * price) / (cost of the cheapest trees) bounds every packing
        bound = self.master.dual_bound(ints, priced.costs)
        # a column whose loads the program has already is not added again
        are_new = [self.master.add_column(column) for column in priced.columns if self._is_improving(point, column)]
        return bound, any(are_new)

    def _is_improving(self, point: MasterPoint, column: Column) -> bool:
        """Return whether a column costs less than its group's worth (negative reduced cost)."""
        cost = float(row_dot(point.price[list(column.rows)], np.array(column.times, float)))
        return cost < point.worth[column.group] - _MIN_SAVING * max(point.value, 1e-30) / len(self.groups)


def _useful_ranks(topology: Topology, group: TreeGroup, sinks: Sequence[int]) -> list[int]:
    """Return the ranks that a tree of the group may pass: those on some path from its root to a sink."""
    from_root = steps_from(topology, group.root, backwards=group.inward) < topology.nodes
    to_sink = steps_from(topology, list(sinks), backwards=not group.inward) < topology.nodes
    return sorted({group.root, *sinks, *np.flatnonzero(from_root & to_sink).tolist()})


def whole_prices(prices: NDArray[np.float64], largest: int) -> list[int]:
    """Scale float prices to integers from 0 to `largest`."""
    top = float(prices.max(initial=0.0)) or 1.0
    return [int(v) for v in np.rint(np.maximum(prices, 0.0) / top * largest).tolist()]
