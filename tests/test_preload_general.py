"""Calls under the preloaded library that no plan is for: blocks of different sizes, prefixes, any operator."""

from __future__ import annotations

from pathlib import Path

import pytest
from mpi_env import Mpi
from test_preload import PLANNERS, Run, compiled, folder, table

import antiphon
from antiphon.core.plan import Entry, Plan
from antiphon.select import save_plans

__all__ = ["folder"]
WAY = "all with all"
KINDS = ["allgatherv", "alltoallv", "gatherv", "scatterv", "scan", "exscan", "reducescatter", "allreduce", "reduce"]


def general(
    mpi: Mpi, folder: Path, ranks: int, *arguments: str, tables: list[Path] | None = None, **settings: str
) -> Run:
    command = [compiled(folder, mpi, "general"), *arguments]
    given = [table(folder, ranks)] if tables is None else tables
    return Run(mpi, folder, ranks, command, given, **{"ANTIPHON_LEAST": "0", **settings}).right()


def check(mpi: Mpi, folder: Path, ranks: int, seed: int, turns: int) -> Run:
    run = general(mpi, folder, ranks, str(seed), str(turns))
    assert run.warnings == []
    served = run.by(WAY)
    assert sorted(served) == sorted(KINDS)
    assert (served["alltoallv"], served["gatherv"], served["scatterv"]) == (8 * turns,) * 3
    left = {reason for reason in run.left if "no plan is for it" not in reason and "there is no data" not in reason}
    forms = {"allreduce: it does not wait", "alltoallw: each of its blocks has a type"}
    assert left in (forms, forms | {"scan: it is persistent"})  # of MPI 4
    return run


def test_all_of_them(openmpi: Mpi, folder: Path) -> None:
    check(openmpi, folder, 3, 1, 2)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3, 5, 8])
@pytest.mark.parametrize("which", ["openmpi", "mpich"])
def test_many_of_them(request: pytest.FixtureRequest, folder: Path, which: str, ranks: int) -> None:
    check(request.getfixturevalue(which), folder, ranks, 10 * ranks, 6)


@pytest.mark.slow
@pytest.mark.parametrize("which", ["openmpi", "mpich"])
def test_without_shared_memory_they_are_left_to_the_library(
    request: pytest.FixtureRequest, folder: Path, which: str
) -> None:
    """But for blocks that are all alike, which plans are for."""
    run = general(request.getfixturevalue(which), folder, 3, "1", "2", "loose", "same", ANTIPHON_SHARED="0")
    assert run.by(WAY) == {}
    assert run.served("allgather", 3) > 0
    assert run.left["alltoallv: no plan is for it, and not all of its processes share memory"] == 16


@pytest.mark.slow
def test_a_table_that_does_not_serve_every_size(openmpi: Mpi, folder: Path) -> None:
    """How much goes from one process to another only these two know."""
    machine = antiphon.topology("full:ranks=2")
    plans = {kind: antiphon.plan(kind, machine, planner=PLANNERS[kind]) for kind in ("alltoall", "gather")}
    one = plans["alltoall"].at(0)
    entries = (Entry(0, 1000, one.schedule, {"served_by": "library"}), Entry(1000, None, one.schedule, one.claims))
    plans["alltoall"] = Plan(machine, one.schedule.collective, entries)
    path = folder / "some-sizes.json"
    save_plans(path, plans, table=True)
    run = general(openmpi, folder, 2, "1", "1", "loose", tables=[path])
    assert run.by(WAY) == {"gatherv": 8}
    assert run.left["alltoallv: its size is not known to all, and the table does not serve every size"] == 8
    assert run.left["scatterv: its size is not known to all, and the table does not serve every size"] == 8


LONG_BLOCKS = """
import sys, numpy as np
from mpi4py import MPI
for comm in (MPI.COMM_WORLD, MPI.COMM_WORLD.Dup()):
    me, size = comm.rank, comm.size
    kinds = [0, 100, (1 << 19) - 1, 1 << 19, 700001]
    def count(i, j, turn):
        return kinds[(i + j + turn) % len(kinds)]  # the same both ways, as in place wants it
    def block(i, j, n):
        return (np.arange(n) % 241 + 7 * i + j).astype(np.uint8)
    for turn in range(5):
        counts = [count(me, j, turn) for j in range(size)]
        at = np.concatenate([[0], np.cumsum(counts)[:-1]])
        given = np.concatenate([block(me, j, counts[j]) for j in range(size)])
        wanted = np.concatenate([block(j, me, counts[j]) for j in range(size)])
        out = np.zeros_like(given)
        comm.Alltoallv([given, (counts, at), MPI.BYTE], [out, (counts, at), MPI.BYTE])
        assert (out == wanted).all(), (me, turn)
        comm.Alltoallv(MPI.IN_PLACE, [given, (counts, at), MPI.BYTE])
        assert (given == wanted).all(), (me, turn, "in place")
if me == 0:
    print("right")
"""


@pytest.mark.slow
@pytest.mark.parametrize("which", ["openmpi", "mpich"])
def test_long_and_short_blocks_of_one_call(request: pytest.FixtureRequest, folder: Path, which: str) -> None:
    """Some go through memory, others by MPI, and each process has another mixture."""
    mpi = request.getfixturevalue(which)
    path = table(folder, 3)
    run = Run(mpi, folder, 3, [mpi.python, "-c", LONG_BLOCKS], [path], ANTIPHON_LEAST="0").right()
    assert run.by(WAY) == {"alltoallv": 20}
    assert run.warnings == []
