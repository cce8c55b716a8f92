"""Rings: swaps that join factors, why no more rings can be, alltoall the shorter way, groups of unequal size."""

import re
from fractions import Fraction
from itertools import pairwise as adjacent
from itertools import permutations, product

import numpy as np
import pytest
from entries import ring
from hypothesis import given, settings
from hypothesis import strategies as st
from quick import examples
from small_plans import only, run_local, star

from antiphon.core.bounds import bound
from antiphon.core.collective import Collective
from antiphon.core.loads import timeline
from antiphon.core.request import Request
from antiphon.core.schedule import Schedule
from antiphon.core.topology import LinkType, SharedLimit, Topology, both_ways, build
from antiphon.core.verify import verify
from antiphon.errors import Invalid, Unsupported
from antiphon.planners.rings import edge_disjoint
from antiphon.planners.rings.bound import least_time_per_byte
from antiphon.planners.rings.circles import exchange_in_pairs, plan_around
from antiphon.planners.rings.circles import plan_both_ways as there_and_back
from antiphon.planners.rings.edge_disjoint import capacities, pack_cycles
from antiphon.planners.rings.factor_swaps import join_by_swaps
from antiphon.planners.rings.most_rings import most_rings
from antiphon.planners.rings.multi_ring import step_loads
from antiphon.planners.rings.ring import ring as plan_by_ring
from antiphon.planners.shared.groups import Groups, groups_from_places, parse_groups
from antiphon.topologies import topology


def slowness(schedule: Schedule, machine: Topology) -> Fraction:
    rate = bound(machine, schedule.collective).bytes_per_second
    assert rate is not None
    return timeline(schedule, machine).total * rate


# --- the most rings -------------------------------------------------------------------------------------------------


def test_the_sign_of_factors_forbids_what_only_row_swaps_would_try() -> None:
    """Two factors of three ranks, one a cycle, one all loops: 1 + 3 cycles, of 2. The links hold no two rings."""
    assert join_by_swaps([[1, 2, 0], [0, 1, 2]], max_swaps=2000) == []
    assert join_by_swaps([[1, 2, 0], [2, 0, 1]]) == [[1, 2, 0], [2, 0, 1]]


@given(data=st.data(), size=st.integers(3, 8))
@settings(max_examples=examples(60))
def test_no_more_rings_than_proved(data: st.DataObject, size: int) -> None:
    members = tuple(range(0, 2 * size, 2))
    pairs = [(a, b) for a, b in product(members, members) if a != b]
    drawn = data.draw(st.lists(st.integers(0, 2), min_size=len(pairs), max_size=len(pairs)))
    capacity = {pair: units for pair, units in zip(pairs, drawn, strict=True) if units}
    found = most_rings(capacity, members)
    used: dict[tuple[int, int], int] = {}
    for cycle in found.cycles:
        assert sorted(cycle) == list(members)
        for pair in adjacent([*cycle, cycle[0]]):
            used[pair] = used.get(pair, 0) + 1
    assert all(units <= capacity.get(pair, 0) for pair, units in used.items())
    assert len(pack_cycles(capacity, members).cycles) <= len(found.cycles) <= found.at_most
    if numbers := re.fullmatch(r"only (\d+) units of links leave ranks ([\d,]+)", found.because):
        inside = {int(rank) for rank in numbers[2].split(",")}
        assert inside < set(members)
        assert sum(units for (a, b), units in capacity.items() if a in inside and b not in inside) == int(numbers[1])
        assert found.at_most == int(numbers[1])


def test_rings_where_too_many_cycles_exist_for_an_integer_program() -> None:
    """Complete networks of 8 ranks have 5,040 directed cycles; one wider link makes directions differ."""
    members = tuple(range(8))
    capacity = {(a, b): 1 for a in members for b in members if a != b} | {(0, 1): 2}
    assert edge_disjoint.list_cycles(capacity, members, directed=True) is None
    assert len(pack_cycles(capacity, members).cycles) >= 4


def test_the_same_rings_whatever_the_solver_meets_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of equally many rings, the last bits of a solver decide, which differ between processors: one choice is best."""
    machine = topology("dgx1v")
    members = tuple(range(machine.ranks))
    capacity = capacities(machine, members)
    all_cycles = edge_disjoint.list_cycles(capacity, members, directed=True)
    assert all_cycles is not None
    chosen = edge_disjoint.choose_cycles(capacity, all_cycles, directed=True)
    tie_breaks = edge_disjoint.tie_breaks
    monkeypatch.setattr(edge_disjoint, "tie_breaks", lambda count: tie_breaks(count)[::-1])
    reversed_choice = edge_disjoint.choose_cycles(capacity, all_cycles[::-1], directed=True)
    assert reversed_choice is not None
    assert chosen == reversed_choice[::-1]


@pytest.mark.parametrize(
    ("spec", "because"),
    [("star:ranks=5", "enter rank 0"), ("dgx2", "enter rank 0"), ("cluster:box=dgx-a100,boxes=2", "enter host0"),
     ("asy384", "enter rank 0")],
)  # fmt: skip
def test_over_switches_the_plan_says_whether_rings_could_be_faster(spec: str, because: str) -> None:
    found = only("multi-ring", topology(spec), "allgather").provenance["found"]
    assert found["over"] == "routes"
    assert found["none are faster"]
    assert found["because"].endswith(because.replace("enter", "leave")) or found["because"].endswith(because)


@given(data=st.data(), ranks=st.integers(2, 6))
@settings(max_examples=examples(40))
def test_no_rings_are_faster_than_can_be(data: st.DataObject, ranks: int) -> None:
    """Ports of any width below one or two switches, some of them sharing a limit: never faster than said."""
    width = [LinkType("port", Fraction(data.draw(st.integers(1, 4)) * 10**9)) for _ in range(ranks)]
    trunk = LinkType("trunk", Fraction(data.draw(st.integers(1, 4)) * 10**9))
    links = [x for i in range(ranks) for x in both_ways([(i, ranks + i % 2)], width[i])]
    links += both_ways([(ranks, ranks + 1)], trunk)
    drawn = data.draw(st.lists(st.sets(st.integers(0, len(links) - 1), min_size=1, max_size=4), max_size=3))
    limits = tuple(SharedLimit(f"limit{i}", tuple(sorted(x)), Fraction(2 * 10**9)) for i, x in enumerate(drawn))
    places = [f"host{i % 2}/gpu{i}" for i in range(ranks)] + ["host0/switch", "host1/switch"]
    machine = build("two switches", ranks, links, switches=2, places=places, limits=limits)
    least, _ = least_time_per_byte(machine, tuple(range(ranks)))
    for cycle in permutations(range(1, ranks)):
        assert step_loads(machine, [[0, *cycle]]).max() >= least * (1 - 1e-9)


# --- alltoall the shorter way ---------------------------------------------------------------------------------------


@given(half=st.integers(1, 6), data=st.data())
@settings(max_examples=examples(30))
def test_whole_vectors_go_round_in_half_as_many_steps_as_ranks(half: int, data: st.DataObject) -> None:
    ranks = 2 * half
    order = data.draw(st.permutations(range(ranks)))
    schedule = exchange_in_pairs(Collective("allreduce", ranks), order)
    verify(schedule, topology(f"full:ranks={ranks}")).or_raise()
    assert schedule.steps == half
    near = {frozenset(pair) for pair in adjacent([*order, order[0]])}
    moves = {frozenset(pair) for pair in zip(schedule.src.tolist(), schedule.dst.tolist(), strict=True)}
    assert {pair for pair in moves if len(pair) == 2} <= near


def test_whole_vectors_are_yielded_beside_parts_or_asked_for() -> None:
    machine, target = topology("ring:ranks=6"), Collective("allreduce", 6)
    first, second = list(ring(Request(machine, target)))
    assert (first.steps, second.steps) == (10, 3)
    (again,) = ring(Request(machine, target), **second.provenance["options"])
    assert again.same_as(second)
    assert len(list(ring(Request(machine, target), undivided=False))) == 1
    with pytest.raises(Unsupported, match="even number"):
        list(ring(Request(topology("ring:ranks=5"), Collective("allreduce", 5)), undivided=True))


@given(ranks=st.integers(2, 9), data=st.data())
@settings(max_examples=examples(40))
def test_both_ways_is_right_for_every_order_and_group(ranks: int, data: st.DataObject) -> None:
    members = tuple(sorted(data.draw(st.permutations(range(ranks)))[: max(2, ranks - 2)]))
    order = data.draw(st.permutations(members))
    weights = data.draw(st.lists(st.integers(0, 3), min_size=len(members) ** 2, max_size=len(members) ** 2))
    wanted = Collective("alltoall", ranks, members, weights=np.array(weights) + (sum(weights) == 0))
    verify(there_and_back(wanted, order), topology(f"full:ranks={ranks}")).or_raise()
    verify(plan_around(wanted, order), topology(f"full:ranks={ranks}")).or_raise()


def test_alltoall_over_many_rings_goes_the_shorter_way_on_each() -> None:
    for spec in ("dgx1v", "full:ranks=10", "torus:dims=4x4", "mi300x"):
        machine = topology(spec)
        schedule = only("multi-ring", machine, "alltoall")
        rings = [tuple(map(int, ring.split(","))) for ring in schedule.provenance["found"]["rings"]]
        paired = sum((ring[0], *ring[:0:-1]) in rings for ring in rings)
        assert schedule.steps == (machine.ranks // 2 if paired == len(rings) else machine.ranks - 1)
    assert only("multi-ring", topology("dgx1v"), "alltoall").steps == 4
    assert only("multi-ring", topology("ring:ranks=5"), "alltoall", rings=1).steps == 4


# --- groups of unequal size -----------------------------------------------------------------------------------------


def test_groups_as_they_are_written() -> None:
    for text, ranks, told in (
        ("3+4", 7, "3+4"), ("8*32+8*16", 384, "8*32+8*16"), ("(2+3)+4", 9, "(2+3)+4"), ("1+1+1", 3, "3"),
        (" 2 * (2 + 3) ", 10, "2*(2+3)"), ("(3)+((4))", 7, "3+4"), ("1+(3+2)", 6, "1+(3+2)"),
    ):  # fmt: skip
        assert str(parse_groups(text, ranks)) == told
    for wrong in ("3+", "+3", "(3+4", "3+4)", "0+7", "3*", "7*", "x+7", "3 4+", "1e9+1", "()+7", "9" * 30 + "+1", "("):
        with pytest.raises(Invalid, match="option fanins"):
            parse_groups(wrong, 7)
    with pytest.raises(Invalid, match="have 6 ranks together, not 7"):
        parse_groups("3+3", 7)


def trees(most: int) -> st.SearchStrategy[Groups]:
    leaves = st.integers(1, 4).map(Groups.ring)
    nested = st.recursive(
        leaves, lambda inner: st.lists(inner, min_size=2, max_size=3).map(Groups.of_subgroups), max_leaves=5
    )
    return nested.filter(lambda groups: 2 <= groups.size <= most)


def steps_of(groups: Groups) -> int:
    """The parts less one, summed along the longest branch."""
    return len(groups.subgroups) - 1 + max(map(steps_of, groups.subgroups)) if groups.subgroups else 0


@given(
    groups=trees(12), directions=st.integers(1, 2), kind=st.sampled_from(["allgather", "reducescatter", "allreduce"])
)
@settings(max_examples=examples(60))
def test_any_groups_of_groups(groups: Groups, directions: int, kind: str) -> None:
    machine = star(groups.size)
    schedule = only("hierarchical-ring", machine, kind, fanins=f"({groups})", directions=directions)
    assert schedule.steps == steps_of(groups) * (2 if kind == "allreduce" else 1)
    assert slowness(schedule, machine) >= 1
    (row,) = run_local(schedule, 4 * 3 * groups.size, repeat=1)
    assert row["correct"]
    weights, scale = schedule.chunks.weights(schedule.collective)
    moved = Fraction(int(weights[schedule.chunk].sum()), scale)  # no rank gets anything twice
    assert moved == (groups.size - 1) * (2 if kind == "allreduce" else 1)


@given(groups=trees(12), root=st.integers(0, 11), kind=st.sampled_from(["broadcast", "reduce"]))
@settings(max_examples=examples(40))
def test_chains_through_any_groups(groups: Groups, root: int, kind: str) -> None:
    machine = star(groups.size)
    wanted = Collective(kind, groups.size, roots=(root % groups.size,))
    schedule = only("hierarchical-ring", machine, wanted, fanins=f"({groups})", pieces=1)
    assert schedule.transfers == 2 * (groups.size - 1)


def test_groups_of_three_and_four_are_loaded_evenly() -> None:
    """Half of the data crosses each way: everyone of the three moves 1/3 of that, everyone of the four 1/4."""
    schedule = only("hierarchical-ring", star(7), "allreduce", fanins="3+4", directions=1)
    weights, scale = schedule.chunks.weights(schedule.collective)
    group = (np.arange(7) >= 3).astype(int)
    crossing = (group[schedule.src] != group[schedule.dst]) & (schedule.step >= schedule.steps // 2)
    out = [Fraction(int(weights[schedule.chunk[crossing & (schedule.src == r)]].sum()), scale) for r in range(7)]
    assert out == [Fraction(1, 6)] * 3 + [Fraction(1, 8)] * 4


def test_equal_groups_are_told_in_two_ways() -> None:
    machine = star(12)
    for kind in ("allgather", "reducescatter", "allreduce"):
        told, plain = (only("hierarchical-ring", machine, kind, fanins=fans) for fans in ("3*4", "4x3"))
        assert told.steps == plain.steps
        assert timeline(told, machine).total == timeline(plain, machine).total


def test_the_places_of_an_asymmetric_network() -> None:
    machine = topology("asy384")
    groups, seating = groups_from_places(machine, range(384))
    assert (str(groups), seating, steps_of(groups)) == ("8*32+8*16", list(range(384)), 46)
    schedule = only("hierarchical-ring", machine, "broadcast", pieces=1)
    assert schedule.steps == 46


def test_a_chain_has_slices_for_the_size_that_is_asked_for() -> None:
    """7 steps of 1 us; every further slice is a step more. Without a size, or for several, there are 32."""
    machine, broadcast = topology("ring:ranks=8"), Collective("broadcast", 8)
    sizes: dict[int | None, tuple[int | None, ...]] = {1000: (), 10**9: (), None: (), 2000: (10**9,)}
    requests = [Request(machine, broadcast, nbytes=nbytes, also=also) for nbytes, also in sizes.items()]
    pieces = [next(iter(plan_by_ring(request))).pieces for request in requests]
    assert pieces == [1, 347, 32, 32]
