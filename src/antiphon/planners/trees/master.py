"""The restricted master program of column generation (columns.py): the trees known so far, as columns.

    maximize  sum_j gain_j t_j   with   sum of group g's rates = sum_j share_gj t_j   and   load of each row <= capacity

A `Column` is a tree reduced to how often it loads each row; a group is a root (or a root's trees in one direction).
`Master`

    solves it in floats (HiGHS), with prices of rows for the search for better trees
    solves the optimal basis in rationals: which trees are used and which rows are full gives a square system
    rounds to a feasible rational point where that fails
    turns integral prices into an upper bound on any packing (weak duality)

Example: one root, links of capacity 1, 1, 2; trees {a, c} and {b, c}. Optimum 2 with both at rate 1; all rows are full.
Prices 0, 0, 1/2 on a, b, c: each tree costs 1/2, so no packing exceeds (2 * 1/2) / (1/2) = 2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from antiphon.planners.shared.reach import Hop
from antiphon.planners.trees.exact_solve import solve_exactly

TINY = 1e-9  # of the largest rate: below float accuracy
_FINE = 10**6  # denominator of rates that are rounded from floats


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
    """A float optimum of the restricted program."""

    value: float
    x: NDArray[np.float64]
    t: NDArray[np.float64]
    price: NDArray[np.float64]  # per row
    worth: NDArray[np.float64]  # per group (dual): a tree that costs less improves the optimum


class Master:
    """The restricted master program. `share[g]`: weights t_j of group g, by j; `gain`: objective of each t_j.
    Integers.
    """

    def __init__(
        self, capacity: Sequence[int], share: Sequence[dict[int, int]], gain: Sequence[int], unit: Fraction
    ) -> None:
        self.capacity, self.share, self.gain = list(capacity), list(share), list(gain)
        self.columns: list[Column] = []
        self._seen: set[tuple[int, tuple[int, ...], tuple[int, ...]]] = set()
        # scaling for floats: values in `unit` (about the optimum), rows to 1; otherwise small links vanish beside wide
        # ones
        self.unit = unit
        self._weigh = np.array([float(unit / c) for c in self.capacity])

    def add_column(self, column: Column) -> bool:
        """Add a column; return whether it is new (another tree of the group with the same loads is redundant)."""
        key = (column.group, column.rows, column.times)
        if key in self._seen:
            return False
        self._seen.add(key)
        self.columns.append(column)
        return True

    def solve_floats(self) -> Point:
        """Solve with HiGHS over the columns so far; every group must have one."""
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
        solution = linprog(
            cost, loads, np.ones(len(self.capacity)), csc_array(equal), np.zeros(groups), method="highs-ds",
            options={"primal_feasibility_tolerance": TINY, "dual_feasibility_tolerance": TINY},
        )  # fmt: skip
        if solution.status != 0:
            raise ArithmeticError(f"HiGHS gave up on {len(self.capacity)} rows, {count} columns: {solution.message}")
        price = -solution.ineqlin.marginals * self._weigh
        return Point(-solution.fun, solution.x[:count], solution.x[count:], price, solution.eqlin.marginals)

    def solve_exactly(self, point: Point) -> tuple[list[tuple[Column, Fraction]], list[Fraction]] | None:
        """Return the exact rates of the basis behind a float optimum, and every t_j; None if that fails.

        Unknowns: rates of the columns used. Equations: the tight rows and the groups. The result is checked in all
        other rows.
        """
        min_rate = 10 * TINY * float(point.x.max(initial=0.0))
        used = [i for i, rate in enumerate(point.x.tolist()) if rate > min_rate]
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
        solution = solve_exactly(matrix, right)
        if solution is None or any(rate < 0 for rate in solution):
            return None
        rates = [(self.columns[i], rate) for i, rate in zip(used, solution[: len(used)], strict=True) if rate > 0]
        return (rates, solution[len(used) :]) if self._largest_overload(rates) <= 1 else None

    def _largest_overload(self, rates: Sequence[tuple[Column, Fraction]]) -> Fraction:
        """Return the largest load over capacity."""
        common = math.lcm(1, *(rate.denominator for _, rate in rates))
        load = [0] * len(self.capacity)
        for column, rate in rates:
            amount = rate.numerator * (common // rate.denominator)
            for row, times in zip(column.rows, column.times, strict=True):
                load[row] += times * amount
        return max(
            (Fraction(v, c * common) for v, c in zip(load, self.capacity, strict=True) if v), default=Fraction(0)
        )

    def round_solution(self, point: Point) -> tuple[list[tuple[Column, Fraction]], list[Fraction]]:
        """Return a feasible rational solution near a float one: round rates to 1 / _FINE, rebalance groups, scale
        to fit.
        """
        top = Fraction(float(point.t.max(initial=0.0))).limit_denominator(_FINE) or Fraction(1, _FINE)
        t = [Fraction(round(float(v / float(top)) * _FINE), _FINE) * top for v in point.t.tolist()]
        rates = [
            (c, Fraction(round(v / float(top) * _FINE), _FINE) * top)
            for c, v in zip(self.columns, point.x.tolist(), strict=True)
        ]
        # each group's rates must again sum to its share: rescale within groups, then all together to fit the links
        rates = [(c, rate) for c, rate in rates if rate > 0]
        have = [Fraction(0)] * len(self.share)
        for column, rate in rates:
            have[column.group] += rate
        want = [sum((w * t[j] for j, w in shares.items()), Fraction(0)) for shares in self.share]
        if any(w and not h for w, h in zip(want, have, strict=True)):
            raise ArithmeticError("some root is left without trees by rounding")
        even = [(c, rate * want[c.group] / have[c.group]) for c, rate in rates]
        scale = 1 / self._largest_overload(even)
        return [(c, rate * scale) for c, rate in even if rate], [v * scale for v in t]

    def dual_bound(self, price: Sequence[int], costs: Sequence[int]) -> Fraction:
        """Return an upper bound on any packing from integral prices and every group's cheapest tree.

        Weak duality: sum of price * capacity, divided by the least worth of a unit of any t_j at these prices.
        """
        paid = sum(p * c for p, c in zip(price, self.capacity, strict=True))
        worth = [0] * len(self.gain)
        for shares, cost in zip(self.share, costs, strict=True):
            for j, weight in shares.items():
                worth[j] += weight * cost
        cheapest_value = min(Fraction(w, g) for w, g in zip(worth, self.gain, strict=True))
        return paid / cheapest_value if cheapest_value > 0 else Fraction(paid + 1) * 10**30
