"""Reduce repeated round trips to one median per kind and size, with its standard error.

PRTT(n, d, s) is the time of a parametrized round trip: n messages of s bytes one way, d seconds between two of them,
then one back. Four kinds are measured at every size: one message, many without delay, many with delay, and the
receiver's time ("server"). Four *signals* are linear combinations of their medians, so standard errors propagate. Their
values by LogGP, with the gap g per message and G per byte, and the overheads o_s and o_r of sender and receiver:

    half   PRTT(1,0,s) / 2                               = L + o_s + o_r + (s-1) G
    gap    [PRTT(n,0,s) - PRTT(1,0,s)] / (n - 1)         = g + (s-1) G
    o_s    [PRTT(n,d,s) - PRTT(1,0,s)] / (n - 1) - d     = o_s, if the delay covers the gap
    o_r    server seconds per message, less the delay

A sender with several ports sends several messages at once, and those of one port follow each other. Each message of its
busiest port, but the first, is a turn, and the gap is per turn: the divisor is the number of turns in place of n - 1.

The error of a median comes from the scatter of repetitions, or from the scatter about lines through neighbouring sizes
if that is greater. loggp.py fits lines to the signals. Example: medians of 10 us for one message and 40 us for 16:
gap = 2 us.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from antiphon.core.portable import row_dot
from antiphon.cost.fit.linear import NEGLIGIBLE, UNDETERMINED, Floats
from antiphon.cost.fit.loggp_radix import SimultaneousFit
from antiphon.cost.fit.loggp_tables import BURST, RTT, SERVER, SIMULTANEOUS, RoundTrip
from antiphon.errors import Invalid
from antiphon.units import format_size

MIN_SIZES, MAX_SIZES = 3, 300  # message sizes that a fit needs, and accepts
MIN_SIZES_FOR_LINES = 8  # least number of sizes for estimating errors from the scatter about lines through neighbours
MIN_REPETITIONS = 3  # least number of repetitions for estimating errors from their scatter
# Seconds: no processor handles a message in less. Not a round number, so that exact data differ from it.
MIN_OVERHEAD = 0.97e-10
MAX_ERROR_RATIO = 3.0  # a size whose own error exceeds the common one by this factor is weighted by its own error
MAX_TURN_RATIO = 1.1  # large messages that take at most this factor of what their turns take are limited by ports alone
NORMAL_MEDIAN = 0.6745  # the median of |x| for normal x of deviation 1
MIN_UNCERTAINTY = 0.01  # least uncertainty of a gap, as a fraction of the gap
# Kind of measurement -> its name in messages
KINDS = {
    "one": "PRTT(1,0,s) (rtt of one message)",
    "many": "PRTT(n,0,s) (rtt of several without delay)",
    "delayed": "PRTT(n,d,s) (rtt of several with delay)",
    "server": "o_r (server)",
}


@dataclass(frozen=True, eq=False)
class Medians:
    """Medians over repetitions; every array has one entry per message size, in ascending order."""

    sizes: Floats  # bytes of a message
    one: Floats  # PRTT(1,0,s), seconds
    many: Floats  # PRTT(n,0,s), seconds
    excess: Floats  # PRTT(n,d,s) minus its delays, seconds
    server: Floats  # the receiver's seconds per message, minus the delay
    n_many: Floats  # the n of `many`
    n_delayed: Floats  # the n of `excess`
    delay: Floats  # the d of `excess`, seconds
    server_delay: Floats  # the delay before each message of `server`, seconds
    turns: Floats  # if ports limit: messages of `many` that the busiest port sends after its first
    ports: float  # messages that one rank sends at once
    # If a resource beside ports limits bytes (None: no other does): the time by which the n large messages of `many`
    # take longer than one, in half round trips of one large message.
    excess_half_trips: Floats | None
    scatter: dict[str, float]  # per kind, the typical relative error of a median by its repetitions; 0: too few
    scatter_of_sizes: dict[str, Floats]  # per kind, the relative error of the median of each size

    @cached_property
    def flat(self) -> Floats:
        """All medians as one vector, from which every estimate is computed linearly."""
        return np.concatenate([self.one, self.many, self.excess, self.server])

    @cached_property
    def maps(self) -> dict[str, Floats]:
        """Per signal (see the module) the matrix that maps `flat` to one figure per size."""
        m = len(self.sizes)
        # Each of these matrices, (m, 4 m), selects the medians of one kind from `flat`.
        single, several, excess, server = (np.eye(m, 4 * m, kind * m) for kind in range(4))
        return {
            "half": single / 2,
            # with 0 turns, where no limit was seen, the signal is not used (`usable_errors`)
            "gap": (several - single) / self.turns.clip(1)[:, None],
            "o_s": (excess - single) / (self.n_delayed - 1)[:, None],
            "o_r": server,
        }

    def signal(self, name: str) -> Floats:
        """Return a signal at every size."""
        signal: Floats = row_dot(self.maps[name], self.flat)
        return signal

    @cached_property
    def errors(self) -> Floats:
        """The standard error of each entry of `flat`: one fraction of the measured time for all entries of a kind.

        A size whose own error is more than MAX_ERROR_RATIO times that has its own.
        """
        relative = {kind: max(self.scatter[kind], NEGLIGIBLE) for kind in KINDS}
        if len(self.sizes) >= MIN_SIZES_FOR_LINES or not all(self.scatter.values()):
            # The scatter of a signal about lines counts as the error of one kind: of the only one in it, or of the kind
            # that it has besides "one".
            seconds, factors = self._seconds_by_kind, {kind: 1.0 if kind == "one" else 0.0 for kind in KINDS}
            relative["one"] = max(relative["one"], self._error_about_lines("half", seconds, factors))
            for name, kind in (("gap", "many"), ("o_s", "delayed"), ("o_r", "server")):
                factors = {other: float(other == kind) for other in KINDS}
                relative[kind] = max(relative[kind], self._error_about_lines(name, seconds, factors))
        entries = zip(relative.items(), self._seconds_by_kind, strict=True)
        return np.concatenate(
            [
                np.where((size_error := self.scatter_of_sizes[kind]) > MAX_ERROR_RATIO * error, size_error, error)
                * seconds
                for (kind, error), seconds in entries
            ]
        )

    @cached_property
    def measured_seconds(self) -> Floats:
        """The measured time behind each entry of `flat`: the scale of its rounding errors."""
        return np.concatenate(self._seconds_by_kind)

    @property
    def _seconds_by_kind(self) -> list[Floats]:
        """The measured time behind each entry of `flat`; for the server per message."""
        delays = (self.n_delayed - 1) * self.delay
        return [self.one, self.many, self.excess + delays, self.server + self.server_delay]

    def _error_about_lines(self, name: str, seconds: Sequence[Floats], factors: dict[str, float]) -> float:
        """Estimate the relative error from the distances of a signal to lines through both neighbours.

        `seconds`: as measured, per kind and size. `factors`: per kind, its assumed error relative to them.
        """
        if len(self.sizes) < 3:
            return 0.0
        flat = np.concatenate([factor * values for factor, values in zip(factors.values(), seconds, strict=True)])
        y, sd = self.signal(name), np.sqrt(row_dot(self.maps[name] ** 2, flat**2))
        s = self.sizes
        # Distance of each size from the line through its neighbours, over the deviation of that distance.
        t = (s[1:-1] - s[:-2]) / (s[2:] - s[:-2])  # where the size lies between its neighbours, from 0 to 1
        deviation = y[1:-1] - (1 - t) * y[:-2] - t * y[2:]
        expected_deviation = np.sqrt(sd[1:-1] ** 2 + ((1 - t) * sd[:-2]) ** 2 + (t * sd[2:]) ** 2)
        return float(np.median(np.abs(deviation) / expected_deviation)) / NORMAL_MEDIAN

    @cached_property
    def error_of(self) -> dict[str, Floats]:
        """The standard error of every signal at every size."""
        return {name: np.sqrt(row_dot(matrix**2, self.errors**2)) for name, matrix in self.maps.items()}

    def usable_errors(self, name: str, error: Floats) -> Floats:
        """Return the errors of a signal, infinite where the signal must not be used in a line."""
        if name == "gap" and (self.excess_half_trips is not None or not self.turns.all()):
            return np.full_like(error, np.inf)
        if name == "o_r":
            return np.where(self.server > MIN_OVERHEAD, error, np.inf)
        return np.where(self.long_enough, error, np.inf) if name == "o_s" else error

    @cached_property
    def long_enough(self) -> NDArray[np.bool_]:
        """Where the delay covers the gap: o_s + d >= g + (s-1) G. Elsewhere PRTT(n,d,s) does not determine o_s.

        With several ports the sender may begin a message every gap / ports seconds: that is what the delay must cover.
        """
        # The gap between two messages of the sender is the gap of a turn divided by the ports. Without turns (no limit
        # of ports was seen) it is the mean over all messages, which is no greater: turns * ports <= n - 1.
        fraction = np.maximum(
            1 / (self.n_many - 1), np.where(self.turns > 0, 1 / (self.turns.clip(1) * self.ports), 0.0)
        )
        gap, o_s = (self.many - self.one) * fraction, self.signal("o_s")
        uncertainty = 3 * np.hypot(self.error_of["gap"], self.error_of["o_s"])  # three standard errors
        # Exact data may have delays equal to the gap: then rounding must not decide.
        rounding = NEGLIGIBLE * (self.delay + gap)
        is_covered = o_s + self.delay > gap + np.maximum(uncertainty, MIN_UNCERTAINTY * gap) + rounding
        enough: NDArray[np.bool_] = (self.delay >= gap - rounding) | is_covered
        return enough


def find_medians(rows: Sequence[RoundTrip], simultaneous: Sequence[SimultaneousFit] = ()) -> Medians:
    """Return the medians by kind and size. O(rows log rows).

    `simultaneous`: fits to the times of several messages that could begin at once. Only bursts are used: all messages
    of a burst are from one rank.

    Raises Invalid if a size lacks a kind, or has several numbers of messages of one kind.
    """
    rows_by_kind: dict[str, dict[int, list[RoundTrip]]] = {kind: {} for kind in KINDS}
    for row in rows:
        if row.kind not in SIMULTANEOUS:
            rows_by_kind[_kind_of(row)].setdefault(row.nbytes, []).append(row)
    for kind, name in KINDS.items():
        if not rows_by_kind[kind]:
            raise Invalid(f"no row of {name}: the fit needs all of {', '.join(KINDS.values())}")
    sizes = sorted(set().union(*rows_by_kind.values()))
    for size in sizes:
        for kind, name in KINDS.items():
            _check_rows(rows_by_kind[kind].get(size, []), f"{format_size(size)}: {name}")
    if not MIN_SIZES <= len(sizes) <= MAX_SIZES:
        raise Invalid(f"{len(sizes)} sizes: expected {MIN_SIZES} to {MAX_SIZES}; better 12 or more, 1 B to 1 MB")

    def medians_of(kind: str, quantity: str) -> Floats:
        return np.array([np.median([_figure_of(row, quantity) for row in rows_by_kind[kind][size]]) for size in sizes])

    # The smallest size of bursts gives the number of ports; the largest shows whether another resource limits bytes.
    n_many = medians_of("many", "n")
    bursts = [
        measurement for measurement in simultaneous if measurement.kind == BURST and measurement.state != UNDETERMINED
    ]  # ascending by size
    small, large = (bursts[0], bursts[-1]) if bursts else (None, None)
    excess_half_trips = None
    if small is not None and large is not None:
        excess_half_trips = _excess_half_trips(large, n_many)
        if _has_same_ports(small, large, n_many, excess_half_trips):
            excess_half_trips = None  # ports alone limit large messages, too
    return Medians(
        sizes=np.array(sizes, float),
        one=medians_of("one", "seconds"),
        many=medians_of("many", "seconds"),
        excess=medians_of("delayed", "excess"),
        server=medians_of("server", "each"),
        n_many=n_many,
        n_delayed=medians_of("delayed", "n"),
        delay=medians_of("delayed", "delay"),
        server_delay=medians_of("server", "delay"),
        turns=n_many - 1 if small is None else small.extra_turns(n_many),
        ports=float(small.count or 1) if small else 1.0,  # a count of None: no limit was seen, and `turns` are 0
        excess_half_trips=excess_half_trips,
        scatter={kind: _typical_error(rows_by_kind[kind].values(), kind) for kind in KINDS},
        scatter_of_sizes={
            kind: np.array([_median_error(rows_by_kind[kind][size], kind) for size in sizes]) for kind in KINDS
        },
    )


def _excess_half_trips(burst: SimultaneousFit, n: Floats) -> Floats:
    """Return the time by which n large messages take longer than one, in half round trips of one message.

    Both are measured with one message back, whose time cancels.
    """
    numbers = sorted(burst.measured)
    seconds = np.array([burst.measured[number] for number in numbers])
    # seconds[0]: one message there and back, two half trips
    excess: Floats = 2 * (np.interp(n, np.array(numbers), seconds) / seconds[0] - 1)
    return excess


def _has_same_ports(small: SimultaneousFit, large: SimultaneousFit, n: Floats, excess_half_trips: Floats) -> bool:
    """Return whether large messages are limited by the same ports as small ones, and by nothing else."""
    has_same_model = (small.count, small.form) == (large.count, large.form)
    return has_same_model and bool((excess_half_trips <= MAX_TURN_RATIO * large.extra_turns(n) + NEGLIGIBLE).all())


def _kind_of(row: RoundTrip) -> str:
    """Return which of the four kinds a row is."""
    if row.kind == SERVER:
        return "server"
    return "one" if row.n == 1 else "delayed" if row.delay else "many"


def _figure_of(row: RoundTrip, quantity: str) -> float:
    """Return a quantity of a row: its time less delays ("excess"), its time per message ("each"), or a field."""
    if quantity == "excess":
        return row.seconds - (row.n - 1) * row.delay
    return row.seconds / row.n - row.delay if quantity == "each" else float(getattr(row, quantity))


def _check_rows(rows: Sequence[RoundTrip], label: str) -> None:
    """Check that the rows of one kind and size exist, have one n and are longer than their delays."""
    if not rows:
        raise Invalid(f"{label} is missing; every size needs all of them")
    if len({row.n for row in rows}) > 1:
        raise Invalid(f"{label} has several n ({', '.join(sorted({str(row.n) for row in rows}))}); keep one of them")
    for row in rows:
        delays = (row.n - 1 if row.kind == RTT else row.n) * row.delay
        if row.seconds < delays * (1 - NEGLIGIBLE):
            where = f"line {row.line}: " if row.line else ""
            raise Invalid(f"{where}{label} took {row.seconds:g} s, less than its delays alone ({delays:g} s)")


def _typical_error(rows_by_size: Iterable[Sequence[RoundTrip]], kind: str) -> float:
    """Return the relative error of a median that is typical of a kind."""
    errors = [_median_error(rows, kind) for rows in rows_by_size if len(rows) >= MIN_REPETITIONS]
    return float(np.median(errors)) if errors else 0.0


def _median_error(rows: Sequence[RoundTrip], kind: str) -> float:
    """Return the relative error of one median; 0 if there are too few repetitions.

    For normal errors: 1.25 standard deviations over the root of the repetitions, but no less than NEGLIGIBLE, as
    equal repetitions may come from a coarse clock.
    The last factor corrects for the small sample from which the deviation is estimated; it is near n / (n - 0.8), which
    Croux and Rousseeuw (1992) use.
    """
    if len(rows) < MIN_REPETITIONS:
        return 0.0
    figure = {"delayed": "excess", "server": "each"}.get(kind, "seconds")
    values = np.array([_figure_of(row, figure) for row in rows])
    seconds = np.median([row.seconds for row in rows]) / (rows[0].n if kind == "server" else 1)
    # Median absolute deviation, as a normal deviation; 1.2533 = sqrt(pi / 2) is the median's error over the mean's.
    deviation = np.median(np.abs(values - np.median(values))) / NORMAL_MEDIAN
    error = 1.2533 * deviation / seconds / np.sqrt(len(rows)) * (1 + 0.8 / (len(rows) - 1))
    return max(float(error), NEGLIGIBLE)
