"""Topologies, collectives and plans as versioned JSON.

`loads` recognises the value by its "format" key, decodes it against the schemas (schemas.py), builds the core type
(convert.py) and warns about unlikely values (slips.py). Every error is one line that names the file and the position in
it. Reading never verifies a schedule: `verify` does that. Writing is deterministic and atomic.
"""

from __future__ import annotations

import os
import re
from typing import Any, TypeVar

import msgspec

from antiphon.core.collective import Collective
from antiphon.core.files import name_of, read_bytes, reading, write_bytes
from antiphon.core.jsontext import check_keys, decode, layout, locate, move_place
from antiphon.core.plan import Plan
from antiphon.core.serialize.convert import collective_in, collective_out, plan_in, plan_out, topology_in, topology_out
from antiphon.core.serialize.schemas import (
    COLLECTIVE,
    PLAN,
    TOPOLOGY,
    VERSION,
    CollectiveRow,
    FileHead,
    PlanRow,
    TopologyRow,
)
from antiphon.core.serialize.slips import first_slip
from antiphon.core.topology import Topology
from antiphon.errors import Invalid, quote, unknown, warn_unlikely

_LINK = "; a link is [from node, to node, number of its type]"
FORMATS = (TOPOLOGY, COLLECTIVE, PLAN)
# Formats of this package's other files: what such a file holds, and what reads it
OTHER_FORMATS = {
    "antiphon-frontier": "a frontier, which verify and explore read; frontier -o plan.json writes its points as a plan",
    "antiphon-table": "a table of plans, which verify, run and export read",
    "antiphon-profile": "a profile, which --profile reads",
}
K = TypeVar("K", Topology, Collective, Plan)


def dumps(value: Topology | Collective | Plan) -> bytes:
    """Return the JSON text; equal values give equal bytes. Linear: a fraction of a second for 1,000,000 transfers."""
    if isinstance(value, Topology):
        body: dict[str, Any] = {"format": TOPOLOGY, "version": VERSION, **topology_out(value)}
    elif isinstance(value, Collective):
        body = {"format": COLLECTIVE, "version": VERSION, **collective_out(value)}
    elif isinstance(value, Plan):
        body = {"format": PLAN, "version": VERSION, **plan_out(value)}
    else:
        raise Invalid(f"only a topology, collective or plan can be written, not {quote(type(value).__name__)}")
    try:
        return layout(body) + b"\n"
    except UnicodeEncodeError:
        raise Invalid("cannot be written: a name in it is not valid text (a lone surrogate)") from None


def loads(data: bytes, name: str = "input", *, outer: bytes = b"", warn: bool = True) -> Topology | Collective | Plan:
    """Read the value of a JSON text by its "format".

    `name` precedes every error. `outer`: the text of the whole file if `data` is only a section of it; errors then
    refer to its lines. With `warn`, valid but unlikely values are reported, too.
    """
    try:
        value, slip = _read_value(data, name)
    except Invalid as error:
        raise Invalid(move_place(str(error), data, outer)) from None
    if slip and warn:
        warn_unlikely(f"{name}: {move_place(slip, data, outer)}")
    return value


def _read_value(data: bytes, name: str) -> tuple[Topology | Collective | Plan, str]:
    """Return the value, and a warning about the first unlikely value of its topology ("" for none)."""
    with reading(name):
        head = decode(data, FileHead)
        if not isinstance(head.format, str):
            raise Invalid(f'has no "format"; {_advise_format(data)}')
        if head.format in OTHER_FORMATS:
            raise Invalid(f"holds {OTHER_FORMATS[head.format]}; a topology, collective or plan is needed here")
        if head.format not in FORMATS:
            raise unknown("format", head.format, FORMATS)
        if head.version is None:
            raise Invalid(f'has no "version"; write "version": {VERSION} behind "format"')
        if head.version != VERSION or type(head.version) is not int:
            raise Invalid(
                f"version {quote(head.version)} of {head.format} is unsupported; this program reads version {VERSION}"
            )
        value: Topology | Collective | Plan
        machine: TopologyRow | None = None
        try:
            if head.format == TOPOLOGY:
                machine = decode(data, TopologyRow)
                value = topology_in(machine)
            elif head.format == COLLECTIVE:
                value = collective_in(decode(data, CollectiveRow))
            else:
                plan = decode(data, PlanRow)
                machine, value = plan.topology, plan_in(plan)
        except Invalid as error:
            # The error is about an entry of `links`, or a number in it, that has the wrong type.
            hint = _LINK if re.search(r"\blinks\[[0-9]+\](\[[0-9]\])?: expected", str(error)) else ""
            raise Invalid(f"{locate(str(error), data)}{error}{hint}") from None
        check_keys(data)  # no key twice: the decoder takes the last one silently
        slip = first_slip(machine, data, "" if head.format == TOPOLOGY else "topology.") if machine else ""
        return value, slip


def _advise_format(data: bytes) -> str:
    """Return advice on a file that lacks a format, by its keys: the format to write, or another file to use."""
    keys = decode(data, dict[str, msgspec.Raw]).keys()
    if keys & {"verdict", "rows"} or (keys >= {"topology", "collective"} and "entries" not in keys):
        return "if a command printed it (--json), use the file that its option -o writes"
    format_name = TOPOLOGY
    if "entries" in keys:
        format_name = PLAN
    elif keys & {"kind", "blocks", "roots"} and not keys & {"links", "types"}:
        format_name = COLLECTIVE
    return f'the first keys are for example "format": "{format_name}", "version": 1'


def load_topology(path: str | os.PathLike[str]) -> Topology:
    return _load_kind(path, Topology)


def load_collective(path: str | os.PathLike[str]) -> Collective:
    return _load_kind(path, Collective)


def load_plan(path: str | os.PathLike[str]) -> Plan:
    return _load_kind(path, Plan)


def save_topology(path: str | os.PathLike[str], topology: Topology) -> None:
    write_bytes(path, dumps(topology))


def save_plan(path: str | os.PathLike[str], plan: Plan) -> None:
    write_bytes(path, dumps(plan))


def _load_kind(path: str | os.PathLike[str], kind: type[K]) -> K:
    """Read a file and check that it holds a value of this type."""
    with reading(name_of(path)):
        data = read_bytes(path)
    value = loads(data, name_of(path))
    if not isinstance(value, kind):
        held, expected = type(value).__name__.lower(), kind.__name__.lower()
        raise Invalid(f"{name_of(path)}: holds a {held}; a {expected} is needed here")
    return value
