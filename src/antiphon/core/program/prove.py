"""Prove that a program computes its collective: for every number of elements, data type and operator.

Nothing is run and no size is tried. All blocks end to end form the *line*; *points* on it, which the program names, cut
it into *atoms*. A *part* is an interval between two points that an operation reads or writes. cells.py lists the
accesses of all operations, one per atom of a part, to *cells*. A cell is an atom in one place of memory (not the copy
of a chunk, as in schedules). Where cells overlap, their ends cut memory into *stretches*. Then:

1. Every access that reads has a definite source: the last write to its cell before it, in the order of operations.
   Waits must enforce this order in every run (`find_unordered`); if they do, any legal order gives the same values.
2. Values are computed along these sources. A value is a multiset of contributions; instead of listing them, each
   contribution is a random number of 128 bits, drawn anew for every proof, and a value is their sum with their count.
   Different multisets of n contributions have equal sums with a probability below n^2 / 2^128, even if the program
   was made to deceive.
3. Every output must have the value that the collective demands, and avg must divide it once.

Example: an allreduce on 3 ranks gives the contributions random numbers x, y, z. Every output must have sum x + y + z
and count 3; a program that adds y twice and drops z has x + 2 y, another sum.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from antiphon.core.columns import Bools, Longs, are_among, concat_ranges, distinct, pair_keys, run_starts, split_keys
from antiphon.core.program.cells import Cells, by_memory, cells_of
from antiphon.core.program.form import Envelopes, op_text, refuse_faulty, refuse_form, refuse_other_messages
from antiphon.core.program.kinds import FOLD, Program
from antiphon.errors import Invalid, Unsupported

MOST_STEPS = 2**24  # waits that are followed, in total for all pairs
MOST_LEVELS = 1000  # the longest chain of waits that is followed


def find_unordered(program: Program, earlier: Longs, later: Longs, piecewise: Bools) -> Bools:
    """Return for every pair whether the later operation may start before the earlier one is done.

    `piecewise`: per pair, whether it is enough that piece i waits for piece i. Waits are transitive. If an operation
    has another number of pieces than one that it waits for, or both have a single piece, all its pieces wait for all of
    the other. Direct waits take one look-up; chains of waits are followed breadth first. Raises Unsupported if that
    takes too long: lowering makes chains of two waits, seldom three.

    Operation 1 waits for 0, 2 for 1; so 2 comes after 0, but nothing keeps 3 from overtaking 2:

    >>> from types import SimpleNamespace as Namespace
    >>> waits = {"wait_ptr": np.array([0, 0, 1, 2, 2]), "wait": np.array([0, 1]), "wait_op": np.array([1, 2])}
    >>> program = Namespace(operations=4, pieces=np.ones(4, np.int64), **waits)
    >>> find_unordered(program, np.array([0, 0, 2]), np.array([1, 2, 3]), np.zeros(3, bool))
    array([False, False,  True])
    """
    pieces, count = program.pieces, max(program.operations, 1)
    # Direct waits as sorted keys: one binary search per pair.
    edges = np.sort(program.wait_op * count + program.wait)
    has_no_wait = np.flatnonzero(~are_among(later * count + earlier, edges))
    # If all pieces must wait for all, a direct wait between equal numbers of pieces, which orders only equal pieces, is
    # not enough.
    needs_all_pieces = pieces[earlier] > 1
    needs_all_pieces &= (pieces[earlier] == pieces[later]) & ~piecewise
    undecided = np.union1d(has_no_wait, np.flatnonzero(needs_all_pieces))
    is_unordered = np.zeros(len(earlier), bool)
    is_unordered[undecided] = True
    # State of the search: for `pair` it has reached operation `reached`; `all_pieces`: by waits of all pieces for all.
    pair, reached = undecided, later[undecided]
    all_pieces = np.zeros(len(undecided), bool)
    first, wait_counts = program.wait_ptr[:-1], np.diff(program.wait_ptr)
    steps = levels = 0
    # Breadth-first search backwards over waits, for all undecided pairs at once.
    while len(pair):
        waits = wait_counts[reached]
        steps, levels = steps + int(waits.sum()), levels + 1
        if steps > MOST_STEPS or levels > MOST_LEVELS:
            raise Unsupported("it has too many waits that lead from one to the next; not proven")
        awaited = program.wait[concat_ranges(first[reached], waits)]
        waiter, pair, all_pieces = np.repeat(reached, waits), np.repeat(pair, waits), np.repeat(all_pieces, waits)
        all_pieces |= (pieces[awaited] != pieces[waiter]) | (pieces[awaited] == 1)
        is_unordered[pair[(awaited == earlier[pair]) & (all_pieces | piecewise[pair])]] = False
        # Operations are numbered in topological order: below `earlier` the search cannot succeed any more.
        goes_on = (awaited > earlier[pair]) & is_unordered[pair]
        key = distinct((pair[goes_on] * count + awaited[goes_on]) * 2 + all_pieces[goes_on])
        pair, reached, all_pieces = key // 2 // count, key // 2 % count, key % 2 == 1
    return is_unordered


def pairs_of(earlier: Longs, later: Longs, piecewise: Bools, operations: int) -> tuple[Longs, Longs, Bools]:
    """Return the distinct pairs of two different operations; a pair is piecewise only if it is so at all occurrences.

    >>> pairs_of(np.array([0, 2, 0]), np.array([1, 3, 1]), np.array([True, True, False]), 4)
    (array([0, 2]), array([1, 3]), array([False,  True]))
    """
    count = max(operations, 1)
    key = np.sort((later * count + earlier) * 2 + piecewise)
    key = key[run_starts(key // 2)]
    return key // 2 % count, key // 2 // count, key % 2 == 1


# ---- the proof ----


MAX_COUNT = 2**40  # counts of contributions saturate here, so that no sum of them overflows int64
Words = NDArray[np.uint64]  # n x 2: 128 bits per row


def prove(*programs: Program) -> None:
    """Raise Invalid, naming rank and operation, unless the program computes its collective; Unsupported beyond the
    limits.

    Several programs are the variants of one file, whose messages must be the same. O(n log n) for n stretches of data
    at all operations: some microseconds each. docs/program.md states what is proven.
    """
    seed = secrets.randbits(256)
    (first_envelopes, first_sent), *others = (_prove_variant(program, seed) for program in _with_all_points(programs))
    for envelopes, sent in others:
        refuse_other_messages(first_envelopes, envelopes)
        if not np.array_equal(first_sent, sent):
            raise Invalid("its messages in place carry other data than out of place; ranks could not mix them")


def _with_all_points(programs: Sequence[Program]) -> list[Program]:
    """Give each program the points of all programs, so that their lines are cut into the same atoms.

    Ranks may mix the variants of one file (in place and out of place), so their messages must be comparable.
    """
    if len({(program.collective, program.denominator) for program in programs}) > 1:
        raise Invalid("its variants are of two collectives, or cut by different denominators")
    units, numerators = (
        np.concatenate([getattr(p, f"point_{name}") for p in programs]) for name in ("whole", "numerator")
    )
    if len(programs) == 1:
        return list(programs)
    return [
        replace(
            p, point_whole=np.append(p.point_whole, units), point_numerator=np.append(p.point_numerator, numerators)
        )
        for p in programs
    ]


def _prove_variant(program: Program, seed: int) -> tuple[Envelopes, Words]:
    """Return the envelopes of its messages (sender, receiver, order and lengths), and the values that they carry."""
    envelopes = refuse_form(program)
    cells = cells_of(program)
    source = _find_sources(cells)
    values = _carry_values(cells, source, seed)
    _refuse_results(cells, values, source)
    return envelopes, values.sent


# ---- sources of reads, and their order ----


def _find_sources(cells: Cells) -> Longs:
    """Return for each reading access the access that wrote its value; raise Invalid if there is none or waits do not
    enforce it.

    All accesses of one stretch of memory, in order of operations, form a run: an access reads the value of the last
    write before it in its run. Waits must order that write before the read, the read before the next write, and a write
    before the next write.

    Rank 0 of `core.example.star` receives into two slots (accesses 0 and 1) and writes the sum of its input and both
    slots to its output (2, reading by 3, 4, 5). The input is written at the start, by access 12, slots by 1 and 0:

    >>> from antiphon.core.example import star
    >>> from antiphon.lower.lowering import lower
    >>> cells = cells_of(lower(star()))
    >>> list(zip(cells.op[:6].tolist(), cells.written[:6].tolist(), _find_sources(cells)[:6].tolist()))
    [(0, True, -1), (1, True, -1), (2, True, -1), (2, False, 12), (2, False, 1), (2, False, 0)]
    """
    # Sort accesses by memory, then by operation: the value read is that of the last write before it in its run.
    stretch, access = by_memory(cells)
    count = len(access)  # columns from here on are in this order
    op, cell, written = cells.op[access], cells.cell[access], cells.written[access]
    position = np.arange(count)
    begins_run = run_starts(stretch)  # whether a run begins here
    # For every position: where its run begins, and the last write up to it.
    begin = np.maximum.accumulate(np.where(begins_run, position, 0)) if count else position
    last_write = np.maximum.accumulate(np.where(written, position, -1)) if count else position
    write_before = np.append(-1, last_write)[:count]  # the last write before this access
    write_before = np.where(write_before < begin, -1, write_before)
    reads = np.flatnonzero(~written)
    # The last write must be of the same cell: one of another, overlapping cell left the elements of another place.
    has_writer = write_before[reads] >= 0
    has_writer[has_writer] = cell[write_before[reads[has_writer]]] == cell[reads[has_writer]]
    _refuse_reads(cells, access[reads[~has_writer]])
    # Writes that come directly after another access of the same operation: the operation touches the stretch twice.
    touches_twice = np.append(False, (op[1:] == op[:-1]) & ~begins_run[1:])[:count] & written
    second_access = np.flatnonzero(touches_twice)
    faulty = np.zeros(cells.operations, bool)  # `refuse_faulty` raises if any is marked, so marks need no reset
    faulty[op[second_access[written[second_access - 1]]]] = True
    refuse_faulty(cells.program, faulty, "it writes twice to the same elements")
    faulty[op[second_access[cell[second_access - 1] != cell[second_access]]]] = True
    refuse_faulty(cells.program, faulty, "its result stands partly on an operand")
    _refuse_overwriting(cells, begins_run, op, cell, written)
    # For every position: the next write from it on, in its run; -1 if there is none.
    next_write = np.minimum.accumulate(np.where(written, position, count)[::-1])[::-1] if count else position
    end = np.append(begin, count)  # per position the begin of its run, and one entry for "no following write"
    next_write = np.where((next_write < count) & (end[np.minimum(next_write, count)] == begin), next_write, -1)
    overwritten = reads[next_write[reads] >= 0]
    rewrites = np.flatnonzero(written & ~begins_run & np.append(False, written[:-1])[:count])
    # Pairs that waits must order: a read after its write, a write after a read, a write after a write.
    before = np.concatenate([write_before[reads], overwritten, rewrites - 1])
    after = np.concatenate([reads, next_write[overwritten], rewrites])
    # The order found above is only right if waits enforce it in every run.
    _refuse_races(cells, access[before], access[after])
    source = np.full(len(cells.op), -1, np.int64)
    source[access[reads]] = access[write_before[reads]]
    return source


def _refuse_reads(cells: Cells, wrong: Longs) -> None:
    """Raise Invalid for the first access that reads a stretch never written."""
    if not len(wrong):
        return
    program, at = cells.program, int(wrong.min())
    if at < cells.inputs.start:
        text = "it reads what no input is and no operation before it has written as this stretch of the line"
        raise Invalid(f"{op_text(program, int(cells.op[at]))}: {text}")
    rank, block = (int(c[cells.row[at]]) for c in (cells.output_side.rank, cells.output_side.block))
    raise Invalid(f"rank {rank} ends without block {block}, which the {program.collective.kind} gives to it")


def _refuse_overwriting(cells: Cells, begins_run: Bools, op: Longs, cell: Longs, written: Bools) -> None:
    """Raise Invalid if an operation of an in-place program overwrites an input that is no output.

    Inputs then lie in the output buffer, and memory there is an output if the last access of its run reads it as one.
    """
    if not len(op):
        return
    run = np.cumsum(begins_run) - 1
    ends_run = np.append(begins_run[1:], True)
    is_result = op[ends_run] == cells.operations  # per run: its last access reads a final output
    overwrites = np.flatnonzero(written & (op >= 0) & cells.in_output[cell])
    faulty = np.zeros(cells.operations, bool)
    faulty[op[overwrites[~is_result[run[overwrites]]]]] = True
    refuse_faulty(cells.program, faulty, "it writes over an input that is no output")


def _refuse_races(cells: Cells, earlier: Longs, later: Longs) -> None:
    """Raise Invalid if two accesses of the same elements, one of them a write, are not ordered by waits."""
    program = cells.program
    # `same_pieces` numbers the intervals that operations of several pieces access: equal numbers, equal pieces
    piecewise_ok = (cells.same_pieces[earlier] == cells.same_pieces[later]) & (cells.same_pieces[earlier] >= 0)
    first_use, next_use = cells.slot_reuses
    first_op = np.concatenate([cells.op[earlier], first_use])
    second_op = np.concatenate([cells.op[later], next_use])
    # All parts in a slot have its number of pieces, at one stride (form.py): piece i of the next use overlies only
    # piece i.
    piecewise_ok = np.concatenate([piecewise_ok, program.pieces[first_use] > 1])
    # Inputs (-1) come before all operations, final outputs after all of them.
    relevant = (first_op >= 0) & (second_op < cells.operations) & (first_op != second_op)
    before, after, piecewise = pairs_of(
        first_op[relevant], second_op[relevant], piecewise_ok[relevant], cells.operations
    )
    wrong = find_unordered(program, before, after, piecewise)
    if wrong.any():
        at = int(np.argmax(wrong))
        waiter, awaited = op_text(program, int(after[at])), op_text(program, int(before[at]))
        _, _, awaited = awaited.partition(", ")  # without its rank, which is that of the waiter
        raise Invalid(f"{waiter}: does not wait for {awaited}, which touches the same elements")


# ---- values ----


@dataclass(frozen=True, eq=False)
class _Values:
    """Values: sums of the random numbers of their contributions, and counts of contributions."""

    sums: Words  # per access; only those of writing accesses are set
    count: Longs  # likewise
    sent: Words  # the sums that messages carry, per atom of each message
    required: Words  # per row of `output_side` the sum that the collective demands
    required_count: Longs  # and the count


def _carry_values(cells: Cells, source: Longs, seed: int) -> _Values:
    """Compute the values of all writes, level by level.

    A value depends only on writes of operations with a smaller `when` (the time column of programs, which orders
    operations). A writing access has the sum of the values that its operation reads: value[write] = sum of
    value[source[read]]. A receive has the value that its send reads. In `core.example.star` each rank contributes one
    number: accesses 0 and 1 receive one each, access 2 is the sum of three, and all outputs read that sum:

    >>> from antiphon.core.example import star
    >>> from antiphon.lower.lowering import lower
    >>> program = lower(star())
    >>> cells = cells_of(program)
    >>> source = _find_sources(cells)
    >>> values = _carry_values(cells, source, 1)
    >>> values.count[:3].tolist(), values.count[source[cells.outputs]].tolist(), values.required_count.tolist()
    ([1, 1, 3], [3, 3, 3], [3, 3, 3])
    """
    sums, count = np.zeros((len(cells.op), 2), np.uint64), np.zeros(len(cells.op), np.int64)
    (input_sums, input_counts), (required_sums, required_counts) = _required_values(cells, seed)
    rows = cells.row[cells.inputs]
    # At the start: the inputs of the collective.
    sums[cells.inputs], count[cells.inputs] = input_sums[rows], input_counts[rows]
    program = cells.program
    target, sources, message_reads = _list_moves(cells)
    sources = source[sources]  # from here on the writes whose values are read
    carried = sources[:message_reads]
    when = program.when[cells.op[target]]
    order = np.lexsort((target, when))
    target, sources, when = target[order], sources[order], when[order]
    # Rows (target, source) by time and target. `heads`: rows where a write begins; `levels`: heads where a time begins.
    begins_write = run_starts(target)
    heads = np.flatnonzero(begins_write)
    levels = np.flatnonzero(run_starts(when[heads])) if len(heads) else heads
    # One level per time. Invariant: the values of all writes at earlier times are final.
    for a, b in pairwise([*levels.tolist(), len(heads)]):
        begin = heads[a:b]
        stop = int(heads[b]) if b < len(heads) else len(target)
        writes, reads = target[begin], sources[int(begin[0]) : stop]
        if len(reads) == len(writes):  # nothing is combined
            sums[writes], count[writes] = sums[reads], count[reads]
        else:
            cut = begin - begin[0]
            sums[writes] = np.add.reduceat(sums[reads], cut, axis=0)
            count[writes] = np.minimum(np.add.reduceat(count[reads], cut), MAX_COUNT)
    return _Values(sums, count, sums[carried], required_sums, required_counts)


def _list_moves(cells: Cells) -> tuple[Longs, Longs, int]:
    """Return pairs (writing access, access of the same operation, or of the matching send, that reads a value for it).

    Those of messages come first; their number is returned third. The first part of a fold is its result, the others
    are its operands, each as long as the result.
    """
    program = cells.program
    # One more entry, as the last operations may have no part.
    first_of_part = np.append(cells.first_access, cells.inputs.start)
    ptr = program.part_ptr
    op_length = np.diff(np.append(0, np.cumsum(cells.access_count))[ptr])  # number of its accesses
    first_of_op = first_of_part[ptr[:-1]]
    send, receive = program.pairs
    folds = np.flatnonzero(program.kind == FOLD)
    operands = concat_ranges(ptr[:-1][folds] + 1, np.diff(ptr)[folds] - 1)
    lengths = cells.access_count[operands]
    result = cells.first_access[ptr[:-1][program.part_op[operands]]]
    received = concat_ranges(first_of_op[receive], op_length[receive])
    sent = concat_ranges(first_of_op[send], op_length[send])
    writes = np.concatenate([received, concat_ranges(result, lengths)])
    return writes, np.concatenate([sent, concat_ranges(cells.first_access[operands], lengths)]), len(received)


def _required_values(cells: Cells, seed: int) -> tuple[tuple[Words, Longs], tuple[Words, Longs]]:
    """Return the value of each row of `input_side`, and the required value of each row of `output_side`.

    Both follow from the collective's relation: which contributions ranks begin with, and which they must end with.
    """
    relation = cells.program.collective.relation
    # A contribution is named by its block and number.
    names, contribution = np.unique(pair_keys(relation.pre_block, relation.pre_id), return_inverse=True)
    # 128 random bits per contribution; both variants use one seed, so that equal data have equal values.
    random_numbers = np.random.default_rng(seed).integers(0, 2**64, (len(names), 2), np.uint64)
    key = pair_keys(relation.pre_rank, relation.pre_block)  # sides have their rows by rank, then block
    row = np.searchsorted(pair_keys(cells.input_side.rank, cells.input_side.block), key)
    initial = _sum_by_row(row, contribution, random_numbers, len(cells.input_side.rank))
    blocks = cells.program.collective.blocks
    block_of_name, _ = split_keys(names)
    block_sums, block_counts = _sum_by_row(block_of_name, np.arange(len(names)), random_numbers, blocks)
    key = pair_keys(relation.post_rank, relation.post_block)
    row = np.searchsorted(pair_keys(cells.output_side.rank, cells.output_side.block), key)
    block, want = (np.zeros(len(cells.output_side.rank), np.int64) for _ in range(2))
    block[row], want[row] = relation.post_block, relation.post_want
    # Most ranks want all contributions to a block (-1); the others list the contributions that they want.
    sums, count = block_sums[block], block_counts[block]
    listed = np.flatnonzero(want >= 0)
    if len(listed):
        lengths = np.array([len(ids) for ids in relation.wants], np.int64)
        ids = np.array([i for ids in relation.wants for i in ids], np.int64)
        first = np.cumsum(lengths) - lengths
        want_sizes = lengths[want[listed]]
        contributions = ids[concat_ranges(first[want[listed]], want_sizes)]
        keys = pair_keys(np.repeat(block[listed], want_sizes), contributions)  # as in `names`
        id_rows = np.minimum(np.searchsorted(names, keys), max(len(names) - 1, 0))
        if not len(names) or np.any(names[id_rows] != keys):
            raise Invalid("its relation wants what no rank contributes")
        values = _sum_by_row(np.repeat(np.arange(len(listed)), want_sizes), id_rows, random_numbers, len(listed))
        sums[listed], count[listed] = values
    return initial, (sums, count)


def _sum_by_row(row: Longs, contribution: Longs, random_numbers: Words, rows: int) -> tuple[Words, Longs]:
    """Return per row the sum of the random numbers of its contributions, and their count.

    `contribution`: for each entry of `row`, an index into `random_numbers`.
    """
    sums = np.zeros((rows, 2), np.uint64)
    np.add.at(sums, row, random_numbers[contribution])
    return sums, np.bincount(row, minlength=rows)


def _refuse_results(cells: Cells, values: _Values, source: Longs) -> None:
    """Raise Invalid unless every output has its required value, and avg divides it once, by the number of its
    contributions."""
    rows, writer = cells.row[cells.outputs], source[cells.outputs]  # `_find_sources` refused outputs without a writer
    wrong = values.count[writer] != values.required_count[rows]
    wrong |= np.any(values.sums[writer] != values.required[rows], axis=1)
    program, results = cells.program, cells.output_side
    kind = program.collective.kind
    if wrong.any():
        row = int(rows[np.argmax(wrong)])
        raise Invalid(
            f"rank {int(results.rank[row])} ends with wrong data in block {int(results.block[row])}: it is no {kind}"
        )
    # The finish table divides parts of the output by a count at the end (avg). By cell the divisor, 0: none. A cell of
    # the table beyond all accessed ones is not `inside`: it divides what no operation touches.
    divisor = np.zeros(int(cells.cell.max(initial=-1)) + 1, np.int64)
    inside = cells.finish_cell < len(divisor)
    divided = cells.finish_cell[inside]
    twice = np.bincount(divided, minlength=1).max(initial=0) > 1
    divisor[divided] = program.finish_count[cells.finish_row[inside]]
    output_cells = cells.cell[cells.outputs]
    contributions, divisors = values.required_count[rows], divisor[output_cells]
    wrong = (divisors != contributions) & ((divisors != 0) | (contributions != 1))  # a division by 1 may be left out
    divisor[output_cells] = 0  # divisors that remain are of cells that are no outputs
    if twice or divisor.any() or not inside.all() or wrong.any():
        row = int(rows[np.argmax(wrong)]) if wrong.any() else 0
        where = f"rank {int(results.rank[row])}, block {int(results.block[row])}" if wrong.any() else "something else"
        raise Invalid(f"its finish table divides {where} by what an avg does not, or twice")
