"""Under the preloaded library: what the MPI standard allows around collectives, by a program of our own."""

from pathlib import Path

import pytest
from mpi_env import Mpi
from test_preload import Run, compiled, folder, table

__all__ = ["folder"]


def standard(mpi: Mpi, folder: Path, ranks: int, *parts: str, **settings: str) -> Run:
    command = [compiled(folder, mpi, "standard"), *parts]
    tables = [table(folder, count) for count in sorted({ranks, 2}, reverse=True)]
    run = Run(mpi, folder, ranks, command, tables, seconds=900, ANTIPHON_LEAST="0", **settings).right()
    assert [line for line in run.warnings if "is for" not in line] == []  # those spawned are of another number
    return run


@pytest.mark.slow
def test_types_and_calls_between_groups(mpi: Mpi, folder: Path) -> None:
    """Types that go backwards, MPI_BOTTOM, and all calls between two groups."""
    run = standard(mpi, folder, 4, "types", "between")
    assert all(run.served(kind, 4) for kind in ("allgather", "alltoall", "scatter", "gather", "broadcast"))
    left = {text.partition(": ")[0] for text in run.left if text.endswith("one between two groups")}
    assert left == {"allreduce", "broadcast", "reduce", "allgather", "gather", "scatter", "alltoall"}


@pytest.mark.slow
@pytest.mark.parametrize("part", ["signals", "forks", "spawn", "threads"])
def test_what_goes_on_beside(mpi: Mpi, folder: Path, part: str) -> None:
    run = standard(mpi, folder, 4, part)
    if part == "threads" and run.report["served"] == []:
        pytest.skip("this MPI has no threads")
    wanted = {"signals": 5, "forks": 7, "spawn": 1, "threads": 30}[part]
    assert run.served("allreduce", 4) >= wanted


@pytest.mark.slow
def test_counts_beyond_an_int(mpi: Mpi, folder: Path) -> None:
    run = standard(mpi, folder, 2, "large")
    by_int = run.served("broadcast", 2) == 0  # this MPI has no large counts: bytes are beyond
    rows = {row["collective"]: row["to"] for row in run.report["served"]}
    assert rows["allreduce"] == (4 * (2**29 + 1025) if by_int else 2**31 + 4099)
    assert by_int or rows["broadcast"] == 2**31 + 4099


ALONE = """
import numpy as np
from mpi4py import MPI
comm = MPI.COMM_WORLD
total = np.zeros(1000)
comm.Allreduce(np.full(1000, comm.rank + 1.0), total)
assert (total == sum(range(comm.size + 1))).all()
given = np.repeat(np.arange(comm.size), 500) + 10 * comm.rank
out = np.zeros_like(given)
comm.Alltoall(given, out)
assert (out == np.repeat(10 * np.arange(comm.size), 500) + comm.rank).all()
if comm.rank == 0:
    print("right")
"""


@pytest.mark.slow
def test_processes_of_one_host_that_cannot_share_memory(mpi: Mpi, folder: Path) -> None:
    """As where they are on several hosts."""
    shim = compiled(folder, mpi, "no_memory", "-shared", "-fPIC")
    command = [mpi.python, "-c", ALONE]
    run = Run(mpi, folder, 3, command, [table(folder, 3)], ANTIPHON_LEAST="0", FIRST=shim).right()
    assert run.served("allreduce", 3) == run.served("alltoall", 3) == 1
    assert run.left == {}
    assert run.warnings == []


LATE = """
import numpy as np
from mpi4py import MPI
comm, told = MPI.COMM_WORLD.Dup(), MPI.COMM_WORLD.Dup()
comm.Set_errhandler(MPI.ERRORS_RETURN)
code = 0
if comm.rank:
    told.recv(source=0)
try:
    comm.Allreduce(np.ones(100), np.ones(100))
except MPI.Exception as error:
    code = error.Get_error_class()
print("told" if code == MPI.ERR_OTHER else code, flush=True)
if comm.rank:
    MPI.COMM_WORLD.Abort(3)
told.send(1, dest=1)
import time; time.sleep(60)
"""


@pytest.mark.slow
def test_a_first_call_that_somebody_makes_late(mpi: Mpi, folder: Path) -> None:
    """What is made ready for it waits no longer than a call may, nor does who comes when the others have given up."""
    command, tables = [mpi.python, "-c", LATE], [table(folder, 2)]
    run = Run(mpi, folder, 2, command, tables, seconds=100, ANTIPHON_LEAST="0", ANTIPHON_TIMEOUT="0.5")
    assert run.done.stdout.startswith("told")
    assert run.done.stdout.count("told") == 2
    assert run.done.stderr.count("not all of its processes have come") == 2
    assert "ANTIPHON_TIMEOUT" in run.done.stderr
