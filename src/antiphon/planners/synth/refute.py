"""Prove that no algorithm exists where only exhaustive search can decide it, by a proof that can be checked.

    clauses (core/ksync/cnf.py, which the checker runs, too; steps may have any numbers of rounds)
      -> CaDiCaL, a SAT solver: unsatisfiable, with a log of the clauses that it learned (lemmas, format DRUP)
      -> elaborate.py: resolution chains of the lemmas that are needed
      -> core/ksync/proof.py: checks every chain and trusts nothing of the above

The length of a proof depends much on the order of clauses, so a try that exceeds its limit of conflicts (backtracks) is
followed by one with shuffled clauses and twice the limit. Afterwards the clauses that the proof uses (its unsatisfiable
core) are solved alone, which often gives a shorter proof.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from antiphon.core.ksync.cnf import Clause, Question, build_formula
from antiphon.core.ksync.instance import Instance
from antiphon.core.ksync.proof import Refutation, check_chains, pack_chains, unpack_chains
from antiphon.planners.synth.effort_budget import ELABORATED, LEMMA, LITERAL, PROPAGATION
from antiphon.planners.synth.elaborate import Chain, Elaboration
from antiphon.planners.synth.task import Effort

FIRST_CONFLICTS = 50_000  # limit of the first try
SOLVER = "cadical195"
SATISFIABLE = "satisfiable"  # outcome of a run without a proof


def find_refutation(
    instance: Instance, question: Question, effort: Effort, max_price: int | None = None, again: int = 1
) -> tuple[Refutation | None, int]:
    """Return a proof, already checked, or None, and its price: the work done, in units of effort_budget.py.

    None: an algorithm exists, or a limit was reached: `effort` limits the conflicts, `max_price` the price.
    `again`: how often the core of the proof is solved again for a shorter one. Elaborating and checking take ten to
    twenty seconds per 100,000 conflicts; there may be 100 times fewer with `question.ordered`, by which interchangeable
    chunks are numbered in a fixed order (ksync/cnf.py).
    """
    encoded = build_formula(instance, question)
    clauses = encoded.clauses
    chains, price = _search_proof(clauses, encoded.variables, effort, max_price)
    if chains is None:
        return None, price
    packed = pack_chains(chains, len(clauses))
    for _ in range(again):
        used = sorted({number for chain in chains for number in chain if number < len(clauses)})
        core = [clauses[number] for number in used]
        chains, extra_price = _search_proof(core, encoded.variables, Effort(FIRST_CONFLICTS, seed=effort.seed))
        price += extra_price
        if chains is None:
            break
        # chains count the core's clauses first, then lemmas: renumber both to the full formula
        shift = len(clauses) - len(used)
        chains = [[used[x] if x < len(used) else x + shift for x in chain] for chain in chains]
        shorter = pack_chains(chains, len(clauses))
        if len(shorter) >= len(packed):
            break
        packed = shorter
    refutation = Refutation(question, packed)
    check_chains(clauses, unpack_chains(packed, len(clauses)))
    return refutation, price


def _search_proof(
    clauses: Sequence[Clause], variables: int, effort: Effort, max_price: int | None = None
) -> tuple[list[Chain] | None, int]:
    """Return chains from the clauses to the contradiction (or None) and the price: the effort spent, checked per try.

    Every try has twice the conflicts of the one before.
    """
    elaboration = Elaboration(clauses, variables)
    price = ELABORATED * sum(map(len, clauses))
    if elaboration.conflict is not None:  # unit propagation alone refutes the clauses
        return elaboration.build_chains(), price
    conflicts_left, next_limit, tries = effort.conflicts, FIRST_CONFLICTS, 0
    while (conflicts_left is None or conflicts_left > 0) and (max_price is None or price < max_price):
        budget = next_limit if conflicts_left is None else min(next_limit, conflicts_left)
        order = list(range(len(clauses)))
        if tries:  # another order for every seed and try; lemmas name no clauses, so the proof fits all orders
            random.Random(effort.seed * 1000 + tries).shuffle(order)
        outcome, try_price = _run_cadical([list(clauses[n]) for n in order], budget)
        price += try_price
        if outcome == SATISFIABLE:
            return None, price
        if isinstance(outcome, list):
            elaboration.read_proof(outcome)
            return elaboration.build_chains(), price + LEMMA * len(outcome)
        next_limit, tries, conflicts_left = (
            2 * next_limit,
            tries + 1,
            None if conflicts_left is None else conflicts_left - budget,
        )
    return None, price


def _run_cadical(clauses: list[list[int]], conflicts: int) -> tuple[Any, int]:
    """Return the lines of a proof (or SATISFIABLE; None if the conflicts do not suffice) and the price."""
    from pysat.solvers import Solver

    with Solver(name=SOLVER, bootstrap_with=clauses, with_proof=True) as solver:
        solver.conf_budget(conflicts)
        satisfiable = solver.solve_limited()
        price = LITERAL * sum(map(len, clauses)) + PROPAGATION * solver.accum_stats()["propagations"]
        outcome = SATISFIABLE if satisfiable else None if satisfiable is None else solver.get_proof()
        return outcome, price
