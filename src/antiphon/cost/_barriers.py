"""Steps as barriers: a step lasts as long as its slowest message's latency and its most loaded link together.

Nothing is expanded: loads come from core.loads.timeline, and the latencies of pipelined steps likewise, as the
upper envelope of the windows in which each row's pieces are under way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from antiphon.core.columns import Longs, dense, order_of
from antiphon.core.loads import Timeline, envelope, pieces_of, timeline
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.cost._messages import Floats, latencies, resolved, resource_name, uses_of
from antiphon.cost._prediction import Hop, LazyPath, Prediction
from antiphon.cost._profile import Profile
from antiphon.units import format_bandwidth, format_seconds


@dataclass(frozen=True, eq=False)
class Latencies:
    """Runs of steps with the same greatest latency of a message under way."""

    begin: Longs
    length: Longs
    seconds: Floats

    @property
    def total(self) -> float:
        values, index = np.unique(self.seconds, return_inverse=True)
        steps = np.zeros(len(values), np.int64)
        np.add.at(steps, index, self.length)
        return math.fsum(float(v) * n for v, n in zip(values, steps.tolist(), strict=True))


def step_latencies(schedule: Schedule, topology: Topology) -> Latencies:
    """The greatest route latency in every (pipelined) step: O(n) and one sort of distinct (step, pieces)."""
    found = resolved(schedule, topology)
    of_route = latencies(topology, found.table)
    row = np.where(found.route >= 0, of_route[found.route], 0.0)
    pieces = pieces_of(schedule)
    windows, window = dense(pieces, int(pieces.max(initial=0)) + 1)
    times, time = dense(schedule.step.astype(np.int64), schedule.steps or 1)
    cells = np.full(len(times) * len(windows), -1.0)
    np.maximum.at(cells, time * len(windows) + window[schedule.chunk], row)
    used = np.flatnonzero(cells >= 0)
    if not len(used):
        return Latencies(used, used, cells)
    begin, size = times[used // len(windows)], windows[used % len(windows)]
    if int(size.max()) == 1:
        return Latencies(begin, size, cells[used])
    marks, place = dense(np.concatenate([begin, begin + size]), int((begin + size).max()) + 1)
    top, winner = envelope(place[: len(used)], place[len(used) :], cells[used], len(marks))
    alive = np.flatnonzero(winner[:-1] >= 0)
    return Latencies(marks[alive], np.diff(marks)[alive], top[alive].astype(np.float64))


def local_seconds(schedule: Schedule, profile: Profile) -> float:
    """Seconds per byte of nbytes that every rank works on its own at the end."""
    return float(
        sum((work.share for work in schedule.local), start=0 * profile.memory_bandwidth) / profile.memory_bandwidth
    )


def local_name(schedule: Schedule, profile: Profile) -> str:
    kinds = ", ".join(work.kind for work in schedule.local)
    return f"local work ({kinds}) in the memory of every rank, at {format_bandwidth(profile.memory_bandwidth)}"


def latency_name(steps: int, greatest: float) -> str:
    return f"latency of {steps} {'step' if steps == 1 else 'steps'}, up to {format_seconds(greatest)} each"


def priced(
    alpha: float, beta: float, local: float, names: Mapping[str, str], path: LazyPath, note: str = ""
) -> Callable[[int], Prediction]:
    """What is linear in nbytes: the terms, their sum, and the name of the greatest."""

    def predict(nbytes: int) -> Prediction:
        terms = {"latency": alpha, "bandwidth": beta * nbytes, "local": local * nbytes}
        greatest = max(terms, key=lambda term: terms[term])
        named = names[greatest] if terms[greatest] else "nothing takes time"
        return Prediction(sum(terms.values()), terms, named, path, note)

    return predict


@dataclass(frozen=True, eq=False)
class Barriers:
    """A schedule with its steps as barriers, on the machine as a profile sees it."""

    schedule: Schedule
    topology: Topology
    profile: Profile

    @cached_property
    def line(self) -> Timeline:
        return timeline(self.schedule, self.topology)

    @cached_property
    def latencies(self) -> Latencies:
        return step_latencies(self.schedule, self.topology)

    @cached_property
    def busiest(self) -> str:
        """The link or limit that steps wait for the longest, all together."""
        line = self.line
        at = np.flatnonzero(line.resource >= 0)
        if not len(at):
            return "no link"
        value = {id(s): float(s) for s in {id(s): s for s in line.seconds}.values()}  # few: equal ones are one object
        seconds = np.array([value[id(s)] for s in line.seconds])
        spent = np.bincount(line.resource[at], weights=(seconds * line.length)[at])
        return resource_name(self.topology, int(spent.argmax()))

    def names(self, term: str) -> str:
        if term == "bandwidth":
            return self.busiest
        if term == "local":
            return local_name(self.schedule, self.profile)
        found = self.latencies
        return latency_name(int(found.length.sum()), float(found.seconds.max(initial=0.0)))

    def path(self) -> list[Hop]:
        """Per run of equally loaded steps a transfer over its busiest link: O(E log E) in load entries."""
        line = self.line
        runs = np.flatnonzero(line.resource >= 0)
        found = resolved(self.schedule, self.topology)
        row, resource = uses_of(self.topology, found.table, found.route)
        step = self.schedule.step[row].astype(np.int64)
        end = step + pieces_of(self.schedule)[self.schedule.chunk[row]]
        bound = int(max(end.max(initial=0), line.begin.max(initial=0))) + 1
        order = order_of(resource * bound + step, (self.topology.links + len(self.topology.limits)) * bound)
        row, key = row[order], (resource * bound + step)[order]
        last = resource[order] * bound + end[order]  # of all begun so far on a link, that which ends last is under way
        lasting = np.maximum.accumulate(last)
        which = np.maximum.accumulate(np.where(last == lasting, np.arange(len(last)), 0))
        at = which[np.searchsorted(key, line.resource[runs] * bound + line.begin[runs], side="right") - 1]
        columns = (line.begin[runs], self.schedule.src[row[at]], self.schedule.dst[row[at]])
        return list(zip(*(c.tolist() for c in columns), strict=True))

    def predictor(self, note: str = "") -> Callable[[int], Prediction]:
        """Ask it for as many sizes as you like: each is a few additions."""
        local = local_seconds(self.schedule, self.profile)
        path = LazyPath(self.path)
        names = {term: self.names(term) for term in ("latency", "bandwidth", "local")}
        return priced(self.latencies.total, float(self.line.total), local, names, path, note)
