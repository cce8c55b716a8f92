"""Candidate points decided in order, each with a share of the time left; those that may take long in processes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

from antiphon.errors import TimedOut
from antiphon.planners.sccl._auto import SMALL, Decided, decide
from antiphon.planners.sccl._pool import Terms, can_fork, side_by_side, usual_workers
from antiphon.planners.sccl._search import Search
from antiphon.planners.sccl._worker import Late, Lost

Candidate = tuple[int, int, int]  # parts, steps, rounds
Tell = Callable[[str], None]
LEAST = 1.0  # seconds
QUICK_TURNS = 1  # so many take little time on a small instance


@dataclass(frozen=True)
class Patience:
    """What a candidate may take. `share`: of the time left, so that others get their turn; `workers`: how many are
    decided at a time where that may take long, as many as there are processors if None.
    """

    turns: int
    share: float
    memory: int | None = None
    workers: int | None = None


@dataclass(frozen=True)
class Verdict:
    """What was decided of a candidate. `cut`: nothing, for want of time; more would have been tried."""

    candidate: Candidate
    decided: Decided
    cut: bool = False


def in_order(
    search: Search, candidates: Sequence[Candidate], patience: Patience, *, wanted: Callable[[Candidate], bool],
    tell: Tell,
) -> Generator[Verdict, None, None]:  # fmt: skip
    """The verdict on every candidate that is still wanted when its turn comes. TimedOut at the deadline.

    Where that may take long each is decided in a process of its own, several side by side: with as many of them as
    there may be the verdicts are the same, but for the time they take.
    """
    if candidates and can_fork() and not _quick(search, candidates, patience.turns):
        yield from _apart(search, candidates, patience, wanted, tell)
        return
    for candidate in candidates:
        if wanted(candidate):
            yield _here(search, candidate, patience, tell)


def _quick(search: Search, candidates: Sequence[Candidate], turns: int) -> bool:
    """Whether tries run in this process, too: the engine `auto` goes by the same measure."""
    chunks = sum(kind.weight for kind in search.instance.kinds)
    size = max(parts * steps for parts, steps, _ in candidates) * chunks * len(search.instance.arcs)
    return turns <= QUICK_TURNS and size <= SMALL * len(search.group)


def _apart(
    search: Search, candidates: Sequence[Candidate], patience: Patience, wanted: Callable[[Candidate], bool], tell: Tell
) -> Generator[Verdict, None, None]:
    def work(candidate: Candidate, said: Tell) -> Verdict:
        return _here(search, candidate, patience, said)

    workers = patience.workers or usual_workers()
    terms = Terms(work, wanted, lambda: _seconds(search, patience.share), workers, patience.memory, tell)
    for candidate, verdict in side_by_side(candidates, terms):
        if isinstance(verdict, Late):
            search.left()
            yield Verdict(candidate, None, cut=True)
        elif isinstance(verdict, Lost):
            tell(f"{_named(search, candidate)}: {verdict}; going on without it")
            yield Verdict(candidate, None)
        else:
            yield verdict


def _here(search: Search, candidate: Candidate, patience: Patience, tell: Tell) -> Verdict:
    """In this process."""
    whole = search.deadline
    least = search.ratio(candidate[1])
    tell(f"trying {_named(search, candidate)}; R/C >= {least} is proved")
    search.deadline = min(time.monotonic() + _seconds(search, patience.share), whole)
    try:
        return Verdict(candidate, decide(search, *candidate, tell=tell, memory=patience.memory, turns=patience.turns))
    except TimedOut:
        search.deadline = whole
        search.left()
        return Verdict(candidate, None, cut=True)
    finally:
        search.deadline = whole


def _seconds(search: Search, share: float) -> float:
    if search.deadline == math.inf:
        return math.inf
    left = search.left()
    return min(max(LEAST, share * left), left)


def _named(search: Search, candidate: Candidate) -> str:
    parts, steps, rounds = candidate
    return f"C = {parts * search.instance.input_weight}, S = {steps}, R = {rounds}"
