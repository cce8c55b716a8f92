"""Memory that other libraries give, which all ranks have alike: on threads, by a library that does there what NCCL's
windows, NVSHMEM and PyTorch's symmetric memory do on GPUs; and its calls as the real headers declare them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest
from device_started import in_processes

from antiphon.errors import Invalid, Unsupported
from antiphon.runtimes.device.functions import threads
from antiphon.runtimes.device.group import Group
from antiphon.runtimes.device.sources import NCCL_CALLS, NVSHMEM_CALLS, Heap, Tensors, Windows
from antiphon.runtimes.device.symmetric import Symmetric

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("symmetric") / "libsymmetric.so"
    source = Path(__file__).with_name("device") / "symmetric.cc"
    subprocess.run(["c++", "-std=c++17", "-shared", "-fPIC", str(source), "-o", str(path), "-lrt"], check=True)
    return path


def said(library: Path, way: str, ranks: int, calls: int, **told: str) -> list[str]:
    """Of each process, one rank each."""
    name = f"antiphon-{os.getpid()}-{way.replace(':', '-')}"
    given = {"SYMMETRIC_LIBRARY": str(library), "SYMMETRIC_NAME": name, "SYMMETRIC_RANKS": str(ranks), **told}
    try:
        return in_processes(
            [[rank] for rank in range(ranks)], way, calls,
            [{**os.environ, **given, "SYMMETRIC_RANK": str(rank)} for rank in range(ranks)],
        )  # fmt: skip
    finally:
        for left in Path("/dev/shm").glob(f"{name}*"):
            left.unlink()


@pytest.mark.slow
@pytest.mark.parametrize("source", ["windows", "heap", "tensors"])
def test_all_of_a_group_lies_there(library: Path, source: str) -> None:
    """Signals, boxes for packets and three buffers; all of it is given back."""
    left = 5 if source == "tensors" else 0  # which PyTorch frees with the last tensor
    assert said(library, f"kernel:{source}", 2, 6) == [f"wrong: 0, 5 taken, {left} left"] * 2


@pytest.mark.slow
@pytest.mark.parametrize("source", ["windows", "heap", "tensors"])
def test_switches_by_its_multicast_address(library: Path, source: str) -> None:
    """Which sum in an order of their own; without one there are none."""
    assert said(library, f"switches:{source}", 8, 2, SYMMETRIC_SWITCHES="1") == ["wrong: 0"] * 8
    assert all("no multicast address" in line for line in said(library, f"switches:{source}", 8, 1))


@pytest.mark.slow
@pytest.mark.parametrize("source", ["windows", "heap"])
def test_a_rank_that_is_out_of_reach_is_told(library: Path, source: str) -> None:
    told = said(library, f"kernel:{source}", 2, 1, SYMMETRIC_FAR="1")
    why = "none: memory of ranks [1] cannot be loaded from and stored to by this process"
    assert told == [f"{why}, 1 taken, 0 left"] * 2


@pytest.mark.slow
@pytest.mark.parametrize("source", ["windows", "heap"])
def test_where_one_process_has_no_memory_none_waits_for_it(library: Path, source: str) -> None:
    """Neither for a window of NCCL, nor to give back what only the others have of NVSHMEM."""
    other = "another process has no such memory that all reach"
    windows = [f"none: {other}, 1 taken, 0 left", "none: NCCL: a fault, 0 taken, 0 left"]
    heap = [f"none: {other}, 1 taken, 1 left", "the heap of NVSHMEM is full, 1 taken, 1 left"]
    told = said(library, f"kernel:{source}", 2, 1, SYMMETRIC_FULL="1")
    assert [one in line for one, line in zip({"windows": windows, "heap": heap}[source], told, strict=True)] == [
        True
    ] * 2


def test_what_is_not_there_is_told(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Unsupported, match="libnone"):
        Windows(1, "libnone.so")
    with pytest.raises(Unsupported, match="ncclMemAlloc"):
        Windows(1, "libm.so.6")
    monkeypatch.delenv("SYMMETRIC_RANKS", raising=False)
    with pytest.raises(Unsupported, match="not set up"):
        Heap(str(library))
    with pytest.raises(Invalid, match="one rank"):
        Group(threads(), 2, source=Tensors("cpu", None, object()))


def test_memory_of_a_program_is_known_until_the_group_is_closed() -> None:
    """Its multicast address leads to the memory of all ranks; places that are missing are refused."""
    with Group(threads(), 2, 2) as group:
        with pytest.raises(Unsupported, match="of 3 ranks, in a group of 2"):
            group.known(Symmetric((64, 128, 192), 64))
        with pytest.raises(Unsupported, match=r"ranks \[1\]"):
            group.known(Symmetric((64, 0), 64))
        assert group.known(Symmetric((64, 128), 64)) == [64, 128]


def wheel(*names: str) -> list[str]:
    """Where wheels have these headers."""
    roots = [Path(sysconfig.get_paths()["purelib"]), *map(Path, os.environ.get("NVIDIA_WHEELS", "").split(":"))]
    return [
        str(path.parent) for name in names for root in roots for path in sorted(root.glob(f"nvidia/*/include/{name}"))
    ]


@pytest.mark.slow
def test_calls_are_as_the_headers_declare_them(tmp_path: Path) -> None:
    """Of the wheels nvidia-nccl-cu13, nvidia-nvshmem-cu13 and nvidia-cuda-runtime, here or in a folder that
    $NVIDIA_WHEELS names."""
    headers = wheel("nccl.h", "nvshmem.h")
    if len(headers) < 2 or shutil.which("nvcc") is None:
        pytest.skip("needs the wheels nvidia-nccl-cu13 and nvidia-nvshmem-cu13, and nvcc")
    lines = ["#include <nccl.h>", "#include <nccl_device.h>", "#include <nvshmem.h>", "#include <nvshmemx.h>",
             "#include <type_traits>"]  # fmt: skip
    lines += [
        f'static_assert(std::is_same<decltype({name}), {kind}>::value, "{name}");'
        for name, (_, _, kind) in {**NCCL_CALLS, **NVSHMEM_CALLS}.items()
    ]
    lines += [
        "static_assert(NCCL_WIN_COLL_SYMMETRIC == 1 && NVSHMEM_TEAM_WORLD == 0 && NVSHMEM_STATUS_IS_INITIALIZED == 2);"
    ]
    file = tmp_path / "calls.cu"
    file.write_text("\n".join(lines))
    command = [
        "nvcc",
        "-std=c++17",
        "-arch=sm_90",
        *(f"-I{one}" for one in headers),
        "-c",
        str(file),
        "-o",
        f"{file}.o",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.slow
def test_what_is_asked_of_pytorch_is_there() -> None:
    import inspect

    module = pytest.importorskip("torch.distributed._symmetric_memory")
    from torch._C._distributed_c10d import _SymmetricMemory

    assert {"dtype", "device"} <= set(inspect.signature(module.empty).parameters)
    assert len(inspect.signature(module.rendezvous).parameters) == 2
    assert module.torch.uint8.itemsize == 1
    assert all(hasattr(_SymmetricMemory, name) for name in ("buffer_ptrs", "multicast_ptr", "rank"))
