"""Write Chrome's trace format, which Perfetto and browsers open: processes, lines, intervals, arrows and counters.

A trace is a list of events. `Page` collects them: `process` and `line` name where events are drawn, `slice` draws an
interval of time (viewers call it a slice), `arrow` connects two intervals, `counter` draws a value over time.
`write_ranks` draws the messages of all ranks; intervals of one rank that overlap are put on separate lines.

Example: a message from 0 to 1, from 2 to 5 us, is an interval on line "rank 0 sends" and one on line "rank 1 receives",
with an arrow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

import msgspec

RANKS, LINKS, LIMITS, PATH = 1, 2, 3, 4  # processes of a trace; viewers take process 0 for the idle one
MARK = {"cname": "terrible"}  # red, in viewers that know colour names
# Kind of event -> its word in the names of lines
SIDES = {"call": "calls", "send": "sends", "receive": "receives", "within": "copies", "fold": "folds"}
Slice = tuple[float, float]  # begin and end of an interval, in microseconds


@dataclass
class Page:
    """A trace under construction."""

    title: str
    about: Mapping[str, Any] = field(default_factory=dict)  # metadata of the trace
    events: list[dict[str, Any]] = field(default_factory=list)
    lines: dict[int, int] = field(default_factory=dict)  # per process, the number of its lines

    def process(self, pid: int, name: str) -> None:
        """Name a process; processes are shown in the order of their pids."""
        self._add_name("process_name", pid, 0, name)
        self._add_order("process_sort_index", pid, 0, pid)

    def line(self, pid: int, name: str, number: int | None = None) -> int:
        """Add a line to a process and return its number; lines are shown in the order in which they were added."""
        place = self.lines[pid] = self.lines.get(pid, 0) + 1
        tid = place if number is None else number
        self._add_name("thread_name", pid, tid, name)
        self._add_order("thread_sort_index", pid, tid, place)
        return tid

    def slice(
        self, kind: str, name: str, place: tuple[int, int], when: Slice, args: Mapping[str, Any], marked: bool = False
    ) -> None:
        """Add an interval to a line; `place`: (process, line). Marked intervals are red."""
        # whole nanoseconds, so that intervals that touch still touch after the viewer has rounded
        begin, end = (round(moment * 1000) for moment in when)
        mark = MARK if marked else {}
        self.events.append(
            {"name": name, "cat": kind, "ph": "X", "pid": place[0], "tid": place[1], "ts": begin / 1000,
             "dur": (end - begin) / 1000, "args": args, **mark}
        )  # fmt: skip

    def arrow(self, number: int, start: tuple[int, int, float], end: tuple[int, int, float]) -> None:
        """Add an arrow between two intervals that were added before. An end is (process, line, time)."""
        same = {"name": "message", "cat": "message", "id": number}
        for phase, (pid, tid, ts) in (("s", start), ("f", end)):
            bound = {"bp": "e"} if phase == "f" else {}
            self.events.append({**same, "ph": phase, "pid": pid, "tid": tid, "ts": round(ts * 1000) / 1000, **bound})

    def counter(self, name: str, place: tuple[int, int], ts: float, values: Mapping[str, float]) -> None:
        """Add a value of a counter at a time."""
        self.events.append({"name": name, "ph": "C", "pid": place[0], "tid": place[1], "ts": ts, "args": values})

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

    def _add_order(self, event: str, pid: int, tid: int, place: int) -> None:
        self.events.append({"name": event, "ph": "M", "pid": pid, "tid": tid, "args": {"sort_index": place}})


@dataclass(frozen=True)
class Passage:
    """A message in transit."""

    sent: Slice  # at the sender
    received: Slice  # at the receiver, from the earliest possible arrival on; not used within a rank
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
    when: Slice
    facts: Mapping[str, Any]


def write_ranks(page: Page, passages: Sequence[Passage], works: Sequence[RankWork] = ()) -> None:
    """Write the process `ranks`: each message as an interval at its sender and one at its receiver, with an arrow."""
    slices_of: dict[tuple[int, str], list[tuple[Slice, int]]] = {}
    for number, passage in enumerate(passages):
        src, dst = passage.facts["src"], passage.facts["dst"]
        slices_of.setdefault((src, "send" if src != dst else "within"), []).append((passage.sent, number))
        if src != dst:
            slices_of.setdefault((dst, "receive"), []).append((passage.received, number))
    for number, work in enumerate(works):
        slices_of.setdefault((work.rank, work.kind), []).append((work.when, number))
    order = list(SIDES)
    place: dict[tuple[str, int], tuple[int, int]] = {}
    for rank, side in sorted(slices_of, key=lambda key: (key[0], order.index(key[1]))):
        slices = slices_of[rank, side]
        lanes = _assign_lanes([when for when, _ in slices])
        tids = [
            page.line(RANKS, f"rank {rank} {SIDES[side]}" + (f" ({lane + 1})" if lane else ""))
            for lane in range(max(lanes, default=-1) + 1)
        ]
        for (when, number), lane in zip(slices, lanes, strict=True):
            place[side, number] = RANKS, tids[lane]
            if side in ("call", "fold"):
                page.slice(side, works[number].title, place[side, number], when, works[number].facts)
            else:
                passage = passages[number]
                page.slice(side, passage.title, place[side, number], when, passage.facts, passage.marked)
    for number, passage in enumerate(passages):
        if ("receive", number) in place:
            page.arrow(
                number, (*place["send", number], passage.sent[0]), (*place["receive", number], passage.received[0])
            )


def _assign_lanes(slices: Sequence[Slice]) -> list[int]:
    """Assign intervals to lines so that none overlap on a line; the number of lines is the greatest number of intervals
    that overlap at a time.

    >>> _assign_lanes([(0.0, 2.0), (1.0, 3.0), (2.0, 4.0)])
    [0, 1, 0]
    """
    lanes = [0] * len(slices)
    busy: list[tuple[float, int]] = []
    free: list[int] = []
    for number in sorted(range(len(slices)), key=lambda index: slices[index]):
        begin, end = slices[number]
        while busy and busy[0][0] <= begin:
            heappush(free, heappop(busy)[1])
        lanes[number] = heappop(free) if free else len(busy)
        heappush(busy, (end, lanes[number]))
    return lanes
