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
MARGIN = 0.95  # of the library's time: what a plan must take less than, and surely less than all of it, to serve
BOUND = log(1e6)  # of the ends of an interval, also where there are too few rounds to know any

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


def compare(ours: Floats, theirs: Floats) -> tuple[float, float, float]:
    """Of the median ratio of pairs: below, itself, above, where both were measured."""
    ratios = np.log(np.maximum(ours, 1e-12)) - np.log(np.maximum(theirs, 1e-12))
    low, middle, high = interval(ratios[~np.isnan(ratios)])
    return exp(max(low, -BOUND)), exp(middle), exp(min(high, BOUND))


def beats_library(ratio: float, high: float) -> bool:
    """Whether a plan is faster than the library beyond the spread of what was measured. `high`: the interval's end."""
    return ratio < MARGIN and high < 1.0


class Race:
    """`going`: those that can still win. `times[round][contestant]`, NaN where it was out already; `theirs`: of each
    round what the library took, empty where there is none to compare with."""

    def __init__(self, contestants: int, rounds: int) -> None:
        self.going = list(range(contestants))
        self.least, self.most = rounds, MOST * rounds
        self.times: list[list[float]] = []
        self.theirs: list[float] = []

    def add(self, spent: Sequence[float], theirs: float | None = None) -> None:
        """A round: the seconds of those that are going, in their order, and the library's."""
        if theirs is not None:
            self.theirs.append(theirs)
        row = [float("nan")] * (max(self.going) + 1 if not self.times else len(self.times[0]))
        for number, seconds in zip(self.going, spent, strict=True):
            row[number] = seconds
        self.times.append(row)

    def decide(self) -> bool:
        """Let go of who surely is slower than the best; whether all is decided: those left were measured as often as
        was asked for, surely are alike, and the best surely is or is not faster than the library; or they were measured
        as often as may be."""
        standings = self.standings()
        self.going = [n for n in self.going if standings[n].low <= 1.0 or standings[n].high <= ALIKE]
        if len(self.times) < self.least:
            return False
        if len(self.times) >= self.most:
            return True
        return all(standings[n].high <= ALIKE for n in self.going) and self._library_is_decided(standings)

    def _library_is_decided(self, standings: Sequence[Standing]) -> bool:
        if not self.theirs:
            return True
        best = min(self.going, key=lambda n: standings[n].ratio)
        low, ratio, high = compare(np.array(self.times, float)[:, best], np.array(self.theirs))
        return beats_library(ratio, high) or low >= MARGIN

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
            low, high = max(low, -BOUND), min(high, BOUND)
            tied = number in self.going and (low <= 0.0 or high <= log(ALIKE))
            found.append(Standing(exp(middle), exp(low), exp(high), tied))
        return found
