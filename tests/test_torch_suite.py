"""PyTorch's own tests of backends: what gloo passes, ours passes."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    find_spec("torch") is None or find_spec("expecttest") is None,
    reason="needs PyTorch, whose tests need expecttest: pip install expecttest",
)

SUITE = Path(__file__).with_name("torch_suite.py")
SAMPLE = ["test_DistributedDataParallelCPU", "test_send_recv_any_source"]
FOR_GLOO = [
    "test_monitored_barrier_gloo", "test_monitored_barrier_gloo_subgroup", "test_monitored_barrier_gloo_rank_0_timeout"
]  # fmt: skip


def ended(backend: str, *names: str, seconds: float = 120) -> dict[str, tuple[str, str]]:
    """How each test ended, and why."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("ANTIPHON_TABLE")}
    command = [sys.executable, str(SUITE), backend, *names]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False, env=env)
    assert done.returncode == 0, done.stderr[-2000:]
    return {name: (how, why) for name, how, why in map(json.loads, done.stdout.splitlines())}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "names"), [("antiphon", SAMPLE), pytest.param("instead", FOR_GLOO, marks=pytest.mark.slow)]
)
def test_a_sample(backend: str, names: list[str]) -> None:
    assert ended(backend, *names) == dict.fromkeys(names, ("passed", ""))


@pytest.mark.slow
def test_what_gloo_passes_ours_passes() -> None:
    theirs = {name for name, (how, _) in ended("gloo", seconds=3000).items() if how == "passed"}
    assert len(theirs) > 80
    ours = ended("antiphon", seconds=3000)
    skipped = sorted(name for name in theirs if ours[name][0] == "skipped")  # for their name: they are not asked of us
    instead = ended("instead", *skipped, seconds=3000)
    failed = {name: ours[name][1] for name in theirs if ours[name][0] == "failed"}
    failed |= {name: why for name, (how, why) in instead.items() if how != "passed"}
    assert not failed
