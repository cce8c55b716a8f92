"""Hops in their own time: right whatever the plan, and no slower than its chunks one after the other."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from entries import alpha_beta
from generate import case
from hypothesis import given, settings
from hypothesis import strategies as st
from quick import examples
from small_plans import only, schedules

from antiphon.cli import run
from antiphon.core.bounds import bound
from antiphon.core.collective import Collective
from antiphon.core.example import machine as example
from antiphon.core.example import of_rows, star
from antiphon.core.loads import throughput, timeline
from antiphon.core.request import Request
from antiphon.core.schedule import COPY, Schedule
from antiphon.core.serialize import load_plan
from antiphon.core.verify import verify
from antiphon.errors import AntiphonError, Invalid, Unsupported
from antiphon.planners.shared import pipelining
from antiphon.planners.shared.hop_timing import HopClasses, HopProgress, HopTimer, classify_hops
from antiphon.planners.shared.uneven import UnevenStarts
from antiphon.registry import find
from antiphon.topologies import topology

GB = 10**9
PLANNERS = {
    "broadcast": ("relay", "trees"),
    "reduce": ("relay", "trees"),
    "allgather": ("trees", "ring"),
    "reducescatter": ("trees", "ring"),
    "allreduce": ("trees", "ring", "recursive-doubling"),
    "gather": ("flows",),
    "alltoall": ("flows",),
}


def every(waits: HopTimer) -> list[HopClasses]:
    return list(waits.class_levels(waits.plan.transfers))


def timed(waits: HopTimer, level: int, steps: int) -> tuple[HopProgress, Schedule]:
    flow = waits.progress_for(every(waits)[level], steps)
    assert flow is not None
    made = waits.to_schedule(flow)
    verify(made, waits.topology).or_raise()
    assert made.steps <= steps
    assert made.transfers == waits.count_rows(flow)
    assert float(timeline(made, waits.topology).total) == pytest.approx(flow.time, rel=1e-9, abs=0)
    return flow, made


@pytest.mark.slow
@settings(max_examples=examples(40), deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(0, 4), st.integers(0, 3))
def test_random_plans(seed: int, more: int, level: int) -> None:
    """Of random machines: verified, as fast as told, of the same rate; the finest not slower than begun unevenly."""
    kind = list(PLANNERS)[seed % len(PLANNERS)]
    drawn = case(seed, kind=kind, most_ranks=6)
    machine, wanted = drawn.topology, drawn.collective
    for planner in PLANNERS[kind]:
        try:
            plan = replace(next(schedules(planner, machine, wanted)), pieces=1)
        except (AntiphonError, StopIteration):
            continue
        waits = HopTimer(plan, machine)
        if not plan.transfers or not any(hops.load.size for hops in every(waits)):
            continue
        steps = max(hops.steps for hops in every(waits)) + more
        _, made = timed(waits, level, steps)
        assert throughput(made, machine) == throughput(plan, machine)
        finest, _ = timed(waits, 0, steps)
        begun = UnevenStarts([plan], machine).sizes_for(steps)
        if begun is not None:
            assert finest.time <= begun.time * 1.003


def test_local_data_go_while_far_data_come() -> None:
    """Ranks 0 and 1 are near each other, 2 is far behind 1: what 1 has for 0 can go at any time."""
    machine = topology("line:ranks=3")
    rows = [(0, 0, 0, 1, COPY), (1, 0, 1, 2, COPY), (0, 1, 1, 2, COPY), (0, 1, 1, 0, COPY), (0, 2, 2, 1, COPY),
            (1, 2, 1, 0, COPY)]  # fmt: skip
    plan = of_rows("allgather", 3, rows)
    flow, made = timed(HopTimer(plan, machine), 0, 2)
    # 1 sends its own in the first step both ways, what came in the second: no link is ever idle that is full
    assert flow.time == pytest.approx(float(bound(machine, plan.collective).seconds(1)))
    assert made.transfers == 6


def test_what_is_waited_for() -> None:
    """An exchange: each rank reads what the other writes to, in one step."""
    swap = of_rows("allreduce", 2, [(0, 0, 0, 1, 1), (0, 0, 1, 0, 1)])
    flow, made = timed(HopTimer(swap, topology("line:ranks=2")), 3, 3)
    assert flow.counts.shape[0] == 1
    assert set(zip(made.src.tolist(), made.dst.tolist(), strict=True)) == {(0, 1), (1, 0)}
    flow, _ = timed(HopTimer(star(), example()), 3, 4)
    assert flow.hops.steps == 2
    assert len(flow.hops) == 2


def test_what_symmetries_take_to_each_other_is_alike() -> None:
    machine = topology("torus:dims=4x4")
    plan = only("trees", machine, Collective("allgather", 16), pieces=1)
    known = classify_hops(plan, machine)
    assert len(np.unique(known.block)) == 1
    assert len(np.unique(known.hop)) < plan.transfers / 8
    dead = replace(
        machine, link_src=machine.link_src[1:], link_dst=machine.link_dst[1:], link_type=machine.link_type[1:]
    )
    plan = only("trees", dead, Collective("allgather", 16), pieces=1)
    assert len(np.unique(classify_hops(plan, dead).block)) > 1


@pytest.mark.slow
def test_allgather_of_mi250_boxes() -> None:
    """Equal pieces are 9 % above the bound, and no parts begun unevenly help."""
    machine = topology("cluster:box=mi250,boxes=2,fabric=rail")
    wanted = Collective("allgather", 32)
    made = next(iter(find("planner", "trees").load()(Request(machine, wanted, nbytes=GB), steps=28, waits=True)))
    verify(made, machine).or_raise()
    assert made.provenance["options"] == {"steps": 28, "waits": True}
    assert alpha_beta(made, machine)(GB).seconds < 1.05 * float(bound(machine, wanted).seconds(GB))


def test_what_is_asked_for() -> None:
    machine, wanted = topology("line:ranks=9"), Collective("allgather", 9)
    with pytest.raises(Invalid, match="give steps, too"):
        only("trees", machine, wanted, waits=True)
    with pytest.raises(Invalid, match="option waits: expected true or false"):
        only("trees", machine, wanted, steps=9, waits=3)
    with pytest.raises(Unsupported, match="too large for hops that wait in 1024 steps"):
        only("trees", machine, wanted, steps=1024, waits=True)
    made = only("trees", machine, wanted, steps=9, waits=True)
    verify(made, machine).or_raise()


def test_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "plan.json"

    def steps_of(kind: str, *told: str) -> int:
        assert run(["plan", kind, "line:ranks=4", "--planner", f"trees:{','.join(told)}", "-o", str(out)]) == 0
        assert capsys.readouterr().err.count("\n") <= 1
        return load_plan(out).entries[0].schedule.steps

    assert steps_of("allgather", "steps=6", "waits=yes") <= 6
    assert steps_of("allreduce", "steps=6", "waits=no", "halves=yes") <= 12


def test_options_give_the_same_plan_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """In few steps, too, where there would be room for finer classes."""
    machine, wanted = topology("line:ranks=5"), Collective("allgather", 5)
    waits = HopTimer(only("trees", machine, wanted, pieces=1), machine)
    finest = len(every(waits)[0])
    few_places = replace(pipelining.PIPELINING, max_unknowns=finest * 4 * waits.plan.steps)
    monkeypatch.setattr(pipelining, "PIPELINING", few_places)
    found, _ = pipelining.best_hop_timing(waits, 10**6, 0.0)
    assert found is not None
    assert found.options["steps"] < 4 * waits.plan.steps
    again = only("trees", machine, wanted, **found.options)
    for name in ("step", "chunk", "src", "dst"):
        assert getattr(again, name).tolist() == getattr(found.schedule, name).tolist()


def test_uneven_parts_that_cannot_win_are_not_solved(monkeypatch: pytest.MonkeyPatch) -> None:
    """With waiting hops the allgather takes the time at full rate and few steps; uneven parts need many at 1 GB."""
    tried: list[int] = []
    monkeypatch.setattr(UnevenStarts, "sizes_for", lambda self, steps, quiet=(0, 0): tried.append(steps))
    request = Request(topology("dgx1v"), Collective("allgather", 8), nbytes=GB)
    made = next(find("planner", "trees").load()(request))
    assert made.provenance["options"] == {"steps": 5, "waits": True}
    assert not tried


def test_why_hops_cannot_wait() -> None:
    machine, wanted = topology("line:ranks=4"), Collective("allgather", 4)
    plan = only("trees", machine, wanted, pieces=1)
    asked = pipelining.PipelineOptions("flows", steps=8, waits=True)
    with pytest.raises(Unsupported, match="have no time of their own"):
        list(pipelining.stage_plans(pipelining.PipelinePlans([plan, plan], machine), asked))
    with pytest.raises(Unsupported, match="3 steps or more"):
        only("trees", machine, wanted, steps=2, waits=True)
