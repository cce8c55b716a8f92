"""From a schedule to its programs: `lower` makes one, `both` those for both places.

Three stages, each a frozen table that the next reads: `rows.prepare` gives every value of the schedule its place;
`moves.moves` and `moves.folds` decide which transfers need scratch and which values are combined; here they become
operations with dependencies, in their final order (`assemble_program`)."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from antiphon.core.columns import Bools, Ints, Longs, distinct, order_of, packed, pointers, starts
from antiphon.core.joints import refuse_joints
from antiphon.core.program import FOLD, JOIN, RECEIVE, SEND, Bound, Program
from antiphon.core.program.kinds import SCRATCH
from antiphon.core.schedule import Schedule
from antiphon.errors import Invalid, Unsupported, quote
from antiphon.lower.moves import Folds, Moves, Slots, dealt, folds, moves
from antiphon.lower.rows import Prepared, find_positions, prepare


@dataclass(eq=False)
class Table:
    """Operations as they are made, with their parts and waits; each set of columns is added at once."""

    columns: list[tuple[Longs, ...]] = field(default_factory=list)  # kind, rank, peer, pieces, when, chunk
    part_columns: list[tuple[Longs, ...]] = field(default_factory=list)  # operation, begin, end, base
    waits: list[tuple[Longs, Longs]] = field(default_factory=list)
    joint: list[tuple[Longs, Longs]] = field(default_factory=list)  # operations, and the joint of each
    count: int = 0

    def add(
        self, kind: int, rank: ArrayLike, peer: ArrayLike, pieces: ArrayLike, when: Longs, chunk: ArrayLike
    ) -> Longs:
        """New operations; returns their numbers.

        >>> table = Table()
        >>> table.add(SEND, [0, 1], [1, 0], 1, np.array([0, 0]), 0), table.add(RECEIVE, 1, 0, 1, np.array([0]), 0)
        (array([0, 1]), array([2]))
        """
        columns = np.broadcast_arrays(*(np.asarray(c, np.int64) for c in (kind, rank, peer, pieces, when, chunk)))
        self.columns.append(tuple(columns))
        first, self.count = self.count, self.count + len(when)
        return np.arange(first, self.count)

    def part(self, operation: Longs, begin: Longs, end: Longs, base: Longs) -> None:
        self.part_columns.append((operation, begin, end, base))

    def wait(self, later: Longs, earlier: Longs) -> None:
        other = later != earlier
        self.waits.append((later[other], earlier[other]))

    def when(self) -> Longs:
        return np.concatenate([c[4] for c in self.columns])

    def all(self, table_name: str, width: int) -> list[Longs]:
        listed: list[Any] = getattr(self, table_name)
        empty = np.zeros(0, np.int64)
        return [np.concatenate([empty, *(columns[i] for columns in listed)]) for i in range(width)]


def assemble_program(work: Prepared, movement: Moves, slots: Slots, table: Table, channels: int) -> Program:
    """All columns in their final order: operations by rank, time, and receives before sends before folds. One sort."""
    schedule, line, places = work.schedule, work.line, work.places
    ranks = schedule.collective.ranks
    kind, rank, peer, pieces, when, chunk = table.all("columns", 6)
    # At equal times receives come first, so that data can arrive early; folds last, as they need the receives.
    rush = np.where(kind == RECEIVE, 0, np.where(kind == SEND, 1, 2))
    order = order_of(*packed((rank, ranks), (when, int(when.max(initial=0)) + 1), (rush, 3)))
    # `number` is the inverse permutation: from the order of creation to the final number of an operation.
    number = np.empty(len(order), np.int64)
    number[order] = np.arange(len(order))
    operation, begin, end, base = table.all("part_columns", 4)
    turn = order_of(number[operation], len(order))
    later, earlier = table.all("waits", 2)
    # An edge (later, earlier) is one integer, so that one sort removes duplicates; see `edges //` and `%` below.
    edges = distinct(number[later] * max(len(order), 1) + number[earlier])
    # Bases: first the places in users' buffers, then one per stretch of scratch; both sorted by rank.
    base_rank = np.concatenate([places.rank, schedule.dst[movement.head]]).astype(np.int64)
    by_rank = order_of(base_rank, ranks)
    base_number = np.empty(len(by_rank), np.int64)
    base_number[by_rank] = np.arange(len(by_rank))
    none, zero = np.zeros(len(places), np.int64), np.zeros(len(movement.head), np.int64)
    # The data of a stretch lie relative to the first point of its first chunk.
    origin = line.begin[schedule.chunk[movement.head]]
    joint = np.full(len(order) if table.joint else 0, -1, np.int64)
    for operations, of in table.joint:
        joint[number[operations]] = of
    finish = _finish_table(work)
    planner = schedule.provenance.get("planner")
    return Program(
        schedule.collective, work.in_place, channels,
        f"{schedule.collective.kind} among {len(schedule.collective.members)} ranks" + f", {planner}" * bool(planner),
        line.denominator, line.units, line.numerators,
        pointers(base_rank, ranks), np.concatenate([places.shift, zero])[by_rank],
        np.concatenate([places.buffer, zero + 2])[by_rank], np.concatenate([none, slots.slot])[by_rank],
        np.concatenate([none, origin])[by_rank],
        slots.class_whole, slots.class_part, slots.class_pieces, slots.ptr, slots.of_class,
        pointers(rank, ranks), kind[order], (line.place[chunk] % channels)[order] if len(chunk) else chunk,
        peer[order], pieces[order], when[order],
        pointers(number[operation], len(order)), begin[turn], end[turn], base_number[base[turn]],
        pointers(edges // max(len(order), 1), len(order)), edges % max(len(order), 1),
        pointers(finish[0], ranks), finish[1], finish[2], base_number[finish[3]], finish[4], joint,
    )  # fmt: skip


def _finish_table(work: Prepared) -> tuple[Longs, Longs, Longs, Longs, Longs]:
    """Which stretches of the outputs an avg divides, by how much: rank, begin, end, base, count. One sort.

    >>> from antiphon.core.example import star
    >>> from antiphon.lower.rows import prepare
    >>> _finish_table(prepare(star(), False))
    (array([0, 1, 2]), array([0, 0, 0]), array([1, 1, 1]), array([1, 3, 5]), array([3, 3, 3]))
    """
    ends, line = work.analysis.outputs, work.line
    rows = np.flatnonzero(ends.count > 1)
    rows = rows[np.lexsort((line.place[ends.chunk[rows]], ends.rank[rows]))]
    chunk, rank, base, count = ends.chunk[rows], ends.rank[rows], work.places.outputs[rows], ends.count[rows]
    # Merge adjacent chunks: a new stretch begins where rank, base or count changes, or after a gap on the line.
    fresh = starts(rank) | starts(base) | starts(count)
    fresh[1:] |= line.end[chunk[:-1]] != line.begin[chunk[1:]]
    last = np.append(fresh[1:], True)[: len(fresh)]
    return rank[fresh], line.begin[chunk[fresh]], line.end[chunk[last]], base[fresh], count[fresh]


# ---- operations ----


@dataclass(eq=False)
class _Doers:
    """Writing and reading operations: by row, version and stretch. Uses: (version read, the operation reading it)."""

    arrives: Longs  # per row: the operation after which it is there
    writer: Longs  # per version, -1
    read: Longs
    reader: Longs


def operations(work: Prepared, channels: int, lag: int, joint: Ints | None = None) -> Program:
    """The program: sends, receives and folds by rank and time, with what they wait for. O(n log n) for n rows.

    Rank 0 of `core.example.star` receives twice, folds that when both are there, and then sends the result twice:

    >>> from antiphon.core.example import star
    >>> from antiphon.core.program.kinds import NAMES
    >>> from antiphon.lower.rows import prepare
    >>> program = operations(prepare(star(), False), 1, 1)
    >>> waits = [program.wait[a:b].tolist() for a, b in zip(program.wait_ptr, program.wait_ptr[1:])]
    >>> list(zip([NAMES[kind] for kind in program.kind[:5]], program.peer[:5].tolist(), waits))
    [('receive', 2, []), ('receive', 1, []), ('fold', 0, [0, 1]), ('send', 1, [2]), ('send', 2, [2])]
    """
    movement = moves(work)
    folding = folds(work, movement)
    table = Table()
    early = _copy_inputs(work, table)
    doers = _add_transfers(work, movement, folding, early, table)
    if joint is not None:
        _mark_joints(work, movement, joint, doers, table)
    _set_aside(work, movement, doers, table)
    _order_versions(work, movement, folding, doers, table)
    slots = _order_stretches(work, movement, doers, table, lag)
    return assemble_program(work, movement, slots, table, channels)


def _add_transfers(work: Prepared, movement: Moves, folding: Folds, early: _Early, table: Table) -> _Doers:
    """Add sends, receives, copies and folds; return writers and readers. O(n log n).

    After the first step a rank's own data is sent from its output, where it stands beside what has come.

    Of `core.example.star` operations 0 to 3 receive, 4 to 7 send, 8 folds. Row 0 is received by operation 1. Version 1,
    the sum, is made by the fold, which reads version 0; it is sent by 6 and 7.

    >>> from antiphon.core.example import star
    >>> from antiphon.lower.rows import prepare
    >>> work, table = prepare(star(), False), Table()
    >>> movement = moves(work)
    >>> doers = _add_transfers(work, movement, folds(work, movement), _copy_inputs(work, table), table)
    >>> doers.arrives.tolist(), doers.writer.tolist()
    ([1, 0, 2, 3], [-1, 8, -1, 2, -1, 3])
    >>> list(zip(doers.read.tolist(), doers.reader.tolist()))  # (version, operation)
    [(2, 5), (4, 4), (1, 6), (1, 7), (0, 8)]
    """
    schedule, line, values = work.schedule, work.line, work.values
    read, write = values.order.read.astype(np.int64), values.order.write.astype(np.int64)
    target = np.where(movement.stretch >= 0, len(work.places) + movement.stretch, movement.base[write])
    source = movement.base[read]
    beside = (early.place[read] >= 0) & (work.time > 0) & (line.pieces[schedule.chunk] == 1)
    beside = np.flatnonzero(beside & (schedule.src != schedule.dst))
    # `beside`: rows that read a copied input after step 0; sending from the output lets neighbouring parts be joined.
    source[beside] = early.place[read[beside]]
    arrives, reads = _add_messages(work, movement, table, target, source)
    table.wait(reads[beside], early.maker[read[beside]])
    # Copies inside a rank: one fold with a single operand each.
    rows = movement.inner
    chunk, rank = schedule.chunk[rows], schedule.src[rows]
    arrives[rows] = reads[rows] = table.add(FOLD, rank, rank, line.pieces[chunk], 2 * work.time[rows], chunk)
    for base in (target, source):
        table.part(arrives[rows], line.begin[chunk], line.end[chunk], base[rows])
    # A version is written by the fold of its group, or directly by the operation that brings its only row.
    fold_of = _add_folds(work, movement, folding, table)
    writer = np.full(len(values.order), -1, np.int64)
    group = values.group[write]
    writer[write] = np.where(movement.folded[group], fold_of[group], arrives)
    direct = np.flatnonzero(reads < 0)  # inside a rank and no copy: the fold reads where it lies
    reads[direct] = fold_of[group[direct]]
    # Operands without a row are a rank's own values, read by the fold itself; the others come from waiting rows.
    own, from_rows = np.flatnonzero(values.row < 0), np.flatnonzero(values.row >= 0)
    from_rows = from_rows[movement.waiting[values.row[from_rows]]]
    table.wait(fold_of[values.owner[from_rows]], arrives[values.row[from_rows]])
    all_read = np.concatenate([read, values.operand[own]])
    return _Doers(arrives, writer, all_read, np.concatenate([reads, fold_of[values.owner[own]]]))


def _mark_joints(work: Prepared, movement: Moves, joint: Ints, doers: _Doers, table: Table) -> None:
    """Mark sends and receives of joints. A message holds rows of one joint, or of none."""
    rows, message = movement.crossing, movement.message
    # The first row of a message stands for all: rows with different joints in one message are refused.
    joints = joint[rows].astype(np.int64)
    first = joints[starts(message)]
    if np.any(joints != first[message]):
        raise Unsupported("programs: rows of two joints go between two ranks in one step; take fewer pieces")
    bound = np.flatnonzero(joints >= 0)
    sends = doers.reader[: len(joint)][rows[bound]]
    table.joint += [(doers.arrives[rows[bound]], joints[bound]), (sends, joints[bound])]


def _add_messages(work: Prepared, movement: Moves, table: Table, target: Longs, source: Longs) -> tuple[Longs, Longs]:
    """The sends and receives, their parts from `source` and to `target` (bases by row); per row the receive and the
    send, -1 inside a rank. O(rows).

    Rows 0 and 1 of `core.example.star` are messages 1 and 0; of four messages the receives come first:

    >>> from antiphon.core.example import star
    >>> from antiphon.lower.rows import prepare
    >>> work, bases = prepare(star(), False), np.zeros(4, np.int64)
    >>> _add_messages(work, moves(work), Table(), bases, bases)
    (array([1, 0, 2, 3]), array([5, 4, 6, 7]))
    """
    schedule, line, rows = work.schedule, work.line, movement.crossing
    first = rows[starts(movement.message)]
    begin, end = line.begin[schedule.chunk[rows]], line.end[schedule.chunk[rows]]
    sides: list[Longs] = []
    for kind, own_rank, other, base in (
        (RECEIVE, schedule.dst, schedule.src, target),
        (SEND, schedule.src, schedule.dst, source),
    ):
        chunk = schedule.chunk[first]
        number = table.add(kind, own_rank[first], other[first], line.pieces[chunk], 2 * work.time[first], chunk)
        operation = np.full(schedule.transfers, -1, np.int64)
        operation[rows] = number[movement.message]
        _add_parts(table, begin, end, base[rows], operation[rows], movement.joined)
        sides.append(operation)
    return sides[0], sides[1]


def _add_folds(work: Prepared, movement: Moves, folding: Folds, table: Table) -> Longs:
    """The combinations, their results as parts and then their operands; per group its fold, which means nothing where
    there is none. O(operands).

    Of `core.example.star` one fold of bases 1 (the output) and 0 (the input), 7 and 6 (scratch); all is one point long:

    >>> from antiphon.core.example import star
    >>> from antiphon.lower.rows import prepare
    >>> work, table = prepare(star(), False), Table()
    >>> fold_of = _add_folds(work, moves(work), folds(work, moves(work)), table)
    >>> fold_of[:1], table.all("part_columns", 4)
    (array([0]), [array([0, 0, 0, 0]), array([0, 0, 0, 0]), array([1, 1, 1, 1]), array([1, 0, 7, 6])])
    """
    line, values = work.line, work.values
    version, last = values.version[folding.head], values.version[folding.tail]
    chunk, end = values.order.chunk[version], values.order.chunk[last]
    rank = values.order.rank[version]
    number = table.add(FOLD, rank, rank, line.pieces[chunk], 2 * values.moment[version] + 1, chunk)
    table.part(number, line.begin[chunk], line.end[end], movement.base[version])
    each = np.repeat(np.arange(len(number)), folding.count)
    table.part(number[each], line.begin[chunk][each], line.end[end][each], folding.base[folding.operands])
    return number[folding.fold] if len(number) else np.full(len(folding.fold), -1, np.int64)


def _add_parts(table: Table, begin: Longs, end: Longs, base: Longs, operation: Longs, joined: Bools) -> None:
    """Neighbours of one message (`joined`) that lie side by side at one base are one part. O(rows).

    >>> table, joined = Table(), np.array([False, True, True, False])
    >>> _add_parts(table, *np.array([[0, 1, 2, 5], [1, 2, 3, 6], [7, 7, 8, 8], [4, 4, 4, 9]]), joined)
    >>> [column.tolist() for column in table.all("part_columns", 4)]  # operation, begin, end, base
    [[4, 4, 9], [0, 2, 5], [2, 3, 6], [7, 8, 8]]
    """
    fresh = ~joined
    fresh[1:] |= base[1:] != base[:-1]
    last = np.append(fresh[1:], True)[: len(fresh)]
    table.part(operation[fresh], begin[fresh], end[last], base[fresh])


@dataclass(frozen=True, eq=False)
class _Early:
    """Per version the place in the output to which it is copied at once, and the operation that does it; -1."""

    place: Longs
    maker: Longs


def _copy_inputs(work: Prepared, table: Table) -> _Early:
    """Copy inputs that are also outputs and that no row writes. One sort.

    An allgather among two ranks: operation 0 copies rank 0's own block (base 0) to its output (1).

    >>> from antiphon.core.example import of_rows
    >>> from antiphon.lower.rows import prepare
    >>> table = Table()
    >>> early = _copy_inputs(prepare(of_rows("allgather", 2, [(0, 0, 0, 1, 0), (0, 1, 1, 0, 0)]), False), table)
    >>> [column.tolist() for column in table.all("part_columns", 4)]  # operation, begin, end, base
    [[0, 1, 0, 1], [0, 1, 0, 1], [1, 2, 1, 2], [1, 3, 0, 2]]
    >>> early.place.tolist(), early.maker.tolist()
    ([1, -1, -1, -1, -1, 3], [0, -1, -1, -1, -1, 1])
    """
    ends, line, order = work.analysis.outputs, work.line, work.values.order
    entry = find_positions(work.analysis.inputs.cell, ends.cell)
    # Outputs whose last version is the initial one: no row writes them.
    still = (work.last < 0) | order.initial[work.last] if len(order) else work.last < 0
    rows = np.flatnonzero(still & (entry >= 0))
    # In place the input is already where the output is.
    rows = rows[work.places.inputs[entry[rows]] != work.places.outputs[rows]]
    rows = rows[np.lexsort((line.place[ends.chunk[rows]], ends.rank[rows]))]
    chunk, rank = ends.chunk[rows], ends.rank[rows]
    source, target = work.places.inputs[entry[rows]], work.places.outputs[rows]
    fresh = starts(rank) | starts(source) | starts(target)
    fresh[1:] |= line.end[chunk[:-1]] != line.begin[chunk[1:]]
    last = np.append(fresh[1:], True)[: len(fresh)]
    number = table.add(FOLD, rank[fresh], rank[fresh], 1, np.ones(int(fresh.sum()), np.int64), chunk[fresh])
    for base in (target, source):
        table.part(number, line.begin[chunk[fresh]], line.end[chunk[last]], base[fresh])
    early = _Early(np.full(len(order), -1, np.int64), np.full(len(order), -1, np.int64))
    has_version = work.last[rows] >= 0
    # Rows that read such a version later may read the copy instead.
    early.place[work.last[rows[has_version]]] = target[has_version]
    early.maker[work.last[rows[has_version]]] = number[np.cumsum(fresh) - 1][has_version]
    return early


def _set_aside(work: Prepared, movement: Moves, doers: _Doers, table: Table) -> None:
    """For an alltoall in place: once the old content of a place is read, copy the received data there. O(n log n).

    Among two ranks 0 and 1 receive, 2 and 3 send; 4 and 5 wait for the sends, 6 and 7 copy what has come.

    >>> from antiphon.core.example import of_rows
    >>> from antiphon.lower.rows import prepare
    >>> work, table = prepare(of_rows("alltoall", 2, [(0, 2, 0, 1, 0), (0, 1, 1, 0, 0)]), True), Table()
    >>> movement = moves(work)
    >>> doers = _add_transfers(work, movement, folds(work, movement), _copy_inputs(work, table), table)
    >>> _set_aside(work, movement, doers, table)
    >>> table.all("columns", 6)[0].tolist()  # kinds: 0 send, 1 receive, 2 fold, 3 join
    [1, 1, 0, 0, 3, 3, 2, 2]
    >>> table.all("waits", 2)  # who waits, for whom
    [array([4, 5, 6, 7]), array([2, 3, 4, 5])]
    """
    rows = np.flatnonzero(work.aside)
    if not len(rows):
        return
    line, order, collective = work.line, work.values.order, work.schedule.collective
    ends, members = work.analysis.outputs, len(collective.members)
    when, pieces = table.when(), np.concatenate([c[3] for c in table.columns])
    # readers of the initial content, by its place; only places that are overwritten
    old = order.initial[doers.read]
    version, reader = doers.read[old], doers.reader[old]
    read_place = order.rank[version] * members + work.schedule.chunks.block[order.chunk[version]] // members
    end_place = ends.rank[rows] * members + work.schedule.chunks.block[ends.chunk[rows]] % members
    is_replaced = np.zeros(collective.ranks * members, bool)
    is_replaced[end_place] = True
    reader, read_place = reader[is_replaced[read_place]], read_place[is_replaced[read_place]]
    # a join for each place: it waits for all of its readers
    ready = np.zeros(len(is_replaced), np.int64)
    # A send of several pieces ends 2 * (pieces - 1) later than it begins; the join follows its last reader.
    np.maximum.at(ready, read_place, when[reader] + 2 * (pieces[reader] - 1) + 1)
    places = distinct(read_place)
    rank = places // members
    join = np.full(len(ready), -1, np.int64)
    join[places] = table.add(JOIN, rank, rank, 1, ready[places], 0)
    table.wait(join[read_place], reader)
    # and a copy for each output, which waits for the join of its place
    value, chunk = work.last[rows], ends.chunk[rows]
    end_rank = ends.rank[rows]
    begin = np.maximum(ready[end_place], when[doers.writer[value]]) + 1
    number = table.add(FOLD, end_rank, end_rank, line.pieces[chunk], begin, chunk)
    for base in (work.places.outputs[rows], movement.base[value]):
        table.part(number, line.begin[chunk], line.end[chunk], base)
    has_join = join[end_place] >= 0
    table.wait(number[has_join], join[end_place[has_join]])
    doers.read = np.concatenate([doers.read, value])
    doers.reader = np.concatenate([doers.reader, number])


def _order_versions(work: Prepared, movement: Moves, folding: Folds, doers: _Doers, table: Table) -> None:
    """Reads wait for what writes the version; what is written over it waits for its reads, or else for its writer.
    O(uses).

    The sum of ranks 0 and 1 is sent (3) when it is folded (4). In place rank 1 receives it (1) where its input lies, so
    when that has been sent (2).

    >>> from antiphon.core.example import of_rows
    >>> from antiphon.lower.rows import prepare
    >>> work, table = prepare(of_rows("allreduce", 2, [(0, 0, 1, 0, 1), (1, 0, 0, 1, 0)]), True), Table()
    >>> movement = moves(work)
    >>> folding = folds(work, movement)
    >>> doers = _add_transfers(work, movement, folding, _copy_inputs(work, table), table)
    >>> table.waits.clear()
    >>> _order_versions(work, movement, folding, doers, table)
    >>> table.all("waits", 2)  # who waits, for whom
    [array([3, 1]), array([4, 2])]
    """
    values = work.values
    # Read after write.
    writer = doers.writer[doers.read]
    table.wait(doers.reader[writer >= 0], writer[writer >= 0])
    # Write after read: version + 1 overwrites this version's place.
    over = values.over[doers.read]
    table.wait(doers.writer[doers.read[over] + 1], doers.reader[over])
    unread = values.over & (doers.writer >= 0)
    unread[doers.read] = False
    # Write after write, only for versions that nobody reads: otherwise the reads imply it.
    lost = np.flatnonzero(unread)
    table.wait(doers.writer[lost + 1], doers.writer[lost])


def _order_stretches(work: Prepared, movement: Moves, doers: _Doers, table: Table, lag: int) -> Slots:
    """Assign stretches to slots; writers into a reused slot wait for all users of its old content. O(n log n)."""
    schedule, line = work.schedule, work.line
    head, tail = schedule.chunk[movement.head], schedule.chunk[movement.tail]
    # pairs (stretch, operation that uses it): folds take what waits, others read what lies there; else the writer
    waiting_rows = np.flatnonzero(movement.waiting)
    taker = doers.writer[work.values.order.write[waiting_rows]]
    inside = movement.base[doers.read] >= len(work.places)
    stretch = np.concatenate([movement.stretch[waiting_rows], movement.base[doers.read[inside]] - len(work.places)])
    user = np.concatenate([taker, doers.reader[inside]])
    writer = doers.arrives[movement.head]
    # A stretch that is never read is in use by its writer alone.
    idle = np.ones(len(head), bool)
    idle[stretch] = False
    stretch, user = np.concatenate([stretch, np.flatnonzero(idle)]), np.concatenate([user, writer[idle]])
    when = table.when()
    end = when[writer] if len(writer) else np.zeros(0, np.int64)
    # The life of a stretch: from its receive to its last user.
    np.maximum.at(end, stretch, when[user])
    rank = schedule.dst[movement.head].astype(np.int64)
    where = rank, line.begin[head], line.end[tail], line.pieces[head]
    slots = dealt(line, schedule.collective.ranks, where, (2 * work.time[movement.head], end), lag)
    after = np.full(len(head), -1, np.int64)  # per stretch the one that has its slot next
    again = np.flatnonzero(slots.before >= 0)
    # Invert `before`, which names the previous owner of a slot.
    after[slots.before[again]] = again
    has_next = after[stretch] >= 0
    table.wait(writer[after[stretch[has_next]]], user[has_next])
    return slots


# ---- the whole way ----


MOST_CHANNELS = 2**15
MAX_LAG = 2**20  # steps: with this lag scratch is never reused


def lower(
    schedule: Schedule, *, in_place: bool = False, channels: int = 1, lag: int = 1, joints: bool = False
) -> Program:
    """The program of a legal schedule, for any number of elements, type and operator.

    In place and out of place are two programs with the same messages, so ranks may mix them. `channels`: transfers
    are distributed over this many, by chunk. `lag`: steps that scratch rests before it is reused; 0 needs the least
    scratch, more lets receives begin earlier. `joints`: sends and receives state their joint; without it a schedule
    with joints is refused. Invalid where a row is illegal; Unsupported for an alltoall in place
    whose counts differ both ways. O(n log n) for n rows, some microseconds each.
    """
    for option, value, low, high in (("channels", channels, 1, MOST_CHANNELS), ("lag", lag, 0, MAX_LAG)):
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise Invalid(f"{option}: expected a whole number from {low} to {high}, got {quote(value)}")
    if not joints:
        refuse_joints(schedule, "programs")
    # Rows in canonical order: equal schedules give equal programs.
    ordered = schedule.sorted()
    return operations(prepare(replace(ordered, joint=None), in_place), channels, lag, ordered.joint)


def has_little_scratch(bound: Bound) -> bool:
    """Whether scratch is at most twice the largest buffer, so that it need not be reused (`lag`)."""
    return int(bound.sizes[:, SCRATCH].max()) <= 2 * int(bound.sizes[:, :SCRATCH].max())


def both(schedule: Schedule, *, channels: int = 1, lag: int = 1) -> list[Program]:
    """Out of place, then in place where there is such a program: what belongs into one file."""
    programs = [lower(schedule, channels=channels, lag=lag)]
    with contextlib.suppress(Unsupported):
        programs.append(lower(schedule, in_place=True, channels=channels, lag=lag))
    return programs
