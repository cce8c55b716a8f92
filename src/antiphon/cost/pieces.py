"""Limit the pieces that simulators of single messages expand."""

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
    low, high = 1, int(pieces.max())  # the greatest depth that fits, the same for all deeper ones
    while low < high:
        middle = (low + high + 1) // 2
        fits = int(np.minimum(pieces, middle)[schedule.chunk].sum()) <= MOST_PIECED
        low, high = (middle, high) if fits else (low, middle - 1)
    note = (
        f"approximate: simulated with {low} pieces a chunk in place of {int(pieces.max())}, which are {rows} transfers"
    )
    return replace(schedule, pieces=np.minimum(pieces, low)), note
