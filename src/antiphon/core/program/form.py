"""Check that the columns of a program are valid for every message size: limits, references, addresses, times, messages.

Input: a program whose columns may come from a damaged or hostile file. Output: the properties of its messages, or an
error that names rank and operation. Limits are checked by the numbers alone, before any memory is allocated
(docs/program.md, Limits). No code is shared with lowering.

Addresses are *points* on the line of all blocks, whole + numerator / denominator in units of weight (kinds.py); the
variables here are `units` and `numerators`. Points in ascending order are at ascending elements at every size, and two
points a whole number apart have the same distance at all sizes, so comparing points once decides for all sizes.
Example: a part from 1/3 to 2/3 in a buffer of weight 1 is inside it whether the unit has 3 elements or 3 million.

The *finish table* lists stretches of the output that avg divides in the end. kinds.py also explains bases, classes
(sizes of slots) and the time `when` of an operation.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from antiphon.core.collective import Collective
from antiphon.core.columns import SAFE_INT64, Bools, Longs, concat_ranges, run_starts
from antiphon.core.program.kinds import FOLD, INPUT, JOIN, NAMES, OUTPUT, RECEIVE, SCRATCH, SEND, Program
from antiphon.errors import Invalid, Unsupported

MOST_WEIGHT = 2**61  # total weight of all blocks
MOST_PAIRS = 2**24  # (block, rank) rows of the relation
MOST_WORK = 2**25  # per rank, the sum over its operations of pieces * (1 + parts + waits)
FEW_PIECES = 4  # operations with more pieces count as pipelined
MOST_PIECES = 2**20  # per rank, the total pieces of its pipelined operations
MOST_STRETCHES = 2**22  # atoms of all parts, inputs and outputs in a proof, about 250 bytes each


def refuse_collective(collective: Collective) -> None:
    """Raise Unsupported if the relation alone would fill the memory, or positions would exceed 64 bits."""
    members, roots = len(collective.members), max(len(collective.roots), 1)
    # Rooted kinds have a row per root and member; of a custom relation all rows exist already.
    rows_per_member = {"allreduce": 1, "allgather": members, "reducescatter": members, "alltoall": members, "custom": 0}
    if members * rows_per_member.get(collective.kind, roots) > MOST_PAIRS:
        raise Unsupported(
            f"a program for {collective.kind} among {members} ranks has more than 2^24 blocks at its ranks"
        )
    if int(collective.weights.sum()) > MOST_WEIGHT:
        raise Unsupported("its blocks weigh more than 2^61 together; give them smaller weights")


def refuse_work(program: Program) -> None:
    """Raise Unsupported if a rank has more work than an engine supports."""
    part_counts, wait_counts = np.diff(program.part_ptr), np.diff(program.wait_ptr)
    load = program.pieces.astype(np.float64) * (1 + part_counts + wait_counts)
    # Two limits: the pieces of pipelined operations, and all work.
    pipelined = np.where(program.pieces > FEW_PIECES, program.pieces, 0)
    limited = (("", pipelined, MOST_PIECES), (" times (1 + parts + waits)", load, MOST_WORK))
    for phrase, amounts, max_work in limited:
        # Sums per rank as differences of a prefix sum at the rank borders.
        work = np.diff(np.append(0.0, np.cumsum(amounts, dtype=np.float64))[program.op_ptr])
        if np.any(work > max_work):
            rank, pieces = int(np.argmax(work)), int(program.pieces.max())
            raise Unsupported(
                f"no engine runs this: rank {rank} has {work[rank]:.0f} pieces of operations{phrase}, at most "
                f"{max_work} are taken; use fewer pieces than {pieces}, about "
                f"{max(int(pieces * max_work / work[rank]), 1)}"
            )


def oversized(slots: int, size: tuple[Longs, Longs], written: tuple[Longs, Longs, Longs]) -> Bools:
    """Return which slots are larger than the largest part written into them.

    A size or length is `units` + numerator / denominator, in units of weight. `slots`: their number. `size`: units and
    numerator of every slot. `written`: slot, units and numerator of every written part.
    """
    (size_units, size_numerators), (written_slot, units, numerators) = size, written
    # The last of each slot in this order is the largest part written into it.
    order = np.lexsort((numerators, units, written_slot))
    is_largest = np.append(written_slot[order][1:] != written_slot[order][:-1], True)[: len(order)]
    max_units, max_numerators = np.full(slots, -1, np.int64), np.zeros(slots, np.int64)
    max_units[written_slot[order][is_largest]] = units[order][is_largest]
    max_numerators[written_slot[order][is_largest]] = numerators[order][is_largest]
    return np.asarray((size_units > max_units) | ((size_units == max_units) & (size_numerators > max_numerators)))


# ---- form ----


def op_text(program: Program, operation: int) -> str:
    """Describe an operation for messages: rank, number within the rank, kind."""
    rank, kind = int(program.rank[operation]), int(program.kind[operation])
    name = NAMES[kind] if 0 <= kind < len(NAMES) else f"kind {kind}"
    return f"rank {rank}, operation {operation - int(program.op_ptr[rank])} ({name})"


class Envelopes(NamedTuple):
    """The properties on which both sides of every message of `Program.pairs` must agree."""

    headers: Longs  # per message: from, to, channel, when, pieces, stretches
    stretches: Longs  # per stretch of the line: units and numerator of its begin, units and numerator of its end


def refuse_faulty(program: Program, faulty: Bools, complaint: str) -> None:
    """Raise Invalid, naming the first faulty operation, if there is one.

    After a return no mark of `faulty` is set, so that callers mark the next fault in the same column.
    """
    if faulty.any():
        raise Invalid(f"{op_text(program, int(np.argmax(faulty)))}: {complaint}")


def refuse_form(program: Program) -> Envelopes:
    """Raise Invalid, naming rank and operation, if a number makes no sense.

    Return the envelopes of the program's messages. O(n log n).
    """
    refuse_collective(program.collective)
    _refuse_columns(program)
    refuse_work(program)
    _refuse_operations(program)
    _refuse_points(program)
    _refuse_buffers(program)
    _refuse_slots(program)
    return _compare_messages(program)


def refuse_other_messages(first: Envelopes, second: Envelopes) -> None:
    """Raise Invalid unless in place and out of place have the same messages, because ranks may mix the two variants."""
    if not all(np.array_equal(a, b) for a, b in zip(first, second, strict=True)):
        raise Invalid("its messages in place are others than out of place; ranks could not mix them")


def _refuse_columns(program: Program) -> None:
    """Check that every number refers to an existing row."""
    ranks, operations = program.ranks, program.operations
    part_count, base_count, slot_count = len(program.part_begin), len(program.base_shift), len(program.slot_class)
    # CSR pointers first: every later check indexes through them.
    pointers = {
        "op_ptr": (program.op_ptr, ranks, operations), "part_ptr": (program.part_ptr, operations, part_count),
        "wait_ptr": (program.wait_ptr, operations, len(program.wait)),
        "base_ptr": (program.base_ptr, ranks, base_count), "slot_ptr": (program.slot_ptr, ranks, slot_count),
        "finish_ptr": (program.finish_ptr, ranks, len(program.finish_count)),
    }  # fmt: skip
    for name, (ptr, owners, total) in pointers.items():
        if len(ptr) != owners + 1 or ptr[0] != 0 or ptr[-1] != total or np.any(np.diff(ptr) < 0):
            raise Invalid(f"{name} does not share out its {total} rows among {owners}")
    scratch = program.base_buffer == SCRATCH
    slots_of_base = np.repeat(np.diff(program.slot_ptr), np.diff(program.base_ptr))  # per base, the slots of its rank
    # By column: its row numbers, and the number of rows in the table that they refer to.
    references: dict[str, tuple[Longs, Any]] = {
        name: (getattr(program, name), len(program.point_whole))
        for name in ("part_begin", "part_end", "finish_begin", "finish_end")
    }
    # Slots are counted within a rank, so their bound depends on the base's rank.
    references |= {
        "base_buffer": (program.base_buffer, SCRATCH + 1),
        "base_slot": (program.base_slot[scratch], slots_of_base[scratch]),
        "base_origin": (program.base_origin[scratch], len(program.point_whole)),
        "slot_class": (program.slot_class, len(program.class_pieces)),
        "part_base": (program.part_base, base_count), "finish_base": (program.finish_base, base_count),
        "wait": (program.wait, operations),
    }  # fmt: skip
    for name, (values, bound) in references.items():
        is_faulty = (values < 0) | (values >= bound)
        if is_faulty.any():
            raise Invalid(f"{name}[{int(np.argmax(is_faulty))}] names what is not there")
    for numerators in (program.point_numerator, program.class_numerator):
        if np.any((numerators < 0) | (numerators >= program.denominator)):
            raise Invalid("a point or class lies outside of its unit")
    if np.any(program.class_pieces < 1) or np.any(program.class_whole < 0):
        raise Invalid("a class has no pieces, or less than no elements")


def _refuse_operations(program: Program) -> None:
    """Check kinds, peers, numbers of parts, and that waits refer to earlier operations of the same rank."""
    count, rank, kind = program.operations, program.rank, program.kind
    part_counts = np.diff(program.part_ptr)
    refuse_faulty(program, (kind < 0) | (kind > JOIN) | (program.pieces < 1), "its kind or pieces make no sense")
    refuse_faulty(program, (program.channel < 0) | (program.channel >= program.channels), "its channel is not there")
    crossing = (kind == SEND) | (kind == RECEIVE)
    peer_exists = (program.peer >= 0) & (program.peer < program.ranks)
    refuse_faulty(program, crossing & (~peer_exists | (program.peer == rank)), "it has no other rank as its peer")
    refuse_faulty(program, crossing & (part_counts < 1) | (kind == FOLD) & (part_counts < 2), "it has too few parts")
    refuse_faulty(program, (kind == JOIN) & (part_counts > 0), "it has parts")
    # References must stay within the rank, as the section of each rank in a file stands alone.
    base_rank = np.repeat(np.arange(program.ranks), np.diff(program.base_ptr))
    op = program.part_op
    is_faulty = np.zeros(count, bool)
    is_faulty[op[base_rank[program.part_base] != rank[op]]] = True
    refuse_faulty(program, is_faulty, "a part has a base of another rank")
    goes_back = np.zeros(count, bool)
    goes_back[1:] = (rank[1:] == rank[:-1]) & (program.when[1:] < program.when[:-1])
    refuse_faulty(program, goes_back, "its time is before that of the operation before it")
    later, earlier = program.wait_op, program.wait
    # Equal numbers of pieces wait piece by piece; else for the last piece. Each piece comes a step after the one before
    # it, and a step is 2 in `when`.
    all_pieces = program.pieces[later] != program.pieces[earlier]
    last_time = program.when[earlier] + np.where(all_pieces, 2 * (program.pieces[earlier] - 1), 0)
    is_faulty[later[(rank[earlier] != rank[later]) | (earlier >= later)]] = True
    refuse_faulty(program, is_faulty, "it waits for an operation that is not before it in its rank")
    is_faulty[later[last_time >= program.when[later]]] = True
    refuse_faulty(program, is_faulty, "it waits for something that is not at an earlier time")


def _refuse_points(program: Program) -> None:
    """Check that points are on the line, and parts end after they begin."""
    units, numerators = program.point_whole, program.point_numerator
    total = int(program.collective.weights.sum())
    if np.any((units < 0) | (units > total) | ((units == total) & (numerators > 0))):
        raise Invalid("a point does not lie on the line of its blocks")
    # A shift and a point, which is below 2^62, can be added in int64.
    if np.any(abs(program.base_shift.astype(np.float64)) > SAFE_INT64 / 2) or np.any(program.class_whole > total):
        raise Invalid("a shift or class is larger than all blocks together")
    begin, end = program.part_begin, program.part_end
    is_faulty = np.zeros(program.operations, bool)
    is_faulty[program.part_op[_lies_before(program, end, begin)]] = True
    refuse_faulty(program, is_faulty, "a part ends before it begins")
    if np.any(_lies_before(program, program.finish_end, program.finish_begin)):
        raise Invalid("a stretch of the finish table ends before it begins")
    # All parts of a fold must be the same interval as its first part, the result.
    op, head = program.part_op, program.part_ptr[:-1][program.part_op]
    fold = program.kind[op] == FOLD
    for points in (begin, end):
        differs = (units[points] != units[points[head]]) | (numerators[points] != numerators[points[head]])
        is_faulty[op[fold & differs]] = True
    refuse_faulty(program, is_faulty, "its result and operands are not the same stretch of the line")


def _lies_before(program: Program, a: Longs, b: Longs) -> Bools:
    """Return whether point a is before point b."""
    units, numerators = program.point_whole, program.point_numerator
    return np.asarray((units[a] < units[b]) | ((units[a] == units[b]) & (numerators[a] < numerators[b])))


def writes(program: Program) -> Bools:
    """Return per part whether it is written."""
    op = program.part_op
    kind = program.kind[op]
    return np.asarray((kind == RECEIVE) | ((kind == FOLD) & run_starts(op)))


def _refuse_buffers(program: Program) -> None:
    """Check that parts and the finish table stay inside their buffers, and that no input is written."""
    sizes = np.stack(program.weights, axis=1)  # by rank; columns: INPUT, OUTPUT
    rank = program.rank[program.part_op]
    is_faulty = np.zeros(program.operations, bool)
    inside = _fits_buffer(program, sizes, rank, program.part_base, program.part_begin, program.part_end)
    is_faulty[program.part_op[~inside]] = True
    refuse_faulty(program, is_faulty, "a part leaves its buffer")
    written_input = writes(program) & (program.base_buffer[program.part_base] == INPUT)
    is_faulty[program.part_op[written_input]] = True
    refuse_faulty(program, is_faulty, "it writes into the input")
    if program.in_place:
        is_faulty[program.part_op[program.base_buffer[program.part_base] == INPUT]] = True
        refuse_faulty(program, is_faulty, "in place there is no buffer but the output")
    owner = np.repeat(np.arange(program.ranks), np.diff(program.finish_ptr))
    base = program.finish_base
    is_own_base = (base >= program.base_ptr[owner]) & (base < program.base_ptr[owner + 1])
    if not np.all(is_own_base & (program.base_buffer[base] == OUTPUT)):
        raise Invalid("the finish table names a base outside of the output of its rank")
    if not np.all(_fits_buffer(program, sizes, owner, base, program.finish_begin, program.finish_end)):
        raise Invalid("the finish table leaves the output")


def _fits_buffer(program: Program, sizes: Longs, rank: Longs, base: Longs, begin: Longs, end: Longs) -> Bools:
    """Return whether stretches lie inside their buffers; scratch is checked in `_refuse_slots`."""
    buffer, shift = program.base_buffer[base], program.base_shift[base]
    size = sizes[rank, np.minimum(buffer, OUTPUT)]  # meaningless for scratch, which passes below
    low, high = program.point_whole[begin] + shift, program.point_whole[end] + shift
    # A numerator above 0 at the last whole unit lies beyond the end.
    ends_outside = (high > size) | ((high == size) & (program.point_numerator[end] > 0))
    return np.asarray((buffer == SCRATCH) | ~((low < 0) | ends_outside))


def span(program: Program, begin: Longs, end: Longs) -> tuple[Longs, Longs]:
    """Return the distance from `begin` to `end`, as units and numerator."""
    units = program.point_whole[end] - program.point_whole[begin]
    numerators = program.point_numerator[end] - program.point_numerator[begin]
    return units - (numerators < 0), np.where(numerators < 0, numerators + program.denominator, numerators)


def slot_of(program: Program, base: Longs) -> Longs:
    """Return the slot row of each base in scratch."""
    rank = np.repeat(np.arange(program.ranks), np.diff(program.base_ptr))
    return program.slot_ptr[rank[base]] + program.base_slot[base]


def _refuse_slots(program: Program) -> None:
    """Check that parts in scratch lie within their slots, and that no slot is larger than needed."""
    rows = np.flatnonzero(program.base_buffer[program.part_base] == SCRATCH)
    op, base = program.part_op[rows], program.part_base[rows]
    slot, origin, begin, end = slot_of(program, base), program.base_origin[base], program.part_begin, program.part_end
    size_class = program.slot_class[slot]
    units, numerators = program.class_whole[size_class], program.class_numerator[size_class]
    # A part must lie within its slot, which begins at `origin` and has the size of its class.
    end_units, end_numerators = span(program, origin, end[rows])
    outside = _lies_before(program, begin[rows], origin)
    outside |= (end_units > units) | ((end_units == units) & (end_numerators > numerators))
    outside |= program.class_pieces[size_class] != program.pieces[op]
    # Pieces of a slot are addressed from its origin, so a part in pieces must begin there.
    outside |= (program.pieces[op] > 1) & _lies_before(program, origin, begin[rows])
    is_faulty = np.zeros(program.operations, bool)
    is_faulty[op[outside]] = True
    refuse_faulty(program, is_faulty, "a part leaves its slot, or has other pieces than that")
    # The reverse: no slot may be larger than needed, which would let a file claim memory.
    writing = writes(program)[rows]
    sizes = program.class_whole[program.slot_class], program.class_numerator[program.slot_class]
    length_units, length_numerators = span(program, begin[rows], end[rows])
    written = slot[writing], length_units[writing], length_numerators[writing]
    is_large = oversized(len(program.slot_class), sizes, written)
    if is_large.any():
        slot_row = int(np.argmax(is_large))
        rank = int(np.searchsorted(program.slot_ptr, slot_row, side="right")) - 1
        raise Invalid(
            f"rank {rank}: its slot {slot_row - int(program.slot_ptr[rank])} is larger than what is written into it"
        )


# ---- messages ----


def _compare_messages(program: Program) -> Envelopes:
    """Compare each send with its receive; raise Invalid if they are not the same message."""
    send, receive = program.pairs
    if len(send) != len(receive):
        raise Invalid(f"{len(send)} sends and {len(receive)} receives; every send needs its receive")
    first, count, stretch = _join_parts(program)
    # Paired by order (`Program.pairs`): the k-th send on a connection must equal the k-th receive in all of these.
    columns = [
        (program.rank[send], program.peer[receive]), (program.peer[send], program.rank[receive]),
        (program.channel[send], program.channel[receive]), (program.when[send], program.when[receive]),
        (program.pieces[send], program.pieces[receive]), (count[send], count[receive]),
    ]  # fmt: skip
    is_faulty = np.zeros(program.operations, bool)
    for a, b in columns:
        is_faulty[send[a != b]] = True
    refuse_faulty(program, is_faulty, "no receive of this time, pieces and stretches takes what it sends")
    # Compare the line intervals too; the counts are equal, so both lists align.
    sent = stretch[concat_ranges(first[send], count[send])]
    differs = np.any(sent != stretch[concat_ranges(first[receive], count[receive])], axis=1)
    is_faulty[np.repeat(send, count[send])[differs]] = True
    refuse_faulty(program, is_faulty, "its receive takes it as other stretches of the line")
    return Envelopes(np.stack([a for a, _ in columns], axis=1), sent)


def _join_parts(program: Program) -> tuple[Longs, Longs, Longs]:
    """Join adjacent parts of each operation into stretches (intervals of the line).

    Return per operation its first stretch and the number of its stretches; and of every stretch the units and numerator
    of its begin and of its end.

    Operation 0 has parts from point 0 to 1 and from 1 to 2, operation 1 one from 0 to 2:

    >>> from types import SimpleNamespace as Namespace
    >>> points = {"point_whole": np.array([0, 4, 8]), "point_numerator": np.array([0, 0, 0])}
    >>> parts = {"part_begin": np.array([0, 1, 0]), "part_end": np.array([1, 2, 2]), "part_op": np.array([0, 0, 1])}
    >>> program = Namespace(**points, **parts, pieces=np.array([1, 1]), operations=2)
    >>> first, count, stretch = _join_parts(program)
    >>> first.tolist(), count.tolist(), stretch.tolist()
    ([0, 1], [1, 1], [[0, 0, 8, 0], [0, 0, 8, 0]])
    """
    units, numerators = program.point_whole, program.point_numerator
    begin, end, op = program.part_begin, program.part_end, program.part_op
    nonempty = np.flatnonzero(_lies_before(program, begin, end))
    begin, end, op = begin[nonempty], end[nonempty], op[nonempty]
    # Parts in pieces are cut one by one and must not be joined.
    is_first = run_starts(op) | (program.pieces[op] > 1)
    is_first[1:] |= (units[begin[1:]] != units[end[:-1]]) | (numerators[begin[1:]] != numerators[end[:-1]])
    is_last = np.append(is_first[1:], True)[: len(is_first)]
    begin, end = begin[is_first], end[is_last]
    count = np.bincount(op[is_first], minlength=program.operations).astype(np.int64)
    return (
        np.cumsum(count) - count,
        count,
        np.stack([units[begin], numerators[begin], units[end], numerators[end]], axis=1),
    )
