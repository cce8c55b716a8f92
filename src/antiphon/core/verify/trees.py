"""Check that every row is legal, and count contributions exactly where each partial sum is used once.

Walk through the steps of a batch of chunks. Every cell (one rank's copy of a chunk) holds the *count* of contributions
in its value, with repetition, and the *identity* of that value (a copy keeps it, a reduction makes a new one). If no
identity is an operand of two reductions, a value is a tree whose leaves are different contributions, so the count alone
decides whether all are there. Chunks in which an identity is used twice (recursive doubling, say) are left to sets.py.

Example: rank 0 reduces the values of 1 and 2 into its own: identities 0, 1, 2 are used once, the count is 3. If rank 1
sent its value to rank 0 twice, identity 1 would be used twice and the count 3 would prove nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from antiphon.core.columns import (
    AnyInts,
    Bools,
    Longs,
    order_of,
    run_starts,
    unique_inverse,
)
from antiphon.core.verify.layout import ChunkRows

MAX_COUNT = 2**40  # counts stop growing here, far above any number of contributions, so that they cannot overflow


@dataclass(frozen=True, eq=False)
class WalkOutcome:
    """The result of a walk through the steps of a batch."""

    faulty: dict[int, tuple[int, str]]  # chunk of the batch -> (index of its first faulty row, "empty" or "race")
    count: Longs  # contributions per cell at the end
    shared: Bools  # per chunk, whether an identity was used twice, so that counts decide nothing


class _Walk:
    """The state of the cells of one batch while its steps are processed."""

    def __init__(self, batch: ChunkRows) -> None:
        self.batch = batch
        self.count = np.zeros(batch.cells, np.int64)
        self.value = np.zeros(batch.cells, np.int64)  # per cell, the identity of its value
        # per initial contribution its cell `pre`, chunk `pre_owner` and number `pre_id`; `owner`: the chunk of each row
        id_bound = int(batch.pre_id.max(initial=0)) + 1
        names, identity = unique_inverse(batch.pre_owner * id_bound + batch.pre_id, bound=len(batch.chunks) * id_bound)
        np.add.at(self.count, batch.pre, 1)
        self.value[batch.pre] = identity
        self.identities = len(names)
        # is_operand[i]: identity i was an operand of a reduction. Every merge makes an identity, and there are at most
        # two merges per row.
        self.is_operand = np.zeros(len(names) + 2 * len(batch.dst), np.bool_)
        self.last_position = np.zeros(max(batch.cells, len(self.is_operand)), np.int64)
        self.shared = np.zeros(len(batch.chunks), np.bool_)
        # A cell that begins with several contributions has no single identity.
        self.shared[batch.pre_owner[self.count[batch.pre] > 1]] = True
        self.faulty: dict[int, tuple[int, str]] = {}

    def occur_twice(self, keys: AnyInts) -> Bools:
        """Return which keys occur at another position, too (True for all occurrences but one)."""
        positions = np.arange(len(keys))
        self.last_position[keys] = positions
        earlier: Bools = self.last_position[keys] != positions
        return earlier

    def record_fault(self, rows: Longs, kind: str) -> None:
        """Record a fault of these rows, unless their chunks have one already."""
        for row in rows.tolist():
            self.faulty.setdefault(int(self.batch.owner[row]), (row, kind))

    def step(self, rows: Longs, src: AnyInts, dst: AnyInts) -> None:
        """Apply the rows of one step."""
        # All reads happen before all writes of a step: take operands first.
        counts, values = self.count[src], self.value[src]
        if not counts.all():
            self.record_fault(rows[counts == 0], "empty")
        reduces = self.batch.reduces[rows]
        if self.occur_twice(dst).any():
            rows, dst, counts, values, reduces = self._combine_writes(rows, dst, counts, values, reduces)
        if reduces.any():
            # A reduction into an empty cell is a copy; only a merge of two values makes a new identity.
            old = self.count[dst]
            merging = reduces & (old > 0)
            if merging.any():
                self._use_identities(np.concatenate([values[merging], self.value[dst[merging]]]), rows[merging])
                counts = np.where(merging, np.minimum(counts + old, MAX_COUNT), counts)
                values[merging] = self._new_identities(int(np.count_nonzero(merging)))
        self.count[dst], self.value[dst] = counts, values

    def _combine_writes(
        self, rows: Longs, dst: AnyInts, counts: Longs, values: Longs, reduces: Bools
    ) -> tuple[Longs, AnyInts, Longs, Longs, Bools]:
        """Handle several rows that write one cell: a race unless all reduce; then they become one operand together."""
        order = order_of(dst, bound=self.batch.cells)
        rows, dst = rows[order], dst[order]
        counts, values, reduces = counts[order], values[order], reduces[order]
        # Writes to one cell are neighbours now; `first` and `size` delimit each group.
        first = np.flatnonzero(run_starts(dst))
        size = np.diff(np.append(first, len(dst)))
        several = size > 1
        racing = several & ~np.logical_and.reduceat(reduces, first)
        if racing.any():
            self.record_fault(rows[np.repeat(racing, size)], "race")
        in_group = np.repeat(several, size)
        self._use_identities(values[in_group], rows[in_group])
        sums = np.minimum(np.add.reduceat(counts, first), MAX_COUNT)
        merged = values[first]
        merged[several] = self._new_identities(int(np.count_nonzero(several)))
        return rows[first], dst[first], sums, merged, reduces[first]

    def _new_identities(self, count: int) -> Longs:
        """Return this many identities that no value has yet."""
        self.identities += count
        return np.arange(self.identities - count, self.identities)

    def _use_identities(self, values: Longs, rows: Longs) -> None:
        """Mark identities as operands of a reduction; a second use marks the chunk as `shared`."""
        reused = self.is_operand[values] | self.occur_twice(values)
        self.is_operand[values] = True
        if reused.any():
            owners = self.batch.owner[rows]  # one per row; `values` holds a first and perhaps a second operand of each
            self.shared[np.resize(owners, len(values))[reused]] = True


def walk_steps(batch: ChunkRows) -> WalkOutcome:
    """Process the batch's steps once. Linear in rows; a step costs about 20 NumPy calls.

    >>> from antiphon.core.example import star
    >>> from antiphon.core.verify.layout import Demand, split_batches
    >>> [batch] = split_batches(star(), Demand.of(star().collective))
    >>> walk_steps(batch)  # every cell has three contributions at the end
    WalkOutcome(faulty={}, count=array([3, 3, 3]), shared=array([False]))
    """
    state = _Walk(batch)
    for rows, src, dst in batch.steps():
        state.step(rows, src, dst)
    return WalkOutcome(state.faulty, state.count, state.shared)
