"""A table: the tuned plans of several collectives in one file, or one plan, which is a plan file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import msgspec

from antiphon.core.files import name_of, read_bytes, reading, within, write_bytes
from antiphon.core.jsontext import check_keys, decode, layout
from antiphon.core.plan import Plan
from antiphon.core.serialize import dumps, loads
from antiphon.core.topology import Topology
from antiphon.errors import Invalid, quote
from antiphon.formats.piccl.readers import read_schedule

TABLE, VERSION = "antiphon-table", 1


class _Head(msgspec.Struct):
    format: Any = None
    version: Any = None


class _TableRow(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    format: str
    version: int
    model: str = ""
    plans: dict[str, msgspec.Raw]


def dump_tables(plans: Mapping[str, Plan], model: str = "") -> bytes:
    """The JSON text of several plans for one machine."""
    bodies = {kind: msgspec.json.decode(dumps(plan)) for kind, plan in plans.items()}
    return layout({"format": TABLE, "version": VERSION, "model": model, "plans": bodies}) + b"\n"


def save_plans(path: str | os.PathLike[str], plans: Mapping[str, Plan], model: str = "", *, table: bool) -> None:
    """Write a table, or the one plan as a plan."""
    if not plans:
        raise Invalid("there is no plan to write: no planner could plan what was asked for")
    write_bytes(path, dump_tables(plans, model) if table else dumps(next(iter(plans.values()))))


def load_plans(path: str | os.PathLike[str], machine: Topology | None = None) -> dict[str, Plan]:
    """The plans in a file, by collective: of a table, of a plan alone, of PICCL's XML that `export` wrote, or of what
    was written for runtimes of GPUs, by whomever. This last is judged as it stands (`formats.written.Wrong`), and put
    on `machine`; all else has a machine of its own, and is not believed to be right."""
    from antiphon.formats.foreign import judged, plan_of, reader_of

    name = name_of(path)
    with reading(name):
        data = read_bytes(path)
        reader = reader_of(data)
        if reader is not None:
            written = reader(data, os.path.basename(name))
            judged(written)
            found = plan_of(written, machine)
            return {found.collective.kind: found}
    if name.endswith(".xml"):
        found = read_schedule(path).verifiable()
        return {found.collective.kind: found}
    with reading(name):
        head = decode(data, _Head)
        if head.format == TABLE:
            return _table(data, head.version)
    read = loads(data, name)
    if not isinstance(read, Plan):
        raise Invalid(f"{name}: holds a {type(read).__name__.lower()}; a plan or a table is needed here")
    return {read.collective.kind: read}


def _table(data: bytes, version: object) -> dict[str, Plan]:
    if type(version) is not int or version != VERSION:
        raise Invalid(f"version {quote(version)} of {TABLE} is not known here; version {VERSION} is")
    row = decode(data, _TableRow)
    if not row.plans:
        raise Invalid("plans: is empty; a table holds at least one plan")
    plans: dict[str, Plan] = {}
    for kind, raw in row.plans.items():
        with within(f"plans.{quote(kind)}"):
            plan = loads(bytes(raw), "plan", outer=data, warn=not plans)  # all are for one machine
            if not isinstance(plan, Plan):
                raise Invalid(f"holds a {type(plan).__name__.lower()}; a plan is needed here")
            if plan.collective.kind != kind:
                raise Invalid(f"holds a plan for {plan.collective.kind}")
            plans[kind] = plan
    check_keys(data)  # after the plans: only what has been decoded is known to be valid JSON
    if len({plan.topology for plan in plans.values()}) > 1:
        raise Invalid("plans: are for different machines; a table is for one")
    return plans
