"""Plans that really move data: run, measured, on the emulated cluster, and behind NumPy arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, cast, overload

from antiphon.api import _given
from antiphon.api._checked import checked, operator, public, text, whole, yes_or_no
from antiphon.api._checked import dtype as dtype_of
from antiphon.errors import Invalid, unknown

if TYPE_CHECKING:
    from pathlib import Path as Library

    from antiphon.api._kinds import MachineLike, Path, PlanLike, Row, Seconds, Sizes
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
    `repeat`: runs of each, of which the median time is told.
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
    wanted = sizes(nbytes, "nbytes")
    data = {
        "dtype": dtype_of(dtype, "dtype"),
        "op": operator(op, "op"),
        "seed": seed,
        "repeat": repeat,
        "in_place": in_place,
    }
    found = _given.right(plan, collective, "run", data["op"], data["dtype"])
    return (
        run_plan(
            found,
            wanted,
            **data,
            on=on,
            mpiexec=mpiexec,
            compiler=compiler,
            timeout=float(timeout),
            scale=scale,
            name=name,
            trace=trace,
            hybrid=hybrid,
        )
        or []
    )


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

    given = checked(
        {"rank": rank, "ranks": ranks, "address": address, "timeout": timeout, "compiler": compiler, "secret": secret},
        rank=whole(0, 2**16), ranks=whole(1, 2**16), address=text, secret=text,
    )  # fmt: skip
    return make(communicator, table, **given)


@public
def reproduce(name: str = "") -> list[Row]:
    """A paper's table made again: rows of name, published, ours, deviation, ok, note.

    `name`: which; without it, what there is.
    """
    from antiphon.reproduce import names
    from antiphon.reproduce import reproduce as rows

    return list(rows(name)) if name else names()


# ---- the emulated cluster ----


@overload
def lab(what: Literal["up"], where: MachineLike, *, scale: str = "", name: str = "") -> Row: ...


@overload
def lab(what: Literal["down"], where: str = "", *, every: bool = False) -> list[str]: ...


@overload
def lab(what: Literal["status"]) -> list[Row]: ...


@overload
def lab(
    what: Literal["run"], where: MachineLike = "", *, command: Sequence[str], scale: str = "", name: str = "",
    timeout: Seconds = 600.0, quiet: bool = False,
) -> Row: ...  # fmt: skip


@overload
def lab(
    what: Literal["run"], where: PlanLike, nbytes: Sizes, *, dtype: str = "float32", op: str = "sum", seed: int = 0,
    repeat: int = 3, in_place: bool = False, scale: str = "", name: str = "", timeout: Seconds = 600.0,
    collective: str = "", trace: Path | None = None,
) -> list[Row]: ...  # fmt: skip


@public
def lab(what: str, where: Any = "", nbytes: Any = None, **how: Any) -> Any:
    """The emulated cluster: rate-limited links between network namespaces. Needs Linux and root.

    `what`: "up" makes a lab that stays, "down" takes it down, "status" tells which are up, "run" runs something there.
    `where`: for "up" a machine; for "down" the name of a lab (left out, the only one; `every`: all); for "run" a plan
    with `nbytes`, or with `command` a machine or the name of a lab.
    `nbytes`: of a plan that is run: a size, a range, or several.
    `command`: a program with its arguments, started once for each rank.
    `scale`: how slow: "2Mbit per GB/s", or "link=40Mbit" for the unit link.
    `name`: of the lab; left out, that of the machine.
    `timeout`: seconds after which it is given up.
    `quiet`: do not show what the program says.
    `dtype`, `op`, `seed`, `repeat`, `in_place`, `collective`, `trace`: of a plan, as for `run`.
    """
    from antiphon.runtimes.lab import lab as cluster

    what, how = text(what, "what"), checked(how, dtype=dtype_of, op=operator, every=yes_or_no, quiet=yes_or_no)
    if what == "status":
        return cluster.lab_status()
    if what == "up":
        return cluster.lab_up(_given.machine(where), **how)
    if what == "down":
        return cluster.lab_down(text(where, "name"), **how)
    if what != "run":
        raise unknown("lab", what, ("up", "down", "status", "run"))
    if "command" in how:
        known = isinstance(where, str) and (not where or where in cluster.lab_names())
        return cluster.lab_command(where if known else _given.machine(where), **how)
    if nbytes is None:
        raise Invalid("lab run: give nbytes with a plan, or command with a machine")
    from antiphon.units import parse_sizes as sizes

    found = _given.right(where, how.pop("collective", ""), "run")
    from antiphon.runtimes.measure.bench import run_plan

    return run_plan(found, sizes(nbytes, "nbytes"), on="lab", **how)
