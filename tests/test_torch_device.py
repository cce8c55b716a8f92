"""Tensors on a device under the backend for PyTorch: a device without a GPU (tests/torch_standin) and the stand-in for
NCCL, in several real processes (torch_device_process.py). A missing event gives wrong results there."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import nccl_env
import pytest
from once import once

pytestmark = [
    pytest.mark.slow,  # of PyTorch's headers a compiler reads for a quarter of a minute
    pytest.mark.skipif(
        find_spec("torch") is None or shutil.which("c++") is None or not sys.platform.startswith("linux"),
        reason="needs PyTorch, Linux and a C++ compiler: pip install 'antiphon[torch]'",
    ),
]
HERE = Path(__file__).parent
PLANNERS = {
    "allreduce": "ring", "allgather": "ring", "reducescatter": "ring", "broadcast": "binomial-tree",
    "reduce": "binomial-tree", "gather": "direct", "scatter": "direct", "alltoall": "pairwise",
}  # fmt: skip
SCENARIOS = {"before", "behind", "future", "hold", "waited", "through"}
Found = list[dict[str, Any]]


def launch(folder: Path, size: int, checks: list[str], table: str | None = None, **env: str) -> Found:
    """What every process found."""
    import torch_device_env

    torch_device_env.compiled()
    folder.mkdir(exist_ok=True)
    own = {key: value for key, value in os.environ.items() if not key.startswith("ANTIPHON_TABLE")}
    own |= {"ANTIPHON_LEAST": "0", "STANDIN_SEED": "3", "OMP_NUM_THREADS": "1", **env}
    if table is not None:
        own["ANTIPHON_TABLE"] = table
    command = [sys.executable, "-W", "ignore", str(HERE / "torch_device_process.py"), str(folder), str(size), *checks]
    with subprocess.Popen(
        command, env=own, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as process:
        try:
            said = process.communicate(timeout=1000)[0]
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    found = [json.loads(path.read_text()) for path in sorted(folder.glob("[0-9].json"))]
    told = [one["error"] for one in found if "error" in one]
    assert not told, told[0]
    assert json.loads((folder / "codes.json").read_text()) == [0] * size, said
    return found


def right_and_wrong(found: Found) -> None:
    """With all events never wrong; without any one of them wrong at some process."""
    for name in SCENARIOS:
        assert [one["events"][name][0] for one in found] == [0] * len(found), name
        assert sum(one["events"][name][1] for one in found) > 0, name
    assert {*found[0]["events"]} == SCENARIOS


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """One launch for several tests: loading PyTorch costs more than most checks."""

    def launched(folder: Path) -> Found:
        table = nccl_env.tables(folder, [2], PLANNERS)
        checks = ["moving", "reductions", "events", "together", "devices", "messages"]
        return launch(folder, 2, checks, table, ANTIPHON_TEST_TIMES="4")

    results: Found = once(tmp_path_factory, "torch-device", launched)
    return results


def test_the_device_compiles() -> None:
    """First, and by itself: it takes longer than all that is done on it."""
    import torch_device_env

    assert {"device.so", "libnccl.so.2"} <= {path.name for path in torch_device_env.compiled().iterdir()}


def test_all_was_served_by_the_plans_of_the_table(found: Found) -> None:
    for one in found:
        rows = {(kind, schedule) for kind, schedule, _ in one["reductions"]["rows"]}
        assert rows == {*PLANNERS.items()}


def test_each_event_is_needed(found: Found) -> None:
    right_and_wrong(found)


@pytest.mark.slow
def test_without_a_table_nccl_does_it_all(tmp_path: Path) -> None:
    for one in launch(tmp_path, 3, ["moving", "reductions", "together", "devices", "messages"]):
        assert {schedule for _, schedule, _ in one["reductions"]["rows"]} == {"nccl"}


@pytest.mark.slow
@pytest.mark.parametrize("seed", ["5", "8"])
def test_each_event_is_needed_among_more(tmp_path: Path, seed: str) -> None:
    table = nccl_env.tables(tmp_path, [3], PLANNERS)
    right_and_wrong(launch(tmp_path, 3, ["events"], table, ANTIPHON_TEST_TIMES="25", STANDIN_SEED=seed))


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 4])
def test_training_is_as_by_gloo_on_the_processor(tmp_path: Path, size: int) -> None:
    """DDP, FSDP2 and DTensor."""
    table = nccl_env.tables(tmp_path, [size], PLANNERS)
    for one in launch(tmp_path, size, ["ddp", "fsdp", "tensors"], table, ANTIPHON_TEST_STEPS="20"):
        for name in ("ddp", "fsdp", "tensors"):
            assert one[name]["furthest"] <= 1e-12
        served = {kind for kind, schedule, _ in one["tensors"]["rows"] if schedule == PLANNERS[kind]}
        assert {"allreduce", "allgather", "reducescatter", "broadcast"} <= served


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 4])
def test_connected_at_once_and_split(tmp_path: Path, size: int) -> None:
    launch(tmp_path, size, ["eager", "moving", "messages"], nccl_env.tables(tmp_path, [size], PLANNERS))


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3])
def test_graphs_threads_and_nothing_at_all(tmp_path: Path, size: int) -> None:
    launch(tmp_path, size, ["captured", "more"], nccl_env.tables(tmp_path, [size], PLANNERS))


@pytest.mark.slow
def test_what_is_late_is_given_up_and_what_is_aborted_ends(tmp_path: Path) -> None:
    launch(tmp_path, 3, ["wrong", "reductions"], nccl_env.tables(tmp_path, [3], PLANNERS))
