"""Hold the times at which every message is in transit, and write them as a Chrome trace.

`Events` has per message the times at which it starts and has arrived. Links and shared limits serve messages one after
another: the time of a message on one of them is its *turn* there, and `Events` has the begin and end of every turn.
Models with barriers between steps derive events from their steps (`barrier_events`); simulators record them.
`chrome_trace` writes them as JSON for chrome://tracing or Perfetto: a track per rank, per link, and for the critical
path.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from antiphon.core.columns import Floats, index_in_run
from antiphon.core.loads import pieces_of
from antiphon.core.messages import Paths, resource_name
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.core.transform import expand
from antiphon.cost.busy import Utilisation
from antiphon.cost.chrome import LIMITS, LINKS, PATH, RANKS, TracedMessage, TraceWriter, write_ranks
from antiphon.cost.prediction import Hop, Prediction, Predictor
from antiphon.cost.steps import Barriers
from antiphon.errors import Unsupported

# Limits on the rows of a schedule after its pieces are expanded (see `most_rows`).
MAX_ROWS = 2**22  # unless the schedule has more transfers
MIN_ROWS = 2**18  # allowed for any schedule
ROWS_PER_TRANSFER = 64  # allowed where that is between MIN_ROWS and MAX_ROWS
MAX_EVENTS = 2**20  # messages and uses in one Chrome trace; viewers become slow with more


def expanded_rows(schedule: Schedule) -> int:
    """Return the number of rows after expansion of pieces."""
    if isinstance(schedule.pieces, int):
        return schedule.pieces * schedule.transfers
    return int(pieces_of(schedule)[schedule.chunk].sum())


def most_rows(schedule: Schedule) -> int:
    """Return the maximum number of rows up to which pieces are expanded.

    A row takes up to a kilobyte of memory: a small file with a million pieces must not take gigabytes.
    """
    return max(schedule.transfers, min(MAX_ROWS, max(MIN_ROWS, ROWS_PER_TRANSFER * schedule.transfers)))


@dataclass(frozen=True, eq=False)
class Events:
    """The times of all messages and of their turns on links and limits, in seconds."""

    paths: Paths  # the messages, and which links and limits each uses
    start: Floats  # per message
    landed: Floats  # per message, when it has arrived
    use_start: Floats  # per use of a link or limit by a message (`paths.use_message`): when the turn begins
    use_end: Floats  # ... and ends


@dataclass(frozen=True, eq=False)
class TracedPredictor:
    """The predictor of a model with barriers between steps, which also returns the times of all messages."""

    predict: Predictor
    barriers: Barriers

    def __call__(self, nbytes: int) -> Prediction:
        return self.predict(nbytes)

    def events(self, nbytes: int) -> Events:
        """Return the times of all messages. Those of a step start together, and take turns on links that they share.
        Pieces are expanded.
        """
        barriers = self.barriers
        expanded = expand_if_few(barriers.schedule)
        if expanded is not barriers.schedule:
            barriers = Barriers(expanded, barriers.topology)
        return barrier_events(barriers, nbytes)


def expand_if_few(schedule: Schedule) -> Schedule:
    """Return the schedule with its pieces expanded; raise Unsupported if they are too many."""
    rows, max_rows = expanded_rows(schedule), most_rows(schedule)
    if rows > max_rows:
        raise Unsupported(
            f"a trace of {rows} transfers (all pieces of {schedule.transfers}) is too long; at most {max_rows}: "
            "plan with fewer pieces"
        )
    return expand(schedule)


def barrier_events(barriers: Barriers, nbytes: int) -> Events:
    """Return the times of all messages if no step begins before the previous one has ended. O(uses).

    Both messages of a step of `core.example.star` have 1000 bytes, which take a microsecond, and as much latency:

    >>> from antiphon.core.example import machine, star
    >>> events = barrier_events(Barriers(star(), machine()), 1000)
    >>> [(seconds * 1e6).round(3).tolist() for seconds in (events.start, events.use_end, events.landed)]
    [[0.0, 0.0, 2.0, 2.0], [1.0, 1.0, 3.0, 3.0], [2.0, 2.0, 4.0, 4.0]]
    """
    routing = barriers.paths
    step = routing.messages.step.astype(np.int64)
    begin = barriers.until(step, nbytes)
    cost = routing.use_cost() * nbytes
    # Uses are sorted by (step, resource). The end of a turn is the begin of the step plus the costs up to it in its
    # group: a prefix sum, less its value before the group.
    after = np.cumsum(cost)
    first = np.arange(len(cost)) - index_in_run(step[routing.use_message] * routing.resources + routing.use_resource)
    turn_end = begin[routing.use_message] + after - (after[first] - cost[first])
    landed = begin.copy()
    np.maximum.at(landed, routing.use_message, turn_end)
    return Events(routing, begin, landed + routing.alpha, turn_end - cost, turn_end)


def chrome_trace(events: Events, topology: Topology, nbytes: int, title: str, path: Sequence[Hop] = ()) -> bytes:
    """Return JSON for chrome://tracing or Perfetto (docs/export.md), with times in microseconds.

    Tracks: what each rank sends and receives, each link and shared limit, and the critical path (`path`:
    the (step, src, dst) of its messages). On the tracks of ranks a slice lasts from when a message starts until it has
    arrived, at its sender and at its receiver, with an arrow between them. On a link or limit a slice is a message's
    turn there. If flows share links, a counter ("C") shows each link's load instead.
    """
    routing, table = events.paths, events.paths.messages
    if len(table) + len(routing.use_message) > MAX_EVENTS:
        raise Unsupported(
            f"a trace of {len(table)} messages is too long for a viewer (at most {MAX_EVENTS} events); cut it less"
        )
    writer = TraceWriter(title, {"nbytes": nbytes})
    for pid, name in ((RANKS, "ranks"), (LINKS, "links"), (LIMITS, "shared limits"), (PATH, "critical path")):
        writer.add_process(pid, name)
    facts = [
        {"step": step, "src": src, "dst": dst, "bytes": round(share * nbytes, 3)}
        for step, src, dst, share in zip(
            *(c.tolist() for c in (table.step, table.src, table.dst, table.share)), strict=True
        )
    ]
    chain = path_messages(events, path)
    for number in chain:
        facts[number]["critical"] = True
    intervals = zip((events.start * 1e6).tolist(), (events.landed * 1e6).tolist(), strict=True)
    traced_messages = [  # with the same interval at the sender and at the receiver
        TracedMessage(when, when, about, "critical" in about) for when, about in zip(intervals, facts, strict=True)
    ]
    write_ranks(writer, traced_messages)
    for resource in np.unique(routing.use_resource).tolist():
        pid, tid = _track_of(resource, topology)
        writer.add_track(pid, resource_name(topology, resource), tid)
    busy = getattr(events, "busy", None)  # only the events of flows.py have it
    if busy is not None:  # flows share links: turns overlap, so show the load of each link
        _write_counters(writer, busy, topology)
    else:
        _write_turns(writer, events, traced_messages, topology)
    _write_path(writer, [traced_messages[number] for number in chain])
    return writer.encode()


def _write_turns(
    writer: TraceWriter, events: Events, traced_messages: Sequence[TracedMessage], topology: Topology
) -> None:
    """Write per link and limit the turns of messages. Rounding must not make turns overlap, so each begins no earlier
    than the previous one ended.
    """
    routing, free_from = events.paths, dict[int, float]()  # microseconds, per resource
    columns = (routing.use_message, routing.use_resource, events.use_start * 1e6, events.use_end * 1e6)
    order = np.lexsort((events.use_end, events.use_start, routing.use_resource))
    for number, resource, start, end in zip(*(c[order].tolist() for c in columns), strict=True):
        begin = max(start, free_from.get(resource, start))
        free_from[resource] = max(begin, end)
        traced_message, when = traced_messages[number], (begin, free_from[resource])
        writer.add_interval(
            "turn",
            traced_message.title,
            _track_of(resource, topology),
            when,
            traced_message.facts,
            traced_message.marked,
        )


def path_messages(events: Events, path: Sequence[Hop]) -> list[int]:
    """Return the messages of a path; of several with the same (step, src, dst), the one that arrives last."""
    table, hops = events.paths.messages, set(path)
    latest: dict[Hop, int] = {}
    columns = zip(*(c.tolist() for c in (table.step, table.src, table.dst)), strict=True)
    for number, hop in enumerate(columns if hops else ()):
        if hop in hops and not (hop in latest and events.landed[latest[hop]] > events.landed[number]):
            latest[hop] = number
    return [latest[hop] for hop in path if hop in latest]


def _write_path(writer: TraceWriter, traced_messages: Sequence[TracedMessage]) -> None:
    """Write one track with the messages of the path, each starting where the previous one has landed."""
    tid, end = writer.add_track(PATH, "critical path"), 0.0
    for traced_message in traced_messages:
        (sent, _), (_, received) = traced_message.sent, traced_message.received
        begin = max(end, sent)
        end = max(begin, received)
        writer.add_interval(
            "critical", traced_message.title, (PATH, tid), (begin, end), traced_message.facts, marked=True
        )


def _write_counters(writer: TraceWriter, busy: Utilisation, topology: Topology) -> None:
    """Write per link and limit a counter ("C") of the share of its capacity that is in use."""
    columns = zip(*(c.tolist() for c in (busy.resource, busy.begin, busy.end, busy.share)), strict=True)
    for resource, begin, end, share in columns:
        name, place = resource_name(topology, resource), _track_of(resource, topology)
        for at, value in ((begin, share), (end, 0.0)):
            writer.add_counter(name, place, at * 1e6, {"share": round(value, 6)})


def _track_of(resource: int, topology: Topology) -> tuple[int, int]:
    """Return the trace's process (pid) and track (tid) of a link or limit."""
    return (LINKS, resource + 1) if resource < topology.links else (LIMITS, resource - topology.links + 1)
