"""Fit the number of messages that proceed at once (the radices of LogGP) to the times of 1, 2, 3, ... messages.

The *radix* of a rank is the number of its ports, each of which sends one message at a time. R ports limit n messages in
one of two forms:

    in turn   a port is busy until its message has left, so n messages take ceil(n / R) turns
    shared    packets take turns, so n messages take max(1, n / R) times as long as one

The time is that of one turn, plus `turn` seconds per further turn, plus a small cost per message within a turn (the
processor's work while ports are free). Every R and form is fitted by non-negative least squares, and the Bayesian
information criterion chooses; R values that fit nearly as well widen the range `low` to `high`. loggp.py calls
`fit_simultaneous` and `fit_radices`.

Example: 1 to 8 messages take 10, 10, 20, 20, 30, 30, 40, 40 us: R = 2 in turn, with 10 us per turn.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from antiphon.core.portable import row_dot
from antiphon.cost.fit._loggp_lines import MAX_COST_INCREASE, first_least
from antiphon.cost.fit.least_squares import solve_nonnegative
from antiphon.cost.fit.linear import DETERMINED, NEGLIGIBLE, UNDETERMINED, UNSEEN, WEAK, Floats, round_portably
from antiphon.cost.fit.loggp_tables import BURST, FAN_IN, FAN_OUT, PAIRS, SIMULTANEOUS, RoundTrip
from antiphon.units import format_size

IN_TURN, SHARED = "in turn", "shared"  # ports serve messages one after another, or share them evenly
MIN_POINTS = 3  # least number of different message counts for a fit
RESOLUTION = 1e-3  # floor of the mean relative error, so that the logarithm of exact data is finite
MIN_TURN = 0.3  # for large messages: a further turn must take at least this fraction of one message's time
# the processor's work is at most this fraction of a turn: for large messages the work for all messages together, for
# small ones the work for the messages of the turn
MAX_PROCESSOR_SHARE_LARGE, MAX_PROCESSOR_SHARE_SMALL = 0.5, 0.9


@dataclass(frozen=True)
class SimultaneousFit:
    """The number of equal messages that proceed at the same time, fitted to times of 1, 2, 3, ... messages."""

    kind: str  # burst, fan-out, fan-in or pairs: which ranks send to which (loggp_tables.py)
    nbytes: int
    state: str  # determined; weak (several counts fit as well); unseen (no limit up to max_messages); undetermined
    count: int | None  # messages that proceed at the same time
    low: int | None  # 95 % confidence interval of `count`: from here
    high: int | None  # ... to here; None: no upper limit
    max_messages: int  # the greatest number measured
    measured: Mapping[int, float]  # number of messages -> seconds
    fitted: Mapping[int, float]  # the same according to the fit
    form: str = ""  # IN_TURN or SHARED
    turn: float = 0.0  # seconds per further turn

    def extra_turns(self, n: Floats) -> Floats:
        """Return the additional turns of n messages over one message."""
        if self.count is None:
            return np.zeros_like(n)
        extra: Floats = _count_extra_turns(n, self.count, self.form)
        return extra

    @property
    def usable(self) -> bool:
        return self.state == DETERMINED

    def as_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind, "nbytes": self.nbytes, "state": self.state, "count": self.count, "low": self.low,
            "high": self.high, "most": self.max_messages, "form": self.form or None, "turn": round_portably(self.turn),
        }  # fmt: skip


def fit_simultaneous(rows: Sequence[RoundTrip]) -> list[SimultaneousFit]:
    """Fit every kind and size; with fewer than MIN_POINTS different message counts the fit is "undetermined".

    O(message counts) small least-squares problems each.
    """
    measured: dict[tuple[str, int], dict[int, list[float]]] = {}
    for row in rows:
        if row.kind in SIMULTANEOUS:
            measured.setdefault((row.kind, row.nbytes), {}).setdefault(row.n, []).append(row.seconds)
    fits: dict[tuple[str, int], SimultaneousFit] = {}
    ports: dict[str, int] = {}  # kind -> ports of large messages if they go in turn; small ones have as many
    # Large sizes first: their number of ports is the expected one of the small sizes of that kind. So the first size of
    # a kind, which is not in `ports` yet, is its largest.
    for (kind, size), points in sorted(measured.items(), reverse=True):
        fit = _fit_count(kind, size, points, kind not in ports, ports.get(kind, 0))
        ports.setdefault(kind, (fit.count or 0) if fit.usable and fit.form == IN_TURN else 0)
        fits[kind, size] = fit
    return [fits[key] for key in sorted(fits)]


def _fit_count(
    kind: str, nbytes: int, points: Mapping[int, Sequence[float]], is_large: bool, expected: int
) -> SimultaneousFit:
    """Fit one kind and size.

    `is_large`: the largest size of this kind, at which a message's time is taken to be mostly its bytes, so that each
    further turn takes about as long as the first. `expected`: the count preferred if it fits as well as any; 0: none.
    """
    n = np.array(sorted(points), float)
    seconds = np.array([float(np.median(points[int(number)])) for number in n])
    max_n = int(n[-1])
    measured = dict(zip(n.astype(int).tolist(), seconds.tolist(), strict=True))
    if len(n) < MIN_POINTS:
        return SimultaneousFit(
            kind,
            nbytes,
            UNDETERMINED,
            count=None,
            low=1,
            high=None,
            max_messages=max_n,
            measured=measured,
            fitted=measured,
        )
    candidates = list(_fit_candidates(n, seconds, is_large))
    # All candidates whose score is within MAX_COST_INCREASE of the best remain possible; the expected count wins ties.
    best = candidates[first_least(np.array([candidate.score for candidate in candidates]))]
    plausible = [candidate for candidate in candidates if candidate.score <= best.score + MAX_COST_INCREASE]
    with_expected_count = [
        candidate for candidate in plausible if candidate.count == expected and candidate.form == IN_TURN
    ]
    if with_expected_count:
        plausible, best = with_expected_count, with_expected_count[0]
    predicted = dict(zip(n.astype(int).tolist(), best.fitted.tolist(), strict=True))
    if not best.count:
        return SimultaneousFit(
            kind,
            nbytes,
            UNSEEN,
            count=None,
            low=max_n,
            high=None,
            max_messages=max_n,
            measured=measured,
            fitted=predicted,
        )
    # No limit among the plausible ones means that any number up to the greatest measured could be the count.
    counts = [candidate.count or max_n for candidate in plausible]
    state = DETERMINED if len(set(counts)) == 1 else WEAK
    return SimultaneousFit(
        kind, nbytes, state, best.count, low=min(counts), high=max(counts), max_messages=max_n, measured=measured,
        fitted=predicted, form=best.form, turn=best.turn,
    )  # fmt: skip


@dataclass(frozen=True)
class _Candidate:
    """One hypothesis on the number of ports, fitted."""

    count: int  # ports; 0: no limit
    form: str  # IN_TURN or SHARED
    score: float  # Bayesian information criterion; lower is better
    turn: float  # seconds per further turn
    fitted: Floats  # seconds per number of messages


def _fit_candidates(n: Floats, seconds: Floats, is_large: bool) -> Iterator[_Candidate]:
    """Yield non-negative least-squares fits of relative errors for each count and form, with their information
    criterion."""
    max_n = int(n[-1])
    one_message = float(seconds[0])
    further_messages = n - n[0]
    if is_large:
        # no limit: constant time, or a linear slowdown that stays below MAX_PROCESSOR_SHARE_LARGE of one message's time
        slowdown = further_messages * MAX_PROCESSOR_SHARE_LARGE / max_n
        yield _solve_candidate(count=0, form="", columns=[np.ones_like(n), 1 + slowdown], n=n, seconds=seconds)
    else:
        yield _solve_candidate(count=0, form="", columns=[np.ones_like(n)], n=n, seconds=seconds)
    for count in range(1, max_n):
        for form in (IN_TURN, SHARED) if count > 1 else (IN_TURN,):
            # `within`: position of the last message inside its turn. The third column's coefficient p is the
            # processor's time per message. That column also counts p * least_turn seconds per extra turn, and the
            # second column the rest of a turn's time. As no coefficient is negative, a turn lasts at least
            # p * least_turn: this bounds the processor's share of it.
            extra_turns = _count_extra_turns(n, count, form)
            within = (n - 1) % count if form == IN_TURN else np.minimum(n, count) - 1
            least_turn = max_n / MAX_PROCESSOR_SHARE_LARGE if is_large else count / MAX_PROCESSOR_SHARE_SMALL
            columns = [np.ones_like(n), extra_turns]
            if count > 1:
                columns.append(within + least_turn * extra_turns)
            candidate = _solve_candidate(count, form, columns, n, seconds)
            if not is_large or candidate.turn >= (MIN_TURN - NEGLIGIBLE) * one_message:
                yield candidate


def _solve_candidate(count: int, form: str, columns: Sequence[Floats], n: Floats, seconds: Floats) -> _Candidate:
    """Fit one hypothesis by nonnegative least squares of relative errors, and rate it by BIC (lower is better).

    Example: `columns` [1, extra turns] for `count` ports in turn fits seconds = base + turn * extra turns.
    """
    design = np.stack(columns, 1)
    # Relative errors: divide rows by the measured time and fit 1. Columns are scaled to norm 1 for the solver.
    relative = design / seconds[:, None]
    norms = np.sqrt(row_dot(relative.T, relative.T))
    scaled_coefficients = solve_nonnegative(relative / np.where(norms > 0, norms, 1.0), np.ones(len(n)))
    fitted: Floats = row_dot(design, scaled_coefficients / np.where(norms > 0, norms, 1.0))
    # BIC = n ln(mean square) + unknowns ln(n); RESOLUTION^2 keeps the logarithm finite for exact data. The unknowns are
    # the coefficients above 0, and the number of ports if there is a limit.
    squares = float(((fitted / seconds - 1) ** 2).mean()) + RESOLUTION**2
    unknowns = int(np.count_nonzero(scaled_coefficients > NEGLIGIBLE)) + (count > 0)
    turn = float(fitted[-1] - fitted[0]) / float(_count_extra_turns(n, count, form)[-1]) if count else 0.0
    return _Candidate(count, form, len(n) * math.log(squares) + unknowns * math.log(len(n)), turn, fitted)


def _count_extra_turns(n: Floats, count: int, form: str) -> Floats:
    """Return the turns of n messages at `count` ports beyond the first turn."""
    extra: Floats = np.ceil(n / count) - 1 if form == IN_TURN else np.maximum(n / count, 1) - 1
    return extra


@dataclass(frozen=True)
class Radix:
    """The number of messages that proceed at the same time at a rank or between hosts, if known."""

    state: str  # determined, weak, unseen or undetermined, as of SimultaneousFit
    count: int | None = None  # None if no limit was seen, or if the data do not determine it
    up_to: int = 0  # the greatest number measured

    def as_json(self) -> dict[str, Any]:
        return {"state": self.state, "count": self.count, "up_to": self.up_to}


NOT_MEASURED = Radix(UNDETERMINED)


def fit_radices(measurements: Sequence[SimultaneousFit]) -> dict[str, Radix]:
    """Return the radices: `send`, `receive`, `device`, `node`.

    `send` and `receive`: messages that a rank sends, and receives, at once; `device`: the smaller of both; `node`: what
    a host ("node" in results and files) sends to another at once. If the ranks are on two hosts (`pairs`), the host may
    limit what one rank sends and receives; then bursts of small messages from rank to rank show the rank's ports.
    """
    # measurements are sorted by size: of each kind the last, the largest, stays; the first burst is the smallest
    largest = {entry.kind: entry for entry in measurements if entry.kind != BURST}
    bursts = [entry for entry in measurements if entry.kind == BURST]
    node = _radix_of(largest.get(PAIRS))
    ports = _radix_of(bursts[0]) if bursts else NOT_MEASURED
    send, receive = _radix_of(largest.get(FAN_OUT)), _radix_of(largest.get(FAN_IN))
    # Two nodes: the node may limit before the rank does. One node: bursts count where fan-out and fan-in are
    # undetermined.
    if node.state != UNDETERMINED:
        send, receive = (_rank_radix(radix, node, ports) for radix in (send, receive))
    elif send.state == UNDETERMINED and receive.state == UNDETERMINED:
        send = receive = ports
    determined = [radix for radix in (send, receive) if radix.state == DETERMINED and radix.count is not None]
    device = send if send.state == receive.state else NOT_MEASURED
    if determined:
        device = min(determined, key=lambda radix: radix.count or 0)
    return {"send": send, "receive": receive, "device": device, "node": node}


def _rank_radix(radix: Radix, node: Radix, ports: Radix) -> Radix:
    """Return the rank's own radix if its node does not limit it first; otherwise the one of ports."""
    if radix.state == DETERMINED and (node.state == UNSEEN or (radix.count or 0) < (node.count or 0)):
        return radix
    return ports


def _radix_of(measurement: SimultaneousFit | None) -> Radix:
    return (
        NOT_MEASURED if measurement is None else Radix(measurement.state, measurement.count, measurement.max_messages)
    )


def radix_remarks(measurements: Sequence[SimultaneousFit]) -> Iterator[str]:
    """Yield notes about measurements that leave a radix open or ambiguous."""
    for fit in measurements:
        label = f"{fit.kind} at {format_size(fit.nbytes)}"
        if fit.state == UNDETERMINED:
            yield f"{label}: {fit.max_messages} at most do not show how many go at once; measure {MIN_POINTS} or more"
        if fit.state == UNSEEN:
            yield f"{label}: no limit up to {fit.max_messages} at once"
        if fit.state == WEAK:
            yield (
                f"{label}: {fit.low} to {fit.high} at once, not determined well enough: measure more ranks, or "
                "more often"
            )
    counts = fit_radices(measurements)
    send, receive = counts["send"], counts["receive"]
    if send.state == receive.state == DETERMINED and send.count != receive.count:
        yield (
            f"a rank sends {send.count} at once and takes in {receive.count}: a profile has one number for both, the "
            "less of them"
        )
