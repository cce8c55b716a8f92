"""Write Chrome's trace format, which Perfetto and browsers open: processes, tracks, intervals, arrows and counters.

A trace is a list of events. `TraceWriter` collects them: `add_process` and `add_track` name where events are
drawn, `add_interval` draws an interval of time (viewers call it a slice), `add_arrow` connects two intervals,
`add_counter` draws a value over time. `write_ranks` draws the messages of all ranks; intervals of one rank that overlap
are put on separate tracks.

Example: a message from 0 to 1, from 2 to 5 us, is an interval on track "rank 0 sends" and one on track "rank 1
receives", with an arrow.
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
# Kind of event -> its word in the names of tracks. "within": a message of a rank to itself; "fold": a reduction
TRACK_WORDS = {"call": "calls", "send": "sends", "receive": "receives", "within": "copies", "fold": "folds"}
Interval = tuple[float, float]  # begin and end of an interval, in microseconds


@dataclass
class TraceWriter:
    """Collects the events of a trace and encodes them."""

    title: str
    about: Mapping[str, Any] = field(default_factory=dict)  # metadata of the trace
    events: list[dict[str, Any]] = field(default_factory=list)
    tracks: dict[int, int] = field(default_factory=dict)  # per process, the number of its tracks

    def add_process(self, pid: int, name: str) -> None:
        """Add a process of this name; processes are shown in the order of their pids."""
        self._add_name("process_name", pid, tid=0, name=name)
        self._add_order("process_sort_index", pid, tid=0, position=pid)

    def add_track(self, pid: int, name: str, tid: int | None = None) -> int:
        """Add a track to a process and return its tid, by which events refer to it; tracks are shown in the order in
        which they were added. `tid` must be unique in the process; default: the position of the track."""
        position = self.tracks[pid] = self.tracks.get(pid, 0) + 1
        tid = position if tid is None else tid
        self._add_name("thread_name", pid, tid, name)
        self._add_order("thread_sort_index", pid, tid, position)
        return tid

    def add_interval(
        self,
        kind: str,
        name: str,
        track: tuple[int, int],
        when: Interval,
        args: Mapping[str, Any],
        marked: bool = False,
    ) -> None:
        """Add an interval to a track, (pid, tid). Marked intervals are red."""
        # whole nanoseconds, so that intervals that touch still touch after the viewer has rounded
        (pid, tid), (begin, end) = track, (round(moment * 1000) for moment in when)
        mark = MARK if marked else {}
        self.events.append(
            {"name": name, "cat": kind, "ph": "X", "pid": pid, "tid": tid, "ts": begin / 1000,
             "dur": (end - begin) / 1000, "args": args, **mark}
        )  # fmt: skip

    def add_arrow(self, number: int, start: tuple[int, int, float], end: tuple[int, int, float]) -> None:
        """Add an arrow between two intervals that were added before. An end is (pid, tid, time)."""
        common = {"name": "message", "cat": "message", "id": number}
        for phase, (pid, tid, ts) in (("s", start), ("f", end)):
            # "bp": "e" binds the head of the arrow to the interval around it, not to the next one
            binding = {"bp": "e"} if phase == "f" else {}
            ns = round(ts * 1000)  # whole nanoseconds, as of intervals
            self.events.append({**common, "ph": phase, "pid": pid, "tid": tid, "ts": ns / 1000, **binding})

    def add_counter(self, name: str, track: tuple[int, int], ts: float, values: Mapping[str, float]) -> None:
        """Add a value of a counter at a time."""
        pid, tid = track
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
class TracedMessage:
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


def write_ranks(trace: TraceWriter, messages: Sequence[TracedMessage], rank_work: Sequence[RankWork] = ()) -> None:
    """Fill the process RANKS, which the caller adds: each message is an interval at its sender and one at its receiver,
    with an arrow."""
    # by rank and kind: each interval and the number of its message or work
    intervals_of: dict[tuple[int, str], list[tuple[Interval, int]]] = {}
    for number, message in enumerate(messages):
        src, dst = message.facts["src"], message.facts["dst"]
        intervals_of.setdefault((src, "send" if src != dst else "within"), []).append((message.sent, number))
        if src != dst:
            intervals_of.setdefault((dst, "receive"), []).append((message.received, number))
    for number, work in enumerate(rank_work):
        intervals_of.setdefault((work.rank, work.kind), []).append((work.when, number))
    order = list(TRACK_WORDS)
    track_of: dict[tuple[str, int], tuple[int, int]] = {}  # by kind and number: (pid, tid)
    for rank, kind in sorted(intervals_of, key=lambda key: (key[0], order.index(key[1]))):
        intervals = intervals_of[rank, kind]
        tracks = _assign_tracks([when for when, _ in intervals])
        tids = [
            trace.add_track(RANKS, f"rank {rank} {TRACK_WORDS[kind]}" + (f" ({track + 1})" if track else ""))
            for track in range(max(tracks, default=-1) + 1)
        ]
        for (when, number), track in zip(intervals, tracks, strict=True):
            track_of[kind, number] = RANKS, tids[track]
            if kind in ("call", "fold"):
                trace.add_interval(kind, rank_work[number].title, track_of[kind, number], when, rank_work[number].facts)
            else:
                message = messages[number]
                trace.add_interval(kind, message.title, track_of[kind, number], when, message.facts, message.marked)
    for number, message in enumerate(messages):
        if ("receive", number) in track_of:
            (sent, _), (received, _) = message.sent, message.received  # arrows join where the intervals begin
            trace.add_arrow(number, (*track_of["send", number], sent), (*track_of["receive", number], received))


def _assign_tracks(intervals: Sequence[Interval]) -> list[int]:
    """Assign intervals to tracks so that none overlap on a track, with as few tracks as possible.

    >>> _assign_tracks([(0.0, 2.0), (1.0, 3.0), (2.0, 4.0)])
    [0, 1, 0]
    """
    tracks = [0] * len(intervals)
    busy: list[tuple[float, int]] = []  # heap of (end, track)
    free: list[int] = []  # heap of tracks
    for number in sorted(range(len(intervals)), key=lambda index: intervals[index]):
        begin, end = intervals[number]
        while busy and busy[0][0] <= begin:
            _, track = heappop(busy)
            heappush(free, track)
        tracks[number] = heappop(free) if free else len(busy)
        heappush(busy, (end, tracks[number]))
    return tracks
