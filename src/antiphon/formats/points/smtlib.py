"""Write the claims of a plan as SMT-LIB 2, for z3, cvc5 or Yices (`antiphon export --to smtlib`).

Each file asks: is there a k-synchronous algorithm with C chunks, S steps and R rounds (R at most S + k)? The encoding
of SCCL, section 3.4, corrected and generalised, in QF_LIA. An integer t{c}_{n} is the step after which chunk c is at
rank n (1: sent in the first step; S + 1: never), a Boolean x{c}_{a} whether it arrives over arc a, at any step; r{s}
are the rounds of step s.

Corrections: "never" is S + 1, and then nothing is sent to that rank; nothing is sent to a rank that has the chunk from
the start; and E, the paper's set of links, contains only links with bandwidth. Generalisations: arcs are paths through
switches, too, and load every link on their path; capacities are fractions.

The file uses neither symmetry nor distances and shares nothing with the clauses of our own engines and proofs, so a
solver's answer to it is an independent check.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

from antiphon.core.ksync.cnf import Question
from antiphon.core.ksync.instance import Instance, Kind
from antiphon.core.plan import Plan
from antiphon.formats.points.claims import legend_lines, list_claims

Weighted = Sequence[tuple[int, str]]  # (weight, formula): the weight counts if the formula is true
Sums = Callable[[Weighted, int], str]  # writes the formula "the weights of true formulas sum to at most the limit"


def smtlib(
    plan: Plan, *, chunks: int | None = None, steps: int | None = None, rounds: int | None = None
) -> dict[str, Iterator[bytes]]:
    """Write SMT-LIB files for the points (C, S, R) that the plan claims, or for one point.

    A file has O(chunks * arcs * steps) terms.

    Parameters
    ----------
    chunks, steps, rounds
        The only point to write.
    """
    return {
        f"{claim.name}.smt2": _write_file(claim.instance, claim.question, claim.about)
        for claim in list_claims(plan, chunks, steps, rounds)
    }


def _write_file(instance: Instance, question: Question, about: Sequence[str]) -> Iterator[bytes]:
    """Yield the lines of a file: comments (;) with the question and the names of symbols, then the formulas."""
    symbols = "t{c}_{n}: when chunk c comes to rank n; x{c}_{a}: whether over arc a; r{s}: the rounds of step s"
    for line in (*about, symbols, *legend_lines(instance, question.parts)):
        yield f"; {line}\n".encode()
    yield b"(set-logic QF_LIA)\n"
    for line in smt_lines(instance, question):
        yield f"{line}\n".encode()
    yield b"(check-sat)\n"


def plain_sum(weighted: Weighted, limit: int) -> str:
    """Return "the weighted sum is at most `limit`" as any solver reads it."""
    return f"(<= (+ {' '.join(f'(ite {x} {weight} 0)' for weight, x in weighted)} 0) {limit})"


def smt_lines(instance: Instance, question: Question, sums: Sums = plain_sum) -> Iterator[str]:
    """Yield declarations and assertions, a line each. O(chunks * arcs * steps) terms.

    `sums`: writes sums of weights; a solver with a form of its own for these may take another than `plain_sum`.
    """
    # the kind of each chunk: `parts` chunks for each unit of the weight of a kind's blocks
    chunks = [kind for kind in instance.kinds for _ in range(kind.weight * question.parts)]
    for c, kind in enumerate(chunks):
        yield from _chunk_constraints(instance, question.steps, c, kind, sums)
    head = instance.arcs.head.tolist()
    # by arc to a rank b: the chunks that may go over it, those that b does not hold from the start
    coming = [[c for c, kind in enumerate(chunks) if b not in kind.holders] for b in head]

    def sends(arc: int, step: int) -> list[str]:
        return [f"(and x{c}_{arc} (= t{c}_{head[arc]} {step + 1}))" for c in coming[arc]]

    yield from load_constraints(instance, question, sends, sums)


def _chunk_constraints(instance: Instance, steps: int, c: int, kind: Kind, sums: Sums) -> Iterator[str]:
    """Yield constraints C1 to C4 (the paper's numbers) for one chunk `c` of this kind."""
    into: dict[int, list[str]] = {rank: [] for rank in range(instance.ranks) if rank not in kind.holders}
    for rank in into:  # C1: holders have it at time 0, and need no variable
        yield f"(declare-const t{c}_{rank} Int)"
        yield f"(assert (<= 1 t{c}_{rank} {steps if rank in kind.dests else steps + 1}))"  # C2
    for arc, (a, b) in enumerate(zip(instance.arcs.tail.tolist(), instance.arcs.head.tolist(), strict=True)):
        if b in into:
            into[b].append(f"x{c}_{arc}")
            yield f"(declare-const x{c}_{arc} Bool)"
            if a in into:
                yield f"(assert (=> x{c}_{arc} (< t{c}_{a} t{c}_{b})))"  # C4
    for rank, sent in into.items():  # C3
        yield from at_most_one(sent, sums)
        comes = "true" if rank in kind.dests else f"(<= t{c}_{rank} {steps})"
        yield f"(assert (= {comes} (or {' '.join(sent)} false)))"


def at_most_one(formulas: Sequence[str], sums: Sums) -> Iterator[str]:
    """Yield the constraint that at most one of the formulas holds."""
    if len(formulas) > 1:
        yield f"(assert {sums([(1, x) for x in formulas], 1)})"


def load_constraints(
    instance: Instance, question: Question, sends: Callable[[int, int], Sequence[str]], sums: Sums
) -> Iterator[str]:
    """Yield constraints C5 and C6: every step takes a round or more, together R at most; a resource carries in a step
    as many chunks as its rounds allow. `sends(arc, step)`: formulas, one for each chunk that then goes over that arc.
    `question.split`: the rounds of every step; None: the solver chooses them (free rounds).

    With capacity p / q and free rounds r, at most `rounds`: q * sends <= p * r. As `sums` takes only formulas with
    weights, r is written as rounds - (number of true formulas among r < 2, ..., r < rounds), with the number moved to
    the left.
    """
    steps, split = question.steps, question.split
    max_rounds = [question.rounds - steps + 1] * steps if split is None else list(split)
    for step, rounds in enumerate(max_rounds):
        yield f"(declare-const r{step} Int)"
        yield f"(assert (<= {1 if split is None else rounds} r{step} {rounds}))"
    yield f"(assert (<= (+ {' '.join(f'r{step}' for step in range(steps))} 0) {question.rounds}))"
    arcs_of: dict[int, list[int]] = defaultdict(list)  # by resource; an arc that loads it twice is listed twice
    for arc, resource in zip(*(column.tolist() for column in instance.arcs.load), strict=True):
        arcs_of[resource].append(arc)
    for resource, arcs in sorted(arcs_of.items()):
        p, q = instance.capacity[resource].as_integer_ratio()
        for step, rounds in enumerate(max_rounds):
            loading = [(q, x) for arc in arcs for x in sends(arc, step)]
            spare = [] if split is not None else [(p, f"(< r{step} {r})") for r in range(2, rounds + 1)]
            # Leave out a constraint that holds even if every chunk is sent in the fewest rounds.
            if q * len(loading) > p * (1 if spare else rounds):
                yield f"(assert {sums([*loading, *spare], p * rounds)})"
