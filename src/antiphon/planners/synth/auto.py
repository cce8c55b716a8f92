"""The engine `auto`: decides whether an algorithm of so many parts, steps and rounds exists, by whatever is quickest.

Bounds first, then engines in turn: several groups, more and more splits of the rounds, MiniSat and CaDiCaL, each
for a number of conflicts that grows fourfold from turn to turn. Refuted under a group or split says
nothing, so a proof for the whole problem (no symmetry, free split) is sought in turn, too. Limits count conflicts, not
seconds, and what they take is paid from the purse, so the answer depends on the seed and the effort alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from antiphon.core.ksync.cnf import Question
from antiphon.errors import TimedOut
from antiphon.isolate import Lost, Stopped, apart
from antiphon.planners.synth.cache import Kept
from antiphon.planners.synth.flow import flow, suits
from antiphon.planners.synth.group import Renamings
from antiphon.planners.synth.purse import TOO_LATE
from antiphon.planners.synth.refute import refute
from antiphon.planners.synth.sat import sat
from antiphon.planners.synth.search import Findings, Impossible
from antiphon.planners.synth.task import Answer, Effort, Move, Task

FIRST = 3000  # conflicts in the first turn
QUICK = 10000  # up to so many are tried in this process
TURNS = 8
FLOW_GROUPS = 3  # subgroups under which whole flows are tried
SHUFFLES = 5
MIDDLE, FEW = 2, 3000  # splits from the middle in the first turn, where the program has no more variables
SMALL = 20000  # size up to which a try is quick
REFUTING = 4  # times the conflicts of other tries, for the one that may refute
PROVING, PROVABLE = 50000, 100000  # conflicts, and size up to which a proof is sought for what is refuted already
REFUTABLE = 5000  # times 4 for every turn: the size up to which that one is tried


@dataclass(frozen=True)
class Solved:
    """An algorithm, and which engine found it."""

    moves: tuple[Move, ...]
    engine: str


Decided = Solved | Impossible | None
Tell = Callable[[str], None]


def decide(
    search: Findings, parts: int, steps: int, rounds: int, *, tell: Tell = lambda text: None,
    memory: int | None = None, turns: int = TURNS,
) -> Decided:  # fmt: skip
    """Found, Impossible with its proof, or None where that many turns gave no answer. EffortSpent where the search's
    purse does not do, or TimedOut.
    """
    forbidden = search.forbidden(parts, steps, rounds)
    if forbidden is not None:
        return forbidden
    task = Task(search.instance, parts, steps, rounds)
    if search.cache is None:
        return _by_engines(search, task, tell, memory, turns)[0]
    question = search.question(parts, steps, rounds)
    cached = search.cache.get(question)
    if cached is None:
        before = search.purse.spent
        decided, ends = _by_engines(search, task, tell, memory, turns)
        prices = [end - before for end in [*ends, search.purse.spent]]
        if isinstance(decided, Solved):
            search.cache.put(question, Kept(prices, decided.engine, list(decided.moves)))
        elif isinstance(decided, Impossible) and decided.resolution is not None:
            search.cache.put(question, Kept(prices, resolution=decided.resolution))
        return decided
    search.purse.pay(cached.prices[min(turns, len(cached.prices)) - 1])
    if len(cached.prices) > turns:
        return None
    if cached.moves is None:
        return Impossible("search", resolution=cached.resolution)
    return Solved(tuple(cached.moves), cached.engine)


def _by_engines(search: Findings, task: Task, tell: Tell, memory: int | None, turns: int) -> tuple[Decided, list[int]]:
    """What engines say, and what the purse had paid after every turn before the last."""
    search.cuts.clear()  # what it takes shall not depend on what was asked before
    split = search.split(task.parts, task.steps, task.rounds)
    if split is None:
        gone_through = search.all_splits_forbidden(task.parts, task.steps, task.rounds)
        if isinstance(gone_through, Impossible):
            return gone_through, []
        split = gone_through
    if suits(search.instance):
        by_flow = _by_flow(search, task, split)
        if by_flow is not None:
            return by_flow, []
    return _by_turns(search, task, split, tell, memory, turns)


def _by_flow(search: Findings, task: Task, split: tuple[int, ...] | None) -> Decided:
    tries: list[tuple[Renamings, tuple[int, ...] | None]] = [(search.group, split)] if split is not None else []
    tries += [(search.group, None)] if len(search.group) > 1 else []
    tries += [(group, None) for group in search.groups(task.parts)[:FLOW_GROUPS] if len(group) > 1]
    tries += [(search.none, None)]
    for group, chosen in tries:
        search.purse.check()
        effort = Effort(seed=search.seed)
        answer: Answer = search.run(flow, replace(task, split=chosen), group, effort, search.purse.left())
        search.purse.pay(answer.price)
        if answer.moves is not None:
            return Solved(answer.moves, "flow")
        if answer.refuted and group is search.none and chosen is None:
            provable = _size(task) <= PROVABLE and search.instance.arcs.exhaustive
            proof = _refuted(search, task, PROVING) if provable else None
            return proof or Impossible("search")
    return None


def _refuted(search: Findings, task: Task, conflicts: int) -> Impossible | None:
    """A proof by resolution that there is none, if so many conflicts do."""
    search.purse.check()
    question = Question(task.parts, task.steps, task.rounds, ordered=True)
    effort = Effort(conflicts, seed=search.seed)
    refutation, price = search.run(refute, search.instance, question, effort, search.purse.left())
    search.purse.pay(price)
    return None if refutation is None else Impossible("search", resolution=refutation.as_json())


def _by_turns(
    search: Findings, task: Task, split: tuple[int, ...] | None, tell: Tell, memory: int | None, turns: int
) -> tuple[Decided, list[int]]:
    ends: list[int] = []
    done: set[tuple[int, tuple[int, ...] | None]] = set()  # refuted: (group, split)
    splits = [split] if split is not None else []
    split_source = search.more_splits(task.parts, task.steps, task.rounds)
    for turn in range(turns):
        if turn == 1 and task.rounds == task.steps:  # mostly found by now, so not looked at before
            none = search.all_splits_forbidden(task.parts, task.steps, task.rounds)
            if isinstance(none, Impossible):
                return none, ends
        if turn:
            splits += _next_splits(split_source, splits, 2 * turn)
        for number, chosen, solver, shuffle in _tries(search, task, splits, turn, split_source):
            if (number, chosen) in done:
                continue
            if chosen is None and search.instance.arcs.exhaustive:
                tell(f"looking for a proof that there is none: {REFUTING * FIRST * 4**turn} conflicts")
                proof = _refuted(search, task, REFUTING * FIRST * 4**turn)
                if proof is not None:
                    return proof, ends
                continue
            group = search.groups(task.parts)[number]
            conflicts = FIRST * 4**turn * (REFUTING if chosen is None else 1)
            effort = Effort(conflicts, seed=shuffle + (search.seed * SHUFFLES if shuffle else 0))
            tell(f"{solver}: {effort.conflicts} conflicts, symmetry {len(group)}, rounds {_shown(chosen)}")
            answer = _ask(search, replace(task, split=chosen), group, effort, solver, tell, memory)
            search.purse.pay(answer.price)
            if answer.moves is not None:
                return Solved(answer.moves, f"sat ({solver})"), ends
            if answer.refuted:
                done.add((number, chosen))
                if len(group) == 1 and chosen is None:  # on the ways that were looked at; others were left out
                    return None, ends
        ends.append(search.purse.spent)
    return None, ends


def _shown(split: tuple[int, ...] | None) -> str:
    return "free" if split is None else "+".join(map(str, split))


def _tries(
    search: Findings, task: Task, splits: list[tuple[int, ...]], turn: int, split_source: Iterator[tuple[int, ...]]
) -> Iterator[tuple[int, tuple[int, ...] | None, str, int]]:
    """What is asked in a turn: (which group, split, solver, how variables are numbered), the likeliest first.

    The first split at hand is any that the program admits; where it does not do at once, some from the middle of all
    that it admits are found, which takes a while but leaves more room.
    """
    last = len(search.groups(task.parts)) - 1
    if not splits or (turn and _size(task) <= REFUTABLE * 4**turn):
        yield last, None, "cadical", 0
    for number in sorted({*range(min(last, 2 + turn)), *([last] if turn or last < 2 else [])}):
        for chosen in splits:
            for shuffle in range(SHUFFLES if number == 0 and not turn else 2 if number == 0 else 1):
                yield number, chosen, "minisat", shuffle + turn * SHUFFLES
                if not turn and len(splits) == 1 and task.rounds > task.steps and _quick_program(search, task):
                    splits += _next_splits(split_source, splits, MIDDLE)  # the loop around goes on with these
            if number < 1 + turn:
                yield number, chosen, "cadical", 0


def _next_splits(
    split_source: Iterator[tuple[int, ...]], splits: list[tuple[int, ...]], count: int
) -> list[tuple[int, ...]]:
    return [split for _, split in zip(range(count), split_source, strict=False) if split not in splits]


def _quick_program(search: Findings, task: Task) -> bool:
    return search.program(task.steps).variables <= FEW


def _size(task: Task) -> int:
    """About how many variables the whole problem has."""
    chunks = task.parts * sum(kind.weight for kind in task.instance.kinds)
    return chunks * len(task.instance.arcs) * task.steps


def _ask(
    search: Findings, task: Task, group: Renamings, effort: Effort, solver: str, tell: Tell, memory: int | None
) -> Answer:
    """In this process if it is quick, else in one of its own, which may be stopped or die: that is told."""
    search.purse.check()
    effort_left = search.purse.left()
    if (effort.conflicts or 0) <= QUICK and _size(task) <= SMALL * len(group):
        return sat(task, group, effort, solver, effort_left)
    try:
        answer: Answer = apart(
            sat, task, group, effort, solver, effort_left, seconds=search.purse.seconds(), memory=memory
        )
        return answer
    except Stopped:
        raise TimedOut(TOO_LATE) from None
    except Lost as error:
        tell(f"{solver}: {error}; going on without it")
        return Answer(None)
