"""Compile a program to steps with one-sided access (form.py) for every rank and stream, without deadlocks.

A `StreamStep` is one instruction of a rank (form.py). The work of a rank at one time of the program (a step of the
schedule) is a *turn*. In each turn a rank first signals which ranks may write into its places (a *credit*), then waits
for credits of others, puts its data, signals, and waits for puts into its places; then it folds (copies or reduces).
Operations of switches come before its puts, once all ranks concerned have given their credit. Every wait is for the
same turn of other ranks or an earlier turn, and credits and puts wait only for earlier turns: so among the ranks that
are furthest behind one can always proceed.

Signals between two ranks are only counted. They are sent and awaited in the same order: by turn, credits first.

`RankSteps` writes the steps of a rank, with a sync wherever one is needed. `OneSided` decides which steps these are.

With `pull` receivers read (get) instead of senders writing (put). Then a turn has no credits: a rank signals which
ranks may read its places, waits until it may read those of others, gets its data, signals that it has them, and waits
until the others have theirs. So no wait in a turn depends on a later action in it, and after the turn no other rank
reads its places.

Before the first message on a connection the sender must know that the receiver has begun. Without a credit or an
earlier message from the receiver, the receiver signals this before its turns.

Example: ranks 0 and 1 exchange a chunk in one step. Each signals that it has begun. Then it has one turn: wait until
the other has begun, sync, put, sync, signal, wait, sync, and its folds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from antiphon.core.columns import Bools, Longs, pointers
from antiphon.core.program import BufferLayout, Program
from antiphon.core.program.kinds import FOLD as PROGRAM_FOLD
from antiphon.lower.onesided.form import (
    FOLD,
    GET,
    MOST_OPERANDS,
    MOST_PEERS,
    PUT,
    SIGNAL,
    SPREAD,
    SWITCH,
    SYNC,
    WAIT,
    CutMoves,
    Place,
    StreamMove,
    Streams,
    StreamStep,
    join_neighbours,
)
from antiphon.lower.onesided.streams import find_credits, streams
from antiphon.lower.onesided.switched import Switched

# ---- the steps of a rank, with syncs ----

_SYNC = StreamStep(SYNC)
# Rank, place and size -> buffer, begin and end. Accesses conflict only where these ranges overlap. Tables of our GPU
# engine pass `Atoms.access_range`, as several places may share memory there.
RangeOf = Callable[[int, Place, int], tuple[int, int, int]]


class StreamSteps(NamedTuple):
    """The steps of a program, made rank by rank."""

    stream_count: int
    steps_of: Callable[[int], list[list[StreamStep]]]  # rank -> its steps in each stream
    layout: BufferLayout  # the addresses, with scratch for all steps


def plain_range(rank: int, place: Place, size: int) -> tuple[int, int, int]:
    """Return buffer, begin and end of an access, for addresses in chunks."""
    buffer, begin = place
    return buffer, begin, begin + size


class _Access(NamedTuple):
    """An access to data, as a range of chunks (of atoms if `RangeOf` is `Atoms.access_range`)."""

    buffer: int
    begin: int
    end: int
    is_write: bool


@dataclass(eq=False)
class RankSteps:
    """Writes the steps of one rank, with a sync before each step that conflicts with accesses since the last sync."""

    rank: int
    range_of: RangeOf = plain_range
    steps: list[StreamStep] = field(default_factory=list)
    # Accesses since the last sync. Nearly all are of one chunk: those are looked up, longer ones compared one by one.
    single_accesses: dict[Place, bool] = field(default_factory=dict)  # chunk -> was one of them a write?
    long_accesses: list[_Access] = field(default_factory=list)
    has_waited: bool = False  # for a signal since the last sync

    @property
    def has_accesses(self) -> bool:
        """Whether a step since the last sync accesses data."""
        return bool(self.single_accesses or self.long_accesses)

    def sync(self) -> None:
        self.steps.append(_SYNC)
        self.single_accesses, self.long_accesses, self.has_waited = {}, [], False

    def touch(
        self, step: StreamStep, reads: Sequence[tuple[Place, int]], writes: Sequence[tuple[Place, int]] = ()
    ) -> None:
        """Append a step that reads and writes places and sizes, after a sync if it conflicts with pending accesses."""
        range_of, rank = self.range_of, self.rank
        accesses = [_Access(*range_of(rank, place, size), is_write=False) for place, size in reads]
        accesses += [_Access(*range_of(rank, place, size), is_write=True) for place, size in writes]
        if self.has_waited or self._has_conflict(accesses):
            self.sync()
        self.steps.append(step)
        for access in accesses:
            buffer, begin, end, is_write = access
            if end - begin == 1:
                self.single_accesses[buffer, begin] = is_write or self.single_accesses.get((buffer, begin), False)
            else:
                self.long_accesses.append(access)

    def touch_chunks(self, step: StreamStep, reads: Sequence[Place], writes: Sequence[Place] = ()) -> None:
        """Do the same as `touch` for accesses of single chunks, which nearly all are."""
        if self.long_accesses or self.range_of is not plain_range:
            self.touch(step, [(place, 1) for place in reads], [(place, 1) for place in writes])
            return
        chunks, has_conflict = self.single_accesses, self.has_waited
        # a read conflicts with a write (True), a write with any access
        for place in reads:
            if chunks.get(place):
                has_conflict = True
        for place in writes:
            if place in chunks:
                has_conflict = True
        if has_conflict:
            self.sync()
            chunks = self.single_accesses
        self.steps.append(step)
        for place in reads:
            chunks.setdefault(place, False)
        for place in writes:
            chunks[place] = True

    def combine(self, step: StreamStep, reads: Sequence[Place]) -> None:
        """Append a step that reads these places and writes its result at `step.into`."""
        if step.size == 1:
            self.touch_chunks(step, reads, (step.into,))
        else:
            self.touch(step, [(place, step.size) for place in reads], [(step.into, step.size)])

    def put(self, kind: int, moves: list[StreamMove]) -> None:
        """Append puts of these moves: each step from one buffer, with as many moves as a step can have.

        `kind`: PUT, or PACK for packets (packets.py).
        """
        if len(moves) == 1 and moves[0].size == 1:  # the usual case
            self.touch_chunks(StreamStep(kind, peers=(), moves=tuple(moves)), (moves[0].source,))
            return
        moves_by_buffer: dict[int, list[StreamMove]] = defaultdict(list)
        for move in moves:
            source_buffer, _ = move.source
            moves_by_buffer[source_buffer].append(move)
        for _, from_buffer in sorted(moves_by_buffer.items()):
            for low in range(0, len(from_buffer), MOST_PEERS):
                batch = tuple(from_buffer[low : low + MOST_PEERS])
                self.touch(StreamStep(kind, peers=(), moves=batch), [(move.source, move.size) for move in batch])

    def _has_conflict(self, accesses: list[_Access]) -> bool:
        """Return whether an access conflicts with one since the last sync: same place, at least one a write."""
        for buffer, begin, end, is_write in accesses:
            if end - begin == 1:
                was_write = self.single_accesses.get((buffer, begin))
                if was_write or (is_write and was_write is not None):
                    return True
            else:
                for (earlier_buffer, chunk), was_write in self.single_accesses.items():
                    if (is_write or was_write) and buffer == earlier_buffer and begin <= chunk < end:
                        return True
            for earlier_buffer, earlier_begin, earlier_end, was_write in self.long_accesses:
                if (
                    (is_write or was_write) and buffer == earlier_buffer
                    and begin < earlier_end and earlier_begin < end
                ):  # fmt: skip
                    return True
        return False


class Fold(NamedTuple):
    """A fold: `size` chunks at each of `operands` are reduced (or copied) to `into`."""

    rows: tuple[int, ...]  # its operations in the program
    into: Place
    operands: tuple[Place, ...]
    size: int


def join_folds(folds: list[Fold]) -> list[Fold]:
    """Merge folds whose result and operands all continue where those of the fold before end."""
    joined: list[Fold] = []
    for fold in folds:
        if joined:
            last = joined[-1]
            next_places = [(buffer, begin + last.size) for buffer, begin in (last.into, *last.operands)]
            if next_places == [fold.into, *fold.operands]:
                joined[-1] = Fold((*last.rows, *fold.rows), last.into, last.operands, last.size + fold.size)
                continue
        joined.append(fold)
    return joined


def operand_batches(
    operands: Sequence[Place], into: Place, max_operands: int
) -> Iterator[tuple[tuple[Place, ...], bool]]:
    """Split the operands of a fold into batches, and yield whether a batch is the last.

    The result so far is the first operand of each later batch. If `into` is itself an operand it comes first, as the
    first batch overwrites it.

    >>> list(operand_batches([(0, 1), (0, 2), (1, 0)], (1, 0), 2))
    [(((1, 0), (0, 1)), False), (((1, 0), (0, 2)), True)]
    """
    remaining = sorted(operands, key=lambda place: place != into)
    while remaining:
        batch, remaining = tuple(remaining[:max_operands]), remaining[max_operands:]
        yield batch, not remaining
        remaining = [into, *remaining] if remaining else []


# ---- the work of ranks, step by step ----


def one_sided(
    program: Program, layout: BufferLayout, max_streams: int, switched: Switched | None = None,
    range_of: RangeOf = plain_range, max_operands: int = MOST_OPERANDS, pull: bool = False,
) -> Streams:  # fmt: skip
    """Return the steps of a program in at most `max_streams` streams. O(n log n).

    `layout`: addresses in chunks. `switched`: the operations that switches perform. `range_of`: returns the buffer and
    range that a rank accesses with a place and a size. `max_operands`: of a fold that is one step. `pull`:
    receivers get instead of senders putting; not together with switches, whose operations `_GetWriter` does not write.
    """
    work = OneSided(program, layout, switched, range_of, max_operands)
    assert not (pull and work.switched.switches)
    split = (_GetWork if pull else _PutWork)(work, streams(program, max_streams, work.switched))
    steps_by_rank = [split.steps(rank) for rank in range(program.ranks)]
    return [[steps_by_rank[rank][stream] for rank in range(program.ranks)] for stream in range(split.count)]


class OneSided:
    """The data of `one_sided` for callers that try several numbers of streams, or need one rank at a time."""

    def __init__(
        self, program: Program, layout: BufferLayout, switched: Switched | None = None, range_of: RangeOf = plain_range,
        max_operands: int = MOST_OPERANDS,
    ) -> None:  # fmt: skip
        self.program, self.layout, self.range_of, self.max_operands = program, layout, range_of, max_operands
        self.switched = switched or Switched.none(program)
        self.moves = CutMoves(program, layout)
        send, receive = program.pairs
        # Per message.
        self.receive = receive.tolist()
        # farther: a chain of messages by way of other ranks can stand for a credit. Not with switches: some of the
        # messages that they replace are not even signals, which would break the chain.
        credit = find_credits(program, farther=not self.switched.switches)
        # Messages before which the receiver must signal that its place is free.
        self.needs_credit: Bools = credit | self.switched.signal_only[send]
        self.credit = self.needs_credit.tolist()  # the same, for quick access to single messages
        self.signal_only = self.switched.signal_only[send].tolist()
        # Per operation: operation r waits for wait[wait_ptr[r]:wait_ptr[r + 1]], and has the parts ptr[r] to
        # ptr[r + 1] - 1, with these places and lengths. The first part of a fold is its result.
        self.wait, self.wait_ptr = program.wait.tolist(), program.wait_ptr.tolist()
        self.part = list(zip(layout.buffer.tolist(), layout.begin.tolist(), strict=True))
        self.length, self.ptr = layout.length.tolist(), program.part_ptr.tolist()
        # The folds by rank.
        folds = np.flatnonzero((program.kind == PROGRAM_FOLD) & ~self.switched.dropped)
        self.folds = folds[np.argsort(program.rank[folds], kind="stable")]
        self.fold_ptr = pointers(program.rank[self.folds], program.ranks)

    def split_streams(self, max_streams: int) -> StreamSteps:
        """Return the steps in at most `max_streams` streams."""
        work = _PutWork(self, streams(self.program, max_streams, self.switched))
        return StreamSteps(work.count, work.steps, self.layout)


@dataclass(eq=False, slots=True)
class _Turn:
    """The work of a rank in one step of a stream."""

    moves: list[StreamMove] = field(default_factory=list)
    to: list[int] = field(default_factory=list)  # ranks that it signals once it, or a switch, has put its data there
    awaited: list[int] = field(default_factory=list)  # ranks whose such signals it waits for
    needs_credit: list[int] = field(default_factory=list)  # ranks whose credit it needs first
    credits: list[int] = field(default_factory=list)  # ranks that it gives a credit
    after: set[int] = field(default_factory=set)  # operations (rows of the program) to be done before these credits
    folds: list[Fold] = field(default_factory=list)
    switches: list[StreamStep] = field(default_factory=list)


@dataclass(eq=False)
class _RankTurns:
    """The work of a rank in one stream."""

    turns: dict[int, _Turn] = field(default_factory=lambda: defaultdict(_Turn))  # by step
    begun: list[int] = field(default_factory=list)  # ranks to be notified that this rank has begun


class _Group(NamedTuple):
    """All messages between two ranks in one step and stream: one put and one signal."""

    stream: int
    step: int
    source: int
    target: int
    is_first: bool  # on its connection
    needs_credit: bool


class _PutWork:
    """The work of all ranks in all streams.

    All messages between two ranks in one step and stream are a group (`_Group`). `messages`: by group; those of group i
    are messages[first[i]] to messages[first[i + 1] - 1]. `of_rank`: numbers of the groups that a rank sends or
    receives; those of rank r are of_rank[rank_ptr[r]] to of_rank[rank_ptr[r + 1] - 1]. The star in one stream:

    >>> from antiphon.core.example import star
    >>> from antiphon.lower.lowering import lower
    >>> from antiphon.core.program import layout_of
    >>> program = lower(star())
    >>> work = _PutWork(OneSided(program, layout_of(program, 1)), np.zeros(program.operations, np.int64))
    >>> [(group.step, group.source, group.target, group.is_first) for group in work.groups]
    [(0, 1, 0, True), (0, 2, 0, True), (1, 0, 1, False), (1, 0, 2, False)]
    >>> work.of_rank, work.rank_ptr.tolist()
    ([0, 1, 2, 3, 0, 2, 1, 3], [0, 4, 6, 8])
    """

    def __init__(self, work: OneSided, stream: Longs) -> None:
        self.work, self.stream = work, stream  # `stream`: per operation of the program
        self.count = int(stream.max(initial=-1)) + 1
        program, send = work.program, work.program.pairs.send
        stream_of_message, step = stream[send], program.when[send] // 2  # `when`: twice the step, plus 1 for folds
        source, target = program.rank[send], program.peer[send]
        order = np.lexsort((target, source, step, stream_of_message))
        # Without messages that a switch replaces and messages without data.
        order = order[~(work.switched.dropped[send] | work.moves.empty)[order]]
        columns = np.stack([column[order] for column in (stream_of_message, step, source, target)])
        begins_group = np.ones(len(order), bool)
        begins_group[1:] = (columns[:, 1:] != columns[:, :-1]).any(axis=0)
        self.first = np.append(np.flatnonzero(begins_group), len(order)).tolist()
        self.messages = order.tolist()
        groups = columns[:, begins_group]
        is_first = _find_first_messages(program.ranks, groups)
        heads = np.flatnonzero(begins_group)
        credit_needed = np.logical_or.reduceat(work.needs_credit[order], heads) if len(heads) else begins_group
        self.groups = list(map(_Group, *(column.tolist() for column in (*groups, is_first, credit_needed))))
        _, _, *sources_and_targets = groups
        ranks_of_groups = np.stack(sources_and_targets, axis=1).ravel()  # source and target of each group in turn
        by_rank = np.argsort(ranks_of_groups, kind="stable")  # entries 2 g and 2 g + 1 are of group g
        self.of_rank, self.rank_ptr = (by_rank // 2).tolist(), pointers(ranks_of_groups, program.ranks)

    def steps(self, rank: int) -> list[list[StreamStep]]:
        """Return the steps of a rank in each stream."""
        turns_by_stream = [_RankTurns() for _ in range(self.count)]
        self._deal_messages(rank, turns_by_stream)
        self._deal_folds(rank, turns_by_stream)
        switched = self.work.switched
        for stream, switch in zip(self.stream[switched.requests].tolist(), switched.switches, strict=True):
            if switch.rank == rank:
                kind = SWITCH if switch.combines else SPREAD
                step = StreamStep(
                    kind, switch.ranks, moves=(), into=switch.target, operands=(switch.source,), size=switch.size
                )
                turns_by_stream[stream].turns[switch.step].switches.append(step)
        return [self._make_writer(rank, turns).steps() for turns in turns_by_stream]

    def _make_writer(self, rank: int, turns: _RankTurns) -> _RankWriter:
        return _RankWriter(rank, turns, self.work.range_of, self.work.max_operands)

    def _deal_messages(self, rank: int, turns_by_stream: list[_RankTurns]) -> None:
        """Add a rank's messages to its turns.

        Before the first message the sender must know that the receiver has begun. The receiver signals this, unless a
        credit implies it, or a message from the receiver in an earlier step.

        A message that a switch multicasts is no put, but a credit before it and a signal after it. The credit says that
        the receiver's place is free; if the switch multicasts a sum, also that the receiver's own operand is there.
        """
        # moves(message): the moves of a message that this rank sends.
        work, signal_only, moves = self.work, self.work.signal_only, self.work.moves.of(rank)
        for number in self.of_rank[self.rank_ptr[rank] : self.rank_ptr[rank + 1]]:
            group, messages = self.groups[number], self.messages[self.first[number] : self.first[number + 1]]
            turn = turns_by_stream[group.stream].turns[group.step]
            if group.source == rank:
                if len(messages) == 1 and not group.needs_credit:
                    turn.moves += moves(messages[0])
                else:
                    with_data = [message for message in messages if not signal_only[message]]
                    turn.moves += join_neighbours([move for message in with_data for move in moves(message)])
                turn.to.append(group.target)
                if group.needs_credit or group.is_first:
                    turn.needs_credit.append(group.target)
                continue
            turn.awaited.append(group.source)
            if group.needs_credit:
                turn.credits.append(group.source)
                self._await_before_credit([message for message in messages if work.credit[message]], turn)
            elif group.is_first:
                turns_by_stream[group.stream].begun.append(group.source)

    def _await_before_credit(self, messages: list[int], turn: _Turn) -> None:
        """Note the operations that must be done before the credits of these messages."""
        work = self.work
        for message in messages:
            receive = work.receive[message]
            # What the receive waits for; and, if a switch also reads this rank's operand (the send into the reduction
            # that it replaces), what that send waits for.
            for row in {receive, work.switched.send_of.get(receive, receive)}:
                turn.after.update(work.wait[work.wait_ptr[row] : work.wait_ptr[row + 1]])

    def _deal_folds(self, rank: int, turns_by_stream: list[_RankTurns]) -> None:
        """Add a rank's folds to the turns of their times."""
        work = self.work
        rows = work.folds[work.fold_ptr[rank] : work.fold_ptr[rank + 1]]
        columns = (rows, self.stream[rows], work.program.when[rows] // 2)  # the step of each, as in __init__
        for row, stream, step in zip(*(column.tolist() for column in columns), strict=True):
            first = work.ptr[row]
            if work.length[first]:
                into, *operands = work.part[first : work.ptr[row + 1]]
                turns_by_stream[stream].turns[step].folds.append(
                    Fold((row,), into, tuple(operands), work.length[first])
                )


class _GetWork(_PutWork):
    """The work of all ranks in all streams if receivers get instead of senders putting."""

    def __init__(self, work: OneSided, stream: Longs) -> None:
        super().__init__(work, stream)
        self.moves_of = [work.moves.of(rank) for rank in range(work.program.ranks)]

    def _deal_messages(self, rank: int, turns_by_stream: list[_RankTurns]) -> None:
        """Add a rank's messages to the turns of their times, as gets of the receiver."""
        for number in self.of_rank[self.rank_ptr[rank] : self.rank_ptr[rank + 1]]:
            group, messages = self.groups[number], self.messages[self.first[number] : self.first[number + 1]]
            turn = turns_by_stream[group.stream].turns[group.step]
            if group.source == rank:
                turn.to.append(group.target)
                continue
            moves = [move for message in messages for move in self.moves_of[group.source](message)]
            turn.moves += join_neighbours([move._replace(peer=group.source) for move in moves])
            turn.awaited.append(group.source)

    def _make_writer(self, rank: int, turns: _RankTurns) -> _RankWriter:
        return _GetWriter(rank, turns, self.work.range_of, self.work.max_operands)


def _find_first_messages(ranks: int, groups: Longs) -> Bools:
    """Return for each group (stream, step, source, target) whether it is the first on its connection, with no message
    in the opposite direction in an earlier step.

    Three groups: in step 0 from rank 0 to 1; in step 1 from 1 back to 0, whose begin is known by the first message; and
    in step 1 from 1 to 2:

    >>> _find_first_messages(3, np.array([[0, 0, 0], [0, 1, 1], [0, 1, 1], [1, 0, 2]]))
    array([ True, False,  True])
    """
    stream, step, source, target = groups
    connection = (stream * ranks + source) * ranks + target
    opposite = (stream * ranks + target) * ranks + source
    connections, first = np.unique(connection, return_index=True)  # groups are in the order of steps
    is_first_forth = np.zeros(len(connection), bool)
    is_first_forth[first] = True
    index = np.searchsorted(connections, opposite).clip(max=max(len(connections) - 1, 0))
    has_earlier_answer = (
        (connections[index] == opposite) & (step[first][index] < step) if len(connections) else is_first_forth
    )
    is_first: Bools = is_first_forth & ~has_earlier_answer
    return is_first


class _RankWriter:
    """Writes the steps of a rank in one stream."""

    def __init__(self, rank: int, turns: _RankTurns, range_of: RangeOf, max_operands: int) -> None:
        self.begun, self.turns, self.max_operands = turns.begun, turns.turns, max_operands
        self.writer = RankSteps(rank, range_of)
        self.pending: list[Fold] = []  # folds not written yet: the next puts of their results can be part of them

    def steps(self) -> list[StreamStep]:
        """Return the steps of all turns: signals, waits, puts and folds."""
        self._signal_or_wait(SIGNAL, self.begun)
        for step_number in sorted(self.turns):
            turn = self.turns[step_number]
            # A credit may be given once the operations before it are done: those not written yet are pending folds.
            if turn.after and any(not turn.after.isdisjoint(fold.rows) for fold in self.pending):
                self._write_folds(moves=[])
            if turn.credits:
                self._signal_or_wait(SIGNAL, turn.credits)
            if turn.needs_credit:
                self._signal_or_wait(WAIT, turn.needs_credit)
            remaining = self._write_folds(turn.moves) if self.pending else turn.moves
            for step in turn.switches:
                self.writer.combine(step, step.operands)
            if remaining:
                self.writer.put(PUT, remaining)
            if turn.to:
                self._signal_or_wait(SIGNAL, turn.to)
            if turn.awaited:
                self._signal_or_wait(WAIT, turn.awaited)
            self.pending = join_folds(turn.folds) if turn.folds else []
        self._write_folds(moves=[])
        return self.writer.steps

    def _signal_or_wait(self, kind: int, peers: list[int]) -> None:
        """Append signals to these ranks, or waits for theirs."""
        if not peers:
            return
        # A signal says that everything before it is done, by all threads.
        if kind == SIGNAL and (self.writer.has_accesses or self.writer.has_waited):
            self.writer.sync()
        for low in range(0, len(peers), MOST_PEERS):
            self.writer.steps.append(StreamStep(kind, tuple(peers[low : low + MOST_PEERS])))
        self.writer.has_waited |= kind == WAIT

    def _write_folds(self, moves: list[StreamMove]) -> list[StreamMove]:
        """Write the pending folds, each with the puts of its result; return the remaining puts."""
        remaining = moves
        for fold in self.pending:
            fold_moves = [move for move in remaining if (move.source, move.size) == (fold.into, fold.size)][:MOST_PEERS]
            if len(fold.operands) == 1:  # a copy: nothing is gained by sending its result
                fold_moves = []
            remaining = [move for move in remaining if move not in fold_moves] if fold_moves else remaining
            self._write_fold(fold.into, fold.operands, fold.size, tuple(fold_moves))
        self.pending = []
        return remaining

    def _write_fold(
        self, into: Place, operands: tuple[Place, ...], count: int, fold_moves: tuple[StreamMove, ...]
    ) -> None:
        """Write a fold, in several steps if it has more operands than a step supports; the last has the moves."""
        if len(operands) <= self.max_operands:
            self.writer.combine(
                StreamStep(FOLD, peers=(), moves=fold_moves, into=into, operands=operands, size=count), operands
            )
            return
        for batch, is_last in operand_batches(operands, into, self.max_operands):
            self.writer.combine(
                StreamStep(FOLD, peers=(), moves=fold_moves if is_last else (), into=into, operands=batch, size=count),
                batch,
            )


class _GetWriter(_RankWriter):
    """Writes the steps of a rank in one stream if receivers get instead of senders putting."""

    def steps(self) -> list[StreamStep]:
        """Return the steps of all turns, with gets."""
        for step_number in sorted(self.turns):
            turn = self.turns[step_number]
            self._write_folds(moves=[])
            self._signal_or_wait(SIGNAL, turn.to)
            self._signal_or_wait(WAIT, turn.awaited)
            for low in range(0, len(turn.moves), MOST_PEERS):
                batch = tuple(turn.moves[low : low + MOST_PEERS])
                self.writer.touch(
                    StreamStep(GET, peers=(), moves=batch),
                    reads=[],  # at this rank: it reads others' memory
                    writes=[(move.target, move.size) for move in batch],
                )
            self._signal_or_wait(SIGNAL, turn.awaited)
            self._signal_or_wait(WAIT, turn.to)
            self.pending = join_folds(turn.folds) if turn.folds else []
        self._write_folds(moves=[])
        return self.writer.steps
