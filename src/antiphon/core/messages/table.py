"""The message table: group the rows of a schedule into messages, each with source, destination, step and bytes.

Rows with the same step, sender, receiver, route and number of pieces are sent together as one message. Messages have
one canonical order, independent of the order of rows: by step, distance from sender to receiver (modulo ranks), sender,
route and pieces (`Schedule.message_key`). Cost models, exports, traces and programs read this table.

Example: rows (step 0, chunk 0, 0 -> 1) and (step 0, chunk 1, 0 -> 1) are one message with the weight of both chunks.
Weights are exact whole numbers; `weight / scale` is the fraction of nbytes. If chunks of an eighth and a quarter of
nbytes are sent in 2 and 3 pieces, `scale` is 8 * lcm(2, 3) = 48, and their messages weigh 3 and 4 per step.
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
    Bools,
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

# GenModel counts f + 1 memory accesses to combine f >= 2 operands, which come in f - 1 rows: f + 1 <= 3 (f - 1).
_MAX_ACCESSES_PER_ROW = 3


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
    of_row: Ints  # per row of the schedule, its message
    row: Ints  # per message, one of its rows

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
        """The weight of all `nbytes`: a whole number that makes the weight of every piece whole."""
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
        # weight / pieces, over the denominator of all chunks: `_common_pieces` is a multiple of every number of pieces
        factor = self._common_pieces // pieces_of(self.schedule)
        # No sum of weights, or of memory accesses times weights, over all rows exceeds this bound.
        accesses = _MAX_ACCESSES_PER_ROW * max(self.schedule.transfers, 1)
        sum_bound = float(weights.max(initial=0)) * self._common_pieces * accesses
        return weights * factor if sum_bound < SAFE_INT64 else weights.astype(object) * factor.astype(object)

    @cached_property
    def weight(self) -> NDArray[Any]:
        """The weight of each message in every step in which it is in progress: exact, over `scale`."""
        return self._weigh_rows(None)

    @cached_property
    def combined(self) -> NDArray[Any]:
        """The part of the weight that the receiver combines with its own data."""
        if not self.schedule.op.any():
            return np.broadcast_to(np.int64(0), len(self))
        return self._weigh_rows(self.schedule.op == REDUCE)

    def _weigh_rows(self, selected: Bools | None) -> NDArray[Any]:
        """Return the summed weight per message of the selected rows (None: of all rows)."""
        row_weight = self.per_chunk[self.schedule.chunk]
        if self.schedule.joint is not None:  # all rows of a joint carry the same data
            selected = self._leads_joint if selected is None else self._leads_joint & selected
        return sums_by_group(
            self.of_row, row_weight if selected is None else np.where(selected, row_weight, 0), len(self)
        )

    @cached_property
    def share(self) -> Floats:
        """The fraction of `nbytes` that a message carries in each step."""
        return (self.weight / self.scale).astype(np.float64)

    @property
    def _leads_joint(self) -> Bools:
        """Whether a row represents its joint or stands alone; false for the other rows of a joint."""
        leads = np.zeros(self.schedule.transfers, np.bool_)
        leads[self.schedule.leads] = True  # per row the first row of its joint; a row without joint leads itself
        return leads

    def nbytes(self, nbytes: int) -> tuple[Longs, Longs]:
        """Return the whole bytes of every message, and the number that are combined, for schedules without pieces.

        Chunks are cut at whole bytes as they are at whole elements when a schedule runs, so that the chunks of a block
        add up to the block.
        """
        schedule = self.schedule
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
    # A run is consecutive rows of one message. A message may be several runs.
    first_rows = np.flatnonzero(schedule.runs())  # the first row of every run
    # Planners usually emit rows in order: then no sort is needed, and every run is a message.
    if is_ascending(*schedule.message_key_columns(first_rows)):
        row, message_of_run = first_rows, np.arange(len(first_rows))
    else:
        # Sort the first rows of all runs; runs with equal keys form one message.
        # (`message_key` has the same columns with their bounds, for packing.)
        key, key_bound = pack_columns(*schedule.message_key(first_rows))
        order = order_of(key, bound=key_bound)
        starts_message = run_starts(key[order])
        row, message_of_run = first_rows[order[starts_message]], np.empty(len(first_rows), np.int64)
        message_of_run[order] = np.cumsum(starts_message) - 1
    if schedule.joint is not None:
        # The leading row represents a joint: its source, destination and route are those of the message.
        row = schedule.leads[row]
    route = np.full(schedule.transfers, -1, np.int32) if schedule.route is None else schedule.route
    # Read-only like a schedule's columns: compiled loops are specialised on this flag.
    step, src, dst, message_route = (
        freeze(column[row]) for column in (schedule.step, schedule.src, schedule.dst, route)
    )
    run_lengths = np.diff(np.append(first_rows, schedule.transfers))
    of_row = as_int32(np.repeat(message_of_run, run_lengths))
    return Messages(schedule, step=step, src=src, dst=dst, route=message_route, of_row=of_row, row=as_int32(row))
