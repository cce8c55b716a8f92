"""Finer chunks: by splitting, or by pieces that follow each other through the same steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from antiphon.core.columns import Ints, Longs, ranges
from antiphon.core.loads import pieces_of
from antiphon.core.schedule import MAX_DENOMINATOR, Chunks, Schedule
from antiphon.errors import Invalid, Unsupported

MAX_ROWS = 2**31 - 1


def spread(schedule: Schedule, first: Longs, count: Longs, **changes: Any) -> Schedule:
    """Every row of chunk c once for each of the new chunks first[c], first[c] + 1, ... (count[c] of them)."""
    times = count[schedule.chunk]
    if int(times.sum()) > MAX_ROWS:
        raise Unsupported(f"the finer schedule would have {int(times.sum())} transfers; at most {MAX_ROWS}")
    rows = np.repeat(np.arange(schedule.transfers), times)
    return schedule.take(rows, chunk=ranges(first[schedule.chunk], times), **changes)


def divided(chunks: Chunks, count: Longs) -> Chunks:
    """Chunk c cut into count[c] equal parts, the parts of one chunk side by side."""
    common = int(np.lcm.reduce(np.unique(count))) if len(count) else 1
    if chunks.denominator * common >= MAX_DENOMINATOR:
        raise Unsupported(f"parts of 1/{common} have no common denominator below 2^62; use fewer or rounder parts")
    share = np.repeat(chunks.share * (common // count), count)
    within = ranges(np.zeros(len(count), np.int64), count)
    return Chunks(
        np.repeat(chunks.block, count),
        np.repeat(chunks.offset * common, count) + within * share,
        share,
        chunks.denominator * common,
    )


def split(schedule: Schedule, parts: int) -> Schedule:
    """Every chunk in `parts` equal chunks that go the same way in the same steps."""
    if parts < 1:
        raise Invalid(f"split: every chunk is cut into 1 part or more, got {parts}")
    if parts == 1:
        return schedule
    count = np.full(len(schedule.chunks), parts, np.int64)
    pieces = schedule.pieces if isinstance(schedule.pieces, int) else np.repeat(schedule.pieces, parts)
    return spread(schedule, np.cumsum(count) - count, count, chunks=divided(schedule.chunks, count), pieces=pieces)


def pipeline(schedule: Schedule, pieces: int | ArrayLike) -> Schedule:
    """The same schedule with its chunks sent in this many pieces: one number, or one per chunk."""
    return replace(schedule, pieces=pieces)  # type: ignore[arg-type]  # checked and made plain when built


def expand(schedule: Schedule) -> Schedule:
    """Every chunk of p pieces as p chunks, each a step behind the one before."""
    count = pieces_of(schedule).copy()
    if bool((count == 1).all()):
        return schedule
    times = count[schedule.chunk]
    behind = ranges(np.zeros(len(times), np.int64), times)
    finer = spread(schedule, np.cumsum(count) - count, count, chunks=divided(schedule.chunks, count), pieces=1)
    step: Ints = finer.step + behind.astype(np.int32)
    return replace(finer, step=step)
