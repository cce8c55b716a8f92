"""Measure the CPU time of a process and its descendants as the system counts it; other load does not change it."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

SLEEP = 1.0  # seconds that a process may sleep beyond its budget: one that waits for ever ends, too
TICK = 0.5  # seconds from one look to the next that count as slept at most: meanwhile nobody may have listened
_TICKS = os.sysconf("SC_CLK_TCK")
_WORKING = "RD"  # running, or waiting for a processor; waiting for a disk


class _Now(NamedTuple):
    seconds: float
    working: bool


def cpu_clock() -> float:
    """CPU seconds of this process and of the children that have ended."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime


class Meter:
    """The CPU and sleep time of a process and its descendants since the last `start`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.start()

    def start(self) -> None:
        self.before, self.used, self.slept = _read_process_tree(self.pid).seconds, 0.0, 0.0
        self.looked = time.monotonic()

    def over(self, seconds: float) -> bool:
        """Whether it has computed, or slept, for longer than this. To be asked again and again, by `TICK` or sooner."""
        now, at = _read_process_tree(self.pid), time.monotonic()
        if not now.working:
            self.slept += min(at - self.looked, TICK)
        self.looked = at
        self.used = max(self.used, now.seconds - self.before)  # what a child used is missing while nobody waited for it
        return self.used >= seconds or self.slept >= seconds + SLEEP


def _read_process_tree(pid: int) -> _Now:
    """A process, what it has waited for, and what lives of its descendants."""
    seconds, working = 0.0, False
    line = [pid]
    while line:
        process = line.pop()
        try:
            with open(f"/proc/{process}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:  # it has ended
            continue
        seconds += sum(int(x) for x in fields[11:15]) / _TICKS
        working |= fields[0].decode() in _WORKING
        line += _list_children(process)
    return _Now(seconds, working)


def _list_children(pid: int) -> Iterator[int]:
    with suppress(OSError):  # it has ended
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError), open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                yield from map(int, file.read().split())
