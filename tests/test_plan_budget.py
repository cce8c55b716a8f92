"""`plan --budget` stops planners, the verifier, the bound and models alike; what was found until then is kept."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from quick import in_turn

import antiphon
from antiphon.cli import run
from antiphon.core.plan import Plan
from antiphon.errors import EffortSpent, NotFound, TimedOut, Unsupported
from antiphon.select import plans

Add = Callable[..., None]
Capture = pytest.CaptureFixture[str]
RING = ("allgather", "ring:ranks=4")


def endless(*args: Any, **options: Any) -> Any:
    while True:
        pass


def same_rows(one: Plan, other: Plan) -> bool:
    columns = (plan.entries[0].schedule.columns().values() for plan in (one, other))
    return all(np.array_equal(a, b) for a, b in zip(*columns, strict=True))


@pytest.mark.parametrize(
    "name", ["hangs", *(pytest.param(name, marks=pytest.mark.slow) for name in ("sleeps", "ignores_stops"))]
)
def test_the_best_plan_until_then_is_kept(added: Add, name: str) -> None:
    added(name)
    plan = antiphon.plan(*RING, planner=name, budget=0.2)
    claims = plan.entries[0].claims
    assert claims["stopped"].startswith(f"planner {name} was stopped after 0.2 s of CPU time, while planning")
    assert antiphon.verify(plan)


@pytest.mark.parametrize(
    ("stage", "name"),
    in_turn([("planning", ""), ("computing the bound", "bound"), ("verifying a schedule", "verify_schedule"),
             ("predicting how long a plan takes", "prepare")]),
)  # fmt: skip
def test_without_a_plan_it_says_what_was_stopped(
    capsys: Capture, added: Add, monkeypatch: pytest.MonkeyPatch, stage: str, name: str
) -> None:
    added("idles", "anything")
    if name:
        monkeypatch.setattr(plans, name, endless)
    planner = "anything" if name else "idles"
    assert run(["plan", *RING, "--planner", planner, "--nbytes", "1KB", "--budget", "200ms"]) == 1
    said = capsys.readouterr().err
    assert f"planner {planner} was stopped after 0.2 s of CPU time, while {stage}: no plan of allgather" in said
    assert "raise --budget" in said
    with pytest.raises(TimedOut, match=stage):
        antiphon.plan(*RING, planner=planner, nbytes="1KB", budget="200ms")


def test_the_command_says_so_and_writes_the_plan(capsys: Capture, added: Add, tmp_path: Path) -> None:
    added("hangs")
    arguments = ["plan", *RING, "--planner", "hangs", "--budget", "200ms", "-o", str(tmp_path / "plan.json")]
    assert run([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["stopped"].startswith("planner hangs was stopped after 0.2 s")
    assert run(["verify", str(tmp_path / "plan.json")]) == 0
    capsys.readouterr()
    assert run([*arguments, "--all", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (len(told["plans"]), told["stopped"].partition(",")[0]) == (
        1, "planner hangs was stopped after 0.2 s of CPU time"
    )  # fmt: skip


def test_with_time_enough_the_plan_is_the_same() -> None:
    for how in ({"planner": "trees"}, {"deterministic": True}, {"nbytes": "64KB", "planner": "multi-ring"}):
        alone, limited = (antiphon.plan("allreduce", "dgx1v", budget=budget, **how) for budget in (None, 600))
        assert same_rows(alone, limited)
        assert alone.entries[0].claims == limited.entries[0].claims


def test_without_a_budget_there_is_no_other_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "stream_job", endless)
    assert "stopped" not in antiphon.plan(*RING).entries[0].claims


def test_errors_and_words_of_a_planner_come_through(monkeypatch: pytest.MonkeyPatch, added: Add) -> None:
    added("refuses", "raises", "nothing")
    with pytest.raises(Unsupported, match="never does anything"):
        antiphon.plan(*RING, planner="refuses", budget=600)
    with pytest.raises(NotFound, match="found no schedule"):
        antiphon.plan(*RING, planner="nothing", budget=600)
    with pytest.raises(NotFound, match="planner raises failed: ZeroDivisionError"):
        antiphon.plan(*RING, planner="raises", budget=600)
    monkeypatch.setenv("ANTIPHON_CACHE", "off")
    words: list[str] = []
    with pytest.raises(EffortSpent):
        antiphon.plan(*RING, planner="sccl", effort=1e-9, budget=600, progress=words.append)
    plan = antiphon.plan(*RING, planner="sccl", budget=600, progress=words.append)
    assert plan.entries[0].claims["bandwidth_gap"] == 1
    assert words


@pytest.mark.slow
def test_ctrl_c_keeps_the_best_so_far(added: Add) -> None:
    added("interrupts_who_asked")
    plan = antiphon.plan(*RING, planner="interrupts_who_asked", budget=600, progress=lambda text: None)
    assert plan.entries[0].claims["stopped"] == "interrupted"
    with pytest.raises(KeyboardInterrupt):
        antiphon.plan(*RING, planner="interrupts_who_asked", budget=600)


def test_ctrl_c_ends_all_plans_with_those_found(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def interrupted(*args: Any, **options: Any) -> Iterator[Plan]:
        yield antiphon.plan(*RING)
        raise KeyboardInterrupt

    monkeypatch.setattr("antiphon.cli.plans.every_plan", interrupted)
    assert run(["plan", *RING, "--all", "--json", "-o", str(tmp_path / "plan.json")]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (len(told["plans"]), told["stopped"]) == (1, "interrupted")
    assert (tmp_path / "plan-1.json").exists()


def test_a_frontier_is_stopped_in_python_too(added: Add) -> None:
    added("hangs")
    found = antiphon.frontier.find(*RING, planner="hangs", budget=0.2)
    assert (len(found.points), found.stopped) == (1, "the budget is used up")
