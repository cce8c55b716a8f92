"""Repeated round trips as one figure per size, and how sure each is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from antiphon.cost.fit.linear import Floats
from antiphon.cost.fit.loggp_tables import RTT, SERVER, RoundTrip
from antiphon.errors import Invalid
from antiphon.units import format_size

LEAST_SIZES, MOST_SIZES = 3, 300
LEAST_ERROR = 1e-9  # of a median, relative: below this only rounding is left
MANY = 8  # sizes from which on the scatter about lines through neighbours says something
FEW = 3  # repetitions from which on their scatter does
NORMAL = 0.6745  # the median of |x| for normal x of deviation 1
KINDS = {
    "one": "PRTT(1,0,s) (rtt of one message)",
    "many": "PRTT(n,0,s) (rtt of several without delay)",
    "delayed": "PRTT(n,d,s) (rtt of several with delay)",
    "server": "o_r (server)",
}


@dataclass(frozen=True, eq=False)
class Cells:
    """Medians by size, ascending. `excess`: of PRTT(n,d,s) what is left without the delays.

    In the terms of the notes: one = PRTT(1,0,s), many = PRTT(n,0,s), server = seconds per message without delay.
    """

    sizes: Floats
    one: Floats
    many: Floats
    excess: Floats
    server: Floats
    n_many: Floats
    n_delayed: Floats
    n_server: Floats
    delay: Floats
    server_delay: Floats
    scatter: dict[str, float]  # relative, of a median, by its repetitions; 0: too few

    @cached_property
    def flat(self) -> Floats:
        """What every estimate is a linear function of."""
        return np.concatenate([self.one, self.many, self.excess, self.server])

    @cached_property
    def maps(self) -> dict[str, Floats]:
        """By name the matrix that makes a figure for every size of `flat`.

        half: PRTT(1,0,s) / 2. gap: [PRTT(n,0,s) - PRTT(1,0,s)] / (n-1) = g + (s-1) G. o_s: the same of PRTT(n,d,s),
        less d. o_r.
        """
        m = len(self.sizes)
        eye = [np.eye(m, 4 * m, k * m) for k in range(4)]
        return {
            "half": eye[0] / 2,
            "gap": (eye[1] - eye[0]) / (self.n_many - 1)[:, None],
            "o_s": (eye[2] - eye[0]) / (self.n_delayed - 1)[:, None],
            "o_r": eye[3],
        }

    def signal(self, name: str) -> Floats:
        made: Floats = self.maps[name] @ self.flat
        return made

    @cached_property
    def errors(self) -> Floats:
        """The standard error of each entry of `flat`: a part of what the clock showed, the same for a whole kind."""
        parts = {kind: max(self.scatter[kind], LEAST_ERROR) for kind in KINDS}
        if len(self.sizes) >= MANY or not all(self.scatter.values()):
            shown, bare = self._shown(), {kind: 1.0 if kind == "one" else 0.0 for kind in KINDS}
            parts["one"] = max(parts["one"], self._about_lines("half", shown, bare))
            for name, kind in (("gap", "many"), ("o_s", "delayed"), ("o_r", "server")):
                bare = {other: float(other == kind) for other in KINDS}
                parts[kind] = max(parts[kind], self._about_lines(name, shown, bare))
        return np.concatenate([part * shown for part, shown in zip(parts.values(), self._shown(), strict=True)])

    def _shown(self) -> list[Floats]:
        """What the clock showed for each entry of `flat`; for the server per message."""
        delays = (self.n_delayed - 1) * self.delay
        return [self.one, self.many, self.excess + delays, self.server + self.server_delay]

    def _about_lines(self, name: str, shown: Sequence[Floats], parts: dict[str, float]) -> float:
        """The relative error that the distances from lines through the neighbours on both sides speak of."""
        if len(self.sizes) < 3:
            return 0.0
        flat = np.concatenate([part * one for part, one in zip(parts.values(), shown, strict=True)])
        y, sd = self.signal(name), np.sqrt(self.maps[name] ** 2 @ flat**2)
        s = self.sizes
        t = (s[1:-1] - s[:-2]) / (s[2:] - s[:-2])
        off = y[1:-1] - (1 - t) * y[:-2] - t * y[2:]
        unit = np.sqrt(sd[1:-1] ** 2 + ((1 - t) * sd[:-2]) ** 2 + (t * sd[2:]) ** 2)
        return float(np.median(np.abs(off) / unit)) / NORMAL

    @cached_property
    def error_of(self) -> dict[str, Floats]:
        """The standard error of every signal at every size."""
        return {name: np.sqrt(matrix**2 @ self.errors**2) for name, matrix in self.maps.items()}

    @cached_property
    def long_enough(self) -> NDArray[np.bool_]:
        """Where the delay covers the gap: o_s + d >= g + (s-1) G, or PRTT(n,d,s) says nothing of o_s."""
        gap, o_s = self.signal("gap"), self.signal("o_s")
        doubt = 3 * np.hypot(self.error_of["gap"], self.error_of["o_s"])
        enough: NDArray[np.bool_] = (self.delay >= gap) | (o_s + self.delay > gap + np.maximum(doubt, 0.01 * gap))
        return enough


def cells_of(rows: Sequence[RoundTrip]) -> Cells:
    """Medians by kind and size. Invalid where a size lacks a kind, or has two of one. O(rows log rows)."""
    found: dict[str, dict[int, list[RoundTrip]]] = {kind: {} for kind in KINDS}
    for row in rows:
        found[_kind(row)].setdefault(row.nbytes, []).append(row)
    for kind, name in KINDS.items():
        if not found[kind]:
            raise Invalid(f"no row of {name}: the fit needs all of {', '.join(KINDS.values())}")
    sizes = sorted(set().union(*found.values()))
    for size in sizes:
        for kind, name in KINDS.items():
            _check(found[kind].get(size, []), f"{format_size(size)}: {name}")
    if not LEAST_SIZES <= len(sizes) <= MOST_SIZES:
        raise Invalid(f"{len(sizes)} sizes: expected {LEAST_SIZES} to {MOST_SIZES}; better 12 or more, 1 B to 1 MB")

    def medians(kind: str, what: str) -> Floats:
        return np.array([np.median([_figure(row, what) for row in found[kind][size]]) for size in sizes])

    return Cells(
        np.array(sizes, float),
        medians("one", "seconds"),
        medians("many", "seconds"),
        medians("delayed", "excess"),
        medians("server", "each"),
        medians("many", "n"),
        medians("delayed", "n"),
        medians("server", "n"),
        medians("delayed", "delay"),
        medians("server", "delay"),
        {kind: _scatter(found[kind].values(), kind) for kind in KINDS},
    )


def _kind(row: RoundTrip) -> str:
    if row.kind == SERVER:
        return "server"
    return "one" if row.n == 1 else "delayed" if row.delay else "many"


def _figure(row: RoundTrip, what: str) -> float:
    if what == "excess":
        return row.seconds - (row.n - 1) * row.delay
    return row.seconds / row.n - row.delay if what == "each" else float(getattr(row, what))


def _check(rows: Sequence[RoundTrip], what: str) -> None:
    if not rows:
        raise Invalid(f"{what} is missing; every size needs all of them")
    if len({row.n for row in rows}) > 1:
        raise Invalid(f"{what} has several n ({', '.join(sorted({str(row.n) for row in rows}))}); keep one of them")
    for row in rows:
        least = (row.n - 1 if row.kind == RTT else row.n) * row.delay
        if row.seconds < least:
            where = f"line {row.line}: " if row.line else ""
            raise Invalid(f"{where}{what} took {row.seconds:g} s, less than its delays alone ({least:g} s)")


def _scatter(cells: Iterable[Sequence[RoundTrip]], kind: str) -> float:
    """The relative error of a median, typical of a kind: 1.25 deviations over the root of the repetitions."""
    figure = {"delayed": "excess", "server": "each"}.get(kind, "seconds")
    told = []
    for rows in cells:
        if len(rows) >= FEW:
            values = np.array([_figure(row, figure) for row in rows])
            shown = np.median([row.seconds for row in rows]) / (rows[0].n if kind == "server" else 1)
            deviation = np.median(np.abs(values - np.median(values))) / NORMAL
            told.append(1.2533 * deviation / shown / np.sqrt(len(rows)) * (1 + 0.8 / (len(rows) - 1)))
    return float(np.median(told)) if told else 0.0
