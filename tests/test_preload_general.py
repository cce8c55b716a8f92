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


GAPS = """
import numpy as np
from mpi4py import MPI
comm = MPI.COMM_WORLD
me, size = comm.rank, comm.size
every = MPI.UNSIGNED_CHAR.Create_vector(1, 1, 2).Create_resized(0, 2).Commit()  # a byte, and one that is skipped
counts = [5 + i for i in range(size)]
at = np.concatenate([[0], np.cumsum(counts)[:-1]])
given = np.repeat(np.arange(size), counts[me]).astype(np.uint8) + 10 * me
out = np.full(2 * sum(counts), 255, np.uint8)
sent = ([counts[me]] * size, [counts[me] * i for i in range(size)])
comm.Alltoallv([given, sent, MPI.BYTE], [out, (counts, at), every])
wanted = np.concatenate([np.full(counts[i], 10 * i + me) for i in range(size)])
assert (out[::2] == wanted).all() and (out[1::2] == 255).all(), out
out[:] = 255
comm.Gatherv([np.full(counts[me], me, np.uint8), MPI.BYTE], [out, (counts, at), every] if me == 0 else None)
assert me or ((out[::2] == np.repeat(np.arange(size), counts)).all() and (out[1::2] == 255).all()), out
total = np.zeros(1000, np.complex128)
comm.Allreduce(np.full(1000, me + 1j), total)
assert (total == sum(range(size)) + size * 1j).all()
if me == 0:
    print("right")
"""


@pytest.mark.slow
@pytest.mark.parametrize("which", ["openmpi", "mpich"])
def test_processes_of_one_host_that_cannot_share_memory(
    request: pytest.FixtureRequest, folder: Path, which: str
) -> None:
    """As where they are on several hosts."""
    mpi = request.getfixturevalue(which)
    shim = compiled(folder, mpi, "no_memory", "-shared", "-fPIC")
    command = [mpi.python, "-c", GAPS]
    run = Run(mpi, folder, 3, command, [table(folder, 3)], ANTIPHON_LEAST="0", FIRST=shim).right()
    assert run.by(WAY) == {}
    assert set(run.left) == {
        f"{call}: no plan is for it, and not all of its processes share memory"
        for call in ("alltoallv", "gatherv", "allreduce")
    }
    assert run.warnings == []


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


UNLIKE = """
import sys, numpy as np
from mpi4py import MPI
comm = MPI.COMM_WORLD
comm.Set_errhandler(MPI.ERRORS_RETURN)
me, size = comm.rank, comm.size
LONG = 1 << 19
far = [(LONG + 9, LONG - 9), (LONG - 9, LONG + 9), (LONG + 9, LONG), (LONG, LONG + 9)]
near = [(100, 60), (60, 100), (20000, 30000), (30000, 20000), (0, 5), (5, 0)]
every = MPI.UNSIGNED_CHAR.Create_vector(1, 1, 2).Create_resized(0, 2).Commit()  # a byte, and one that is skipped

def block(i, j, n):
    return (np.arange(n) % 241 + 7 * i + j).astype(np.uint8)

def call(sent, expected, pair, gaps):
    # one process of the pair says that it sends so much, the other expects something else; all other blocks are of 10
    counts, gets = [10] * size, [10] * size
    if me == pair[0]: counts[pair[1]] = sent
    if me == pair[1]: gets[pair[0]] = expected
    at, to = (np.concatenate([[0], np.cumsum(c)[:-1]]) for c in (counts, gets))
    given = np.concatenate([block(me, j, counts[j]) for j in range(size)])
    out = np.full(sum(gets) * (2 if gaps else 1), 255, np.uint8)
    code = 0
    try:
        comm.Alltoallv([given, (counts, at), MPI.BYTE], [out, (gets, to), every if gaps else MPI.BYTE])
    except MPI.Exception as error:
        code = error.Get_error_class()
    long = me == pair[1] and sent > expected
    assert code == (MPI.ERR_TRUNCATE if long else 0), (me, sent, expected, pair, code)
    come = out[::2] if gaps else out
    assert not gaps or (out[1::2] == 255).all()
    for i in range(size):
        part = come[to[i] : to[i] + gets[i]]
        n = sent if me == pair[1] and i == pair[0] else 10
        if not (long and i == pair[0]):
            assert (part[:n] == block(i, me, n)).all() and (part[n:] == 255).all(), (me, i, sent, expected)

def rooted(sent, expected, pair, gathers):
    root, other = pair
    n = {root: expected, other: sent} if gathers else {root: sent, other: expected}
    counts = [10] * size
    counts[other] = n[root]
    one = 10 if me != other else n[other]
    at = np.concatenate([[0], np.cumsum(counts)[:-1]])
    all_of_them = np.full(sum(counts), 255, np.uint8)
    part = np.full(one, 255, np.uint8)
    if gathers:
        part[:] = block(me, root, one)
    elif me == root:
        all_of_them[:] = np.concatenate([block(root, j, counts[j]) for j in range(size)])
    code, every_one = 0, [all_of_them, (counts, at), MPI.BYTE] if me == root else None
    try:
        comm.Gatherv(part, every_one, root) if gathers else comm.Scatterv(every_one, part, root)
    except MPI.Exception as error:
        code = error.Get_error_class()
    wrong = me == (root if gathers else other) and sent > expected
    assert code == (MPI.ERR_TRUNCATE if wrong else 0), (me, sent, expected, pair, gathers, code)
    if gathers and me == root:
        for i in range(size):
            come, came = all_of_them[at[i] : at[i] + counts[i]], min(sent, expected) if i == other else 10
            assert (come[:came] == block(i, root, counts[i])[:came]).all() and (come[came:] == 255).all()
    if not gathers:
        came = min(sent, expected) if me == other else 10
        assert (part[:came] == block(root, me, one)[:came]).all() and (part[came:] == 255).all()

for sent, expected in far + near:
    for pair in ((0, 1), (2, 0)):
        for gathers in (True, False):
            rooted(sent, expected, pair, gathers)
            rooted(10, 10, pair, gathers)
    for pair in ((0, 1), (2, 0), (1, 1)):
        for gaps in (False, True):
            call(sent, expected, pair, gaps)
            call(10, 10, pair, gaps)
if me == 0:
    print("right")
"""


@pytest.mark.slow
@pytest.mark.parametrize("which", ["openmpi", "mpich"])
def test_two_that_say_different_lengths(request: pytest.FixtureRequest, folder: Path, which: str) -> None:
    """Less than is expected is taken; more is an error at who expects less, and all go on."""
    mpi = request.getfixturevalue(which)
    run = Run(mpi, folder, 3, [mpi.python, "-c", UNLIKE], [table(folder, 3)], ANTIPHON_LEAST="0").right()
    assert run.by(WAY) == {"alltoallv": 120, "gatherv": 40, "scatterv": 40}
    assert any("process 0 of the communicator sends 524297 bytes, of which 1 expects 524279" in w for w in run.warnings)


LATE = """
import sys, numpy as np
from mpi4py import MPI
comm = MPI.COMM_WORLD if sys.argv[1] == "world" else MPI.COMM_WORLD.Dup()
comm.Set_errhandler(MPI.ERRORS_RETURN)
code, told = 0, MPI.COMM_WORLD.Dup()
if comm.rank:
    told.recv(source=0)
    if sys.argv[2] == "never":
        MPI.COMM_WORLD.Abort(3)
try:
    if sys.argv[3] == "general":
        comm.Alltoallv([np.ones(20, np.uint8), [10, 10]], [np.ones(20, np.uint8), [10, 10]])
    else:
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
@pytest.mark.parametrize(
    ("comm", "when", "call"),
    [
        ("world", "never", "general"),
        ("copy", "never", "general"),
        ("copy", "late", "general"),
        ("copy", "late", "plan"),
    ],
)
@pytest.mark.parametrize("which", ["openmpi", "mpich"])
def test_a_first_call_that_somebody_does_not_make(
    request: pytest.FixtureRequest, folder: Path, which: str, comm: str, when: str, call: str
) -> None:
    """What is made ready for it waits no longer than a call may, nor does who comes when the others have given up."""
    mpi = request.getfixturevalue(which)
    command = [mpi.python, "-c", LATE, comm, when, call]
    tables = [table(folder, 2)]
    run = Run(mpi, folder, 2, command, tables, seconds=100, ANTIPHON_LEAST="0", ANTIPHON_TIMEOUT="0.5")
    assert run.done.stdout.startswith("told")
    assert run.done.stdout.count("told") == (2 if when == "late" else 1)
    assert run.done.stderr.count("not all of its processes have come") == run.done.stdout.count("told")
    assert "ANTIPHON_TIMEOUT" in run.done.stderr
