"""A path, a name or the object: from each the object."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from antiphon.api._checked import path
from antiphon.errors import Infeasible, Invalid, quote, unknown

if TYPE_CHECKING:
    from antiphon.core.collective import Collective
    from antiphon.core.plan import Plan
    from antiphon.core.topology import Topology


def is_path(given: object) -> bool:
    return isinstance(given, str | os.PathLike)


def machine(given: Any, what: str = "topology") -> Topology:
    """A machine, its name or its file."""
    from antiphon.select import machine_of

    return machine_of(by_name(given), what)


def by_name(given: Any) -> Any:
    """A path as a text, everything else as it is."""
    return path(given, "file") if isinstance(given, os.PathLike) else given


def wanted(given: Any, topology: Topology, root: int | None = None, ranks: Any = None) -> Collective:
    """A collective, its name or its file; `root` and `ranks` only with a name."""
    from antiphon.core.collective import Collective
    from antiphon.select import collective

    if not isinstance(given, Collective):
        return collective(by_name(given), topology, root=root, ranks=ranks)
    if root is not None or ranks is not None:
        raise Invalid(f"{given.kind}: a Collective says itself who takes part; leave out root and ranks")
    if given.ranks != topology.ranks:
        raise Invalid(
            f"{given.kind}: the collective is for {given.ranks} ranks, but {topology.name} has {topology.ranks}"
        )
    return given


def is_ours(given: Any) -> bool:
    """Whether it is of a type of ours: others may raise what they like when they are asked for a name."""
    return type(given).__module__.startswith("antiphon.")


def plans(given: Any, what: str = "plan", on: Topology | None = None) -> dict[str, Plan]:
    """All plans in a file or in what `tune`, `frontier` or `load` gave, by collective; a plan alone is one. `on`: the
    machine of a file that names none."""
    from antiphon.core.plan import Plan
    from antiphon.formats.foreign import written_for_others
    from antiphon.select import Frontier, load_plans

    if is_path(given):
        found = load_plans(path(given, what), on)
        if on is not None and not written_for_others(given):
            raise Invalid(f"{os.fspath(given)}: says itself which machine it is for; leave the topology out")
        return found
    if on is not None:
        raise Invalid(f"{what}: has a machine of its own; leave the topology out")
    if isinstance(given, Plan):
        return {given.collective.kind: given}
    if isinstance(given, Frontier):
        return {given.collective.kind: given.plan()}
    held = given if isinstance(given, Mapping) else getattr(given, "plans", None) if is_ours(given) else None
    if not isinstance(held, Mapping) or not all(isinstance(one, Plan) for one in held.values()):
        raise Invalid(f"{what}: expected a Plan, its file, or what plan, tune or load gave, got {quote(given)}")
    if not held:
        raise Invalid(f"{what}: {quote(given)} holds no plan: no planner could plan what was asked for")
    return dict(held)


def plan(given: Any, collective: str = "", what: str = "plan", on: Topology | None = None) -> Plan:
    """The plan that is given, or of several that for this collective. `on`: the machine of a file that names none."""
    from antiphon.core.collective import kind_named

    found = plans(given, what, on)
    where = os.fspath(given) if is_path(given) else what
    collective = kind_named(collective) or collective
    if collective and collective not in found:
        raise unknown(f"collective in {where}", collective, found)
    if not collective and len(found) > 1:
        raise Invalid(
            f"{where}: holds plans for {', '.join(found)}; choose one by --collective (in Python collective=)"
        )
    return found[collective or next(iter(found))]


def right(given: Any, collective: str, done: str, op: str | None = None, dtype: str | None = None) -> Plan:
    """The same, verified: Infeasible where it is wrong, or its switches cannot combine such data, as then it is not
    `done` (run, written)."""
    from antiphon.select import check

    found = plan(given, collective)
    _refuse_wrong(found, given, done, check(found, found.topology, op=op, dtype=dtype))
    return found


def all_right(given: Any, collective: str, done: str) -> dict[str, Plan]:
    """All plans that are given, by collective, or of these one, each verified likewise."""
    from antiphon.select import check

    chosen = plan(given, collective) if collective else None
    by_collective = plans(given) if chosen is None else {chosen.collective.kind: chosen}
    for each_plan in by_collective.values():
        _refuse_wrong(each_plan, given, done, check(each_plan, each_plan.topology))
    if len({each_plan.topology for each_plan in by_collective.values()}) > 1:
        raise Invalid("plan: these are for different machines; what is written together is for one")
    return by_collective


def _refuse_wrong(found: Plan, given: Any, done: str, fault: Any) -> None:
    if fault is not None:
        where = f"{os.fspath(given)}: " if is_path(given) else ""
        raise Infeasible(f"{where}the plan is wrong and is not {done}: {fault.message}")
