"""Price steps as barriers: a step lasts its slowest message's latency plus the time of its most loaded link.

A barrier means that no message of a step starts before all messages of the previous step have arrived. Input: a
schedule and a topology with the profile applied. Output: a `Barriers` object, which has the schedule's time as a linear
function of nbytes, when each step begins, and the most loaded link.

Pieces are not expanded. A transfer (row) that is sent in pieces takes part in a window of consecutive steps. The load
of each step comes from core.loads.timeline; its latency is the greatest of the rows whose window contains it.

Example: two steps, each with a latency of 1 us and 1000 bytes over a 1 GB/s link (1 us): steps begin at 0 and 2 us, and
the schedule ends at 4 us.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from antiphon.core.columns import Floats, Longs, order_of, unique_inverse
from antiphon.core.loads import Timeline, route_latencies, timeline
from antiphon.core.messages import Paths, messages, paths, resource_name
from antiphon.core.schedule import Schedule
from antiphon.core.stairs import upper_envelope
from antiphon.core.topology import Topology
from antiphon.cost.prediction import Hop, LazyPath, Prediction
from antiphon.units import format_seconds


@dataclass(frozen=True, eq=False)
class Latencies:
    """Runs of consecutive steps with the same latency, the greatest of any message in the step."""

    begin: Longs  # first step of the run
    length: Longs  # number of its steps
    seconds: Floats  # latency of each of its steps

    @property
    def total(self) -> float:
        """Return the sum over all steps, in seconds."""
        # steps with equal latency are multiplied, not added, so that the sum is exact in any order
        values, index = np.unique(self.seconds, return_inverse=True)
        steps = np.zeros(len(values), np.int64)
        np.add.at(steps, index, self.length)
        return math.fsum(float(v) * n for v, n in zip(values, steps.tolist(), strict=True))


def latencies_of(schedule: Schedule, topology: Topology) -> Latencies:
    """Return the greatest route latency in every (pipelined) step.

    Two pieces take three steps:

    >>> from antiphon.core.example import machine, star
    >>> from antiphon.core.transform import pipeline
    >>> latencies = latencies_of(pipeline(star(), 2), machine())
    >>> [column.tolist() for column in (latencies.begin, latencies.length, latencies.seconds)]
    [[0, 1, 2], [1, 1, 1], [1e-06, 1e-06, 1e-06]]
    """
    return _greatest_per_step(*route_latencies(schedule, topology))


def _greatest_per_step(begin: Longs, size: Longs, seconds: Floats) -> Latencies:
    """Return the greatest latency of each step; row i has `seconds[i]` in `size[i]` steps from `begin[i]` on."""
    # `route_latencies` has one row per step and window length, so without pieces it has one row per step already.
    if not len(begin) or int(size.max()) == 1:
        return Latencies(begin, size, seconds)
    marks, mark_number = unique_inverse(np.concatenate([begin, begin + size]), int((begin + size).max()) + 1)
    # from each mark to the next: the greatest latency of the rows there, and the row that has it (-1: none)
    top, winning_row = upper_envelope(mark_number[: len(begin)], mark_number[len(begin) :], seconds, len(marks))
    has_message = np.flatnonzero(winning_row[:-1] >= 0)
    return Latencies(marks[has_message], np.diff(marks)[has_message], top[has_message].astype(np.float64))


def latency_name(count: int, greatest: float, total: float, noun: str = "step") -> str:
    """Return the bottleneck "latency" in words. `count`: of steps or messages; `greatest`, `total`: in seconds."""
    if count == 1:
        return f"latency of 1 {noun}, {format_seconds(greatest)}"
    at_most = "" if math.isclose(total, count * greatest, rel_tol=1e-9) else "up to "
    return f"latency of {count} {noun}s, {at_most}{format_seconds(greatest)} each"


def price_linear(
    alpha: float, beta: float, names: Mapping[str, str], path: LazyPath, note: str = ""
) -> Callable[[int], Prediction]:
    """Return a predictor for the time alpha (seconds) + nbytes * beta (seconds per byte).

    `names`: the bottleneck to report if the term "latency" or "bandwidth" is the greater one.
    """

    def predict(nbytes: int) -> Prediction:
        terms = {"latency": alpha, "bandwidth": beta * nbytes}
        greatest = max(terms, key=lambda term: terms[term])
        bottleneck = names[greatest] if terms[greatest] else "nothing takes time"
        return Prediction(sum(terms.values()), terms, bottleneck, path, note)

    return predict


@dataclass(frozen=True, eq=False)
class Barriers:
    """A schedule whose steps are barriers, on a machine with the profile applied."""

    schedule: Schedule
    topology: Topology

    @cached_property
    def paths(self) -> Paths:
        """Return the messages with the links and limits that they use."""
        return paths(messages(self.schedule), self.topology)

    @cached_property
    def timeline(self) -> Timeline:
        """Return the runs of steps with equal load of the busiest link."""
        return timeline(self.schedule, self.topology)

    @cached_property
    def latencies(self) -> Latencies:
        """Return the latency of every step."""
        return latencies_of(self.schedule, self.topology)

    @cached_property
    def busiest(self) -> str:
        """Return the name of the link or limit that is the most loaded one for the longest total time."""
        line = self.timeline
        at = np.flatnonzero(line.resource >= 0)
        if not len(at):
            return "no link"
        # convert each fraction object once, as equal fractions are mostly one object
        float_of = {id(s): float(s) for s in {id(s): s for s in line.seconds}.values()}
        seconds = np.array([float_of[id(s)] for s in line.seconds])
        spent = np.bincount(line.resource[at], weights=(seconds * line.length)[at])
        return resource_name(self.topology, int(spent.argmax()))

    def names(self, term: str) -> str:
        """Return the bottleneck behind a term."""
        if term == "bandwidth":
            return self.busiest
        latencies = self.latencies
        return latency_name(int(latencies.length.sum()), float(latencies.seconds.max(initial=0.0)), latencies.total)

    def until(self, step: Longs, nbytes: int) -> Floats:
        """Return the seconds from the beginning until each of these steps begins. O((steps + runs) log runs).

        Each step takes a microsecond of latency, and a microsecond for 1000 bytes at 1 GB/s:

        >>> from antiphon.core.example import machine, star
        >>> Barriers(star(), machine()).until(np.array([0, 1, 2]), 1000)
        array([0.e+00, 2.e-06, 4.e-06])
        """
        line, latencies = self.timeline, self.latencies
        loaded = np.array([float(seconds) for seconds in line.seconds]) * nbytes  # `Timeline.seconds` are per byte
        return _time_until(line.begin, line.length, loaded, step) + _time_until(
            latencies.begin, latencies.length, latencies.seconds, step
        )

    def path(self) -> list[Hop]:
        """Return the critical path as (step, src, dst): per run of equally loaded steps a message on its busiest link.

        O(uses log uses); a use is a message on one of its links or limits.

        >>> from antiphon.core.example import machine, star
        >>> Barriers(star(), machine()).path()
        [(0, 2, 0), (1, 0, 2)]
        """
        line, routing = self.timeline, self.paths
        runs = np.flatnonzero(line.resource >= 0)
        message, resource = routing.use_message, routing.use_resource
        step = routing.messages.step[message].astype(np.int64)
        end = step + routing.messages.pieces[message]
        # sort the uses by (resource, first step), as one number
        bound = int(max(end.max(initial=0), line.begin.max(initial=0))) + 1
        order = order_of(resource * bound + step, routing.resources * bound)
        message, key = message[order], (resource * bound + step)[order]
        # In each run, of the messages begun so far on its busiest link, the one that ends last is still being sent.
        # With the resource in front, the running maximum begins anew with each resource.
        end_key = resource[order] * bound + end[order]
        # a record: it ends at least as late as all uses of its resource that begin earlier
        is_record = end_key == np.maximum.accumulate(end_key)
        # by position among the sorted uses: the position of the latest record, which is the use to end last so far
        last_to_end = np.maximum.accumulate(np.where(is_record, np.arange(len(end_key)), 0))
        last_begun = np.searchsorted(key, line.resource[runs] * bound + line.begin[runs], side="right") - 1
        use = last_to_end[last_begun]
        columns = (line.begin[runs], routing.messages.src[message[use]], routing.messages.dst[message[use]])
        return list(zip(*(c.tolist() for c in columns), strict=True))

    def predictor(self, note: str = "") -> Callable[[int], Prediction]:
        """Return a predictor; each size costs a few additions."""
        names = {term: self.names(term) for term in ("latency", "bandwidth")}
        seconds_per_byte = float(self.timeline.total)
        return price_linear(self.latencies.total, seconds_per_byte, names, LazyPath(self.path), note)


def _time_until(begin: Longs, length: Longs, seconds: Floats, step: Longs) -> Floats:
    """Return the time until each of the steps `step` begins, for runs of steps that take `seconds` each.

    O((steps + runs) log runs). Two steps of 1 s, a step that takes no time, one step of 5 s:

    >>> _time_until(np.array([0, 3]), np.array([2, 1]), np.array([1.0, 5.0]), np.array([1, 3, 4]))
    array([1., 2., 7.])
    """
    marks = np.stack([begin, begin + length], axis=1).ravel()
    after = np.cumsum(seconds * length)
    before = after - seconds * length
    if not len(marks):
        return np.zeros(len(step))
    return np.asarray(np.interp(step, marks, np.stack([before, after], axis=1).ravel()), np.float64)
