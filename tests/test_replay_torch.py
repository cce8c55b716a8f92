"""A training under PyTorch recorded by gloo and by our backend: both profiles tell the same job."""

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from replay_traces import read_job

import antiphon
from antiphon.cost.replay.job import CALL, WAIT, RecordedJob
from antiphon.cost.replay.steps import replay_job

RECORD = Path(__file__).parents[1] / "bench" / "record_job.py"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        find_spec("torch") is None or shutil.which("cc") is None, reason="needs PyTorch and a C compiler"
    ),
]
WIDE, LAYERS = 32, 4
LAYER = 4 * (WIDE * WIDE + WIDE)  # bytes of one layer's parameters


def recorded(kind: str, folder: Path) -> tuple[RecordedJob, RecordedJob]:
    """Of two processes, as torchrun starts them: by gloo, and by ours."""
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(RECORD),
        str(folder), "--kind", kind, "--blocks", "1", "--steps", "3", "--wide", str(WIDE), "--layers", str(LAYERS),
        "--batch", "4",
    ]  # fmt: skip
    own = {key: value for key, value in os.environ.items() if not key.startswith("ANTIPHON_")}
    done = subprocess.run(command, env=own, capture_output=True, text=True, timeout=1000, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    gloo, ours = (read_job(sorted(folder.glob(f"{name}-0.*.json"))) for name in ("gloo", "antiphon"))
    return gloo, ours


def called(job: RecordedJob, rank: int, step: int) -> list[tuple[str, int]]:
    """What a rank calls in a step, in its order."""
    many = len(job.steps)
    calls = [job.calls[item.call] for item in job.ranks[rank] if item.kind == CALL]
    per_step = len(calls) // many
    assert per_step * many == len(calls)
    return [(call.kind, call.nbytes) for call in calls[step * per_step : (step + 1) * per_step]]


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        ("ddp", [("allreduce", LAYERS * LAYER)]),  # all in one bucket
        ("fsdp", [*[("allgather", LAYER)] * 2 * LAYERS, *[("reducescatter", LAYER)] * LAYERS]),
    ],
)  # fmt: skip
def test_gloo_and_ours_tell_the_same_job(kind: str, wanted: list[tuple[str, int]], tmp_path: Path) -> None:
    gloo, ours = recorded(kind, tmp_path)
    # of DDP nobody waits for the last step's calls where the profiler hears it
    assert (len(gloo.steps), len(ours.steps)) == (3, 2 if kind == "ddp" else 3)
    for job in (gloo, ours):
        assert set(job.ranks) == {0, 1}
        for rank in job.ranks:
            assert sorted(called(job, rank, 0)) == sorted(called(job, rank, 1))
            told = sorted(called(job, rank, 1))
            if kind == "fsdp":  # the last layer's parameters may still be there when its gradients are made
                assert set(told) == set(wanted)
                assert told.count(("reducescatter", LAYER)) == LAYERS
            else:
                assert told == wanted
            waits = {item.call for item in job.ranks[rank] if item.kind == WAIT}
            assert waits == {item.call for item in job.ranks[rank] if item.kind == CALL}
        assert all(call.seconds > 0 for call in job.calls)
        as_it_was = replay_job(job, [call.seconds for call in job.calls])
        assert all(replay_job(job, [0.0] * len(job.calls)).step <= step for step in [as_it_was.step])
    assert sorted(called(gloo, 0, 0)) == sorted(called(ours, 0, 0))
    if kind == "ddp":
        assert len(gloo.gradients) == 2 * LAYERS
        assert sum(one.nbytes for one in gloo.gradients) == LAYERS * LAYER
    found = antiphon.replay.job(sorted(tmp_path.glob("gloo-0.*.json")), measured=tmp_path / "measured.json")
    assert found["step"]["ours"] > 0
    assert (found["buckets"] is not None) == (kind == "ddp")
