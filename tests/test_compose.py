"""Planner compose: splits, plans within groups, shares of levels; and the parts that schedules are laid of."""

import sys
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from entries import alpha_beta, compose
from hypothesis import given, settings
from hypothesis import strategies as st
from quick import crossed, in_turn, ordinary
from small_plans import wanted

import antiphon
from antiphon.core.bounds import bound
from antiphon.core.collective import Collective
from antiphon.core.loads import throughput, timeline
from antiphon.core.request import Request
from antiphon.core.reshape import degrade
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Ability, LinkType, SharedLimit, Topology, both_ways, build
from antiphon.core.verify import verify
from antiphon.errors import Invalid, Unsupported
from antiphon.planners.compose.inside import GroupPlanner, usual_planners
from antiphon.planners.compose.splits import parse_split
from antiphon.planners.compose.stages import KINDS, stage_collective
from antiphon.planners.shared import end_sizes
from antiphon.planners.shared.end_sizes import Pipeline
from antiphon.planners.shared.pipelining import find_least

FAST, SLOW = LinkType("fast", "100GB/s", 1e-6), LinkType("slow", "25GB/s", 1e-6)


def best(kind: str, machine: Topology, **options: Any) -> Schedule:
    request = Request(machine, wanted(kind, machine.ranks), nbytes=10**9)
    (made,) = compose(request, **options)
    assert not verify(made, machine).fault
    return made


def rate(made: Schedule, machine: Topology) -> float:
    """1.0 is the bound."""
    limit = bound(machine, made.collective).bytes_per_second
    reached = throughput(made, machine)
    assert limit
    assert reached
    return float(limit / reached)


# ---- groups that are alike ----


def test_groups_alike_are_planned_once_and_others_apart() -> None:
    machine = antiphon.topology("cluster:box=dgx-a100,boxes=4")
    inside = GroupPlanner(Request(machine, Collective("allgather", 32)), usual_planners())
    (boxes,) = inside.classify_groups(np.arange(32).reshape(4, 8))
    assert len(boxes.groups) == 4
    assert boxes.links.shape == (4, boxes.machine.links)
    ends = machine.link_src[boxes.links], machine.link_dst[boxes.links]
    for group, (src, dst) in enumerate(zip(*ends, strict=True)):
        ranks = {*src.tolist(), *dst.tolist()} & set(range(32))
        assert ranks == set(range(8 * group, 8 * group + 8))
    slower = degrade(machine, pairs=[(0, int(dst)) for dst in machine.link_dst[machine.link_src == 0]], slower=2)
    assert (
        len(
            GroupPlanner(Request(slower, Collective("allgather", 32)), usual_planners()).classify_groups(
                np.arange(32).reshape(4, 8)
            )
        )
        == 2
    )


def test_in_large_groups_planners_that_search_are_asked_where_no_other_has_a_plan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys.modules[GroupPlanner.__module__], "MOST_EFFORT", 500)
    for spec, kind in (("star:ranks=9", "allreduce"), ("mesh:dims=3x3", "broadcast")):
        machine = antiphon.topology(spec)
        target = wanted(kind, 9)
        inside = GroupPlanner(Request(machine, target), ("greedy", "trees", "halving-doubling"))
        asked = {way.planner for way in inside.plans_for(machine, target)}
        assert ("halving-doubling" in asked) == spec.startswith("star")
        assert bool(asked & {"greedy", "trees"}) != spec.startswith("star")


def test_where_some_ranks_only_relay_planners_that_search_are_asked_in_smaller_groups(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a broadcast on 4096 ranks of a torus, trees for 255 of 256 ranks took minutes."""
    monkeypatch.setattr(sys.modules[GroupPlanner.__module__], "MOST_EFFORT", 8000)
    machine = antiphon.topology("torus:dims=3x3")
    asked = []
    for target in (Collective("allgather", 9), Collective("allgather", 9, tuple(range(1, 9)))):
        inside = GroupPlanner(Request(machine, target), ("relay", "trees"))
        asked.append({way.planner for way in inside.plans_for(machine, target)})
    assert asked == [{"trees"}, {"relay"}]


# ---- plans ----


@pytest.mark.parametrize(
    ("kind", "spec", "options"),
    crossed(KINDS, [
        *(pytest.param(spec, {}, marks=pytest.mark.slow) for spec in (
            "torus:dims=3x4", "cluster:box=z52-pcie,boxes=2,fabric=rail", "mesh:dims=2x4,routers=true",
            "cluster:box=dgx-a100,boxes=2",
        )),
        ("star:ranks=7", {"groups": "3+4", "inside": "direct,ring"}),
        ("full:ranks=8", {"groups": "2x2x2", "inside": "direct,ring", "best": "time"}),
    ]),
)  # fmt: skip
def test_every_collective_on_some_machines(kind: str, spec: str, options: dict[str, Any]) -> None:
    machine = antiphon.topology(spec)
    if kind == "alltoall" and "+" in options.get("groups", ""):
        with pytest.raises(Unsupported, match="equal size"):
            best(kind, machine, **options)
        return
    made = best(kind, machine, **options)
    again = dict(made.provenance["options"])
    for name in ("turn", "best", "pieces", "groups"):
        assert name in again
    assert best(kind, machine, **again).same_as(made)


@pytest.mark.parametrize(
    ("kind", "spec"),
    crossed(["reducescatter", "allreduce", "alltoall"], ["torus:dims=3x3", "mesh:dims=3x3", "hypercube:ranks=8"]),
)
def test_grids_are_at_the_bound_in_one_piece(kind: str, spec: str) -> None:
    machine = antiphon.topology(spec)
    made = best(kind, machine, best="time", turn=True, pieces=1)
    limit = bound(machine, made.collective).bytes_per_second
    assert limit is not None
    worst = {"alltoall": 1.5, "allreduce": 4 / 3}.get(kind, 1.0) if spec.startswith("mesh") else 1.0
    assert float(timeline(made, machine).total * limit) <= worst + 1e-9


@pytest.mark.parametrize(
    ("spec", "steps", "transfers"),
    in_turn(
        [
            ("hypercube:ranks=8", 3, 24),
            ("torus:dims=4x4x2", 5, 160),
            ("torus:dims=4x4", 4, 64),
            ("mesh:dims=2x2", 2, 8),
        ],
    ),
)
def test_whole_vectors_take_the_fewest_steps_on_grids_of_even_size(spec: str, steps: int, transfers: int) -> None:
    """By halves on every level at once: each rank sends as many vectors as there are steps, over all links alike."""
    machine = antiphon.topology(spec)
    made = best("allreduce", machine, best="steps")
    assert (made.steps, made.steps == bound(machine, made.collective).latency_steps) == (steps, True)
    assert sum(made.chunks.part(chunk) for chunk in made.chunk.tolist()) - _local_share(made) == transfers
    if not spec.startswith("torus:dims=4x4x2"):  # the links of a dimension of two work one step, those of four two
        capacity = sum(machine.bandwidth(link) for link in range(machine.links))
        assert timeline(made, machine).total == Fraction(transfers) / capacity
    assert best("allreduce", machine, **made.provenance["options"]).same_as(made)


def _local_share(made: Schedule) -> Fraction:
    """What stays at its rank, in vectors."""
    return sum((made.chunks.part(int(made.chunk[i])) for i in np.flatnonzero(made.src == made.dst)), Fraction(0))


@pytest.mark.parametrize("levels", [1, 2, 3])
def test_whole_levels_may_be_few(levels: int) -> None:
    machine = antiphon.topology("hypercube:ranks=8")
    request = Request(machine, Collective("allreduce", 8))
    planners = GroupPlanner(request, usual_planners()), GroupPlanner(request, usual_planners())
    staged = stage_collective(request.collective, parse_split("2x2x2", range(8)), *planners, "steps", levels)
    schedule = staged.schedule(request.collective)
    verify(schedule, machine).or_raise()
    assert schedule.steps == 6 - levels
    assert sum(schedule.chunks.part(chunk) for chunk in schedule.chunk.tolist()) == {1: 14, 2: 16, 3: 24}[levels]


@pytest.mark.slow
def test_fewer_whole_levels_serve_larger_sizes() -> None:
    """On a hypercube of 8, levels that reduce and scatter first save data and cost a step each."""
    machine = antiphon.topology("hypercube:ranks=8")
    target = Collective("allreduce", 8)
    links = sum(machine.bandwidth(link) for link in range(machine.links))
    few = [s for s in compose(Request(machine, target)) if s.provenance["options"]["best"] == "steps"]
    vectors = {s.steps: timeline(s, machine).total * links for s in few}
    assert vectors == {3: 24, 4: 16}  # 3 whole levels, and 2; with 1 it is the plan of the greatest rate
    for schedule in few:
        (again,) = compose(Request(machine, target), **schedule.provenance["options"])
        assert again.same_as(schedule)
    at_sizes = {n: next(compose(Request(machine, target, nbytes=n))).steps for n in (2**12, 2**17)}
    assert at_sizes == {2**12: 3, 2**17: 4}


@pytest.mark.slow
@pytest.mark.parametrize("fabric", ["switch", "rail", "fat-tree"])
def test_clusters_are_at_the_bound_in_fine_pieces(fabric: str) -> None:
    machine = antiphon.topology(f"cluster:box=dgx-a100,boxes=2,fabric={fabric}")
    assert rate(best("allreduce", machine, best="rate"), machine) <= 1.01


@pytest.mark.slow
def test_parts_at_the_ends_that_are_given_are_had_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where only few pieces leave room for them, and where no size is given."""
    machine = antiphon.topology("cluster:box=dgx-a100,boxes=2")
    request = Request(machine, wanted("broadcast", machine.ranks))
    for nbytes in (10**9, None):
        asked = replace(request, nbytes=nbytes)
        for made in compose(asked, best="rate", inside="direct", ends=3, pieces=None if nbytes else 4):
            assert not verify(made, machine).fault
            assert made.provenance["options"]["ends"] == 3
        with pytest.raises(Invalid, match="give fewer"):
            list(compose(asked, best="rate", inside="direct", ends=10**6))
    (plain,) = compose(replace(request, nbytes=10**9), best="rate", inside="direct", ends=0)
    line = Pipeline(plain, machine)
    few = 4
    monkeypatch.setattr(end_sizes, "MOST_ENTRIES", (len(line.load) + 1) * line.steps * (2 * few + 2))  # two pieces
    sizes = line.choose_sizes(10**9, None, few)
    assert sizes is not None
    assert (len(sizes.before), sizes.pieces <= 2) == (few, True)
    assert line.choose_sizes(10**9, 3, few) is None


@pytest.mark.parametrize("dip", [1, 3, 17, 64, 5000, 10**6])
def test_the_number_that_takes_least_is_found_in_few_tries(dip: int) -> None:
    tried = []

    def seconds(number: int) -> float:
        tried.append(number)
        return dip / number + number / dip

    found = find_least(seconds, 2**18)
    assert len(tried) == len(set(tried)) < 40  # none is tried twice
    assert seconds(found) <= seconds(min(dip, 2**18)) * 1.005


@pytest.mark.parametrize(
    ("kind", "first"),
    crossed(["broadcast", "reduce", "allgather", "reducescatter", "allreduce", "alltoall"], [0, 1], 4),
)
def test_blocks_without_data_are_planned(kind: str, first: int) -> None:
    machine = antiphon.topology("cluster:box=dgx-a100,boxes=2")
    plain = wanted(kind, machine.ranks)
    weights = np.zeros(plain.blocks, np.int64)
    weights[0] = first
    for schedule in compose(Request(machine, replace(plain, weights=weights))):
        assert not verify(schedule, machine).fault
        assert schedule.collective.weights.tolist() == weights.tolist()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"groups": "3x3"}, "must be 8"), ({"groups": "8"}, "one group"), ({"best": "most"}, "rate, steps, time"),
        ({"groups": "3+6"}, "option groups: .* have 9 ranks"),
        ({"inside": "compose"}, "composes itself"), ({"inside": "rign"}, "ring"), ({"turn": "maybe"}, "true or false"),
        ({"pieces": 0}, "pieces"), ({"ends": -1}, "ends"), ({"ends": True}, "ends"),
        ({"ends": 10**15}, "ends: .* more than"), ({"ends": 10**4, "pieces": 9}, "ends: .* more than"),
    ],
)  # fmt: skip
def test_wrong_options(options: dict[str, Any], message: str) -> None:
    machine = antiphon.topology("full:ranks=8")
    with pytest.raises(Invalid, match=message):
        best("allgather", machine, **{"groups": "4x2", **options})


def test_what_cannot_be_split_is_refused_with_what_would_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[stage_collective.__module__], "MOST_BLOCKS", 63)
    with pytest.raises(Unsupported, match=r"among 8 ranks is too large to be split; use fewer ranks"):
        best("alltoall", antiphon.topology("mesh:dims=2x4"))
    with pytest.raises(Unsupported, match="groups=4x2"):
        best("allgather", antiphon.topology("star:ranks=6"))
    with pytest.raises(Unsupported, match="not joined among themselves"):
        best("allgather", antiphon.topology("ring:ranks=9"), groups="3x3")
    with pytest.raises(Unsupported, match="flows"):
        next(compose(Request(antiphon.topology("dgx1v"), Collective("gather", 8, roots=(0,)))))


@st.composite
def clusters(draw: st.DrawFn) -> Topology:
    """Boxes of several shapes around switches: one-way rings, wide and narrow links, shared limits, abilities."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=2, max_size=4).filter(lambda sizes: sum(sizes) > len(sizes)))
    total, switches = sum(sizes), draw(st.integers(1, 2))
    links: list[tuple[int, int, LinkType]] = []
    places, limits = [], []
    ends = np.cumsum([0, *sizes]).tolist()
    for box, (low, high) in enumerate(pairwise(ends)):
        ranks = list(range(low, high))
        for a, b in zip(ranks, [*ranks[1:], ranks[0]], strict=True):
            if a != b:
                links.append((a, b, draw(st.sampled_from([FAST, SLOW]))))
        extra = draw(st.lists(st.tuples(st.sampled_from(ranks), st.sampled_from(ranks)), max_size=3))
        links += [(a, b, FAST) for a, b in extra if a != b]
        places += [f"box{box}/gpu{i}" for i in range(high - low)]
    for rank in range(total):
        for plane in range(switches):
            links += both_ways([(rank, total + plane)], SLOW)
    if draw(st.booleans()):
        first = [i for i, (a, b, _) in enumerate(links) if b >= total and a < ends[1]]
        limits.append(SharedLimit("card", tuple(first), Fraction(30 * 10**9)))
    able = Ability(multicast=draw(st.booleans()), reduce=draw(st.booleans()))
    return build(
        "boxes", total, links, switches=switches, limits=limits, abilities=(able,) * switches,
        places=[*places, *(f"plane{i}" for i in range(switches))],
    )  # fmt: skip


@settings(max_examples=1 if ordinary else 100, deadline=None)
@given(clusters(), st.sampled_from(KINDS), st.data())
def test_random_clusters(machine: Topology, kind: str, data: st.DataObject) -> None:
    composed(machine, kind, data)


def composed(machine: Topology, kind: str, data: st.DataObject) -> None:
    root = data.draw(st.integers(0, machine.ranks - 1))
    aim = data.draw(st.sampled_from(["steps", "time", "rate"]))
    request = Request(machine, wanted(kind, machine.ranks, root), nbytes=10**6)
    refused = ""
    try:
        for made in compose(request, best=aim):
            assert not verify(made, machine).fault
            assert made.collective == request.collective
    except Unsupported as refusal:
        refused = str(refusal)
    if refused:
        assert kind == "alltoall", refused
        assert len({len(one) for one in _boxes(machine)}) > 1, refused


def _boxes(machine: Topology) -> list[list[int]]:
    found: dict[str, list[int]] = {}
    for rank in range(machine.ranks):
        found.setdefault(machine.places[rank].split("/")[0], []).append(rank)
    return list(found.values())


@pytest.mark.slow
def test_large_machines_are_near_the_bound() -> None:
    """By model alpha-beta: a torus of 512, a mesh and a cluster of 1024."""
    for spec, kind, nbytes, most in [
        ("torus:dims=8x8x8", "allgather", 2**26, 1.15), ("torus:dims=8x8x8", "allgather", 10**9, 1.02),
        ("torus:dims=8x8x8", "alltoall", 10**9, 1.1), ("mesh:dims=32x32", "allgather", 10**9, 1.02),
        ("cluster:box=dgx-a100,boxes=128", "allgather", 10**9, 1.05),
        ("cluster:box=dgx-a100,boxes=128", "allreduce", 10**9, 1.05),
        ("cluster:box=dgx-a100,boxes=128", "broadcast", 10**9, 1.05),
    ]:  # fmt: skip
        machine = antiphon.topology(spec)
        (made,) = compose(Request(machine, wanted(kind, machine.ranks), nbytes=nbytes))
        assert not verify(made, machine).fault
        limit = bound(machine, made.collective)
        assert limit.bytes_per_second is not None
        seconds = alpha_beta(made, machine)(nbytes).seconds
        assert seconds * float(limit.bytes_per_second) / nbytes <= most
