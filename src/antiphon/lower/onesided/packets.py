"""The steps of a program by packets: data with flags next to it, which show when it has arrived. For small data.

Words used here (form.py has the steps):

    chunk           here the unit of sizes and addresses: all buffers are cut into chunks of one size
    stream          an independent sequence of steps of a rank; streams run at the same time
    turn            the work of a rank in one stream and one step of the schedule
    put             write data into the memory of another rank; with packets: a pack
    signal, credit  "the data are there" and "the place is free again"; other protocols need them, packets do not
    slot            the place of one chunk's packets in the scratch of its receiver
    fold            combine several operands, here as their packets arrive (an add)
    unpack          wait for packets, and write their data to where they are needed as plain data

Packets to another host go through *staging slots* of their sender: they are packed there, and a proxy then copies data
and flags to the receiver.

Scratch of a rank with n slots. A packet is as much flag as data, so a slot has the size of two chunks:

    | slot 0 | slot 1 | ... | slot n-1 | chunk | chunk | ...      chunks that are also needed as plain data
    0        2        4                2n      2n+1               in chunks

Why nothing is overwritten too early, and nothing waits for ever:

    1. Every message has slots of its own in the scratch of its receiver, so it needs neither a credit nor a signal.
    2. In a step a rank puts first and then receives, so no wait depends on a later step.
    3. Calls alternate between two scratch buffers, so a rank may be one call ahead of another, never two: data of
       every rank that it writes to must have reached it before its call ends. They have, if the result of every rank
       depends on data of every rank (`can_use_packets`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import compress, groupby, islice, pairwise, repeat
from typing import NamedTuple

import numpy as np

from antiphon.core.columns import Bools, Longs, concat_ranges, distinct, order_of, pointers, run_starts, sums_by_group
from antiphon.core.program import BufferLayout, Program
from antiphon.core.program.kinds import FOLD as PROGRAM_FOLD
from antiphon.core.program.kinds import RECEIVE, SCRATCH, SEND
from antiphon.lower.onesided.form import (
    ADD,
    FOLD,
    MOST_OPERANDS,
    MOST_PEERS,
    PACK,
    PACKETS,
    UNPACK,
    CutMoves,
    Place,
    StreamMove,
    StreamStep,
)
from antiphon.lower.onesided.steps import Fold, RankSteps, StreamSteps, join_folds, operand_batches
from antiphon.lower.onesided.streams import streams
from antiphon.lower.onesided.switched import Switched

KINDS = ("allreduce", "allgather", "reducescatter", "alltoall")


def can_use_packets(program: Program) -> bool:
    """Return whether every rank receives data of all others at every size, and the program uses no switch."""
    collective = program.collective
    switched = bool(len(program.joint)) and int(program.joint.max(initial=-1)) >= 0
    # a block of weight 0 is not sent, so a rank could end before the one whose block it is has begun
    all_sent = collective.kind in KINDS and bool((collective.weights > 0).all())
    return all_sent and len(collective.members) == collective.ranks and not switched


class ByPackets:
    """The steps of a program that can use packets and does not reuse scratch.

    `far(a, b)`: whether two ranks are on different hosts.
    """

    def __init__(
        self, program: Program, layout: BufferLayout, far: Callable[[int, int], bool] = lambda a, b: False
    ) -> None:
        self.program, self.layout, self.far = program, layout, far
        self.moves = CutMoves(program, layout)
        folds = np.flatnonzero(program.kind == PROGRAM_FOLD)
        # part_ptr: per operation its first part, a stretch that it reads or writes; of a fold that is the result
        self.folds = folds[layout.length[program.part_ptr[folds]] > 0]

    def split_streams(self, max_streams: int) -> StreamSteps:
        """Return the steps in at most `max_streams` streams.

        Scratch is enlarged for packets (the module's drawing). Linear in operations, times their parts.
        """
        program = self.program
        stream = streams(program, max_streams, Switched.none(program))
        stream_count, step_count = int(stream.max(initial=-1)) + 1, int(program.when.max(initial=0)) // 2 + 1
        # Per operation its turn: a pair (stream, step), as one number. The time of an operation is twice its step, plus
        # 1 for folds.
        turn = stream * step_count + program.when // 2
        sent = _Sent.of(program, program.pairs.send[self.moves.message], self.moves.columns, turn, self.far)
        folds = self.folds[np.lexsort((turn[self.folds], program.rank[self.folds]))]
        places = _Places(program, self.layout, sent, folds)
        work = _RankWork(program, self.layout, turn, sent, folds, places)
        sizes = self.layout.sizes.copy()
        sizes[:, SCRATCH] = places.sizes()

        def steps(rank: int) -> list[list[StreamStep]]:
            by_stream: list[list[StreamStep]] = [[] for _ in range(stream_count)]
            for index, turns in groupby(work.turns(rank), lambda rank_turn: rank_turn.number // step_count):
                by_stream[index] = _StepWriter(rank).steps(turns)
            return by_stream

        return StreamSteps(stream_count, steps, replace(self.layout, sizes=sizes))


class _Sent(NamedTuple):
    """Messages as columns, by turn, sender and receiver."""

    turn: Longs  # stream and step as one number
    rank: Longs  # the sender
    peer: Longs  # the receiver
    source: Longs  # the sender's buffer
    source_begin: Longs  # its first chunk in that buffer
    target: Longs  # the receiver's buffer
    target_begin: Longs  # its first chunk in that buffer
    size: Longs  # chunks
    slot: Longs  # the receiver's slot for the packets
    staging: Longs  # to another host: the sender's staging slot; -1 within a host

    @staticmethod
    def of(
        program: Program, send: Longs, moves: Sequence[Longs], turn: Longs, far: Callable[[int, int], bool]
    ) -> _Sent:  # fmt: skip
        """Return the messages; moves that continue where the one before ends, at both sides, are merged.

        `send`: per move its operation in the program. `moves`: `CutMoves.columns`. `turn`: per operation.
        """
        order = np.lexsort((program.peer[send], program.rank[send], turn[send]))
        send = send[order]
        # A new run begins where a key, a buffer or the contiguity on either side changes.
        keys = [turn[send], program.rank[send].astype(np.int64), program.peer[send].astype(np.int64)]
        source, source_begin, target, target_begin, size = (column[order] for column in moves)
        head = np.ones(len(order), bool)
        head[1:] = np.any([column[1:] != column[:-1] for column in (*keys, source, target)], axis=0)
        head[1:] |= np.any([column[1:] != (column + size)[:-1] for column in (source_begin, target_begin)], axis=0)
        total = np.diff(np.append(np.cumsum(size)[head] - size[head], size.sum()))  # chunks of each run
        turn, rank, peer = (column[head] for column in keys)
        source, source_begin, target, target_begin = (
            column[head] for column in (source, source_begin, target, target_begin)
        )
        # Slots of a receiver are assigned in the order of turns; behind them are the staging slots for what it sends.
        is_far = np.array([far(a, b) for a, b in zip(rank.tolist(), peer.tolist(), strict=True)], bool)
        slot, staging = _running_sums(peer, total, program.ranks), np.full(len(rank), -1, np.int64)
        staging[is_far] = _running_sums(rank[is_far], total[is_far], program.ranks)
        staging[is_far] += sums_by_group(peer, total, program.ranks)[rank[is_far]]
        return _Sent(turn, rank, peer, source, source_begin, target, target_begin, total, slot, staging)

    def count_slots(self, ranks: int) -> Longs:
        """Return the number of slots of every rank."""
        is_far = self.staging >= 0
        staging_slots: Longs = sums_by_group(self.rank[is_far], self.size[is_far], ranks)
        return sums_by_group(self.peer, self.size, ranks) + staging_slots


def _running_sums(key: Longs, size: Longs, keys: int) -> Longs:
    """Return, for each row, the sum of the sizes of earlier rows with the same key.

    >>> _running_sums(np.array([1, 0, 1, 1]), np.array([5, 2, 1, 1]), 2).tolist()
    [0, 0, 5, 6]
    """
    order = order_of(key, keys)
    before = np.cumsum(size[order]) - size[order]  # of all rows in this order
    starts = run_starts(key[order])
    run = np.cumsum(starts) - 1
    running = np.empty(len(order), np.int64)
    running[order] = before - before[starts][run]
    return running


class _Places:
    """The layout of scratch: slots of packets, and behind them the chunks that are needed as plain data.

    A chunk that is written once, by a message, and read by folds only is added as packets and never stored as data. The
    chunks of scratch of all ranks are numbered one after another. `is_data`: per chunk, whether it is stored as data.
    `data_before`: the number of such chunks before it. `first`: per rank its first chunk. `slots`: per rank.
    """

    def __init__(self, program: Program, layout: BufferLayout, sent: _Sent, folds: Longs) -> None:
        self.first = np.concatenate([[0], np.cumsum(layout.sizes[:, SCRATCH])]).astype(np.int64)
        self.slots = sent.count_slots(program.ranks)
        # Only scratch may stay packets; users' buffers always hold data.
        to_scratch = sent.target == SCRATCH
        arrival, size = self.first[sent.peer[to_scratch]] + sent.target_begin[to_scratch], sent.size[to_scratch]
        self.slot_of = np.full(int(self.first[-1]) + 1, -1, np.int64)  # of each chunk that arrives by packets
        self.slot_of[concat_ranges(arrival, size)] = concat_ranges(sent.slot[to_scratch], size)
        operands = concat_ranges(program.part_ptr[folds] + 1, np.diff(program.part_ptr)[folds] - 1)
        operands = operands[layout.buffer[operands] == SCRATCH]
        read = self.first[program.rank[program.part_op[operands]]] + layout.begin[operands]
        # More chunks may become data below: a stretch is data as a whole or not at all.
        self.is_data = self._needed_as_data(program, layout)
        self._unify_stretches(_long_slices(arrival, size), _long_slices(read, layout.length[operands]))
        self.data_before = np.concatenate([[0], np.cumsum(self.is_data)])

    def _needed_as_data(self, program: Program, layout: BufferLayout) -> Bools:
        """Return the chunks that are written more than once or by a fold, or sent."""
        in_scratch = layout.buffer == SCRATCH
        kind, rank = program.kind[program.part_op], program.rank[program.part_op]
        is_result = np.zeros(len(in_scratch), bool)  # per part, whether it is the result of a fold
        is_result[program.part_ptr[:-1][program.kind == PROGRAM_FOLD]] = True
        # per chunk: the number of receives and folds that write it, and of sends that read it or folds that write it
        written, sent_or_folded = (
            _count_coverage(
                self.first[rank[selected]] + layout.begin[selected], layout.length[selected], len(self.slot_of)
            )
            for selected in (in_scratch & ((kind == RECEIVE) | is_result), in_scratch & ((kind == SEND) | is_result))
        )
        stays_data: Bools = (written > 1) | (sent_or_folded > 0)
        return stays_data

    def _unify_stretches(self, arrivals: list[slice], read: list[slice]) -> None:
        """Make all chunks of a message packets, or all data; and likewise of each operand of a fold.

        `arrivals`, `read`: the chunks of messages and of operands. Single chunks, by far the most, need nothing and are
        not listed.
        """
        for chunks in read:
            # A step reads the packets of an operand from consecutive slots.
            if (np.diff(self.slot_of[chunks]) != 1).any():
                self.is_data[chunks] = True
        # Repeat to a fixed point: data in one stretch may force an overlapping one to be data.
        data_count = -1  # of the round before
        while (count := int(self.is_data.sum())) != data_count:
            data_count = count
            for chunks in (*arrivals, *read):
                self.is_data[chunks] |= self.is_data[chunks].any()

    def packets(self, rank: Longs, buffer: Longs, begin: Longs) -> Longs:
        """Return the slot of each chunk that is stored as packets only; -1 for others."""
        # The last entry, behind all scratch, stands for users' buffers; its slot is -1.
        chunk = np.where(buffer == SCRATCH, self.first[rank] + begin, len(self.is_data) - 1)
        return np.where(self.is_data[chunk], -1, self.slot_of[chunk])

    def data_positions(self, rank: Longs, buffer: Longs, begin: Longs) -> Longs:
        """Return the positions of plain data in their buffers; in scratch they lie behind the slots of packets, which
        take twice the room of data."""
        first = self.first[rank]
        chunk = np.where(buffer == SCRATCH, first + begin, first)
        position_in_scratch = 2 * self.slots[rank] + self.data_before[chunk] - self.data_before[first]
        return np.where(buffer == SCRATCH, position_in_scratch, begin)

    def sizes(self) -> Longs:
        """Return the chunks of scratch of every rank.

        Where all of it is packets, their slots count as one chunk each: MSCCL++'s protocol LL doubles the scratch that
        a file asks for, as packets need. Where some of it is data, the slots count twice, and what LL adds is unused.
        """
        data_sizes = np.diff(self.data_before[self.first])
        return np.where(data_sizes > 0, 2 * self.slots + data_sizes, self.slots)


def _long_slices(low: Longs, size: Longs) -> list[slice]:
    """Return the slices of stretches longer than one chunk."""
    is_long = size > 1
    return list(map(slice, low[is_long].tolist(), (low + size)[is_long].tolist()))


def _count_coverage(low: Longs, length: Longs, room: int) -> Longs:
    """Count the stretches that cover each of `room` chunks.

    >>> _count_coverage(np.array([0, 1]), np.array([2, 3]), 5).tolist()
    [1, 2, 1, 1, 0]
    """
    ends = np.bincount(low, minlength=room + 1) - np.bincount(low + length, minlength=room + 1)
    coverage: Longs = np.cumsum(ends[:room])
    return coverage


class _Unpacking(NamedTuple):
    """Packets, and the place where they are needed as data."""

    packets: Place
    into: Place
    size: int


class _Turn(NamedTuple):
    """The work of a rank in one step of a stream."""

    number: int  # stream and step as one number
    moves: list[StreamMove]  # a move to the rank itself packs data into a staging slot
    forwarded: list[StreamMove]  # from staging slots to other hosts
    unpacked: list[_Unpacking]
    folds: list[Fold]


class _RankWork:
    """The work of every rank, at its final addresses."""

    def __init__(
        self, program: Program, layout: BufferLayout, turn: Longs, sent: _Sent, folds: Longs, places: _Places
    ) -> None:  # fmt: skip
        self.sent, self.turn, self.folds, ranks = sent, turn[folds], folds, program.ranks
        # Messages by sender: those of rank r are by_rank[sent_ptr[r]:sent_ptr[r + 1]].
        self.by_rank = order_of(sent.rank, ranks)
        self.sent_ptr = pointers(sent.rank[self.by_rank], ranks)
        self.source_begin = places.data_positions(sent.rank, sent.source, sent.source_begin)
        # Messages that are unpacked, by receiver.
        unpacked = np.flatnonzero(places.packets(sent.peer, sent.target, sent.target_begin) < 0)
        self.unpacked = unpacked[order_of(sent.peer[unpacked], ranks)]
        self.unpacked_ptr = pointers(sent.peer[self.unpacked], ranks)
        self.target_begin = places.data_positions(sent.peer, sent.target, sent.target_begin)
        # Folds are sorted by rank; the parts of fold i are those from part_ptr[i] to part_ptr[i + 1] - 1.
        self.fold_ptr = pointers(program.rank[folds], ranks)
        self.size = layout.length[program.part_ptr[folds]]
        part_counts = np.diff(program.part_ptr)[folds]
        self.part_ptr = np.concatenate([[0], np.cumsum(part_counts)])
        # One entry per part: of each fold its result, then its operands.
        part_rows = concat_ranges(program.part_ptr[folds], part_counts)
        fold = np.repeat(np.arange(len(folds)), part_counts)
        rank, buffer, begin = program.rank[folds][fold], layout.buffer[part_rows], layout.begin[part_rows]
        slot = places.packets(rank, buffer, begin)
        slot[self.part_ptr[:-1]] = -1  # the result
        order = order_of(2 * fold + (slot >= 0), 2 * len(folds))  # of each fold, data first, then packets
        self.buffer = np.where(slot >= 0, PACKETS, buffer)[order]
        self.place = np.where(slot >= 0, slot, places.data_positions(rank, buffer, begin))[order]

    def turns(self, rank: int) -> Iterator[_Turn]:
        """Yield the turns of a rank, in order."""
        sent = self.sent
        own_sends = self.by_rank[self.sent_ptr[rank] : self.sent_ptr[rank + 1]]
        own_arrivals = self.unpacked[self.unpacked_ptr[rank] : self.unpacked_ptr[rank + 1]]
        peer, slot, staging, size = (column[own_sends] for column in (sent.peer, sent.slot, sent.staging, sent.size))
        is_far = staging >= 0
        # within the host straight to the receiver; else to a staging slot, and from there to the receiver
        source = _places_of(sent.source[own_sends], self.source_begin[own_sends])
        first_target = _packet_places(np.where(is_far, staging, slot))
        moves = _stream_moves(np.where(is_far, rank, peer), source, first_target, size)
        forwarded = _stream_moves(peer, _packet_places(staging), _packet_places(slot), size)
        into = _places_of(sent.target[own_arrivals], self.target_begin[own_arrivals])
        arrivals = list(
            map(_Unpacking, _packet_places(sent.slot[own_arrivals]), into, _as_list(sent.size[own_arrivals]))
        )
        own_folds = slice(int(self.fold_ptr[rank]), int(self.fold_ptr[rank + 1]))
        folds = self._folds_of(own_folds.start, own_folds.stop)
        numbers = (sent.turn[own_sends], sent.turn[own_arrivals], self.turn[own_folds])
        # Turns in which the rank sends, receives or folds.
        turns = distinct(np.concatenate(numbers))
        slices = [_slices_by_turn(column, turns) for column in numbers]
        for number, of_sends, of_arrivals, of_folds in zip(_as_list(turns), *slices, strict=True):
            to_hosts = list(compress(forwarded[of_sends], is_far[of_sends]))
            yield _Turn(number, moves[of_sends], to_hosts, arrivals[of_arrivals], folds[of_folds])

    def _folds_of(self, low: int, high: int) -> list[Fold]:
        """Return the folds with these positions in the columns. Of the parts of each, the first is the result."""
        ptr = _as_list(self.part_ptr[low : high + 1])
        places = _places_of(self.buffer[ptr[0] : ptr[-1]], self.place[ptr[0] : ptr[-1]])
        folds = []
        rows, sizes = _as_list(self.folds[low:high]), _as_list(self.size[low:high])
        for row, (begin, end), size in zip(rows, pairwise(ptr), sizes, strict=True):
            into, *operands = islice(places, end - begin)
            folds.append(Fold((row,), into, tuple(operands), size))
        return folds


class _StepWriter:
    """Writes the steps of a rank in a stream."""

    def __init__(self, rank: int) -> None:
        self.written = RankSteps(rank)
        self.pending: list[Fold] = []  # folds of the previous turn, whose results this turn's puts may send

    def steps(self, turns: Iterable[_Turn]) -> list[StreamStep]:
        """Return the steps for these turns."""
        for turn in turns:
            # Folds of the previous turn are delayed to here, so that they can send their results themselves.
            remaining = self._write_folds(turn.moves) if self.pending else turn.moves
            # a step packs either for other ranks or for staging slots
            for moves in ([move for move in remaining if self._is_own(move) == is_own] for is_own in (False, True)):
                if moves:
                    self.written.put(PACK, moves)
            # The proxy forwards packets once they are there, so no sync stands before this step.
            self.written.steps += [StreamStep(PACK, peers=(), moves=(move,)) for move in turn.forwarded]
            for packets, into, size in turn.unpacked:
                self._write_unpack(packets, into, size)
            self.pending = join_folds(turn.folds) if turn.folds else []
        self._write_folds(moves=[])
        return self.written.steps

    def _write_folds(self, moves: list[StreamMove]) -> list[StreamMove]:
        """Write the pending folds, with packets of their results; return the remaining moves."""
        remaining = moves
        for fold in self.pending:
            data = [place for place in fold.operands if not _is_packets(place)]
            packets = [place for place in fold.operands if _is_packets(place)]
            along: list[StreamMove] = []  # moves of the result that the fold's own step carries out
            # A fold of data and packets can write its result as packets to other ranks at once. One of packets alone
            # begins with an unpack (below); its result is sent by a step of its own.
            if remaining and data and packets:
                along = [move for move in remaining if (move.source, move.size) == (fold.into, fold.size)][:MOST_PEERS]
                staged = [move for move in along if self._is_own(move)]
                # A step has one place for packets to a staging slot; further such moves are packed on their own.
                along = [move for move in along if move not in staged[1:]]
                remaining = [move for move in remaining if move not in along]
            # An ADD needs one operand of data: unpack the first packet into the result.
            if not data:
                self._write_unpack(packets.pop(0), fold.into, fold.size)
                data = [fold.into]
            # An ADD takes one operand of data; without packets this fold is a plain one.
            if len(data) > 1 or not packets:
                data = self._fold_data(data, fold)
            # At most MOST_OPERANDS per step; the partial sum is the data of the next step.
            while packets:
                batch, packets = packets[: MOST_OPERANDS - 1], packets[MOST_OPERANDS - 1 :]
                self._write_step(ADD, (*data, *batch), fold.into, fold.size, tuple(along) if not packets else ())
                data = [fold.into]
        self.pending = []
        return remaining

    def _is_own(self, move: StreamMove) -> bool:
        """Return whether a move goes to a staging slot."""
        return move.peer == self.written.rank

    def _fold_data(self, data: list[Place], fold: Fold) -> list[Place]:
        """Fold the operands that are plain data into one."""
        if data != [fold.into]:
            for batch, _ in operand_batches(data, fold.into, MOST_OPERANDS):
                self._write_step(FOLD, batch, fold.into, fold.size)
        return [fold.into]

    def _write_unpack(self, packets: Place, into: Place, size: int) -> None:
        self._write_step(UNPACK, (packets,), into, size)

    def _write_step(
        self, kind: int, operands: tuple[Place, ...], into: Place, size: int, along: tuple[StreamMove, ...] = ()
    ) -> None:
        """Write a step. Its threads wait for packets themselves, so only plain data needs a sync."""
        read = [place for place in operands if not _is_packets(place)]
        self.written.combine(StreamStep(kind, peers=(), moves=along, into=into, operands=operands, size=size), read)


def _as_list(column: Longs) -> list[int]:
    return column.tolist()


def _is_packets(place: Place) -> bool:
    buffer, _ = place
    return buffer == PACKETS


def _slices_by_turn(column: Longs, turns: Longs) -> list[slice]:
    """Return for each turn where it stands in an ascending column of turns."""
    begin, end = np.searchsorted(column, turns, "left"), np.searchsorted(column, turns, "right")
    return list(map(slice, _as_list(begin), _as_list(end)))


def _stream_moves(peer: Longs, source: Iterable[Place], target: Iterable[Place], size: Longs) -> list[StreamMove]:
    return list(map(StreamMove, _as_list(peer), source, target, _as_list(size)))


def _places_of(buffer: Longs, begin: Longs) -> Iterator[Place]:
    return zip(buffer.tolist(), begin.tolist(), strict=True)


def _packet_places(slot: Longs) -> Iterator[Place]:
    return zip(repeat(PACKETS), slot.tolist())
