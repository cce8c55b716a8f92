"""The engine `sat`: SCCL's problem as clauses, for CaDiCaL and MiniSat.

Per chunk: have[n, t] (monotone in t) and send[a, s], only where a chunk can be in time and be of use. What is sent
is there before; what is newly there was sent. Totalizers count the load of every resource in every step against
its rounds. With a group, one chunk of every orbit has variables; the others are its images.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from antiphon.core.ksync.instance import Instance
from antiphon.planners.synth.cnf import Clauses
from antiphon.planners.synth.group import Renamings, orbits
from antiphon.planners.synth.purse import LITERAL, PROPAGATION
from antiphon.planners.synth.task import Answer, Effort, Move, Task, images, tidy

SLICE = 3000  # conflicts
SOLVERS = {"minisat": "minisat22", "cadical": "cadical195"}


@dataclass(frozen=True)
class Encoding:
    """The clauses; per chunk that stands for its orbit, its kind, number and variables (arc x step) of its sends."""

    clauses: Clauses
    chunks: tuple[tuple[int, int], ...]
    sends: NDArray[np.int64]


def representatives(task: Task, group: Renamings) -> list[tuple[int, int]]:
    """(kind, number) of one chunk per orbit. The group must be one of `subgroups` for these parts."""
    chunks = []
    kind_orbit = orbits(group.kinds)
    for kind in np.unique(kind_orbit).tolist():
        keeping = int(np.count_nonzero(group.kinds[:, kind] == kind))
        count = task.parts * task.instance.kinds[kind].weight
        chunks += [(kind, number) for number in range(count // keeping)]
    return chunks


def encode(task: Task, group: Renamings) -> Encoding:
    """O(chunks * arcs * steps) variables, and counters of the loads."""
    instance, steps = task.instance, task.steps
    chunks = representatives(task, group)
    out = Clauses()
    sends = np.zeros((len(chunks), len(instance.arcs), steps), np.int64)
    for place, (kind, _) in enumerate(chunks):
        _chunk(out, instance, kind, steps, sends[place])
    max_rounds = list(task.split) if task.split is not None else [task.rounds - steps + 1] * steps
    extra = free_rounds(out, max_rounds, task.rounds if task.split is None else None)
    back = np.argsort(group.arcs, axis=1)
    arcs_of: dict[int, list[int]] = defaultdict(list)
    for arc, resource in zip(*(column.tolist() for column in instance.arcs.load), strict=True):
        arcs_of[resource].append(arc)
    for resource in np.unique(orbits(group.resources)).tolist():
        loading = back[:, arcs_of[resource]].ravel()
        for step in range(steps):
            literals = sends[:, loading, step].ravel()
            load_within(
                out, sorted(literals[literals > 0].tolist()), instance.capacity[resource], extra[step], max_rounds[step]
            )
    return Encoding(out, tuple(chunks), sends)


def _chunk(out: Clauses, instance: Instance, kind: int, steps: int, sends: NDArray[np.int64]) -> None:
    about = instance.kinds[kind]
    early, steps_to_dest = instance.from_holders(about).tolist(), instance.to_dests(about).tolist()
    have: dict[tuple[int, int], int] = {}
    for rank in range(instance.ranks):
        if rank not in about.holders:
            for time in range(early[rank], steps - steps_to_dest[rank] + 1):
                have[rank, time] = out.new()
    coming: dict[tuple[int, int], list[int]] = defaultdict(list)
    ends = zip(instance.arcs.tail.tolist(), instance.arcs.head.tolist(), strict=True)
    for arc, (a, b) in enumerate(ends):
        if b in about.holders:
            continue
        for step in range(early[a], steps - steps_to_dest[b]):
            send = out.new()
            sends[arc, step] = send
            if a not in about.holders:
                out.rows.append([-send, have[a, step]])
            if (b, step) in have:
                out.rows.append([-send, -have[b, step]])
            out.rows.append([-send, have[b, step + 1]])
            coming[b, step + 1].append(send)
    for (rank, time), has_it in have.items():
        before = have.get((rank, time - 1))
        if before is not None:
            out.rows.append([-before, has_it])
        out.rows.append([-has_it, *([before] if before is not None else []), *coming[rank, time]])
    for rank in about.dests:
        out.rows.append([have[rank, steps]] if (rank, steps) in have else [])


def free_rounds(out: Clauses, max_rounds: list[int], total: int | None) -> list[list[int]]:
    """Per step variables "r_s >= 2", "r_s >= 3", ...; with `total`, all together at most so many rounds."""
    extra = [[out.new() for _ in range(count - 1)] if total is not None else [] for count in max_rounds]
    for row in extra:
        out.rows += [[-b, a] for a, b in itertools.pairwise(row)]
    if total is not None:
        spare = total - len(max_rounds)
        counted = out.count([x for row in extra for x in row], spare)
        if len(counted) > spare:
            out.rows.append([-counted[spare]])
    return extra


def load_within(out: Clauses, literals: list[int], capacity: Fraction, extra: list[int], max_rounds: int) -> None:
    """As many sends as so many rounds allow; every further one asks for further rounds."""
    if len(literals) <= capacity * (max_rounds if not extra else 1):
        return
    for j, counted in enumerate(out.count(literals, int(capacity * max_rounds))):
        need = math.ceil(Fraction(j + 1) / capacity)
        if need > max_rounds:
            out.rows.append([-counted])
        elif extra and need > 1:
            out.rows.append([-counted, extra[need - 2]])


def sat(
    task: Task, group: Renamings, effort: Effort, solver: str = "cadical", effort_left: int | None = None
) -> Answer:
    """Ask a SAT solver. Refuted: for this group, and this split if one is given. The seed numbers the variables anew:
    short tries with different numbers find what one long try misses.

    `left`: what it may cost (purse.py). It is looked at after every SLICE of conflicts, so that an answer which costs
    less is found as it would be with more.
    """
    from pysat.solvers import Solver

    if task.rounds < (task.steps if task.split is None else sum(task.split)):
        return Answer(None, refuted=True)
    encoding = encode(task, group)
    named, back = _renumbered(encoding.clauses, effort.seed)
    with Solver(name=SOLVERS[solver], bootstrap_with=named) as engine:
        written = LITERAL * sum(map(len, named))
        satisfiable, price, tried = None, written, 0
        while (
            satisfiable is None
            and (effort.conflicts is None or tried < effort.conflicts)
            and _within(price, effort_left)
        ):
            slice_ = SLICE if effort.conflicts is None else min(SLICE, effort.conflicts - tried)
            engine.conf_budget(slice_)
            satisfiable, tried = engine.solve_limited(), tried + slice_
            price = written + PROPAGATION * engine.accum_stats()["propagations"]
        if not satisfiable:
            return Answer(None, satisfiable is False, price)
        true = {back[literal] for literal in engine.get_model() if literal > 0}
    return Answer(tuple(decode(task, group, encoding, true)), price=price)


def _within(price: int, effort_left: int | None) -> bool:
    return effort_left is None or price < effort_left


def _renumbered(clauses: Clauses, seed: int) -> tuple[list[list[int]], list[int]]:
    """The clauses with variables numbered by this seed (0: as they are), and what each new number was."""
    count = clauses.variables
    back = np.arange(count + 1)
    if not seed:
        return clauses.rows, list(back.tolist())
    back[1:] = np.random.default_rng(seed).permutation(count) + 1
    to = np.argsort(back).tolist()
    return [[to[x] if x > 0 else -to[-x] for x in row] for row in clauses.rows], list(back.tolist())


def decode(task: Task, group: Renamings, encoding: Encoding, true: set[int]) -> list[Move]:
    instance, moves = task.instance, list[Move]()
    for place, (kind, number) in enumerate(encoding.chunks):
        arcs, steps = np.nonzero(encoding.sends[place])
        sent = [
            (instance.arcs.paths[arc], step)
            for arc, step in zip(arcs.tolist(), steps.tolist(), strict=True)
            if int(encoding.sends[place, arc, step]) in true
        ]
        moves += images(instance, group, kind, number, tidy(instance, kind, sent))
    return moves
