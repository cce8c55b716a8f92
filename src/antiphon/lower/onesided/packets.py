"""The same by packets: data with flags beside it, which tell by themselves when they have come. For small data.

Every message goes to a place of its own in the scratch of its receiver, so nobody asks whether that is free, and nobody
signals. Who receives waits for the packets: a fold adds them as they come, all else is unpacked to where it is wanted.
In a step a rank puts first and then receives, so nobody waits for what comes later.

Calls take turns between two scratch buffers. So a rank may be one call ahead of another, never two: before its end it
must have heard from all that it writes to. It has, where the result of everyone depends on everyone's data (`fit`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby, pairwise, repeat
from typing import Literal, NamedTuple

import numpy as np

from antiphon.core.columns import Bools, Longs, distinct, order_of, pointers, ranges, starts, sums
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
    Moves,
    Place,
    Step,
)
from antiphon.lower.onesided.steps import Fold, RankSteps, together
from antiphon.lower.onesided.streams import streams
from antiphon.lower.onesided.switched import Switched

_SIDES: tuple[Literal["left", "right"], ...] = ("left", "right")
KINDS = ("allreduce", "allgather", "reducescatter", "alltoall")


def fit(program: Program) -> bool:
    """Whether everyone hears from everyone, and no switch is asked for anything."""
    collective = program.collective
    switched = bool(len(program.joint)) and int(program.joint.max(initial=-1)) >= 0
    return collective.kind in KINDS and len(collective.members) == collective.ranks and not switched


class ByPackets:
    """The steps of a program that is fit, and that uses no scratch again."""

    def __init__(self, program: Program, bound: Bound) -> None:
        self.program, self.bound = program, bound
        self.moves = Moves(program, bound)
        folds = np.flatnonzero(program.kind == FOLDS)
        self.folds = folds[bound.length[program.part_ptr[folds]] > 0]

    def dealt(self, most: int) -> tuple[int, Callable[[int], list[list[Step]]], Bound]:
        """In how many streams it goes, at most `most`; the steps of a rank in each, made when they are asked for; and
        its addresses, with as many chunks of scratch as they take, where a chunk of packets lies at twice its number.
        Linear in operations, times their parts.
        """
        program = self.program
        stream = streams(program, most, Switched.none(program))
        count, times = int(stream.max(initial=-1)) + 1, int(program.when.max(initial=0)) // 2 + 1
        turn = stream * times + program.when // 2
        sent = _Sent.of(program, program.pairs.send[self.moves.message], self.moves.columns, turn)
        folds = self.folds[np.lexsort((turn[self.folds], program.rank[self.folds]))]
        places = _Places(program, self.bound, sent, folds)
        work = _RankWork(program, self.bound, turn, sent, folds, places)
        sizes = self.bound.sizes.copy()
        sizes[:, SCRATCH] = places.sizes()

        def steps(rank: int) -> list[list[Step]]:
            made: list[list[Step]] = [[] for _ in range(count)]
            for at, turns in groupby(work.turns(rank), lambda one: one.number // times):
                made[at] = _Rank(rank).steps(turns)
            return made

        return count, steps, replace(self.bound, sizes=sizes)


class _Sent(NamedTuple):
    """Messages as columns, by turn, sender and receiver. `slot`: of the receiver, where the packets go."""

    turn: Longs
    rank: Longs
    peer: Longs
    source: Longs
    begin: Longs
    target: Longs
    at: Longs
    size: Longs
    slot: Longs

    @staticmethod
    def of(program: Program, send: Longs, moves: Sequence[Longs], turn: Longs) -> _Sent:
        """Neighbours that go on where the one before ends, on both sides, are one."""
        order = np.lexsort((program.peer[send], program.rank[send], turn[send]))
        send = send[order]
        keys = [turn[send], program.rank[send].astype(np.int64), program.peer[send].astype(np.int64)]
        source, begin, target, at, size = (column[order] for column in moves)
        head = np.ones(len(order), bool)
        head[1:] = np.any([one[1:] != one[:-1] for one in (*keys, source, target)], axis=0)
        head[1:] |= np.any([one[1:] != (one + size)[:-1] for one in (begin, at)], axis=0)
        total = np.diff(np.append(np.cumsum(size)[head] - size[head], size.sum()))
        turn, rank, peer, source, begin, target, at = (one[head] for one in (*keys, source, begin, target, at))
        by = order_of(peer, program.ranks)
        before = np.cumsum(total[by]) - total[by]
        slot = np.empty(len(by), np.int64)
        slot[by] = before - before[np.flatnonzero(starts(peer[by]))][np.cumsum(starts(peer[by])) - 1]
        return _Sent(turn, rank, peer, source, begin, target, at, total, slot)


class _Places:
    """Scratch, anew: slots of packets, and behind them the data that is still wanted as such.

    What comes into scratch, once, and is read by folds alone is added as packets, and is nowhere as data. `data`: of
    each chunk of scratch whether it is.
    """

    def __init__(self, program: Program, bound: Bound, sent: _Sent, folds: Longs) -> None:
        self.first = np.concatenate([[0], np.cumsum(bound.sizes[:, SCRATCH])]).astype(np.int64)
        self.slots: Longs = sums(sent.peer, sent.size, program.ranks)
        into = sent.target == SCRATCH
        come, size = self.first[sent.peer[into]] + sent.at[into], sent.size[into]
        self.slot_of = np.full(int(self.first[-1]) + 1, -1, np.int64)  # of each chunk that comes by packets
        self.slot_of[ranges(come, size)] = ranges(sent.slot[into], size)
        part = ranges(program.part_ptr[folds] + 1, np.diff(program.part_ptr)[folds] - 1)
        part = part[bound.buffer[part] == SCRATCH]
        read = self.first[program.rank[program.part_op[part]]] + bound.begin[part]
        self.data = self._otherwise(program, bound)
        self._settle(_wide(come, size), _wide(read, bound.length[part]))
        self.place = np.concatenate([[0], np.cumsum(self.data)])  # of each chunk how many before it are data

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

    def _settle(self, come: list[slice], read: list[slice]) -> None:
        """What a message brings, and what a fold reads, is packets as a whole or none of it: which says nothing of what
        is one chunk, as nearly all is."""
        for some in read:
            if (np.diff(self.slot_of[some]) != 1).any():
                self.data[some] = True
        many = -1
        while many != (many := int(self.data.sum())):
            for some in (*come, *read):
                self.data[some] |= self.data[some].any()

    def packets(self, rank: Longs, buffer: Longs, begin: Longs) -> Longs:
        """In which slot these are, if they are packets alone; else -1."""
        at = np.where(buffer == SCRATCH, self.first[rank] + begin, len(self.data) - 1)
        return np.where(self.data[at], -1, self.slot_of[at])

    def moved(self, rank: Longs, buffer: Longs, begin: Longs) -> Longs:
        """Where in their buffers these are as data: a chunk of packets lies at twice its number."""
        low = self.first[rank]
        at = np.where(buffer == SCRATCH, low + begin, low)
        return np.where(buffer == SCRATCH, 2 * self.slots[rank] + self.place[at] - self.place[low], begin)

    def sizes(self) -> Longs:
        """Chunks of scratch of every rank."""
        more = np.diff(self.place[self.first])
        return np.where(more > 0, 2 * self.slots + more, self.slots)


def _wide(low: Longs, size: Longs) -> list[slice]:
    """Those of several chunks."""
    wide = size > 1
    return list(map(slice, low[wide].tolist(), (low + size)[wide].tolist()))


def _covered(low: Longs, length: Longs, room: int) -> Longs:
    """Of each of so many chunks how many stretches cover it.

    >>> _covered(np.array([0, 1]), np.array([2, 3]), 5).tolist()
    [1, 2, 1, 1, 0]
    """
    ends = np.bincount(low, minlength=room + 1) - np.bincount(low + length, minlength=room + 1)
    found: Longs = np.cumsum(ends[:room])
    return found


class _Turn(NamedTuple):
    """What a rank does in one step of a stream. `taken`: packets with where they are wanted as data."""

    number: int
    moves: list[Move]
    taken: list[tuple[Place, Place, int]]
    folds: list[Fold]


class _RankWork:
    """What every rank does, at the addresses that it has in the end."""

    def __init__(
        self, program: Program, bound: Bound, turn: Longs, sent: _Sent, folds: Longs, places: _Places
    ) -> None:  # fmt: skip
        self.sent, self.turn, self.folds, ranks = sent, turn[folds], folds, program.ranks
        self.by_rank = order_of(sent.rank, ranks)
        self.sent_ptr = pointers(sent.rank[self.by_rank], ranks)
        self.begin = places.moved(sent.rank, sent.source, sent.begin)
        taken = np.flatnonzero(places.packets(sent.peer, sent.target, sent.at) < 0)
        self.taken = taken[order_of(sent.peer[taken], ranks)]
        self.taken_ptr = pointers(sent.peer[self.taken], ranks)
        self.at = places.moved(sent.peer, sent.target, sent.at)
        self.fold_ptr = pointers(program.rank[folds], ranks)
        self.size = bound.length[program.part_ptr[folds]]
        many = np.diff(program.part_ptr)[folds]
        self.part_ptr = np.concatenate([[0], np.cumsum(many)])
        part, fold = ranges(program.part_ptr[folds], many), np.repeat(np.arange(len(folds)), many)
        rank, buffer, begin = program.rank[folds][fold], bound.buffer[part], bound.begin[part]
        slot = places.packets(rank, buffer, begin)
        slot[self.part_ptr[:-1]] = -1  # the result
        order = order_of(2 * fold + (slot >= 0), 2 * len(folds))  # data first, then packets
        self.buffer = np.where(slot >= 0, PACKETS, buffer)[order]
        self.place = np.where(slot >= 0, slot, places.moved(rank, buffer, begin))[order]

    def turns(self, rank: int) -> Iterator[_Turn]:
        """Those of a rank, in order."""
        sent = self.sent
        mine = self.by_rank[self.sent_ptr[rank] : self.sent_ptr[rank + 1]]
        theirs = self.taken[self.taken_ptr[rank] : self.taken_ptr[rank + 1]]
        moves = list(
            map(Move, _list(sent.peer[mine]), _pairs(sent.source[mine], self.begin[mine]), _packets(sent.slot[mine]),
            _list(sent.size[mine]))
        )  # fmt: skip
        into = _pairs(sent.target[theirs], self.at[theirs])
        taken = list(zip(_packets(sent.slot[theirs]), into, _list(sent.size[theirs]), strict=True))
        some = slice(int(self.fold_ptr[rank]), int(self.fold_ptr[rank + 1]))
        folds = self._folds(some.start, some.stop)
        numbers = (sent.turn[mine], sent.turn[theirs], self.turn[some])
        every = distinct(np.concatenate(numbers))
        low, high = (
            zip(*(_list(np.searchsorted(one, every, side)) for one in numbers), strict=True) for side in _SIDES
        )
        for number, (a, b, c), (d, e, f) in zip(_list(every), low, high, strict=True):
            yield _Turn(number, moves[a:d], taken[b:e], folds[c:f])

    def _folds(self, low: int, high: int) -> list[Fold]:
        ptr = _list(self.part_ptr[low : high + 1])
        first, last = (ptr[0], ptr[-1])
        places = list(_pairs(self.buffer[first:last], self.place[first:last]))
        return [
            Fold((row,), places[begin - first], tuple(places[begin - first + 1 : end - first]), size)
            for row, (begin, end), size in zip(
                _list(self.folds[low:high]), pairwise(ptr), _list(self.size[low:high]), strict=True
            )
        ]


class _Rank:
    """Writes the steps of a rank in a stream."""

    def __init__(self, rank: int) -> None:
        self.line = RankSteps(rank)
        self.held: list[Fold] = []  # what the next puts may take along

    def steps(self, turns: Iterable[_Turn]) -> list[Step]:
        for turn in turns:
            left = self._fold(turn.moves) if self.held else turn.moves
            if left:
                self.line.put(PACK, left)
            for packets, into, size in turn.taken:
                self._unpack(packets, into, size)
            self.held = together(turn.folds) if turn.folds else []
        self._fold([])
        return self.line.made

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

    def _touch(
        self, kind: int, operands: tuple[Place, ...], into: Place, size: int, along: tuple[Move, ...] = ()
    ) -> None:
        """What threads read of packets they wait for themselves; only data needs a sync."""
        read = [place for place in operands if place[0] != PACKETS]
        self.line.combine(Step(kind, (), along, into, operands, size), read)


def _list(column: Longs) -> list[int]:
    return column.tolist()


def _pairs(buffer: Longs, begin: Longs) -> Iterator[Place]:
    return zip(buffer.tolist(), begin.tolist(), strict=True)


def _packets(slot: Longs) -> Iterator[Place]:
    return zip(repeat(PACKETS), slot.tolist())
