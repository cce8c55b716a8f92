"""Runs a schedule under MPI: one process per rank, the native engine, every element checked (docs/mpi.md)."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from antiphon.core.collective import Collective
from antiphon.core.datatypes import combine_of, data_type
from antiphon.core.interpret import busbw_factor
from antiphon.core.program import encode
from antiphon.core.schedule import Schedule
from antiphon.errors import AntiphonError, Invalid, Missing, Unsupported, unknown
from antiphon.lower.program import lower
from antiphon.run import _mpi_process as process
from antiphon.run._build import library
from antiphon.run._launch import HELP, Failed, launched, launcher, processes, unfit, watch
from antiphon.run._mpi_process import Case, Job
from antiphon.units import parse_size

Row = dict[str, Any]


def build(what: str, compiler: str = "") -> Path:
    """The native engine for an MPI, compiled where that has not been done yet: where the library is."""
    if what == "nccl":
        raise Unsupported("build nccl is not there yet; antiphon build mpi is")
    if what != "mpi":
        raise unknown("library to build", what, ["mpi", "nccl"])
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
    """Run a schedule on random data of each size, among as many MPI processes as it has ranks with work to do.

    Starts the processes itself, unless a launcher started this one: then only process 0 has rows (the others None).
    One row per size: nbytes, seconds (median over `repeat` runs of what the slowest process took), algbw, busbw,
    reference_seconds (the library's own collective, in turn with ours; None where it has none), ratio (median of the
    pairs), correct, wrong, messages, dtype, op, in_place. Missing where mpi4py, a launcher or a compiler is.
    """
    sizes = [nbytes] if isinstance(nbytes, int | str) else list(nbytes)
    kind, _ = data_type(dtype), combine_of(op)
    if kind.kind == "O":
        raise Invalid("data type: object has no size in bytes; choose a type of NCCL, like float32")
    if repeat < 1:
        raise Invalid(f"repeat: expected 1 or more runs, got {repeat}")
    require_mpi()
    inside = launched()
    if inside:
        processes(None)
        from mpi4py import MPI

        if MPI.COMM_WORLD.rank:  # process 0 knows all that is to be done
            process.follow(MPI, MPI.COMM_WORLD)
            return None
    try:
        cases, data = _prepared(schedule, sizes, kind.name, op, seed, repeat, in_place)
        found = run_cases([data], cases, mpiexec=mpiexec, compiler=compiler, timeout=timeout)
    except BaseException:
        if inside:
            process.dismiss()
        raise
    return [_row(case, row, schedule.collective) for case, row in zip(cases, found, strict=True)]


def _prepared(
    schedule: Schedule, sizes: Sequence[int | str], dtype: str, op: str, seed: int, repeat: int, in_place: bool
) -> tuple[list[Case], bytes]:
    collective = schedule.collective
    ranks = taking_part(schedule)
    weight = collective.buffer_weight * data_type(dtype).itemsize
    units = [parse_size(size, "nbytes") // weight for size in sizes]
    cases = [Case(0, ranks, unit, unit * weight, dtype, op, in_place, seed, repeat) for unit in units]
    return cases, encode([lower(schedule, in_place=in_place)])


def require_mpi() -> None:
    if find_spec("mpi4py") is None:
        raise Missing(f"to run under MPI needs the package mpi4py: {HELP}")


def taking_part(schedule: Schedule) -> list[int]:
    """The ranks with anything to do: members, and those that relay. Process i is the i-th of them."""
    used = np.unique(np.concatenate([schedule.src, schedule.dst]))
    return sorted({*schedule.collective.members, *used.tolist()})


def run_cases(
    programs: Sequence[bytes],
    cases: Sequence[Case],
    *,
    mpiexec: str = "",
    compiler: str = "",
    timeout: float = 600.0,
    progress: Callable[[Row], None] | None = None,
) -> list[Row]:
    """Many runs in one launch: starting processes costs more than a run. What `_mpi_process` tells of each case."""
    require_mpi()
    count = max(len(case.ranks) for case in cases)
    job = Job(str(library("mpi", compiler)), count, list(programs), list(cases))
    said: list[Row] = []

    def heard(row: Row) -> None:
        said.append(row)
        if progress is not None:
            progress(row)

    if launched():
        from mpi4py import MPI

        process.work(job, MPI, MPI.COMM_WORLD, heard)
        return _found(said, count, "the launcher")
    command = launcher(mpiexec, count)
    with tempfile.TemporaryDirectory(prefix="antiphon-") as folder:
        job.write(Path(folder))
        own = [sys.executable, "-m", "antiphon.run._mpi_process", folder]
        try:
            watch([*command, *own], heard, timeout)
        except Failed:
            _found(said, count, command[0])  # a fault that was told says more
            raise
    rows = _found(said, count, command[0])
    if len(rows) != len(cases):
        raise Failed(f"{command[0]} ended after {len(rows)} of {len(cases)} runs")
    return rows


def _found(said: Sequence[Row], count: int, program: str) -> list[Row]:
    for row in said:
        if row.get("fault") == process.SMALL:
            if program == "the launcher" and row["processes"] > 1:
                raise Invalid(
                    f"the launcher started {row['processes']} processes, this needs {count}: mpiexec -n {count} ..."
                )
            raise unfit(program, row["processes"], count)
        if "fault" in row:
            kinds: dict[str, type[AntiphonError]] = {"Missing": Missing, "Unsupported": Unsupported, "Invalid": Invalid}
            raise kinds.get(row["kind"], Failed)(row["fault"])
    return list(said)


def _row(case: Case, row: Row, collective: Collective) -> Row:
    seconds = row["seconds"]
    return {
        "nbytes": case.nbytes,
        "seconds": seconds,
        "algbw": case.nbytes / seconds,
        "busbw": case.nbytes / seconds * busbw_factor(collective),
        "reference_seconds": row["reference_seconds"],
        "ratio": row["ratio"],
        "correct": row["wrong"] == 0,
        "wrong": row["wrong"],
        "messages": row["messages"],
        "dtype": case.dtype,
        "op": case.op,
        "in_place": case.in_place,
    }
