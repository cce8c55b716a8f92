"""SCCL's Algorithm 1, mended: for every number of steps the least R / C, until the bandwidth bound is met.

For given k all (R, C) with S <= R <= S + k are tried in ascending order of R / C, skipping what the program over
time forbids and what is no better than fewer steps allow; the first that exists is the point of that S. Without k
there are infinitely many candidates; then the least R / C that the program allows is sought with ever more chunks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from fractions import Fraction

from antiphon.core.ksync.certificate import BEST_FOUND, FOR_K, OPTIMAL
from antiphon.core.ksync.instance import Instance
from antiphon.errors import TimedOut
from antiphon.planners.synth.auto import Solved
from antiphon.planners.synth.linear import Proved
from antiphon.planners.synth.patience import Patience, in_order
from antiphon.planners.synth.search import Findings, Impossible
from antiphon.planners.synth.task import Move, rounds_of

USUAL_K = 4
QUICK_TURNS = 1
PATIENCE, SOON = 0.4, 0.1  # of the effort left, for one candidate; on large instances at first
LARGE = 3000  # chunks of one part, times arcs, times steps
MOST_PARTS = 12  # tried where no k is given, each with the fewest rounds it may take;
MULTIPLES = 2  # besides so many multiples of the least number that could meet the bound
MOST_CHUNKS = 64  # parts tried for one number of steps where no k is given

Tell = Callable[[str], None]
Parts = tuple[int, int]  # and rounds


@dataclass(frozen=True)
class Refuted:
    """A candidate that does not exist, and why; so none with more parts or fewer rounds does."""

    parts: int
    rounds: int
    why: Impossible


@dataclass(frozen=True)
class Point:
    """One point of the frontier. `least`: the proof of the least R / C of so many steps; `refuted`: what would have
    been better and does not exist; `open`: what would have been better and was not decided.
    """

    instance: Instance
    parts: int
    steps: int
    rounds: int
    moves: tuple[Move, ...]
    engine: str
    proof: str
    least: Proved
    refuted: tuple[Refuted, ...] = ()
    open: tuple[tuple[int, int], ...] = ()  # (parts, rounds)

    @property
    def chunks(self) -> int:
        return self.parts * self.instance.input_weight

    @property
    def ratio(self) -> Fraction:
        return Fraction(self.rounds, self.chunks)


@dataclass(frozen=True)
class Limits:
    """Where the search ends: greatest steps, k (None: any), memory per worker, greatest parts. `workers`: how many
    candidates are decided at a time where that may take long; None: as many as there are processors, up to 4.
    """

    k: int | None = USUAL_K
    steps: int | None = None
    memory: int | None = None
    parts: int = MOST_CHUNKS
    turns: int = 6
    workers: int | None = None


def frontier(search: Findings, floor: Fraction, limits: Limits, tell: Tell = lambda text: None) -> Iterator[Point]:
    """The points, fewest steps first, each as soon as it is found. `floor`: the bandwidth bound on R / C.

    Ends when R / C meets the floor, at the most steps, or by EffortSpent. On large instances
    and where effort is short, a point is first the best that was found soon; once all numbers of steps had their turn,
    one that is better or better proved may follow for the same steps.
    """
    instance = search.instance
    best: Fraction | None = None
    steps = max(instance.least_steps, 1)
    later: list[_Seen] = []
    pressed = False
    while (limits.steps is None or steps <= limits.steps) and (best is None or best > floor):
        lowest_ratio = search.ratio(steps)
        if best is None or lowest_ratio < best:
            state = _Seen(search, steps, lowest_ratio, best, limits, tell, pressed)
            state.soon()
            point = state.point()
            if point is not None:
                best = point.ratio
                yield point
            pressed = state.pressed
            if state.undecided and (state.large or pressed):
                later.append(state)
        steps += 1
    for share in (PATIENCE, 1.0):  # with what is then left, those that took more than their share
        for state in later:
            previous = state.point()
            state.again(share)
            point = state.point()
            if point is not None and (
                previous is None or (point.ratio, point.proof) != (previous.ratio, previous.proof)
            ):
                yield point


def usual_steps(fewest: int) -> int:
    """Where the search ends by itself if the bandwidth bound is met at no finite number of steps."""
    return max(2 * fewest, fewest + 4)


def is_large(instance: Instance, steps: int) -> bool:
    """Whether a candidate may well take long to decide."""
    return sum(kind.weight for kind in instance.kinds) * len(instance.arcs) * steps > LARGE


@dataclass
class _Seen:
    """What has been decided of one number of steps, with R / C from `least` to below `best`."""

    search: Findings
    steps: int
    least: Fraction
    best: Fraction | None
    limits: Limits
    tell: Tell
    pressed: bool  # effort is short
    found: tuple[int, int, Solved] | None = None
    refuted: list[Refuted] = field(default_factory=list)
    undecided: list[Parts] = field(default_factory=list)
    tried: dict[Parts, int] = field(default_factory=dict)  # undecided after so many turns

    @property
    def large(self) -> bool:
        return is_large(self.search.instance, self.steps)

    def soon(self) -> None:
        """Every candidate with little effort: by ascending R / C until one is found, and then, with more effort,
        those left undecided. On large instances only the first, the smallest first, each better than the last.

        Where effort is short (a candidate takes more than its share) the smallest comes first, and what asks for more
        effort waits until all numbers of steps had their turn.
        """
        weight = self.search.instance.input_weight
        candidates = list(_candidates(self.steps, self.least, self.best, weight, self.limits))
        try:
            if self.large:
                self._go_through(sorted(candidates), QUICK_TURNS, SOON)
            elif not self._go_through(candidates, QUICK_TURNS, SOON, one=True, hasty=True):
                self.pressed = True
                self._go_through(sorted(candidates), QUICK_TURNS, SOON, one=True)
                self.undecided = [one for one in candidates if self._wanted(one)]
            elif not self.pressed:
                self.pressed = not self._go_through(self._left(), self.limits.turns, SOON, hasty=True)
        except TimedOut:
            if self.found is None:
                raise

    def again(self, share: float) -> None:
        """Those left undecided that would be better, with more effort."""
        try:
            self._go_through(self._left(), self.limits.turns, share)
        except TimedOut:
            if self.found is None:
                raise

    def _left(self) -> list[Parts]:
        """The least demanding first: to refute it refutes more demanding ones, too."""
        candidates = [candidate for candidate in self.undecided if self.tried.get(candidate, 0) < self.limits.turns]
        return sorted(candidates, key=lambda candidate: (Fraction(*candidate), candidate))

    def _go_through(
        self, candidates: Iterable[Parts], turns: int, share: float, *, one: bool = False, hasty: bool = False
    ) -> bool:
        """Decide them in order, each only if it would be better than what is found; `one`: until one is found.

        With `hasty` the first that takes more than its share ends it; then the answer is False.
        """
        results = in_order(
            self.search, [(parts, self.steps, rounds) for parts, rounds in candidates],
            Patience(turns, share, self.limits.memory, self.limits.workers),
            wanted=lambda of: self._wanted((of[0], of[2])), tell=self.tell,
        )  # fmt: skip
        with closing(results):
            for verdict in results:
                parts, _, rounds = verdict.candidate
                if isinstance(verdict.decided, Solved):
                    self.found = parts, rounds, verdict.decided
                    if one:
                        return True
                elif isinstance(verdict.decided, Impossible):
                    self.refuted.append(Refuted(parts, rounds, verdict.decided))
                else:
                    self.tried[parts, rounds] = 0 if verdict.cut else turns
                    if (parts, rounds) not in self.undecided:
                        self.undecided.append((parts, rounds))
                    if verdict.cut and hasty:
                        return False
        return True

    def _wanted(self, candidate: Parts) -> bool:
        """Whether it may exist, as far as is known, and would be better than what is found."""
        parts, rounds = candidate
        if self._known_impossible(parts, rounds):
            return False
        return self.found is None or rounds * self.found[0] < self.found[1] * parts

    def _known_impossible(self, parts: int, rounds: int) -> bool:
        return any(r.parts <= parts and r.rounds >= rounds for r in self.refuted)

    def point(self) -> Point | None:
        if self.found is None:
            return None
        search, (parts, rounds, decided) = self.search, self.found
        rounds = max(self.steps, sum(rounds_of(search.instance, decided.moves)))
        better = [
            candidate for candidate in self.undecided
            if candidate[1] * parts < rounds * candidate[0] and not self._known_impossible(*candidate)
        ]  # fmt: skip
        ratio = Fraction(rounds, parts * search.instance.input_weight)
        proof = OPTIMAL if ratio == self.least else FOR_K if self._all_refuted(ratio) else BEST_FOUND
        return Point(
            search.instance, parts, self.steps, rounds, decided.moves, decided.engine, proof,
            search.proved(self.steps), tuple(self.refuted), tuple(sorted(better)),
        )  # fmt: skip

    def _all_refuted(self, ratio: Fraction) -> bool:
        """Whether nothing better exists with R <= S + k."""
        k = USUAL_K if self.limits.k is None else self.limits.k
        bounded = replace(self.limits, k=k, parts=10**9)
        better = _candidates(self.steps, self.least, ratio, self.search.instance.input_weight, bounded)
        return all(self._known_impossible(parts, rounds) for parts, rounds in better)


def _candidates(
    steps: int, lowest: Fraction, best: Fraction | None, weight: int, limits: Limits
) -> Iterator[tuple[int, int]]:
    """(parts, rounds) with least <= R / C < best, by ascending ratio, then fewer chunks."""
    k = USUAL_K if limits.k is None else limits.k
    ratios: dict[tuple[int, int], Fraction] = {}
    for rounds in range(steps, steps + k + 1):
        fewest = 1 if best is None else math.floor(rounds / (best * weight)) + 1
        max_parts = math.floor(rounds / (lowest * weight)) if lowest else fewest
        for parts in range(max(fewest, 1), min(max_parts, limits.parts) + 1):
            ratio = Fraction(rounds, parts * weight)
            if ratio >= lowest and (best is None or ratio < best):
                ratios[parts, rounds] = ratio
    if limits.k is None:
        target = lowest * weight  # of rounds per part
        met = [target.denominator * times for times in range(1, MULTIPLES + 1)]
        for parts in sorted({*range(1, MOST_PARTS + 1), *met}):
            rounds = max(steps, math.ceil(parts * target))
            ratio = Fraction(rounds, parts * weight)
            if parts <= limits.parts and (best is None or ratio < best):
                ratios[parts, rounds] = ratio
    yield from sorted(ratios, key=lambda candidate: (ratios[candidate], candidate))
