"""List the memory accesses of a program's operations, so that prove.py can check their order and values for all sizes.

All blocks of a collective are laid end to end on one *line*, measured in units of weight; addresses of a program are
points on this line plus a shift (docs/program.md, Addresses). The terms of this file:

    part            an interval between two points in a buffer, which an operation reads or writes
    finish table    the intervals of the output that the operator avg divides in the end
    atom            an interval of the line between neighbouring points; all points that occur cut the line into atoms
    view            a buffer with a shift, or a slot of scratch while it holds data of one *origin* (the point at which
                    the slot then begins); each such use of a slot is a *generation*
    cell            an atom seen through a view: what one access touches (not the copy of a chunk, as in schedules).
                    Cells of one view are disjoint at every size
    stretch         an interval of memory. Views of one buffer may overlap; their memory is then cut into stretches at
                    all ends of cells, and a cell consists of one stretch or several

Example: blocks 0 and 1, each of weight 1, lie on the line from 0 to 2.

    points, atoms   0, 1 and 2 occur: they cut the line into atom 0 (from 0 to 1) and atom 1 (from 1 to 2)
    views           one buffer holds atoms 0 and 1 where they are (shift 0), and is also used with shift 1: two views
    cells           each view has two cells: (view 0, atom 0), (view 0, atom 1), (view 1, atom 0), (view 1, atom 1)
    memory          (view 0, atom 1) and (view 1, atom 0) are the same units of the buffer, from 1 to 2: one stretch.
                    The four cells have three stretches, from 0 to 1, 1 to 2 and 2 to 3
    generations     a slot receives atom 0 (origin 0), which is sent on; then it receives atom 1 (origin 1): these are
                    two generations, each a view of its own. The second may begin only after the first was read
    accesses        one per atom and part of an operation: the cell, and whether it is written
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from antiphon.core.columns import Bools, Longs, concat_ranges, number_rows, order_of, run_starts, unique_inverse
from antiphon.core.interpret.buffers import Side, sides
from antiphon.core.program.form import MOST_STRETCHES, refuse_faulty, slot_of, writes
from antiphon.core.program.kinds import INPUT, OUTPUT, SCRATCH, Program
from antiphon.errors import Unsupported


@dataclass(frozen=True, eq=False)
class Cells:
    """Accesses in the order of parts and atoms; then the initial inputs as writes; then the final outputs as reads."""

    program: Program
    input_side: Side  # one row per (rank, block) that a rank begins with, and where it begins in the input buffer
    output_side: Side  # the same for the blocks that a rank ends with
    operations: int  # of all ranks
    inputs: slice  # the accesses that stand for initial inputs
    outputs: slice  # the accesses that stand for final outputs
    op: Longs  # per access its operation; -1: an input; `operations`: an output
    row: Longs  # per access its part, or its row of `input_side` or `output_side`
    cell: Longs  # per access
    written: Bools  # per access: written or read
    # Per access in pieces, the number of the interval of its part: accesses of one interval have the same pieces, so
    # they may wait piece by piece. -1: not in pieces
    same_pieces: Longs
    first_access: Longs  # per part
    access_count: Longs  # per part
    finish_cell: Longs  # per access of the finish table its cell
    finish_row: Longs  # per access of the finish table its row there
    memory: Longs  # per cell the first of its stretches of memory
    stretches: Longs  # per cell, the number of its stretches
    in_output: Bools  # per cell, whether it is of an output buffer
    slot_reuses: tuple[Longs, Longs]  # where a slot is reused: (operation before, operation after)


def cells_of(program: Program) -> Cells:
    """Return every access of a program, with the cell that it touches. O(n log n). Unsupported above 2^22 accesses.

    In `core.example.star` the first operations of rank 0 are: receive into slots 0 and 1 (cells 1 and 0); then the
    output (3) becomes the sum of the input (2) and both slots. Each cell is its own memory.

    >>> from antiphon.core.example import star
    >>> from antiphon.lower.lowering import lower
    >>> cells = cells_of(lower(star()))
    >>> list(zip(cells.op[:6].tolist(), cells.cell[:6].tolist(), cells.written[:6].tolist()))
    [(0, 1, True), (1, 0, True), (2, 3, True), (2, 2, False), (2, 0, False), (2, 1, False)]
    >>> cells.memory.tolist(), cells.in_output.tolist()
    ([0, 1, 2, 3, 4, 5, 6, 7], [False, False, False, True, False, True, False, True])
    """
    input_side, output_side = sides(program.collective, program.in_place)
    weights = program.collective.weights
    block_begin = np.cumsum(weights) - weights  # per block, in units of weight on the line
    # Stage 1: give every access (part, input, output, finish row) its interval of atoms on the line.
    # `points`: per point of the program its number among all points in order of the line.
    coordinates, points, (block_low, block_high) = _number_points(program, block_begin, weights)
    low, high = points[program.part_begin], points[program.part_end]
    begin = np.concatenate(
        [low, block_low[input_side.block], block_low[output_side.block], points[program.finish_begin]]
    )
    end = np.concatenate(
        [high, block_high[input_side.block], block_high[output_side.block], points[program.finish_end]]
    )
    length = end - begin
    if float(length.astype(np.float64).sum()) > MOST_STRETCHES:
        raise Unsupported("it touches more than 2^22 stretches of data, too many to prove: use fewer, larger chunks")
    part_count, input_count, output_count = len(low), len(input_side.block), len(output_side.block)
    cuts = np.cumsum([0, part_count, input_count, output_count, len(program.finish_base)])
    *_, finish_cut, _ = cuts  # the finish table begins here
    # Stage 2: expand each interval to its atoms; a cell is a distinct pair (view, atom).
    view, (region, shift), slot_reuses = _find_views(program, input_side, output_side, block_begin, points)
    row = np.repeat(np.arange(len(length)), length)
    atoms = len(coordinates[0])
    key, cell = unique_inverse(
        view[row] * atoms + concat_ranges(begin, length), bound=(int(view.max(initial=0)) + 1) * atoms
    )
    # Stage 3: the accesses lie in the order parts, inputs, outputs, finish rows; `borders` lie between.
    ends = np.cumsum(length)
    borders = [int(n) for n in np.append(0, ends)[cuts]]
    inputs, outputs, finish = (slice(a, b) for a, b in pairwise(borders[1:]))
    operations = program.operations
    # Inputs are written before the first operation, outputs are read after the last.
    op = np.concatenate([program.part_op, np.repeat([-1, operations], [input_count, output_count])])
    before_finish = slice(0, finish.start)
    is_write = np.concatenate([writes(program), np.repeat([True, False], [input_count, output_count])])
    same_pieces = np.full(finish_cut, -1, np.int64)
    # Only parts of the same interval in the same view have the same pieces, so only these may go piece by piece.
    pipelined = np.flatnonzero(program.pieces[program.part_op] > 1)
    same_pieces[pipelined] = number_rows(view[pipelined], low[pipelined], high[pipelined])
    cell_view, atom = np.divmod(key, max(atoms, 1))
    # Stage 4: place the cells in memory, by the region and shift of their view.
    region_of_view = np.zeros(int(view.max(initial=-1)) + 1, np.int64)
    region_of_view[view] = region
    shift_of_view = np.zeros(len(region_of_view), np.int64)
    shift_of_view[view] = shift
    memory, stretches = _find_memory(coordinates, cell_view, atom, region_of_view, shift_of_view)
    rows = row[before_finish]
    # Rows count across the four tables; subtract those of the tables before its own.
    row_in_table = rows - cuts[np.searchsorted(cuts, rows, "right") - 1]
    cell_region = region_of_view[cell_view]
    return Cells(
        program=program, input_side=input_side, output_side=output_side, operations=operations,
        inputs=inputs, outputs=outputs, op=op[rows], row=row_in_table, cell=cell[before_finish], written=is_write[rows],
        same_pieces=same_pieces[rows], first_access=(ends - length)[:part_count], access_count=length[:part_count],
        finish_cell=cell[finish], finish_row=row[finish] - finish_cut, memory=memory, stretches=stretches,
        in_output=(cell_region >= 0) & (cell_region % 2 == OUTPUT),  # `_find_views`: a region is 2 * rank + buffer
        slot_reuses=slot_reuses,
    )  # fmt: skip


def _number_points(
    program: Program, block_begin: Longs, weights: Longs
) -> tuple[tuple[Longs, Longs], Longs, tuple[Longs, Longs]]:
    """Number all points that occur, ascending.

    Return the coordinates of every point (units and numerator: the point lies at units + numerator /
    program.denominator), the number of each point of the program, and the numbers of the two ends of each block.

    O(n log n). Points 0, 1/2, 1 of a program (denominator 2), with blocks from 0 to 1 and from 1 to 2:

    >>> from types import SimpleNamespace as Namespace
    >>> program = Namespace(point_whole=np.array([0, 0, 1]), point_numerator=np.array([0, 1, 0]))
    >>> _number_points(program, np.array([0, 1]), np.array([1, 1]))
    ((array([0, 0, 1, 2]), array([0, 1, 0, 0])), array([0, 1, 2]), (array([0, 2]), array([2, 3])))
    """
    # The ends of blocks lie at whole units: their numerator is 0.
    zero = np.zeros(2 * len(block_begin), np.int64)
    units = np.concatenate([program.point_whole, block_begin, block_begin + weights])
    numerators = np.concatenate([program.point_numerator, zero])
    number = number_rows(units, numerators)
    point_count = int(number.max(initial=-1)) + 1
    unit_of_point, numerator_of_point = np.zeros(point_count, np.int64), np.zeros(point_count, np.int64)
    unit_of_point[number], numerator_of_point[number] = units, numerators
    points, begin, end = np.split(number, [len(program.point_whole), len(program.point_whole) + len(block_begin)])
    return (unit_of_point, numerator_of_point), points, (begin, end)


def _find_views(
    program: Program, input_side: Side, output_side: Side, block_begin: Longs, points: Longs
) -> tuple[Longs, tuple[Longs, Longs], tuple[Longs, Longs]]:
    """Return the view of every part, input, output and row of the finish table, and the region and shift of each.

    Region: 2 * rank + buffer, or -1 - generation for a slot. Third, the pairs of operations of `_find_generations`.
    O(n log n).

    Rank 0 of `core.example.star` receives into two slots (regions -1 and -2), then adds them and its input (0) in its
    output (1):

    >>> from antiphon.core.example import star
    >>> from antiphon.lower.lowering import lower
    >>> program = lower(star())
    >>> view, (region, shift), _ = _find_views(program, *sides(program.collective), np.array([0]), np.array([0, 1]))
    >>> view[:6].tolist(), region[:6].tolist()
    ([1, 0, 3, 2, 0, 1], [-1, -2, 1, 0, -2, -1])
    """
    base = np.concatenate([program.part_base, program.finish_base])
    rank = np.concatenate(
        [program.rank[program.part_op], np.repeat(np.arange(program.ranks), np.diff(program.finish_ptr))]
    )
    region, shift = 2 * rank + program.base_buffer[base], program.base_shift[base]
    scratch = np.flatnonzero(program.base_buffer[base] == SCRATCH)  # rows of parts: the finish table has no scratch
    generation, slot_reuses = _find_generations(program, scratch, points)
    region[scratch], shift[scratch] = -1 - generation, 0
    source = OUTPUT if program.in_place else INPUT
    part_count = len(program.part_base)
    region = np.concatenate(
        [region[:part_count], 2 * input_side.rank + source, 2 * output_side.rank + OUTPUT, region[part_count:]]
    )
    shift = np.concatenate(
        [
            shift[:part_count],
            input_side.start - block_begin[input_side.block],
            output_side.start - block_begin[output_side.block],
            shift[part_count:],
        ]
    )
    return number_rows(region, shift), (region, shift), slot_reuses


def _find_generations(program: Program, part_rows: Longs, points: Longs) -> tuple[Longs, tuple[Longs, Longs]]:
    """Number the generations of slots: consecutive accesses of a slot with one origin.

    If they are in pieces, they must also end at one point, so that pieces are equally long. Also return the pairs of
    operations that must be ordered because a slot is reused. One sort.

    Rank 0 receives the halves of a block (operations 0 and 2) and adds them (1 and 3), by way of one slot: operation 2
    must come after 0 and 1, and 3 after 2.

    >>> from antiphon.core.example import of_rows
    >>> from antiphon.lower.lowering import lower
    >>> program = lower(of_rows("reduce", 2, [(0, 0, 1, 0, 1), (5, 1, 1, 0, 1)], roots=(0,), parts=2), lag=0)
    >>> parts = np.flatnonzero(program.base_buffer[program.part_base] == SCRATCH)
    >>> program.part_op[parts].tolist()
    [0, 1, 2, 3]
    >>> _find_generations(program, parts, np.array([0, 1, 2]))
    (array([0, 0, 1, 1]), (array([0, 1, 2, 2]), array([2, 2, 2, 3])))
    """
    # Empty parts touch nothing; they get a generation of their own at the end.
    low, high = points[program.part_begin[part_rows]], points[program.part_end[part_rows]]
    part_rows, nonempty = part_rows[low < high], low < high
    op, base = program.part_op[part_rows], program.part_base[part_rows]
    slot, origin = slot_of(program, base), points[program.base_origin[base]]
    end = np.where(program.pieces[op] > 1, high[nonempty], 0)  # 0: not in pieces, so ends may differ
    # By slot, then operation: a generation ends where the origin or the end changes.
    order = np.lexsort((end, origin, op, slot))
    slot, op, origin, end = slot[order], op[order], origin[order], end[order]
    begins_slot = run_starts(slot)
    begins_data = run_starts(origin) | run_starts(end)
    # A change within one operation means that it uses the slot for two origins at the same time.
    uses_slot_twice = np.zeros(program.operations, bool)
    uses_slot_twice[op[begins_data & ~begins_slot & ~run_starts(op)]] = True
    refuse_faulty(program, uses_slot_twice, "it uses a slot for two things at once")
    number = np.cumsum(begins_slot | begins_data) - 1
    generation = np.full(len(nonempty), -1, np.int64)
    generation[np.flatnonzero(nonempty)[order]] = number
    generation[~nonempty] = int(number[-1]) + 1 if len(number) else 0  # for empty parts
    reused = np.flatnonzero(begins_data & ~begins_slot)  # where a generation begins that is not the first of its slot
    # Per generation its first operation: assigned in reverse order, so the earliest one is stored last and stays.
    first_op = np.zeros(int(number.max(initial=-1)) + 1, np.int64)
    first_op[number[::-1]] = op[::-1]
    reuses_slot = np.zeros(len(first_op) + 1, bool)  # per generation, whether another one used its slot before
    reuses_slot[number[reused]] = True
    # All accesses of a generation precede the first of the next, and that one precedes the rest of its own. A
    # generation that another one follows is not the last, so number + 1 exists; the minimum only guards empty arrays.
    is_followed, follows = reuses_slot[1:][number], reuses_slot[:-1][number]
    pairs = (
        np.concatenate([op[is_followed], first_op[number[follows]]]),
        np.concatenate([first_op[np.minimum(number[is_followed] + 1, len(first_op) - 1)], op[follows]]),
    )
    return generation, pairs


def _find_memory(
    coordinates: tuple[Longs, Longs], view: Longs, atom: Longs, region: Longs, shift: Longs
) -> tuple[Longs, Longs]:
    """Return per cell its first stretch of memory and the number of its stretches.

    A cell whose view overlaps no other has a stretch of its own. `coordinates`: of the points, as of `_number_points`.
    `view`, `atom`: per cell. `region`, `shift`: per view.

    O(n log n). Atoms 0 and 1 of one buffer, seen by view 0 as they are and by view 1 shifted by one: the buffer has
    three stretches, the second being both cell 1 and cell 2.

    >>> ends = np.array([0, 1, 2]), np.zeros(3, np.int64)
    >>> _find_memory(ends, np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1]), np.array([0, 0]), np.array([0, 1]))
    (array([4, 5, 5, 6]), array([1, 1, 1, 1]))
    """
    cells = len(view)
    first, count = np.arange(cells), np.ones(cells, np.int64)
    # Cells of views that overlap nothing keep their own number as their only stretch of memory.
    overlaps = _find_overlapping(coordinates, view, atom, region, shift)
    rows = np.flatnonzero(overlaps[view]) if cells else first
    if not len(rows):
        return first, count
    cell_region, cell_shift, units, numerators = region[view[rows]], shift[view[rows]], *coordinates
    # Number the ends of all these cells in memory order; between neighbouring ends lies one stretch.
    number = number_rows(
        np.tile(cell_region, 2), np.concatenate([units[atom[rows]] + cell_shift, units[atom[rows] + 1] + cell_shift]),
        np.concatenate([numerators[atom[rows]], numerators[atom[rows] + 1]]),
    )  # fmt: skip
    low, high = np.split(number, 2)
    # Numbers from `cells` on are free: cells that overlap nothing keep numbers below.
    first[rows], count[rows] = cells + low, high - low
    return first, count


def _find_overlapping(coordinates: tuple[Longs, Longs], view: Longs, atom: Longs, region: Longs, shift: Longs) -> Bools:
    """Return per view whether it is of a buffer in which some views may overlap; arguments as of `_find_memory`.

    O(n log n).

    Views 0 and 1 of buffer 0 overlap, view 2 is alone in buffer 1:

    >>> ends = np.array([0, 1, 2]), np.zeros(3, np.int64)
    >>> _find_overlapping(ends, np.array([0, 1, 2]), np.array([0, 0, 0]), np.array([0, 0, 1]), np.array([0, 0, 0]))
    array([ True,  True, False])
    """
    views = len(region)
    is_first = run_starts(view)  # cells ascend by view, then atom
    is_last = np.append(is_first[1:], True)[: len(is_first)]
    low, high = np.zeros(views, np.int64), np.zeros(views, np.int64)
    # Interval of atoms that a view covers, from its first atom to its last.
    low[view[is_first]], high[view[is_last]] = atom[is_first], atom[is_last] + 1
    is_seen = np.zeros(views, bool)
    is_seen[view] = True
    rows = np.flatnonzero(is_seen & (region >= 0))
    units, numerators = coordinates
    ends = number_rows(
        np.concatenate([units[low[rows]] + shift[rows], units[high[rows]] + shift[rows]]),
        np.concatenate([numerators[low[rows]], numerators[high[rows]]]),
    )
    begin, end = np.split(ends, 2)
    order = np.lexsort((begin, region[rows]))
    span = int(ends.max(initial=0)) + 1
    row_region = region[rows][order]
    # Sweep by begin: an interval overlaps an earlier one of its region if it begins before their greatest end.
    max_end = np.maximum.accumulate(row_region * span + end[order]) if len(row_region) else row_region
    overlaps_earlier = np.zeros(len(row_region), bool)
    overlaps_earlier[1:] = (row_region[1:] == row_region[:-1]) & (
        max_end[:-1] > row_region[1:] * span + begin[order][1:]
    )
    region_overlaps = np.zeros(int(region.max(initial=-1)) + 1, bool)
    region_overlaps[row_region[overlaps_earlier]] = True
    overlaps = np.zeros(views, bool)
    overlaps[rows] = region_overlaps[region[rows]]
    return overlaps


def by_memory(cells: Cells) -> tuple[Longs, Longs]:
    """Sort accesses by stretch of memory, then in the order of operations, reads first; return stretches and accesses.

    O(n log n). Stretch 3 is the output of rank 0: operation 2 writes it, 3 and 4 send it, at the end it is read as a
    result.

    >>> from antiphon.core.example import star
    >>> from antiphon.lower.lowering import lower
    >>> cells = cells_of(lower(star()))
    >>> stretch, access = by_memory(cells)
    >>> cells.op[access[stretch == 3]].tolist(), cells.written[access[stretch == 3]].tolist()
    ([2, 3, 4, 9], [True, False, False, False])
    """
    stretch_count = cells.stretches[cells.cell]
    if int(stretch_count.sum()) > MOST_STRETCHES:
        raise Unsupported("it touches more than 2^22 stretches of memory; a proof takes no more")
    access = np.repeat(np.arange(len(cells.op)), stretch_count)
    stretch = concat_ranges(cells.memory[cells.cell], stretch_count)
    # Sort key within a stretch: inputs have operation -1, hence + 1. Writes are odd: an operation reads first.
    time = 2 * (cells.op[access] + 1) + cells.written[access]
    time_bound = 2 * (cells.operations + 2)  # outputs are read by operation number `operations`
    order = order_of(stretch * time_bound + time, bound=(int(stretch.max(initial=0)) + 1) * time_bound)
    return stretch[order], access[order]
