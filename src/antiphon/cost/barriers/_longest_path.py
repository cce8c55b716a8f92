"""Price messages without barriers by a longest path: one pass over the steps in (max, +) algebra.

A message starts when the data that it reads have arrived and the links on its route are free, and arrives (lands) after
the summed latency and the transmission time. So its time is the maximum over what it waits for, plus its own time: the
longest path in the acyclic graph of messages, found in one pass in the order of steps, vectorised per step.

A message *uses* each link and shared limit of its route; messages that share one take turns on it. The turn that
delayed a message is recorded, so that the critical path can be traced back from the last message: it alternates between
"waited for this data" and "waited for this link".

Example: 0 -> 1 -> 2, 1 us of latency and 2 us of transmission per message: they arrive at 3 us and 6 us. If a message
0 -> 2 used the second link from 2 to 4 us, the second message would wait one microsecond for it and arrive at 7 us.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from antiphon.core.columns import Floats, Longs, index_in_run, order_of, pointers
from antiphon.core.dependencies import Versions, versions
from antiphon.core.messages import Messages, Paths, messages, paths, resource_name
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.cost.prediction import Hop, Prediction
from antiphon.cost.steps import latency_name
from antiphon.cost.trace import Events

# Of core.columns: order_of(keys, bound) returns the row numbers, stably sorted by keys below `bound`; pointers(owners,
# count) where the rows of each owner begin (CSR); index_in_run the position of each element in its run of equal values.

ROUNDING = 1e-12  # relative difference below which two times count as equal


@dataclass(frozen=True, eq=False)
class Times:
    """When everything happens, in seconds.

    A version is the value of a cell (a rank's copy of a chunk) between two writes; see core/dependencies.py.
    """

    ready: Floats  # per message: everything that it reads is available
    sent: Floats  # per message: its last turn on a link is over
    use_start: Floats  # per use of a link or limit: its turn begins
    use_end: Floats  # ... and ends
    written: Floats  # per row of the schedule: its data is in its cell
    complete: Floats  # per version: all rows that write into it have written
    read: Floats  # per version: all messages that read it have been sent


@dataclass(frozen=True, eq=False)
class PathTime:
    """One path through the messages; its time is linear in nbytes: alpha + beta * nbytes."""

    alpha: float  # seconds
    beta: float  # seconds per byte
    messages: int  # number of messages whose latency is on the path
    greatest: float  # the greatest of these latencies, in seconds
    weight: dict[int, float]  # link or limit -> its contribution to beta
    hops: tuple[Hop, ...]  # its messages in order of time

    def at(self, nbytes: int) -> float:
        """Return the seconds of the path at this size."""
        return self.alpha + self.beta * nbytes


@dataclass(eq=False)
class SortedSchedule:
    """A schedule whose rows ascend by step (`Schedule.sorted`), prepared for any size.

    Results are cached as path times. If two sizes have the same critical path, so do all sizes between them.
    """

    schedule: Schedule
    topology: Topology
    cached: dict[int, PathTime] = field(default_factory=dict)  # by size
    cached_sizes: list[int] = field(default_factory=list)  # ascending
    # its uses are sorted by step, then resource, then message: the turns of a link in a step are adjacent and in order
    paths: Paths = field(init=False)
    messages: Messages = field(init=False)  # `of_row`: the message of each row of the schedule
    cost: Floats = field(init=False)  # per use of a link or limit, in seconds per byte of nbytes
    versions: Versions = field(init=False)  # `read`, `write`: the version that each row reads, and writes

    def __post_init__(self) -> None:
        self.messages = messages(self.schedule)
        self.paths = paths(self.messages, self.topology)
        self.cost = self.paths.use_cost()
        self.versions = versions(self.schedule)

    def __call__(self, nbytes: int) -> Prediction:
        critical = self._find_critical_path(nbytes)
        terms = {"latency": critical.alpha, "bandwidth": critical.beta * nbytes}
        return Prediction(sum(terms.values()), terms, self._name_bottleneck(critical, terms), critical.hops)

    def events(self, nbytes: int) -> Events:
        """Return when every message is in transit."""
        times = self.run(nbytes)
        landed = times.sent + self.paths.alpha
        # data that have arrived and wait for their cell to become free still count as in transit
        np.maximum.at(landed, self.messages.of_row, times.written)
        # a message that uses no link starts alpha before it lands; any other with its first turn
        start = landed - self.paths.alpha
        np.minimum.at(start, self.paths.use_message, times.use_start)
        return Events(self.paths, start, landed, times.use_start, times.use_end)

    def _name_bottleneck(self, critical: PathTime, terms: dict[str, float]) -> str:
        """Return the bottleneck in words: what causes the greatest term."""
        greatest = max(terms, key=lambda term: terms[term])
        if not terms[greatest]:
            return "nothing takes time"
        if greatest == "latency":
            return latency_name(critical.messages, critical.greatest, critical.alpha, noun="message")
        return resource_name(self.topology, max(critical.weight, key=lambda resource: critical.weight[resource]))

    def _find_critical_path(self, nbytes: int) -> PathTime:
        """Return the critical path at this size.

        The time is convex in nbytes, as the maximum over paths. Between two cached sizes it lies below the chord that
        joins their times, and above the lines of their critical paths. Where the two meet no simulation is needed.
        """
        if nbytes in self.cached:
            return self.cached[nbytes]
        at = bisect_left(self.cached_sizes, nbytes)
        if 0 < at < len(self.cached_sizes):
            below, above = self.cached_sizes[at - 1], self.cached_sizes[at]
            first, last = self.cached[below].at(below), self.cached[above].at(above)
            chord = first + (last - first) * ((nbytes - below) / (above - below))
            critical = max(self.cached[below], self.cached[above], key=lambda cached: cached.at(nbytes))
            if chord - critical.at(nbytes) <= ROUNDING * chord:
                return critical
        traced = self._trace_back(self.run(nbytes))
        self.cached[nbytes] = traced
        self.cached_sizes.insert(at, nbytes)
        return traced

    # ---- forward ----

    @cached_property
    def _order(self) -> tuple[Longs, Longs, Longs, Longs, Longs, Longs]:
        """Return the order in which `run` works: rows, row_ptr, message_steps, row_steps, use_steps, queue_position.

        `rows`: the rows of the schedule, sorted by message; `row_ptr`: where those of each message begin. `*_steps`:
        where the messages, rows and uses of each step begin. `queue_position`: per use of a link, its position in the
        queue of this link in this step.

        >>> from antiphon.core.example import machine, star
        >>> rows, row_ptr, message_steps, *_, queue_position = SortedSchedule(star(), machine())._order
        >>> rows.tolist(), row_ptr.tolist(), message_steps.tolist()  # four messages of a row each
        ([1, 0, 2, 3], [0, 1, 2, 3, 4], [0, 2, 4])
        >>> queue_position.tolist()
        [0, 0, 0, 0]
        """
        table, routing = self.messages, self.paths
        rows = order_of(table.of_row, max(len(table), 1))
        row_ptr = pointers(table.of_row[rows], len(table))
        message_steps = np.append(np.flatnonzero(np.diff(table.step, prepend=-1)), len(table))
        # The uses of a step are one run in both orders, by message and by step, as messages ascend by step.
        use_steps = np.searchsorted(routing.use_message[self._by_message], message_steps)
        queue_position = index_in_run(
            table.step[routing.use_message].astype(np.int64) * routing.resources + routing.use_resource
        )
        return rows, row_ptr, message_steps, row_ptr[message_steps], use_steps, queue_position

    @cached_property
    def _by_message(self) -> Longs:
        """Return the uses of links and limits, sorted by message."""
        return order_of(self.paths.use_message, max(len(self.messages), 1))

    def run(self, nbytes: int) -> Times:
        """Compute all times, step by step: the data that a step reads were written in earlier steps."""
        table, routing, version_table = self.messages, self.paths, self.versions
        rows, row_ptr, message_steps, row_steps, use_steps, queue_position = self._order
        read, write, of_row = version_table.read[rows], version_table.write[rows], table.of_row[rows]
        written_at, last_read = np.zeros(len(version_table)), np.zeros(len(version_table))
        ready, sent, cost = np.zeros(len(table)), np.zeros(len(table)), self.cost * nbytes
        use_start, use_end, written = np.zeros(len(cost)), np.zeros(len(cost)), np.zeros(len(rows))
        idle_from = np.zeros(routing.resources)
        bounds = zip(
            *(np.stack([c[:-1], c[1:]]).T.tolist() for c in (message_steps, row_steps, use_steps)), strict=True
        )
        # per step: its messages are m0 to m1 - 1, its rows r0 to r1 - 1, its uses of links u0 to u1 - 1
        for (m0, m1), (r0, r1), (u0, u1) in bounds:
            reads, writes, message_of_row = read[r0:r1], write[r0:r1], of_row[r0:r1] - m0
            ready[m0:m1] = np.maximum.reduceat(written_at[reads], row_ptr[m0:m1] - r0)
            user, resource = routing.use_message[u0:u1] - m0, routing.use_resource[u0:u1]
            begin, end = _queue_turns(ready[m0:m1][user], cost[u0:u1], idle_from[resource], queue_position[u0:u1])
            use_start[u0:u1], use_end[u0:u1] = begin, end
            idle_from[resource] = end  # of several turns on a link, the last one is assigned last
            last_turn_end = ready[m0:m1].copy()  # remains so for messages that use no link
            np.maximum.at(last_turn_end, user, end)
            sent[m0:m1] = last_turn_end
            np.maximum.at(last_read, reads, last_turn_end[message_of_row])
            landed = (last_turn_end + routing.alpha[m0:m1])[message_of_row]
            # A cell is overwritten once its previous version is complete and has been read. Versions of a cell have
            # consecutive numbers, and the first, initial data, is never written.
            landed = np.maximum(landed, np.maximum(written_at[writes - 1], last_read[writes - 1]))
            written[r0:r1] = landed
            np.maximum.at(written_at, writes, landed)
        by_row = np.empty(len(rows))
        by_row[rows] = written
        return Times(ready, sent, use_start, use_end, by_row, written_at, last_read)

    # ---- back ----

    @cached_property
    def turn_before(self) -> Longs:
        """Return for each use the previous use of the same link; undefined for the first use, which waits for none."""
        order = order_of(self.paths.use_resource, self.paths.resources)
        previous = np.empty(len(order), np.int64)
        previous[order[1:]] = order[:-1]
        return previous

    @cached_property
    def _use_ptr(self) -> Longs:
        """Return where the uses of each message begin in `_by_message`."""
        return pointers(self.paths.use_message[self._by_message], len(self.messages))

    def uses_by_message(self, message: int) -> Longs:
        """Return the uses of links and limits by a message."""
        return self._by_message[self._use_ptr[message] : self._use_ptr[message + 1]]

    def rows_of_message(self, message: int) -> Longs:
        """Return the rows of the schedule that form a message."""
        rows, row_ptr, *_ = self._order
        return rows[row_ptr[message] : row_ptr[message + 1]]

    def _trace_back(self, times: Times) -> PathTime:
        """Trace the critical path back from the row that lands last. O(length of the path)."""
        table, alpha, version_table = self.messages, self.paths.alpha, self.versions
        walk = _Walk(self)
        row = int(times.written.argmax()) if len(times.written) else -1
        while row >= 0:
            # the row writes version before + 1: the previous version of the cell must be complete and read by then
            message, before = int(table.of_row[row]), int(version_table.write[row]) - 1
            latest = times.sent[message] + alpha[message]
            if max(times.complete[before], times.read[before]) > latest:  # its cell was not free yet
                if times.complete[before] >= times.read[before]:
                    row = walk.writer(before, times)
                    continue
                # The cell became free when its last reader had been sent (not when it landed), so the path goes on
                # through that reader, without its latency.
                ptr, rows = version_table.readers
                readers = rows[ptr[before] : ptr[before + 1]]
                message = int(table.of_row[readers[times.sent[table.of_row[readers]].argmax()]])
            else:
                walk.alpha.append(float(alpha[message]))
            message = walk.turns(message, times)
            row = walk.source(message, times)
        return walk.path_time()


@dataclass(eq=False)
class _Walk:
    """The critical path, traced backwards through links and cells."""

    sorted_schedule: SortedSchedule
    alpha: list[float] = field(default_factory=list)  # latencies on the path, in seconds
    uses: list[int] = field(default_factory=list)  # turns on the path
    passed: list[int] = field(default_factory=list)  # messages on the path, latest first

    def turns(self, message: int, times: Times) -> int:
        """Go back through the turns that delayed this message; return the message whose turn found the link idle."""
        self.passed.append(message)
        uses = self.sorted_schedule.uses_by_message(message)
        if not len(uses) or times.sent[message] <= times.ready[message]:
            return message
        use = int(uses[times.use_end[uses].argmax()])
        self.uses.append(use)
        users, before = self.sorted_schedule.paths.use_message, self.sorted_schedule.turn_before
        while times.use_start[use] > times.ready[message]:
            use = int(before[use])
            message = int(users[use])
            self.uses.append(use)
            self.passed.append(message)
        return message

    def source(self, message: int, times: Times) -> int:
        """Return the row that was the last to write what this message reads; -1 if all of that is initial data."""
        rows = self.sorted_schedule.rows_of_message(message)
        read = self.sorted_schedule.versions.read[rows]
        return self.writer(int(read[times.complete[read].argmax()]), times)

    def writer(self, version: int, times: Times) -> int:
        """Return the row that was the last to write into this version; -1 if it is initial data."""
        if self.sorted_schedule.versions.initial[version]:
            return -1
        ptr, rows = self.sorted_schedule.versions.writers
        writers = rows[ptr[version] : ptr[version + 1]]
        return int(writers[times.written[writers].argmax()])

    def path_time(self) -> PathTime:
        """Return the path with its latency and its seconds per byte."""
        table = self.sorted_schedule.messages
        cost, resource = self.sorted_schedule.cost[self.uses], self.sorted_schedule.paths.use_resource[self.uses]
        weight: dict[int, float] = {}
        for link, seconds in zip(resource.tolist(), cost.tolist(), strict=True):
            weight[link] = weight.get(link, 0.0) + seconds
        passed = self.passed[::-1]
        hops = zip(*(c[passed].tolist() for c in (table.step, table.src, table.dst)), strict=True)
        greatest = max(self.alpha, default=0.0)
        return PathTime(float(np.sum(self.alpha)), float(np.sum(cost)), len(self.alpha), greatest, weight, tuple(hops))


def _queue_turns(ready: Floats, cost: Floats, idle_from: Floats, queue_position: Longs) -> tuple[Floats, Floats]:
    """Return the begin and end of every turn, one after another on each link. The turns of a link are adjacent.

    `ready`, `cost`: per turn, in seconds. `idle_from`: per turn, when its link becomes idle. `queue_position`: per
    turn, its position in the queue of its link; 0 begins a queue.

    The end of turn i is the greatest of ready[j] + cost[j] + ... + cost[i] over the turns j <= i of its queue. With
    prefix sums of the costs this is a running maximum, found in log2(longest queue) passes.
    """
    begin = np.maximum(ready, np.where(queue_position == 0, idle_from, 0.0))
    longest = int(queue_position.max(initial=0))
    if longest == 0:
        return begin, begin + cost
    total = np.cumsum(cost)
    first = np.arange(len(queue_position)) - queue_position
    total -= total[first] - cost[first]  # costs of the queue up to and including this turn
    # When the queue would have to begin for a turn to start at its `begin` without a pause: `begin` minus the costs
    # before it. The loop turns this into the running maximum over the queue.
    best = begin - (total - cost)
    shift = 1
    while shift <= longest:
        earlier = np.where(queue_position[shift:] >= shift, best[:-shift], -np.inf)  # in the same queue
        best[shift:] = np.maximum(best[shift:], earlier)
        shift *= 2
    end = best + total
    previous = np.where(queue_position == 0, 0.0, np.concatenate([[0.0], end[:-1]]))
    return np.maximum(begin, previous), end
