"""Planner `flows`: at the bound wherever that is attained, on machines of any kind; what it refuses; its parts."""

import random
import sys
from fractions import Fraction

import numpy as np
import pytest
from entries import alpha_beta, flows
from generate import able
from generate import collective as random_collective
from generate import topology as random_machine
from hypothesis import given, settings
from hypothesis import strategies as st
from quick import examples, in_turn

from antiphon.core.bounds import bound
from antiphon.core.collective import Collective, custom_relation
from antiphon.core.loads import throughput
from antiphon.core.request import Request
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.core.verify import verify
from antiphon.errors import Infeasible, Unsupported
from antiphon.planners.flows.demands import demands_of
from antiphon.planners.flows.descent import descend
from antiphon.planners.flows.linear_program import FlowProblem
from antiphon.topologies import topology

GB = 10**9


def planned(machine: Topology, wanted: Collective, **options: int) -> Schedule:
    (made,) = flows(Request(machine, wanted, nbytes=None if options else GB), **options)
    verify(made, machine).or_raise()
    return made


@pytest.mark.parametrize(
    ("spec", "kind"),
    in_turn([
        pytest.param("cluster:box=hgx-h100,boxes=2", "gather", marks=pytest.mark.slow),
        ("z52-pcie", "gather"), ("mesh:dims=3x4", "alltoall"),
        *(
            pytest.param(spec, kind, marks=pytest.mark.slow)
            for spec, kind in [
                ("cluster:box=hgx-h100,boxes=4", "gather"), ("cluster:box=mi250,boxes=2", "gather"),
                ("mesh:dims=8x8", "alltoall"), ("torus:dims=3x4x5", "alltoall"), ("torus:dims=8x8x8", "alltoall"),
            ]
        ),
        ("mi250", "alltoall"), ("pcie8", "scatter"), ("dgx1v", "scatter"), ("line:ranks=9,routers=true", "alltoall"),
        ("cluster:box=hgx-h100,boxes=4,fabric=rail,spines=0", "alltoall"),
        ("dragonfly:groups=5,routers=2,hosts=2", "alltoall"),
    ], 5),
)  # fmt: skip
def test_it_meets_the_bound(spec: str, kind: str) -> None:
    machine = topology(spec)
    wanted = Collective(kind, machine.ranks)
    made = planned(machine, wanted)
    most = bound(machine, wanted)
    assert most.tight
    assert throughput(made, machine) == most.bytes_per_second
    assert made.provenance["found"]["optimal"]
    assert alpha_beta(made, machine)(GB).seconds <= 1.08 * float(most.seconds(GB))


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_random_machines(seed: int) -> None:
    """Switches, some of which copy, shared limits, one-way and parallel links, groups with relays, uneven weights."""
    rng = random.Random(seed)
    machine = able(random_machine(rng, rng.randint(2, 7)), seed)
    wanted = random_collective(rng, machine.ranks, rng.choice(["scatter", "gather", "alltoall", "alltoall", "custom"]))
    try:
        made = planned(machine, wanted, pieces=rng.randint(1, 5))
    except (Unsupported, Infeasible):
        assert wanted.kind == "custom"
        return
    most = bound(machine, wanted).without_help
    rate = throughput(made, machine)
    assert (rate is None) == (most.bytes_per_second is None)
    if rate is not None and most.bytes_per_second is not None:
        assert rate <= most.bytes_per_second
        assert made.provenance["found"]["optimal"] == (rate == most.bytes_per_second)
        assert not most.tight or rate >= most.bytes_per_second * Fraction(99, 100)


def test_what_must_be_copied_or_combined_is_refused() -> None:
    machine = topology("ring:ranks=4")
    twice = custom_relation([(0, 0, 1)], [(0, 1, None), (0, 2, None)], 4)
    summed = custom_relation([(0, 0, 1), (0, 1, 2)], [(0, 2, None)], 4)
    for relation in (twice, summed):
        with pytest.raises(Unsupported, match="only move"):
            planned(machine, Collective("custom", 4, custom=relation))


def test_more_blocks_than_it_takes_are_refused_before_anything_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[demands_of.__module__], "MAX_BLOCKS", 16)
    assert planned(topology("full:ranks=4"), Collective("alltoall", 4), pieces=1).steps == 1
    with pytest.raises(Unsupported, match=r"among 5 ranks has 25 blocks; it takes up to 16; use"):
        planned(topology("full:ranks=5"), Collective("alltoall", 5))


def test_equal_ranks_send_along_images_of_the_same_paths() -> None:
    machine = topology("torus:dims=4x4")
    program = FlowProblem(machine, demands_of(machine, Collective("alltoall", 16)))
    assert len(program.demands) == 1
    assert program.order == 16
    lopsided = Collective("alltoall", 16, weights=np.arange(256) % 7)
    assert len(demands_of(machine, lopsided).demands) == 16


@pytest.mark.parametrize(
    "spec", ["mesh:dims=4x4", "cluster:box=hgx-h100,boxes=2", "dragonfly:groups=5,routers=2,hosts=2"]
)
def test_descent_comes_near_where_programs_are_too_large(spec: str) -> None:
    machine = topology(spec)
    program = FlowProblem(machine, demands_of(machine, Collective("alltoall", machine.ranks)))
    least, found = program.solve_fastest(), descend(program)
    assert least is not None
    assert least.time * (1 - 1e-6) <= found.time <= 1.15 * least.time
    served = program.row_loads(found.amount)
    assert np.isclose(found.time, (served / program.capacity).max())


@pytest.mark.slow
def test_a_plan_that_was_not_solved_is_still_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[flows.__module__], "MAX_VARIABLES", 0)
    machine = topology("mesh:dims=3x3")
    for kind in ("gather", "scatter", "alltoall"):
        made = planned(machine, Collective(kind, 9))
        assert 0 <= made.provenance["found"]["loss"] < 0.2
