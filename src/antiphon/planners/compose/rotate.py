"""Divide the data among several orders of the levels, so that the links of all levels work at the same time.

A hierarchical plan (stages.py) works on one level of groups after the other, so the links of a level idle while another
level works. If levels have links of their own (the dimensions of a torus, or NVLink and network), let part i of the
data begin at level i and continue cyclically: in each phase every level is busy with another part. The fractions solve
a small linear program: minimize the largest total load of a level.

Example: an allgather on an n x n torus. The dimension that works second carries n times as much as the first, since
each rank then sends a whole row. Half of the data in either order loads both dimensions equally, which takes about half
the time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import zip_longest

import numpy as np

from antiphon.planners.compose.stages import STEP_SECONDS, StagedPlan

# key of a plan: its groups and planners in words; its shares, times and steps
Mark = tuple[tuple[str, ...], tuple[Fraction, ...]]
SHARE_DENOMINATOR = 60  # shares are rounded to multiples of 1 / 60, which many small denominators divide


@dataclass(frozen=True, eq=False)
class RotatedPlan:
    """A collective by one staged plan, or by several at once, each with its share of the data.

    `unpipelined`, `pipelined`: estimated seconds per byte, unpipelined and with many slices. The estimate assumes that
    levels have links of their own; no schedule is built yet.
    """

    staged_plans: tuple[StagedPlan, ...]
    shares: tuple[Fraction, ...]
    unpipelined: Fraction
    pipelined: Fraction

    @staticmethod
    def of_one(staged: StagedPlan) -> RotatedPlan:
        """Return the plan that uses one order of levels for all data."""
        return RotatedPlan((staged,), (Fraction(1),), staged.cost.unpipelined, staged.cost.pipelined)

    @property
    def steps(self) -> int:
        return max(staged.steps for staged in self.staged_plans)

    @property
    def mark(self) -> Mark:
        """Equal for plans with equal figures, by the same planners among the same groups."""
        splits = (str(staged.split) + staged.split.seating.tobytes().hex() for staged in self.staged_plans)
        words = tuple(word for staged in self.staged_plans for word in staged.descriptions)
        return (*splits, *words), (*self.shares, self.unpipelined, self.pipelined, Fraction(self.steps))

    def seconds(self, nbytes: int) -> float:
        """Estimate the seconds with the best number n of pieces.

        Model: steps * latency + bytes * pipelined + fill / n + n * latency, where fill is the time by which one piece
        is slower than many. The best n makes the last two terms 2 * sqrt(fill * latency).
        """
        latency, unpipelined, pipelined = float(STEP_SECONDS), float(self.unpipelined), float(self.pipelined)
        fill = max(unpipelined - pipelined, 0.0) * nbytes
        return self.steps * latency + pipelined * nbytes + 2 * math.sqrt(fill * latency)


def share_data(staged_plans: Sequence[StagedPlan]) -> RotatedPlan | None:
    """Return the plan whose shares minimize the load of the fullest level; None if a single order is best.

    There is a plan for each level to begin with: the outermost level of plan i is level i of the first plan, and so on
    cyclically. So `count` is the number of plans, and of levels.
    """
    count = len(staged_plans)
    loads = [[Fraction(0)] * count for _ in staged_plans]  # of plan i on level j of the first
    for i, staged in enumerate(staged_plans):
        for level, load in staged.loads().items():
            loads[i][(i + level) % count] += load
    shares = _balance_shares(loads)
    if sum(share > 0 for share in shares) < 2:
        return None
    used = [(staged, share) for staged, share in zip(staged_plans, shares, strict=True) if share]
    phases = zip_longest(
        *([share * stage.unpipelined for stage in staged.stages] for staged, share in used), fillvalue=Fraction(0)
    )
    unpipelined = sum((max(phase) for phase in phases), Fraction(0))
    pipelined = max(sum((loads[i][j] * shares[i] for i in range(count)), Fraction(0)) for j in range(count))
    return RotatedPlan(tuple(staged for staged, _ in used), tuple(share for _, share in used), unpipelined, pipelined)


def _balance_shares(loads: Sequence[Sequence[Fraction]]) -> list[Fraction]:
    """Return shares that sum to 1 and minimize the largest column sum: a small linear program, rounded."""
    count = len(loads)
    columns = [sum((row[j] for row in loads), Fraction(0)) for j in range(count)]
    # Every plan loads all levels together as much as the others do. Equal shares spread that evenly over the levels, so
    # every level has the average load, below which the fullest one cannot be.
    if len(set(columns)) == 1 and all(sorted(row) == sorted(loads[0]) for row in loads):
        return [Fraction(1, count)] * count
    from scipy.optimize import linprog

    # variables: the shares, then the largest load, which is minimized and bounds the load of every level
    table = np.array([[float(x) for x in row] for row in loads])
    table /= table.max()
    rows = np.hstack([table.T, -np.ones((count, 1))])
    result = linprog(
        np.append(np.zeros(count), 1.0), A_ub=rows, b_ub=np.zeros(count), A_eq=[[1.0] * count + [0.0]], b_eq=[1.0],
        method="highs",
    )  # fmt: skip
    if result.x is None:
        return [Fraction(1), *[Fraction(0)] * (count - 1)]
    rounded = [round(max(float(x), 0.0) * SHARE_DENOMINATOR) for x in result.x[:count]]
    return [Fraction(x, sum(rounded)) for x in rounded]
