"""How many messages go at once, from what 1, 2, 3, ... of them took: the radices of LogGP.

In turn: a port is busy until its message has left, so n messages by R ports take ceil(n / R) turns. Shared: packets
take turns, so n messages take max(1, n / R) times what one takes. A turn takes D, and a message more than the last,
while there are free ports, c: what the processor needs for one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from antiphon.core.portable import dot
from antiphon.cost.fit._loggp_lines import PLAUSIBLE, first_least
from antiphon.cost.fit.least_squares import solve_nonnegative
from antiphon.cost.fit.linear import DETERMINED, NEGLIGIBLE, OPEN, UNSEEN, WEAK, Floats, rounded
from antiphon.cost.fit.loggp_tables import AT_ONCE, BURST, FAN_IN, FAN_OUT, PAIRS, RoundTrip
from antiphon.units import format_size

IN_TURN, SHARED = "in turn", "shared"
LEAST_POINTS = 3
EXACT = 1e-3  # relative: errors below this are not believed
CLEAR = 0.3  # of what one message takes: a turn that takes less is no limit of ports, where bytes are what takes time
SLOW = 0.5  # of a turn: more than this a processor must not need for all messages, where their bytes take time
BUSY = 0.9  # of a turn: the same for the messages of a turn, where gaps do


@dataclass(frozen=True)
class AtOnce:
    """Of one kind and size: `count` messages go at once, `low` to `high` in 95 of 100 cases.

    `state`: determined; weak (several counts fit as well); unseen (no limit up to `most`); undetermined. `form`: in
    turn or shared. `turn`: seconds that every further turn takes. `measured`, `fitted`: by number of messages, seconds.
    """

    kind: str
    nbytes: int
    state: str
    count: int | None
    low: int | None
    high: int | None
    most: int
    measured: Mapping[int, float]
    fitted: Mapping[int, float]
    form: str = ""
    turn: float = 0.0

    def more(self, n: Floats) -> Floats:
        """How many turns n messages take more than one message does."""
        if self.count is None:
            return np.zeros_like(n)
        made: Floats = _turns(n, self.count, self.form)
        return made

    @property
    def usable(self) -> bool:
        return self.state == DETERMINED

    def as_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind, "nbytes": self.nbytes, "state": self.state, "count": self.count, "low": self.low,
            "high": self.high, "most": self.most, "form": self.form or None, "turn": rounded(self.turn),
        }  # fmt: skip


def at_once(rows: Sequence[RoundTrip]) -> list[AtOnce]:
    """Of every kind and size; fewer than 3 numbers of messages tell nothing. O(numbers) small solutions each."""
    found: dict[tuple[str, int], dict[int, list[float]]] = {}
    for row in rows:
        if row.kind in AT_ONCE:
            found.setdefault((row.kind, row.nbytes), {}).setdefault(row.n, []).append(row.seconds)
    made: dict[tuple[str, int], AtOnce] = {}
    ports: dict[str, int] = {}  # of large messages, which go in turn: small ones have as many
    for (kind, size), points in sorted(found.items(), reverse=True):
        one = _fitted(kind, size, points, kind not in ports, ports.get(kind, 0))
        ports.setdefault(kind, (one.count or 0) if one.usable and one.form == IN_TURN else 0)
        made[kind, size] = one
    return [made[key] for key in sorted(made)]


def _fitted(kind: str, nbytes: int, points: Mapping[int, Sequence[float]], bytes_count: bool, expected: int) -> AtOnce:
    """`bytes_count`: what a message takes is mostly its bytes, so that a turn more takes about as long again.
    `expected`: the count that is taken where it fits as well as any."""
    n = np.array(sorted(points), float)
    seconds = np.array([float(np.median(points[int(one)])) for one in n])
    most = int(n[-1])
    took = dict(zip(n.astype(int).tolist(), seconds.tolist(), strict=True))
    if len(n) < LEAST_POINTS:
        return AtOnce(kind, nbytes, OPEN, None, 1, None, most, took, took)
    tried = list(_candidates(n, seconds, bytes_count))
    best = tried[first_least(np.array([one.score for one in tried]))]
    near = [one for one in tried if one.score <= best.score + PLAUSIBLE]
    agreed = [one for one in near if one.count == expected and one.form == IN_TURN]
    if agreed:
        near, best = agreed, agreed[0]
    said = dict(zip(n.astype(int).tolist(), best.fitted.tolist(), strict=True))
    if not best.count:
        return AtOnce(kind, nbytes, UNSEEN, None, most, None, most, took, said)
    counts = [one.count or most for one in near]
    state = DETERMINED if len(set(counts)) == 1 else WEAK
    return AtOnce(kind, nbytes, state, best.count, min(counts), max(counts), most, took, said, best.form, best.turn)


@dataclass(frozen=True)
class _Candidate:
    count: int  # 0: no limit
    form: str
    score: float
    turn: float
    fitted: Floats


def _candidates(n: Floats, seconds: Floats, bytes_count: bool) -> Iterator[_Candidate]:
    """Non-negative least squares of relative errors for each count and form, with their Bayesian information."""
    most = int(n[-1])
    alone = float(seconds[0])
    first = n - n[0]
    if bytes_count:
        slow = np.minimum(first * SLOW / most, SLOW)  # of what one message takes
        yield _solved(0, "", [np.ones_like(n), 1 + slow], n, seconds)
    else:
        yield _solved(0, "", [np.ones_like(n)], n, seconds)
    for count in range(1, most):
        for form in (IN_TURN, SHARED) if count > 1 else (IN_TURN,):
            turns = _turns(n, count, form)
            within = (n - 1) % count if form == IN_TURN else np.minimum(n, count) - 1
            room = most / SLOW if bytes_count else count / BUSY
            columns = [np.ones_like(n), turns]
            if count > 1:
                columns.append(within + room * turns)
            found = _solved(count, form, columns, n, seconds)
            if not bytes_count or found.turn >= (CLEAR - NEGLIGIBLE) * alone:
                yield found


def _solved(count: int, form: str, columns: Sequence[Floats], n: Floats, seconds: Floats) -> _Candidate:
    design = np.stack(columns, 1)
    relative = design / seconds[:, None]
    norms = np.sqrt(dot(relative.T, relative.T))
    shares = solve_nonnegative(relative / np.where(norms > 0, norms, 1.0), np.ones(len(n)))
    fitted: Floats = dot(design, shares / np.where(norms > 0, norms, 1.0))
    squares = float(((fitted / seconds - 1) ** 2).mean()) + EXACT**2
    unknowns = int(np.count_nonzero(shares > NEGLIGIBLE)) + (count > 0)
    turn = float(fitted[-1] - fitted[0]) / float(_turns(n, count, form)[-1]) if count else 0.0
    return _Candidate(count, form, len(n) * math.log(squares) + unknowns * math.log(len(n)), turn, fitted)


def _turns(n: Floats, count: int, form: str) -> Floats:
    made: Floats = np.ceil(n / count) - 1 if form == IN_TURN else np.maximum(n / count, 1) - 1
    return made


@dataclass(frozen=True)
class Radix:
    """`count`: None where no limit was seen, or nothing tells (`state`). `up_to`: as far as was looked."""

    state: str
    count: int | None = None
    up_to: int = 0

    def as_json(self) -> dict[str, Any]:
        return {"state": self.state, "count": self.count, "up_to": self.up_to}


NOTHING = Radix(OPEN)


def radices(found: Sequence[AtOnce]) -> dict[str, Radix]:
    """`send` and `receive`: messages that a rank sends, and takes in, at once; `device`: the less of both; `node`:
    what a node sends to another at once.

    Where the ranks are on two nodes (`pairs`), what one rank sends and takes in may be limited by its node: then gaps
    between small messages tell how many ports it has.
    """
    large = {one.kind: one for one in found if one.kind != BURST}
    bursts = [one for one in found if one.kind == BURST]
    node = _radix(large.get(PAIRS))
    ports = _radix(bursts[0]) if bursts else NOTHING
    send, receive = _radix(large.get(FAN_OUT)), _radix(large.get(FAN_IN))
    if node.state != OPEN:
        send, receive = (_of_ports(one, node, ports) for one in (send, receive))
    elif send.state == OPEN and receive.state == OPEN:
        send = receive = ports
    known = [one for one in (send, receive) if one.state == DETERMINED and one.count is not None]
    device = min(known, key=lambda one: one.count or 0) if known else send if send.state == receive.state else NOTHING
    return {"send": send, "receive": receive, "device": device, "node": node}


def _of_ports(one: Radix, node: Radix, ports: Radix) -> Radix:
    """A rank's own, where its node lets fewer through, or as many."""
    if one.state == DETERMINED and (node.state == UNSEEN or (one.count or 0) < (node.count or 0)):
        return one
    return ports


def _radix(one: AtOnce | None) -> Radix:
    return NOTHING if one is None else Radix(one.state, one.count, one.most)


def remarks(found: Sequence[AtOnce]) -> Iterator[str]:
    """What must be said of these measurements."""
    for one in found:
        what = f"{one.kind} at {format_size(one.nbytes)}"
        if one.state == OPEN:
            yield f"{what}: {one.most} at most tell nothing of how many go at once; measure {LEAST_POINTS} or more"
        if one.state == UNSEEN:
            yield f"{what}: no limit up to {one.most} at once"
        if one.state == WEAK:
            yield f"{what}: {one.low} to {one.high} at once, not told well enough: measure more ranks, or more often"
    told = radices(found)
    send, receive = told["send"], told["receive"]
    if send.state == receive.state == DETERMINED and send.count != receive.count:
        yield (
            f"a rank sends {send.count} at once and takes in {receive.count}: a profile has one number for both, the "
            "less of them"
        )
