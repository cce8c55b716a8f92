"""Planner dispatch: valid for every collective and machine; its clock is that of critical-path, where it wins."""

import random
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from quick import in_turn

import antiphon
from antiphon.cli import run
from antiphon.core.collective import ROOTED, Collective
from antiphon.core.request import Request
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Ability, LinkType, SharedLimit, Topology, both_ways, build
from antiphon.core.verify import verify
from antiphon.cost import prepare
from antiphon.errors import Infeasible, Unsupported
from antiphon.planners.dispatch import dispatch as planner
from antiphon.planners.dispatch.network import BusyTimeline
from antiphon.planners.table import TABLE
from antiphon.topologies import topology

GB = Fraction(10**9)
NEAR, FAST, SLOW = LinkType("near", 10 * GB, 1e-6), LinkType("fast", 40 * GB, 0.3e-6), LinkType("wan", GB, 9e-6)
KINDS = TABLE["dispatch"].can.collectives


def plan(kind: str | Collective, machine: Topology, nbytes: int, pieces: int | None = None) -> Schedule:
    collective = kind if isinstance(kind, Collective) else Collective(kind, machine.ranks, roots=roots(kind))
    (schedule,) = planner.dispatch(Request(machine, collective, nbytes=nbytes), pieces=pieces)
    verify(schedule, machine).or_raise()
    return schedule


def roots(kind: str) -> tuple[int, ...]:
    return (0,) if kind in ROOTED else ()


def microseconds(schedule: Schedule, machine: Topology, nbytes: int) -> float:
    return 1e6 * float(prepare("critical-path", schedule, machine)(nbytes).seconds)


def random_machine(seed: int) -> Topology:
    """Return a random connected machine: links of three kinds, a switch, a shared limit."""
    rng = random.Random(seed)
    ranks, switches = rng.randint(2, 6), rng.randint(0, 2)
    links = [link for node in range(1, ranks + switches) for link in both_ways(
        [(rng.randrange(node), node)], rng.choice((NEAR, FAST, SLOW)))]  # fmt: skip
    for _ in range(rng.randint(0, 8)):
        a, b = rng.sample(range(ranks + switches), 2)
        links.append((a, b, rng.choice((NEAR, FAST, SLOW))))
    limits = [SharedLimit("bus", tuple(rng.sample(range(len(links)), 2)), 8 * GB)] if rng.random() < 0.5 else []
    return build(f"random {seed}", ranks, links, switches=switches, limits=limits)


@pytest.mark.parametrize("seed", in_turn(range(40)))
def test_on_random_machines_plans_are_valid_and_take_the_time_by_which_they_were_chosen(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine, finishes, order = random_machine(seed), list[int](), planner.order_messages
    rng = random.Random(seed)
    kind, nbytes = rng.choice(("broadcast", "scatter", "allgather", "alltoall")), rng.choice((1, 5000, 10**6))

    def recorded(*args):
        run = order(*args)
        finishes.append(run.finish)
        return run

    monkeypatch.setattr(planner, "order_messages", recorded)
    schedule = plan(kind, machine, nbytes, pieces=rng.randint(1, 3))
    assert microseconds(schedule, machine, nbytes) == pytest.approx(min(finishes) / 1e9, rel=1e-6)
    for combining in ("reduce", "gather", "reducescatter", "allreduce"):
        plan(combining, machine, nbytes, pieces=rng.randint(1, 2))


def test_turns_are_the_first_free_ones() -> None:
    rng, timeline, busy = random.Random(1), BusyTimeline(1), set[int]()
    for _ in range(200):
        ready, length = rng.randrange(400), rng.randrange(1, 6)
        begin = timeline.find_turn(0, ready, length)
        assert begin == next(t for t in range(ready, 9999) if not busy & set(range(t, t + length)))
        timeline.book_turn(0, begin, length)
        busy |= set(range(begin, begin + length))
    assert sum(end - begin for begin, end in zip(timeline.begins[0], timeline.ends[0], strict=True)) == len(busy)


@pytest.mark.parametrize(
    ("kind", "spec", "nbytes", "most"),
    in_turn([  # microseconds: known optima, or far below what planners that count steps take
        ("allgather", "mesh:dims=3x4", 1000, 5.02),  # 5 hops of 1 us
        ("allgather", "mesh:dims=3x4", 256_000, 6.3),  # sccl: 9.7
        pytest.param("allreduce", "mesh:dims=3x4", 256_000, 12.6, marks=pytest.mark.slow),  # compose: 18.0
        # every input sent everywhere; two halves: 10
        pytest.param("allreduce", "mesh:dims=3x4", 1000, 5.2, marks=pytest.mark.slow),
        ("alltoall", "dgx1v", 4_096_000, 55.4),  # the bandwidth bound
        ("reducescatter", "dgx1v", 256_000, 3.0),  # sccl: 3.3
    ], 2),
)  # fmt: skip
def test_finishing_times(kind: str, spec: str, nbytes: int, most: float) -> None:
    machine = topology(spec)
    assert microseconds(plan(kind, machine, nbytes), machine, nbytes) <= most


def star(multicast: bool, reduce: bool) -> Topology:
    links = both_ways([(rank, 4) for rank in range(4)], NEAR)
    return build("star", 4, links, switches=1, abilities=[Ability(multicast=multicast, reduce=reduce)])


def test_switches_multicast_and_reduce_where_they_can() -> None:
    able, one_way = star(multicast=True, reduce=True), star(multicast=True, reduce=False)
    for kind, machine, uses in [
        ("broadcast", able, True), ("reduce", able, True), ("broadcast", one_way, True), ("reduce", one_way, False),
        ("allgather", one_way, True), ("allreduce", able, True), ("broadcast", star(False, False), False),
    ]:  # fmt: skip
        schedule = plan(kind, machine, 100_000)
        assert (schedule.joint is not None) == uses, (kind, machine.abilities)
    # one message of 10 us that the switch copies, 2 us of latency
    assert microseconds(plan("broadcast", able, 100_000, pieces=1), able, 100_000) == pytest.approx(12.0)


def test_small_inputs_are_sent_everywhere_and_added_on_arrival() -> None:
    """In one message each, which the switch copies: half the time of two halves."""
    for machine in (star(multicast=True, reduce=False), star(multicast=False, reduce=False), topology("dgx1v")):
        small, large = plan("allreduce", machine, 100), plan("allreduce", machine, 10**8)
        assert microseconds(small, machine, 100) < 0.7 * microseconds(large, machine, 100)
        assert microseconds(large, machine, 10**8) < 0.9 * microseconds(small, machine, 10**8)
        if machine.abilities and machine.abilities[0].multicast:
            assert small.joint is not None
    members = Collective("allreduce", 6, (0, 2, 5))
    verify(plan(members, topology("line:ranks=6"), 100, pieces=2), topology("line:ranks=6")).or_raise()


@pytest.mark.parametrize("kind", in_turn(KINDS))
def test_groups_uneven_blocks_and_several_roots(kind: str) -> None:
    machine = topology("mesh:dims=2x3")
    plan(Collective(kind, 6, (0, 2, 5), (2,) if kind in ROOTED else ()), machine, 10_000)
    if kind in ("broadcast", "reduce"):
        plan(Collective(kind, 6, roots=(1, 4)), machine, 10_000)
    if kind in ("allgather", "reducescatter"):
        plan(Collective(kind, 6, weights=np.array((3, 0, 1, 1, 7, 2))), machine, 10_000)


@pytest.mark.slow
def test_tune_uses_it_under_models_without_barriers() -> None:
    results = {
        model: antiphon.tune("allgather", "ring:ranks=5", nbytes="64KB", model=model, nccl=False)
        for model in ("alpha-beta", "critical-path")
    }
    tried = {model: {c.planner for c in result.candidates} for model, result in results.items()}
    assert "dispatch" in tried["critical-path"] - tried["alpha-beta"]
    assert results["critical-path"].ranges[0].candidate.planner == "dispatch"


def test_plan_prices_by_a_model_without_barriers(capsys: pytest.CaptureFixture[str]) -> None:
    """As `tune` does: barriers between the steps of such a plan would make it slow."""
    assert run(["plan", "broadcast", "mesh:dims=2x2", "--planner", "dispatch", "--nbytes", "1KiB"]) == 0
    assert "predicted by model critical-path" in capsys.readouterr().out
    assert run(["plan", "broadcast", "mesh:dims=2x2", "--planner", "greedy", "--nbytes", "1KiB"]) == 0
    assert "predicted by model alpha-beta" in capsys.readouterr().out


def test_errors() -> None:
    machine = topology("torus:dims=8x8")
    with pytest.raises(Unsupported, match=r"planner dispatch: alltoall on .* takes too long; use planner relay"):
        plan("alltoall", machine, 1000)
    with pytest.raises(Unsupported, match=r"in 200000000 pieces over .* takes too long"):  # none of them is listed
        plan("allgather", topology("ring:ranks=4"), 1000, pieces=50_000_000)
    cut_off = build("cut off", 3, both_ways([(0, 1)], NEAR))
    with pytest.raises(Infeasible, match="planner dispatch: no links lead from rank 0 of cut off"):
        plan("broadcast", cut_off, 1000)
    assert replace(TABLE["dispatch"].can).timed
