"""The planners that use switches: right when proven and run, and as fast as is derived here by hand.

One switch joins n ranks by links of bandwidth B each way; times are told for nbytes / B. Where `own` holds, what the
destination of a reduction has itself, and the copy that the source of a multicast keeps, cross the switch as well.

- A reduction of the part of 1/n to its rank loads every rank's way out with 1/n (own; else all but its rank's), that
  rank's way in with 1/n. All n of them: out 1 (else (n-1)/n), in 1/n. The multicasts are the same the other way round.
  So reducescatter and allgather take 1 (else (n-1)/n), and an allreduce in one piece 2 (else 2(n-1)/n).
- In p pieces an allreduce has p+1 steps: the first and the last load a way with a p-th of that, those between with
  both, (1 + 1/n)/p (else 1/p). Ever more pieces come near (n+1)/n (else 1).
- Reduce to a root and broadcast from it: 1, with or without own.
- With room for r joints at once, k = r/2 parts are reduced while those k before are multicast. A step between loads the
  way out of a rank that is a source with (k + 1)/(n p), the first and the last k/(n p); there are n/k turns of p steps,
  and one step more. With room for one, reductions and multicasts are by turns: 2n steps of 1/n.
- With room for r of them, own, and plain transfers beside: of pieces of one size q, k are combined and k multicast in a
  step, which loads all ways with k q, and k of them each way with q more; so P - k plain ones have room, each way. A
  piece by joints is one of each, one around a ring takes 2 (P-1) hops. If a part a goes by joints, in k a step, and all
  hops of the others, P-k a step, take as many steps: 2 (P-1)(k+1) / (2k (P-1) + P-k) in ever more pieces.
- What goes through the fabric in one joint loads every link once each way: 1 over the least bandwidth on the way.
- Boxes of m ranks, each with a card of bandwidth b: in the box (m+1)/m / B, at the card 1/m / b by switches that send
  on what they combined, and 2 (x-1)/x / m / b with rings of x boxes; the slower one decides, in ever more pieces.
"""

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quick import examples
from small_plans import PORT, run_local, star

from antiphon.core.bounds import bound
from antiphon.core.bounds.memory import most_senders, work_of
from antiphon.core.collective import ROOTED, Collective
from antiphon.core.joints import joints_of
from antiphon.core.loads import claims, throughput, timeline
from antiphon.core.program import RECEIVE, SEND, encode, prove
from antiphon.core.request import Request
from antiphon.core.reshape import only
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Ability, LinkType, Topology, both_ways, build
from antiphon.core.transform import unjoined
from antiphon.core.verify import verify
from antiphon.cost import prepare
from antiphon.errors import Unsupported
from antiphon.lower.lowering import lower
from antiphon.registry import find, table
from antiphon.topologies import topology

B = 10**9
NVLS = Ability(multicast=True, reduce=True, own=True)
SHARP = Ability(multicast=True, reduce=True, through=True)


def leaves(sizes: list[int], ability: Ability, trunk: int = B) -> Topology:
    """Ranks on leaf switches, these on a spine."""
    ranks, wide = sum(sizes), LinkType("trunk", Fraction(trunk), 1e-6)
    leaf = np.repeat(np.arange(len(sizes)), sizes) + ranks
    links = both_ways([(rank, int(leaf[rank])) for rank in range(ranks)], PORT)
    links += both_ways([(ranks + i, ranks + len(sizes)) for i in range(len(sizes))], wide)
    return build("leaves", ranks, links, switches=len(sizes) + 1, abilities=[ability] * (len(sizes) + 1))


def boxes(count: int, size: int, card: int, fabric: Ability, box: Ability = NVLS) -> Topology:
    """Boxes with a switch each; every rank also has a card, all cards are on one switch."""
    ranks, slow = count * size, LinkType("card", Fraction(card), 1e-6)
    links = both_ways([(rank, ranks + rank // size) for rank in range(ranks)], PORT)
    links += both_ways([(rank, ranks + count) for rank in range(ranks)], slow)
    places = [f"host{rank // size}/gpu{rank % size}" for rank in range(ranks)]
    places += [*(f"host{i}/nvswitch" for i in range(count)), "fabric"]
    abilities = [*[box] * count, fabric]
    return build("boxes", ranks, links, switches=count + 1, places=places, abilities=abilities)


def plans(name: str, machine: Topology, wanted: Collective, **options: Any) -> Iterator[Schedule]:
    yield from table("planner")[name].load()(Request(machine, wanted), **options)


@cache
def best(machine: Topology, wanted: Collective) -> Fraction:
    rate = bound(machine, wanted).bytes_per_second
    assert rate is not None
    return rate


def right(schedule: Schedule, machine: Topology) -> None:
    """Legal and correct, also with every row alone, no better than the bound, and correct on data."""
    assert verify(schedule, machine, claims(schedule, machine)).fault is None
    assert verify(unjoined(schedule), machine).fault is None
    assert timeline(schedule, machine).total * best(machine, schedule.collective) >= 1
    assert run_local(schedule, 4 * 777, repeat=1)[0]["correct"]


def seconds(schedule: Schedule, machine: Topology) -> Fraction:
    """For nbytes / B."""
    return timeline(schedule, machine).total * B


def wanted(kind: str, machine: Topology, root: int = 0) -> Collective:
    return Collective(kind, machine.ranks, roots=(root,) if kind in ROOTED else ())


KINDS = ("allreduce", "reducescatter", "allgather", "broadcast", "reduce")


@given(st.integers(3, 12), st.booleans(), st.sampled_from(KINDS), st.integers(0, 11), st.sampled_from([1, 3, 8]))
@settings(max_examples=examples(20))
def test_nvls_on_one_switch(n: int, own: bool, kind: str, root: int, p: int) -> None:
    machine = star(n, PORT, replace(NVLS, own=own))
    (schedule,) = plans("nvls", machine, wanted(kind, machine, root % n), pieces=p)
    right(schedule, machine)
    part = Fraction(1) if own else Fraction(n - 1, n)
    between = 1 + Fraction(1, n) if own else Fraction(1)
    expected = {"allreduce": (2 * part + (p - 1) * between) / p, "broadcast": 1, "reduce": 1}
    assert seconds(schedule, machine) == expected.get(kind, part)
    joints = joints_of(schedule)
    assert joints is not None
    assert len(joints) == {"allreduce": 2 * n, "broadcast": 1, "reduce": 1}.get(kind, n)
    if kind == "allreduce":
        rate = throughput(schedule, machine)
        assert rate == B / between == best(machine, schedule.collective)


@pytest.mark.slow
@given(st.integers(1, 4), st.integers(2, 4), st.sampled_from([1, 2, 5]))
@settings(max_examples=examples(20))
def test_few_joints_at_once(k: int, turns: int, p: int) -> None:
    n = k * turns
    if n < 3:
        return
    machine = star(n, PORT, replace(NVLS, at_once=2 * k))
    (schedule,) = plans("nvls", machine, wanted("allreduce", machine), pieces=p, beside=False)
    right(schedule, machine)
    if not (p == 1 and 2 * k >= n):
        assert seconds(schedule, machine) == Fraction(2 * k + (turns * p - 1) * (k + 1), n * p)
    fewer = replace(machine, abilities=(replace(NVLS, at_once=k),))
    assert verify(schedule, fewer).fault is not None  # all the room is used
    (alone,) = plans("nvls", replace(machine, abilities=(replace(NVLS, at_once=1),)), schedule.collective, pieces=p)
    right(alone, replace(machine, abilities=(replace(NVLS, at_once=1),)))
    assert seconds(alone, machine) == 2
    (scattered,) = plans("nvls", fewer, wanted("reducescatter", machine))
    right(scattered, fewer)


@pytest.mark.slow
@given(st.integers(3, 10), st.data(), st.sampled_from([1, 2, 3]))
@settings(max_examples=examples(20))
def test_plain_transfers_beside_few_joints(n: int, data: st.DataObject, laps: int) -> None:
    k = data.draw(st.integers(1, n - 1))
    machine = star(n, PORT, replace(NVLS, at_once=2 * k))
    (schedule,) = plans("nvls", machine, wanted("allreduce", machine), pieces=laps, beside=True)
    right(schedule, machine)
    limit = Fraction(2 * (n - 1) * (k + 1), 2 * k * (n - 1) + n - k)
    assert seconds(schedule, machine) > limit
    joints = joints_of(schedule)
    assert joints is not None
    assert int(np.bincount(schedule.step[joints.first]).max()) == 2 * k
    fewer = replace(machine, abilities=(replace(NVLS, at_once=2 * k - 1),))
    assert verify(schedule, fewer).fault is not None


@pytest.mark.parametrize(("n", "k"), [(8, 1), (8, 3), (8, 4), (16, 2), pytest.param(12, 10, marks=pytest.mark.slow)])
def test_a_mixture_comes_near_its_limit(n: int, k: int) -> None:
    """And is the faster the fewer joints there is room for, compared with those alone and with none."""
    machine = star(n, PORT, replace(NVLS, at_once=2 * k + 1))
    limit = Fraction(2 * (n - 1) * (k + 1), 2 * k * (n - 1) + n - k)
    (schedule,) = plans("nvls", machine, wanted("allreduce", machine), pieces=8, beside=True)
    assert verify(schedule, machine).fault is None
    assert limit < seconds(schedule, machine) < limit * Fraction(102, 100)
    assert seconds(schedule, machine) < min(Fraction(k + 1, k), Fraction(2 * (n - 1), n))


def test_where_joints_leave_nothing_there_is_no_mixture() -> None:
    for ability in (NVLS, replace(NVLS, at_once=1), replace(NVLS, at_once=16), replace(NVLS, own=False, at_once=4)):
        machine = star(8, PORT, ability)
        assert not any(
            one.provenance["options"].get("beside") for one in plans("nvls", machine, wanted("allreduce", machine))
        )
        with pytest.raises(Unsupported, match=r"from 2 to 15 joints at once \(at_once\); leave option beside out"):
            next(plans("nvls", machine, wanted("allreduce", machine), beside=True))
    machine = star(8, PORT, replace(NVLS, at_once=4))
    with pytest.raises(Unsupported, match="beside the joints of this allgather"):
        next(plans("nvls", machine, wanted("allgather", machine), beside=True))


@pytest.mark.slow
@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.sampled_from([B // 2, B, 2 * B]))
@settings(max_examples=examples(12))
def test_through_a_tree_of_switches(sizes: list[int], trunk: int) -> None:
    if sum(sizes) < 2:
        return
    machine = leaves(sizes, SHARP, trunk)
    (schedule,) = plans("sharp", machine, wanted("allreduce", machine))
    right(schedule, machine)
    narrow = trunk if len(sizes) > 1 else B
    assert seconds(schedule, machine) == Fraction(B, min(narrow, B))
    joints = joints_of(schedule)
    assert joints is not None
    assert (len(joints), schedule.steps) == (1, 1)
    for kind in ("reduce", "broadcast"):
        for name in ("sharp", "nvls"):
            (one,) = plans(name, machine, wanted(kind, machine, sum(sizes) - 1))
            right(one, machine)
            assert seconds(one, machine) == Fraction(B, min(narrow, B))


def test_switches_that_only_multicast() -> None:
    machine = leaves([3, 2], Ability(multicast=True))
    (gathered,) = plans("nvls", machine, wanted("allgather", machine))
    right(gathered, machine)
    # every way in takes all parts but its own rank's, every trunk up what its leaf has: 3 of 5 at most
    assert seconds(gathered, machine) == Fraction(4, 5)
    (spread,) = plans("nvls", machine, wanted("broadcast", machine, 4))
    right(spread, machine)
    assert seconds(spread, machine) == 1
    for name, kind in (("nvls", "allreduce"), ("nvls", "reducescatter"), ("sharp", "allreduce"), ("sharp", "reduce")):
        with pytest.raises(Unsupported, match=f"planner {name}.*switches of leaves"):
            list(plans(name, machine, wanted(kind, machine)))


@given(
    st.integers(2, 4), st.integers(2, 4), st.sampled_from([B // 10, B // 2, 2 * B]), st.sampled_from(["sharp", "ring"])
)
@settings(max_examples=examples(12))
def test_boxes(count: int, size: int, card: int, between: str) -> None:
    machine = boxes(count, size, card, SHARP)
    if size == 2 and between == "ring":
        return  # no switch has anything to do
    *_, schedule = plans("nvls-tree", machine, wanted("allreduce", machine), within="nvls", between=between)
    right(schedule, machine)
    inside = Fraction(size + 1, size) if size > 2 else Fraction(1)  # of two, what is combined is the other's alone
    crossing = Fraction(1) if between == "sharp" else Fraction(2 * (count - 1), count)
    rate = throughput(schedule, machine)
    assert rate is not None
    assert B / rate == max(inside, crossing * B / card / size)


@pytest.mark.slow
@pytest.mark.parametrize("lost", [1, 2, 3])
def test_boxes_of_unequal_sizes(lost: int) -> None:
    """7, 6 or 5 of 8 ranks in one box: every rank of a box carries the same share, in equal and unequal slices."""
    machine = only(topology("cluster:box=hgx-h100,boxes=2"), [*range(8 - lost), *range(8, 16)])
    collective = Collective("allreduce", 16, tuple(range(8 - lost)) + tuple(range(8, 16)))
    request = Request(machine, collective, nbytes=10**9)
    seconds: dict[tuple[str, bool], float] = {}
    for schedule in find("planner", "nvls-tree").load()(request):
        right(schedule, machine)
        options = schedule.provenance["options"]
        key = options["between"], "steps" in options
        seconds[key] = min(seconds.get(key, 1.0), prepare("alpha-beta", schedule, machine)(10**9).seconds)
    cut = 1e9 / (50e9 * (8 - lost))  # what a box has to send
    assert {between for between, _ in seconds} == {"direct", "ring", "tree"}
    assert seconds["direct", True] < 1.04 * cut < seconds["direct", False]


def test_boxes_whose_switches_cannot_go_around() -> None:
    """In the box a ring, 2(m-1)/m; among boxes every card carries a third each way."""
    machine = boxes(3, 3, B // 4, SHARP, Ability())
    found = list(plans("nvls-tree", machine, wanted("allreduce", machine)))
    assert {s.provenance["options"]["within"] for s in found} == {"ring"}
    assert {s.provenance["options"]["between"] for s in found} == {"sharp"}  # what else there is uses no switch
    for schedule in found:
        right(schedule, machine)
        assert B / (throughput(schedule, machine) or 1) == Fraction(4, 3)


@pytest.mark.slow
def test_boxes_on_a_fabric_that_serves_few_at_once() -> None:
    machine = boxes(2, 4, B, replace(SHARP, at_once=2), NVLS)
    for p in (1, 4):
        (schedule,) = plans("nvls-tree", machine, wanted("allreduce", machine), between="sharp", pieces=p)
        right(schedule, machine)
        fewer = replace(machine, abilities=(*machine.abilities[:-1], replace(SHARP, at_once=1)))
        assert verify(schedule, fewer).fault is not None
    busy = boxes(2, 4, B, SHARP, replace(NVLS, at_once=2))
    for schedule in plans("nvls-tree", busy, wanted("allreduce", busy)):
        right(schedule, busy)


@pytest.mark.slow
def test_some_ranks_of_planes_of_switches() -> None:
    """Every rank is on two switches that join all: each has half of the data. A third that is narrower has none."""
    narrow = LinkType("narrow", Fraction(B // 4), 1e-6)
    links = both_ways([(rank, 6 + plane) for rank in range(6) for plane in range(2)], PORT)
    links += both_ways([(rank, 8) for rank in range(6)], narrow)
    machine = build("planes", 6, links, switches=3, abilities=[NVLS] * 3)
    some = Collective("allreduce", 6, (0, 2, 3, 5))
    (schedule,) = plans("nvls", machine, some, pieces=1)
    right(schedule, machine)
    assert seconds(schedule, machine) == 1
    (schedule,) = plans("nvls", machine, Collective("allgather", 6, weights=np.array([1, 2, 0, 3, 1, 1])))
    right(schedule, machine)
    assert seconds(schedule, machine) == Fraction(1, 2)


def test_what_a_switch_combined_is_one_value_that_arrives() -> None:
    """Own value and arrival are read, and the sum is written: 3 accesses of each rank's part, or of all data where all
    ranks get it in one joint. While each of the n-1 others multicasts a piece of its part the next one is reduced."""
    n = 6
    machine = star(n, PORT, NVLS)
    (schedule,) = plans("nvls", machine, wanted("allreduce", machine), pieces=4)
    assert (work_of(schedule).most_accesses, most_senders(schedule)) == (Fraction(3, n), n)
    alone = unjoined(schedule)
    assert (work_of(alone).most_accesses, most_senders(alone)) == (Fraction(n + 1, n), n - 1)
    whole = leaves([3, 3], SHARP)
    (schedule,) = plans("sharp", whole, wanted("allreduce", whole))
    assert (work_of(schedule).most_accesses, most_senders(schedule)) == (Fraction(3), 1)


def test_known_machines() -> None:
    """450 GB/s a way and 8 GPUs: 9/8 of the data, so 400 GB/s; 72 at 900: 72/73 of that; 16 boxes, cards of 50."""
    for spec, name, rate in (
        ("hgx-h100", "nvls", Fraction(400)),
        ("gb200-nvl72", "nvls", Fraction(900 * 72, 73)),
        ("cluster:box=hgx-h100,boxes=16,fabric=leaf-spine,sharp=true", "nvls-tree", Fraction(400)),
        ("cluster:box=hgx-h100,boxes=16,fabric=leaf-spine,sharp=true", "sharp", Fraction(50)),
    ):
        machine = topology(spec)
        schedule = next(plans(name, machine, wanted("allreduce", machine)))
        assert verify(schedule, machine).fault is None
        assert throughput(schedule, machine) == rate * 10**9


def test_what_switches_cannot_is_refused_by_name() -> None:
    plain = star(4, PORT, Ability())
    for name in ("nvls", "sharp", "nvls-tree"):
        with pytest.raises(Unsupported, match=f"planner {name}: .*; use "):
            list(plans(name, plain, wanted("allreduce", plain)))
    mute = boxes(2, 2, B, Ability(), Ability())
    with pytest.raises(Unsupported, match=r"planner nvls-tree: .*use hierarchical-ring or trees"):
        list(plans("nvls-tree", mute, wanted("allreduce", mute)))
    machine = boxes(2, 3, B, Ability())
    with pytest.raises(Unsupported, match="planner sharp"):
        list(plans("nvls-tree", machine, wanted("allreduce", machine), between="sharp"))


@given(st.integers(3, 8), st.sampled_from(KINDS), st.booleans(), st.sampled_from([1, 3]))
@settings(max_examples=examples(20))
def test_programs_may_say_what_belongs_to_a_joint(n: int, kind: str, in_place: bool, p: int) -> None:
    """Sends and receives of the same joints as the schedule's rows; the same program as of the rows alone else."""
    machine = star(n, PORT, NVLS)
    (schedule,) = plans("nvls", machine, wanted(kind, machine), pieces=p)
    with pytest.raises(Unsupported, match="joint"):
        lower(schedule, in_place=in_place)
    program, alone = lower(schedule, in_place=in_place, joints=True), lower(unjoined(schedule), in_place=in_place)
    prove(program)
    assert all(
        np.array_equal(getattr(program, name), getattr(alone, name)) for name in ("kind", "peer", "when", "wait")
    )
    assert len(alone.joint) == 0
    crossing = (program.kind == SEND) | (program.kind == RECEIVE)
    assert np.array_equal(program.joint >= 0, crossing)
    ordered = schedule.sorted()
    assert ordered.joint is not None
    ends = {SEND: (program.rank, program.peer), RECEIVE: (program.peer, program.rank)}
    for side, (src, dst) in ends.items():
        mine = program.kind == side
        told = zip(program.joint[mine].tolist(), src[mine].tolist(), dst[mine].tolist(), strict=True)
        rows = zip(ordered.joint.tolist(), ordered.src.tolist(), ordered.dst.tolist(), strict=True)
        assert sorted(told) == sorted(rows)
    with pytest.raises(Unsupported, match="what switches combine"):
        encode([program])
