"""Summarize a schedule for a page: messages by step, loads of links, a timeline of senders, and traffic by pair.

Every function takes a schedule and returns plain lists, dictionaries and numbers, limited in number so that the page of
a large schedule stays small; `_steps` renders them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from antiphon.core.columns import order_of, pack_columns, pointers, sums_by_group
from antiphon.core.loads import loads, pieces_of, pipelined_steps, timeline
from antiphon.core.messages import messages
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology

MAX_MESSAGES = 5000  # in a page, of one schedule
NAMED_CHUNKS = 6  # of a message, by number
MAX_LANES = 64  # ranks in the timeline
MAX_BARS = 10  # links listed as the busiest
MAX_RUNS = 2000  # of consecutive steps, in the timeline


def message_rows(schedule: Schedule) -> dict[str, Any]:
    """Return [step, pieces, src, dst, op, chunks, share of nbytes, some chunk numbers] for every message.

    `op`: 0 it copies, 1 it reduces, 2 both. At most MAX_MESSAGES, up to the end of a step: `shown` is the number of
    steps. O(n log n) in rows.

    >>> from antiphon.core.example import of_rows
    >>> two = of_rows("allreduce", 3, [(0, 0, 1, 0, 1), (0, 1, 1, 0, 0), (1, 0, 0, 2, 0)], parts=2)
    >>> message_rows(two)["rows"]
    [[0, 1, 1, 0, 2, 2, 1.0, '0, 1'], [1, 1, 0, 2, 0, 1, 0.5, '0']]
    """
    table = messages(schedule)
    first = pointers(table.of_row, len(table))
    count, reduces = np.diff(first), sums_by_group(table.of_row, schedule.op, len(table))
    # Messages that both copy and reduce get 2.
    op = np.where(reduces == 0, 0, np.where(reduces == count, 1, 2))
    by_message = order_of(*pack_columns((table.of_row, len(table)), (schedule.chunk, len(schedule.chunks))))
    chunk, steps = schedule.chunk[by_message], pipelined_steps(schedule)
    shown, last = len(table), steps
    if shown > MAX_MESSAGES:
        # Show whole steps only: cut before the step of the first message too many.
        last = max(int(table.step[MAX_MESSAGES]), 1)
        shown = min(int(np.searchsorted(table.step, last)), MAX_MESSAGES)
    columns = (table.step, table.pieces, table.src, table.dst, op, count, table.share * table.pieces, first[:-1])
    rows = [
        [*numbers, float(f"{share:.4g}"), ", ".join(map(str, chunk[at : at + min(numbers[-1], NAMED_CHUNKS)].tolist()))]
        for *numbers, share, at in zip(*(column[:shown].tolist() for column in columns), strict=True)
    ]
    return {"rows": rows, "steps": steps, "shown": last, "messages": len(table)}


def busiest_links(schedule: Schedule, topology: Topology) -> dict[str, Any]:
    """Return for which share of the time at zero latency links and shared limits are busy: the busiest, and the mean.

    A bar is (name, share of the time, load in multiples of nbytes).
    """
    resource_loads = loads(schedule, topology)
    total = float(timeline(schedule, topology).total)
    limits = topology.resources
    amount = np.zeros(topology.links + len(topology.limits))
    np.add.at(
        amount,
        resource_loads.resource,
        resource_loads.load.astype(float) * resource_loads.window / float(resource_loads.scale),
    )
    capacity = np.array([float(c * limits.scale) for c in limits.capacity] or [1.0])[limits.class_of]
    # Fraction of the total time: (bytes / bytes per second) / seconds.
    busy = amount / capacity / total if total else amount
    order = np.argsort(-busy, kind="stable")[:MAX_BARS]
    return {
        "bars": [(_resource_name(topology, int(i)), float(busy[i]), float(amount[i])) for i in order if busy[i] > 0],
        "links": topology.links,
        "used": int(np.count_nonzero(busy[: topology.links])),
        "mean": float(busy[: topology.links].mean()) if topology.links else 0.0,
    }


def _resource_name(topology: Topology, i: int) -> str:
    """Return the name of link or shared limit `i`."""
    if i >= topology.links:
        return topology.limits[i - topology.links].name
    src, dst = int(topology.link_src[i]), int(topology.link_dst[i])
    names = [str(n) if n < topology.ranks else topology.places[n] for n in (src, dst)]
    return f"{names[0]} → {names[1]} ({topology.types[topology.link_type[i]].kind})"


def send_lanes(schedule: Schedule) -> list[tuple[int, int, list[tuple[int, int]]]]:
    """Return (rank, op, runs of steps in which it sends) for the first members. O(n log n).

    A run is (first step, step after the last). A message of several pieces takes as many steps.
    """
    members = schedule.collective.members[:MAX_LANES]
    pieces = pieces_of(schedule)[schedule.chunk]
    from_members = np.isin(schedule.src, members)
    table = np.stack(
        [schedule.src[from_members], schedule.op[from_members], schedule.step[from_members], pieces[from_members]],
        axis=1,
    ).astype(np.int64)
    rows = np.unique(table, axis=0) if len(table) else table
    lanes: list[tuple[int, int, list[tuple[int, int]]]] = []
    for rank, op, step, step_count in rows.tolist():
        if not lanes or lanes[-1][:2] != (rank, op):
            lanes.append((rank, op, []))
        runs = lanes[-1][2]
        # Rows are sorted by step: extend the last run if this step adjoins it.
        if runs and runs[-1][1] >= step:
            runs[-1] = (runs[-1][0], max(runs[-1][1], step + step_count))
        elif len(runs) < MAX_RUNS // max(len(members), 1) + 8:
            runs.append((step, step + step_count))
    return lanes


def traffic_matrix(schedule: Schedule) -> dict[tuple[int, int], float]:
    """Return how much every rank sends to every other over all steps, in multiples of nbytes, by (src, dst)."""
    ranks = schedule.collective.ranks
    weights, scale = schedule.chunks.weights(schedule.collective)
    keys, inverse = np.unique(schedule.src.astype(np.int64) * ranks + schedule.dst, return_inverse=True)
    sums = np.bincount(inverse.ravel(), (weights[schedule.chunk] / scale).astype(float), len(keys))
    return {divmod(key, ranks): float(total) for key, total in zip(keys.tolist(), sums, strict=True)}
