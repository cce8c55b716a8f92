"""LogGP in closed form, for k-ring and recursive multiplying.

The paper is Liu, Rhee, Wilkins and Dinda, "Parameterized Algorithms and Parameter Selection for Fast GPU-GPU Collective
Communication", whose section III has the formulas. They hold without contention: a rank has a port for every message
that it sends at once (in recursive multiplying: its greatest radix, less one), and ranks share no NIC. They are
corrected where the paper miscounts, as the docstrings explain. reproduce/piccl_plans.py prices plans by them; tests
compare the simulator with them. Option `gap`:

    true      a round lasts at least g + (m-1) G: each port sends a message per round, and these are at least g apart
    false     g does not count, as in a simulation in which no two messages of a rank use the same port

Parameters may be those of a `Level`: then each message takes the parameters for its own size.

Example: `recmult(8, 2, m, f)`, an allgather on 8 ranks by radix 2, has rounds of m, 2 m and 4 m bytes: each takes o_s +
(bytes - 1) G + L + o_r.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

from antiphon.cost.figures import Level
from antiphon.errors import Invalid, Unsupported, quote, unknown

COLLECTIVES = ("allgather", "allreduce")


@dataclass(frozen=True)
class Figures:
    """LogGP's parameters."""

    L: float  # latency in seconds
    o_s: float  # seconds of the sender per message
    o_r: float  # seconds of the receiver per message
    g: float  # minimum seconds between two messages of a port
    G: float  # seconds per byte
    gamma: float = 0.0  # seconds per byte that a rank reduces

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not (isinstance(value, int | float) and math.isfinite(value) and value >= 0):
                raise Invalid(f"{field.name}: expected a figure from 0 on, got {quote(value)}")


FiguresLike = Figures | Level


@dataclass(frozen=True)
class _Round:
    """A round of the algorithm: messages of `nbytes` with these parameters."""

    nbytes: float
    figures: Figures
    gap: bool  # whether g counts

    @property
    def final_seconds(self) -> float:
        """Return T_final: the time of the last round, after which nothing is sent."""
        f = self.figures
        return f.o_s + (self.nbytes - 1) * f.G + f.L + f.o_r

    @property
    def seconds(self) -> float:
        """Return T_I or T_i: the time of a round that is not the last, until its port may send the next message."""
        f = self.figures
        remaining_gap = f.g - f.o_s if self.gap else 0.0  # the next o_s overlaps with g
        return f.o_s + (self.nbytes - 1) * f.G + max(f.L + f.o_r, remaining_gap)

    def combining(self, vectors: int = 1) -> float:
        """Return the seconds of combining after the data have arrived."""
        return vectors * self.nbytes * self.figures.gamma


def figures_at(figures: FiguresLike, nbytes: float) -> Figures:
    """Return the parameters for messages of this size."""
    if isinstance(figures, Figures):
        return figures
    if not isinstance(figures, Level):
        raise Invalid(f"figures: expected Figures or Level, got {quote(figures)}")
    return Figures(**{name: float(value) for name, value in figures.at(nbytes).items()})


def message(figures: FiguresLike, m: float) -> float:
    """Return the time of one message of m bytes, from the send call to the end of the receive (section II.E). O(1).

    Half of the round trip PRTT(1, 0, m) of 1 message of m bytes, with no delay: o_s + (m - 1) G + L + o_r.
    """
    return _Round(_check_bytes(m), figures_at(figures, m), gap=False).final_seconds


def kring(
    p: int,
    k: int,
    m: float,
    inter: FiguresLike,
    intra: FiguresLike,
    *,
    collective: str = "allgather",
    overlap: bool = False,
    gap: bool = True,
) -> float:
    """Return the time of k-ring (section III.A) on p ranks in groups of k, with blocks of m = nbytes / p bytes.

    T_I is the time of a round between groups (parameters `inter`), T_i of one within a group (`intra`), T_final of the
    last round. Every round sends a block. Allgather: T_AG = (p/k - 1) T_I + (p/k (k-1) - 1) T_i + T_final; with
    `overlap` rounds within groups take place during those between groups: T_AG,overlap = (p/k - 1) max(T_I, (k-1) T_i)
    + (k-2) T_i + T_final.

    Allreduce: the paper prints T_AG + (p-1) m gamma, p - 1 rounds in total. The algorithm needs p - 1 rounds to combine
    and as many to spread. So here the first half is the allgather backwards: p - 1 rounds, each with m gamma, none of
    which is the last. With `overlap` rounds within groups and between them overlap in both halves.

    With k = 1 all rounds, the last included, are between groups (the paper prints one within a group). If g > o_s + L +
    o_r and the parameters of both levels differ, a simulation is a little faster at each change between the levels: a
    message waits only for the g of its own level, and ranks can combine in that time. O(1).
    """
    _check_arguments(p, m, collective)
    if isinstance(k, bool) or not isinstance(k, int) or not 1 <= k <= p or p % k:
        raise Unsupported(f"k = {quote(k)}: the closed form of k-ring on {p} ranks is for the divisors of {p}")
    if p == 1:
        return 0.0
    outer, inner = _Round(m, figures_at(inter, m), gap), _Round(m, figures_at(intra, m), gap)
    # rounds between groups and rounds within groups; together p - 1
    between_groups, within_groups = p // k - 1, p // k * (k - 1)
    if k == 1:
        allgather = (between_groups - 1) * outer.seconds + outer.final_seconds
    elif overlap:
        allgather = (
            between_groups * max(outer.seconds, (k - 1) * inner.seconds) + (k - 2) * inner.seconds + inner.final_seconds
        )
    else:
        allgather = between_groups * outer.seconds + (within_groups - 1) * inner.seconds + inner.final_seconds
    if collective == "allgather":
        return allgather
    # corrected allreduce: p - 1 combining rounds precede the allgather, so none of them is the last
    t_outer = outer.seconds + outer.combining()
    t_inner = inner.seconds + inner.combining()
    if overlap:
        return between_groups * max(t_outer, (k - 1) * t_inner) + (k - 1) * t_inner + allgather
    return between_groups * t_outer + within_groups * t_inner + allgather


def recmult(
    p: int,
    k: int | Sequence[int],
    m: float,
    figures: FiguresLike | Sequence[FiguresLike],
    *,
    collective: str = "allgather",
    gap: bool = True,
) -> float:
    """Return the time of recursive multiplying (section III.B) on p ranks by radix k, or by one radix per round.

    `m`: for allgather the bytes of a block; a round sends as many blocks as the product of the radices before it. For
    allreduce the bytes of the vector, which every round sends as a whole. `figures`: for all rounds, or one per round.
    T = T_final + sum of T_i(r) over the rounds before the last. O(rounds).

    Allreduce: the paper charges m gamma per round. As k - 1 vectors arrive and are combined, it is (k-1) m gamma here.
    """
    _check_arguments(p, m, collective)
    radices = _parse_radices(p, k)
    by_round = list(figures) if isinstance(figures, Sequence) else [figures] * len(radices)
    if len(by_round) != len(radices):
        raise Invalid(f"figures: {len(by_round)} for {len(radices)} rounds; give one for each, or one for all")
    total, size = 0.0, float(m)
    for number, (radix, round_figures) in enumerate(zip(radices, by_round, strict=True)):
        current = _Round(size, figures_at(round_figures, size), gap)
        total += current.final_seconds if number == len(radices) - 1 else current.seconds
        if collective == "allreduce":
            total += current.combining(radix - 1)
        else:
            size *= radix  # the message grows by the radix in each round
    return total


def _parse_radices(p: int, k: int | Sequence[int]) -> list[int]:
    """Return one radix per round of recursive multiplying; their product is p.

    Example: p = 8: k = 2 gives [2, 2, 2], and k = (4, 2) is kept.
    """
    if isinstance(k, int) and not isinstance(k, bool):
        if k < 2:
            raise Invalid(f"k = {k}: expected a radix from 2 on")
        rounds = 0
        while k**rounds < p:
            rounds += 1
        if k**rounds != p:
            raise Unsupported(
                f"k = {k}: the closed form of recursive multiplying is for powers of {k}, not {p} ranks; give radices "
                "whose product that is"
            )
        return [k] * rounds
    are_integers = isinstance(k, Sequence) and all(
        isinstance(radix, int) and not isinstance(radix, bool) for radix in k
    )
    if not are_integers or min(k, default=2) < 2 or math.prod(k) != p:  # type: ignore[arg-type]
        raise Invalid(f"k = {quote(k)}: expected a radix, or radices from 2 on whose product is {p}")
    return list(k)  # type: ignore[arg-type]


def _check_arguments(p: int, m: float, collective: str) -> None:
    if isinstance(p, bool) or not isinstance(p, int) or p < 1:
        raise Invalid(f"p: expected a number of ranks from 1 on, got {quote(p)}")
    if collective not in COLLECTIVES:
        raise unknown("collective", collective, COLLECTIVES)
    _check_bytes(m)


def _check_bytes(m: float) -> float:
    if isinstance(m, bool) or not isinstance(m, int | float) or not (math.isfinite(m) and m >= 1):
        raise Invalid(f"m: expected bytes from 1 on, got {quote(m)}")
    return float(m)
