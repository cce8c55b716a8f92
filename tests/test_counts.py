"""Alltoalls with counts that vary: plans for the average, right for any counts, with a bound on the loss."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
from commands import answer, complaint, text
from quick import in_turn
from test_groups import random_machine

import antiphon
from antiphon.core.bounds import bound
from antiphon.core.collective import Collective
from antiphon.core.loads import throughput
from antiphon.cost import Profile
from antiphon.errors import Invalid, Unsupported
from antiphon.select.counts import Counts, bound_loss, measure_loss, recount_schedule


def test_rows_send_and_columns_receive() -> None:
    counts = Counts.of([[0, 5, 0], [0, 0, 0], [1, 0, 0]], 3)
    target = counts.collective(0, 4, (0, 2, 3))
    assert target.input_weights.tolist() == [5, 0, 0, 1]
    assert target.output_weights.tolist() == [1, 0, 5, 0]
    average = counts.average(4, (0, 2, 3))
    assert average.weights.min() == 1  # every pair has a route
    assert average.input_weights.tolist() == [1002, 0, 3, 202]


def test_sizes_are_relative_to_the_average() -> None:
    assert Counts.of([[[0, 3], [1, 0]], [[0, 1], [1, 0]]], 2).sizes(1000) == [1500, 500]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([[0, 1], [1, 0]], "3 rows and columns"),
        ([[0, 1, 0], [1, 0, 0.5], [0, 0, 0]], "whole number"),
        ([[0, 1, 0], [1, 0], [0, 0, 0]], "3 rows and columns"),
        ([[0, 1, 0], [1, 0, -1], [0, 0, 0]], "whole numbers from 0"),
        ([[[0, 1, 0], [1, 0, 1], [0, 0, 0]], [[4, 0, 0], [0, 0, 0], [0, 0, 0]]], "matrix 1 has nothing to send"),
        ("absent.json", "absent.json: cannot be read"),
    ],
)
def test_wrong_counts(value: object, message: str) -> None:
    with pytest.raises(Invalid, match=message):
        Counts.of(value, 3)


def test_the_plan_is_right_for_any_counts() -> None:
    average = Counts.of(np.arange(16).reshape(4, 4), 4).average(4, range(4))
    best = antiphon.plan(average, "mesh:dims=2x2", planner="flows")
    to_next, last_to_first = np.eye(4, k=1, dtype=int) * 9, np.eye(4, k=-3, dtype=int)
    for counts in (to_next, np.full((4, 4), 3), np.diag([7, 0, 0, 0]) + last_to_first):
        own = antiphon.machines.recount(best, counts.tolist())
        assert antiphon.verify(own)
        assert own.entries[0].claims["bandwidth_gap"] >= 1
        (row,) = antiphon.run(own, "60KB", dtype="int32")
        assert row["correct"]
    with pytest.raises(Invalid, match="one step"):
        antiphon.machines.recount(best, [np.ones((4, 4), int).tolist()] * 2)
    with pytest.raises(Invalid, match="alltoall among the same ranks"):
        recount_schedule(antiphon.plan("allgather", "ring:ranks=4").entries[0].schedule, best.collective)


def test_the_greatest_loss_of_a_ring_is_attained() -> None:
    """Neighbours exchange directly: if only rank 0 sends to rank 1, half of that could have gone the other way."""
    ring = antiphon.topology("ring:ranks=4")
    plan = antiphon.plan("alltoall", ring, planner="flows")
    assert bound_loss(plan.entries[0].schedule, ring) == pytest.approx(2)
    single = np.zeros((4, 4), int)
    single[0, 1] = 1
    assert antiphon.machines.recount(plan, single.tolist()).entries[0].claims["bandwidth_gap"] == 2


@pytest.mark.parametrize("seed", in_turn(range(8), 5))
def test_no_counts_lose_more_than_the_bound(seed: int) -> None:
    rng = random.Random(seed)
    machine = random_machine(rng)
    ranks = machine.ranks
    plan = antiphon.plan("alltoall", machine, planner=rng.choice(["relay", "flows"]))
    schedule = plan.entries[0].schedule
    greatest, worst = bound_loss(schedule, machine), 0.0
    for _ in range(15):
        counts = np.zeros((ranks, ranks), int)
        for _ in range(rng.randint(1, 5)):  # few pairs: these lose most
            counts[tuple(rng.sample(range(ranks), 2))] = rng.randint(1, 9)
        own = recount_schedule(schedule, Collective("alltoall", ranks, weights=counts.T.ravel()))
        rate, best = throughput(own, machine), bound(machine, own.collective).bytes_per_second
        assert rate is not None
        assert best is not None
        worst = max(worst, float(best / rate))
    assert worst <= greatest * (1 + 1e-9)
    assert worst > greatest / 3  # the bound is not idle


def test_a_profile_is_counted_for_any_counts() -> None:
    """A profile in which links that are idle at most counts become slow moves the greatest loss."""
    machine = antiphon.topology("cluster:box=ring:ranks=2,boxes=2")
    plan = antiphon.plan("alltoall", machine, planner="flows")
    counts = Counts.of([[0 if i == j else 1 for j in range(4)] for i in range(4)], 4)
    kind = next(link_type.kind for link_type in machine.types if link_type.kind != "ib")
    slow = Profile(name="slow", bandwidth_factor={kind: 0.01})
    losses = [measure_loss(plan, counts, 10**6, "alpha-beta", profile).any_counts for profile in (None, slow)]
    assert losses[1] == pytest.approx(bound_loss(plan.entries[0].schedule, slow.on(machine)))
    assert losses[0] != pytest.approx(losses[1])


def test_tune_with_counts(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "counts.json"
    hot = [[[0 if i == j else 9 if j == step else 1 for j in range(4)] for i in range(4)] for step in range(4)]
    file.write_text(json.dumps(hot))
    command = ["tune", "alltoall", "ring:ranks=4", "--counts", str(file), "--nbytes", "1MB", "--planner", "flows"]
    loss = answer(capsys, *command, "--workers", "1")["counts"]
    assert loss["matrices"] == loss["priced"] == 4
    assert 1 < loss["gap_median"] == loss["gap_worst"] < loss["any_counts"]
    file.write_text(json.dumps(hot[0]))
    assert "Planned for one matrix of counts, right for any." in text(capsys, *command, "--workers", "1")
    assert "not for allreduce" in complaint(capsys, "tune", "allreduce", *command[2:])
    assert "--counts: tunes by a model" in complaint(capsys, *command, "--on", "mpi")


def test_an_export_that_no_runner_up_can_replace_names_the_reason(tmp_path: Path) -> None:
    target = Counts.of([[0, 1, 2], [1, 0, 5], [7, 1, 0]], 3).average(3, range(3))
    tuning = antiphon.tune(target, "full:ranks=3", nbytes="1KB", planners=["direct"])
    with pytest.raises(Unsupported, match=r"neither direct \(.*blocks are all of one size.*\) nor any runner-up"):
        antiphon.export(tuning, "msccl-xml", tmp_path)


def test_the_average_of_equal_matrices_has_the_gap_of_the_plan() -> None:
    machine = antiphon.topology("mesh:dims=2x2")
    counts = Counts.of([np.arange(16).reshape(4, 4).tolist()] * 3, 4)
    plan = antiphon.plan(counts.average(4, range(4)), machine, planner="flows", nbytes="64MB")
    loss = measure_loss(plan, counts, 64_000_000, "alpha-beta")
    assert len(set(loss.gaps)) == 1
    assert loss.gaps[0] == pytest.approx(plan.entries[0].claims["bandwidth_gap"], rel=0.03)
