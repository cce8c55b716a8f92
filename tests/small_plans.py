"""Small machines, and what planners make on them, for tests of all kinds."""

from collections.abc import Iterable, Iterator
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np

import antiphon
from antiphon.core.collective import ROOTED, Collective
from antiphon.core.plan import LIBRARY, Entry, Plan
from antiphon.core.request import Request
from antiphon.core.schedule import COPY, REDUCE, Chunks, Schedule, cut
from antiphon.core.topology import Ability, LinkType, Topology, both_ways, build
from antiphon.core.verify import verify
from antiphon.registry import call, find
from antiphon.runtimes.measure.case import Row, Runnable
from antiphon.runtimes.measure.rows import run_schedule
from antiphon.select.counts import Counts

PORT = LinkType("port", Fraction(10**9), 1e-6)


@cache
def star(ranks: int, port: LinkType = PORT, ability: Ability = Ability()) -> Topology:  # noqa: B008  # it is frozen
    """Ranks on one switch."""
    return build("star", ranks, both_ways([(i, ranks) for i in range(ranks)], port), switches=1, abilities=[ability])


@cache
def full(ranks: int, link: LinkType = PORT) -> Topology:
    """A link from every rank to every other."""
    return build("full", ranks, [(a, b, link) for a in range(ranks) for b in range(ranks) if a != b])


def wanted(kind: str, ranks: int, root: int = 0, members: tuple[int, ...] = ()) -> Collective:
    """A collective; with a root where its kind has one."""
    return Collective(kind, ranks, members, (root,) if kind in ROOTED else ())


def schedules(
    planner: str, machine: Topology, collective: Collective | str = "allreduce", **options: Any
) -> Iterator[Schedule]:
    """All that a planner yields, verified."""
    target = Collective(collective, machine.ranks) if isinstance(collective, str) else collective
    for schedule in call("planner", planner, find("planner", planner).load(), options, Request(machine, target)):
        verify(schedule, machine).or_raise()
        yield schedule


def only(planner: str, machine: Topology, collective: Collective | str = "allreduce", **options: Any) -> Schedule:
    """The one schedule of a planner, verified."""
    (schedule,) = schedules(planner, machine, collective, **options)
    return schedule


def planned(kind: str, machine: str, planner: str, **options: Any) -> Schedule:
    """The schedule of a plan for any size, on a machine of the catalogue."""
    schedule: Schedule = antiphon.plan(kind, antiphon.topology(machine), planner=planner, **options).at(0).schedule
    return schedule


def run_local(schedule: Schedule, nbytes: Any, dtype: str = "float32", op: str = "sum", **how: Any) -> list[Row]:
    """Run a schedule on random data in this process and check every element: a row for each size."""
    return run_schedule("local", Runnable(schedule), nbytes, dtype, op, **how) or []


def of_rows(collective: Collective, rows: Iterable[tuple[int, ...]], chunks: int | Chunks = 1, **more: Any) -> Schedule:
    """Rows of (step, chunk, src, dst, op) and, where given, (src slot, dst slot); `chunks` for each block."""
    columns: Any = np.array([(*row, 0, 0)[:7] for row in rows], np.int64).reshape(-1, 7).T
    step, chunk, src, dst, op, src_slot, dst_slot = columns
    cuts = cut(collective, chunks) if isinstance(chunks, int) else chunks
    return Schedule(collective, cuts, step, chunk, src, dst, op, src_slot=src_slot, dst_slot=dst_slot, **more)


def direct(kind: str, ranks: int, parts: int = 1, **options: Any) -> Schedule:
    """Every chunk straight from each that has it to each that wants it, in one step."""
    collective = Collective(kind, ranks, **options)
    relation, chunks = collective.relation, cut(collective, parts)
    have = list(zip(relation.pre_block.tolist(), relation.pre_rank.tolist(), strict=True))
    want = list(zip(relation.post_block.tolist(), relation.post_rank.tolist(), strict=True))
    op = REDUCE if collective.combining else COPY
    rows = [
        (0, chunk, src, dst, op)
        for chunk, block in enumerate(chunks.block.tolist())
        for b, src in have
        for c, dst in want
        if block == b == c and src != dst
    ]
    return of_rows(collective, rows, chunks)


def plan_of_counts(machine: Topology) -> Plan:
    """A plan of an alltoall for the average of some counts; below 1 KB the library is faster."""
    average = Counts.of(np.arange(machine.ranks**2).reshape(machine.ranks, -1), machine.ranks)
    plan = antiphon.plan(average.average(machine.ranks, range(machine.ranks)), machine, planner="relay")
    (entry,) = plan.entries
    left = Entry(0, 1000, entry.schedule, {**entry.claims, "served_by": LIBRARY})
    return Plan(machine, plan.collective, (left, Entry(1000, None, entry.schedule, entry.claims)))
