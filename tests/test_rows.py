"""Rows: one form for all runtimes and commands, each key told in docs/bench.md."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fake_ground
import pytest
from lab_env import why_no_lab

import antiphon
from antiphon.core.plan import Plan
from antiphon.registry import table
from antiphon.runtimes.measure.bench import bench_plans, run_plan

PAGE = Path(__file__).resolve().parent.parent / "docs" / "bench.md"
ALWAYS = {
    "on", "nbytes", "count", "dtype", "op", "in_place", "seconds", "quartiles", "least", "most", "runs", "algbw",
    "busbw", "correct", "wrong", "reference_seconds", "reference_quartiles", "reference_wrong", "over_library",
    "over_library_quartiles",
}  # fmt: skip


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(table("runtime"), "fake", fake_ground.ENTRY)  # type: ignore[arg-type]
    yield
    for kept in (fake_ground.asked, fake_ground.launches, fake_ground.stop_after, fake_ground.done):
        kept.clear()


def documented() -> set[str]:
    section = PAGE.read_text().partition("## A row")[2].partition("\n## ")[0]
    first = [line.split("|")[1] for line in section.splitlines() if line.startswith("| ") and "key" not in line]
    return {key for cell in first for key in re.findall(r"[a-z_]+", cell)}


def check(rows: list[dict[str, Any]] | None, *more: str) -> None:
    assert rows
    for row in rows:
        assert ALWAYS | set(more) <= set(row)
        assert set(row) <= documented(), set(row) - documented()
        assert row["algbw"] == pytest.approx(row["nbytes"] / row["seconds"])
        assert row["correct"] == (row["wrong"] == 0)
        assert row["least"] <= row["quartiles"][0] <= row["seconds"] <= row["quartiles"][1] <= row["most"]
        if row.get("over_predicted"):
            assert row["over_predicted"] == pytest.approx(row["seconds"] / row["predicted_seconds"])


def made() -> Plan:
    plan: Plan = antiphon.plan("allreduce", "full:ranks=3", planner="direct")
    return plan


def test_every_command_tells_the_same_row() -> None:
    check(run_plan(made(), ["1KB", "12KB"], on="local"), "agree")
    check(run_plan(made(), "1KB", on="fake"))
    check(bench_plans(made(), "1KB", on="local", iterations=2), "agree", "predicted_seconds", "planner")
    check(bench_plans(made(), "1KB", on="fake"), "predicted_seconds", "planner")
    asked: Any = {"planners": ["ring", "direct", "trees"], "search": antiphon.Search(workers="none")}
    found = antiphon.measure.tune("allreduce", "full:ranks=3", on="fake", nbytes="1KB:4KB", **asked)
    assert found is not None
    check([dict(row) for row in found.rows], "over_best", "over_best_interval", "tied", "planner")
    local = antiphon.measure.tune("allreduce", "full:ranks=3", on="local", nbytes="1KB", iterations=2, **asked)
    assert local is not None
    check([dict(row) for row in local.rows], "agree", "tied")


def test_the_library_of_local_is_numpy() -> None:
    (row,) = run_plan(made(), "12KB", on="local") or []
    assert row["reference_seconds"] > 0
    assert row["over_library"] > 0
    assert row["reference_wrong"] == 0


@pytest.mark.slow
def test_a_lab_has_no_library() -> None:
    if why := why_no_lab():
        pytest.skip(why)
    rows = run_plan(antiphon.plan("allgather", "ring:ranks=3", planner="ring"), "90KB", on="lab", repeat=1)
    check(rows, "predicted_seconds", "over_predicted", "links", "at_once", "overhead", "messages")
    assert rows is not None
    assert rows[0]["reference_seconds"] is rows[0]["over_library"] is None
