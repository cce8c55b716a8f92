"""The form of programs with one-sided access: steps of a rank that put data into other ranks' memory, signal and wait.

A *step* in this folder is one instruction of a rank (`StreamStep`), not a step of the schedule. A *stream* is a
sequence of steps of a rank, executed by many threads together; streams run at the same time. Between any two ranks a
stream has one *channel*: either side can signal the other, and wait for as many signals. Threads do not wait for each
other except at a `SYNC`: a step may use data that an earlier step writes, or has waited for, only after a sync.
`CutMoves` has the data that each message of a program moves.

Example: rank 0 sends a chunk to rank 1. Rank 0 has the steps put (its input to rank 1's scratch), sync, signal to 1;
rank 1 has wait for 0, sync, and then a fold that reads its scratch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from antiphon.core.columns import Bools, pointers
from antiphon.core.program import BufferLayout, Program

SIGNAL, WAIT, PUT, FOLD, SYNC, SWITCH, SPREAD = range(7)
NAMES = ("signal", "wait", "put", "fold", "sync", "switch", "spread")
# From 16 on, above the numbers of steps in tables of our GPU engine (lower/device/table.py).
PACK, UNPACK, ADD = range(16, 19)  # with packets, for formats only
GET = 19  # for our GPU engine only, whose tables state it as a put with the ranks exchanged
PACKETS = 3  # a buffer besides those of core.program.kinds: scratch for data with flags that show when they arrived

# Limits of an operation of MSCCL++ (formats/mscclpp/shape.py); our GPU engine takes more operands.
MOST_PEERS = 8  # of a signal, a wait, a put, and of the puts of a fold
MOST_OPERANDS = 9  # of a fold

Place = tuple[int, int]  # (buffer of core.program.kinds, its first chunk)


class StreamMove(NamedTuple):
    """One copy of a put: `size` chunks from a place of this rank to a place of `peer`; of a get: the other way."""

    peer: int
    source: Place
    target: Place
    size: int


class StreamStep(NamedTuple):
    """One instruction of a rank in a stream.

    - signal, wait: to or for each of `peers`.
    - put, get: carry out `moves`.
    - fold: combine `size` chunks at each of `operands`, and write the result at `into` (a copy if there is one operand)
      and to `moves`.
    - switch: the switch combines the data that all `peers`, the own rank among them, have at the operand, and writes
      the result at `into` of all. spread: the same with the own rank's data alone.
    - pack: a put of packets. unpack: wait for the packets of the operand, and write their data at `into`. add: a fold
      whose first operand is data and whose other operands are packets; its moves are packets, too.
    """

    kind: int
    peers: tuple[int, ...] = ()
    moves: tuple[StreamMove, ...] = ()
    into: Place = (0, 0)
    operands: tuple[Place, ...] = ()
    size: int = 0  # chunks


Streams = list[list[list[StreamStep]]]  # by stream, then by rank


# ---- what messages move ----


class CutMoves:
    """The moves of each message, cut where a part of either side ends; neighbours on both sides are joined.

    `message`: per move the number of its message. `columns`: five arrays, per move the buffer and chunk of its source,
    the buffer and chunk of its target, and its size in chunks. `empty`: per message whether it moves nothing.
    `layout`: where the data lie, counted in chunks.
    """

    def __init__(self, program: Program, layout: BufferLayout) -> None:
        self.program, self.layout = program, layout
        # Entry i of both columns is message i: its send and its receive.
        send, receive = program.pairs
        self.first_message = pointers(program.rank[send], program.ranks)  # per rank; sends are sorted by rank
        length_before = np.concatenate([[0], np.cumsum(layout.length)])  # chunks of all parts before each part
        self.empty: Bools = length_before[program.part_ptr[send]] == length_before[program.part_ptr[send + 1]]
        # The common case in columns: one part on either side, so one move.
        is_single = ~self.empty
        for rows in (send, receive):
            is_single &= program.part_ptr[rows + 1] - program.part_ptr[rows] == 1
        single = np.flatnonzero(is_single)
        send_part, receive_part = program.part_ptr[send[single]], program.part_ptr[receive[single]]
        source, target = (
            (layout.buffer[part_rows], layout.begin[part_rows]) for part_rows in (send_part, receive_part)
        )
        columns = (*source, *target, layout.length[send_part])
        # Messages of several parts are cut one by one.
        multiple = [
            (message, *move)
            for message in np.flatnonzero(~is_single & ~self.empty).tolist()
            for move in self._cut_message(message)
        ]
        cut_message, *cut_columns = np.array(multiple, np.int64).reshape(-1, 6).T
        message = np.concatenate([single, cut_message])
        # Stable, so that the moves of a message keep their order.
        order = np.argsort(message, kind="stable")
        self.message = message[order]
        self.columns = [np.concatenate(column_parts)[order] for column_parts in zip(columns, cut_columns, strict=True)]
        self.first_move = pointers(self.message, len(send))  # per message

    def of(self, rank: int) -> Callable[[int], list[StreamMove]]:
        """Return a function that gives the moves of a message that this rank sends."""
        low, high = int(self.first_message[rank]), int(self.first_message[rank + 1])
        first = self.first_move[low : high + 1].tolist()
        # A rank's messages are contiguous, and so are their moves.
        rows = slice(first[0], first[-1])
        peer = self.program.peer[self.program.pairs.send[self.message[rows]]].tolist()
        source, source_chunk, target, target_chunk, size = (column[rows].tolist() for column in self.columns)
        places = (zip(source, source_chunk, strict=True), zip(target, target_chunk, strict=True))
        moves = list(map(StreamMove, peer, *places, size))

        def moves_of(message: int) -> list[StreamMove]:
            return moves[first[message - low] - first[0] : first[message - low + 1] - first[0]]

        return moves_of

    def _cut_message(self, message: int) -> list[tuple[int, int, int, int, int]]:
        """Return the rows of `columns` of one message."""
        sent, received = (self._message_parts(int(rows[message])) for rows in self.program.pairs)
        moves = _cut_moves(sent, received)
        return [(*move.source, *move.target, move.size) for move in moves]

    def _message_parts(self, row: int) -> list[tuple[int, int, int]]:
        """Return (buffer, first chunk, length) of each part of a send or receive."""
        layout, rows = self.layout, slice(int(self.program.part_ptr[row]), int(self.program.part_ptr[row + 1]))
        columns = (layout.buffer[rows].tolist(), layout.begin[rows].tolist(), layout.length[rows].tolist())
        return list(zip(*columns, strict=True))


def _cut_moves(sent: list[tuple[int, int, int]], received: list[tuple[int, int, int]]) -> list[StreamMove]:
    """Return the moves of one message, each contiguous at both sides, from its parts (buffer, first chunk, length).

    Their peer is 0, as `columns` have none.
    """
    moves: list[StreamMove] = []
    into = iter(received)  # as many chunks as `sent`
    target_buffer = target_begin = remaining = 0
    for buffer, begin, length in sent:
        done = 0
        # Walk both sides at once: each move ends where a part of either side ends.
        while done < length:
            while not remaining:
                target_buffer, target_begin, remaining = next(into)
            count = min(length - done, remaining)
            moves.append(StreamMove(0, (buffer, begin + done), (target_buffer, target_begin), count))
            done, remaining, target_begin = done + count, remaining - count, target_begin + count
    return join_neighbours(moves)


def join_neighbours(moves: list[StreamMove]) -> list[StreamMove]:
    """Merge moves that continue where the one before ends, at source and target."""
    if len(moves) < 2:
        return moves
    runs: list[StreamMove] = []
    for move in moves:
        if runs:
            last = runs[-1]
            # where `last` ends
            source, target = ((buffer, begin + last.size) for buffer, begin in (last.source, last.target))
            if (move.peer, move.source, move.target) == (last.peer, source, target):
                runs[-1] = last._replace(size=last.size + move.size)
                continue
        runs.append(move)
    return runs
