"""The command `tune`: find the best schedule for every size by a model, by measuring (--on), or from logs.

`tune_command` reads the options, refuses combinations that make no sense, and calls `api.tuning` (by a model) or
`api.measuring` (the others); `tuning_text` and `measured_text` format the results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from antiphon.api.machines import collective
from antiphon.api.measuring import tune as tune_measured
from antiphon.api.search import Search
from antiphon.api.tuning import report as report_page
from antiphon.api.tuning import tune, tune_family
from antiphon.cli import arguments as arg
from antiphon.cli.output import StoppedEarly, emit, origin_text, sort_outputs, write_pictures, written_lines
from antiphon.cli.progress import show_progress
from antiphon.cli.sweeping import StoreOption, tune_with_store
from antiphon.cli.tuning_text import tuning_text, tunings_text
from antiphon.core.files import write_bytes
from antiphon.errors import Infeasible, Invalid
from antiphon.select import Tuning, read_sweep
from antiphon.select.parse_request import names_groups
from antiphon.show.terminal import add_picture, time_chart
from antiphon.units import parse_seconds

INTERRUPTED = "interrupted; the result so far is printed and written"
CollectiveOrAll = Annotated[str, typer.Argument(metavar="COLL|all", help=f"{arg.COLL_HELP}, or all eight")]
Sizes = Annotated[
    str,
    typer.Option(
        "--nbytes",
        metavar="SIZES",
        help="one size, 1KB:1GB or, by a factor, 1KB:1GB:4 (default 1KB:1GB; with --on 1KB:16MB)",
    ),
]
OwnPlans = Annotated[
    list[str] | None,
    typer.Option("--plan", metavar="FILE", help="add a plan of your own to the candidates; repeatable"),
]
Sweeps = Annotated[
    list[str] | None,
    typer.Option(
        "--sweep", metavar="KEY=VALUES",
        help="values of a planner option to try: k=2:64, k=2,4,8 or k=factors (of the number of ranks); repeatable",
    ),
]  # fmt: skip
VaryOption = Annotated[
    str,
    typer.Option(
        "--vary",
        metavar="KEY=VALUES",
        help="tune several machines: values of an option of TOPO, nodes=1,2,4; -o is a folder",
    ),
]
On = Annotated[
    str,
    typer.Option(
        "--on",
        metavar="WHERE",
        help="measure the best candidates and choose by that: mpi[:mpiexec=srun,timeout=600s], nccl, torch or lab",
    ),
]
Iterations = Annotated[
    int | None, typer.Option("--iterations", min=1, metavar="N", help="number of runs; the median counts")
]
LibraryOnly = Annotated[
    bool, typer.Option("--library-only", help="with --on mpi: choose among the MPI library's own algorithms")
]
FromLogs = Annotated[
    Path | None,
    typer.Option(
        "--from-logs", metavar="DIR", help="choose among NCCL's own settings by logs of nccl-tests that forced them"
    ),
]
RunCommand = Annotated[
    str,
    typer.Option(
        "--run", metavar="COMMAND", help="with --from-logs: first run this command of nccl-tests with every setting"
    ),
]
Nccl = Annotated[bool, typer.Option("--nccl/--no-nccl", help="compare with the choice of NCCL (RCCL)")]
Effort = Annotated[
    float,
    typer.Option(
        "--effort",
        metavar="N",
        help="effort of a planner that searches (default for sccl: 60; in tune 5)",
        show_default=False,
    ),
]
AgainstOption = Annotated[
    str, typer.Option("--against", metavar="TOPO", help="report what TOPO has lost compared with this machine")
]
FailuresOption = Annotated[
    str,
    typer.Option(
        "--failures", metavar="links|wires|nics|ranks",
        help="also tune without each single one of these; the file holds all; in a job, ANTIPHON_DEAD names the failed",
    ),
]  # fmt: skip
CountsOption = Annotated[
    Path | None,
    typer.Option("--counts", metavar="FILE", help="plan an alltoall for the average of these counts (JSON matrices)"),
]
Explain = Annotated[
    bool, typer.Option("--explain", help="also print how the figures were derived and which planners do not apply")
]
Workers = Annotated[int, typer.Option("--workers", min=0, metavar="N", help="number of processes (0: one per core)")]
TuneOutputs = Annotated[list[Path] | None, arg.output_option("tune")]
Heatmap = Annotated[
    Path | None,
    typer.Option("--heatmap", metavar="FILE", help="draw a heat map of the values of --sweep by size (.svg)"),
]


def tune_command(
    coll: CollectiveOrAll, topo: arg.Topo, nbytes: Sizes = "", groups: arg.Groups = "", mesh: arg.Mesh = "",
    along: arg.Along = "", output: TuneOutputs = None, heatmap: Heatmap = None, explain: Explain = False,
    planner: arg.PlannerNames = None, plan: OwnPlans = None, sweep: Sweeps = None,
    deterministic: arg.Deterministic = False, model: arg.ModelName = "", profile: arg.ProfileFile = None,
    nccl: Nccl = True, budget: arg.Budget = "60s", effort: Effort = 5.0, workers: Workers = 0, seed: arg.Seed = 0,
    vary: VaryOption = "", against: AgainstOption = "", failures: FailuresOption = "", counts: CountsOption = None,
    store: StoreOption = "", on: On = "", iterations: Iterations = None, library_only: LibraryOnly = False,
    from_logs: FromLogs = None, run: RunCommand = "", root: arg.Root = None, only: arg.Only = "", ranks: arg.Ranks = "",
) -> None:  # fmt: skip
    """Try all applicable planners, verify and price their schedules, and keep the best for every size.

    -o writes one collective as a plan with a schedule for each range of sizes, several collectives as a table.
    A picture shows the times by size, --heatmap the effect of --sweep at each size.

    With --on mpi the best few and textbook algorithms are run, in turn with the library's own collective, and chosen
    by their times. --library-only runs the library's own algorithms instead, for export --to openmpi-rules,
    mpich-rules or ucc.

    --on nccl, under mpiexec, srun or torchrun with a process per GPU, times the settings of NCCL or RCCL; --from-logs
    chooses them by logs that you have. Both are for export --to nccl-tuner or nccl-csv.
    """
    # group: the participating ranks, by their numbers in TOPO; None: all
    coll, root, group = arg.split_collective(arg.with_groups(coll, groups, mesh, along), root, ranks)
    # only= keeps a part of TOPO. Where it cannot be combined, `_refuse` gets TOPO as the name of the option
    intact_machine, kept_ranks = arg.split_machine(topo, only)
    if names_groups(coll):
        _refuse(
            {"--on": on, "--from-logs": from_logs, "--vary": vary, "--store": store, "--failures": failures},
            "takes no groups at the same time; leave it out",
        )
    _refuse(
        {"--failures": failures, "--counts": counts} if on or from_logs or vary or store or plan else {},
        "tunes by a model; leave out --on, --from-logs, --vary, --store and --plan",
    )
    if heatmap is not None and not sweep:
        raise Invalid("--heatmap: draws the values of --sweep; give it one, such as --sweep pieces=1,4,16")
    files = sort_outputs("tune", output, {"--heatmap": heatmap}, folder=bool(vary))
    out = files["plans"]
    search = Search(
        effort=effort, budget=parse_seconds(budget, "--budget", bare=True), seed=seed, workers=workers or None,
        deterministic=deterministic, sweep=read_sweep(sweep or ()), plans=plan or (), failures=failures,
        counts=counts,
    )  # fmt: skip
    options: dict[str, Any] = {
        "nbytes": nbytes or None, "model": model or None, "profile": profile, "planners": planner or (), "root": root,
        "search": search,
    }  # fmt: skip
    # outputs that show a result of tuning by a model; other results are only printed, or written as plans
    page_outputs = {f"-o {path}": True for path in (*files["report"], *files["picture"])} | {"--heatmap": heatmap}
    if on:
        _refuse(
            {"--vary": vary, topo: kept_ranks, "--against": against, **page_outputs},
            "cannot be combined with --on; leave one of them out",
        )
        runtime, runtime_options = arg.split_runtime(on)
        limit = runtime_options.pop("timeout", None)
        options |= {"on": runtime, "iterations": iterations, "limit": limit}
        options["library_only"] = library_only or runtime == "nccl"  # of NCCL only its own settings are tried
        options |= runtime_options
        _refuse({"--from-logs": from_logs, "--run": run}, "has the measurements, so leave out --on")
        _tune_measured(coll, topo, out, {**options, "ranks": group}, explain)
        return
    if from_logs is not None:
        _refuse(
            {"--vary": vary, topo: kept_ranks, "--against": against, "--nbytes": nbytes, "--plan": plan,
             "--iterations": iterations, **page_outputs},
            "cannot be combined with --from-logs; leave one of them out",
        )  # fmt: skip
        del options["nbytes"]
        options |= {"logs": from_logs, "command": run, "library_only": True, "ranks": group}
        _tune_measured(coll, topo, out, options, explain)
        return
    _refuse({"--run": run}, "needs a folder for its logs; add --from-logs DIR")
    _refuse(
        {"--iterations": iterations, "--library-only": library_only},
        "is only for measuring; give --on, too, or leave it out",
    )
    if store:
        _refuse(
            {
                "--vary": vary,
                "--against": against,
                **page_outputs,
                "--plan": plan,
                "--sweep": sweep,
                "--explain": explain,
                "--no-nccl": not nccl,
            },
            "cannot be combined with --store; leave one of them out",
        )
        tune_with_store(coll, topo, out, store=store, group=group, only=only, options=options)
        return
    if vary:
        _refuse(
            {topo: kept_ranks, "--against": against, **page_outputs, "--plan": plan},
            "is for one machine, but --vary asks for several; leave one of them out",
        )
        _tune_family(coll, topo, out, {**options, "nccl": nccl, "vary": vary, "ranks": group}, explain)
        return
    machine, members = arg.machine_and_group(topo, only, group)
    target: Any = coll
    if names_groups(coll):
        target = collective(coll, machine, root=root, ranks=members, mesh=mesh)
        options["root"] = members = None  # they are in `target` now
    intact = against or (intact_machine if kept_ranks else "")  # an allocation is compared with its whole machine
    options |= {"nccl": nccl, "ranks": members, "against": arg.machine_or_none(intact, only="")}
    with show_progress() as progress:
        tuning = tune(target, machine, progress=progress, **options)
    emit(tuning.as_json(), _text_with_chart(tuning, explain, _write_outputs(tuning, files, heatmap)))
    if not tuning.complete:
        raise StoppedEarly(INTERRUPTED)
    if not tuning.plans:
        subject = "anything" if coll == "all" else coll
        raise Infeasible(f"no planner could plan {subject} on {machine.name}; the reasons are listed above")


def _text_with_chart(tuning: Tuning, explain: bool, written: Sequence[str]) -> str:
    """Return the result as text, then the lines `written`; on a terminal with room for it also a chart of times."""
    text = "\n".join([tuning_text(tuning, explain, is_saved=bool(written)), *written])
    return add_picture(text, lambda: time_chart(tuning))


def _refuse(options: Mapping[str, Any], why: str) -> None:
    """Raise Invalid, with this reason, for the first of these options that is used."""
    for name, value in options.items():
        if value:
            raise Invalid(f"{name}: {why}")


def _tune_measured(
    coll: str, topo: str, out: Sequence[Path], options: dict[str, Any], explain: bool
) -> None:  # fmt: skip
    """Measure, print and write the result. Under mpiexec or srun only the first process prints and writes."""
    from antiphon.cli.measured_text import library_text, library_use, measured_text, use_text

    with show_progress(log=True) as progress:
        result = tune_measured(coll, topo, progress=progress, **options)
    if result is None:
        return
    for path in out:
        result.save(path)
    use, text = (library_use, library_text) if options["library_only"] else (use_text, measured_text)
    written = [*written_lines(*out), *(use(result, str(out[0])) if out else [])]
    emit(result.as_json(), "\n".join([text(result, explain), *written]))
    if result.interrupted:
        raise StoppedEarly(INTERRUPTED)


def _tune_family(
    coll: str, topo: str, out: Sequence[Path], options: dict[str, Any], explain: bool
) -> None:  # fmt: skip
    """Tune a family of machines (--vary): print one table, and write a file for each machine."""
    with show_progress() as progress:
        family = tune_family(coll, topo, progress=progress, **options)
    written = [line for path in out for line in written_lines(*family.save(path))]
    emit(family.as_json(), "\n".join([tunings_text(family, explain), *written]))
    if not family.complete:
        raise StoppedEarly(INTERRUPTED)
    if not any(tuning.plans for tuning in family.tunings.values()):
        raise Infeasible(f"no planner could plan {coll} on any of these machines; the reasons are listed above")


def _write_outputs(tuning: Tuning, files: Mapping[str, list[Path]], heatmap: Path | None) -> list[str]:
    """Write the plans, the report and the pictures; return a line for each file."""
    if not tuning.plans:
        return []
    for path in files["plans"]:
        tuning.save(path)
    for path in files["report"]:
        write_bytes(path, report_page(tuning, origin=origin_text()).encode())
    written = written_lines(*files["plans"], *files["report"])
    if heatmap is not None or files["picture"]:
        from antiphon.show.pictures.chart import chart_svg
        from antiphon.show.pictures.heatmap import heatmap_svg

        written += write_pictures(lambda: heatmap_svg(tuning), [heatmap] if heatmap is not None else [])
        written += write_pictures(lambda: chart_svg(tuning), files["picture"])
    return written
