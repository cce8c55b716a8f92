"""Compare the algorithms of a table with the lower bounds and with each other, with a proof for each answer.

An algorithm is *latency-optimal* if S is the bound on steps, *bandwidth-optimal* if R / C is the bound on time, and
*Pareto-optimal* if no algorithm with as few steps has a lower R / C, and none with fewer steps has as low an R / C.
Pareto-optimality is proved by lower bounds on R / C for S and for S - 1 steps: dual solutions (prices of links per
step) of a linear program. It is refuted by a better algorithm.

Input (`standings_of`): the synthesized points (C, S, R) of one collective on one machine (a family). Output: a
`Standing` for each. An allreduce is composed of two halves, reducescatter and allgather, so that the next lower number
of steps is S - 2. If a point stays undecided, better algorithms are searched for: along the frontier, then with fewer
steps. Example: (2, 2, 3) on a machine where R / C >= 3/2 in 2 steps and no schedule has 1 step is Pareto-optimal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from antiphon.core.bounds import Bound
from antiphon.errors import Infeasible, NotFound, TimedOut
from antiphon.reproduce.sccl_plans import PointFamily, Synthesized

Point = tuple[int, int, int]  # chunks, steps, rounds
K = 4  # SCCL's k: a search along the frontier is among schedules with R <= S + K
# What proves a bound on R / C, by the class of its witness
_WITNESS = {"Cut": "a cut", "Partition": "a partition", "LpDual": "prices of links"}


@dataclass(frozen=True)
class Standing:
    """How good an algorithm is."""

    optimal: str  # which bounds it attains: "latency", "bandwidth", "both" or ""
    pareto: bool | None  # whether it is Pareto-optimal; None: undecided
    better: Point | None = None  # the algorithm that dominates it, if `pareto` is False
    refuted: tuple[tuple[Point, str], ...] = ()  # points that would be better, and why none of them exists
    proof: tuple[str, ...] = ()  # the evidence, line by line

    @property
    def text(self) -> str:
        """The answer to whether the algorithm is Pareto-optimal, in words."""
        if self.pareto:
            return "Pareto-optimal"
        return f"dominated by {self.better}" if self.better is not None else "undecided"


def standings_of(family: PointFamily, rows: Sequence[Synthesized]) -> list[Standing]:
    """Return the standing of each row. If neither another row nor the bounds decide, search for better algorithms."""
    limits = family.limits()
    candidates: list[Synthesized] = list(rows)
    standings = [_standing_of(algorithm, limits, candidates) for algorithm in rows]
    for search in (_search_frontier, _search_fewer_steps):
        undecided = [algorithm for algorithm, standing in zip(rows, standings, strict=True) if standing.pareto is None]
        if undecided:
            candidates += search(family, undecided)
            standings = [_standing_of(algorithm, limits, candidates) for algorithm in rows]
    return standings


def _search_frontier(family: PointFamily, undecided: Sequence[Synthesized]) -> list[Synthesized]:
    """Return the frontier up to the greatest number of steps of an undecided algorithm."""
    return family.frontier(K, max(algorithm.steps for algorithm in undecided))


def _search_fewer_steps(family: PointFamily, undecided: Sequence[Synthesized]) -> list[Synthesized]:
    """Return algorithms with the same R / C in fewer steps, if there are any: the bounds do not exclude them."""
    algorithms = []
    for algorithm in undecided:
        fewer_steps = algorithm.steps - (2 if algorithm.composed else 1)
        try:
            algorithms.append(family.make(algorithm.chunks, fewer_steps, algorithm.rounds))
        except (Infeasible, NotFound, TimedOut):
            continue
    return algorithms


def _standing_of(algorithm: Synthesized, limits: Bound, candidates: Sequence[Synthesized]) -> Standing:
    """Return the standing of an algorithm among `candidates`, which may dominate it."""
    optimal, proof = _prove_optimality(algorithm, limits)
    # number of steps -> the greatest proved lower bound on R / C
    ratio_bounds: dict[int, Fraction] = {}
    for other in candidates:
        if other.ratio_bound is not None and other.composed == algorithm.composed:
            ratio_bounds[other.steps] = max(other.ratio_bound, ratio_bounds.get(other.steps, Fraction(0)))
    refuted = _list_refuted_neighbours(algorithm, limits, ratio_bounds)
    better = [
        o
        for o in candidates
        if o.steps <= algorithm.steps and o.ratio <= algorithm.ratio and _cost_of(o) != _cost_of(algorithm)
    ]
    if better:
        best = min(better, key=lambda o: (o.ratio, o.steps, o.chunks))
        proof.append(f"{best.point} is better, and verified")
        return Standing(optimal, pareto=False, better=best.point, refuted=refuted, proof=tuple(proof))
    if algorithm.ratio == ratio_bounds.get(algorithm.steps) and _is_fastest_at_ratio(algorithm, limits, ratio_bounds):
        proof.append(f"{algorithm.steps} steps have R/C >= {algorithm.ratio}{_halves_text(algorithm)}: prices of links")
        fewer_steps = algorithm.steps - (2 if algorithm.composed else 1)
        if fewer_steps in ratio_bounds:
            proof.append(
                f"{fewer_steps} steps have R/C >= {ratio_bounds[fewer_steps]}{_halves_text(algorithm)}: prices of links"
            )
        return Standing(optimal, pareto=True, better=None, refuted=refuted, proof=tuple(proof))
    return Standing(optimal, pareto=None, better=None, refuted=refuted, proof=tuple(proof))


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
    """Return the bound on steps; twice that of each half for an algorithm of two halves.

    `limits`: of the whole. An allreduce and each of its halves have the same bound on steps.
    """
    return limits.latency_steps * (2 if algorithm.composed else 1)


def _is_fastest_at_ratio(algorithm: Synthesized, limits: Bound, ratio_bounds: dict[int, Fraction]) -> bool:
    """Return whether no algorithm of fewer steps has as low an R / C."""
    fewer_steps = algorithm.steps - (2 if algorithm.composed else 1)
    return fewer_steps < fewest_steps(algorithm, limits) or ratio_bounds.get(fewer_steps, Fraction(0)) > algorithm.ratio


def _list_refuted_neighbours(
    algorithm: Synthesized, limits: Bound, ratio_bounds: dict[int, Fraction]
) -> tuple[tuple[Point, str], ...]:
    """Return the next better points (more chunks, fewer rounds, fewer steps) that bounds refute, with the bound."""
    steps_apart = 2 if algorithm.composed else 1
    # chunks of a rank's input that one chunk more of every block adds
    weight = (
        algorithm.schedule.collective.input_weight
        if not algorithm.composed
        else len(algorithm.schedule.collective.members)
    )
    candidates = (
        (algorithm.chunks + weight, algorithm.steps, algorithm.rounds),
        (algorithm.chunks, algorithm.steps, algorithm.rounds - steps_apart),
        (algorithm.chunks, algorithm.steps - steps_apart, algorithm.rounds),
    )
    refuted = []
    for chunks, steps, rounds in candidates:
        if steps < fewest_steps(algorithm, limits):
            refuted.append(((chunks, steps, rounds), f"S >= {fewest_steps(algorithm, limits)}"))
        elif rounds < steps:
            refuted.append(((chunks, steps, rounds), "R >= S"))
        elif steps in ratio_bounds and Fraction(rounds, chunks) < ratio_bounds[steps]:
            refuted.append(((chunks, steps, rounds), f"R/C >= {ratio_bounds[steps]} in {steps} steps"))
    return tuple(refuted)
