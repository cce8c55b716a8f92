"""Plans kept for all machines that are alike: of another job's allocation, under other numbers.

A file per machine in canonical form: the plans for the machine that came first, in its numbers, and what they gain.
Nothing in a file is believed: every schedule is verified on the machine that asks before it is used, and becomes a
program that is proven as every other.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import msgspec
import numpy as np

from antiphon import __version__
from antiphon.core.files import is_ours, read_bytes
from antiphon.core.plan import Plan
from antiphon.core.reshape import relabel as renumbered
from antiphon.core.serialize import dumps, loads
from antiphon.core.symmetry import canonical
from antiphon.core.topology import Topology
from antiphon.core.transform import relabel
from antiphon.core.verify import verify
from antiphon.errors import AntiphonError, Invalid
from antiphon.runtimes.serve.files import keep

ENDING = ".alike"
FORMAT = 1
MOST_BYTES = 2**26


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: int
    gain: str
    plans: list[msgspec.Raw]


def path_of(machine: Topology, folder: Path) -> Path:
    """Keys are those of one release of the graph library, and plans those of one of ours."""
    text = repr((FORMAT, __version__, metadata.version("igraph"), canonical(machine)[1]))
    return folder / f"{hashlib.sha256(text.encode()).hexdigest()}{ENDING}"


def put(machine: Topology, plans: Sequence[Plan], gain: str, folder: Path) -> None:
    data = msgspec.json.encode(_File(FORMAT, gain, [msgspec.Raw(dumps(one)) for one in plans]))
    if len(data) <= MOST_BYTES:
        keep(data, path_of(machine, folder))


def get(machine: Topology, folder: Path) -> tuple[list[Plan], str] | None:
    """Plans on this machine, under its numbers, and what they gain; None where none is kept. Invalid where what is kept
    cannot be used, with the reason."""
    path = path_of(machine, folder)
    if not path.exists():
        return None
    if not is_ours(folder, folder=True) or not is_ours(path):
        raise Invalid(f"{path.name} is not believed: others may write there")
    try:
        found = msgspec.json.decode(read_bytes(path, MOST_BYTES), type=_File)
        plans = [loads(bytes(raw), path.name) for raw in found.plans]
    except (AntiphonError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Invalid(f"{path.name} is damaged: {error}") from None
    if found.format != FORMAT or not plans:
        raise Invalid(f"{path.name} is damaged: it holds no plans")
    return [_on(machine, plan, path.name) for plan in plans], found.gain


def _on(machine: Topology, plan: object, name: str) -> Plan:
    """The plan with the numbers of this machine, verified on it."""
    if not isinstance(plan, Plan):
        raise Invalid(f"{name} is damaged: it holds what is no plan")
    mine, key = canonical(machine)
    theirs, other = canonical(plan.topology)
    if key != other:
        raise Invalid(f"{name} is damaged: its plans are for another machine")
    to = np.empty(machine.nodes, np.int64)
    to[np.argsort(theirs)] = np.argsort(mine)
    there = renumbered(plan.topology, to)
    if _links(there) != _links(machine):
        raise Invalid(f"{name}: the numbers of machines alike do not fit")
    there = replace(there, name=machine.name, places=machine.places)
    entries = tuple(replace(one, schedule=relabel(one.schedule, to[: machine.ranks])) for one in plan.entries)
    for entry in entries:
        fault = verify(entry.schedule, there).fault
        if fault is not None:
            raise Invalid(f"{name} is damaged: a schedule is wrong: {fault.message}")
    return Plan(there, entries[0].schedule.collective, entries)


def _links(machine: Topology) -> Counter[object]:
    ends = zip(machine.link_src.tolist(), machine.link_dst.tolist(), machine.link_type.tolist(), strict=True)
    return Counter((src, dst, machine.types[kind]) for src, dst, kind in ends)
