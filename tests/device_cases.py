"""Calls for the kernel with the outputs that they must have, in the documented order, bit by bit."""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from program_run import run_program

import antiphon
from antiphon.core.collective import ROOTED
from antiphon.core.datatypes import data_type
from antiphon.core.program import Program, layout_of
from antiphon.core.program.kinds import SCRATCH
from antiphon.core.schedule import Schedule
from antiphon.core.transform import unjoined
from antiphon.errors import Unsupported
from antiphon.lower.device.table import Table, tables_of
from antiphon.lower.lowering import lower
from antiphon.runtimes.engine.native import OPERATORS, type_number
from antiphon.runtimes.measure.random_data import RandomData

Array = NDArray[Any]


@cache
def schedule_of(spec: str, planner: str, kind: str, root: int = 0) -> Schedule:
    options = {"root": root} if kind in ROOTED else {}
    return antiphon.plan(kind, antiphon.topology(spec), planner=planner, **options).at(1 << 16).schedule


@dataclass(frozen=True)
class Plan:
    """The program of a schedule and its tables; and the same program with each message as one, which gives the same
    values and runs sooner."""

    program: Program
    tables: list[Table]
    plainly: Program

    @property
    def sliced(self) -> bool:
        return all(one.sliced for one in self.tables)

    @property
    def streams(self) -> int:
        return max(one.streams for one in self.tables)


def plan_of(
    schedule: Schedule, in_place: bool, streams: int, packets: bool = False, pull: bool = False
) -> Plan:  # fmt: skip
    """As `lower.device.table.tables` does it, with the program at hand. Unsupported where there is none."""
    if packets or pull:
        return _plan(unjoined(schedule), in_place, streams, packets, pull)
    try:
        return _plan(schedule, in_place, streams)
    except Unsupported:
        if schedule.joint is None:
            raise
    return _plan(unjoined(schedule), in_place, streams)


def _plan(
    schedule: Schedule, in_place: bool, streams: int, packets: bool = False, pull: bool = False
) -> Plan:  # fmt: skip
    for lag in (2**20, 1):
        program = lower(schedule, in_place=in_place, lag=lag, joints=True)
        sizes = layout_of(program, program.denominator).sizes
        if sizes[:, SCRATCH].max() <= 2 * sizes[:, :SCRATCH].max():
            break
    plainly = lower(replace(unjoined(schedule), pieces=1), in_place=in_place)
    return Plan(program, tables_of(program, streams, packets=packets, pull=pull), plainly)


@dataclass(frozen=True)
class Call:
    plan: Plan
    unit: int
    dtype: str
    op: str
    lanes: int = 1
    rounds: int = 1
    seed: int = 0

    @property
    def ranks(self) -> int:
        return self.plan.program.ranks

    @cached_property
    def made(self) -> RandomData:
        program = self.plan.program
        kind = data_type(self.dtype)
        return RandomData(program.collective, self.unit, kind, self.op, program.in_place, self.seed, keep=True)

    @cached_property
    def inputs(self) -> list[Array]:
        """In place: the buffers, and what stands in them elsewhere is to stay."""
        found = []
        for rank in range(self.ranks):
            data = self.made.rank(rank)
            held = np.zeros(data.sizes[1 if self.plan.program.in_place else 0], self.made.dtype)
            data.fill(held)
            found.append(held)
        return found

    @cached_property
    def outputs(self) -> list[Array]:
        """What a run of the program makes of them."""
        given = [one.copy() for one in self.inputs]
        return run_program(self.plan.plainly, given, op=self.op, dtype=self.made.dtype)

    def empty(self) -> list[Array]:
        """Outputs before a call."""
        if self.plan.program.in_place:
            return [one.copy() for one in self.inputs]
        return [np.zeros(len(one), one.dtype) for one in self.outputs]


def written(path: Path, calls: Sequence[Call]) -> Path:
    """As device/driver.cc reads them."""
    with path.open("wb") as file:
        file.write(struct.pack("<2q", calls[0].ranks, len(calls)))
        for call in calls:
            numbers = (
                call.unit, type_number(call.made.dtype), OPERATORS[call.op], int(call.plan.program.in_place),
                call.lanes, call.rounds, call.made.dtype.itemsize,
            )  # fmt: skip
            file.write(struct.pack("<7q", *numbers))
            for table, given, wanted in zip(call.plan.tables, call.inputs, call.outputs, strict=True):
                for piece in (table.words.astype(np.int64), given, wanted):
                    data = piece.tobytes()
                    file.write(struct.pack("<q", len(data)) + data)
    return path


def switches(plan: Plan) -> bool:
    """Whether switches add, in an order of their own."""
    from device_model import SWITCH, take_apart

    return any(step.kind == SWITCH for one in plan.tables for steps in take_apart(one).streams for step in steps)


def operators(kind: str) -> tuple[str, ...]:
    return ("sum", "max", "avg", "prod", "min") if kind in ("allreduce", "reduce", "reducescatter") else ("sum",)


def drawn(random: np.random.Generator, plans: Sequence[Plan], count: int, blocks: int) -> Iterator[Call]:
    """Calls of these plans, of any kind that they allow."""
    for _ in range(count):
        plan = plans[int(random.integers(len(plans)))]
        lanes = int(random.integers(1, blocks // plan.streams + 1)) if plan.sliced else 1
        dtype = str(random.choice(["int32", "uint8"] if switches(plan) else TYPES))
        yield Call(
            plan, int(random.choice([0, 1, 7, 64, 1000])), dtype,
            str(random.choice(operators(plan.program.collective.kind))), lanes,
            int(random.integers(1, 4)) if plan.sliced else 1, int(random.integers(2**20)),
        )  # fmt: skip


TYPES = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "bfloat16", "float32",
         "float64"]  # fmt: skip


def idle(made: Table) -> Table:
    """The same with blocks that have no steps."""
    words = made.words.copy()
    parts, classes, regions, blocks = words[8:12].tolist()
    first = 17 + parts + 3 * classes + regions * (3 + classes)
    words[first + 1 : first + 2 * blocks : 2] = 0
    return made._replace(words=words)
