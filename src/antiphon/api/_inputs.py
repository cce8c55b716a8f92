"""Convert an argument of a public function to a machine, a collective or plans: an object, its name, or its file.

`antiphon.plan("allreduce", "dgx1v")`, `plan(Collective(...), topology)` and `plan("my.json", Path("box.json"))` all
arrive as objects. Plans also come from results of `tune` and `frontier`; `verified_plan` and `verified_plans` verify
them before anything is run or written by them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

from antiphon.api._checked import path
from antiphon.errors import Infeasible, Invalid, quote

if TYPE_CHECKING:
    from antiphon.core.collective import Collective
    from antiphon.core.plan import Plan
    from antiphon.core.topology import Topology


def is_path(value: object) -> TypeGuard[str | os.PathLike[str]]:
    """Return whether a value is a text or a path: the name of a file, or of something in the catalogue."""
    return isinstance(value, str | os.PathLike)


def machine(value: Any, name: str = "topology") -> Topology:
    """Return a machine from an object, its name or its file; errors call the argument `name`."""
    from antiphon.core.collective import kind_named
    from antiphon.select import machine_of

    if isinstance(value, str) and kind_named(value):
        raise Invalid(f"{name} {quote(value)}: this is a collective, which comes first; pass a machine here")
    if isinstance(value, str) and re.search("[:,]only=", value):
        raise Invalid(
            f"{name} {quote(value)}: only= is of the command line; pass antiphon.topology(NAME, only=[0, 1, 4]) here, "
            "and the same list as ranks"
        )
    return machine_of(path_as_text(value), name)


def path_as_text(value: Any) -> Any:
    """Convert a path to a string; return every other value unchanged."""
    return path(value, "file") if isinstance(value, os.PathLike) else value


def collective(
    value: Any, topology: Topology, root: int | None = None, ranks: Any = None, mesh: Any = None
) -> Collective:
    """Return a collective from an object, its name or its file; `root`, `ranks` and `mesh` only with a name.

    `root`, `ranks` and `mesh` (the dimensions that process groups are taken along): as for `antiphon.collective`.
    """
    from antiphon.core.collective import Collective
    from antiphon.select import collective as parse_collective

    if not isinstance(value, Collective):
        return parse_collective(path_as_text(value), topology, root=root, ranks=ranks, mesh=mesh)
    if root is not None or ranks is not None or mesh:
        raise Invalid(f"{value.kind}: a Collective names its own ranks and root; leave out root, ranks and mesh")
    if value.ranks != topology.ranks:
        raise Invalid(
            f"{value.kind}: the collective is for {value.ranks} ranks, but {topology.name} has {topology.ranks}"
        )
    return value


def is_own_type(value: Any) -> bool:
    """Return whether the type of `value` is of this package: attributes of foreign objects may raise anything."""
    return type(value).__module__.startswith("antiphon.")


def plans(
    value: Any, name: str = "plan", on: Topology | None = None, dead: Sequence[str] | None = None
) -> dict[str, Plan]:
    """Return all plans of a file, or of a result of `tune`, `frontier` or `load`, by collective; also of one plan.

    Errors call the argument `name`. `on`: the machine of a file that names none. `dead`: failed links, cards and ranks,
    for which a table's plans are chosen; None: those that $ANTIPHON_DEAD names, (): none.
    """
    from antiphon.core.plan import Plan
    from antiphon.formats.foreign import is_gpu_program_file
    from antiphon.select import Frontier, load_plans

    if is_path(value):
        loaded = load_plans(path(value, name), on, dead=dead)
        if on is not None and not is_gpu_program_file(value):
            raise Invalid(f"{os.fspath(value)}: names its own machine; leave the topology out")
        return loaded
    if on is not None:
        raise Invalid(f"{name}: has a machine of its own; leave the topology out")
    if isinstance(value, Plan):
        return {value.collective.kind: value}
    if isinstance(value, Frontier):
        return {value.collective.kind: value.plan()}
    mapping: Any = value
    if not isinstance(value, Mapping):  # a result of `tune` has its plans as an attribute
        mapping = getattr(value, "plans", None) if is_own_type(value) else None
    if not isinstance(mapping, Mapping) or not all(isinstance(plan, Plan) for plan in mapping.values()):
        raise Invalid(f"{name}: expected a Plan, its file, or a result of plan, tune or load, got {quote(value)}")
    if not mapping:
        raise Invalid(f"{name}: {quote(value)} holds no plan: no planner supports the request")
    return dict(mapping)


def plan(value: Any, collective: str = "", name: str = "plan", on: Topology | None = None) -> Plan:
    """Return the only plan, or of several the one for `collective`; the other parameters are those of `plans`."""
    from antiphon.select import choose_plan

    return choose_plan(plans(value, name, on), collective, os.fspath(value) if is_path(value) else name)


def verified_plan(value: Any, collective: str, use: str, op: str | None = None, dtype: str | None = None) -> Plan:
    """Return the plan, verified.

    Raises Infeasible if it is wrong, or if its switches do not support `op` and `dtype`. `use` completes the message:
    such a plan "is not run" or "is not written".
    """
    chosen = plan(value, collective)
    _refuse_wrong(chosen, value, use, op, dtype)
    return chosen


def verified_plans(value: Any, collective: str, use: str) -> dict[str, Plan]:
    """Return all plans by collective, or only the one for `collective`, each verified as by `verified_plan`."""
    chosen = plan(value, collective) if collective else None
    by_collective = plans(value) if chosen is None else {chosen.collective.kind: chosen}
    for each_plan in by_collective.values():
        _refuse_wrong(each_plan, value, use)
    if len({each_plan.topology for each_plan in by_collective.values()}) > 1:
        raise Invalid("plan: these plans are for different machines; write plans of one machine together")
    return by_collective


def _refuse_wrong(plan: Plan, value: Any, use: str, op: str | None = None, dtype: str | None = None) -> None:
    """Raise Infeasible if a plan is wrong.

    `value`: the argument, named in the message; the others: as of `verified_plan`.
    """
    from antiphon.select import check

    fault = check(plan, plan.topology, op=op, dtype=dtype)
    if fault is not None:
        where = f"{os.fspath(value)}: " if is_path(value) else ""
        raise Infeasible(f"{where}the plan is wrong and is not {use}: {fault.message}")
