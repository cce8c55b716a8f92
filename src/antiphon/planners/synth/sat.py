"""Engine `sat`: SCCL's problem as clauses for the SAT solvers CaDiCaL and MiniSat (SCCL, section 3.4, without SMT).

An engine is a search method of synthesis here; auto.py chooses among them. Input is a task (parts, steps, rounds,
perhaps a split of the rounds) and a symmetry group; output is an algorithm, or that there is none with this symmetry
and split. Variables per chunk, created only where the chunk can be in time and still be useful:

    have[n, t]   rank n has the chunk after t steps (monotone in t)
    send[a, s]   the chunk travels over arc a (a path through switches) in step s

Clauses
    send[a, s] -> have[tail, s],  not have[head, s],  have[head, s + 1]     sent only by a holder, received once
    have[n, t] -> have[n, t - 1] or some send into n in step t - 1          nothing appears from nowhere
    have[d, S] for every destination d
    load of a resource in step s <= capacity * r_s                          totalizers count the sends (cnf.py)

Rounds are either fixed per step (`task.split`) or free: then unary variables "r_s >= 2", "r_s >= 3", ... are counted by
one more totalizer. With a symmetry group only one chunk per orbit has variables; the loads count the images of its
sends.

Example: a chunk from rank 0 on the path 0 - 1 - 2 in S = 2: the only variables are have[1, 1], have[2, 2], send[01, 0]
and send[12, 1], and unit propagation alone decides them.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from antiphon.core.ksync.instance import Instance, Kind
from antiphon.planners.synth.cnf import Clauses
from antiphon.planners.synth.effort_budget import LITERAL, PROPAGATION
from antiphon.planners.synth.group import SymmetryGroup, orbits
from antiphon.planners.synth.task import Answer, Effort, Move, Task, drop_useless_moves, orbit_moves

SLICE = 3000  # conflicts (backtracks) between two comparisons with the remaining effort
SOLVERS = {"minisat": "minisat22", "cadical": "cadical195"}


@dataclass(frozen=True)
class Encoding:
    """The clauses, and where to find the sends in a solution.

    `chunks`: the (kind, number) of the chunk that represents each orbit. `sends`: variables by [chunk, arc, step], 0
    for none.
    """

    clauses: Clauses
    chunks: tuple[tuple[int, int], ...]
    sends: NDArray[np.int64]


def list_representatives(task: Task, group: SymmetryGroup) -> list[tuple[int, int]]:
    """Return (kind, number) of one chunk per orbit (chunks that the group maps to each other).

    The group must be one that `find_subgroups` returned for these parts.
    """
    chunks = []
    kind_orbit = orbits(group.kinds)
    for kind in np.unique(kind_orbit).tolist():
        fixing_count = int(np.count_nonzero(group.kinds[:, kind] == kind))
        count = task.parts * task.instance.kinds[kind].weight
        # an orbit has `fixing_count` chunks of this kind: each element that fixes the kind takes a chunk to another one
        # of it (`orbit_moves` numbers the chunks orbit by orbit)
        chunks += [(kind, number) for number in range(count // fixing_count)]
    return chunks


def encode_task(task: Task, group: SymmetryGroup) -> Encoding:
    """Encode a task in O(chunks * arcs * steps) variables, plus counters of the loads."""
    instance, steps = task.instance, task.steps
    chunks = list_representatives(task, group)
    out = Clauses()
    sends = np.zeros((len(chunks), len(instance.arcs), steps), np.int64)
    for index, (kind, _) in enumerate(chunks):
        _encode_chunk(out, instance, instance.kinds[kind], steps, sends[index])
    # by step; without a split a step may have all rounds but one for each other step
    max_rounds = list(task.split) if task.split is not None else [task.rounds - steps + 1] * steps
    extra = free_rounds(out, max_rounds, task.rounds if task.split is None else None)
    # the load of a resource includes images of sends: image e of a chunk uses arc a iff the representative uses e^-1(a)
    inverse_arcs = np.argsort(group.arcs, axis=1)
    arcs_of: dict[int, list[int]] = defaultdict(list)
    for arc, resource in zip(*(column.tolist() for column in instance.arcs.load), strict=True):
        arcs_of[resource].append(arc)
    for resource in np.unique(orbits(group.resources)).tolist():  # resources of an orbit are loaded alike
        loading_arcs = inverse_arcs[:, arcs_of[resource]].ravel()
        for step in range(steps):
            literals = sends[:, loading_arcs, step].ravel()
            load_within(
                out, sorted(literals[literals > 0].tolist()), instance.capacity[resource], extra[step], max_rounds[step]
            )
    return Encoding(out, tuple(chunks), sends)


def _encode_chunk(out: Clauses, instance: Instance, kind: Kind, steps: int, sends: NDArray[np.int64]) -> None:
    """Add the variables and clauses of one chunk and write its send variables to `sends` (arc x step)."""
    # before `early` a rank cannot have the chunk; later than steps - steps_to_dest it would be of no use
    early, steps_to_dest = instance.from_holders(kind).tolist(), instance.to_dests(kind).tolist()
    have: dict[tuple[int, int], int] = {}
    for rank in range(instance.ranks):
        if rank not in kind.holders:
            for time in range(early[rank], steps - steps_to_dest[rank] + 1):
                have[rank, time] = out.new_variable()
    sends_into: dict[tuple[int, int], list[int]] = defaultdict(list)
    ends = zip(instance.arcs.tail.tolist(), instance.arcs.head.tolist(), strict=True)
    for arc, (a, b) in enumerate(ends):
        if b in kind.holders:
            continue
        # sent in `step`, it is at b after step + 1 steps
        for step in range(early[a], steps - steps_to_dest[b]):
            send = out.new_variable()
            sends[arc, step] = send
            if a not in kind.holders:
                out.rows.append([-send, have[a, step]])
            if (b, step) in have:
                out.rows.append([-send, -have[b, step]])
            out.rows.append([-send, have[b, step + 1]])
            sends_into[b, step + 1].append(send)
    # monotone in time, and only with a cause
    for (rank, time), has_it in have.items():
        had_it = have.get((rank, time - 1))
        if had_it is not None:
            out.rows.append([-had_it, has_it])
        out.rows.append([-has_it, *([had_it] if had_it is not None else []), *sends_into[rank, time]])
    for rank in kind.dests:  # the empty clause, which is false: the rank is out of reach in this number of steps
        out.rows.append([have[rank, steps]] if (rank, steps) in have else [])


def free_rounds(out: Clauses, max_rounds: list[int], total: int | None) -> list[list[int]]:
    """Return per step variables "r_s >= 2", "r_s >= 3", ..., and limit the sum of all rounds to `total`.

    `max_rounds`: of each step. `total` None: the rounds are fixed, and there are no variables.
    """
    extra = [[out.new_variable() for _ in range(count - 1)] if total is not None else [] for count in max_rounds]
    for row in extra:  # a step with n + 1 rounds or more has n or more
        out.rows += [[-b, a] for a, b in itertools.pairwise(row)]
    if total is not None:
        max_extra = total - len(max_rounds)
        more_than = out.count_true([x for row in extra for x in row], max_extra)  # [j]: more than j are true
        if len(more_than) > max_extra:
            out.rows.append([-more_than[max_extra]])
    return extra


def load_within(out: Clauses, literals: list[int], capacity: Fraction, extra: list[int], max_rounds: int) -> None:
    """Limit the number of true literals to capacity * rounds of the step; `extra`: its variables of `free_rounds`
    (none: it has `max_rounds` rounds)."""
    # they fit into the rounds that the step has in any case
    if len(literals) <= capacity * (max_rounds if not extra else 1):
        return
    for j, more_than_j in enumerate(out.count_true(literals, int(capacity * max_rounds))):
        needed_rounds = math.ceil(Fraction(j + 1) / capacity)
        if needed_rounds > max_rounds:
            out.rows.append([-more_than_j])
        elif extra and needed_rounds > 1:
            out.rows.append([-more_than_j, extra[needed_rounds - 2]])  # extra[n - 2] says "r_s >= n"


def solve_sat(
    task: Task, group: SymmetryGroup, effort: Effort, solver: str = "cadical", effort_left: int | None = None
) -> Answer:
    """Solve with a SAT solver. The answer "refuted" holds for this group and, if there is one, this split.

    The seed renumbers the variables: several short tries with different numberings find solutions that one long try
    misses. `effort_left` is compared after every SLICE of conflicts, so a cheap answer does not depend on how much
    effort remains.
    """
    if task.rounds < (task.steps if task.split is None else sum(task.split)):
        return Answer(moves=None, refuted=True)
    encoding = encode_task(task, group)
    satisfiable, price, true_variables = run_solver_in_slices(encoding.clauses, effort, solver, effort_left)
    if not satisfiable:
        return Answer(moves=None, refuted=satisfiable is False, price=price)
    return Answer(tuple(decode_model(task, group, encoding, true_variables)), price=price)


def run_solver_in_slices(
    clauses: Clauses, effort: Effort, solver: str, effort_left: int | None
) -> tuple[bool | None, int, set[int]]:
    """Return whether the clauses can be satisfied (None: undecided), the price, and the true variables.

    `effort_left`: as for `solve_sat`.
    """
    from pysat.solvers import Solver

    rows, back = _renumber_variables(clauses, effort.seed)
    with Solver(name=SOLVERS[solver], bootstrap_with=rows) as sat_solver:
        clause_price = LITERAL * sum(map(len, rows))
        satisfiable, price, conflicts_used = None, clause_price, 0
        while (
            satisfiable is None
            and (effort.conflicts is None or conflicts_used < effort.conflicts)
            and (effort_left is None or price < effort_left)
        ):
            slice_ = SLICE if effort.conflicts is None else min(SLICE, effort.conflicts - conflicts_used)
            sat_solver.conf_budget(slice_)
            satisfiable, conflicts_used = sat_solver.solve_limited(), conflicts_used + slice_
            price = clause_price + PROPAGATION * sat_solver.accum_stats()["propagations"]
        return satisfiable, price, {back[x] for x in sat_solver.get_model() if x > 0} if satisfiable else set()


def _renumber_variables(clauses: Clauses, seed: int) -> tuple[list[list[int]], list[int]]:
    """Return the clauses with variables permuted by this seed (0: unchanged), and the inverse permutation."""
    count = clauses.variables
    back = np.arange(count + 1)
    if not seed:
        return clauses.rows, list(back.tolist())
    back[1:] = np.random.default_rng(seed).permutation(count) + 1
    to = np.argsort(back)
    renumbered = [*to.tolist(), *(-to[:0:-1]).tolist()]  # by literal: -x takes the x-th place from the end
    return [[renumbered[x] for x in row] for row in clauses.rows], list(back.tolist())


def decode_model(task: Task, group: SymmetryGroup, encoding: Encoding, true_variables: set[int]) -> list[Move]:
    """Return all chunks' moves from the true send variables."""
    instance, moves = task.instance, list[Move]()
    for index, (kind, number) in enumerate(encoding.chunks):
        arcs, steps = np.nonzero(encoding.sends[index])
        sent = [
            (instance.arcs.paths[arc], step)
            for arc, step in zip(arcs.tolist(), steps.tolist(), strict=True)
            if int(encoding.sends[index, arc, step]) in true_variables
        ]
        moves += orbit_moves(group, kind, number, drop_useless_moves(instance, kind, sent))
    return moves
