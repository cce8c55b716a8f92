"""Read programs for GPU runtimes (MSCCL XML, MSCCL++ JSON) from any tool.

Commands that accept such files call `reader_of` to read one, `check_correct` to interpret and verify it, and `plan_of`
to convert it to a plan.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from fractions import Fraction

import numpy as np

from antiphon.core.columns import distinct
from antiphon.core.files import name_of, read_bytes, reading
from antiphon.core.plan import Plan
from antiphon.core.reshape import keep
from antiphon.core.schedule import Schedule
from antiphon.core.topology import LinkType, Topology, build
from antiphon.errors import Invalid, Unsupported
from antiphon.formats.foreign_program import ForeignProgram, Wrong
from antiphon.formats.xml import opening
from antiphon.lower.machine.judge import judge
from antiphon.lower.machine.to_schedule import code_to_schedule
from antiphon.planners.shared.routing import with_routes

NO_MACHINE = "no machine"  # prefix of the name of a machine derived from the links that a file uses


def reader_of(data: bytes) -> Callable[[bytes, str], ForeignProgram] | None:
    """Return the reader of MSCCL XML or an MSCCL++ plan by the file's content; None if it is neither."""
    start = opening(data)
    if start.startswith("<") and re.search(r"<\s*algo\b", start):
        from antiphon.formats.msccl.code import read as read_xml

        return read_xml
    if start.startswith("{") and b'"gpus"' in data and b'"threadblocks"' in data:
        from antiphon.formats.mscclpp.read import read as read_json

        return read_json
    return None


def is_gpu_program_file(path: str | os.PathLike[str]) -> bool:
    """Return whether a file is MSCCL XML or an MSCCL++ plan."""
    with reading(name_of(path)):
        return reader_of(read_bytes(path)) is not None


def check_correct(program: ForeignProgram) -> None:
    """Raise Wrong unless the program is correct for all buffers that it serves."""
    for variant, code in program.codes.items():  # in place, out of place
        fault = judge(code)
        if fault is not None:
            raise Wrong(fault.kind, f"{variant}: {fault.what}")


def plan_of(program: ForeignProgram, machine: Topology | None = None) -> Plan:
    """Convert a program that `check_correct` accepts to a plan on this machine.

    Default: a machine with a link wherever the file sends, whose times mean nothing. If only some ranks of the
    machine have links, those are the file's ranks, in order.
    """
    head, code = program.head, next(iter(program.codes.values()))  # any variant: all move the same data
    schedule = code_to_schedule(code)
    if machine is None:
        return Plan.of(_machine_of_sends(head.name, schedule), schedule, {"planner": head.format})
    machine = _keep_linked(machine)
    if machine.ranks != head.ranks:
        raise Invalid(f"it is for {head.ranks} ranks, but {machine.name} has {machine.ranks}; give TOPO:only=RANKS")
    try:
        return Plan.of(machine, with_routes(schedule, machine, head.format), {"planner": head.format})
    except Unsupported as error:
        # the message reads "planner msccl-xml: no link ... to rank 3 of M; use ring": keep its middle, as no planner is
        # chosen here
        raise Wrong("route", str(error).partition(": ")[2].partition(";")[0]) from None


def _keep_linked(machine: Topology) -> Topology:
    """Return the machine without the ranks that no link reaches."""
    linked = np.zeros(machine.nodes, bool)
    linked[machine.link_src] = linked[machine.link_dst] = True
    ranks = np.flatnonzero(linked[: machine.ranks]).tolist()
    return keep(machine, ranks, name=machine.name).topology if 0 < len(ranks) < machine.ranks else machine


def _machine_of_sends(name: str, schedule: Schedule) -> Topology:
    """Return a machine with a link wherever the schedule sends, all alike."""
    ranks = schedule.collective.ranks
    is_sent = schedule.src != schedule.dst  # else a copy within a rank
    pairs = distinct(schedule.src[is_sent].astype(np.int64) * ranks + schedule.dst[is_sent])
    kind = LinkType("link", Fraction(10**9))
    links = [(pair // ranks, pair % ranks, kind) for pair in pairs.tolist()]
    return build(f"{NO_MACHINE} ({name} names none)", ranks, links)


def has_real_machine(plan: Plan) -> bool:
    """Return whether the plan's machine is real; times on one derived from a file's sends mean nothing."""
    return not plan.topology.name.startswith(NO_MACHINE)
