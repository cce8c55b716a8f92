"""The event loop of the flow-level simulator: jump from one moment at which something changes to the next.

Input: the prepared tables of a schedule (tables.py) and a size. Output: `Moments`, the times of every message and every
version (a cell's value between two writes). A *flow* is a message whose bytes are in transit. Counters hold the number
of events for which each message and version still waits. Events: a flow ends (its last byte has arrived), a latency
expires, a rank finishes combining. An event decrements counters; at zero the next stage begins: a message is ready, its
latency runs, its flow begins and ends, and the versions that it writes can be combined and written. Rates of flows are
updated once per moment (rates.py).

Example (`core.example.star`, 1000 bytes, 1 us latency, 1 GB/s): at 0 both latencies start; at 1 us both flows begin; at
2 us they end, the sum at rank 0 is written and the latencies of both copies start; at 4 us all is done.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from itertools import count

import numpy as np

from antiphon.core.columns import Floats, Ints, Longs, order_of, run_starts
from antiphon.cost.flows.rates import FlowsInTransit
from antiphon.cost.flows.tables import FlowTables, Watch

# Of core.columns: order_of(keys, bound) returns the row numbers, stably sorted by keys below `bound`; run_starts where
# runs of equal keys begin.

SAME_MOMENT = 1 + 1e-12  # events closer than this factor are simultaneous; else rounding would split symmetric events
NOTHING: Longs = np.zeros(0, np.int64)
_EXPIRES, _COMBINED = 0, 1  # kinds of calendar entries: a latency ends, a rank has combined


@dataclass(frozen=True, eq=False)
class Moments:
    """The times of all messages and versions, in seconds."""

    # per message
    ready: Floats  # all versions that it reads are written
    begin: Floats  # its bytes begin to move
    sent: Floats  # its last byte has arrived
    bottleneck: Ints  # the link or limit that set its last rate
    lost: Floats  # the part of `sent` - `begin` that is due to incast
    # per version
    possible: Floats  # all its gates (tables.py) have happened
    combine: Floats  # its rank begins to combine it
    written_at: Floats  # it is complete
    before: Longs  # the version that its rank combined just before, or -1
    count: int  # number of moments at which something changed

    @property
    def last(self) -> float:
        """Return when the last message has arrived and the last version is written."""
        return max(float(self.sent.max(initial=0.0)), float(self.written_at.max(initial=0.0)))


class FlowSimulation:
    """The simulation of one size. A moment costs O(changes) and the rates that may change with them.

    `watch` receives every changed load of a link or limit; None: nobody does.
    """

    def __init__(self, tables: FlowTables, nbytes: float, watch: Watch | None = None) -> None:
        self.tables, self.nbytes = tables, nbytes
        message_count, versions = len(tables.messages), len(tables.versions)
        self.network = FlowsInTransit(tables, nbytes, watch)
        # counters, see FlowTables
        self.reads, self.waits, self.gates = tables.reads.copy(), tables.waits.copy(), tables.gates.copy()
        self.ready, self.begin, self.sent = np.zeros(message_count), np.zeros(message_count), np.zeros(message_count)
        self.possible, self.combine, self.written_at = (np.zeros(versions) for _ in range(3))
        self.before = np.full(versions, -1, np.int64)
        ranks = int(tables.rank.max(initial=-1)) + 1
        # per rank: when its processor becomes idle, and the last version that it combined
        self.idle_from, self.last_combined = np.zeros(ranks), np.full(ranks, -1, np.int64)
        # A heap of (time, number, kind, messages or versions); the number breaks ties.
        self.calendar: list[tuple[float, int, int, Longs]] = []
        self.sequence = count()
        # Scratch space of `_drop_repeats`; never cleared, as only elements just written are read.
        self.scratch: Longs = np.zeros(max(message_count, versions) + 1, np.int64)
        self.moments = 0

    def run_events(self) -> Moments:
        """Advance until nothing is in transit; return when each message and each version was complete.

        Of `core.example.star` with 1000 bytes, in microseconds: a latency, then the bytes; the same for the copies.

        >>> from antiphon.core.example import machine, star
        >>> from antiphon.cost.flows.tables import prepare_tables
        >>> from antiphon.cost.profile import Profile
        >>> moments = FlowSimulation(prepare_tables(star().sorted(), machine(), Profile()), 1000).run_events()
        >>> [(seconds * 1e6).round(3).tolist() for seconds in (moments.begin, moments.sent, moments.written_at)]
        [[1.0, 1.0, 3.0, 3.0], [2.0, 2.0, 4.0, 4.0], [0.0, 2.0, 0.0, 4.0, 0.0, 4.0]]
        """
        self._process_moment(
            now=0.0, ended=NOTHING, expired=NOTHING, written=NOTHING, ready=np.flatnonzero(self.reads[:-1] == 0)
        )
        # Jump to the next event: a flow ends, a latency expires, or a rank finishes combining.
        while True:
            first = self.network.next_end()
            if self.calendar:
                first = min(first, self.calendar[0][0])
            if first == np.inf:
                break
            # Events within rounding of each other count as simultaneous; otherwise symmetric flows would drift apart.
            ended, now = self.network.flows_ended(first * SAME_MOMENT)
            due: tuple[list[Longs], list[Longs]] = ([], [])
            while self.calendar and self.calendar[0][0] <= first * SAME_MOMENT:
                time, _, kind, items = heapq.heappop(self.calendar)
                due[kind].append(items)
                now = max(now, time)
            self._process_moment(now, ended, _concatenate(due[_EXPIRES]), _concatenate(due[_COMBINED]), NOTHING)
        network = self.network
        return Moments(
            self.ready, self.begin, self.sent, bottleneck=network.bottleneck, lost=network.lost,
            possible=self.possible, combine=self.combine, written_at=self.written_at, before=self.before,
            count=self.moments,
        )  # fmt: skip

    def _process_moment(self, now: float, ended: Longs, expired: Longs, written: Longs, ready: Longs) -> None:
        """Process everything that happens now and its immediate consequences; then update the rates.

        Arguments: messages whose flow has ended, whose latency has expired, that are ready; versions that are written.
        """
        self.moments += 1
        first_ended, moving = ended, []  # flows that leave the network; messages with bytes, which enter it
        # Each iteration processes the events that the previous one made possible at this moment. Work of length 0 (no
        # bytes, no latency, nothing to combine) ends at the same moment, so iterate until there are no more events.
        while len(ended) or len(expired) or len(written) or len(ready):
            # Order within a moment: last bytes arrive, values become writable, readers become ready, latencies end.
            startable, writable = self._mark_sent(now, ended), self._open_gates(ended, written)
            ready = _concatenate([ready, self._mark_written(now, written)])
            begun = _concatenate(
                [startable, self._count_down(self._start_ready(now, ready)), self._count_down(expired)]
            )
            self.begin[begun] = now
            has_bytes = self.network.remaining[begun] > 0
            moving.append(begun[has_bytes])
            ended, written = begun[~has_bytes], self._start_combining(now, writable)
            expired = ready = NOTHING
        begun = _concatenate(moving)
        if len(first_ended) or len(begun):
            self.network.change_flows(now, first_ended, begun)

    def _mark_sent(self, now: float, ended: Longs) -> Longs:
        """Mark messages whose last byte has arrived; return the next messages of their connections that now begin."""
        self.sent[ended] = now
        return self._count_down(self.tables.after[ended])

    def _count_down(self, messages: Longs) -> Longs:
        """Decrement the wait counters of these distinct messages; return those that no longer wait. O(messages)."""
        if not len(messages):
            return NOTHING
        # Fancy indexing suffices, as messages are distinct; `_open_gates` needs subtract.at for repeats.
        remaining = self.waits[messages] - 1
        self.waits[messages] = remaining
        return messages[remaining == 0]

    def _open_gates(self, ended: Longs, written: Longs) -> Longs:
        """Return versions that can now be written. A message that ended unblocks the versions it writes and the
        successors of those it read; a written version unblocks its successor. O(rows)."""
        tables = self.tables
        if not len(ended):
            versions = tables.follows[written]
        else:
            rows = tables.rows_of_messages(ended)
            versions = np.concatenate([tables.writes[rows], tables.frees[rows], tables.follows[written]])
        if not len(versions):
            return NOTHING
        np.subtract.at(self.gates, versions, 1)
        return self._drop_repeats(versions[self.gates[versions] == 0])

    def _mark_written(self, now: float, written: Longs) -> Longs:
        """Mark versions as written; return the messages that now have all they read."""
        if not len(written):
            return NOTHING
        self.written_at[written] = now
        readers = self.tables.readers_of(written)
        np.subtract.at(self.reads, readers, 1)
        return self._drop_repeats(readers[self.reads[readers] == 0])

    def _start_ready(self, now: float, messages: Longs) -> Longs:
        """Start messages: their latency runs; return those without latency."""
        if not len(messages):
            return messages
        self.ready[messages] = now
        # One calendar entry per distinct latency, however large the batch.
        alpha = self.tables.paths.alpha[messages]
        for value in _distinct_values(alpha):
            if value > 0:
                self._schedule_event(now + value, _EXPIRES, messages[alpha == value])
        return messages[alpha == 0]

    def _start_combining(self, now: float, versions: Longs) -> Longs:
        """Return versions that can be written at once, those without work. The others queue for their rank's processor.

        Everything that a rank can combine at one moment is one job of its processor: it begins when the previous job is
        done, and all its versions are written at its end.
        """
        if not len(versions):
            return NOTHING
        self.possible[versions] = now
        self.combine[versions] = now
        if self.tables.work is None:
            return versions
        seconds = self.tables.work.seconds[versions] * self.nbytes
        without_work = versions[seconds == 0]
        queued, seconds = versions[seconds > 0], seconds[seconds > 0]
        if not len(queued):
            return without_work
        # one job per rank
        order = order_of(self.tables.rank[queued], len(self.idle_from))
        ranks = self.tables.rank[queued][order]
        first = np.flatnonzero(run_starts(ranks))
        rank = ranks[first]
        # FIFO server: work begins when it arrives or when the processor is free, whichever is later.
        begin = np.maximum(self.idle_from[rank], now)
        done = begin + np.add.reduceat(seconds[order], first)
        size = np.diff(np.append(first, len(queued)))
        batch = queued[order]
        self.combine[batch] = np.repeat(begin, size)
        self.before[batch] = np.repeat(self.last_combined[rank], size)
        # The first version of a rank's job stands for all, which end together.
        self.idle_from[rank], self.last_combined[rank] = done, batch[first]
        ends = np.repeat(done, size)
        for value in _distinct_values(ends):
            self._schedule_event(value, _COMBINED, batch[ends == value])
        return without_work

    def _drop_repeats(self, values: Longs) -> Longs:
        """Return each value once, without sorting: of equal ones only the last finds its own mark. O(values)."""
        if len(values) < 2:
            return values
        position = np.arange(len(values))
        self.scratch[values] = position
        return values[self.scratch[values] == position]

    def _schedule_event(self, time: float, kind: int, items: Longs) -> None:
        """Put an event of these messages or versions into the calendar."""
        heapq.heappush(self.calendar, (time, next(self.sequence), kind, items))


def _distinct_values(column: Floats) -> list[float]:
    """Return the distinct values; mostly there is one."""
    if not len(column):
        return []
    if (column == column[0]).all():
        return [float(column[0])]
    return [float(value) for value in np.unique(column)]


def _concatenate(arrays: list[Longs]) -> Longs:
    arrays = [array for array in arrays if len(array)]
    if not arrays:
        return NOTHING
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
