"""antiphon bench: plans measured beside the library's own collectives, and what `fit` reads."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from antiphon.cli.arguments import Csv, Json, Launcher, On, ProfileFile, Repeat, Timeout, Usual
from antiphon.cli.output import check_outputs, emit
from antiphon.cli.planning import say
from antiphon.show.text import table
from antiphon.units import format_seconds, format_size, parse_seconds, parse_sizes

Iterations = Annotated[int, typer.Option("--iterations", metavar="N", help="runs; the median counts")]
Warmup = Annotated[int, typer.Option("--warmup", metavar="N", help="runs before that do not count")]
Out = Annotated[Path | None, typer.Option("-o", "--output", metavar="FILE", help="write the CSV here")]


def genmodel_command(
    on: On = "mpi",
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
    iterations: Iterations = 20,
    warmup: Warmup = 3,
    mpiexec: Launcher = "",
    timeout: Timeout = "600s",
    out: Out = None,
    json: Json = False,
) -> None:
    """Measure what `fit genmodel` reads: co-located parameter servers and everyone to everyone, as schedules that our
    engine runs. Starts the processes by itself; under mpiexec or srun it is one of them. Every result is checked.
    """
    from antiphon.cost.fit import write_measured
    from antiphon.runtimes.measure.bench_genmodel import bench_genmodel

    check_outputs({"-o": out}, forms={"-o": ".csv"})
    wanted = parse_sizes(nbytes or ["256KiB:4MiB:4"], "--nbytes")
    rows = bench_genmodel(
        ranks, wanted, plans=plan or ("cps", "incast"), iterations=iterations, warmup=warmup, on=on, mpiexec=mpiexec,
        timeout=parse_seconds(timeout, "--timeout", bare=True), progress=say,
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


def loggp_command(
    on: On = "mpi",
    nbytes: Annotated[
        list[str] | None,
        typer.Option("--nbytes", metavar="SIZE", help="a size or a range; again for more (default 1B:1MiB)"),
    ] = None,
    messages: Annotated[int, typer.Option("--messages", metavar="N", help="sent one after the other")] = 16,
    ranks: Annotated[
        int | None,
        typer.Option("-n", "--ranks", metavar="N", help="also how many messages go at once among N (the radices)"),
    ] = None,
    between: Annotated[
        bool, typer.Option("--between", help="the second half of the ranks is elsewhere: measure from half to half")
    ] = False,
    repeat: Repeat = 7,
    iterations: Iterations = 20,
    warmup: Warmup = 3,
    mpiexec: Launcher = "",
    timeout: Timeout = "600s",
    out: Out = None,
    json: Json = False,
) -> None:
    """Measure what `fit loggp` reads: parametrized round trips between two ranks, as schedules that our engine runs.

    With -n how many messages a rank sends and receives at once, and with --between a host. Starts the processes by
    itself; under mpiexec or srun it is one of them. What arrives is checked.
    """
    from antiphon.cost.fit import write_round_trips
    from antiphon.runtimes.measure.bench_loggp import SIZES, bench_loggp
    from antiphon.show.fit import round_trips_text

    check_outputs({"-o": out}, forms={"-o": ".csv"})
    rows = bench_loggp(
        parse_sizes(nbytes, "--nbytes") if nbytes else SIZES, n=messages, repetitions=repeat,
        iterations=iterations, warmup=warmup, on=on, mpiexec=mpiexec,
        timeout=parse_seconds(timeout, "--timeout", bare=True), ranks=ranks, between=between, progress=say,
    )  # fmt: skip
    if rows is None:  # another of the processes reports
        return
    if out is not None:
        write_round_trips(rows, out)
    value = [
        {"kind": r.kind, "n": r.n, "delay": r.delay, "nbytes": r.nbytes, "seconds": r.seconds, "correct": True}
        for r in rows
    ]
    written = [f"  written: {out}"] if out is not None else []
    emit({"rows": value}, "\n".join([round_trips_text(rows), "  all that arrived was right", *written]), json)


def micro_command(
    topo: Annotated[
        str,
        typer.Argument(metavar="[TOPO]", show_default=False, help="the machine (default: ranks that are all linked)"),
    ] = "",
    on: On = "mpi",
    ranks: Annotated[
        int | None, typer.Option("-n", "--ranks", metavar="N", help="so many ranks, where no machine is named (5)")
    ] = None,
    pattern: Annotated[
        list[str] | None,
        typer.Option("--pattern", metavar="NAME", help="chain-forward, mimo, ...; again for more (all)"),
    ] = None,
    nbytes: Annotated[
        list[str] | None,
        typer.Option("--nbytes", metavar="SIZE", help="a size or a range; again for more (default 1MB:16MB:4)"),
    ] = None,
    pieces: Annotated[
        int | None, typer.Option("--pieces", metavar="N", help="the pipelining depth (default: by size, up to 32)")
    ] = None,
    model: Usual = "",
    profile: ProfileFile = None,
    iterations: Iterations = 20,
    warmup: Warmup = 5,
    mpiexec: Launcher = "",
    timeout: Timeout = "600s",
    csv: Csv = None,
    json: Json = False,
) -> None:
    """Blink's micro-benchmarks: chains that forward, reduce and broadcast, fan-in, fan-out, MIMO and MCA.

    How much the busiest link carries, beside what the model says and what the paper measured on V100s. Every element is
    checked. Starts the processes by itself; under mpiexec or srun it is one of them.
    """
    from antiphon.cli._bench_text import micro_text
    from antiphon.cost.profile import as_profile
    from antiphon.runtimes.measure.bench_micro import bench_micro
    from antiphon.runtimes.measure.tables import write_csv

    check_outputs({"--csv": csv}, forms={"--csv": ".csv"})
    rows = bench_micro(
        topo or None, parse_sizes(nbytes or ["1MB:16MB:4"], "--nbytes"), ranks=ranks, patterns=pattern or (),
        pieces=pieces, on=on, model=model, profile=None if profile is None else as_profile(profile),
        iterations=iterations, warmup=warmup, mpiexec=mpiexec, timeout=parse_seconds(timeout, "--timeout", bare=True),
        progress=lambda row: say(f"{row['pattern']} of {format_size(row['nbytes'])} is done"),
    )  # fmt: skip
    if rows is None:  # another of the processes reports
        return
    if csv is not None:
        write_csv(rows, csv)
    written = [f"  written: {csv}"] if csv is not None else []
    emit({"rows": rows}, "\n".join([micro_text(rows), *written]), json)
    if not all(row["correct"] for row in rows):
        raise typer.Exit(1)
