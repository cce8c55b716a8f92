"""First stage of lowering: decide in which buffer every value of a schedule lies.

All blocks are put one behind the other on an imagined line, with the borders of chunks as points on it. A *cell* is a
chunk at a rank. Each write to a cell makes a new *version* of its value. A version lies in the rank's input, in its
output, or in scratch (buffer space of the program): the initial version in the input, versions of a cell that is an
output in the output, all others in scratch. A *place* is a rank, a buffer and a shift on the line. moves.py then
decides which transfers may write straight to these places.

Example: an allgather among two ranks, out of place: rank 0's own block is read from its input and copied to its
output; the block of rank 1 is received straight into the output.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from antiphon.core.columns import SAFE_INT64, Bools, Longs, concat_ranges, number_rows, unique_inverse
from antiphon.core.dependencies import Versions, versions
from antiphon.core.interpret.analysis import Analysis, BufferCells, analyse
from antiphon.core.interpret.buffers import sides
from antiphon.core.loads import pieces_of
from antiphon.core.program.kinds import INPUT, OUTPUT
from antiphon.core.schedule import Schedule


@dataclass(frozen=True, eq=False)
class DataLine:
    """The line on which all blocks stand, and the points on it where chunks begin and end.

    Point p is at units[p] + numerators[p] / denominator, in units of weight 1.
    """

    units: Longs
    numerators: Longs
    denominator: int
    block: Longs  # per block, where it begins on the line
    begin: Longs  # per chunk, the point at which it begins
    end: Longs  # per chunk, the point at which it ends
    position: Longs  # per chunk, its position among all chunks in the order of the line
    pieces: Longs  # per chunk, the number of pieces in which it is sent

    @staticmethod
    def of(schedule: Schedule) -> DataLine:
        """Return the line of a schedule. O(n log n) in chunks.

        Two blocks, each in halves: points at 0, 1/2, 1, 1 1/2 and 2.

        >>> from antiphon.core.example import of_rows
        >>> line = DataLine.of(of_rows("allgather", 2, [(0, 0, 0, 1, 0), (0, 1, 1, 0, 0)], parts=2))
        >>> line.units.tolist(), line.numerators.tolist(), line.denominator
        ([0, 0, 1, 1, 2], [0, 1, 0, 1, 0], 2)
        >>> line.begin.tolist(), line.end.tolist(), line.position.tolist()  # chunks are numbered part by part
        ([0, 2, 1, 3], [1, 3, 2, 4], [0, 2, 1, 3])
        """
        chunks, weights = schedule.chunks, schedule.collective.weights
        block = np.cumsum(weights) - weights
        # The edges of chunks: all beginnings, then all ends.
        units, numerators = [], []
        for edge in (chunks.offset, chunks.offset + chunks.share):
            weight: Any = weights[chunks.block]
            if float(weight.max(initial=0)) * chunks.denominator >= SAFE_INT64:  # the product could overflow
                weight = weight.astype(object)
            product = weight * edge
            units.append(block[chunks.block] + (product // chunks.denominator).astype(np.int64))
            numerators.append((product % chunks.denominator).astype(np.int64))
        common_divisor = int(np.gcd.reduce(np.concatenate([*numerators, [chunks.denominator]])))
        units_of_edges, numerators_of_edges = np.concatenate(units), np.concatenate(numerators) // common_divisor
        # Edges at the same place are one point; points are numbered along the line.
        point_of_edge = number_rows(units_of_edges, numerators_of_edges)
        edge_of_point = np.zeros(int(point_of_edge.max(initial=-1)) + 1, np.int64)  # any one of them
        edge_of_point[point_of_edge] = np.arange(len(point_of_edge))
        # by share as well: an empty chunk stands before the one that begins at the same offset
        order = np.lexsort((chunks.share, chunks.offset, chunks.block))
        position = np.empty(len(order), np.int64)
        position[order] = np.arange(len(order))
        begin, end = np.split(point_of_edge, 2)
        return DataLine(
            units_of_edges[edge_of_point], numerators_of_edges[edge_of_point], chunks.denominator // common_divisor,
            block, begin, end, position, np.array(pieces_of(schedule), np.int64),
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class BufferPlaces:
    """Places in users' buffers."""

    rank: Longs  # per place
    buffer: Longs  # per place: INPUT or OUTPUT
    shift: Longs  # per place: a position in the buffer minus that of the same data on the line
    inputs: Longs  # per input of the schedule its place
    outputs: Longs  # per output of the schedule its place

    @staticmethod
    def of(schedule: Schedule, line: DataLine, ends: tuple[BufferCells, BufferCells], in_place: bool) -> BufferPlaces:
        """Return the places of all inputs and outputs. O(n log n). `ends`: the cells of inputs, and those of outputs.

        An allgather among two: ranks 0 and 1 each have an input (0) and an output (1).

        >>> from antiphon.core.example import of_rows
        >>> places = prepare(of_rows("allgather", 2, [(0, 0, 0, 1, 0), (0, 1, 1, 0, 0)]), False).places
        >>> places.rank.tolist(), places.buffer.tolist(), places.shift.tolist()
        ([0, 0, 1, 1], [0, 1, 0, 1], [0, 0, -1, 0])
        >>> places.inputs.tolist(), places.outputs.tolist()
        ([0, 2], [1, 1, 3, 3])
        """
        input_cells, output_cells = ends
        input_side, output_side = sides(schedule.collective, in_place)
        # Per input, then per output: rank, buffer and shift. Equal ones are one place. (`cells.pair`: per cell its
        # (rank, block) pair; `side.start`: per pair where that block begins in the rank's buffer.)
        rank = np.concatenate([input_cells.rank, output_cells.rank])
        buffers = [OUTPUT if in_place else INPUT, OUTPUT]
        buffer = np.repeat(buffers, [len(input_cells.pair), len(output_cells.pair)])
        shift = np.concatenate(
            [
                (side.start - line.block[side.block])[cells.pair]
                for cells, side in ((input_cells, input_side), (output_cells, output_side))
            ]
        )
        place = number_rows(rank, buffer, shift)
        row_of_place = np.zeros(int(place.max(initial=-1)) + 1, np.int64)  # any one of them
        row_of_place[place] = np.arange(len(place))
        inputs, outputs = np.split(place, [len(input_cells.pair)])
        return BufferPlaces(rank[row_of_place], buffer[row_of_place], shift[row_of_place], inputs, outputs)

    def __len__(self) -> int:
        return len(self.rank)


@dataclass(frozen=True, eq=False)
class Values:
    """Versions and their places. A *group* is all writes of one version, with the operands that these combine."""

    # All versions by cell, in order of time: version v - 1 of the same cell is the one before v. `.read` and `.write`:
    # per row of the schedule the version that it reads, and the one that it writes.
    version_table: Versions
    moment: Longs  # per version: the number of its step among the steps in use, -1 for an initial version
    group: Longs  # per version: its group, -1 for an initial version
    place: Longs  # per version: its place in a user's buffer, -1: in scratch
    overwritten: Bools  # per version: the next version of its cell has the same place
    read_at_overwrite: Bools  # per version: it is read in the very step that writes the next version
    version: Longs  # per group: the version that it writes
    count: Longs  # per group: the number of its operands
    first: Longs  # per group: its first operand
    operand: Longs  # per operand (one group after the other): the version read
    row: Longs  # per operand: the transfer that brings it, -1: the cell's own value
    owner: Longs  # per operand: its group


@dataclass(frozen=True, eq=False)
class Prepared:
    """The result of the first stage."""

    schedule: Schedule
    in_place: bool
    line: DataLine
    places: BufferPlaces
    analysis: Analysis
    values: Values
    time: Longs  # per row: the number of its step among the steps in use, like `Values.moment`
    times: int  # the number of steps in use
    last: Longs  # per output of the analysis: its last version, -1 where no row touches the cell
    delayed: Bools  # per output: received data stay in scratch until the old content is read (an alltoall in place)


def prepare(schedule: Schedule, in_place: bool) -> Prepared:
    """Assign every value of a schedule its place. O(n log n) for n rows.

    In `core.example.star`, ranks 0, 1 and 2 begin with versions 0, 2 and 4, in their inputs (places 0, 2, 4), and end
    with versions 1, 3 and 5, in their outputs (places 1, 3, 5). Group 0 adds up versions 0, 2 and 4; groups 1 and 2
    copy version 1.

    >>> from antiphon.core.example import star
    >>> values = prepare(star(), in_place=False).values
    >>> values.place.tolist(), values.version.tolist()
    ([0, 1, 2, 3, 4, 5], [1, 3, 5])
    >>> values.owner.tolist(), values.operand.tolist(), values.row.tolist()
    ([0, 0, 0, 1, 2], [0, 2, 4, 1, 1], [-1, 0, 1, 2, 3])
    """
    analysis, version_table, line = analyse(schedule), versions(schedule), DataLine.of(schedule)
    ends = analysis.inputs, analysis.outputs
    places = BufferPlaces.of(schedule, line, ends, in_place)
    steps, time = unique_inverse(schedule.step.astype(np.int64), schedule.steps or 1)
    ranks, slots = schedule.collective.ranks, schedule.slots
    keys = [(cells.chunk * ranks + cells.rank) * slots for cells in ends]  # cells in slot 0, as `Versions.cell`
    input_keys, output_keys = keys
    delayed = np.zeros(len(output_keys), bool)
    # In an alltoall in place every received block replaces another one that the rank sends; its own block (an input and
    # an output at the same rank) stays where it is.
    if in_place and schedule.collective.kind == "alltoall":
        delayed = find_positions(input_keys, output_keys) < 0
    values = _place_values(schedule, analysis, version_table, steps, keys, places, delayed)
    last = version_table.last_of(output_keys)
    return Prepared(schedule, in_place, line, places, analysis, values, time, len(steps), last, delayed)


def find_positions(available_keys: Longs, keys: Longs) -> Longs:
    """Return the position of each key among these distinct numbers, -1 where it is missing. O(n log n).

    >>> find_positions(np.array([30, 10, 20]), np.array([10, 15, 30]))
    array([ 1, -1,  0])
    """
    if not len(available_keys):
        return np.full(len(keys), -1, np.int64)
    order = np.argsort(available_keys)
    sorted_index = np.searchsorted(available_keys[order], keys)
    sorted_index[sorted_index == len(available_keys)] = 0  # greater than all: any index will do, as the keys differ
    position = order[sorted_index]
    return np.where(available_keys[position] == keys, position, -1)


def _place_values(
    schedule: Schedule,
    analysis: Analysis,
    version_table: Versions,
    steps: Longs,
    keys: list[Longs],
    places: BufferPlaces,
    delayed: Bools,
) -> Values:
    """Return groups with their operands and versions with their places. O(n log n).

    `steps`: those in use, ascending. `keys`: the cells of inputs and of outputs. `delayed`: outputs that are written
    only at the end.
    """
    # The version that each group writes, and the version of each operand.
    groups = len(analysis.count)
    operand_rows = concat_ranges(analysis.first, analysis.count)
    row, owner = analysis.row[operand_rows], np.repeat(np.arange(groups), analysis.count)
    is_transfer = row >= 0
    version = np.zeros(groups, np.int64)
    version[owner[is_transfer]] = version_table.write[row[is_transfer]]
    # The cell's own value is the version before the one that is written.
    operand = np.where(is_transfer, version_table.read[row], version[owner] - 1) if len(row) else row
    group = np.full(len(version_table), -1, np.int64)
    group[version] = np.arange(groups)
    # Initial versions lie in the input, versions of a cell that is an output in the output.
    place = np.full(len(version_table), -1, np.int64)
    initial = np.flatnonzero(version_table.initial)
    input_keys, output_keys = keys
    input_number = find_positions(input_keys, version_table.cell[initial])
    place[initial] = np.where(input_number >= 0, places.inputs[input_number] if len(places.inputs) else -1, -1)
    written = np.flatnonzero(~version_table.initial)
    output_number = find_positions(output_keys, version_table.cell[written])
    is_output = (output_number >= 0) & ~delayed[output_number] if len(delayed) else np.zeros(len(output_number), bool)
    place[written] = np.where(is_output, places.outputs[output_number] if len(places.outputs) else -1, -1)
    # A version is followed by the next one of its cell, unless it is final.
    is_overwritten = np.zeros(len(version_table), bool)
    is_overwritten[:-1] = ~version_table.final[:-1] & (place[:-1] == place[1:]) & (place[:-1] >= 0)
    next_step = np.append(version_table.step[1:], -1)
    is_read_at_overwrite, read = np.zeros(len(version_table), bool), version_table.read
    is_read_at_overwrite[read[~version_table.final[read] & (next_step[read] == schedule.step)]] = True
    moment = np.where(version_table.step < 0, -1, np.searchsorted(steps, version_table.step))
    first = np.cumsum(analysis.count) - analysis.count
    return Values(
        version_table, moment, group, place, is_overwritten, is_read_at_overwrite, version, analysis.count, first,
        operand, row, owner,
    )  # fmt: skip
