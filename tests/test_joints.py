"""Rows bound to be one multicast or reduction of the network: what they mean, load and cost, and what keeps them."""

import json
import random
from collections.abc import Sequence
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

from antiphon.cli import run
from antiphon.core.collective import Collective
from antiphon.core.interpret import interpret, order_of_combining
from antiphon.core.joints import REDUCTION, joints_of
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
