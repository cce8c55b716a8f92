"""Under the preloaded library: what the MPI standard allows around collectives, by a program of our own."""

from __future__ import annotations

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


def check_types(mpi: Mpi, folder: Path) -> None:
    """Types that go backwards, MPI_BOTTOM, and all calls between two groups."""
    run = standard(mpi, folder, 4, "types", "between")
    assert all(
        run.served(kind, 4) for kind in ("allgather", "alltoall", "scatter", "gather", "broadcast", "allgatherv")
    )
    left = {text.partition(": ")[0] for text in run.left if text.endswith("one between two groups")}
    assert left == {
        "allreduce", "broadcast", "reduce", "allgather", "gather", "scatter", "alltoall", "allgatherv", "alltoallv"
    }  # fmt: skip


@pytest.mark.slow
def test_types_and_calls_between_groups(openmpi: Mpi, folder: Path) -> None:
    check_types(openmpi, folder)


@pytest.mark.slow
def test_types_and_calls_between_groups_under_mpich(mpich: Mpi, folder: Path) -> None:
    check_types(mpich, folder)


@pytest.mark.slow
@pytest.mark.parametrize("which", ["openmpi", "mpich"])
@pytest.mark.parametrize("part", ["signals", "forks", "spawn", "threads"])
def test_what_goes_on_beside(request: pytest.FixtureRequest, folder: Path, which: str, part: str) -> None:
    run = standard(request.getfixturevalue(which), folder, 4, part)
    if part == "threads" and run.report["served"] == []:
        pytest.skip("this MPI has no threads")
    wanted = {"signals": 5, "forks": 7, "spawn": 1, "threads": 30}[part]
    assert run.served("allreduce", 4) >= wanted
    assert run.served("scan", 4) >= wanted


@pytest.mark.slow
@pytest.mark.parametrize("which", ["openmpi", "mpich"])
def test_counts_beyond_an_int(request: pytest.FixtureRequest, folder: Path, which: str) -> None:
    run = standard(request.getfixturevalue(which), folder, 2, "large")
    by_int = run.served("broadcast", 2) == 0  # this MPI has no large counts: bytes are beyond
    rows = {row["collective"]: row["to"] for row in run.report["served"]}
    assert rows["allreduce"] == (4 * (2**29 + 1025) if by_int else 2**31 + 4099)
    assert by_int or rows["broadcast"] == 2**31 + 4099
