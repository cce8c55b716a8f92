"""The runtime `mpi`: processes of an MPI library, beside its own collectives. One launch serves many cases.

If the command itself was started by mpiexec or srun, its processes are used: process 0 decides what runs, the others
`follow` it (`mpi_process`). Otherwise this process starts a launcher, hands the job over in a folder of temporary
files, and reads a row per case from the output.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from antiphon.errors import AntiphonError, Invalid, Missing, Unsupported
from antiphon.runtimes.engine.build import library
from antiphon.runtimes.engine.launch import (
    HELP,
    Failed,
    find_launcher,
    import_mpi_to_measure,
    is_launched,
    launcher_command,
    launcher_mismatch,
    watch,
)
from antiphon.runtimes.measure import mpi_process as process
from antiphon.runtimes.measure.case import Case, How, Row, RowCallback, Runnable, Runtime, Stop, never
from antiphon.runtimes.measure.mpi_process import MpiJob

LAUNCHER = "the launcher"  # in messages, the program by which the user started this process


class Mpi(Runtime):
    """Run all cases in one launch, or in the processes of a launcher that started this one."""

    def ready(self, how: How) -> None:
        require_mpi()
        if not is_launched():
            find_launcher(how.mpiexec)
        library("mpi", how.compiler)

    def first(self) -> AbstractContextManager[bool]:
        return first_process()

    def run(
        self, programs: Sequence[Runnable], cases: Sequence[Case], how: How, on_row: RowCallback, enough: Stop = never
    ) -> None:
        run_cases(
            [runnable.data for runnable in programs], cases, mpiexec=how.mpiexec, compiler=how.compiler,
            timeout=how.timeout, progress=split_row(on_row), enough=enough,
        )  # fmt: skip


def split_row(on_row: RowCallback) -> Callable[[Row], None]:
    """Return a function that takes a row of a process, and calls `on_row` with the number of its case and the rest."""
    return lambda row: on_row(int(row["case"]), {key: value for key, value in row.items() if key != "case"})


def require_mpi() -> None:
    if find_spec("mpi4py") is None:
        raise Missing(f"to run under MPI needs the package mpi4py: {HELP}")


def world_of_mpi() -> tuple[Any, Any] | None:
    """Return mpi4py's MPI and the communicator of the processes that a launcher started; None without one."""
    require_mpi()
    if not is_launched():
        return None
    mpi = import_mpi_to_measure()
    return mpi, mpi.COMM_WORLD


@contextmanager
def first_process(world_of: Callable[[], tuple[Any, Any] | None] = world_of_mpi) -> Iterator[bool]:
    """Yield whether this process decides what runs: True without a launcher, and in process 0 of a launch.

    All other processes first take part in everything that process 0 runs in its `with` block, then yield False."""
    launched = world_of()
    if launched is None:
        yield True
        return
    mpi, world = launched
    # Processes other than 0 serve process 0 until it dismisses them.
    if world.rank:
        process.follow(mpi, world)
        yield False
        return
    try:
        yield True
    except BaseException as error:
        process.dismiss(world, str(error))
        raise
    process.dismiss(world)


def run_cases(
    programs: Sequence[bytes],
    cases: Sequence[Case],
    *,
    mpiexec: str = "",
    compiler: str = "",
    timeout: float = 600.0,
    progress: Callable[[Row], None] | None = None,
    enough: Callable[[], bool] = lambda: False,
) -> list[Row]:
    """Run the cases and return their rows; `progress` gets each row at once.

    Starts the processes itself, unless a launcher started this one, as process 0: then call it within `first_process`.
    `enough`: called before each group of cases; if True, the remaining cases are skipped.
    """
    count = max(len(case.ranks) for case in cases)
    job = MpiJob(str(library("mpi", compiler)), count, list(programs), list(cases))
    return run_job(job, process.__name__, mpiexec=mpiexec, timeout=timeout, progress=progress, enough=enough)


def run_job(
    job: MpiJob, module: str, *, mpiexec: str, timeout: float, progress: Callable[[Row], None] | None,
    enough: Callable[[], bool], world_of: Callable[[], tuple[Any, Any] | None] = world_of_mpi,
) -> list[Row]:  # fmt: skip
    """Run the job in the processes of `world_of`, else in processes of `module` that a launcher starts."""
    cases, count, rows, launched = job.cases, job.processes, list[Row](), world_of()

    def add_row(row: Row) -> None:
        rows.append(row)
        if progress is not None and "fault" not in row:
            progress(row)

    if launched is not None:
        process.work(job, *launched, add_row, enough)
        return _raise_fault(rows, count, LAUNCHER)

    def add_row_here(row: Row) -> bool:
        """Add a row; return whether to stop the processes early. After the last row they end by themselves."""
        add_row(row)
        return enough() and len(rows) < len(cases)

    command = launcher_command(mpiexec, count)
    with tempfile.TemporaryDirectory(prefix="antiphon-") as folder:
        job.write(Path(folder))
        script = [sys.executable, "-m", module, folder]
        try:
            # false if `add_row_here` stopped the processes early
            complete = watch([*command, *script], add_row_here, timeout)
        except Failed:
            _raise_fault(rows, count, command[0])  # a reported fault says more
            raise
    all_rows = _raise_fault(rows, count, command[0])
    if complete and len(all_rows) != len(cases):
        raise Failed(f"{command[0]} ended after {len(all_rows)} of {len(cases)} runs")
    return all_rows


def _raise_fault(rows: Sequence[Row], count: int, program: str) -> list[Row]:
    """Raise the fault that a row reports, if any; return the rows.

    `count`: processes needed; `program`: what started the processes, for messages."""
    for row in rows:
        if row.get("fault") == process.TOO_FEW:
            if program == LAUNCHER and row["processes"] > 1:
                raise Invalid(
                    f"the launcher started {row['processes']} processes, this needs {count}: mpiexec -n {count} ..."
                )
            raise launcher_mismatch(program, row["processes"], count)
        if "fault" in row:
            kinds: dict[str, type[AntiphonError]] = {"Missing": Missing, "Unsupported": Unsupported, "Invalid": Invalid}
            raise kinds.get(row["kind"], Failed)(row["fault"])
    return list(rows)
