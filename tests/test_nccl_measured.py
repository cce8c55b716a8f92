"""`tune --on nccl`, over a stand-in for NCCL and CUDA that computes right sums and sets the clock of the GPU by what is
set of each call: what is tried, chosen, noted and exported."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from nccl_header import cuda_names, header
from quick import ordinary

from antiphon.cli import run
from antiphon.runtimes.device.nccl_library import path_of
from antiphon.runtimes.measure.nccl_calls import (
    EFFICIENT,
    ENTRIES,
    OPERATORS,
    SYMMETRIC,
    TYPES,
    ZERO,
    CallConfig,
    CommConfig,
    UniqueId,
)

MPIEXEC = Path(sys.executable).with_name("mpiexec")
HAS_CC = shutil.which("cc") is not None
STOCK = Path(__file__).parent / "stock"
STRICT = ("cc", "-std=c11", "-O1", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-Wl,-Bsymbolic")
RANKS = 2


def build_stand_in(folder: Path, *flags: str) -> Path:
    """The folder of the libraries."""
    folder.mkdir(exist_ok=True)
    names = ("librccl.so.1", "libamdhip64.so") if "-DWITH_HIP" in flags else ("libnccl.so.2", "libcudart.so")
    subprocess.run([*STRICT, *flags, STOCK / "nccl_measured.c", "-o", folder / names[0]], check=True)
    (folder / names[1]).symlink_to(names[0])
    return folder


class Job:
    """Runs a command in processes, over the stand-in."""

    def __init__(self, libraries: Path, folder: Path) -> None:
        self.libraries, self.folder, self.errors = libraries, folder, ""

    def __call__(
        self, words: str, times: Mapping[str, float], version: int = 23203, launcher: str = "mpiexec",
        code: int | None = 0, **environment: str,
    ) -> dict[str, Any]:  # fmt: skip
        data = self.folder / "data"
        data.write_bytes(b"")
        os.truncate(data, 2**25 + 2**12)
        (self.folder / "times").write_text("".join(f"{factor} {key}\n" for key, factor in times.items()))
        own = {
            "STAND_IN_DATA": str(data), "STAND_IN_VERSION": str(version), "STAND_IN_TIMES": str(self.folder / "times"),
            "LD_LIBRARY_PATH": str(self.libraries), "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        command = [sys.executable, "-m", "antiphon", "tune", *words.split(), "--json"]
        if launcher == "torchrun":
            command = [
                sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(RANKS), "--master-port", "29533",
                *command[1:],
            ]  # fmt: skip
        elif launcher == "mpiexec":
            command = [str(MPIEXEC), "--allow-run-as-root", "--oversubscribe", "-n", str(RANKS), *command]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=300, env={**os.environ, **own, **environment}
        )
        self.errors = done.stderr
        if code is None:  # the command fails
            assert done.returncode, done.stdout
            return {}
        assert done.returncode == code, done.stderr + done.stdout
        return dict(json.loads(done.stdout[done.stdout.index("{") :]))


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_stand_in(tmp_path_factory.mktemp("stand-in") / "lib")


@pytest.fixture
def job(libraries: Path, tmp_path: Path) -> Job:
    return Job(libraries, tmp_path)


# NCCL and CUDA that came as wheels, with a PyTorch for GPUs, are found where a test hides the stand-ins.
needs_no_wheels = pytest.mark.skipif(
    path_of("libnccl.so.2") != "libnccl.so.2", reason="needs an environment without the wheels of NCCL and CUDA"
)
needs_mpi = pytest.mark.skipif(
    not (HAS_CC and MPIEXEC.exists() and find_spec("mpi4py")), reason="needs a C compiler, mpi4py and mpiexec"
)
TUNE = "allreduce full:ranks=2 --on nccl --iterations 2"


def chosen(result: Mapping[str, Any]) -> list[tuple[int, str, dict[str, int]]]:
    """The setting by the greatest size of each range that was measured."""
    rows = [row for row in result["ranges"] if row["measured"]]
    return [(row["at"], row["library"]["algorithm"], row["library"]["parameters"]) for row in rows]


def notes(result: Mapping[str, Any]) -> str:
    return "\n".join(result["notes"])


@pytest.mark.slow
@needs_mpi
@pytest.mark.parametrize("version", [22203, 23203])
def test_the_fastest_setting_of_each_size(job: Job, version: int, tmp_path: Path) -> None:
    """Channels of what is nearly as fast as the own choice; what needs registered buffers is noted."""
    calls = version >= 23200  # so settings are of calls, else of communicators
    ring, tree = ("RING_SIMPLE", "TREE_LL+^TREE_LL128") if calls else ("ring simple", "tree ll")
    times = {f"allreduce {ring}": 1.05, f"allreduce {ring} channels=16": 0.5, f"allreduce {tree}": 0}
    times |= {"allreduce SYMK_ registered": 0.3, "allreduce policy=2 registered": 0.4}
    table = tmp_path / "table.json"
    result = job(f"{TUNE} --nbytes 4KB:64KB:16 -o {table}", times, version)
    assert chosen(result) == [(64_000, "ring simple", {"channels": 16})]
    assert result["complete"]
    (row,) = [row for row in result["ranges"] if row["measured"]]
    assert row["library_over_default"] == pytest.approx(0.5)
    assert row["library_seconds"] == pytest.approx(0.5 * 64_000e-9)
    assert (row["library"]["name"], row["library"]["version"]) == ("NCCL", f"2.{version // 100 % 100}.3")
    tried = {row["algorithm"]: row["over_library"] for row in result["rows"] if row["nbytes"] == 4_000}
    assert ("tree ll" in tried) is False  # the library refuses it
    assert {"default", "ring ll", "ring ll128", "tree simple", "nvls simple", "nvls-tree simple"} <= set(tried)
    assert ("symmetric" in tried) == ("copies" in tried) == ("efficiency" in tried) == calls
    assert "MSCCL++ is not installed" in notes(result)
    if calls:
        assert "allreduce at 4KB to 64KB: registered buffers and NCCL's symmetric kernels are up to 1.7x" in notes(
            result
        )
    assert run(["export", str(table), "--to", "nccl-tuner", "-o", str(tmp_path)]) == 0
    assert "allreduce 4000 64000 ring simple 16 2 1" in (tmp_path / "nccl-tuner.txt").read_text()


@needs_mpi
@pytest.mark.slow  # test_nccl_tuner has the plugin, and what it does with chunks
def test_chunks_through_our_plugin(job: Job) -> None:
    times = {"allreduce RING_SIMPLE": 0.9, "allreduce RING_SIMPLE channels=4": 0.8}
    key = "allreduce chunk=524288 RING_SIMPLE channels=4"
    result = job(f"{TUNE} --nbytes 2MB", {**times, key: 0.5})
    assert chosen(result) == [(2_000_000, "ring simple", {"channels": 4, "chunk": 524288})]
    result = job(f"{TUNE} --nbytes 4KB", {**times, key: 0.5}, NCCL_TUNER_PLUGIN="theirs")
    assert chosen(result) == [(4_000, "ring simple", {"channels": 4})]
    assert "chunk sizes were not tried" in notes(result)


@needs_mpi
@pytest.mark.slow
def test_all_collectives(job: Job) -> None:
    """Sums and moves are checked; what computes wrong values is never chosen."""
    result = job("all full:ranks=2 --on nccl --iterations 2 --nbytes 4KB", {"allgather RING_LL128": 0.5})
    rows = {(row["collective"], row["algorithm"]): row for row in result["rows"]}
    kinds = {kind for kind, _ in rows}
    assert kinds == {
        "allreduce", "allgather", "reducescatter", "broadcast", "reduce", "gather", "scatter", "alltoall"
    }  # fmt: skip
    assert all(row["correct"] and row["runs"] >= 2 for row in result["rows"])
    assert ("alltoall", "copies") in rows
    assert ("alltoall", "ring simple") not in rows
    best = {row["collective"]: row["library"]["algorithm"] for row in result["ranges"] if row["measured"]}
    assert best == {**dict.fromkeys(kinds, "default"), "allgather": "ring ll128"}


PACKAGE = """
import ctypes, json, os

class TcpBootstrap:
    @classmethod
    def create(cls, rank, ranks):
        self = cls()
        self.place = rank, ranks
        return self
    def create_unique_id(self): return "unique"
    def initialize(self, identity): assert identity == "unique"

class Communicator:
    def __init__(self, bootstrap): self.place = bootstrap.place

class DataType: float32 = 7
class PacketType: LL16 = 1

class ExecutionPlan:
    def __init__(self, path, rank): self.plan = json.load(open(path))

class Executor:
    def __init__(self, communicator):
        rank, ranks = communicator.place
        self.library, self.handle = ctypes.CDLL(os.environ["PLANS"]), ctypes.c_void_p()
        identity = type("Id", (ctypes.Structure,), {"_" + "fields_": [("text", ctypes.c_char * 128)]})
        unique = identity.from_buffer_copy(bytes([7]) * 128)
        self.library.ncclCommInitRank(ctypes.byref(self.handle), ranks, unique, rank)
    def execute(self, rank, source, target, source_bytes, target_bytes, dtype, plan, stream, packets):
        assert plan.plan["collective"] == "allreduce" and source_bytes == target_bytes and packets == 1
        count = ctypes.c_size_t(source_bytes // int(os.environ.get("PLANS_BYTES", "4")))
        pointers = ctypes.c_void_p(source), ctypes.c_void_p(target)
        if os.environ.get("PLANS_FAIL"): raise RuntimeError("not aligned")
        self.library.ncclAllReduce(*pointers, count, dtype, 0, self.handle, ctypes.c_void_p(stream))
"""


@pytest.mark.slow
@needs_mpi
def test_mscclpp_and_our_plans_beside(job: Job, tmp_path: Path) -> None:
    """Both are measured, neither is chosen: rules for NCCL cannot name them. A plan that fails is no contestant."""
    own = build_stand_in(tmp_path / "own", '-DWITH_NAME="mscclpp"') / "libnccl.so.2"
    plans = build_stand_in(tmp_path / "plans", '-DWITH_NAME="plan"') / "libnccl.so.2"
    package = tmp_path / "site" / "mscclpp"
    (package / "lib").mkdir(parents=True)
    (package / "__init__.py").write_text(PACKAGE)
    shutil.copy(own, package / "lib" / "libmscclpp_nccl.so")
    path = f"{tmp_path / 'site'}:{os.environ.get('PYTHONPATH', '')}"
    times = {"allreduce RING_LL+^RING_LL128": 0.8, "allreduce mscclpp": 0.4, "allreduce plan": 0.6}
    command = f"{TUNE} --nbytes 64KB --planner direct"
    wrong = "our plan direct at 64KB computed wrong"
    for fault, note in (({}, ""), ({"PLANS_BYTES": "8"}, wrong), ({"PLANS_FAIL": "1"}, ""))[: 1 if ordinary else 3]:
        result = job(command, times, PYTHONPATH=path, PLANS=str(plans), **fault)
        assert chosen(result) == [(64_000, "ring ll", {})]
        assert "MSCCL++'s library in the place of NCCL's are up to 2x faster still" in notes(result)
        assert note in notes(result)
        (row,) = [row for row in result["ranges"] if row["measured"]]
        assert row["planner"] == "direct"
        assert row["over_library"] == (None if fault else pytest.approx(0.6))
        assert ("direct" in {row["planner"] for row in result["rows"]}) == (not fault)


@needs_mpi
@pytest.mark.slow
@pytest.mark.skipif(find_spec("torch") is None, reason="needs torch")
@pytest.mark.parametrize("launcher", ["torchrun", "alone"])
def test_other_launchers(job: Job, launcher: str) -> None:
    result = job(f"{TUNE} --nbytes 4KB", {"allreduce TREE_SIMPLE": 0.5}, launcher=launcher)
    assert chosen(result) == [(4_000, "tree simple", {})]


@pytest.mark.slow
@needs_mpi
@needs_no_wheels
def test_rccl(job: Job, tmp_path: Path) -> None:
    job.libraries = build_stand_in(tmp_path / "rocm", "-DWITH_HIP")
    table = tmp_path / "table.json"
    result = job(f"{TUNE} --nbytes 4KB -o {table}", {"allreduce tree simple": 0.5}, 22206)
    assert chosen(result) == [(4_000, "tree simple", {})]
    assert not any("nvls" in row["algorithm"] for row in result["rows"])
    assert run(["export", str(table), "--to", "nccl-csv", "-o", str(tmp_path)]) == 0
    assert "allreduce,4000,4000,tree,simple,-1,1,2,-1,-1" in (tmp_path / "nccl-tuner.csv").read_text()


@pytest.mark.slow
@needs_mpi
@needs_no_wheels
def test_what_is_missing_is_named(job: Job, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(f"tune {TUNE}".split()) == 2  # here, where no stand-in is loaded
    assert "found neither CUDA's libcudart with libnccl.so.2 nor ROCm's" in capfd.readouterr().err
    broken = tmp_path / "libbroken.so"
    broken.write_text("no library")
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util as util\nfind = util.find_spec\n"
        "util.find_spec = lambda name, *rest: None if name == 'mpi4py' else find(name, *rest)\n"
    )
    cases = (  # the first three before anything is launched
        (TUNE.replace("nccl", f"nccl:library={broken}"), {}, "libbroken.so nor ROCm's"),
        (TUNE, {"NCCL_ALGO": "ring"}, "NCCL_ALGO is set, so NCCL does not choose by itself"),
        (TUNE, {"PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}, "pip install 'antiphon[mpi]'"),
        (f"{TUNE} --nbytes 4KB", {"STAND_IN_GPUS": "0"}, "sees no GPU; see nvidia-smi"),
        (f"{TUNE} --nbytes 4KB", {"STAND_IN_GPUS": "35"}, "sees no GPU (cudaGetDeviceCount: an error); see nvidia-smi"),
    )
    for words, environment, says in cases:
        launcher = "mpiexec" if "STAND_IN_GPUS" in environment else "alone"
        job(words, {}, launcher=launcher, code=None, **environment)
        assert says in job.errors, job.errors
        assert "Traceback" not in job.errors
    job(f"{TUNE.replace('ranks=2', 'ranks=4')} --nbytes 4KB", {}, code=None)
    assert "the launcher started 2 processes, this needs 4" in job.errors
    job(TUNE, {}, launcher="alone", code=None, SLURM_STEP_NUM_TASKS="8")
    assert "srun started 8 processes without a connection for MPI: add --mpi=pmix" in job.errors


def test_structures_are_those_of_nccls_own_header(tmp_path: Path) -> None:
    folder = header("ncclAllReduceConfig")
    if folder is None or not HAS_CC:
        pytest.skip(
            "needs a C compiler, and nccl.h of NCCL 2.31: nvidia-nccl-cu13, or its folder in $ANTIPHON_TEST_NCCL"
        )
    kinds = {"ncclConfig_t": CommConfig, "ncclCollConfig_t": CallConfig}
    fields = [(name, kind, field) for name, kind in kinds.items() for field in vars(kind) if field[0] != "_"]
    values = {
        "NCCL_WIN_COLL_SYMMETRIC": SYMMETRIC, "NCCL_CTA_POLICY_EFFICIENCY": EFFICIENT, "NCCL_CTA_POLICY_ZERO": ZERO,
        **{f"nccl{name.capitalize()}": TYPES[name] for name in ("int8", "uint64", "float16", "float32", "bfloat16")},
        "ncclFloat8e5m2": TYPES["float8_e5m2"], "ncclSum": OPERATORS["sum"], "ncclMin": OPERATORS["min"],
        "ncclAvg": OPERATORS["avg"], "sizeof(ncclUniqueId)": ctypes.sizeof(UniqueId),
    }  # fmt: skip
    expected = [*(getattr(kind, field).offset for _, kind, field in fields), *values.values()]
    wanted = [*(f"offsetof({name}, {field})" for name, _, field in fields), *values]
    entries = [name for name, _ in ENTRIES.values()]
    calls = [*entries, *(f"{name}Config" for name in entries), "ncclCommWindowRegister", "ncclCommInitRankConfig"]
    source = tmp_path / "offsets.c"
    lines = [f'printf("%ld\\n", (long)({text}));' for text in wanted]
    uses = "void *uses[] = {" + ", ".join(f"(void *){name}" for name in calls) + "};"
    source.write_text(f"#include <stddef.h>\n#include <stdio.h>\n#include <nccl.h>\n{uses}\nint main(void) {{\n"
                      + "\n".join(lines) + "\n}\n")  # fmt: skip
    place = ["-isystem", str(folder), "-isystem", str(cuda_names(tmp_path))]
    (tmp_path / "all.c").write_text("".join(f"void {name}(void) {{}}\n" for name in calls))
    subprocess.run(["cc", *place, source, tmp_path / "all.c", "-o", tmp_path / "offsets"], check=True)
    printed = subprocess.run([tmp_path / "offsets"], capture_output=True, text=True, check=True).stdout
    assert [int(line) for line in printed.split()] == expected
