"""The host side of cuda.cu over a stand-in for the CUDA runtime (device/cuda_without_gpu.cc), which runs no kernel.

What needs none is right: memory, copies, calls by copy engines. Of the rest: what is launched is loaded before, and
what GPUs cannot reach is refused with the reason.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

NVCC = shutil.which("nvcc")
pytestmark = pytest.mark.skipif(NVCC is None, reason="needs nvcc")
STAND_IN = Path(__file__).with_name("device") / "cuda_without_gpu.cc"
# A process for each case: the library knows its GPUs for as long as it is loaded.
BEGIN = """
import sys
from ctypes import c_char_p
from pathlib import Path
import numpy as np
import antiphon
from antiphon.errors import AntiphonError
from antiphon.lower.device.table import tables
from antiphon.runtimes.device.functions import Device
from antiphon.runtimes.device.group import Group
device = Device(Path(sys.argv[1]))
device.call.seen_faults.restype = device.call.seen_multicast.restype = c_char_p
machine = antiphon.topology("full:ranks=4")
def called(group, planner="direct", collective="allgather", dtype="int32", **how):
    schedule = antiphon.plan(collective, machine, planner=planner).at(1 << 16).schedule
    buffers = [np.repeat(np.where(np.arange(4) == rank, rank + 1, 0), 100).astype(dtype) for rank in range(4)]
    group.run(group.plan(tables(schedule, in_place=True, streams=2)), 100, None, buffers, **how)
    assert how.get("way", "kernel") == "kernel" or all(
        (buffer == np.repeat(np.arange(1, 5), 100)).all() for buffer in buffers
    )
def refused(call, *arguments, **how):
    try:
        call(*arguments, **how)
    except AntiphonError as error:
        print(error)
    else:
        raise SystemExit("not refused")
"""


@pytest.fixture(scope="module")
def cuda(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """The library with kernels for int32, compiled without a warning."""
    from antiphon.runtimes.engine.build import DEVICE

    path = tmp_path_factory.mktemp("cuda") / "cuda.so"
    command = [str(NVCC), "-std=c++17", "-shared", "-arch=compute_90", "-code=compute_90", "-Xcicc", "-O0"]
    host = ["-Xcompiler", "-fPIC,-fvisibility=hidden,-Wall,-Wextra", "-cudart", "none", "-DTYPES_COMPILED=4"]
    done = subprocess.run([*command, *host, "-o", str(path), str(DEVICE / "cuda.cu"), str(STAND_IN)],
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return path


@pytest.fixture
def told(cuda: Path) -> Callable[..., list[str]]:
    def run(code: str, **environment: object) -> list[str]:
        """What a process prints that does this, with the faults that the stand-in noted."""
        end = "\nprint((device.call.seen_faults() or b'').decode(), end='')"
        done = subprocess.run(
            [sys.executable, "-c", BEGIN + code + end, str(cuda)], capture_output=True, text=True, check=False,
            timeout=100, env={**os.environ, **{name: str(value) for name, value in environment.items()}},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout.splitlines()

    return run


def test_memory_copies_and_launches_are_those_of_the_right_gpu(told: Callable[..., list[str]]) -> None:
    """Calls by copies are right; whatever is launched is loaded, on its GPU; all memory is freed, on its GPU."""
    code = """
with Group(device, 4, blocks=4) as group:
    resident = device.call.seen_memory()
    for way in ("copies", "staged"):
        called(group, way=way)
    assert not device.call.seen_launches()
    called(group)
    called(group, "ring", "allreduce")
    assert device.call.seen_launches() == 4
    refused(called, group, dtype="float32")
    refused(group.joined, [np.zeros(1)] * 4)
    assert device.call.seen_memory() == resident
del group
print(device.call.seen_memory())
"""
    assert told(code, GPUS=2) == [
        "rank 0: this library was compiled without kernels for this data type",
        "switches combine what different devices have, and two ranks are on one",
        "4",  # two for each GPU, which stays open
    ]


@pytest.mark.slow
def test_gpus_out_of_reach_are_refused_by_name_and_copied_to(told: Callable[..., list[str]]) -> None:
    code = """
with Group(device, 4, blocks=4) as group:
    for way in ("kernel", "steps"):
        refused(called, group, way=way)
    for way in ("copies", "staged"):
        called(group, way=way)
    assert not device.call.seen_launches()
"""
    why = "as this plan does; plan on a topology without links between them"
    assert told(code, GPUS=3, UNREACHABLE=1) == [
        f"{prefix}GPU 0 cannot access the memory of GPU 1, 2, {why}" for prefix in ("rank 0: ", "")
    ]  # fmt: skip
    assert told("with Group(device, 4, blocks=4) as group: called(group)", GPUS=1, UNREACHABLE=1) == []


@pytest.mark.slow
def test_peer_access_that_fails_is_reported(told: Callable[..., list[str]]) -> None:
    """Unless the program has enabled it before (704)."""
    assert told("Group(device, 4).close()", GPUS=2, PEER_ERROR=704) == []
    why = "peer access from GPU 0 to GPU 1 cannot be enabled: too many peers"
    assert told("refused(Group, device, 4)", GPUS=2, PEER_ERROR=711) == [
        f"rank 0 of 4, with 4 blocks of 1 threads: {why}"
    ]


@pytest.mark.slow
def test_multicast_memory_is_no_larger_than_needed(told: Callable[..., list[str]]) -> None:
    """In the granularity of the driver; in the recommended one where it adds at most an eighth."""
    cases = {(2, 2): 2, (3, 2): 4, (2, 64): 2, (63, 64): 64, (56, 64): 56, (57, 64): 64, (15, 0): 16}
    code = f"""
import os
for mebibytes, recommended in {list(cases)}:
    os.environ["RECOMMENDED"] = str(recommended)
    with Group(device, 4, blocks=4) as group:
        group.joined([np.zeros(mebibytes << 20, np.uint8)] * 4)
print(device.call.seen_multicast().decode(), end="")
"""
    assert told(code, GPUS=4) == [f"{size} MiB" for size in cases.values()]
