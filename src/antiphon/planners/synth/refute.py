"""Proofs that there is no algorithm where only a search can tell: CaDiCaL on the core's clauses, made checkable.

The clauses are those that the checker writes (core/ksync/cnf.py): no symmetry of the machine, every split of the
rounds. CaDiCaL logs its lemmas; elaborate makes chains of them, of which core/ksync/proof.py believes nothing.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from antiphon.core.ksync.cnf import Clause, Question, formula
from antiphon.core.ksync.instance import Instance
from antiphon.core.ksync.proof import Refutation, check, pack, unpack
from antiphon.planners.synth.elaborate import Chain, Elaboration
from antiphon.planners.synth.purse import ELABORATED, LEMMA, LITERAL, PROPAGATION
from antiphon.planners.synth.task import Effort

FIRST = 50_000  # conflicts; where they do not do, the clauses are shuffled: how long a proof takes is a matter of luck
SOLVER = "cadical195"


def refute(
    instance: Instance, question: Question, effort: Effort, effort_left: int | None = None, again: int = 1
) -> tuple[Refutation | None, int]:
    """A proof, already checked; None where an algorithm exists, or `effort.conflicts` do not do. And the price; `left`:
    what it may be (purse.py).

    `again`: how often the clauses that a proof needs are solved alone, in the hope of a shorter one. Ten to twenty
    seconds per hundred thousand conflicts beyond the search itself; `question.ordered` may need a hundredth of them.
    """
    encoded = formula(instance, question)
    clauses = encoded.clauses
    chains, price = _search(clauses, encoded.variables, effort, effort_left)
    if chains is None:
        return None, price
    packed = pack(chains, len(clauses))
    for _ in range(again):
        used = sorted({number for chain in chains for number in chain if number < len(clauses)})
        alone = [clauses[number] for number in used]
        chains, extra_price = _search(alone, encoded.variables, Effort(FIRST, seed=effort.seed))
        price += extra_price
        if chains is None:
            break
        shift = len(clauses) - len(used)
        chains = [[used[x] if x < len(used) else x + shift for x in chain] for chain in chains]
        shorter = pack(chains, len(clauses))
        if len(shorter) >= len(packed):
            break
        packed = shorter
    refutation = Refutation(question, packed)
    check(clauses, unpack(packed, len(clauses)))
    return refutation, price


def _search(
    clauses: Sequence[Clause], variables: int, effort: Effort, max_price: int | None = None
) -> tuple[list[Chain] | None, int]:
    """Chains from the clauses to the contradiction, or None. Every try has twice the conflicts of the one before.
    And the price, which is looked at after each."""
    work = Elaboration(clauses, variables)
    price = ELABORATED * sum(map(len, clauses))
    if work.conflict is not None:  # propagation alone does
        return work.chains(), price
    conflicts_left, ahead, tries = effort.conflicts, FIRST, 0
    while (conflicts_left is None or conflicts_left > 0) and (max_price is None or price < max_price):
        budget = ahead if conflicts_left is None else min(ahead, conflicts_left)
        order = list(range(len(clauses)))
        if tries:
            random.Random(effort.seed * 1000 + tries).shuffle(order)
        outcome, try_price = _solve([list(clauses[n]) for n in order], budget)
        price += try_price
        if outcome == "true":
            return None, price
        if isinstance(outcome, list):
            work.forward(outcome)
            return work.chains(), price + LEMMA * len(outcome)
        ahead, tries, conflicts_left = 2 * ahead, tries + 1, None if conflicts_left is None else conflicts_left - budget
    return None, price


def _solve(clauses: list[list[int]], conflicts: int) -> tuple[Any, int]:
    """The lines of a proof; "true" where they can all be true; None where the conflicts do not do. And the price."""
    from pysat.solvers import Solver

    with Solver(name=SOLVER, bootstrap_with=clauses, with_proof=True) as solver:
        solver.conf_budget(conflicts)
        satisfiable = solver.solve_limited()
        price = LITERAL * sum(map(len, clauses)) + PROPAGATION * solver.accum_stats()["propagations"]
        return "true" if satisfiable else None if satisfiable is None else solver.get_proof(), price
