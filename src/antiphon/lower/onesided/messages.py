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


def moves(program: Program, bound: Bound, found: Messages) -> list[list[Move]]:
    """What each message moves, cut where a part of either side ends; neighbours on both sides are one."""
    parts = list(zip(bound.buffer.tolist(), bound.begin.tolist(), bound.length.tolist(), strict=True))
    ptr, peer = program.part_ptr.tolist(), program.peer.tolist()
    made = []
    for send, receive in zip(found.send.tolist(), found.receive.tolist(), strict=True):
        mine, theirs = parts[ptr[send] : ptr[send + 1]], parts[ptr[receive] : ptr[receive + 1]]
        made.append(_cut(peer[send], mine, theirs))
    return made


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
