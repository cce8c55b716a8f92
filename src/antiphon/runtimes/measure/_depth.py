"""How many pieces a schedule should be sent in, found by measuring."""

from __future__ import annotations

from dataclasses import replace

from antiphon.core.transform import pipeline
from antiphon.cost.miad import Miad
from antiphon.errors import AntiphonError
from antiphon.runtimes.measure.case import Case, How, Row, Runnable
from antiphon.runtimes.measure.rows import runtime

LEAST_PIECE = 2**14  # bytes of the buffer; smaller pieces only cost
MOST_PIECES = 64
MOST_TRIED = 16


def depth(on: str, one: Runnable, case: Case, how: How) -> int:
    """The number of pieces at which the controller of piece sizes (`cost.miad`) settles for this schedule and size.

    It is told the throughput of each size it asks for: the median of the iterations. Sizes that come to as many
    pieces are measured once. A launch for each number of pieces tried, at most 16.
    """
    least = max(LEAST_PIECE, case.nbytes // MOST_PIECES)
    if case.nbytes <= least:
        return 1
    controller = Miad(smallest=least, largest=case.nbytes, repeats=1, patience=1, tolerance=0.03)
    known: dict[int, float] = {}
    while not controller.settled:
        pieces = -(-case.nbytes // controller.next())
        if pieces not in known:
            if len(known) == MOST_TRIED:
                break
            deeper = Runnable(pipeline(one.schedule, pieces), one.machine)
            known[pieces] = _seconds(on, deeper, case, how)
        controller.measured(case.nbytes / known[pieces])
    return min(known, key=lambda pieces: (known[pieces], pieces))


def _seconds(on: str, one: Runnable, case: Case, how: How) -> float:
    rows: dict[int, Row] = {}
    runtime(on).run([one], [replace(case, program=0)], how, rows.__setitem__)
    if not rows:
        raise AntiphonError("the number of pieces could not be measured")
    return float(rows[0]["seconds"])
