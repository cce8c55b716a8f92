"""antiphon tune: the best schedule for every size, of all that the planners here can make."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from antiphon.api.machines import topology
from antiphon.api.measuring import tune as tune_measured
from antiphon.api.search import Search
from antiphon.api.tuning import report as page
from antiphon.api.tuning import tune, tune_over
from antiphon.cli.arguments import (  # fmt: skip
    Budget,
    Deterministic,
    Json,
    Launcher,
    Only,
    PlannerNames,
    Png,
    ProfileFile,
    Ranks,
    Root,
    Seed,
    Svg,
    Topo,
    Usual,
    machine_and_group,
)
from antiphon.cli.output import StoppedEarly, check_outputs, emit, write_pictures
from antiphon.cli.planning import NowAndThen, beats
from antiphon.cli.tuning_text import last_line, tuning_text, tunings_text
from antiphon.core.files import write_bytes
from antiphon.core.topology import Topology
from antiphon.errors import Infeasible, Invalid
from antiphon.select import Tuning, read_sweep
from antiphon.units import parse_ranks, parse_seconds, parse_span

PICTURES = ("--svg", "--png", "--heatmap")
Wanted = Annotated[str, typer.Argument(metavar="COLL|all", help="allreduce, allgather, ..., file.json, or all eight")]
Sizes = Annotated[
    str,
    typer.Option("--nbytes", metavar="SIZES", help="one, 1KB:1GB or 1KB:1GB:4 (default 1KB:1GB; measured 1KB:16MB)"),
]
OwnPlans = Annotated[
    list[str] | None, typer.Option("--plan", metavar="FILE", help="a plan of yours as a candidate, too; again for more")
]
Sweeps = Annotated[
    list[str] | None,
    typer.Option(
        "--sweep", metavar="KEY=VALUES",
        help="values of an option to try: k=2:64, k=2,4,8 or k=factors (of the number of ranks); again for more",
    ),
]  # fmt: skip
Vary = Annotated[
    str, typer.Option("--vary", metavar="KEY=VALUES", help="tune for several machines: an option of TOPO, nodes=1,2,4")
]
On = Annotated[
    str, typer.Option("--on", metavar="WHERE", help="also measure the best, and choose by that: mpi, torch or lab")
]
Factor = Annotated[
    int | None, typer.Option("--factor", min=2, metavar="N", help="with --on: each size so many times the last (4)")
]
Iterations = Annotated[
    int | None, typer.Option("--iterations", min=1, metavar="N", help="with --on: runs of each (20)")
]
For = Annotated[str, typer.Option("--for", metavar="TIME", help="with --on: time for all measurements (600s)")]
LibraryOnly = Annotated[
    bool, typer.Option("--library-only", help="with --on mpi: choose among the MPI library's own algorithms")
]
Nccl = Annotated[bool, typer.Option("--nccl/--no-nccl", help="compare with what NCCL would do")]
Effort = Annotated[
    float, typer.Option("--effort", metavar="N", help="how much is tried by a planner that searches (sccl)")
]
Against = Annotated[str, typer.Option("--against", metavar="TOPO", help="say what TOPO has lost against this machine")]
Workers = Annotated[int, typer.Option("--workers", min=0, metavar="N", help="processes (0: one per core)")]
TuneOutput = Annotated[
    Path | None,
    typer.Option(
        "-o", "--output", metavar="FILE", help="write the plans here (.json or .json.gz); with --vary, a directory"
    ),
]
Report = Annotated[
    Path | None, typer.Option("--report", metavar="FILE", help="write a page with pictures here (.html)")
]
Heatmap = Annotated[
    Path | None, typer.Option("--heatmap", metavar="FILE", help="draw sizes by the values of --sweep here (.svg)")
]


@contextmanager
def _progress(log: bool = False) -> Iterator[Callable[[int, int, str], None]]:
    """A bar on a terminal's stderr; elsewhere a line every few seconds, with `log` only when something is done."""
    if not sys.stderr.isatty() and log:
        now = NowAndThen()
        yield lambda done, total, what: now.tell(f"{done} of {total}: {what}")
        return
    if not sys.stderr.isatty():
        with beats() as tell:
            yield lambda done, total, what: tell(progress_line(done, total, what))
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        line = bar.add_task("starting", total=None)
        yield lambda done, total, what: bar.update(line, completed=done, total=total, description=what)


def progress_line(done: int, total: int, what: str) -> str:
    from antiphon.select.ledger import AT_WORK

    return f"{done} of {total} done, {'' if AT_WORK in what else 'the last '}{what}"


def _against(spec: str, topo: str, only: str) -> Topology | None:
    """The machine to compare with: the one named, else the whole of which --only keeps a part."""
    if spec:
        return topology(spec)
    return topology(topo) if only else None


def _charts(tuning: Tuning) -> str:
    from antiphon.show.pages.report import chart_svg

    return chart_svg(tuning)


def tune_command(
    coll: Wanted, topo: Topo, nbytes: Sizes = "", model: Usual = "", profile: ProfileFile = None,
    planner: PlannerNames = None, sweep: Sweeps = None, vary: Vary = "", nccl: Nccl = True, budget: Budget = "60s",
    effort: Effort = 5.0, root: Root = None, only: Only = "", ranks: Ranks = "", against: Against = "",
    workers: Workers = 0, seed: Seed = 0, plan: OwnPlans = None,
    out: TuneOutput = None, report: Report = None, svg: Svg = None, png: Png = None, heatmap: Heatmap = None,
    deterministic: Deterministic = False, on: On = "", factor: Factor = None, iterations: Iterations = None,
    limit: For = "", mpiexec: Launcher = "", library_only: LibraryOnly = False, json: Json = False,
) -> None:  # fmt: skip
    """Try every planner that can, verify and price all they make, and keep the best for every size.

    One collective is written as a plan with its ranges of sizes, which verify and run take; several as a table.
    --svg and --png draw the times by size, --heatmap what the values of --sweep are worth at each. With --on mpi
    the best few and the classics are run, in turn with the library's own collective, and chosen by their times; with
    --library-only it is the library's own algorithms that are, for export --to openmpi-rules, mpich-rules or ucc.
    """
    files = {"-o": out, "--report": report, "--svg": svg, "--png": png, "--heatmap": heatmap}
    _check_files(files, bool(sweep), bool(vary))
    search = Search(
        effort=effort, budget=parse_seconds(budget, "--budget", bare=True), seed=seed, workers=workers or None,
        deterministic=deterministic, sweep=read_sweep(sweep or ()), plans=plan or (),
    )  # fmt: skip
    options: dict[str, Any] = {
        "nbytes": nbytes or None, "model": model or None, "profile": profile, "planners": planner or (), "root": root,
        "nccl": nccl, "search": search,
    }  # fmt: skip
    measuring = {
        "--factor": factor, "--iterations": iterations, "--for": limit, "--mpiexec": mpiexec,
        "--library-only": library_only,
    }  # fmt: skip
    if on:
        if factor and nbytes and parse_span(nbytes, "--nbytes").factor:
            raise Invalid("--factor: --nbytes names one already; leave one of them out")
        how = {"on": on, "factor": factor, "iterations": iterations, "mpiexec": mpiexec or None,
               "library_only": library_only}  # fmt: skip
        refused = {
            "--vary": vary,
            "--only": only,
            "--against": against,
            **{n: files[n] for n in ("--report", *PICTURES)},
        }
        limited = {
            "limit": parse_seconds(limit, "--for", bare=True) if limit else None,
            "ranks": parse_ranks(ranks, "--ranks") if ranks else None,
        }
        _measured(coll, topo, refused, out, {**options, **how, **limited}, json)
        return
    for name, given in measuring.items():
        if given:
            raise Invalid(f"{name}: is for measuring; give --on, too, or leave it out")
    if vary:
        _tune_over(coll, topo, vary, {"--only": only, "--against": against}, ranks, files, options, json)
        return
    machine, group = machine_and_group(topo, only, ranks)
    with _progress() as progress:
        found = tune(
            coll, machine, ranks=group, against=_against(against, topo, only), progress=progress, **options
        )  # fmt: skip
    written = _write(found, files)
    emit(found.as_json(), "\n".join([tuning_text(found), *written, *last_line([found])]), json)
    if not found.complete:
        raise StoppedEarly("interrupted; what was found until then is told and written")
    if not found.plans:
        what = "anything" if coll == "all" else coll
        raise Infeasible(f"no planner could plan {what} on {machine.name}; the reasons are listed above")


def _measured(
    coll: str, topo: str, refused: Mapping[str, Any], out: Path | None, options: dict[str, Any], json: bool
) -> None:
    """Choose by measuring; under mpiexec or srun all but the first process only take part."""
    from antiphon.cli.choose_text import measured_text, use_text
    from antiphon.cli.library_text import library_text, library_use

    for name, given in refused.items():
        if given:
            raise Invalid(f"{name}: does not go together with --on; leave one of them out")
    del options["nccl"]
    with _progress(log=True) as progress:
        found = tune_measured(coll, topo, progress=progress, **options)
    if found is None:
        return
    if out is not None:
        found.save(out)
    use, text = (library_use, library_text) if options.get("library_only") else (use_text, measured_text)
    written = [f"  written: {out}", *use(found, str(out))] if out is not None else []
    last = last_line([found.tuning])
    emit(found.as_json(), "\n".join([text(found), *written, *last]), json)
    if found.interrupted:
        raise StoppedEarly("interrupted; what was found until then is told and written")


def _tune_over(
    coll: str, topo: str, vary: str, others: Mapping[str, str], ranks: str, files: Mapping[str, Path | None],
    options: Mapping[str, Any], json: bool,
) -> None:  # fmt: skip
    """The same for several machines: one table, and a file for each."""
    for name, given in {**others, **{name: files[name] for name in ("--report", *PICTURES)}}.items():
        if given:
            raise Invalid(f"{name}: is for one machine, but --vary asks for several; leave one of them out")
    if options["search"].plans:
        raise Invalid("--plan: is for one machine, but --vary asks for several; leave one of them out")
    out, group = files["-o"], parse_ranks(ranks, "--ranks") if ranks else None
    with _progress() as progress:
        found = tune_over(coll, topo, vary=vary, ranks=group, progress=progress, **options)
    written = [f"  written: {path}" for path in found.save(out)] if out is not None else []
    last = last_line([*found.tunings.values()])
    emit(found.as_json(), "\n".join([tunings_text(found), *written, *last]), json)
    if not found.complete:
        raise StoppedEarly("interrupted; what was found until then is told and written")
    if not any(one.plans for one in found.tunings.values()):
        raise Infeasible(f"no planner could plan {coll} on any of these machines; the reasons are listed above")


def _check_files(files: Mapping[str, Path | None], sweep: bool, several: bool) -> None:
    """Before long work: whether what was asked for can be written."""
    if files["--heatmap"] is not None and not sweep:
        raise Invalid("--heatmap: draws the values of --sweep; give it one, such as --sweep pieces=1,4,16")
    check_outputs(files, folder="-o" if several else "")


def _write(found: Tuning, files: Mapping[str, Path | None]) -> list[str]:
    out, report, heatmap = files["-o"], files["--report"], files["--heatmap"]
    if not found.plans:
        return []
    if out is not None:
        found.save(out)
    if report is not None:
        write_bytes(report, page(found).encode())
    written = [f"  written: {path}" for path in (out, report) if path is not None]
    if heatmap is not None:
        from antiphon.show.pages.report import heatmap_svg

        written += write_pictures(lambda: heatmap_svg(found), heatmap, None)
    return written + write_pictures(lambda: _charts(found), files["--svg"], files["--png"])
