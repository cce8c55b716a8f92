"""Contestants of a race as programs call them: through the path of the preload library, timed in C."""

from __future__ import annotations

from typing import Any

from antiphon.core.collective import Collective
from antiphon.core.datatypes import data_type
from antiphon.runtimes.engine.mpi_calls import MpiCall, MpiCalls
from antiphon.runtimes.engine.native import OpenProgram
from antiphon.runtimes.measure._mpi_reference import MPI_TYPES
from antiphon.runtimes.measure.case import Case
from antiphon.runtimes.measure.loop import Seat, TimedCall

MORE = 4  # times as many short calls are timed together as where Python takes the time
MOST = 2**31 - 1  # elements of a block that MPI counts in an int


def call_of(collective: Collective, comm: Any, case: Case, seat: Seat, program: OpenProgram) -> MpiCall | None:
    """The call of MPI of a case of which MPI has one; None where it cannot be made in C: in place, of other types and
    operators, of uneven blocks."""
    c = collective
    if case.in_place or case.split is not None or case.op not in ("sum", "prod", "min", "max") or comm.size < 2:
        return None
    if data_type(case.dtype).name not in MPI_TYPES or len(set(c.weights.tolist())) != 1:
        return None
    count = len(seat.source if c.kind in ("reduce", "gather", "allgather") else seat.target)
    if c.kind == "alltoall":
        count //= comm.size
    root = c.members.index(c.roots[0]) if c.roots else -1
    if count > MOST:
        return None
    return MpiCall(program.facts.kind, root, case.op, count, seat.source, seat.target)


class PreloadedCall(TimedCall):
    """A call by a program, or by the MPI library (None)."""

    def __init__(self, calls: MpiCalls, program: OpenProgram | None, call: MpiCall, seat: Seat) -> None:
        self.calls, self.program, self.call, self.seat = calls, program, call, seat
        self.copies = seat.collective.kind == "broadcast" and seat.rank == seat.collective.roots[0]

    def measure(self, count: int) -> float:
        if self.copies:  # MPI has it in place only
            self.seat.target[:] = self.seat.source
        return self.calls.measure(self.program, self.call, MORE * count if count > 1 else 1)
