"""Compile a schedule to a program: `lower` makes one program, `both` those for separate and for equal buffers (in
place).

A program has four kinds of operations, each at a rank: send, receive, fold (copy or reduce data inside the rank) and
join (only waits). All blocks are imagined on one line of data, on which the borders of chunks are *points*. An
operation reads or writes *parts*: intervals between two points, in an input, an output or scratch, which is buffer
space of the program. The *base* of a part is its place: a buffer of the rank and how far the line is shifted in it, or
a stretch of scratch. An operation waits for others of its rank. Its *time* orders it among the operations of all ranks:
twice the schedule's step, plus 1 for folds.

The stages; each hands a frozen table to the next:

    rows.prepare            every value of the schedule (a chunk at a rank, after each write: a *version*) gets its
                            *place*, a rank and a buffer with a shift
    moves.moves, .folds     which transfers need scratch, and which values a fold makes
    this file               operations and the operations that they wait for (`operations`), in their final order
                            (`assemble_program`)

Waits keep the order of reads and writes of a place: read after write, write after read, write after write. Scratch is
divided into slots that are used again, so a write into a slot also waits for all readers of its old content. A
*stretch* of scratch is the space of one message or of consecutive parts of it; it lies in a slot.

Example: an allreduce on a star of three ranks, out of place. Rank 0 receives twice into scratch, folds both with its
own input into its output when they are there, and then sends the output twice:

    receive from 2    receive from 1    fold (waits for both)    send to 1 (waits for the fold)    send to 2 (likewise)
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from antiphon.core.columns import Bools, Ints, Longs, distinct, order_of, pack_columns, pointers, run_starts
from antiphon.core.joints import refuse_joints
from antiphon.core.program import FOLD, JOIN, RECEIVE, SEND, BufferLayout, Program
from antiphon.core.program.kinds import SCRATCH
from antiphon.core.schedule import Schedule
from antiphon.errors import Invalid, Unsupported, quote
from antiphon.lower.moves import DataMoves, Folds, ScratchStretches, Slots, assign_stretches, folds, moves
from antiphon.lower.rows import DataLine, Prepared, find_positions, prepare


@dataclass(eq=False)
class OperationTable:
    """Operations under construction, with parts and waits: blocks of columns, concatenated at the end."""

    # kind, rank, peer, pieces (that it moves one by one), time, chunk (the first that it moves; it decides the channel)
    columns: list[tuple[Longs, ...]] = field(default_factory=list)
    part_columns: list[tuple[Longs, ...]] = field(default_factory=list)  # operation, begin, end, base (its place)
    waits: list[tuple[Longs, Longs]] = field(default_factory=list)  # later, earlier: who waits, and for whom
    joint: list[tuple[Longs, Longs]] = field(default_factory=list)  # operations, and the joint of each
    count: int = 0

    def add(
        self, kind: int, rank: ArrayLike, peer: ArrayLike, pieces: ArrayLike, when: Longs, chunk: ArrayLike
    ) -> Longs:
        """Add operations and return their numbers. `when`: their times, in half steps.

        >>> table = OperationTable()
        >>> table.add(SEND, [0, 1], [1, 0], 1, np.array([0, 0]), 0), table.add(RECEIVE, 1, 0, 1, np.array([0]), 0)
        (array([0, 1]), array([2]))
        """
        columns = np.broadcast_arrays(*(np.asarray(c, np.int64) for c in (kind, rank, peer, pieces, when, chunk)))
        self.columns.append(tuple(columns))
        first, self.count = self.count, self.count + len(when)
        return np.arange(first, self.count)

    def part(self, operation: Longs, begin: Longs, end: Longs, base: Longs) -> None:
        """Add parts of operations: from point `begin` to point `end` of the data, at place `base`."""
        self.part_columns.append((operation, begin, end, base))

    def wait(self, later: Longs, earlier: Longs) -> None:
        """Let each `later` operation wait for the `earlier` one."""
        is_other = later != earlier  # no operation waits for itself
        self.waits.append((later[is_other], earlier[is_other]))

    def when(self) -> Longs:
        """Return the time of every operation."""
        return np.concatenate([time for _, _, _, _, time, _ in self.columns])

    def all(self, table_name: str, width: int) -> list[Longs]:
        """Return the concatenated columns of one of the tables, which has `width` columns."""
        blocks: list[Any] = getattr(self, table_name)
        empty = np.zeros(0, np.int64)
        return [np.concatenate([empty, *(columns[i] for columns in blocks)]) for i in range(width)]


def assemble_program(
    prepared: Prepared, movement: DataMoves, slots: Slots, table: OperationTable, channels: int
) -> Program:
    """Build the program: operations by rank, then time, and receives before sends before folds. O(n log n)."""
    schedule, line, places = prepared.schedule, prepared.line, prepared.places
    ranks = schedule.collective.ranks
    kind, rank, peer, pieces, when, chunk = table.all("columns", 6)
    # At equal times receives come first, so that data can arrive early; folds last, as they need the receives.
    kind_order = np.where(kind == RECEIVE, 0, np.where(kind == SEND, 1, 2))
    order = order_of(*pack_columns((rank, ranks), (when, int(when.max(initial=0)) + 1), (kind_order, 3)))
    number = _invert_order(order)  # from the order of creation to the final number of an operation
    operation, begin, end, base = table.all("part_columns", 4)
    part_order = order_of(number[operation], len(order))
    later, earlier = table.all("waits", 2)
    # A pair (later, earlier) is packed into one integer, so that one sort removes duplicates.
    later, earlier = np.divmod(distinct(number[later] * len(order) + number[earlier]), max(len(order), 1))
    # Bases: first the places in users' buffers, then one per stretch of scratch, at the rank that its first row
    # (`movement.head`) goes to; both sorted by rank.
    base_rank = np.concatenate([places.rank, schedule.dst[movement.head]]).astype(np.int64)
    by_rank = order_of(base_rank, ranks)
    base_number = _invert_order(by_rank)  # from the number in `part_columns` to the one in the program
    # columns of zeros: for the places (no slot, no origin), and for the stretches (no shift)
    place_zeros, stretch_zeros = np.zeros(len(places), np.int64), np.zeros(len(movement.head), np.int64)
    # The data of a stretch lie relative to the first point of its first chunk.
    origin = line.begin[schedule.chunk[movement.head]]
    joint = np.full(len(order) if table.joint else 0, -1, np.int64)
    for operations, operation_joints in table.joint:
        joint[number[operations]] = operation_joints
    finish_rank, finish_begin, finish_end, finish_base, divisor = _finish_table(prepared)
    by_planner = f", {schedule.provenance['planner']}" if schedule.provenance.get("planner") else ""
    return Program(
        collective=schedule.collective,
        in_place=prepared.in_place,
        channels=channels,
        label=f"{schedule.collective.kind} among {len(schedule.collective.members)} ranks{by_planner}",
        denominator=line.denominator,
        point_whole=line.units,
        point_numerator=line.numerators,
        base_ptr=pointers(base_rank, ranks),
        base_shift=np.concatenate([places.shift, stretch_zeros])[by_rank],
        base_buffer=np.concatenate([places.buffer, stretch_zeros + SCRATCH])[by_rank],
        base_slot=np.concatenate([place_zeros, slots.slot])[by_rank],
        base_origin=np.concatenate([place_zeros, origin])[by_rank],
        class_whole=slots.class_whole,
        class_numerator=slots.class_numerator,
        class_pieces=slots.class_pieces,
        slot_ptr=slots.ptr,
        slot_class=slots.of_class,
        op_ptr=pointers(rank, ranks),
        kind=kind[order],
        channel=(line.position[chunk] % channels)[order] if len(chunk) else chunk,
        peer=peer[order],
        pieces=pieces[order],
        when=when[order],
        part_ptr=pointers(number[operation], len(order)),
        part_begin=begin[part_order],
        part_end=end[part_order],
        part_base=base_number[base[part_order]],
        wait_ptr=pointers(later, len(order)),
        wait=earlier,
        finish_ptr=pointers(finish_rank, ranks),
        finish_begin=finish_begin,
        finish_end=finish_end,
        finish_base=base_number[finish_base],
        finish_count=divisor,
        joint=joint,
    )


def _invert_order(order: Longs) -> Longs:
    """Return per element its position in an order (the inverse permutation)."""
    position = np.empty(len(order), np.int64)
    position[order] = np.arange(len(order))
    return position


def _find_intervals(line: DataLine, chunk: Longs, *columns: Longs) -> tuple[Bools, Bools]:
    """Return which of the ordered chunks begin an interval (adjacent chunks with equal columns), and which end one."""
    starts = np.logical_or.reduce([run_starts(column) for column in columns])  # run_starts: differs from the row before
    starts[1:] |= line.end[chunk[:-1]] != line.begin[chunk[1:]]
    return starts, _run_ends(starts)


def _run_ends(starts: Bools) -> Bools:
    """Return which rows are the last of a run: the next one starts a run, or there is none."""
    return np.append(starts[1:], True)[: len(starts)]


def _finish_table(prepared: Prepared) -> tuple[Longs, Longs, Longs, Longs, Longs]:
    """Return the intervals of outputs that an average divides: rank, begin, end, base, and the divisor. One sort.

    The divisor is the number of contributions that an output is the sum of (`outputs.count`).

    >>> from antiphon.core.example import star
    >>> from antiphon.lower.rows import prepare
    >>> _finish_table(prepare(star(), in_place=False))
    (array([0, 1, 2]), array([0, 0, 0]), array([1, 1, 1]), array([1, 3, 5]), array([3, 3, 3]))
    """
    outputs, line = prepared.analysis.outputs, prepared.line
    rows = np.flatnonzero(outputs.count > 1)
    rows = rows[np.lexsort((line.position[outputs.chunk[rows]], outputs.rank[rows]))]
    chunk, rank, count = outputs.chunk[rows], outputs.rank[rows], outputs.count[rows]
    base = prepared.places.outputs[rows]
    starts, last = _find_intervals(line, chunk, rank, base, count)
    begin, end = line.begin[chunk[starts]], line.end[chunk[last]]
    return rank[starts], begin, end, base[starts], count[starts]


# ---- operations ----


@dataclass(eq=False)
class _Accesses:
    """Which operations write and read each version (a version is a chunk at a rank after one of its writes)."""

    arrives: Longs  # per row of the schedule: the operation after which its data have arrived
    writer: Longs  # per version: the operation that writes it, -1 if it is an input
    read: Longs  # per read: the version that is read
    reader: Longs  # per read: the operation that reads it


def operations(prepared: Prepared, channels: int, lag: int, joint: Ints | None = None, staged: bool = False) -> Program:
    """Return the program: sends, receives and folds with the operations that they wait for. O(n log n) for n rows.

    `joint`: per row of the schedule its joint, -1: none. `channels`, `lag`, `staged`: see `lower`.

    Rank 0 of `core.example.star` receives twice, folds both when they are there, and then sends the result twice:

    >>> from antiphon.core.example import star
    >>> from antiphon.core.program.kinds import NAMES
    >>> from antiphon.lower.rows import prepare
    >>> program = operations(prepare(star(), in_place=False), channels=1, lag=1)
    >>> waits = [program.wait[a:b].tolist() for a, b in zip(program.wait_ptr, program.wait_ptr[1:])]
    >>> list(zip([NAMES[kind] for kind in program.kind[:5]], program.peer[:5].tolist(), waits))
    [('receive', 2, []), ('receive', 1, []), ('fold', 0, [0, 1]), ('send', 1, [2]), ('send', 2, [2])]
    """
    movement = moves(prepared, staged)
    folding = folds(prepared, movement)
    table = OperationTable()
    copies = _copy_inputs(prepared, table)
    accesses = _add_transfers(prepared, movement, folding, copies, table)
    if joint is not None:
        _mark_joints(movement, joint, accesses, table)
    _copy_delayed_outputs(prepared, movement, accesses, table)
    _order_versions(prepared, accesses, table)
    slots = _order_stretches(prepared, movement, accesses, table, lag)
    return assemble_program(prepared, movement, slots, table, channels)


def _add_transfers(
    prepared: Prepared, movement: DataMoves, folding: Folds, copies: _InputCopies, table: OperationTable
) -> _Accesses:
    """Add sends, receives, copies and folds; return writers and readers. O(n log n).

    After the first step a rank's own data are sent from their copy in the output, next to the data that have arrived.
    moves.py has the fields of `movement` and `folding`; `values.version_table` has the versions that a row reads and
    writes, `values.row` the row that brings an operand (-1: none).

    Of `core.example.star` operations 0 to 3 receive, 4 to 7 send, 8 folds. Row 0 is received by operation 1. Version 1,
    the sum, is made by the fold, which reads version 0; operations 6 and 7 send it.

    >>> from antiphon.core.example import star
    >>> from antiphon.lower.rows import prepare
    >>> prepared, table = prepare(star(), in_place=False), OperationTable()
    >>> movement = moves(prepared)
    >>> accesses = _add_transfers(prepared, movement, folds(prepared, movement), _copy_inputs(prepared, table), table)
    >>> accesses.arrives.tolist(), accesses.writer.tolist()
    ([1, 0, 2, 3], [-1, 8, -1, 2, -1, 3])
    >>> list(zip(accesses.read.tolist(), accesses.reader.tolist()))  # (version, operation)
    [(2, 5), (4, 4), (1, 6), (1, 7), (0, 8)]
    """
    schedule, line, values = prepared.schedule, prepared.line, prepared.values
    read, write = values.version_table.read.astype(np.int64), values.version_table.write.astype(np.int64)
    # Bases: places in users' buffers have the first numbers, stretches of scratch those behind them.
    target = np.where(movement.stretch >= 0, len(prepared.places) + movement.stretch, movement.base[write])
    source = movement.base[read]
    # Rows that read a copied input after step 0: sending from the output lets neighbouring parts be joined. (Chunks in
    # several pieces are never joined, see `moves`.)
    is_late_read = (copies.place[read] >= 0) & (prepared.time > 0) & (line.pieces[schedule.chunk] == 1)
    from_copy = np.flatnonzero(is_late_read & (schedule.src != schedule.dst))
    source[from_copy] = copies.place[read[from_copy]]
    arrives, readers = _add_messages(prepared, movement, table, target, source)
    table.wait(readers[from_copy], copies.operation[read[from_copy]])
    # Copies inside a rank: one fold with a single operand each.
    rows = movement.inner
    chunk, rank = schedule.chunk[rows], schedule.src[rows]
    arrives[rows] = readers[rows] = table.add(FOLD, rank, rank, line.pieces[chunk], 2 * prepared.time[rows], chunk)
    for base in (target, source):
        table.part(arrives[rows], line.begin[chunk], line.end[chunk], base[rows])
    # A version is written by the fold of its group, or directly by the operation that brings its only row.
    fold_of = _add_folds(prepared, movement, folding, table)
    writer = np.full(len(values.version_table), -1, np.int64)
    group = values.group[write]
    writer[write] = np.where(movement.folded[group], fold_of[group], arrives)
    # Rows without a reader so far reduce inside a rank: their fold reads the operand at its place.
    local_rows = np.flatnonzero(readers < 0)
    readers[local_rows] = fold_of[group[local_rows]]
    # Operands without a row are a rank's own values, read by the fold itself. The others come from rows whose data wait
    # in scratch for their fold.
    own_values, from_rows = np.flatnonzero(values.row < 0), np.flatnonzero(values.row >= 0)
    from_rows = from_rows[movement.waiting[values.row[from_rows]]]
    table.wait(fold_of[values.owner[from_rows]], arrives[values.row[from_rows]])
    all_read = np.concatenate([read, values.operand[own_values]])
    return _Accesses(arrives, writer, all_read, np.concatenate([readers, fold_of[values.owner[own_values]]]))


def _mark_joints(movement: DataMoves, joint: Ints, accesses: _Accesses, table: OperationTable) -> None:
    """Record the joint of each send and receive that has one. A message holds rows of one joint, or of none."""
    rows, message = movement.crossing, movement.message
    joints = joint[rows].astype(np.int64)
    first = joints[run_starts(message)]
    if np.any(joints != first[message]):
        raise Unsupported("programs: rows of two joints go between two ranks in one step; take fewer pieces")
    joined = np.flatnonzero(joints >= 0)
    # the first entries of `reader` are the operations that read for each row of the schedule: here the sends
    sends = accesses.reader[: len(joint)][rows[joined]]
    table.joint += [(accesses.arrives[rows[joined]], joints[joined]), (sends, joints[joined])]


def _add_messages(
    prepared: Prepared, movement: DataMoves, table: OperationTable, target: Longs, source: Longs
) -> tuple[Longs, Longs]:
    """Add sends, receives and their parts; return the receive and the send of each row, -1 inside a rank. O(rows).

    `target`, `source`: per row the place to which and from which its data go.

    Rows 0 and 1 of `core.example.star` are messages 1 and 0; of four messages the receives come first:

    >>> from antiphon.core.example import star
    >>> from antiphon.lower.rows import prepare
    >>> prepared, bases = prepare(star(), in_place=False), np.zeros(4, np.int64)
    >>> _add_messages(prepared, moves(prepared), OperationTable(), bases, bases)
    (array([1, 0, 2, 3]), array([5, 4, 6, 7]))
    """
    schedule, line, rows = prepared.schedule, prepared.line, movement.crossing
    first = rows[run_starts(movement.message)]
    begin, end = line.begin[schedule.chunk[rows]], line.end[schedule.chunk[rows]]

    def add_operations(kind: int, rank: Ints, peer: Ints, base: Longs) -> Longs:
        chunk = schedule.chunk[first]
        number = table.add(kind, rank[first], peer[first], line.pieces[chunk], 2 * prepared.time[first], chunk)
        operation = np.full(schedule.transfers, -1, np.int64)
        operation[rows] = number[movement.message]
        _add_parts(table, begin, end, base[rows], operation[rows], movement.joined)
        return operation

    receives = add_operations(RECEIVE, schedule.dst, schedule.src, target)
    return receives, add_operations(SEND, schedule.src, schedule.dst, source)


def _add_folds(prepared: Prepared, movement: DataMoves, folding: Folds, table: OperationTable) -> Longs:
    """Add the folds, with their result as first part and then their operands. Return the fold of each group.
    O(operands).

    The entry of a group (all writes of one version) that no fold makes is meaningless.

    In `core.example.star` there is one fold: its result has base 1 (the output), its operands have bases 0 (the input),
    7 and 6 (scratch). All parts are from point 0 to point 1:

    >>> from antiphon.core.example import star
    >>> from antiphon.lower.rows import prepare
    >>> prepared, table = prepare(star(), in_place=False), OperationTable()
    >>> fold_of = _add_folds(prepared, moves(prepared), folds(prepared, moves(prepared)), table)
    >>> fold_of[:1], table.all("part_columns", 4)
    (array([0]), [array([0, 0, 0, 0]), array([0, 0, 0, 0]), array([1, 1, 1, 1]), array([1, 0, 7, 6])])
    """
    line, values = prepared.line, prepared.values
    version, last = values.version[folding.head], values.version[folding.tail]  # of each fold's first and last chunk
    chunk, end = values.version_table.chunk[version], values.version_table.chunk[last]
    rank = values.version_table.rank[version]
    number = table.add(FOLD, rank, rank, line.pieces[chunk], 2 * values.moment[version] + 1, chunk)
    table.part(number, line.begin[chunk], line.end[end], movement.base[version])
    fold = np.repeat(np.arange(len(number)), folding.count)  # per operand its fold
    table.part(number[fold], line.begin[chunk][fold], line.end[end][fold], folding.base[folding.operands])
    return number[folding.fold] if len(number) else np.full(len(folding.fold), -1, np.int64)


def _add_parts(table: OperationTable, begin: Longs, end: Longs, base: Longs, operation: Longs, joined: Bools) -> None:
    """Add parts, merging neighbours of one message (`joined`) that are contiguous at one place. O(rows).

    >>> table, joined = OperationTable(), np.array([False, True, True, False])
    >>> _add_parts(table, *np.array([[0, 1, 2, 5], [1, 2, 3, 6], [7, 7, 8, 8], [4, 4, 4, 9]]), joined)
    >>> [column.tolist() for column in table.all("part_columns", 4)]  # operation, begin, end, base
    [[4, 4, 9], [0, 2, 5], [2, 3, 6], [7, 8, 8]]
    """
    starts = ~joined
    starts[1:] |= base[1:] != base[:-1]
    table.part(operation[starts], begin[starts], end[_run_ends(starts)], base[starts])


@dataclass(frozen=True, eq=False)
class _InputCopies:
    """Inputs that are copied to the output at the start."""

    place: Longs  # per version, the place of its copy; -1: none
    operation: Longs  # per version, the operation that copies it; -1: none


def _copy_inputs(prepared: Prepared, table: OperationTable) -> _InputCopies:
    """Copy inputs that are also outputs and that no row writes. One sort.

    An allgather among two ranks: operation 0 copies rank 0's own block (base 0) to its output (1).

    >>> from antiphon.core.example import of_rows
    >>> from antiphon.lower.rows import prepare
    >>> table = OperationTable()
    >>> copies = _copy_inputs(prepare(of_rows("allgather", 2, [(0, 0, 0, 1, 0), (0, 1, 1, 0, 0)]), False), table)
    >>> [column.tolist() for column in table.all("part_columns", 4)]  # operation, begin, end, base
    [[0, 1, 0, 1], [0, 1, 0, 1], [1, 2, 1, 2], [1, 3, 0, 2]]
    >>> copies.place.tolist(), copies.operation.tolist()
    ([1, -1, -1, -1, -1, 3], [0, -1, -1, -1, -1, 1])
    """
    outputs, line, versions = prepared.analysis.outputs, prepared.line, prepared.values.version_table
    input_row = find_positions(prepared.analysis.inputs.cell, outputs.cell)
    # Outputs whose last version is the initial one, or that have no version (-1): no row writes them.
    is_unwritten = (prepared.last < 0) | versions.initial[prepared.last] if len(versions) else prepared.last < 0
    rows = np.flatnonzero(is_unwritten & (input_row >= 0))
    # In place the input is already where the output is.
    rows = rows[prepared.places.inputs[input_row[rows]] != prepared.places.outputs[rows]]
    rows = rows[np.lexsort((line.position[outputs.chunk[rows]], outputs.rank[rows]))]
    chunk, rank = outputs.chunk[rows], outputs.rank[rows]
    source, target = prepared.places.inputs[input_row[rows]], prepared.places.outputs[rows]
    starts, last = _find_intervals(line, chunk, rank, source, target)
    time = np.ones(int(starts.sum()), np.int64)  # that of folds of step 0
    number = table.add(FOLD, rank[starts], rank[starts], 1, time, chunk[starts])
    for base in (target, source):
        table.part(number, line.begin[chunk[starts]], line.end[chunk[last]], base[starts])
    copies = _InputCopies(np.full(len(versions), -1, np.int64), np.full(len(versions), -1, np.int64))
    has_version = prepared.last[rows] >= 0
    # Rows that read such a version later may read the copy instead.
    copies.place[prepared.last[rows[has_version]]] = target[has_version]
    copies.operation[prepared.last[rows[has_version]]] = number[np.cumsum(starts) - 1][has_version]
    return copies


def _copy_delayed_outputs(prepared: Prepared, movement: DataMoves, accesses: _Accesses, table: OperationTable) -> None:
    """For an alltoall in place: once the old content of a place has been read, copy the received data there.

    The copies are added to `accesses` as further reads.

    O(n log n). Among two ranks, operations 0 and 1 receive, 2 and 3 send; 4 and 5 wait for the sends, 6 and 7 copy the
    received data.

    >>> from antiphon.core.example import of_rows
    >>> from antiphon.lower.rows import prepare
    >>> prepared, table = prepare(of_rows("alltoall", 2, [(0, 2, 0, 1, 0), (0, 1, 1, 0, 0)]), True), OperationTable()
    >>> movement = moves(prepared)
    >>> accesses = _add_transfers(prepared, movement, folds(prepared, movement), _copy_inputs(prepared, table), table)
    >>> _copy_delayed_outputs(prepared, movement, accesses, table)
    >>> table.all("columns", 6)[0].tolist()  # kinds: 0 send, 1 receive, 2 fold, 3 join
    [1, 1, 0, 0, 3, 3, 2, 2]
    >>> table.all("waits", 2)  # who waits, for whom
    [array([4, 5, 6, 7]), array([2, 3, 4, 5])]
    """
    rows = np.flatnonzero(prepared.delayed)
    if not len(rows):
        return
    line, versions, collective = prepared.line, prepared.values.version_table, prepared.schedule.collective
    outputs, members = prepared.analysis.outputs, len(collective.members)
    when, pieces = table.when(), np.concatenate([pieces for _, _, _, pieces, _, _ in table.columns])
    # Readers of the initial content of places that are overwritten.
    reads_initial = versions.initial[accesses.read]
    version, reader = accesses.read[reads_initial], accesses.reader[reads_initial]
    # A place is rank * members + the member at the other end. The block that sender i has for receiver j is
    # j * members + i: inputs lie by receiver (//), outputs by sender (%).
    read_place = versions.rank[version] * members + prepared.schedule.chunks.block[versions.chunk[version]] // members
    end_place = outputs.rank[rows] * members + prepared.schedule.chunks.block[outputs.chunk[rows]] % members
    is_replaced = np.zeros(collective.ranks * members, bool)
    is_replaced[end_place] = True
    reader, read_place = reader[is_replaced[read_place]], read_place[is_replaced[read_place]]
    ready = np.zeros(len(is_replaced), np.int64)  # per place, the time of the join that waits for all its readers
    # A send of several pieces ends 2 * (pieces - 1) later than it begins; the join follows its last reader.
    np.maximum.at(ready, read_place, when[reader] + 2 * (pieces[reader] - 1) + 1)
    places = distinct(read_place)
    rank = places // members
    join = np.full(len(ready), -1, np.int64)
    join[places] = table.add(JOIN, rank, peer=rank, pieces=1, when=ready[places], chunk=0)
    table.wait(join[read_place], reader)
    # And a copy for each output, which waits for the join of its place. `value`: the version that has been received.
    value, chunk, end_rank = prepared.last[rows], outputs.chunk[rows], outputs.rank[rows]
    begin = np.maximum(ready[end_place], when[accesses.writer[value]]) + 1
    number = table.add(FOLD, end_rank, end_rank, line.pieces[chunk], begin, chunk)
    for base in (prepared.places.outputs[rows], movement.base[value]):
        table.part(number, line.begin[chunk], line.end[chunk], base)
    has_join = join[end_place] >= 0
    table.wait(number[has_join], join[end_place[has_join]])
    accesses.read = np.concatenate([accesses.read, value])
    accesses.reader = np.concatenate([accesses.reader, number])


def _order_versions(prepared: Prepared, accesses: _Accesses, table: OperationTable) -> None:
    """Add the waits that keep the order of reads and writes of a place. O(uses).

    A read waits for the writer of its version. The operation that overwrites a version waits for the reads of that
    version, or for its writer if nobody reads it.

    Example: rank 0 sends the sum (operation 3) after folding it (4). In place, rank 1 receives the sum into its input
    (1), so it must have sent that input before (2).

    >>> from antiphon.core.example import of_rows
    >>> from antiphon.lower.rows import prepare
    >>> prepared, table = prepare(of_rows("allreduce", 2, [(0, 0, 1, 0, 1), (1, 0, 0, 1, 0)]), True), OperationTable()
    >>> movement = moves(prepared)
    >>> folding = folds(prepared, movement)
    >>> accesses = _add_transfers(prepared, movement, folding, _copy_inputs(prepared, table), table)
    >>> table.waits.clear()
    >>> _order_versions(prepared, accesses, table)
    >>> table.all("waits", 2)  # who waits, for whom
    [array([3, 1]), array([4, 2])]
    """
    values = prepared.values
    # Read after write.
    writer = accesses.writer[accesses.read]
    table.wait(accesses.reader[writer >= 0], writer[writer >= 0])
    # Write after read: version + 1 overwrites the place of this version.
    overwritten = values.overwritten[accesses.read]
    table.wait(accesses.writer[accesses.read[overwritten] + 1], accesses.reader[overwritten])
    # Write after write, only for versions that nobody reads: otherwise the reads imply it.
    is_unread = values.overwritten & (accesses.writer >= 0)
    is_unread[accesses.read] = False
    unread = np.flatnonzero(is_unread)
    table.wait(accesses.writer[unread + 1], accesses.writer[unread])


def _order_stretches(
    prepared: Prepared, movement: DataMoves, accesses: _Accesses, table: OperationTable, lag: int
) -> Slots:
    """Assign stretches to slots; writers into a reused slot wait for all users of its old content. O(n log n)."""
    schedule, line = prepared.schedule, prepared.line
    head, tail = schedule.chunk[movement.head], schedule.chunk[movement.tail]
    # Pairs (stretch, operation that uses it): the fold that takes a waiting row, and every reader of a version there.
    waiting_rows = np.flatnonzero(movement.waiting)
    folder = accesses.writer[prepared.values.version_table.write[waiting_rows]]
    in_scratch = movement.base[accesses.read] >= len(prepared.places)
    stretch = np.concatenate(
        [movement.stretch[waiting_rows], movement.base[accesses.read[in_scratch]] - len(prepared.places)]
    )
    user = np.concatenate([folder, accesses.reader[in_scratch]])
    writer = accesses.arrives[movement.head]
    # A stretch that is never read is in use by its writer alone.
    is_unread = np.ones(len(head), bool)
    is_unread[stretch] = False
    stretch, user = np.concatenate([stretch, np.flatnonzero(is_unread)]), np.concatenate([user, writer[is_unread]])
    when = table.when()
    end = when[writer]
    # The life of a stretch: from its receive to its last user.
    np.maximum.at(end, stretch, when[user])
    rank, first_use = schedule.dst[movement.head].astype(np.int64), 2 * prepared.time[movement.head]
    stretches = ScratchStretches(rank, line.begin[head], line.end[tail], line.pieces[head], first_use, last_use=end)
    slots = assign_stretches(line, schedule.collective.ranks, stretches, lag)
    successor = np.full(len(head), -1, np.int64)  # per stretch the stretch that has its slot next
    reusing = np.flatnonzero(slots.before >= 0)
    successor[slots.before[reusing]] = reusing  # the inverse of `before`, which names the previous owner of a slot
    has_successor = successor[stretch] >= 0
    table.wait(writer[successor[stretch[has_successor]]], user[has_successor])
    return slots


# ---- entry points ----


MOST_CHANNELS = 2**15  # channels are 16-bit numbers in files of programs
MAX_LAG = 2**20  # steps: with this lag scratch is never reused


def lower(
    schedule: Schedule, *, in_place: bool = False, channels: int = 1, lag: int = 1, joints: bool = False,
    staged: bool = False,
) -> Program:  # fmt: skip
    """Return the program of a legal schedule, for any number of elements, datatype and operator.

    In place and out of place are two programs with the same messages, so ranks may mix them.

    `channels`
        Number of channels (connections between two ranks) over which transfers are distributed, by chunk.
    `lag`
        Steps between the last use of a slot of scratch and its reuse. 0 needs the least scratch; with more, receives
        can begin earlier.
    `joints`
        Sends and receives state their joint. Otherwise a schedule with joints is refused.
    `staged`
        All data that ranks receive go to scratch first.

    Raises Invalid where a row is illegal, and Unsupported for an alltoall in place whose counts differ in the two
    directions. O(n log n) for n rows, a few microseconds per row.
    """
    for option, value, low, high in (("channels", channels, 1, MOST_CHANNELS), ("lag", lag, 0, MAX_LAG)):
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise Invalid(f"{option}: expected a whole number from {low} to {high}, got {quote(value)}")
    if not joints:
        refuse_joints(schedule, "programs")
    # Rows in canonical order: equal schedules give equal programs.
    ordered = schedule.sorted()
    return operations(prepare(replace(ordered, joint=None), in_place), channels, lag, ordered.joint, staged)


def has_little_scratch(layout: BufferLayout) -> bool:
    """Return whether scratch is at most twice the largest buffer. Callers then keep a program without reuse of scratch
    (`lag` MAX_LAG)."""
    return int(layout.sizes[:, SCRATCH].max()) <= 2 * int(layout.sizes[:, :SCRATCH].max())


def both(schedule: Schedule, *, channels: int = 1, lag: int = 1) -> list[Program]:
    """Return the program out of place, then the one in place if there is one: the two that a file holds."""
    programs = [lower(schedule, channels=channels, lag=lag)]
    with contextlib.suppress(Unsupported):  # an alltoall may have no program in place (`lower`)
        programs.append(lower(schedule, in_place=True, channels=channels, lag=lag))
    return programs
