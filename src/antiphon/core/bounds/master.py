"""The linear program of tree packing over the trees generated so far (the restricted master of column generation).

Column generation (planners/trees/columns.py, attained.py) adds trees one by one; this file solves the linear program
over them. Input: trees as columns, the rows' capacities, and the groups that trees belong to (the trees of one root, or
a root's trees in one direction). A row is a link, a shared limit or an orbit of these; a column holds how often a tree
loads each row. Output: a rate per tree.

    maximize   sum over j of gain_j t_j
    such that  for every group g:  sum of the rates of its trees = sum over j of share_gj t_j
               for every row:      sum over trees of rate * times that the tree loads it <= capacity

The integers share_gj and gain_j are input. The t_j are amounts of data that groups must carry in common. A forest has
one t, its rate, and a group's share of it is its root's demand. An allreduce has a t per root, which the trees in to
the root and those out of it both carry. The class `Master`

    solves the linear program in floats (HiGHS), with prices of rows that guide the search for better trees
    solves it in rationals: which trees are used and which rows are full gives a linear system (exact_solve.py)
    rounds to feasible rationals where that fails
    turns integral prices into an upper bound on any packing (weak duality)

Example: one root, links a, b, c of capacity 1, 1, 2; trees {a, c} and {b, c}. Optimum 2 with both at rate 1; all rows
are full. Prices 0, 0, 1/2 on a, b, c: each tree costs 1/2, so no packing exceeds (2 * 1/2) / (1/2) = 2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.core.bounds.exact_solve import solve_exactly

TINY = 1e-9  # tolerance of floats, relative to the largest rate
_RATE_DENOMINATOR = 10**6  # float rates are rounded to multiples of the largest t_j divided by this


@dataclass(frozen=True)
class Column:
    """A tree of group number `group`: it loads row rows[i] times[i] times. `tree`: the tree itself, for the caller."""

    group: int
    rows: tuple[int, ...]
    times: tuple[int, ...]
    tree: tuple[Any, ...] = ()


@dataclass(frozen=True, eq=False)
class MasterPoint:
    """An optimum in floats: rates `x` of the columns, amounts `t`, and the dual variables of rows and groups."""

    value: float
    x: NDArray[np.float64]
    t: NDArray[np.float64]
    price: NDArray[np.float64]  # per row
    worth: NDArray[np.float64]  # per group: a tree that costs less than this at the prices improves the optimum


class Master:
    """The linear program over the columns so far.

    `capacity`: by row. `share[g]`: by j, the share_gj of group g. `gain`: by j, the gain_j. All are integers.
    `rate_scale`: about the optimum, for scaling.
    """

    def __init__(
        self, capacity: Sequence[int], share: Sequence[dict[int, int]], gain: Sequence[int], rate_scale: Fraction
    ) -> None:
        self.capacity, self.share, self.gain = list(capacity), list(share), list(gain)
        self.columns: list[Column] = []
        self._seen: set[tuple[int, tuple[int, ...], tuple[int, ...]]] = set()
        # scaling for floats: rates are divided by `rate_scale`, and each row is divided by its capacity;
        # otherwise the solver would ignore narrow links beside wide ones
        self.rate_scale = rate_scale
        self._row_scale = np.array([float(rate_scale / c) for c in self.capacity])

    def add_column(self, column: Column) -> bool:
        """Add a column; return whether it is new. A second tree of the group with the same loads is left out."""
        key = (column.group, column.rows, column.times)
        if key in self._seen:
            return False
        self._seen.add(key)
        self.columns.append(column)
        return True

    def solve_floats(self) -> MasterPoint:
        """Return an optimum over the columns so far, by HiGHS; every group must have a column."""
        from scipy.optimize import linprog
        from scipy.sparse import csc_array

        count, groups, gains = len(self.columns), len(self.share), len(self.gain)
        # variables: the rates, then the t_j, which load nothing. Rows: loads, scaled by `_row_scale`
        ptr = np.cumsum([0, *(len(c.rows) for c in self.columns)])
        rows = np.array([r for c in self.columns for r in c.rows], np.int64)
        times = np.array([v for c in self.columns for v in c.times], float) * self._row_scale[rows]
        loads = csc_array((times, rows, np.append(ptr, [ptr[-1]] * gains)), shape=(len(self.capacity), count + gains))
        # per group: sum of rates - sum over j of share_gj t_j = 0
        equal = np.zeros((groups, count + gains))
        equal[[c.group for c in self.columns], np.arange(count)] = 1  # each tree counts in the row of its group
        for group, shares in enumerate(self.share):
            for j, share in shares.items():
                equal[group, count + j] = -share
        cost = np.append(np.zeros(count), -np.array(self.gain, float))
        solution = linprog(
            cost, loads, np.ones(len(self.capacity)), csc_array(equal), np.zeros(groups), method="highs-ds",
            options={"primal_feasibility_tolerance": TINY, "dual_feasibility_tolerance": TINY},
        )  # fmt: skip
        if solution.status != 0:
            raise ArithmeticError(f"HiGHS gave up on {len(self.capacity)} rows, {count} columns: {solution.message}")
        price = -solution.ineqlin.marginals * self._row_scale
        return MasterPoint(-solution.fun, solution.x[:count], solution.x[count:], price, solution.eqlin.marginals)

    def solve_exactly(self, point: MasterPoint) -> tuple[list[tuple[Column, Fraction]], list[Fraction]] | None:
        """Return, as exact fractions, the rates by column and every t_j of `point`; None if that fails.

        Unknowns: the rates of the columns used, and the t_j. Equations: the full rows and the groups. The solution is
        checked against all other rows.
        """
        # smaller rates are rounding errors of the solver
        min_rate = 10 * TINY * float(point.x.max(initial=0.0))
        trees = [i for i, rate in enumerate(point.x.tolist()) if rate > min_rate]
        load = np.zeros(len(self.capacity))
        for i in trees:
            load[list(self.columns[i].rows)] += np.array(self.columns[i].times) * point.x[i]
        # a linear system: first the full rows, then the groups. 1e-7: loads sum many rates, each off by up to TINY
        full_rows = np.flatnonzero(load * self._row_scale >= 1 - 1e-7)
        row_number = {int(row): number for number, row in enumerate(full_rows.tolist())}
        matrix = np.zeros((len(full_rows) + len(self.share), len(trees) + len(self.gain)), np.int64)
        for number, i in enumerate(trees):
            column = self.columns[i]
            for row, times in zip(column.rows, column.times, strict=True):
                if row in row_number:
                    matrix[row_number[row], number] = times
            matrix[len(full_rows) + column.group, number] = 1
        for group, shares in enumerate(self.share):
            for j, share in shares.items():
                matrix[len(full_rows) + group, len(trees) + j] = -share
        right_side = [self.capacity[row] for row in full_rows.tolist()] + [0] * len(self.share)
        solution = solve_exactly(matrix, right_side)
        if solution is None or any(rate < 0 for rate in solution):
            return None
        rates = [(self.columns[i], rate) for i, rate in zip(trees, solution[: len(trees)], strict=True) if rate > 0]
        return (rates, solution[len(trees) :]) if self._largest_overload(rates) <= 1 else None

    def _largest_overload(self, rates: Sequence[tuple[Column, Fraction]]) -> Fraction:
        """Return the largest ratio of a row's load to its capacity."""
        common = math.lcm(1, *(rate.denominator for _, rate in rates))
        load = [0] * len(self.capacity)
        for column, rate in rates:
            amount = rate.numerator * (common // rate.denominator)
            for row, times in zip(column.rows, column.times, strict=True):
                load[row] += times * amount
        return max(
            (Fraction(v, c * common) for v, c in zip(load, self.capacity, strict=True) if v), default=Fraction(0)
        )

    def round_solution(self, point: MasterPoint) -> tuple[list[tuple[Column, Fraction]], list[Fraction]]:
        """Return rational rates, and every t_j, near a float optimum: rounded, then scaled to fit all rows."""
        # the unit of rates is 1 / _RATE_DENOMINATOR of this
        largest_amount = Fraction(float(point.t.max(initial=0.0))).limit_denominator(_RATE_DENOMINATOR) or Fraction(
            1, _RATE_DENOMINATOR
        )
        t = [
            Fraction(round(float(v / float(largest_amount)) * _RATE_DENOMINATOR), _RATE_DENOMINATOR) * largest_amount
            for v in point.t.tolist()
        ]
        rates = [
            (c, Fraction(round(v / float(largest_amount) * _RATE_DENOMINATOR), _RATE_DENOMINATOR) * largest_amount)
            for c, v in zip(self.columns, point.x.tolist(), strict=True)
        ]
        # each group's rates must again sum to its share: rescale within groups, then all together to fit the links
        rates = [(c, rate) for c, rate in rates if rate > 0]
        group_rate = [Fraction(0)] * len(self.share)
        for column, rate in rates:
            group_rate[column.group] += rate
        group_goal = [sum((share * t[j] for j, share in shares.items()), Fraction(0)) for shares in self.share]
        if any(goal and not rate for goal, rate in zip(group_goal, group_rate, strict=True)):
            raise ArithmeticError("some root is left without trees by rounding")
        balanced = [(c, rate * group_goal[c.group] / group_rate[c.group]) for c, rate in rates]
        scale = 1 / self._largest_overload(balanced)  # not 0: some tree has a rate, and every tree loads a row
        return [(c, rate * scale) for c, rate in balanced if rate], [v * scale for v in t]

    def dual_bound(self, price: Sequence[int], costs: Sequence[int]) -> Fraction:
        """Return an upper bound on the objective of any packing.

        `price`: integral prices of rows. `costs`: per group, the cost of its cheapest tree at these prices. By weak
        duality, since all trees together cost at most the capacity, and a unit of t_j needs trees that cost at least
        the sum over g of share_gj * costs[g]:

            objective <= (sum over rows of price * capacity) / (min over j of (sum over g of share_gj * costs[g]) /
            gain_j)
        """
        capacity_price = sum(p * c for p, c in zip(price, self.capacity, strict=True))
        cost_per_unit = [0] * len(self.gain)
        for shares, cost in zip(self.share, costs, strict=True):
            for j, share in shares.items():
                cost_per_unit[j] += share * cost
        least_cost = min(Fraction(w, g) for w, g in zip(cost_per_unit, self.gain, strict=True))
        # if some trees cost nothing, these prices prove nothing: return more than any packing has
        return capacity_price / least_cost if least_cost > 0 else Fraction(capacity_price + 1) * 10**30
