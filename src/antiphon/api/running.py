"""Run plans on real data, build the engine for MPI, serve NumPy arrays, and reproduce papers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, cast

from antiphon.api import _inputs
from antiphon.api._checked import checked, operator, public, text, whole_number
from antiphon.api._checked import dtype as dtype_of

if TYPE_CHECKING:
    import pathlib

    from antiphon.api._kinds import Path, PlanLike, Row, Seconds, Sizes
    from antiphon.core.plan import Plan
    from antiphon.runtimes.serve.comm import Comm


@public
def run(  # noqa: PLR0913
    plan: PlanLike,
    nbytes: Sizes,
    *,
    on: str = "local",
    dtype: str = "float32",
    op: str = "sum",
    seed: int = 0,
    repeat: int = 3,
    in_place: bool = False,
    mpiexec: str = "",
    compiler: str = "",
    scale: str = "",
    name: str = "",
    timeout: Seconds = 600.0,
    collective: str = "",
    trace: Path | None = None,
    hybrid: bool = False,
    lowering: str = "",
) -> list[Row]:
    """Move real data by a plan and check every element of the result.

    A plan that is wrong is not run.

    Parameters
    ----------
    plan
        A plan, its file, or the result of `tune`.
    nbytes
        A size ("64MiB"), a range ("1KB:1GB:4"), or several sizes.
    on
        "local" runs all ranks in this process; "mpi", "torch" and "lab" start a process for each; "threads", "cuda" and
        "hip" run our kernel, on threads of the processor or on the GPUs here. Under mpiexec or srun all processes but
        the first return no rows.
    dtype, op
        Data type (int8 ... float64, float16, bfloat16, float8_e4m3fn, float8_e5m2) and operator (sum, prod, min, max or
        avg).
    seed
        Seed of the data.
    repeat
        Runs of each size; their median time is returned.
    in_place
        Results overwrite the inputs.
    mpiexec, compiler
        On mpi, the launcher with its options, and the compiler of the engine.
    scale, name
        On lab, the factor by which links are slower than in the plan, and the lab's name.
    timeout
        Seconds after which the run is stopped.
    collective
        The collective to choose from a file with plans for several.
    trace
        A file for the times of every send, receive and combination in one run of one size (Chrome's trace format). On
        local the native engine then runs the plan with a thread per rank, which needs a C compiler.
    hybrid
        On threads, cuda and hip, let kinds of links that the plan leaves idle carry a share of the data.
    lowering
        On threads, cuda and hip, how the plan runs: "kernel", "steps" (a kernel per step), "copies" (copy engines),
        each also with "-pull" (receivers read). Default: on GPUs the fastest, on threads "kernel".

    Returns
    -------
    list of dict
        A row per size: nbytes, seconds, algbw, busbw, correct, wrong, ...

    Raises
    ------
    Infeasible
        The plan is wrong.
    Missing
        The runtime is not installed here.

    Examples
    --------
    >>> from antiphon.api.plans import plan
    >>> run(plan("allreduce", "ring:ranks=4"), "1KB", repeat=1)[0]["correct"]
    True
    """
    from antiphon.registry import find
    from antiphon.runtimes.measure.bench import run_plan
    from antiphon.runtimes.measure.case import How
    from antiphon.units import parse_sizes

    find("runtime", on)
    sizes = parse_sizes(nbytes, "nbytes")
    dtype, op = dtype_of(dtype, "dtype"), operator(op, "op")
    verified = _inputs.verified_plan(plan, collective, "run", op, dtype)
    rows = run_plan(
        verified, sizes, dtype=dtype, op=op, seed=seed, repeat=repeat, in_place=in_place, on=on, trace=trace,
        how=How(
            mpiexec=mpiexec, compiler=compiler, timeout=float(timeout), scale=scale, name=name, hybrid=hybrid,
            lowering=lowering,
        ),
    )  # fmt: skip
    return rows or []


@public
def build(
    what: Literal["mpi", "nccl-tuner", "nccl-preload"], compiler: str = "", tables: Path | Sequence[Path] = ()
) -> pathlib.Path:
    """Compile a native library, unless it is cached.

    Parameters
    ----------
    what
        "mpi": the native engine for your MPI, to preload; "nccl-tuner": a tuner plugin for NCCL; "nccl-preload": a
        library to preload, by which NCCL 2.31 and later choose algorithms per call.
    compiler
        Compiler to use. Default: $MPICC, or mpicc beside Python or on the PATH; for NCCL $CC or cc.
    tables
        Files that jobs will name in $ANTIPHON_TABLE. They are compiled now and stored beside the library, so that jobs
        start faster.

    Returns
    -------
    Path
        The library.

    Raises
    ------
    Missing
        No compiler was found, or it failed.

    Examples
    --------
    ::

        library = antiphon.build("mpi")  # for LD_PRELOAD
    """
    from antiphon.runtimes.engine.mpi import build as build_library

    # `public` has made a list of texts of `tables`
    return build_library(text(what, "what"), compiler, cast("list[str]", tables))


def comm(
    communicator: Any = None,
    table: PlanLike | Sequence[Plan] | None = None,
    *,
    rank: int | None = None,
    ranks: int | None = None,
    address: str = "",
    timeout: Seconds = 1800.0,
    compiler: str = "",
    secret: str | None = None,
) -> Comm:
    """Connect to other processes and return collectives on NumPy arrays by the plans of a table.

    All processes make the same calls in the same order: c.allreduce(x), ...; c.report() lists which plan served which
    call.

    Parameters
    ----------
    communicator
        A communicator of mpi4py. Default: MPI.COMM_WORLD.
    table
        A file (table, plan or book), plans, or the result of `tune`; only process 0 reads it.
    rank, ranks, address
        Without MPI: this process's rank, the number of processes, and "host:port" where rank 0 listens.
    timeout
        Seconds without progress after which a call fails.
    compiler
        Compiler of the engine, as for `build`.
    secret
        Shared secret that processes without MPI prove to each other. Default: $ANTIPHON_SECRET, or the content of the
        file $ANTIPHON_SECRET_FILE.

    Returns
    -------
    Comm
        The communicator; close it, or use it in a `with` block.

    Raises
    ------
    TimedOut
        Not all processes connected in time.
    """
    from antiphon.runtimes.serve.comm import comm as connect

    # `checked` knows timeout and compiler by name, and leaves out what is None
    options = checked(
        {"rank": rank, "ranks": ranks, "address": address, "timeout": timeout, "compiler": compiler, "secret": secret},
        rank=whole_number(0, 2**16), ranks=whole_number(1, 2**16), address=text, secret=text,
    )  # fmt: skip
    return connect(communicator, table, **options)


@public
def reproduce(name: str = "", *, engine: str = "processes") -> list[Row]:
    """Reproduce a table or figure of a paper.

    Parameters
    ----------
    name
        The experiment. Default: list the experiments.
    engine
        Where independent parts of a table are computed at the same time, as for `antiphon.sweep.run`.

    Returns
    -------
    list of dict
        Rows of name, published, ours, deviation, ok and note; without `name`, those of `papers`.

    Raises
    ------
    Invalid
        No experiment or engine has this name.

    Examples
    --------
    >>> reproduce()[0]["name"]
    'sccl-table3'
    """
    from antiphon.reproduce import names
    from antiphon.reproduce import reproduce as compute_rows

    return list(compute_rows(name, engine)) if name else names()


def papers() -> list[dict[str, str]]:
    """List the experiments that can be reproduced.

    Returns
    -------
    list of dict
        A row per experiment: its name, what it shows, and where it was published.
    """
    from antiphon.reproduce import names

    return names()
