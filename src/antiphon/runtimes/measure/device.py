"""The runtimes of the kernel of GPUs: all ranks in this process, on the threads of a processor or on GPUs.

On threads it is for proof, not for speed: what a GPU would do, step by step, but for its memory and its clocks.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from antiphon.core.collective import Collective
from antiphon.core.program.kinds import INPUT, OUTPUT, SCRATCH
from antiphon.core.schedule import Schedule
from antiphon.errors import Missing, Unsupported
from antiphon.lower.device.packets import PACKED
from antiphon.lower.device.table import Table, tables
from antiphon.runtimes.device.beside import Library
from antiphon.runtimes.device.functions import Device, device
from antiphon.runtimes.device.group import Group
from antiphon.runtimes.device.hybrid import Hybrid, slow_plan, work_of
from antiphon.runtimes.device.plans import DevicePlan
from antiphon.runtimes.device.shares import TABLES, Choice, choices, chosen, frontier, timed
from antiphon.runtimes.engine.build import library
from antiphon.runtimes.measure.case import Case, Heard, How, Row, Runnable, Runtime, heats
from antiphon.runtimes.measure.local import Seats, refuse_too_large
from antiphon.runtimes.measure.loop import SPOILED, Heat, Together

Array = NDArray[Any]
Plans = Mapping[str, DevicePlan]  # by names of TABLES
STREAMS, MOST_THREADS = 4, 1024
MOST_BLOCKS, WARPS = 96, 16  # of one GPU, for all ranks that are on it: all must be there at once
STEP_LANES = (8, 32, 128)  # blocks of a kernel that does one step: these need not all be there at once
PATIENCE = 60.0


class _OnDevice(Runtime):
    """`target`: the library of the device. `tables`: which are made of a program, where there are such. `library`:
    whose collectives are measured beside; "": none, but plain NumPy."""

    target: str
    library: str = ""
    tables: tuple[str, ...] = ("plain",)

    def ready(self, how: How) -> None:
        library(self.target, how.compiler)

    def device(self, how: How) -> Device:
        return device(library(self.target, how.compiler))

    def group(self, ranks: int, how: How) -> Group:
        raise NotImplementedError

    def choices(self, plans: Plans, blocks: int, nbytes: int) -> Iterator[Choice]:
        """How a call may be made; where there are several, they are timed."""
        yield Choice(tables=next(iter(plans)))

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
            slow = [_slow(programs[case.program], case.nbytes) if how.hybrid else None for case in some]
            with ExitStack() as stack:
                group = stack.enter_context(self.group(schedules[0].collective.ranks, how))
                seat = _Seats(schedules[0], some[0], group)
                calls, told = list[Callable[[], None]](), list[Row]()
                for schedule, other in zip(schedules, slow, strict=True):
                    ready = seat.ready(schedule, self.tables, self.choices)
                    if other is None:
                        calls.append(seat.ours(ready))
                        told.append(ready.told)
                        continue
                    both = seat.both(ready, other, stack.enter_context(self.group(group.ranks, how)))
                    stack.callback(both.close)
                    calls.append(seat.by_us(both.call))
                    told.append({**ready.told, "slow_share": both.share / max(both.count, 1), "t_dpa": both.later})
                with seat.beside(schedules[0].collective, self.library) as theirs:
                    rows = Heat(some, seat, calls, theirs, Together()).go()
                for number, row, more in zip(heat, rows, told, strict=True):
                    heard(number, {**row, **more, "agree": seat.agree()})


def _slow(one: Runnable, nbytes: int) -> Schedule:
    return slow_plan(one.schedule, one.topology, nbytes)


class Threads(_OnDevice):
    target = "device"

    def group(self, ranks: int, how: How) -> Group:
        """As many blocks as there may be threads, at least one for each rank."""
        if ranks > MOST_THREADS:
            raise Unsupported(f"{ranks} ranks, each a thread of this process: at most {MOST_THREADS}; run it on local")
        return Group(self.device(how), ranks, min(STREAMS, max(1, MOST_THREADS // ranks)))


class Cuda(_OnDevice):
    """Ranks go round the GPUs of this machine."""

    target, driver, library = "cuda", "libcuda.so.1", "libnccl.so.2"
    tables = tuple(TABLES)

    def ready(self, how: How) -> None:
        """Before anything is compiled: that takes half a minute."""
        try:
            ctypes.CDLL(self.driver)
        except OSError:
            raise Missing(
                f"--on {self.target}: this machine has no driver for it ({self.driver} cannot be loaded); --on threads "
                "runs the same kernel on the processor"
            ) from None
        super().ready(how)

    def group(self, ranks: int, how: How) -> Group:
        return Group(self.device(how), ranks, MOST_BLOCKS // ranks or 1, WARPS * 32)

    def choices(self, plans: Plans, blocks: int, nbytes: int) -> Iterator[Choice]:
        for name, plan in plans.items():
            yield from choices(plan.streams, blocks, plan.sliced, nbytes, name)


class Hip(Cuda):
    target, driver, library = "hip", "libamdhip64.so", "librccl.so.1"


class _Stepwise(Threads):
    """Every step is asked for alone, so that nothing goes on beside a fold."""

    library = "none"

    def choices(self, plans: Plans, blocks: int, nbytes: int) -> Iterator[Choice]:
        yield Choice("steps", 1)


class _StepwiseOnGpus(Cuda):
    tables, library = ("plain",), "none"

    def choices(self, plans: Plans, blocks: int, nbytes: int) -> Iterator[Choice]:
        yield from (Choice("steps", many) for many in STEP_LANES)


class _StepwiseOnHip(_StepwiseOnGpus):
    target, driver = Hip.target, Hip.driver


STEPWISE: Mapping[str, type[_OnDevice]] = {
    "threads": _Stepwise, "cuda": _StepwiseOnGpus, "hip": _StepwiseOnHip,
}  # fmt: skip


class _Ready(NamedTuple):
    """A plan at a size: its tables, the best of the ways to make a call, the memory of all ranks, and what was tried
    that no other beats with as few blocks, with seconds."""

    plans: Plans
    best: Choice
    where: NDArray[np.uintp]
    lengths: NDArray[np.int64]
    frontier: list[tuple[Choice, float]]

    @property
    def told(self) -> Row:
        if not self.frontier:
            return {}
        line = [{**one._asdict(), "seconds": seconds} for one, seconds in self.frontier]
        return {"choice": self.best._asdict(), "frontier": line}


class _Seats(Seats):
    """The buffers of all ranks where the device has them. What is checked is fetched from there."""

    def __init__(self, schedule: Schedule, case: Case, group: Group) -> None:
        super().__init__(schedule, case)
        self.group = group
        self.where = np.zeros((group.ranks, 3), np.uintp)
        self.lengths = np.zeros((group.ranks, 3), np.int64)
        self.made_by_us = False
        outputs = [np.zeros(one.sizes[1], self.dtype) for one in self.ranks]
        self.alike = self._alike(schedule)
        if not case.in_place:
            self._all_have(INPUT, self.given)
        self._all_have(OUTPUT, self.given if case.in_place else outputs)

    def _alike(self, schedule: Schedule) -> bool:
        """Whether it lies in memory that switches know: where they are asked for something, and there are such."""
        if schedule.joint is None:
            return False
        try:
            with self.group.for_a_while():
                self.group.joined([np.zeros(1, self.dtype)] * self.group.ranks)
        except Unsupported:
            return False
        return True

    def _all_have(self, place: int, values: Sequence[Array]) -> None:
        self.where[:, place] = self._placed(place, values)
        self.lengths[:, place] = [one.size for one in values]

    def _placed(self, place: int, values: Sequence[Array]) -> list[int]:
        if self.alike and place != SCRATCH:
            return self.group.joined(values)
        return [self.group.memory(rank, one) for rank, one in enumerate(values)]

    def _have(self, rank: int, place: int, values: Array) -> None:
        self.where[rank, place], self.lengths[rank, place] = self.group.memory(rank, values), values.size

    def ready(
        self, schedule: Schedule, names: Sequence[str], known: Callable[[Plans, int, int], Iterator[Choice]]
    ) -> _Ready:
        """Return the plan with the fastest of its choices, which are timed if there are several."""
        case, group = self.case, self.group
        made = self._tables(schedule, names)
        plans = self._plans(made)
        where, lengths = self._with_scratch(plans)
        some = list(known(plans, group.blocks, case.nbytes))
        if len(some) < 2:
            return _Ready(plans, some[0], where, lengths, [])
        with self._elsewhere(lengths) as spare:
            seconds = timed(lambda choice: self._go(plans, choice, spare, lengths), iter(some))
        return _Ready(plans, chosen(seconds), where, lengths, frontier(seconds))

    def ours(self, ready: _Ready) -> Callable[[], None]:
        return self.by_us(lambda: self._go(ready.plans, ready.best, ready.where, ready.lengths))

    def by_us(self, work: Callable[[], None]) -> Callable[[], None]:
        def call() -> None:
            work()
            self.made_by_us = True

        return call

    def both(self, ready: _Ready, slow: Schedule, other: Group) -> Hybrid:
        """This one and a plan over other links, which has a group of its own, with the split that its first calls
        measured; what they leave behind no run sees."""
        case, kind = self.case, slow.collective.kind
        best, patience = ready.best, case.timeout or PATIENCE
        how: dict[str, Any] = {"lanes": best.lanes, "timeout": patience, "way": best.way}
        if best.way == "kernel":
            how["rounds"] = best.rounds
        given = (kind, ready.where, ready.lengths, self.dtype, case.op)
        fast = work_of(self.group, ready.plans[best.tables], *given, **how)
        made = other.plan(tables(slow, in_place=case.in_place, streams=min(STREAMS, other.blocks)))
        where, lengths = ready.where.copy(), ready.lengths.copy()
        lengths[:, SCRATCH] = [made.scratch(rank, case.unit) for rank in range(other.ranks)]
        where[:, SCRATCH] = [
            other.memory(rank, np.zeros(size, self.dtype)) for rank, size in enumerate(lengths[:, SCRATCH].tolist())
        ]
        way = work_of(other, made, kind, where, lengths, self.dtype, case.op, way="staged", timeout=patience)
        found = Hybrid(fast, way, case.unit)
        try:
            while not found.settled:
                found.call()
        except BaseException:
            found.close()
            raise
        return found

    @contextmanager
    def beside(self, collective: Collective, name: str) -> Iterator[Callable[[], None] | None]:
        """The same by a library on the same buffers; None where it has none."""
        if not name:
            yield self.plainly
            return
        try:
            opened = Library(self.group, name)
        except Unsupported:
            yield None
            return
        case = self.case
        try:
            same = opened.call(collective, case.unit, self.where, self.dtype, case.op or "sum", case.in_place)
        except Unsupported:
            yield None
        else:

            def theirs() -> None:
                same()
                self.made_by_us = True  # as far as fetching goes

            yield theirs
        finally:
            opened.close()

    def _tables(self, schedule: Schedule, names: Sequence[str]) -> dict[str, list[Table]]:
        """Those that there are for this schedule and size."""
        case, found = self.case, dict[str, list[Table]]()
        for name in names:
            if name == "packets" and case.nbytes > PACKED and len(names) > 1:
                continue
            streams = min(STREAMS, self.group.blocks)
            try:
                found[name] = tables(schedule, in_place=case.in_place, streams=streams, **TABLES[name])
            except Unsupported:
                if name == names[0]:
                    raise
        return found

    def _plans(self, made: Mapping[str, Sequence[Table]]) -> Plans:
        """Those of them that have room."""
        some = {name: self.group.plan(one) for name, one in made.items()}
        found = {name: plan for name, plan in some.items() if plan.fits(self.case.unit, self.dtype)}
        if not found:
            raise Unsupported(f"{self.case.nbytes} bytes are too many for packets")
        return found

    def _go(self, plans: Plans, how: Choice, where: NDArray[np.uintp], lengths: NDArray[np.int64]) -> None:
        case, group, plan = self.case, self.group, plans[how.tables]
        given, patience = (plan, case.unit, where, lengths, self.dtype, case.op), case.timeout or PATIENCE
        if how.way == "kernel":
            group.go(*given, lanes=how.lanes, rounds=how.rounds, timeout=patience)
        else:
            group.go_by_host(*given, lanes=how.lanes, way=how.way, timeout=patience)

    @contextmanager
    def _elsewhere(self, lengths: NDArray[np.int64]) -> Iterator[NDArray[np.uintp]]:
        """Memory as long, in which nothing of a case lies: what is only tried must not change that."""
        sizes = [[np.zeros(length, self.dtype) for length in row] for row in lengths.T.tolist()]
        with self.group.for_a_while():
            yield np.array([self._placed(place, some) for place, some in enumerate(sizes)], np.uintp).T.copy()

    def _with_scratch(self, plans: Plans) -> tuple[NDArray[np.uintp], NDArray[np.int64]]:
        for rank in range(self.group.ranks):
            most = max(plan.scratch(rank, self.case.unit) for plan in plans.values())
            self._have(rank, SCRATCH, np.zeros(most, self.dtype))
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
