"""antiphon frontier: every point between the fewest steps and the least time on the wire, with proofs."""

from __future__ import annotations

from typing import Annotated

import typer

from antiphon.api.plans import frontier
from antiphon.cli import arguments as arg
from antiphon.cli.output import check_outputs, emit
from antiphon.cli.planning import options_of, progress, say
from antiphon.show.frontier import frontier_text, point_line
from antiphon.units import parse_seconds

_TURNED = {
    "reduce": "planned as a broadcast of the machine with all links turned, run backwards",
    "reducescatter": "planned as an allgather of the machine with all links turned, run backwards",
    "allreduce": "planned as an allgather: its halves are one, and one run backwards",
}


def frontier_command(
    coll: arg.Coll,
    topo: arg.Topo,
    planner: arg.PlannerName = "sccl",
    root: arg.Root = None,
    only: arg.Only = "",
    ranks: arg.Ranks = "",
    k: Annotated[
        int | None, typer.Option("--k", min=0, metavar="N", help="only R <= S + N rounds (left out: any)")
    ] = None,
    steps: Annotated[int | None, typer.Option("--steps", min=1, metavar="N", help="the most steps")] = None,
    budget: arg.Budget = "",
    effort: arg.Effort = None,
    memory: Annotated[float | None, typer.Option("--memory", metavar="GiB", help="the most for the search")] = None,
    option: arg.PlannerOption = None,
    seed: arg.Seed = 0,
    out: arg.Output = None,
    json: arg.Json = False,
) -> None:
    """Find every point of the latency-bandwidth frontier, and prove, as far as each says, that none can be better.

    Progress goes to stderr. The search ends with its effort, which it counts: alike on every machine. Ctrl-C and the
    end of the budget end it, too; what was found until then is told and written. -o writes one plan: for every size
    the point that is fastest for it (by the model that predict takes).
    """
    target, machine = arg.request(coll, topo, root, only, ranks)
    check_outputs({"-o": out})
    seconds = parse_seconds(budget, "--budget", bare=True) if budget else None
    with progress(f"{target.kind} on {machine.name}: what as few steps as possible allow") as (tell, keep):
        if planner == "sccl" and target.kind in _TURNED:
            keep(f"{target.kind} is {_TURNED[target.kind]}; C, S and R below are those of that")
        result = frontier(
            target, machine, planner=planner, k=k, steps=steps, seed=seed, memory=memory, effort=effort,
            options=options_of(option), budget=seconds, tell=tell, heard=lambda point: keep(point_line(point)),
            apart=True,
        )  # fmt: skip
    if result.stopped is not None:
        say(f"stopped early: {result.stopped}; the best so far follows")
    written = ""
    if out is not None:
        result.save(out)
        written = f"\n\nwritten: {out}"
    emit(result.as_json(), frontier_text(result) + written, json)
