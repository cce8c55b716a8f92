"""The commands `plan` and `run`: make a plan (or compose one of several plans), and run it with real data."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from antiphon.api.costs import predict
from antiphon.api.machines import collective, topology
from antiphon.api.plans import compose, plan, repair
from antiphon.api.running import run
from antiphon.cli import arguments as arg
from antiphon.cli.output import check_outputs, emit, sort_outputs, working, write_pictures
from antiphon.cli.planning import ThrottledLog, progress
from antiphon.cli.run_text import rows_text, surviving_text, trace_text
from antiphon.core.bounds import bound
from antiphon.core.collective import Collective, kind_named
from antiphon.core.plan import Plan
from antiphon.core.topology import Topology
from antiphon.errors import AntiphonError, Infeasible, Invalid, NotFound, TimedOut
from antiphon.select import (
    SeveralOrders,
    choose_plan,
    every_plan,
    exact_rounds,
    figures_of,
    load_plans,
    own_model,
)
from antiphon.select.parse_request import names_groups
from antiphon.select.repair import slicing_size
from antiphon.show.columns import LABEL_INDENT, paragraph, table
from antiphon.show.frontier import optimality_text, refusal_text
from antiphon.show.pictures.trees import check_drawable, trees_svg
from antiphon.show.text import labelled, plan_text
from antiphon.show.words import library_name, options_text, ratio
from antiphon.units import format_ends, format_seconds, format_size, parse_seconds, parse_size, parse_sizes, ranks_text

PlanOutputs = Annotated[list[Path] | None, arg.output_option("plan")]
PlanNbytes = Annotated[str, typer.Option("--nbytes", metavar="SIZE", help="message size to plan for, e.g. 64MiB")]
ChoiceModel = Annotated[
    str, typer.Option("--model", metavar="NAME", help="cost model, for --nbytes (default: alpha-beta)")
]
KeepAll = Annotated[bool, typer.Option("--all", help="keep all schedules: -o plan.json writes plan-1.json, ...")]
TreeRoot = Annotated[
    int | None,
    typer.Option("--tree-root", min=0, metavar="RANK", help="with -o FILE.svg: draw the trees of this root only"),
]
ComposedPlans = Annotated[
    list[str] | None,
    typer.Option("--from", metavar="PLAN...", help="compose these plans for groups of ranks, one after the other"),
]
AtOnceOption = Annotated[
    bool,
    typer.Option("--at-once", help="with --from: run the plans at the same time, on disjoint groups or with --shares"),
]
Shares = Annotated[
    str, typer.Option("--shares", metavar="1,1,...", help="with --from --at-once: share of the data for each plan")
]
RepairOption = Annotated[
    str,
    typer.Option(
        "--repair", metavar="OLD", help="repair this plan for the degraded machine TOPO: keep what still works"
    ),
]
OptionalColl = Annotated[str, typer.Argument(metavar="COLL", help=arg.COLL_HELP, show_default=False)]
OptionalTopo = Annotated[
    str, typer.Argument(metavar="TOPO", help=arg.TOPO_HELP, show_default=False, callback=arg.check_order)
]
# Parameters that may be combined with --from, and with --repair
PARAMETERS_WITH_FROM = ("coll", "topo", "composed", "at_once", "shares", "output")
PARAMETERS_WITH_REPAIR = ("coll", "topo", "old", "nbytes", "budget", "seed", "output")


def plan_command(
    context: typer.Context, coll: OptionalColl = "", topo: OptionalTopo = "", planner: arg.PlannerName = "",
    root: arg.Root = None, only: arg.Only = "", ranks: arg.Ranks = "", groups: arg.Groups = "", mesh: arg.Mesh = "",
    along: arg.Along = "", nbytes: PlanNbytes = "",
    model: ChoiceModel = "", keep_all: KeepAll = False, deterministic: arg.Deterministic = False,
    budget: arg.Budget = "", effort: arg.Effort = None, seed: arg.Seed = 0, output: PlanOutputs = None,
    tree_root: TreeRoot = None, composed: ComposedPlans = None, at_once: AtOnceOption = False, shares: Shares = "",
    old: RepairOption = "",
) -> None:  # fmt: skip
    """Plan a collective, verify the schedule, and print how far it is from the lower bounds.

    If a planner finds several schedules, the best is kept: for --nbytes the fastest by --model (alpha-beta; of dispatch
    critical-path), else the one nearest to the bandwidth bound. The default planner is ring, which may be far from the
    bound: `antiphon tune` tries all. --deterministic keeps only schedules that combine every element in one order;
    without --planner it compares several planners. The options chunks, steps and rounds ask planner sccl for one point;
    if there is no plan, the bound that forbids it, or what was searched, is printed (exit code 1). A picture shows the
    trees along which the data travel. --from composes plans for groups of ranks of one machine: reducescatters within
    boxes, allreduces among ranks that hold the same blocks, allgathers within boxes make an allreduce, verified as a
    whole. COLL and TOPO may then be left out, or state the result to check. --repair takes a plan for the intact
    machine and the degraded one as TOPO (topology degrade): what still works stays, the rest is planned anew.
    """
    files = sort_outputs("plan", output)
    out, pictures = files["plan"], files["picture"]
    if old:
        _check_options(context, "--repair", PARAMETERS_WITH_REPAIR, pictures)
        coll, topo = (coll, topo) if topo else ("", coll)  # a single argument is the machine
        _repair(coll, topo, old, nbytes=nbytes, budget=budget, seed=seed, out=out)
        return
    if composed or at_once or shares:
        if not composed:
            raise Invalid("--at-once and --shares: are for composing; give the plans with --from A.json B.json")
        _check_options(context, "--from", PARAMETERS_WITH_FROM, pictures)
        compose_command(composed, at_once=at_once, shares=shares, output=out, coll=coll, topo=topo)
        return
    if not topo:
        raise typer.BadParameter(f"Missing argument '{'TOPO' if coll else 'COLL TOPO'}'", context)
    target, machine = arg.request(
        coll, topo, root=root, only=only, ranks=ranks, groups=groups, mesh=mesh, along=along
    )  # fmt: skip
    planner, planner_options = arg.split_options(planner, "--planner")
    _check_pictures(machine, pictures, tree_root, keep_all)
    if model and keep_all:
        raise Invalid("--all keeps all schedules, --model chooses one; leave one of them out")
    if model and not nbytes:
        raise Invalid("--model chooses the fastest for a size; give --nbytes, too")
    options: dict[str, Any] = {
        "planner": planner, "seed": seed, "deterministic": deterministic, "options": planner_options,
        "nbytes": parse_size(nbytes, "--nbytes") if nbytes else None,
        "budget": parse_seconds(budget, "--budget", bare=True) if budget else None, "effort": effort,
    }  # fmt: skip
    if keep_all:
        _plan_all(target, machine, out, options)
        return
    try:
        log = ThrottledLog()
        with progress(f"planning {target.title} on {machine.name}", log=False) as (show, _):

            def tell(text: str) -> None:
                show(text)
                log.tell(text)

            best = plan(target, machine, model=model or None, progress=tell, **options)
    except (Infeasible, NotFound, TimedOut) as error:
        # Only a requested point (C, S, R) has an answer without a plan, unless --deterministic refused all its plans.
        # Its three options come together, and no other planner has `rounds`.
        if "rounds" not in options["options"] or isinstance(error, SeveralOrders):
            raise
        emit(_refusal_json(options["options"], error), refusal_text(str(error)))
        raise typer.Exit(1) from None
    figures = figures_of(best)
    text = _save_and_describe(best, figures, out)
    if options["nbytes"] is not None:
        text += _time_line(best, options["nbytes"], model or own_model(planner))
    # a gap of None: its bound is 0, so that no ratio exists
    is_best_possible = all(figures[gap] in (1, None) for gap in ("bandwidth_gap", "latency_gap"))
    if not planner and not deterministic and not is_best_possible:
        flags = {
            "--nbytes": nbytes, "--model": model, "--groups": groups, "--mesh": mesh, "--along": along
        }  # fmt: skip
        request = shlex.join(
            [
                arg.join_collective(coll, root, ranks),
                f"{topo}:only={only}" if only else topo,
                *(word for flag, value in flags.items() if value for word in (flag, value)),
            ]
        )
        text += f"\n  next:      {figures['planner']} is the default; to try all planners:\n    antiphon tune {request}"
    (entry,) = best.entries  # for all sizes
    picture_lines = write_pictures(
        lambda: trees_svg(entry.schedule, machine, bound(machine, best.collective), tree_root), pictures
    )
    emit(figures, "\n".join([text, *picture_lines]))


def _time_line(plan: Plan, nbytes: int, model: str) -> str:
    """Return the predicted time of a plan at one size, as a further line of its description."""
    (row,) = predict(plan, nbytes, model=model)
    return f"\n  {f'at {format_size(nbytes)}:':<11}{format_seconds(row['seconds'])}, predicted by model {row['model']}"


def _check_pictures(machine: Topology, pictures: list[Path], tree_root: int | None, keep_all: bool) -> None:
    """Check before long work that the pictures can be drawn."""
    if not pictures:
        if tree_root is not None:
            raise Invalid("--tree-root chooses which trees are drawn; give -o FILE.svg, too")
        return
    if keep_all:
        raise Invalid(f"-o {pictures[0]}: draws one plan, but --all keeps many; leave one of them out")
    check_drawable(machine)


def _refusal_json(options: dict[str, Any], error: AntiphonError) -> dict[str, Any]:
    """Return the answer for a point that was not planned, as JSON.

    `feasible` is false if it is proved that no schedule has that point; else null, with what was searched.
    """
    point = {key: options[key] for key in ("chunks", "steps", "rounds") if key in options}
    if isinstance(error, Infeasible):
        return {"feasible": False, "asked": point, "why": str(error)}
    searched = list(error.searched) if isinstance(error, NotFound) else []
    return {"feasible": None, "asked": point, "why": str(error), "searched": searched}


def _plan_all(target: Collective, machine: Topology, out: Sequence[Path], options: dict[str, Any]) -> None:
    """Write each schedule, once it is found, to a file of its own: plan.json gives plan-1.json, plan-2.json, ..."""
    rows, texts = [], []
    stopped: str | None = None
    try:
        with working(f"planning {target.title} on {machine.name}"):
            for number, each_plan in enumerate(every_plan(target, machine, **options), start=1):
                (entry,) = each_plan.entries
                planner_options = dict(entry.schedule.provenance.get("options", {}))
                figures = {**figures_of(each_plan), "options": planner_options}
                rows.append(figures)
                files = [path.with_name(path.name.replace(".", f"-{number}.", 1)) for path in out]
                texts.append(_save_and_describe(each_plan, figures, files))
    except (TimedOut, KeyboardInterrupt) as error:
        if not rows:
            raise
        stopped = str(error) if isinstance(error, TimedOut) else "interrupted"
        texts.append(_stopped_text(stopped))
    emit({"plans": rows, "stopped": stopped}, "\n\n".join(texts))


def _stopped_text(why: str) -> str:
    """Return the line that says why planning ended early."""
    return "\n".join(paragraph(f"stopped:   {why}", rest=LABEL_INDENT))


def _save_and_describe(plan: Plan, figures: dict[str, Any], out: Sequence[Path]) -> str:
    """Write a plan of one schedule to these files, and return its description."""
    (entry,) = plan.entries
    provenance = entry.schedule.provenance
    lines = [plan_text(figures, exact_rounds(entry.schedule, plan.topology))]
    if provenance.get("options"):
        lines += labelled("options", options_text(provenance["options"]))
    if provenance.get("certificate") is not None and "optimality" in figures:
        lines += paragraph(f"proof:     {optimality_text(provenance['certificate'])}", rest=LABEL_INDENT)
    if figures.get("stopped"):
        lines.append(_stopped_text(str(figures["stopped"])))
    if entry.claims.get("order"):
        lines.append("  order:     every element is combined in one: the same bits at all sizes")
    return "\n".join([*lines, *_save_verified(plan, out)])


def _save_verified(plan: Plan, out: Sequence[Path]) -> list[str]:
    """Write a plan to these files, and return the lines that say so, and that it was verified."""
    from antiphon.core.serialize import save_plan

    for path in out:
        save_plan(path, plan)
    written = [str(path) for path in out] or ["no plan (-o plan.json writes it)"]
    return ["  verified:  every rank ends with exactly what it should", *(f"  written:   {text}" for text in written)]


def _repaired_ranges(plan: Plan) -> list[str]:
    """Return a table of the ranges of a repaired plan: how much was kept of the old one, and the new gap."""
    rows = []
    for entry in plan.entries:
        repaired = entry.claims["repaired"]
        ends = format_ends(entry.start, entry.stop)
        use = library_name(entry.served_by) if entry.served_by else "Antiphon"
        kept_text = f"{repaired['kept']} of {repaired['transfers']}"
        rows.append([*ends, use, str(repaired["planner"]), kept_text, ratio(entry.claims["bandwidth_gap"])])
    note = "use: as in the old plan; gap: time on the links / lower bound for this machine" + (
        "; 0 kept: planned anew, as that is faster than a repaired schedule, or none could be repaired"
        if any(not entry.claims["repaired"]["kept"] for entry in plan.entries) else ""
    )  # fmt: skip
    return table(["from", "to", "use", "old planner", "transfers kept", "gap"], rows) + paragraph(note)


def _check_options(context: typer.Context, option: str, allowed: Collection[str], pictures: Sequence[Path]) -> None:
    """Refuse options that `option` does not read, and pictures; nothing is silently ignored."""
    if pictures:
        raise Invalid(f"-o {pictures[0]}: cannot be combined with {option}; leave one of them out")
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if source is not None and source.name == "COMMANDLINE" and parameter.name not in allowed:
            raise Invalid(f"{parameter.opts[-1]}: cannot be combined with {option}; leave one of them out")


def _repair(
    coll: str, topo: str, old: str, *, nbytes: str, budget: str, seed: int, out: Sequence[Path]
) -> None:  # fmt: skip
    """Repair the plan `old` for the degraded machine `topo`, and print how much of it was kept.

    `coll`: the collective that the plan must be of, or of several the one to repair; "": any.
    """
    if not topo:
        raise Invalid("--repair: name the degraded machine, as in: plan --repair old.json broken.json")
    file, kind = arg.split_plan(old)
    name, _, _ = arg.split_collective(coll, root=None, ranks="")
    intact = choose_plan(load_plans(file), kind or ("" if names_groups(name) else name), str(file))
    _check_collective(coll, intact, f"{old} is for")
    machine, _ = arg.machine_and_group(topo, only="")
    size = parse_size(nbytes, "--nbytes") if nbytes else None
    with progress(f"repairing {old} for {machine.name}", log=False) as (tell, _):
        plan = repair(
            intact, machine, nbytes=size,
            budget=parse_seconds(budget, "--budget", bare=True) if budget else None, seed=seed, progress=tell,
        )  # fmt: skip
    repaired = [entry.claims["repaired"] for entry in plan.entries]
    kept_rows, total = (sum(claim[key] for claim in repaired) for key in ("kept", "transfers"))
    share, planner = kept_rows / max(total, 1), repaired[-1]["planner"]
    source = f"the plan by {planner}" if len(repaired) == 1 else f"{len(repaired)} schedules"
    text = f"kept {kept_rows} of {total} transfers ({share:.0%}) of {source}"
    if is_whole := kept_rows == total:
        text += ", as all of them still work"
    figures = figures_of(plan)
    lines = paragraph(text, first="")
    if len(plan.entries) == 1:
        lines.append(_save_and_describe(plan, figures, out) + _time_line(plan, size or slicing_size(*plan.entries), ""))
        if size is None and not is_whole:  # what is kept whole is not sliced anew
            lines += paragraph("sliced:    for this size, by default; --nbytes names another", rest=LABEL_INDENT)
    else:
        lines += ["", *_repaired_ranges(plan), "", *_save_verified(plan, out)]
    if is_whole and (coll or intact.collective.kind != "custom"):  # the name of a custom collective is not in its plan
        request = shlex.join([coll or _collective_text(intact.collective), topo])
        lines.append(f"  next:      to plan anew:\n    antiphon tune {request}")
    emit({**figures, "repaired": {"kept": kept_rows, "transfers": total, "planner": planner}}, "\n".join(lines))


def _check_collective(coll: str, plan: Plan, label: str) -> None:
    """Refuse a COLL that is not the collective of a plan; root, ranks and groups count if COLL names them."""
    if not coll:
        return
    name, root, ranks = arg.split_collective(coll, root=None, ranks="")
    if root is None and ranks is None and not names_groups(name):
        is_same = (kind_named(name) or name) == plan.collective.kind
    else:
        is_same = collective(name, plan.topology, root=root, ranks=ranks) == plan.collective
    if not is_same:
        raise Invalid(f"{coll}: {label} {_collective_text(plan.collective)}; write that, or leave it out")


def _collective_text(target: Collective) -> str:
    """Return a collective as COLL names it, with its root and ranks unless they are the default ones; or its title."""
    if target.kind == "custom":
        return target.title
    root = target.roots[0] if target.roots and target.roots[0] != target.members[0] else None
    ranks = ranks_text(target.members, len(target.members)) if len(target.members) < target.ranks else ""
    return arg.join_collective(target.kind, root, ranks)


def compose_command(
    files: Annotated[list[str], typer.Argument(metavar="PLAN...", help="plans for groups of ranks of one machine")],
    at_once: AtOnceOption = False,
    shares: Shares = "",
    output: Annotated[list[Path] | None, arg.output_option("compose")] = None,
    coll: Annotated[str, typer.Option("--collective", hidden=True)] = "",
    topo: Annotated[str, typer.Option("--topology", hidden=True)] = "",
) -> None:
    """Compose plans: one after the other, or at once. `coll`, `topo`: the collective and machine that must result."""
    out = sort_outputs("compose", output)["plan"]
    with working(f"putting {len(files)} plans together"):
        plans = [arg.load_plan(file) for file in files]
        plan = compose(plans, at_once=at_once, shares=shares.split(",") if shares else None)
    _check_collective(coll, plan, "the plans of --from make")
    if topo and topology(topo) != plan.topology:
        raise Invalid(f"{topo}: the plans of --from are for {plan.topology.name}; name that, or leave it out")
    figures = figures_of(plan)
    emit(figures, _save_and_describe(plan, figures, out))


def run_command(
    file: arg.PlanFile,
    nbytes: Annotated[
        str, typer.Option("--nbytes", metavar="SIZE", help="buffer size: 64MiB, 1e6f32, or a range: 1KB:64MB:4")
    ],
    collective: arg.WhichPlan = "",
    on: arg.On = "local",
    dtype: arg.Dtype = "float32",
    op: arg.Op = "sum",
    repeat: arg.Repeat = 3,
    seed: arg.Seed = 0,
    trace: arg.Trace = None,
) -> None:
    """Run a plan with real data and check every element; exit code 1 if one is wrong.

    On mpi and torch there is a process for every rank, the native engine moves the data, and the time stands beside
    that of the library's own collective. The processes of mpi are started by mpiexec; under mpiexec or srun this is one
    of them. On lab the ranks are joined by emulated links: in the lab that is up, or in one made for it.
    """
    plan_file, kind = arg.split_plan(file, collective)
    runtime, runtime_options = arg.split_runtime(on)
    sizes = parse_sizes(nbytes, "--nbytes")
    check_outputs({"--trace": trace})
    with working(f"running {file}"):
        rows = run(
            plan_file, sizes, collective=kind, on=runtime, dtype=dtype, op=op, seed=seed, repeat=repeat, trace=trace,
            **runtime_options,
        )  # fmt: skip
    if not rows:  # another of the processes reports
        return
    emit({"rows": rows}, surviving_text(rows) + rows_text(rows) + trace_text(trace))
    if not all(row["correct"] for row in rows):
        raise typer.Exit(1)
