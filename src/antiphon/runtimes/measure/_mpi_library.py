"""The library's own algorithms at one process: each tried once, then raced against each other and its own choice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from antiphon.core.collective import Collective
from antiphon.errors import Unsupported
from antiphon.runtimes.measure._mpi_reference import reference
from antiphon.runtimes.measure.case import Case, Row
from antiphon.runtimes.measure.library import Steering
from antiphon.runtimes.measure.loop import Heat, Seat, Together

Call = Callable[[], None]


def library_rows(cases: Sequence[Case], collective: Collective, comm: Any, mpi: Any, together: Together) -> list[Row]:
    """The row of each case; of one that the library cannot do {"refused": why}."""
    case = cases[0]
    steering, seat = Steering(mpi), Seat(collective, case.ranks[comm.rank], case)

    def call_on(where: Any) -> Call:
        made = reference(collective, where, mpi, case.unit, seat.dtype, case.op, case.in_place)
        if made is None:
            raise Unsupported(f"--library-only: MPI has no {collective.kind} of this form")
        return partial(made, seat.source, seat.target)

    own = call_on(comm)
    wheres = [steering.communicator(comm, one.library or {}) for one in cases]
    calls = [call_on(where) for where in wheres]
    settings: dict[int, dict[str, int]] = {
        id(call): dict(one.library or {}) if steering.late else {} for call, one in zip(calls, cases, strict=True)
    }
    why = [_tried(steering, seat, call, settings[id(call)], together) for call in calls]
    fit = [number for number, fault in enumerate(why) if not fault]
    rows: list[Row] = [{"refused": fault} for fault in why]
    if fit:
        heat = Heat(
            [cases[n] for n in fit], seat, [calls[n] for n in fit], own, together,
            lambda call: steering.take(settings.get(id(call), {})),
        )  # fmt: skip
        for number, row in zip(fit, heat.go(), strict=True):
            rows[number] = row
    steering.take({})
    for where in wheres:
        if where is not comm:
            where.Free()
    return rows


def _tried(steering: Steering, seat: Seat, call: Call, settings: dict[str, int], together: Together) -> str:
    """Why the library cannot do it, "" if it can: by one call, in which all processes fare alike."""
    steering.take(settings)
    seat.refresh()
    fault = ""
    try:
        call()
    except Exception as error:  # mpi4py's, which this module need not know
        fault = " ".join(str(error).split()) or type(error).__name__
    steering.take({})
    return next((one for one in together.all(fault) if one), "")
