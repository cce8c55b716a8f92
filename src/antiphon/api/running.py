"""Run plans on real data, build the engine for MPI, serve NumPy arrays, and reproduce papers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, cast

from antiphon.api import _given
from antiphon.api._checked import checked, operator, public, text, whole_number
from antiphon.api._checked import dtype as dtype_of

if TYPE_CHECKING:
    from pathlib import Path as Library

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
) -> list[Row]:
    """Move real data by a plan and check every element: a row of figures per size (nbytes, seconds, algbw, busbw,
    correct, wrong, ...). A plan that is wrong is not run.

    `plan`: a plan, its file, or what `tune` gave.
    `nbytes`: a size ("64MiB"), a range ("1KB:1GB:4"), or several sizes.
    `on`: "local" is all ranks in this process; "mpi", "torch" and "lab" a process for each. Under mpiexec or srun all
    processes but the first get no rows.
    `dtype`, `op`: of the data: int8 ... float64, float16, bfloat16, float8_e4m3fn, float8_e5m2; sum, prod,
    min, max or avg.
    `seed`: of the data.
    `repeat`: runs of each; their median time is returned.
    `in_place`: whether results take the place of what was given.
    `mpiexec`, `compiler`: on mpi, the launcher with its options, and the compiler for the engine.
    `scale`, `name`: on lab, how slow, and which.
    `timeout`: seconds after which it is given up.
    `collective`: of several plans the one for this.
    `trace`: a file for when everything was sent, received and combined in one run of one size (Chrome's trace format);
    on local the engine then takes the interpreter's place, a thread for each rank, for which a C compiler is needed.
    `hybrid`: on threads, cuda and hip, whether kinds of links that the plan leaves idle carry a part of the data, too.
    """
    from antiphon.registry import find
    from antiphon.runtimes.measure.bench import run_plan
    from antiphon.units import parse_sizes as sizes

    find("runtime", on)
    parsed_sizes = sizes(nbytes, "nbytes")
    dtype, op = dtype_of(dtype, "dtype"), operator(op, "op")
    verified = _given.right(plan, collective, "run", op, dtype)
    rows = run_plan(
        verified, parsed_sizes, dtype=dtype, op=op, seed=seed, repeat=repeat, in_place=in_place, on=on, mpiexec=mpiexec,
        compiler=compiler, timeout=float(timeout), scale=scale, name=name, trace=trace, hybrid=hybrid,
    )  # fmt: skip
    return rows or []


@public
def build(what: Literal["mpi", "nccl-tuner"], compiler: str = "", tables: Path | Sequence[Path] = ()) -> Library:
    """A library, compiled where that has not been done yet: its path.

    `what`: "mpi", the native engine for your MPI, to preload; "nccl-tuner", a tuner plugin for NCCL.
    `compiler`: instead of $MPICC, or mpicc beside Python or on the PATH; for nccl-tuner of $CC or cc.
    `tables`: files that jobs will name in $ANTIPHON_TABLE: compiled and kept beside the library that is preloaded, so
    that no job has to wait for that.
    """
    from antiphon.runtimes.engine.mpi import build as make

    return make(text(what, "what"), compiler, cast("list[str]", tables))


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
    """Collectives on NumPy arrays by the plans of a table: c.allreduce(x), ...; c.report() tells what served them. All
    processes make the same calls in the same order.

    `communicator`: mpi4py's; left out, MPI.COMM_WORLD.
    `table`: a file (table, plan or book), plans, or what `tune` gave; only process 0 looks at it.
    `rank`, `ranks`, `address`: without MPI, this process's number, how many there are, and "host:port" where rank 0
    listens.
    `timeout`: seconds without any progress that end a call with an error.
    `compiler`: for the engine, as for `build`.
    `secret`: what processes without MPI must know to take part; left out, $ANTIPHON_SECRET or what is in the file
    $ANTIPHON_SECRET_FILE.
    """
    from antiphon.runtimes.serve.comm import comm as make

    options = checked(
        {"rank": rank, "ranks": ranks, "address": address, "timeout": timeout, "compiler": compiler, "secret": secret},
        rank=whole_number(0, 2**16), ranks=whole_number(1, 2**16), address=text, secret=text,
    )  # fmt: skip
    return make(communicator, table, **options)


@public
def reproduce(name: str = "") -> list[Row]:
    """A paper's table made again: rows of name, published, ours, deviation, ok, note.

    `name`: which; without it, what there is.
    """
    from antiphon.reproduce import names
    from antiphon.reproduce import reproduce as rows

    return list(rows(name)) if name else names()


def papers() -> list[dict[str, str]]:
    """What can be reproduced: name, what it is, and where it was published."""
    from antiphon.reproduce import names

    return names()
