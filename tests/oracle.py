"""Rows, routes and figures of a schedule in plain Python: slow, small and obviously right, so that tests can trust it.

Nothing here uses the verifier, the derived dependencies or the loads: only the plain columns of the types. Whether a
schedule is right says fuzz/_meaning.py.
"""

import math
from collections import Counter, defaultdict
from fractions import Fraction
from typing import NamedTuple

from antiphon.core.schedule import COPY, Schedule
from antiphon.core.topology import Topology


class Row(NamedTuple):
    """One transfer, as plain numbers."""

    step: int
    chunk: int
    src: int
    src_slot: int
    dst: int
    dst_slot: int
    op: int
    route: int


Cells = dict[tuple[int, int], int]  # (rank, slot) -> value


def rows_of(schedule: Schedule) -> list[Row]:
    """The rows as tuples of Python integers; a column that is absent is slot 0 or no route."""
    many = schedule.transfers
    zeros, none = [0] * many, [-1] * many
    src_slot = zeros if schedule.src_slot is None else schedule.src_slot.tolist()
    dst_slot = zeros if schedule.dst_slot is None else schedule.dst_slot.tolist()
    route = none if schedule.route is None else schedule.route.tolist()
    columns = [c.tolist() for c in (schedule.step, schedule.chunk, schedule.src, schedule.dst, schedule.op)]
    step, chunk, src, dst, op = columns
    return [Row(*row) for row in zip(step, chunk, src, src_slot, dst, dst_slot, op, route, strict=True)]


def relation_of(
    schedule: Schedule,
) -> tuple[dict[int, list[tuple[int, int]]], dict[int, list[tuple[int, tuple[int, ...]]]]]:
    """Per block who contributes what: (rank, id); and who must end with what: (rank, ids)."""
    r = schedule.collective.relation
    have: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for block, rank, name in zip(r.pre_block.tolist(), r.pre_rank.tolist(), r.pre_id.tolist(), strict=True):
        have[block].append((rank, name))
    need: dict[int, list[tuple[int, tuple[int, ...]]]] = defaultdict(list)
    for block, rank, want in zip(r.post_block.tolist(), r.post_rank.tolist(), r.post_want.tolist(), strict=True):
        every = tuple(sorted({name for _, name in have[block]}))
        need[block].append((rank, every if want < 0 else r.wants[want]))
    return have, need


def run(start: Cells, rows: list[Row]) -> Cells:
    """Return what the cells of one chunk hold after legal rows."""
    state = dict(start)
    by_step: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        by_step[row.step].append(row)
    for step in sorted(by_step):
        after = dict(state)
        for row in by_step[step]:
            cell = row.dst, row.dst_slot
            before = 0 if row.op == COPY else after.get(cell, 0)
            after[cell] = before + state[row.src, row.src_slot]
        state = after
    return state


class Ways:
    """The ways through a topology, found by plain walking."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.ends = list(zip(topology.link_src.tolist(), topology.link_dst.tolist(), strict=True))
        self.out: dict[int, list[int]] = defaultdict(list)
        for link, (tail, _) in enumerate(self.ends):
            self.out[tail].append(link)
        self.known: dict[tuple[int, int], list[tuple[int, ...]]] = {}

    def simple(self, src: int, dst: int) -> list[tuple[int, ...]]:
        """All simple paths from rank to rank that pass through switches only, direct links included."""
        if (src, dst) not in self.known:
            found: list[tuple[int, ...]] = []
            self._walk(src, dst, (), {src}, found)
            self.known[src, dst] = found
        return self.known[src, dst]

    def _walk(self, node: int, dst: int, path: tuple[int, ...], seen: set[int], found: list[tuple[int, ...]]) -> None:
        for link in self.out[node]:
            head = self.ends[link][1]
            if head == dst:
                found.append((*path, link))
            elif head >= self.topology.ranks and head not in seen:
                self._walk(head, dst, (*path, link), seen | {head}, found)

    def implied(self, src: int, dst: int) -> tuple[int, ...] | None:
        """The path of a row without a route: the one direct link, else the one path through switches."""
        paths = self.simple(src, dst)
        direct = [path for path in paths if len(path) == 1]
        candidates = direct or paths
        return candidates[0] if len(candidates) == 1 else None

    def path(self, row: Row, schedule: Schedule) -> tuple[int, ...] | None:
        """The links that a row uses; None where it has no valid route (or moves between slots of one rank)."""
        if row.src == row.dst:
            return None
        if row.route < 0:
            return self.implied(row.src, row.dst)
        if row.route >= len(schedule.routes):
            return None
        links = schedule.routes[row.route]
        if not links or any(not 0 <= link < len(self.ends) for link in links):
            return None
        nodes = [self.ends[links[0]][0]]
        for link in links:
            if self.ends[link][0] != nodes[-1]:
                return None
            nodes.append(self.ends[link][1])
        inner = nodes[1:-1]
        good = nodes[0] == row.src and nodes[-1] == row.dst and len(set(nodes)) == len(nodes)
        return links if good and all(node >= self.topology.ranks for node in inner) else None


def step_seconds(schedule: Schedule, topology: Topology) -> dict[int, Fraction]:
    """Seconds per byte of nbytes that each step takes at zero latency, with every piece sent one by one."""
    assert schedule.collective.weights is not None
    ways = Ways(topology)
    load: dict[tuple[int, int], Fraction] = defaultdict(Fraction)
    for row in rows_of(schedule):
        chunk = row.chunk
        pieces = schedule.pieces if isinstance(schedule.pieces, int) else int(schedule.pieces[chunk])
        weight = int(schedule.collective.weights[schedule.chunks.block[chunk]])
        part = Fraction(int(schedule.chunks.share[chunk]), schedule.chunks.denominator)
        amount = weight * part / (schedule.collective.buffer_weight * pieces)
        for link in ways.path(row, schedule) or ():
            limits = [i for i, limit in enumerate(topology.limits) if link in limit.links]
            for resource in (link, *(topology.links + i for i in limits)):
                for q in range(pieces):
                    load[row.step + q, resource] += amount
    out: dict[int, Fraction] = defaultdict(Fraction)
    for (step, resource), amount in load.items():
        at = resource - topology.links
        capacity = topology.bandwidth(resource) if at < 0 else topology.limits[at].bandwidth
        out[step] = max(out[step], amount / capacity)
    return out


def figures(schedule: Schedule, topology: Topology) -> dict[str, int]:
    """What a plan may claim about its schedule, counted one by one."""
    assert schedule.collective.weights is not None
    pieces = [
        schedule.pieces if isinstance(schedule.pieces, int) else int(schedule.pieces[chunk])
        for chunk in range(len(schedule.chunks))
    ]
    have, _ = relation_of(schedule)
    weights = schedule.collective.weights.tolist()
    blocks_of = {r: {b for b, rows in have.items() for rank, _ in rows if rank == r} for r in range(topology.ranks)}
    per_block = Counter[int]()
    for chunk, block in enumerate(schedule.chunks.block.tolist()):
        per_block[block] += pieces[chunk]
    chunks = max(sum(per_block[b] for b in blocks) for blocks in blocks_of.values())
    most = max(1, *(sum(weights[b] for b in blocks) for blocks in blocks_of.values()))
    seconds = step_seconds(schedule, topology)
    unit = Fraction(most, schedule.collective.buffer_weight * max(chunks, 1)) / topology.unit
    rows = rows_of(schedule)
    return {
        "chunks": chunks,
        "steps": max((row.step + pieces[row.chunk] for row in rows), default=0),
        "rounds": sum(math.ceil(s / unit) for s in seconds.values()),
        "transfers": sum(pieces[row.chunk] for row in rows),
    }
