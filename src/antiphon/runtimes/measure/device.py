"""The runtimes of the kernel of GPUs: all ranks in this process, on the threads of a processor or on GPUs.

On threads it is for proof, not for speed: what a GPU would do, step by step, but for its memory and its clocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.core.program.kinds import INPUT, OUTPUT, SCRATCH
from antiphon.core.schedule import Schedule
from antiphon.errors import Unsupported
from antiphon.lower.device.table import tables
from antiphon.runtimes.device.group import Device, DevicePlan, Group, threads
from antiphon.runtimes.measure.case import Case, Heard, How, Runnable, Runtime, heats
from antiphon.runtimes.measure.local import Seats, refuse_too_large
from antiphon.runtimes.measure.loop import SPOILED, Heat, Together

Array = NDArray[Any]
STREAMS, MOST_THREADS = 4, 1024
PATIENCE = 60.0


class Threads(Runtime):
    def ready(self, how: How) -> None:
        self.device(how)

    def device(self, how: How) -> Device:
        return threads(how.compiler)

    def group(self, ranks: int, how: How) -> Group:
        """As many blocks as there may be threads, at least one for each rank."""
        if ranks > MOST_THREADS:
            raise Unsupported(f"{ranks} ranks, each a thread of this process: at most {MOST_THREADS}; run it on local")
        return Group(self.device(how), ranks, min(STREAMS, max(1, MOST_THREADS // ranks)))

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
            schedules = [programs[case.program].schedule for case in some]
            refuse_too_large(schedules[0].collective, some[0])
            with self.group(schedules[0].collective.ranks, how) as group:
                seat = _Seats(schedules[0], some[0], group)
                calls = [seat.ours(schedule) for schedule in schedules]
                rows = Heat(some, seat, calls, seat.plainly, Together()).go()
                for number, row in zip(heat, rows, strict=True):
                    heard(number, {**row, "agree": seat.agree()})


class _Seats(Seats):
    """The buffers of all ranks where the device has them. What is checked is fetched from there."""

    def __init__(self, schedule: Schedule, case: Case, group: Group) -> None:
        super().__init__(schedule, case)
        self.group = group
        self.where = np.zeros((group.ranks, 3), np.uintp)
        self.lengths = np.zeros((group.ranks, 3), np.int64)
        self.made_by_us = False
        for rank, one in enumerate(self.ranks):
            if not case.in_place:
                self._have(rank, INPUT, self.given[rank])
            self._have(rank, OUTPUT, self.given[rank] if case.in_place else np.zeros(one.sizes[1], self.dtype))

    def _have(self, rank: int, place: int, values: Array) -> None:
        self.where[rank, place], self.lengths[rank, place] = self.group.memory(rank, values), values.size

    def ours(self, schedule: Schedule) -> Callable[[], None]:
        case, group = self.case, self.group
        plan = group.plan(tables(schedule, in_place=case.in_place, streams=min(STREAMS, group.blocks)))
        where, lengths = self._with_scratch(plan)

        def call() -> None:
            group.go(plan, case.unit, where, lengths, self.dtype, case.op, timeout=case.timeout or PATIENCE)
            self.made_by_us = True

        return call

    def _with_scratch(self, plan: DevicePlan) -> tuple[NDArray[np.uintp], NDArray[np.int64]]:
        for rank in range(self.group.ranks):
            self._have(rank, SCRATCH, np.zeros(plan.scratch(rank, self.case.unit), self.dtype))
        return self.where.copy(), self.lengths.copy()

    def plainly(self) -> None:
        super().plainly()
        self.made_by_us = False

    def refresh(self) -> None:
        super().refresh()
        if self.case.in_place:
            self._bring(self.given)

    def spoil(self) -> None:
        super().spoil()
        self._bring([np.full(int(length), SPOILED).astype(self.dtype) for length in self.lengths[:, OUTPUT]])

    def _bring(self, values: Sequence[Array]) -> None:
        for rank, one in enumerate(values):
            self.group.bring(rank, int(self.where[rank, OUTPUT]), one)

    def _fetch(self) -> None:
        """What the device made, if it did."""
        if self.made_by_us:
            self.outputs = [np.zeros(int(length), self.dtype) for length in self.lengths[:, OUTPUT]]
            for rank, one in enumerate(self.outputs):
                self.group.fetch(rank, int(self.where[rank, OUTPUT]), one)
            self.made_by_us = False

    def wrong(self) -> int:
        self._fetch()
        return super().wrong()

    def agree(self) -> bool:
        self._fetch()
        return super().agree()

    def digest(self) -> str:
        self._fetch()
        return super().digest()
