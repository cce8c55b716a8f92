"""Decide whether an algorithm with these parts (chunks per block), steps and rounds exists, by the quickest engine.

Input is one candidate (parts, steps, rounds); the answer is an algorithm (`Solved`), a proof that there is none
(`Impossible`), or None if the effort did not suffice. Methods in order:

    1. bounds: distance, and the least rounds per part of that many steps (search.check_bounds)
    2. a split (rounds of each step) that the linear program admits, or a proof that it admits none
    3. integer flows (flow.py), if every chunk has one destination
    4. SAT in turns: in turn t every combination of symmetry, split and solver may take about 3000 * 4^t conflicts
       (backtracks of the solver); the number of symmetries and splits grows with t, too

A solution that is symmetric and has a fixed split is by far the quickest to find, but "unsatisfiable with this symmetry
or split" proves nothing for the whole problem. So each turn also includes one try without symmetry and with free
rounds, which looks for a resolution proof that can be checked.

Limits count conflicts, not seconds, and all work is charged to the effort budget, so the answer depends on the seed and
the effort alone. Answers that can be checked (an algorithm, a resolution proof) go to the cache with the effort spent
after every turn, so that a cached answer is charged as if it had been computed again.

Example: allgather on the DGX-1, parts 2, steps 2, rounds 3: the linear program admits a split into 1 and 2 rounds, and
MiniSat finds an algorithm in turn 0. With rounds 2 the bound of step 1 refutes the candidate: 2 steps need 3/2 rounds
per part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from antiphon.core.ksync.cnf import Question
from antiphon.errors import TimedOut
from antiphon.isolate import Lost, Stopped, run_in_child
from antiphon.planners.synth.cache import CachedAnswer
from antiphon.planners.synth.effort_budget import BUDGET_SPENT
from antiphon.planners.synth.flow import has_single_destinations, solve_flow
from antiphon.planners.synth.group import SymmetryGroup
from antiphon.planners.synth.refute import find_refutation
from antiphon.planners.synth.sat import solve_sat
from antiphon.planners.synth.search import Impossible, SearchState
from antiphon.planners.synth.task import Answer, Effort, Move, Task


@dataclass(frozen=True)
class TurnLimits:
    """Effort of the turns in which a candidate is decided, in conflicts, and sizes in variables."""

    first_conflicts: int = 3000  # in turn 0; four times as many in every next turn
    quick_conflicts: int = 10000  # up to this a try runs in this process, else in a child process
    turns: int = 8  # maximum number of turns
    flow_groups: int = 3  # subgroups under which whole flows are tried
    shuffles: int = 5  # orders of the variables that are tried
    middle_splits: int = 2  # splits from the middle of the admitted ones that turn 0 adds ...
    few_variables: int = 3000  # ... if the linear program has at most this many variables
    small_variables: int = 20000  # size up to which a try is quick
    refuting_factor: int = 4  # the try without symmetry and split may take this many times the conflicts of others
    proving_conflicts: int = 50000  # to turn a refutation by flows into a proof ...
    provable_variables: int = 100000  # ... which is tried up to this size
    refutable_variables: int = 5000  # times 4 for every turn: the size up to which refuting is tried


TURN_LIMITS = TurnLimits()


@dataclass(frozen=True)
class Solved:
    """An algorithm, and the engine that found it. Steps in which nothing moves are left out, so there may be fewer."""

    moves: tuple[Move, ...]
    engine: str

    def __post_init__(self) -> None:
        # run backwards, an idle first step would be an idle last one, which no schedule has
        number = {step: i for i, step in enumerate(sorted({step for *_, step in self.moves}))}
        moves = tuple((kind, chunk, path, number[step]) for kind, chunk, path, step in self.moves)
        object.__setattr__(self, "moves", moves)


Decided = Solved | Impossible | None
Tell = Callable[[str], None]  # receives lines of progress


def decide_candidate(
    search: SearchState, parts: int, steps: int, rounds: int, *, tell: Tell = lambda text: None,
    memory: int | None = None, turns: int = TURN_LIMITS.turns,
) -> Decided:  # fmt: skip
    """Return Solved, Impossible with its proof, or None if that many turns gave no answer.

    `memory`: limit in bytes of a child process. Raises EffortSpent when the search's budget is empty, or TimedOut.
    """
    forbidden = search.check_bounds(parts, steps, rounds)
    if forbidden is not None:
        return forbidden
    task = Task(search.instance, parts, steps, rounds)
    if search.cache is None:
        decided, _ = _ask_engines(search, task, tell, memory, turns)
        return decided
    question = search.cache_question(parts, steps, rounds)
    cached = search.cache.get(question)
    if cached is None:
        before = search.budget.spent
        decided, spent_after = _ask_engines(search, task, tell, memory, turns)
        prices = [total - before for total in [*spent_after, search.budget.spent]]  # after each turn, the last included
        if isinstance(decided, Solved):
            search.cache.put(question, CachedAnswer(prices, decided.engine, list(decided.moves)))
        elif isinstance(decided, Impossible) and decided.resolution is not None:
            search.cache.put(question, CachedAnswer(prices, resolution=decided.resolution))
        return decided
    # charge what this many turns would have cost, and give the answer that they would have given
    search.budget.pay(cached.prices[min(turns, len(cached.prices)) - 1])
    if len(cached.prices) > turns:
        return None
    if cached.moves is None:
        return Impossible("search", resolution=cached.resolution)
    return Solved(tuple(cached.moves), cached.engine)


def _ask_engines(
    search: SearchState, task: Task, tell: Tell, memory: int | None, turns: int
) -> tuple[Decided, list[int]]:
    """Return the engines' answer, and the total effort spent after every turn before the last."""
    # Duals that forbid splits, from earlier candidates: the effort must not depend on which came before.
    search.cuts.clear()
    split = search.find_split(task.parts, task.steps, task.rounds)
    # None: the linear program admits no split, or none was found. Then go through all: either duals forbid every split,
    # or this is the first admitted one, or None if there are too many to check.
    if split is None:
        first_admitted = search.check_all_splits(task.parts, task.steps, task.rounds)
        if isinstance(first_admitted, Impossible):
            return first_admitted, []
        split = first_admitted
    if has_single_destinations(search.instance):
        flow_answer = _try_flow(search, task, split)
        if flow_answer is not None:
            return flow_answer, []
    return _try_sat(search, task, split, tell, memory, turns)


def _try_flow(search: SearchState, task: Task, split: tuple[int, ...] | None) -> Decided:
    """Try integer flows, the most symmetric first; None if all remain undecided.

    `split`: rounds of each step to try first; None: no split is known that the linear program admits.
    """
    tries: list[tuple[SymmetryGroup, tuple[int, ...] | None]] = [(search.group, split)] if split is not None else []
    tries += [(search.group, None)] if len(search.group) > 1 else []
    tries += [(group, None) for group in search.subgroups_for(task.parts)[: TURN_LIMITS.flow_groups] if len(group) > 1]
    tries += [(search.trivial_group, None)]
    for group, try_split in tries:
        search.budget.check()
        effort = Effort(seed=search.seed)
        answer: Answer = search.run_solver(
            solve_flow, replace(task, split=try_split), group, effort, search.budget.left()
        )
        search.budget.pay(answer.price)
        if answer.moves is not None:
            return Solved(answer.moves, "flow")
        # The whole problem is refuted: no symmetry, free rounds. Flows are counted per bond, so they cover every path
        # through switches. The checkable proof is about arcs; it needs all of these paths to be among the arcs.
        if answer.refuted and group is search.trivial_group and try_split is None:
            provable = _estimate_variables(task) <= TURN_LIMITS.provable_variables and search.instance.arcs.exhaustive
            proof = _find_resolution_proof(search, task, TURN_LIMITS.proving_conflicts) if provable else None
            return proof or Impossible("search")
    return None


def _find_resolution_proof(search: SearchState, task: Task, conflicts: int) -> Impossible | None:
    """Return a resolution proof of impossibility if this many conflicts suffice."""
    search.budget.check()
    # ordered: chunks of a kind are interchangeable, so refuting one order of them refutes all (cnf.py)
    question = Question(task.parts, task.steps, task.rounds, ordered=True)
    effort = Effort(conflicts, seed=search.seed)
    refutation, price = search.run_solver(find_refutation, search.instance, question, effort, search.budget.left())
    search.budget.pay(price)
    return None if refutation is None else Impossible("search", resolution=refutation.as_json())


def _try_sat(
    search: SearchState, task: Task, split: tuple[int, ...] | None, tell: Tell, memory: int | None, turns: int
) -> tuple[Decided, list[int]]:
    """Try SAT with effort that grows from turn to turn; return the answer and the total effort after each turn.

    `split`: as for `_try_flow`.
    """
    spent_after: list[int] = []
    refuted: set[tuple[int, tuple[int, ...] | None]] = set()  # refuted: (group, split)
    splits = [split] if split is not None else []
    split_source = search.more_splits(task.parts, task.steps, task.rounds)
    for turn in range(turns):
        # with one round per step there is a single split; checking it earlier would cost more than most solutions
        if turn == 1 and task.rounds == task.steps:
            impossible = search.check_all_splits(task.parts, task.steps, task.rounds)
            if isinstance(impossible, Impossible):
                return impossible, spent_after
        if turn:
            splits += _next_splits(split_source, splits, 2 * turn)  # more in every turn
        for number, try_split, solver, shuffle in _list_tries(search, task, splits, turn, split_source):
            if (number, try_split) in refuted:
                continue
            # No split, hence no symmetry either (see _list_tries): this try may refute the whole problem, if the arcs
            # include every path through switches (`exhaustive`)
            if try_split is None and search.instance.arcs.exhaustive:
                conflicts = TURN_LIMITS.refuting_factor * TURN_LIMITS.first_conflicts * 4**turn
                tell(f"looking for a proof that there is none: up to {conflicts} conflicts of the SAT solver")
                proof = _find_resolution_proof(search, task, conflicts)
                if proof is not None:
                    return proof, spent_after
                continue
            group = search.subgroups_for(task.parts)[number]
            conflicts = (
                TURN_LIMITS.first_conflicts * 4**turn * (TURN_LIMITS.refuting_factor if try_split is None else 1)
            )
            # seed 0 leaves the variables as they are (sat.py); the search's seed changes all other numberings
            effort = Effort(conflicts, seed=shuffle + (search.seed * TURN_LIMITS.shuffles if shuffle else 0))
            tell(f"{solver}: {effort.conflicts} conflicts, symmetry {len(group)}, rounds {_format_split(try_split)}")
            answer = _run_sat(search, replace(task, split=try_split), group, effort, solver, tell, memory)
            search.budget.pay(answer.price)
            if answer.moves is not None:
                return Solved(answer.moves, f"sat ({solver})"), spent_after
            if answer.refuted:
                refuted.add((number, try_split))
                # no symmetry and free rounds, but only some paths through switches: undecided, and no try can do more
                if len(group) == 1 and try_split is None:
                    return None, spent_after
        spent_after.append(search.budget.spent)
    return None, spent_after


def _format_split(split: tuple[int, ...] | None) -> str:
    return "free" if split is None else "+".join(map(str, split))


def _list_tries(
    search: SearchState, task: Task, splits: list[tuple[int, ...]], turn: int, split_source: Iterator[tuple[int, ...]]
) -> Iterator[tuple[int, tuple[int, ...] | None, str, int]]:
    """Yield a turn's tries (subgroup number, split, solver, variable numbering), the most promising first.

    The first split is any that the program admits. If it does not succeed at once, splits from the middle of the
    admitted region (`split_source`) are added to `splits`; finding them takes a while, but they leave more slack.
    """
    last = len(search.subgroups_for(task.parts)) - 1
    if not splits or (turn and _estimate_variables(task) <= TURN_LIMITS.refutable_variables * 4**turn):
        yield last, None, "cadical", 0  # without symmetry and split: it may refute the whole problem
    # from the largest subgroup, 0, one more in every turn; the trivial one, `last`, from turn 1 on or if there are few
    numbers = {*range(min(last, 2 + turn)), *([last] if turn or last < 2 else [])}
    for number in sorted(numbers):
        # number 0, the largest subgroup, gives the smallest problem: try several numberings of its variables
        shuffles = 1 if number else 2 if turn else TURN_LIMITS.shuffles
        for split in splits:
            for shuffle in range(shuffles):
                yield number, split, "minisat", shuffle + turn * TURN_LIMITS.shuffles
                if not turn and len(splits) == 1 and task.rounds > task.steps and _is_quick_program(search, task):
                    # `splits` grows while the loop runs over it, so these are tried next
                    splits += _next_splits(split_source, splits, TURN_LIMITS.middle_splits)
            if number < 1 + turn:  # CaDiCaL: only the largest subgroup at first, one more in every turn
                yield number, split, "cadical", 0


def _next_splits(
    split_source: Iterator[tuple[int, ...]], splits: list[tuple[int, ...]], count: int
) -> list[tuple[int, ...]]:
    """Take up to `count` new splits from the source."""
    # the range comes first, so that `zip` takes no further split from the source once it is at its end
    return [split for _, split in zip(range(count), split_source, strict=False) if split not in splits]


def _is_quick_program(search: SearchState, task: Task) -> bool:
    """Return whether the linear program is small enough to look for more splits in turn 0."""
    return search.program_for(task.steps).variables <= TURN_LIMITS.few_variables


def _estimate_variables(task: Task) -> int:
    """Estimate the number of variables in the encoding of the whole problem."""
    chunks = task.parts * sum(kind.weight for kind in task.instance.kinds)
    return chunks * len(task.instance.arcs) * task.steps


def _run_sat(
    search: SearchState, task: Task, group: SymmetryGroup, effort: Effort, solver: str, tell: Tell, memory: int | None
) -> Answer:
    """Run a SAT try in this process if it is quick, else in a child process; a crash there is reported, not fatal."""
    search.budget.check()
    effort_left = search.budget.left()
    if (effort.conflicts or 0) <= TURN_LIMITS.quick_conflicts and _estimate_variables(
        task
    ) <= TURN_LIMITS.small_variables * len(group):
        return solve_sat(task, group, effort, solver, effort_left)
    try:
        answer: Answer = run_in_child(
            solve_sat, task, group, effort, solver, effort_left, seconds=search.budget.seconds(), memory=memory
        )
        return answer
    except Stopped:
        raise TimedOut(BUDGET_SPENT) from None
    except Lost as error:
        tell(f"{solver}: {error}; going on without it")
        return Answer(moves=None)
