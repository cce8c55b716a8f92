"""What Perfetto and browsers open (Chrome's trace format): slices on lines of processes, arrows between, counters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

import msgspec

RANKS, LINKS, LIMITS, PATH = 1, 2, 3, 4  # processes of a trace; 0 is the idle one to those who read traces
MARK = {"cname": "terrible"}  # red, where colours can be named
SIDES = {"call": "calls", "send": "sends", "receive": "receives", "within": "copies", "fold": "folds"}
Slice = tuple[float, float]  # microseconds at which it begins and ends


@dataclass
class Page:
    """A trace as it is written. `title` says what it is of."""

    title: str
    about: Mapping[str, Any] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    lines: dict[int, int] = field(default_factory=dict)  # how many each process has

    def process(self, pid: int, name: str) -> None:
        self._named("process_name", pid, 0, name)
        self._sorted("process_sort_index", pid, 0, pid)

    def line(self, pid: int, name: str, number: int | None = None) -> int:
        """The number of a new line of a process; they stand in the order in which they were made."""
        place = self.lines[pid] = self.lines.get(pid, 0) + 1
        tid = place if number is None else number
        self._named("thread_name", pid, tid, name)
        self._sorted("thread_sort_index", pid, tid, place)
        return tid

    def slice(
        self, kind: str, name: str, place: tuple[int, int], when: Slice, args: Mapping[str, Any], marked: bool = False
    ) -> None:
        begin, end = (
            round(moment * 1000) for moment in when
        )  # what ends where another begins does so to those who round
        more = MARK if marked else {}
        self.events.append(
            {"name": name, "cat": kind, "ph": "X", "pid": place[0], "tid": place[1], "ts": begin / 1000,
             "dur": (end - begin) / 1000, "args": args, **more}
        )  # fmt: skip

    def arrow(self, number: int, start: tuple[int, int, float], end: tuple[int, int, float]) -> None:
        """From the slice of one line to that of another: each is the one that is open at that moment, and the arrow
        must be told after both."""
        same = {"name": "message", "cat": "message", "id": number}
        for phase, (pid, tid, ts) in (("s", start), ("f", end)):
            bound = {"bp": "e"} if phase == "f" else {}
            self.events.append({**same, "ph": phase, "pid": pid, "tid": tid, "ts": round(ts * 1000) / 1000, **bound})

    def counter(self, name: str, place: tuple[int, int], ts: float, values: Mapping[str, float]) -> None:
        self.events.append({"name": name, "ph": "C", "pid": place[0], "tid": place[1], "ts": ts, "args": values})

    def encode(self) -> bytes:
        whole = {"displayTimeUnit": "ns", "otherData": {"title": self.title, **self.about}, "traceEvents": self.events}
        return msgspec.json.encode(whole) + b"\n"

    def _named(self, what: str, pid: int, tid: int, name: str) -> None:
        self.events.append({"name": what, "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}})

    def _sorted(self, what: str, pid: int, tid: int, place: int) -> None:
        self.events.append({"name": what, "ph": "M", "pid": pid, "tid": tid, "args": {"sort_index": place}})


@dataclass(frozen=True)
class Passage:
    """A message under way. `sent`: at its sender; `taken`: at its receiver, from when it could come until it was there.
    `facts` tell step, src, dst and bytes. Within a rank only `sent` counts."""

    sent: Slice
    taken: Slice
    facts: Mapping[str, Any]
    marked: bool = False

    @property
    def title(self) -> str:
        return f"{self.facts['src']} to {self.facts['dst']}, step {self.facts['step']}"


@dataclass(frozen=True)
class RankWork:
    """What a rank does alone. `kind`: fold, or call."""

    rank: int
    kind: str
    title: str
    when: Slice
    facts: Mapping[str, Any]


def write_ranks(page: Page, passages: Sequence[Passage], works: Sequence[RankWork] = ()) -> None:
    """The process `ranks`: each message as a slice at its sender and one at its receiver, and an arrow from where it
    starts to where it could come. Slices of one rank and side that overlap stand on several lines."""
    wanted: dict[tuple[int, str], list[tuple[Slice, int]]] = {}
    for number, one in enumerate(passages):
        src, dst = one.facts["src"], one.facts["dst"]
        wanted.setdefault((src, "send" if src != dst else "within"), []).append((one.sent, number))
        if src != dst:
            wanted.setdefault((dst, "receive"), []).append((one.taken, number))
    for number, work in enumerate(works):
        wanted.setdefault((work.rank, work.kind), []).append((work.when, number))
    order = list(SIDES)
    place: dict[tuple[str, int], tuple[int, int]] = {}
    for rank, side in sorted(wanted, key=lambda key: (key[0], order.index(key[1]))):
        slices = wanted[rank, side]
        lanes = _lanes([when for when, _ in slices])
        tids = [
            page.line(RANKS, f"rank {rank} {SIDES[side]}" + (f" ({lane + 1})" if lane else ""))
            for lane in range(max(lanes, default=-1) + 1)
        ]
        for (when, number), lane in zip(slices, lanes, strict=True):
            place[side, number] = RANKS, tids[lane]
            if side in ("call", "fold"):
                page.slice(side, works[number].title, place[side, number], when, works[number].facts)
            else:
                one = passages[number]
                page.slice(side, one.title, place[side, number], when, one.facts, one.marked)
    for number, one in enumerate(passages):
        if ("receive", number) in place:
            page.arrow(number, (*place["send", number], one.sent[0]), (*place["receive", number], one.taken[0]))


def _lanes(slices: Sequence[Slice]) -> list[int]:
    """The line of each, so that those of one line do not overlap: as few as there are slices at one moment.

    >>> _lanes([(0.0, 2.0), (1.0, 3.0), (2.0, 4.0)])
    [0, 1, 0]
    """
    found = [0] * len(slices)
    busy: list[tuple[float, int]] = []
    free: list[int] = []
    for number in sorted(range(len(slices)), key=lambda one: slices[one]):
        begin, end = slices[number]
        while busy and busy[0][0] <= begin:
            heappush(free, heappop(busy)[1])
        found[number] = heappop(free) if free else len(busy)
        heappush(busy, (end, found[number]))
    return found
