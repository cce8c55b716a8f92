"""Rows bound to be one multicast or reduction of the network: what they mean, load and cost, and what keeps them."""

import itertools
import json
import random
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from entries import goal, piccl_xml
from generate_joints import Bound, joined_cases
from hypothesis import given, settings
from quick import examples
from small_plans import star

import antiphon
from antiphon.cli import run
from antiphon.core.collective import Collective
from antiphon.core.interpret import interpret, order_of_combining
from antiphon.core.joints import MULTICAST, REDUCTION, THROUGH, joints_of
from antiphon.core.loads import loads, throughput, timeline
from antiphon.core.messages import messages, paths
from antiphon.core.plan import Plan
from antiphon.core.reshape import relabel as renamed_machine
from antiphon.core.reshape import reverse
from antiphon.core.routes import Routes
from antiphon.core.schedule import COPY, REDUCE, Schedule, cut
from antiphon.core.serialize import dumps, save_plan
from antiphon.core.serialize import loads as read
from antiphon.core.topology import Ability, LinkType, Topology, both_ways, build
from antiphon.core.transform import expand, invert, merge, relabel, split, unjoined
from antiphon.core.verify import Fault, verify
from antiphon.cost import prepare
from antiphon.errors import Invalid, Unsupported
from antiphon.lower import lowering
from antiphon.select import schedule_cache

LINK = LinkType("nvlink", Fraction(450), 1e-6)
NVLS = Ability(multicast=True, reduce=True, own=True)
SHARP = Ability(multicast=True, reduce=True, through=True)


def rows(collective: Collective, parts: int, listed: Sequence[tuple[int, ...]], **more: Any) -> Schedule:
    """From (step, chunk, src, dst, op, joint)."""
    step, chunk, src, dst, op, joint = np.array(listed).T
    return Schedule(collective, cut(collective, parts), step, chunk, src, dst, op, joint=joint, **more)


def nvls(ranks: int) -> Schedule:
    """The example of docs/schedule.md: reduced to the owner of each chunk, multicast from there."""
    listed = []
    for owner in range(ranks):
        others = [r for r in range(ranks) if r != owner]
        listed += [(0, owner, r, owner, REDUCE, owner) for r in others]
        listed += [(1, owner, owner, r, COPY, ranks + owner) for r in others]
    return rows(Collective("allreduce", ranks), ranks, listed)


def sharp(ranks: int) -> Schedule:
    """All to all at once, sent on by the switch."""
    pairs = [(a, b) for a in range(ranks) for b in range(ranks) if a != b]
    return rows(Collective("allreduce", ranks), 1, [(0, 0, a, b, REDUCE, 5) for a, b in pairs])


def fault(schedule: Schedule, topology: Topology, **data: str) -> Fault | None:
    return verify(schedule, topology, **data).fault  # type: ignore[arg-type]


# ---- what they load ----


@pytest.mark.parametrize(
    ("schedule", "ability", "rate"),
    [
        (nvls(4), NVLS, 360), (nvls(8), NVLS, 400), (nvls(4), Ability(True, True), 450), (sharp(4), SHARP, 450),
        (sharp(4), Ability(True, True, through=True, own=True), 450), (unjoined(nvls(4)), NVLS, 300),
        (unjoined(nvls(8)), NVLS, Fraction(1800, 7)),
    ],
)  # fmt: skip
def test_loads_are_those_of_the_documents(schedule: Schedule, ability: Ability, rate: int | Fraction) -> None:
    machine = star(schedule.collective.ranks, LINK, ability)
    assert fault(schedule, machine) is None
    assert throughput(schedule, machine) == rate


def test_the_kinds_follow_from_the_rows() -> None:
    found = joints_of(nvls(3))
    assert found is not None
    assert found.kind.tolist() == [REDUCTION] * 3 + [MULTICAST] * 3
    one = joints_of(sharp(3))
    assert one is not None
    assert one.kind.tolist() == [THROUGH]
    assert joints_of(unjoined(nvls(3))) is None
    assert joints_of(sharp(2).take([0])) is None  # one row is none


def test_of_parallel_links_the_one_beside_leads_back() -> None:
    links = both_ways([(0, 3), (1, 3), (2, 3)], LINK)
    machine = build("star", 3, [*links, (0, 3, LINK), (3, 0, LINK)], switches=1, abilities=[NVLS])  # 6 and 7 are second
    listed = [(0, 0, 1, 0, REDUCE, 0), (0, 0, 2, 0, REDUCE, 0)]
    for into, own in ((1, 0), (7, 6)):
        table = Routes.of([[2, into], [4, into]])
        schedule = rows(Collective("reduce", 3, roots=(0,)), 1, listed, route=[0, 1], routes=table)
        assert fault(schedule, machine) is None
        assert sorted(loads(schedule, machine).resource.tolist()) == sorted([2, 4, into, own])


# ---- legality ----

ALL = Ability(True, True, through=True)
WRONG: list[tuple[Schedule, Ability, str]] = [
    (nvls(4), Ability(multicast=True), "needs switch switch0 to combine"),
    (nvls(4), Ability(reduce=True), "needs switch switch0 to multicast"),
    (nvls(4), Ability(), "needs switch switch0 to combine"),
    (nvls(4), Ability(True, True, at_once=3), "one too many for switch switch0, which serves 3"),
    (sharp(4), NVLS, "where combining ends and sending on begins"),
    (sharp(4), Ability(reduce=True, through=True), "where combining ends and sending on begins"),
    (sharp(4).take(np.arange(11)), ALL, "lacks a row"),
    (sharp(4).take([*range(12), 0]), ALL, "two rows from one rank to one rank"),
    (sharp(3).take(np.arange(6), op=[0] * 6), ALL, "has several sources, but copies"),
    (sharp(3).take(np.arange(6), op=[0, 1, 1, 1, 1, 1]), ALL, "different ops"),
    (sharp(3).take(np.arange(6), step=[0, 1, 1, 1, 1, 1]), ALL, "different steps"),
    (sharp(3).take(np.arange(6), dst_slot=[1, 0, 0, 0, 0, 0]), ALL, "writes two slots of one rank"),
    (sharp(3).take(np.arange(6), src_slot=[1, 0, 0, 0, 0, 0]), ALL, "reads two slots of one rank"),
]


@pytest.mark.parametrize(("schedule", "ability", "why"), WRONG)
def test_what_no_joint_is(schedule: Schedule, ability: Ability, why: str) -> None:
    found = fault(schedule, star(schedule.collective.ranks, LINK, ability))
    assert found is not None
    assert found.kind == "joint"
    assert why in found.message


def test_paths_that_meet_again_are_no_tree() -> None:
    """Two switches side by side between two ranks and a third."""
    pairs = [(0, 3), (0, 4), (3, 5), (4, 5), (5, 1), (5, 2)]
    machine = build("diamond", 3, both_ways(pairs, LINK), switches=3, abilities=[ALL, ALL, ALL])
    link = {
        (a, b): i for i, (a, b) in enumerate(zip(machine.link_src.tolist(), machine.link_dst.tolist(), strict=True))
    }

    def table(*ways: list[int]) -> Routes:
        return Routes.of([[link[pair] for pair in itertools.pairwise(way)] for way in ways])

    def judged(*ways: list[int]) -> Fault | None:
        listed = [(0, 0, way[0], way[-1], COPY, 0) for way in ways]
        return fault(rows(Collective("broadcast", 3), 1, listed, route=range(2), routes=table(*ways)), machine)

    assert judged([0, 3, 5, 1], [0, 3, 5, 2]) is None
    found = judged([0, 3, 5, 1], [0, 4, 5, 2])
    assert found is not None
    assert "several links" in found.message


def test_parallel_links_and_a_lacking_way_back() -> None:
    links = [*both_ways([(0, 3), (1, 3)], LINK), (2, 3, LINK), (3, 2, LINK), (3, 2, LINK)]
    machine = build("star", 3, links, switches=1, abilities=[ALL])
    listed = [(0, 0, 0, 2, REDUCE, 0), (0, 0, 1, 2, REDUCE, 0)]
    for ways, right in (([[0, 5], [2, 5]], True), ([[0, 5], [2, 6]], False)):
        schedule = rows(Collective("reduce", 3, roots=(2,)), 1, listed, route=[0, 1], routes=Routes.of(ways))
        assert (fault(schedule, machine) is None) == right
    alone = build("star", 3, links[:4] + links[5:6], switches=1, abilities=[NVLS])  # nothing leads from 2 to the switch
    schedule = rows(Collective("reduce", 3, roots=(2,)), 1, listed)
    found = fault(schedule, alone)
    assert found is not None
    assert "no link leads back" in found.message


@pytest.mark.parametrize("op", ["sum", "avg", "max"])
def test_an_operator_that_the_switch_cannot_do(op: str) -> None:
    machine = star(4, LINK, Ability(True, True, operators=("sum",), types=("float32", "bfloat16")))
    found = fault(nvls(4), machine, op=op, dtype="float32")
    assert (found is None) == (op != "max")
    assert found is None or "cannot do max of float32" in found.message
    assert fault(nvls(4), machine, op="sum", dtype="int8") is not None
    assert fault(nvls(4), machine) is None


@pytest.mark.parametrize("dtype", ["float16", "int64", "float32", "float64", "int8", None])
def test_an_operator_that_the_switch_can_do_of_some_types(dtype: str | None) -> None:
    """An NVSwitch adds all that it combines, but compares whole numbers and 16-bit floats only."""
    plan = antiphon.plan("allreduce", "hgx-h100", planner="nvls", options={"pieces": 1})
    for op in ("max", "min"):
        found = antiphon.verify(plan, op=op, dtype=dtype).fault
        assert (found is None) == (dtype in ("float16", "int64", None))
        assert found is None or f"cannot do {op} of {dtype}" in found.message
    assert antiphon.verify(plan, op="sum", dtype=dtype).ok == (dtype != "int8")
    assert not antiphon.verify(plan, op="prod", dtype=dtype)


def test_pieces_are_under_way_in_several_steps() -> None:
    """Two multicasts one step apart: served one at a time, unless the first is in two pieces."""
    machine = star(3, LINK, Ability(True, True, at_once=1))
    listed = [(step, step, 0, r, COPY, step) for step in (0, 1) for r in (1, 2)]
    whole = rows(Collective("broadcast", 3), 2, listed)
    assert fault(whole, machine) is None
    assert fault(rows(Collective("broadcast", 3), 2, listed, pieces=[2, 1]), machine) is not None
    assert fault(rows(Collective("broadcast", 3), 2, listed, pieces=[1, 2]), machine) is None


def test_joints_in_other_pieces_are_verified_again_only_where_switches_serve_few(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    verified: list[Schedule] = []

    def seen(schedule: Schedule, machine: Topology) -> Any:
        verified.append(schedule)
        return verify(schedule, machine)

    monkeypatch.setattr(schedule_cache, "verify", seen)
    whole, few = nvls(3), star(3, LINK, replace(NVLS, at_once=3))
    finer = replace(whole, pieces=2)
    for machine, times in ((star(3, LINK, NVLS), 1), (few, 2)):
        cache = schedule_cache.ScheduleCache()
        verified.clear()
        assert schedule_cache.verify_schedule(cache, whole, machine) is whole
        if machine is few:
            with pytest.raises(Invalid, match="which serves 3 at once"):
                schedule_cache.verify_schedule(cache, finer, machine)
        else:
            assert schedule_cache.verify_schedule(cache, finer, machine).pieces == 2
        assert len(verified) == times


# ---- what keeps them ----


@settings(max_examples=examples(80), deadline=None)
@given(joined_cases())
def test_order_and_numbers_mean_nothing(one: Bound) -> None:
    schedule, rng = one.schedule, np.random.default_rng(one.schedule.transfers)
    mixed = schedule.take(rng.permutation(schedule.transfers))
    if mixed.joint is not None:
        names = rng.permutation(int(mixed.joint.max()) + 9)
        mixed = mixed.take(np.arange(mixed.transfers), joint=np.where(mixed.joint < 0, -1, names[mixed.joint]))
    assert mixed.same_as(schedule)
    right = verify(schedule, one.topology).ok
    assert verify(mixed, one.topology).ok == right
    if right:
        assert loads(mixed, one.topology).load.tolist() == loads(schedule, one.topology).load.tolist()
    told = read(dumps(Plan.of(one.topology, mixed)))
    assert isinstance(told, Plan)
    assert told.entries[0].schedule.same_as(schedule)
    first, again = (messages(s.sorted()) for s in (schedule, mixed))
    for name in ("step", "src", "dst", "route"):
        assert np.array_equal(getattr(first, name), getattr(again, name))
    shuffled = messages(mixed)
    assert shuffled.src.tolist() == first.src.tolist()
    assert shuffled.weight.tolist() == first.weight.tolist()


@settings(max_examples=examples(80), deadline=None)
@given(joined_cases())
def test_transforms_keep_them(one: Bound) -> None:
    schedule, machine = one.schedule, one.topology
    ok = verify(schedule, machine).ok
    rng = random.Random(schedule.transfers)
    names = rng.sample(range(machine.ranks), machine.ranks)
    names += range(machine.ranks, machine.nodes)
    finer, several = expand(schedule), split(schedule, 3)
    moved, renamed = renamed_machine(machine, names), relabel(schedule, names)
    assert verify(finer, machine).ok == ok
    assert verify(renamed, moved).ok == ok
    assert joints_of(several) is None or len(joints_of(several)) == 3 * len(joints_of(schedule))  # type: ignore[arg-type]
    if not ok:
        return
    time = timeline(schedule, machine).total
    assert timeline(finer, machine).total == time
    assert timeline(several, machine).total == time
    assert timeline(renamed, moved).total == time
    assert timeline(merge([schedule, schedule], [1, 2]), machine).total <= time
    alone = unjoined(schedule)
    assert verify(alone, machine).ok
    free = throughput(alone, machine)
    assert (throughput(schedule, machine) or 0) * 2 >= (free or 0)  # `own` alone may cost more


@settings(max_examples=examples(80), deadline=None)
@given(joined_cases())
def test_backwards_a_multicast_is_a_reduction(one: Bound) -> None:
    schedule, machine = one.schedule, one.topology
    if schedule.collective.kind == "allreduce":
        return
    back, turned = invert(schedule), reverse(machine)
    assert verify(back, turned).ok == verify(schedule, machine).ok
    if verify(back, turned).ok:
        assert timeline(back, turned).total == timeline(schedule, machine).total
    there, here = joints_of(schedule), joints_of(back)
    assert (there is None) == (here is None)
    if there is not None and here is not None:
        assert sorted(there.kind.tolist()) == sorted((REDUCTION - here.kind).tolist())  # of both: 0 and 1


def test_files_without_joints_are_as_they_were() -> None:
    alone = unjoined(nvls(4))
    assert b"joint" not in dumps(Plan.of(star(4, LINK, Ability()), alone))
    assert rows(Collective("allreduce", 2), 1, [(0, 0, 0, 1, 1, -1), (0, 0, 1, 0, 1, -1)]).joint is None
    told = json.loads(dumps(Plan.of(star(4, LINK, NVLS), nvls(4))))
    assert told["entries"][0]["schedule"]["joint"] == nvls(4).joint.tolist()  # type: ignore[union-attr]
    with pytest.raises(Invalid, match="joint"):
        nvls(4).take(np.arange(24), joint=[-2] * 24)


# ---- what they cost ----


def test_a_joint_is_one_message() -> None:
    machine, schedule = star(4, LINK, SHARP), sharp(4)
    found = messages(schedule)
    assert len(found) == 1
    assert found.share.tolist() == [1.0]
    assert found.combined.tolist() == found.weight.tolist()
    laid = paths(found, machine)
    assert sorted(laid.use_resource.tolist()) == list(range(8))
    assert laid.alpha.tolist() == [2e-6]


@pytest.mark.parametrize("model", ["alpha-beta", "critical-path", "flows"])
def test_models_price_them(model: str) -> None:
    seconds = prepare(model, sharp(4), star(4, LINK, SHARP))(4500).seconds
    assert seconds == pytest.approx(2e-6 + 10)
    seconds = prepare(model, nvls(4), star(4, LINK, NVLS))(4500).seconds
    assert 2 * 2e-6 + 4500 / 360 * (1 - 1e-9) <= seconds <= 2 * 2e-6 + 20 * (1 + 1e-9)


@pytest.mark.parametrize("model", ["genmodel", "alpha-beta-gamma", "loggp"])
def test_other_models_refuse(model: str) -> None:
    with pytest.raises(Unsupported, match=r"joints.*flows price it.*transform\.unjoined"):
        prepare(model, nvls(4), star(4, LINK, NVLS))
    prepare(model, unjoined(nvls(4)), star(4, LINK, NVLS))


def test_who_cannot_say_them_refuses() -> None:
    plan = Plan.of(star(4, LINK, NVLS), nvls(4))
    for does in (
        lambda: lowering.lower(nvls(4)),
        lambda: goal(plan, nbytes=4096),
        lambda: piccl_xml(plan, nbytes=4096),
    ):
        with pytest.raises(Unsupported, match=r"transform\.unjoined"):
            does()


# ---- what they mean ----


def test_data_do_not_see_them() -> None:
    inputs = [np.arange(8.0) + 100 * r for r in range(4)]
    for schedule in (nvls(4), sharp(4)):
        for mine, alone in zip(interpret(schedule, inputs), interpret(unjoined(schedule), inputs), strict=True):
            assert np.array_equal(mine, alone)
    assert order_of_combining(sharp(4)) is None
    assert order_of_combining(unjoined(sharp(4)))


def test_the_command_line_asks_for_an_operator(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    machine, file = star(4, LINK, Ability(True, True, operators=("sum",), types=("float32",))), tmp_path / "plan.json"
    save_plan(file, Plan.of(machine, nvls(4)))
    assert run(["verify", str(file)]) == 0
    assert run(["verify", str(file), "--op", "avg", "--dtype", "f32"]) == 0
    assert run(["verify", str(file), "--op", "max"]) == 1
    assert "cannot do max" in capsys.readouterr().out
    assert run(["verify", str(file), "--dtype", "bf16"]) == 1
    assert "cannot do bfloat16" in capsys.readouterr().out
    assert run(["verify", str(file), "--op", "total"]) == 2
    assert run(["run", str(file), "--nbytes", "4KB", "--repeat", "1"]) == 0
    assert run(["run", str(file), "--nbytes", "4KB", "--op", "max"]) == 1
    assert "cannot do max of float32" in capsys.readouterr().err
