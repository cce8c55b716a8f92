"""The same by packets: data with flags beside it, which tell by themselves when they have come. For small data.

Every message goes to a place of its own in the scratch of its receiver, so nobody asks whether that is free, and nobody
signals. Who receives waits for the packets: a fold adds them as they come, all else is unpacked to where it is wanted.
In a step a rank puts first and then receives, so nobody waits for what comes later.

Calls take turns between two scratch buffers. So a rank may be one call ahead of another, never two: before its end it
must have heard from all that it writes to. It has, where the result of everyone depends on everyone's data (`fit`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from antiphon.core.columns import Bools, Longs
from antiphon.core.program import Bound, Program
from antiphon.core.program.kinds import FOLD as FOLDS
from antiphon.core.program.kinds import RECEIVE, SCRATCH, SEND
from antiphon.lower.onesided.form import (
    ADD,
    FOLD,
    MOST_OPERANDS,
    MOST_PEERS,
    PACK,
    PACKETS,
    UNPACK,
    Move,
    Place,
    Step,
)
from antiphon.lower.onesided.line import Fold, Line, together
from antiphon.lower.onesided.messages import Moves, joined, messages
from antiphon.lower.onesided.streams import streams
from antiphon.lower.onesided.switched import Switched

KINDS = ("allreduce", "allgather", "reducescatter", "alltoall")


def fit(program: Program) -> bool:
    """Whether everyone hears from everyone, and no switch is asked for anything."""
    collective = program.collective
    switched = bool(len(program.joint)) and int(program.joint.max(initial=-1)) >= 0
    return collective.kind in KINDS and len(collective.members) == collective.ranks and not switched


class ByPackets:
    """The steps of a program that is fit, and that uses no scratch again."""

    def __init__(self, program: Program, bound: Bound) -> None:
        self.program, self.bound, self.found = program, bound, messages(program)
        moves = Moves(program, bound, self.found)
        self.of = [moves.of(rank) for rank in range(program.ranks)]
        self.folds = list(_folds(program, bound))

    def dealt(self, most: int) -> tuple[int, Callable[[int], list[list[Step]]], Bound]:
        """In how many streams it goes, at most `most`; the steps of a rank in each, made when they are asked for; and
        its addresses, with as many chunks of scratch as they take, where a chunk of packets lies at twice its number.
        Linear in operations, times their parts.
        """
        program, send = self.program, self.found.send
        stream = streams(program, self.found, most, Switched.none(program))
        count = int(stream.max(initial=-1)) + 1
        places = _Places(program, self.bound)
        turns: dict[tuple[int, int], dict[int, _Turn]] = defaultdict(lambda: defaultdict(_Turn))
        columns = (stream[send], program.when[send] // 2, program.rank[send], program.peer[send])
        for (number, step, source, target), rows in _groups(columns):
            of = self.of[source]
            mine, theirs = turns[number, source][step], turns[number, target][step]
            for move in joined([move for row in rows for move in of(row)]):
                slot = places.slot(target, move)
                mine.moves.append((move, slot))
                theirs.taken.append((slot, move.target, move.size))
        numbers = stream.tolist()
        for rank, step, fold in self.folds:
            turns[numbers[fold.rows[0]], rank][step].folds.append(fold)
        places.settle(turns)
        sizes = self.bound.sizes.copy()
        sizes[:, SCRATCH] = places.sizes()

        def steps(rank: int) -> list[list[Step]]:
            return [_Rank(places, rank, turns[at, rank]).steps() for at in range(count)]

        return count, steps, replace(self.bound, sizes=sizes)


def _groups(columns: tuple[Longs, ...]) -> Iterator[tuple[tuple[int, ...], list[int]]]:
    """Rows that have the same in all columns, in their order, by what they have."""
    order = np.lexsort(columns[::-1])
    keys = [column[order] for column in columns]
    new = np.ones(len(order), bool)
    new[1:] = np.any([key[1:] != key[:-1] for key in keys], axis=0)
    low, rows = np.flatnonzero(new), order.tolist()
    heads = zip(*(key[low].tolist() for key in keys), strict=True)
    for head, begin, end in zip(heads, low.tolist(), [*low[1:].tolist(), len(rows)], strict=True):
        yield head, rows[begin:end]


@dataclass(eq=False)
class _Turn:
    """What a rank does in one step of a stream. `moves`: with the slots that they go to. `taken`: slots with where
    their data is wanted."""

    moves: list[tuple[Move, int]] = field(default_factory=list)
    taken: list[tuple[int, Place, int]] = field(default_factory=list)
    folds: list[Fold] = field(default_factory=list)


def _folds(program: Program, bound: Bound) -> Iterator[tuple[int, int, Fold]]:
    """Rank and step of each fold, with it."""
    ptr, length = program.part_ptr.tolist(), bound.length.tolist()
    parts = list(zip(bound.buffer.tolist(), bound.begin.tolist(), strict=True))
    rows = np.flatnonzero(program.kind == FOLDS)
    columns = (rows, program.rank[rows], program.when[rows] // 2)
    for row, rank, step in zip(*(column.tolist() for column in columns), strict=True):
        into, *operands = parts[ptr[row] : ptr[row + 1]]
        if length[ptr[row]]:
            yield rank, step, Fold((row,), into, tuple(operands), length[ptr[row]])


class _Places:
    """Scratch, anew: slots of packets, and behind them the data that is still wanted as such.

    What comes into scratch, once, and is read by folds alone is added as packets, and is nowhere as data. `data`: of
    each chunk of scratch whether it is.
    """

    def __init__(self, program: Program, bound: Bound) -> None:
        self.first = np.concatenate([[0], np.cumsum(bound.sizes[:, SCRATCH])]).astype(np.int64)
        self.slots = [0] * program.ranks
        self.slot_of = np.full(int(self.first[-1]), -1, np.int64)  # of each chunk that comes by packets
        self.come: list[slice] = []  # what each message of several chunks brings
        self.data = self._otherwise(program, bound)
        self.place = self.slot_of  # of each chunk how many before it are data, once that is settled

    def _otherwise(self, program: Program, bound: Bound) -> Bools:
        """What anything but one message writes, or anything but folds reads."""
        inside = bound.buffer == SCRATCH
        kind, rank = program.kind[program.part_op], program.rank[program.part_op]
        result = np.zeros(len(inside), bool)
        result[program.part_ptr[:-1][program.kind == FOLDS]] = True
        written, other = (
            _covered(self.first[rank[some]] + bound.begin[some], bound.length[some], len(self.slot_of))
            for some in (inside & ((kind == RECEIVE) | result), inside & ((kind == SEND) | result))
        )
        found: Bools = (written > 1) | (other > 0)
        return found

    def slot(self, rank: int, move: Move) -> int:
        """The place of its packets at the receiver."""
        at = self.slots[rank]
        self.slots[rank] += move.size
        if move.target[0] == SCRATCH:
            low = int(self.first[rank]) + move.target[1]
            if move.size == 1:
                self.slot_of[low] = at
            else:
                self.slot_of[low : low + move.size] = np.arange(at, at + move.size)
                self.come.append(slice(low, low + move.size))
        return at

    def settle(self, turns: dict[tuple[int, int], dict[int, _Turn]]) -> None:
        """All slots are known. What a message brings, and what a fold reads, is packets as a whole or none of it: which
        says nothing of what is one chunk, as nearly all is."""
        read = [
            slice(int(self.first[rank]) + place[1], int(self.first[rank]) + place[1] + fold.size)
            for (_, rank), steps in turns.items()
            for turn in steps.values()
            for fold in turn.folds
            if fold.size > 1
            for place in fold.operands
            if place[0] == SCRATCH
        ]
        for some in read:
            if (np.diff(self.slot_of[some]) != 1).any():
                self.data[some] = True
        many = -1
        while many != (many := int(self.data.sum())):
            for some in (*self.come, *read):
                self.data[some] |= self.data[some].any()
        self.place = np.concatenate([[0], np.cumsum(self.data)])

    def packets(self, rank: int, place: Place) -> Place | None:
        """Where this is, if it is packets alone."""
        at = int(self.first[rank]) + place[1]
        return None if place[0] != SCRATCH or self.data[at] else (PACKETS, int(self.slot_of[at]))

    def moved(self, rank: int, place: Place) -> Place:
        """Where this is as data: a chunk of packets lies at twice its number."""
        if place[0] != SCRATCH:
            return place
        low = int(self.first[rank])
        return SCRATCH, 2 * self.slots[rank] + int(self.place[low + place[1]] - self.place[low])

    def sizes(self) -> list[int]:
        """Chunks of scratch of every rank."""
        more = np.diff(self.place[self.first])
        return [2 * slots + data if data else slots for slots, data in zip(self.slots, more.tolist(), strict=True)]


def _covered(low: Longs, length: Longs, room: int) -> Longs:
    """Of each of so many chunks how many stretches cover it.

    >>> _covered(np.array([0, 1]), np.array([2, 3]), 5).tolist()
    [1, 2, 1, 1, 0]
    """
    ends = np.bincount(low, minlength=room + 1) - np.bincount(low + length, minlength=room + 1)
    found: Longs = np.cumsum(ends[:room])
    return found


class _Rank:
    """Writes the steps of a rank."""

    def __init__(self, places: _Places, rank: int, turns: dict[int, _Turn]) -> None:
        self.places, self.rank, self.turns = places, rank, turns
        self.line = Line(rank)
        self.held: list[Fold] = []  # what the next puts may take along

    def steps(self) -> list[Step]:
        for number in sorted(self.turns):
            turn = self.turns[number]
            moves = [self._move(move, slot) for move, slot in turn.moves]
            if self.held:
                moves = self._fold(moves)
            if moves:
                self._put(moves)
            for slot, target, size in turn.taken:
                if self.places.packets(self.rank, target) is None:
                    self._unpack((PACKETS, slot), self.places.moved(self.rank, target), size)
            self.held = together([self._read(fold) for fold in turn.folds]) if turn.folds else []
        self._fold([])
        return self.line.made

    def _move(self, move: Move, slot: int) -> Move:
        return Move(move.peer, self.places.moved(self.rank, move.source), (PACKETS, slot), move.size)

    def _read(self, fold: Fold) -> Fold:
        """Its operands as they are: data first, then packets."""
        packets = [self.places.packets(self.rank, place) for place in fold.operands]
        data = [
            self.places.moved(self.rank, place) for place, some in zip(fold.operands, packets, strict=True) if not some
        ]
        operands = (*data, *(place for place in packets if place))
        return Fold(fold.rows, self.places.moved(self.rank, fold.into), operands, fold.size)

    def _fold(self, asked: list[Move]) -> list[Move]:
        """Do the folds that were held, with the packets of what they make; gives the moves that are left."""
        left = asked
        for fold in self.held:
            data = [place for place in fold.operands if place[0] != PACKETS]
            packets = [place for place in fold.operands if place[0] == PACKETS]
            along: list[Move] = []
            if left and data and packets:
                along = [move for move in left if (move.source, move.size) == (fold.into, fold.size)][:MOST_PEERS]
                left = [move for move in left if move not in along]
            if not data:
                self._unpack(packets.pop(0), fold.into, fold.size)
                data = [fold.into]
            if len(data) > 1 or not packets:
                data = self._combined(data, fold)
            while packets:
                now, packets = packets[: MOST_OPERANDS - 1], packets[MOST_OPERANDS - 1 :]
                self._touch(ADD, (*data, *now), fold.into, fold.size, tuple(along) if not packets else ())
                data = [fold.into]
        self.held = []
        return left

    def _combined(self, data: list[Place], fold: Fold) -> list[Place]:
        """The sum of what is data."""
        rest = sorted(data, key=lambda place: place != fold.into)
        while rest and rest != [fold.into]:
            now, rest = rest[:MOST_OPERANDS], rest[MOST_OPERANDS:]
            self._touch(FOLD, tuple(now), fold.into, fold.size)
            rest = [fold.into, *rest] if rest else []
        return [fold.into]

    def _unpack(self, packets: Place, into: Place, size: int) -> None:
        self._touch(UNPACK, (packets,), into, size)

    def _put(self, moves: list[Move]) -> None:
        for buffer in sorted({move.source[0] for move in moves}):
            some = [move for move in moves if move.source[0] == buffer]
            for low in range(0, len(some), MOST_PEERS):
                batch = tuple(some[low : low + MOST_PEERS])
                self.line.touch(Step(PACK, moves=batch), [(move.source, move.size) for move in batch])

    def _touch(
        self, kind: int, operands: tuple[Place, ...], into: Place, size: int, along: tuple[Move, ...] = ()
    ) -> None:
        """What threads read of packets they wait for themselves; only data needs a sync."""
        read = [(place, size) for place in operands if place[0] != PACKETS]
        self.line.touch(Step(kind, (), along, into, operands, size), read, [(into, size)])
