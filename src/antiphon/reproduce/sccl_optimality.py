"""How good the algorithms of a table are, each with its proof: against the bounds, and against the others.

An algorithm is *latency-optimal* if S is the bound on steps, *bandwidth-optimal* if R / C is the bound on time, and
*Pareto-optimal* if none with as few steps has a lower R / C and none with fewer steps has as low a one. That last is
proved by lower bounds on R / C for S and for S - 1 steps, which are dual solutions ("duals", prices of links per step)
of a linear program over time; the opposite is proved by a better algorithm.

Input (`judge_all`): the synthesized points of one family. Output: a `Standing` for each. An allreduce is composed of
two halves, reducescatter and allgather, so that steps go by two. Where a point stays undecided, better algorithms are
searched for: along the frontier, then with fewer steps. Example: (2, 2, 3) on a machine where R / C >= 3/2 in 2 steps
and no schedule has 1 step is Pareto-optimal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from antiphon.core.bounds import Bound
from antiphon.errors import Infeasible, NotFound, TimedOut
from antiphon.reproduce.sccl_plans import Family, Synthesized

Point = tuple[int, int, int]
K = 4  # rounds beyond the number of steps, at most, in a search along the frontier
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
    """Return the standing of each. Where neither another row nor the duals decide, search for better algorithms."""
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
    """Return the frontier up to the steps of the undecided."""
    return family.frontier(K, max(algorithm.steps for algorithm in undecided))


def _one_step_sooner(family: Family, undecided: Sequence[Synthesized]) -> list[Synthesized]:
    """Return algorithms with the same R / C in fewer steps, as far as they exist: the duals leave room for them."""
    algorithms = []
    for algorithm in undecided:
        sooner = algorithm.steps - (2 if algorithm.composed else 1)
        try:
            algorithms.append(family.make(algorithm.chunks, sooner, algorithm.rounds))
        except (Infeasible, NotFound, TimedOut):
            continue
    return algorithms


def _standing_of(algorithm: Synthesized, limits: Bound, candidates: Sequence[Synthesized]) -> Standing:
    """Return the standing of an algorithm among these."""
    optimal, proof = _prove_optimality(algorithm, limits)
    # by number of steps the greatest proved lower bound on R / C
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
    """Return the optimum that an algorithm attains ("latency", "bandwidth", "both" or ""), and the bounds as proof."""
    proof = [
        f"S >= {limits.latency_steps}: a distance",
        f"R/C >= {limits.inverse}: {_WITNESS.get(type(limits.witness).__name__, 'a witness')}",
    ]
    latency, bandwidth = algorithm.steps == limits.latency_steps, algorithm.ratio == limits.inverse
    return "both" if latency and bandwidth else "latency" if latency else "bandwidth" if bandwidth else "", proof


def fewest_steps(algorithm: Synthesized, limits: Bound) -> int:
    """Return the bound on steps; of two halves twice that of each."""
    return limits.latency_steps * (2 if algorithm.composed else 1)


def _not_sooner(algorithm: Synthesized, limits: Bound, duals: dict[int, Fraction]) -> bool:
    """Return whether no algorithm of fewer steps has as low an R / C."""
    sooner = algorithm.steps - (2 if algorithm.composed else 1)
    return sooner < fewest_steps(algorithm, limits) or duals.get(sooner, Fraction(0)) > algorithm.ratio


def _refuted_neighbours(
    algorithm: Synthesized, limits: Bound, duals: dict[int, Fraction]
) -> tuple[tuple[Point, str], ...]:
    """Return the next better points (more chunks, fewer rounds, fewer steps) that duals refute, with the bound."""
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
