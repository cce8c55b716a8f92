"""The PyTorch backend, with four real processes (torch_process.py): every result against gloo's or what is known."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from once import once
from small_plans import plan_of_counts

import antiphon
from antiphon.core.collective import Collective
from antiphon.core.plan import Entry, Plan
from antiphon.select import save_plans

pytestmark = pytest.mark.skipif(
    find_spec("torch") is None or shutil.which("cc") is None,
    reason="needs PyTorch and a C compiler: pip install 'antiphon[torch]'",
)
HERE = Path(__file__).parent
SIZE = 4
CALLS = ["reductions", "moving", "uneven", "layouts", "wrong_calls", "asynchronous", "together", "groups", "several"]
CHECKS = [*CALLS, "learns", "monitored", "at_once", "tables", "late", "killed"]
Found = list[dict[str, Any]]


def launch(folder: Path, size: int, checks: list[str], **env: str) -> tuple[Found, list[int], str]:
    """What every process found, how they ended, and what they said."""
    command = [sys.executable, "-W", "ignore", str(HERE / "torch_process.py"), str(folder), str(size), *checks]
    own = {key: value for key, value in os.environ.items() if key not in ("ANTIPHON_TABLE", "ANTIPHON_CACHE")}
    with subprocess.Popen(
        command, env=own | env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as process:
        try:
            said = process.communicate(timeout=1000)[0]
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    found = []
    assert (folder / "codes.json").exists(), said
    for rank in range(size):
        path = folder / f"{rank}.json"
        found.append(json.loads(path.read_text()) if path.exists() else {})
        assert "error" not in found[-1], found[-1]["error"]
    return found, json.loads((folder / "codes.json").read_text()), said


def tables(folder: Path) -> Path:
    """A table for four processes, of one plan for all and one for some; one for another machine, and no table."""
    machine = antiphon.topology(f"full:ranks={SIZE}")
    ring = antiphon.plan("allreduce", machine, planner="ring")
    some = antiphon.plan(Collective("allgather", SIZE, members=(0, 2, 3)), machine, planner="bruck")
    claims = some.entries[0].claims
    short = Entry(0, 8, some.entries[0].schedule, {**claims, "served_by": "library"})
    some = Plan(machine, some.collective, (short, Entry(8, None, some.entries[0].schedule, claims)))
    # the dimensions of a mesh of 2 x 2, both at work
    mesh = antiphon.collective("reducescatter@row + allreduce@column", machine, mesh="row=2,column=2")
    plans = {"allreduce": ring, "allgather": some, "custom": antiphon.plan(mesh, machine, options={"links": "alone"})}
    plans["alltoall"] = plan_of_counts(machine)
    save_plans(folder / "table.json", plans, table=True)
    save_plans(folder / "subgroups.json", {"custom": plans["custom"]}, table=False)  # and none for all processes
    other = antiphon.plan("allreduce", antiphon.topology("ring:ranks=8"), planner="ring")
    save_plans(folder / "other.json", {"allreduce": other}, table=False)
    (folder / "broken.json").write_bytes((folder / "table.json").read_bytes()[:2000])
    return folder / "table.json"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """One launch for all, and for all processes that run tests: loading PyTorch costs more than most checks."""

    def launched(folder: Path) -> Found:
        table = str(tables(folder))
        results, codes, said = launch(folder, SIZE, CHECKS, ANTIPHON_TABLE=table)
        assert codes == [0, 0, 0, -9], said  # the last is killed in the last check
        return results

    results: Found = once(tmp_path_factory, "torch", launched)
    return results


def test_every_check_was_made(found: Found) -> None:
    for rank in range(SIZE - 1):
        assert [name for name in CHECKS if name not in found[rank]] == []


def test_all_was_served_by_our_schedules(found: Found) -> None:
    rows = found[0]["report"]
    served = {(row["collective"], row["schedule"]) for row in rows if row["served_by"] == "antiphon"}
    assert ("allreduce", "ring") in served  # of the table
    assert served >= {
        ("allgather", "direct (default)"), ("reducescatter", "direct (default)"), ("reduce", "binomial-tree (default)"),
        ("broadcast", "direct (default)"), ("gather", "direct (default)"), ("scatter", "direct (default)"),
        ("alltoall", "direct (default)"), ("alltoall", "point to point"), ("alltoall", "relay"),
    }  # fmt: skip
    left = {(row["collective"], row["why"]): row["calls"] for row in rows if row["served_by"] == "library"}
    assert left == {("allreduce", "an operator or type that the engine has not"): 1}
    assert not any(row["collective"] == "allreduce" and "default" in row["schedule"] for row in rows)


def test_tensors_on_a_device_are_refused_with_the_route_that_serves_them(found: Found) -> None:
    for one in found[:-1]:
        assert len(one["wrong_calls"]["messages"]) == 2
        for message in one["wrong_calls"]["messages"]:
            assert "the tensor is on meta" in message
            assert "MSCCL++" in message


def test_a_monitored_barrier_names_who_is_missing(found: Found) -> None:
    assert "Rank 1 failed to pass monitoredBarrier in 0 ms" in found[0]["monitored"]["said"][1]


def test_a_call_that_is_waited_for_is_carried_out_by_who_makes_it_and_hears_of_signals(found: Found) -> None:
    for one in found[:-1]:
        assert one["at_once"]["threads"] == ["MainThread", "antiphon", "antiphon"]
    assert found[0]["at_once"]["heard"] == 1, "the handler ran before the call was over"


def test_a_wrong_table_is_told_to_all(found: Found) -> None:
    for rank in range(SIZE - 1):
        other, broken, absent = found[rank]["tables"]["said"]
        assert re.search("for 8 ranks.*there are 4 processes", other)
        assert "broken.json" in broken
        assert "absent.json" in absent


def test_a_process_that_is_late_or_killed_is_an_error_at_the_others(found: Found) -> None:
    for rank in range(1, SIZE - 1):
        assert re.search(
            "nothing came or went for 1 sec|is lost", found[rank]["late"]["message"]
        )  # whoever gives up first
    for rank in range(SIZE - 1):
        assert "the connection to rank" in found[rank]["killed"]["message"]
        assert "an earlier call failed" in found[rank]["killed"]["again"]
        assert found[rank]["killed"]["seconds"] < 20  # the timeout of the group


def test_learning(found: Found) -> None:
    for one in found[:-1]:
        learned = {row["schedule"]: row["why"] for row in one["learns"]["report"] if row["served_by"] == "learned"}
        assert learned.keys() == {"calls of 400 bytes", "calls of 240000 bytes"}
        assert all("(first search)" in why for why in learned.values())


@pytest.mark.slow
def test_long_training_and_compiling(tmp_path: Path) -> None:
    results, codes, said = launch(
        tmp_path,
        SIZE,
        ["training", "compiled"],
        ANTIPHON_TEST_COMPILER="inductor",
        ANTIPHON_TEST_BACKEND="cpu:antiphon",
    )
    assert codes == [0] * SIZE, said
    for one in results:
        assert max(value for name, value in one["training"].items() if "float64" in name) <= 1e-9
        assert max(value for name, value in one["training"].items() if "float32" in name) <= 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("way", ["memory", "sockets"])
def test_messages_between_all_and_what_a_group_takes(tmp_path: Path, way: str) -> None:
    """Messages arrive; a group has fewer descriptors and threads than gloo's when made, and after collectives."""
    found, codes, said = launch(tmp_path, SIZE, ["many", "counted"], ANTIPHON_SHARED=str(int(way == "memory")))
    assert codes == [0] * SIZE, said
    assert sum(one["many"]["received"] for one in found) == 400
    for one in found:
        ours, theirs = one["counted"]["antiphon"], one["counted"]["gloo"]
        for mine, other in zip(ours, theirs, strict=True):
            assert mine[0] < other[0]
            assert mine[1] < other[1]


@pytest.mark.slow
def test_the_page_and_the_example_run(tmp_path: Path) -> None:
    """docs/torch.md's Python, and the example, as torchrun starts them."""
    page = (HERE.parent / "docs" / "torch.md").read_text()
    scripts = []
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", page, re.DOTALL)):
        scripts.append(tmp_path / f"block{number}.py")
        scripts[-1].write_text(block)
    assert scripts
    scripts.append(HERE.parent / "examples" / "train_with_torch.py")
    port = 20000 + os.getpid() % 20000
    _, codes, said = launch(tmp_path, 2, ["scripts", *map(str, scripts)], ANTIPHON_TEST_PORT=str(port))
    assert codes == [0, 0], said
    assert "antiphon" in said


def test_without_torch_the_package_goes_on() -> None:
    """`import antiphon` loads nothing of it."""
    code = "import sys, antiphon, antiphon.cli, antiphon.runtimes.serve.comm; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=1000)
