"""Read and write files of plans: one plan, or a table with the tuned plans of several collectives.

`load_plans` reads any file that holds plans, also those of other programs. The user's own plans take part in `tune` as
candidates of a planner named `plan`, which yields the schedules of their file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from antiphon.core.collective import KINDS, Collective, kind_named
from antiphon.core.files import name_of, read_bytes, reading, within, write_bytes
from antiphon.core.jsontext import check_keys, decode, layout
from antiphon.core.plan import Plan
from antiphon.core.request import Request
from antiphon.core.schedule import Schedule
from antiphon.core.serialize import dumps, loads
from antiphon.core.topology import Topology
from antiphon.errors import Invalid, quote, unknown
from antiphon.formats.piccl.readers import read_schedule
from antiphon.registry import Entry, PlannerCapabilities
from antiphon.select.failures import DEAD, FailureClass, choose_surviving, read_dead
from antiphon.topologies.degraded import drop_items

TABLE, VERSION = "antiphon-table", 1  # format and version in files of tables
# named as the planner of candidates that are the user's own plans; its one option is the file
OWN_PLANS = "plan"
OWN_PLANS_ENTRY = Entry(
    "antiphon.select.plan_files:own_plan",
    "a plan from a file",
    PlannerCapabilities(collectives=(*KINDS, "custom"), topologies="its own", effort=0.01),  # it only reads the file
)


class _Head(msgspec.Struct):
    """The two keys that identify the content of a JSON file."""

    format: Any = None
    version: Any = None


class _TableFile(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The JSON of a table; plans are decoded later."""

    format: str
    version: int
    model: str = ""
    plans: dict[str, msgspec.Raw]
    failures: list[_FailureRow] = []


class _FailureRow(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The JSON of the plans for a class of failures (select/failures.py)."""

    dead: list[str]
    plans: dict[str, msgspec.Raw]


# per class (failures that leave isomorphic machines): their names; the plans for the machine after the first of them
Failures = Sequence[tuple[Sequence[str], Mapping[str, Plan]]]


def dump_tables(plans: Mapping[str, Plan], model: str = "", failures: Failures = ()) -> bytes:
    """Return the JSON text of several plans for one machine, by collective, and of those for its failures.

    `model`: the cost model by which they were chosen, as the file states it; "": unknown.
    """

    def plans_as_json(plans: Mapping[str, Plan]) -> dict[str, Any]:
        return {kind: msgspec.json.decode(dumps(plan)) for kind, plan in plans.items()}

    text = {"format": TABLE, "version": VERSION, "model": model, "plans": plans_as_json(plans)}
    rows = [{"dead": list(names), "plans": plans_as_json(failure_plans)} for names, failure_plans in failures]
    return layout({**text, "failures": rows} if rows else text) + b"\n"


def save_plans(
    path: str | os.PathLike[str], plans: Mapping[str, Plan], model: str = "", *, table: bool, failures: Failures = ()
) -> None:
    """Write the plans as a table or, if `table` is false and there are none for failures, the only one as a plan."""
    if not plans:
        raise Invalid("there is no plan to write: no planner could plan the request")
    is_table = table or bool(failures)
    write_bytes(path, dump_tables(plans, model, failures) if is_table else dumps(next(iter(plans.values()))))


def choose_plan(plans: Mapping[str, Plan], collective: str, where: str) -> Plan:
    """Return the only plan, or of several the one for `collective`; errors call what holds the plans `where`."""
    collective = kind_named(collective) or collective  # all_reduce is allreduce; the name of a custom one stays
    if collective and collective not in plans:
        if kind_named(collective) and (dead := read_dead()):
            raise Invalid(
                f"{where}: has no plan for {collective} without {', '.join(dead)} ({DEAD}): its root is dead, or "
                "no planner serves those that are left"
            )
        raise unknown(f"collective in {where}", collective, plans)
    if not collective and len(plans) > 1:
        raise Invalid(f"{where}: holds plans for {', '.join(plans)}; choose one by FILE:COLL (in Python collective=)")
    return plans[collective or next(iter(plans))]


def load_plans(
    path: str | os.PathLike[str], machine: Topology | None = None, *, dead: Sequence[str] | None = None
) -> dict[str, Plan]:
    """Return the plans in a file, by collective: those for the machine without the links, cards or ranks
    of `dead` (None: those that $ANTIPHON_DEAD names).

    The file is a table, a plan, PICCL's XML that `export` wrote, or a file of a GPU runtime (MSCCL, MSCCL++) by any
    program. Files of GPU runtimes name no machine: they are simulated as they are (`formats.foreign_program.Wrong` if
    that fails) and become plans for `machine`. The others name their machine, and are not verified here.
    """
    from antiphon.formats.foreign import check_correct, plan_of, reader_of

    name = name_of(path)
    with reading(name):
        data = read_bytes(path)
        reader = reader_of(data)
        if reader is not None:
            written = reader(data, os.path.basename(name))
            check_correct(written)
            plan = plan_of(written, machine)
            return {plan.collective.kind: plan}
    if name.endswith(".xml"):
        plan = read_schedule(path).verifiable()
        return {plan.collective.kind: plan}
    with reading(name):
        head = decode(data, _Head)
    dead = read_dead() if dead is None else dead
    if head.format == TABLE:
        with reading(name):
            plans, classes = _read_table(data, head.version)
        return choose_surviving(plans, classes, dead, name) if dead else plans
    content = loads(data, name)
    if not isinstance(content, Plan):
        raise Invalid(f"{name}: holds a {type(content).__name__.lower()}; a plan or a table is needed here")
    plans = {content.collective.kind: content}
    return choose_surviving(plans, classes=(), dead=dead, file=name) if dead else plans


def list_failures(path: str | os.PathLike[str]) -> list[list[str]]:
    """Return the names of the failures that a table has plans for, grouped by class (`Failures`)."""
    with reading(name_of(path)):
        data = read_bytes(path)
        if not data.lstrip().startswith(b"{") or decode(data, _Head).format != TABLE:
            return []
        return [row.dead for row in decode(data, _TableFile).failures if row.plans and row.dead]


def load_failure(path: str | os.PathLike[str], name: str) -> dict[str, Plan]:
    """Return the plans for the class of failures whose first is `name`, as in the file: for the machine without it.

    Raises Invalid if they are for another machine.
    """
    with reading(name_of(path)):
        data = read_bytes(path)
        plans, classes = _read_table(data, decode(data, _Head).version)
        number = [failure_class.names[0] for failure_class in classes].index(name)  # `list_failures` returned the name
        plans_after = classes[number].load()
        machine = drop_items(next(iter(plans.values())).topology, [name])
        if any(plan.topology != machine for plan in plans_after.values()):
            raise Invalid(f"failures[{number}].plans: are for another machine than the table's without {name}")
    return plans_after


def _read_table(data: bytes, version: object) -> tuple[dict[str, Plan], list[FailureClass]]:
    """Return the plans of a table by collective, and those for its failures, still to be read.

    Raises Invalid if plans are for different machines.
    """
    if type(version) is not int or version != VERSION:
        raise Invalid(f"version {quote(version)} of {TABLE} is unsupported; this program reads version {VERSION}")
    row = decode(data, _TableFile)
    if not row.plans:
        raise Invalid("plans: is empty; a table holds at least one plan")
    plans = _decode_plans(row.plans, data, "plans")
    check_keys(data)  # after decoding, as this function expects valid JSON
    classes = []
    for number, failure in enumerate(row.failures):
        if not failure.dead:
            raise Invalid(f"failures[{number}].dead: is empty; it names the failures that these plans are for")
        load = partial(_decode_plans, failure.plans, data, f"failures[{number}].plans")
        classes.append(FailureClass(tuple(failure.dead), load))
    return plans, classes


def _decode_plans(rows: Mapping[str, msgspec.Raw], data: bytes, where: str) -> dict[str, Plan]:
    """Return plans for one machine, by collective."""
    plans: dict[str, Plan] = {}
    for kind, raw in rows.items():
        with within(f"{where}.{quote(kind)}"):
            # `outer`: errors name lines of the whole file; `warn`: of the machine, which is the same for all, once
            plan = loads(bytes(raw), "plan", outer=data, warn=not plans)
            if not isinstance(plan, Plan):
                raise Invalid(f"holds a {type(plan).__name__.lower()}; a plan is needed here")
            if plan.collective.kind != kind:
                raise Invalid(f"holds a plan for {plan.collective.kind}")
            plans[kind] = plan
    if len({plan.topology for plan in plans.values()}) > 1:
        raise Invalid(f"{where}: are for different machines; a table is for one")
    return plans


# ---- the user's own plans as candidates ----


def own_plan(request: Request, *, file: str) -> Iterator[Schedule]:
    """Yield every schedule of the user's plan; each is a candidate for all sizes. A planner, for `tune` only."""
    for entry in load_plans(file, request.topology)[request.collective.kind].entries:
        yield entry.schedule


def files_by_kind(
    files: Sequence[str], topology: Topology, collectives: Mapping[str, Collective]
) -> dict[str, list[str]]:
    """Return by collective which of these files have a plan for it.

    Raises Invalid if a file has no plan for any of the collectives, or is for another machine.
    """
    by_kind: dict[str, list[str]] = {}
    for file in files:
        plans = load_plans(file, topology)
        for kind, plan in plans.items():
            if plan.topology != topology:
                raise Invalid(f"{file}: is for {plan.topology.name} and not for {topology.name}; tune on its machine")
            if collectives.get(kind) == plan.collective:
                by_kind.setdefault(kind, []).append(file)
        if not any(file in chosen for chosen in by_kind.values()):
            raise Invalid(
                f"{file}: plans {', '.join(plans)}, and not {', '.join(collectives)} among these ranks and roots"
            )
    return by_kind
