"""The rows of a tuning's table: what to use from which size to which, and how fast that is.

A `Range` (select) has its sizes, the size at which it was priced (`at`), our candidate with its seconds and gap, and
the library's algorithm (`over`) that it is compared with, or that serves the range (`served_by`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from antiphon.select import Range
from antiphon.show import words
from antiphon.show.columns import time_column
from antiphon.units import format_size

# each is a row of a table: one range, or consecutive ranges that are left to a library
RangeGroups = Sequence[Sequence[Range]]


def group_ranges(ranges: Sequence[Range]) -> list[Sequence[Range]]:
    """Group ranges into rows: consecutive ranges that are left to the library share one."""
    rows: list[Sequence[Range]] = []
    for is_left, run in groupby(ranges, lambda r: bool(r.served_by)):
        group = list(run)
        rows += [group] if is_left else [[r] for r in group]
    return rows


def range_cells(groups: RangeGroups) -> tuple[list[str], list[list[str]]]:
    """Return the head and the cells of the table: for each group of ranges what to use, its time and gap.

    A group shows the figures of its last range.
    """
    has_library = any(r.over for group in groups for r in group)
    has_speedup = any(r.speedup is not None for group in groups for r in group)
    unit, time_text = time_column(_time_of_choice(group[-1]) for group in groups)
    rows = []
    for group in groups:
        r = group[-1]
        start, stop = row_ends(group[0].start, r.stop)
        use = [words.use_text(r)] if has_library else []
        algorithm = r.over if r.served_by else words.candidate_text(r.candidate)
        gap = words.ratio(r.library_gap if r.served_by else r.gap)
        speedup = [words.speedup_text(r)] if has_speedup else []
        time = time_text(_time_of_choice(r))
        rows.append([start, stop, *use, algorithm, format_size(r.at), time, gap, *speedup])
    use, speedup = ["use"] if has_library else [], ["speedup"] if has_speedup else []
    return ["from", "to", *use, "algorithm", "at", f"time {unit}", "gap", *speedup], rows


def row_ends(start: int, stop: int) -> tuple[str, str]:
    """Return the cells of a row for sizes from `start` to below `stop`; of a row for one size, both are that size."""
    first, last = words.ends_text(start, stop)
    # "-": one size, which is the end, too, except where ">4MB" means one byte more than 4 MB
    return first, first if last == "-" and first[0] != ">" else last


def _time_of_choice(r: Range) -> float:
    """Return the seconds of what serves the range: our plan, or the library, which takes `speedup` times as long."""
    return r.seconds * r.speedup if r.served_by and r.speedup is not None else r.seconds
