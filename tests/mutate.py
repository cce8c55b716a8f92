"""Random damage to schedules, some of it harmless: the verifier must tell which is which."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from antiphon.core.routes import Routes
from antiphon.core.schedule import Chunks, Schedule
from antiphon.core.topology import Topology
from antiphon.errors import Invalid

NAMES = ("step", "chunk", "src", "dst", "op", "route", "src_slot", "dst_slot")
Columns = dict[str, list[int]]
Edit = Callable[[random.Random, Columns, Schedule, Topology], None]


def columns_of(schedule: Schedule) -> Columns:
    none = [-1] * schedule.transfers
    out = {name: getattr(schedule, name).tolist() for name in NAMES[:5]}
    out["route"] = none if schedule.route is None else schedule.route.tolist()
    out["src_slot"], out["dst_slot"] = schedule.slot("src").tolist(), schedule.slot("dst").tolist()
    return out


def rebuilt(schedule: Schedule, columns: Columns, **changes: Any) -> Schedule:
    arrays: dict[str, Any] = {name: np.array(values, np.int64) for name, values in columns.items()}
    return replace(schedule, **arrays, **changes)


# ---- edits of rows ----


def drop(rng: random.Random, c: Columns, schedule: Schedule, topology: Topology) -> None:
    at = rng.randrange(len(c["step"]))
    for values in c.values():
        del values[at]


def duplicate(rng: random.Random, c: Columns, schedule: Schedule, topology: Topology) -> None:
    at = rng.randrange(len(c["step"]))
    for values in c.values():
        values.append(values[at])
    c["step"][-1] = max(0, c["step"][-1] + rng.choice([0, 0, 1, 2, -1]))


def redirect_src(rng: random.Random, c: Columns, schedule: Schedule, topology: Topology) -> None:
    c["src"][rng.randrange(len(c["src"]))] = rng.randrange(topology.ranks)


def redirect_dst(rng: random.Random, c: Columns, schedule: Schedule, topology: Topology) -> None:
    c["dst"][rng.randrange(len(c["dst"]))] = rng.randrange(topology.ranks)


def redirect_freely(rng: random.Random, c: Columns, schedule: Schedule, topology: Topology) -> None:
    """Another end, and whatever route leads there: only the data can be wrong."""
    at = rng.randrange(len(c["src"]))
    c[rng.choice(["src", "dst"])][at] = rng.randrange(topology.ranks)
    c["route"][at] = -1


def restep(rng: random.Random, c: Columns, schedule: Schedule, topology: Topology) -> None:
    at = rng.randrange(len(c["step"]))
    c["step"][at] = rng.choice([rng.choice(c["step"]), max(0, c["step"][at] + rng.choice([-2, -1, 1, 2]))])


def swap_steps(rng: random.Random, c: Columns, schedule: Schedule, topology: Topology) -> None:
    chunk = rng.choice(c["chunk"])
    mine = [i for i, other in enumerate(c["chunk"]) if other == chunk]
    a, b = rng.choice(mine), rng.choice(mine)
    c["step"][a], c["step"][b] = c["step"][b], c["step"][a]


def swap_whole_steps(rng: random.Random, c: Columns, schedule: Schedule, topology: Topology) -> None:
    a, b = rng.choice(c["step"]), rng.choice(c["step"])
    c["step"][:] = [b if s == a else a if s == b else s for s in c["step"]]


def change_op(rng: random.Random, c: Columns, schedule: Schedule, topology: Topology) -> None:
    at = rng.randrange(len(c["op"]))
    c["op"][at] = 1 - c["op"][at]


def change_chunk(rng: random.Random, c: Columns, schedule: Schedule, topology: Topology) -> None:
    c["chunk"][rng.randrange(len(c["chunk"]))] = rng.randrange(len(schedule.chunks))


def swap_chunks(rng: random.Random, c: Columns, schedule: Schedule, topology: Topology) -> None:
    a, b = rng.randrange(len(schedule.chunks)), rng.randrange(len(schedule.chunks))
    c["chunk"][:] = [b if x == a else a if x == b else x for x in c["chunk"]]


def change_slot(rng: random.Random, c: Columns, schedule: Schedule, topology: Topology) -> None:
    side = c[rng.choice(["src_slot", "dst_slot"])]
    side[rng.randrange(len(side))] = rng.choice([0, 0, 1, rng.choice(c["src_slot"]), rng.choice(c["dst_slot"])])


def rename_slot(rng: random.Random, c: Columns, schedule: Schedule, topology: Topology) -> None:
    """One slot gets another number everywhere, at times a huge one: mostly harmless."""
    old, new = rng.choice(c["src_slot"]), rng.choice([rng.randint(0, 5), rng.randint(100, 32000)])
    for side in ("src_slot", "dst_slot"):
        c[side][:] = [new if slot == old else slot for slot in c[side]]


def change_route(rng: random.Random, c: Columns, schedule: Schedule, topology: Topology) -> None:
    c["route"][rng.randrange(len(c["route"]))] = rng.choice([-1, rng.randint(0, len(schedule.routes))])


def reorder_rows(rng: random.Random, c: Columns, schedule: Schedule, topology: Topology) -> None:
    """Harmless: the order of rows means nothing."""
    order = rng.sample(range(len(c["step"])), len(c["step"]))
    for values in c.values():
        values[:] = [values[i] for i in order]


ROW_EDITS: tuple[Edit, ...] = (
    drop, duplicate, redirect_src, redirect_dst, redirect_freely, restep, swap_steps, swap_whole_steps, change_op,
    change_chunk, swap_chunks, change_slot, rename_slot, change_route, reorder_rows,
)  # fmt: skip


# ---- edits beside the rows ----


def change_shares(rng: random.Random, schedule: Schedule) -> Schedule:
    """Move a boundary, tear or overlap chunks, change the denominator, or give a chunk to another block."""
    chunks = schedule.chunks
    block, offset, share = chunks.block.copy(), chunks.offset.copy(), chunks.share.copy()
    whole, many = chunks.denominator, len(chunks)
    way, at, by = rng.randrange(6), rng.randrange(many), rng.choice([-2, -1, 1, 2, 10**17, -(10**17)])
    other = rng.randrange(many)
    if way == 0:
        share[at] += by
    elif way == 1:
        offset[at] += by
    elif way == 2:  # a boundary between two chunks, where there is one: harmless if small
        after = np.flatnonzero((block == block[at]) & (offset == offset[at] + share[at]))
        share[at] += by
        offset[after] += by
        share[after] -= by
    elif way == 3:
        whole = max(1, whole + by) if rng.random() < 0.5 else whole * 3
        if whole == chunks.denominator * 3 and rng.random() < 0.7:  # all in thirds: harmless
            offset, share = offset * 3, share * 3
    elif way == 4:
        block[at] = rng.randrange(schedule.collective.blocks)
    else:  # which chunk is which part of the block: harmless within a block
        for values in (offset, share, block):
            values[[at, other]] = values[[other, at]]
    return replace(schedule, chunks=Chunks(block, offset, share, whole))


def change_table(rng: random.Random, schedule: Schedule, topology: Topology) -> Schedule:
    """Change, add or drop a link of a route in the table."""
    paths = [list(schedule.routes[i]) for i in range(len(schedule.routes))]
    if not paths:
        return schedule
    path = rng.choice(paths)
    way = rng.randrange(3)
    if way == 0 and path:
        path[rng.randrange(len(path))] = rng.randint(0, topology.links)
    elif way == 1:
        path.insert(rng.randint(0, len(path)), rng.randrange(topology.links))
    elif path:
        path.pop()
    return replace(schedule, routes=Routes.of(paths))


def change_pieces(rng: random.Random, schedule: Schedule) -> Schedule:
    """Harmless for the data; the figures change."""
    pieces = np.broadcast_to(np.asarray(schedule.pieces, np.int64), len(schedule.chunks)).copy()
    pieces[rng.randrange(len(pieces))] = rng.randint(1, 7)
    return replace(schedule, pieces=pieces)


def mutate(rng: random.Random, schedule: Schedule, topology: Topology) -> tuple[str, Schedule]:
    """One to three random changes, and what they are called."""
    done, now = [], schedule
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        luck = rng.random()
        if luck < 0.78 and now.transfers:
            edit = rng.choice(ROW_EDITS)
            columns = columns_of(now)
            edit(rng, columns, now, topology)
            now = rebuilt(now, columns)
            done.append(edit.__name__)
        elif luck < 0.86:
            now = change_pieces(rng, now)
            done.append("change_pieces")
        elif luck < 0.93:
            now = change_table(rng, now, topology)
            done.append("change_table")
        else:
            try:
                now = change_shares(rng, now)
                done.append("change_shares")
            except Invalid:  # refused when built
                continue
    return "+".join(done), now
