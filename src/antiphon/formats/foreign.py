"""Files written for runtimes of others, whoever wrote them: judged as they stand, then taken as plans of schedules."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from antiphon.core.columns import distinct
from antiphon.core.plan import Plan
from antiphon.core.routes import paths
from antiphon.core.schedule import Schedule
from antiphon.core.topology import LinkType, Topology, build
from antiphon.errors import Infeasible, Invalid
from antiphon.lower.machine.code import Code
from antiphon.lower.machine.judge import judge
from antiphon.lower.machine.lift import schedule_of
from antiphon.planners.shared.routing import routed

NOWHERE = "no machine"  # how the name of a machine begins that a file does not tell


@dataclass(frozen=True)
class Foreign:
    """What a file says. `codes`: what it does, by the places that it is for (out of place, in place). `notes`: what its
    runtime will not take, or take otherwise than it seems."""

    format: str
    name: str
    codes: Mapping[str, Code]
    notes: tuple[str, ...] = ()


class Wrong(Infeasible):
    """What is written does not do what it says: `kind` of the fault, and a sentence that names rank, block and step."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def recognised(data: bytes) -> Callable[[bytes], Foreign] | None:
    """Who reads such a file; None: nobody here."""
    start = data[:4096].removeprefix(b"\xef\xbb\xbf").lstrip()
    if start.startswith(b"<") and re.search(rb"<\s*algo\b", start):
        from antiphon.formats.msccl.foreign import read

        return read
    if start.startswith(b"{") and b'"gpus"' in data and b'"antiphon-' not in start:
        from antiphon.formats.mscclpp.foreign import read as read_plan

        return read_plan
    return None


def plan_of(found: Foreign, machine: Topology | None = None) -> Plan:
    """Judged in all the places that it is for: Wrong if it is not right. Then a plan on this machine, or on one that has
    a link wherever the file sends something, which says nothing of time."""
    for places, code in found.codes.items():
        fault = judge(code)
        if fault is not None:
            raise Wrong(fault.kind, f"{found.name}, {places}: {fault.what}")
    code = next(iter(found.codes.values()))
    schedule = schedule_of(code)
    if machine is None:
        where = _of_its_ways(found.name, schedule)
        return Plan.of(where, schedule, {"planner": found.format})
    if machine.ranks != code.collective.ranks:
        raise Invalid(f"{found.name} is for {code.collective.ranks} ranks; {machine.name} has {machine.ranks}")
    lost = paths(machine, schedule.src, schedule.dst).lost
    if len(lost):
        pair = f"rank {int(schedule.src[lost[0]])} to rank {int(schedule.dst[lost[0]])}"
        raise Wrong("route", f"{found.name}: sends from {pair}, which no link and no switches of {machine.name} join")
    return Plan.of(machine, routed(schedule, machine, found.format), {"planner": found.format})


def _of_its_ways(name: str, schedule: Schedule) -> Topology:
    """A link wherever something is sent, all alike."""
    ranks = schedule.collective.ranks
    across = schedule.src != schedule.dst
    pairs = distinct(schedule.src[across].astype(np.int64) * ranks + schedule.dst[across])
    kind = LinkType("link", 10**9)
    links = [(pair // ranks, pair % ranks, kind) for pair in pairs.tolist()]
    return build(f"{NOWHERE}: {name} tells none", ranks, links)


def machine_is_told(plan: Plan) -> bool:
    """Whether it makes sense to price this plan on its own machine."""
    return not plan.topology.name.startswith(NOWHERE)
