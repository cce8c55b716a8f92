"""Jobs that lose a rank: all ranks fail in the call, if ANTIPHON_AGREE says so, and those that remain go on."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from mpi_env import Mpi
from test_comm import free_addresses
from test_preload import Run, compiled

import antiphon
from antiphon.runtimes.engine.watched import read_process


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Allreduces among four ranks, and among the other three without each of them."""
    file = tmp_path_factory.mktemp("tables") / "table.json"
    search = antiphon.Search(workers="none", failures="ranks")
    options: dict[str, Any] = {"nbytes": "64KB:4MB", "planners": ["trees", "relay"], "nccl": False}
    antiphon.tune("allreduce", "full:ranks=4", search=search, **options).save(file)
    return file


TRAINS = """
import os, sys, threading
from datetime import timedelta
import torch, torch.distributed as dist
import antiphon.torch
rank, port, how = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
store = dist.TCPStore("127.0.0.1", port, timeout=timedelta(seconds=60))
limit = timedelta(seconds=20)

def start(name, ranks):
    store_of_group = dist.PrefixStore(name, store)
    dist.init_process_group(
        "antiphon", store=store_of_group, rank=ranks.index(rank), world_size=len(ranks), timeout=limit
    )

def step():
    x = torch.full((250_000,), float(rank))
    dist.all_reduce(x)
    return x

start("all", [0, 1, 2, 3])
try:
    for call in range(1000):
        if rank == 1 and call == 3:  # ends during a call
            threading.Timer(0.001, os.kill, (os.getpid(), 9)).start()
        assert (step() == 6).all()
except dist.DistBackendError as error:
    print(rank, "error", flush=True)
if how == "abort":
    dist.group.WORLD.abort()
dist.destroy_process_group()
os.environ["ANTIPHON_DEAD"] = "1"
start("rest", [0, 2, 3])
for call in range(5):
    assert (step() == 5).all()
print(rank, *(row["schedule"].split()[0] for row in antiphon.torch.report()), flush=True)
dist.destroy_process_group()
"""


@pytest.fixture
def store() -> Any:
    """The store of a job, which does not end with any of its processes."""
    dist = pytest.importorskip("torch.distributed")
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60))


@pytest.mark.slow
@pytest.mark.parametrize("how", ["destroy", "abort"])
def test_three_of_four_processes_of_pytorch_go_on(table: Path, store: Any, how: str) -> None:
    environment = {**os.environ, "ANTIPHON_TABLE": str(table), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", TRAINS, str(rank), str(store.port), how],
            env={**environment, "OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(4)
    ]  # fmt: skip
    texts = [process.communicate(timeout=150) for process in processes]
    assert [process.returncode for process in processes] == [0, -9, 0, 0], texts
    assert [texts[rank][0] for rank in (0, 2, 3)] == [f"{rank} error\n{rank} trees\n" for rank in (0, 2, 3)]


@pytest.mark.slow
def test_three_of_four_processes_of_mpi_go_on(
    openmpi: Mpi, table: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    mpi = replace(openmpi, options=(*openmpi.options, "--with-ft", "ulfm"))
    folder = tmp_path_factory.getbasetemp() / "preload"
    folder.mkdir(exist_ok=True)
    watched = tmp_path / "calls"
    run = Run(
        mpi, folder, 4, [compiled(folder, openmpi, "shrink"), str(tmp_path / "dead")], [table], ANTIPHON_LEAST="0",
        ANTIPHON_TIMEOUT="5", ANTIPHON_DEAD=f"@{tmp_path / 'dead'}", ANTIPHON_WATCH=str(watched),
    )  # fmt: skip
    assert run.done.stdout == "right\n", run.done.stderr
    calls = [content for file in watched.iterdir() if (content := read_process(file))]
    assert sorted(content.rank for content in calls) == [0, 1, 2, 3]
    for content in calls:
        rows = [row for row in content.rows if row["nbytes"] == 400_000]
        groups = [(int(row["ranks"]), int(row["calls"]), row["schedule"].split()[0].decode()) for row in rows]
        assert groups == [(4, 5, "trees"), (3, 5, "trees")][: 1 if content.rank == 1 else 2]


NO_PLANS = "antiphon: no table has plans for what ANTIPHON_DEAD names; the MPI library does it all"


@pytest.mark.slow
@pytest.mark.parametrize(("known", "warnings"), [(",1,1,1", []), ("1,2,2,2", [NO_PLANS])])
def test_what_one_process_knows_to_be_dead_is_dead_for_all(
    openmpi: Mpi, table: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, known: str, warnings: list[str]
) -> None:
    """As if the file had changed while processes read it. Plans are for one failure, so none is for two."""
    folder = tmp_path_factory.getbasetemp() / "preload"
    folder.mkdir(exist_ok=True)
    for rank, dead in enumerate(known.split(",")):
        (tmp_path / str(rank)).write_text(dead)
    command = ["sh", "-c", 'exec "$1" 400000 9< "$0/$OMPI_COMM_WORLD_RANK"', str(tmp_path)]
    command.append(compiled(folder, openmpi, "small"))
    run = Run(openmpi, folder, 4, command, [table], ANTIPHON_DEAD="@/proc/self/fd/9")  # a file of its own per process
    assert run.right().warnings == warnings


BROADCASTS = """
import sys, time
import numpy as np
import antiphon
from antiphon.errors import AntiphonError
rank, x = int(sys.argv[1]), np.zeros(10)
with antiphon.comm.connect(rank=rank, ranks=3, address=sys.argv[2], timeout=60) as group:
    group.broadcast(x, root=0)
    group.timeout = 2
    time.sleep(4 if rank == 2 else 0)
    try:
        group.broadcast(x, root=0)
        print("right")
    except AntiphonError:
        print("error")
    time.sleep(0 if rank == 2 else 6)  # the last one finds the connections open
"""


@pytest.mark.slow
@pytest.mark.parametrize(("agree", "result"), [("0", "right"), ("1", "error")])
def test_a_root_that_has_sent_all_waits_for_the_others(agree: str, result: str) -> None:
    """The last process comes after the timeout, and finds its data."""
    (address,) = free_addresses(1)
    command = [sys.executable, "-c", BROADCASTS]
    processes = [
        subprocess.Popen(
            [*command, str(rank), address],
            env={**os.environ, "ANTIPHON_AGREE": agree},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(3)
    ]
    assert [process.communicate(timeout=100)[0].split() for process in processes] == 3 * [[result]]


MPI_BROADCASTS = """
import os, sys, time
from pathlib import Path
import numpy as np
from mpi4py import MPI
comm, x, folder = MPI.COMM_WORLD, np.zeros(10), Path(sys.argv[1])
comm.Set_errhandler(MPI.ERRORS_RETURN)
comm.Bcast(x)
time.sleep(4 if comm.rank == 2 else 0)
try:
    comm.Bcast(x)
    result = "right"
except MPI.Exception:
    result = "error"
(folder / f"{comm.rank}.part").write_text(result)
(folder / f"{comm.rank}.part").rename(folder / str(comm.rank))
while not all((folder / str(rank)).exists() for rank in range(3)):  # the launcher ends all when the first one ends
    time.sleep(0.1)
os._exit(0)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("agree", "result"), [("0", "right"), ("1", "error")])
def test_a_root_of_mpi_that_has_sent_all_waits_for_the_others(
    mpi: Mpi, tmp_path: Path, agree: str, result: str
) -> None:
    plans = tmp_path / "plans.json"
    antiphon.save(antiphon.plan("broadcast", "full:ranks=3", planner="binomial-tree"), plans)
    command = [mpi.python, "-c", MPI_BROADCASTS, str(tmp_path)]
    Run(mpi, tmp_path, 3, command, [plans], ANTIPHON_LEAST="0", ANTIPHON_TIMEOUT="2", ANTIPHON_AGREE=agree)
    assert [(tmp_path / str(rank)).read_text() for rank in range(3)] == 3 * [result]
