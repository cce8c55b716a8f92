"""All planners, collectives, numbers of ranks, types, operators and sizes on the kernel: as documented, bit by bit.

The judge is `run_program`, which knows nothing of tables. The ordinary set draws some; the slow one has them all.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from device_cases import TYPES, Call, Plan, operators, plan_of, schedule_of, switches
from numpy.typing import NDArray

import antiphon
from antiphon.core.program.kinds import INPUT, OUTPUT, SCRATCH
from antiphon.errors import AntiphonError, TimedOut, Unsupported
from antiphon.registry import table
from antiphon.runtimes.device.functions import threads
from antiphon.runtimes.device.group import CALLS, DevicePlan, Group

Array = NDArray[Any]
UNITS = (0, 1, 7)
PATIENCE = 60.0
PAIRS = [(planner, kind) for planner, entry in table("planner").items() if planner != "sccl"
         for kind in entry.can.collectives if kind != "custom"]  # fmt: skip


def plans(
    spec: str, planner: str, kind: str, random: np.random.Generator, pull: bool = False
) -> Iterator[Plan]:  # fmt: skip
    """Out of place and in place, where there are such."""
    ranks = antiphon.topology(spec).ranks
    try:
        schedule = schedule_of(spec, planner, kind, int(random.integers(ranks)))
    except AntiphonError:
        return
    for in_place in (False, True):
        try:
            yield plan_of(schedule, in_place, int(random.integers(1, 5)), pull=pull)
        except Unsupported:
            continue


def calls(plan: Plan, units: Sequence[int], random: np.random.Generator, blocks: int) -> Iterator[Call]:
    for unit in units:
        yield Call(
            plan, unit, str(random.choice(TYPES)), str(random.choice(operators(plan.program.collective.kind))),
            int(random.integers(1, blocks // plan.streams + 1)) if plan.sliced else 1,
            int(random.integers(1, 4)) if plan.sliced else 1, int(random.integers(2**20)),
        )  # fmt: skip


def wrong(call: Call, outputs: Sequence[Array]) -> int:
    """How many elements are not those of the documented order. What switches add in floating point has an order of
    its own: then how many are further off than rounding can be."""
    if call.made.dtype.kind in "iu" or not switches(call.plan):
        return sum(
            int(np.count_nonzero(got.view(np.uint8) != right.view(np.uint8)))
            for got, right in zip(outputs, call.outputs, strict=True)
        )
    return sum(call.made.rank(rank).count_wrong(got) for rank, got in enumerate(outputs))


def hold(group: Group, call: Call, plan: DevicePlan, name: str, patience: float = PATIENCE) -> None:
    outputs = call.empty()
    given = None if call.plan.program.in_place else call.inputs
    group.run(plan, call.unit, given, outputs, call.op, lanes=call.lanes, rounds=call.rounds, timeout=patience)
    assert wrong(call, outputs) == 0, (
        f"{name}: unit {call.unit}, {call.dtype}, {call.op}, {call.plan.streams} streams, {call.lanes} lanes, "
        f"{call.rounds} rounds, in place: {call.plan.program.in_place}"
    )


def sweep(
    specs: Sequence[str], pairs: Sequence[tuple[str, str]], units: Sequence[int], seed: int, pull: bool = False
) -> int:  # fmt: skip
    """How many calls were right: all of them."""
    random, done = np.random.default_rng(seed), 0
    for spec in specs:
        ranks = antiphon.topology(spec).ranks
        blocks = 8 if ranks <= 8 else 4
        with Group(threads(), ranks, blocks, threads=1 + seed % 2) as group:
            for planner, kind in pairs:
                for plan in plans(spec, planner, kind, random, pull):
                    held = group.plan(plan.tables)
                    for call in calls(plan, units, random, blocks):
                        hold(group, call, held, f"{planner} {kind} on {spec}")
                        done += 1
    return done


@pytest.mark.slow
@pytest.mark.parametrize("ranks", range(2, 17))
def test_all(ranks: int) -> None:
    assert sweep([f"full:ranks={ranks}", f"ring:ranks={ranks}"], PAIRS, (*UNITS, 1000), ranks) > 200


@pytest.mark.slow
def test_some_of_all_where_who_receives_reads() -> None:
    assert sweep(["full:ranks=5"], PAIRS[::12], (7,), 2, pull=True) >= 8
    assert sweep(["hgx-h100"], [("nvls", "allreduce")], (1000,), 1, pull=True) > 0


@pytest.mark.slow
@pytest.mark.parametrize("ranks", range(2, 17))
def test_all_where_who_receives_reads(ranks: int) -> None:
    assert sweep([f"full:ranks={ranks}"], PAIRS, (0, 1, 1000), ranks, pull=True) > 60


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["ring:ranks=3", "ring:ranks=4", "full:ranks=5"])
def test_what_solvers_find(spec: str) -> None:
    """Which takes them long where there are many ranks."""
    pairs = [("sccl", kind) for kind in table("planner")["sccl"].can.collectives if kind != "custom"]
    assert sweep([spec], pairs, (*UNITS, 1000), 4) > 40
    assert sweep([spec], pairs, (7,), 4, pull=True) > 10


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["hgx-h100", "dgx1v", "dgx-a100", "torus:dims=4x4", "hypercube:ranks=16", "mi300x"])
def test_all_on_other_machines(spec: str) -> None:
    assert sweep([spec], PAIRS, (*UNITS, 300), 3) > 100


@pytest.mark.slow
@pytest.mark.parametrize(
    ("planner", "kind", "ranks", "dtype"),
    [
        ("ring", "allreduce", 3, "bfloat16"),
        ("direct", "alltoall", 5, "uint8"),
        ("halving-doubling", "allreduce", 7, "float16"),
        ("multi-ring", "reducescatter", 3, "float64"),
    ],
)
def test_eight_megabytes(planner: str, kind: str, ranks: int, dtype: str) -> None:
    random = np.random.default_rng(ranks)
    for plan in plans(f"full:ranks={ranks}", planner, kind, random):
        program = plan.program
        heaviest = int(max(program.weights[0].max(), program.weights[1].max()))
        for lanes, rounds in ((1, 1), (2, 3)):
            call = Call(plan, 1, dtype, "sum", lanes, rounds)
            unit = 2**23 // (heaviest * call.made.dtype.itemsize)
            with Group(threads(), ranks, 8) as group:
                hold(group, Call(plan, unit, dtype, "sum", lanes, rounds), group.plan(plan.tables), planner)


class Buffers:
    """Of every rank, as large as the largest call needs."""

    def __init__(self, group: Group, calls: Sequence[Call], plans: Sequence[DevicePlan]) -> None:
        self.group = group
        most = np.zeros((group.ranks, 3), np.int64)
        for call, plan in zip(calls, plans, strict=True):
            for rank in range(group.ranks):
                scratch = plan.scratch(rank, call.unit) * call.made.dtype.itemsize
                here = (call.inputs[rank].nbytes, call.outputs[rank].nbytes, scratch)
                most[rank] = np.maximum(most[rank], here)
        self.where = np.array(
            [[group.memory(rank, np.zeros(int(size), np.uint8)) for size in most[rank]] for rank in range(group.ranks)],
            np.uintp,
        )

    def go(self, call: Call, plan: DevicePlan) -> int:
        """How many elements are wrong."""
        group, lengths = self.group, np.zeros((self.group.ranks, 3), np.int64)
        in_place, outputs = call.plan.program.in_place, call.empty()
        for rank in range(group.ranks):
            lengths[rank] = (len(call.inputs[rank]), len(outputs[rank]), plan.scratch(rank, call.unit))
            group.bring(rank, int(self.where[rank, OUTPUT if in_place else INPUT]), call.inputs[rank])
        assert (INPUT, OUTPUT, SCRATCH) == (0, 1, 2)
        group.go(
            plan, call.unit, self.where, lengths, call.made.dtype, call.op, lanes=call.lanes, rounds=call.rounds,
            timeout=PATIENCE,
        )  # fmt: skip
        for rank in range(group.ranks):
            group.fetch(rank, int(self.where[rank, OUTPUT]), outputs[rank])
        return wrong(call, outputs)


@pytest.mark.parametrize("turns", [60, pytest.param(1000, marks=pytest.mark.slow)])
def test_so_many_calls_on_the_same_buffers(turns: int) -> None:
    """Of different programs in turn, past the last number of a call."""
    random, blocks = np.random.default_rng(5), 6
    some = [("ring", "allreduce"), ("direct", "alltoall"), ("binomial-tree", "broadcast"), ("direct", "reducescatter"),
            ("bruck", "allgather"), ("recursive-doubling", "allreduce"), ("ring", "gather")]  # fmt: skip
    chosen = [call for planner, kind in some for plan in plans("full:ranks=4", planner, kind, random)
              for call in calls(plan, (1, 7, 50), random, blocks)]  # fmt: skip
    with Group(threads(), 4, blocks, threads=2, call=CALLS - turns // 2) as group:
        held = [group.plan(call.plan.tables) for call in chosen]
        buffers = Buffers(group, chosen, held)
        for turn in range(turns):
            number = int(random.integers(len(chosen)))
            assert buffers.go(chosen[number], held[number]) == 0, f"call {turn}"


def test_after_a_call_that_was_stopped_others_are_right() -> None:
    random = np.random.default_rng(5)
    plan = next(plans("full:ranks=4", "ring", "allreduce", random))
    call = Call(plan, 20000, "float32", "sum")
    with Group(threads(), 4, 4, threads=2) as group:
        held, stopped = group.plan(plan.tables), 0
        for _ in range(20):
            try:
                group.run(held, call.unit, call.inputs, call.empty(), timeout=1e-9)
            except TimedOut:
                stopped += 1
        assert stopped
        hold(group, call, held, "after it", 10.0)
