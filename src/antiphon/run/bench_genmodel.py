"""Measurements for `fit genmodel`, over real MPI: co-located parameter servers, x to x, and rings."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from importlib.util import find_spec
from json import loads
from pathlib import Path
from typing import Any

from antiphon.cost.fit import Measured, plan_of
from antiphon.errors import AntiphonError, Invalid, Missing, TimedOut, quote, unknown
from antiphon.run._genmodel_mpi import MARK, PLANS, SMALL, WRONG, Task, as_argument
from antiphon.run._genmodel_mpi import run as run_process
from antiphon.units import format_seconds, format_size

Progress = Callable[[str], None]
HELP = "pip install 'antiphon[mpi]' (mpi4py and Open MPI)"
LAUNCHED = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK", "MPI_LOCALRANKID")
MOST_RANKS = 4096
_TAIL = 3  # lines of what a launcher said that are worth repeating


class Failed(AntiphonError):
    """The programs ran and did not do what they should."""

    exit_code = 1


def launched() -> bool:
    """Whether mpiexec or srun started this very process as one of several."""
    return any(name in os.environ for name in LAUNCHED)


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
    processes = _processes(ranks) if inside else 4 if ranks is None else ranks
    task = _task(processes, sizes, plans, iterations, warmup)
    said: list[dict[str, Any]] = []

    def heard(row: dict[str, Any]) -> None:
        said.append(row)
        if progress is not None and "plan" in row:
            size, seconds = format_size(row["nbytes"]), format_seconds(row["seconds"])
            progress(f"{row['plan']}, {row['ranks']} ranks, {size}: {seconds}")

    if inside:
        return _rows(said, processes, "the launcher") if run_process(task, heard) else None
    command = _launcher(mpiexec, processes)
    _watch([*command, sys.executable, "-m", "antiphon.run._genmodel_mpi", as_argument(task)], heard, timeout)
    found = _rows(said, processes, command[0])
    wanted = len(task.ranks) * len(task.plans) * len(task.sizes)
    if len(found) != wanted:
        raise Failed(f"{command[0]} ended after {len(found)} of {wanted} measurements")
    return found


def _task(processes: int, sizes: Sequence[int], plans: Sequence[str], iterations: int, warmup: int) -> Task:
    if not 2 <= processes <= MOST_RANKS:
        raise Invalid(f"ranks: expected 2 to {MOST_RANKS}, got {processes}")
    for plan in plans:
        if plan not in PLANS:
            raise unknown("plan", plan, PLANS)
    if not sizes or min(sizes) < 4:
        raise Invalid("nbytes: expected sizes from 4 bytes on (one float)")
    if iterations < 1 or warmup < 0:
        raise Invalid(f"iterations and warm-up: expected 1 or more and 0 or more, got {iterations} and {warmup}")
    whole = list(dict.fromkeys(size - size % 4 for size in sizes))
    return Task(processes, list(range(2, processes + 1)), whole, list(dict.fromkeys(plans)), iterations, warmup)


def _processes(ranks: int | None) -> int:
    from mpi4py import MPI

    there = int(MPI.COMM_WORLD.size)
    if ranks is not None and ranks != there:
        raise Invalid(f"-n {ranks}: the launcher started {there} processes; leave -n out")
    return there


def _launcher(given: str, processes: int) -> list[str]:
    """The command that starts so many processes; an option for what Open MPI would refuse."""
    command = shlex.split(given) if given else [_found()]
    if shutil.which(command[0]) is None:
        raise Missing(f"{quote(command[0])}: no such program; name another by --mpiexec, or {HELP}")
    return [*command, *([] if given else _consent(command[0], processes)), "-n", str(processes)]


def _found() -> str:
    beside = Path(sys.executable).with_name("mpiexec")
    path = str(beside) if beside.exists() else shutil.which("mpiexec")
    if path is None:
        raise Missing(f"bench on mpi needs mpiexec, which is not on the PATH: {HELP}")
    return path


def _consent(program: str, processes: int) -> list[str]:
    """Open MPI will neither run as root nor put several processes on a core unless told to."""
    try:
        told = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    if "open" not in told.stdout.lower() and "prte" not in told.stdout.lower():
        return []
    root = ["--allow-run-as-root"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return [*root, *(["--oversubscribe"] if processes > cores else [])]


def _watch(command: Sequence[str], heard: Callable[[dict[str, Any]], None], timeout: float) -> None:
    """Run it to its end; whatever ends this call early ends the processes as well."""
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        errors="replace", start_new_session=True,
    ) as process:  # fmt: skip
        late = threading.Event()

        def stop() -> None:
            late.set()
            _end(process)

        clock = threading.Timer(timeout, stop)
        clock.start()
        other: list[str] = []
        try:
            assert process.stdout is not None
            for line in process.stdout:
                before, mark, row = line.partition(MARK)
                if mark:
                    heard(loads(row))
                elif before.strip():
                    other = [*other[-_TAIL:], " ".join(before.split())]
            code = process.wait()
        finally:
            clock.cancel()
            _end(process)
    if late.is_set():
        raise TimedOut(
            f"{command[0]} was not done within {format_seconds(timeout)}; give --timeout more, or fewer sizes"
        )
    if code:
        raise Failed(f"{command[0]} failed with exit code {code}: {' / '.join(other[-_TAIL:]) or 'it said nothing'}")


def _end(process: subprocess.Popen[str]) -> None:
    """The launcher passes this on to what it started; what does not heed it is killed."""
    if process.poll() is not None:
        return
    try:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(5)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _rows(said: Iterable[dict[str, Any]], processes: int, launcher: str) -> list[Measured]:
    found = []
    for row in said:
        if row.get("fault") == SMALL:
            raise Missing(
                f"{launcher} and mpi4py do not fit together: {row['processes']} of {processes} processes found each "
                f"other; name the launcher of mpi4py's own MPI by --mpiexec, or {HELP}"
            )
        if row.get("fault") == WRONG:
            raise Failed(f"plan {row['plan']} on {row['ranks']} ranks gave a wrong result: this MPI lost or mixed data")
        found.append(Measured(plan_of(row["plan"], row["ranks"]), row["ranks"], row["nbytes"], row["seconds"]))
    return found
