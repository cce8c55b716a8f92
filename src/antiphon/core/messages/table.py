"""The message table: group the rows of a schedule into messages, each with source, destination, step and bytes.

Rows with the same step, sender, receiver, route and number of pieces are sent together as one message. Messages have
one canonical order (`Schedule.message_key`), independent of the order of rows. Cost models, exports, traces and
programs read this table.

Example: rows (step 0, chunk 0, 0 -> 1) and (step 0, chunk 1, 0 -> 1) are one message with the weight of both chunks.
Weights are exact whole numbers; `weight / scale` is the fraction of nbytes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.core.columns import (
    Floats,
    Ints,
    Longs,
    as_int32,
    is_ascending,
    order_of,
    pack_columns,
    row_batches,
    run_starts,
    sums_by_group,
    take_batched,
)
from antiphon.core.interpret import block_elements
from antiphon.core.interpret.buffers import chunk_bounds
from antiphon.core.loads import pieces_of
from antiphon.core.schedule import REDUCE, Schedule


@dataclass(frozen=True, eq=False)
class Messages:
    """Messages in the order of `Schedule.message_key`. The rows of a joint are one message, under its first row.

    Consecutive rows of one message form a *run*; most planners emit rows so that each message is one run, and then code
    need not look at every row. `route` is the route of the rows, -1 if they name none. A message from a rank to itself
    copies or combines within its memory.
    """

    schedule: Schedule
    step: Ints
    src: Ints
    dst: Ints
    route: Ints
    first: Ints  # the first row of every run; last, the number of rows
    of_run: Ints  # the message of every run
    row: Ints  # one row of every message

    def __len__(self) -> int:
        return len(self.step)

    @property
    def ranks(self) -> int:
        return self.schedule.collective.ranks

    @cached_property
    def of_row(self) -> Ints:
        """The message of every row of the schedule."""
        return self.of_run if len(self.of_run) == self.schedule.transfers else np.repeat(self.of_run, self._run_lengths)

    @property
    def _run_lengths(self) -> Ints:
        return np.diff(self.first)

    @cached_property
    def pieces(self) -> Longs:
        """The number of pieces in which each message is sent, one per step from its own step on."""
        return pieces_of(self.schedule)[self.schedule.chunk[self.row]]

    @cached_property
    def scale(self) -> int:
        """The number of weight units that make up `nbytes`."""
        return self.schedule.chunks.weights(self.schedule.collective)[1] * self._common_pieces

    @cached_property
    def _common_pieces(self) -> int:
        """The least common multiple of all numbers of pieces."""
        return math.lcm(*np.unique(pieces_of(self.schedule)).tolist()) if len(self.schedule.chunks) else 1

    @cached_property
    def per_chunk(self) -> NDArray[Any]:
        """The weight of one piece of every chunk: int64, or Python ints if sums might not fit."""
        weights, _ = self.schedule.chunks.weights(self.schedule.collective)
        piece_divisor = self._common_pieces // pieces_of(self.schedule)
        # Bound of any sum over rows. Factor 3: f >= 2 operands are combined by f - 1 rows and take f + 1 <= 3 (f - 1)
        # memory accesses.
        sum_bound = float(weights.max(initial=0)) * self._common_pieces * 3 * max(self.schedule.transfers, 1)
        return weights * piece_divisor if sum_bound < 2**62 else weights.astype(object) * piece_divisor.astype(object)

    @cached_property
    def weight(self) -> NDArray[Any]:
        """The weight of each message in every step in which it is in progress: exact, over `scale`."""
        return self._weigh_rows(np.empty(0, np.uint8))

    @cached_property
    def combined(self) -> NDArray[Any]:
        """The part of the weight that the receiver combines with its own data."""
        if not self.schedule.op.any():
            return np.broadcast_to(np.int64(0), len(self))
        return self._weigh_rows(self.schedule.op)

    def _weigh_rows(self, counts: NDArray[np.uint8]) -> NDArray[Any]:
        """Return the summed weight per message of the rows that `counts` flags (empty: all rows)."""
        chunk_weight, one_row_each = self.per_chunk, len(self) == self.schedule.transfers
        if self.schedule.joint is not None:  # all rows of a joint carry the same data
            counts = self._leads_joint * (counts if len(counts) else np.uint8(1))
        # Fast path: equal chunks. A message's weight is its number of counted rows times that of a chunk.
        if len(chunk_weight) and bool((chunk_weight == chunk_weight[0]).all()):
            if one_row_each and not len(counts):
                return np.broadcast_to(chunk_weight[0], len(self))
            if len(counts):
                # One row per message: look the weight up by flag instead of adding up.
                if one_row_each and chunk_weight.dtype != object:
                    return take_batched(np.array([0, chunk_weight[0]]), take_batched(counts, self.row))
                counted = (
                    np.add.reduceat(counts, self.first[:-1], dtype=np.int64) if len(self.first) > 1 else self.first[:0]
                )
            else:
                counted = self._run_lengths.astype(np.int64)
            message_weight: NDArray[Any] = sums_by_group(self.of_run, counted, len(self)) * chunk_weight[0]
            return message_weight
        row_weight = chunk_weight[self.schedule.chunk]
        return sums_by_group(self.of_row, np.where(counts, row_weight, 0) if len(counts) else row_weight, len(self))

    @cached_property
    def share(self) -> Floats:
        """The fraction of `nbytes` that a message carries in each step."""
        return (self.weight / self.scale).astype(np.float64)

    @property
    def _leads_joint(self) -> NDArray[np.uint8]:
        """1 for rows that represent their joint or stand alone; 0 for the other rows of a joint."""
        first = np.zeros(self.schedule.transfers, np.uint8)
        first[self.schedule.leads] = 1
        return first

    def nbytes(self, nbytes: int) -> tuple[Longs, Longs]:
        """Return the whole bytes of every message, and the number that are combined, for schedules without pieces.

        Chunks are cut at whole bytes as they are at whole elements when a schedule runs, so that the chunks of a block
        add up to the block.
        """
        schedule = self.schedule
        # Cut at byte borders like elements of one byte, so that the chunks of a block add up to it exactly.
        low, high = chunk_bounds(schedule.chunks, block_elements(schedule.collective, nbytes, 1))
        size = (high - low)[schedule.chunk]
        if schedule.joint is not None:
            size = size * self._leads_joint
        reduced = np.where(schedule.op == REDUCE, size, 0)
        return sums_by_group(self.of_row, size, len(self)), sums_by_group(self.of_row, reduced, len(self))


def _is_in_order(schedule: Schedule, rows: Ints | None) -> bool:
    """Return whether all rows, or these, are in the order of `Schedule.message_key`."""
    for block in row_batches(schedule.transfers if rows is None else len(rows)):
        # Neighbouring blocks share one row, so that the order across their border is compared too.
        overlapped = slice(block.start, block.stop + 1)
        if not is_ascending(*schedule.message_key_columns(overlapped if rows is None else rows[overlapped])):
            return False
    return True


def messages(schedule: Schedule) -> Messages:
    """Group the rows of a schedule into messages. O(rows), and a sort of the runs unless they are in order.

    >>> from antiphon.core.collective import Collective
    >>> from antiphon.core.schedule import cut
    >>> kind = Collective("allgather", 3)
    >>> rows = {"step": [0, 0, 0, 1], "chunk": [2, 0, 0, 2], "src": [2, 0, 0, 0], "dst": [0, 2, 1, 1], "op": [0] * 4}
    >>> table = messages(Schedule(kind, cut(kind, 1), **rows))
    >>> list(zip(table.step.tolist(), table.src.tolist(), table.dst.tolist()))
    [(0, 0, 1), (0, 2, 0), (0, 0, 2), (1, 0, 1)]
    >>> table.of_row.tolist()
    [1, 2, 0, 3]
    """
    rows, starts_run = schedule.transfers, schedule.runs()
    all_runs = bool(starts_run.all())  # every row is a run
    take_rows = not all_runs  # whether the columns of messages differ from those of rows
    first = np.arange(rows + 1, dtype=np.int32) if all_runs else as_int32(np.append(np.flatnonzero(starts_run), rows))
    route = np.full(rows, -1, np.int32) if schedule.route is None else schedule.route
    columns: tuple[Ints, ...] = (schedule.step, schedule.src, schedule.dst, route)
    # Planners usually emit rows in order: then no sort is needed, and every run is a message.
    if _is_in_order(schedule, None if all_runs else first[:-1]):
        row = first[:-1]
        of_run = row if all_runs else np.arange(len(row), dtype=np.int32)
    else:
        # Sort the first rows of all runs; runs with equal keys form one message.
        key, bound = pack_columns(*(schedule.message_key() if all_runs else schedule.message_key(first[:-1])))
        order = order_of(key, bound)
        starts_message = run_starts(key[order])
        of_run = np.empty(len(key), np.int32)
        of_run[order] = np.cumsum(starts_message, dtype=np.int32) - np.int32(1)
        row, take_rows = first[order[starts_message]], True
    if schedule.joint is not None:
        # The leading row represents a joint: its source, destination and route are those of the message.
        row, take_rows = as_int32(schedule.leads[row]), True
    if take_rows:
        columns = tuple(column[row] for column in columns)
    for column in columns:
        column.flags.writeable = False  # like a schedule's: compiled loops are specialised on this flag
    step, src, dst, message_route = columns
    return Messages(schedule, step, src, dst, message_route, first, of_run, row)
