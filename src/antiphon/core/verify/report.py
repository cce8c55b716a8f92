"""The result of verification: valid, or the first fault in the user's terms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from antiphon.core.schedule import COPY, Schedule
from antiphon.errors import Invalid


@dataclass(frozen=True)
class Fault:
    """The first fault of a schedule.

    `kind`: "topology" (for another number of ranks), "share" (chunks do not tile a block), "route" (no such path),
    "joint" (no switch can do it), "race" (writes to one cell in one step, not all of them reduces), "empty" (reads a
    cell without data), "self" (reads and writes one cell), "post" (a wrong result), "order" (combines out of order) or
    "claim" (a claimed figure is not the recomputed one). `step`, `chunk`, `src`, `dst`: where it is; None: the fault is
    of no single one.
    """

    kind: str
    message: str
    step: int | None = None
    chunk: int | None = None
    src: int | None = None
    dst: int | None = None

    def as_dict(self) -> dict[str, Any]:
        keys = ("kind", "step", "chunk", "src", "dst", "message")
        return {key: getattr(self, key) for key in keys}


@dataclass(frozen=True)
class Report:
    """`ok`, or the first `fault`."""

    fault: Fault | None

    @property
    def ok(self) -> bool:
        return self.fault is None

    def or_raise(self) -> None:
        """Raise Invalid if there is a fault."""
        if self.fault is not None:
            raise Invalid(f"the schedule is wrong: {self.fault.message}")


def row_fault(kind: str, schedule: Schedule, row: int, why: str) -> Fault:
    """Return a fault of one row, with its step, chunk and ranks."""
    step, chunk = int(schedule.step[row]), int(schedule.chunk[row])
    src, dst = int(schedule.src[row]), int(schedule.dst[row])
    verb = "copy" if schedule.op[row] == COPY else "reduce"
    message = f"step {step}, chunk {chunk}: the {verb} from rank {src} to rank {dst} {why}"
    return Fault(kind, message, step, chunk, src, dst)
