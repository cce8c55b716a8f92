"""Many runs under MPI in one launch: starting processes costs more than a run."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from antiphon.errors import AntiphonError, Invalid, Missing, Unsupported
from antiphon.runtimes.engine.build import library
from antiphon.runtimes.engine.launch import HELP, Failed, launched, launcher, processes, unfit, watch
from antiphon.runtimes.measure import mpi_process as process
from antiphon.runtimes.measure.case import Case, Row
from antiphon.runtimes.measure.mpi_process import Job


def require_mpi() -> None:
    if find_spec("mpi4py") is None:
        raise Missing(f"to run under MPI needs the package mpi4py: {HELP}")


@contextmanager
def first_process() -> Iterator[bool]:
    """Whether this process decides what is run: True where no launcher started it, and in process 0 of those that one
    started. In the others False, when they have taken part in all that process 0 ran within its own `with`."""
    require_mpi()
    if not launched():
        yield True
        return
    processes(None)
    from mpi4py import MPI

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
    """What `_mpi_process` tells of each case; `progress` hears it at once.

    Starts the processes itself, unless a launcher started this one, as process 0: then within `first_process`.
    `enough`: asked before each case whether to leave the rest out.
    """
    require_mpi()
    count = max(len(case.ranks) for case in cases)
    job = Job(str(library("mpi", compiler)), count, list(programs), list(cases))
    said: list[Row] = []

    def heard(row: Row) -> None:
        said.append(row)
        if progress is not None and "fault" not in row:
            progress(row)

    if launched():
        from mpi4py import MPI

        process.work(job, MPI, MPI.COMM_WORLD, heard, enough)
        return _faultless(said, count, "the launcher")

    def heard_here(row: Row) -> bool:
        heard(row)
        return enough() and len(said) < len(cases)

    command = launcher(mpiexec, count)
    with tempfile.TemporaryDirectory(prefix="antiphon-") as folder:
        job.write(Path(folder))
        own = [sys.executable, "-m", "antiphon.runtimes.measure.mpi_process", folder]
        try:
            to_the_end = watch([*command, *own], heard_here, timeout)
        except Failed:
            _faultless(said, count, command[0])  # a fault that was told says more
            raise
    rows = _faultless(said, count, command[0])
    if to_the_end and len(rows) != len(cases):
        raise Failed(f"{command[0]} ended after {len(rows)} of {len(cases)} runs")
    return rows


def _faultless(said: Sequence[Row], count: int, program: str) -> list[Row]:
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
