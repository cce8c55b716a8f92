"""Runs a schedule under MPI: one process per rank, the native engine, every element checked (docs/mpi.md)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from antiphon.core.schedule import Schedule
from antiphon.errors import Unsupported, unknown
from antiphon.run._build import library
from antiphon.run._case import How, Row, Runnable
from antiphon.run._rows import run_schedule


def build(what: str, compiler: str = "") -> Path:
    """The native engine for an MPI, compiled where that has not been done yet: where the library is."""
    if what == "nccl":
        raise Unsupported("build nccl is not there yet; antiphon build mpi is")
    if what != "mpi":
        raise unknown("library to build", what, ["mpi"])
    return library("mpi", compiler)


def run_mpi(  # noqa: PLR0913
    schedule: Schedule,
    nbytes: int | str | Sequence[int | str],
    dtype: str = "float32",
    op: str = "sum",
    seed: int = 0,
    repeat: int = 3,
    in_place: bool = False,
    *,
    mpiexec: str = "",
    compiler: str = "",
    timeout: float = 600.0,
) -> list[Row] | None:
    """Run a schedule on random data of each size, among as many MPI processes as it has ranks with work to do: a row
    for each (docs/bench.md).

    Starts the processes itself, unless a launcher started this one: then only process 0 has rows (the others None).
    Missing where mpi4py, a launcher or a compiler is.
    """
    how = How(mpiexec, compiler, timeout)
    return run_schedule("mpi", Runnable(schedule), nbytes, dtype, op, seed, repeat, in_place, how)
