"""Fractional packing of trees over physical resources, as a linear program: every link and shared limit is a row.

HiGHS finds the optimum in floats; its basis is solved again exactly. The rate is proved by the tightest cut or by
exact prices (weak duality): `Packing.proved`. Ranks that take no part but relay make the problem NP-hard (Steiner
trees): then the cut may still prove the rate, and otherwise nothing does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

import numpy as np

from antiphon.core.bounds.cuts import tightest_cut
from antiphon.core.bounds.network import network_of
from antiphon.core.reshape import reverse
from antiphon.core.topology import Topology
from antiphon.errors import Infeasible, Invalid
from antiphon.planners.shared.orbits import Table, free_group, rows_of
from antiphon.planners.trees.generation import Generation, Rooted, whole
from antiphon.planners.trees.images import Forest
from antiphon.planners.trees.master import Column, Point
from antiphon.planners.trees.pricing import Fares
from antiphon.planners.trees.rational import simple
from antiphon.planners.trees.tree import Tree

_SIMPLE = (12, 200, 5000)  # greatest denominators tried for exact prices
_DEEPER = 4  # depths tried beyond the least possible, before depth is left free

Rates = list[tuple[Column, Fraction]]


@dataclass(frozen=True)
class Packing:
    """Root r's trees carry demand[r] * rate bytes per second in all. No packing of trees exceeds `bound`."""

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
    """Trees from every root to all sinks (a root is its own), as fast as can be, then shallow.

    `hops`: no tree deeper than this; the bound is still that of trees of any depth. Each round solves a linear program
    of links + limits + roots rows and prices a tree per root, O(ranks^3) at worst.
    """
    needed = _checked(topology, demand, sinks)
    return _packed(topology, needed, sinks, hops, View.plain(topology, sorted(needed)))


def pack_orbits(
    topology: Topology, demand: Mapping[int, int], sinks: Sequence[int], view: View | None = None, *,
    hops: int | None = None, seed: int = 0,
) -> Packing | None:  # fmt: skip
    """The same by the machine's symmetries: trees of one root per orbit and their images; None where it has none."""
    needed = _checked(topology, demand, sinks)
    view = view or View.of(topology, needed, sinks, seed)
    return _packed(topology, needed, sinks, hops, view) if view.alike > 1 else None


@dataclass(frozen=True, eq=False)
class View:
    """A machine through some of its symmetries: one root per orbit, the orbit of every resource."""

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
        """`group`: its symmetries, where they are known; they must keep demands and sinks, and move all roots."""
        group = free_group(topology, demand, sinks, seed) if group is None else group
        least = group[:, : topology.ranks].min(axis=0).tolist()
        return View(group, [root for root in sorted(demand) if least[root] == root], rows_of(topology, group))

    @staticmethod
    def plain(topology: Topology, roots: list[int]) -> View:
        group = np.arange(topology.nodes + topology.links + len(topology.limits))[None]
        return View(group, roots, rows_of(topology, group))


def _packed(topology: Topology, demand: dict[int, int], sinks: Sequence[int], hops: int | None, view: View) -> Packing:
    network = network_of(topology)
    supply: dict[tuple[int, ...], int] = {(root,): weight for root, weight in demand.items()}
    _, cut = tightest_cut(network, supply, sorted(set(sinks)))
    groups, share = [Rooted(root) for root in view.roots], [{0: demand[root]} for root in view.roots]
    search = Search(lambda: Generation(topology, groups, share, [1], sinks, cut, view.row_of, view.alike), cut)
    attained = not topology.limits and network.balanced
    found = search.best(hops, eccentricity(topology, groups, sinks), attained)
    scale = topology.resources.scale
    firsts = tuple(Tree(view.roots[column.group], rate * scale, column.tree) for column, rate in found.rates)
    return Packing(found.value * scale, firsts, found.bound * scale, Forest(topology, view.group, firsts))


@dataclass(frozen=True)
class Found:
    """A packing and a bound in units of the capacities."""

    value: Fraction
    bound: Fraction
    rates: Rates

    @property
    def depth(self) -> int:
        return max(column.depth for column, _ in self.rates)


class Search:
    """One problem at several depths, the columns found shared between them."""

    def __init__(self, make: Callable[[], Generation], bound: Fraction) -> None:
        self.make, self.bound = make, bound
        self.pool: list[Column] = []

    def best(self, hops: int | None, first: int, attained: bool) -> Found:
        """At the depth asked for; else the best rate, at the first depth found to have it.

        `attained`: trees that reach all ranks are known to attain the bound, if deep enough, so shallow ones are tried
        straight away.
        """
        if hops is not None:
            found = self.at(hops, self.bound)
            if found is None:
                raise Infeasible(f"no tree of at most {hops} hops reaches all: allow at least {first} hops")
            return found
        free = None if attained and self.make().exact else self.at(None, self.bound)
        goal = self.bound if free is None else free.value
        last = first + _DEEPER if free is None else min(first + 3 * _DEEPER, free.depth - 1)
        found = self._shallowest(first, last, goal)
        if found is not None:
            return replace(found, bound=self.bound)
        free = free or self.at(None, self.bound)
        assert free is not None, "all sinks are within reach"
        return free

    def _shallowest(self, first: int, last: int, goal: Fraction) -> Found | None:
        """The packing that meets the goal at the first depth found to have one; two at a time while far from it."""
        missed, depth = first - 1, first
        while depth <= last:
            found = self.at(depth, goal, True)
            if found is not None and found.value >= goal:
                between = self.at(depth - 1, goal, True) if missed + 1 < found.depth == depth else None
                return between if between is not None and between.value >= goal else found
            missed = depth
            far = found is None or 2 * found.value < goal
            depth += 2 if far and depth + 1 < last else 1
        return None

    def at(self, hops: int | None, target: Fraction, all_or_nothing: bool = False) -> Found | None:
        """The best with at most so many hops that is found; None if nothing reaches all sinks so."""
        work = self.make()
        if not work.warm(hops):
            return None
        for column in self.pool:
            if hops is None or column.depth <= hops:
                work.master.add(column)
        point, bound = work.run(hops, target, all_or_nothing)
        self.pool = work.master.columns
        exact = work.master.exact(point)
        rates, t = work.master.rounded(point) if exact is None else exact
        value = sum((g * v for g, v in zip(work.master.gain, t, strict=True)), Fraction(0))
        if work.exact and hops is None and value < self.bound:
            proved = prove(work, point, value)
            self.bound = min(self.bound, proved, proved if bound is None else bound)
        return Found(value, self.bound, rates)


def prove(work: Generation, point: Point, value: Fraction) -> Fraction:
    """A bound from the prices at a float optimum, made exact: the prices are simple ratios more often than not."""
    best: Fraction | None = None
    for most in _SIMPLE:
        prices = simple(point.price, most)
        prices = whole(point.price, work.fine) if prices is None else prices
        found = work.price_all(prices, None)
        assert found is not None
        bound = work.master.dual_bound(prices, found[0])
        best = bound if best is None else min(best, bound)
        if best <= value:
            break
    assert best is not None
    return best


def _checked(topology: Topology, demand: Mapping[int, int], sinks: Sequence[int]) -> dict[int, int]:
    """The roots that have something to send. Infeasible if a sink is out of reach of one, with the first such."""
    needed = {root: int(weight) for root, weight in demand.items() if weight}
    for root in sorted(needed):
        if needed[root] < 0 or not 0 <= root < topology.ranks:
            raise Invalid(f"demand of rank {root}: expected ranks 0 to {topology.ranks - 1}, weights of 0 or more")
    check_reach(topology, sorted(needed), sinks)
    if not any(set(sinks) - {root} for root in needed):
        raise Invalid("nothing must move: name a root with a demand, and a rank other than it")
    return needed


def check_reach(topology: Topology, roots: Sequence[int], sinks: Sequence[int], back: bool = False) -> None:
    """Infeasible if a sink is out of reach of a root, with the first such. `back`: the machine was turned round."""
    fares = Fares(topology)
    ends = {*roots, *sinks}
    if roots and ends <= fares.reached(roots[:1]).keys() and ends <= Fares(reverse(topology)).reached(roots[:1]).keys():
        return  # from each to the first, and on to all
    for root in roots:
        lost = sorted(set(sinks) - fares.reached([root]).keys())
        if lost:
            ranks = "ranks " if len(lost) > 1 else "rank "
            ranks += ", ".join(map(str, lost[:8])) + (", ..." if len(lost) > 8 else "")
            way = f"from {ranks} to rank {root}" if back else f"from rank {root} to {ranks}"
            raise Infeasible(f"topology {topology.name}: no links that carry data lead {way}; join them")


def eccentricity(topology: Topology, groups: Sequence[Rooted], sinks: Sequence[int]) -> int:
    """The most hops that any tree needs."""
    ways = {turned: Fares(reverse(topology) if turned else topology) for turned in {g.turned for g in groups}}
    reached = (ways[group.turned].reached([group.root]) for group in groups)
    return max(far[sink] for far in reached for sink in sinks)
