"""Measure plans beside the library's own collectives, and the data that models are fitted to.

Under mpiexec or srun all processes except the first get None."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from antiphon.api import _given
from antiphon.api._checked import checked, operator, public, several, text, whole_number, yes_or_no
from antiphon.api._checked import dtype as data_type
from antiphon.api._checked import size as one_size
from antiphon.api.search import Search, as_search
from antiphon.errors import Invalid

if TYPE_CHECKING:
    from antiphon.api._kinds import (
        CollectiveLike,
        Ground,
        MachineLike,
        PlanLike,
        ProfileLike,
        Row,
        Seconds,
        Size,
        Sizes,
    )
    from antiphon.core.plan import Plan
    from antiphon.cost.fit import Added, Measured, RoundTrip
    from antiphon.runtimes.measure.choose import MeasuredTuning

LADDER = "1KB:16MB:4"


@public
def bench(  # noqa: PLR0913
    what: PlanLike | CollectiveLike | Sequence[Plan],
    topology: MachineLike | None = None,
    nbytes: Sizes | None = None,
    *,
    on: Ground = "mpi",
    planner: str = "",
    options: Mapping[str, Any] | None = None,
    root: int | None = None,
    ranks: Sequence[int] | None = None,
    dtype: str | Sequence[str] = "float32",
    op: str | Sequence[str] = "sum",
    iterations: int = 20,
    warmup: int = 5,
    model: str = "",
    profile: ProfileLike = None,
    miad: bool = False,
    seed: int = 0,
    mpiexec: str = "",
    compiler: str = "",
    scale: str = "",
    timeout: Seconds = 600.0,
    hybrid: bool = False,
    progress: Callable[[Row], None] | None = None,
) -> list[Row] | None:
    """Measure plans beside the library's own collectives: a row per size.

    `what`: a plan, several, their file, what `tune` gave; or, with `topology`, a collective (or "all"), planned for the
    sizes.
    `topology`: of a collective: the machine, its name or its file.
    `nbytes`: a size, a range ("1KB:16MB:4"), or several sizes.
    `on`: "mpi", "torch", "lab", "threads" or "cuda".
    `planner`, `options`: of a collective: the planner; left out, all are tuned by the model.
    `root`, `ranks`: of a collective, as for `plan`.
    `dtype`, `op`: of the data, one or several of each.
    `iterations`, `warmup`: runs (their median counts), and runs before them that do not count.
    `model`, `profile`: what predicts the times beside the measured ones; `model` left out, as of `predict`.
    `miad`: find the number of pieces by measuring, for each size.
    `seed`: of the data.
    `mpiexec`, `compiler`: on mpi, the launcher with its options, and the compiler for the engine.
    `scale`: on lab, how slow it is.
    `timeout`: seconds after which it is given up.
    `hybrid`: on threads, cuda and hip, whether kinds of links that a plan leaves idle carry a part of the data, too.
    `progress`: called with every row.
    """
    from antiphon.runtimes.measure.bench import bench as measure
    from antiphon.units import parse_sizes as sizes

    subjects = what
    if not _given.is_path(what):
        sources = what if isinstance(what, list | tuple) else [what]
        subjects = [plan for source in sources for plan in _given.plans(source, "what").values()]
    machine = None if topology is None else _given.machine(topology)
    return measure(
        _given.by_name(subjects), machine, sizes(LADDER if nbytes is None else nbytes, "nbytes"),
        on=on, planner=planner, options=options, root=root, ranks=ranks, dtype=several(data_type)(dtype, "dtype"),
        op=several(operator)(op, "op"), iterations=iterations, warmup=warmup, model=model, profile=profile, miad=miad,
        seed=seed, mpiexec=mpiexec, compiler=compiler, scale=scale, timeout=timeout, hybrid=hybrid, progress=progress,
    )  # fmt: skip


@public
def micro(  # noqa: PLR0913
    topology: MachineLike | None = None,
    nbytes: Sizes | None = None,
    *,
    on: Ground = "mpi",
    processes: int | None = None,
    patterns: Sequence[str] = (),
    pieces: int | None = None,
    iterations: int = 20,
    warmup: int = 5,
    model: str = "",
    profile: ProfileLike = None,
    mpiexec: str = "",
    timeout: Seconds = 600.0,
    progress: Callable[[Row], None] | None = None,
) -> list[Row] | None:
    """Run Blink's micro-benchmarks: chains that forward, reduce and broadcast, fan-in, fan-out, MIMO and MCA.

    `topology`: the machine; left out, ranks that are all linked.
    `nbytes`: a size, a range ("1KB:16MB:4"), or several sizes.
    `on`: "mpi", "lab", "threads" or "cuda".
    `processes`: the number of ranks, if no machine is named (5).
    `patterns`, `pieces`: "chain-forward", "mimo", ..., left out, all; and the pipelining depth.
    `iterations`, `warmup`, `model`, `profile`, `mpiexec`, `timeout`, `progress`: as of `bench`.
    """
    from antiphon.runtimes.measure.bench_micro import bench_micro
    from antiphon.units import parse_sizes as sizes

    options = checked({"ranks": processes, "patterns": patterns}, ranks=whole_number(1), patterns=several(text))
    machine = None if topology is None else _given.machine(topology)
    return bench_micro(
        machine, sizes(LADDER if nbytes is None else nbytes, "nbytes"), on=on, pieces=pieces, iterations=iterations,
        warmup=warmup, model=model, profile=profile, mpiexec=mpiexec, timeout=timeout, progress=progress, **options,
    )  # fmt: skip


@public
def genmodel(
    nbytes: Sizes | None = None,
    *,
    processes: int | None = None,
    plans: Sequence[str] = ("cps", "incast"),
    on: str = "mpi",
    iterations: int = 20,
    warmup: int = 3,
    mpiexec: str = "",
    timeout: Seconds = 600.0,
    progress: Callable[[str], None] | None = None,
) -> list[Measured] | None:
    """Measure what `antiphon.fit.genmodel` reads.

    `nbytes`: a size, a range, or several sizes; left out, 256KiB, 1MiB and 4MiB.
    `processes`: measure 2, 3, ... up to this number of ranks (4).
    `plans`: "cps", "incast" or "ring".
    `on`, `iterations`, `warmup`, `mpiexec`, `timeout`: as of `bench`.
    `progress`: called with a line every few seconds.
    """
    from antiphon.runtimes.measure.bench_genmodel import bench_genmodel

    options = checked({"ranks": processes, "plans": plans}, ranks=whole_number(1), plans=several(text))
    return bench_genmodel(
        **_sizes(nbytes), on=on, iterations=iterations, warmup=warmup, mpiexec=mpiexec, timeout=float(timeout),
        progress=progress, **options,
    )  # fmt: skip


@public
def loggp(  # noqa: PLR0913
    nbytes: Sizes | None = None,
    *,
    on: str = "mpi",
    n: int = 16,
    repetitions: int = 7,
    iterations: int = 20,
    warmup: int = 3,
    mpiexec: str = "",
    timeout: Seconds = 600.0,
    processes: int | None = None,
    between: bool = False,
    progress: Callable[[str], None] | None = None,
) -> list[RoundTrip] | None:
    """Measure what `antiphon.fit.loggp` reads: parametrized round trips between two ranks.

    `nbytes`: a size, a range, or several sizes; left out, 1B to 1MiB.
    `n`, `repetitions`: messages sent one after the other, and rows of each measurement.
    `processes`: also measure how many messages go at once among this number of ranks.
    `between`: from half of these to the other, which is elsewhere.
    `on`, `iterations`, `warmup`, `mpiexec`, `timeout`: as of `bench`.
    `progress`: called with a line every few seconds.
    """
    from antiphon.runtimes.measure.bench_loggp import bench_loggp

    positive = whole_number(1)
    options = checked(
        {"ranks": processes, "n": n, "repetitions": repetitions, "between": between}, ranks=positive, n=positive,
        repetitions=positive, between=yes_or_no,
    )  # fmt: skip
    return bench_loggp(
        **_sizes(nbytes), on=on, iterations=iterations, warmup=warmup, mpiexec=mpiexec, timeout=float(timeout),
        progress=progress, **options,
    )  # fmt: skip


@public
def memory(
    nbytes: Size | None = None,
    *,
    most: int = 15,
    repeat: int = 5,
    threads: int = 1,
    on: str = "",
    progress: Callable[[str], None] | None = None,
) -> list[Added]:
    """Measure what `antiphon.fit.memory` reads: how long it takes to add 2, 3, ... vectors.

    `nbytes`: of a vector: more than the caches hold (32MiB).
    `most`, `repeat`, `threads`: vectors added at once, runs of each, and threads that add.
    `on`: "cuda", "hip" or "threads": the engine for GPUs adds.
    `progress`: called with a line every few seconds.
    """
    from antiphon.runtimes.measure.bench_memory import bench_memory

    options = checked({"most": most, "threads": threads}, most=whole_number(1), threads=whole_number(1))
    options |= {} if nbytes is None else {"nbytes": one_size(nbytes, "nbytes")}
    return bench_memory(repeat=repeat, on=on, progress=progress, **options)


def _sizes(nbytes: Any) -> dict[str, Any]:
    from antiphon.units import parse_sizes

    return {} if nbytes is None else {"sizes": parse_sizes(nbytes, "nbytes")}


@public
def tune(  # noqa: PLR0913
    wanted: CollectiveLike,
    topology: MachineLike,
    *,
    on: Ground,
    nbytes: Sizes | None = None,
    model: str | None = None,
    profile: ProfileLike = None,
    planners: str | Sequence[str] = (),
    root: int | None = None,
    ranks: Sequence[int] | None = None,
    factor: int | None = None,
    few: int | None = None,
    dtype: str | None = None,
    op: str | None = None,
    iterations: int | None = None,
    warmup: int | None = None,
    limit: Seconds | None = None,
    mpiexec: str | None = None,
    compiler: str | None = None,
    scale: str | None = None,
    library_only: bool = False,
    progress: Callable[[int, int, str], None] | None = None,
    search: Search | None = None,
) -> MeasuredTuning | None:
    """Tune by the model, measure the best, and choose by that: `.plan`, `.plans`, `.ranges`, `.rows`, `.save(file)` and
    `.tuning` (what the model said). Ctrl-C ends it early with what was measured.

    `wanted`, `topology`, `model`, `profile`, `planners`, `root`, `ranks`, `progress`, `search`: as of `antiphon.tune`;
    `model` left out, `alpha-beta`.
    `on`: where it is measured: "mpi", "torch" or "lab".
    `nbytes`: a range, one size, or several (1KB:16MB).
    `factor`: between each measured size and the next (4).
    `few`: how many of the model's best are measured at every size (4), beside the classics.
    `dtype`, `op`: of the data that are moved (float32, sum).
    `iterations`, `warmup`: runs of each (20), and runs before that do not count (3).
    `limit`: seconds, or "600s", for all measurements.
    `mpiexec`, `compiler`: on mpi, the launcher with its options, and the compiler for the engine.
    `scale`: on lab, how slow it is, as for `antiphon.lab.up`.
    `library_only`: on mpi, choose among the algorithms of the MPI library itself, for what `export` writes for it.
    """
    from antiphon.runtimes.measure.choose import tune_measured
    from antiphon.runtimes.measure.library_choose import tune_library

    search = as_search(search)
    if search.shortlist:
        raise Invalid("shortlist: does not go together with measuring; leave it out")
    if search.plans and library_only:
        raise Invalid("plans: do not go together with library_only, which chooses among algorithms of MPI")
    machine = _given.machine(topology)
    options = search.options()
    del options["shortlist"]
    if isinstance(wanted, str) and wanted == "all":
        target: Any = wanted
        options |= {"root": root, "ranks": ranks}
    else:
        target = _given.collective(wanted, machine, root, ranks)
    options |= {name: value for name, value in {
        "factor": factor, "few": few, "dtype": dtype, "op": op, "iterations": iterations, "warmup": warmup,
        "limit": limit, "mpiexec": mpiexec, "compiler": compiler, "scale": scale,
    }.items() if value is not None}  # fmt: skip
    sizes: Any = "" if nbytes is None else nbytes if isinstance(nbytes, str | Sequence) else [nbytes]
    measure = tune_library if library_only else tune_measured
    return measure(
        target, machine, on=on, nbytes=sizes, model=model or "alpha-beta", profile=profile, planners=planners,
        progress=progress, **options,
    )  # fmt: skip
