"""antiphon frontier: every point between the fewest steps and the least time on the wire, with proofs."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from antiphon.api.plans import frontier
from antiphon.cli.arguments import (
    Budget,
    Coll,
    Effort,
    Json,
    Only,
    Output,
    PlannerName,
    PlannerOption,
    Ranks,
    Root,
    Seed,
    Topo,
    request,
)
from antiphon.cli.output import check_outputs, emit
from antiphon.cli.planning import options_of, progress, say
from antiphon.core.collective import Collective
from antiphon.core.topology import Topology
from antiphon.select import FrontierPoint
from antiphon.show.frontier import frontier_text, point_line
from antiphon.units import parse_seconds

_TURNED = {
    "reduce": "planned as a broadcast of the machine with all links turned, run backwards",
    "reducescatter": "planned as an allgather of the machine with all links turned, run backwards",
    "allreduce": "planned as an allgather: its halves are one, and one run backwards",
}


def frontier_command(
    coll: Coll,
    topo: Topo,
    planner: PlannerName = "sccl",
    root: Root = None,
    only: Only = "",
    ranks: Ranks = "",
    k: Annotated[
        int | None, typer.Option("--k", min=0, metavar="N", help="only R <= S + N rounds (left out: any)")
    ] = None,
    steps: Annotated[int | None, typer.Option("--steps", min=1, metavar="N", help="the most steps")] = None,
    budget: Budget = "",
    effort: Effort = None,
    memory: Annotated[float | None, typer.Option("--memory", metavar="GiB", help="the most for the search")] = None,
    option: PlannerOption = None,
    seed: Seed = 0,
    out: Output = None,
    json: Json = False,
) -> None:
    """Find every point of the latency-bandwidth frontier, and prove, as far as each says, that none can be better.

    Progress goes to stderr. The search ends with its effort, which it counts: alike on every machine. Ctrl-C and the
    end of the budget end it, too; what was found until then is told and written. -o writes one plan: for every size
    the point that is fastest for it (by the model that predict takes).
    """
    wanted, machine = request(coll, topo, root, only, ranks)
    check_outputs({"-o": out})
    how: dict[str, Any] = {
        "planner": planner,
        "k": k,
        "steps": steps,
        "seed": seed,
        "memory": memory,
        "effort": effort,
        "options": options_of(option),
    }
    seconds = parse_seconds(budget, "--budget", bare=True) if budget else None
    with progress(_start(wanted, machine)) as (tell, keep):
        if planner == "sccl" and wanted.kind in _TURNED:
            keep(f"{wanted.kind} is {_TURNED[wanted.kind]}; C, S and R below are those of that")

        def heard(point: FrontierPoint) -> None:
            keep(point_line(point))

        found = frontier(wanted, machine, budget=seconds, tell=tell, heard=heard, apart=True, **how)
    if found.stopped is not None:
        say(f"stopped early: {found.stopped}; the best so far follows")
    written = ""
    if out is not None:
        found.save(out)
        written = f"\n\nwritten: {out}"
    emit(found.as_json(), frontier_text(found) + written, json)


def _start(wanted: Collective, machine: Topology) -> str:
    return f"{wanted.kind} on {machine.name}: what as few steps as possible allow"
