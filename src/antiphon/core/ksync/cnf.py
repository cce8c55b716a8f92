"""Encode "is there an algorithm with these parts, steps and rounds?" as clauses, from the instance alone.

A proof that these clauses contradict each other proves that there is no such algorithm, so this file is part of the
trusted base: it uses no planner, no solver and no symmetry of the machine. An *arc* is a transfer from rank to rank in
one step, a *resource* a link or shared limit that arcs load, a *kind* all chunks with the same holders and destinations
(instance.py). Variables, for every chunk:

    have[v, t]   rank v has the chunk after t steps (0 <= t <= steps)
    send[a, s]   the chunk crosses arc a in step s

and for every step "r_s >= n": step s takes at least n rounds. Clauses:

- A sent chunk was at the sender before; the receiver lacked it before and has it afterwards.
- A chunk at a rank was there one step earlier or has just arrived. Destinations have it at the end.
- A load of n chunks on a resource implies enough rounds in that step to carry n chunks.
- The rounds of all steps sum to at most the rounds of the question.

Example (also the doctest of `_encode_chunk`): rank 0 of a line 0 - 1 - 2 broadcasts one chunk in 2 steps. The clauses
force 0 -> 1 in step 0 and 1 -> 2 in step 1; with 1 step they contain the empty clause, as rank 2 is 2 steps away.

Why the encoding is complete (every algorithm gives an assignment). Remove from every chunk's moves those to a rank that
has the chunk already, all but one of those that bring it to the same rank in the same step, and those that come too
late to reach a destination. Loads only shrink. The remaining moves a: u -> v in step s satisfy dist(holders, u) <= s
and s + 1 + dist(v, destinations) <= steps; only these have variables.

Why the encoding is sound (every assignment gives an algorithm). By induction over t, a rank with have[v, t] received
the chunk over arcs, one step each. Loads are counted, so step s fits into the rounds for which "r_s >= n" is true.
Counters may overestimate, never underestimate.

With `shared`, the chunks are inputs of one sum, which may cross a link together, and `rounds` limits the links that
they cross, each counted once per step. In every schedule of the sum, each input travels along links that the sum
crosses in the same step. So a refutation proves that a chunk of the sum crosses more links (certificate.py, "sums").
Clauses that only exclude useless sends are left out: without them such proofs are shorter.

A step may have 0 rounds unless the question is `full`, so fewer steps and fewer rounds are refuted as well. Chunks of
one kind are interchangeable. With `ordered`, they are sorted by the list of their sends out of their holders, read as a
binary number, in descending order. Sorting the chunks of any algorithm gives an ordered algorithm, so a refutation of
all ordered algorithms refutes all.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from antiphon.core.ksync.instance import Instance, Kind
from antiphon.errors import Invalid, Unsupported

Clause = tuple[int, ...]
Meaning = tuple[Any, ...]  # of a variable: see `Formula.new_variable`
MAX_FORMULA = 4 * 10**6  # variables of one formula, and likewise its clauses
MAX_COMPARED_SENDS = 16  # the chunks of a kind are ordered by up to this number of sends of each
MAX_SENDS_PAIRED = 4  # up to this number of possible sends of a chunk to a rank in one step, clauses exclude each pair


@dataclass(frozen=True)
class Question:
    """Is there an algorithm with these numbers of chunks, steps and rounds?

    `parts`: chunks per unit of weight of a block.
    `steps`, `rounds`: maxima.
    `split`: the maximum of rounds in each step; None: any, as long as they sum to `rounds`.
    `ordered`: chunks of a kind are sorted, see the module.
    `full`: every step takes at least one round.
    `shared`: chunks cross links together, see the module.

    `full` is a restriction: an algorithm with fewer steps may put several rounds into one step, and they carry more if
    capacities are fractions (one step of two rounds of 3/2 carries 3 chunks, two steps of one round carry 2).
    """

    parts: int
    steps: int
    rounds: int
    split: tuple[int, ...] | None = None
    ordered: bool = False
    full: bool = False
    shared: bool = False


@dataclass(eq=False)
class Formula:
    """Clauses over the variables 1, 2, ...; a literal is a variable or its negative.

    `sends`: per chunk, in the order of kinds, the variable for crossing (arc, step).
    `meanings`: per variable its meaning (see `new_variable`); None unless `build_formula` was asked for it.
    """

    variables: int = 0
    clauses: list[Clause] = field(default_factory=list)
    sends: list[dict[tuple[int, int], int]] = field(default_factory=list)
    meanings: list[Meaning] | None = None

    def new_variable(self, *meaning: Any) -> int:
        """Return a new variable. Its meaning is one of

        "have", chunk, rank, t      the chunk is at the rank after t steps
        "send", chunk, arc, s       the chunk crosses the arc in step s
        "use", arc, s               some chunk crosses the arc in step s
        "rounds", s, n              step s takes at least n rounds
        "count", n, rows            at least n of the literals in these rows are true
        "order", above, below       of these sends of two chunks, none of `above` is made without that beside it in
                                    `below` (`_require_descending`)
        """
        self.variables += 1
        if self.meanings is not None:
            self.meanings.append(meaning)
        return self.variables

    def add_clause(self, *literals: int) -> None:
        """Add a clause without repeated literals (a path that loads a resource twice gives two equal literals)."""
        if len(self.clauses) == MAX_FORMULA:
            raise Unsupported(f"a refutation would need more than {MAX_FORMULA} clauses; ask for fewer chunks or steps")
        self.clauses.append(tuple(dict.fromkeys(literals)))


def build_formula(instance: Instance, question: Question, *, with_meanings: bool = False) -> Formula:
    """Return the clauses of a question; deterministic, so that proofs can refer to clauses by number.

    `with_meanings`: also fill `Formula.meanings`. O(chunks * arcs * steps) variables, plus those of counters.
    """
    _check_question(instance, question)
    steps, out = question.steps, Formula(meanings=[] if with_meanings else None)
    loads: dict[tuple[int, int], list[int]] = defaultdict(list)  # (resource, step) -> the sends that load it
    resources: list[list[int]] = [[] for _ in range(len(instance.arcs))]  # per arc those that it loads
    for arc, resource in zip(*(column.tolist() for column in instance.arcs.load), strict=True):
        resources[arc].append(resource)
    uses: dict[tuple[int, int], int] = {}  # shared: (arc, step) -> variable
    for kind in instance.kinds:
        previous: list[int] = []
        for _ in range(kind.weight * question.parts):
            sends = _encode_chunk(out, instance, kind, steps, lean=question.shared)
            out.sends.append(sends)
            for (arc, step), send in sends.items():
                if question.shared:
                    if (arc, step) not in uses:
                        uses[arc, step] = out.new_variable("use", arc, step)
                    out.add_clause(-send, uses[arc, step])
                for resource in () if question.shared else resources[arc]:
                    loads[resource, step].append(send)
            if question.ordered:
                leaving = sorted((step, arc) for arc, step in sends if instance.arcs.tail[arc] in kind.holders)
                own_sends = [sends[arc, step] for step, arc in leaving[:MAX_COMPARED_SENDS]]
                if previous:
                    _require_descending(out, previous, own_sends)
                previous = own_sends
    if question.shared:
        # Counters count groups of crossings first, then their sums. With the fewest steps, every step needs a crossing,
        # and proofs are short with a group per step; otherwise with a group per arc.
        by_step = steps == instance.least_steps
        groups: dict[int, list[list[int]]] = defaultdict(list)  # by step, or by arc
        for arc, step in sorted(uses):
            # a crossing of an arc counts once for each link of its path
            groups[step if by_step else arc] += [[uses[arc, step]] for _ in instance.arcs.paths[arc]]
        counters = [_build_counter(out, rows, question.rounds + 1) for _, rows in sorted(groups.items())]
        _encode_thresholds(out, counters, {question.rounds + 1: 0})  # literal 0: false
        return out
    # With the minimum number of steps, the farthest chunk must come nearer in each step: no step can be empty, and
    # clauses that say so exclude no algorithm.
    none_empty = question.full or (steps == instance.least_steps and steps > 0)
    round_literals = _encode_rounds(out, question, int(none_empty))
    # Sorted: the checker must derive the same clauses, in the same order, as the solver did.
    for resource, step in sorted(loads):
        _encode_load(out, loads[resource, step], instance.capacity[resource], round_literals[step])
    return out


def _check_question(instance: Instance, question: Question) -> None:
    """Refuse questions that make no sense, or whose formula would be too large."""
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
    # Refuse before building: an upper bound of the number of send variables.
    size = sum(kind.weight for kind in instance.kinds) * parts * len(instance.arcs) * steps
    if max(size, rounds * steps) > MAX_FORMULA:
        raise Unsupported(
            f"a refutation would need more than {MAX_FORMULA} variables; ask for fewer chunks, steps or rounds"
        )


def _encode_chunk(
    out: Formula, instance: Instance, kind: Kind, steps: int, lean: bool = False
) -> dict[tuple[int, int], int]:
    """Add the variables and clauses of one chunk; return its sends by (arc, step).

    With from_holders[v], the steps from the nearest holder to rank v, and to_dests[v], those from v to the nearest
    destination, the variables are

        have[v, t]               from_holders[v] <= t <= steps - to_dests[v]
        send[a, s] of a: u -> v  from_holders[u] <= s < steps - to_dests[v]

    and the clauses (x -> y stands for the clause (-x, y)):

        send[a, s] -> have[u, s]          the sender had it (holders always have it)
        send[a, s] -> not have[v, s]      the receiver did not, if it could have had it
        send[a, s] -> have[v, s + 1]      (not at the end: there destinations have it, without a variable)
        have[v, t] -> have[v, t - 1], or a send to v in step t - 1
        have[v, t - 1] -> have[v, t]
        not two sends to v in one step    (if there are at most MAX_SENDS_PAIRED)

    With `lean`, only the first and the fourth kind, which suffice.

    Example: rank 0 of a line 0 - 1 - 2 has a chunk that ranks 1 and 2 want, in 2 steps. Variable 1: rank 1 has the
    chunk at time 1. Variables 2 and 3: the chunk crosses arc 0 (0 to 1) in step 0, or in step 1. Variable 4: it crosses
    arc 2 (1 to 2) in step 1. So clause (1, 3): rank 1 has the chunk at time 1 or receives it in step 1; clause (4,):
    rank 2 receives it in step 1.

    >>> from antiphon.core.collective import Collective
    >>> from antiphon.core.ksync.instance import instance_of
    >>> from antiphon.core.topology import LinkType, both_ways, build
    >>> line = build("line", 3, both_ways([(0, 1), (1, 2)], LinkType("wire", "1GB/s", "1us")))
    >>> instance, out = instance_of(line, Collective("broadcast", 3, roots=(0,))), Formula()
    >>> _encode_chunk(out, instance, instance.kinds[0], 2)
    {(0, 0): 2, (0, 1): 3, (2, 1): 4}
    >>> out.clauses
    [(-2, 1), (-3, -1), (-4, 1), (-1, 2), (1, 3), (4,)]
    """
    from_holders, to_dests = instance.from_holders(kind).tolist(), instance.to_dests(kind).tolist()
    have: dict[tuple[int, int], int] = {}
    other_ranks = [v for v in range(instance.ranks) if v not in kind.holders]
    for v in other_ranks:
        for t in range(from_holders[v], steps - to_dests[v] + 1):
            if t < steps:  # at the end only destinations matter, and they have it: no variable
                have[v, t] = out.new_variable("have", len(out.sends), v, t)
    sends: dict[tuple[int, int], int] = {}
    arrivals: dict[tuple[int, int], list[int]] = defaultdict(list)
    for arc, (u, v) in enumerate(zip(instance.arcs.tail.tolist(), instance.arcs.head.tolist(), strict=True)):
        if v in kind.holders:
            continue
        for s in range(from_holders[u], steps - to_dests[v]):
            send = sends[arc, s] = out.new_variable("send", len(out.sends), arc, s)
            arrivals[v, s + 1].append(send)
            # send -> have[u, s]; holders have it at all times, without a variable.
            if u not in kind.holders:
                out.add_clause(-send, have[u, s])
            # send -> not have[v, s]: redundant sends are excluded, which makes proofs shorter.
            if s >= from_holders[v] and not lean:
                out.add_clause(-send, -have[v, s])
            if s + 1 < steps and not lean:
                out.add_clause(-send, have[v, s + 1])
    for v in other_ranks:
        for t in range(from_holders[v], steps - to_dests[v] + 1):
            absent = [-have[v, t]] if t < steps else []
            before = [have[v, t - 1]] if t > from_holders[v] else []
            # have[v, t] -> the chunk was there at t - 1, or arrived in step t - 1.
            out.add_clause(*absent, *before, *arrivals[v, t])
            if absent and before and not lean:
                # A rank never loses a chunk.
                out.add_clause(-before[0], have[v, t])
            arriving = arrivals[v, t] if len(arrivals[v, t]) <= MAX_SENDS_PAIRED and not lean else []
            for i, first_send in enumerate(arriving):
                for second_send in arriving[:i]:
                    out.add_clause(-second_send, -first_send)
        # The destination is out of reach within the steps: the empty clause refutes the question at once.
        if from_holders[v] > steps and v in kind.dests:
            out.add_clause()
    return sends


def _require_descending(out: Formula, above: Sequence[int], below: Sequence[int]) -> None:
    """Require that the first list of literals, read as a binary number, is at least the second."""
    # Invariant: `unless` is the negation of a literal that must be true if all bits before i are equal, and may be
    # false otherwise. Where that literal is true, bit i must not be 0 above and 1 below.
    unless: list[int] = []
    for i, (a, b) in enumerate(zip(above, below, strict=True)):
        out.add_clause(*unless, a, -b)
        if i + 1 < len(above):
            # equal before, and (a, b) is not (1, 0)
            still_equal = out.new_variable("order", above[: i + 1], below[: i + 1])
            out.add_clause(*unless, still_equal, a)
            out.add_clause(*unless, still_equal, -b)
            unless = [-still_equal]


def _encode_rounds(out: Formula, question: Question, min_rounds: int) -> list[list[int | None]]:
    """Return per step s the literals of "r_s >= 1", "r_s >= 2", ...; None stands for true, a missing literal for false.

    If the question has no split, the literals of a step form a unary number, and at most `rounds` literals of all steps
    together are true. Every step takes at least `min_rounds` rounds.
    """
    if question.split is not None:
        return [[None] * rounds for rounds in question.split]
    # One step can take all rounds but `min_rounds` of each other step.
    max_rounds = question.rounds - min_rounds * (question.steps - 1)
    if max_rounds < min_rounds:
        out.add_clause()
        return [[] for _ in range(question.steps)]
    literals: list[list[int | None]] = []
    optional_literals: list[list[int]] = []
    for step in range(question.steps):
        row = [out.new_variable("rounds", step, n) for n in range(min_rounds + 1, max_rounds + 1)]
        for a, b in itertools.pairwise(row):
            out.add_clause(-b, a)
        literals.append([*[None] * min_rounds, *row])
        optional_literals.append(row)
    # Only the rounds beyond the minimum have literals; at most `spare` of them may be true.
    spare = question.rounds - min_rounds * question.steps
    if sum(map(len, optional_literals)) > spare:
        _encode_thresholds(out, optional_literals, {spare + 1: 0})  # literal 0: false
    return literals


def _encode_load(out: Formula, literals: list[int], capacity: Fraction, round_literals: list[int | None]) -> None:
    """Limit the load of a resource to the capacity of r_s rounds.

    For every n: more than capacity * (n - 1) chunks imply r_s >= n. `round_literals`: of the step, by `_encode_rounds`.
    """
    thresholds: dict[int, int] = {}
    for n, implied in enumerate([*round_literals, 0], 1):  # no step has more rounds than literals: false
        count = math.floor(capacity * (n - 1)) + 1  # this many chunks do not fit into n - 1 rounds
        if count <= len(literals) and implied is not None:  # None: true
            thresholds[count] = implied
    _encode_thresholds(out, [[x] for x in literals], thresholds)


def _encode_thresholds(out: Formula, rows: list[list[int]], thresholds: dict[int, int]) -> None:
    """Require that if at least n of the literals are true, so is thresholds[n]; literal 0 stands for false.

    Within a row each literal implies those before it. This is a totalizer (Bailleux and Boufkhad 2003) that counts only
    up to the greatest threshold and has no variables for its root: O(n log n * greatest threshold) clauses.
    """
    if not thresholds:
        return
    greatest = max(thresholds)
    half = len(rows) // 2
    first, second = _build_counter(out, rows[:half], greatest), _build_counter(out, rows[half:], greatest)
    # i true on the left and j on the right make i + j = total: all such pairs imply the threshold's literal.
    for total, implied in thresholds.items():
        for i in range(max(0, total - len(second)), min(total, len(first)) + 1):
            j = total - i
            out.add_clause(
                *([-first[i - 1]] if i else []), *([-second[j - 1]] if j else []), *([implied] if implied else [])
            )


def _build_counter(out: Formula, rows: list[list[int]], greatest: int) -> list[int]:
    """Return output literals: output j (from 0) is true if more than j of the literals are, for j < `greatest`."""
    if len(rows) <= 1:  # a row is a count already: each of its literals implies those before it
        return [x for row in rows for x in row[:greatest]]
    half = len(rows) // 2
    first, second = _build_counter(out, rows[:half], greatest), _build_counter(out, rows[half:], greatest)
    outputs = [out.new_variable("count", n + 1, rows) for n in range(min(len(first) + len(second), greatest))]
    for i in range(len(first) + 1):
        for j in range(len(second) + 1):
            if 0 < i + j <= len(outputs):
                out.add_clause(*([-first[i - 1]] if i else []), *([-second[j - 1]] if j else []), outputs[i + j - 1])
    return outputs
