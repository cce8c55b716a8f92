"""When every message is under way, and that as a Chrome trace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from antiphon.core.columns import Floats, places
from antiphon.core.loads import pieces_of
from antiphon.core.messages import Paths, resource_name
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.core.transform import expand
from antiphon.cost.busy import Utilisation
from antiphon.cost.prediction import Prediction, Predictor
from antiphon.cost.steps import Barriers
from antiphon.errors import Unsupported

MOST_ROWS = 2**22  # rows after expansion of pieces: about a gigabyte while being worked on
MOST_EVENTS = 2**20


def expanded_rows(schedule: Schedule) -> int:
    if isinstance(schedule.pieces, int):
        return schedule.pieces * schedule.transfers
    return int(pieces_of(schedule)[schedule.chunk].sum())


@dataclass(frozen=True, eq=False)
class Events:
    """Seconds at which every message starts and has landed, and at which each of its turns begins and ends."""

    paths: Paths
    start: Floats
    landed: Floats
    use_start: Floats
    use_end: Floats


@dataclass(frozen=True, eq=False)
class Traced:
    """A model of barriers that can also say when every message is under way."""

    predict: Predictor
    barriers: Barriers

    def __call__(self, nbytes: int) -> Prediction:
        return self.predict(nbytes)

    def events(self, nbytes: int) -> Events:
        """All messages of a step start together, and take turns where they share a link. Pieces are expanded."""
        barriers = self.barriers
        fine = expandable(barriers.schedule)
        return barrier_events(
            barriers if fine is barriers.schedule else Barriers(fine, barriers.topology), nbytes
        )  # fmt: skip


def expandable(schedule: Schedule) -> Schedule:
    """The schedule with its pieces written out; Unsupported where they are too many."""
    rows = expanded_rows(schedule)
    if rows > max(MOST_ROWS, schedule.transfers):
        raise Unsupported(f"a trace of {rows} transfers is too long; at most {MOST_ROWS}: plan with fewer pieces")
    return expand(schedule)


def barrier_events(barriers: Barriers, nbytes: int) -> Events:
    """Steps begin when the model of barriers says; O(uses).

    Both messages of a step of `core.example.star` have 1000 bytes, which take a microsecond, and a latency as long:

    >>> from antiphon.core.example import machine, star
    >>> events = barrier_events(Barriers(star(), machine()), 1000)
    >>> [(seconds * 1e6).round(3).tolist() for seconds in (events.start, events.use_end, events.landed)]
    [[0.0, 0.0, 2.0, 2.0], [1.0, 1.0, 3.0, 3.0], [2.0, 2.0, 4.0, 4.0]]
    """
    routing = barriers.paths
    step = routing.messages.step.astype(np.int64)
    begin = barriers.until(step, nbytes)
    cost = routing.use_cost() * nbytes
    after = np.cumsum(cost)
    first = np.arange(len(cost)) - places(step[routing.use_message] * routing.resources + routing.use_resource)
    turn_end = begin[routing.use_message] + after - (after[first] - cost[first])
    landed = begin.copy()
    np.maximum.at(landed, routing.use_message, turn_end)
    return Events(routing, begin, landed + routing.alpha, turn_end - cost, turn_end)


def chrome_trace(events: Events, topology: Topology, nbytes: int, title: str) -> bytes:
    """JSON for chrome://tracing or Perfetto: one line per link, shared limit and sending rank; times in microseconds.

    On a link or limit an event ("X") is a message's turn there. Where flows
    share links, a counter ("C") tells how full each is instead. On a rank an event ("b" to "e") lasts from when the
    message starts until it has landed, and several may overlap. `args` tells step, src, dst and bytes.
    """
    routing, table = events.paths, events.paths.messages
    if len(table) + len(routing.use_message) > MOST_EVENTS:
        raise Unsupported(
            f"a trace of {len(table)} messages is too long for a viewer (at most {MOST_EVENTS} events); cut it less"
        )
    out = [_named("process_name", pid, 0, name) for pid, name in enumerate(("ranks", "links", "shared limits"))]
    out += [_named("thread_name", 0, rank, f"rank {rank}") for rank in np.unique(table.src).tolist()]
    for resource in np.unique(routing.use_resource).tolist():
        out.append(_named("thread_name", *_line(resource, topology), resource_name(topology, resource)))
    facts = [
        {"step": step, "src": src, "dst": dst, "bytes": round(share * nbytes, 3)}
        for step, src, dst, share in zip(
            *(c.tolist() for c in (table.step, table.src, table.dst, table.share)), strict=True
        )
    ]
    for number, more in enumerate(getattr(events, "about", ())):
        facts[number] |= more
    for number, (start, landed) in enumerate(zip(events.start.tolist(), events.landed.tolist(), strict=True)):
        about = facts[number]
        same = {"name": _title(about), "cat": "message", "id": number, "pid": 0, "tid": about["src"]}
        out.append({**same, "ph": "b", "ts": start * 1e6, "args": about})
        out.append({**same, "ph": "e", "ts": landed * 1e6})
    busy = getattr(events, "busy", None)
    if busy is not None:  # turns overlap: how loaded each link is says more
        out += _counters(busy, topology)
    shown = slice(0 if busy is not None else None)
    columns = (routing.use_message[shown], routing.use_resource[shown], events.use_start[shown], events.use_end[shown])
    for number, resource, start, end in zip(*(c.tolist() for c in columns), strict=True):
        pid, tid = _line(resource, topology)
        about = facts[number]
        out.append(
            {"name": _title(about), "cat": "turn", "ph": "X", "pid": pid, "tid": tid, "ts": start * 1e6,
             "dur": (end - start) * 1e6, "args": about}
        )  # fmt: skip
    whole = {"displayTimeUnit": "ns", "otherData": {"title": title, "nbytes": nbytes}, "traceEvents": out}
    return msgspec.json.encode(whole) + b"\n"


def _counters(busy: Utilisation, topology: Topology) -> list[dict[str, Any]]:
    """Per link and limit a counter ("C") of the part of its capacity that is in use."""
    out = []
    columns = zip(*(c.tolist() for c in (busy.resource, busy.begin, busy.end, busy.share)), strict=True)
    for resource, begin, end, share in columns:
        pid, tid = _line(resource, topology)
        same = {"name": resource_name(topology, resource), "ph": "C", "pid": pid, "tid": tid}
        out += [{**same, "ts": at * 1e6, "args": {"share": round(s, 6)}} for at, s in ((begin, share), (end, 0.0))]
    return out


def _title(about: dict[str, Any]) -> str:
    return f"{about['src']} to {about['dst']}, step {about['step']}"


def _line(resource: int, topology: Topology) -> tuple[int, int]:
    return (1, resource) if resource < topology.links else (2, resource - topology.links)


def _named(what: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}}
