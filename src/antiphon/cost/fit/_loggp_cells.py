"""Reduce repeated round trips to one median per kind and size, with its standard error.

PRTT(n, d, s) is the time of a parametrized round trip: n messages of s bytes one way, d seconds between two of them,
then one back. Four kinds are measured at every size: one message, many without delay, many with delay, and the
receiver's time ("server"). From their medians follow four *signals*, each linear in the medians, so that errors can be
carried through:

    half   PRTT(1,0,s) / 2
    gap    [PRTT(n,0,s) - PRTT(1,0,s)] / (n - 1)         = g + (s-1) G
    o_s    [PRTT(n,d,s) - PRTT(1,0,s)] / (n - 1) - d     = o_s, if the delay covers the gap
    o_r    server seconds per message, less the delay

An error comes from the scatter of repetitions, or from the scatter about lines through neighbouring sizes if that is
greater. Example: medians of 10 us for one message and 40 us for 16: gap = 2 us.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from antiphon.core.portable import dot
from antiphon.cost.fit.linear import NEGLIGIBLE, OPEN, Floats
from antiphon.cost.fit.loggp_radix import AtOnce
from antiphon.cost.fit.loggp_tables import AT_ONCE, BURST, RTT, SERVER, RoundTrip
from antiphon.errors import Invalid
from antiphon.units import format_size

LEAST_SIZES, MOST_SIZES = 3, 300  # message sizes that a fit needs, and accepts
MANY = 8  # least number of sizes for estimating errors from the scatter about lines through neighbours
FEW = 3  # least number of repetitions for estimating errors from their scatter
# Seconds: no processor handles a message in less. Not a round number, so that exact data differ from it.
LEAST_TIME = 0.97e-10
FAR = 3.0  # a size whose own error exceeds the common one by this factor is weighted by its own error
ALIKE = 1.1  # large messages that take at most this factor of what their turns take are limited by ports alone
NORMAL = 0.6745  # the median of |x| for normal x of deviation 1
# Kind of measurement -> its name in messages
KINDS = {
    "one": "PRTT(1,0,s) (rtt of one message)",
    "many": "PRTT(n,0,s) (rtt of several without delay)",
    "delayed": "PRTT(n,d,s) (rtt of several with delay)",
    "server": "o_r (server)",
}


@dataclass(frozen=True, eq=False)
class Cells:
    """Medians by size, ascending. `excess`: PRTT(n,d,s) minus its delays.

    one = PRTT(1,0,s), many = PRTT(n,0,s), server = seconds per message without delay. `n_many`, `n_delayed`: the n of
    these.
    """

    sizes: Floats
    one: Floats
    many: Floats
    excess: Floats
    server: Floats
    n_many: Floats
    n_delayed: Floats
    delay: Floats
    server_delay: Floats
    turns: Floats  # per size, the additional turns of `many` over one message, if ports limit
    ports: float  # messages that one rank sends at once
    shared: Floats | None  # if another resource limits bytes: additional half round trips of `many` over one message
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
        # Each matrix picks a group of medians in `flat`: of one message, of many, of many with delay, of the server.
        single, several, excess, server = (np.eye(m, 4 * m, group * m) for group in range(4))
        return {
            "half": single / 2,
            "gap": (several - single) / self.turns.clip(1)[:, None],
            "o_s": (excess - single) / (self.n_delayed - 1)[:, None],
            "o_r": server,
        }

    def signal(self, name: str) -> Floats:
        """Return a signal at every size."""
        signal: Floats = dot(self.maps[name], self.flat)
        return signal

    @cached_property
    def errors(self) -> Floats:
        """The standard error of each entry of `flat`: one fraction of the measured time for all entries of a kind."""
        relative = {kind: max(self.scatter[kind], NEGLIGIBLE) for kind in KINDS}
        if len(self.sizes) >= MANY or not all(self.scatter.values()):
            shown, bare = self._by_kind, {kind: 1.0 if kind == "one" else 0.0 for kind in KINDS}
            relative["one"] = max(relative["one"], self._about_lines("half", shown, bare))
            for name, kind in (("gap", "many"), ("o_s", "delayed"), ("o_r", "server")):
                bare = {other: float(other == kind) for other in KINDS}
                relative[kind] = max(relative[kind], self._about_lines(name, shown, bare))
        entries = zip(relative.items(), self._by_kind, strict=True)
        return np.concatenate(
            [
                np.where((own := self.scatter_of_sizes[kind]) > FAR * error, own, error) * shown
                for (kind, error), shown in entries
            ]
        )

    @cached_property
    def shown(self) -> Floats:
        """The measured time behind each entry of `flat`: the scale of its rounding errors."""
        return np.concatenate(self._by_kind)

    @property
    def _by_kind(self) -> list[Floats]:
        """The measured time behind each entry of `flat`; for the server per message."""
        delays = (self.n_delayed - 1) * self.delay
        return [self.one, self.many, self.excess + delays, self.server + self.server_delay]

    def _about_lines(self, name: str, shown: Sequence[Floats], factors: dict[str, float]) -> float:
        """Estimate the relative error from the distances of a signal to lines through both neighbours."""
        if len(self.sizes) < 3:
            return 0.0
        flat = np.concatenate([factor * values for factor, values in zip(factors.values(), shown, strict=True)])
        y, sd = self.signal(name), np.sqrt(dot(self.maps[name] ** 2, flat**2))
        s = self.sizes
        # Distance of each size from the line through its neighbours, over the deviation of that distance.
        t = (s[1:-1] - s[:-2]) / (s[2:] - s[:-2])
        off = y[1:-1] - (1 - t) * y[:-2] - t * y[2:]
        unit = np.sqrt(sd[1:-1] ** 2 + ((1 - t) * sd[:-2]) ** 2 + (t * sd[2:]) ** 2)
        return float(np.median(np.abs(off) / unit)) / NORMAL

    @cached_property
    def error_of(self) -> dict[str, Floats]:
        """The standard error of every signal at every size."""
        return {name: np.sqrt(dot(matrix**2, self.errors**2)) for name, matrix in self.maps.items()}

    def usable_errors(self, name: str, error: Floats) -> Floats:
        """Return the errors of a signal, infinite where the signal must not be used in a line."""
        if name == "gap" and (self.shared is not None or not self.turns.all()):
            return np.full_like(error, np.inf)
        if name == "o_r":
            return np.where(self.server > LEAST_TIME, error, np.inf)
        return np.where(self.long_enough, error, np.inf) if name == "o_s" else error

    @cached_property
    def long_enough(self) -> NDArray[np.bool_]:
        """Where the delay covers the gap: o_s + d >= g + (s-1) G. Elsewhere PRTT(n,d,s) does not determine o_s.

        With several ports each has the gap of proportionally fewer messages.
        """
        each = np.maximum(1 / (self.n_many - 1), np.where(self.turns > 0, 1 / (self.turns.clip(1) * self.ports), 0.0))
        gap, o_s = (self.many - self.one) * each, self.signal("o_s")
        doubt = 3 * np.hypot(self.error_of["gap"], self.error_of["o_s"])
        # Exact data may have delays equal to the gap: then rounding must not decide.
        rounding = NEGLIGIBLE * (self.delay + gap)
        sure = o_s + self.delay > gap + np.maximum(doubt, 0.01 * gap) + rounding
        enough: NDArray[np.bool_] = (self.delay >= gap - rounding) | sure
        return enough


def cells_of(rows: Sequence[RoundTrip], at_once: Sequence[AtOnce] = ()) -> Cells:
    """Return the medians by kind and size. O(rows log rows).

    Raises Invalid if a size lacks a kind, or has several numbers of messages of one kind.
    """
    rows_by_kind: dict[str, dict[int, list[RoundTrip]]] = {kind: {} for kind in KINDS}
    for row in rows:
        if row.kind not in AT_ONCE:
            rows_by_kind[_kind_of(row)].setdefault(row.nbytes, []).append(row)
    for kind, name in KINDS.items():
        if not rows_by_kind[kind]:
            raise Invalid(f"no row of {name}: the fit needs all of {', '.join(KINDS.values())}")
    sizes = sorted(set().union(*rows_by_kind.values()))
    for size in sizes:
        for kind, name in KINDS.items():
            _check_rows(rows_by_kind[kind].get(size, []), f"{format_size(size)}: {name}")
    if not LEAST_SIZES <= len(sizes) <= MOST_SIZES:
        raise Invalid(f"{len(sizes)} sizes: expected {LEAST_SIZES} to {MOST_SIZES}; better 12 or more, 1 B to 1 MB")

    def medians(kind: str, quantity: str) -> Floats:
        return np.array([np.median([_figure_of(row, quantity) for row in rows_by_kind[kind][size]]) for size in sizes])

    # Bursts of the smallest size give the ports, those of the largest size another limit of bytes, if any.
    n_many = medians("many", "n")
    bursts = [
        measurement for measurement in at_once if measurement.kind == BURST and measurement.state != OPEN
    ]  # by size
    small, large = (bursts[0], bursts[-1]) if bursts else (None, None)
    shared = None if large is None else _over_one(large, n_many)
    if small is None or large is None or shared is None or _same_ports(small, large, n_many, shared):
        shared = None
    return Cells(
        sizes=np.array(sizes, float),
        one=medians("one", "seconds"),
        many=medians("many", "seconds"),
        excess=medians("delayed", "excess"),
        server=medians("server", "each"),
        n_many=n_many,
        n_delayed=medians("delayed", "n"),
        delay=medians("delayed", "delay"),
        server_delay=medians("server", "delay"),
        turns=n_many - 1 if small is None else small.extra_turns(n_many),
        ports=float(small.count or 1) if small else 1.0,
        shared=shared,
        scatter={kind: _typical_error(rows_by_kind[kind].values(), kind) for kind in KINDS},
        scatter_of_sizes={
            kind: np.array([_median_error(rows_by_kind[kind][size], kind) for size in sizes]) for kind in KINDS
        },
    )


def _over_one(burst: AtOnce, n: Floats) -> Floats:
    """Return the number of half round trips by which n large messages exceed one; one message comes back in each."""
    numbers = sorted(burst.measured)
    seconds = np.array([burst.measured[number] for number in numbers])
    excess: Floats = 2 * (np.interp(n, np.array(numbers), seconds) / seconds[0] - 1)
    return excess


def _same_ports(small: AtOnce, large: AtOnce, n: Floats, over: Floats) -> bool:
    """Return whether large messages are limited by the same ports as small ones, and by nothing else."""
    same = (small.count, small.form) == (large.count, large.form)
    return same and bool((over <= ALIKE * large.extra_turns(n) + NEGLIGIBLE).all())


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


def _typical_error(cells: Iterable[Sequence[RoundTrip]], kind: str) -> float:
    """Return the relative error of a median that is typical of a kind."""
    errors = [_median_error(rows, kind) for rows in cells if len(rows) >= FEW]
    return float(np.median(errors)) if errors else 0.0


def _median_error(rows: Sequence[RoundTrip], kind: str) -> float:
    """Return the relative error of one median; 0 if there are too few repetitions.

    1.25 standard deviations over the root of the repetitions, but no less than a clock resolves.
    """
    if len(rows) < FEW:
        return 0.0
    figure = {"delayed": "excess", "server": "each"}.get(kind, "seconds")
    values = np.array([_figure_of(row, figure) for row in rows])
    shown = np.median([row.seconds for row in rows]) / (rows[0].n if kind == "server" else 1)
    # Median absolute deviation, as a normal deviation; 1.2533 = sqrt(pi / 2) is the median's error over the mean's.
    deviation = np.median(np.abs(values - np.median(values))) / NORMAL
    error = 1.2533 * deviation / shown / np.sqrt(len(rows)) * (1 + 0.8 / (len(rows) - 1))
    return max(float(error), NEGLIGIBLE)
