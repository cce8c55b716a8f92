"""antiphon bench COLL TOPO, PLAN or table.json: measured like nccl-tests measures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from antiphon.cli._bench_text import bench_text
from antiphon.cli.arguments import (
    Csv,
    Hybrid,
    Json,
    Launcher,
    On,
    PlannerName,
    PlannerOption,
    ProfileFile,
    Ranks,
    Scale,
    Seed,
    Timeout,
    Usual,
    WhichPlan,
    check_order,
)
from antiphon.cli.output import StoppedEarly, check_outputs, emit
from antiphon.cli.planning import NowAndThen, options_of, progress
from antiphon.core.collective import kind_named
from antiphon.core.datatypes import DATA_TYPES, OPERATORS, combine_of, data_type
from antiphon.core.plan import Plan
from antiphon.cost import as_profile
from antiphon.errors import AntiphonError, Invalid, unknown
from antiphon.units import Span, format_size, parse_ranks, parse_seconds, parse_size, parse_span

What = Annotated[str, typer.Argument(metavar="COLL|PLAN|TABLE", help="a collective or all; or a file of plans")]
RootOf = Annotated[
    int | None,
    typer.Option("-r", "--root", metavar="RANK", help="the root of a rooted collective (default: the first rank)"),
]
Machine = Annotated[str, typer.Argument(metavar="TOPO", help="of a collective: the machine", callback=check_order)]
Nbytes = Annotated[
    str, typer.Option("--nbytes", metavar="SIZES", help="one, 1KB:16MB or 1KB:16MB:4 (which is the default)")
]
Begin = Annotated[str, typer.Option("-b", "--begin", metavar="SIZE", help="the first size, as nccl-tests has it")]
End = Annotated[str, typer.Option("-e", "--end", metavar="SIZE", help="the last size")]
Factor = Annotated[
    int | None, typer.Option("-f", "--factor", min=2, metavar="N", help="each size is so many times the last (4)")
]
Iterations = Annotated[int, typer.Option("-n", "--iterations", min=1, metavar="N", help="runs; the median counts")]
Warmup = Annotated[int, typer.Option("-w", "--warmup", min=0, metavar="N", help="runs before that do not count")]
Dtypes = Annotated[str, typer.Option("-d", "--dtype", metavar="TYPES", help="float32, bfloat16,int8, ... or all")]
Ops = Annotated[str, typer.Option("-o", "--op", metavar="OPS", help="sum, prod, min, max, avg; several, or all")]
MiadOption = Annotated[
    bool, typer.Option("--miad", help="find the number of pieces by measuring, for each size; it is told and used")
]
FitFile = Annotated[
    Path | None,
    typer.Option("--fit", metavar="FILE", help="write what `fit genmodel` reads here, where it has formulas"),
]  # fmt: skip


FIRST, LAST, FACTOR = "1KB", "16MB", 4  # sizes where none are given


def bench_plans_command(
    what: What, topo: Machine = "", nbytes: Nbytes = "", begin: Begin = "", end: End = "", factor: Factor = None,
    iterations: Iterations = 20, warmup: Warmup = 5, dtype: Dtypes = "float32", op: Ops = "sum", root: RootOf = None,
    on: On = "mpi", planner: PlannerName = "", option: PlannerOption = None, ranks: Ranks = "",
    collective: WhichPlan = "", model: Usual = "", profile: ProfileFile = None, miad: MiadOption = False,
    csv: Csv = None, fit: FitFile = None, mpiexec: Launcher = "", scale: Scale = "", timeout: Timeout = "600s",
    seed: Seed = 0, hybrid: Hybrid = False, json: Json = False,
) -> None:  # fmt: skip
    """Measure plans: ours and the library's own collective in turn, out of place and in place, every result checked.

    Of a file with ranges or several plans each size takes its own. Times are medians of what the slowest rank took;
    exit code 1 if an element is wrong. Starts the processes by itself; under mpiexec or srun it is one of them.
    """
    from antiphon.runtimes.measure.bench import check_names, decides

    check_outputs({"--csv": csv, "--fit": fit})
    given = None if profile is None else as_profile(profile)
    sizes = _sizes(nbytes, begin, end, factor)
    how: dict[str, Any] = {
        "on": on, "dtype": _several(dtype, DATA_TYPES, data_type), "op": _several(op, OPERATORS, combine_of),
        "iterations": iterations, "warmup": warmup, "model": model, "profile": given, "miad": miad, "seed": seed,
        "mpiexec": mpiexec, "scale": scale, "timeout": parse_seconds(timeout, "--timeout", bare=True), "hybrid": hybrid,
    }  # fmt: skip

    def plans() -> list[Plan]:
        from antiphon.runtimes.measure.bench import plans_of

        found = plans_of(
            what, topo or None, nbytes=f"{sizes[0]}B:{sizes[-1]}B", planner=planner, options=options_of(option),
            root=root, ranks=parse_ranks(ranks, "--ranks") if ranks else None, model=model, profile=given,
        )  # fmt: skip
        kinds = [one.collective.kind for one in found]
        kind = kind_named(collective) or collective
        if kind and kind not in kinds:
            raise unknown(f"collective in {what}", collective, kinds)
        return [one for one in found if not kind or one.collective.kind == kind]

    def look() -> None:
        check_names(what, topo or None, planner)

    with decides(on, look, mpiexec=mpiexec, scale=scale, hybrid=hybrid) as deciding:
        if deciding:
            _measure(plans, sizes, how, {"csv": csv, "fit": fit}, json)


def _measure(
    plans: Callable[[], list[Plan]], sizes: list[int], how: dict[str, Any], files: dict[str, Path | None], json: bool
) -> None:
    """Tell what was measured, also where it ends early."""
    from antiphon.runtimes.measure.bench import measure_plans

    rows: list[dict[str, Any]] = []
    ended: Exception | None = None
    now = NowAndThen()
    with progress("planning", log=False) as (tell, _):
        chosen = plans()
        tell(f"measuring {chosen[0].collective.kind}")

        def heard(row: dict[str, Any]) -> None:
            rows.append(row)
            place = " in place" if row["in_place"] else ""
            said = f"{row['collective']} of {format_size(row['nbytes'])} by {row['planner']}{place} is done"
            tell(said)
            now.tell(said)

        try:
            measure_plans(chosen, sizes, progress=heard, **how)
        except KeyboardInterrupt:
            ended = StoppedEarly("interrupted; what was measured until then is told and written")
        except AntiphonError as error:  # a process died, the time is over
            ended = error
    if not rows:
        raise ended or Invalid("nothing was measured")
    emit({"rows": rows}, bench_text(rows), json)
    for line in _write(rows, files):
        if not json:
            print(line)
    if ended is not None:
        raise ended
    if not all(row["correct"] for row in rows):
        raise typer.Exit(1)


def _write(rows: list[dict[str, Any]], files: dict[str, Path | None]) -> list[str]:
    from antiphon.runtimes.measure.tables import write_csv, write_fit

    said = []
    if files["csv"] is not None:
        write_csv(rows, files["csv"])
        said.append(f"# written: {files['csv']}")
    if files["fit"] is not None:
        said.append(f"# written: {files['fit']}, {write_fit(rows, files['fit'])} of {len(rows)} rows")
    return said


def _sizes(nbytes: str, begin: str, end: str, factor: int | None) -> list[int]:
    """By --nbytes as everywhere, or by the options of nccl-tests."""
    own = next((flag for flag, value in (("-b", begin), ("-e", end)) if value), None)
    if nbytes and own:
        raise Invalid(f"{own}: --nbytes says already which sizes; leave one of them out")
    if not nbytes:
        low, high = parse_size(begin or FIRST, "-b"), parse_size(end or LAST, "-e")
        if high < low:
            raise Invalid(f"-e {end or LAST}: is less than -b {begin or FIRST}; begin with the smaller size")
        return Span(low, high, factor or FACTOR).steps()  # as nccl-tests, which ends at the last step
    span = parse_span(nbytes, "--nbytes")
    if span.factor and factor:
        raise Invalid("-f: --nbytes names a factor already; leave one of them out")
    return span.sizes(factor or FACTOR)


def _several(given: str, known: tuple[str, ...], check: Callable[[str], object]) -> list[str]:
    """Names parted by commas, or all; a wrong one is told before anything is planned."""
    found = list(known) if given == "all" else [part.strip() for part in given.split(",")]
    for name in found:
        check(name)
    return found
