"""The command `verify`: is a plan right, and will a runtime run it? `check` is the old spelling of `verify --for`.

`select.check_plans` verifies a plan, `api.checking.check` compares with the rules of a runtime.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from antiphon.api.checking import check, files_shown, run_reasons
from antiphon.cli import arguments as arg
from antiphon.cli.output import emit, working
from antiphon.core.datatypes import combine_of, data_type
from antiphon.core.files import within
from antiphon.core.plan import Plan
from antiphon.errors import Invalid, list_first
from antiphon.select import (
    PlanVerdict,
    check_failures,
    check_frontier,
    check_plans,
    choose_plan,
    figures_of,
    is_frontier_file,
    list_unchecked,
    load_plans,
    measure,
)
from antiphon.show.columns import paragraph
from antiphon.show.frontier import proofs_text
from antiphon.show.text import plan_text
from antiphon.show.words import planner_name
from antiphon.units import parse_size, plural


def _canonical_names(op: str, dtype: str) -> dict[str, str]:
    """Return the operator and the type by their canonical names, as keyword arguments; without empty ones."""
    if op:
        combine_of(op)  # raises Invalid for an unknown one; every operator has one name only
    return {**({"op": op} if op else {}), **({"dtype": data_type(dtype).name} if dtype else {})}


InPlace = Annotated[
    bool | None,
    typer.Option("--in-place/--out-of-place", help="with --for: check only calls of this kind (default: both)"),
]
Every = Annotated[bool, typer.Option("--all", help="with --for: also report why other files do not apply to the call")]


def verify_command(
    file: arg.PlanFile,
    topo: Annotated[
        str, typer.Option("--topology", metavar="TOPO", help="verify it on this machine instead of its own")
    ] = "",
    only: arg.Only = "",
    proof: Annotated[
        bool, typer.Option("--proof", help="also recheck bounds and certificates from their evidence alone")
    ] = False,
    op: Annotated[
        str,
        typer.Option("--op", metavar="OP", help="check that combining switches support this operator: sum, prod, ..."),
    ] = "",
    dtype: Annotated[
        str,
        typer.Option("--dtype", metavar="TYPE", help="check that they support this data type: float32, bfloat16, ..."),
    ] = "",
    runtime: Annotated[
        str,
        typer.Option(
            "--for", metavar="RUNTIME", help="check whether this runtime will run it: msccl, rccl-6, mscclpp-0.9"
        ),
    ] = "",
    nbytes: Annotated[
        str, typer.Option("--nbytes", metavar="SIZE", help="with --for: size of the call, e.g. 64MiB")
    ] = "",
    in_place: InPlace = None,
    collective: arg.WhichPlan = "",
    every: Every = False,
) -> None:
    """Verify a plan and print the first error; exit code 1 if there is one.

    A file of MSCCL or MSCCL++ is simulated first, thread block by thread block, without any change; with --topology,
    its gap to the lower bound of that machine is printed. With --for RUNTIME: will that runtime run the plan for a call
    of this size, --op and --dtype, or ignore it, hang, or compute wrongly? A plan is first exported to the runtime's
    files; those that will run the call are shown; if none will, those for its size.
    """
    from antiphon.formats.foreign import is_gpu_program_file
    from antiphon.formats.foreign_program import Wrong

    if bool(runtime) != bool(nbytes):
        raise Invalid("--for and --nbytes: a runtime is checked for a call of one size; give both, or neither")
    plan_file, collective = arg.split_plan(file, collective)
    if not runtime and (in_place is not None or every):
        raise Invalid("--in-place and --all: are for --for RUNTIME; give it, too, or leave them out")
    size = parse_size(nbytes, "--nbytes") if nbytes else 0
    not_run: dict[str, Any] = {"will_run": False, "reasons": []} if runtime else {}  # keys of the JSON of a failure
    machine = arg.machine_or_none(topo, only)
    if is_frontier_file(plan_file):
        return _verify_frontier(plan_file, as_it_stands=machine is None and not (runtime or op or dtype))
    try:
        # plans of the intact machine; those for failures are checked below
        plans = _choose_plans(load_plans(plan_file, machine, dead=()), collective, plan_file)
    except Wrong as error:
        emit({"ok": False, "fault": {"kind": error.kind, "message": str(error)}, **not_run}, f"WRONG: {error}")
        raise typer.Exit(1) from None
    if machine is not None and is_gpu_program_file(plan_file):
        machine = next(iter(plans.values())).topology  # `machine`, without ranks that the file lacks
    transfers = sum(entry.schedule.transfers for plan in plans.values() for entry in plan.entries)
    with working(f"verifying {transfers} transfers"), within(str(plan_file)):  # errors begin with the file's name
        operation = _canonical_names(op, dtype)
        verdict = check_plans(list(plans.values()), machine, proof=proof, **operation)
        # a call on a runtime is served by the plans of the intact machine
        verdict = verdict if machine is not None or runtime else check_failures(
            verdict, plan_file, kinds=[*plans], proof=proof, **operation
        )  # fmt: skip
    if verdict.fault is not None:
        kind = f"{verdict.plan.collective.kind}: " if verdict.plan is not None and len(plans) > 1 else ""
        where = f"without {verdict.dead}: {kind}" if verdict.dead else kind
        emit({"ok": False, "fault": verdict.fault.as_dict(), **not_run}, f"WRONG: {where}{verdict.fault.message}")
        raise typer.Exit(1)
    unchecked = [] if proof else [kind for plan in plans.values() for kind in list_unchecked(plan)]
    claims = _claims_text(verdict, [*dict.fromkeys(unchecked)])
    subject = f"{_titles_text(plans.values())} on {verdict.topology.name}, {_schedules_text(plans.values())}"
    lines = paragraph(f"right: {subject}: legal, complete; {claims}", first="")
    figures: dict[str, Any] = {}
    if machine is not None and is_gpu_program_file(plan_file):
        figures = _recomputed_figures(next(iter(plans.values())))
        lines.append(plan_text(figures))
    evidence = {key: list(getattr(verdict, key)) for key in ("proved", "trusted", "stated")}
    value: dict[str, Any] = {"ok": True, "fault": None} | ({"figures": figures} if figures else {})
    value |= {"failures": verdict.failures} if verdict.failures else {}
    value |= evidence if proof else {}  # without --proof the lists are empty
    lines += proofs_text(**evidence)
    if runtime:
        with working(f"checking for {runtime}"):
            rows = check(
                plan_file, runtime, size, dtype=dtype or "float32", op=op or "sum", in_place=in_place,
                collective=collective,
            )  # fmt: skip
        value |= {"will_run": any(row["runs"] for row in rows), "reasons": run_reasons(rows)}
        lines += _report_lines(runtime, rows, every)
    emit(value, "\n".join(lines))
    if value.get("will_run") is False:
        raise typer.Exit(1)


def _choose_plans(plans: dict[str, Plan], collective: str, path: Path) -> dict[str, Plan]:
    """Return the plan for `collective` alone, of those that a file holds by collective; "": all."""
    if not collective:
        return plans
    chosen = choose_plan(plans, collective, str(path))
    return {chosen.collective.kind: chosen}


def _titles_text(plans: Iterable[Plan]) -> str:
    """Return the names of the collectives of the plans."""
    return ", ".join(plan.collective.title for plan in plans)


def _schedules_text(plans: Iterable[Plan]) -> str:
    """Return the number of schedules of the plans, and their planners."""
    entries = [entry for plan in plans for entry in plan.entries]
    names = dict.fromkeys(str(entry.claims["planner"]) for entry in entries if entry.claims.get("planner"))
    planners = [planner_name(name) for name in names]
    return f"{plural(len(entries), 'schedule')}{' by ' * bool(planners)}{list_first(planners, limit=4)}"


def _claims_text(verdict: PlanVerdict, unchecked: Sequence[str]) -> str:
    """Return what was checked of correct plans besides their transfers. `unchecked`: what only --proof looks at."""
    # the figures in a plan hold for its own machine only
    claims = "figures confirmed" if verdict.is_same_machine else "its figures are of another machine: not checked"
    if verdict.is_same_machine and unchecked:
        claims = f"counts and proven gaps confirmed; not checked: {', '.join(unchecked)} (--proof checks or lists them)"
    if verdict.trusted:  # a solver reported something that nothing in the plan proves
        claims += ", its proofs in part"
    if verdict.stated:  # notes, which nothing can check
        claims += ", except those listed as stated"
    failures = plural(verdict.failures, "single failure")
    return claims + (f"; so are the plans for {failures}" if verdict.failures else "")


def _verify_frontier(path: Path, as_it_stands: bool) -> None:
    """Check a frontier file, whose proofs are rechecked with or without --proof."""
    if not as_it_stands:
        raise Invalid("a frontier file is checked on its own machine, as it stands; leave out the other options")
    with working("checking a frontier"):
        verdict = check_frontier(path)
    if verdict.fault is not None:
        emit({"ok": False, "fault": verdict.fault.as_dict()}, f"WRONG: {verdict.fault.message}")
        raise typer.Exit(1)
    evidence = {key: list(getattr(verdict, key)) for key in ("proved", "trusted", "stated")}
    claims = "every figure confirmed, except those listed as stated"
    lines = paragraph(f"right: a frontier on {verdict.topology.name}: {claims}", first="")
    emit({"ok": True, "fault": None, **evidence}, "\n".join([*lines, *proofs_text(**evidence)]))


def _recomputed_figures(plan: Plan) -> dict[str, Any]:
    """Return the figures that `antiphon plan` prints, for a plan read from a file of another program."""
    entry = plan.entries[0]
    claims = {**entry.claims, **measure(entry.schedule, plan.topology)}
    return figures_of(Plan.of(plan.topology, entry.schedule, claims))


def check_command(
    file: arg.PlanFile,
    runtime: Annotated[str, typer.Option("--for", metavar="NAME", help="the runtime: msccl, rccl-6, mscclpp-0.9")],
    nbytes: Annotated[str, typer.Option("--nbytes", metavar="SIZE", help="of the call, e.g. 64MiB")],
    dtype: Annotated[str, typer.Option("--dtype", metavar="TYPE", help="float16, bfloat16, int32, ...")] = "float32",
    op: Annotated[str, typer.Option("--op", metavar="OP", help="sum, prod, min, max or avg")] = "sum",
    ranks: Annotated[int, typer.Option("--ranks", min=0, metavar="N", help="of the communicator (0: the plan's)")] = 0,
    root: Annotated[int, typer.Option("--root", min=-1, metavar="RANK", help="of the call, where it has one")] = -1,
    in_place: InPlace = None,
    collective: arg.WhichPlan = "",
    every: Every = False,
) -> None:
    """The old spelling of `verify --for`: will a runtime of GPUs really run this plan?

    A plan is first exported to the runtime's files; the runtime's own files are taken as they are. Each file is
    simulated thread block by thread block, then compared with the runtime's rules. The files that apply to the call are
    shown; if none does, all of them, and the exit code is 1.
    """
    size = parse_size(nbytes, "--nbytes")
    plan_file, collective = arg.split_plan(file, collective)
    with working(f"checking for {runtime}"):
        rows = check(
            plan_file, runtime, size, dtype=dtype, op=op, processes=ranks or None, root=None if root < 0 else root,
            in_place=in_place, collective=collective,
        )  # fmt: skip
    runs = any(row["runs"] for row in rows)
    emit({"runs": runs, "files": rows}, "\n".join(_report_lines(runtime, rows, every)))
    if not runs:
        raise typer.Exit(1)


def _report_lines(runtime: str, rows: list[dict[str, Any]], every: bool) -> list[str]:
    """Return the report: the files that will run the call or, if none will, those for its size, or else all.

    The others are only counted unless `every` is true. Files with the same findings are listed together.
    """
    running = [row for row in rows if row["runs"]]
    shown = files_shown(rows)
    hidden = [row for row in rows if row not in shown]
    findings_by_text = dict[str, tuple[list[str], list[dict[str, str]]]]()  # the files that have them, and findings
    for row in [*shown, *(hidden if every else ())]:
        files, _ = findings_by_text.setdefault(str((row["runs"], row["findings"])), ([], row["findings"]))
        files.append(f"{row['file'] or 'no file'}: {'will run' if row['runs'] else 'will not run'}")
    lines = [f"{'will run' if running else 'will NOT run'} by {runtime}"]
    for files, findings in findings_by_text.values():
        lines += ["", *(f"  {file}" for file in files), *_finding_lines(findings)]
    if hidden and not every:
        note = f"{plural(len(hidden), 'file')} for other calls (--all shows why they do not apply)"
        lines += ["", *paragraph(note)]
    return lines


def _finding_lines(findings: Iterable[dict[str, str]]) -> list[str]:
    """Return what a runtime does with a file, and why, with what helps below it."""
    lines: list[str] = []
    for finding in findings:
        lines += paragraph(f"{finding['outcome']}: {finding['why']}", first="    ", rest=" " * 6)
        if finding["instead"]:
            lines += paragraph(f"do this: {finding['instead']}", first=" " * 6, rest=" " * 8)
    return lines
