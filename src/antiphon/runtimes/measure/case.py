"""What a runtime is asked for: programs, cases of them, and how they are measured."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from antiphon.core.datatypes import combine_of, data_type
from antiphon.core.program import Program, encode
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.errors import Invalid
from antiphon.formats.program import both

SMALL, TOGETHER = 2**16, 5  # below so many bytes so many calls are timed together: starting is not as sharp as a call

Row = dict[str, Any]
Heard = Callable[[int, Row], None]


@dataclass(frozen=True, eq=False)
class Runnable:
    """A schedule, and the machine that it is for, where that matters. Lowered once, when it is first needed."""

    schedule: Schedule
    machine: Topology | None = None

    @property
    def topology(self) -> Topology:
        if self.machine is None:
            raise Invalid("this runtime runs a schedule on a machine only: say which")
        return self.machine

    @cached_property
    def programs(self) -> list[Program]:
        """Out of place, and in place where there is such a program."""
        return both(self.schedule)

    @property
    def in_place(self) -> bool:
        return len(self.programs) > 1

    @cached_property
    def data(self) -> bytes:
        return encode(self.programs)

    @cached_property
    def ranks(self) -> list[int]:
        return taking_part(self.schedule)


def taking_part(schedule: Schedule) -> list[int]:
    """The ranks with anything to do: members, and those that relay. Process i is the i-th of them."""
    used = np.unique(np.concatenate([schedule.src, schedule.dst]))
    return sorted({*schedule.collective.members, *used.tolist()})


@dataclass(frozen=True)
class Case:
    """One thing to measure. `program`: the number of its runnable; `ranks`: which of its ranks are processes, in their
    order; `unit`: elements of a block of weight 1.

    Cases in a row with the same `race` differ in their program only, and are measured in turn, run by run, until it is
    certain which of them is fastest, or `seconds` are over: each has `repeat` runs at least if it can still win, and
    `MOST` times as many at most. Without `knockout` nobody leaves, and each has `repeat` runs.

    `library`: not the program, but the library's own collective with these variables of it set (`measure/library.py`);
    of a race all cases or none.
    """

    program: int
    ranks: list[int]
    unit: int
    nbytes: int
    dtype: str = "float32"
    op: str = "sum"
    in_place: bool = False
    seed: int = 0
    repeat: int = 3
    warmup: int = 1
    inner: int = 1  # calls one after another that are timed together
    split: int | None = None
    timeout: float = 0.0
    digest: bool = False  # tell what the outputs are, too, as a checksum for every process
    trace: bool = False  # of a case alone: tell what the engine did in one of its runs (recorder.Recorder)
    race: int | None = None
    knockout: bool = True
    seconds: float = float("inf")
    library: Mapping[str, int] | None = None


def inner_of(nbytes: int) -> int:
    """How many calls of this size are timed together."""
    return TOGETHER if nbytes < SMALL else 1


def heats(cases: Sequence[Case]) -> list[list[int]]:
    """The numbers of the cases that are measured together."""
    found: list[list[int]] = []
    for number, case in enumerate(cases):
        if found and case.race is not None and cases[found[-1][-1]].race == case.race:
            found[-1].append(number)
        else:
            found.append([number])
    return found


@dataclass(frozen=True)
class How:
    """`mpiexec`, `compiler`: of a launcher, and of what builds the engine; `scale`, `name`: of a lab. `timeout`:
    seconds for all. `hybrid`: of GPUs, whether kinds of links that a plan leaves idle carry a part, too."""

    mpiexec: str = ""
    compiler: str = ""
    timeout: float = 600.0
    scale: str = ""
    name: str = ""
    hybrid: bool = False

    def refuse_unless(self, name: str, known: Sequence[str]) -> None:
        """Invalid where something is given that means nothing to this runtime."""
        usual = How()
        for key, what in OPTIONS.items():
            if getattr(self, key) != getattr(usual, key) and key not in known:
                raise Invalid(f"{what}: means nothing to --on {name}; leave it out")


OPTIONS: Mapping[str, str] = {"mpiexec": "--mpiexec", "scale": "--scale", "name": "--name", "hybrid": "--hybrid"}


class Runtime(ABC):
    """A place where programs run, an entry of the table. What it can do stands in the table (`table.py` says how)."""

    def ready(self, how: How) -> None:  # noqa: B027 (most need nothing)
        """Missing where something is not here that it needs."""

    def first(self) -> AbstractContextManager[bool]:
        """Whether this process decides what is run, within a `with`; the others take part in all that it runs."""
        return nullcontext(True)

    @abstractmethod
    def run(
        self,
        programs: Sequence[Runnable],
        cases: Sequence[Case],
        how: How,
        heard: Heard,
        enough: Callable[[], bool] = lambda: False,
    ) -> None:
        """Measure the cases in order; `heard` gets the number of each and its row (`measured_row`) as soon as it is
        there. `enough` is asked now and then whether to leave the rest out."""


def sizes_and_type(
    nbytes: int | str | Sequence[int | str], dtype: str, op: str, repeat: int
) -> tuple[list[int | str], str]:
    """The sizes and the name of the type of a run. Invalid where one of the four makes no sense."""
    kind, _ = data_type(dtype), combine_of(op)
    if kind.kind == "O":
        raise Invalid("data type: object has no size in bytes; choose a type of NCCL, like float32")
    if repeat < 1:
        raise Invalid(f"repeat: expected 1 or more runs, got {repeat}")
    return ([nbytes] if isinstance(nbytes, int | str) else list(nbytes)), kind.name
