"""Plans of the user's own among the candidates of `tune`: verified and priced as those of planners are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from antiphon.core.collective import KINDS, Collective
from antiphon.core.request import Request
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.errors import Invalid
from antiphon.registry import Entry
from antiphon.select._table import load_plans

OWN = "plan"  # what stands where others have the name of their planner; its one option is the file
ENTRY = Entry(
    "antiphon.select.own_plans:own_plan",
    "a plan from a file",
    {"collectives": (*KINDS, "custom"), "topologies": "its own", "options": ("file",), "effort": 0.01},
)


def own_plan(request: Request, *, file: str) -> Iterator[Schedule]:
    """Yields every schedule of the plan, each a candidate for all sizes."""
    for entry in load_plans(file, request.topology)[request.collective.kind].entries:
        yield entry.schedule


def files_by_kind(files: Sequence[str], topology: Topology, targets: Mapping[str, Collective]) -> dict[str, list[str]]:
    """Which of these files have a plan for each collective; Invalid where one has none, or is for another machine."""
    by_kind: dict[str, list[str]] = {}
    for file in files:
        plans = load_plans(file, topology)
        for kind, plan in plans.items():
            if plan.topology != topology:
                raise Invalid(f"{file}: is for {plan.topology.name} and not for {topology.name}; tune on its machine")
            if targets.get(kind) == plan.collective:
                by_kind.setdefault(kind, []).append(file)
        if not any(file in chosen for chosen in by_kind.values()):
            raise Invalid(f"{file}: plans {', '.join(plans)}, and not {', '.join(targets)} among these ranks and roots")
    return by_kind
