"""Finer chunks: split chunks into parts, or pipeline them in pieces that follow each other through the same steps.

`split` cuts every chunk into equal parts that travel together: more rows per step, the same steps. `pipeline` only
records a number of pieces; `expand` writes them out: piece j of a chunk sends in step s + j what the chunk sends in
step s.

    chunk A: step 0  0 -> 1         pieces A0, A1:  step 0  A0: 0 -> 1
             step 1  1 -> 2                         step 1  A1: 0 -> 1,  A0: 1 -> 2
                                                    step 2               A1: 1 -> 2

With S steps and p pieces the schedule takes S + p - 1 steps of 1/p of the data. `expand_separately` expands like
`expand`, but keeps pieces of different messages in steps of their own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from antiphon.core.columns import Ints, Longs, as_int32, concat_ranges, number_rows, unique_inverse
from antiphon.core.loads import pieces_of
from antiphon.core.schedule import MAX_DENOMINATOR, Chunks, Schedule
from antiphon.errors import Invalid, Unsupported

MAX_ROWS = 2**31 - 1  # of a schedule: row numbers fit 32 bits
# for schedules whose shares have no common denominator in 64 bits; 7! and 2^8, so that common fractions stay exact
ROUND_DENOMINATOR = 5040 * 256


def spread_chunks(schedule: Schedule, first: Longs, count: Longs, **changes: Any) -> Schedule:
    """Repeat every row of chunk c for each of the new chunks first[c], first[c] + 1, ... (count[c] of them). O(new
    rows).

    Chunk 0 becomes chunks 0 and 1, chunk 1 becomes chunk 2:

    >>> from antiphon.core.example import of_rows
    >>> two = of_rows("broadcast", 2, [(0, 0, 0, 1, 0), (1, 1, 0, 1, 0)], roots=(0,), parts=2)
    >>> halves = divide_chunks(two.chunks, np.array([2, 1]))
    >>> finer = spread_chunks(two, np.array([0, 2]), np.array([2, 1]), chunks=halves)
    >>> finer.step.tolist(), finer.chunk.tolist()
    ([0, 0, 1], [0, 1, 2])
    """
    if schedule.joint is None and bool((count == 1).all()):  # every row stays a single row
        keeps_numbers = bool((first == np.arange(len(first))).all())
        return replace(schedule, chunk=schedule.chunk if keeps_numbers else as_int32(first)[schedule.chunk], **changes)
    repeats = count[schedule.chunk]
    if int(repeats.sum()) > MAX_ROWS:
        raise Unsupported(f"the finer schedule would have {int(repeats.sum())} transfers; at most {MAX_ROWS}")
    rows = np.repeat(np.arange(schedule.transfers), repeats)
    chunk = concat_ranges(first[schedule.chunk], repeats)
    if schedule.joint is not None:  # a joint becomes one joint per new chunk
        joint = schedule.joint[rows].astype(np.int64)
        changes["joint"] = np.where(joint < 0, -1, number_rows(joint, chunk))
    return schedule.take(rows, chunk=chunk, **changes)


def divide_chunks(chunks: Chunks, count: Longs) -> Chunks:
    """Cut chunk c into count[c] equal parts, the parts of one chunk next to each other. O(parts).

    Halves, the first of them in three:

    >>> parts = divide_chunks(Chunks([0, 0], [0, 1], [1, 1], 2), np.array([3, 1]))
    >>> parts.offset.tolist(), parts.share.tolist(), parts.denominator
    ([0, 1, 2, 3], [1, 1, 1, 3], 6)
    """
    common = int(np.lcm.reduce(np.unique(count))) if len(count) else 1
    if chunks.denominator * common >= MAX_DENOMINATOR:
        raise Unsupported(f"parts of 1/{common} have no common denominator below 2^62; use fewer or rounder parts")
    # Bring all parts over one denominator: chunk c has count[c] parts of share[c] * common / count[c].
    share = np.repeat(chunks.share * (common // count), count)
    part_index = concat_ranges(np.zeros(len(count), np.int64), count)
    return Chunks(
        np.repeat(chunks.block, count),
        np.repeat(chunks.offset * common, count) + part_index * share,
        share,
        chunks.denominator * common,
    )


def round_borders(schedule: Schedule, denominator: int = ROUND_DENOMINATOR) -> Schedule:
    """Move the borders of chunks to the nearest multiples of 1 / denominator of their blocks. O(chunks).

    The chunks still tile their blocks, so the schedule stays right. Unsupported if a chunk would be empty.

    >>> from antiphon.core.example import of_rows
    >>> halves = of_rows("broadcast", 2, [(0, 0, 0, 1, 0), (1, 1, 0, 1, 0)], roots=(0,), parts=2)
    >>> round_borders(halves, 5).chunks.share.tolist()
    [3, 2]
    """
    chunks = schedule.chunks
    borders = np.stack([chunks.offset, chunks.offset + chunks.share]).astype(object)  # products may exceed 64 bits
    begin, end = ((2 * denominator * borders + chunks.denominator) // (2 * chunks.denominator)).astype(np.int64)
    if (begin == end).any():
        raise Unsupported(f"chunks of less than 1/{denominator} of a block cannot be rounded; use fewer parts")
    return replace(schedule, chunks=Chunks(chunks.block, begin, end - begin, denominator))


def split(schedule: Schedule, parts: int) -> Schedule:
    """Cut every chunk into `parts` equal chunks that take the same routes in the same steps. O(new rows).

    >>> from antiphon.core.example import star
    >>> split(star(), 2).chunk.tolist(), split(star(), 2).step.tolist()
    ([0, 1, 0, 1, 0, 1, 0, 1], [0, 0, 0, 0, 1, 1, 1, 1])
    """
    if parts < 1:
        raise Invalid(f"split: every chunk is cut into 1 part or more, got {parts}")
    if parts == 1:
        return schedule
    count = np.full(len(schedule.chunks), parts, np.int64)
    pieces = schedule.pieces if isinstance(schedule.pieces, int) else np.repeat(schedule.pieces, parts)
    return spread_chunks(
        schedule, np.cumsum(count) - count, count, chunks=divide_chunks(schedule.chunks, count), pieces=pieces
    )


def pipeline(schedule: Schedule, pieces: int | ArrayLike) -> Schedule:
    """Return the schedule with its chunks sent in this many pieces: one number, or one per chunk."""
    return replace(schedule, pieces=pieces)  # type: ignore[arg-type]  # checked by Schedule


def expand(schedule: Schedule) -> Schedule:
    """Write every chunk of p pieces as p chunks, each one step behind the one before. O(new rows).

    >>> from antiphon.core.example import star
    >>> fine = expand(pipeline(star(), 2))
    >>> fine.chunk.tolist(), fine.step.tolist()
    ([0, 1, 0, 1, 0, 1, 0, 1], [0, 1, 0, 1, 1, 2, 1, 2])
    """
    count = pieces_of(schedule).copy()
    if bool((count == 1).all()):
        return schedule
    repeats = count[schedule.chunk]
    # Piece j of a row lags j steps behind the row.
    lag = concat_ranges(np.zeros(len(repeats), np.int64), repeats)
    divided = spread_chunks(
        schedule, np.cumsum(count) - count, count, chunks=divide_chunks(schedule.chunks, count), pieces=1
    )
    step: Ints = divided.step + lag.astype(np.int32)
    return replace(divided, step=step)


def expand_separately(schedule: Schedule) -> tuple[Schedule, Ints]:
    """Expand pieces like `expand`, but give pieces of different messages steps of their own.

    If pieces that began in different steps are sent in the same step, that step becomes several steps, in the order in
    which the pieces began, so that they remain different messages (docs/program.md). Also return the expanded step of
    each new step. O(new rows), and a sort of them.

    Rank 0 receives the second piece of each message while it sends the first pieces of the result:

    >>> from antiphon.core.example import star
    >>> fine, step = expand_separately(pipeline(star(), 2))
    >>> fine.step.tolist(), step.tolist()
    ([0, 1, 0, 1, 2, 3, 2, 3], [0, 1, 1, 2])
    """
    expanded = expand(schedule)
    if expanded is schedule:
        return schedule, np.arange(schedule.steps, dtype=np.int32)
    piece_count = pieces_of(schedule)[schedule.chunk]
    bound = int(piece_count.max(initial=1)) + 1
    # For its steps a message counts by its original step and its number of pieces; sender and receiver do not matter.
    _, message = unique_inverse(schedule.step.astype(np.int64) * bound + piece_count, bound=schedule.steps * bound)
    message_count = int(message.max(initial=0)) + 1
    # Order by expanded step, then by original message: pieces of different messages never share a step.
    key = expanded.step.astype(np.int64) * message_count + np.repeat(message, piece_count)
    distinct_keys, step = unique_inverse(key, bound=expanded.steps * message_count)
    return replace(expanded, step=step.astype(np.int32)), (distinct_keys // message_count).astype(np.int32)
