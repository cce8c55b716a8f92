"""Split a call between two plans: fast links (NVLink) by kernels, slow ones (PCIe) by copies (Blink, section 3.4).

Input: a schedule on the fast links, a second one on kinds of links that it leaves idle (`slow_plan`), and a size. A
`Hybrid` calls both at the same time, each on a range of the elements. The copies go through host memory, as direct
copies between devices would use the fast links. The share of the slow links follows from T_dpa (Blink: disable peer
access), the seconds by which they begin later, and from the rates of both, such that both end together (Equation 8).
All three are measured in the first calls, whose results are correct like all others.

Example: 1,000,000 elements, 10 per us on NVLink and 2 per us on PCIe, which begins 10,000 us later. x on PCIe ends at
10,000 + x / 2, the rest on NVLink at (1,000,000 - x) / 10: equal for x = 150,000, so the call takes 85,000 us, not
100,000.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from antiphon.core.program.kinds import INPUT, SCRATCH
from antiphon.core.routes import resolve
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.errors import Infeasible, Invalid, Unsupported
from antiphon.planners.trees.blink_packing import split_by_rate, with_link_kinds
from antiphon.runtimes.device.group import DevicePlan, Group
from antiphon.select import plan

Work = Callable[[int, int], None]  # (first, count) -> makes the call for these elements
Timer = Callable[[Callable[[], None]], float]  # returns the seconds of a call
TRIES = 3  # calls per measurement; the median counts
ALIGNMENT = 16  # elements: the share of the slow plan is a multiple, whole words of 16 bytes in any type
ONE_BLOCK = ("broadcast", "reduce", "allreduce")  # kinds whose data a range of elements divides for all ranks alike


def time_by_clock(work: Callable[[], None]) -> float:
    """Return the seconds that a call takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


class SideTime(NamedTuple):
    """The time of one plan: n elements take `delay` (seconds) + n / `rate` (elements per second)."""

    delay: float
    rate: float

    @classmethod
    def through(cls, count: int, seconds: float, half_seconds: float) -> SideTime:
        """Return the line through the seconds of `count` elements and those of half of them.

        >>> SideTime.through(100, 3.0, 2.0)
        SideTime(delay=1.0, rate=50.0)
        """
        second_half = seconds - half_seconds
        # where the half takes no less time (noise, or no data), all of it counts as the rate
        rate = (count - count // 2) / second_half if second_half > 0 else count / max(seconds, 1e-12)
        return cls(max(seconds - count / rate, 0.0), rate)


class Hybrid:
    """Calls of one size. The first calls measure: by the fast plan, then by the slow one, whole and in two halves.

    Later calls use both at the same time, split by Equation 8; or the fast one alone, if that is no slower. `fast`,
    `slow`: make a call by one of the plans; `count`: elements of every call.
    """

    def __init__(self, fast: Work, slow: Work, count: int, timer: Timer = time_by_clock) -> None:
        self.fast, self.slow, self.count, self.timer = fast, slow, count, timer
        self.share = 0  # elements of the slow plan, the last ones; 0: not measured, or the fast plan alone is faster
        self.side_times: tuple[SideTime, SideTime] | None = None  # of the fast and the slow plan
        self._slow_thread = ThreadPoolExecutor(1)  # the host thread of the slow plan
        self._measurement: Iterator[None] | None = self._measure_shares()  # None: it is complete

    def call(self) -> None:
        """Make a call: as one of the measurements while there are any left, then with the split that they decided."""
        if self._measurement is None:
            self._run_both()
        # next() makes a call and returns None; after the last measurement it makes none and returns its default, self
        elif next(self._measurement, self) is self:
            self._measurement = None
            self._run_both()

    @property
    def later(self) -> float:
        """T_dpa: the seconds by which the slow plan begins later; 0 until measured."""
        if self.side_times is None:
            return 0.0
        fast, slow = self.side_times
        return max(slow.delay - fast.delay, 0.0)

    @property
    def settled(self) -> bool:
        """Whether the measurements are complete."""
        return self._measurement is None

    def close(self) -> None:
        self._slow_thread.shutdown()

    def _measure_shares(self) -> Iterator[None]:
        """Make a call of `count` elements up to each `yield`, and set `side_times` and `share` by their times."""
        count, half = self.count, self.count // 2
        # 1. Time both plans at full and at half size: a line (delay, rate) for each.
        side_times, fast_alone = list[SideTime](), 0.0  # fast_alone: seconds of a whole call by the fast plan
        for work in (self.fast, self.slow):
            full_times, half_times = list[float](), list[float]()
            for _ in range(TRIES):
                full_times.append(self.timer(partial(work, 0, count)))
                yield
            for _ in range(TRIES):
                half_times.append(self.timer(partial(work, 0, half)))
                work(half, count - half)  # the other half, as the call must be complete
                yield
            side_times.append(SideTime.through(count, statistics.median(full_times), statistics.median(half_times)))
            fast_alone = fast_alone or statistics.median(full_times)  # set in the first iteration, for self.fast
        self.side_times = fast, slow = side_times[0], side_times[1]
        # 2. Split such that both sides end at the same time (Blink, equation 8).
        slow_share = split_by_rate(Fraction(count), Fraction(fast.rate), Fraction(slow.rate), Fraction(self.later))
        self.share = int(slow_share) // ALIGNMENT * ALIGNMENT
        # 3. Keep the split only if it is faster than the fast plan alone.
        together = list[float]()
        for _ in range(TRIES if self.share else 0):
            together.append(self.timer(self._run_both))
            yield
        if not together or statistics.median(together) >= fast_alone:
            self.share = 0

    def _run_both(self) -> None:
        """Make a call by both plans, the last `share` elements by the slow one; share 0: by the fast one alone."""
        fast_count = self.count - self.share
        if not self.share:
            self.fast(0, fast_count)
            return
        # the slow plan is driven by its own host thread
        slow_call = self._slow_thread.submit(self.slow, fast_count, self.share)
        try:
            self.fast(0, fast_count)
        finally:
            slow_call.result()


def idle_links(schedule: Schedule, topology: Topology) -> Topology:
    """Return the machine with only the kinds of links that this schedule does not use.

    >>> from antiphon.api.plans import plan
    >>> blink = plan("allreduce", "dgx1v:pcie=true", planner="blink")
    >>> idle = idle_links(blink.at(2**20).schedule, blink.topology)
    >>> sorted({idle.types[number].kind for number in idle.link_type.tolist()})
    ['pcie', 'socket']
    """
    used = resolve(topology, schedule.src, schedule.dst, schedule.route, schedule.routes)
    links = {link for route in np.unique(used.route[used.route >= 0]).tolist() for link in used.table[route]}
    kinds = {type_.kind for type_ in topology.types} - {topology.types[topology.link_type[link]].kind for link in links}
    return with_link_kinds(topology, kinds).topology


def slow_plan(schedule: Schedule, topology: Topology, nbytes: int) -> Schedule:
    """Return a verified schedule for the same collective over the kinds of links that this schedule leaves idle.

    Unsupported if these do not connect its ranks."""
    idle = idle_links(schedule, topology)
    if schedule.collective.kind not in ONE_BLOCK or len(schedule.collective.weights) != 1:
        raise Unsupported(
            f"two kinds of links share the data of {', '.join(ONE_BLOCK)} of one block, not of this "
            f"{schedule.collective.kind}"
        )
    try:
        return plan(schedule.collective, idle, planner="blink", nbytes=max(nbytes, 1)).at(nbytes).schedule
    except (Infeasible, Invalid, Unsupported):
        raise Unsupported(
            f"the plan leaves no kind of links of {topology.name} idle that joins its ranks; leave hybrid out"
        ) from None


def work_of(
    group: Group, device_plan: DevicePlan, kind: str, addresses: NDArray[np.uintp], lengths: NDArray[np.int64],
    dtype: np.dtype[Any], op: str = "sum", **how: Any,
) -> Work:  # fmt: skip
    """Return a function (first, count) that runs the plan on that range of elements; each plan has a group of its own.

    `kind`: of the collective. `addresses`, `lengths` (in elements): by [rank, buffer], as for Group.go. `how`: other
    arguments of Group.go, or of Group.go_by_host with a `way` other than "kernel". Unsupported for collectives of
    several blocks."""
    if kind not in ONE_BLOCK:
        raise Unsupported(f"two plans share the data of {', '.join(ONE_BLOCK)} alone, not of {kind}")
    by_host = how.get("way", "kernel") != "kernel"
    if not by_host:
        how.pop("way", None)  # Group.go has no such argument

    def work(first: int, count: int) -> None:
        range_addresses, range_lengths = addresses.copy(), lengths.copy()
        # shift input and output; scratch is the group's own
        range_addresses[:, INPUT:SCRATCH] += np.uintp(first * dtype.itemsize)
        # a rank may have no input or output, such as a broadcast's ranks but the root
        range_lengths[:, INPUT:SCRATCH] = np.where(lengths[:, INPUT:SCRATCH] > 0, count, 0)
        run = group.go_by_host if by_host else group.go
        run(device_plan, count, range_addresses, range_lengths, dtype, op, **how)

    return work
