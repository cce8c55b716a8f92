"""Fit piecewise lines to measured times: where regimes begin, by dynamic programming over robust lines.

Time over message size is a line within a protocol regime (eager, rendezvous, ...) and may jump or bend between regimes.
For every interval of sizes `_fit_lines` fits a line with Huber's cost, which is quadratic for small deviations and
linear for outliers. Among all ways to cut the sizes into intervals, `find_segments` takes the one of least cost plus a
penalty per regime (the Bayesian information criterion), by dynamic programming over the end of the last regime.

loggp.py calls `find_segments` to find regimes, and `weights_of` and `line_map` for the line of each; loggp_radix.py
chooses among candidates by `first_least`.

Example: sizes 1 to 8 KB on a line of slope 1, 16 to 64 KB on one of slope 2: one cut between 8 and 16 KB removes all
residuals, a second cut gains nothing and costs its penalty.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from antiphon.core.portable import row_dot
from antiphon.cost.fit.least_squares import Floats, pseudo_inverse

MIN_REGIME_SIZES = 3  # least number of sizes in a regime
HUBER_LIMIT = 1.345  # Huber's constant: 95 % efficiency compared with least squares if errors are normal
REWEIGHTINGS = 6  # rounds of iteratively reweighted least squares
# A break may be where the cost is higher by at most this: chi-square, one degree of freedom, 95 %
MAX_COST_INCREASE = 3.84
COST_ROUNDING = 1e-6  # costs that differ by less are equal: the first is taken, so that rounding does not decide
# If the weighted variance of scaled sizes (1: the greatest) is less, they count as one size, and the slope is 0.
NO_SPREAD = 1e-14
NOT_ZERO = 1e-300  # avoids divisions by 0

# One kind of measurement over all sizes, such as half a round trip: medians (the figures) and their standard errors; an
# error of inf excludes a figure
Signal = tuple[Floats, Floats]


def huber_cost(deviation: Floats) -> Floats:
    """Huber's cost of deviations: quadratic up to HUBER_LIMIT, then linear."""
    size = np.abs(deviation)
    cost: Floats = np.where(size <= HUBER_LIMIT, size**2, HUBER_LIMIT * (2 * size - HUBER_LIMIT))
    return cost


def weights_of(x: Floats, signal: Signal) -> Floats:
    """Return the weights of the robust line (Huber): 1 / error^2, less for outliers."""
    mask = np.ones((1, len(x)), bool)
    weights, _ = _fit_lines(x, signal, mask)
    line_weights: Floats = weights[0]
    return line_weights


def _fit_lines(x: Floats, signal: Signal, mask: NDArray[np.bool_]) -> tuple[Floats, Floats]:
    """Return for every row of the mask the weights of its line, and its cost. O(rows * sizes) in few passes.

    Row i of `mask` marks the sizes that line i is fitted to.
    """
    y, standard_error = signal
    base = np.where(mask, 1.0 / standard_error**2, 0.0)
    weights, deviation = base, np.zeros_like(base)
    scale = max(float(np.abs(x).max()), 1.0)
    u = x / scale
    for _ in range(REWEIGHTINGS):
        total = weights.sum(1) + NOT_ZERO
        # The weighted least-squares line, from the weighted means of u and y and the deviations from them.
        mx, my = row_dot(weights, u) / total, row_dot(weights, y) / total
        du, dy = u - mx[:, None], y - my[:, None]
        spread = row_dot(weights, du**2)
        slope = np.where(spread > NO_SPREAD * total, row_dot(weights * du, dy) / np.maximum(spread, NOT_ZERO), 0.0)
        deviation = np.where(mask, (dy - slope[:, None] * du) / standard_error, 0.0)
        # Iteratively reweighted least squares: outliers get the weight HUBER_LIMIT / deviation.
        weights = base * np.minimum(1.0, HUBER_LIMIT / np.maximum(np.abs(deviation), NOT_ZERO))
    return weights, huber_cost(deviation).sum(1)


def find_segments(x: Floats, signals: Sequence[Signal]) -> tuple[list[int], list[tuple[int, int]]]:
    """Return where regimes begin (the first at 0), and for each later one the range in which it might plausibly begin.

    Every signal is a line within a regime; breaks are common to all signals. Minimises Huber's cost plus, for each
    later regime, its parameters times the logarithm of the number of figures (the Bayesian information criterion); at
    least MIN_REGIME_SIZES sizes per regime. Dynamic programming: O(sizes^2) lines, each O(sizes).
    """
    m = len(x)
    if m < 2 * MIN_REGIME_SIZES:
        return [0], []
    # all intervals of at least MIN_REGIME_SIZES sizes: from `low` to below `high`
    low, high = np.triu_indices(m + 1, MIN_REGIME_SIZES)
    mask = (np.arange(m) >= low[:, None]) & (np.arange(m) < high[:, None])
    cost_of = np.full((m + 1, m + 1), np.inf)  # [a, b]: one regime of the sizes a to b - 1
    cost_of[low, high] = sum(_fit_lines(x, signal, mask)[1] for signal in signals)
    penalty = (2 * len(signals) + 1) * math.log(m * len(signals))  # a regime's parameters: its start, two per line
    best, last_start = np.full(m + 1, np.inf), np.zeros(m + 1, int)
    best[0] = -penalty  # the first regime costs no penalty
    # Invariant: best[e] is the least cost of the sizes before e; last_start[e] is where its last regime begins.
    for end in range(MIN_REGIME_SIZES, m + 1):
        costs = best[:end] + cost_of[:end, end] + penalty
        last_start[end] = first_least(costs)
        best[end] = costs[last_start[end]]
    # Walk back from the end to recover the breaks.
    starts = [m]
    while starts[0]:
        starts.insert(0, int(last_start[starts[0]]))
    # a break may move between the one before and the one after it
    movable_ranges = [_movable_range(cost_of, *starts[i - 1 : i + 2]) for i in range(1, len(starts) - 1)]
    return starts[:-1], movable_ranges


def first_least(costs: Floats) -> int:
    """Return the index of the lowest cost; of costs that differ only by rounding, the first."""
    return int(np.flatnonzero(costs <= costs.min() + COST_ROUNDING)[0])


def _movable_range(cost_of: Floats, low: int, cut: int, high: int) -> tuple[int, int]:
    """Return the range in which the break between regimes [low, cut) and [cut, high) can move at little more cost.

    `cost_of[a, b]`: the cost of one regime of the sizes a to b - 1.
    """
    max_cost = cost_of[low, cut] + cost_of[cut, high] + MAX_COST_INCREASE
    cuts = [
        b
        for b in range(low + MIN_REGIME_SIZES, high - MIN_REGIME_SIZES + 1)
        if cost_of[low, b] + cost_of[b, high] <= max_cost
    ]
    return min(cuts), max(cuts)


def line_map(x: Floats, weights: Floats, columns: Sequence[int]) -> Floats:
    """Return the matrix that maps figures at x to (value at x = 0, slope). O(len(x)).

    `columns`: which of the two to fit, 0 and 1; the row of the other is 0, so that it comes out as 0.
    """
    matrix = np.zeros((2, len(x)))
    scale = max(float(np.abs(x).max()), 1.0)
    design = np.stack([np.ones_like(x), x / scale], 1)[:, list(columns)]
    root = np.sqrt(weights)
    matrix[list(columns)] = pseudo_inverse(design * root[:, None]) * root
    matrix[1] /= scale
    return matrix
