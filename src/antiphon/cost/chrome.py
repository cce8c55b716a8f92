"""Write Chrome's trace format, which Perfetto and browsers open: processes, lines, intervals, arrows and counters.

A trace is a list of events. `TraceWriter` collects them: `process` and `line` name where events are drawn,
`add_interval` draws an interval of time (viewers call it a slice), `arrow` connects two intervals, `counter` draws a
value over time. `write_ranks` draws the messages of all ranks; intervals of one rank that overlap are put on separate
lines.

Example: a message from 0 to 1, from 2 to 5 us, is an interval on line "rank 0 sends" and one on line "rank 1 receives",
with an arrow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

import msgspec

# Processes of a trace (PATH: the critical path); viewers take process 0 for the idle one
RANKS, LINKS, LIMITS, PATH = 1, 2, 3, 4
MARK = {"cname": "terrible"}  # red, in viewers that know colour names
# Kind of event -> its word in the names of lines. "within": a message of a rank to itself; "fold": a reduction
LINE_WORDS = {"call": "calls", "send": "sends", "receive": "receives", "within": "copies", "fold": "folds"}
Interval = tuple[float, float]  # begin and end of an interval, in microseconds


@dataclass
class TraceWriter:
    """Collects the events of a trace and encodes them."""

    title: str
    about: Mapping[str, Any] = field(default_factory=dict)  # metadata of the trace
    events: list[dict[str, Any]] = field(default_factory=list)
    lines: dict[int, int] = field(default_factory=dict)  # per process, the number of its lines

    def process(self, pid: int, name: str) -> None:
        """Name a process; processes are shown in the order of their pids."""
        self._add_name("process_name", pid, tid=0, name=name)
        self._add_order("process_sort_index", pid, tid=0, position=pid)

    def line(self, pid: int, name: str, tid: int | None = None) -> int:
        """Add a line to a process and return its tid, by which events refer to it; lines are shown in the order in
        which they were added. `tid` must be unique in the process; default: the position of the line."""
        position = self.lines[pid] = self.lines.get(pid, 0) + 1
        tid = position if tid is None else tid
        self._add_name("thread_name", pid, tid, name)
        self._add_order("thread_sort_index", pid, tid, position)
        return tid

    def add_interval(
        self, kind: str, name: str, line: tuple[int, int], when: Interval, args: Mapping[str, Any], marked: bool = False
    ) -> None:
        """Add an interval to a line, (pid, tid). Marked intervals are red."""
        # whole nanoseconds, so that intervals that touch still touch after the viewer has rounded
        (pid, tid), (begin, end) = line, (round(moment * 1000) for moment in when)
        mark = MARK if marked else {}
        self.events.append(
            {"name": name, "cat": kind, "ph": "X", "pid": pid, "tid": tid, "ts": begin / 1000,
             "dur": (end - begin) / 1000, "args": args, **mark}
        )  # fmt: skip

    def arrow(self, number: int, start: tuple[int, int, float], end: tuple[int, int, float]) -> None:
        """Add an arrow between two intervals that were added before. An end is (pid, tid, time)."""
        common = {"name": "message", "cat": "message", "id": number}
        for phase, (pid, tid, ts) in (("s", start), ("f", end)):
            # "bp": "e" binds the head of the arrow to the interval around it, not to the next one
            binding = {"bp": "e"} if phase == "f" else {}
            self.events.append(
                {**common, "ph": phase, "pid": pid, "tid": tid, "ts": round(ts * 1000) / 1000, **binding}
            )

    def counter(self, name: str, line: tuple[int, int], ts: float, values: Mapping[str, float]) -> None:
        """Add a value of a counter at a time."""
        pid, tid = line
        self.events.append({"name": name, "ph": "C", "pid": pid, "tid": tid, "ts": ts, "args": values})

    def encode(self) -> bytes:
        """Return the trace as JSON."""
        document = {
            "displayTimeUnit": "ns",
            "otherData": {"title": self.title, **self.about},
            "traceEvents": self.events,
        }
        return msgspec.json.encode(document) + b"\n"

    def _add_name(self, event: str, pid: int, tid: int, name: str) -> None:
        self.events.append({"name": event, "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}})

    def _add_order(self, event: str, pid: int, tid: int, position: int) -> None:
        self.events.append({"name": event, "ph": "M", "pid": pid, "tid": tid, "args": {"sort_index": position}})


@dataclass(frozen=True)
class Passage:
    """A message in transit."""

    sent: Interval  # at the sender
    received: Interval  # at the receiver, begins at the earliest possible arrival; ignored if src == dst
    facts: Mapping[str, Any]  # step, src, dst and bytes
    marked: bool = False  # drawn in red

    @property
    def title(self) -> str:
        return f"{self.facts['src']} to {self.facts['dst']}, step {self.facts['step']}"


@dataclass(frozen=True)
class RankWork:
    """Local work of a rank."""

    rank: int
    kind: str  # fold (combining values), or call
    title: str
    when: Interval
    facts: Mapping[str, Any]


def write_ranks(trace: TraceWriter, passages: Sequence[Passage], works: Sequence[RankWork] = ()) -> None:
    """Write the process `ranks`: each message as an interval at its sender and one at its receiver, with an arrow."""
    # by rank and kind: each interval and the number of its passage or work
    intervals_of: dict[tuple[int, str], list[tuple[Interval, int]]] = {}
    for number, passage in enumerate(passages):
        src, dst = passage.facts["src"], passage.facts["dst"]
        intervals_of.setdefault((src, "send" if src != dst else "within"), []).append((passage.sent, number))
        if src != dst:
            intervals_of.setdefault((dst, "receive"), []).append((passage.received, number))
    for number, work in enumerate(works):
        intervals_of.setdefault((work.rank, work.kind), []).append((work.when, number))
    order = list(LINE_WORDS)
    line_of: dict[tuple[str, int], tuple[int, int]] = {}  # by kind and number: (pid, tid)
    for rank, kind in sorted(intervals_of, key=lambda key: (key[0], order.index(key[1]))):
        intervals = intervals_of[rank, kind]
        lanes = _assign_lanes([when for when, _ in intervals])
        tids = [
            trace.line(RANKS, f"rank {rank} {LINE_WORDS[kind]}" + (f" ({lane + 1})" if lane else ""))
            for lane in range(max(lanes, default=-1) + 1)
        ]
        for (when, number), lane in zip(intervals, lanes, strict=True):
            line_of[kind, number] = RANKS, tids[lane]
            if kind in ("call", "fold"):
                trace.add_interval(kind, works[number].title, line_of[kind, number], when, works[number].facts)
            else:
                passage = passages[number]
                trace.add_interval(kind, passage.title, line_of[kind, number], when, passage.facts, passage.marked)
    for number, passage in enumerate(passages):
        if ("receive", number) in line_of:
            trace.arrow(
                number, (*line_of["send", number], passage.sent[0]), (*line_of["receive", number], passage.received[0])
            )


def _assign_lanes(intervals: Sequence[Interval]) -> list[int]:
    """Assign intervals to lines so that none overlap on a line, with as few lines as possible.

    >>> _assign_lanes([(0.0, 2.0), (1.0, 3.0), (2.0, 4.0)])
    [0, 1, 0]
    """
    lanes = [0] * len(intervals)
    busy: list[tuple[float, int]] = []  # heap of (end, line)
    free: list[int] = []  # heap of lines
    for number in sorted(range(len(intervals)), key=lambda index: intervals[index]):
        begin, end = intervals[number]
        while busy and busy[0][0] <= begin:
            heappush(free, heappop(busy)[1])
        lanes[number] = heappop(free) if free else len(busy)
        heappush(busy, (end, lanes[number]))
    return lanes
