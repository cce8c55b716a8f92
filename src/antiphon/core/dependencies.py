"""Data dependencies between the transfers of a schedule, expressed as versions of cells instead of explicit edges.

A cell is one rank's copy of a chunk: (rank, chunk, slot). Its version v is its value between two consecutive groups of
writes; version 0 is the initial value. Every transfer is a Read R (of the sender's cell) and a Write W (of the
receiver's cell), and these must happen in order:

    R before W of the same transfer
    RAW  all W of a version before any R of it
    WAR  all R of version v before any W of version v+1 of that cell
    WAW  all W of version v before any W of version v+1

Explicit edges would be the product of readers and writers (10^9 for a direct allreduce on 1024 ranks); versions are two
numbers per transfer, the version it reads and the version it writes. They are found by one sort of all reads and writes
by cell and time: O(n log n), in practice linear.

Example (`example.star`, an allreduce on 3 ranks through rank 0): rank 0's cell has version 0 (its input) and version 1,
written by the reductions from ranks 1 and 2 and read by the two copies back.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from antiphon.core.columns import SAFE_INT64, Bools, Ints, Longs, order_of, pointers, run_starts, unique_inverse
from antiphon.core.schedule import Schedule


def cell_keys(schedule: Schedule, side: str) -> tuple[Longs, int]:
    """Return the cell that each row reads ("src") or writes ("dst") as one number, and a bound on these numbers.
    O(rows).

    The number is (chunk * ranks + rank) * slots + slot:

    >>> from antiphon.core.example import star
    >>> [cell_keys(star(), side)[0].tolist() for side in ("src", "dst")]
    [[1, 2, 0, 0], [0, 0, 1, 2]]
    """
    ranks, slots = schedule.collective.ranks, schedule.slots
    rank = getattr(schedule, side).astype(np.int64)
    return (schedule.chunk * np.int64(ranks) + rank) * slots + schedule.slot(side), len(schedule.chunks) * ranks * slots


@dataclass(frozen=True, eq=False)
class Versions:
    """Per row the version it reads and the version it writes; per version its cell and the step that wrote it.

    The versions of one cell have consecutive numbers in order of time; `initial` marks the first (step -1).
    Cells that no row touches have no version.
    """

    read: Ints  # per row: the version that it reads
    write: Ints  # per row: the version that it writes
    cell: Longs  # per version: (chunk * ranks + rank) * slots + slot
    step: Ints  # per version; -1 for the initial one
    ranks: int
    slots: int

    def __len__(self) -> int:
        return len(self.cell)

    @cached_property
    def initial(self) -> Bools:
        """Whether a version is the initial one of its cell."""
        return self.step < 0

    @cached_property
    def final(self) -> Bools:
        """Whether a version is the last one of its cell."""
        return np.append(self.initial[1:], True) if len(self) else self.initial

    @property
    def chunk(self) -> Longs:
        return self.cell // (self.ranks * self.slots)

    @property
    def rank(self) -> Longs:
        return self.cell // self.slots % self.ranks

    @property
    def slot(self) -> Longs:
        return self.cell % self.slots

    @cached_property
    def readers(self) -> tuple[Longs, Longs]:
        """CSR (offsets, rows): the rows that read each version."""
        return pointers(self.read, len(self)), order_of(self.read.astype(np.int64), bound=len(self))

    @cached_property
    def writers(self) -> tuple[Longs, Longs]:
        """CSR (offsets, rows): the rows that write each version."""
        return pointers(self.write, len(self)), order_of(self.write.astype(np.int64), bound=len(self))

    def last_of(self, cells: Longs) -> Longs:
        """Return the last version of each of these cells, or -1 if no row touches it. O(cells log versions).

        >>> from antiphon.core.example import star
        >>> versions(star()).last_of(np.array([0, 2, 7]))
        array([ 1,  5, -1])
        """
        last = np.flatnonzero(self.final)
        at = np.searchsorted(self.cell[last], cells)
        at[at == len(last)] = 0  # beyond all cells: any index, as its cell is another one
        touched = self.cell[last[at]] == cells if len(last) else np.zeros(len(cells), bool)
        return np.where(touched, last[at] if len(last) else -1, -1)


def versions(schedule: Schedule) -> Versions:
    """Return the version that each row reads and writes, and every version's cell and step of writing. O(n log n).

    Races are not checked here: all writes of a cell in one step are one group. Below, versions 0 and 1 are those of
    rank 0's cell: version 0 is its own input, and both reductions write version 1, which both copies read.

    >>> from antiphon.core.example import star
    >>> versions_of_star = versions(star())
    >>> versions_of_star.cell.tolist(), versions_of_star.step.tolist()
    ([0, 0, 1, 1, 2, 2], [-1, 0, -1, 1, -1, 1])
    >>> versions_of_star.read.tolist(), versions_of_star.write.tolist()
    ([2, 4, 1, 1], [1, 1, 3, 5])
    """
    rows, ranks, slots = schedule.transfers, schedule.collective.ranks, schedule.slots
    read_cell, bound = cell_keys(schedule, "src")
    written_cell, _ = cell_keys(schedule, "dst")
    times, time = unique_inverse(schedule.step.astype(np.int64), bound=schedule.steps or 1)
    bits = max(len(times) - 1, 1).bit_length() + 1  # for the time and one bit for 0 = read, 1 = write
    cells: Longs | None = None
    if bound << bits >= SAFE_INT64:  # renumber the cells, so that keys fit into 63 bits
        cells, keys = unique_inverse(np.concatenate([read_cell, written_cell]), bound=bound)
        read_cell, written_cell, bound = keys[:rows], keys[rows:], len(cells)
    time <<= 1
    key = np.concatenate([(read_cell << bits) | time, (written_cell << bits) | (time | 1)])
    order = order_of(key, bound=bound << bits)
    key = key[order]
    cell = key >> bits
    # A version begins with each cell (its initial value) and with each group of writes at one time.
    new_cell = run_starts(cell)
    new_group = run_starts(key) & ((key & 1) == 1)
    version_number = np.cumsum(new_cell + new_group.view(np.int8), dtype=np.int32) - np.int32(1)
    version = np.empty(2 * rows, np.int32)
    version[order] = version_number
    version_count = int(version_number[-1]) + 1 if rows else 0
    # A cell that begins with a write has two versions there: the initial one, and the written one after it.
    cell_starts, group_starts = np.flatnonzero(new_cell), np.flatnonzero(new_group)
    out_cell = np.empty(version_count, np.int64)
    step = np.full(version_count, -1, np.int32)
    out_cell[version_number[group_starts]] = cell[group_starts]
    out_cell[version_number[cell_starts] - new_group[cell_starts]] = cell[cell_starts]
    step[version_number[group_starts]] = times[(key[group_starts] & ((1 << bits) - 1)) >> 1]
    if cells is not None:
        out_cell = cells[out_cell]
    return Versions(read=version[:rows], write=version[rows:], cell=out_cell, step=step, ranks=ranks, slots=slots)
