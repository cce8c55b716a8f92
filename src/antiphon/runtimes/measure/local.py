"""The runtime `local`: all ranks in one process, by the interpreter (core/interpret), compared with plain NumPy.

Its rows also show whether ranks with the same result agree in every bit: a schedule may add the same numbers in another
order on another rank.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.core.collective import Collective
from antiphon.core.datatypes import data_type
from antiphon.core.interpret import Analysis, analyse, run
from antiphon.core.interpret.buffers import sides
from antiphon.core.schedule import Schedule
from antiphon.errors import Unsupported
from antiphon.runtimes.engine.build import library
from antiphon.runtimes.engine.native import Engine
from antiphon.runtimes.measure.case import Case, How, Row, RowCallback, Runnable, Runtime, Stop, group_cases, never
from antiphon.runtimes.measure.loop import Measurement, Peers, digest_of
from antiphon.runtimes.measure.random_data import Key, RandomData, combine_rows
from antiphon.runtimes.measure.recorder import record_wires
from antiphon.units import format_size

Array = NDArray[Any]
IDLE_TIMEOUT = 60.0  # seconds without any progress after which threads give up


class Local(Runtime):
    """Run schedules by the interpreter, without lowering them."""

    def run(
        self, programs: Sequence[Runnable], cases: Sequence[Case], how: How, on_row: RowCallback, enough: Stop = never
    ) -> None:
        for numbers in group_cases(cases):  # a case, or those of a race: they share collective, size and type
            if enough():
                return
            group = [cases[number] for number in numbers]
            refuse_too_large(programs[group[0].program].schedule.collective, group[0])
            buffers = AllBuffers(programs[group[0].program].schedule, group[0])
            if group[0].trace:  # such a case is a group of its own
                rows = _run_traced(programs[group[0].program], group, buffers, how.compiler)
            else:
                calls = [buffers.call(analyse(programs[case.program].schedule)) for case in group]
                peers = Peers()  # no others: all ranks are in this process
                rows = Measurement(
                    group, buffers, calls, buffers.run_numpy, peers, facts_of_outputs=buffers.describe_outputs
                ).run()
            for number, row in zip(numbers, rows, strict=True):
                on_row(number, row)


def _run_traced(runnable: Runnable, cases: Sequence[Case], buffers: AllBuffers, compiler: str) -> list[Row]:
    """Run by the engine, with a thread per rank, and record its events: the interpreter has none."""
    case, ranks = cases[0], runnable.schedule.collective.ranks
    engine = Engine(library("threads", compiler))
    # wires: per rank its connections to all others; plans: per rank its operations at this size
    program, wires = engine.program(runnable.data), engine.threads(ranks)
    plans = [program.plan(rank, case.unit, case.in_place, case.split) for rank in range(ranks)]

    def run_rank(rank: int) -> None:
        source = None if case.in_place else buffers.inputs[rank]
        plans[rank].run(source, buffers.outputs[rank], wires[rank], case.op, case.timeout or IDLE_TIMEOUT)

    def call() -> None:
        buffers.outputs = (
            buffers.inputs if case.in_place else [np.zeros(length, buffers.dtype) for length in buffers.output_lengths]
        )
        for future in [pool.submit(run_rank, rank) for rank in range(ranks)]:
            future.result()

    with ThreadPoolExecutor(ranks) as pool:
        try:
            with record_wires({rank: wires[rank] for rank in runnable.ranks}) as recorder:
                return Measurement(
                    cases, buffers, [call], buffers.run_numpy, Peers(), recorder=recorder,
                    facts_of_outputs=buffers.describe_outputs,
                ).run()  # fmt: skip
        finally:
            for wire in wires:
                wire.close()


def refuse_too_large(collective: Collective, case: Case) -> None:
    """Refuse sizes whose buffers exceed the free memory: a system that overcommits would kill this process later.

    Counts the buffers of all ranks, but not the expected outputs, which need memory, too."""
    input_side, output_side = sides(collective, case.in_place)
    buffers = [input_side] if case.in_place else [input_side, output_side]
    weight = sum(int(side.size.sum()) for side in buffers)  # `collective.buffer_weight` stands for case.nbytes
    needed, room = weight * case.nbytes // collective.buffer_weight, free_memory()
    if room is not None and needed > room:
        raise Unsupported(
            f"nbytes: {format_size(case.nbytes)} on {len(collective.members)} ranks in one process needs "
            f"{needed / 1e9:.1f} GB, of which {room / 1e9:.1f} GB are free; take a smaller size, or run on mpi"
        )


class AllBuffers:
    """The buffers of all ranks (as `loop.RankBuffers` is of one)."""

    def __init__(self, schedule: Schedule, case: Case) -> None:
        self.case, self.dtype = case, data_type(case.dtype)
        self.data = RandomData(schedule.collective, case.unit, self.dtype, case.op, case.in_place, case.seed, keep=True)
        self.ranks = [self.data.rank(rank) for rank in range(schedule.collective.ranks)]
        self.initial_inputs = [np.zeros(data.sizes.input, self.dtype) for data in self.ranks]
        for data, buffer in zip(self.ranks, self.initial_inputs, strict=True):
            data.fill(buffer)
        self.inputs = self.initial_inputs  # in place each call gets a copy (`refresh`)
        self.outputs: list[Array] = []
        self.output_lengths = [data.sizes.output for data in self.ranks]  # elements

    def call(self, analysis: Analysis) -> Callable[[], None]:
        def call() -> None:
            self.outputs = []  # free the last ones first
            self.outputs = run(analysis, self.inputs, op=self.case.op, dtype=self.dtype, in_place=self.case.in_place)

        return call

    def run_numpy(self) -> None:
        """Compute the outputs of all ranks directly from the contributions."""
        values: dict[Key, Array] = {}
        self.outputs = []
        for data in self.ranks:
            out = np.zeros(data.sizes.output, self.dtype)
            for key, block in data.outputs(out):
                if key not in values:
                    number, contributors = key
                    rows = [self.data.contribution(number, contributor) for contributor in contributors]
                    values[key] = combine_rows(rows, self.dtype, self.case.op).astype(self.dtype, copy=False)
                block[:] = values[key]  # a view of `out`
            self.outputs.append(out)

    def refresh(self) -> None:
        """Restore, before a call in place, the inputs that the last call has overwritten."""
        if self.case.in_place:
            self.inputs = [values.copy() for values in self.initial_inputs]

    def spoil(self) -> None:
        """Drop the outputs, so that a call that writes none is noticed."""
        self.outputs = []

    def wrong(self) -> int:
        return sum(data.count_wrong(out) for data, out in zip(self.ranks, self.outputs, strict=True))

    def agree(self) -> bool:
        """Return whether all blocks with the same expected value are the same in every bit."""
        first_blocks: dict[Key, Array] = {}
        bits = np.dtype(f"u{self.dtype.itemsize}")  # compared as integers: a NaN is not equal to itself
        for data, out in zip(self.ranks, self.outputs, strict=True):
            for key, block in data.outputs(out):
                bits_of_block = block.view(bits)
                if not np.array_equal(first_blocks.setdefault(key, bits_of_block), bits_of_block):
                    return False
        return True

    def describe_outputs(self) -> Row:
        """Return what the row of a case says of its outputs."""
        return {"agree": self.agree()}

    def digest(self) -> str:
        return digest_of(
            block for data, out in zip(self.ranks, self.outputs, strict=True) for _, block in data.outputs(out)
        )


def free_memory() -> int | None:
    """Return the bytes that are available without swapping, if the system reports them."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            fields = dict(line.split(":", 1) for line in lines)
        return int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        try:
            return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
        except (AttributeError, OSError, ValueError):
            return None
