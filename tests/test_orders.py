"""The order in which a schedule combines, against expressions written down by the interpreter; and what it is for."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from quick import in_turn

import antiphon
from antiphon.cli import run
from antiphon.core.collective import Collective
from antiphon.core.interpret import interpret, order_of_combining
from antiphon.core.plan import Entry, Plan
from antiphon.core.schedule import COPY, REDUCE, Chunks, Schedule

PLANNERS = (
    "ring", "recursive-doubling", "halving-doubling", "direct", "binomial-tree", "double-binary-tree", "colocated-ps",
    "parameter-server", "bruck", "pairwise", "recmult",
)  # fmt: skip


@dataclass(frozen=True)
class Sum:
    """What was added to what: texts, from the left."""

    text: str

    def __add__(self, other: Sum) -> Sum:
        return Sum(f"({self.text}+{other.text})")


@cache
def planned(kind: str, ranks: int) -> dict[str, Schedule]:
    machine, found = antiphon.topology(f"full:ranks={ranks}"), {}
    for name in PLANNERS:
        try:
            found[name] = antiphon.plan(kind, machine, planner=name).at(0).schedule
        except antiphon.errors.AntiphonError:
            continue
    return found


def written(schedule: Schedule) -> set[str]:
    """The expressions of all elements of all ranks, with one element or more of every chunk.

    Sums are taken two by two here: what combines three at once looks like what combines two and then one more.
    """
    collective = schedule.collective
    unit = 4 * len(schedule.chunks)
    blocks = collective.blocks
    inputs = []
    for rank in range(collective.ranks):
        size = unit * (blocks if collective.kind == "reducescatter" else 1)
        row = np.empty(size, object)
        row[:] = [Sum(str(rank))] * size
        inputs.append(row)
    return {one.text for out in interpret(schedule, inputs, dtype=object) for one in out}


@pytest.mark.parametrize(
    ("kind", "ranks"), in_turn([("allreduce", 4), ("allreduce", 6), ("allreduce", 8), ("reducescatter", 8)], 2)
)
def test_one_order_is_one_expression(kind: str, ranks: int) -> None:
    orders: dict[str, set[str]] = {}
    seen = set()
    for name, schedule in planned(kind, ranks).items():
        expressions, order = written(schedule), order_of_combining(schedule)
        seen.add(order is None)
        if order is None:
            assert len(expressions) > 1, name
        else:
            assert len(expressions) == 1, name
            orders.setdefault(order, set()).update(expressions)
    assert seen == {True, False}
    assert len(orders) > 1
    assert all(len(expressions) == 1 for expressions in orders.values())


def test_three_at_once_are_another_order_than_two_and_one() -> None:
    """They round otherwise in float16: what is combined at once is stored once."""
    at_once, in_turn = _sums([0, 0, 1, 1]), _sums([0, 1, 2, 2])
    assert written(at_once) == written(in_turn) == {"((0+1)+2)"}
    orders = {order_of_combining(at_once), order_of_combining(in_turn)}
    assert len(orders) == 2
    assert None not in orders


def _sums(steps: list[int]) -> Schedule:
    """Ranks 1 and 2 send to rank 0, which adds and sends back."""
    rows = {"chunk": [0] * 4, "src": [1, 2, 0, 0], "dst": [0, 0, 1, 2], "op": [REDUCE, REDUCE, COPY, COPY]}
    return Schedule(Collective("allreduce", 3), Chunks([0], [0], [1], 1), steps, **rows)


@cache
def tuned() -> Plan:
    found = antiphon.tune(
        "allreduce",
        antiphon.topology("full:ranks=6"),
        nbytes="64B:64MB",
        planners=PLANNERS,
        nccl=False,
        search=antiphon.Search(deterministic=True, workers="none"),
    )
    plan: Plan = found.plan
    refused = {c.planner: c.reason for c in found.candidates if c.status == "refused"}
    assert "different orders" in refused["ring"]
    return plan


@given(st.integers(0, 2**32), st.sampled_from(["float16", "bfloat16", "float32", "float64"]), st.data())
def test_the_same_elements_give_the_same_bits_at_all_sizes(seed: int, dtype: str, data: st.DataObject) -> None:
    """Whatever entry of the table serves them: those of the smallest size come out the same at every other."""
    from antiphon.core.datatypes import data_type

    plan, draw = tuned(), random.Random(seed)
    entries = list(plan.entries)
    assert len(entries) > 1
    make = np.random.default_rng(seed)
    longest = 40
    values = make.standard_normal((6, longest)) * 10.0 ** make.integers(-3, 4, (6, longest))
    inputs = values.astype(data_type(dtype))
    whole = interpret(draw.choice(entries).schedule, list(inputs), dtype=dtype)[0]
    for _ in range(3):
        count, rank = data.draw(st.integers(1, longest)), draw.randrange(6)
        schedule = draw.choice(entries).schedule
        found = interpret(schedule, [row[:count].copy() for row in inputs], dtype=dtype)[rank]
        assert found.tobytes() == whole[:count].tobytes()


def test_a_table_that_claims_an_order_is_checked() -> None:
    plan = tuned()
    assert antiphon.verify(plan)
    first = plan.entries[0]
    wrong = Entry(0, None, first.schedule, {**first.claims, "order": "0" * 32})
    fault = antiphon.verify(Plan(plan.topology, plan.collective, (wrong,))).fault
    assert fault is not None
    assert "order" in fault.message


def test_where_there_is_none_it_says_so(capfd: pytest.CaptureFixture[str]) -> None:
    assert (
        run(
            ["tune", "allreduce", "ring:ranks=4", "--deterministic", "--planner", "ring", "--no-nccl", "--workers", "1"]
        )
        == 1
    )
    assert "--deterministic wants one" in " ".join(capfd.readouterr().out.split())
