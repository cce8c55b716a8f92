"""Who is fastest: times of contestants that took turns, round by round, and what is certain of them.

What slows a machine for a while slows all of a round, so contestants are compared within rounds: by the median, over
the rounds, of the logarithm of their ratio. Its interval is that of order statistics, which assumes nothing of how
times are distributed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import comb, exp, log

import numpy as np
from numpy.typing import NDArray

UNSURE = 0.005  # how often an interval may miss
ALIKE = 1.02  # contestants that differ by less are a tie
MOST = 8  # times as many rounds as were asked for, at most

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Standing:
    """A contestant against the best: the median of their ratio, and the interval of that; `tied`: it is not certain
    that it is slower than the best (or it is certain that it is by less than 2 % only). Of the best itself all is 1."""

    ratio: float
    low: float
    high: float
    tied: bool


@cache
def _missed(rounds: int) -> int:
    """How many of the least (and of the greatest) of so many values may be left out of the interval of the median."""
    total, out = 0.0, 0
    while out < rounds // 2 and (total := total + comb(rounds, out) / 2.0**rounds) <= UNSURE / 2:
        out += 1
    return out


def interval(values: Sequence[float] | Floats) -> tuple[float, float, float]:
    """Of the median: below, itself, above; without ends where there are too few values."""
    ordered = np.sort(np.asarray(values, float))
    out = _missed(len(ordered))
    middle = float(np.median(ordered))
    return (float(ordered[out - 1]), middle, float(ordered[-out])) if out else (-np.inf, middle, np.inf)


class Race:
    """`going`: those that can still win. `times[round][contestant]`, NaN where it was out already."""

    def __init__(self, contestants: int, rounds: int) -> None:
        self.going = list(range(contestants))
        self.least, self.most = rounds, MOST * rounds
        self.times: list[list[float]] = []

    def add(self, spent: Sequence[float]) -> None:
        """A round: the seconds of those that are going, in their order."""
        row = [float("nan")] * (max(self.going) + 1 if not self.times else len(self.times[0]))
        for number, seconds in zip(self.going, spent, strict=True):
            row[number] = seconds
        self.times.append(row)

    def decide(self) -> bool:
        """Let go of who surely is slower than the best; whether all is decided: those left were measured as often as
        was asked for, and surely are alike, or as often as may be."""
        standings = self.standings()
        self.going = [n for n in self.going if standings[n].low <= 1.0 or standings[n].high <= ALIKE]
        if len(self.times) < self.least:
            return False
        left = [standings[n] for n in self.going]
        return len(self.times) >= self.most or all(one.high <= ALIKE for one in left)

    def standings(self) -> list[Standing]:
        """Everyone against the best, in the rounds in which both ran."""
        made = np.log(np.maximum(np.array(self.times, float), 1e-12))
        among = made[:, self.going]
        behind = np.median(among - among.mean(axis=1, keepdims=True), axis=0)
        best = self.going[int(np.argmin(behind))]
        found = []
        for number in range(made.shape[1]):
            if number == best:
                found.append(Standing(1.0, 1.0, 1.0, True))
                continue
            apart = made[:, number] - made[:, best]
            low, middle, high = interval(apart[~np.isnan(apart)])
            low, high = max(low, -log(1e6)), min(high, log(1e6))
            tied = number in self.going and (low <= 0.0 or high <= log(ALIKE))
            found.append(Standing(exp(middle), exp(low), exp(high), tied))
        return found
