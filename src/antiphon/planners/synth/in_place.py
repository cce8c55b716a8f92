"""Find an allreduce in place with a SAT solver: every rank keeps one value per chunk, and what arrives is added to it
or replaces it.

Input is a point (chunks, steps, rounds) on a machine, output a schedule, or that no schedule of this form exists. It
covers recursive doubling, dimension-wise exchange on grids in a different order per chunk, and trees up and down:
everything that needs no second buffer. As clauses, per chunk:

    holds[v, i, t]  after t steps the value of rank v includes the input of rank i
    goes[a, s]      the value is sent over arc a in step s
    fresh[v, s]     what arrives at v in step s replaces the value of v (else it is added)

An arc is a path of links from rank to rank. A value includes every input at most once: the terms of a sum must not have
inputs in common (`_add_step`). After the last step every rank must hold all inputs. Loads of links and the distribution
of rounds over steps are encoded as in sat.py.

Example: two ranks, one step: both send (goes[01, 0] and goes[10, 0]) and both add, so each holds both inputs.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from antiphon.core.collective import Collective
from antiphon.core.columns import as_int32
from antiphon.core.ksync.instance import Instance
from antiphon.core.routes import Routes
from antiphon.core.schedule import COPY, REDUCE, Schedule, cut
from antiphon.core.transform import clean
from antiphon.planners.synth.cnf import Clauses
from antiphon.planners.synth.sat import SOLVERS, free_rounds, load_within
from antiphon.planners.synth.task import Effort, link_of, rounds_of

MOST = 2**15  # maximum size of the encoding: `goes` variables of all chunks, times inputs
Sent = tuple[int, int, int, bool]  # step, chunk, arc, whether it replaces the previous value


CONFLICTS = 20_000  # per solver; takes seconds at the maximum size


@dataclass(frozen=True)
class InPlace:
    """The schedule, or None; `refuted`: whether the solver showed that no schedule of this form exists."""

    schedule: Schedule | None
    refuted: bool = False


def is_small_enough(instance: Instance, chunks: int, steps: int) -> bool:
    """Return whether the encoding is small enough to try."""
    return chunks * steps * len(instance.arcs) * len(instance.collective.members) <= MOST


def find_in_place(
    instance: Instance, collective: Collective, point: tuple[int, int, int], effort: Effort, solver: str = "cadical"
) -> InPlace:
    """Search an allreduce with these chunks, steps and rounds.

    `instance`: the allgather of the same machine and members, for its arcs and capacities. O(chunks * steps * arcs *
    members) variables. Arcs of ranks that are not members are omitted.
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
    return InPlace(_build_schedule(instance, collective, chunks, encoding.read_sends(true)))


class _Encoding:
    """Clauses of all chunks, with their `goes` and `fresh` variables."""

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
            self._add_chunk(chunk)
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

    def _add_chunk(self, chunk: int) -> None:
        """Add one chunk: at first each rank holds its own input; then step by step."""
        out = self.clauses
        yes = out.new_variable()
        out.rows.append([yes])
        holds = {(v, i): yes if v == i else -yes for v in self.members for i in self.members}
        for step in range(self.steps):
            for arc, _, _ in self.arcs:
                self.goes[chunk, arc, step] = out.new_variable()
            coming: dict[int, list[tuple[int, int]]] = defaultdict(list)
            for arc, u, v in self.arcs:
                coming[v].append((self.goes[chunk, arc, step], u))
            holds = {
                (v, i): after
                for v in self.members
                for i, after in self._add_step(chunk, v, step, coming[v], holds).items()
            }

    def _add_step(
        self, chunk: int, v: int, step: int, coming: list[tuple[int, int]], holds: dict[tuple[int, int], int]
    ) -> dict[int, int]:
        """Add rank v's step and return, per input, the literal for "the value of v includes it afterwards"."""
        out, after = self.clauses, {}
        fresh = self.fresh[chunk, v, step] = out.new_variable()
        out.rows.append([-fresh, *(goes for goes, _ in coming)])
        # a replacement comes from exactly one sender
        out.rows += [[-fresh, -a, -b] for (a, _), (b, _) in itertools.combinations(coming, 2)]
        for i in self.members:
            # the new value is a sum of senders' values and, unless replaced, the old one
            terms = [self._add_conjunction(goes, holds[u, i]) for goes, u in coming]
            terms.append(self._add_conjunction(-fresh, holds[v, i]))
            now = after[i] = out.new_variable()
            out.rows.append([-now, *terms])
            out.rows += [[-term, now] for term in terms]
            # no input may be added twice
            out.rows += [[-a, -b] for a, b in itertools.combinations(terms, 2)]
            if step == self.steps - 1:
                out.rows.append([now])
        return after

    def _add_conjunction(self, a: int, b: int) -> int:
        """Return a literal equivalent to `a and b`."""
        out = self.clauses
        conjunction = out.new_variable()
        out.rows += [[-conjunction, a], [-conjunction, b], [conjunction, -a, -b]]
        return conjunction

    def read_sends(self, true: set[int]) -> list[Sent]:
        """Return the sends of a model, sorted by step."""
        sends = []
        for (chunk, arc, step), goes in self.goes.items():
            if goes in true:
                head = int(self.instance.arcs.head[arc])
                sends.append((step, chunk, arc, self.fresh[chunk, head, step] in true))
        return sorted(sends)


def _build_schedule(instance: Instance, collective: Collective, chunks: int, sent: list[Sent]) -> Schedule:
    """Build the schedule with parallel links filled in turn; transfers that nothing depends on are dropped."""
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
        collective, cut(collective, chunks), as_int32(table[:, 0]), as_int32(table[:, 1]),
        as_int32(arcs.tail[table[:, 2]]), as_int32(arcs.head[table[:, 2]]),
        np.where(table[:, 3] == 1, COPY, REDUCE).astype(np.uint8),
        route=np.array(route, np.int32), routes=Routes.of(route_numbers),
    )  # fmt: skip
    return clean(schedule)
