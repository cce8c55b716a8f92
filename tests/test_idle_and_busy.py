"""The same request has the same answer on an idle machine and beside many busy processes: effort is counted.

A figure that depended on a clock would move here: a process beside so many others gets a fraction of a processor.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import antiphon
from antiphon.core.serialize import dumps

EFFORT = 0.02
BUSY = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    sum(range(10**5))"


@contextmanager
def beside(count: int) -> Iterator[None]:
    """As long as this lasts so many processes compute; they end with this one, too."""
    busy = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(count)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def answer(*wish: str) -> Any:
    """What the command says, but for what it took to make the rows of a paper's table."""
    done = subprocess.run(
        [sys.executable, "-m", "antiphon", *wish, "--json"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    for row in told["rows"] if wish[0] == "reproduce" else ():
        del row["seconds"]
    return told


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTIPHON_CACHE", "off")


LONG = [
    ("tune", "allgather", "dgx1v"),
    ("tune", "broadcast", "torus:dims=4x4", "--effort", "2"),
    ("plan", "broadcast", "torus:dims=4x4", "--planner", "sccl", "--effort", "2"),
    ("frontier", "broadcast", "hypercube:ranks=16", "--effort", "4"),
    ("reproduce", "sccl-frontiers"),
]


@pytest.mark.slow
@pytest.mark.parametrize("wish", LONG, ids=lambda wish: "-".join(wish[:3]))
def test_commands_answer_alike(wish: tuple[str, ...]) -> None:
    idle = answer(*wish)
    with beside(20):
        assert answer(*wish) == idle


@pytest.mark.slow
def test_a_search_ends_with_its_effort_alike() -> None:
    """In the middle: its last candidates are cut off."""

    def found() -> list[Any]:
        wish = "broadcast", "torus:dims=3x3"
        points = antiphon.frontier.find(*wish, effort=EFFORT)
        tuned = antiphon.tune(
            *wish, planners=["sccl", "ring"], nbytes="1KB:1MB", search=antiphon.Search(effort=EFFORT, workers="none")
        )
        return [points.as_json(), tuned.as_json(), dumps(tuned.plan), dumps(points.plan())]

    idle = found()
    assert "effort is spent" in idle[0]["stopped"]
    assert idle[1]["stopped"] == 0
    with beside(3):
        assert found() == idle
