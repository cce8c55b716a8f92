"""Two plans side by side for one call: fast links (NVLink) by kernels, slow ones (PCIe) by copies (Blink, section 3.4).

Such copies go through memory of the host: between two devices they would take the fast links, too. How much the slow
ones get follows from T_dpa, how much later they begin, and from what both carry. These are measured in the first calls
themselves, which are right as all others are.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from antiphon.core.program.kinds import INPUT, SCRATCH
from antiphon.core.routes import resolve
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.errors import Infeasible, Invalid, Unsupported
from antiphon.planners.trees.hybrid import split
from antiphon.planners.trees.restrict import of_kinds
from antiphon.runtimes.device.group import Group
from antiphon.runtimes.device.plans import DevicePlan
from antiphon.select import plan

Work = Callable[[int, int], None]  # makes the call for so many elements, from one on
Timer = Callable[[Callable[[], None]], float]  # what that took, in seconds
TRIES = 3  # of each thing that is measured, of which the median counts
WHOLE = 16  # elements: parts begin at multiples of so many
ONE_BLOCK = ("broadcast", "reduce", "allreduce")


def by_clock(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


class SideTime(NamedTuple):
    """So many elements take `waiting` + elements / `rate` seconds."""

    waiting: float
    rate: float

    @classmethod
    def through(cls, count: int, whole: float, half: float) -> SideTime:
        """Of what `count` elements took, and what half of them did.

        >>> SideTime.through(100, 3.0, 2.0)
        SideTime(waiting=1.0, rate=50.0)
        """
        more = whole - half
        rate = (count - count // 2) / more if more > 0 else count / max(whole, 1e-12)
        return cls(max(whole - count / rate, 0.0), rate)


class Hybrid:
    """Calls of one size. At first the fast plan does all, then the slow one, each also half after half; then both side
    by side, as Equation 8 says; and if that turns out to be no faster than the fast one alone, that is alone again.

    `agreed`: of seconds measured here those that all processes go by, as all must split alike.
    """

    def __init__(
        self, fast: Work, slow: Work, count: int, timer: Timer = by_clock,
        agreed: Callable[[float], float] = lambda seconds: seconds,
    ) -> None:  # fmt: skip
        self.fast, self.slow, self.count, self.timer, self.agreed = fast, slow, count, timer, agreed
        self.share = 0  # elements of the slow plan
        self.lines: tuple[SideTime, SideTime] | None = None
        self._beside = ThreadPoolExecutor(1)
        self._first: Iterator[None] | None = self._measured()

    def call(self) -> None:
        if self._first is None:
            self._both()
        elif next(self._first, self) is self:
            self._first = None
            self._both()

    @property
    def later(self) -> float:
        """T_dpa: how many seconds later the slow plan begins. 0 until it is known."""
        return max(self.lines[1].waiting - self.lines[0].waiting, 0.0) if self.lines else 0.0

    @property
    def settled(self) -> bool:
        return self._first is None

    def close(self) -> None:
        self._beside.shutdown()

    def _measured(self) -> Iterator[None]:
        """A call at each step."""
        count, half = self.count, self.count // 2
        lines, alone = list[SideTime](), 0.0
        for work in (self.fast, self.slow):
            whole, part = list[float](), list[float]()
            for _ in range(TRIES):
                whole.append(self._seconds(work, 0, count))
                yield
            for _ in range(TRIES):
                part.append(self._seconds(work, 0, half))
                work(half, count - half)
                yield
            lines.append(SideTime.through(count, statistics.median(whole), statistics.median(part)))
            alone = alone or statistics.median(whole)
        self.lines = fast, slow = lines[0], lines[1]
        found = split(Fraction(count), Fraction(fast.rate), Fraction(slow.rate), Fraction(self.later))
        self.share = int(found) // WHOLE * WHOLE
        together = list[float]()
        for _ in range(TRIES if self.share else 0):
            together.append(self.agreed(self.timer(self._both)))
            yield
        if not together or statistics.median(together) >= alone:
            self.share = 0

    def _seconds(self, work: Work, first: int, count: int) -> float:
        return self.agreed(self.timer(lambda: work(first, count)))

    def _both(self) -> None:
        rest = self.count - self.share
        if not self.share:
            self.fast(0, rest)
            return
        beside = self._beside.submit(self.slow, rest, self.share)
        try:
            self.fast(0, rest)
        finally:
            beside.result()


def idle_links(schedule: Schedule, topology: Topology) -> Topology:
    """The machine with the kinds of links alone that this schedule sends nothing over.

    >>> from antiphon.api.plans import plan
    >>> made = plan("allreduce", "dgx1v:pcie=true", planner="blink")
    >>> found = idle_links(made.at(2**20).schedule, made.topology)
    >>> sorted({found.types[number].kind for number in found.link_type.tolist()})
    ['pcie', 'socket']
    """
    taken = resolve(topology, schedule.src, schedule.dst, schedule.route, schedule.routes)
    links = {link for route in np.unique(taken.route[taken.route >= 0]).tolist() for link in taken.table[route]}
    kinds = {one.kind for one in topology.types} - {topology.types[topology.link_type[link]].kind for link in links}
    return of_kinds(topology, kinds).topology


def slow_plan(schedule: Schedule, topology: Topology, nbytes: int) -> Schedule:
    """What does the same over the kinds of links that this schedule leaves idle, proven. Unsupported where there are
    none that join its ranks."""
    left = idle_links(schedule, topology)
    if schedule.collective.kind not in ONE_BLOCK or len(schedule.collective.weights) != 1:
        raise Unsupported(
            f"two kinds of links share the data of {', '.join(ONE_BLOCK)} from one root, not of this "
            f"{schedule.collective.kind}"
        )
    try:
        return plan(schedule.collective, left, planner="blink", nbytes=max(nbytes, 1)).at(nbytes).schedule
    except (Infeasible, Invalid, Unsupported):
        raise Unsupported(
            f"the plan leaves no kind of links of {topology.name} idle that joins its ranks; leave --hybrid out"
        ) from None


def work_of(
    group: Group, made: DevicePlan, kind: str, where: NDArray[np.uintp], lengths: NDArray[np.int64],
    dtype: np.dtype[Any], op: str = "sum", **how: Any,
) -> Work:  # fmt: skip
    """A call of a plan for a part of the elements. Each of the two plans has a group and scratch of its own. `how`: of
    Group.go, with a `way` of Group.go_by_host. Unsupported for collectives with several blocks, which lie apart."""
    if kind not in ONE_BLOCK:
        raise Unsupported(f"two plans share the data of {', '.join(ONE_BLOCK)} alone, not of {kind}")
    by_host = how.get("way", "kernel") != "kernel"
    if not by_host:
        how.pop("way", None)

    def work(first: int, count: int) -> None:
        at, long = where.copy(), lengths.copy()
        at[:, :SCRATCH] += np.uintp(first * dtype.itemsize)
        long[:, INPUT:SCRATCH] = np.where(lengths[:, INPUT:SCRATCH] > 0, count, 0)
        (group.go_by_host if by_host else group.go)(made, count, at, long, dtype, op, **how)

    return work
