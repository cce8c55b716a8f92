"""antiphon tune: the best schedule for every size, of all that the planners here can make."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from antiphon.cli._arguments import (
    Json,
    Model,
    Only,
    Output,
    Png,
    ProfileFile,
    Ranks,
    Root,
    Svg,
    Topo,
    machine_and_group,
)  # fmt: skip
from antiphon.cli._output import StoppedEarly, emit, write_pictures
from antiphon.cli._tuning_text import tuning_text
from antiphon.core.files import write_bytes
from antiphon.core.topology import Topology
from antiphon.errors import Infeasible, Invalid
from antiphon.select import Tuning, tune
from antiphon.show.png import check_png
from antiphon.topologies import topology
from antiphon.units import parse_seconds

Wanted = Annotated[str, typer.Argument(metavar="COLL|all", help="allreduce, allgather, ..., file.json, or all eight")]


@contextmanager
def _progress() -> Iterator[Callable[[int, int, str], None] | None]:
    """A bar on a terminal's stderr; nothing elsewhere."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        line = bar.add_task("starting", total=None)
        yield lambda done, total, what: bar.update(line, completed=done, total=total, description=what)


def _against(spec: str, topo: str, only: str) -> Topology | None:
    """The machine to compare with: the one named, else the whole of which --only keeps a part."""
    if spec:
        return topology(spec)
    return topology(topo) if only else None


def _charts(tuning: Tuning) -> str:
    from antiphon.show.report import chart_svg

    return chart_svg(tuning)


def _report(tuning: Tuning) -> str:
    from antiphon.show.report import report_html
    from antiphon.show.svg import topology_svg
    from antiphon.show.text import topology_text

    return report_html(tuning, topology_svg, topology_text)


def _tune_command(
    coll: Wanted,
    topo: Topo,
    nbytes: Annotated[str, typer.Option("--nbytes", metavar="SIZES", help="the sizes: a range, or one")] = "1KB:1GB",
    model: Model = "alpha-beta",
    profile: ProfileFile = None,
    planner: Annotated[
        list[str] | None, typer.Option("--planner", metavar="NAME", help="just this one; again for more")
    ] = None,
    budget: Annotated[str, typer.Option("--budget", metavar="TIME", help="time for each candidate")] = "5s",
    root: Root = None,
    only: Only = "",
    ranks: Ranks = "",
    against: Annotated[
        str, typer.Option("--against", metavar="TOPO", help="say what TOPO has lost against this machine")
    ] = "",
    workers: Annotated[int, typer.Option("--workers", min=0, metavar="N", help="processes (0: one per core)")] = 0,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="same seed, same plans")] = 0,
    out: Output = None,
    report: Annotated[
        Path | None, typer.Option("--report", metavar="FILE", help="write a page with pictures here (.html)")
    ] = None,
    svg: Svg = None,
    png: Png = None,
    json: Json = False,
) -> None:
    """Try every planner that can, verify and price all they make, and keep the best for every size.

    One collective is written as a plan with its ranges of sizes, which verify and run take; several as a table.
    --svg and --png draw the times by size.
    """
    machine, group = machine_and_group(topo, only, ranks)
    if png is not None:
        check_png()
    for path in (out, report, svg, png):
        if path is not None and not path.absolute().parent.is_dir():
            raise Invalid(f"{path}: there is no directory {path.absolute().parent}; create it first")
    with _progress() as progress:
        found = tune(
            coll, machine, nbytes=nbytes, model=model, profile=profile, planners=planner or (), root=root, ranks=group,
            budget=parse_seconds(budget, "--budget"), workers=workers or None, seed=seed,
            against=_against(against, topo, only), progress=progress,
        )  # fmt: skip
    written = _write(found, out, report, svg, png)
    emit(found.as_json(), "\n".join([tuning_text(found), *written]), json)
    if not found.complete:
        raise StoppedEarly("interrupted; what was found until then is told and written")
    if not found.plans:
        what = "anything" if coll == "all" else coll
        raise Infeasible(f"no planner could plan {what} on {machine.name}; the reasons are listed above")


def _write(found: Tuning, out: Path | None, report: Path | None, svg: Path | None, png: Path | None) -> list[str]:
    if not found.plans:
        return []
    if out is not None:
        found.save(out)
    if report is not None:
        write_bytes(report, _report(found).encode())
    written = [f"  written: {path}" for path in (out, report) if path is not None]
    return written + write_pictures(lambda: _charts(found), svg, png)


def register(app: typer.Typer) -> None:
    app.command(
        "tune",
        short_help="The best plan for every size, of all planners.",
        epilog="Example: antiphon tune allreduce dgx1v -o plan.json --report report.html",
    )(_tune_command)
