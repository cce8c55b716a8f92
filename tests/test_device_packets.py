"""Small data as packets, with flags in the data: the same results, call after call, in boxes that are used again."""

import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from device_cases import TYPES, Call, Plan, drawn, operators, plan_of, schedule_of, switches

import antiphon
from antiphon.core.program.kinds import INPUT, OUTPUT
from antiphon.errors import AntiphonError, Invalid, TimedOut, Unsupported
from antiphon.lower.device.table import tables
from antiphon.registry import table
from antiphon.runtimes.device.call_choices import CallChoice
from antiphon.runtimes.device.functions import threads
from antiphon.runtimes.device.group import CALLS, WAYS, DevicePlan, Group
from antiphon.runtimes.measure.device import Cuda, Threads

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
PAIRS = [(planner, kind) for planner, entry in table("planner").items() if planner != "sccl"
         for kind in entry.can.collectives if kind != "custom"]  # fmt: skip
SWEEP, FLAGS = 2**20, 2**32  # calls after which boxes are emptied, and flags come again
PATIENCE = 20.0


def hold(group: Group, call: Call, held: DevicePlan) -> None:
    """One call, bit by bit as the program's own run has it."""
    outputs, plan = call.empty(), call.plan
    given = None if plan.program.in_place else call.inputs
    group.run(held, call.unit, given, outputs, call.op, lanes=call.lanes, rounds=call.rounds, timeout=PATIENCE)
    for mine, right in zip(outputs, call.outputs, strict=True):
        np.testing.assert_array_equal(mine.view(np.uint8), right.view(np.uint8))


def test_no_room_however_long() -> None:
    """How many bytes it takes is told without going round."""
    made = tables(schedule_of("full:ranks=4", "ring", "allreduce"), packets=True)
    with Group(threads(), 4) as group:
        plan = group.plan(made)
        assert plan.fits(64, np.dtype(np.float64))
        for bits in range(16, 60):
            for dtype in (np.int8, np.float32, np.float64):
                assert not plan.fits(3 << bits - 1, np.dtype(dtype)), (bits, dtype)


def sweep(ranks: int, pairs: Sequence[tuple[str, str]], units: Sequence[int], random: np.random.Generator) -> int:
    """With packets and without, in turn as chance has it; numbers of calls begin again meanwhile."""
    done, spec = 0, f"full:ranks={ranks}"
    with Group(threads(), ranks, 4, threads=1 + ranks % 2, call=CALLS - 5) as group:
        for planner, kind in pairs:
            for in_place in (False, True):
                try:
                    schedule = schedule_of(spec, planner, kind, int(random.integers(ranks)))
                    plan = plan_of(schedule, in_place, int(random.integers(1, 4)), random.random() < 0.8)
                except AntiphonError:
                    continue
                held = group.plan(plan.tables)
                for unit in units:
                    lanes, rounds = (int(random.integers(1, most + 1)) for most in (4 // plan.streams, 3))
                    call = Call(
                        plan, unit, str(random.choice(["int32"] if switches(plan) else TYPES)),
                        str(random.choice(operators(kind))), *((lanes, rounds) if plan.sliced else (1, 1)), done,
                    )  # fmt: skip
                    if held.fits(unit, call.made.dtype):
                        hold(group, call, held)
                        done += 1
    return done


def test_some_of_all() -> None:
    random, done = np.random.default_rng(1), 0
    for number, ranks in enumerate((2, 3, 5, 8)):
        done += sweep(ranks, PAIRS[number::72], (0, 61), random)
    assert done > 15


@pytest.mark.slow
@pytest.mark.parametrize("ranks", range(2, 17))
def test_all(ranks: int) -> None:
    assert sweep(ranks, PAIRS, (0, 1, 7, 200), np.random.default_rng(ranks)) > 300


@pytest.mark.slow
def test_trees_that_cut_a_unit_at_odd_places() -> None:
    with Group(threads(), 8, 4, threads=3) as group:
        plan = plan_of(schedule_of("dgx1v", "trees", "allreduce"), True, 4, True)
        held = group.plan(plan.tables)
        for unit, dtype in ((1, "int8"), (13, "bfloat16"), (997, "uint8"), (2000, "float64")):
            hold(group, Call(plan, unit, dtype, "avg", seed=unit), held)


def calls(plans: Sequence[Plan], count: int) -> list[Call]:
    return list(drawn(np.random.default_rng(3), plans, count, 4))


@pytest.mark.slow
@pytest.mark.parametrize("first", [0, FLAGS - 150])
def test_calls_of_all_sorts_one_after_another(first: int) -> None:
    """Those at whose end all have heard from all, those where they have not, and those without packets."""
    some = [plan_of(schedule_of("full:ranks=4", planner, kind), in_place, 2, packets)
            for planner, kind, in_place, packets in (
                ("ring", "allreduce", False, True), ("direct", "alltoall", True, True),
                ("binomial-tree", "broadcast", False, True), ("ring", "allreduce", False, False),
                ("binomial-tree", "gather", False, True))]  # fmt: skip
    assert [int(one.tables[0].words[16]) for one in some] == [1, 1, 0, 0, 0]
    made = calls(some, 20)
    random = np.random.default_rng(4)
    with Group(threads(), 4, 4, threads=2, call=first) as group:
        held = [group.plan(call.plan.tables) for call in made]
        for _ in range(300):
            number = int(random.integers(len(made)))
            hold(group, made[number], held[number])


def stale(group: Group, held: DevicePlan, plan: Plan, number: int) -> bool:
    """Whether a call with this number is wrong, or does not end."""
    group.number, call = number, Call(plan, 64, "int32", "sum", seed=number % 97)
    try:
        hold(group, call, held)
    except (AssertionError, TimedOut):
        return True
    return False


@pytest.mark.slow
def test_flags_that_come_again_meet_no_packets_from_then() -> None:
    """Boxes are emptied long before, in two calls in a row, whatever these are; where they did not come, old packets
    are taken for new."""
    schedule, first = schedule_of("full:ranks=8", "direct", "allreduce"), 3 * SWEEP + 6
    plan, other = (plan_of(schedule, False, 1, packets) for packets in (True, False))
    for emptied in (True, False):
        with Group(threads(), 8, 4) as group:
            held, plainly = group.plan(plan.tables), group.plan(other.tables)
            assert not any(stale(group, held, plan, first + k) for k in (0, 1))
            found = []
            for times in range(1, 13):
                for number in (first - 6, first - 5) if emptied else ():
                    assert not stale(group, plainly, other, number + times * FLAGS)
                found += [stale(group, held, plan, first + times * FLAGS + k) for k in (0, 1)]
        assert any(found) != emptied


def test_what_has_no_room_in_a_box_is_refused_before_it_begins() -> None:
    plan = plan_of(schedule_of("full:ranks=4", "ring", "allreduce"), False, 1, True)
    with Group(threads(), 4, 1) as group:
        held = group.plan(plan.tables)
        assert held.fits(1000, np.dtype("float32"))
        assert not held.fits(10**6, np.dtype("float32"))
        call = Call(plan, 10**6, "float32", "sum")
        with pytest.raises(Invalid, match="a buffer or a box is too short"):
            group.run(held, call.unit, call.inputs, call.empty())
        with pytest.raises(Invalid, match="packets go by one kernel"):
            group.run(
                held, 10, Call(plan, 10, "int8", "sum").inputs, Call(plan, 10, "int8", "sum").empty(), way="steps"
            )
        hold(group, Call(plan, 1000, "float32", "sum"), held)
    with pytest.raises(Unsupported, match="in no order of arrival"):
        tables(schedule_of("full:ranks=4", "permrecmult", "allgather"), packets=True, arrival=True)


def test_what_lies_in_packets_is_not_divided() -> None:
    """As a damaged table may have it: such a place has no bounds of a buffer, and none of its three is meant."""
    plan = plan_of(schedule_of("full:ranks=3", "ring", "allreduce"), False, 2, True)
    words = plan.tables[0].words.copy()
    parts, classes, regions, _, steps, arguments = words[8:14].tolist()
    first = 17 + parts + 3 * classes  # the regions, which are followed by blocks, steps and arguments
    boxes = [number for number in range(regions) if words[first + number * (3 + classes)] == 3]
    at = len(words) - 5 * arguments
    divides = [step for step in range(steps) if words[at - 4 * (steps - step)] == 7]
    assert boxes
    assert divides
    for step in divides:
        words[at + 5 * words[at - 4 * (steps - step) + 1] + 1] = boxes[-1]
    with Group(threads(), 3, 2) as group, pytest.raises(Invalid, match="divided"):
        group.plan([plan.tables[0]._replace(words=words), *plan.tables[1:]])


def test_small_data_goes_by_packets_where_that_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is tried and timed; larger data is not even tried."""
    tried: list[CallChoice] = []

    def fake_times(call: Callable[[CallChoice], None], some: Iterator[CallChoice]) -> list[tuple[CallChoice, float]]:
        found = []
        for one in some:
            call(one)
            tried.append(one)
            found.append((one, 1.0 if one.tables == "packets" else 2.0))
        return found

    gone: list[bool] = []
    go = Group.go
    monkeypatch.setattr(Threads, "tables", Cuda.tables)
    monkeypatch.setattr(Threads, "choices", Cuda.choices)
    monkeypatch.setattr(sys.modules[Threads.__module__], "time_choices", fake_times)

    def seen(self: Any, plan: Any, *rest: Any, **how: Any) -> Any:
        gone.append(plan.packets)
        return go(self, plan, *rest, **how)

    monkeypatch.setattr(Group, "go", seen)
    plan = antiphon.plan("allreduce", "ring:ranks=2", planner="ring")
    for nbytes, by in (("12KB", True), ("1MB", False)):
        tried.clear()
        gone.clear()
        (row,) = antiphon.run(plan, nbytes, on="threads")
        assert (row["correct"], row["agree"], gone[-1]) == (True, True, by)
        assert ("packets" in {one.tables for one in tried}) == by


def test_a_runtime_takes_the_order_of_arrival_where_that_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is one; and by copies, too, which are few then."""
    monkeypatch.setattr(Threads, "tables", Cuda.tables)
    monkeypatch.setattr(Threads, "choices", Cuda.choices)
    tried: list[CallChoice] = []

    def fake_times(call: Callable[[CallChoice], None], some: Iterator[CallChoice]) -> list[tuple[CallChoice, float]]:
        for one in some:
            call(one)
            tried.append(one)
        return [(one, 1.0 if (one.tables, one.way) == ("arrival", "copies") else 2.0) for one in tried]

    monkeypatch.setattr(sys.modules[Threads.__module__], "time_choices", fake_times)
    for planner, way in (("permrecmult", "copies"), ("recmult", "kernel")):
        tried.clear()
        plan = antiphon.plan("allgather", "full:ranks=9", planner=planner, options={"k": 3})
        (row,) = antiphon.run(plan, "36KB", on="threads")
        assert (row["correct"], row["agree"]) == (True, True)
        assert ({one.way for one in tried if one.tables == "arrival"} == set(WAYS) - {"staged"}) == (way == "copies")


def test_a_step_sends_on_what_has_just_come() -> None:
    """Of a ring in two directions each rank has a step for each message that it gets, one for what it has itself, and
    signals nobody but for the opening."""
    made = tables(schedule_of("full:ranks=8", "ring", "allgather"), packets=True, streams=1)
    words: Any = made[3].words.tolist()
    parts, classes, regions, blocks, steps = words[8:13]
    first = 17 + parts + 3 * classes + regions * (3 + classes) + 2 * blocks
    kinds = [words[first + 4 * k] for k in range(steps)]
    signal, wait, put, fold, sync = range(5)
    assert kinds[:3] == [signal, wait, sync]
    assert (kinds.count(fold), kinds.count(put)) == (15, 1)
    assert (kinds.count(signal), kinds.count(wait), kinds.count(sync)) == (1, 1, 1)


@pytest.mark.parametrize("packets", [False, True])
def test_a_captured_call_is_made_again_in_turn_with_others(packets: bool) -> None:
    """On the same memory, whatever stands there then; past the last number of a call, and where boxes are emptied."""
    schedule, unit, kind = schedule_of("full:ranks=4", "ring", "allreduce"), 40, np.dtype(np.int64)
    made = tables(schedule, streams=2, packets=packets)
    others = [plan_of(schedule_of("full:ranks=4", "direct", "alltoall"), False, 2, way) for way in (False, True)]
    for first in (CALLS - 9, SWEEP - 5):
        with Group(threads(), 4, 4, threads=2, call=first) as group:
            plan, held = group.plan(made), [group.plan(one.tables) for one in others]
            lengths = np.array([[unit, unit, plan.scratch(rank, unit)] for rank in range(4)], np.int64)
            rows = [[group.memory(rank, np.zeros(int(one), kind)) for one in lengths[rank]] for rank in range(4)]
            where = np.array(rows, np.uintp)
            graph = group.capture(plan, unit, where, lengths, kind, lanes=2)
            for turn in range(12):
                given = [np.arange(unit) * (rank + turn) for rank in range(4)]
                for rank in range(4):
                    group.bring(rank, int(where[rank, INPUT]), given[rank])
                graph.replay(PATIENCE)
                for rank in range(4):
                    got = np.zeros(unit, kind)
                    group.fetch(rank, int(where[rank, OUTPUT]), got)
                    np.testing.assert_array_equal(got, sum(given))
                if turn % 3:
                    hold(group, Call(others[turn % 2], 9 + turn, "float32", "sum", seed=turn), held[turn % 2])
            graph.close()
            with pytest.raises(Invalid, match=r"cannot be captured.*need more blocks"):
                group.capture(plan, unit, where, lengths, kind, lanes=3)
