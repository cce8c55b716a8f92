"""Limit the pieces of a schedule for simulators that treat every message of every piece by itself.

Example: 1,000 rows of 1,000 pieces would be a million rows; `within_pieces` returns 131 pieces per chunk and a note
that the time is approximate.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from antiphon.core.loads import pieces_of
from antiphon.core.schedule import Schedule
from antiphon.cost.trace import expanded_rows

MOST_PIECED = 2**17  # rows up to which pieces are written out


def within_pieces(schedule: Schedule) -> tuple[Schedule, str]:
    """Return the schedule with no more pieces than can be simulated one by one, and a note if it was reduced."""
    rows = expanded_rows(schedule)
    if rows <= max(MOST_PIECED, schedule.transfers):
        return schedule, ""
    pieces = pieces_of(schedule)
    low, high = 1, int(pieces.max())  # binary search for the greatest cap on pieces per chunk that fits
    while low < high:
        middle = (low + high + 1) // 2
        fits = int(np.minimum(pieces, middle)[schedule.chunk].sum()) <= MOST_PIECED
        low, high = (middle, high) if fits else (low, middle - 1)
    note = (
        f"approximate: simulated with {low} pieces a chunk in place of {int(pieces.max())}, which are {rows} transfers"
    )
    return replace(schedule, pieces=np.minimum(pieces, low)), note
