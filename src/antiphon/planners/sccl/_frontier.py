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
from antiphon.planners.sccl._auto import Found
from antiphon.planners.sccl._linear import Proved
from antiphon.planners.sccl._patience import in_order
from antiphon.planners.sccl._search import Impossible, Search
from antiphon.planners.sccl._task import Move, rounds_of

USUAL_K = 4
QUICK_TURNS = 1
PATIENCE, SOON = 0.4, 0.1  # of the time left, for one candidate; on large instances at first
LARGE = 3000  # chunks of one part, times arcs, times steps
MOST_PARTS = 12  # tried where no k is given, each with the fewest rounds it may take;
MULTIPLES = 2  # besides so many multiples of the least number that could meet the bound
MOST_CHUNKS = 64  # parts tried for one number of steps where no k is given

Tell = Callable[[str], None]


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
    """Where the search ends: greatest steps, k (None: any), seconds, memory per worker, greatest parts."""

    k: int | None = USUAL_K
    steps: int | None = None
    memory: int | None = None
    parts: int = MOST_CHUNKS
    turns: int = 6


def frontier(search: Search, floor: Fraction, limits: Limits, tell: Tell = lambda text: None) -> Iterator[Point]:
    """The points, fewest steps first, each as soon as it is found. `floor`: the bandwidth bound on R / C.

    Ends when R / C meets the floor, at the most steps, or by TimedOut at the search's deadline. On large instances
    a point is first the best that was found soon; once all numbers of steps had their turn, one that is better or
    better proved may follow for the same steps.
    """
    instance = search.instance
    best: Fraction | None = None
    steps = max(instance.least_steps, 1)
    later: list[_Seen] = []
    while (limits.steps is None or steps <= limits.steps) and (best is None or best > floor):
        least = search.ratio(steps)
        if best is None or least < best:
            seen = _Seen(search, steps, least, best, limits, tell)
            seen.soon()
            point = seen.point()
            if point is not None:
                best = point.ratio
                yield point
            if seen.undecided and seen.large:
                later.append(seen)
        steps += 1
    for seen in later:
        known = seen.point()
        seen.again()
        point = seen.point()
        if point is not None and (known is None or (point.ratio, point.proof) != (known.ratio, known.proof)):
            yield point


@dataclass
class _Seen:
    """What has been decided of one number of steps, with R / C from `least` to below `best`."""

    search: Search
    steps: int
    least: Fraction
    best: Fraction | None
    limits: Limits
    tell: Tell
    found: tuple[int, int, Found] | None = None
    refuted: list[Refuted] = field(default_factory=list)
    undecided: list[tuple[int, int]] = field(default_factory=list)

    @property
    def large(self) -> bool:
        chunks = sum(kind.weight for kind in self.search.instance.kinds)
        return chunks * len(self.search.instance.arcs) * self.steps > LARGE

    def soon(self) -> None:
        """Every candidate with little effort: by ascending R / C until one is found, and then, with more effort,
        those left undecided. On large instances only the first, the smallest first, each better than the last.
        """
        weight = self.search.instance.input_weight
        candidates = list(_candidates(self.steps, self.least, self.best, weight, self.limits))
        if self.large:
            candidates.sort()
        try:
            self.go_through(candidates, QUICK_TURNS, first=not self.large)
            if not self.large:
                self.again()
        except TimedOut:
            if self.found is None:
                raise

    def again(self) -> None:
        """Those left undecided that would be better, the least demanding first: to refute it refutes more demanding
        ones, too."""
        left = sorted(self.undecided, key=lambda one: (Fraction(*one), one))
        try:
            self.go_through(left, self.limits.turns, first=False)
        except TimedOut:
            if self.found is None:
                raise

    def go_through(self, candidates: Iterable[tuple[int, int]], turns: int, *, first: bool) -> None:
        """Decide them in order; `first`: until one is found, else go on to those that would be better still."""
        limits = self.limits
        wanted = ((parts, self.steps, rounds) for parts, rounds in candidates if self._wanted(parts, rounds))
        results = in_order(
            self.search, wanted, turns=turns, memory=limits.memory, tell=self.tell,
            share=SOON if self.large and turns == QUICK_TURNS else PATIENCE,
        )  # fmt: skip
        with closing(results):
            for (parts, _, rounds), decided in results:
                if isinstance(decided, Found):
                    if self.found is None or rounds * self.found[0] < self.found[1] * parts:
                        self.found = parts, rounds, decided
                    if first:
                        return
                elif isinstance(decided, Impossible):
                    self.refuted.append(Refuted(parts, rounds, decided))
                elif (parts, rounds) not in self.undecided:
                    self.undecided.append((parts, rounds))

    def _wanted(self, parts: int, rounds: int) -> bool:
        if self._known_impossible(parts, rounds):
            return False
        if self.found is not None and rounds * self.found[0] >= self.found[1] * parts:
            return False
        chunks = parts * self.search.instance.input_weight
        self.tell(f"trying C = {chunks}, S = {self.steps}, R = {rounds}; R/C >= {self.least} is proved")
        return True

    def _known_impossible(self, parts: int, rounds: int) -> bool:
        return any(r.parts <= parts and r.rounds >= rounds for r in self.refuted)

    def point(self) -> Point | None:
        if self.found is None:
            return None
        search, (parts, rounds, decided) = self.search, self.found
        rounds = max(self.steps, sum(rounds_of(search.instance, decided.moves)))
        better = [
            one for one in self.undecided
            if one[1] * parts < rounds * one[0] and not self._known_impossible(*one)
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
    steps: int, least: Fraction, best: Fraction | None, weight: int, limits: Limits
) -> Iterator[tuple[int, int]]:
    """(parts, rounds) with least <= R / C < best, by ascending ratio, then fewer chunks."""
    k = USUAL_K if limits.k is None else limits.k
    found: dict[tuple[int, int], Fraction] = {}
    for rounds in range(steps, steps + k + 1):
        fewest = 1 if best is None else math.floor(rounds / (best * weight)) + 1
        most = math.floor(rounds / (least * weight)) if least else fewest
        for parts in range(max(fewest, 1), min(most, limits.parts) + 1):
            ratio = Fraction(rounds, parts * weight)
            if ratio >= least and (best is None or ratio < best):
                found[parts, rounds] = ratio
    if limits.k is None:
        target = least * weight  # of rounds per part
        met = [target.denominator * times for times in range(1, MULTIPLES + 1)]
        for parts in sorted({*range(1, MOST_PARTS + 1), *met}):
            rounds = max(steps, math.ceil(parts * target))
            ratio = Fraction(rounds, parts * weight)
            if parts <= limits.parts and (best is None or ratio < best):
                found[parts, rounds] = ratio
    yield from sorted(found, key=lambda one: (found[one], one))
