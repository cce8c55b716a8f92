"""The commands `bench`: measure plans beside the library's own collectives, and measure what `fit` reads.

First the commands, then (`bench_text`) the table. It has one line per size: the columns of nccl-tests out of place and
in place, then the quartiles of our time, the model's time, the library's time, and our time divided by the library's:

    #   size  count     type  redop  root   time  algbw  busbw  #wrong  ...  quartiles   model  library  over it  plan
        1024    256  float32    sum    -1  10.20   0.10   0.15       0  ...  9.90-10.80  9.80    12.10     0.84  ring
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any

import typer

from antiphon.cli import arguments as arg
from antiphon.cli.output import JsonOutput, StoppedEarly, dash, emit, sort_outputs, written_lines
from antiphon.cli.planning import ThrottledLog, progress, say
from antiphon.cli.run_text import choice_lines
from antiphon.core.collective import kind_named
from antiphon.core.datatypes import DATA_TYPES, OPERATORS, combine_of, data_type
from antiphon.core.plan import Plan
from antiphon.core.topology import Topology
from antiphon.cost import as_profile
from antiphon.cost.basis import join_bases
from antiphon.errors import AntiphonError, Invalid, unknown
from antiphon.show.columns import table
from antiphon.show.words import library_name
from antiphon.units import format_seconds, format_size, parse_sizes, parse_span

Row = Mapping[str, Any]
FACTOR = 4  # from one size to the next, if --nbytes is a range without a factor

Subject = Annotated[str, typer.Argument(metavar="COLL|PLAN|TABLE", help="a collective, all, or a file of plans")]
RootOf = Annotated[int | None, arg.old_option("-r", "--root", instead="COLL:root=RANK")]
Machine = Annotated[
    str, typer.Argument(metavar="TOPO", help="the machine, if a collective is given", callback=arg.check_order)
]
Nbytes = Annotated[
    str, typer.Option("--nbytes", metavar="SIZES", help="one size, 1KB:16MB or 1KB:16MB:4 (the default)")
]
Iterations = Annotated[
    int, typer.Option("-n", "--iterations", min=1, metavar="N", help="number of runs; the median counts")
]
Warmup = Annotated[int, typer.Option("-w", "--warmup", min=0, metavar="N", help="number of warm-up runs")]
Dtypes = Annotated[
    str, typer.Option("-d", "--dtype", metavar="TYPES", help="data types: float32, bfloat16,int8, ... or all")
]
Ops = Annotated[str, typer.Option("--op", metavar="OPS", help="operators: sum, prod, min, max, avg; several, or all")]
# MIAD: multiplicative increase, additive decrease of the size of a piece (cost/miad.py)
MiadOption = Annotated[bool, typer.Option("--miad", help="find the best number of pieces for each size by measuring")]
FitFile = Annotated[
    Path | None,
    typer.Option(
        "--fit",
        metavar="FILE",
        help="write a file for `fit genmodel` (planners with formulas) or, of a lowering, `fit lowering`",
    ),
]
FitIterations = Annotated[int, typer.Option("--iterations", metavar="N", help="number of runs; the median counts")]
MeasuredSizes = Annotated[
    list[str] | None, typer.Option("--nbytes", metavar="SIZE", help="a size or a range; repeatable")
]
FitWarmup = Annotated[int, typer.Option("--warmup", metavar="N", help="number of warm-up runs")]


def bench_plans_command(
    subject: Subject, topo: Machine = "", nbytes: Nbytes = "1KB:16MB:4", iterations: Iterations = 20,
    warmup: Warmup = 5, dtype: Dtypes = "float32", op: Ops = "sum", root: RootOf = None, on: arg.On = "mpi",
    planner: arg.PlannerName = "", ranks: arg.Ranks = "",
    collective: arg.WhichPlan = "", model: arg.ModelName = "", profile: arg.ProfileFile = None,
    miad: MiadOption = False,
    output: Annotated[list[Path] | None, arg.output_option("bench")] = None, fit: FitFile = None, seed: arg.Seed = 0,
) -> None:  # fmt: skip
    """Measure plans: ours and the library's own collective in turn, out of place and in place, every result checked.

    From a file, each size runs the plan of its range. Times are medians of the slowest rank's time; exit code 1 if an
    element is wrong. Starts the processes by itself; under mpiexec or srun it is one of them.
    """
    from antiphon.runtimes.measure.bench import check_names, decides

    out = sort_outputs("bench", output, {"--fit": fit})["measurements"]  # paths of -o; --fit is only checked
    measured_profile = None if profile is None else as_profile(profile)
    sizes = parse_span(nbytes, "--nbytes").sizes(FACTOR)
    runtime, runtime_options = arg.split_runtime(on)
    source, root, members = arg.split_collective(subject, root, ranks)
    if not topo:  # then the subject is a file of plans, or FILE:COLL for one plan of a table
        plan_file, collective = arg.split_plan(source, collective)
        source = str(plan_file)
    planner, planner_options = arg.split_options(planner, "--planner")
    options: dict[str, Any] = {
        "on": runtime, "dtype": _parse_names(dtype, DATA_TYPES, data_type),
        "op": _parse_names(op, OPERATORS, combine_of),
        "iterations": iterations, "warmup": warmup, "model": model, "profile": measured_profile, "miad": miad,
        "seed": seed, **runtime_options,
    }  # fmt: skip

    def machine_and_ranks() -> tuple[Topology | None, list[int] | None]:
        return arg.machine_and_group(topo, only="", group=members) if topo else (None, members)

    def make_plans() -> list[Plan]:
        from antiphon.runtimes.measure.bench import plans_of

        machine, group = machine_and_ranks()
        candidates = plans_of(
            source, machine, nbytes=f"{sizes[0]}B:{sizes[-1]}B", planner=planner, options=planner_options,
            root=root, ranks=group, model=model, profile=measured_profile,
        )  # fmt: skip
        kinds = [plan.collective.kind for plan in candidates]
        kind = kind_named(collective) or collective
        if kind and kind not in kinds:
            raise unknown(f"collective in {source}", collective, kinds)
        return [plan for plan in candidates if not kind or plan.collective.kind == kind]

    def check() -> None:
        """Refuse wrong names before processes are started."""
        machine, _ = machine_and_ranks()
        check_names(source, machine, planner)

    # under mpiexec one process decides what is measured; the others only run it
    with decides(runtime, check, **runtime_options) as is_deciding:
        if is_deciding:
            _measure(make_plans, sizes, options, out, fit)


def _measure(
    make_plans: Callable[[], list[Plan]], sizes: list[int], options: dict[str, Any], out: Sequence[Path],
    fit: Path | None,
) -> None:  # fmt: skip
    """Measure plans; print and write the rows, also if the measurement ends early. `make_plans` returns the plans."""
    from antiphon.runtimes.measure.bench import measure_plans, refuse_unfittable
    from antiphon.runtimes.measure.tables import write_csv, write_fit

    rows: list[dict[str, Any]] = []
    error: Exception | None = None  # why the measurement ended early
    log = ThrottledLog()
    with progress("planning", log=False) as (tell, _):
        plans = make_plans()
        if fit is not None:
            refuse_unfittable(
                plans, sizes, options["dtype"], options["op"], lowering=options.get("lowering", ""),
                miad=options["miad"], path=fit,
            )  # fmt: skip
        tell(f"measuring {plans[0].collective.kind}")

        def add_row(row: dict[str, Any]) -> None:
            rows.append(row)
            place = " in place" if row["in_place"] else ""
            text = f"{row['collective']} of {format_size(row['nbytes'])} by {row['planner']}{place} is done"
            tell(text)  # printed on a terminal only
            log.tell(text)  # printed elsewhere only

        try:
            measure_plans(plans, sizes, progress=add_row, **options)
        except KeyboardInterrupt:
            error = StoppedEarly("interrupted; what was measured until then is printed and written")
        except AntiphonError as failure:  # a process died, or timed out
            error = failure
    if not rows:
        raise error or Invalid("nothing was measured")
    emit({"rows": rows}, bench_text(rows))
    for path in out:
        write_csv(rows, path)
    written = [f"# written: {path}" for path in out]
    if fit is not None:
        written.append(f"# written: {fit}, {write_fit(rows, fit)} of {len(rows)} rows")
    for line in written if not JsonOutput.requested else ():
        print(line)
    if error is not None:
        raise error
    if not all(row["correct"] for row in rows):
        raise typer.Exit(1)


def _parse_names(text: str, names: tuple[str, ...], check_name: Callable[[str], object]) -> list[str]:
    """Parse names separated by commas, or "all". An unknown name is an error, raised before anything is planned."""
    requested = list(names) if text == "all" else [name.strip() for name in text.split(",")]
    for name in requested:
        check_name(name)
    return requested


# ---- measurements for `fit`, and micro-benchmarks ----


def genmodel_command(
    on: arg.On = "mpi",
    ranks: Annotated[
        int | None, typer.Option("-n", "--ranks", metavar="N", help="measure with 2, 3, ... N ranks (default 4)")
    ] = None,
    nbytes: MeasuredSizes = None,
    plan: Annotated[
        list[str] | None,
        typer.Option("--plan", metavar="NAME", help="cps, incast or ring; repeatable (default cps and incast)"),
    ] = None,
    iterations: FitIterations = 20,
    warmup: FitWarmup = 3,
    output: Annotated[list[Path] | None, arg.output_option("bench genmodel")] = None,
) -> None:
    """Measure what `fit genmodel` reads: co-located parameter servers and everyone to everyone, as schedules that our
    engine runs. Starts the processes by itself; under mpiexec or srun it is one of them. Every result is checked.
    Sizes: 256KiB:4MiB:4, without --nbytes.
    """
    from antiphon.cost.fit import write_plan_times
    from antiphon.runtimes.measure.bench_genmodel import bench_genmodel

    out = sort_outputs("bench genmodel", output)["measurements"]
    runtime, runtime_options = arg.split_runtime(on)
    rows = bench_genmodel(
        ranks, parse_sizes(nbytes or ["256KiB:4MiB:4"], "--nbytes"), plans=plan or ("cps", "incast"),
        iterations=iterations, warmup=warmup, on=runtime, progress=say, **runtime_options,
    )  # fmt: skip
    if rows is None:  # another of the processes reports
        return
    for path in out:
        write_plan_times(rows, path)
    value = [  # a wrong result is an error of the measurement, so all rows are correct
        {"plan": r.plan.name, "ranks": r.ranks, "nbytes": r.nbytes, "seconds": r.seconds, "correct": True} for r in rows
    ]
    cells = [[r.plan.name, str(r.ranks), format_size(r.nbytes), format_seconds(r.seconds)] for r in rows]
    lines = table(["plan", "ranks", "nbytes", "time"], cells)
    emit({"rows": value}, "\n".join([*lines, "  every result was right", *written_lines(*out)]))


def loggp_command(
    on: arg.On = "mpi",
    nbytes: MeasuredSizes = None,
    messages: Annotated[int, typer.Option("--messages", metavar="N", help="messages sent one after the other")] = 16,
    ranks: Annotated[
        int | None,
        typer.Option(
            "-n",
            "--ranks",
            metavar="N",
            help="also measure the number of concurrent messages among N ranks (the radices)",
        ),
    ] = None,
    between: Annotated[
        bool,
        typer.Option("--between", help="the second half of the ranks is on other hosts: measure between the halves"),
    ] = False,
    repeat: arg.Repeat = 7,
    iterations: FitIterations = 20,
    warmup: FitWarmup = 3,
    output: Annotated[list[Path] | None, arg.output_option("bench loggp")] = None,
) -> None:
    """Measure what `fit loggp` reads: parametrized round trips between two ranks, as schedules that our engine runs.

    With -n also how many messages a rank sends and receives at once; with --between, how many a host does. Starts the
    processes by itself; under mpiexec or srun it is one of them. What arrives is checked.
    Sizes: 1B:1MiB, without --nbytes.
    """
    from antiphon.cost.fit import write_round_trips
    from antiphon.runtimes.measure.bench_loggp import SIZES, bench_loggp
    from antiphon.show.fit import round_trips_text

    out = sort_outputs("bench loggp", output)["measurements"]
    runtime, runtime_options = arg.split_runtime(on)
    rows = bench_loggp(
        parse_sizes(nbytes, "--nbytes") if nbytes else SIZES, n=messages, repetitions=repeat,
        iterations=iterations, warmup=warmup, on=runtime, ranks=ranks, between=between, progress=say,
        **runtime_options,
    )  # fmt: skip
    if rows is None:  # another of the processes reports
        return
    for path in out:
        write_round_trips(rows, path)
    value = [  # lost data is an error of the measurement, so all rows are correct
        {"kind": r.kind, "n": r.n, "delay": r.delay, "nbytes": r.nbytes, "seconds": r.seconds, "correct": True}
        for r in rows
    ]
    text = [round_trips_text(rows), "  all data arrived correctly", *written_lines(*out)]
    emit({"rows": value}, "\n".join(text))


def micro_command(
    topo: Annotated[
        str, typer.Argument(metavar="[TOPO]", show_default=False, help="the machine (default: fully connected ranks)")
    ] = "",
    on: arg.On = "mpi",
    ranks: Annotated[
        int | None,
        typer.Option("-n", "--ranks", metavar="N", help="number of ranks, if no machine is given (default 5)"),
    ] = None,
    pattern: Annotated[
        list[str] | None,
        typer.Option("--pattern", metavar="NAME", help="chain-forward, mimo, ...; repeatable (default all)"),
    ] = None,
    nbytes: MeasuredSizes = None,
    pieces: Annotated[
        int | None, typer.Option("--pieces", metavar="N", help="pipelining depth (default: by size, up to 32)")
    ] = None,
    model: arg.ModelName = "",
    profile: arg.ProfileFile = None,
    iterations: FitIterations = 20,
    warmup: FitWarmup = 5,
    output: Annotated[list[Path] | None, arg.output_option("bench micro")] = None,
) -> None:
    """Blink's micro-benchmarks: chains that forward, reduce and broadcast, fan-in, fan-out, MIMO and MCA.

    MIMO: many inputs to many outputs; MCA: multi-chain aggregation. How much the busiest link carries, beside what the
    model says and what the paper measured on V100s. Every element is checked. Starts the processes by itself; under
    mpiexec or srun it is one of them.
    Sizes: 1MB:16MB:4, without --nbytes.
    """
    from antiphon.runtimes.measure.bench_micro import bench_micro
    from antiphon.runtimes.measure.tables import write_csv

    out = sort_outputs("bench micro", output)["measurements"]
    runtime, runtime_options = arg.split_runtime(on)
    rows = bench_micro(
        topo or None, parse_sizes(nbytes or ["1MB:16MB:4"], "--nbytes"), ranks=ranks, patterns=pattern or (),
        pieces=pieces, on=runtime, model=model, profile=None if profile is None else as_profile(profile),
        iterations=iterations, warmup=warmup, **runtime_options,
        progress=lambda row: say(f"{row['pattern']} of {format_size(row['nbytes'])} is done"),
    )  # fmt: skip
    if rows is None:  # another of the processes reports
        return
    for path in out:
        write_csv(rows, path)
    emit({"rows": rows}, "\n".join([micro_text(rows), *written_lines(*out)]))
    if not all(row["correct"] for row in rows):
        raise typer.Exit(1)


# ---- text ----

# Head of the table: columns of the call, then columns of its times (out of place, then in place), then comparisons
CALL_COLUMNS = ("size", "count", "type", "redop", "root")
TIME_COLUMNS = ("time", "algbw", "busbw", "#wrong")
COMPARED_COLUMNS = ("quartiles", "model", "library", "over it")
# The columns that nccl-tests does not have, explained below the table
LEGEND = (
    "# time: median; quartiles: of the times out of place; model: predicted for the plan's machine",
    "# library: its own collective; over it: our time / its time, below 1: ours is faster",
)
# Units of these columns: the second line of the head
UNITS = ("(B)", "(elements)", "", "", "", *("(us)", "(GB/s)", "(GB/s)", "") * 2, "(us)", "(us)", "(us)", "")


def bench_text(rows: Sequence[Row]) -> str:
    """Return a table per collective and machine, and the average bus bandwidth.

    Lines that are no measurements begin with #.
    """
    lines: list[str] = []
    for first, table_rows in _group_by_table(rows):
        models = join_bases([row["predicted_by"] for row in table_rows if row.get("predicted_by")])
        lines += [""] if lines else []
        lines.append(f"# {first['collective']} on {first['topology']}, {first['ranks']} ranks")
        lines += [f"# model: {models}"] if models else []
        lines += _align_table([_row_cells(*pair) for pair in _pair_in_place(table_rows)])
    busbw, wrong = [row["busbw"] for row in rows], sum(row["wrong"] for row in rows)
    lines += ["#", f"# out of bounds values: {wrong} {'FAILED' if wrong else 'OK'}"]
    lines += [f"# average bus bandwidth: {_speed(sum(busbw) / len(busbw))} GB/s", *LEGEND, *_bench_notes(rows)]
    return "\n".join(lines)


def micro_text(rows: Sequence[Row]) -> str:
    """Return a line for each pattern and size, with the throughput of its busiest link in GB/s."""
    head = ["pattern", "size", "time", "GB/s", "model", "Blink, V100", "wrong"]
    cells = [
        [
            row["pattern"], format_size(row["nbytes"]), format_seconds(row["seconds"]), _speed(row["throughput"]),
            *(dash(row[key], _speed) for key in ("predicted_throughput", "published")),
            str(row["wrong"]),
        ]
        for row in rows
    ]  # fmt: skip
    return "\n".join(table(head, cells))


def _group_by_table(rows: Sequence[Row]) -> list[tuple[Row, list[Row]]]:
    """Group consecutive rows of one collective and machine; each with its first row."""
    tables = [list(table_rows) for _, table_rows in groupby(rows, key=itemgetter("collective", "topology", "ranks"))]
    return [(table_rows[0], table_rows) for table_rows in tables]


def _pair_in_place(rows: Sequence[Row]) -> list[tuple[Row, Row | None]]:
    """Return each row out of place with the row in place that follows it, if any. The first row is out of place."""
    pairs: list[tuple[Row, Row | None]] = []
    for row in rows:
        if row["in_place"]:
            pairs[-1] = pairs[-1][0], row
        else:
            pairs.append((row, None))
    return pairs


def _row_cells(row: Row, in_place: Row | None) -> list[str]:
    """Return the cells of a line: a row out of place, and the one in place (`in_place`)."""
    low, high = row["quartiles"]
    return [
        str(row["nbytes"]), str(row["count"]), row["dtype"], row["op"] or "none",
        "-1" if row["root"] is None else str(row["root"]),
        *_time_cells(row), *(_time_cells(in_place) if in_place else ["N/A"] * 4),
        f"{_us(low)}-{_us(high)}", dash(row["predicted_seconds"], _us), dash(row["reference_seconds"], _us),
        dash(row["over_library"], "{:.2f}".format), _plan_cell(row),
    ]  # fmt: skip


def _time_cells(row: Row) -> list[str]:
    """Return the four cells of a row that are printed out of place and in place."""
    return [_us(row["seconds"]), _speed(row["algbw"]), _speed(row["busbw"]), str(row["wrong"])]


def _plan_cell(row: Row) -> str:
    """Return the last cell of a row: the planner, its pieces, and whether the table leaves the size to a library."""
    left_to = f" (the table leaves this to {library_name(row['served_by'])})" if row.get("served_by") else ""
    pieces = f" pieces={row['pieces']}" if "pieces" in row else ""
    return f"{row['planner'] or 'plan'}{pieces}{left_to}"


def _align_table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table under nccl-tests' two head lines, columns to the right."""
    table = [[*CALL_COLUMNS, *TIME_COLUMNS, *TIME_COLUMNS, *COMPARED_COLUMNS, "plan"], [*UNITS, ""], *rows]
    # the last column holds names, which are to the left
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]) - 1)]
    lines = ["  ".join([*map(str.rjust, row[:-1], widths), row[-1]]) for row in table]
    # Titles are centred above the columns of times, out of place and in place; two blanks separate columns.
    calls, times = len(CALL_COLUMNS), len(TIME_COLUMNS)
    call_width = sum(widths[:calls]) + 2 * calls
    out_of_place_width, in_place_width = (
        sum(widths[first : first + times]) + 2 * (times - 1) for first in (calls, calls + times)
    )
    titles = " " * call_width + "out-of-place".center(out_of_place_width) + "  " + "in-place".center(in_place_width)
    return [f"# {titles}".rstrip(), *(f"# {line}".rstrip() for line in lines[:2]), *(f"  {line}" for line in lines[2:])]


def _us(seconds: float) -> str:
    """Return microseconds as nccl-tests prints them, such as 9.90, 102.4 and 1043."""
    micro = seconds * 1e6
    return f"{micro:.0f}" if micro >= 1000 else f"{micro:.1f}" if micro >= 100 else f"{micro:.2f}"


def _speed(bytes_per_second: float) -> str:
    """Return GB/s as text, with two decimals; below 0.01 GB/s with four."""
    return f"{bytes_per_second / 1e9:.2f}" if bytes_per_second >= 1e7 else f"{bytes_per_second / 1e9:.4f}"


def _bench_notes(rows: Sequence[Row]) -> list[str]:
    """Return the notes below the table."""
    notes = []
    library_wrong = [row for row in rows if row["reference_wrong"]]
    if library_wrong:
        row = library_wrong[0]
        notes.append(
            f"# the library's own results differ for {row['dtype']} {row['op']} at {format_size(row['nbytes'])}"
            + (f" and {len(library_wrong) - 1} more" if len(library_wrong) > 1 else "")
        )
    if any(row["reference_seconds"] is None for row in rows):
        notes.append("# -: there is no such collective of the library's own to compare with")
    return [*notes, *(f"# {line}" for line in choice_lines(rows))]
