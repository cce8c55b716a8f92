"""antiphon plan, verify, run: make a plan, prove it, and see it move data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from antiphon.cli._arguments import Coll, Json, Only, Ranks, Root, Topo, request
from antiphon.cli._output import emit, working
from antiphon.core.plan import Plan
from antiphon.errors import Infeasible, Invalid, Unsupported, quote, unknown
from antiphon.select import check, figures_of, load_plans, plan
from antiphon.show.text import plan_text, run_text
from antiphon.topologies import plain_value, topology
from antiphon.units import parse_seconds, parse_size

PlanFile = Annotated[Path, typer.Argument(metavar="PLAN", help="a plan as `plan -o` or `tune -o` writes it")]


def _one(path: Path, wanted: str) -> Plan:
    """The plan in a file, or that for the collective wanted in a table of several."""
    plans = load_plans(path)
    if wanted and wanted not in plans:
        raise unknown(f"collective in {path}", wanted, plans)
    if not wanted and len(plans) > 1:
        raise Invalid(f"{path}: holds plans for {', '.join(plans)}; choose one by --collective")
    return plans[wanted or next(iter(plans))]


def _options(given: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise Invalid(f"--option: expected key=value, got {quote(text)}")
        found[key] = plain_value(value)
    return found


def _plan_command(
    coll: Coll,
    topo: Topo,
    planner: Annotated[str, typer.Option("--planner", help="see antiphon planners")] = "ring",
    option: Annotated[list[str] | None, typer.Option("--option", help="key=value for the planner")] = None,
    root: Root = None,
    only: Only = "",
    ranks: Ranks = "",
    nbytes: Annotated[str, typer.Option("--nbytes", help="plan for this size, e.g. 64MiB")] = "",
    budget: Annotated[str, typer.Option("--budget", help="stop after this long, e.g. 60s")] = "",
    seed: Annotated[int, typer.Option("--seed", min=0, help="same seed, same plan")] = 0,
    out: Annotated[Path | None, typer.Option("-o", "--output", help="write the plan here (.json or .json.gz)")] = None,
    json: Json = False,
) -> None:
    """Plan a collective, prove the schedule correct, and say how far from the best possible it is."""
    from antiphon.core.serialize import save_plan

    wanted, machine = request(coll, topo, root, only, ranks)
    with working(f"planning {wanted.kind} on {machine.name}"):
        made = plan(
            wanted, machine, planner=planner, options=_options(option or []), seed=seed,
            nbytes=parse_size(nbytes, "--nbytes") if nbytes else None,
            budget=parse_seconds(budget, "--budget") if budget else None,
        )  # fmt: skip
    if out is not None:
        save_plan(out, made)
    figures = figures_of(made)
    where = f"\n  written to {out}" if out is not None else ""
    emit(
        figures,
        plan_text(figures) + "\n  verified: every rank ends with exactly what it should" + where,
        json,
    )


def _verify_command(
    file: PlanFile,
    topo: Annotated[str, typer.Option("--topology", help="judge it on this machine instead of its own")] = "",
    proof: Annotated[bool, typer.Option("--proof", help="recheck the bounds from their witnesses alone, too")] = False,
    json: Json = False,
) -> None:
    """Is this plan right? Names the first thing wrong; exit code 1 if there is one."""
    plans = list(load_plans(file).values())
    machine = topology(topo) if topo else plans[0].topology
    if machine.ranks != plans[0].topology.ranks:
        raise Invalid(
            f"{file}: the plan is for {plans[0].topology.name} with {plans[0].topology.ranks} ranks, "
            f"but topology {machine.name} has {machine.ranks}"
        )
    own = machine == plans[0].topology
    for loaded in plans:
        with working(f"verifying {sum(e.schedule.transfers for e in loaded.entries)} transfers"):
            fault = check(loaded, machine, proof=proof, claims=own)
        if fault is not None:
            which = f"{loaded.collective.kind}: " if len(plans) > 1 else ""
            emit({"ok": False, "fault": fault.as_dict()}, f"WRONG: {which}{fault.message}", json)
            raise typer.Exit(1)
    also = "; the bounds hold by their witnesses" if proof else ""
    what = f"{', '.join(loaded.collective.kind for loaded in plans)} on {machine.name}"
    claims = "all that it claims is true" if own else "what it claims of its own machine was not checked"
    emit({"ok": True, "fault": None}, f"right: {what}: legal, complete; {claims}{also}", json)


def _run_command(
    file: PlanFile,
    nbytes: Annotated[str, typer.Option("--nbytes", help="the size of the buffer, e.g. 64MiB or 1e6f32")],
    collective: Annotated[str, typer.Option("--collective", help="of a table with several plans, this one")] = "",
    on: Annotated[str, typer.Option("--on", help="local: all ranks in this process, with NumPy")] = "local",
    dtype: Annotated[str, typer.Option("--dtype", help="int8 ... float64, float16, bfloat16")] = "float32",
    op: Annotated[str, typer.Option("--op", help="sum, prod, min, max or avg")] = "sum",
    repeat: Annotated[int, typer.Option("--repeat", min=1, help="runs; the median time is told")] = 3,
    seed: Annotated[int, typer.Option("--seed", min=0, help="of the data")] = 0,
    json: Json = False,
) -> None:
    """Really move data by this plan and check every element; exit code 1 if one is wrong."""
    from antiphon.run.local import run_local

    if on != "local":
        if on not in ("mpi", "torch", "lab"):
            raise unknown("place to run", on, ["local", "mpi", "torch", "lab"])
        raise Unsupported(f"--on {on} is not there yet; --on local runs all ranks in this process")
    loaded = _one(file, collective)
    size = parse_size(nbytes, "--nbytes")
    fault = check(loaded, loaded.topology)
    if fault is not None:
        raise Infeasible(f"{file}: the plan is wrong and is not run: {fault.message}")
    with working(f"running {loaded.collective.kind} on {loaded.collective.ranks} ranks"):
        rows = run_local(loaded.at(size).schedule, size, dtype=dtype, op=op, seed=seed, repeat=repeat)
    emit({"rows": rows}, run_text(rows), json)
    if not all(row["correct"] for row in rows):
        raise typer.Exit(1)


def register(app: typer.Typer) -> None:
    app.command("plan", epilog="Example: antiphon plan allreduce dgx1v --planner ring -o plan.json")(_plan_command)
    app.command("verify", epilog="Example: antiphon verify plan.json --proof")(_verify_command)
    app.command("run", epilog="Example: antiphon run plan.json --nbytes 64MiB --on local")(_run_command)
