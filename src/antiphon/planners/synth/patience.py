"""Decide candidates in order, each with a share of the remaining effort; long ones in worker processes.

A candidate is a point (parts, steps, rounds); deciding it means to find an algorithm or to refute it. Some are decided
at once, some never. Each gets a share of the effort that is left, so that a hard one cannot starve the others; in the
last turn the share is all.

Determinism: what each candidate may spend is fixed before any of them starts (a share of the effort at that time), and
what it did spend is charged in the order of candidates. So the verdicts do not depend on the number of workers. Once a
fixed allowance is used up, the remaining candidates count as cut: not tried for lack of effort.

Example: effort 1000, share 1/10, allowance 1/2. Candidates A, B, C, ... may each spend 100, and all together 500. On
two workers A and B run side by side; B ends first with 30, but A's 100 are charged first. If A finds an algorithm that
makes C useless, C is skipped (`is_wanted`), as it would be with one worker.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass

from antiphon.errors import EffortSpent, TimedOut
from antiphon.isolate import Lost, Say, Stopped, Terms, can_fork, usual_workers
from antiphon.isolate import in_order as each_apart
from antiphon.planners.synth.auto import TURN_LIMITS, Decided, decide_candidate
from antiphon.planners.synth.purse import TOO_LATE, UNIT, Purse
from antiphon.planners.synth.search import Findings

Candidate = tuple[int, int, int]  # parts, steps, rounds
Wanted = Callable[[Candidate], bool]
Tell = Callable[[str], None]
LEAST = UNIT  # of effort
TOGETHER = 2  # candidates of one number of steps get 1 / TOGETHER of the remaining effort, except in the last turn
QUICK_TURNS = 1  # this many take little time on a small instance


@dataclass(frozen=True)
class Patience:
    """What a candidate may use.

    `share`: of the remaining effort, so that others get their turn; `workers`: number of candidates decided in parallel
    where that may take long (None: number of processors).
    """

    turns: int
    share: float
    memory: int | None = None
    workers: int | None = None


@dataclass(frozen=True)
class Verdict:
    """What was decided of a candidate. `cut`: nothing, for lack of effort; more would have been tried."""

    candidate: Candidate
    decided: Decided
    cut: bool = False
    spent: int = 0


def in_order(
    search: Findings, candidates: Sequence[Candidate], patience: Patience, *, is_wanted: Wanted, tell: Tell
) -> Generator[Verdict, None, None]:
    """Yield the verdict on every candidate that is still wanted at its turn. Raises EffortSpent once all is spent.

    Candidates that may take long are decided in processes of their own, several in parallel; the verdicts are the same
    for any number of workers.
    """
    if not candidates:
        return
    search.purse.check()
    share = _candidate_share(search.purse.left(), patience.share)
    allowance = _total_allowance(search.purse.left(), patience.share)
    before, tried = search.purse.spent, 0
    apart = can_fork() and not _is_quick(search, candidates, patience.turns)
    # verdicts arrive in the order of candidates, even if later ones end first
    with closing(
        (_decide_in_workers if apart else _decide_here)(search, candidates, patience, share, is_wanted, tell)
    ) as verdicts:
        for verdict in verdicts:
            tried = candidates.index(verdict.candidate) + 1
            search.purse.spent += verdict.spent
            yield verdict
            search.purse.check()
            if allowance is not None and search.purse.spent - before >= allowance:
                break
        else:
            return
    yield from (Verdict(candidate, None, cut=True) for candidate in candidates[tried:] if is_wanted(candidate))


def _is_quick(search: Findings, candidates: Sequence[Candidate], turns: int) -> bool:
    """Return whether all tries would run in this process anyway: engine `auto` uses the same measure."""
    chunks = sum(kind.weight for kind in search.instance.kinds)
    size = max(parts * steps for parts, steps, _ in candidates) * chunks * len(search.instance.arcs)
    return turns <= QUICK_TURNS and size <= TURN_LIMITS.small_variables * len(search.group)


def _candidate_share(effort_left: int | None, share: float) -> int | None:
    """Return the effort of one candidate."""
    return None if effort_left is None else min(max(LEAST, int(share * effort_left)), effort_left)


def _total_allowance(effort_left: int | None, share: float) -> int | None:
    """Return the effort of all candidates together; None: unlimited."""
    return None if effort_left is None or share == 1.0 else max(effort_left // TOGETHER, min(LEAST, effort_left))


def _decide_in_workers(
    search: Findings,
    candidates: Sequence[Candidate],
    patience: Patience,
    share: int | None,
    is_wanted: Wanted,
    tell: Tell,
) -> Generator[Verdict, None, None]:
    def work(candidate: Candidate, say: Say) -> Verdict:
        return _decide_within(search, candidate, patience, Purse(share), say)

    workers = patience.workers or usual_workers()
    terms = Terms(work, workers, lambda candidate: search.purse.seconds(), patience.memory)
    for candidate, result in each_apart(candidates, terms, is_wanted, tell):
        if isinstance(result, Stopped):
            raise TimedOut(TOO_LATE)
        if isinstance(result, Lost):
            tell(f"{_format_candidate(search, candidate)}: {result}; going on without it")
            yield Verdict(candidate, None)
        else:
            yield result


def _decide_here(
    search: Findings,
    candidates: Sequence[Candidate],
    patience: Patience,
    share: int | None,
    is_wanted: Wanted,
    tell: Tell,
) -> Generator[Verdict, None, None]:
    for candidate in candidates:
        if is_wanted(candidate):
            yield _decide_within(search, candidate, patience, Purse(share, search.purse.until), tell)


def _decide_within(search: Findings, candidate: Candidate, patience: Patience, purse: Purse, tell: Tell) -> Verdict:
    tell(f"trying {_format_candidate(search, candidate)}; R/C >= {search.least_ratio(candidate[1])} is proved")
    # the candidate pays from its own purse; the caller charges `spent` to the outer one in order
    outer_purse, search.purse = search.purse, purse
    try:
        decided = decide_candidate(search, *candidate, tell=tell, memory=patience.memory, turns=patience.turns)
        return Verdict(candidate, decided, spent=purse.spent)
    except EffortSpent:
        return Verdict(candidate, None, cut=True, spent=purse.spent)
    finally:
        search.purse = outer_purse


def _format_candidate(search: Findings, candidate: Candidate) -> str:
    parts, steps, rounds = candidate
    return f"C = {parts * search.instance.input_weight}, S = {steps}, R = {rounds}"
