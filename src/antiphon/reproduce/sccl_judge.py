"""How good the algorithms of a table are, each with its proof: against the bounds, and against the others.

An algorithm is *latency-optimal* if S is the bound on steps, *bandwidth-optimal* if R / C is the bound on time, and
*Pareto-optimal* if none with as few steps has a lower R / C and none with fewer steps has as low a one. That last is
proved by duals of the program over time for S and for S - 1 steps; its opposite by the better algorithm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from antiphon.core.bounds import Bound
from antiphon.errors import Infeasible, NotFound, TimedOut
from antiphon.reproduce.sccl_made import Family, Made

Point = tuple[int, int, int]
K = 4
_WITNESS = {"Cut": "a cut", "Partition": "a partition", "LpDual": "prices of links"}


@dataclass(frozen=True)
class Standing:
    """`optimal`: latency, bandwidth, both or "". `pareto`: proved, refuted by `better`, or None: open.

    `none`: neighbours that would be better and do not exist, and why. `proof`: why all that.
    """

    optimal: str
    pareto: bool | None
    better: Point | None = None
    none: tuple[tuple[Point, str], ...] = ()
    proof: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        if self.pareto:
            return "Pareto-optimal"
        return f"dominated by {self.better}" if self.better is not None else "undecided"


def judge(family: Family, rows: Sequence[Made]) -> list[Standing]:
    """The standing of each. Where neither another row nor the duals decide, better algorithms are looked for."""
    limits = family.limits()
    known: list[Made] = list(rows)
    found = [_standing(made, limits, known) for made in rows]
    for look in (_along_the_frontier, _one_step_sooner):
        undecided = [made for made, standing in zip(rows, found, strict=True) if standing.pareto is None]
        if undecided:
            known += look(family, undecided)
            found = [_standing(made, limits, known) for made in rows]
    return found


def _along_the_frontier(family: Family, undecided: Sequence[Made]) -> list[Made]:
    return family.frontier(K, max(made.steps for made in undecided))


def _one_step_sooner(family: Family, undecided: Sequence[Made]) -> list[Made]:
    """Nothing of as many steps is better, but the duals leave room for as much in fewer: then it is tried."""
    found = []
    for made in undecided:
        sooner = made.steps - (2 if made.composed else 1)
        try:
            found.append(family.make(made.chunks, sooner, made.rounds))
        except (Infeasible, NotFound, TimedOut):
            continue
    return found


def _standing(made: Made, limits: Bound, known: Sequence[Made]) -> Standing:
    optimal, proof = _optimal(made, limits)
    least: dict[int, Fraction] = {}
    for other in known:
        if other.least is not None and other.composed == made.composed:
            least[other.steps] = max(other.least, least.get(other.steps, Fraction(0)))
    none = _neighbours(made, limits, least)
    better = [o for o in known if o.steps <= made.steps and o.ratio <= made.ratio and _cost(o) != _cost(made)]
    if better:
        best = min(better, key=lambda o: (o.ratio, o.steps, o.chunks))
        proof.append(f"{best.point} is better, and verified")
        return Standing(optimal, False, best.point, none, tuple(proof))
    if made.ratio == least.get(made.steps) and _not_sooner(made, limits, least):
        proof.append(f"{made.steps} steps have R/C >= {made.ratio}{_make(made)}: prices of links")
        sooner = made.steps - (2 if made.composed else 1)
        if sooner in least:
            proof.append(f"{sooner} steps have R/C >= {least[sooner]}{_make(made)}: prices of links")
        return Standing(optimal, True, None, none, tuple(proof))
    return Standing(optimal, None, None, none, tuple(proof))


def _cost(made: Made) -> tuple[int, Fraction]:
    return made.steps, made.ratio


def _make(made: Made) -> str:
    return " in two halves" if made.composed else ""


def _optimal(made: Made, limits: Bound) -> tuple[str, list[str]]:
    proof = [
        f"S >= {limits.latency_steps}: a distance",
        f"R/C >= {limits.inverse}: {_WITNESS.get(type(limits.witness).__name__, 'a witness')}",
    ]
    latency, bandwidth = made.steps == limits.latency_steps, made.ratio == limits.inverse
    return "both" if latency and bandwidth else "latency" if latency else "bandwidth" if bandwidth else "", proof


def fewest_steps(made: Made, limits: Bound) -> int:
    """The bound on steps, for what is composed of two halves that on these."""
    return limits.latency_steps * (2 if made.composed else 1)


def _not_sooner(made: Made, limits: Bound, least: dict[int, Fraction]) -> bool:
    """Whether no algorithm of fewer steps has as low an R / C."""
    sooner = made.steps - (2 if made.composed else 1)
    return sooner < fewest_steps(made, limits) or least.get(sooner, Fraction(0)) > made.ratio


def _neighbours(made: Made, limits: Bound, least: dict[int, Fraction]) -> tuple[tuple[Point, str], ...]:
    """The next better candidates (more chunks, fewer rounds, fewer steps) that duals refute, with the dual's bound."""
    each = 2 if made.composed else 1
    weight = made.schedule.collective.input_weight if not made.composed else len(made.schedule.collective.members)
    candidates = (
        (made.chunks + weight, made.steps, made.rounds),
        (made.chunks, made.steps, made.rounds - each),
        (made.chunks, made.steps - each, made.rounds),
    )
    found = []
    for chunks, steps, rounds in candidates:
        if steps < fewest_steps(made, limits):
            found.append(((chunks, steps, rounds), f"S >= {fewest_steps(made, limits)}"))
        elif rounds < steps:
            found.append(((chunks, steps, rounds), "R >= S"))
        elif steps in least and Fraction(rounds, chunks) < least[steps]:
            found.append(((chunks, steps, rounds), f"R/C >= {least[steps]} in {steps} steps"))
    return tuple(found)
