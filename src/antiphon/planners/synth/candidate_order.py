"""Decide candidates in order, each with a share of the remaining effort; long ones in worker processes.

A candidate is (parts, steps, rounds), parts being chunks per block; deciding it means to find an algorithm or to prove
that there is none. Some are decided at once, some never. Each gets a share of the remaining effort (units of work,
effort_budget.py), so that a hard one cannot starve the others; in the caller's last pass over the undecided ones the
share is 1.

Determinism: what each candidate may spend is fixed before any of them starts (a share of the effort at that time), and
what it did spend is charged in the order of candidates. So the verdicts do not depend on the number of workers. Once a
fixed allowance for all of them is used up, the remaining candidates are cut: not tried for lack of effort.

Example: effort 1000, share 1/10, allowance 1/2. Candidates A, B, C, ... may each spend 100, and all together 500. On
two workers A and B run side by side; B ends first with 30, but A's 100 are charged first. If A finds an algorithm that
makes C useless, C is skipped (`is_wanted`), as it would be with one worker.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass

from antiphon.errors import EffortSpent, TimedOut
from antiphon.isolate import Lost, PoolTerms, Send, Stopped, can_fork, usual_workers
from antiphon.isolate import in_order as run_in_order
from antiphon.planners.synth.auto import TURN_LIMITS, Decided, decide_candidate
from antiphon.planners.synth.effort_budget import BUDGET_SPENT, UNIT, EffortBudget
from antiphon.planners.synth.search import SearchState

Candidate = tuple[int, int, int]  # parts, steps, rounds
Wanted = Callable[[Candidate], bool]  # whether a candidate would still improve on the solutions so far
Tell = Callable[[str], None]  # prints a line of progress
MIN_SHARE = UNIT  # effort that every candidate gets at least
# candidates of one number of steps get 1 / ALLOWANCE_DIVISOR of the remaining effort together, except in the last pass
ALLOWANCE_DIVISOR = 2
QUICK_TURNS = 1  # up to this many turns (passes with growing limits) of `auto` take little time on a small instance


@dataclass(frozen=True)
class CandidateLimits:
    """What a candidate may use.

    `turns`: of engine `auto`; `share`: fraction of the remaining effort; `memory`: bytes; `workers`: number of
    candidates decided in parallel where that may take long (None: number of processors).
    """

    turns: int
    share: float
    memory: int | None = None
    workers: int | None = None


@dataclass(frozen=True)
class Verdict:
    """The result for a candidate. `cut`: it is undecided for lack of effort; `spent`: effort used."""

    candidate: Candidate
    decided: Decided
    cut: bool = False
    spent: int = 0


def decide_in_order(
    search: SearchState, candidates: Sequence[Candidate], limits: CandidateLimits, *, is_wanted: Wanted, tell: Tell
) -> Generator[Verdict, None, None]:
    """Yield the verdict on every candidate that is still wanted at its turn. Raises EffortSpent once all is spent.

    Candidates that may take long are decided in processes of their own, several in parallel; the verdicts are the same
    for any number of workers.
    """
    if not candidates:
        return
    search.budget.check()
    share = _candidate_share(search.budget.left(), limits.share)
    allowance = _total_allowance(search.budget.left(), limits.share)
    before, tried = search.budget.spent, 0
    in_workers = can_fork() and not _is_quick(search, candidates, limits.turns)
    # verdicts arrive in the order of candidates, even if later ones end first
    with closing(
        (_decide_in_workers if in_workers else _decide_here)(search, candidates, limits, share, is_wanted, tell)
    ) as verdicts:
        for verdict in verdicts:
            tried = candidates.index(verdict.candidate) + 1
            search.budget.spent += verdict.spent  # `check` comes later, so that the verdict is not lost
            yield verdict
            search.budget.check()
            if allowance is not None and search.budget.spent - before >= allowance:
                break
        else:
            return
    yield from (Verdict(candidate, decided=None, cut=True) for candidate in candidates[tried:] if is_wanted(candidate))


def _is_quick(search: SearchState, candidates: Sequence[Candidate], turns: int) -> bool:
    """Return whether all tries would run in this process anyway: engine `auto` uses the same measure."""
    chunks = sum(kind.weight for kind in search.instance.kinds)
    size = max(parts * steps for parts, steps, _ in candidates) * chunks * len(search.instance.arcs)
    # the instance's symmetries (`group`) divide the number of variables
    return turns <= QUICK_TURNS and size <= TURN_LIMITS.small_variables * len(search.group)


def _candidate_share(effort_left: int | None, share: float) -> int | None:
    """Return the effort of one candidate; None: unlimited."""
    return None if effort_left is None else min(max(MIN_SHARE, int(share * effort_left)), effort_left)


def _total_allowance(effort_left: int | None, share: float) -> int | None:
    """Return the effort of all candidates together; None: unlimited, as in the last pass (share 1)."""
    return (
        None
        if effort_left is None or share == 1.0
        else max(effort_left // ALLOWANCE_DIVISOR, min(MIN_SHARE, effort_left))
    )


def _decide_in_workers(
    search: SearchState,
    candidates: Sequence[Candidate],
    limits: CandidateLimits,
    share: int | None,
    is_wanted: Wanted,
    tell: Tell,
) -> Generator[Verdict, None, None]:
    """Decide the candidates in child processes; yield verdicts in order."""

    def decide(candidate: Candidate, send: Send) -> Verdict:
        """Decide a candidate in a child process, whose lines of progress `send` passes to this process."""
        return _decide_within(search, candidate, limits, EffortBudget(share), send)

    workers = limits.workers or usual_workers()
    terms = PoolTerms(decide, workers=workers, seconds=lambda candidate: search.budget.seconds(), memory=limits.memory)
    for candidate, result in run_in_order(candidates, terms, is_wanted, tell):
        if isinstance(result, Stopped):
            raise TimedOut(BUDGET_SPENT)
        if isinstance(result, Lost):
            # the worker process died: undecided, but not for lack of effort
            tell(f"{_format_candidate(search, candidate)}: {result}; going on without it")
            yield Verdict(candidate, decided=None)
        else:
            yield result


def _decide_here(
    search: SearchState,
    candidates: Sequence[Candidate],
    limits: CandidateLimits,
    share: int | None,
    is_wanted: Wanted,
    tell: Tell,
) -> Generator[Verdict, None, None]:
    """Decide the candidates in this process, one after the other."""
    for candidate in candidates:
        if is_wanted(candidate):
            yield _decide_within(search, candidate, limits, EffortBudget(share, search.budget.until), tell)


def _decide_within(
    search: SearchState, candidate: Candidate, limits: CandidateLimits, budget: EffortBudget, tell: Tell
) -> Verdict:
    """Decide one candidate within its own budget."""
    _, steps, _ = candidate
    tell(f"trying {_format_candidate(search, candidate)}; proved for S = {steps}: R/C >= {search.least_ratio(steps)}")
    # the candidate pays from its own budget; the caller charges `spent` to the outer one in order
    outer_budget, search.budget = search.budget, budget
    try:
        decided = decide_candidate(search, *candidate, tell=tell, memory=limits.memory, turns=limits.turns)
        return Verdict(candidate, decided, spent=budget.spent)
    except EffortSpent:
        return Verdict(candidate, decided=None, cut=True, spent=budget.spent)
    finally:
        search.budget = outer_budget


def _format_candidate(search: SearchState, candidate: Candidate) -> str:
    """Return the candidate as text: (C, S, R), where C counts the chunks of a rank's input."""
    parts, steps, rounds = candidate
    return f"C = {parts * search.instance.input_weight}, S = {steps}, R = {rounds}"
