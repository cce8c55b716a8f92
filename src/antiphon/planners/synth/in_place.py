"""Allreduces in place: every rank keeps one value of a chunk; what comes is added to it, or takes its place.

Recursive doubling, exchange along the dimensions of a grid in another order for every chunk, trees up and down: all
that needs no second value at a rank. As clauses, per chunk:

    holds[v, i, t]  the value of rank v counts the input of rank i after t steps
    goes[a, s]      the value is sent over arc a in step s
    fresh[v, s]     what comes to v in step s takes the place of what v had

A value counts every input at most once. Loads and free rounds are counted as in sat.py.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from antiphon.core.collective import Collective
from antiphon.core.columns import narrow
from antiphon.core.ksync.instance import Instance
from antiphon.core.routes import Routes
from antiphon.core.schedule import COPY, REDUCE, Schedule, cut
from antiphon.core.transform import clean
from antiphon.planners.synth.cnf import Clauses
from antiphon.planners.synth.sat import SOLVERS, free_rounds, load_within
from antiphon.planners.synth.task import Effort, link_of, rounds_of

MOST = 2**15  # "goes" of all chunks, times inputs
Sent = tuple[int, int, int, bool]  # step, chunk, arc, whether it takes the place of what was there


CONFLICTS = 20_000  # per solver: seconds where it is as large as may be


@dataclass(frozen=True)
class InPlace:
    """The schedule; or none, and whether that is because there is none in this form."""

    schedule: Schedule | None
    refuted: bool = False


def fits(instance: Instance, chunks: int, steps: int) -> bool:
    """Whether it is small enough to be asked."""
    return chunks * steps * len(instance.arcs) * len(instance.collective.members) <= MOST


def in_place(
    instance: Instance, collective: Collective, point: tuple[int, int, int], effort: Effort, solver: str = "cadical"
) -> InPlace:
    """An allreduce of so many chunks, steps and rounds. `instance`: the allgather of the same machine and members.

    O(chunks * steps * arcs * members) variables. Arcs from and to ranks that only relay are left out.
    """
    from pysat.solvers import Solver

    chunks, steps, rounds = point
    encoding = _Encoding(instance, chunks, steps, rounds)
    with Solver(name=SOLVERS[solver], bootstrap_with=encoding.clauses.rows) as engine:
        if effort.conflicts is not None:
            engine.conf_budget(effort.conflicts)
            satisfiable = engine.solve_limited()
        else:
            satisfiable = engine.solve()
        if not satisfiable:
            return InPlace(None, refuted=satisfiable is False)
        true = {literal for literal in engine.get_model() if literal > 0}
    return InPlace(_schedule(instance, collective, chunks, encoding.sent(true)))


class _Encoding:
    def __init__(self, instance: Instance, chunks: int, steps: int, rounds: int) -> None:
        self.instance, self.steps = instance, steps
        self.members = instance.collective.members
        self.clauses = Clauses()
        inside = set(self.members)
        ends = zip(instance.arcs.tail.tolist(), instance.arcs.head.tolist(), strict=True)
        self.arcs = [(arc, u, v) for arc, (u, v) in enumerate(ends) if u in inside and v in inside]
        self.goes: dict[tuple[int, int, int], int] = {}  # chunk, arc, step
        self.fresh: dict[tuple[int, int, int], int] = {}  # chunk, rank, step
        for chunk in range(chunks):
            self._chunk(chunk)
        max_rounds = rounds - steps + 1
        extra = free_rounds(self.clauses, [max_rounds] * steps, rounds)
        loads: dict[tuple[int, int], list[int]] = defaultdict(list)
        loaded = defaultdict(list)
        for arc, resource in zip(*(column.tolist() for column in instance.arcs.load), strict=True):
            loaded[arc].append(resource)
        for (_, arc, step), goes in self.goes.items():
            for resource in loaded[arc]:
                loads[resource, step].append(goes)
        for (resource, step), literals in sorted(loads.items()):
            load_within(self.clauses, literals, instance.capacity[resource], extra[step], max_rounds)

    def _chunk(self, chunk: int) -> None:
        out = self.clauses
        yes = out.new()
        out.rows.append([yes])
        holds = {(v, i): yes if v == i else -yes for v in self.members for i in self.members}
        for step in range(self.steps):
            for arc, _, _ in self.arcs:
                self.goes[chunk, arc, step] = out.new()
            coming: dict[int, list[tuple[int, int]]] = defaultdict(list)
            for arc, u, v in self.arcs:
                coming[v].append((self.goes[chunk, arc, step], u))
            holds = {
                (v, i): after for v in self.members for i, after in self._step(chunk, v, step, coming[v], holds).items()
            }

    def _step(
        self, chunk: int, v: int, step: int, coming: list[tuple[int, int]], holds: dict[tuple[int, int], int]
    ) -> dict[int, int]:
        """Of rank v, what its value counts after this step."""
        out, after = self.clauses, {}
        fresh = self.fresh[chunk, v, step] = out.new()
        out.rows.append([-fresh, *(goes for goes, _ in coming)])
        out.rows += [[-fresh, -a, -b] for (a, _), (b, _) in itertools.combinations(coming, 2)]
        for i in self.members:
            terms = [self._both(goes, holds[u, i]) for goes, u in coming]
            terms.append(self._both(-fresh, holds[v, i]))
            now = after[i] = out.new()
            out.rows.append([-now, *terms])
            out.rows += [[-term, now] for term in terms]
            out.rows += [[-a, -b] for a, b in itertools.combinations(terms, 2)]
            if step == self.steps - 1:
                out.rows.append([now])
        return after

    def _both(self, a: int, b: int) -> int:
        out = self.clauses
        conjunction = out.new()
        out.rows += [[-conjunction, a], [-conjunction, b], [conjunction, -a, -b]]
        return conjunction

    def sent(self, true: set[int]) -> list[Sent]:
        sends = []
        for (chunk, arc, step), goes in self.goes.items():
            if goes in true:
                head = int(self.instance.arcs.head[arc])
                sends.append((step, chunk, arc, self.fresh[chunk, head, step] in true))
        return sorted(sends)


def _schedule(instance: Instance, collective: Collective, chunks: int, sent: list[Sent]) -> Schedule:
    """With parallel links filled in turn; what no rank makes use of is left out."""
    arcs = instance.arcs
    used: dict[tuple[int, int], int] = defaultdict(int)  # (step, bond): chunks of it that have a link
    route_numbers: dict[tuple[int, ...], int] = {}
    route = []
    rounds = rounds_of(instance, [(0, chunk, arcs.paths[arc], step) for step, chunk, arc, _ in sent])
    for step, _, arc, _ in sent:
        links = []
        for bond in arcs.paths[arc]:
            links.append(link_of(instance, bond, used[step, bond], rounds[step]))
            used[step, bond] += 1
        route.append(route_numbers.setdefault(tuple(links), len(route_numbers)))
    table = np.array(sent, np.int64).reshape(-1, 4)
    schedule = Schedule(
        collective, cut(collective, chunks), narrow(table[:, 0]), narrow(table[:, 1]),
        narrow(arcs.tail[table[:, 2]]), narrow(arcs.head[table[:, 2]]),
        np.where(table[:, 3] == 1, COPY, REDUCE).astype(np.uint8),
        route=np.array(route, np.int32), routes=Routes.of(route_numbers),
    )  # fmt: skip
    return clean(schedule)
