"""The runtime `nccl` on the stand-in for NCCL and CUDA: processes of an MPI, whose data NCCL's messages carry."""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import nccl_env
import pytest

import antiphon
from antiphon.cli import run
from antiphon.cost.fit import read_measured, read_round_trips
from antiphon.errors import Missing
from antiphon.runtimes.engine.build import library
from antiphon.runtimes.engine.launch import LAUNCHED
from antiphon.runtimes.measure.nccl import Nccl

HAS_MPI = find_spec("mpi4py") is not None and Path(sys.executable).with_name("mpiexec").exists()
needs_mpi = pytest.mark.skipif(
    not HAS_MPI or shutil.which("cc") is None or shutil.which("c++") is None, reason="needs mpi4py, mpiexec, compilers"
)


@pytest.fixture
def standin(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    messages = nccl_env.compiled(tmp_path_factory.getbasetemp() / "nccl-for-bench")
    monkeypatch.setenv("NVCC", str(nccl_env.FOLDER / "nvcc"))
    monkeypatch.setattr(Nccl, "driver", "libc.so.6")
    monkeypatch.setattr(Nccl, "messages", str(messages))
    for name in LAUNCHED:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.slow
@needs_mpi
def test_plans_run_by_rounds_of_messages(standin: None) -> None:
    for kind, planner, in_place in (("allreduce", "ring", False), ("reducescatter", "direct", True)):
        plan = antiphon.plan(kind, "full:ranks=3", planner=planner)
        (row,) = antiphon.run(plan, 1200, on="nccl", in_place=in_place) or []
        assert (row["correct"], row["wrong"], row["on"]) == (True, 0, "nccl"), (kind, in_place)


@needs_mpi
@pytest.mark.slow
def test_memory_of_the_gpu_is_given_back(standin: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However sizes and numbers of ranks rise, there are a source, a target and scratch; in the end nothing."""
    monkeypatch.setenv("STANDIN_LEFT", str(tmp_path))
    line = f"bench genmodel --on nccl -n 3 --nbytes 4KB:64KB:4 --iterations 1 --warmup 1 -o {tmp_path / 'times.csv'}"
    assert run(line.split()) == 0
    left = [path.read_text() for path in tmp_path.iterdir() if path.name.isdigit()]
    assert left == ["3 0"] * 3


SCRIPT = """
import ctypes, sys
from pathlib import Path
from antiphon.errors import Unsupported
from antiphon.runtimes.engine.nccl import Communicator, Nccl

library, messages = sys.argv[1:]
nccl, standin = Nccl(Path(library), messages), ctypes.CDLL(messages)
two = [Communicator(nccl, 1, 0, nccl.identity(), 0) for _ in range(2)]
blocks = standin.standin_blocks()
for size in (0, 64, 32, 4096, 65536):
    nccl.memory("source", size), nccl.memory("target", 2 * size)
    assert standin.standin_blocks() - blocks == 2, size
streams = standin.standin_streams()
try:
    Communicator(nccl, 2, 2, nccl.identity(), 0)
    raise SystemExit("there is no rank 2 of 2")
except Unsupported:
    assert standin.standin_streams() == streams
for one in two:
    one.close()
nccl.close()
print(standin.standin_blocks() - blocks, streams - standin.standin_streams())
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None or shutil.which("c++") is None, reason="needs compilers")
def test_a_block_that_grows_takes_the_place_of_the_smaller(standin: None) -> None:
    """For all communicators of a process; one that cannot be made leaves no stream."""
    command = [sys.executable, "-c", SCRIPT, str(library(Nccl.target)), Nccl.messages]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1000, check=False)
    assert (done.stdout.split(), done.stderr) == (["0", "2"], "")


@needs_mpi
@pytest.mark.slow
def test_all_collectives_types_and_operators(standin: None) -> None:
    direct = [(kind, "direct") for kind in ("reduce", "alltoall", "gather", "scatter")]
    rings = [(kind, "ring") for kind in ("broadcast", "allgather", "reducescatter")]
    for kind, planner in [("allreduce", "halving-doubling"), *rings, *direct]:
        plan = antiphon.plan(kind, "full:ranks=4", planner=planner)
        for dtype, op in (("float16", "avg"), ("int32", "max"), ("bfloat16", "sum")):
            for in_place in (False, True):
                (row,) = antiphon.run(plan, "4KB", on="nccl", dtype=dtype, op=op, in_place=in_place) or []
                assert row["correct"], (kind, dtype, op, in_place)


@needs_mpi
@pytest.mark.slow
def test_what_fits_read_is_measured(standin: None, tmp_path: Path) -> None:
    trips, times, short = tmp_path / "trips.csv", tmp_path / "times.csv", "--on nccl --iterations 2 --warmup 1"
    line = f"bench loggp {short} -n 3 --nbytes 1:64:8 --messages 3 --repeat 1 -o {trips}"
    assert run(line.split()) == 0
    assert {row.kind for row in read_round_trips(trips)} == {"rtt", "server", "burst", "fan-out", "fan-in"}
    assert run(f"bench genmodel {short} -n 3 --nbytes 4KB -o {times}".split()) == 0
    assert [(row.plan.name, row.ranks) for row in read_measured(times)] == [
        ("cps", 2), ("incast", 2), ("cps", 3), ("incast", 3),
    ]  # fmt: skip


def test_without_a_gpu_it_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Nccl, "driver", "libnosuchdriver.so.1")
    for line in ("bench loggp", "bench genmodel", "bench micro"):
        assert run([*line.split(), "--on", "nccl"]) == 2
        said = capsys.readouterr().err
        assert "--on nccl: this machine has no driver for GPUs (libnosuchdriver.so.1 cannot be loaded)" in said
    monkeypatch.setattr(Nccl, "driver", "libc.so.6")
    monkeypatch.setattr(Nccl, "messages", "libnosuchnccl.so.2")
    with pytest.raises(Missing, match=r"no NCCL \(libnosuchnccl.so.2 cannot be loaded\); pip install"):
        antiphon.bench("loggp", on="nccl")
