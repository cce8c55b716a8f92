"""Measure the CPU time of a process and its descendants, read from /proc; load by other processes does not count.

A process that sleeps uses no CPU time, so a budget of CPU time alone would let a job hang forever. `Meter` therefore
also sums the time in which the whole process tree sleeps, and `exceeds` is true if either is over the limit.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

MAX_SLEEP = 1.0  # seconds that a process may sleep beyond its budget
# Seconds between two checks; of a longer pause only this much counts as sleep, as the parent may have been busy.
TICK = 0.5
_WORKING = "RD"  # states in /proc that count as work: R runs or waits for a processor, D waits for a disk


class _Usage(NamedTuple):
    """CPU seconds of a process tree, and whether any process of it is working rather than asleep."""

    seconds: float
    working: bool


def cpu_clock() -> float:
    """Return the CPU seconds of this process and of the children that have ended."""
    times = os.times()
    return time.process_time() + times.children_user + times.children_system


class Meter:
    """CPU seconds (`used`) and sleep seconds (`slept`) of a process and its descendants since the last `start`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.start()

    def start(self) -> None:
        self.start_seconds, self.used, self.slept = _read_process_tree(self.pid).seconds, 0.0, 0.0
        self.checked_at = time.monotonic()

    def exceeds(self, seconds: float) -> bool:
        """Return whether the process has computed for `seconds` since `start`, or slept for MAX_SLEEP longer than that.

        Call it every TICK seconds or sooner.
        """
        now, clock = _read_process_tree(self.pid), time.monotonic()
        if not now.working:  # asleep now: taken to have slept since the last check
            self.slept += min(clock - self.checked_at, TICK)
        self.checked_at = clock
        # the sum may shrink: a child that has ended is counted only once its parent has waited for it
        self.used = max(self.used, now.seconds - self.start_seconds)
        return self.used >= seconds or self.slept >= seconds + MAX_SLEEP


def _read_process_tree(pid: int) -> _Usage:
    """Return the usage of a process, the children that it has waited for, and its living descendants."""
    ticks, working = 0, False
    pending = [pid]
    while pending:
        process = pending.pop()
        try:
            with open(f"/proc/{process}/stat", "rb") as file:
                # after the name in parentheses, which may hold blanks: field 0 is the state
                fields = file.read().rpartition(b")")[2].split()
        except OSError:  # it has ended
            continue
        ticks += sum(int(x) for x in fields[11:15])  # its user and system time, and those of its children that ended
        working |= fields[0].decode() in _WORKING
        pending += _list_children(process)
    return _Usage(ticks / os.sysconf("SC_CLK_TCK"), working)


def _list_children(pid: int) -> Iterator[int]:
    """Yield the process ids of the children of all threads of a process."""
    with suppress(OSError):  # it has ended
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError), open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                yield from map(int, file.read().split())
