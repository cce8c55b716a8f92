"""Random damage to schedules, some of it harmless. An edit takes columns (lists of whole numbers) and changes them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from antiphon.core.collective import KINDS, ROOTED, Collective
from antiphon.core.routes import Routes
from antiphon.core.schedule import Chunks, Schedule
from antiphon.core.topology import Ability, Topology
from antiphon.errors import AntiphonError

Columns = dict[str, list[int]]
Edit = Callable[[random.Random, Columns, Schedule], None]
NAMES = ("step", "chunk", "src", "dst", "op", "route", "src_slot", "dst_slot", "joint")


def columns_of(schedule: Schedule) -> Columns:
    found = {}
    for name in NAMES:
        values = getattr(schedule, name)
        found[name] = [-(name in ("route", "joint"))] * schedule.transfers if values is None else values.tolist()
    return found


def row_of(rng: random.Random, c: Columns) -> int:
    return rng.randrange(len(c["step"]))


def drop(rng: random.Random, c: Columns, schedule: Schedule) -> None:
    at = row_of(rng, c)
    for values in c.values():
        del values[at]


def repeat(rng: random.Random, c: Columns, schedule: Schedule) -> None:
    at = row_of(rng, c)
    for values in c.values():
        values.append(values[at])
    if rng.random() < 0.6:
        c["step"][-1] = max(0, c["step"][at] + rng.choice([-1, 1, 1, 50]))


def invent(rng: random.Random, c: Columns, schedule: Schedule) -> None:
    """A row from nowhere, into a cell that is used or not."""
    ranks = schedule.collective.ranks
    new = {
        "step": max(0, rng.choice(c["step"]) + rng.choice([-1, 0, 1])), "chunk": rng.randrange(len(schedule.chunks)),
        "src": rng.randrange(ranks), "dst": rng.randrange(ranks), "op": rng.randint(0, 1), "route": -1,
        "src_slot": rng.choice([0, rng.choice(c["dst_slot"])]), "dst_slot": rng.choice([0, 0, 7]),
        "joint": rng.choice([-1, rng.choice(c["joint"])]),
    }  # fmt: skip
    for name, values in c.items():
        values.append(new[name])


def other_end(rng: random.Random, c: Columns, schedule: Schedule) -> None:
    at = row_of(rng, c)
    c[rng.choice(["src", "dst"])][at] = rng.randrange(schedule.collective.ranks)
    if rng.random() < 0.5:
        c["route"][at] = -1


def turn_round(rng: random.Random, c: Columns, schedule: Schedule) -> None:
    at = row_of(rng, c)
    c["src"][at], c["dst"][at] = c["dst"][at], c["src"][at]
    if rng.random() < 0.7:
        c["route"][at] = -1


def move_step(rng: random.Random, c: Columns, schedule: Schedule) -> None:
    at = row_of(rng, c)
    c["step"][at] = rng.choice([rng.choice(c["step"]), max(0, c["step"][at] + rng.choice([-2, -1, 1, 2]))])


def merge_steps(rng: random.Random, c: Columns, schedule: Schedule) -> None:
    """Two steps become one: what waited does not any more."""
    a, b = rng.choice(c["step"]), rng.choice(c["step"])
    c["step"][:] = [b if s == a else s for s in c["step"]]


def swap_steps(rng: random.Random, c: Columns, schedule: Schedule) -> None:
    a, b = row_of(rng, c), row_of(rng, c)
    c["step"][a], c["step"][b] = c["step"][b], c["step"][a]


def stretch(rng: random.Random, c: Columns, schedule: Schedule) -> None:
    """Harmless: gaps in time."""
    times, more = rng.choice([2, 3, 1000]), rng.randrange(3)
    c["step"][:] = [s * times + more for s in c["step"]]


def chunk_late(rng: random.Random, c: Columns, schedule: Schedule) -> None:
    """Harmless: one chunk after the others, or ahead of them."""
    chosen, by = rng.choice(c["chunk"]), rng.randint(1, 9)
    c["step"][:] = [s + by * (chunk == chosen) for s, chunk in zip(c["step"], c["chunk"], strict=True)]


def turn_op(rng: random.Random, c: Columns, schedule: Schedule) -> None:
    at = row_of(rng, c)
    c["op"][at] = 1 - c["op"][at]


def all_of_one_op(rng: random.Random, c: Columns, schedule: Schedule) -> None:
    """Where cells begin empty a sum of one is a copy: harmless in many places."""
    op, step = rng.randint(0, 1), rng.choice(c["step"])
    c["op"][:] = [op if s == step else o for s, o in zip(c["step"], c["op"], strict=True)]


def other_chunk(rng: random.Random, c: Columns, schedule: Schedule) -> None:
    c["chunk"][row_of(rng, c)] = rng.randrange(len(schedule.chunks))


def trade_chunks(rng: random.Random, c: Columns, schedule: Schedule) -> None:
    a, b = rng.choice(c["chunk"]), rng.choice(c["chunk"])
    c["chunk"][:] = [b if x == a else a if x == b else x for x in c["chunk"]]


def trade_ranks(rng: random.Random, c: Columns, schedule: Schedule) -> None:
    """Two ranks change places everywhere, or in one chunk; routes are left to the judge to find, at times."""
    a, b = rng.randrange(schedule.collective.ranks), rng.randrange(schedule.collective.ranks)
    only = rng.choice([None, rng.choice(c["chunk"])])
    for side in ("src", "dst"):
        c[side][:] = [
            r if only not in (None, chunk) else b if r == a else a if r == b else r
            for r, chunk in zip(c[side], c["chunk"], strict=True)
        ]
    if rng.random() < 0.7:
        c["route"][:] = [-1] * len(c["route"])


def other_slot(rng: random.Random, c: Columns, schedule: Schedule) -> None:
    side = c[rng.choice(["src_slot", "dst_slot"])]
    side[row_of(rng, c)] = rng.choice([0, 0, 1, 2, rng.choice(c["src_slot"]), rng.choice(c["dst_slot"]), 32000])


def trade_slots(rng: random.Random, c: Columns, schedule: Schedule) -> None:
    """Slot 0 holds the input and the outcome; among the others a change of names is harmless."""
    a, b = rng.choice(c["src_slot"] + c["dst_slot"]), rng.choice([0, 1, 5, 30000])
    for side in ("src_slot", "dst_slot"):
        c[side][:] = [b if x == a else a if x == b else x for x in c[side]]


def detour(rng: random.Random, c: Columns, schedule: Schedule) -> None:
    """By way of another slot of the sender, one step later: harmless where there is time."""
    at = row_of(rng, c)
    slot = rng.randint(3, 9)
    new = {name: values[at] for name, values in c.items()}
    new |= {"dst": c["src"][at], "dst_slot": slot, "op": 0, "route": -1, "joint": -1}
    c["src_slot"][at] = slot
    c["step"][:] = [2 * s for s in c["step"]]
    new["step"] = max(0, 2 * new["step"] - 1)
    for name, values in c.items():
        values.append(new[name])


def other_route(rng: random.Random, c: Columns, schedule: Schedule) -> None:
    c["route"][row_of(rng, c)] = rng.choice([-1, rng.randint(0, len(schedule.routes))])


def no_routes(rng: random.Random, c: Columns, schedule: Schedule) -> None:
    c["route"][:] = [-1] * len(c["route"])


def other_joint(rng: random.Random, c: Columns, schedule: Schedule) -> None:
    c["joint"][row_of(rng, c)] = rng.choice([-1, rng.choice(c["joint"]), rng.choice(c["joint"]), 2**20])


def bind(rng: random.Random, c: Columns, schedule: Schedule) -> None:
    """All rows of a step and chunk that begin, or end, at one rank, or all of them, become one joint."""
    at, how = row_of(rng, c), rng.choice([("src",), ("dst",), ()])
    keys = ("step", "chunk", *how)
    same = [i for i in range(len(c["step"])) if all(c[key][i] == c[key][at] for key in keys)]
    number = max(c["joint"]) + 1
    for i in same:
        c["joint"][i] = number


def unbind(rng: random.Random, c: Columns, schedule: Schedule) -> None:
    """Harmless: the rows of one joint, or of all, go alone."""
    one = rng.choice([None, rng.choice(c["joint"])])
    c["joint"][:] = [-1 if one in (None, joint) else joint for joint in c["joint"]]


def trade_joints(rng: random.Random, c: Columns, schedule: Schedule) -> None:
    """Two joints become one, or change names, which is harmless."""
    a, b, both = rng.choice(c["joint"]), rng.choice(c["joint"]), rng.random() < 0.5
    c["joint"][:] = [b if x == a else a if x == b and both and a >= 0 and b >= 0 else x for x in c["joint"]]


def cut_off(rng: random.Random, c: Columns, schedule: Schedule) -> None:
    """The end of it is missing, or the beginning."""
    when, late = rng.choice(c["step"]), rng.random() < 0.7
    keep = [i for i, s in enumerate(c["step"]) if (s < when if late else s > when)] or [0]
    for values in c.values():
        values[:] = [values[i] for i in keep]


def shuffle(rng: random.Random, c: Columns, schedule: Schedule) -> None:
    """Harmless: the order of rows means nothing."""
    order = rng.sample(range(len(c["step"])), len(c["step"]))
    for values in c.values():
        values[:] = [values[i] for i in order]


EDITS: tuple[Edit, ...] = (
    drop, repeat, invent, other_end, turn_round, move_step, merge_steps, swap_steps, stretch, chunk_late, turn_op,
    all_of_one_op, other_chunk, trade_chunks, trade_ranks, other_slot, trade_slots, detour, other_route, no_routes,
    other_joint, bind, unbind, trade_joints, cut_off, shuffle,
)  # fmt: skip


# ---- beside the rows ----


def chunks(rng: random.Random, schedule: Schedule) -> Schedule:
    """Boundaries moved, torn or overlapping, chunks of nothing, another denominator, another block, one chunk more."""
    c = schedule.chunks
    block, offset, share, whole = c.block.tolist(), c.offset.tolist(), c.share.tolist(), c.denominator
    if not block:
        return schedule
    at, way, by = rng.randrange(len(block)), rng.randrange(8), rng.choice([-1, 1, 2, 2**61])
    if way == 0:
        share[at] += by
    elif way == 1:
        offset[at] += by
    elif way == 2:
        block[at] = rng.randrange(schedule.collective.blocks)
    elif way == 3:  # harmless: the same in thirds
        offset, share, whole = [3 * x for x in offset], [3 * x for x in share], 3 * whole
    elif way == 4:
        whole = max(1, whole + by)
    elif way == 5:  # two chunks change places: harmless within a block
        to = rng.randrange(len(block))
        offset[at], offset[to], share[at], share[to] = offset[to], offset[at], share[to], share[at]
    elif way == 6:  # a chunk of nothing, which no row carries
        block, offset, share = [*block, block[at]], [*offset, offset[at]], [*share, 0]
    else:  # a piece split off, which no row carries
        block, offset, share = [*block, block[at]], [2 * x for x in offset], [2 * x for x in share]
        whole, half = 2 * whole, share[at] // 2
        share[at] -= half
        offset, share = [*offset, offset[at] + share[at]], [*share, half]
    made = Chunks(np.array(block, np.int64), np.array(offset, np.int64), np.array(share, np.int64), whole)
    pieces = schedule.pieces if isinstance(schedule.pieces, int) else 1
    return replace(schedule, chunks=made, pieces=pieces)


def routes(rng: random.Random, schedule: Schedule, topology: Topology) -> Schedule:
    """A link of a path changed, added, taken away, or twice."""
    table = [list(schedule.routes[i]) for i in range(len(schedule.routes))]
    if not table:
        return schedule
    path, way = rng.choice(table), rng.randrange(4)
    if way == 0 and path:
        path[rng.randrange(len(path))] = rng.randint(0, topology.links)
    elif way == 1:
        path.insert(rng.randint(0, len(path)), rng.randrange(topology.links))
    elif way == 2 and path:
        path.pop(rng.choice([0, -1]))
    elif path:
        path.insert(0, path[0])
    return replace(schedule, routes=Routes.of(table))


def goal(rng: random.Random, schedule: Schedule) -> Schedule:
    """The same rows, said to be another collective: another kind, root or group, or a custom one without a rank."""
    c = schedule.collective
    if c.custom is not None:
        return schedule
    kind = rng.choice(KINDS)
    members = c.members if rng.random() < 0.6 else rng.sample(range(c.ranks), rng.randint(2, c.ranks))
    made = Collective(kind, c.ranks, tuple(members), (rng.choice(members),) if kind in ROOTED else ())
    return replace(schedule, collective=made) if made.blocks == c.blocks else schedule


def links(rng: random.Random, topology: Topology) -> Topology:
    """Another machine under the same rows: a link less, or one twice, so that routes are missing or ambiguous."""
    keep = list(range(topology.links))
    if rng.random() < 0.5:
        keep.remove(rng.choice(keep))
    else:
        keep.append(rng.choice(keep))
    if not keep:
        return topology
    columns = (topology.link_src, topology.link_dst, topology.link_type)
    src, dst, kind = (c[keep] for c in columns)
    return replace(topology, link_src=src, link_dst=dst, link_type=kind, limits=())


def abilities(rng: random.Random, topology: Topology) -> Topology:
    """One switch that can do more, or less, or otherwise."""
    if not topology.switches:
        return topology
    known = [topology.ability(node) for node in range(topology.ranks, topology.nodes)]
    at = rng.randrange(len(known))
    flags: dict[str, Any] = {name: rng.random() < 0.5 for name in ("multicast", "reduce", "through", "own")}
    limit = rng.choice([0, 0, 1, 2])
    able = flags["multicast"] or flags["reduce"]
    known[at] = Ability(**flags, at_once=limit) if able else Ability()
    return replace(topology, abilities=tuple(known))


def damage(rng: random.Random, schedule: Schedule, topology: Topology) -> tuple[Schedule, list[str]]:
    """One to three changes, and their names. What the form itself refuses (`AntiphonError`) is tried no further."""
    done: list[str] = []
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        luck = rng.random()
        try:
            if luck < 0.84 and schedule.transfers:
                edit = rng.choice(EDITS)
                columns = columns_of(schedule)
                edit(rng, columns, schedule)
                arrays: dict[str, Any] = {name: np.array(values, np.int64) for name, values in columns.items()}
                schedule = replace(schedule, **arrays)
                done.append(edit.__name__)
            elif luck < 0.92:
                schedule = chunks(rng, schedule)
                done.append("chunks")
            elif luck < 0.96:
                schedule = routes(rng, schedule, topology)
                done.append("routes")
            else:
                schedule = goal(rng, schedule)
                done.append("goal")
        except (AntiphonError, OverflowError):
            done.append("refused")
    return schedule, done
