"""Pack the times of every message of a plan for the page to play back (run.js reads them).

A *message* is everything that a rank sends to another in a step over one route; a *use* is one message on one link or
limit. Messages are listed in order of start, so that the page finds those of a moment by bisection; uses by (link,
start), so that it finds those of a link. Times are the model's own events (cost/trace.py), so the last message lands
at the predicted time. They are packed in ticks, 2^30 to the total (packing.py).

Example: two messages, 0 -> 1 from 0 to 2 us and 1 -> 2 from 2 to 4 us, over links 0 and 1: `use_count` is [1, 1],
`use_message` [0, 1], and both messages are on the critical path.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from antiphon.core.columns import Floats, Longs, pair_keys, pointers
from antiphon.core.schedule import Schedule
from antiphon.cost import Events, Predictor
from antiphon.cost.trace import expanded_rows, most_rows, path_messages
from antiphon.errors import Invalid, Unsupported
from antiphon.formats.trace_messages import TracedMessages
from antiphon.show.explorer.packing import Pack, ticks
from antiphon.units import format_size

MAX_ROWS = 2**22  # of all schedules of a page together; the timelines of later ones are left out
# Above so many uses in a plan their own times are left out: a link then counts as in use while its messages are sent.
MAX_USES = 2**19


def timed_transfers(
    schedule: Schedule, nbytes: int, predictor: Predictor, rows_left: int, traced: TracedMessages | None = None
) -> dict[str, Any]:
    """Return the transfers of a schedule at this size with their times, packed; or under "why" why there are none.

    `traced`: the messages of a run or of another prediction, whose times go under "recorded".
    """
    rows = expanded_rows(schedule)
    if rows > min(most_rows(schedule), rows_left):  # most_rows: up to which pieces are expanded
        return {"why": f"{rows:,} transfers are too many for this page to play"}
    if not hasattr(predictor, "events"):
        return {"why": "this model gives no times of single transfers; --model critical-path does"}
    try:
        events: Events = predictor.events(nbytes)
    except Unsupported as error:
        return {"why": str(error)}
    prediction = predictor(nbytes)
    total = max(prediction.seconds, float(events.landed.max(initial=0.0)))
    packed = _pack_events(events, total, path_messages(events, prediction.critical_path))
    value = {"rows": rows, "total": total, "messages": len(events.paths.messages), "pack": packed.as_json()}
    if traced is None:
        return value
    recorded = _recorded_events(events, traced, total)
    end = float(traced.landed.max())
    pack = _pack_events(recorded, end, _critical_messages(recorded, traced))
    # per recorded message, in order of start, its position in the order of the predicted starts
    pack.add("predicted", _number_by_start(events, total)[np.argsort(_number_by_start(recorded, end))])
    return value | {"recorded": {"label": traced.label, "total": end, "pack": pack.as_json()}}


def _message_keys(step: ArrayLike, src: ArrayLike, dst: ArrayLike) -> Longs:
    """Return a number for every (step, src, dst); ranks are below 2^16 (`trace_messages.MAX_RANK`)."""
    return (np.asarray(step, np.int64) << 32) | (np.asarray(src, np.int64) << 16) | np.asarray(dst, np.int64)


def _recorded_events(events: Events, traced: TracedMessages, total: float) -> Events:
    """Return the events with the times of a trace: a message lasts until the last of its traced parts has landed.

    Runs do not record messages of a rank to itself; these take the same share of the total as predicted.
    """
    table = events.paths.messages
    keys = _message_keys(table.step, table.src, table.dst)
    # `number`: for each traced part its recorded message; `place`: for each message of the plan its place in `recorded`
    recorded, number = np.unique(_message_keys(traced.step, traced.src, traced.dst), return_inverse=True)
    place = np.minimum(np.searchsorted(recorded, keys), len(recorded) - 1)
    matched = recorded[place] == keys
    if not (matched | (table.src == table.dst)).all() or not np.isin(recorded, keys).all():
        raise Invalid(
            f"trace: its messages are not those of the plan at {format_size(traced.nbytes)}; explore the trace alone"
        )
    first, last = np.full(len(recorded), np.inf), np.zeros(len(recorded))
    np.minimum.at(first, number, traced.start)
    np.maximum.at(last, number, traced.landed)
    # without times of uses, a link counts as in use while its messages are sent
    scale, no_times = float(traced.landed.max()) / total if total else 0.0, np.empty(0)
    return replace(
        events, start=np.where(matched, first[place], events.start * scale),
        landed=np.where(matched, last[place], events.landed * scale), use_start=no_times, use_end=no_times,
    )  # fmt: skip


def _critical_messages(events: Events, traced: TracedMessages) -> Longs:
    """Return the messages that the trace marks as those of the critical path."""
    table, marked = events.paths.messages, traced.critical
    keys = _message_keys(traced.step[marked], traced.src[marked], traced.dst[marked])
    return np.flatnonzero(np.isin(_message_keys(table.step, table.src, table.dst), keys))


def _number_by_start(events: Events, total: float) -> Longs:
    """Return for every message its position in the order of their start."""
    order = np.argsort(ticks(events.start, total), kind="stable")
    number = np.empty(len(order), np.int64)
    number[order] = np.arange(len(order))
    return number


def pack_times(step: ArrayLike, src: ArrayLike, dst: ArrayLike, start: Longs, landed: Longs, share: Floats) -> Pack:
    """Return a pack of messages that are in the order of their start, with their times in ticks.

    `share`: of each message, its bytes divided by nbytes.
    """
    pack = Pack()
    pack.add("step", step, delta=True)
    pack.add("src", src)
    pack.add("dst", dst)
    pack.add("start", start, delta=True)
    pack.add("lasts", landed - start)
    shares, number = np.unique(share, return_inverse=True)
    pack.add("shares", shares)
    pack.add("share", number.ravel())
    return pack


def _pack_events(events: Events, total: float, critical: Longs | Sequence[int]) -> Pack:
    """Pack the messages in the order of their start, their chunks, the uses of links, and the critical path."""
    routing, table = events.paths, events.paths.messages
    schedule = table.schedule
    start, landed = ticks(events.start, total), ticks(events.landed, total)
    number = _number_by_start(events, total)
    order = np.argsort(number)
    pack = pack_times(
        table.step[order], table.src[order], table.dst[order], start[order], landed[order], table.share[order]
    )
    # The rows of each message, and its kind: 0 for copies, 1 for reductions, 2 for both. `of_row`: the message of each
    # row of the schedule.
    by_message = np.argsort(number[table.of_row], kind="stable")
    first = pointers(number[table.of_row][by_message], len(table))
    # every message has rows, so `reduceat` meets no empty segment
    reductions = np.add.reduceat(schedule.op[by_message], first[:-1], dtype=np.int64) if len(table) else first[:0]
    row_count = np.diff(first)
    pack.add("op", np.where(reductions == 0, 0, np.where(reductions == row_count, 1, 2)))
    pack.add("chunks", row_count)
    pack.add("chunk", schedule.chunk[by_message])
    pack.add("block", schedule.chunks.block)
    # Uses of links and limits, by (resource, start).
    use_start = ticks(events.use_start, total) if len(events.use_start) else start[routing.use_message]
    key = pair_keys(routing.use_resource, use_start)
    by_resource = np.argsort(key, kind="stable")
    pack.add("use_count", np.bincount(routing.use_resource, minlength=routing.resources))
    pack.add("use_message", number[routing.use_message][by_resource], delta=True)
    if len(by_resource) <= MAX_USES and len(events.use_end):
        use_end = ticks(events.use_end, total)
        pack.add("use_start", use_start[by_resource], delta=True)
        pack.add("use_lasts", np.maximum(use_end - use_start, 0)[by_resource])
    pack.add("critical", number[critical])
    return pack
