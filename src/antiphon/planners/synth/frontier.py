"""SCCL's Algorithm 1, refined: for every number of steps S find the least R / C, until the bandwidth bound is met.

C counts chunks per rank, R rounds. Each block is cut into `parts` chunks, so C is parts times the blocks of a rank's
input.

    for S = diameter, diameter + 1, ...:
        for (R, C) with S <= R <= S + k, by ascending R / C:
            skip it if the linear program forbids it, or if fewer steps already reach this R / C
            if an algorithm exists: yield the point; next S
        stop when R / C equals the bandwidth bound

Unlike the paper's listing this skips candidates that fewer steps already reach, and prunes with linear programs first.
Refuting a candidate refutes all with at least as many parts and at most as many rounds.

Without k there are infinitely many candidates; then the least R / C that the program admits is tried with growing
numbers of chunks (parts that are multiples of the ratio's denominator can meet it exactly).

Candidates differ enormously in difficulty, so effort is limited. Each number of steps is searched quickly at first
(`search_quickly`); what remained undecided gets a second turn (`search_longer`) after all numbers of steps had one. A
point may therefore be followed by a better, or better proved, one for the same steps.

Example, allgather on the DGX-1 with k = 4: S = 2 tries (R, C) = (2, 1), (3, 2), ... and yields 3/2 with C = 2; S = 3
yields 7/6 with C = 6, which is the bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import NamedTuple

from antiphon.core.ksync.certificate import BEST_FOUND, FOR_K, OPTIMAL
from antiphon.core.ksync.instance import Instance
from antiphon.errors import TimedOut
from antiphon.planners.synth.auto import Solved
from antiphon.planners.synth.candidate_order import CandidateLimits, decide_in_order
from antiphon.planners.synth.linear import Proved
from antiphon.planners.synth.search import Impossible, SearchState
from antiphon.planners.synth.task import Move, rounds_of

USUAL_K = 4  # rounds beyond the steps that candidates may have
QUICK_TURNS = 1  # turns of auto.py for the first try
LONG_SHARE, QUICK_SHARE = 0.4, 0.1  # fractions of the remaining effort for one candidate, later and at first
# From this product on, a candidate may take long to decide: chunks at one part per block, times arcs (paths between two
# ranks), times steps.
LARGE = 3000
MOST_PARTS = 12  # without k: numbers of parts that are tried, each with the fewest rounds it may take ...
MULTIPLES = 2  # ... and this many multiples of the smallest number of parts that could meet the bound
MOST_CHUNKS = 64  # maximum number of parts, if the caller names none
_NO_LIMIT = 10**9  # parts, far above any candidate's

Tell = Callable[[str], None]


class PartsAndRounds(NamedTuple):
    """Parts per block and rounds of an algorithm that may exist, for some number of steps. R / C grows with
    rounds / parts."""

    parts: int
    rounds: int

    def is_better_than(self, other: PartsAndRounds) -> bool:
        """Return whether rounds / parts is less than that of the other."""
        return self.rounds * other.parts < other.rounds * self.parts


class _Solution(NamedTuple):
    """The best candidate so far for which an engine found an algorithm."""

    candidate: PartsAndRounds
    algorithm: Solved


@dataclass(frozen=True)
class Refuted:
    """A candidate that does not exist, and why. It follows that none with more parts or fewer rounds does."""

    parts: int
    rounds: int
    why: Impossible


@dataclass(frozen=True)
class Point:
    """One point of the frontier: parts, steps and rounds with the algorithm (`moves`).

    `engine`: which found it; `proof`: its status (OPTIMAL: these steps allow no lower R / C; FOR_K: none with at most k
    rounds more than steps; BEST_FOUND: neither is shown). `bound_proof`: proof of the least R / C of this many steps
    (None: no certificate); `refuted`: better candidates that do not exist; `open`: better candidates that remained
    undecided.
    """

    instance: Instance
    parts: int
    steps: int
    rounds: int
    moves: tuple[Move, ...]
    engine: str
    proof: str
    bound_proof: Proved | None = None
    refuted: tuple[Refuted, ...] = ()
    open: tuple[PartsAndRounds, ...] = ()

    @property
    def chunks(self) -> int:
        return self.parts * self.instance.input_weight

    @property
    def ratio(self) -> Fraction:
        return Fraction(self.rounds, self.chunks)


@dataclass(frozen=True)
class Limits:
    """Where the search ends: maximum steps, k (None: any), bytes of memory per worker (None: no limit), maximum parts.

    `turns`: of engine `auto` for a candidate that gets a longer try. `workers`: number of candidates decided in
    parallel where that may take long; None: number of processors, up to 4.
    """

    k: int | None = USUAL_K
    steps: int | None = None
    memory: int | None = None
    parts: int = MOST_CHUNKS
    turns: int = 6
    workers: int | None = None


def find_frontier(
    search: SearchState, floor: Fraction, limits: Limits, tell: Tell = lambda text: None
) -> Iterator[Point]:
    """Yield the points, fewest steps first, each once it is found. `floor`: the bandwidth bound on R / C.

    Ends when R / C meets the floor, at the maximum number of steps, or by EffortSpent. On large instances, and when
    effort is short, the first point of a number of steps is preliminary; a better or better proved one may follow.
    """
    instance = search.instance
    best: Fraction | None = None
    steps = max(instance.least_steps, 1)
    postponed: list[_StepSearch] = []
    is_short_of_effort = False
    while (limits.steps is None or steps <= limits.steps) and (best is None or best > floor):
        # more steps are only worth it if they can reach a smaller R / C
        lowest_ratio = search.least_ratio(steps)
        if best is None or lowest_ratio < best:
            state = _StepSearch(search, steps, lowest_ratio, best, limits, tell, is_short_of_effort)
            state.search_quickly()
            point = state.best_point()
            if point is not None:
                best = point.ratio
                yield point
            is_short_of_effort = state.is_short_of_effort
            # on small instances, if effort is not short, undecided candidates had all their turns already
            if state.undecided and (state.is_large or is_short_of_effort):
                postponed.append(state)
        steps += 1
    # longer tries of the undecided candidates, at last each with all of the effort that remains
    for share in (LONG_SHARE, 1.0):
        for state in postponed:
            previous = state.best_point()
            state.search_longer(share)
            point = state.best_point()
            if point is not None and (
                previous is None or (point.ratio, point.proof) != (previous.ratio, previous.proof)
            ):
                yield point


def usual_steps(fewest: int) -> int:
    """Return the maximum number of steps when the bandwidth bound is met at no finite number of them."""
    return max(2 * fewest, fewest + 4)


def size_of(instance: Instance, steps: int) -> int:
    """Return the number of chunks, at one part per block, times arcs times steps."""
    return sum(kind.weight for kind in instance.kinds) * len(instance.arcs) * steps


@dataclass
class _StepSearch:
    """The search of one number of steps: candidates with R / C from `least_ratio` to below `best`, and their results.

    `best`: the least R / C of fewer steps.
    """

    search: SearchState
    steps: int
    least_ratio: Fraction
    best: Fraction | None
    limits: Limits
    tell: Tell
    is_short_of_effort: bool  # effort is short: a candidate exceeded its share
    solution: _Solution | None = None
    refuted: list[Refuted] = field(default_factory=list)
    undecided: list[PartsAndRounds] = field(default_factory=list)
    tried: dict[PartsAndRounds, int] = field(default_factory=dict)  # number of turns after which each was undecided

    @property
    def is_large(self) -> bool:
        """Whether a candidate may take long to decide."""
        return size_of(self.search.instance, self.steps) > LARGE

    def search_quickly(self) -> None:
        """Try every candidate with little effort, by ascending R / C until one is found; then retry undecided ones with
        more.

        On large instances: smallest first, each better than the last. If a candidate exceeds its share (effort is
        short): smallest first, and longer tries wait until all numbers of steps had their turn.
        """
        weight = self.search.instance.input_weight
        candidates = list(list_candidates(self.steps, self.least_ratio, self.best, weight, self.limits))
        try:
            # the solution found so far is kept if time runs out
            if self.is_large:
                # sorted by (parts, rounds): the fewest chunks are the quickest to decide
                self._decide_candidates(sorted(candidates), QUICK_TURNS, QUICK_SHARE)
            elif not self._decide_candidates(
                candidates, QUICK_TURNS, QUICK_SHARE, stop_at_first=True, end_at_share=True
            ):
                self.is_short_of_effort = True
                self._decide_candidates(sorted(candidates), QUICK_TURNS, QUICK_SHARE, stop_at_first=True)
                # also those behind the first success, which were not tried
                self.undecided = [candidate for candidate in candidates if self._is_wanted(candidate)]
            elif not self.is_short_of_effort:
                self.is_short_of_effort = not self._decide_candidates(
                    self._open_candidates(), self.limits.turns, QUICK_SHARE, end_at_share=True
                )
        except TimedOut:
            if self.solution is None:
                raise

    def search_longer(self, share: float) -> None:
        """Retry the undecided candidates that would be better, with more effort."""
        try:
            self._decide_candidates(self._open_candidates(), self.limits.turns, share)
        except TimedOut:
            if self.solution is None:
                raise

    def _open_candidates(self) -> list[PartsAndRounds]:
        """Return the undecided candidates, the least demanding first: refuting one also refutes more demanding ones."""
        candidates = [candidate for candidate in self.undecided if self.tried.get(candidate, 0) < self.limits.turns]
        return sorted(candidates, key=lambda candidate: (Fraction(candidate.parts, candidate.rounds), candidate))

    def _decide_candidates(
        self,
        candidates: Iterable[PartsAndRounds],
        turns: int,
        share: float,
        *,
        stop_at_first: bool = False,
        end_at_share: bool = False,
    ) -> bool:
        """Decide candidates in order, each only if it would improve on the solution; optionally stop at the first
        success.

        `turns`, `share`: effort of a candidate (candidate_order.py). With `end_at_share`, the first candidate that
        exceeds its share ends the loop, and the result is False.
        """
        results = decide_in_order(
            self.search, [(parts, self.steps, rounds) for parts, rounds in candidates],
            CandidateLimits(turns, share, self.limits.memory, self.limits.workers),
            is_wanted=lambda point: self._is_wanted(_without_steps(point)), tell=self.tell,
        )  # fmt: skip
        with closing(results):
            for verdict in results:
                candidate = _without_steps(verdict.candidate)
                if isinstance(verdict.decided, Solved):
                    self.solution = _Solution(candidate, verdict.decided)
                    if stop_at_first:
                        return True
                elif isinstance(verdict.decided, Impossible):
                    self.refuted.append(Refuted(candidate.parts, candidate.rounds, verdict.decided))
                else:
                    # `cut`: it ended for lack of effort, so that it may try all its turns again
                    self.tried[candidate] = 0 if verdict.cut else turns
                    if candidate not in self.undecided:
                        self.undecided.append(candidate)
                    if verdict.cut and end_at_share:
                        return False
        return True

    def _is_wanted(self, candidate: PartsAndRounds) -> bool:
        """Return whether the candidate may exist and would be better than the current solution."""
        if self._known_impossible(candidate):
            return False
        return self.solution is None or candidate.is_better_than(self.solution.candidate)

    def _known_impossible(self, candidate: PartsAndRounds) -> bool:
        """Return whether a refuted candidate with at most these parts and at least these rounds excludes this one."""
        return any(refuted.parts <= candidate.parts and refuted.rounds >= candidate.rounds for refuted in self.refuted)

    def best_point(self) -> Point | None:
        """Return the solution as a point with its proof status, or None."""
        if self.solution is None:
            return None
        search, (candidate, algorithm) = self.search, self.solution
        # the engine may have used fewer steps and rounds than it was allowed
        per_step = rounds_of(search.instance, algorithm.moves)
        steps, rounds = len(per_step), sum(per_step)
        achieved = PartsAndRounds(candidate.parts, rounds)
        better = [
            other for other in self.undecided
            if other.is_better_than(achieved) and not self._known_impossible(other)
        ]  # fmt: skip
        ratio = Fraction(rounds, achieved.parts * search.instance.input_weight)
        proof = OPTIMAL if ratio == search.least_ratio(steps) else FOR_K if self._all_refuted(ratio) else BEST_FOUND
        refuted = self.refuted
        if steps < self.steps:  # refutations are about `self.steps`, and a certificate is about one number of steps
            proof, refuted = (OPTIMAL if proof == OPTIMAL else BEST_FOUND), []
        return Point(
            search.instance, achieved.parts, steps, rounds, algorithm.moves, algorithm.engine, proof,
            bound_proof=search.prove_least(steps), refuted=tuple(refuted), open=tuple(sorted(better)),
        )  # fmt: skip

    def _all_refuted(self, ratio: Fraction) -> bool:
        """Return whether nothing better exists with R <= S + k (with any k: the k that certificates state)."""
        k = USUAL_K if self.limits.k is None else self.limits.k
        any_parts = replace(self.limits, k=k, parts=_NO_LIMIT)
        better = list_candidates(self.steps, self.least_ratio, ratio, self.search.instance.input_weight, any_parts)
        return all(self._known_impossible(candidate) for candidate in better)


def _without_steps(point: tuple[int, int, int]) -> PartsAndRounds:
    """Return a candidate from (parts, steps, rounds), as other files state it."""
    parts, _, rounds = point
    return PartsAndRounds(parts, rounds)


def list_candidates(
    steps: int, lowest: Fraction, best: Fraction | None, weight: int, limits: Limits
) -> Iterator[PartsAndRounds]:
    """Yield the candidates with lowest <= R / C < best, by ascending ratio, then fewer chunks.

    `weight`: chunks of a rank's input at one part per block.
    """
    k = USUAL_K if limits.k is None else limits.k
    ratios: dict[PartsAndRounds, Fraction] = {}
    for rounds in range(steps, steps + k + 1):
        # R / C < best, and R / C >= lowest, as bounds on the parts
        min_parts = 1 if best is None else math.floor(rounds / (best * weight)) + 1
        # 0 bounds no number of parts, so only the fewest is a candidate
        max_parts = math.floor(rounds / (lowest * weight)) if lowest else min_parts
        for parts in range(max(min_parts, 1), min(max_parts, limits.parts) + 1):
            ratio = Fraction(rounds, parts * weight)
            if ratio >= lowest and (best is None or ratio < best):
                ratios[PartsAndRounds(parts, rounds)] = ratio
    if limits.k is None:
        # without k: the fewest rounds for each small number of parts, and numbers of parts that can meet the bound
        # exactly
        target = lowest * weight  # the least rounds per part
        exact_parts = [target.denominator * times for times in range(1, MULTIPLES + 1)]
        for parts in sorted({*range(1, MOST_PARTS + 1), *exact_parts}):
            rounds = max(steps, math.ceil(parts * target))
            ratio = Fraction(rounds, parts * weight)
            if parts <= limits.parts and (best is None or ratio < best):
                ratios[PartsAndRounds(parts, rounds)] = ratio
    yield from sorted(ratios, key=lambda candidate: (ratios[candidate], candidate))
