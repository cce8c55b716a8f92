"""Plans begun unevenly: right whatever they are made of, and never slower than equal pieces in as many steps."""

import sys
from dataclasses import replace

import numpy as np
import pytest
from entries import alpha_beta, flows
from generate import case
from hypothesis import given, settings
from hypothesis import strategies as st
from quick import examples, in_turn
from small_plans import only, schedules

from antiphon.core.collective import Collective
from antiphon.core.example import of_rows
from antiphon.core.loads import throughput, timeline
from antiphon.core.request import Request
from antiphon.core.schedule import Chunks, Schedule
from antiphon.core.topology import Topology
from antiphon.core.verify import verify
from antiphon.errors import Invalid, Unsupported
from antiphon.planners.shared.pipelining import STEPS, PipelineOptions, PipelinePlans, stage_plans
from antiphon.planners.shared.uneven import StartSizes, UnevenStarts
from antiphon.topologies import topology

GB = 10**9


def begun(plans: list[Schedule], machine: Topology, steps: int) -> Schedule:
    uneven = UnevenStarts(plans, machine)
    sizes = uneven.sizes_for(steps)
    assert sizes is not None
    made = uneven.to_schedule(sizes)
    verify(made, machine).or_raise()
    assert made.steps <= steps
    assert made.transfers == uneven.count_rows(sizes)
    assert float(timeline(made, machine).total) == pytest.approx(sizes.time, rel=1e-9, abs=0)
    return made


def test_shares_have_a_denominator() -> None:
    """Two chunks, one of them 1 / 2^bits: halves of them need a bit more, and 2^62 is too much."""
    machine, wanted = topology("line:ranks=3"), Collective("broadcast", 3, roots=(0,))
    rows = np.array([(0, 0, 0, 1, 0), (0, 1, 0, 1, 0), (1, 0, 1, 2, 0), (1, 1, 1, 2, 0)])

    def chain(bits: int) -> Schedule:
        chunks = Chunks(np.array([0, 0]), np.array([0, 1]), np.array([1, 2**bits - 1]), 2**bits)
        return Schedule(wanted, chunks, *rows.T)

    for bits in (40, 60):
        assert begun([chain(bits)], machine, 3).chunks.denominator == 2 ** (bits + 1)
    assert begun([chain(61)], machine, 2).chunks.denominator == 2**61
    assert UnevenStarts([chain(61)], machine).sizes_for(3) is None


@settings(max_examples=examples(40), deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(0, 5))
def test_random_plans(seed: int, more: int) -> None:
    """Of random machines, by flows and relay: verified, of the same rate, not slower than equal pieces."""
    drawn = case(seed, kind=["gather", "scatter", "alltoall", "broadcast", "reduce"][seed % 5], most_ranks=6)
    machine, wanted = drawn.topology, drawn.collective
    if wanted.kind in ("broadcast", "reduce"):
        plan = next(schedules("relay", machine, wanted, trees=1))  # perhaps a second one, with detours
    else:
        plan = only("flows", machine, wanted, pieces=1)
    if not plan.transfers or not wanted.weights.any():
        return
    made = begun([plan], machine, plan.steps + more)
    equal = timeline(replace(plan, pieces=1 + more), machine).total
    assert float(timeline(made, machine).total) <= float(equal) * 1.003
    assert throughput(made, machine) == throughput(plan, machine)


def test_what_is_asked_for() -> None:
    machine = topology("line:ranks=4")
    wanted = Collective("gather", 4)
    plan = next(flows(Request(machine, wanted), pieces=1))
    found = list(stage_plans(PipelinePlans([plan], machine), PipelineOptions("flows")))
    assert {"pieces": 1} in [one.options for one in found]
    assert {"steps": plan.steps} in [one.options for one in found]
    (made,) = (one.schedule for one in stage_plans(PipelinePlans([plan], machine), PipelineOptions("flows", steps=9)))
    assert made.steps == 9
    with pytest.raises(Invalid, match="not both"):
        list(stage_plans(PipelinePlans([plan], machine), PipelineOptions("flows", pieces=2, steps=9)))
    with pytest.raises(Unsupported, match="3 steps or more"):
        list(stage_plans(PipelinePlans([plan], machine), PipelineOptions("flows", steps=2)))


def test_what_waits_for_nothing_may_begin_sooner() -> None:
    """Two sends one after the other, though neither needs the other: at once they save a latency."""
    machine = topology("full:ranks=3")
    apart = of_rows("scatter", 3, [(0, 1, 0, 1, 0), (1, 2, 0, 2, 0)], roots=(0,))
    (made,) = stage_plans(PipelinePlans([apart], machine), PipelineOptions("flows", sizes=(1,)))
    assert made.options == {"steps": 1}
    verify(made.schedule, machine).or_raise()


def test_where_a_program_would_be_too_large_chunks_begin_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that take as many steps; all are still done, and little slower than when each begins as it likes."""
    machine = topology("mesh:dims=2x4")
    plan = only("flows", machine, Collective("gather", 8), pieces=1)
    alone = begun([plan], machine, 30)
    module = sys.modules[UnevenStarts.__module__]
    monkeypatch.setattr(module, "MOST_ENTRIES", 550)
    together = begun([plan], machine, 30)
    assert timeline(alone, machine).total <= timeline(together, machine).total
    equal = replace(plan, pieces=31 - plan.steps)
    assert timeline(together, machine).total <= timeline(equal, machine).total
    parts = UnevenStarts([plan], machine).sizes_for(30)
    assert parts is not None
    assert 1 < len(np.unique(parts.counts, axis=0)) < len(parts.counts)
    monkeypatch.setattr(module, "MOST_ENTRIES", 10)
    assert UnevenStarts([plan], machine).sizes_for(30) is None


@pytest.mark.slow
def test_where_fine_parts_would_be_too_many_transfers_they_are_coarser(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, wanted = topology("dgx1v"), Collective("broadcast", 8, roots=(0,))
    fine = only("shallow", machine, wanted, steps=48)
    for where in ("uneven", "pipelining"):
        monkeypatch.setattr(sys.modules[f"antiphon.planners.shared.{where}"], "MOST_ROWS", fine.transfers - 1)
    coarse = only("shallow", machine, wanted, steps=48)
    verify(coarse, machine).or_raise()
    assert coarse.transfers < fine.transfers
    assert timeline(coarse, machine).total <= 1.1 * timeline(fine, machine).total


@pytest.mark.parametrize("spec", in_turn(["ring:ranks=8", "dgx1v"]))
def test_few_numbers_of_steps_are_asked(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what they find is as good as if all were."""
    machine = topology(spec)
    plan = only("trees", machine, Collective("broadcast", machine.ranks), pieces=1)
    asked: list[int] = []
    found = UnevenStarts.sizes_for

    def noted(self: UnevenStarts, steps: int, quiet: tuple[int, int] = (0, 0)) -> StartSizes | None:
        asked.append(steps)
        return found(self, steps, quiet)

    monkeypatch.setattr(UnevenStarts, "sizes_for", noted)
    (made,) = stage_plans(PipelinePlans([plan], machine), PipelineOptions("trees", sizes=(GB,)))
    assert 1 <= len(set(asked)) <= 6
    uneven = UnevenStarts([plan], machine)
    every = [sizes for steps in STEPS if (sizes := found(uneven, steps)) is not None]
    best = min(sizes.time * GB + sizes.latency for sizes in every)
    assert alpha_beta(made.schedule, machine)(GB).seconds <= best * 1.001
