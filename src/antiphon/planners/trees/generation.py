"""Column generation: trees that are cheap under the prices of the linear program so far are added until none helps.

A column is a tree over hops between ranks; a hop takes the cheapest way through switches, so that no way need be
listed beforehand. The machine may be seen through a group of its symmetries (see _orbits): then a row is an orbit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from antiphon.core.portable import dot, exp
from antiphon.core.reshape import reverse
from antiphon.core.topology import Topology
from antiphon.planners.trees._steiner import tree_of
from antiphon.planners.trees.master import TINY, Column, Master, Point
from antiphon.planners.trees.pricing import FAR, Fares, Parents, Quote

_FINE = 2**28  # float prices are rounded to this part of the greatest: sums over trees stay in int64
_BETTER = 1e-8  # a column must promise this part of the value
_WARM = 6  # trees per group by growing prices, before the first linear program
_MOST_ROUNDS = 2000
_PATIENCE = 8  # rounds of shallow trees without gain
_TRIES = 6  # how hard few hops are looked for once the quick tries help no more
_DOUBTS = 3  # times that prices may call a target out of reach


@dataclass(frozen=True)
class Rooted:
    """The trees from one root; `turned`: on the machine with all links turned round."""

    root: int
    turned: bool = False


class Generation:
    """One packing problem: rows (each resource belongs to one), groups of trees, and what is to be maximised.

    `exact`: all ranks that could take part must be reached, so that cheapest trees are known exactly.

    `alike[g]`: how many images of a tree load the rows (see _orbits); 1 without symmetry.
    """

    def __init__(
        self, topology: Topology, groups: Sequence[Rooted], share: Sequence[dict[int, int]], gain: Sequence[int],
        sinks: Sequence[int], unit: Fraction, row_of: NDArray[np.int64], alike: int,
    ) -> None:  # fmt: skip
        self.topology, self.groups, self.sinks, self.alike = topology, list(groups), sorted(set(sinks)), alike
        self.fares = Fares(topology)
        self.ranks = [_useful(topology, group, self.sinks) for group in self.groups]
        self.exact = all(
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

    def column(self, number: int, quote: Quote, parents: Parents) -> Column:
        group = self.groups[number]
        hops = quote.hops(parents, group.root, group.turned)
        load: dict[int, int] = {}
        for _, hop in hops:
            for link in hop.path:
                for resource in (link, *self.limits[link]):
                    row = int(self.row_of[resource])
                    load[row] = load.get(row, 0) + self.alike
        rows = sorted(load)
        return Column(number, tuple(rows), tuple(load[row] for row in rows), hops)

    def tree(self, number: int, quote: Quote, hops: int | None, tries: int) -> tuple[int, Parents] | None:
        """The cheapest tree of a group found, of at most so many hops: its cost and its parents."""
        group = self.groups[number]
        cost = quote.cost.T if group.turned else quote.cost
        parents = tree_of(cost, group.root, hops, self.sinks, self.ranks[number], quote.far, tries)
        return None if parents is None else (quote.price(cost, parents), parents)

    def price_all(
        self, prices: Sequence[int], hops: int | None, tries: int = 0
    ) -> tuple[list[int], list[Column]] | None:
        """Of every group its cheapest tree's cost at whole prices of rows, and that tree; None where there is none."""
        big = max(prices, default=0) * self.fares.most >= FAR
        quote = self.fares.at(np.array(prices, object if big else np.int64)[self.row_of])
        costs, columns = [], []
        for number in range(len(self.groups)):
            found = self.tree(number, quote, hops, tries)
            if found is None:
                return None
            costs.append(found[0] * self.alike)
            columns.append(self.column(number, quote, found[1]))
        return costs, columns

    def warm(self, hops: int | None) -> bool:
        """Columns to begin with: links grow dearer as trees load them. False if some root has no such tree."""
        capacity = np.array([float(c) for c in self.master.capacity])
        load = np.zeros(len(capacity))
        for _ in range(_WARM):
            steep = exp(3.0 * (load / capacity) / max(float((load / capacity).max()), 1e-12)) / capacity
            found = self.price_all(whole(steep, 2**20), hops)
            if found is None:
                return False
            for column in found[1]:
                self.master.add(column)
                load[list(column.rows)] += column.times
        return True

    def run(self, hops: int | None, target: Fraction, all_or_nothing: bool) -> tuple[Point, Fraction | None]:
        """Columns are added until none helps or the target is met: the point, and the best bound on any packing.

        The bound is proved where hops is None and trees are exactly cheapest. Few hops are given up once the value
        stands still, or (all_or_nothing) the prices say, on trees not always the cheapest, that the target is out of
        reach.
        """
        master, best = self.master, None
        goal = float(target / master.unit) * (1 - TINY)
        smooth: NDArray[np.float64] | None = None
        still, before, doubts = 0, 0.0, 0
        for _ in range(_MOST_ROUNDS):
            point = master.solve()
            still = 0 if point.value > before * (1 + 1e-6) else still + 1
            before = max(point.value, before)
            if point.value >= goal or (hops is not None and still >= _PATIENCE):
                break
            smooth = point.price if smooth is None else 0.6 * smooth + 0.4 * point.price
            rounds = [(*self._round(point, price, hops, 0), price) for price in (smooth, point.price)]
            added = any(helped for _, helped, _ in rounds)
            bound, _, price = min(rounds, key=itemgetter(0))
            if hops is None:
                best = bound if best is None else min(best, bound)
            doubtful = hops is not None and all_or_nothing and bound < target
            if doubtful and self.tries:
                bound, helped = self._round(point, price, hops, self.tries)
                doubtful, added = bound < target, added or helped
            if hops is not None and self.tries and not added:
                added = self._round(point, point.price, hops, 4 * self.tries)[1]
            doubts += doubtful
            met = best is not None and point.value >= float(best / master.unit) * (1 - TINY)
            if not added or doubts >= _DOUBTS or met:
                break
        return point, best

    def _round(self, point: Point, price: NDArray[np.float64], hops: int | None, tries: int) -> tuple[Fraction, bool]:
        """The bound that the cheapest trees found prove, were there no cheaper, and whether some help as columns."""
        ints = whole(price, self.fine)
        found = self.price_all(ints, hops, tries)
        assert found is not None, "the first columns reached all sinks"
        bound = self.master.dual_bound(ints, found[0])
        fresh = [self.master.add(column) for column in found[1] if self._helps(point, column)]
        return bound, any(fresh)

    def _helps(self, point: Point, column: Column) -> bool:
        cost = float(dot(point.price[list(column.rows)], np.array(column.times, float)))
        return cost < point.worth[column.group] - _BETTER * max(point.value, 1e-30) / len(self.groups)


def _useful(topology: Topology, group: Rooted, sinks: Sequence[int]) -> list[int]:
    """The ranks that a tree of the group may pass: reached from its root, and from where some sink is reached."""
    ahead = Fares(reverse(topology) if group.turned else topology)
    behind = Fares(topology if group.turned else reverse(topology))
    reached = ahead.reached([group.root])
    return sorted({group.root, *sinks, *(reached.keys() & behind.reached(sinks).keys())})


def whole(prices: NDArray[np.float64], fine: int) -> list[int]:
    """Float prices as whole numbers, the greatest `fine`."""
    top = float(prices.max(initial=0.0)) or 1.0
    return [int(v) for v in np.rint(np.maximum(prices, 0.0) / top * fine).tolist()]
