"""The clock decides which candidates finish: how many it stopped is told, apart from what ended otherwise."""

import json
import re
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import antiphon
from antiphon.cli import run
from antiphon.cli.progress import progress_line
from antiphon.isolate import _process
from antiphon.select import Tuning, pool, tune
from antiphon.select import task as _task
from antiphon.show.words import stopped_text

Add = Callable[..., None]
Capture = pytest.CaptureFixture[str]


def asked(added: Add, *names: str, **options: Any) -> Tuning:
    added(*names)
    given = {"nbytes": "1KB", "workers": 1, "budget": 5.0, "nccl": False, **options}
    return tune("allgather", "ring:ranks=4", planners=[*names, "ring"], **given)


def ended(found: Tuning) -> dict[str, str]:
    """What ended, by planner, as the JSON tells."""
    told = found.as_json()["ended_early"]
    assert all(one["reason"] for one in told)
    return {one["planner"]: one["ended_by"] for one in told}


@pytest.mark.parametrize("workers", ["none", 1])
def test_every_way_to_end_is_told_apart(added: Add, workers: Any) -> None:
    """In this process and in others; what raises or refuses was not ended, and what was found before counts."""
    names = ["half", "late", "starves", "raises", "refuses", "nothing"]
    found = asked(added, *names, workers=workers)
    assert ended(found) == {"half": "budget", "late": "budget", "starves": "memory"}
    assert (found.stopped, found.as_json()["stopped"], found.untried) == (2, 2, 0)
    assert {c.planner for c in found.candidates if c.status == "ok"} >= {"half", "late", "starves", "raises"}


@pytest.mark.slow
def test_what_is_stopped_from_outside_counts_and_what_dies_does_not(added: Add) -> None:
    found = asked(added, "hangs", "sleeps", "dies", "killed", budget=0.2)
    assert ended(found) == {"hangs": "budget", "sleeps": "budget", "dies": "crash", "killed": "crash"}
    assert found.stopped == 2
    (killed,) = (c for c in found.candidates if c.planner == "killed" and c.status != "ok")
    assert killed.reason == "its process was ended by signal SIGKILL, as computers end what takes too much memory"
    words = "stopped by their budget: 2 candidates (hangs, sleeps); ended by a crash: 2 candidates (dies, killed)"
    assert stopped_text([found]) == f"{words}; more time (--budget) may find better"


def test_within_this_process_too(added: Add) -> None:
    found = asked(added, "hangs", budget=0.2, workers="none")
    assert (ended(found), found.stopped) == ({"hangs": "budget"}, 1)


def test_what_never_began_was_not_stopped_by_its_budget(added: Add, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no process gets ready all is done in this one."""
    monkeypatch.setattr(_process, "START_SECONDS", 0.001)
    found = asked(added, "anything", budget=0.2)
    (row,) = (c for c in found.candidates if c.planner == "anything")
    assert (row.status, found.stopped) == ("ok", 0)


def test_an_interruption_leaves_candidates_untried(monkeypatch: pytest.MonkeyPatch) -> None:
    number = count()
    work = pool.run_task

    def stopped(*job: Any) -> Any:
        if next(number) == 2:
            raise KeyboardInterrupt
        yield from work(*job)

    monkeypatch.setattr(pool, "run_task", stopped)
    names = ["ring", "direct", "bruck", "recursive-doubling"]
    found = tune("allgather", "full:ranks=4", planners=names, nbytes="1KB", workers="none", nccl=False)
    asked_for = {c.planner for c in found.candidates}
    assert not found.complete
    assert found.untried > 0
    assert asked_for < set(names)
    assert f"not tried: {found.untried} candidate" in stopped_text([found])


def test_an_interruption_in_the_middle_is_no_end_of_the_budget(added: Add) -> None:
    found = asked(added, "interrupts_who_asked", budget=600)
    assert (ended(found), found.stopped, found.complete) == ({}, 0, False)
    assert [c.status for c in found.candidates if c.planner == "interrupts_who_asked"] == ["ok"]


def test_bounds_that_took_too_long_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a gap would be missing without a word; they are no candidate, and no budget helps."""

    def endless(machine: Any, target: Any) -> Any:
        while True:
            pass

    monkeypatch.setattr(pool, "BOUND_LIMIT", 0.05)
    monkeypatch.setattr(_task, "bound", endless)
    found = tune("allgather", "ring:ranks=4", planners="ring", nbytes="1KB", workers="none", nccl=False)
    assert found.ranges[0].gap is None
    assert found.no_bound == {"allgather": "stopped after 0.05 s of CPU time"}
    assert "no gap for allgather: its bounds were stopped after 0.05 s of CPU time" in found.notes
    assert found.stopped == 0


def test_the_text_the_report_and_the_json_say_how_many(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a tiny budget, and of one that is enough."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ANTIPHON_CACHE", "off")
    arguments = ["tune", "broadcast", "torus:dims=4x4", "--planner", "sccl", "--planner", "ring", "--nbytes", "1KB:2KB"]
    arguments += ["--no-nccl", "-o", "report.html", "-o", "plan.json"]
    assert run([*arguments, "--budget", "0.2s"]) == 0
    assert "stopped by their budget: 1 candidate (sccl); more time (--budget) may find better" in " ".join(
        capsys.readouterr().out.split()
    )
    assert "stopped by their budget: 1 candidate (sccl)" in Path("report.html").read_text()
    assert run([*arguments, "--budget", "0.2s", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["stopped"] == 1
    assert [one["planner"] for one in told["ended_early"]] == ["sccl"]
    arguments[4] = "direct"
    assert run([*arguments, "--planner", "binomial-tree", "--budget", "60s", "--explain"]) == 0
    assert capsys.readouterr().out.splitlines()[-3].strip() == "stopped by their budget: none"  # two files are written
    assert "stopped by their budget: none" in Path("report.html").read_text()


@pytest.mark.slow
def test_several_machines_are_counted_together(capsys: Capture, added: Add) -> None:
    added("half")
    machines = ["ring", "--vary", "ranks=3,4"]
    assert run(["tune", "allgather", *machines, "--planner", "half", "--no-nccl", "--nbytes", "1KB"]) == 0
    assert "stopped by their budget: 2 candidates (half)" in " ".join(capsys.readouterr().out.split())


# ---- planners say when their budget ended them ----


def test_one_plan_says_what_ended_the_search(capsys: Capture, added: Add, tmp_path: Path) -> None:
    added("half", "anything")
    made = antiphon.plan("allgather", "ring:ranks=4", planner="half")
    assert made.entries[0].claims["stopped"] == "the budget is used up"
    assert antiphon.verify(made)
    assert run(["plan", "allgather", "ring:ranks=4", "--planner", "half"]) == 0
    assert "stopped:   the budget is used up" in capsys.readouterr().out
    told = {}
    for name in ("half", "anything"):
        assert run(["plan", "allgather", "ring:ranks=4", "--planner", name, "--json"]) == 0
        told[name] = json.loads(capsys.readouterr().out)["stopped"]
    assert told == {"half": "the budget is used up", "anything": None}
    file = tmp_path / "plan.json"
    assert run(["plan", "allgather", "ring:ranks=4", "--planner", "half", "--all", "--json", "-o", str(file)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (len(told["plans"]), told["stopped"]) == (1, "the budget is used up")
    assert antiphon.verify(antiphon.select.load_plans(tmp_path / "plan-1.json")["allgather"])


def test_a_report_of_what_was_not_stopped_is_not_bold() -> None:
    found = tune("allgather", "ring:ranks=4", planners="ring", nbytes="1KB", workers="none", nccl=False)
    page = antiphon.pages.report(found)
    assert "stopped by their budget: none" in page


def test_who_is_still_at_work_is_named(added: Add, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not what was done last, which is no news of what takes long."""
    monkeypatch.setattr(pool, "WATCH_INTERVAL", 0.0)
    heard: list[str] = []
    asked(added, "hangs", budget=0.3, progress=lambda done, total, what: heard.append(progress_line(done, total, what)))
    assert any(
        re.fullmatch(r"\d+ of \d+ planner calls done; running: hangs \(0 CPU s\)(; best so far .*)?", line)
        for line in heard
    )
    assert "done; last: " in heard[-1]
