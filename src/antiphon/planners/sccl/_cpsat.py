"""The engine `cpsat`: SCCL's problem for OR-tools CP-SAT, with whole numbers where `sat` counts by clauses.

Per chunk send[a, s], only where a chunk can be in time and be of use: exactly one into every destination, at most
one into any other rank, each after one into where it leaves from. The sends of a step over a resource are a sum of
at most its capacity times the rounds. With a group, one chunk of every orbit has variables; the others are its images.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from antiphon.core.ksync.instance import Instance
from antiphon.errors import Missing
from antiphon.planners.sccl._group import Group, orbits
from antiphon.planners.sccl._task import Answer, Effort, Move, Task, images, tidy

PER_CONFLICT = 1e-3  # of CP-SAT's deterministic seconds: about what it takes for one


def cpsat(task: Task, group: Group, effort: Effort) -> Answer:
    """Ask CP-SAT, on one thread. Refuted: for this group, and this split if one is given.

    O(chunks that stand for their orbits * arcs * steps) variables. Effort counts in its deterministic time.
    """
    try:
        from ortools.sat.python import cp_model
    except ImportError:
        raise Missing("the engine cpsat needs OR-tools; get it with pip install 'antiphon[synth]'") from None
    instance = task.instance
    if (task.rounds < task.steps) if task.split is None else (sum(task.split) > task.rounds):
        return Answer(None, refuted=True)
    model = cp_model.CpModel()
    chunks = representatives(task, group)
    sends = [_chunk(model, instance, kind, task.steps) for kind, _ in chunks]
    _loads(model, task, group, sends)
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
        moves += images(instance, group, kind, number, tidy(instance, kind, chosen))
    return Answer(tuple(moves))


def representatives(task: Task, group: Group) -> list[tuple[int, int]]:
    """(kind, number) of one chunk per orbit: a kind's chunks in as many orbits as its stabilizer leaves."""
    found = []
    for kind in np.unique(orbits(group.kinds)).tolist():
        keeping = int(np.count_nonzero(group.kinds[:, kind] == kind))
        chunks = len(task.instance.chunks(task.instance.kinds[kind], task.parts))
        found += [(kind, number) for number in range(chunks // keeping)]
    return found


def _chunk(model: Any, instance: Instance, kind: int, steps: int) -> dict[tuple[int, int], Any]:
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


def _loads(model: Any, task: Task, group: Group, sends: Sequence[dict[tuple[int, int], Any]]) -> None:
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
