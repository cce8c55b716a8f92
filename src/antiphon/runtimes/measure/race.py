"""Find the fastest of contestants that are timed in turn, round by round, with confidence intervals.

A disturbance of the machine slows all contestants of a round. So they are compared within rounds: by the median, over
the rounds, of the logarithm of their ratio. Its confidence interval comes from order statistics, which assume nothing
about the distribution of times. Of n sorted values, the k-th smallest and the k-th largest enclose the median unless
fewer than k of n fair coins fall on one side. For n = 20 and an error of 0.5 %, k is 4.

`Race.add` takes the times of a round; `decide` drops contestants that are surely slower than the best, and says whether
the race is decided: the others differ by less than 2 % for sure, or the maximum of rounds is over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import comb, exp, log

import numpy as np
from numpy.typing import NDArray

ERROR_PROBABILITY = 0.005  # probability that an interval misses the median
TIE_RATIO = 1.02  # contestants that differ by less are a tie
MAX_ROUNDS = 8  # a race ends after this many times the requested number of rounds
MARGIN = 0.95  # a plan serves if it takes less than this of the library's time, and surely less than all of it
MAX_LOG_RATIO = log(1e6)  # clips the ends of intervals, also where there are too few rounds for any
MIN_SECONDS = 1e-12  # in place of a measured 0, which has no logarithm

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class RaceStanding:
    """A contestant's time over that of the best: the median ratio and its interval; 1 for the best itself.

    `tied`: it may be as fast as the best, or is surely less than 2 % slower; False once it was eliminated."""

    ratio: float
    low: float
    high: float
    tied: bool


@cache
def _find_interval_end(rounds: int) -> int:
    """Return k: the median's interval goes from the k-th smallest to the k-th largest value; 0: too few rounds."""
    # P(median outside) = P(Binomial(rounds, 1/2) < k) on either side; each side may have ERROR_PROBABILITY / 2
    total, k = 0.0, 0
    while k < rounds // 2 and (total := total + comb(rounds, k) / 2.0**rounds) <= ERROR_PROBABILITY / 2:
        k += 1
    return k


def interval(values: Sequence[float] | Floats) -> tuple[float, float, float]:
    """Return (low, median, high): the median and the ends of its interval, infinite for too few values."""
    ordered = np.sort(np.asarray(values, float))
    end = _find_interval_end(len(ordered))
    middle = float(np.median(ordered))
    return (float(ordered[end - 1]), middle, float(ordered[-end])) if end else (-np.inf, middle, np.inf)


def compare(times: Floats, reference: Floats) -> tuple[float, float, float]:
    """Return (low, median, high) of the ratio `times` / `reference`, over the rounds in which both were measured."""
    # logarithms make the median of a ratio symmetric: swapping the contestants negates it
    ratios = np.log(np.maximum(times, MIN_SECONDS)) - np.log(np.maximum(reference, MIN_SECONDS))
    low, middle, high = interval(ratios[~np.isnan(ratios)])
    return exp(max(low, -MAX_LOG_RATIO)), exp(middle), exp(min(high, MAX_LOG_RATIO))


def beats_library(ratio: float, high: float) -> bool:
    """Whether a plan is faster than the library beyond the spread of what was measured. `high`: the interval's end."""
    return ratio < MARGIN and high < 1.0


class Race:
    """The times of a race. `going`: contestants that can still win. `times[round][contestant]`: seconds, NaN after it
    was eliminated. `theirs`: the library's seconds per round, empty without a library."""

    def __init__(self, contestants: int, rounds: int) -> None:
        self.going = list(range(contestants))
        self.min_rounds, self.max_rounds = rounds, MAX_ROUNDS * rounds
        self.times: list[list[float]] = []
        self.theirs: list[float] = []

    def add(self, seconds_of_going: Sequence[float], theirs: float | None = None) -> None:
        """Add a round: the seconds of the contestants that are going, in their order, and the library's."""
        if theirs is not None:
            self.theirs.append(theirs)
        # All contestants take part in the first round. Those eliminated later stay NaN, which comparisons skip.
        row = [float("nan")] * (max(self.going) + 1 if not self.times else len(self.times[0]))
        for number, seconds in zip(self.going, seconds_of_going, strict=True):
            row[number] = seconds
        self.times.append(row)

    def decide(self) -> bool:
        """Eliminate contestants that are surely slower than the best. Return whether the race is decided.

        It is decided after the maximum of rounds. After the minimum, it is decided once all others surely
        differ from the best by less than 2 %, and the best surely is or is not faster than the library."""
        standings = self.standings()
        # keep contestants that may be the best, or surely differ from it by less than 2 %
        self.going = [n for n in self.going if standings[n].low <= 1.0 or standings[n].high <= TIE_RATIO]
        if len(self.times) < self.min_rounds:
            return False
        if len(self.times) >= self.max_rounds:
            return True
        return all(standings[n].high <= TIE_RATIO for n in self.going) and self._library_is_decided(standings)

    def _library_is_decided(self, standings: Sequence[RaceStanding]) -> bool:
        """Return whether it is certain that the best contestant serves instead of the library, or that it does not."""
        if not self.theirs:
            return True
        # usually the best of `standings`; by noise another one may have a median ratio below 1 to it
        best = min(self.going, key=lambda n: standings[n].ratio)
        low, ratio, high = compare(np.array(self.times, float)[:, best], np.array(self.theirs))
        return beats_library(ratio, high) or low >= MARGIN

    def standings(self) -> list[RaceStanding]:
        """Compare every contestant with the best, in the rounds in which both ran."""
        log_times = np.log(np.maximum(np.array(self.times, float), MIN_SECONDS))
        log_times_going = log_times[:, self.going]
        # relative to the mean of its round, so that a slow round counts for nobody
        medians = np.median(log_times_going - log_times_going.mean(axis=1, keepdims=True), axis=0)
        best = self.going[int(np.argmin(medians))]
        standings = []
        for number in range(log_times.shape[1]):
            if number == best:
                standings.append(RaceStanding(ratio=1.0, low=1.0, high=1.0, tied=True))
                continue
            log_ratios = log_times[:, number] - log_times[:, best]
            low, middle, high = interval(log_ratios[~np.isnan(log_ratios)])
            low, high = max(low, -MAX_LOG_RATIO), min(high, MAX_LOG_RATIO)
            tied = number in self.going and (low <= 0.0 or high <= log(TIE_RATIO))
            standings.append(RaceStanding(exp(middle), exp(low), exp(high), tied))
        return standings
