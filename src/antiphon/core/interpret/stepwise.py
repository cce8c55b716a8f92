"""Run a schedule on NumPy arrays, level by level, all transfers of a level as a few array operations.

Input: a schedule and one array per rank. Output: one array per rank, bit for bit what any correct runtime returns. The
analysis (analysis.py) has numbered cells (one rank's copy of a chunk), levels (steps per chunk) and *groups*: the
writes of one cell on one level with their operands.

The cells of a batch of chunks are the rows of one array: copying copies rows, reducing combines rows. Groups of a level
are sorted by descending number of operands, so the groups that have a k-th operand are a prefix:

    value = first operands; for k = 1, 2, ...: value[:groups with more than k operands] += k-th operands

Batches are chunks of about equal length, with few enough bytes to stay in the processor's cache. Longer chunks are run
one window of elements after another, as every element follows the same schedule.

Example: the star (`core.example.star`): level 0 combines three operands into cell 0, level 1 copies cell 0 to cells 1
and 2. On buffers [1], [2], [4] the result is [7] everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.core.columns import Longs, order_of, pointers, run_starts, unique_inverse
from antiphon.core.datatypes import accumulator, average, combine_of
from antiphon.core.interpret.analysis import Analysis, BufferCells, analyse
from antiphon.core.interpret.buffers import Array, Buffers, chunk_bounds, elements_of, take_inputs
from antiphon.core.schedule import Schedule

SHORT = 64  # elements: shorter rows are gathered by one indexing operation, longer ones copied row by row
BATCH_BYTES = 2**24  # bytes of the cells of one batch
LEVEL_BYTES = 2**17  # a batch may exceed BATCH_BYTES by this per level, so that a level's work outweighs its overhead


def interpret(
    schedule: Schedule,
    inputs: Sequence[Any],
    *,
    op: str | np.ufunc = "sum",
    dtype: object = None,
    in_place: bool = False,
) -> list[NDArray[Any]]:
    """Run a schedule on the inputs of all ranks; return the output of every rank.

    `inputs`: per rank one 1-D array, its blocks one after another (see `buffers`), or None if it has none. Their
    lengths determine the number of elements; any number is valid, also 0 and numbers that chunks do not divide. All
    have one data type, `dtype` if given. The inputs are not modified, unless `in_place`: then they are the users'
    buffers, written to and returned.

    The operands of every combination, including the cell's own value, are taken in the order of their least
    contribution, folded from the left in the accumulator type and stored in the data type. So ranks agree in every bit.
    avg divides once, at the end, by the number of contributions that the rank must end with. A NumPy function of two
    operands is an operator, too; if it does not commute, the collective should be `ordered`.

    An input stands for all contributions of its (block, rank) together; if several ranks hold the same contribution,
    the caller must pass equal data. Illegal rows (races, reads of empty cells) raise Invalid.

    O(n log n) for n transfers, plus their bytes; memory: inputs, outputs and about 16 MiB.
    """
    return run(analyse(schedule), inputs, op=op, dtype=dtype, in_place=in_place)


def run(
    analysis: Analysis,
    inputs: Sequence[Any],
    *,
    op: str | np.ufunc = "sum",
    dtype: object = None,
    in_place: bool = False,
) -> list[NDArray[Any]]:
    """Run a schedule that is already analysed, for repeated runs; see `interpret`."""
    combine = op if isinstance(op, np.ufunc) else combine_of(op)
    buffers = take_inputs(analysis.schedule.collective, inputs, dtype, in_place)
    outputs = new_outputs(buffers, in_place)
    # In place, the outputs of one batch may overwrite inputs of a later one.
    sources = [array.copy() for array in buffers.arrays] if in_place else buffers.arrays
    job = _Job(analysis, buffers, sources, outputs, combine, averages=op == "avg")
    with np.errstate(all="ignore"):  # infinity and NaN are results like others, as in C
        for batch in _make_batches(job):
            for low in range(0, batch.length, batch.width):
                _run_window(job, batch, low, min(low + batch.width, batch.length))
    return outputs


def new_outputs(buffers: Buffers, in_place: bool) -> list[Array]:
    """Return the users' own buffers in place, new ones otherwise."""
    if in_place:
        return list(buffers.arrays)
    return [np.empty(int(weight) * buffers.unit, buffers.dtype) for weight in buffers.output_side.size]


class _Job:
    """One run: its buffers, and in elements the length of every chunk and its position in inputs and outputs."""

    def __init__(
        self,
        analysis: Analysis,
        buffers: Buffers,
        sources: list[Array],
        outputs: list[Array],
        combine: np.ufunc,
        averages: bool,
    ) -> None:
        self.analysis = analysis
        self.dtype = buffers.dtype
        self.accumulator = accumulator(buffers.dtype)
        self.sources, self.outputs = sources, outputs
        self.combine, self.averages = combine, averages
        schedule = analysis.schedule
        low, high = chunk_bounds(schedule.chunks, elements_of(schedule.collective, buffers.unit))
        self.length = high - low
        # `pair`: the index of a chunk's (rank, block) in the side; `start` is in weights, `unit` elements each
        self.input_begin = buffers.input_side.start[analysis.inputs.pair] * buffers.unit + low[analysis.inputs.chunk]
        self.output_begin = (
            buffers.output_side.start[analysis.outputs.pair] * buffers.unit + low[analysis.outputs.chunk]
        )


@dataclass(frozen=True, eq=False)
class _Batch:
    """Chunks that run together: their cells are the rows of one array of at most `width` columns."""

    rows: int  # number of cells
    length: int  # elements of the longest chunk
    width: int  # elements of a window
    dst: Longs  # per group (by level, most operands first) the row that it writes
    first: Longs  # per group the index of its first operand in `operand`
    count: Longs  # per group the number of its operands
    levels: list[tuple[int, int]]  # (first group, end) of every level
    operand: Longs  # per operand of the whole schedule: its row
    inputs: Longs  # the batch's part of `Analysis.inputs`, as indices
    outputs: Longs  # the batch's part of `Analysis.outputs`, as indices
    row_of_cell: Longs  # per cell of the whole schedule


def _make_batches(job: _Job) -> Iterator[_Batch]:
    """Split the chunks into batches, with the operations on their cells as columns.

    The star's one chunk is cells 0 to 2, of its ranks. In its first level, group 0, cell 0 becomes the sum of the three
    operands from operand[0] on; in the next cells 1 and 2 become copies of cell 0:

    >>> from antiphon.core.example import star
    >>> sides = take_inputs(star().collective, [np.arange(4.0)] * 3, None, False)
    >>> (batch,) = _make_batches(_Job(analyse(star()), sides, [], [], np.add, False))
    >>> [column.tolist() for column in (batch.dst, batch.first, batch.count, batch.operand)], batch.levels
    ([[0, 1, 2], [0, 3, 4], [3, 1, 1], [0, 1, 2, 0, 0]], [(0, 1), (1, 3)])
    """
    analysis = job.analysis
    if not len(analysis.cell_chunk) or not job.length.max(initial=0):
        return
    batch_of_chunk, batches, budget = _assign_batches(job)
    # batch b has the items at ptr[b] to ptr[b + 1] - 1 of the order
    cell_batch = batch_of_chunk[analysis.cell_chunk]
    cell_order, cell_ptr = order_of(cell_batch, bound=batches), pointers(cell_batch, batches)
    row_of_cell = np.empty(len(cell_batch), np.int64)
    row_of_cell[cell_order] = np.arange(len(cell_batch)) - cell_ptr[cell_batch[cell_order]]
    operand = row_of_cell[analysis.operand]
    group_order, group_ptr = _sort_by_batch(cell_batch[analysis.dst], batches)
    in_order, in_ptr = _sort_by_batch(batch_of_chunk[analysis.inputs.chunk], batches)
    out_order, out_ptr = _sort_by_batch(batch_of_chunk[analysis.outputs.chunk], batches)
    longest = np.zeros(batches, np.int64)
    np.maximum.at(longest, batch_of_chunk, job.length)
    for batch in range(batches):
        length, rows = int(longest[batch]), int(cell_ptr[batch + 1] - cell_ptr[batch])
        if not length or not rows:
            continue
        groups = group_order[group_ptr[batch] : group_ptr[batch + 1]]
        begins = [*np.flatnonzero(run_starts(analysis.level[groups])).tolist(), len(groups)]
        width = max(budget // (rows * job.dtype.itemsize), SHORT)
        yield _Batch(
            rows, length, width=min(width, length), dst=row_of_cell[analysis.dst[groups]],
            first=analysis.first[groups], count=analysis.count[groups], levels=list(pairwise(begins)), operand=operand,
            inputs=in_order[in_ptr[batch] : in_ptr[batch + 1]],
            outputs=out_order[out_ptr[batch] : out_ptr[batch + 1]], row_of_cell=row_of_cell,
        )  # fmt: skip


def _sort_by_batch(batch: Longs, batches: int) -> tuple[Longs, Longs]:
    """Return the order of items by batch, and where each batch begins in it (`ptr`)."""
    return order_of(batch, bound=batches), pointers(batch, batches)


def _assign_batches(job: _Job) -> tuple[Longs, int, int]:
    """Return the batch of every chunk, the number of batches, and the budget of bytes per batch.

    Chunks of about equal length form a batch, up to the budget. Chunks of 100, 10, 90 and 12 elements, of two cells
    each:

    >>> from types import SimpleNamespace as Namespace
    >>> analysis = Namespace(cell_chunk=np.array([0, 0, 1, 1, 2, 2, 3, 3]), levels=1)
    >>> job = Namespace(length=np.array([100, 10, 90, 12]), dtype=np.dtype(np.float32), analysis=analysis)
    >>> _assign_batches(job)[:2]
    (array([0, 1, 0, 1]), 2)
    """
    # Classes of lengths, the longest first. Chunks of at least 3/4 of the longest of a class are in it, so that rows
    # waste little padding. All short ones, of up to SHORT // 4 elements, are in one class.
    lengths, length_index = np.unique(job.length, return_inverse=True)
    class_of_length = np.zeros(len(lengths), np.int64)
    number, longest = 0, int(lengths[-1])  # the class that is being filled, and its greatest length
    for i in range(len(lengths) - 1, -1, -1):
        if longest > SHORT // 4 and 4 * int(lengths[i]) < 3 * longest:
            number, longest = number + 1, int(lengths[i])
        class_of_length[i] = number
    chunk_class = class_of_length[length_index.reshape(-1)]
    cells = np.bincount(job.analysis.cell_chunk, minlength=len(job.length))
    order, class_ptr = order_of(chunk_class, bound=number + 1), pointers(chunk_class, number + 1)
    total = np.cumsum((cells * job.length * job.dtype.itemsize)[order])
    bytes_before = np.concatenate([[0], total])[class_ptr[:-1]]  # per class
    budget = BATCH_BYTES + LEVEL_BYTES * job.analysis.levels
    batch_in_class = np.empty(len(order), np.int64)
    # Within a class, cut into batches by bytes.
    batch_in_class[order] = (total - bytes_before[chunk_class[order]]) // budget
    key = chunk_class * (int(batch_in_class.max()) + 1) + batch_in_class
    batch_keys, batch = unique_inverse(key, bound=int(key.max()) + 1)
    return batch, len(batch_keys), budget


def _run_window(job: _Job, batch: _Batch, low: int, high: int) -> None:
    """Run a batch on the elements low..high-1 of its chunks."""
    shape = (batch.rows, high - low)
    # Rows are combined with their padding. Objects must then be numbers: an empty array of them holds None.
    cells: Array = np.zeros(shape, job.dtype) if job.dtype.kind == "O" else np.empty(shape, job.dtype)
    _load_cells(job, batch, cells, low)
    for begin, end in batch.levels:
        groups = slice(begin, end)
        _run_level(job, cells, batch.dst[groups], batch.first[groups], batch.count[groups], batch.operand)
    _store_cells(job, batch, cells, low)


def _run_level(job: _Job, cells: Array, dst: Longs, first: Longs, count: Longs, operand: Longs) -> None:
    """Write every group of one level; all cells are read before any is written.

    Cell 0 becomes the sum of cells 0, 1 and 2, and cell 3 a copy of the old value of cell 0:

    >>> from types import SimpleNamespace as Namespace
    >>> cells = np.array([[1.0], [2.0], [4.0], [8.0]])
    >>> job = Namespace(combine=np.add, accumulator=np.float64, dtype=np.float64)
    >>> _run_level(job, cells, np.array([0, 3]), np.array([0, 3]), np.array([3, 1]), np.array([0, 1, 2, 0]))
    >>> cells.ravel()
    array([7., 2., 4., 1.])
    """
    # The first `combined_count` groups have several operands, all others one.
    max_operands = int(count[0])
    combined_count = 0 if max_operands == 1 else _count_above(count, k=1)
    # All reads of the level happen before the first write.
    copied_values = cells.take(operand[first[combined_count:]], axis=0)
    if combined_count:
        value = cells.take(operand[first[:combined_count]], axis=0).astype(job.accumulator, copy=False)
        for k in range(1, max_operands):
            with_operand = _count_above(count, k)
            operands = cells.take(operand[first[:with_operand] + k], axis=0).astype(job.accumulator, copy=False)
            job.combine(value[:with_operand], operands, out=value[:with_operand])
        cells[dst[:combined_count]] = value.astype(job.dtype, copy=False)
    cells[dst[combined_count:]] = copied_values


def _count_above(count: Longs, k: int) -> int:
    """Return the number of descending counts that are greater than k."""
    return len(count) - int(np.searchsorted(count[::-1], k, side="right"))


def _by_rank(entries: BufferCells, chosen: Longs) -> Iterator[tuple[int, Longs]]:
    """Yield each rank with those of the chosen entries, inputs or outputs, that are its own; `chosen`: by index."""
    ranks = entries.rank[chosen]
    bounds = [*np.flatnonzero(run_starts(ranks)).tolist(), len(chosen)] if len(chosen) else []
    for begin, end in pairwise(bounds):
        yield int(ranks[begin]), chosen[begin:end]


def _load_cells(job: _Job, batch: _Batch, cells: Array, low: int) -> None:
    """Copy the elements from `low` on of every chunk from the inputs into the cells."""
    width, entries = cells.shape[1], job.analysis.inputs
    available = np.minimum(job.length[entries.chunk[batch.inputs]] - low, width)
    chosen = batch.inputs[available > 0]
    for rank, own_entries in _by_rank(entries, chosen):
        source, rows = job.sources[rank], batch.row_of_cell[entries.cell[own_entries]]
        begin = job.input_begin[own_entries] + low
        if width <= SHORT:
            index = begin[:, None] + np.arange(width)
            cells[rows] = source.take(index, mode="clip")  # elements beyond a chunk's end are never stored
            continue
        length = np.minimum(job.length[entries.chunk[own_entries]] - low, width)
        for row, at, n in zip(rows.tolist(), begin.tolist(), length.tolist(), strict=True):
            cells[row, :n] = source[at : at + n]


def _store_cells(job: _Job, batch: _Batch, cells: Array, low: int) -> None:
    """Copy the elements from `low` on of every chunk from the cells into the outputs; avg divides here."""
    width, entries = cells.shape[1], job.analysis.outputs
    available = np.minimum(job.length[entries.chunk[batch.outputs]] - low, width)
    chosen = batch.outputs[available > 0]
    for rank, own_entries in _by_rank(entries, chosen):
        target, rows = job.outputs[rank], batch.row_of_cell[entries.cell[own_entries]]
        begin = job.output_begin[own_entries] + low
        length = np.minimum(job.length[entries.chunk[own_entries]] - low, width)
        # Long rows are copied straight from `cells`, unless they are divided first.
        values = cells[rows] if width <= SHORT or job.averages else cells
        if job.averages:
            values = average(values, entries.count[own_entries][:, None])
        if width <= SHORT:
            inside = np.arange(width) < length[:, None]
            target[(begin[:, None] + np.arange(width))[inside]] = values[inside]
            continue
        rows = np.arange(len(own_entries)) if job.averages else rows
        for row, at, n in zip(rows.tolist(), begin.tolist(), length.tolist(), strict=True):
            target[at : at + n] = values[row, :n]
