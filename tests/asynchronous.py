"""The asynchronous run of a schedule: every read and every write on its own, in a random order the dependencies allow.

This tests `dependencies`: it knows nothing of steps, and does to each cell exactly what a runtime would do,
also when a dependency is missing. While the operands of a combination come in one after another, the cell
holds what has come so far; whoever reads too early or too late gets wrong data.
"""

import heapq
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.core.datatypes import accumulator, average, combine_of
from antiphon.core.dependencies import Versions, versions
from antiphon.core.interpret import Analysis, analyse
from antiphon.core.interpret.buffers import Array, Buffers, chunk_bounds, elements_of, take_inputs
from antiphon.core.interpret.stepwise import new_outputs
from antiphon.core.schedule import COPY, Schedule


def interpret_async(
    schedule: Schedule,
    inputs: Sequence[Any],
    *,
    op: str = "sum",
    dtype: object = None,
    in_place: bool = False,
    seed: int = 0,
) -> list[NDArray[Any]]:
    """Like `interpret`, with reads and writes in a random order that respects the derived dependencies.

    The outcome is that of `interpret`, bit by bit, for every seed; another outcome, or a RuntimeError because
    nothing can go on, means that the dependencies are wrong. A test, not a fast path: O(n log n) in Python.
    """
    analysis = analyse(schedule)
    buffers = take_inputs(schedule.collective, inputs, dtype, in_place)
    run = _Run(analysis, buffers, combine_of(op))
    with np.errstate(all="ignore"):
        Clock(versions(schedule), run, np.random.default_rng(seed)).go()
        outputs = new_outputs(buffers, in_place)
        run.deliver(outputs, op == "avg")
    return outputs


class _Run:
    """The data: what each cell holds and what is on the wire. Arrays are never written to, only replaced."""

    def __init__(self, analysis: Analysis, buffers: Buffers, combine: np.ufunc) -> None:
        schedule = analysis.schedule
        self.analysis, self.buffers, self.combine = analysis, buffers, combine
        self.low, high = chunk_bounds(schedule.chunks, elements_of(schedule.collective, buffers.unit))
        self.length = high - self.low
        self.value: list[Array | None] = [None] * len(analysis.cell_chunk)
        self.coming: dict[int, list[tuple[int, Array]]] = {}  # per cell the operands of an unfinished combination
        self.wire: dict[int, Array] = {}
        self.copies: list[bool] = (schedule.op == COPY).tolist()
        self.src, self.dst, self.place, self.own = _cells_of_rows(analysis)
        ends = analysis.inputs
        start = buffers.input_side.start[ends.pair] * buffers.unit + self.low[ends.chunk]
        for rank, cell, at, n in zip(ends.rank, ends.cell, start, self.length[ends.chunk], strict=True):
            self.value[cell] = buffers.arrays[rank][at : at + n].copy()

    def read(self, row: int) -> None:
        value = self.value[self.src[row]]
        if self.src[row] in self.coming:
            value = self._fold(self.coming[self.src[row]])
        if value is None:
            raise RuntimeError(f"dependencies let transfer {row} read a cell that holds nothing yet")
        self.wire[row] = value

    def write(self, row: int, last: bool) -> None:
        """`last`: whether this completes the group of writes."""
        cell = self.dst[row]
        if self.copies[row]:
            self.value[cell] = self.wire.pop(row)
            return
        own = self.value[cell]
        if cell not in self.coming:
            self.coming[cell] = [] if own is None else [(self.own[row], own)]
        self.coming[cell].append((self.place[row], self.wire.pop(row)))
        if last:
            self.value[cell] = self._fold(self.coming.pop(cell))

    def _fold(self, operands: list[tuple[int, Array]]) -> Array:
        ordered = [value for _, value in sorted(operands, key=_place)]
        if len(ordered) == 1:
            return ordered[0]
        dtype = self.buffers.dtype
        total = ordered[0].astype(accumulator(dtype))
        for value in ordered[1:]:
            total = self.combine(total, value.astype(total.dtype))
        return total.astype(dtype)

    def deliver(self, outputs: list[Array], averages: bool) -> None:
        ends = self.analysis.outputs
        start = self.buffers.output_side.start[ends.pair] * self.buffers.unit + self.low[ends.chunk]
        for rank, cell, at, count in zip(ends.rank, ends.cell, start, ends.count, strict=True):
            value = self.value[cell]
            if value is None:
                raise RuntimeError(f"dependencies left rank {rank} without a result")
            outputs[rank][at : at + len(value)] = average(value, count) if averages else value


def _place(operand: tuple[int, Array]) -> int:
    return operand[0]


def _cells_of_rows(analysis: Analysis) -> tuple[list[int], list[int], list[int], list[int]]:
    """Per row: the cells read and written, its place among the operands, that of the own value."""
    group = np.repeat(np.arange(len(analysis.first)), analysis.count)
    at = np.repeat(analysis.first - (np.cumsum(analysis.count) - analysis.count), analysis.count) + np.arange(
        len(group)
    )
    place = at - analysis.first[group]
    row = analysis.row[at]
    own = np.zeros(len(analysis.first), np.int64)
    own[group[row < 0]] = place[row < 0]
    columns = np.zeros((4, analysis.schedule.transfers), np.int64)
    real = row >= 0
    columns[:, row[real]] = (
        analysis.operand[at[real]],
        analysis.dst[group[real]],
        place[real],
        own[group[real]],
    )
    src, dst, places, owns = columns.tolist()
    return src, dst, places, owns


class Clock:
    """Which reads and writes may happen, and which one happens next: all that a run in any order keeps to.

    Every event draws a random priority, and every run a random bias for or against reads: so some runs read
    as late as ever allowed and others as early.
    """

    def __init__(self, order: Versions, run: _Run, random: np.random.Generator) -> None:
        self.order, self.run = order, run
        self.rows = len(order.read)
        self.read_of: list[int] = order.read.tolist()
        self.write_of: list[int] = order.write.tolist()
        self.final: list[bool] = order.final.tolist()
        self.readers = _lists(order.readers)
        self.writers = _lists(order.writers)
        self.reads_left = [len(rows) for rows in self.readers]
        self.writes_left = [len(rows) for rows in self.writers]
        self.arrived = [False] * self.rows  # the row has been read
        self.open = [False] * len(order)  # the version may be written
        self.ready: list[tuple[float, int]] = []  # events: row for its read, rows + row for its write
        self.priority = random.random(2 * self.rows)
        self.priority[: self.rows] += random.choice([-1.0, 0.0, 0.0, 1.0])

    def go(self) -> None:
        """Run all events. O(n log n)."""
        for version, left in enumerate(self.writes_left):
            if left == 0:
                self._complete(version)
            else:
                self._settle(version)
        done = 0
        while self.ready:
            _, event = heapq.heappop(self.ready)
            done += 1
            if event < self.rows:
                self._read(event)
            else:
                self._write(event - self.rows)
        if done != 2 * self.rows:
            raise RuntimeError(
                f"the derived dependencies deadlock: {2 * self.rows - done} reads and writes never happen"
            )

    def settled(self, version: int) -> bool:
        """Whether the version after this one may be written."""
        return self.writes_left[version] == 0 and self.reads_left[version] == 0

    def _push(self, event: int) -> None:
        heapq.heappush(self.ready, (float(self.priority[event]), event))

    def _complete(self, version: int) -> None:
        for row in self.readers[version]:
            self._push(row)
        self._settle(version)

    def _settle(self, version: int) -> None:
        if self.final[version] or self.open[version + 1] or not self.settled(version):
            return
        self.open[version + 1] = True
        for row in self.writers[version + 1]:
            if self.arrived[row]:
                self._push(self.rows + row)

    def _read(self, row: int) -> None:
        self.run.read(row)
        self.arrived[row] = True
        if self.open[self.write_of[row]]:
            self._push(self.rows + row)
        version = self.read_of[row]
        self.reads_left[version] -= 1
        self._settle(version)

    def _write(self, row: int) -> None:
        version = self.write_of[row]
        self.writes_left[version] -= 1
        last = self.writes_left[version] == 0
        self.run.write(row, last)
        if last:
            self._complete(version)


def _lists(table: tuple[NDArray[np.int64], NDArray[np.int64]]) -> list[list[int]]:
    bounds, rows = table[0].tolist(), table[1].tolist()
    return [rows[a:b] for a, b in pairwise(bounds)]
