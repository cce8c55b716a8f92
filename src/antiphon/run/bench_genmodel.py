"""Measurements for `fit genmodel`, over real MPI: co-located parameter servers, x to x, and rings."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from importlib.util import find_spec
from typing import Any

from antiphon.cost.fit import Measured, plan_of
from antiphon.errors import Invalid, Missing, unknown
from antiphon.run._genmodel_mpi import PLANS, SMALL, WRONG, Task, as_argument
from antiphon.run._genmodel_mpi import run as run_process
from antiphon.run._launch import HELP, Failed, launched, launcher, processes, unfit, watch
from antiphon.units import format_seconds, format_size

Progress = Callable[[str], None]
MOST_RANKS = 4096


def bench_genmodel(
    ranks: int | None = None,
    sizes: Sequence[int] = (2**18, 2**20, 2**22),
    *,
    plans: Sequence[str] = ("cps", "incast"),
    iterations: int = 20,
    warmup: int = 3,
    mpiexec: str = "",
    timeout: float = 600.0,
    progress: Progress | None = None,
) -> list[Measured] | None:
    """Time each plan among the first 2, 3, ... `ranks` MPI processes, for each size: medians of the slowest process.

    Starts the processes itself, unless a launcher started this one: then `ranks` is how many there are, and only
    rank 0 has rows (the others None). Results are checked in every element. Missing where mpi4py or a launcher is.
    """
    if find_spec("mpi4py") is None:
        raise Missing(f"bench on mpi needs the package mpi4py: {HELP}")
    inside = launched()
    count = processes(ranks) if inside else 4 if ranks is None else ranks
    task = _task(count, sizes, plans, iterations, warmup)
    said: list[dict[str, Any]] = []

    def heard(row: dict[str, Any]) -> None:
        said.append(row)
        if progress is not None and "plan" in row:
            size, seconds = format_size(row["nbytes"]), format_seconds(row["seconds"])
            progress(f"{row['plan']}, {row['ranks']} ranks, {size}: {seconds}")

    if inside:
        return _rows(said, count, "the launcher") if run_process(task, heard) else None
    command = launcher(mpiexec, count)
    watch([*command, sys.executable, "-m", "antiphon.run._genmodel_mpi", as_argument(task)], heard, timeout)
    found = _rows(said, count, command[0])
    wanted = len(task.ranks) * len(task.plans) * len(task.sizes)
    if len(found) != wanted:
        raise Failed(f"{command[0]} ended after {len(found)} of {wanted} measurements")
    return found


def _task(count: int, sizes: Sequence[int], plans: Sequence[str], iterations: int, warmup: int) -> Task:
    if not 2 <= count <= MOST_RANKS:
        raise Invalid(f"ranks: expected 2 to {MOST_RANKS}, got {count}")
    for plan in plans:
        if plan not in PLANS:
            raise unknown("plan", plan, PLANS)
    if not sizes or min(sizes) < 4:
        raise Invalid("nbytes: expected sizes from 4 bytes on (one float)")
    if iterations < 1 or warmup < 0:
        raise Invalid(f"iterations and warm-up: expected 1 or more and 0 or more, got {iterations} and {warmup}")
    whole = list(dict.fromkeys(size - size % 4 for size in sizes))
    return Task(count, list(range(2, count + 1)), whole, list(dict.fromkeys(plans)), iterations, warmup)


def _rows(said: Iterable[dict[str, Any]], count: int, program: str) -> list[Measured]:
    found = []
    for row in said:
        if row.get("fault") == SMALL:
            raise unfit(program, row["processes"], count)
        if row.get("fault") == WRONG:
            raise Failed(f"plan {row['plan']} on {row['ranks']} ranks gave a wrong result: this MPI lost or mixed data")
        found.append(Measured(plan_of(row["plan"], row["ranks"]), row["ranks"], row["nbytes"], row["seconds"]))
    return found
