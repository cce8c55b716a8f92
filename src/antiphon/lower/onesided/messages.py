"""The k-th send of a way is met with its k-th receive: what goes from where to where."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from antiphon.core.columns import Bools, Longs
from antiphon.core.program import Bound, Program
from antiphon.core.program.kinds import RECEIVE, SEND
from antiphon.lower.onesided.form import Move, Place


@dataclass(frozen=True, eq=False)
class Messages:
    """Rows of operations: sends with their receives."""

    send: Longs
    receive: Longs
    credit: Bools  # the sender cannot know by itself that the place is free


def messages(program: Program) -> Messages:
    """O(n log n). A place is free, as far as its sender knows, where the receive waits for nothing, or for what came
    from that sender, or has reached it, in an earlier step."""
    p = program
    send, receive = (np.flatnonzero(p.kind == kind) for kind in (SEND, RECEIVE))
    send = send[np.lexsort((send, p.when[send], p.channel[send], p.peer[send], p.rank[send]))]
    receive = receive[np.lexsort((receive, p.when[receive], p.channel[receive], p.rank[receive], p.peer[receive]))]
    known = np.zeros(len(p.wait), bool)
    crossing = (p.kind[p.wait] == SEND) | (p.kind[p.wait] == RECEIVE)
    known[crossing] = p.peer[p.wait[crossing]] == p.peer[p.wait_op[crossing]]
    lacking = np.bincount(p.wait_op[~known], minlength=p.operations)
    return Messages(send, receive, lacking[receive] > 0)


class Moves:
    """What each message moves, cut where a part of either side ends; neighbours on both sides are one. They are made
    when they are asked for. `empty`: whether a message moves nothing."""

    def __init__(self, program: Program, bound: Bound, found: Messages) -> None:
        self._parts = list(zip(bound.buffer.tolist(), bound.begin.tolist(), bound.length.tolist(), strict=True))
        self._ptr = program.part_ptr.tolist()
        self._send, self._receive = found.send.tolist(), found.receive.tolist()
        self._peer = program.peer[found.send].tolist()
        until = np.concatenate([[0], np.cumsum(bound.length)])
        self.empty: Bools = until[program.part_ptr[found.send]] == until[program.part_ptr[found.send + 1]]

    def of(self, at: int) -> list[Move]:
        mine, theirs = (self._parts[self._ptr[row] : self._ptr[row + 1]] for row in (self._send[at], self._receive[at]))
        if len(mine) == len(theirs) == 1:
            (buffer, begin, length), (where, into, _) = mine[0], theirs[0]
            return [Move(self._peer[at], (buffer, begin), (where, into), length)] if length else []
        return _cut(self._peer[at], mine, theirs)


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
