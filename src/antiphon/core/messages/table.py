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
    SAFE_INT64,
    Floats,
    Ints,
    Longs,
    as_int32,
    freeze,
    is_ascending,
    order_of,
    pack_columns,
    run_starts,
    sums_by_group,
)
from antiphon.core.interpret import block_elements
from antiphon.core.interpret.buffers import chunk_bounds
from antiphon.core.loads import pieces_of
from antiphon.core.schedule import REDUCE, Schedule


@dataclass(frozen=True, eq=False)
class Messages:
    """Messages in the order of `Schedule.message_key`. The rows of a joint are one message, under its first row.

    `route` is the route of the rows, -1 if they name none. A message from a rank to itself copies or combines within
    its memory.
    """

    schedule: Schedule
    step: Ints
    src: Ints
    dst: Ints
    route: Ints
    of_row: Ints  # the message of every row of the schedule
    row: Ints  # one row of every message

    def __len__(self) -> int:
        return len(self.step)

    @property
    def ranks(self) -> int:
        return self.schedule.collective.ranks

    @cached_property
    def pieces(self) -> Longs:
        """The number of pieces in which each message is sent, one per step from its own step on."""
        return pieces_of(self.schedule)[self.schedule.chunk[self.row]]

    @cached_property
    def scale(self) -> int:
        """The number of weight units that make up `nbytes`."""
        _, denominator = self.schedule.chunks.weights(self.schedule.collective)
        return denominator * self._common_pieces

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
        return (
            weights * piece_divisor if sum_bound < SAFE_INT64 else weights.astype(object) * piece_divisor.astype(object)
        )

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

    def _weigh_rows(self, flags: NDArray[np.uint8]) -> NDArray[Any]:
        """Return the summed weight per message of the rows with a 1 in `flags` (empty: of all rows)."""
        row_weight = self.per_chunk[self.schedule.chunk]
        if self.schedule.joint is not None:  # all rows of a joint carry the same data
            flags = self._leads_joint * (flags if len(flags) else np.uint8(1))
        return sums_by_group(self.of_row, np.where(flags, row_weight, 0) if len(flags) else row_weight, len(self))

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
        low, high = chunk_bounds(schedule.chunks, block_elements(schedule.collective, nbytes, itemsize=1))
        size = (high - low)[schedule.chunk]
        if schedule.joint is not None:
            size = size * self._leads_joint
        reduced = np.where(schedule.op == REDUCE, size, 0)
        return sums_by_group(self.of_row, size, len(self)), sums_by_group(self.of_row, reduced, len(self))


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
    first = np.flatnonzero(schedule.runs())  # row of every run: consecutive rows of one message
    # Planners usually emit rows in order: then no sort is needed, and every run is a message.
    if is_ascending(*schedule.message_key_columns(first)):
        row, of_run = first, np.arange(len(first))
    else:
        # Sort the first rows of all runs; runs with equal keys form one message.
        key, bound = pack_columns(*schedule.message_key(first))
        order = order_of(key, bound)
        starts_message = run_starts(key[order])
        row, of_run = first[order[starts_message]], np.empty(len(first), np.int64)
        of_run[order] = np.cumsum(starts_message) - 1
    if schedule.joint is not None:
        # The leading row represents a joint: its source, destination and route are those of the message.
        row = schedule.leads[row]
    route = np.full(schedule.transfers, -1, np.int32) if schedule.route is None else schedule.route
    # Read-only like a schedule's columns: compiled loops are specialised on this flag.
    step, src, dst, message_route = (
        freeze(column[row]) for column in (schedule.step, schedule.src, schedule.dst, route)
    )
    of_row = as_int32(np.repeat(of_run, np.diff(np.append(first, schedule.transfers))))
    return Messages(schedule, step, src, dst, message_route, of_row, as_int32(row))
