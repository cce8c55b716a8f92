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
from antiphon.reproduce.sccl_plans import Family, Synthesized

Point = tuple[int, int, int]
K = 4
_WITNESS = {"Cut": "a cut", "Partition": "a partition", "LpDual": "prices of links"}


@dataclass(frozen=True)
class Standing:
    """`optimal`: latency, bandwidth, both or "". `pareto`: proved, refuted by `better`, or None: open.

    `refuted`: neighbours that would be better, and why none exists. `proof`: the evidence, line by line.
    """

    optimal: str
    pareto: bool | None
    better: Point | None = None
    refuted: tuple[tuple[Point, str], ...] = ()
    proof: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        if self.pareto:
            return "Pareto-optimal"
        return f"dominated by {self.better}" if self.better is not None else "undecided"


def judge_all(family: Family, rows: Sequence[Synthesized]) -> list[Standing]:
    """The standing of each. Where neither another row nor the duals decide, better algorithms are looked for."""
    limits = family.limits()
    candidates: list[Synthesized] = list(rows)
    standings = [_standing_of(algorithm, limits, candidates) for algorithm in rows]
    for search in (_along_frontier, _one_step_sooner):
        undecided = [algorithm for algorithm, standing in zip(rows, standings, strict=True) if standing.pareto is None]
        if undecided:
            candidates += search(family, undecided)
            standings = [_standing_of(algorithm, limits, candidates) for algorithm in rows]
    return standings


def _along_frontier(family: Family, undecided: Sequence[Synthesized]) -> list[Synthesized]:
    return family.frontier(K, max(algorithm.steps for algorithm in undecided))


def _one_step_sooner(family: Family, undecided: Sequence[Synthesized]) -> list[Synthesized]:
    """Nothing of as many steps is better, but the duals leave room for as much in fewer: then it is tried."""
    algorithms = []
    for algorithm in undecided:
        sooner = algorithm.steps - (2 if algorithm.composed else 1)
        try:
            algorithms.append(family.make(algorithm.chunks, sooner, algorithm.rounds))
        except (Infeasible, NotFound, TimedOut):
            continue
    return algorithms


def _standing_of(algorithm: Synthesized, limits: Bound, candidates: Sequence[Synthesized]) -> Standing:
    optimal, proof = _prove_optimality(algorithm, limits)
    duals: dict[int, Fraction] = {}
    for other in candidates:
        if other.ratio_bound is not None and other.composed == algorithm.composed:
            duals[other.steps] = max(other.ratio_bound, duals.get(other.steps, Fraction(0)))
    refuted = _refuted_neighbours(algorithm, limits, duals)
    better = [
        o
        for o in candidates
        if o.steps <= algorithm.steps and o.ratio <= algorithm.ratio and _cost_of(o) != _cost_of(algorithm)
    ]
    if better:
        best = min(better, key=lambda o: (o.ratio, o.steps, o.chunks))
        proof.append(f"{best.point} is better, and verified")
        return Standing(optimal, False, best.point, refuted, tuple(proof))
    if algorithm.ratio == duals.get(algorithm.steps) and _not_sooner(algorithm, limits, duals):
        proof.append(f"{algorithm.steps} steps have R/C >= {algorithm.ratio}{_halves_text(algorithm)}: prices of links")
        sooner = algorithm.steps - (2 if algorithm.composed else 1)
        if sooner in duals:
            proof.append(f"{sooner} steps have R/C >= {duals[sooner]}{_halves_text(algorithm)}: prices of links")
        return Standing(optimal, True, None, refuted, tuple(proof))
    return Standing(optimal, None, None, refuted, tuple(proof))


def _cost_of(algorithm: Synthesized) -> tuple[int, Fraction]:
    return algorithm.steps, algorithm.ratio


def _halves_text(algorithm: Synthesized) -> str:
    return " in two halves" if algorithm.composed else ""


def _prove_optimality(algorithm: Synthesized, limits: Bound) -> tuple[str, list[str]]:
    proof = [
        f"S >= {limits.latency_steps}: a distance",
        f"R/C >= {limits.inverse}: {_WITNESS.get(type(limits.witness).__name__, 'a witness')}",
    ]
    latency, bandwidth = algorithm.steps == limits.latency_steps, algorithm.ratio == limits.inverse
    return "both" if latency and bandwidth else "latency" if latency else "bandwidth" if bandwidth else "", proof


def fewest_steps(algorithm: Synthesized, limits: Bound) -> int:
    """The bound on steps, for what is composed of two halves that on these."""
    return limits.latency_steps * (2 if algorithm.composed else 1)


def _not_sooner(algorithm: Synthesized, limits: Bound, duals: dict[int, Fraction]) -> bool:
    """Whether no algorithm of fewer steps has as low an R / C."""
    sooner = algorithm.steps - (2 if algorithm.composed else 1)
    return sooner < fewest_steps(algorithm, limits) or duals.get(sooner, Fraction(0)) > algorithm.ratio


def _refuted_neighbours(
    algorithm: Synthesized, limits: Bound, duals: dict[int, Fraction]
) -> tuple[tuple[Point, str], ...]:
    """The next better candidates (more chunks, fewer rounds, fewer steps) that duals refute, with the dual's bound."""
    halves = 2 if algorithm.composed else 1
    weight = (
        algorithm.schedule.collective.input_weight
        if not algorithm.composed
        else len(algorithm.schedule.collective.members)
    )
    candidates = (
        (algorithm.chunks + weight, algorithm.steps, algorithm.rounds),
        (algorithm.chunks, algorithm.steps, algorithm.rounds - halves),
        (algorithm.chunks, algorithm.steps - halves, algorithm.rounds),
    )
    refuted = []
    for chunks, steps, rounds in candidates:
        if steps < fewest_steps(algorithm, limits):
            refuted.append(((chunks, steps, rounds), f"S >= {fewest_steps(algorithm, limits)}"))
        elif rounds < steps:
            refuted.append(((chunks, steps, rounds), "R >= S"))
        elif steps in duals and Fraction(rounds, chunks) < duals[steps]:
            refuted.append(((chunks, steps, rounds), f"R/C >= {duals[steps]} in {steps} steps"))
    return tuple(refuted)
