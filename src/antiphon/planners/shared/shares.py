"""Rows that name their links, and chunks that are shares of blocks, as a schedule."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from antiphon.core.collective import Collective
from antiphon.core.routes import Routes
from antiphon.core.schedule import MAX_DENOMINATOR, Chunks, Schedule
from antiphon.errors import Unsupported
from antiphon.planners.shared.reach import Path

Row = tuple[int, int, int, int, int, Path]  # step, chunk, from, to, op, links


def schedule_of(collective: Collective, shares: Sequence[tuple[int, Fraction]], rows: Sequence[Row]) -> Schedule:
    """`shares`: per chunk its block and its share of it; the chunks of a block stand one behind the other."""
    whole = math.lcm(*{share.denominator for _, share in shares})
    if whole >= MAX_DENOMINATOR:
        raise Unsupported(
            "the shares of the trees have no common denominator below 2^62; use planner trees, which rounds them"
        )
    return schedule_in_parts(collective, [(b, s.numerator * (whole // s.denominator)) for b, s in shares], whole, rows)


def schedule_in_parts(
    collective: Collective, parts: Sequence[tuple[int, int]], whole: int, rows: Sequence[Row]
) -> Schedule:
    """`parts`: per chunk its block, and how many of the `whole` parts of a block it is; the chunks of a block stand one
    behind the other."""
    block, share = np.array(parts, np.int64).reshape(-1, 2).T
    before = np.cumsum(share) - share
    first = np.concatenate([[True], block[1:] != block[:-1]])
    offset = before - before[np.maximum.accumulate(np.where(first, np.arange(len(block)), 0))]
    paths: dict[Path, int] = {}
    route = np.array([paths.setdefault(row[5], len(paths)) for row in rows], np.int32)
    step, chunk, src, dst, op = np.array([row[:5] for row in rows], np.int32).reshape(-1, 5).T
    return Schedule(
        collective, Chunks(block.astype(np.int32), offset, share, whole), step, chunk, src, dst,
        op.astype(np.uint8), route=route, routes=Routes.of(paths),
    )  # fmt: skip
