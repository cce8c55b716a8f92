"""The linear program of tree packing over the columns found so far, in floats and then exactly.

maximise sum_j gain_j t_j   with, for every group g of trees,  sum of its rates = sum_j share_gj t_j,
                            and for every row (a link, a shared limit, or an orbit of such)  load <= capacity.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from antiphon.planners.shared.reach import Hop
from antiphon.planners.trees.rational import solve

TINY = 1e-9  # of the greatest rate: what floats cannot tell from nothing


@dataclass(frozen=True)
class Column:
    """A tree of a group: how often it loads which row."""

    group: int
    rows: tuple[int, ...]
    times: tuple[int, ...]
    tree: tuple[tuple[int, Hop], ...] = ()

    @property
    def depth(self) -> int:
        return max((hop.depth for _, hop in self.tree), default=0)


@dataclass(frozen=True, eq=False)
class Point:
    """A float optimum."""

    value: float
    x: NDArray[np.float64]
    t: NDArray[np.float64]
    price: NDArray[np.float64]  # per row
    worth: NDArray[np.float64]  # per group: a tree that costs less is missing


class Master:
    """`share[g]`: the weights t_j of group g, by j; `gain`: what each t_j is worth. All whole numbers."""

    def __init__(
        self, capacity: Sequence[int], share: Sequence[dict[int, int]], gain: Sequence[int], unit: Fraction
    ) -> None:
        self.capacity, self.share, self.gain = list(capacity), list(share), list(gain)
        self.columns: list[Column] = []
        self._seen: set[tuple[int, tuple[int, ...], tuple[int, ...]]] = set()
        # floats see values in `unit`, about the optimum, and rows scaled to 1: else small links are lost among wide
        self.unit = unit
        self._weigh = np.array([float(unit / c) for c in self.capacity])

    def add(self, column: Column) -> bool:
        """Whether it is new: of trees of a group that load the same, the first is kept."""
        key = (column.group, column.rows, column.times)
        if key in self._seen:
            return False
        self._seen.add(key)
        self.columns.append(column)
        return True

    def solve(self) -> Point:
        """HiGHS on the columns so far; every group must have one."""
        from scipy.optimize import linprog
        from scipy.sparse import csc_array

        count, groups, free = len(self.columns), len(self.share), len(self.gain)
        ptr = np.cumsum([0, *(len(c.rows) for c in self.columns)])
        rows = np.array([r for c in self.columns for r in c.rows], np.int64)
        times = np.array([v for c in self.columns for v in c.times], float) * self._weigh[rows]
        loads = csc_array((times, rows, np.append(ptr, [ptr[-1]] * free)), shape=(len(self.capacity), count + free))
        equal = np.zeros((groups, count + free))
        equal[[c.group for c in self.columns], np.arange(count)] = 1
        for group, shares in enumerate(self.share):
            for j, weight in shares.items():
                equal[group, count + j] = -weight
        cost = np.append(np.zeros(count), -np.array(self.gain, float))
        found = linprog(
            cost, loads, np.ones(len(self.capacity)), csc_array(equal), np.zeros(groups), method="highs-ds",
            options={"primal_feasibility_tolerance": TINY, "dual_feasibility_tolerance": TINY},
        )  # fmt: skip
        if found.status != 0:
            raise ArithmeticError(f"HiGHS gave up on {len(self.capacity)} rows, {count} columns: {found.message}")
        price = -found.ineqlin.marginals * self._weigh
        return Point(-found.fun, found.x[:count], found.x[count:], price, found.eqlin.marginals)

    def exact(self, point: Point) -> tuple[list[tuple[Column, Fraction]], list[Fraction]] | None:
        """The rates of the basis behind a float optimum, and every t_j; None where that fails.

        The columns used, the rows that are full: one square system, solved and then checked in all other rows.
        """
        least = 10 * TINY * float(point.x.max(initial=0.0))
        used = [i for i, rate in enumerate(point.x.tolist()) if rate > least]
        load = np.zeros(len(self.capacity))
        for i in used:
            load[list(self.columns[i].rows)] += np.array(self.columns[i].times) * point.x[i]
        full = np.flatnonzero(load * self._weigh >= 1 - 1e-7)
        at = {int(row): number for number, row in enumerate(full.tolist())}
        matrix = np.zeros((len(full) + len(self.share), len(used) + len(self.gain)), np.int64)
        for number, i in enumerate(used):
            column = self.columns[i]
            for row, times in zip(column.rows, column.times, strict=True):
                if row in at:
                    matrix[at[row], number] = times
            matrix[len(full) + column.group, number] = 1
        for group, shares in enumerate(self.share):
            for j, weight in shares.items():
                matrix[len(full) + group, len(used) + j] = -weight
        right = [self.capacity[row] for row in full.tolist()] + [0] * len(self.share)
        found = solve(matrix, right)
        if found is None or any(rate < 0 for rate in found):
            return None
        rates = [(self.columns[i], rate) for i, rate in zip(used, found[: len(used)], strict=True) if rate > 0]
        return (rates, found[len(used) :]) if self.fits(rates) else None

    def fits(self, rates: Sequence[tuple[Column, Fraction]]) -> bool:
        return self._overload(rates) <= 1

    def _overload(self, rates: Sequence[tuple[Column, Fraction]]) -> Fraction:
        """The greatest load over capacity."""
        common = math.lcm(1, *(rate.denominator for _, rate in rates))
        load = [0] * len(self.capacity)
        for column, rate in rates:
            whole = rate.numerator * (common // rate.denominator)
            for row, times in zip(column.rows, column.times, strict=True):
                load[row] += times * whole
        return max(
            (Fraction(v, c * common) for v, c in zip(load, self.capacity, strict=True) if v), default=Fraction(0)
        )

    def rounded(self, point: Point, fine: int = 10**6) -> tuple[list[tuple[Column, Fraction]], list[Fraction]]:
        """A feasible rational solution near a float one: rates to one part in `fine`, groups made equal, all scaled."""
        top = Fraction(float(point.t.max(initial=0.0))).limit_denominator(fine) or Fraction(1, fine)
        t = [Fraction(round(float(v / float(top)) * fine), fine) * top for v in point.t.tolist()]
        rates = [
            (c, Fraction(round(v / float(top) * fine), fine) * top)
            for c, v in zip(self.columns, point.x.tolist(), strict=True)
        ]
        rates = [(c, rate) for c, rate in rates if rate > 0]
        have = [Fraction(0)] * len(self.share)
        for column, rate in rates:
            have[column.group] += rate
        want = [sum((w * t[j] for j, w in shares.items()), Fraction(0)) for shares in self.share]
        if any(w and not h for w, h in zip(want, have, strict=True)):
            raise ArithmeticError("some root is left without trees by rounding")
        even = [(c, rate * want[c.group] / have[c.group]) for c, rate in rates]
        scale = 1 / self._overload(even)
        return [(c, rate * scale) for c, rate in even if rate], [v * scale for v in t]

    def dual_bound(self, price: Sequence[int], costs: Sequence[int]) -> Fraction:
        """The greatest value any packing can have, by whole prices of rows and the cheapest tree of every group."""
        paid = sum(p * c for p, c in zip(price, self.capacity, strict=True))
        worth = [0] * len(self.gain)
        for shares, cost in zip(self.share, costs, strict=True):
            for j, weight in shares.items():
                worth[j] += weight * cost
        least = min(Fraction(w, g) for w, g in zip(worth, self.gain, strict=True))
        return paid / least if least > 0 else Fraction(paid + 1) * 10**30
