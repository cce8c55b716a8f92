"""The command `frontier`: every point between the fewest steps and the least time on the links, with proofs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from antiphon.api.plans import frontier
from antiphon.cli import arguments as arg
from antiphon.cli.output import certificate_lines, emit, sort_outputs, written_lines
from antiphon.cli.planning import progress, say
from antiphon.select import save_frontier
from antiphon.show.frontier import frontier_text, point_line
from antiphon.units import exact, parse_seconds

FrontierOutputs = Annotated[list[Path] | None, arg.output_option("frontier")]
# Collective that is searched as another one -> what that is, and its name in the lines of candidates that are tried
_SEARCH_NOTES = {
    "reduce": ("a reduce is planned as a broadcast of the machine with all links turned, run backwards", "broadcast"),
    "reducescatter": (
        "a reducescatter is planned as an allgather of the machine with all links turned, run backwards", "allgather"
    ),
    "allreduce": (
        "an allreduce is first planned as two halves, an allgather and one run backwards; then all forms are searched",
        "allgather half",
    ),
}  # fmt: skip


def frontier_command(
    coll: arg.Coll,
    topo: arg.Topo,
    planner: arg.PlannerName = "sccl",
    root: arg.Root = None,
    only: arg.Only = "",
    ranks: arg.Ranks = "",
    budget: arg.Budget = "",
    effort: arg.Effort = None,
    seed: arg.Seed = 0,
    output: FrontierOutputs = None,
    certificate: arg.Certificate = None,
) -> None:
    """Find every point of the latency-bandwidth frontier; each point states what is proved about its optimality.

    Progress goes to stderr. The search ends when its effort is spent, which is counted: results are the same on every
    machine. Ctrl-C and the end of the budget end it, too; the points until then are printed and written. -o writes one
    plan: for every size the fastest point (by the default model of predict). --certificate writes every point and every
    impossibility with its proof. Of planner sccl (--planner sccl:k=2), k=N allows at most S + N rounds, steps=N limits
    the steps, memory=GIB the memory of the search.
    """
    target, machine = arg.request(coll, topo, root, only, ranks)
    out = sort_outputs("frontier", output, {"--certificate": certificate})["plan"]
    planner, options = arg.split_options(planner, "--planner")
    # options of the planner on the command line, parameters of their own in Python
    limits = {key: options.pop(key) for key in ("k", "steps", "memory") if key in options}
    if "memory" in limits:
        # GiB; `split_options` converts whole numbers only, so 1.5 is still a text
        limits["memory"] = float(exact(str(limits["memory"]), "option memory"))
    seconds = parse_seconds(budget, "--budget", bare=True) if budget else None
    # The first line of progress: the search begins with the points of the fewest steps.
    # tell: lines that may be overwritten; keep: lines that stay
    with progress(f"{target.kind} on {machine.name}: what as few steps as possible allow") as (tell, keep):
        searched = ""  # the collective of the candidates that are tried, if it is not the points'

        def tell_candidate(line: str) -> None:
            tell(line.replace("trying ", f"trying {searched}: ", 1) if searched else line)

        if planner == "sccl" and target.kind in _SEARCH_NOTES:
            note, searched = _SEARCH_NOTES[target.kind]
            keep(note)
        result = frontier(
            target, machine, planner=planner, seed=seed, effort=effort, **limits, options=options,
            budget=seconds, progress=tell_candidate, on_point=lambda point: keep(point_line(point)),
            in_own_process=True,
        )  # fmt: skip
    if result.stopped is not None:
        say(f"stopped early: {result.stopped}; the best so far follows")
    for path in out:
        result.save(path)
    if certificate is not None:
        save_frontier(certificate, result)
    written = written_lines(*out) + certificate_lines(certificate)
    emit(result.as_json(), "\n".join([frontier_text(result), *written]))
