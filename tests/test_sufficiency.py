"""Candidates are skipped once the best plans reach the lower bound, by an order that no clock decides."""

from __future__ import annotations

from fractions import Fraction

import pytest

from antiphon.isolate import Ended, Terms, as_done
from antiphon.registry import find
from antiphon.select import tune
from antiphon.select.limits import Limit
from antiphon.select.sufficiency import UNNEEDED, Sufficiency
from antiphon.select.task import Task

SIZES = (1024, 1 << 20)
LIMIT = Limit(1, 0.0, Fraction(1), model="alpha-beta", times={1024: 2.0, 1 << 20: 10.0})
SECONDS = {0: [(2.0, 14.0)], 1: [(9.0, 10.02)], 2: [(1.0, 1.0)], 3: [(5.0, 5.0)]}


def tasks() -> list[Task]:
    return [
        Task(i, "allgather", name, find("planner", name)) for i, name in enumerate(("direct", "ring", "trees", "sccl"))
    ]


def times(index: int) -> list[tuple[float, ...]]:
    return SECONDS[index]


def test_a_collective_closes_behind_the_candidates_that_reach_the_bound() -> None:
    work = tasks()
    sufficiency = Sufficiency(work, SIZES, lambda task: False)
    assert [task.planner for task in sufficiency.order["allgather"]][:2] == ["direct", "ring"]
    assert not sufficiency.update("allgather", None, {0: True, 1: True}, times)  # the bound is not known yet
    assert not sufficiency.update("allgather", LIMIT, {0: True}, times)
    assert all(sufficiency.is_needed(task) for task in work)
    assert sufficiency.update("allgather", LIMIT, {0: True, 1: True}, times)
    assert [sufficiency.is_needed(task) for task in work] == [True, True, False, False]


def test_it_does_not_matter_which_candidate_was_done_first() -> None:
    work = tasks()
    sufficiency = Sufficiency(work, SIZES, lambda task: task.planner == "sccl")
    assert not sufficiency.update("allgather", LIMIT, {2: True, 3: True, 1: True}, times)
    assert sufficiency.update("allgather", LIMIT, {2: True, 3: True, 1: True, 0: True}, times)
    assert [sufficiency.is_needed(task) for task in work] == [True, True, False, True]  # sccl is always needed


def test_without_a_bound_at_every_size_nothing_is_skipped() -> None:
    partly = Limit(1, 0.0, Fraction(1), model="alpha-beta", times={1024: 2.0})
    assert not Sufficiency(tasks(), SIZES, lambda task: False).update("allgather", partly, {0: 1, 1: 1}, times)


@pytest.mark.parametrize("workers", ["none", 2])
def test_tune_skips_what_cannot_be_faster(workers: str | int) -> None:
    tuned = tune("scatter", "star:ranks=4", nbytes="1KB:1MB", workers=workers, model="alpha-beta")
    skipped = {c.planner for c in tuned.candidates if c.status == "skipped"}
    assert {"flows", "sccl"} <= skipped
    assert {c.reason for c in tuned.candidates if c.status == "skipped"} == {UNNEEDED}
    assert all(r.gap == pytest.approx(1.0, abs=0.005) for r in tuned.ranges)
    assert tuned.complete


def wait_or_speak(job: str, say) -> None:  # type: ignore[no-untyped-def]
    import time

    if job == "long":
        time.sleep(60)
    say(job)


def test_work_that_is_not_wanted_any_more_is_ended() -> None:
    spoken: set[str] = set()
    terms: Terms[str] = Terms(wait_or_speak, workers=2)
    for job, event in as_done(["long", "short", "never"], terms, lambda job: job == "short" or not spoken):
        if not isinstance(event, Ended):
            spoken.add(event.value)
        assert job != "never"
    assert spoken == {"short"}
