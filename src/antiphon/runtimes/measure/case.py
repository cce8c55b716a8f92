"""The unit of measuring: programs, cases (program, size, type, operator), and the interface that runtimes implement.

To measure two plans for allreduce at 1 KiB and 1 MiB, `bench` passes a runtime two runnables and four cases, those of
one size in the same race. The runtime (MPI, threads, PyTorch, GPUs, the lab) runs the cases in this order, checks every
element of the results, and reports a row per case once it is measured.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from antiphon.core.datatypes import combine_of, data_type
from antiphon.core.program import Program, encode
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.cost.lowering_costs import check_lowering
from antiphon.errors import Invalid
from antiphon.formats.program import both

# Processes do not leave the barrier before a call at the same moment, which would falsify the time of a short call. So
# CALLS_TOGETHER calls of less than SMALL bytes are timed as one.
SMALL, CALLS_TOGETHER = 2**16, 5

Row = dict[str, Any]
RowCallback = Callable[[int, Row], None]  # gets the number of a case, and its row
Stop = Callable[[], bool]  # whether to skip the remaining cases


def never() -> bool:
    return False


@dataclass(frozen=True, eq=False)
class Runnable:
    """A schedule, and its machine if the runtime needs it. Lowered once, when first needed."""

    schedule: Schedule
    machine: Topology | None = None

    @property
    def topology(self) -> Topology:
        if self.machine is None:
            raise Invalid("this runtime runs a schedule on a machine only: pass it")
        return self.machine

    @cached_property
    def programs(self) -> list[Program]:
        """The program out of place, and the one in place if there is one."""
        return both(self.schedule)

    @property
    def in_place(self) -> bool:
        return len(self.programs) > 1

    @cached_property
    def data(self) -> bytes:
        return encode(self.programs)

    @cached_property
    def ranks(self) -> list[int]:
        return active_ranks(self.schedule)


def active_ranks(schedule: Schedule) -> list[int]:
    """Return the members and the ranks that relay, sorted. Process i is the i-th of them."""
    busy_ranks = np.unique(np.concatenate([schedule.src, schedule.dst]))
    return sorted({*schedule.collective.members, *busy_ranks.tolist()})


@dataclass(frozen=True)
class Case:
    """A program at one size. `program`: the number of its runnable; `ranks`: the ranks that are processes, in their
    order; `unit`: elements of a block of weight 1.

    Consecutive cases with the same `race` differ in their program only. They are measured in turn, run by run, until it
    is certain which is fastest, or `seconds` are over. Each has at least `repeat` runs if it can still win, and at most
    `MAX_ROUNDS` times as many (race.py). Without `knockout` each has `repeat` runs.

    `library`: measure the library's own collective with these variables set (`measure/library.py`) instead of the
    program; for all cases of a race or none.
    """

    program: int = 0
    ranks: list[int] = field(default_factory=list)
    unit: int = 0
    nbytes: int = 0
    dtype: str = "float32"
    op: str = "sum"
    in_place: bool = False
    seed: int = 0
    repeat: int = 3
    warmup: int = 1
    inner: int = 1  # consecutive calls that are timed together
    split: int | None = None  # bytes into which the engine cuts messages; 0: never, None: as for users' calls
    timeout: float = 0.0  # seconds that a call may wait without progress; 0: no limit
    digest: bool = False  # add a checksum of the outputs of every process to the row
    trace: bool = False  # add what the engine recorded in one run to the row (recorder.Recorder); not in a race
    race: int | None = None
    knockout: bool = True
    seconds: float = float("inf")
    library: Mapping[str, int] | None = None


def inner_of(nbytes: int) -> int:
    """Return the number of calls of this size that are timed together."""
    return CALLS_TOGETHER if nbytes < SMALL else 1


def group_cases(cases: Sequence[Case]) -> list[list[int]]:
    """Return the numbers of the cases that are measured together: those of a race, or a single one."""
    groups: list[list[int]] = []
    for number, case in enumerate(cases):
        if groups and case.race is not None and cases[groups[-1][-1]].race == case.race:
            groups[-1].append(number)
        else:
            groups.append([number])
    return groups


@dataclass(frozen=True)
class How:
    """Options of runtimes. `compiler`: a command; `timeout`: seconds for all cases; the others: see `OPTIONS`."""

    mpiexec: str = ""
    compiler: str = ""
    timeout: float = 600.0
    scale: str = ""
    name: str = ""
    hybrid: bool = False
    library: str = ""
    lowering: str = ""

    def __post_init__(self) -> None:
        check_lowering(self.lowering)

    def refuse_unless(self, name: str, supported: Sequence[str]) -> None:
        """Refuse options that this runtime does not support."""
        defaults = How()
        for key in OPTIONS:
            if getattr(self, key) != getattr(defaults, key) and key not in supported:
                raise Invalid(f"{key}: means nothing to runtime {name}; leave it out")


# Options that the entry of a runtime must declare, with their meaning. All take `compiler` and `timeout`, even without
# use for them.
OPTIONS = {
    "mpiexec": "the command that starts the processes, such as srun or mpiexec --hostfile hosts",
    "scale": "speed of the lab's links: link=40Mbit for the unit link, or 2Mbit per GB/s",
    "name": "run in the lab of this name if it is up",
    "hybrid": "yes: links of kinds that a plan leaves idle carry a part of a broadcast, reduce or allreduce",
    "library": "the file of NCCL or RCCL, such as /opt/nccl/lib/libnccl.so.2",
    "lowering": "how a plan runs on the GPU: kernel, steps or copies (default: the fastest by the model)",
}
TIMEOUT_ABOUT = "how long all measurements may take together"


class Runtime(ABC):
    """What runs programs: an entry of runtimes/table.py, which also declares what it supports."""

    def ready(self, how: How) -> None:  # noqa: B027 (most need nothing)
        """Raise Missing if something that it needs is not installed."""

    def first(self) -> AbstractContextManager[bool]:
        """Return a context whose value is whether this process is the first, which decides what runs.

        In the others it is False, after they have taken part in all runs of the first one's with-block.
        """
        return nullcontext(True)

    @abstractmethod
    def run(
        self, programs: Sequence[Runnable], cases: Sequence[Case], how: How, on_row: RowCallback, enough: Stop = never
    ) -> None:
        """Measure the cases in order. `on_row` gets the number and row (`measured_row`) of each at once. `enough` is
        called now and then: if True, the remaining cases are skipped."""


def sizes_and_type(
    nbytes: int | str | Sequence[int | str], dtype: str, op: str, repeat: int
) -> tuple[list[int | str], str]:
    """Return the sizes and the type name of a run. Invalid if one of the four arguments is."""
    numpy_type, _ = data_type(dtype), combine_of(op)
    if numpy_type.kind == "O":  # Python objects
        raise Invalid("data type: object has no size in bytes; choose a type of NCCL, like float32")
    if repeat < 1:
        raise Invalid(f"repeat: expected 1 or more runs, got {repeat}")
    return ([nbytes] if isinstance(nbytes, int | str) else list(nbytes)), numpy_type.name
