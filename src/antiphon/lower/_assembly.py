"""Operations as they are made, and the program that they become: all columns in their final order."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from antiphon.core.columns import Longs, distinct, order_of, packed, pointers, starts
from antiphon.core.program import RECEIVE, SEND, Program
from antiphon.lower._moves import Moves
from antiphon.lower._slots import Slots
from antiphon.lower.rows import Prepared


@dataclass(eq=False)
class Table:
    """Operations as they are made, with their parts and waits; each set of columns is added at once."""

    columns: list[tuple[Longs, ...]] = field(default_factory=list)  # kind, rank, peer, pieces, when, chunk
    parts: list[tuple[Longs, ...]] = field(default_factory=list)  # operation, begin, end, base
    waits: list[tuple[Longs, Longs]] = field(default_factory=list)
    joint: list[tuple[Longs, Longs]] = field(default_factory=list)  # operations, and the joint of each
    count: int = 0

    def add(
        self, kind: int, rank: ArrayLike, peer: ArrayLike, pieces: ArrayLike, when: Longs, chunk: ArrayLike
    ) -> Longs:
        """New operations; returns their numbers.

        >>> table = Table()
        >>> table.add(SEND, [0, 1], [1, 0], 1, np.array([0, 0]), 0), table.add(RECEIVE, 1, 0, 1, np.array([0]), 0)
        (array([0, 1]), array([2]))
        """
        columns = np.broadcast_arrays(*(np.asarray(c, np.int64) for c in (kind, rank, peer, pieces, when, chunk)))
        self.columns.append(tuple(columns))
        first, self.count = self.count, self.count + len(when)
        return np.arange(first, self.count)

    def part(self, operation: Longs, begin: Longs, end: Longs, base: Longs) -> None:
        self.parts.append((operation, begin, end, base))

    def wait(self, later: Longs, earlier: Longs) -> None:
        other = later != earlier
        self.waits.append((later[other], earlier[other]))

    def when(self) -> Longs:
        return np.concatenate([c[4] for c in self.columns])

    def all(self, what: str, width: int) -> list[Longs]:
        listed: list[Any] = getattr(self, what)
        empty = np.zeros(0, np.int64)
        return [np.concatenate([empty, *(columns[i] for columns in listed)]) for i in range(width)]


def assembled(work: Prepared, movement: Moves, slots: Slots, table: Table, channels: int) -> Program:
    """All columns in their final order: operations by rank, time, and receives before sends before folds. One sort."""
    schedule, line, places = work.schedule, work.line, work.places
    ranks = schedule.collective.ranks
    kind, rank, peer, pieces, when, chunk = table.all("columns", 6)
    rush = np.where(kind == RECEIVE, 0, np.where(kind == SEND, 1, 2))
    order = order_of(*packed((rank, ranks), (when, int(when.max(initial=0)) + 1), (rush, 3)))
    number = np.empty(len(order), np.int64)
    number[order] = np.arange(len(order))
    operation, begin, end, base = table.all("parts", 4)
    turn = order_of(number[operation], len(order))
    later, earlier = table.all("waits", 2)
    edges = distinct(number[later] * max(len(order), 1) + number[earlier])
    base_rank = np.concatenate([places.rank, schedule.dst[movement.head]]).astype(np.int64)
    by_rank = order_of(base_rank, ranks)
    base_number = np.empty(len(by_rank), np.int64)
    base_number[by_rank] = np.arange(len(by_rank))
    none, zero = np.zeros(len(places), np.int64), np.zeros(len(movement.head), np.int64)
    origin = line.begin[schedule.chunk[movement.head]]
    joint = np.full(len(order) if table.joint else 0, -1, np.int64)
    for operations, of in table.joint:
        joint[number[operations]] = of
    finish = _finish(work)
    planner = schedule.provenance.get("planner")
    return Program(
        schedule.collective, work.in_place, channels,
        f"{schedule.collective.kind} among {len(schedule.collective.members)} ranks" + f", {planner}" * bool(planner),
        line.denominator, line.whole, line.part,
        pointers(base_rank, ranks), np.concatenate([places.shift, zero])[by_rank],
        np.concatenate([places.buffer, zero + 2])[by_rank], np.concatenate([none, slots.slot])[by_rank],
        np.concatenate([none, origin])[by_rank],
        slots.class_whole, slots.class_part, slots.class_pieces, slots.ptr, slots.of_class,
        pointers(rank, ranks), kind[order], (line.place[chunk] % channels)[order] if len(chunk) else chunk,
        peer[order], pieces[order], when[order],
        pointers(number[operation], len(order)), begin[turn], end[turn], base_number[base[turn]],
        pointers(edges // max(len(order), 1), len(order)), edges % max(len(order), 1),
        pointers(finish[0], ranks), finish[1], finish[2], base_number[finish[3]], finish[4], joint,
    )  # fmt: skip


def _finish(work: Prepared) -> tuple[Longs, Longs, Longs, Longs, Longs]:
    """Which stretches of the outputs an avg divides, by how much: rank, begin, end, base, count. One sort.

    >>> from antiphon.core.example import star
    >>> from antiphon.lower.rows import prepare
    >>> _finish(prepare(star(), False))
    (array([0, 1, 2]), array([0, 0, 0]), array([1, 1, 1]), array([1, 3, 5]), array([3, 3, 3]))
    """
    ends, line = work.analysis.outputs, work.line
    rows = np.flatnonzero(ends.count > 1)
    rows = rows[np.lexsort((line.place[ends.chunk[rows]], ends.rank[rows]))]
    chunk, rank, base, count = ends.chunk[rows], ends.rank[rows], work.places.outputs[rows], ends.count[rows]
    fresh = starts(rank) | starts(base) | starts(count)
    fresh[1:] |= line.end[chunk[:-1]] != line.begin[chunk[1:]]
    last = np.append(fresh[1:], True)[: len(fresh)]
    return rank[fresh], line.begin[chunk[fresh]], line.end[chunk[last]], base[fresh], count[fresh]
