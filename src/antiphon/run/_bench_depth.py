"""How many pieces a schedule should be sent in, found by measuring."""

from __future__ import annotations

from dataclasses import replace

from antiphon.core.transform import pipeline
from antiphon.cost.miad import Miad
from antiphon.errors import AntiphonError
from antiphon.run._bench_wanted import How, Measure, Row, Wanted

LEAST_PIECE = 2**14  # bytes of the buffer; smaller pieces only cost
MOST_PIECES = 64
MOST_TRIED = 16


def depth(wanted: Wanted, how: How, measure: Measure) -> int:
    """The number of pieces at which the controller of piece sizes (`cost.miad`) settles for this schedule and size.

    It is told the throughput of each size it asks for: the median of the iterations. Sizes that come to as many
    pieces are measured once. A launch for each number of pieces tried, at most 16.
    """
    least = max(LEAST_PIECE, wanted.nbytes // MOST_PIECES)
    if wanted.nbytes <= least:
        return 1
    controller = Miad(smallest=least, largest=wanted.nbytes, repeats=1, patience=1, tolerance=0.03)
    known: dict[int, float] = {}
    while not controller.settled:
        pieces = -(-wanted.nbytes // controller.next())
        if pieces not in known:
            if len(known) == MOST_TRIED:
                break
            known[pieces] = _seconds(replace(wanted, schedule=pipeline(wanted.schedule, pieces)), how, measure)
        controller.measured(wanted.nbytes / known[pieces])
    return min(known, key=lambda pieces: (known[pieces], pieces))


def _seconds(wanted: Wanted, how: How, measure: Measure) -> float:
    rows: list[Row | None] = []
    measure([wanted], how, rows.append, lambda: False)
    row = rows[0] if rows else None
    if row is None:
        raise AntiphonError("the number of pieces could not be measured")
    return float(row["seconds"])
