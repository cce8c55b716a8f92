"""Large machines: plans of quick planners come first, and are improved; what is too large is searched no further."""

import random
from dataclasses import replace
from fractions import Fraction

import pytest
from entries import sccl
from quick import crossed

from antiphon.core.bounds import bound
from antiphon.core.collective import Collective
from antiphon.core.ksync.instance import instance_of
from antiphon.core.loads import rounds
from antiphon.core.request import Request
from antiphon.core.reshape import join, relabel
from antiphon.core.topology import LinkType
from antiphon.core.verify import verify
from antiphon.errors import EffortSpent, Unsupported
from antiphon.planners.synth import all_forms, starts, work
from antiphon.planners.synth.effort_budget import UNIT, EffortBudget
from antiphon.planners.synth.improve import ChangingAlgorithm
from antiphon.planners.synth.starts import quick_schedules, to_moves
from antiphon.planners.synth.task import Move, schedule_of
from antiphon.select import collective
from antiphon.topologies import topology

MACHINES = ("torus:dims=4x4", "cluster:box=dgx-a100,boxes=2", "dgx1v_sccl", "star:ranks=6", "z52")


def improved(spec: str, kind: str, seed: int) -> list[tuple[Move, ...]]:
    """Every algorithm on the way of one plan through all neighbourhoods, each verified."""
    machine = topology(spec)
    target = collective(kind, machine)
    instance = instance_of(machine, target)
    start = next(s for _, s in quick_schedules(machine, target, EffortBudget()) if to_moves(instance, s) is not None)
    found = to_moves(instance, start)
    assert found is not None
    parts, moves = found
    packing = ChangingAlgorithm(instance, moves, EffortBudget(), seed)
    algorithms = [packing.moves()]
    for depth in (0, 1, 2):
        before = sum(packing.rounds)
        assert sum(packing.rounds) == before - 1 if packing.shave(depth) else sum(packing.rounds) == before
        algorithms.append(packing.moves())
    saved, steps = packing.save(), len(packing.rounds)
    if packing.merge(1):
        assert len(packing.rounds) < steps
        algorithms.append(packing.moves())
    packing.restore(saved)
    assert packing.moves() == algorithms[3]
    total = sum(packing.rounds)
    assert packing.split() is (sum(packing.rounds) < total)
    algorithms.append(packing.moves())
    for algorithm in algorithms:
        schedule = schedule_of(instance, parts, algorithm)
        assert verify(schedule, machine).fault is None
    assert rounds(schedule_of(instance, parts, packing.moves()), machine) <= sum(packing.rounds)
    return algorithms


@pytest.mark.parametrize(("kind", "spec"), crossed(["allgather", "broadcast", "alltoall"], MACHINES, 6))
def test_improved_algorithms_are_right_and_depend_on_the_seed_alone(kind: str, spec: str) -> None:
    assert improved(spec, kind, 3) == improved(spec, kind, 3)


@pytest.mark.parametrize(
    "kind", ["allgather", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("reducescatter", "allreduce"))]
)
def test_what_is_too_large_is_planned_and_improved(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The torus 4x4 as if it were too large: at the bound for all that have the shape of an allgather."""
    monkeypatch.setattr(starts, "MOST_SEARCHED", 0)
    monkeypatch.setattr(all_forms, "SUM_LIMITS", replace(all_forms.SUM_LIMITS, max_ranks=0))
    monkeypatch.setattr(work, "SUM_LIMITS", all_forms.SUM_LIMITS)
    machine = topology("torus:dims=4x4")
    target = collective(kind, machine)
    said: list[str] = []
    schedules = list(sccl(Request(machine, target, tell=said.append), cache=False))
    assert "the machine is too large for the exact search" in said
    assert any("times the bound" in line for line in said)
    assert all(verify(schedule, machine).fault is None for schedule in schedules)
    least = bound(machine, target)
    ratios = {s.steps: Fraction(rounds(s, machine), s.chunks_per_rank) for s in schedules}
    if kind in ("allgather", "reducescatter"):
        assert ratios[least.latency_steps] == least.inverse
    assert min(ratios.values()) <= least.inverse * Fraction(13, 10)


def test_more_ranks_than_are_searched_have_the_plans_of_quick_planners() -> None:
    machine = topology("torus:dims=12x12")
    request = Request(machine, Collective("allgather", 144))
    first = next(iter(sccl(request, cache=False)))
    assert first.provenance["engine"] in starts.STARTS
    assert verify(first, machine).fault is None
    with pytest.raises(Unsupported, match="144 ranks; it searches up to 128"):
        next(iter(sccl(Request(machine, request.collective, effort=1.0), cache=False)))


@pytest.mark.slow
def test_four_boxes_in_a_ring_meet_the_bound() -> None:
    """What search alone does not find in minutes, whatever the ranks are called; chunks are cut in two for it."""
    box = topology("dgx1v_sccl")
    link = LinkType("ib", box.unit)
    ring = join([box] * 4, cables=[((a, g), ((a + 1) % 4, g), link) for a in range(4) for g in range(8)])
    order = list(range(32))
    random.Random(5).shuffle(order)
    machine = relabel(ring, order)
    target = Collective("allgather", 32)
    points = sccl(Request(machine, target), cache=False)
    schedule = next(s for s in points if Fraction(rounds(s, machine), s.chunks_per_rank) == Fraction(31, 8))
    assert bound(machine, target).inverse == Fraction(31, 8)
    assert verify(schedule, machine).fault is None


@pytest.mark.parametrize(("ranks", "steps"), [(16, 4), pytest.param(32, 5, marks=pytest.mark.slow)])
def test_an_alltoall_on_many_ranks_is_few_flows_and_searched(ranks: int, steps: int) -> None:
    machine = topology(f"hypercube:ranks={ranks}")
    points = sccl(Request(machine, Collective("alltoall", ranks)), cache=False)
    best = next(s for s in points if s.provenance["found"]["proof"] == "proved-optimal")
    assert (best.chunks_per_rank, best.steps, rounds(best, machine)) == (ranks, steps, ranks // 2)


def test_improving_ends_when_its_effort_is_spent() -> None:
    machine = topology("torus:dims=4x4")
    instance = instance_of(machine, Collective("allgather", 16))
    found = next(m for _, s in quick_schedules(machine, instance.collective, EffortBudget())
                 if (m := to_moves(instance, s)) is not None)  # fmt: skip
    packing = ChangingAlgorithm(instance, found[1], EffortBudget(effort=UNIT // 1000))
    with pytest.raises(EffortSpent):
        packing.shave_all(0, 3)
    assert verify(schedule_of(instance, found[0], packing.moves()), machine).fault is None
