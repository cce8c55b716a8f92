"""Limit the pieces of a schedule for simulators that simulate every piece of every message.

Example: 1,000 rows of 1,000 pieces would be a million rows; `limit_pieces` returns 131 pieces per chunk and a note
that the time is approximate.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from antiphon.core.loads import pieces_of
from antiphon.core.schedule import Schedule
from antiphon.cost.trace import expanded_rows

MAX_EXPANDED_ROWS = 2**17  # rows up to which every piece gets its own rows


def limit_pieces(schedule: Schedule) -> tuple[Schedule, str]:
    """Return the schedule with no more pieces than can be simulated one by one, and a note if there were more."""
    rows = expanded_rows(schedule)
    if rows <= max(MAX_EXPANDED_ROWS, schedule.transfers):
        return schedule, ""
    pieces = pieces_of(schedule)
    rows_of_chunk = np.bincount(schedule.chunk, minlength=len(pieces))
    low, high = 1, int(pieces.max())  # binary search for the greatest cap on pieces per chunk that fits
    while low < high:
        middle = (low + high + 1) // 2
        fits = int((np.minimum(pieces, middle) * rows_of_chunk).sum()) <= MAX_EXPANDED_ROWS
        low, high = (middle, high) if fits else (low, middle - 1)
    note = (
        f"approximate: simulated with {low} pieces a chunk in place of {int(pieces.max())}, which are {rows} transfers"
    )
    return replace(schedule, pieces=np.minimum(pieces, low)), note
