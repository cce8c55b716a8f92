"""Fit LogGP's parameters to parametrized round trips, per protocol regime, by the formulas of Hoefler et al. (2007).

PRTT(n, d, s): n messages of s bytes one way, with d seconds between two of them, then one back.

    PRTT(1,0,s) = 2 (o_s + (s-1) G + L + o_r)
    [PRTT(n,0,s) - PRTT(1,0,s)] / (n-1) = g + (s-1) G
    [PRTT(n,d,s) - PRTT(1,0,s)] / (n-1) = o_s + d       if o_s + d >= g + (s-1) G

and o_r from the receiver's side. L = PRTT(1,0,s)/2 - o_s - o_r - (s-1) G, at s = 1 the formula of the paper's method
(section IV.B); half a round trip alone would count o_s and o_r in L a second time.

A *regime* is a range of sizes in which the library uses one protocol, so that L, o_s, ... are constants (or grow evenly
with the size). Stages: medians per size with errors (_loggp_medians), breaks between regimes (_loggp_lines), and per
regime robust lines through four *signals* computed from the medians: half a round trip, gap, o_s, o_r. Every estimate
is a linear combination of the medians; the vector of its factors is called a *row*, and its error follows from the
errors of the medians. A figure that the data do not determine is marked, not guessed.

A rank sends through *ports*: a port is busy for g + (s-1) G with each message. With several ports, or if the ranks
share another resource, n messages take fewer than n - 1 further *turns* of that time.

Example: s = 1, PRTT(1,0,1) = 14 us, o_s = o_r = 1 us: L = 7 - 1 - 1 = 5 us.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from antiphon.core.portable import matmul, row_dot
from antiphon.cost.fit._loggp_lines import MIN_REGIME_SIZES, find_segments, line_map, weights_of
from antiphon.cost.fit._loggp_medians import Medians, find_medians
from antiphon.cost.fit._loggp_regimes import Break, Regime
from antiphon.cost.fit.least_squares import pseudo_inverse
from antiphon.cost.fit.linear import (  # fmt: skip
    CONFIDENCE,
    DETERMINED,
    IMMATERIAL,
    MAX_HALF_WIDTH,
    NEGLIGIBLE,
    UNDETERMINED,
    WEAK,
    Estimate,
    Floats,
    round_portably,
    rounded_error,
)
from antiphon.cost.fit.loggp_radix import Radix, SimultaneousFit, fit_radices, fit_simultaneous, radix_remarks
from antiphon.cost.fit.loggp_tables import RTT, SERVER, SIMULTANEOUS, RoundTrip
from antiphon.units import format_size

NAMES = ("L", "o_s", "o_r", "g", "G")  # LogGP's parameters
SIGNALS = ("half", "gap", "o_s", "o_r")  # see the module
GROWTH_CONFIDENCE = 0.99  # confidence at which growth with the size must differ from 0
MAX_UNREPORTED_ERROR = 0.1  # root mean square of relative errors; above this, a note warns the user
MIN_PORT_RATIO = 2.0  # ports limit certainly if their gaps take this many times as long as the shared resource
MIN_REGIME_CHANGE = 0.03  # a relative change of a figure by less does not begin another regime
Row = Floats  # factors of the entries of `Medians.flat`; their sum of products is an estimate


@dataclass(frozen=True, eq=False)
class LogGPFit:
    """The fitted LogGP parameters; regimes by ascending size."""

    measured: Sequence[RoundTrip]
    medians: Medians
    regimes: Sequence[Regime]
    breaks: Sequence[Break]
    simultaneous: Sequence[SimultaneousFit] = ()  # of messages that could begin at once; () if none were measured

    @cached_property
    def radices(self) -> dict[str, Radix]:
        """The number of messages at once: of a rank `send`, `receive` and the smaller of both, `device`; `node`: from a
        host to another (loggp_radix.py)."""
        return fit_radices(self.simultaneous)

    def regime_of(self, nbytes: float) -> Regime:
        """Return the regime of a size; sizes between two regimes belong to the later one."""
        return next((regime for regime in self.regimes if nbytes <= regime.high), self.regimes[-1])

    @cached_property
    def fitted(self) -> Floats:
        """The seconds of every measured row according to the fit."""
        out = []
        simultaneous_seconds = {(result.kind, result.nbytes): result.fitted for result in self.simultaneous}
        for row in self.measured:
            if row.kind in SIMULTANEOUS:
                out.append(simultaneous_seconds[row.kind, row.nbytes][row.n])
                continue
            regime, s = self.regime_of(row.nbytes), np.array([float(row.nbytes)])  # one size
            o_s, o_r = (regime.line(name, s).item() for name in ("o_s", "o_r"))
            # Server: per message o_r and the delay. Round trips: one message there and back, and the time by which n
            # messages take longer than one.
            if row.kind == SERVER:
                out.append(row.n * (o_r + row.delay))
                continue
            extra = float(self.extra_seconds[int(np.searchsorted(self.medians.sizes, row.nbytes))])
            if row.delay:
                extra = max((row.n - 1) * (o_s + row.delay), extra)
            out.append(2 * regime.half_round_trip(s).item() + (row.n > 1) * extra)
        return np.array(out)

    @cached_property
    def extra_seconds(self) -> Floats:
        """By size, the seconds by which the n messages without delay take longer than one; a size has one n."""
        medians = self.medians
        starts = [self.regime_of(size).start for size in medians.sizes]  # g and G do not grow within a regime
        transfer = np.array([start["G"] for start in starts]) * (medians.sizes - 1)  # (s-1) G, seconds
        # (n-1) [g + (s-1) G] with one port; fewer turns with several, or the shared resource if that takes longer.
        # Half a round trip of a large message is almost (s-1) G, and excess_half_trips is in units of it.
        gaps: Floats = (np.array([start["g"] for start in starts]) + transfer) * medians.turns
        return gaps if medians.excess_half_trips is None else np.maximum(gaps, transfer * medians.excess_half_trips)

    @cached_property
    def relative_errors(self) -> tuple[float, float]:
        """Relative error of the fit for the median round trips without delay: root mean square, and largest."""
        medians = self.medians
        regimes = [self.regime_of(size) for size in medians.sizes]
        one_message = 2 * np.array(
            [r.half_round_trip(np.array([s])).item() for r, s in zip(regimes, medians.sizes, strict=True)]
        )
        many_messages = one_message + self.extra_seconds
        relative_deviation = np.concatenate([one_message / medians.one, many_messages / medians.many]) - 1
        return float(np.sqrt((relative_deviation**2).mean())), float(np.abs(relative_deviation).max())

    @cached_property
    def notes(self) -> list[str]:
        return list(self._list_notes())

    def _list_notes(self) -> Iterator[str]:
        """Yield remarks for the user: what these round trips do not determine, and what to measure so that they do."""
        medians = self.medians
        if len(medians.sizes) < 2 * MIN_REGIME_SIZES:
            yield (
                f"{len(medians.sizes)} sizes do not distinguish protocol regimes: one is "
                f"assumed; measure {2 * MIN_REGIME_SIZES} "
                "sizes at least, better 12 or more"
            )
        if not all(medians.scatter.values()):
            yield "fewer than 3 repetitions of some measurement: its error comes from the scatter about lines alone"
        if not medians.long_enough.all():
            short = [format_size(int(s)) for s in medians.sizes[~medians.long_enough]]
            yield (
                f"the delay is too short to determine o_s at {', '.join(short[:6])}{', ...' if len(short) > 6 else ''}"
                ": it must cover the gap, o_s + d >= g + (s-1) G"
            )
        for regime_break in self.breaks:  # `before`: the first size of the later regime
            if regime_break.earliest != regime_break.before or regime_break.latest != regime_break.before:
                yield (
                    f"the regime from {format_size(regime_break.before)} on may as well begin anywhere from "
                    f"{format_size(regime_break.earliest)} to {format_size(regime_break.latest)}"
                )
        for regime in self.regimes:
            yield from _regime_remarks(regime)
        yield from radix_remarks(self.simultaneous)
        if self.relative_errors[0] > MAX_UNREPORTED_ERROR:
            yield (
                f"the fit misses these round trips by {self.relative_errors[0]:.0%} (root mean "
                "square): other work may have "
                "run beside; measure again, more often"
            )

    def as_json(self) -> dict[str, Any]:
        """Keys: regimes, breaks, radices, at_once, error, measurements, sizes, rows, notes."""
        return {
            "regimes": [regime.as_json() for regime in self.regimes],
            "breaks": [entry.as_json() for entry in self.breaks],
            "radices": {name: entry.as_json() for name, entry in self.radices.items()},
            "at_once": [entry.as_json() for entry in self.simultaneous],
            "error": dict(zip(("rms", "largest"), map(rounded_error, self.relative_errors), strict=True)),
            "measurements": len(self.measured),
            "sizes": [int(size) for size in self.medians.sizes],
            "rows": [
                {"kind": row.kind, "n": row.n, "delay": row.delay, "nbytes": row.nbytes, "seconds": row.seconds,
                 "fitted": round_portably(fitted)}
                for row, fitted in zip(self.measured, self.fitted.tolist(), strict=True)
            ],
            "notes": self.notes,
        }  # fmt: skip


def fit_loggp(measured: Sequence[RoundTrip]) -> LogGPFit:
    """Fit L, o_s, o_r, g and G of every regime, with 95 % t-intervals. O(sizes^3) in few passes, sizes at most 300.

    The error of each median comes from the scatter of its repetitions or about lines through neighbouring sizes,
    whichever is greater. It is carried through the formulas, which are linear. If the lines of a regime miss its
    figures by more than that, the intervals are widened accordingly. Lines are robust (Huber's weights). Growth of L,
    o_s or o_r with the size is included only if it is certain (99 %), and a figure that comes out below 0 has no value.
    """
    simultaneous_fits = fit_simultaneous(measured)
    medians = find_medians(measured, simultaneous_fits)
    signals = []
    for name in SIGNALS:
        # Regimes: a change of a figure by less than MIN_REGIME_CHANGE counts as noise and does not begin a new one.
        error = np.hypot(medians.error_of[name], MIN_REGIME_CHANGE * medians.signal(name))
        signals.append((medians.signal(name), medians.usable_errors(name, error)))
    starts, movable = find_segments(medians.sizes, signals)
    sizes = medians.sizes.astype(int).tolist()
    ends = [*starts[1:], len(sizes)]
    regimes = [_Fitter(medians, slice(low, high)).regime() for low, high in zip(starts, ends, strict=True)]
    breaks = [
        Break(sizes[start - 1], sizes[start], sizes[first], sizes[last])
        for start, (first, last) in zip(starts[1:], movable, strict=True)
    ]
    return LogGPFit(measured, medians, regimes, breaks, simultaneous_fits)


@dataclass
class _Figures:
    """The figures of a regime, filled in one after the other while they are fitted; fields as in `Regime`.

    `start` are values at the first size of the regime, by name; `slope` their growth per byte.
    """

    figures: dict[str, Estimate] = field(default_factory=dict)
    growth: dict[str, Estimate] = field(default_factory=dict)
    start: dict[str, float] = field(default_factory=dict)
    slope: dict[str, float] = field(default_factory=dict)


class _Fitter:
    """Fit one regime, the sizes `span` of the medians. Row: see the module."""

    def __init__(self, medians: Medians, span: slice) -> None:
        self.medians, self.span = medians, span
        self.sizes = medians.sizes[span]
        error_factors = []  # per signal
        self.weights: dict[str, Floats] = {}
        degrees_of_freedom = 0
        for name in SIGNALS:
            y, sd = medians.signal(name)[span], medians.usable_errors(name, medians.error_of[name])[span]
            # weight of each size in a line, by Huber; 0 where the signal must not be used: its error is infinite there
            self.weights[name] = weights_of(self.sizes, (y, sd))
            # Chi-squared per degree of freedom about a line: above 1, its root widens the errors of the signal.
            freedom = int(np.isfinite(sd).sum()) - 2
            chi_squared = 0.0
            if freedom > 0:
                line = row_dot(line_map(self.sizes, self.weights[name], (0, 1)), y)
                chi_squared = float((((y - line[0] - line[1] * self.sizes) / sd) ** 2).sum()) / freedom
                degrees_of_freedom += freedom
            error_factors.append(math.sqrt(max(chi_squared, 1.0)))
        # `errors` has a block of all sizes for each kind of median: one, many, delayed, server. Beside "one", each kind
        # occurs in one signal only; the factor of "half" is that of "one".
        self.degrees_of_freedom = max(degrees_of_freedom, 1)
        self.errors = medians.errors * np.repeat(error_factors, len(medians.sizes))

    def regime(self) -> Regime:
        """Fit all parameters of the regime."""
        fit = _Figures()
        # half = o_s + (s-1) G + L + o_r: L is what remains after the other terms are subtracted, as rows of factors.
        transfer = self._fit_gap(fit)
        # maps[signal]: for each size, the row of the signal there
        remaining_rows = self.medians.maps["half"][self.span] - transfer
        for name in ("o_s", "o_r"):
            matrix = self.medians.maps[name][self.span]
            remaining_rows = remaining_rows - self._fit_constant_or_line(name, matrix, fit, minimum=0.0)
        # the data may make L negative
        self._fit_constant_or_line("L", remaining_rows, fit, minimum=-math.inf)
        low, high = int(self.sizes[0]), int(self.sizes[-1])
        return Regime(low, high, {name: fit.figures[name] for name in NAMES}, fit.growth, fit.start, fit.slope)

    def _fit_gap(self, fit: _Figures) -> Floats:
        """Fit g and G; if one is negative, drop it and fit the other alone. Return the row of (s-1) G for each size.

        `columns`: the figures that are still fitted (0: g, 1: G); the rows of the others are 0.
        """
        x = self.sizes - 1
        fitted_rows: list[Row] = []
        columns, negative = [0, 1], {}
        # The signal `gap` is usable unless ranks have several ports or share another resource: usable_errors then
        # replaces all errors by inf. The errors that are passed do not matter here.
        is_gap_usable = np.isfinite(self.medians.usable_errors("gap", np.ones_like(x))).all()
        lines = self._gap_rows if is_gap_usable else self._lines_of_ports()
        # Active set: drop the most negative figure (in deviations) and refit, until no figure is negative.
        while columns:
            fitted_rows = list(lines(columns))
            negative_columns = [c for c in columns if self._row_value(fitted_rows[c]) < 0]
            if not negative_columns:
                break
            most_negative = min(
                negative_columns,
                # the least value in units of its deviation, which is not 0 then
                key=lambda c: self._row_value(fitted_rows[c]) / (self._row_deviation(fitted_rows[c]) or 1e-300),
            )
            negative[most_negative] = fitted_rows[most_negative]
            columns.remove(most_negative)
        for column, name in enumerate(("g", "G")):
            row = fitted_rows[column] if column in columns else np.zeros_like(self.medians.flat)
            fit.start[name] = self._row_value(row)
            # a figure that was dropped is estimated by its negative row, which makes it undetermined
            fit.figures[name] = self._row_estimate(name, negative.get(column, row))
        rows: Floats = x[:, None] * (fitted_rows[1] if 1 in columns else np.zeros_like(self.medians.flat))[None, :]
        return rows

    def _gap_rows(self, columns: Sequence[int]) -> Floats:
        """Return rows of g and G from the line through the signal `gap`; 0 for one that is not in `columns`."""
        return matmul(line_map(self.sizes - 1, self.weights["gap"], columns), self.medians.maps["gap"][self.span])

    def _lines_of_ports(self) -> Callable[[Sequence[int]], Floats]:
        """Return a function from columns (0: g, 1: G) to their rows, for ranks with several ports.

        Ports limit small messages; a shared resource, or nothing, limits large ones. So g is fitted to the sizes that
        ports certainly limit, and G to half round trips.
        """
        medians, x = self.medians, self.sizes - 1
        half = medians.maps["half"][self.span]
        gap = medians.maps["gap"][self.span]
        turns = medians.turns[self.span]
        # Slope of half round trips: an estimate of G to see where the shared resource limits.
        slope = max(self._row_value(matmul(line_map(x, self.weights["half"], (0, 1)), half)[1]), 0.0)
        shared_seconds = (
            np.zeros_like(x) if medians.excess_half_trips is None else medians.excess_half_trips[self.span] * x * slope
        )
        # Ports certainly limit where gaps exceed twice the transfer time of the shared resource.
        port_seconds = row_dot(gap, medians.flat) * turns
        port_limited = (turns > 0) & (
            port_seconds > MIN_PORT_RATIO * shared_seconds + NEGLIGIBLE * medians.many[self.span]
        )
        # Columns: g, G, half a round trip of one byte, seconds per further byte at a port. Rows: gaps, then half trips.
        # Both columns per byte are scaled by the greatest size, as is `out` for G, so that all entries are up to 1.
        design = np.zeros((2 * len(x), 4))
        design[: len(x), 0], design[: len(x), 3] = 1.0, x / x.max()
        design[len(x) :, 1], design[len(x) :, 2] = x / x.max(), 1.0
        error = np.sqrt(row_dot(gap**2, medians.errors**2))
        weights = np.concatenate([np.where(port_limited, 1 / error**2, 0.0), self.weights["half"]])
        # Weighted least squares through the pseudo-inverse, so that rows of factors result, not only values.
        root, matrix = np.sqrt(weights), np.concatenate([gap, half])

        def lines(columns: Sequence[int]) -> Floats:
            # Columns 2 and 3 are always fitted. Without sizes that ports limit, g (column 0) cannot be.
            chosen = [column for column in (*columns, 2, 3) if column or port_limited.any()]
            out = np.zeros((4, len(medians.flat)))
            out[chosen] = matmul(pseudo_inverse(design[:, chosen] * root[:, None]) * root, matrix)
            out[1] /= x.max()
            return out[:2]

        return lines

    def _fit_constant_or_line(self, name: str, matrix: Floats, fit: _Figures, minimum: float) -> Floats:
        """Fit a figure as a constant, or as a line if a slope is certain. Return the row of its value at each size.

        `matrix`: per size the row of the figure as measured there. `minimum`: the least value that is possible.
        """
        x = self.sizes - self.sizes[0]
        weights = self.weights["half" if name == "L" else name]
        zero = np.zeros_like(matrix)
        fit.start[name] = fit.slope[name] = 0.0
        if not weights.any():
            fit.figures[name] = Estimate(name, UNDETERMINED)
            return zero
        # Prefer a constant; take a slope only with enough sizes and 99 % certainty.
        start, slope = _apply_lines(line_map(x, weights, (0, 1)), matrix)
        is_sloped = (weights > 0).sum() >= MIN_REGIME_SIZES and abs(self._row_value(slope)) > self._half_width(
            slope, GROWTH_CONFIDENCE
        )
        # a line with impossible values at an end is as good as none: use its mean
        if not is_sloped or min(self._row_value(start), self._row_value(start + slope * x[-1])) < minimum:
            start, slope = _apply_lines(line_map(x, weights, (0,)), matrix)
            is_sloped = False
        fit.figures[name] = self._row_estimate(name, start)
        if self._row_value(start) < minimum:
            return zero
        fit.start[name] = self._row_value(start)
        if is_sloped:
            fit.slope[name] = self._row_value(slope)
            fit.growth[name] = self._signed_estimate(name, slope)
        out: Floats = start[None, :] + x[:, None] * slope[None, :]
        return out

    def _row_value(self, row: Row) -> float:
        """Return the value of an estimate; 0 if it is negligible against its terms, as then its sign is rounding."""
        value = float(row_dot(row, self.medians.flat))
        return 0.0 if abs(value) <= NEGLIGIBLE * self._row_scale(row) else value

    def _row_scale(self, row: Row) -> float:
        """Return the sum of the magnitudes of an estimate's terms: rounding errors are a fraction of it."""
        return float(row_dot(np.abs(row), self.medians.measured_seconds))

    def _row_deviation(self, row: Row) -> float:
        """Return the standard error of an estimate."""
        return float(np.sqrt(row_dot(row**2, self.errors**2)))

    def _half_width(self, row: Row, confidence: float = CONFIDENCE) -> float:
        """Return half the width of an estimate's t-interval."""
        from scipy.special import stdtrit

        return float(stdtrit(self.degrees_of_freedom, (1 + confidence) / 2)) * self._row_deviation(row)

    def _row_estimate(self, name: str, row: Row) -> Estimate:
        """Return an estimate with its interval and state; negative values are undetermined."""
        value, half_width = self._row_value(row), self._half_width(row)
        if value < 0:
            return Estimate(name, UNDETERMINED)
        is_narrow = half_width <= max(MAX_HALF_WIDTH * value, IMMATERIAL * self._row_scale(row))
        state, low = DETERMINED if is_narrow else WEAK, max(value - half_width, 0.0)
        return Estimate(name, state, round_portably(value), round_portably(low), round_portably(value + half_width))

    def _signed_estimate(self, name: str, row: Row) -> Estimate:
        """Return an estimate that may be negative, with its interval."""
        value, half_width = self._row_value(row), self._half_width(row)
        low, high = round_portably(value - half_width), round_portably(value + half_width)
        return Estimate(name, DETERMINED, round_portably(value), low, high)


def _apply_lines(lines: Floats, matrix: Floats) -> Floats:
    """Return lines @ matrix; sums that cancel up to rounding become exactly 0.

    `lines`: factors of a line's coefficients for its figures; `matrix`: the row of each figure. A term whose slope was
    fitted to half round trips, say, leaves no slope in what remains of them.
    """
    product = matmul(lines, matrix)
    return np.where(np.abs(product) <= NEGLIGIBLE * matmul(np.abs(lines), np.abs(matrix)), 0.0, product)


def _regime_remarks(regime: Regime) -> Iterator[str]:
    """Yield remarks on the figures of one range of sizes that are not determined or contradict each other."""
    where = f"{format_size(regime.low)} to {format_size(regime.high)}"
    undetermined_names = [name for name in NAMES if regime.figures[name].state == UNDETERMINED]
    if undetermined_names:
        yield (
            f"{where}: {', '.join(undetermined_names)} not determined (what comes out is below 0, or "
            "no measurement determines it)"
        )
    ends = np.array([regime.low, regime.high], float)
    latencies = regime.line("L", ends)  # at both ends of the range; below 0 if the other terms exceed half a round trip
    if (latencies < 0).any():
        overheads = regime.line("o_s", ends) + regime.line("o_r", ends)
        yield (
            f"{where}: overheads and transfer together are more than half a round trip, by up to "
            f"{-latencies.min():.3g} s: some go on at the same time; a profile takes the overheads without that part"
        )
        # L + o_s + o_r below 0, up to rounding: (s-1) G of many messages alone exceeds half a round trip of one
        if (latencies + overheads < NEGLIGIBLE * latencies).any():
            yield f"{where}: a message alone is faster than one of many by so much that a profile cannot say both"


__all__ = ["RTT", "SERVER", "Break", "LogGPFit", "Regime", "fit_loggp"]
