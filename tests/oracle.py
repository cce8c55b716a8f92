"""The meaning of a schedule in plain Python: slow, small and obviously right, so that the tests can trust it.

Contribution k of a block is the number B**k, with B above any count that can arise; so a cell's value is one
exact integer that tells how often each contribution is in it. Nothing here uses the verifier, the interpreter,
the derived dependencies or the loads: only the plain columns of the types.
"""

import math
from collections import Counter, defaultdict
from dataclasses import dataclass
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


class Bad(NamedTuple):
    """Something wrong with a transfer: kind is route, self, empty or race."""

    kind: str
    step: int
    chunk: int
    src: int
    dst: int


Cells = dict[tuple[int, int], int]  # (rank, slot) -> value; a cell that is not there is EMPTY


@dataclass(frozen=True)
class Verdict:
    """Per chunk all faults of its first faulty step, all route faults, wrong ends (chunk, rank), untiled blocks."""

    illegal: frozenset[Bad]
    bad_routes: frozenset[Bad]
    wrong: frozenset[tuple[int, int]]
    bad_blocks: frozenset[int]

    @property
    def legal(self) -> bool:
        return not self.illegal

    @property
    def outcome_right(self) -> bool:
        return not self.wrong

    @property
    def route_ok(self) -> bool:
        return not self.bad_routes

    @property
    def share_ok(self) -> bool:
        return not self.bad_blocks

    @property
    def ok(self) -> bool:
        return self.legal and self.outcome_right and self.route_ok and self.share_ok


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


def judge(schedule: Schedule, topology: Topology) -> Verdict:
    """Everything that is right or wrong about a schedule."""
    rows = rows_of(schedule)
    ways = Ways(topology)
    bad_routes = set()
    for row in rows:
        if ways.path(row, schedule) is None and not (row.src == row.dst and row.route < 0):
            bad_routes.add(Bad("route", row.step, row.chunk, row.src, row.dst))
    by_chunk: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        by_chunk[row.chunk].append(row)
    illegal: set[Bad] = set()
    wrong: set[tuple[int, int]] = set()
    have, need = relation_of(schedule)
    for chunk in range(len(schedule.chunks)):
        block = int(schedule.chunks.block[chunk])
        start, value_of = beginning(have.get(block, []), by_chunk[chunk])
        end, faults = run(start, by_chunk[chunk])
        illegal |= faults
        for rank, want in need.get(block, []):
            if not faults and end.get((rank, 0)) != sum(value_of[i] for i in want):
                wrong.add((chunk, rank))
    return Verdict(frozenset(illegal), frozenset(bad_routes), frozenset(wrong), frozenset(untiled(schedule)))


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


def beginning(have: list[tuple[int, int]], rows: list[Row]) -> tuple[Cells, dict[int, int]]:
    """The cells of one chunk at the beginning, and the value of each contribution."""
    per_step = Counter(row.step for row in rows)
    base = 1 + max(len(have), 1) * math.prod(1 + n for n in per_step.values())
    value_of = {name: base**k for k, name in enumerate(sorted({name for _, name in have}))}
    start: Cells = {}
    for rank, name in have:
        start[rank, 0] = start.get((rank, 0), 0) + value_of[name]
    return start, value_of


def run(start: Cells, rows: list[Row]) -> tuple[Cells, set[Bad]]:
    """One chunk from beginning to end; stops at the first step with faults and returns all of that step."""
    state = dict(start)
    by_step: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        by_step[row.step].append(row)
    for step in sorted(by_step):
        faults: set[Bad] = set()
        writers: dict[tuple[int, int], list[Row]] = defaultdict(list)
        for row in by_step[step]:
            writers[row.dst, row.dst_slot].append(row)
            if (row.src, row.src_slot) == (row.dst, row.dst_slot):
                faults.add(Bad("self", step, row.chunk, row.src, row.dst))
            if (row.src, row.src_slot) not in state:
                faults.add(Bad("empty", step, row.chunk, row.src, row.dst))
        for group in writers.values():
            if len(group) > 1 and any(row.op == COPY for row in group):
                faults |= {Bad("race", step, row.chunk, row.src, row.dst) for row in group}
        if faults:
            return state, faults
        after = dict(state)
        for cell, group in writers.items():
            total = sum(state[row.src, row.src_slot] for row in group)
            after[cell] = total if group[0].op == COPY else state.get(cell, 0) + total
        state = after
    return state, set()


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


def untiled(schedule: Schedule) -> set[int]:
    """The blocks whose chunks do not tile them. One of weight 0 has no data, and may have no chunk."""
    parts: dict[int, list[tuple[Fraction, Fraction]]] = {b: [] for b in range(schedule.collective.blocks)}
    chunks = schedule.chunks
    for block, offset, share in zip(chunks.block.tolist(), chunks.offset.tolist(), chunks.share.tolist(), strict=True):
        parts[block].append((Fraction(offset, chunks.denominator), Fraction(share, chunks.denominator)))
    bad = set()
    for block, listed in parts.items():
        if not listed and not schedule.collective.weights[block]:
            continue
        reached = Fraction(0)
        for offset, share in sorted(listed):
            if offset != reached or share <= 0:
                bad.add(block)
            reached = offset + share
        if reached != 1:
            bad.add(block)
    return bad


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


def contents(schedule: Schedule, chunk: int) -> dict[int, Counter[int]]:
    """What slot 0 of every rank holds of a chunk at the end of a legal schedule, as counts of contributions."""
    rows = [row for row in rows_of(schedule) if row.chunk == chunk]
    have, _ = relation_of(schedule)
    start, value_of = beginning(have.get(int(schedule.chunks.block[chunk]), []), rows)
    end, _ = run(start, rows)
    base = value_of[sorted(value_of)[1]] if len(value_of) > 1 else None
    out = {}
    for (rank, slot), value in end.items():
        if slot == 0:
            digits = [value // base**k % base for k in range(len(value_of))] if base else [value]
            out[rank] = Counter(dict(zip(sorted(value_of), digits, strict=True)))
    return out
