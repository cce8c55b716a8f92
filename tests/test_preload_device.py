"""Buffers in the memory of a GPU under the preloaded library: they go to MPI as they are, and all decide alike."""

import subprocess
from pathlib import Path

import pytest
from mpi_env import Mpi
from test_preload import PROGRAMS, Run, compiled, folder, table

__all__ = ["folder"]
REASON = "a buffer is in the memory of a GPU"


@pytest.fixture
def cuda(tmp_path: Path) -> Path:
    """What stands in for CUDA's driver."""
    made = tmp_path / "libcuda.so.1"
    source = str(PROGRAMS / "device.c")
    command = ["cc", "-DLIBRARY", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", source, "-o", str(made)]
    subprocess.run(command, check=True, timeout=1000)
    return made


def device(mpi: Mpi, folder: Path, arguments: list[str], **settings: str) -> Run:
    command = [compiled(folder, mpi, "device", "-ldl"), *arguments]
    run = Run(mpi, folder, 2, command, [table(folder, 2)], ANTIPHON_LEAST="0", **settings).right()
    assert run.warnings == []
    return run


@pytest.mark.slow
@pytest.mark.parametrize("late", [False, True])
def test_buffers_of_a_gpu_go_to_mpi(mpi: Mpi, folder: Path, cuda: Path, late: bool) -> None:
    """Of five rounds two have buffers of the host alone; in another round one call does not see that of the GPU.
    `late`: the driver is loaded while the program runs."""
    if late:
        run = device(mpi, folder, ["late", str(cuda)], ANTIPHON_DEVICE="1")
    else:
        run = device(mpi, folder, [], FIRST=str(cuda))
    assert run.left == {f"allreduce: {REASON}": 3, f"broadcast: {REASON}": 2}
    assert run.served("allreduce", 2) == 2
    assert run.served("broadcast", 2) == 3


@pytest.mark.slow
def test_where_nobody_asks(openmpi: Mpi, folder: Path, cuda: Path) -> None:
    run = device(openmpi, folder, [], FIRST=str(cuda), ANTIPHON_DEVICE="0")
    assert run.left == {}
