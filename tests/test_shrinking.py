"""Jobs that lose a rank and go on without it, by a table of `tune --failures ranks`."""

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
