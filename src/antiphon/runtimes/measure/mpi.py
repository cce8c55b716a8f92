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

from antiphon.errors import AntiphonError, Invalid, Missing, Unsupported
from antiphon.runtimes.engine.build import library
from antiphon.runtimes.engine.launch import (
    HELP,
    Failed,
    count_processes,
    found_launcher,
    is_launched,
    launcher_command,
    launcher_mismatch,
    watch,
)
from antiphon.runtimes.measure import mpi_process as process
from antiphon.runtimes.measure.case import Case, How, Row, RowCallback, Runnable, Runtime, Stop, never
from antiphon.runtimes.measure.mpi_process import Job


class Mpi(Runtime):
    """Run all cases in one launch, unless a launcher started this process."""

    def ready(self, how: How) -> None:
        require_mpi()
        if not is_launched():
            found_launcher(how.mpiexec)
        library("mpi", how.compiler)

    def first(self) -> AbstractContextManager[bool]:
        return first_process()

    def run(
        self, programs: Sequence[Runnable], cases: Sequence[Case], how: How, on_row: RowCallback, enough: Stop = never
    ) -> None:
        def on_case_row(row: Row) -> None:
            on_row(int(row["case"]), {key: value for key, value in row.items() if key != "case"})

        run_cases(
            [runnable.data for runnable in programs], cases, mpiexec=how.mpiexec, compiler=how.compiler,
            timeout=how.timeout, progress=on_case_row, enough=enough,
        )  # fmt: skip


def require_mpi() -> None:
    if find_spec("mpi4py") is None:
        raise Missing(f"to run under MPI needs the package mpi4py: {HELP}")


@contextmanager
def first_process() -> Iterator[bool]:
    """Yield whether this process decides what runs: True without a launcher, and in process 0 of a launch.

    The others first take part in everything that process 0 runs within its own context, then yield False."""
    require_mpi()
    if not is_launched():
        yield True
        return
    count_processes(None)
    from mpi4py import MPI

    # Processes other than 0 serve process 0 until it dismisses them.
    if MPI.COMM_WORLD.rank:
        process.follow(MPI, MPI.COMM_WORLD)
        yield False
        return
    try:
        yield True
    except BaseException as error:
        process.dismiss(str(error))
        raise
    process.dismiss()


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
    `enough`: called before each case; if True, the remaining cases are skipped.
    """
    require_mpi()
    count = max(len(case.ranks) for case in cases)
    job = Job(str(library("mpi", compiler)), count, list(programs), list(cases))
    rows: list[Row] = []

    def add_row(row: Row) -> None:
        rows.append(row)
        if progress is not None and "fault" not in row:
            progress(row)

    if is_launched():
        from mpi4py import MPI

        process.work(job, MPI, MPI.COMM_WORLD, add_row, enough)
        return _raise_fault(rows, count, "the launcher")

    def add_row_here(row: Row) -> bool:
        add_row(row)
        return enough() and len(rows) < len(cases)

    command = launcher_command(mpiexec, count)
    with tempfile.TemporaryDirectory(prefix="antiphon-") as folder:
        job.write(Path(folder))
        script = [sys.executable, "-m", "antiphon.runtimes.measure.mpi_process", folder]
        try:
            complete = watch([*command, *script], add_row_here, timeout)
        except Failed:
            _raise_fault(rows, count, command[0])  # a reported fault says more
            raise
    all_rows = _raise_fault(rows, count, command[0])
    if complete and len(all_rows) != len(cases):
        raise Failed(f"{command[0]} ended after {len(all_rows)} of {len(cases)} runs")
    return all_rows


def _raise_fault(rows: Sequence[Row], count: int, program: str) -> list[Row]:
    """Raise the fault that a row reports, if any; return the rows."""
    for row in rows:
        if row.get("fault") == process.SMALL:
            if program == "the launcher" and row["processes"] > 1:
                raise Invalid(
                    f"the launcher started {row['processes']} processes, this needs {count}: mpiexec -n {count} ..."
                )
            raise launcher_mismatch(program, row["processes"], count)
        if "fault" in row:
            kinds: dict[str, type[AntiphonError]] = {"Missing": Missing, "Unsupported": Unsupported, "Invalid": Invalid}
            raise kinds.get(row["kind"], Failed)(row["fault"])
    return list(rows)
