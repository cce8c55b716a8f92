"""Runs a schedule under MPI: one process per rank, the native engine, every element checked (docs/mpi.md)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from antiphon.core.collective import Collective
from antiphon.core.datatypes import data_type
from antiphon.core.interpret import busbw_factor
from antiphon.core.program import encode
from antiphon.core.schedule import Schedule
from antiphon.errors import Unsupported, unknown
from antiphon.lower.program import lower
from antiphon.run._build import library
from antiphon.run._case import asked
from antiphon.run._mpi_job import first_process, run_cases, taking_part
from antiphon.run._mpi_process import Case
from antiphon.units import parse_size

Row = dict[str, Any]


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
    """Run a schedule on random data of each size, among as many MPI processes as it has ranks with work to do.

    Starts the processes itself, unless a launcher started this one: then only process 0 has rows (the others None).
    One row per size: nbytes, seconds (median over `repeat` runs of what the slowest process took), algbw, busbw,
    reference_seconds (the library's own collective, in turn with ours; None where it has none), ratio (median of the
    pairs), correct, wrong, messages, dtype, op, in_place. Missing where mpi4py, a launcher or a compiler is.
    """
    sizes, kind = asked(nbytes, dtype, op, repeat)
    with first_process() as first:
        if not first:
            return None
        cases, data = _prepared(schedule, sizes, kind.name, op, seed, repeat, in_place)
        found = run_cases([data], cases, mpiexec=mpiexec, compiler=compiler, timeout=timeout)
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
