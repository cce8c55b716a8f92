"""The runtime `local`: all ranks in one process, by the interpreter, beside plain NumPy.

Whether ranks that must end with the same agree in every bit is told apart: a schedule may add the same numbers up in
another shape on another rank.
"""

from __future__ import annotations

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
from antiphon.runtimes.measure.case import Case, Heard, How, Row, Runnable, Runtime, heats
from antiphon.runtimes.measure.loop import Heat, Together, digest_of
from antiphon.runtimes.measure.made_up import Key, MadeUp, combined
from antiphon.runtimes.measure.memory import free_memory
from antiphon.runtimes.measure.recorder import recording
from antiphon.units import format_size

Array = NDArray[Any]
PATIENCE = 60.0  # seconds without any progress after which threads give up


class Local(Runtime):
    """Nothing is lowered: the interpreter runs the schedule itself."""

    def run(
        self,
        programs: Sequence[Runnable],
        cases: Sequence[Case],
        how: How,
        heard: Heard,
        enough: Callable[[], bool] = lambda: False,
    ) -> None:
        for heat in heats(cases):
            if enough():
                return
            some = [cases[number] for number in heat]
            refuse_too_large(programs[some[0].program].schedule.collective, some[0])
            seat = Seats(programs[some[0].program].schedule, some[0])
            if some[0].trace:
                rows = _by_threads(programs[some[0].program], some, seat, how.compiler)
            else:
                calls = [seat.call(analyse(programs[case.program].schedule)) for case in some]
                rows = Heat(some, seat, calls, seat.plainly, Together()).go()
            for number, row in zip(heat, rows, strict=True):
                heard(number, {**row, "agree": seat.agree()})


def _by_threads(one: Runnable, cases: Sequence[Case], seat: Seats, compiler: str) -> list[Row]:
    """Instead of the interpreter, which knows no moments: the engine, a thread for each rank, recorded."""
    case, ranks = cases[0], one.schedule.collective.ranks
    engine = Engine(library("threads", compiler))
    program, wires = engine.program(one.data), engine.threads(ranks)
    plans = [program.plan(rank, case.unit, case.in_place, case.split) for rank in range(ranks)]

    def work(rank: int) -> None:
        source = None if case.in_place else seat.inputs[rank]
        plans[rank].run(source, seat.outputs[rank], wires[rank], case.op, case.timeout or PATIENCE)

    def ours() -> None:
        seat.outputs = seat.inputs if case.in_place else [np.zeros(len_, seat.dtype) for len_ in seat.ends]
        for done in [pool.submit(work, rank) for rank in range(ranks)]:
            done.result()

    with ThreadPoolExecutor(ranks) as pool:
        try:
            with recording({rank: wires[rank] for rank in one.ranks}) as recorder:
                return Heat(cases, seat, [ours], seat.plainly, Together(), recorder=recorder).go()
        finally:
            for wire in wires:
                wire.close()


def refuse_too_large(collective: Collective, case: Case) -> None:
    """Before the memory is asked for: a system that promises more than it has ends this process later, without a word.
    Beside the buffers of all ranks, which are counted here, there is what they must end with."""
    weight = sum(int(side.size.sum()) for side in sides(collective, case.in_place)[: 1 if case.in_place else 2])
    needed, room = weight * case.nbytes // collective.buffer_weight, free_memory()
    if room is not None and needed > room:
        raise Unsupported(
            f"nbytes: {format_size(case.nbytes)} on {len(collective.members)} ranks in one process needs "
            f"{needed / 1e9:.1f} GB, of which {room / 1e9:.1f} GB are free; take a smaller size, or run on mpi"
        )


class Seats:
    """The buffers of all ranks (as `_measure.Seat` is of one)."""

    def __init__(self, schedule: Schedule, case: Case) -> None:
        self.case, self.dtype = case, data_type(case.dtype)
        self.made = MadeUp(schedule.collective, case.unit, self.dtype, case.op, case.in_place, case.seed, keep=True)
        self.ranks = [self.made.rank(rank) for rank in range(schedule.collective.ranks)]
        self.given = [np.zeros(one.sizes[0], self.dtype) for one in self.ranks]
        for one, buffer in zip(self.ranks, self.given, strict=True):
            one.fill(buffer)
        self.inputs = self.given
        self.outputs: list[Array] = []
        self.ends = [one.sizes[1] for one in self.ranks]  # elements of the outputs

    def call(self, analysis: Analysis) -> Callable[[], None]:
        def ours() -> None:
            self.outputs = []  # let go of the last ones first
            self.outputs = run(analysis, self.inputs, op=self.case.op, dtype=self.dtype, in_place=self.case.in_place)

        return ours

    def plainly(self) -> None:
        """The outputs of all ranks straight from the contributions."""
        values: dict[Key, Array] = {}
        self.outputs = []
        for one in self.ranks:
            out = np.zeros(one.sizes[1], self.dtype)
            for key, place in one.outputs(out):
                if key not in values:
                    rows = [self.made.contribution(key[0], name) for name in key[1]]
                    values[key] = combined(rows, self.dtype, self.case.op).astype(self.dtype, copy=False)
                place[:] = values[key]
            self.outputs.append(out)

    def refresh(self) -> None:
        if self.case.in_place:
            self.inputs = [one.copy() for one in self.given]

    def spoil(self) -> None:
        self.outputs = []

    def wrong(self) -> int:
        return sum(one.count_wrong(out) for one, out in zip(self.ranks, self.outputs, strict=True))

    def agree(self) -> bool:
        """Whether all that was promised the same is the same in every bit."""
        seen: dict[Key, Array] = {}
        bits = np.dtype(f"u{self.dtype.itemsize}")
        for one, out in zip(self.ranks, self.outputs, strict=True):
            for key, block in one.outputs(out):
                mine = block.view(bits)
                if not np.array_equal(seen.setdefault(key, mine), mine):
                    return False
        return True

    def digest(self) -> str:
        return digest_of(
            block for one, out in zip(self.ranks, self.outputs, strict=True) for _, block in one.outputs(out)
        )
