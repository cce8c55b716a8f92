"""Is there an algorithm of so many parts, steps and rounds? The question as clauses, written from the instance alone.

A proof that these clauses contradict each other is a proof that there is no such algorithm, so this file belongs to
what is trusted: it uses no planner, no solver and no symmetry of the machine. Variables, for every chunk:

    have[v, t]   rank v has the chunk after t steps (0 <= t <= steps)
    send[a, s]   it goes over arc a in step s

and for every step "r_s >= n". Clauses: what is sent was there before, and its receiver lacked it and has it after; what
is there was there or was just sent; destinations have it in the end; a load of n units asks for the rounds that
carry them; the rounds are at most as many as are given.

From an algorithm to an assignment. Leave out of every chunk's moves those to a rank that has it, all but one of those
that bring it to the same rank in the same step, and those in which it would come too late to reach a destination.
Loads only shrink. What is left are moves a: u -> v in step s with dist(holders, u) <= s and
s + 1 + dist(v, destinations) <= steps, the only ones that have variables; a chunk that a rank has at a time outside
that window is of no use there. `r_s >= n` for the rounds of the algorithm; counters say how many literals are true.
From an assignment to an algorithm. By induction over t, a rank with have[v, t] has the chunk by way of sends, each
over an arc within one step; loads are counted, so step s fits into the rounds for which `r_s >= n` is true. Counters
may claim too much, never too little.

A step may have 0 rounds unless the question is `full`, so fewer steps, and fewer rounds, are refuted as well. Chunks of
one kind are alike: with `ordered` they are numbered so that the lists of their sends out of their holders, read as
binary numbers, never grow. Sorting the chunks of any algorithm gives one that is ordered, so this refutes no less.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from antiphon.core.ksync.instance import Instance, Kind
from antiphon.errors import Invalid, Unsupported

Clause = tuple[int, ...]
MOST = 4 * 10**6  # of variables, and of clauses
COMPARED = 16  # sends of a chunk by which alike chunks are ordered
PAIRS = 4  # up to so many sends that would bring a chunk to a rank at once exclude each other in pairs


@dataclass(frozen=True)
class Question:
    """Parts per unit of weight, at most so many steps and rounds. `split`: at most these rounds in each step.

    `full`: every step takes a round or more. An algorithm of fewer steps may leave more to a step than one of as many
    can, where capacities are fractions: two rounds of 3/2 carry 3 chunks, but one and one carry 2.
    """

    parts: int
    steps: int
    rounds: int
    split: tuple[int, ...] | None = None
    ordered: bool = False
    full: bool = False


@dataclass(eq=False)
class Formula:
    """Clauses over the variables 1, 2, ...; a literal is a variable or its negative. `sends`: per chunk, in the order
    of kinds, the variable of its going over an arc in a step.
    """

    variables: int = 0
    clauses: list[Clause] = field(default_factory=list)
    sends: list[dict[tuple[int, int], int]] = field(default_factory=list)

    def new(self) -> int:
        self.variables += 1
        return self.variables

    def add(self, *literals: int) -> None:
        """Each literal once: a path that loads a resource twice is counted twice by two equal literals."""
        if len(self.clauses) == MOST:
            raise Unsupported(f"a refutation would need more than {MOST} clauses; ask for fewer chunks or steps")
        self.clauses.append(tuple(dict.fromkeys(literals)))


def formula(instance: Instance, question: Question) -> Formula:
    """The clauses; the same ones, in the same order, every time. O(chunks * arcs * steps) variables, and counters."""
    _admit(instance, question)
    steps, out = question.steps, Formula()
    loads: dict[tuple[int, int], list[int]] = defaultdict(list)
    resources: list[list[int]] = [[] for _ in range(len(instance.arcs))]
    for arc, resource in zip(*(column.tolist() for column in instance.arcs.load), strict=True):
        resources[arc].append(resource)
    for kind in instance.kinds:
        previous: list[int] = []
        for _ in range(kind.weight * question.parts):
            sends = _chunk(out, instance, kind, steps)
            out.sends.append(sends)
            for (arc, step), send in sends.items():
                for resource in resources[arc]:
                    loads[resource, step].append(send)
            if question.ordered:
                leaving = sorted(key[::-1] for key in sends if instance.arcs.tail[key[0]] in kind.holders)
                own_sends = [sends[arc, step] for step, arc in leaving[:COMPARED]]
                if previous:
                    _never_grow(out, previous, own_sends)
                previous = own_sends
    nearer = steps == instance.least_steps and steps > 0  # then some chunk must come nearer in every step
    round_literals = _rounds(out, question, int(question.full or nearer))
    for resource, step in sorted(loads):
        _load(out, loads[resource, step], instance.capacity[resource], round_literals[step])
    return out


def _admit(instance: Instance, question: Question) -> None:
    parts, steps, rounds, split = question.parts, question.steps, question.rounds, question.split
    if parts < 1 or steps < 0 or rounds < 0:
        raise Invalid(f"refutation: it is of {parts} parts, {steps} steps, {rounds} rounds; parts are 1 at least")
    if split is not None and (len(split) != steps or any(r < 0 for r in split) or sum(split) > rounds):
        raise Invalid(f"refutation: {list(split)} deals out no {rounds} rounds to {steps} steps")
    if not instance.arcs.exhaustive:
        raise Unsupported(
            f"topology {instance.topology.name} has too many paths through switches to consider them all: "
            "a search cannot prove that there is no algorithm; bounds by linear programs can"
        )
    size = sum(kind.weight for kind in instance.kinds) * parts * len(instance.arcs) * steps
    if max(size, rounds * steps) > MOST:
        raise Unsupported(f"a refutation would need more than {MOST} variables; ask for fewer chunks, steps or rounds")


def _chunk(out: Formula, instance: Instance, kind: Kind, steps: int) -> dict[tuple[int, int], int]:
    """The variables and clauses of one chunk; returns its sends by (arc, step).

    have[v, t] is for early[v] <= t <= steps - left[v], send[a, s] of a: u -> v for early[u] <= s < steps - left[v];
    early: steps from the holders, left: to the destinations. With x -> y for (-x, y):

        send[a, s] -> have[u, s]          it was there (holders always have it)
        send[a, s] -> not have[v, s]      where it can have been there
        send[a, s] -> have[v, s + 1]      (not at the end: there destinations have it, without a variable)
        have[v, t] -> have[v, t - 1], or a send to v in step t - 1
        have[v, t - 1] -> have[v, t]
        not two sends to v in one step, where they are few

    Rank 0 of a line 0 - 1 - 2 has a chunk that 1 and 2 want, in 2 steps. Variable 1: rank 1 has it at time 1; 2 and 3:
    it goes over arc 0 (0 to 1) in step 0, in step 1; 4: over arc 2 (1 to 2) in step 1. In the end 1 has it by 1 or 3,
    and 2 by 4 alone:

    >>> from antiphon.core.collective import Collective
    >>> from antiphon.core.ksync.instance import instance_of
    >>> from antiphon.core.topology import LinkType, both_ways, build
    >>> line = build("line", 3, both_ways([(0, 1), (1, 2)], LinkType("wire", "1GB/s", "1us")))
    >>> instance, out = instance_of(line, Collective("broadcast", 3, roots=(0,))), Formula()
    >>> _chunk(out, instance, instance.kinds[0], 2)
    {(0, 0): 2, (0, 1): 3, (2, 1): 4}
    >>> out.clauses
    [(-2, 1), (-3, -1), (-4, 1), (-1, 2), (1, 3), (4,)]
    """
    early, to_dests = instance.from_holders(kind).tolist(), instance.to_dests(kind).tolist()
    have: dict[tuple[int, int], int] = {}
    # variables of places, then of sends
    places = [v for v in range(instance.ranks) if v not in kind.holders]
    for v in places:
        for t in range(early[v], steps - to_dests[v] + 1):
            if t < steps:  # at the end only destinations are in time, and they have it: no variable
                have[v, t] = out.new()
    sends: dict[tuple[int, int], int] = {}
    coming: dict[tuple[int, int], list[int]] = defaultdict(list)
    for arc, (u, v) in enumerate(zip(instance.arcs.tail.tolist(), instance.arcs.head.tolist(), strict=True)):
        if v in kind.holders:
            continue
        for s in range(early[u], steps - to_dests[v]):
            send = sends[arc, s] = out.new()
            coming[v, s + 1].append(send)
            if u not in kind.holders:
                out.add(-send, have[u, s])
            if s >= early[v]:
                out.add(-send, -have[v, s])
            if s + 1 < steps:
                out.add(-send, have[v, s + 1])
    for v in places:
        for t in range(early[v], steps - to_dests[v] + 1):
            not_there = [-have[v, t]] if t < steps else []
            before = [have[v, t - 1]] if t > early[v] else []
            out.add(*not_there, *before, *coming[v, t])
            if not_there and before:
                out.add(-before[0], have[v, t])
            arriving = coming[v, t] if len(coming[v, t]) <= PAIRS else []
            for i, first_send in enumerate(arriving):
                for second_send in arriving[:i]:
                    out.add(-second_send, -first_send)
        if early[v] > steps and v in kind.dests:
            out.add()
    return sends


def _never_grow(out: Formula, above: Sequence[int], below: Sequence[int]) -> None:
    """As binary numbers, the first is at least the second."""
    equal: list[int] = []  # the negative of "equal so far", which may claim too much equality, never too little
    for i, (a, b) in enumerate(zip(above, below, strict=True)):
        out.add(*equal, a, -b)
        if i + 1 < len(above):
            still = out.new()
            out.add(*equal, still, a)
            out.add(*equal, still, -b)
            equal = [-still]


def _rounds(out: Formula, question: Question, fewest: int) -> list[list[int | None]]:
    """Per step s the literals of "r_s >= 1", "r_s >= 2", ...: None is true, and beyond the end of a list all are false.

    With a free split the literals stand in unary, and together at most `rounds` of them are true.
    """
    if question.split is not None:
        return [[None] * rounds for rounds in question.split]
    max_rounds = question.rounds - fewest * (question.steps - 1)
    if max_rounds < fewest:
        out.add()
        return [[] for _ in range(question.steps)]
    literals: list[list[int | None]] = []
    free: list[list[int]] = []
    for _ in range(question.steps):
        row = [out.new() for _ in range(max_rounds - fewest)]
        for a, b in itertools.pairwise(row):
            out.add(-b, a)
        literals.append([*[None] * fewest, *row])
        free.append(row)
    spare = question.rounds - fewest * question.steps
    if sum(map(len, free)) > spare:
        _limit(out, free, {spare + 1: 0})
    return literals


def _load(out: Formula, literals: list[int], capacity: Fraction, round_literals: list[int | None]) -> None:
    """So many of these as r_s rounds carry: for every n, capacity * (n - 1) + 1 and more of them ask for r_s >= n."""
    thresholds: dict[int, int] = {}
    for n in range(1, len(round_literals) + 2):
        count = math.floor(capacity * (n - 1)) + 1  # this many units do not fit into n - 1 rounds
        implied = round_literals[n - 1] if n <= len(round_literals) else 0
        if count <= len(literals) and implied is not None:
            thresholds[count] = implied
    _limit(out, [[x] for x in literals], thresholds)


def _limit(out: Formula, rows: list[list[int]], thresholds: dict[int, int]) -> None:
    """If at least n of the literals are true, so is thresholds[n]; 0 is false. Within a row each implies those before.

    A totalizer (Bailleux and Boufkhad 2003), counting no further than needed, without variables for its root:
    O(n log n * most) clauses.
    """
    if not thresholds:
        return
    greatest = max(thresholds)
    half = len(rows) // 2
    first, second = _count(out, rows[:half], greatest), _count(out, rows[half:], greatest)
    for total, implied in thresholds.items():
        for i in range(max(0, total - len(second)), min(total, len(first)) + 1):
            j = total - i
            out.add(*([-first[i - 1]] if i else []), *([-second[j - 1]] if j else []), *([implied] if implied else []))


def _count(out: Formula, rows: list[list[int]], greatest: int) -> list[int]:
    """Outputs: the j-th, from 0, is true if more than j of the literals are, for j < most."""
    if len(rows) <= 1:
        return [x for row in rows for x in row[:greatest]]
    half = len(rows) // 2
    first, second = _count(out, rows[:half], greatest), _count(out, rows[half:], greatest)
    outputs = [out.new() for _ in range(min(len(first) + len(second), greatest))]
    for i in range(len(first) + 1):
        for j in range(len(second) + 1):
            if 0 < i + j <= len(outputs):
                out.add(*([-first[i - 1]] if i else []), *([-second[j - 1]] if j else []), outputs[i + j - 1])
    return outputs
