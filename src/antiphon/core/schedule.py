"""The schedule: the one form that all planners produce. Rows (step, chunk, src, dst, op) stored as NumPy columns.

Row meaning: in this step, this chunk goes from rank src to rank dst and is copied (op 0) or reduced (op 1) there. A
transfer reads what earlier steps wrote. The exact meaning (cells, versions, races, what is legal and what is correct)
is defined in docs/schedule.md; `verify` checks it, `interpret` runs it. A schedule contains no times.

Example: an allreduce on 2 ranks in one step is the rows (0, 0, 0, 1, reduce) and (0, 0, 1, 0, reduce).

Two groupings of rows matter everywhere: a *message* is rows that are sent together (same step, src, dst, route and
number of pieces), a *joint* is rows that a switch turns into one multicast or reduction. `Schedule.message_key` returns
a key that is equal for rows of one message, and that sorts messages in the order in which they are sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from antiphon.core.collective import Collective
from antiphon.core.columns import (
    HASH_MULTIPLIER,
    SAFE_INT64,
    AnyInts,
    Bools,
    Ints,
    Longs,
    column,
    distinct_pairs,
    is_ascending,
    number_rows,
    op_column,
    order_of,
    pack_columns,
    run_starts,
    unique_inverse,
)
from antiphon.core.routes import NO_ROUTES, Routes
from antiphon.errors import Invalid, Unsupported, quote

COPY, REDUCE = 0, 1  # values of `op`
MAX_DENOMINATOR = SAFE_INT64  # of the boundaries of chunks
MAX_PIECES = 2**30


def check_denominator(denominator: int) -> None:
    """Refuse a common denominator of shares with which sums of shares would not fit int64."""
    if not 1 <= denominator < MAX_DENOMINATOR:
        raise Unsupported(
            "the shares of the chunks have no common denominator below 2^62; use rounder weights or fewer parts"
        )


@dataclass(frozen=True, eq=False)
class Chunks:
    """The part of a block that every chunk is: the fractions [offset, offset + share) / denominator of the block."""

    block: Ints
    offset: Longs
    share: Longs
    denominator: int  # of all offsets and shares

    def __post_init__(self) -> None:
        check_denominator(self.denominator)
        for key in ("offset", "share"):
            array = np.array(getattr(self, key))
            if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
                raise Invalid(f"chunk {key}: expected a list of whole numbers below 2^63")
            array = array.astype(np.int64)
            array.setflags(write=False)
            object.__setattr__(self, key, array)
        object.__setattr__(self, "block", column(self.block, "chunk block", 0, 2**31))
        if not len(self.block) == len(self.offset) == len(self.share):
            raise Invalid("chunks: blocks, offsets and shares differ in number")

    def __len__(self) -> int:
        return len(self.block)

    def part(self, chunk: int) -> Fraction:
        """Return a chunk's share of its block."""
        return Fraction(int(self.share[chunk]), self.denominator)

    @property
    def uniform(self) -> bool:
        """Whether all chunks are the same share of their blocks."""
        return bool(np.all(self.share == self.share[:1]))

    def weights(self, collective: Collective) -> tuple[NDArray[Any], int]:
        """Return every chunk's fraction of `nbytes`, as whole numbers over the returned denominator.

        int64 if each is below 2^62, Python ints otherwise. Callers bound their sums, as core/loads.py does.
        """
        weight = collective.weights[self.block]
        product_bound = float(self.share.max(initial=0)) * float(weight.max(initial=0))
        exact = self.share * weight if product_bound < SAFE_INT64 else self.share.astype(object) * weight.astype(object)
        return exact, self.denominator * collective.buffer_weight

    def find_gap(self, weights: Longs) -> tuple[str, int | None] | None:
        """Return why the chunks of some block do not tile it, and the chunk at fault, if there is one; None if all do.

        `weights`: of all blocks. A block of weight 0 has no data and needs no chunk. Here chunk 0 ends after one half
        of its block, and chunk 1 begins after three quarters:

        >>> Chunks([0, 0], [0, 3], [2, 1], 4).find_gap(np.array([1]))
        ('the chunks of block 0 do not tile it: a gap or an overlap at chunk 1', 1)
        """
        # Offsets and shares are integers over a common denominator, so tiling is checked exactly.
        is_outside = (self.share <= 0) | (self.offset < 0) | (self.offset > self.denominator - self.share)
        if is_outside.any():
            at = int(np.flatnonzero(is_outside)[0])
            return f"chunk {at} does not lie inside its block {self.block[at]}", at
        order = np.lexsort((self.offset, self.block))
        block, offset = self.block[order], self.offset[order]
        end = offset + self.share[order]
        is_first = np.append(True, block[1:] != block[:-1]) if len(block) else np.zeros(0, bool)
        # In order of offset, each chunk must begin where the previous one ends, and the last end at 1.
        expected = np.where(is_first, 0, np.append(0, end[:-1])) if len(block) else offset
        is_last = np.append(is_first[1:], True) if len(block) else is_first
        is_misplaced = (offset != expected) | (is_last & (end != self.denominator))
        if is_misplaced.any():
            at = int(order[np.flatnonzero(is_misplaced)[0]])
            return f"the chunks of block {self.block[at]} do not tile it: a gap or an overlap at chunk {at}", at
        # Blocks without any chunk are not in the sorted table: look for them separately.
        missing = np.flatnonzero((np.bincount(block, minlength=len(weights)) == 0) & (weights > 0))
        return (f"block {missing[0]} has no chunk", None) if len(missing) else None


def cut(collective: Collective, parts: int) -> Chunks:
    """Cut every block into equal parts, numbered part * blocks + block (SCCL's numbering)."""
    if parts < 1:
        raise Invalid(f"parts: every block is cut into 1 part or more, got {parts}")
    blocks = collective.blocks
    return Chunks(
        block=np.tile(np.arange(blocks, dtype=np.int32), parts),
        offset=np.repeat(np.arange(parts, dtype=np.int64), blocks),
        share=np.ones(parts * blocks, np.int64),
        denominator=parts,
    )


@dataclass(frozen=True)
class Local:
    """Work in its own memory with which every rank ends the published algorithm.

    Cost models and exports count it. Our runtimes leave it out, as a program places every chunk where it belongs.
    """

    kind: str  # any name: planners declare "rotation" (Bruck) and "permute"
    share: Fraction  # of nbytes, per rank


@dataclass(frozen=True, eq=False)
class Schedule:
    """A schedule of one collective. Columns are checked for range when built; `verify` checks the rest.

    Optional columns are None if all rows have the default (route and joint -1, slots 0).
    """

    collective: Collective
    chunks: Chunks
    step: Ints
    chunk: Ints
    src: Ints
    dst: Ints
    op: NDArray[np.uint8]  # COPY or REDUCE
    route: Ints | None = None  # an index into `routes`; -1: the only path from src to dst
    src_slot: Ints | None = None  # which of the sender's copies of the chunk is read
    dst_slot: Ints | None = None  # which of the receiver's copies is written
    routes: Routes = NO_ROUTES
    pieces: int | Longs = 1  # slices in which chunks are sent: one number, or one per chunk
    local: tuple[Local, ...] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)  # how the schedule was made, as JSON values
    joint: Ints | None = None  # rows with equal numbers from 0 on are one joint; -1: the row belongs to none

    def __post_init__(self) -> None:
        ranks = self.collective.ranks
        # `column` returns int32, and raises Invalid unless all values are from the first bound to below the second
        object.__setattr__(self, "step", column(self.step, "step", 0, 2**31 - 1))
        object.__setattr__(self, "chunk", column(self.chunk, "chunk", 0, len(self.chunks)))
        object.__setattr__(self, "src", column(self.src, "src", 0, ranks))
        object.__setattr__(self, "dst", column(self.dst, "dst", 0, ranks))
        object.__setattr__(self, "op", op_column(self.op))
        max_slots, max_number = 2**15, 2**31 - 1  # far above the slots of any planner; int32
        for key, low, high in (
            ("route", -1, max_number),
            ("src_slot", 0, max_slots),
            ("dst_slot", 0, max_slots),
            ("joint", -1, max_number),
        ):
            if getattr(self, key) is not None:
                values = column(getattr(self, key), key, low, high)
                object.__setattr__(self, key, None if int(values.max(initial=low)) == low else values)
        lengths = {len(c) for c in self.columns().values()}
        if len(lengths) > 1:
            raise Invalid(f"schedule: its columns differ in length ({', '.join(map(str, sorted(lengths)))})")
        if len(self.chunks) and int(self.chunks.block.max()) >= self.collective.blocks:
            raise Invalid(f"chunk block: the collective has only {self.collective.blocks} blocks")
        object.__setattr__(self, "pieces", _check_pieces(self.pieces, len(self.chunks)))
        object.__setattr__(self, "local", tuple(self.local))
        object.__setattr__(self, "provenance", dict(self.provenance))

    def columns(self) -> dict[str, NDArray[Any]]:
        """Return the columns that exist, by name."""
        names = ("step", "chunk", "src", "dst", "op", "route", "src_slot", "dst_slot", "joint")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    @property
    def transfers(self) -> int:
        return len(self.step)

    @property
    def steps(self) -> int:
        """The number of steps before pipelining; `loads.pipelined_steps` counts those after."""
        return int(self.step.max()) + 1 if len(self.step) else 0

    @property
    def slots(self) -> int:
        """The number of slots in use."""
        highest_slots = [int(c.max()) for c in (self.src_slot, self.dst_slot) if c is not None and len(c)]
        return max(highest_slots, default=0) + 1

    @cached_property
    def chunks_per_rank(self) -> int:
        """SCCL's C: the greatest number of chunks in the input of one rank; a pipelined chunk counts once per piece."""
        relation, blocks = self.collective.relation, self.collective.blocks
        pieces = np.broadcast_to(np.asarray(self.pieces, np.int64), len(self.chunks))
        per_block = np.zeros(blocks, np.int64)
        np.add.at(per_block, self.chunks.block, pieces)
        block, rank = distinct_pairs(relation.pre_block, relation.pre_rank)
        sums = np.zeros(self.collective.ranks, np.int64)
        np.add.at(sums, rank, per_block[block])
        return int(sums.max(initial=0))

    @property
    def mean_chunk(self) -> Fraction:
        """A chunk's share of nbytes in the mean: that of the largest input, divided by its number of chunks C."""
        return Fraction(self.collective.input_weight, self.collective.buffer_weight * max(self.chunks_per_rank, 1))

    def slot(self, side: str) -> Ints:
        """Return the slot column of one side ("src" or "dst"); zeros if it has none."""
        values: Ints | None = getattr(self, f"{side}_slot")
        return np.zeros(self.transfers, np.int32) if values is None else values

    def take(self, rows: ArrayLike, **changes: Any) -> Schedule:
        """Return the schedule with only these rows, in this order. `changes`: further fields to replace."""
        index = np.asarray(rows)
        index = index if index.size else index.astype(np.int64)
        return replace(self, **{**{name: c[index] for name, c in self.columns().items()}, **changes})

    def message_key(self, rows: AnyInts | slice = slice(None)) -> list[tuple[NDArray[Any], int]]:
        """Return the message key of every row (or of `rows`) as columns with their bounds; keys sort in sending order.

        A message is rows with equal (step, src, dst, route) and as many pieces. Messages are in the order of (step,
        (dst - src) modulo ranks, src, route, pieces): in each step a rank first sends to its next neighbour, and no two
        ranks send first to the same receiver. Programs send messages in this order, exports list them so and models
        process them so. The rows of a joint are one message, which is placed where the first of them would be. O(rows).
        """
        if self.joint is not None:
            key, key_bound, _, _ = self._joined
            return [(key[rows], key_bound)]
        return self._message_columns(rows)

    def message_key_columns(self, rows: AnyInts | slice = slice(None)) -> list[NDArray[Any]]:
        """Return the columns of `message_key` without their bounds. O(these rows)."""
        if self.joint is None:
            return self._key_columns(rows)
        key, _, _, _ = self._joined
        return [key[rows]]

    def _key_columns(self, rows: AnyInts | slice) -> list[NDArray[Any]]:
        """Return the message key of rows as columns, without regard to joints."""
        src = self.src[rows]
        rank_distance = self.dst[rows] - src
        rank_distance += (rank_distance < 0) * np.int32(self.collective.ranks)
        columns: list[NDArray[Any]] = [self.step[rows], rank_distance, src]
        if self.route is not None:
            columns.append(self.route[rows] + np.int32(1))
        if not isinstance(self.pieces, int):
            columns.append(self.pieces[self.chunk[rows]])
        return columns

    def _message_columns(self, rows: AnyInts | slice = slice(None)) -> list[tuple[NDArray[Any], int]]:
        """Return the message key of rows with bounds, without regard to joints."""
        bounds = [self.steps, self.collective.ranks, self.collective.ranks]
        if self.route is not None:
            bounds.append(int(self.route.max()) + 2)  # `_key_columns` adds 1
        if not isinstance(self.pieces, int):
            bounds.append(int(self.pieces.max()) + 1)
        return list(zip(self._key_columns(rows), bounds, strict=True))

    @cached_property
    def _joined(self) -> tuple[Longs, int, Longs, Longs]:
        """The keys of `message_key` for a schedule with joints, as (key, key_bound, leads, joint_number).

        A row's key is that of the first row of its joint, followed by a number that distinguishes joints and depends on
        their contents, not on how they are numbered. `leads`: per row the first row of its joint, or the row itself.
        `joint_number`: that number; 0 for single rows.

        >>> from antiphon.core.example import of_rows
        >>> rows = [(0, 0, 0, 1, 0), (0, 0, 0, 2, 0), (1, 0, 1, 3, 0)]
        >>> key, key_bound, leads, joint_number = of_rows("broadcast", 4, rows, roots=(0,), joint=[5, 5, -1])._joined
        >>> leads.tolist(), joint_number.tolist(), bool(key[0] == key[1])
        ([0, 0, 2], [1, 1, 0], True)
        """
        row_key, row_key_bound = pack_columns(*self._message_columns())
        joint_rows, number = number_joints(np.zeros(0, np.int32) if self.joint is None else self.joint)
        leads = np.arange(self.transfers)
        if not len(joint_rows):
            return row_key, row_key_bound, leads, np.zeros(self.transfers, np.int64)
        contents = (row_key, self.chunk, self.slot("src"), self.slot("dst"), self.op)
        order = np.lexsort((*(values[joint_rows] for values in contents[::-1]), number))
        first = order[run_starts(number[order])]  # the first row of every joint
        leads[joint_rows] = joint_rows[first][number]
        joint_hash = np.zeros(len(first), np.uint64)  # per joint a sum over its rows, whose order then has no effect
        with np.errstate(over="ignore"):
            value = np.zeros(len(joint_rows), np.uint64)
            for values in contents:  # multiply-xorshift hash
                value = (value ^ values[joint_rows].astype(np.uint64)) * HASH_MULTIPLIER
                value ^= value >> np.uint64(32)
            np.add.at(joint_hash, number, value * HASH_MULTIPLIER)
        first_rows = joint_rows[first]
        # The position of every joint in the order of contents; the last column distinguishes joints of equal contents.
        position = number_rows(row_key[first_rows], self.chunk[first_rows], joint_hash, np.arange(len(first)))
        joint_number = np.zeros(self.transfers, np.int64)
        joint_number[joint_rows] = 1 + position[number]
        key, key_bound = pack_columns((row_key[leads], row_key_bound), (joint_number, len(first) + 1))
        return key, key_bound, leads, joint_number

    @property
    def leads(self) -> Longs:
        """Per row the first row of its joint in the order of `message_key`; for a single row, itself."""
        if self.joint is None:
            return np.arange(self.transfers)
        _, _, leads, _ = self._joined
        return leads

    def runs(self) -> Bools:
        """Return per row whether its message key differs from that of the row before it; row 0 always does. O(rows).

        So a row that is marked begins a run of rows of one message; a message whose rows are apart has several runs.
        """
        columns: list[AnyInts] = [self.step, self.src, self.dst]
        if self.route is not None:
            columns.append(self.route)
        if not isinstance(self.pieces, int):
            columns.append(self.pieces[self.chunk])
        starts_run = run_starts(columns[0])
        for values in columns[1:]:
            starts_run[1:] |= values[1:] != values[:-1]
        if self.joint is not None:
            _, _, _, joint_number = self._joined
            # all rows of a joint (numbers from 1) are one message, also with different ends; each joint is a message
            same_joint = joint_number[1:] == joint_number[:-1]
            starts_run[1:] = (starts_run[1:] | ~same_joint) & ~(same_joint & (joint_number[1:] > 0))
        return starts_run

    def sorted(self) -> Schedule:
        """Return the rows in canonical order: by message (`message_key`), then by chunk, slots and op."""
        slots = self.slots
        # the rows of a joint have the same key: they are ordered by their own ends
        columns = self.message_key() if self.joint is None else [*self.message_key(), *self._message_columns()]
        columns.append((self.chunk, len(self.chunks)))
        columns += [(self.slot(side), slots) for side in ("src", "dst")] if slots > 1 else []
        columns.append((self.op, 2))
        ordered = is_ascending(*(values for values, _ in columns))
        in_order = self if ordered else self.take(order_of(*pack_columns(*columns)))
        return in_order if self.joint is None else in_order._renumber_joints()

    def _renumber_joints(self) -> Schedule:
        """Renumber joints in order of appearance; a joint of one row becomes a single row."""
        leads = self.leads
        in_joint = np.bincount(leads, minlength=self.transfers)[leads] > 1
        leading_rows, number = unique_inverse(leads[in_joint], bound=max(self.transfers, 1))
        joint = np.full(self.transfers, -1, np.int32)
        first_row = np.full(len(leading_rows), self.transfers, np.int64)
        np.minimum.at(first_row, number, np.flatnonzero(in_joint))
        joint[in_joint] = np.argsort(np.argsort(first_row))[number]
        return self if np.array_equal(joint, self.joint) else replace(self, joint=joint)  # type: ignore[arg-type]

    def same_as(self, other: Schedule) -> bool:
        """Return whether two schedules are equal except for the order of rows and provenance."""
        a, b = self.sorted(), other.sorted()
        own_columns, other_columns = a.columns(), b.columns()
        return (
            a.collective == b.collective
            and own_columns.keys() == other_columns.keys()
            and all(np.array_equal(own_columns[k], other_columns[k]) for k in own_columns)
            and all(np.array_equal(getattr(a.chunks, k), getattr(b.chunks, k)) for k in ("block", "offset", "share"))
            and a.chunks.denominator == b.chunks.denominator
            and a.routes == b.routes
            and np.array_equal(a.pieces, b.pieces)
            and a.local == b.local
        )

    def __repr__(self) -> str:
        return f"Schedule({self.collective!r}, chunks={len(self.chunks)}, steps={self.steps}, rows={self.transfers})"


def _check_pieces(pieces: int | ArrayLike, chunks: int) -> int | Longs:
    """Return pieces as one number, or as a column if chunks differ."""
    array = np.asarray(pieces)
    if array.dtype.kind not in "iu" or array.ndim > 1 or (array.ndim == 1 and len(array) != chunks):
        raise Invalid(f"pieces: expected a whole number, or one per chunk ({chunks}), got {quote(pieces)}")
    if array.size and (int(array.min()) < 1 or int(array.max()) > MAX_PIECES):
        raise Invalid(f"pieces: must be from 1 to {MAX_PIECES}")
    if array.ndim == 0 or bool(np.all(array == array[:1])):
        return int(array.flat[0]) if array.size else 1
    out = array.astype(np.int64)
    out.setflags(write=False)
    return out


def number_joints(joint: Ints) -> tuple[Longs, Longs]:
    """Return the rows of joints with at least two rows, and the joint of each: 0, 1, ... in the order of their numbers.

    A joint of one row counts as a single row.

    >>> rows, number = number_joints(np.array([7, 5, -1, 7, 9, 9]))
    >>> rows.tolist(), number.tolist()
    ([0, 3, 4, 5], [0, 0, 1, 1])
    """
    rows = np.flatnonzero(joint >= 0)
    _, number = unique_inverse(joint[rows], bound=int(joint.max(initial=-1)) + 1)
    has_several_rows = np.bincount(number) > 1
    is_kept = has_several_rows[number]
    new_number = np.cumsum(has_several_rows) - 1  # without gaps
    return rows[is_kept], new_number[number[is_kept]]
