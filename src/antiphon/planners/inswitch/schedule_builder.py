"""A schedule under construction: rows through trees of switches, or copied from other schedules.

The planners of this folder add rows to a `ScheduleBuilder` and then call `to_schedule`. A row is a transfer: step,
chunk, sender, receiver, operation, route and joint. Rows with the same joint number are one reduction or one multicast
by a switch; -1: the row belongs to no joint.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from antiphon.core.collective import Collective
from antiphon.core.columns import Longs, as_int32, unique_inverse
from antiphon.core.routes import NO_ROUTES, Routes
from antiphon.core.schedule import Chunks, Schedule
from antiphon.planners.inswitch.tree import SwitchTree

Columns = tuple[Longs, Longs, Longs, Longs, NDArray[np.uint8], Longs, Longs]  # step, chunk, src, dst, op, route, joint


@dataclass(eq=False)
class ScheduleBuilder:
    """The rows so far as columns, the table of their routes, and the number of joints.

    Joints and routes are renumbered as rows are added, so each addition may count from 0.
    """

    rows: list[Columns] = field(default_factory=list)
    table: Routes = NO_ROUTES
    joints: int = 0

    def add_rows(
        self, tree: SwitchTree, step: Longs, chunk: Longs, src: Longs, dst: Longs, op: ArrayLike, joint: Longs
    ) -> None:
        """Add rows between ranks of the tree; `src` and `dst` are positions in `tree.ranks`. `op`: COPY or REDUCE."""
        ranks = tree.ranks
        rank_count = len(ranks)
        pairs, pair_of_row = unique_inverse(src * rank_count + dst, rank_count * rank_count)
        self._append(
            tree.find_paths(pairs // rank_count, pairs % rank_count), step, chunk, ranks[src], ranks[dst],
            np.broadcast_to(np.asarray(op, np.uint8), len(step)), pair_of_row, joint,
        )  # fmt: skip

    def add_schedule(self, schedule: Schedule, chunk: Longs, delay: Longs) -> None:
        """Add the rows of a schedule: its chunk c becomes chunk[c], delayed by delay[c] steps."""
        no_number = np.full(schedule.transfers, -1, np.int64)
        route = no_number if schedule.route is None else schedule.route.astype(np.int64)
        joint = no_number if schedule.joint is None else schedule.joint.astype(np.int64)
        self._append(
            schedule.routes, schedule.step + delay[schedule.chunk], chunk[schedule.chunk],
            schedule.src.astype(np.int64), schedule.dst.astype(np.int64), schedule.op, route, joint,
        )  # fmt: skip

    def _append(
        self, table: Routes, step: Longs, chunk: Longs, src: Longs, dst: Longs, op: NDArray[np.uint8], route: Longs,
        joint: Longs,
    ) -> None:  # fmt: skip
        """Add rows whose routes are numbers in `table` (-1: no route)."""
        route = np.where(route >= 0, route + len(self.table), -1)
        joint = np.where(joint >= 0, joint + self.joints, -1)
        self.rows.append((step, chunk, src, dst, op, route, joint))
        self.table = self.table.join(table)
        self.joints = max(self.joints, int(joint.max(initial=-1)) + 1)

    def to_schedule(self, collective: Collective, chunks: Chunks) -> Schedule:
        """Return the schedule of all rows, in the order in which they were added.

        >>> from antiphon.core.example import star
        >>> builder, schedule, zero = ScheduleBuilder(), star(), np.array([0])
        >>> builder.add_schedule(schedule, zero, zero)
        >>> builder.add_schedule(schedule, zero, zero + 2)  # its rows again, two steps later
        >>> twice = builder.to_schedule(schedule.collective, schedule.chunks)
        >>> twice.step.tolist(), twice.src.tolist(), twice.dst.tolist()
        ([0, 0, 1, 1, 2, 2, 3, 3], [1, 2, 0, 0, 1, 2, 0, 0], [0, 0, 1, 2, 0, 0, 1, 2])
        """
        step, chunk, src, dst, op, route, joint = (np.concatenate(column) for column in zip(*self.rows, strict=True))
        return Schedule(
            collective, chunks, as_int32(step), as_int32(chunk), as_int32(src), as_int32(dst), op,
            route=as_int32(route),
            joint=as_int32(joint), routes=self.table,
        )  # fmt: skip
