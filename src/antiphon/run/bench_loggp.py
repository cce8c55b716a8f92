"""Measurements for `fit loggp`, over real MPI: parametrized round trips between two ranks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from importlib.util import find_spec
from typing import Any

from antiphon.cost.fit import RoundTrip
from antiphon.errors import Invalid, Missing
from antiphon.run._launch import HELP, Failed, launched, launcher, processes, unfit, watch
from antiphon.run._loggp_mpi import SMALL, WRONG, Task, as_argument
from antiphon.run._loggp_mpi import run as run_process
from antiphon.units import format_seconds, format_size

SIZES = tuple(2**i for i in range(21))  # 1 B to 1 MiB
LARGEST, MOST_BUFFERS, MOST_MESSAGES = 2**30, 2**32, 4096
KINDS = 4  # rows for every size and repetition


def bench_loggp(
    sizes: Sequence[int] = SIZES,
    *,
    n: int = 16,
    repetitions: int = 7,
    iterations: int = 20,
    warmup: int = 3,
    mpiexec: str = "",
    timeout: float = 600.0,
    progress: Callable[[str], None] | None = None,
) -> list[RoundTrip] | None:
    """PRTT(1,0,s), PRTT(n,0,s), PRTT(n,d,s) and the receiver's side between two MPI processes, for each size.

    d covers the gap (o_s + d >= g + (s-1) G) and is the delay there really was. Each row is the median of `iterations`
    runs; all sizes are measured once before any is measured again. What arrives is checked in every byte. Starts the
    processes itself, unless a launcher started this one: then only rank 0 has rows (the other None). Missing where
    mpi4py or a launcher is.
    """
    if find_spec("mpi4py") is None:
        raise Missing(f"bench on mpi needs the package mpi4py: {HELP}")
    task = _task(sizes, n, repetitions, iterations, warmup)
    inside = launched()
    if inside and (there := processes(None)) != task.expected:
        raise Invalid(f"the launcher started {there} processes: this is measured between 2; give it -n 2")
    said: list[dict[str, Any]] = []

    def heard(row: dict[str, Any]) -> None:
        said.append(row)
        if progress is not None and row.get("kind") == "server":
            turn = (len(said) // KINDS - 1) // len(task.sizes) + 1
            one = format_seconds(said[-KINDS]["seconds"] / 2)
            progress(f"{format_size(row['nbytes'])}: {one} one way (repetition {turn} of {task.repetitions})")

    if inside:
        return _rows(said, "the launcher") if run_process(task, heard) else None
    command = launcher(mpiexec, task.expected)
    watch([*command, sys.executable, "-m", "antiphon.run._loggp_mpi", as_argument(task)], heard, timeout)
    found, wanted = _rows(said, command[0]), KINDS * len(task.sizes) * task.repetitions
    if len(found) != wanted:
        raise Failed(f"{command[0]} ended after {len(found)} of {wanted} measurements")
    return found


def _task(sizes: Sequence[int], n: int, repetitions: int, iterations: int, warmup: int) -> Task:
    whole = list(dict.fromkeys(sizes))
    if not whole or not 1 <= min(whole) <= max(whole) <= LARGEST:
        raise Invalid(f"nbytes: expected sizes from 1 byte to {format_size(LARGEST)}")
    if not 2 <= n <= MOST_MESSAGES or n * max(whole) > MOST_BUFFERS:
        raise Invalid(
            f"messages: expected 2 to {MOST_MESSAGES}, and at most {format_size(MOST_BUFFERS)} together, got {n} of "
            f"{format_size(max(whole))}"
        )
    if repetitions < 1 or iterations < 1 or warmup < 0:
        raise Invalid(
            "repetitions, iterations and warm-up: expected 1 or more, 1 or more and 0 or more, got "
            f"{repetitions}, {iterations} and {warmup}"
        )
    return Task(whole, n, repetitions, iterations, warmup)


def _rows(said: Iterable[dict[str, Any]], program: str) -> list[RoundTrip]:
    found = []
    for row in said:
        if row.get("fault") == SMALL:
            raise unfit(program, row["processes"], 2)
        if row.get("fault") == WRONG:
            raise Failed(
                f"messages of {format_size(row['nbytes'])} did not arrive as they were sent: this MPI lost data"
            )
        found.append(RoundTrip(row["kind"], row["n"], row["delay"], row["nbytes"], row["seconds"]))
    return found
