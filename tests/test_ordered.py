"""Operators that do not commute: ordered collectives are planned and verified so that the order of ranks is kept.

Values are tuples and the operator joins them, so that the interpreter's result shows the order of every combination.
"""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import Capture, answer
from generate import case
from generate import topology as random_machine
from hypothesis import given, settings
from hypothesis import strategies as st
from quick import examples

import antiphon
from antiphon.cli import run
from antiphon.core.collective import Collective, custom_relation, joint
from antiphon.core.example import of_rows
from antiphon.core.interpret import interpret
from antiphon.core.request import Request
from antiphon.core.schedule import Schedule
from antiphon.core.serialize import load_plan
from antiphon.core.topology import Topology
from antiphon.core.verify import find_order_fault, verify
from antiphon.errors import AntiphonError, NotFound, Unsupported
from antiphon.planners.relations.blocks import by_relation
from antiphon.registry import find, table
from antiphon.select.run_planner import run_planner
from antiphon.topologies import topology

JOIN = np.frompyfunc(lambda a, b: a + b, 2, 1)
Words = dict[tuple[int, int], tuple[int, ...]]  # (rank, block) -> contributions in the order of combining


def scan(ranks: int, exclusive: bool = False) -> Collective:
    """Every rank wants what ranks up to itself have, or those before it."""
    pre = [(0, rank, rank) for rank in range(ranks)]
    post = [(0, rank, tuple(range(rank + (not exclusive)))) for rank in range(exclusive, ranks)]
    return Collective("custom", ranks, custom=custom_relation(pre, post, ranks), ordered=True)


def words(schedule: Schedule) -> Words:
    """The result of a schedule, one word per element, all elements of a block alike."""
    collective, unit = schedule.collective, schedule.chunks.denominator
    relation, weights = collective.relation, collective.weights.tolist()
    inputs: list[Any] = []
    for rank in range(collective.ranks):
        of_rank = sorted({*relation.pre_block[relation.pre_rank == rank].tolist()})
        held = [
            tuple(sorted(relation.pre_id[(relation.pre_rank == rank) & (relation.pre_block == block)].tolist()))
            for block in of_rank for _ in range(weights[block] * unit)
        ]  # fmt: skip
        array = np.empty(len(held), object)
        array[:] = held
        inputs.append(array)
    found: Words = {}
    for rank, output in enumerate(interpret(schedule, inputs, op=JOIN, dtype=np.dtype(object))):
        at = 0
        for block in sorted(relation.post_block[relation.post_rank == rank].tolist()):
            size = weights[block] * unit
            for word in {*output[at : at + size].tolist()}:
                # chunks of a block may be combined in different orders: keep one that is out of order
                if (rank, block) not in found or list(word) != sorted(word):
                    found[rank, block] = word
            at += size
    return found


def check(schedule: Schedule, machine: Topology) -> None:
    verify(schedule, machine).or_raise()
    assert schedule.collective.ordered
    assert all(list(word) == sorted(word) for word in words(schedule).values())


@settings(max_examples=examples(400), deadline=None)
@given(seed=st.integers(0, 10**9))
def test_the_verifier_agrees_with_the_interpreter(seed: int) -> None:
    """Random right schedules: some keep the order by chance."""
    found = case(seed, random.Random(seed).choice(["allreduce", "reduce", "reducescatter", "custom"]), most_ranks=5)
    relation = found.collective.relation
    starts = list(zip(relation.pre_block.tolist(), relation.pre_rank.tolist(), relation.pre_id.tolist(), strict=True))
    repeated = len({*starts}) < len(starts) or any(len({*want}) < len(want) for want in relation.wants)
    weights = found.collective.weights
    if repeated or not found.collective.combining or not weights.all() or weights.sum() > 50:
        return
    schedule = replace(found.schedule, collective=replace(found.collective, ordered=True), pieces=1)
    in_order = all(list(word) == sorted(word) for word in words(schedule).values())
    assert (find_order_fault(schedule) is None) == in_order
    assert verify(schedule, found.topology).ok == in_order


def test_the_fault_names_the_transfer() -> None:
    rows = [(0, 0, 2, 0, 1), (1, 0, 1, 0, 1), (2, 0, 0, 1, 0), (2, 0, 0, 2, 0)]
    late = of_rows("allreduce", 3, rows)
    fault = verify(replace(late, collective=replace(late.collective, ordered=True)), topology("full:ranks=3")).fault
    assert fault is not None
    assert (fault.kind, fault.step, fault.src, fault.dst) == ("order", 1, 1, 0)
    assert verify(late, topology("full:ranks=3")).ok


def test_a_sum_that_nobody_needs_may_be_out_of_order() -> None:
    rows = [(0, 0, 2, 0, 1), (1, 0, 1, 0, 1), (0, 0, 0, 2, 1), (1, 0, 1, 2, 1), (2, 0, 2, 0, 0), (2, 0, 2, 1, 0)]
    schedule = of_rows("reduce", 3, rows, roots=(1,))
    assert find_order_fault(schedule) is not None  # 0, 2 and then 1 at rank 2, which rank 1 receives
    repaired = of_rows("reduce", 3, [*rows[:2], (3, 0, 2, 1, 1), (4, 0, 0, 1, 1)], roots=(1,))
    assert find_order_fault(repaired) is not None


def test_switches_that_combine_have_no_order() -> None:
    machine = topology("dgx-a100-nvls") if "dgx-a100-nvls" in table("topology") else topology("hgx-h100")
    collective = Collective("allreduce", machine.ranks)
    schedule = next(iter(run_planner("nvls", find("planner", "nvls"), {}, Request(machine, collective))))
    fault = find_order_fault(replace(schedule, collective=replace(collective, ordered=True)))
    assert fault is not None
    assert "in a switch" in fault.message


# ---- planners ----


@settings(max_examples=examples(200), deadline=None)
@given(seed=st.integers(0, 10**9))
def test_relay_keeps_the_order_on_every_connected_machine(seed: int) -> None:
    rng = random.Random(seed)
    machine = random_machine(rng, rng.randint(2, 7))
    ranks = machine.ranks
    names = rng.sample(range(20), ranks)  # the order of contributions is not that of ranks
    pre = [(0, rank, name) for rank, name in enumerate(names)]
    wants = [tuple(rng.sample(names, rng.randint(1, ranks))) for _ in range(rng.randint(1, 3))]
    post = [(0, rank, rng.choice([None, *wants])) for rank in rng.sample(range(ranks), rng.randint(1, ranks))]
    partial = Collective("custom", ranks, custom=custom_relation(pre, post, ranks), ordered=True)
    kinds = [Collective(kind, ranks, ordered=True) for kind in ("allreduce", "reduce", "reducescatter")]
    for collective in (scan(ranks), scan(ranks, exclusive=True), partial, *kinds):
        if collective.ordered:  # not where a rank wants but one contribution
            check(by_relation(machine, collective), machine)


@pytest.mark.parametrize("spec", ["dgx1v", "star:ranks=6", "torus:dims=3x3"])
def test_schedules_of_other_planners_count_if_they_keep_the_order(spec: str) -> None:
    machine = topology(spec)
    in_order, refused = [], []
    for kind in ("allreduce", "reduce"):
        for name in ("ring", "binomial-tree", "direct", "recursive-doubling", "recmult", "relay"):
            entry = find("planner", name)
            if kind not in entry.can.collectives:
                continue
            try:
                for schedule in run_planner(
                    name, entry, {}, Request(machine, Collective(kind, machine.ranks, ordered=True))
                ):
                    check(schedule, machine)
                    in_order.append(name)
            except AntiphonError as error:
                refused.append(str(error))
    assert {"relay"} < {*in_order}
    assert any("out of order" in reason and reason.endswith("keep the order: relay, sccl") for reason in refused)


def test_on_the_command_line(tmp_path: Path, capsys: Capture) -> None:
    file, out = tmp_path / "scan.json", tmp_path / "plan.json"
    blocks = [{"pre": [0, 1, 2, 3], "post": [{"rank": r, "ids": list(range(r + 1))} for r in range(4)]}]
    file.write_text(json.dumps({"format": "antiphon-collective", "version": 1, "ranks": 4, "combining": True,
                                "ordered": True, "blocks": blocks}))  # fmt: skip
    assert run(["plan", str(file), "ring:ranks=4", "-o", str(out)]) == 0
    assert run(["verify", str(out), "--proof"]) == 0
    capsys.readouterr()
    plan = load_plan(out)
    assert plan.collective == scan(4)
    check(plan.entries[0].schedule, plan.topology)
    assert all(row["correct"] for row in antiphon.run(plan, 4096))
    assert run(["tune", str(file), "ring:ranks=4", "--nbytes", "1KB", "--effort", "0.1", "--json"]) == 0
    ranges = json.loads(capsys.readouterr().out)["ranges"]
    assert {entry["planner"] for entry in ranges} <= {"relay", "sccl"}
    assert run(["frontier", str(file), "ring:ranks=4", "--planner", "greedy"]) == 2
    assert "in any order" in capsys.readouterr().err
    kind = tmp_path / "allreduce.json"
    head = {"format": "antiphon-collective", "version": 1}
    kind.write_text(json.dumps({**head, "kind": "allreduce", "ranks": 4, "ordered": True}))
    assert answer(capsys, "plan", str(kind), "ring:ranks=4")["planner"] == "relay"
    assert run(["plan", str(kind), "ring:ranks=4", "--planner", "ring"]) == 2
    assert "planners that always keep the order: relay, sccl" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("collective", "point", "exists"),
    [
        (scan(4), (2, 2, 2), True),
        (Collective("reduce", 4, roots=(1,), ordered=True), (1, 2, 2), True),
        # in any order, rank 0 gets the sum of ranks 1 and 3 from its neighbors, and then that of rank 2
        (Collective("allreduce", 4, ordered=True), (2, 2, 2), False),
        (Collective("allreduce", 4), (2, 2, 2), True),
    ],
)
def test_synthesis_keeps_the_order(collective: Collective, point: tuple[int, int, int], exists: bool) -> None:
    options = dict(zip(("chunks", "steps", "rounds"), point, strict=True))
    if not exists:
        with pytest.raises(NotFound, match="went through all"):
            antiphon.plan(collective, "ring:ranks=4", planner="sccl", options=options)
        return
    plan = antiphon.plan(collective, "ring:ranks=4", planner="sccl", options=options)
    if collective.ordered:
        check(plan.entries[0].schedule, plan.topology)
    assert antiphon.verify(plan, proof=True)


def test_synthesis_keeps_no_order_of_several_blocks() -> None:
    with pytest.raises(Unsupported, match="sums of one block only"):
        antiphon.plan(Collective("reducescatter", 3, ordered=True), "ring:ranks=3", planner="sccl")


def test_what_is_no_order() -> None:
    assert not Collective("allgather", 4, ordered=True).ordered  # nothing is combined
    assert Collective("allreduce", 4, ordered=True) != Collective("allreduce", 4)
    with pytest.raises(Unsupported, match="plan them apart"):
        joint([Collective("allreduce", 4, (0, 1), ordered=True), Collective("allreduce", 4, (2, 3))])
    pre = [(0, 0, 0), (0, 0, 2), (0, 1, 1)]
    between = Collective("custom", 2, custom=custom_relation(pre, [(0, 1, None)], 2), ordered=True)
    with pytest.raises(Unsupported, match="cannot be combined in ascending order"):
        by_relation(topology("ring:ranks=2"), between)
    with pytest.raises(Unsupported, match="leave trees and detours out"):
        antiphon.plan(scan(4), "ring:ranks=4", planner="relay", options={"trees": 2})
