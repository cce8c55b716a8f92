"""The planner for machines on which nothing regular fits: any connected machine, any collective."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from entries import relay
from hypothesis import given, settings
from hypothesis import strategies as st
from quick import examples, in_turn
from small_plans import run_local

from antiphon.core.bounds import bound
from antiphon.core.collective import KINDS, Collective
from antiphon.core.loads import pipelined_steps, timeline
from antiphon.core.request import Request
from antiphon.core.reshape import only
from antiphon.core.topology import LinkType, Topology, build
from antiphon.core.verify import verify
from antiphon.errors import AntiphonError, Infeasible, Invalid, Unsupported
from antiphon.planners.relations.relay import PIECES, SHARED
from antiphon.select import measure
from antiphon.topologies import topology

FAST, SLOW = LinkType("fast", Fraction(2 * 10**9), 1e-6), LinkType("slow", Fraction(10**9), 2e-6)


@st.composite
def machines(draw: st.DrawFn) -> Topology:
    """A strongly connected tangle of ranks and switches: a cycle through all nodes, one-way, and more links."""
    ranks, switches = draw(st.integers(2, 6)), draw(st.integers(0, 2))
    nodes = draw(st.permutations(range(ranks + switches)))
    links = [(a, b, FAST) for a, b in zip(nodes, [*nodes[1:], nodes[0]], strict=True)]
    node = st.integers(0, ranks + switches - 1)
    more = draw(st.lists(st.tuples(node, node, st.sampled_from([FAST, SLOW])), max_size=10))
    return build("tangle", ranks, links + [m for m in more if m[0] != m[1]], switches=switches)


@given(machine=machines(), kind=st.sampled_from(KINDS), data=st.data())
@settings(max_examples=examples(40))
def test_every_collective_on_every_connected_machine(machine: Topology, kind: str, data: st.DataObject) -> None:
    members = data.draw(st.sets(st.integers(0, machine.ranks - 1), min_size=2))
    wanted = Collective(kind, machine.ranks, tuple(members))
    choices: list[dict[str, Any]] = [{}, {"pieces": 3}, {"by": "tree"}, {"trees": 1}]
    options = data.draw(st.sampled_from(choices))
    least = bound(machine, wanted)
    first, *others = list(relay(Request(machine, wanted), **options))
    if kind != "allreduce" and "pieces" not in options:
        assert pipelined_steps(first) == least.latency_steps
    for schedule in (first, *others):
        verify(schedule, machine).or_raise()
        assert timeline(schedule, machine).total * (least.bytes_per_second or 0) >= 1
        is_for_latency = "detours" in schedule.provenance["options"]
        assert is_for_latency or timeline(schedule, machine).total <= timeline(first, machine).total
        assert run_local(schedule, 4 * 60, repeat=1)[0]["correct"]
    shared = [schedule for schedule in others if "detours" not in schedule.provenance["options"]]
    assert not (shared and (options.get("trees") or kind not in SHARED))


def detour(ranks: int = 3) -> Topology:
    """A line of quick links, and one slow link between its ends."""
    slow, quick = (LinkType(name, Fraction(10**10), s) for name, s in (("slow", 1e-4), ("quick", 1e-7)))
    line = [(a, a + 1, quick) for a in range(ranks - 1)]
    links = [*line, (0, ranks - 1, slow)]
    return build("detour", ranks, links + [(b, a, kind) for a, b, kind in links])


def test_where_no_detour_is_quicker_asking_for_one_is_refused() -> None:
    for machine, detours in ((topology("ring:ranks=4"), 0), (detour(), 10**9)):
        with pytest.raises(Unsupported, match="leave the option detours out"):
            next(relay(Request(machine, Collective("allgather", machine.ranks)), detours=detours))


def test_detours_with_several_trees_are_refused() -> None:
    machine = detour()
    with pytest.raises(Unsupported, match="detours are for single trees"):
        next(relay(Request(machine, Collective("allgather", machine.ranks)), detours=0, trees=4))


@pytest.mark.slow
@given(machine=machines(), kind=st.sampled_from(SHARED), trees=st.integers(2, 5), data=st.data())
@settings(max_examples=examples(80))
def test_several_trees_are_right_wherever_they_grow(
    machine: Topology, kind: str, trees: int, data: st.DataObject
) -> None:
    members = data.draw(st.sets(st.integers(0, machine.ranks - 1), min_size=2))
    wanted = Collective(kind, machine.ranks, tuple(members))
    links = {(a, b) for a, b in zip(machine.link_src.tolist(), machine.link_dst.tolist(), strict=True)}
    if kind == "allreduce" and any((b, a) not in links for a, b in links):
        machine = topology("full:ranks=6")  # its trees are used there and back
        wanted = Collective(kind, 6, tuple(members))
    made = list(relay(Request(machine, wanted), trees=trees))
    assert [schedule.pieces for schedule in made] == list(PIECES)
    verify(made[0], machine).or_raise()
    assert run_local(made[0], 8 * 60, repeat=1)[0]["correct"]
    told = made[0].provenance["options"]
    assert 1 <= told["trees"] <= trees
    (again,) = relay(Request(machine, wanted), **told) if told["trees"] > 1 else (made[0],)
    assert again.same_as(made[0])  # what is told of it makes it again


def best_gap(machine: Topology, wanted: Collective, **options: Any) -> float:
    return min(float(measure(made, machine)["bandwidth_gap"]) for made in relay(Request(machine, wanted), **options))


@pytest.mark.parametrize("kind", in_turn(SHARED, 6))
def test_an_irregular_allocation_comes_near_its_bound(kind: str) -> None:
    """GPUs 1, 4, 5, 6 of a DGX-1V have no ring of NVLinks (Blink, section 5): several trees use the links they have."""
    wanted, whole = Collective(kind, 8, (1, 4, 5, 6)), topology("dgx1v")
    left = only(whole, [1, 4, 5, 6])
    assert best_gap(left, wanted) < 1.01
    assert best_gap(left, wanted, trees=1) > 1.3
    assert best_gap(whole, wanted) < 1.11
    schedule = list(relay(Request(whole, wanted)))[-1]
    assert {*schedule.src.tolist()} - {1, 4, 5, 6}  # the others relay


def test_trees_that_cannot_be() -> None:
    machine = topology("ring:ranks=4")
    for trees in (0, -1, "many", True, 1.5):
        with pytest.raises(Invalid, match="whole number of 1 or more"):
            list(relay(Request(machine, Collective("broadcast", 4)), trees=trees))
    with pytest.raises(Unsupported, match="trees=1"):
        list(relay(Request(machine, Collective("scatter", 4)), trees=2))
    circle = build("circle", 3, [(0, 1, FAST), (1, 2, FAST), (2, 0, FAST)])
    with pytest.raises(Unsupported, match="trees=1"):  # no way back over one-way links
        list(relay(Request(circle, Collective("allreduce", 3)), trees=2))


def test_uneven_blocks_several_roots_and_what_cannot_be() -> None:
    machine = topology("ring:ranks=4")
    for wanted in (
        Collective("allgather", 4, weights=np.array([3, 0, 1, 2])),
        Collective("gather", 4, roots=(1, 3), weights=np.arange(8)),
        Collective("reduce", 4, roots=(0, 2)),
        Collective("alltoall", 4, (0, 2, 3), weights=np.arange(9)),
    ):
        for schedule in relay(Request(machine, wanted)):
            verify(schedule, machine).or_raise()
            assert run_local(schedule, 840, repeat=1)[0]["correct"]
    with pytest.raises(Invalid, match="known: blocks, tree"):
        list(relay(Request(machine, Collective("allreduce", 4)), by="magic"))
    apart = only(topology("dgx1v"), [1, 4, 6])
    with pytest.raises(Infeasible, match="no links lead from rank"):
        list(relay(Request(apart, Collective("broadcast", 8, (1, 4, 6)))))
    with pytest.raises(AntiphonError):
        list(relay(Request(apart, Collective("allreduce", 8, (1, 4, 6))), by="tree"))


def test_the_centre_is_the_first_whose_farthest_is_nearest() -> None:
    line = topology("line:ranks=5")
    first = next(relay(Request(line, Collective("allreduce", 5)), by="tree", trees=1))
    assert first.steps == 4  # two up to the middle, two down
