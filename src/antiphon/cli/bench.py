"""antiphon bench: programs that measure."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from antiphon.cli._arguments import Json
from antiphon.cli._output import emit
from antiphon.cli._planning import say
from antiphon.cost import sizes
from antiphon.errors import Invalid, unknown
from antiphon.show.text import table
from antiphon.units import format_seconds, format_size, parse_seconds


def _genmodel(
    on: Annotated[str, typer.Option("--on", metavar="WHERE", help="mpi")] = "mpi",
    ranks: Annotated[
        int | None, typer.Option("-n", "--ranks", metavar="N", help="measure 2, 3, ... N ranks (default 4)")
    ] = None,
    nbytes: Annotated[
        list[str] | None,
        typer.Option("--nbytes", metavar="SIZE", help="a size or a range; again for more (default 256KiB:4MiB:4)"),
    ] = None,
    plan: Annotated[
        list[str] | None,
        typer.Option("--plan", metavar="NAME", help="cps, incast or ring; again for more (default cps and incast)"),
    ] = None,
    iterations: Annotated[int, typer.Option("--iterations", metavar="N", help="runs; the median counts")] = 20,
    warmup: Annotated[int, typer.Option("--warmup", metavar="N", help="runs before that do not count")] = 3,
    mpiexec: Annotated[
        str,
        typer.Option("--mpiexec", metavar="COMMAND", help='the launcher and its options: "mpiexec --hostfile hosts"'),
    ] = "",
    timeout: Annotated[str, typer.Option("--timeout", metavar="TIME", help="give up after so long")] = "600s",
    out: Annotated[Path | None, typer.Option("-o", "--output", metavar="FILE", help="write the CSV here")] = None,
    json: Json = False,
) -> None:
    """Measure what `fit genmodel` reads: co-located parameter servers and everyone to everyone, over real MPI.

    Starts the processes by itself; under mpiexec or srun it is one of them. Every result is checked.
    """
    from antiphon.cost.fit import write_measured
    from antiphon.run.bench_genmodel import bench_genmodel

    if on != "mpi":
        raise unknown("--on", on, ["mpi"])
    if out is not None and not out.absolute().parent.is_dir():
        raise Invalid(f"{out}: there is no directory {out.absolute().parent}; create it first")
    wanted = sizes(nbytes or ["256KiB:4MiB:4"])
    rows = bench_genmodel(
        ranks, wanted, plans=plan or ("cps", "incast"), iterations=iterations, warmup=warmup, mpiexec=mpiexec,
        timeout=parse_seconds(timeout, "--timeout"), progress=say,
    )  # fmt: skip
    if rows is None:  # another of the processes reports
        return
    if out is not None:
        write_measured(rows, out)
    value = [
        {"plan": r.plan.name, "ranks": r.ranks, "nbytes": r.nbytes, "seconds": r.seconds, "correct": True} for r in rows
    ]
    told = [[r.plan.name, str(r.ranks), format_size(r.nbytes), format_seconds(r.seconds)] for r in rows]
    lines = table(["plan", "ranks", "nbytes", "time"], told)
    written = [f"  written: {out}"] if out is not None else []
    emit({"rows": value}, "\n".join([*lines, "  every result was right", *written]), json)


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        no_args_is_help=True,
        rich_markup_mode=None,
        help="Programs that measure.",
        epilog="Example: antiphon bench genmodel --on mpi -n 8 -o times.csv",
    )
    group.command(
        "genmodel",
        short_help="What `fit genmodel` reads, over MPI.",
        epilog="Example: antiphon bench genmodel --on mpi -n 8 --nbytes 1MiB:64MiB:8 -o times.csv",
    )(_genmodel)
    app.add_typer(group, name="bench")
