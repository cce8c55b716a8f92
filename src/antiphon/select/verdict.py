"""Write the verdict of a tuning: for which sizes to use Antiphon's plans, and which to leave to the library.

Example: "use Antiphon's plans from 64KB to 4MB (1.5x over NCCL); elsewhere NCCL is as good". If no library model is
known, the verdict compares with the lower bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby

from antiphon.cost.nccl.accuracy import is_within_error
from antiphon.select.candidate import Range
from antiphon.units import format_ends, format_size


def verdict_of(ranges: Sequence[Range], stand_ins: Sequence[str] = ()) -> str:
    """Return one sentence on the ranges of one collective, in order of size; "" if there are none.

    `stand_ins`: the planners that speedups are over, if the library's own choice is not known.
    """
    if not ranges:
        return ""
    if any(r.over for r in ranges):
        return _against_library(ranges)
    return _against_bound(ranges, stand_ins)


def is_even(r: Range) -> bool:
    """Return whether the speedup over the library is within the error of the library's model."""
    return bool(r.over) and r.speedup is not None and is_within_error(r.speedup, r.error)


def _against_library(ranges: Sequence[Range]) -> str:
    """Return the verdict if the library's own choice is known."""
    library = next(r.reference for r in ranges if r.over).upper()
    our_ranges = [r for r in ranges if not r.served_by]
    library_ranges = [r for r in ranges if r.served_by]
    is_slower = any(r.speedup is not None and r.speedup < 1 and not is_even(r) for r in library_ranges)
    as_good = "as good or better" if is_slower else "as good"
    if not our_ranges:
        return f"leave all sizes to {library}, which is {as_good}"
    speedups = speedups_text([speedup for r in our_ranges for speedup in _speedups(r)], library)
    if not library_ranges:
        return f"use Antiphon's plans at all sizes{speedups}"
    spans = spans_text([(r.start, r.stop, bool(r.served_by)) for r in ranges])
    return f"use Antiphon's plans {spans}{speedups}; elsewhere {library} is {as_good}"


def spans_text(ranges: Sequence[tuple[int, int | None, bool]], family: str = "") -> str:
    """Return the sizes not left to the library, of ranges (start, stop, is left to the library) in order of size.

    `family`: the units to prefer, DECIMAL (KB) or BINARY (KiB); "": the shortest for each size.

    >>> spans_text([(1000, 4000, False), (4000, 8000, False), (8000, 16000, True), (16000, 32000, False)])
    'from 1KB to 8KB and from 16KB to 32KB'
    """
    spans = []
    for is_left, group in groupby(ranges, lambda start_stop_left: start_stop_left[-1]):
        if not is_left:
            starts, stops, _ = zip(*group, strict=True)
            start, stop = starts[0], stops[-1]
            first, last = format_ends(start, stop, family)
            if stop is None:
                spans.append(f"from {first} on")
            else:
                spans.append(f"from {first} to {last}" if stop > start + 1 else f"at {first}")
    return " and ".join(spans)


def speedups_text(speedups: Sequence[float], library: str) -> str:
    """Return the least and the greatest speedup: " (1.34x to 1.8x over NCCL)"."""
    if not speedups:
        return ""
    ends = dict.fromkeys(f"{speedup:.3g}x" for speedup in (min(speedups), max(speedups)))
    return f" ({' to '.join(ends)} over {library})"


def _against_bound(ranges: Sequence[Range], stand_ins: Sequence[str]) -> str:
    """Return the verdict if the library's own choice is not known: by the greatest gap, and speedups over stand-ins."""
    text = "use Antiphon's plans at all sizes"
    gaps = [r.gap if r.largest_gap is None else r.largest_gap for r in ranges]
    known_gaps = [gap for gap in gaps if gap is not None]
    if len(known_gaps) == len(ranges):
        largest = max(known_gaps)
        text += ": optimal" if largest == 1 else f": within {_rounded_up(largest):g}x of the lower bound"
        text += f", optimal at {format_size(ranges[-1].at)}" if ranges[-1].gap == 1 and largest > 1 else ""
    speedups = [speedup for r in ranges for speedup in _speedups(r)]
    if speedups and stand_ins and max(speedups) != 1:  # 1: the best plan is that of a stand-in
        over = " or ".join(stand_ins)
        text += f"; up to {max(speedups):.3g}x over {over}" if max(speedups) > 1 else f"; {over} is faster"
    return text


def _speedups(r: Range) -> list[float]:
    """Return the least and the greatest speedup at any size of the range; else that of its row, or none."""
    if r.least_speedup is not None and r.largest_speedup is not None:
        return [r.least_speedup, r.largest_speedup]
    return [] if r.speedup is None else [r.speedup]


def _rounded_up(gap: float) -> float:
    """Return a gap that is no less, with two decimals; with an allowance for rounding errors."""
    return math.ceil(gap * 100 - 1e-6) / 100
