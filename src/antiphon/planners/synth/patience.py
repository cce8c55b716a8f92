"""Candidate points decided in order, each with a share of the effort left; those that may take long in processes."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass

from antiphon.errors import EffortSpent, TimedOut
from antiphon.isolate import Lost, Say, Stopped, Terms, can_fork, usual_workers
from antiphon.isolate import in_order as each_apart
from antiphon.planners.synth.auto import SMALL, Decided, decide
from antiphon.planners.synth.purse import TOO_LATE, UNIT, Purse
from antiphon.planners.synth.search import Findings

Candidate = tuple[int, int, int]  # parts, steps, rounds
Wanted = Callable[[Candidate], bool]
Tell = Callable[[str], None]
LEAST = UNIT  # of effort
TOGETHER = 2  # one part in so many of what is left goes to candidates of one number of steps, but at the last
QUICK_TURNS = 1  # so many take little time on a small instance


@dataclass(frozen=True)
class Patience:
    """What a candidate may take. `share`: of the effort left, so that others get their turn; `workers`: how many are
    decided at a time where that may take long, as many as there are processors if None.
    """

    turns: int
    share: float
    memory: int | None = None
    workers: int | None = None


@dataclass(frozen=True)
class Verdict:
    """What was decided of a candidate. `cut`: nothing, for want of effort; more would have been tried."""

    candidate: Candidate
    decided: Decided
    cut: bool = False
    spent: int = 0


def in_order(
    search: Findings, candidates: Sequence[Candidate], patience: Patience, *, wanted: Wanted, tell: Tell
) -> Generator[Verdict, None, None]:
    """The verdict on every candidate that is still wanted when its turn comes. EffortSpent once all is spent.

    Where that may take long each is decided in a process of its own, several side by side: with as many of them as
    there may be the verdicts are the same. What each may spend is settled beforehand, and what it spent is taken in its
    turn; those for which too little is left are cut untried.
    """
    if not candidates:
        return
    search.purse.check()
    share = _share(search.purse.left(), patience.share)
    allowance = _together(search.purse.left(), patience.share)
    before, tried = search.purse.spent, 0
    apart = can_fork() and not _quick(search, candidates, patience.turns)
    with closing((_apart if apart else _here)(search, candidates, patience, share, wanted, tell)) as verdicts:
        for verdict in verdicts:
            tried = candidates.index(verdict.candidate) + 1
            search.purse.spent += verdict.spent
            yield verdict
            search.purse.check()
            if allowance is not None and search.purse.spent - before >= allowance:
                break
        else:
            return
    yield from (Verdict(candidate, None, cut=True) for candidate in candidates[tried:] if wanted(candidate))


def _quick(search: Findings, candidates: Sequence[Candidate], turns: int) -> bool:
    """Whether tries run in this process, too: the engine `auto` goes by the same measure."""
    chunks = sum(kind.weight for kind in search.instance.kinds)
    size = max(parts * steps for parts, steps, _ in candidates) * chunks * len(search.instance.arcs)
    return turns <= QUICK_TURNS and size <= SMALL * len(search.group)


def _share(effort_left: int | None, share: float) -> int | None:
    return None if effort_left is None else min(max(LEAST, int(share * effort_left)), effort_left)


def _together(effort_left: int | None, share: float) -> int | None:
    return None if effort_left is None or share == 1.0 else max(effort_left // TOGETHER, min(LEAST, effort_left))


def _apart(
    search: Findings, candidates: Sequence[Candidate], patience: Patience, share: int | None, wanted: Wanted, tell: Tell
) -> Generator[Verdict, None, None]:
    def work(candidate: Candidate, say: Say) -> Verdict:
        return _decided(search, candidate, patience, Purse(share), say)

    workers = patience.workers or usual_workers()
    terms = Terms(work, workers, lambda candidate: search.purse.seconds(), patience.memory)
    for candidate, result in each_apart(candidates, terms, wanted, tell):
        if isinstance(result, Stopped):
            raise TimedOut(TOO_LATE)
        if isinstance(result, Lost):
            tell(f"{_named(search, candidate)}: {result}; going on without it")
            yield Verdict(candidate, None)
        else:
            yield result


def _here(
    search: Findings, candidates: Sequence[Candidate], patience: Patience, share: int | None, wanted: Wanted, tell: Tell
) -> Generator[Verdict, None, None]:
    for candidate in candidates:
        if wanted(candidate):
            yield _decided(search, candidate, patience, Purse(share, search.purse.until), tell)


def _decided(search: Findings, candidate: Candidate, patience: Patience, purse: Purse, tell: Tell) -> Verdict:
    tell(f"trying {_named(search, candidate)}; R/C >= {search.ratio(candidate[1])} is proved")
    outer_purse, search.purse = search.purse, purse
    try:
        decided = decide(search, *candidate, tell=tell, memory=patience.memory, turns=patience.turns)
        return Verdict(candidate, decided, spent=purse.spent)
    except EffortSpent:
        return Verdict(candidate, None, cut=True, spent=purse.spent)
    finally:
        search.purse = outer_purse


def _named(search: Findings, candidate: Candidate) -> str:
    parts, steps, rounds = candidate
    return f"C = {parts * search.instance.input_weight}, S = {steps}, R = {rounds}"
