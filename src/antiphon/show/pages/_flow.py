"""What a schedule does, small enough for a page: messages by step, loads of links, who sends when."""

from __future__ import annotations

from typing import Any

import numpy as np

from antiphon.core.loads import loads, pieces_of, pipelined_steps, timeline
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology

MOST_MESSAGES = 5000  # in a page, of one schedule
NAMED_CHUNKS = 6
MOST_LANES = 64
MOST_BARS = 10
MOST_RUNS = 2000


def messages(schedule: Schedule) -> dict[str, Any]:
    """Rows [step, pieces, src, dst, op, chunks, share of nbytes, some chunk numbers], up to a whole step.

    O(n log n) in rows; at most MOST_MESSAGES, and `steps_shown` says how far they go.
    """
    pieces = pieces_of(schedule)[schedule.chunk]
    columns = (schedule.step, pieces, schedule.src, schedule.dst, schedule.op)
    order = np.lexsort((schedule.chunk, schedule.op, schedule.dst, schedule.src, pieces, schedule.step))
    keys = np.stack([np.asarray(c, np.int64)[order] for c in columns], axis=1)
    first = np.flatnonzero(np.any(np.diff(keys, axis=0, prepend=-1), axis=1)) if len(keys) else np.zeros(0, np.int64)
    weights, scale = schedule.chunks.weights(schedule.collective)
    share = (weights[schedule.chunk[order]] / scale).astype(float)
    sums = np.add.reduceat(share, first) if len(first) else share
    counts = np.diff(np.append(first, len(keys)))
    shown = len(first)
    if shown > MOST_MESSAGES:
        step = int(keys[first[MOST_MESSAGES], 0])
        shown = int(np.searchsorted(keys[first, 0], max(step, 1)))
        shown = min(shown, MOST_MESSAGES)
    rows = [
        [
            *keys[at].tolist(), int(count), float(f"{total:.4g}"),
            ", ".join(map(str, schedule.chunk[order[at : at + min(int(count), NAMED_CHUNKS)]].tolist())),
        ]
        for at, count, total in zip(first[:shown].tolist(), counts[:shown], sums[:shown], strict=True)
    ]  # fmt: skip
    whole = pipelined_steps(schedule)
    part = int(keys[first[shown - 1], 0]) + 1 if shown < len(first) and shown else whole
    return {"rows": rows, "steps": whole, "shown": part, "messages": len(first)}


def busiest(schedule: Schedule, topology: Topology) -> dict[str, Any]:
    """How much of the time at zero latency each link and shared limit is busy: the most and how they spread."""
    found = loads(schedule, topology)
    total = float(timeline(schedule, topology).total)
    limits = topology.resources
    amount = np.zeros(topology.links + len(topology.limits))
    np.add.at(amount, found.resource, found.load.astype(float) * found.window / float(found.scale))
    capacity = np.array([float(c * limits.scale) for c in limits.capacity] or [1.0])[limits.klass]
    busy = amount / capacity / total if total else amount
    order = np.argsort(-busy, kind="stable")[:MOST_BARS]
    return {
        "bars": [(_resource(topology, int(i)), float(busy[i]), float(amount[i])) for i in order if busy[i] > 0],
        "links": topology.links,
        "used": int(np.count_nonzero(busy[: topology.links])),
        "mean": float(busy[: topology.links].mean()) if topology.links else 0.0,
    }


def _resource(topology: Topology, i: int) -> str:
    if i >= topology.links:
        return topology.limits[i - topology.links].name
    src, dst = int(topology.link_src[i]), int(topology.link_dst[i])
    names = [str(n) if n < topology.ranks else topology.places[n] for n in (src, dst)]
    return f"{names[0]} → {names[1]} ({topology.types[topology.link_type[i]].kind})"


def lanes(schedule: Schedule) -> list[tuple[int, int, list[tuple[int, int]]]]:
    """(rank, op, runs of steps in which it sends), pieces counted, for the first members. O(n log n)."""
    members = schedule.collective.members[:MOST_LANES]
    pieces = pieces_of(schedule)[schedule.chunk]
    mine = np.isin(schedule.src, members)
    table = np.stack([schedule.src[mine], schedule.op[mine], schedule.step[mine], pieces[mine]], axis=1).astype(
        np.int64
    )
    rows = np.unique(table, axis=0) if len(table) else table
    found: list[tuple[int, int, list[tuple[int, int]]]] = []
    for rank, op, step, deep in rows.tolist():
        if not found or found[-1][:2] != (rank, op):
            found.append((rank, op, []))
        runs = found[-1][2]
        if runs and runs[-1][1] >= step:
            runs[-1] = (runs[-1][0], max(runs[-1][1], step + deep))
        elif len(runs) < MOST_RUNS // max(len(members), 1) + 8:
            runs.append((step, step + deep))
    return found


def matrix(schedule: Schedule) -> dict[tuple[int, int], float]:
    """How much of nbytes every rank sends to every other, over all steps."""
    ranks = schedule.collective.ranks
    weights, scale = schedule.chunks.weights(schedule.collective)
    keys, inverse = np.unique(schedule.src.astype(np.int64) * ranks + schedule.dst, return_inverse=True)
    sums = np.bincount(inverse.ravel(), (weights[schedule.chunk] / scale).astype(float), len(keys))
    return {divmod(key, ranks): float(total) for key, total in zip(keys.tolist(), sums, strict=True)}
