"""Engines that others than ours answer, to compare with: z3 on the paper's encoding, z3 on the direct one, CP-SAT.

`z3` reads what `export --to smtlib` writes (SCCL, section 3.4), with sums as z3 counts them best. `boolean` is what
SCCL compares with in section 5.4.3: one Boolean per tuple (chunk, arc, step), and nothing else but the rounds; what is
sent was there at first or was sent there in an earlier step; what is wanted is sent there in some step; a rank gets a
chunk once. `cpsat` is for OR-tools CP-SAT, with whole numbers where ours counts by clauses: per chunk send[a, s], only
where a chunk can be in time and be of use; exactly one into every destination, at most one into any other rank, each
after one into where it leaves from. With a group, one chunk of every orbit has variables; the others are its images.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from later import Later

from antiphon.core.ksync.cnf import Question
from antiphon.core.ksync.instance import Instance, Kind
from antiphon.formats.points.smtlib import Weighted, at_most_one, load_constraints, smt_lines
from antiphon.planners.synth.group import SymmetryGroup, orbits
from antiphon.planners.synth.task import Answer, Effort, Move, Task, drop_useless_moves, orbit_moves

library, cp_model = Later("z3"), Later("ortools.sat.python.cp_model")
PER_CONFLICT = 1e-3  # of CP-SAT's deterministic seconds: about what it takes for one


# ---- z3 ----


def z3(task: Task, group: SymmetryGroup, effort: Effort) -> Answer:
    """The paper's encoding; the group is left alone. Refuted: for this split if one is given.

    Free rounds make the sums weighted, which its finite-domain solver takes best; fixed ones leave counts, and
    there the order of the times weighs more, which the arithmetic of its core takes best.
    """
    free = task.split is None and task.rounds > task.steps
    model, none = _ask(smt_lines(task.instance, _question(task), _counted), free, effort)
    if model is None:
        return Answer(None, refuted=none)
    arcs, moves = task.instance.arcs, list[Move]()
    for c, (k, i) in enumerate(_chunks(task)):
        sent = [
            (path, model[f"t{c}_{b}"].as_long() - 1)
            for arc, (path, b) in enumerate(zip(arcs.paths, arcs.head.tolist(), strict=True))
            if bool(model.get(f"x{c}_{arc}", False))
        ]
        moves += [(k, i, path, step) for path, step in drop_useless_moves(task.instance, k, sent)]
    return Answer(tuple(moves))


def boolean(task: Task, group: SymmetryGroup, effort: Effort) -> Answer:
    """The direct encoding; the group is left alone. Refuted: for this split if one is given."""
    model, none = _ask(_direct(task), True, effort)
    if model is None:
        return Answer(None, refuted=none)
    moves: list[Move] = []
    for c, (k, i) in enumerate(_chunks(task)):
        sent = [
            (path, step)
            for arc, path in enumerate(task.instance.arcs.paths)
            for step in range(task.steps)
            if bool(model.get(f"x{c}_{arc}_{step}", False))
        ]
        moves += [(k, i, path, step) for path, step in drop_useless_moves(task.instance, k, sent)]
    return Answer(tuple(moves))


def _question(task: Task) -> Question:
    return Question(task.parts, task.steps, task.rounds, task.split)


def _chunks(task: Task) -> list[tuple[int, int]]:
    kinds = task.instance.kinds
    return [(k, i) for k, kind in enumerate(kinds) for i in range(len(task.instance.chunks_of_kind(kind, task.parts)))]


def _direct(task: Task) -> Iterator[str]:
    kinds = [task.instance.kinds[k] for k, _ in _chunks(task)]
    for c, kind in enumerate(kinds):
        yield from _direct_chunk(task, c, kind)
    head = task.instance.arcs.head.tolist()
    coming = [[c for c, kind in enumerate(kinds) if b not in kind.holders] for b in head]
    sends = lambda arc, step: [f"x{c}_{arc}_{step}" for c in coming[arc]]  # noqa: E731
    yield from load_constraints(task.instance, _question(task), sends, _counted)


def _direct_chunk(task: Task, c: int, kind: Kind) -> Iterator[str]:
    arcs, steps = task.instance.arcs, range(task.steps)
    into: list[list[int]] = [[] for _ in range(task.instance.ranks)]
    for arc, b in enumerate(arcs.head.tolist()):
        if b not in kind.holders:
            into[b].append(arc)
    for rank, coming in enumerate(into):
        sends = [f"x{c}_{arc}_{step}" for step in steps for arc in coming]
        yield from (f"(declare-const {name} Bool)" for name in sends)
        yield from at_most_one(sends, _counted)
        if rank in kind.dests:
            yield f"(assert (or {' '.join(sends)} false))"
    for arc, (a, b) in enumerate(zip(arcs.tail.tolist(), arcs.head.tolist(), strict=True)):
        if b in kind.holders or a in kind.holders:
            continue
        for step in steps:
            earlier = [f"x{c}_{other}_{before}" for before in range(step) for other in into[a]]
            yield f"(assert (=> x{c}_{arc}_{step} (or {' '.join(earlier)} false)))"


def _counted(weighted: Weighted, most: int) -> str:
    """As z3 counts without arithmetic."""
    formulas = " ".join(x for _, x in weighted)
    if all(weight == 1 for weight, _ in weighted):
        return f"((_ at-most {most}) {formulas})"
    return f"((_ pble {most} {' '.join(str(weight) for weight, _ in weighted)}) {formulas})"


def _ask(lines: Iterator[str], finite: bool, effort: Effort) -> tuple[dict[str, Any] | None, bool]:
    """A model, or None and whether there is none. `finite`: by z3's finite-domain solver, else by its core.

    Both go by the seed alone; what z3 takes for linear arithmetic unasked gives up stages by the clock. Every question
    has a context of its own, so that an answer depends on nothing asked before.
    """
    context = library.Context()
    solver = library.SolverFor("QF_FD", ctx=context) if finite else library.SimpleSolver(ctx=context)
    solver.set("random_seed", effort.seed)
    if effort.conflicts is not None:
        solver.set("max_conflicts", effort.conflicts)
    solver.from_string("\n".join(lines))
    answer = solver.check()
    if answer == library.sat:
        model = solver.model()
        return {value.name(): model[value] for value in model.decls()}, False
    return None, bool(answer == library.unsat)


# ---- CP-SAT ----


def cpsat(task: Task, group: SymmetryGroup, effort: Effort) -> Answer:
    """Ask CP-SAT, on one thread. Refuted: for this group, and this split if one is given.

    O(chunks that stand for their orbits * arcs * steps) variables. Effort counts in its deterministic time.
    """
    instance = task.instance
    if (task.rounds < task.steps) if task.split is None else (sum(task.split) > task.rounds):
        return Answer(None, refuted=True)
    model = cp_model.CpModel()
    chunks = representatives(task, group)
    sends = [_cp_chunk(model, instance, kind, task.steps) for kind, _ in chunks]
    _cp_loads(model, task, group, sends)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = effort.seed
    if effort.conflicts is not None:
        solver.parameters.max_deterministic_time = effort.conflicts * PER_CONFLICT
    status = solver.solve(model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return Answer(None, refuted=status == cp_model.INFEASIBLE)
    moves: list[Move] = []
    for (kind, number), sent in zip(chunks, sends, strict=True):
        chosen = [(instance.arcs.paths[arc], step) for (arc, step), x in sent.items() if solver.boolean_value(x)]
        moves += orbit_moves(group, kind, number, drop_useless_moves(instance, kind, chosen))
    return Answer(tuple(moves))


def representatives(task: Task, group: SymmetryGroup) -> list[tuple[int, int]]:
    """(kind, number) of one chunk per orbit: a kind's chunks in as many orbits as its stabilizer leaves."""
    found = []
    for kind in np.unique(orbits(group.kinds)).tolist():
        keeping = int(np.count_nonzero(group.kinds[:, kind] == kind))
        chunks = len(task.instance.chunks_of_kind(task.instance.kinds[kind], task.parts))
        found += [(kind, number) for number in range(chunks // keeping)]
    return found


def _cp_chunk(model: Any, instance: Instance, kind: int, steps: int) -> dict[tuple[int, int], Any]:
    """Variables by (arc, step) for one chunk, and what holds among them."""
    about, arcs = instance.kinds[kind], instance.arcs
    early, left = instance.from_holders(about).tolist(), instance.to_dests(about).tolist()
    sends: dict[tuple[int, int], Any] = {}
    coming: dict[int, list[tuple[int, Any]]] = defaultdict(list)  # per rank (step, variable)
    for arc, (a, b) in enumerate(zip(arcs.tail.tolist(), arcs.head.tolist(), strict=True)):
        for step in range(early[a], steps - left[b]) if b not in about.holders else ():
            sends[arc, step] = model.new_bool_var("")
            coming[b].append((step, sends[arc, step]))
    for rank in range(instance.ranks):
        into = [x for _, x in coming[rank]]
        if rank in about.dests:
            model.add_exactly_one(into)
        elif into:
            model.add_at_most_one(into)
    for (arc, step), x in sends.items():
        a = int(arcs.tail[arc])
        if a not in about.holders:
            model.add_bool_or([*(y for before, y in coming[a] if before < step), x.negated()])
    return sends


def _cp_loads(model: Any, task: Task, group: SymmetryGroup, sends: Sequence[dict[tuple[int, int], Any]]) -> None:
    """What all images of the chunks load a resource with, for one resource of every orbit."""
    instance, steps = task.instance, task.steps
    rounds: list[Any] = list(task.split or ())
    if task.split is None:
        rounds = [model.new_int_var(1, task.rounds - steps + 1, "") for _ in range(steps)]
        model.add(sum(rounds) <= task.rounds)
    most = [task.rounds - steps + 1] * steps if task.split is None else list(task.split)
    back = np.argsort(group.arcs, axis=1)
    arcs_of: dict[int, list[int]] = defaultdict(list)
    for arc, resource in zip(*(column.tolist() for column in instance.arcs.load), strict=True):
        arcs_of[resource].append(arc)
    for resource in np.unique(orbits(group.resources)).tolist():
        if resource not in arcs_of:
            continue
        loading = back[:, arcs_of[resource]].ravel().tolist()
        capacity = instance.capacity[resource]
        for step in range(steps):
            terms = [sent[arc, step] for sent in sends for arc in loading if (arc, step) in sent]
            if task.split is not None and len(terms) > capacity * most[step]:
                model.add(sum(terms) <= int(capacity * most[step]))
            elif task.split is None and len(terms) > capacity:
                model.add(capacity.denominator * sum(terms) <= capacity.numerator * rounds[step])
