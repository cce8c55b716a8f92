"""The k-th send of a way is met with its k-th receive: what goes from where to where."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from antiphon.core.columns import Bools, Longs, pointers
from antiphon.core.program import Bound, Program
from antiphon.core.program.kinds import RECEIVE, SEND
from antiphon.lower.onesided.form import Move, Place


@dataclass(frozen=True, eq=False)
class Messages:
    """Rows of operations: sends with their receives."""

    send: Longs
    receive: Longs


def messages(program: Program) -> Messages:
    """O(n log n).

    >>> from antiphon.core.example import star
    >>> from antiphon.lower.lowering import lower
    >>> program = lower(star())
    >>> table = messages(program)
    >>> table.send.tolist(), table.receive.tolist()
    ([3, 4, 5, 7], [6, 8, 1, 0])
    >>> program.rank[table.send].tolist(), program.rank[table.receive].tolist()
    ([0, 0, 1, 2], [1, 2, 0, 0])
    """
    p = program
    send, receive = (np.flatnonzero(p.kind == kind) for kind in (SEND, RECEIVE))
    send = send[np.lexsort((send, p.when[send], p.channel[send], p.peer[send], p.rank[send]))]
    receive = receive[np.lexsort((receive, p.when[receive], p.channel[receive], p.rank[receive], p.peer[receive]))]
    return Messages(send, receive)


class Moves:
    """What each message moves, cut where a part of either side ends; neighbours on both sides are one. `message`: of
    each move; `columns`: buffer and chunk of its source and of its target, and its size. `empty`: whether a message
    moves nothing."""

    def __init__(self, program: Program, bound: Bound, found: Messages) -> None:
        self.program, self.bound, self.found = program, bound, found
        self.ptr = pointers(program.rank[found.send], program.ranks)  # sends stand by rank
        until = np.concatenate([[0], np.cumsum(bound.length)])
        self.empty: Bools = until[program.part_ptr[found.send]] == until[program.part_ptr[found.send + 1]]
        one = ~self.empty
        for rows in (found.send, found.receive):
            one &= program.part_ptr[rows + 1] - program.part_ptr[rows] == 1
        plain = np.flatnonzero(one)
        mine, theirs = program.part_ptr[found.send[plain]], program.part_ptr[found.receive[plain]]
        columns = (bound.buffer[mine], bound.begin[mine], bound.buffer[theirs], bound.begin[theirs], bound.length[mine])
        several = [(at, *move) for at in np.flatnonzero(~one & ~self.empty).tolist() for move in self._cut(at)]
        more = np.array(several, np.int64).reshape(-1, 6).T
        message = np.concatenate([plain, more[0]])
        order = np.argsort(message, kind="stable")
        self.message = message[order]
        self.columns = [np.concatenate(some)[order] for some in zip(columns, more[1:], strict=True)]
        self.first = pointers(self.message, len(found.send))

    def of(self, rank: int) -> Callable[[int], list[Move]]:
        """Of a message that this rank sends; made when they are asked for, of one rank after another."""
        low, high = int(self.ptr[rank]), int(self.ptr[rank + 1])
        first = self.first[low : high + 1].tolist()
        some = slice(first[0], first[-1])
        peer = self.program.peer[self.found.send[self.message[some]]].tolist()
        source, begin, target, at, size = (column[some].tolist() for column in self.columns)
        places = (zip(source, begin, strict=True), zip(target, at, strict=True))
        moves = list(map(Move, peer, *places, size))

        def of(at: int) -> list[Move]:
            return moves[first[at - low] - first[0] : first[at - low + 1] - first[0]]

        return of

    def _cut(self, at: int) -> list[tuple[int, int, int, int, int]]:
        mine, theirs = (self._parts(int(rows[at])) for rows in (self.found.send, self.found.receive))
        return [(*move.source, *move.target, move.size) for move in _cut(0, mine, theirs)]

    def _parts(self, row: int) -> list[tuple[int, int, int]]:
        bound, some = self.bound, slice(int(self.program.part_ptr[row]), int(self.program.part_ptr[row + 1]))
        columns = (bound.buffer[some].tolist(), bound.begin[some].tolist(), bound.length[some].tolist())
        return list(zip(*columns, strict=True))


def _cut(peer: int, mine: list[tuple[int, int, int]], theirs: list[tuple[int, int, int]]) -> list[Move]:
    made: list[Move] = []
    into = iter(theirs)
    target: Place = (0, 0)
    room = 0
    for buffer, begin, length in mine:
        done = 0
        while done < length:
            while not room:
                where, at, room = next(into)
                target = where, at
            count = min(length - done, room)
            made.append(Move(peer, (buffer, begin + done), target, count))
            done, room = done + count, room - count
            target = target[0], target[1] + count
    return joined(made)


def joined(made: list[Move]) -> list[Move]:
    """Neighbours that go on where the one before ends, on both sides, as one."""
    if len(made) < 2:
        return made
    out: list[Move] = []
    for move in made:
        if out:
            last = out[-1]
            source, target = (
                (last.source[0], last.source[1] + last.size),
                (last.target[0], last.target[1] + last.size),
            )
            if (move.peer, move.source, move.target) == (last.peer, source, target):
                out[-1] = last._replace(size=last.size + move.size)
                continue
        out.append(move)
    return out
