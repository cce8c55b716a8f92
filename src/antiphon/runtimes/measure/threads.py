"""The runtime `threads`: the kernel of GPUs on threads of this process, every rank's blocks beside each other.

It is for proof, not for speed: what a GPU would do, step by step, but for its memory and its clocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from antiphon.errors import Unsupported
from antiphon.lower.device.table import tables
from antiphon.runtimes.device.group import DevicePlan, Group
from antiphon.runtimes.engine.build import library
from antiphon.runtimes.measure.case import Case, Heard, How, Runnable, Runtime, heats
from antiphon.runtimes.measure.local import Seats, refuse_too_large
from antiphon.runtimes.measure.loop import Heat, Together

STREAMS, MOST_THREADS = 4, 1024
PATIENCE = 60.0


class Threads(Runtime):
    def ready(self, how: How) -> None:
        library("device", how.compiler)

    def run(
        self,
        programs: Sequence[Runnable],
        cases: Sequence[Case],
        how: How,
        heard: Heard,
        enough: Callable[[], bool] = lambda: False,
    ) -> None:
        plans: dict[tuple[int, bool], DevicePlan] = {}
        for heat in heats(cases):
            if enough():
                return
            some = [cases[number] for number in heat]
            schedule = programs[some[0].program].schedule
            refuse_too_large(schedule.collective, some[0])
            with _group(schedule.collective.ranks, how.compiler) as group:
                seat = Seats(schedule, some[0])
                calls = [self._call(plans, programs, case, seat, group, how) for case in some]
                rows = Heat(some, seat, calls, seat.plainly, Together()).go()
                for number, row in zip(heat, rows, strict=True):
                    heard(number, {**row, "agree": seat.agree()})

    def _call(
        self, plans: dict[tuple[int, bool], DevicePlan], programs: Sequence[Runnable], case: Case, seat: Seats,
        group: Group, how: How,
    ) -> Callable[[], None]:  # fmt: skip
        key = case.program, case.in_place
        schedule = programs[case.program].schedule
        if key not in plans:
            streams = min(STREAMS, group.blocks)
            plans[key] = DevicePlan(tables(schedule, in_place=case.in_place, streams=streams), how.compiler)

        def ours() -> None:
            given = None if case.in_place else seat.inputs
            outputs = seat.inputs if case.in_place else [np.empty(one.sizes[1], seat.dtype) for one in seat.ranks]
            group.run(plans[key], case.unit, given, outputs, case.op, timeout=case.timeout or PATIENCE)
            seat.outputs = outputs

        return ours


def _group(ranks: int, compiler: str) -> Group:
    """As many blocks as there may be threads, at least one for each rank."""
    if ranks > MOST_THREADS:
        raise Unsupported(f"{ranks} ranks, each a thread of this process: at most {MOST_THREADS}; run it on local")
    return Group(ranks, min(STREAMS, max(1, MOST_THREADS // ranks)), compiler=compiler)
