"""Measure plans beside the library's own collectives, and the data that models are fitted to.

Under mpiexec or srun all processes except the first get None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from antiphon.api import _inputs
from antiphon.api._checked import checked, operator, public, several, text, whole_number, yes_or_no
from antiphon.api._checked import dtype as data_type
from antiphon.api._checked import size as one_size
from antiphon.api.search import Search, as_search
from antiphon.errors import Invalid

if TYPE_CHECKING:
    from antiphon.api._kinds import (
        CollectiveLike,
        MachineLike,
        Path,
        PlanLike,
        ProfileLike,
        Row,
        RuntimeName,
        Seconds,
        Size,
        Sizes,
    )
    from antiphon.core.plan import Plan
    from antiphon.cost.fit import AdditionTime, PlanTime, RoundTrip
    from antiphon.runtimes.measure.choose import MeasuredTuning

DEFAULT_SIZES = "1KB:16MB:4"  # each size four times the one before


@public
def bench(  # noqa: PLR0913
    what: PlanLike | CollectiveLike | Sequence[Plan],
    topology: MachineLike | None = None,
    nbytes: Sizes | None = None,
    *,
    on: RuntimeName = "mpi",
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
    lowering: str = "",
    progress: Callable[[Row], None] | None = None,
) -> list[Row] | None:
    """Measure plans beside the library's own collectives.

    Parameters
    ----------
    what
        A plan, several, their file, or the result of `tune`; with `topology`, a collective (or "all") that is planned
        for the sizes.
    topology
        The machine of a collective, its name or its file.
    nbytes
        A size, a range ("1KB:16MB:4"), or several sizes.
    on
        "mpi", "torch", "lab", "threads", "cuda" or "hip".
    planner, options
        For a collective, the planner and its options. Default: all planners, tuned by the model.
    root, ranks
        Root and participating ranks of a collective, as for `plan`.
    dtype, op
        Data type and operator, one or several of each.
    iterations, warmup
        Timed runs (their median counts), and runs before them that do not count.
    model, profile
        Model and profile that predict the times shown beside the measured ones. Default: as for `predict`.
    miad
        Tune the number of pieces at each size by measuring (multiplicative increase, additive decrease).
    seed
        Seed of the data.
    mpiexec, compiler
        On mpi, the launcher with its options, and the compiler of the engine.
    scale
        On lab, how much slower links are.
    timeout
        Seconds after which the measurement is stopped.
    hybrid
        On threads, cuda and hip, let kinds of links that a plan leaves idle carry a share of the data.
    lowering
        On threads, cuda and hip, how the plan runs: "kernel", "steps" (a kernel per step), "copies" (copy engines),
        each also with "-pull" (receivers read). Default: on GPUs the fastest, on threads "kernel".
    progress
        Called with every row.

    Returns
    -------
    list of dict or None
        A row per size; None on all processes but the first under mpiexec or srun.

    Raises
    ------
    Missing
        The runtime is not installed here.

    Examples
    --------
    >>> from antiphon.api.plans import plan
    >>> rows = bench(plan("allreduce", "ring:ranks=4"), nbytes="1KB", on="local", iterations=2)
    >>> all(row["correct"] for row in rows)
    True
    """
    from antiphon.runtimes.measure.bench import bench as measure
    from antiphon.units import parse_sizes

    subjects = what  # a string or path is the name of a collective, or a file: `measure` knows which
    if not _inputs.is_path(what):
        sources = what if isinstance(what, list | tuple) else [what]
        subjects = [plan for source in sources for plan in _inputs.plans(source, "what").values()]
    machine = None if topology is None else _inputs.machine(topology)
    return measure(
        _inputs.path_as_text(subjects), machine, parse_sizes(DEFAULT_SIZES if nbytes is None else nbytes, "nbytes"),
        on=on, planner=planner, options=options, root=root, ranks=ranks, dtype=several(data_type)(dtype, "dtype"),
        op=several(operator)(op, "op"), iterations=iterations, warmup=warmup, model=model, profile=profile, miad=miad,
        seed=seed, mpiexec=mpiexec, compiler=compiler, scale=scale, timeout=timeout, hybrid=hybrid, lowering=lowering,
        progress=progress,
    )  # fmt: skip


@public
def micro(  # noqa: PLR0913
    topology: MachineLike | None = None,
    nbytes: Sizes | None = None,
    *,
    on: RuntimeName = "mpi",
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
    """Run Blink's micro-benchmarks.

    They are chains that forward, reduce and broadcast, fan-in, fan-out, multi-input-multi-output (MIMO) and multi-chain
    aggregation (MCA).

    Parameters
    ----------
    topology
        The machine. Default: fully connected ranks.
    nbytes
        A size, a range ("1KB:16MB:4"), or several sizes.
    on
        "mpi", "lab", "threads" or "cuda".
    processes
        Number of ranks if no machine is passed. Default: 5.
    patterns, pieces
        "chain-forward", "mimo", ... (default: all), and the pipelining depth (default: by size).
    iterations, warmup, model, profile, mpiexec, timeout, progress
        As for `bench`.

    Returns
    -------
    list of dict or None
        A row per pattern and size; None on all processes but the first under mpiexec or srun.

    Raises
    ------
    Missing
        The runtime needs something that is not installed.
    Invalid
        An option is wrong.

    Examples
    --------
    ::

        antiphon.measure.micro("dgx1v", on="cuda", nbytes="1MB")
    """
    from antiphon.runtimes.measure.bench_micro import bench_micro
    from antiphon.units import parse_sizes

    options = checked({"ranks": processes, "patterns": patterns}, ranks=whole_number(1), patterns=several(text))
    machine = None if topology is None else _inputs.machine(topology)
    return bench_micro(
        machine, parse_sizes(DEFAULT_SIZES if nbytes is None else nbytes, "nbytes"), on=on, pieces=pieces,
        iterations=iterations, warmup=warmup, model=model, profile=profile, mpiexec=mpiexec, timeout=timeout,
        progress=progress, **options,
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
) -> list[PlanTime] | None:
    """Measure the data that `antiphon.fit.genmodel` fits.

    Parameters
    ----------
    nbytes
        A size, a range, or several sizes. Default: 256KiB, 1MiB and 4MiB.
    processes
        Measure 2, 3, ... up to this number of ranks. Default: 4.
    plans
        "cps", "incast" or "ring".
    on, iterations, warmup, mpiexec, timeout
        As for `bench`.
    progress
        Called with a line every few seconds.

    Returns
    -------
    list of PlanTime or None
        A row per plan, size and number of ranks; None on all processes but the first.

    Raises
    ------
    Missing
        The runtime needs something that is not installed.
    Invalid
        An option is wrong.

    Examples
    --------
    ::

        rows = antiphon.measure.genmodel("1MiB", processes=4)
    """
    from antiphon.runtimes.measure.bench_genmodel import bench_genmodel

    options = checked({"ranks": processes, "plans": plans}, ranks=whole_number(1), plans=several(text))
    return bench_genmodel(
        **_parse_sizes(nbytes), on=on, iterations=iterations, warmup=warmup, mpiexec=mpiexec, timeout=float(timeout),
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
    """Measure the data that `antiphon.fit.loggp` fits: parametrized round trips between two ranks.

    Parameters
    ----------
    nbytes
        A size, a range, or several sizes. Default: 1B to 1MiB.
    n, repetitions
        Messages sent one after another, and repetitions of each measurement (a row each).
    processes
        Also measure 1, 2, 3, ... messages at once, among this number of ranks.
    between
        Send the messages at once from the first half of the ranks to the second, which is on other hosts.
    on, iterations, warmup, mpiexec, timeout
        As for `bench`.
    progress
        Called with a line every few seconds.

    Returns
    -------
    list of RoundTrip or None
        The round trips; None on all processes but the first.

    Raises
    ------
    Missing
        The runtime needs something that is not installed.
    Invalid
        An option is wrong.

    Examples
    --------
    ::

        rows = antiphon.measure.loggp()
    """
    from antiphon.runtimes.measure.bench_loggp import bench_loggp

    positive = whole_number(1)
    options = checked(
        {"ranks": processes, "n": n, "repetitions": repetitions, "between": between}, ranks=positive, n=positive,
        repetitions=positive, between=yes_or_no,
    )  # fmt: skip
    return bench_loggp(
        **_parse_sizes(nbytes), on=on, iterations=iterations, warmup=warmup, mpiexec=mpiexec, timeout=float(timeout),
        progress=progress, **options,
    )  # fmt: skip


@public
def memory(
    nbytes: Size | None = None,
    *,
    max_vectors: int = 15,
    repeat: int = 5,
    threads: int = 1,
    on: str = "",
    progress: Callable[[str], None] | None = None,
) -> list[AdditionTime]:
    """Measure the data that `antiphon.fit.memory` fits: the time to add 2, 3, ... vectors.

    Parameters
    ----------
    nbytes
        Size of a vector, larger than the caches. Default: 32MiB.
    max_vectors, repeat, threads
        Maximum number of vectors added at once, runs of each, and threads that add.
    on
        "cuda", "hip" or "threads": add by the GPU engine. Default: NumPy.
    progress
        Called with a line every few seconds.

    Returns
    -------
    list of AdditionTime
        A row per number of vectors.

    Raises
    ------
    Missing
        The runtime needs something that is not installed.
    Invalid
        An option is wrong.

    Examples
    --------
    ::

        rows = antiphon.measure.memory(max_vectors=15)
    """
    from antiphon.runtimes.measure.bench_memory import bench_memory

    options = checked({"most": max_vectors, "threads": threads}, most=whole_number(1), threads=whole_number(1))
    options |= {} if nbytes is None else {"nbytes": one_size(nbytes, "nbytes")}
    return bench_memory(repeat=repeat, on=on, progress=progress, **options)


def _parse_sizes(nbytes: Any) -> dict[str, Any]:
    """Return {"sizes": sizes}, to be passed on as a keyword; {} for None, so that the default of the function holds."""
    from antiphon.units import parse_sizes

    return {} if nbytes is None else {"sizes": parse_sizes(nbytes, "nbytes")}


@public
def tune(  # noqa: PLR0913
    collective: CollectiveLike,
    topology: MachineLike,
    *,
    on: RuntimeName | None = None,
    logs: Path | None = None,
    command: str = "",
    nbytes: Sizes | None = None,
    model: str | None = None,
    profile: ProfileLike = None,
    planners: str | Sequence[str] = (),
    root: int | None = None,
    ranks: Sequence[int] | None = None,
    factor: int | None = None,
    shortlisted: int | None = None,
    dtype: str | None = None,
    op: str | None = None,
    iterations: int | None = None,
    warmup: int | None = None,
    limit: Seconds | None = None,
    mpiexec: str | None = None,
    compiler: str | None = None,
    scale: str | None = None,
    library: str | None = None,
    library_only: bool = False,
    progress: Callable[[int, int, str], None] | None = None,
    search: Search | None = None,
) -> MeasuredTuning | None:
    """Tune by the model, measure the best candidates, and choose by the measurements.

    Ctrl-C ends it early with the measurements made so far.

    Parameters
    ----------
    collective, topology, model, profile, planners, root, ranks, progress, search
        As for `antiphon.tune`; `model` defaults to `alpha-beta`.
    on
        Runtime to measure on: "mpi", "nccl", "torch" or "lab".
    logs
        Instead of `on`, a folder of logs of nccl-tests or rccl-tests: choose among NCCL's own settings, which their
        runs forced (docs/stock.md).
    command
        With `logs`, a command that starts nccl-tests: it is run with every setting, and its logs go into that folder.
    nbytes
        A range, one size, or several. Default: 1KB:16MB.
    factor
        Factor between consecutive measured sizes. Default: 4.
    shortlisted
        Number of candidates measured at every size, the best by the model, in addition to the classic algorithms.
        Default: 4.
    dtype, op
        Data type and operator. Default: float32, sum.
    iterations, warmup
        Timed runs of each, and runs before them that do not count. Default: 20 and 3.
    limit
        Time limit of all measurements in seconds, or "600s".
    mpiexec, compiler, library
        On mpi and nccl, the launcher with its options, and the compiler; on nccl, the file of NCCL or RCCL.
    scale
        On lab, how much slower links are, as for `antiphon.lab.up`.
    library_only
        On mpi (always on nccl), choose among the algorithms of the MPI library itself, to `export` its tuning rules.

    Returns
    -------
    MeasuredTuning or None
        `.plan`, `.plans`, `.ranges`, `.rows`, `.save(file)` and `.tuning` (the result by the model); None on all
        processes but the first under mpiexec or srun.

    Raises
    ------
    Invalid
        `search` has a shortlist, or plans together with `library_only`; or `on` and `logs` are both given, or neither;
        or a command without `logs`, or with `logs` the sizes or a detail of measurements.

    Examples
    --------
    ::

        tuning = antiphon.measure.tune("allreduce", "full:ranks=4", on="mpi")
        antiphon.save(tuning.plan, "table.json")
    """
    from antiphon.runtimes.measure.choose import tune_measured
    from antiphon.runtimes.measure.library_choose import tune_library

    search = as_search(search)
    unsupported = {"shortlist": search.shortlist, "failures": search.failures, "counts": search.counts is not None}
    for name, is_set in unsupported.items():
        if is_set:
            raise Invalid(f"{name}: cannot be combined with measuring; leave it out")
    if search.plans and library_only:
        raise Invalid(
            "plans: cannot be combined with library_only, which chooses among algorithms of MPI; leave one of them out"
        )
    if (on is None) == (logs is None):
        raise Invalid("tune: pass either on=, where to measure, or logs=, a folder of logs of nccl-tests")
    # checked here, as `public` checks by name, and `command` of `lab.command` is a list of words
    if text(command, "command") and logs is None:
        raise Invalid("command: writes logs; pass logs=, a folder for them, too")
    machine = _inputs.machine(topology)
    options = search.options()
    del options["shortlist"]  # the number of candidates to measure is `shortlisted` here
    if isinstance(collective, str) and collective == "all":
        target: Any = collective
        options |= {"root": root, "ranks": ranks}
    else:
        target = _inputs.collective(collective, machine, root, ranks)
    # those left out (None) have the defaults of the function that is called
    race = {name: value for name, value in {
        "factor": factor, "shortlisted": shortlisted, "dtype": dtype, "op": op, "iterations": iterations,
        "warmup": warmup, "limit": limit, "mpiexec": mpiexec, "compiler": compiler, "scale": scale, "library": library,
    }.items() if value is not None}  # fmt: skip
    if logs is not None:
        from antiphon.runtimes.measure.library_logs import tune_from_logs

        for name in [*race, *(["nbytes"] if nbytes is not None else [])]:  # the first one, if any, is the error
            raise Invalid(f"{name}: is for measuring, and logs= has the measurements; leave it out")
        return tune_from_logs(
            target, machine, logs, command=command, model=model or "alpha-beta", profile=profile, planners=planners,
            progress=progress, **options,
        )  # fmt: skip
    if "shortlisted" in race:
        race["few"] = race.pop("shortlisted")  # the name of this parameter in the function that is called
    options |= race
    sizes: Any = ""  # the default of the function that is called
    if nbytes is not None:
        sizes = nbytes if isinstance(nbytes, str | Sequence) else [nbytes]
    measure = tune_library if library_only or on == "nccl" else tune_measured
    if on == "nccl":
        from antiphon.runtimes.measure.nccl_choose import NcclRaces, list_planners

        # measure in races among settings of NCCL, beside plans of ours where a runtime can run them
        options["races"], planners = NcclRaces, planners or list_planners()
    return measure(
        target, machine, on=on or "", nbytes=sizes, model=model or "alpha-beta", profile=profile, planners=planners,
        progress=progress, **options,
    )  # fmt: skip
