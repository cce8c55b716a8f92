"""Several orders of the levels at once, each for a share of the data, so that all links work."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import zip_longest

import numpy as np

from antiphon.planners.compose.stages import STEP, Staged

Mark = tuple[tuple[str, ...], tuple[Fraction, ...]]
FINEST = 60  # the denominator of shares


@dataclass(frozen=True, eq=False)
class Plan:
    """A collective by one split, or by several at once with their shares; how long that may take, if levels have links
    of their own: nothing is laid yet."""

    each: tuple[Staged, ...]
    shares: tuple[Fraction, ...]
    alone: Fraction
    piped: Fraction

    @staticmethod
    def single(staged: Staged) -> Plan:
        return Plan((staged,), (Fraction(1),), staged.cost.alone, staged.cost.piped)

    @property
    def steps(self) -> int:
        return max(staged.steps for staged in self.each)

    @property
    def mark(self) -> Mark:
        """Equal for plans that are as good in everything, by the same planners among the same groups."""
        splits = (str(staged.split) + staged.split.seating.tobytes().hex() for staged in self.each)
        words = tuple(word for staged in self.each for word in staged.told)
        return (*splits, *words), (*self.shares, self.alone, self.piped, Fraction(self.steps))

    def seconds(self, nbytes: int) -> float:
        """About how long it takes in as many pieces as are best: the first one in every step, then one a step."""
        latency, alone, piped = float(STEP), float(self.alone), float(self.piped)
        waiting = max(alone - piped, 0.0) * nbytes
        return self.steps * latency + piped * nbytes + 2 * math.sqrt(waiting * latency)


def shared(each: Sequence[Staged]) -> Plan | None:
    """The shares with which the fullest level has least to carry; plan i has as its outermost level the i-th of the
    first, and so on around. None where one plan alone is best."""
    count = len(each)
    loads = [[Fraction(0)] * count for _ in each]  # of plan i on level j of the first
    for i, staged in enumerate(each):
        for level, load in staged.loads().items():
            loads[i][(i + level) % count] += load
    shares = _even(loads)
    if sum(share > 0 for share in shares) < 2:
        return None
    used = [(staged, share) for staged, share in zip(each, shares, strict=True) if share]
    phases = zip_longest(
        *([share * stage.alone for stage in staged.stages] for staged, share in used), fillvalue=Fraction(0)
    )
    alone = sum((max(phase) for phase in phases), Fraction(0))
    piped = max(sum((loads[i][j] * shares[i] for i in range(count)), Fraction(0)) for j in range(count))
    return Plan(tuple(staged for staged, _ in used), tuple(share for _, share in used), alone, piped)


def _even(loads: Sequence[Sequence[Fraction]]) -> list[Fraction]:
    """Shares that add up to 1 and make the greatest sum of a column least: a small linear program, rounded."""
    count = len(loads)
    columns = [sum((row[j] for row in loads), Fraction(0)) for j in range(count)]
    if len(set(columns)) == 1 and all(sorted(row) == sorted(loads[0]) for row in loads):
        return [Fraction(1, count)] * count
    from scipy.optimize import linprog

    table = np.array([[float(x) for x in row] for row in loads])
    table /= table.max()
    rows = np.hstack([table.T, -np.ones((count, 1))])
    result = linprog(
        np.append(np.zeros(count), 1.0), A_ub=rows, b_ub=np.zeros(count), A_eq=[[1.0] * count + [0.0]], b_eq=[1.0],
        method="highs",
    )  # fmt: skip
    if result.x is None:
        return [Fraction(1), *[Fraction(0)] * (count - 1)]
    near = [round(max(float(x), 0.0) * FINEST) for x in result.x[:count]]
    return [Fraction(x, sum(near)) for x in near]
