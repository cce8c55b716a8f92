"""Price messages without barriers by a longest path: one pass over the steps in (max, +) algebra.

A message starts when the data that it reads have arrived and the links on its route are free, and arrives (lands) after
the summed latency and the transmission time. So its time is the maximum over what it waits for, plus its own time: the
longest path in the acyclic graph of messages, found in one pass in the order of steps, vectorised per step.

Messages that share a link in one step take turns; the turn that delayed a message is recorded, so that the critical
path can be traced back from the last message: it alternates between "waited for this data" and "waited for this link".

Example: 0 -> 1 -> 2, latency 1 us and 2 us per message: landing at 3 us and 6 us. If 0 -> 2 used the second link
during [4, 5], the second message would land one microsecond later.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from antiphon.core.columns import Floats, Longs, order_of, places, pointers
from antiphon.core.dependencies import Versions, versions
from antiphon.core.messages import Messages, Paths, messages, paths, resource_name
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.cost.prediction import Hop, Prediction
from antiphon.cost.steps import latency_name
from antiphon.cost.trace import Events

ROUNDING = 1e-12  # relative difference below which two times count as equal


@dataclass(frozen=True, eq=False)
class Times:
    """When things happen, in seconds: per message, per use of a link, per row, per version.

    A version is the value of a cell (a rank's copy of a chunk) between two writes; see core/dependencies.py.
    """

    ready: Floats  # everything that a message reads is available
    sent: Floats  # its last turn on a link is over
    use_start: Floats
    use_end: Floats
    written: Floats  # a row's data is in its cell
    there: Floats  # a version is complete
    read: Floats  # all messages that read a version have left


@dataclass(frozen=True, eq=False)
class PathTime:
    """One path through the messages; its time is linear in nbytes: alpha + beta * nbytes."""

    alpha: float
    beta: float
    messages: int
    greatest: float
    weight: dict[int, float]  # link or limit -> its contribution to beta
    hops: tuple[Hop, ...]

    def at(self, nbytes: int) -> float:
        return self.alpha + self.beta * nbytes


@dataclass(eq=False)
class Flow:
    """A sorted schedule prepared for any size.

    Results are cached as path times: if two sizes lie on one line, so do all sizes between them.
    """

    schedule: Schedule
    topology: Topology
    known: dict[int, PathTime] = field(default_factory=dict)
    asked: list[int] = field(default_factory=list)
    paths: Paths = field(init=False)
    messages: Messages = field(init=False)
    cost: Floats = field(init=False)  # per use of a link or limit, in seconds per byte of nbytes
    versions: Versions = field(init=False)

    def __post_init__(self) -> None:
        self.messages = messages(self.schedule)
        self.paths = paths(self.messages, self.topology)
        self.cost = self.paths.use_cost()
        self.versions = versions(self.schedule)

    def __call__(self, nbytes: int) -> Prediction:
        line = self._find_line(nbytes)
        terms = {"latency": line.alpha, "bandwidth": line.beta * nbytes}
        return Prediction(sum(terms.values()), terms, self._name_bottleneck(line, terms), line.hops)

    def events(self, nbytes: int) -> Events:
        """Return when every message is in transit."""
        times = self.run(nbytes)
        landed = times.sent + self.paths.alpha
        np.maximum.at(landed, self.messages.of_row, times.written)
        start = landed - self.paths.alpha
        np.minimum.at(start, self.paths.use_message, times.use_start)
        return Events(self.paths, start, landed, times.use_start, times.use_end)

    def _name_bottleneck(self, line: PathTime, terms: dict[str, float]) -> str:
        greatest = max(terms, key=lambda term: terms[term])
        if not terms[greatest]:
            return "nothing takes time"
        if greatest == "latency":
            return latency_name(line.messages, line.greatest).replace("step", "message")
        return resource_name(self.topology, max(line.weight, key=lambda resource: line.weight[resource]))

    def _find_line(self, nbytes: int) -> PathTime:
        """Return the path time at this size.

        The time is convex in nbytes: it lies below its chords and above its tangents, and where the two meet no
        simulation is needed.
        """
        if nbytes in self.known:
            return self.known[nbytes]
        at = bisect_left(self.asked, nbytes)
        if 0 < at < len(self.asked):
            below, above = self.asked[at - 1], self.asked[at]
            first, last = self.known[below].at(below), self.known[above].at(above)
            chord = first + (last - first) * ((nbytes - below) / (above - below))
            line = max(self.known[below], self.known[above], key=lambda line_at: line_at.at(nbytes))
            if chord - line.at(nbytes) <= ROUNDING * chord:
                return line
        traced = self._trace_back(self.run(nbytes))
        self.known[nbytes] = traced
        self.asked.insert(at, nbytes)
        return traced

    # ---- forward ----

    @cached_property
    def _order(self) -> tuple[Longs, Longs, Longs, Longs, Longs, Longs]:
        """The order in which `run` works: rows by message; where each message's rows begin; where each step's messages,
        rows and uses begin; and every use's index among those of its link in its step.

        >>> from antiphon.core.example import machine, star
        >>> rows, row_ptr, steps, row_steps, uses, place = Flow(star(), machine())._order
        >>> rows.tolist(), row_ptr.tolist(), steps.tolist(), place.tolist()  # four messages of a row each
        ([1, 0, 2, 3], [0, 1, 2, 3, 4], [0, 2, 4], [0, 0, 0, 0])
        """
        table, routing = self.messages, self.paths
        rows = order_of(table.of_row, max(len(table), 1))
        row_ptr = pointers(table.of_row[rows], len(table))
        steps = np.append(np.flatnonzero(np.diff(table.step, prepend=-1)), len(table))
        uses = np.searchsorted(routing.use_message[self._by_message], steps)
        place = places(table.step[routing.use_message].astype(np.int64) * routing.resources + routing.use_resource)
        return rows, row_ptr, steps, row_ptr[steps], uses, place

    @cached_property
    def _by_message(self) -> Longs:
        return order_of(self.paths.use_message, max(len(self.messages), 1))

    def run(self, nbytes: int) -> Times:
        """Compute all times, step by step: what a step reads was written in earlier steps."""
        table, routing, version_table = self.messages, self.paths, self.versions
        rows, row_ptr, steps, row_steps, use_steps, place = self._order
        read, write, of_row = version_table.read[rows], version_table.write[rows], table.of_row[rows]
        written_at, last_read = np.zeros(len(version_table)), np.zeros(len(version_table))
        ready, sent, cost = np.zeros(len(table)), np.zeros(len(table)), self.cost * nbytes
        use_start, use_end, written = np.zeros(len(cost)), np.zeros(len(cost)), np.zeros(len(rows))
        free = np.zeros(routing.resources)
        bounds = zip(*(np.stack([c[:-1], c[1:]]).T.tolist() for c in (steps, row_steps, use_steps)), strict=True)
        for (m0, m1), (r0, r1), (u0, u1) in bounds:
            reads, writes, message_of_row = read[r0:r1], write[r0:r1], of_row[r0:r1] - m0
            ready[m0:m1] = np.maximum.reduceat(written_at[reads], row_ptr[m0:m1] - r0)
            user, resource = routing.use_message[u0:u1] - m0, routing.use_resource[u0:u1]
            begin, end = _queue_turns(ready[m0:m1][user], cost[u0:u1], free[resource], place[u0:u1])
            use_start[u0:u1], use_end[u0:u1] = begin, end
            free[resource] = end  # of several turns of a link, the last one is assigned last
            out = ready[m0:m1].copy()
            np.maximum.at(out, user, end)
            sent[m0:m1] = out
            np.maximum.at(last_read, reads, out[message_of_row])
            landed = (out + routing.alpha[m0:m1])[message_of_row]
            landed = np.maximum(landed, np.maximum(written_at[writes - 1], last_read[writes - 1]))
            written[r0:r1] = landed
            np.maximum.at(written_at, writes, landed)
        by_row = np.empty(len(rows))
        by_row[rows] = written
        return Times(ready, sent, use_start, use_end, by_row, written_at, last_read)

    # ---- back ----

    @cached_property
    def turn_before(self) -> Longs:
        """For each use, the previous use of the same link."""
        order = order_of(self.paths.use_resource, self.paths.resources)
        out = np.empty(len(order), np.int64)
        out[order[1:]] = order[:-1]
        return out

    @cached_property
    def _use_ptr(self) -> Longs:
        return pointers(self.paths.use_message[self._by_message], len(self.messages))

    def uses_by_message(self, message: int) -> Longs:
        return self._by_message[self._use_ptr[message] : self._use_ptr[message + 1]]

    def rows_of_message(self, message: int) -> Longs:
        rows, row_ptr, *_ = self._order
        return rows[row_ptr[message] : row_ptr[message + 1]]

    def _trace_back(self, times: Times) -> PathTime:
        """Trace the critical path back from the row that lands last. O(length of the path)."""
        table, alpha, version_table = self.messages, self.paths.alpha, self.versions
        walk = _Walk(self)
        row = int(times.written.argmax()) if len(times.written) else -1
        while row >= 0:
            message, before = int(table.of_row[row]), int(version_table.write[row]) - 1
            latest = times.sent[message] + alpha[message]
            if max(times.there[before], times.read[before]) > latest:  # its cell was not free yet
                if times.there[before] >= times.read[before]:
                    row = walk.writer(before, times)
                    continue
                readers = version_table.readers[1][
                    version_table.readers[0][before] : version_table.readers[0][before + 1]
                ]
                message = int(table.of_row[readers[times.sent[table.of_row[readers]].argmax()]])
            else:
                walk.alpha.append(float(alpha[message]))
            message = walk.turns(message, times)
            row = walk.source(message, times)
        return walk.line()


@dataclass(eq=False)
class _Walk:
    """The critical path traced backwards through links and cells, with its accumulated costs."""

    flow: Flow
    alpha: list[float] = field(default_factory=list)
    uses: list[int] = field(default_factory=list)
    passed: list[int] = field(default_factory=list)

    def turns(self, message: int, times: Times) -> int:
        """Go back through the turns that delayed this message; return the message whose turn found the link idle."""
        self.passed.append(message)
        own = self.flow.uses_by_message(message)
        if not len(own) or times.sent[message] <= times.ready[message]:
            return message
        use = int(own[times.use_end[own].argmax()])
        self.uses.append(use)
        users, before = self.flow.paths.use_message, self.flow.turn_before
        while times.use_start[use] > times.ready[message]:
            use = int(before[use])
            message = int(users[use])
            self.uses.append(use)
            self.passed.append(message)
        return message

    def source(self, message: int, times: Times) -> int:
        """Return the row that was last to write what this message reads; -1 where all of it is initial data."""
        rows = self.flow.rows_of_message(message)
        read = self.flow.versions.read[rows]
        return self.writer(int(read[times.there[read].argmax()]), times)

    def writer(self, version: int, times: Times) -> int:
        if self.flow.versions.initial[version]:
            return -1
        ptr, rows = self.flow.versions.writers
        writers = rows[ptr[version] : ptr[version + 1]]
        return int(writers[times.written[writers].argmax()])

    def line(self) -> PathTime:
        table = self.flow.messages
        cost, resource = self.flow.cost[self.uses], self.flow.paths.use_resource[self.uses]
        weight: dict[int, float] = {}
        for link, seconds in zip(resource.tolist(), cost.tolist(), strict=True):
            weight[link] = weight.get(link, 0.0) + seconds
        passed = self.passed[::-1]
        hops = zip(*(c[passed].tolist() for c in (table.step, table.src, table.dst)), strict=True)
        greatest = max(self.alpha, default=0.0)
        return PathTime(float(np.sum(self.alpha)), float(np.sum(cost)), len(self.alpha), greatest, weight, tuple(hops))


def _queue_turns(ready: Floats, cost: Floats, free: Floats, place: Longs) -> tuple[Floats, Floats]:
    """Return start and end of every turn, queued one after another on each link; `place` is 0 where a link's queue
    begins.

    The end of turn i is the greatest, over turns j up to i, of ready_j plus all costs from j to i: a running maximum,
    found in log2(longest queue) passes.
    """
    begin = np.maximum(ready, np.where(place == 0, free, 0.0))
    longest = int(place.max(initial=0))
    if longest == 0:
        return begin, begin + cost
    after = np.cumsum(cost)
    first = np.arange(len(place)) - place
    after -= after[first] - cost[first]
    best = begin - (after - cost)
    shift = 1
    while shift <= longest:
        moved = np.where(place[shift:] >= shift, best[:-shift], -np.inf)
        best[shift:] = np.maximum(best[shift:], moved)
        shift *= 2
    end = best + after
    previous = np.where(place == 0, 0.0, np.concatenate([[0.0], end[:-1]]))
    return np.maximum(begin, previous), end
