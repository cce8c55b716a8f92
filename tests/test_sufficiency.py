"""Candidates are skipped once the best plans reach the lower bound, by an order that no clock decides."""

from __future__ import annotations

import os
import signal
import sys
from fractions import Fraction
from typing import Any

import pytest
from quick import in_turn

from antiphon.cost import prepare
from antiphon.isolate import Ended, Lost, PoolTerms, as_done, can_fork
from antiphon.registry import find
from antiphon.select import plan, tune
from antiphon.select.limits import Limit
from antiphon.select.pool import order_for_workers
from antiphon.select.sufficiency import UNNEEDED, Sufficiency
from antiphon.select.task import BEATEN, Task
from antiphon.select.tuner import usual_planners
from antiphon.topologies import topology

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


def test_a_collective_without_candidates_stays_open() -> None:
    assert not Sufficiency(tasks(), SIZES, lambda task: False).update("allreduce", LIMIT, {}, times)


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
    assert "flows" in skipped
    assert {c.reason for c in tuned.candidates if c.status == "skipped"} == {UNNEEDED}
    assert all(r.gap == pytest.approx(1.0, abs=0.005) for r in tuned.ranges)
    assert tuned.complete


def wait_or_speak(job: str, say) -> None:  # type: ignore[no-untyped-def]
    import time

    if job == "long":
        time.sleep(60)
    say(job)


@pytest.mark.slow
def test_work_that_is_not_wanted_any_more_is_ended() -> None:
    spoken: set[str] = set()
    terms: PoolTerms[str] = PoolTerms(wait_or_speak, workers=2)
    for job, event in as_done(["long", "short", "never"], terms, lambda job: job == "short" or not spoken):
        if not isinstance(event, Ended):
            spoken.add(event.value)
        assert job != "never"
    assert spoken == {"short"}


@pytest.mark.skipif(not can_fork(), reason="needs a SciPy whose solvers survive a fork")
def test_forked_workers_print_nothing_are_replaced_and_end(capfd: pytest.CaptureFixture[str]) -> None:
    def work(job: int, say) -> int:  # type: ignore[no-untyped-def]
        print("printed", job)
        print("printed", job, file=sys.stderr, flush=True)
        assert not sys.stdin.read()
        if job == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        say(os.getpid())
        return job * job

    results, pids = {}, set()
    for job, event in as_done(range(8), PoolTerms(work, workers=2, fork=True)):
        if isinstance(event, Ended):
            results[job] = event.result
        else:
            pids.add(event.value)
    assert {job: result for job, result in results.items() if job != 3} == {j: j * j for j in range(8) if j != 3}
    assert isinstance(results[3], Lost)
    assert 1 <= len(pids) <= 3  # two workers, and one for that which died
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert capfd.readouterr() == ("", "")


def test_workers_begin_with_bounds_then_long_and_quick_tasks_in_turn() -> None:
    names = ["sccl", "binomial-tree", "trees", "direct", "ring"]
    entries = [None, *(find("planner", name) for name in names), None]
    listed = [Task(i, "allgather", e and names[i - 1], entry=e) for i, e in enumerate(entries)]  # type: ignore[arg-type]
    assert [task.planner for task in order_for_workers(listed) if task.entry] == [
        "trees", "sccl", "binomial-tree", "ring", "direct",
    ]  # fmt: skip
    assert [task.index for task in order_for_workers(listed)][:2] == [0, 6]


def test_synthesis_is_tried_unasked_where_some_ranks_are_not_joined() -> None:
    tried = {spec: "sccl" in usual_planners(topology(spec)) for spec in ("hgx-h100", "full:ranks=6", "dgx1v", "mi250")}
    assert tried == {"hgx-h100": False, "full:ranks=6": False, "dgx1v": True, "mi250": True}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("nodes", "planners", "nbytes"),
    [
        pytest.param(1, (), "1KB:64MB", marks=pytest.mark.slow),
        pytest.param(4, (), "1KB:64MB", marks=pytest.mark.slow),
        pytest.param(4, ("kring", "recmult", "compose"), "1KB:64MB", marks=pytest.mark.slow),
        (2, ("kring", "recmult", "compose"), "1KB:64MB:256"),
    ],
    ids=["usual", "usual-16-ranks", "named-16-ranks", "named"],
)
def test_large_schedules_that_are_never_the_fastest_are_dropped(
    monkeypatch: pytest.MonkeyPatch, nodes: int, planners: tuple[str, ...], nbytes: str
) -> None:
    def tune_as_if_large(least: int, workers: str | int) -> Any:
        """Tune with LogGP, as if schedules of more than `least` messages were large."""
        monkeypatch.setattr("antiphon.cost.loggp.run.MAX_LOGGED_MESSAGES", least)
        spec = f"delta:nodes={nodes}"
        return tune("allgather", spec, model="loggp", nbytes=nbytes, workers=workers, planners=planners)

    every = tune_as_if_large(2**20, "none")
    few = tune_as_if_large(10, "none")
    assert few.as_json()["candidates"] == tune_as_if_large(10, 2).as_json()["candidates"]
    dropped = {(c.planner, *c.options.items()) for c in few.candidates if c.reason == BEATEN}
    assert len(dropped) > len(every.candidates) / 4
    for size in every.sizes:  # what is fastest, and what NCCL is compared by, remain
        assert min(c.seconds[size] for c in few.candidates if c.seconds and c.may_win) == min(
            c.seconds[size] for c in every.candidates if c.seconds and c.may_win
        )
        assert few.baseline("allgather", size) == every.baseline("allgather", size)
    known = [(c.planner, c.seconds) for c in every.candidates]
    assert all((c.planner, c.seconds) in known for c in few.candidates if c.seconds)


SIMULATED = {
    "ring": "loggp", "direct": "loggp", "kring": "loggp:device_radix=2", "bruck": "loggp:order=data",
    "pairwise": "loggp:cpu=shared,node_radix=none", "hierarchical-ring": "loggp:fidelity=packet",
    "recmult": "loggp:contention=off",
}  # fmt: skip


@pytest.mark.parametrize("planner", in_turn(SIMULATED, 3))
def test_a_simulation_takes_less_than_what_it_does_not_reach(planner: str) -> None:
    machine = topology("delta:nodes=4")
    schedule = plan("allgather", machine, planner=planner).entries[0].schedule
    for nbytes in (1024, 1 << 24):
        seconds = prepare(SIMULATED[planner], schedule, machine, profile="loggp-delta")(nbytes).seconds
        for factor, less in ((0.1, False), (1, False), (1 + 1e-9, True), (9, True)):
            simulation = prepare(SIMULATED[planner], schedule, machine, profile="loggp-delta")
            assert simulation.takes_less(nbytes, seconds * factor) == less, (nbytes, factor)  # type: ignore[attr-defined]
