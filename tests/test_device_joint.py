"""What switches do for all ranks at once: by one address for all of them. On threads something stands in for them."""

import shutil
from functools import cache
from typing import Any

import numpy as np
import pytest
from device_cases import Call, Plan, plan_of, switches

import antiphon
from antiphon.core.datatypes import data_type
from antiphon.core.schedule import Schedule
from antiphon.errors import Unsupported
from antiphon.runtimes.device.functions import threads
from antiphon.runtimes.device.group import Group

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")


@cache
def schedule_of(kind: str) -> Schedule:
    root = {"root": 3} if kind in ("broadcast", "reduce") else {}
    return antiphon.plan(kind, antiphon.topology("hgx-h100"), planner="nvls", **root).at(2**20).schedule


def made(group: Group, plan: Plan, call: Call, **how: Any) -> list[np.ndarray[Any, Any]]:
    outputs = call.empty()
    given = None if plan.program.in_place else call.inputs
    group.run(group.plan(plan.tables), call.unit, given, outputs, call.op, timeout=20, **how)
    return outputs


@pytest.mark.parametrize("kind", ["allreduce", "allgather", "broadcast"])
def test_by_one_address_for_all(kind: str) -> None:
    """Types and operators that switches know and that they do not, slices, calls by steps; ends that are not whole."""
    ways = [("int32", "sum", {}), ("uint64", "max", {"lanes": 3, "rounds": 2}), ("int8", "sum", {}),
            ("int64", "min", {"way": "steps", "lanes": 2}), ("int32", "avg", {"lanes": 2})]  # fmt: skip
    with Group(threads(), 8, 8) as group:
        for in_place in (False, True):
            plan = plan_of(schedule_of(kind), in_place, 2)
            assert switches(plan) == (kind == "allreduce")
            for number, (dtype, op, how) in enumerate(ways[in_place :: 2 if kind != "allreduce" else 1]):
                asked = op if kind == "allreduce" else "sum"
                call = Call(plan, (40, 301, 1, 7)[number % 4], dtype, asked, seed=number)
                for mine, right in zip(made(group, plan, call, joined=True, **how), call.outputs, strict=True):
                    np.testing.assert_array_equal(mine, right)


def added(inputs: list[np.ndarray[Any, Any]], kind: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """In this order."""
    total = inputs[0].astype(kind)
    for one in inputs[1:]:
        total = total + one
    return total


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_it_is_the_switch_that_adds(dtype: str) -> None:
    """It has an order of its own, where ranks have theirs."""
    plan, kind, unit = plan_of(schedule_of("allreduce"), False, 1), data_type(dtype), 4096
    random = np.random.default_rng(4)
    inputs = [(random.standard_normal(unit) * 10.0 ** random.integers(-2, 3, unit)).astype(kind) for _ in range(8)]
    with Group(threads(), 8, 2) as group:
        tables = group.plan(plan.tables)
        for joined, order in ((False, inputs), (True, inputs[::-1])):
            outputs = [np.zeros(unit, kind) for _ in range(8)]
            group.run(tables, unit, inputs, outputs, "sum", joined=joined, timeout=20)
            for mine in outputs:
                np.testing.assert_array_equal(mine.view(np.uint8), added(order, kind).view(np.uint8))
        assert (added(inputs, kind) != added(inputs[::-1], kind)).any()


def test_a_runtime_asks_for_such_memory_where_switches_are_asked() -> None:
    asked: list[int] = []
    joined = Group.joined
    with pytest.MonkeyPatch.context() as patch:

        def seen(self: Any, values: Any) -> Any:
            asked.append(len(values))
            return joined(self, values)

        patch.setattr(Group, "joined", seen)
        for machine, planner, times in (("hgx-h100", "nvls", True), ("full:ranks=8", "ring", False)):
            asked.clear()
            plan = antiphon.plan("allreduce", machine, planner=planner)
            (row,) = antiphon.run(plan, "64KB", on="threads", dtype="float32")
            assert (row["correct"], row["agree"], bool(asked)) == (True, True, times)


def test_memory_for_switches_is_given_back() -> None:
    with Group(threads(), 2, 1) as group:
        with group.for_a_while():
            places = group.joined([np.arange(5), np.arange(5) * 2])
            got = np.zeros(5, np.int64)
            group.fetch(1, places[1], got)
            assert got.tolist() == [0, 2, 4, 6, 8]
        with group.for_a_while():  # what was given back is had again
            assert group.joined([np.zeros(5), np.zeros(5)])[1]


def test_where_one_process_has_none_nobody_has_any() -> None:
    with (
        Group(threads(), 1, 1, own_ranks=[0], tell=lambda data: [data, b""]) as group,
        pytest.raises(Unsupported, match="another process"),
    ):
        group.joined({0: np.zeros(1)})
