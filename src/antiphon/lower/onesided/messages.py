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
    """O(n log n)."""
    p = program
    send, receive = (np.flatnonzero(p.kind == kind) for kind in (SEND, RECEIVE))
    send = send[np.lexsort((send, p.when[send], p.channel[send], p.peer[send], p.rank[send]))]
    receive = receive[np.lexsort((receive, p.when[receive], p.channel[receive], p.rank[receive], p.peer[receive]))]
    return Messages(send, receive)


class Moves:
    """What each message moves, cut where a part of either side ends; neighbours on both sides are one. They are made
    when they are asked for, of one rank after another. `empty`: whether a message moves nothing."""

    def __init__(self, program: Program, bound: Bound, found: Messages) -> None:
        self.program, self.bound, self.found = program, bound, found
        self.ptr = pointers(program.rank[found.send], program.ranks)  # sends stand by rank
        until = np.concatenate([[0], np.cumsum(bound.length)])
        self.empty: Bools = until[program.part_ptr[found.send]] == until[program.part_ptr[found.send + 1]]

    def of(self, rank: int) -> Callable[[int], list[Move]]:
        """Of a message that this rank sends."""
        program, bound = self.program, self.bound
        low, high = int(self.ptr[rank]), int(self.ptr[rank + 1])
        send, receive = self.found.send[low:high], self.found.receive[low:high]
        peer = program.peer[send].tolist()
        mine, theirs = program.part_ptr[send], program.part_ptr[receive]
        one = (program.part_ptr[send + 1] - mine == 1) & (program.part_ptr[receive + 1] - theirs == 1)
        plain = (one & (bound.length[np.where(one, mine, 0)] > 0)).tolist()
        at = (np.where(one, rows, 0) for rows in (mine, theirs))
        source, target = (zip(bound.buffer[rows].tolist(), bound.begin[rows].tolist(), strict=True) for rows in at)
        length = bound.length[np.where(one, mine, 0)].tolist()
        moves = list(map(Move, peer, source, target, length))

        def of(at: int) -> list[Move]:
            if plain[at - low]:
                return [moves[at - low]]
            parts = (self._parts(int(rows[at - low])) for rows in (send, receive))
            return _cut(peer[at - low], *parts)

        return of

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
