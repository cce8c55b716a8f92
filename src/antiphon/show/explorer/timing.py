"""List when every transfer of a plan is under way, by the model that predicts its time, for the page to play back.

A *message* is everything that a rank sends to another in a step over one route. Messages are listed in order of
start, so that a page finds those of a moment by bisection; uses of links by (link, start), so that it finds those of a
link. Times are those of the model's own events (cost/trace.py), hence the last message lands at the predicted time.

Example: two messages, 0 -> 1 from 0 to 2 us and 1 -> 2 from 2 to 4 us, over links 0 and 1: `use_count` is [1, 1],
`use_message` [0, 1], and both messages are on the critical path.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from antiphon.core.columns import pointers
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.cost import Events, Predictor
from antiphon.cost.trace import expanded_rows, most_rows, path_messages
from antiphon.errors import Unsupported
from antiphon.show.explorer.packing import Pack, ticks

MAX_ROWS = 2**22  # of all schedules of a page together; the timelines of later ones are left out
MAX_TURNS = 2**19  # uses of links of one plan whose turns are listed; beyond, a link counts as in use while a
# message that crosses it is under way


def timed_transfers(
    schedule: Schedule, topology: Topology, nbytes: int, predictor: Predictor, rows_left: int
) -> dict[str, Any]:
    """Return the transfers of a schedule at this size with their times, packed; or under "why" why there are none."""
    rows = expanded_rows(schedule)
    if rows > min(most_rows(schedule), rows_left):
        return {"why": f"{rows:,} transfers are too many for this page to play"}
    if not hasattr(predictor, "events"):
        return {"why": "this model gives no times of single transfers; --model critical-path does"}
    try:
        events: Events = predictor.events(nbytes)
    except Unsupported as error:
        return {"why": str(error)}
    prediction = predictor(nbytes)
    total = max(prediction.seconds, float(events.landed.max(initial=0.0)))
    packed = _pack_events(events, total, prediction.critical_path)
    return {"rows": rows, "total": total, "messages": len(events.paths.messages), "pack": packed.as_json()}


def _pack_events(events: Events, total: float, path: Sequence[tuple[int, int, int]]) -> Pack:
    """Pack the messages in the order of their start, their chunks, the uses of links, and the critical path."""
    routing, table = events.paths, events.paths.messages
    schedule = table.schedule
    start, landed = ticks(events.start, total), ticks(events.landed, total)
    order = np.argsort(start, kind="stable")
    number = np.empty(len(order), np.int64)  # of every message in that order
    number[order] = np.arange(len(order))
    pack = Pack()
    pack.add("step", table.step[order], delta=True)
    pack.add("src", table.src[order])
    pack.add("dst", table.dst[order])
    pack.add("start", start[order], delta=True)
    pack.add("lasts", (landed - start)[order])
    shares, share = np.unique(table.share, return_inverse=True)
    pack.add("shares", shares)
    pack.add("share", share.ravel()[order])
    # Chunks: rows of the schedule by message; a message of copies and sums gets 2.
    by_message = np.argsort(number[table.of_row], kind="stable")
    first = pointers(number[table.of_row][by_message], len(table))
    sums = np.add.reduceat(schedule.op[by_message], first[:-1], dtype=np.int64) if len(table) else first[:0]
    count = np.diff(first)
    pack.add("op", np.where(sums == 0, 0, np.where(sums == count, 1, 2)))
    pack.add("chunks", count)
    pack.add("chunk", schedule.chunk[by_message])
    pack.add("block", schedule.chunks.block)
    # Uses of links and limits, by (resource, start).
    use_start = ticks(events.use_start, total) if len(events.use_start) else start[routing.use_message]
    key = (routing.use_resource.astype(np.int64) << 31) | use_start
    by_resource = np.argsort(key, kind="stable")
    pack.add("use_count", np.bincount(routing.use_resource, minlength=routing.resources))
    pack.add("use_message", number[routing.use_message][by_resource], delta=True)
    if len(by_resource) <= MAX_TURNS and len(events.use_end):
        use_end = ticks(events.use_end, total)
        pack.add("use_start", use_start[by_resource], delta=True)
        pack.add("use_lasts", np.maximum(use_end - use_start, 0)[by_resource])
    pack.add("critical", number[path_messages(events, path)])
    return pack
