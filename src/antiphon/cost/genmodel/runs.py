"""Piecewise constant functions over steps, one per key (a link or a rank): summed, compared, aligned.

A *segment* is a stretch of steps in which the same messages are in progress: it ends where some message, with its
pieces, begins or ends. So pieces are never expanded: a message is in progress from segment `low` up to, but excluding,
segment `high`. A *run* is (key, low, high) with a value: for example key = link, value = load.

    sum_runs              the total per key where runs overlap, as runs of constant value (sweep over begins and ends)
    merge_runs            the union of overlapping or adjacent runs of a key
    highest_per_key       the maximum per key
    greatest_per_segment  per segment the run of greatest value that covers it
    align_runs            cut the runs of one function where another one changes

`count` is the number of segments. Pairs (key, segment) are sorted as integers: key * count + low, or key *
(count + 1) + high where `count` itself may occur.

Example: link 3 carries load 1 in segments [0, 4) and load 2 in [2, 6). Summed: 1 in [0, 2), 3 in [2, 4), 2 in [4, 6).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.core.columns import (
    TABLE_PER_ROW,
    Floats,
    Longs,
    distinct,
    order_of,
    run_starts,
    unique_inverse,
)
from antiphon.core.messages import Messages
from antiphon.core.stairs import upper_envelope

# Of core.columns: order_of(keys, bound) returns the row numbers, stably sorted by keys below `bound`; run_starts where
# runs of equal keys begin; unique_inverse(keys, bound) the distinct keys, ascending, and each key's index among them.

Numbers = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Segments:
    """The segments of a schedule, and which of them each message is in progress in."""

    begin: Longs  # per segment its first step
    length: Longs  # per segment its number of steps
    low: Longs  # per message its first segment
    high: Longs  # per message the first segment after it

    def __len__(self) -> int:
        return len(self.length)

    @cached_property
    def is_unpipelined(self) -> bool:
        """Whether every message is in progress in one segment only, i.e. nothing is pipelined."""
        return are_single_segments(self.low, self.high)


def are_single_segments(low: Longs, high: Longs) -> bool:
    """Return whether every run is one segment long; two runs of a key then coincide or are disjoint."""
    return bool((high - low == 1).all())


def segments(sent: Messages) -> Segments:
    """Return the stretches of steps in which the same messages are in progress.

    O(n + steps), or one sort if there are many more steps than messages (`unique_inverse`).

    Two pieces: messages 0 and 1 are in progress in steps 0 and 1, messages 2 and 3 in steps 1 and 2, so each of the
    three steps is a segment.

    >>> from antiphon.core.example import star
    >>> from antiphon.core.messages import messages
    >>> from antiphon.core.transform import pipeline
    >>> span = segments(messages(pipeline(star(), 2)))
    >>> span.length.tolist(), span.low.tolist(), span.high.tolist()
    ([1, 1, 1], [0, 0, 1, 1], [2, 2, 3, 3])
    """
    begin = sent.step.astype(np.int64)
    end = begin + sent.pieces
    if not len(begin):
        return Segments(begin, begin, begin, begin)
    marks, position = unique_inverse(np.concatenate([begin, end]), int(end.max()) + 1)
    return Segments(marks[:-1], np.diff(marks), position[: len(begin)], position[len(begin) :])


@dataclass(frozen=True, eq=False)
class Runs:
    """A piecewise constant function per key: run i has the values `values[...][i]` in segments low[i] to high[i] - 1.

    Runs are in the order of (key, low) and disjoint per key, except in the argument of `highest_per_key`; the function
    is 0 between them. It may have several values, one column of `values` each.
    """

    key: Longs
    low: Longs
    high: Longs
    values: tuple[Numbers, ...]


def sum_runs(key: Longs, low: Longs, high: Longs, columns: Sequence[Numbers], count: int) -> Runs:
    """Sum per key the values of overlapping runs. One sort.

    Sums of integers are exact; they may be floats if every run is one segment long (`np.bincount`).

    Key 7 has 1 in segments 0 and 1, and 10 in 1 and 2:

    >>> runs = sum_runs(np.array([7, 7]), np.array([0, 1]), np.array([2, 3]), [np.array([1, 10])], count=3)
    >>> runs.key.tolist(), runs.low.tolist(), runs.high.tolist(), runs.values[0].tolist()
    ([7, 7, 7], [0, 1, 2], [1, 2, 3], [1, 11, 10])
    """
    if not len(key):
        return Runs(key, low, high, tuple(columns))
    if are_single_segments(low, high):
        position = key * count + low
        # If a table of all (key, segment) has few elements per run, adding up in it is faster than sorting.
        if (int(key.max()) + 1) * count <= TABLE_PER_ROW * len(key):
            used_positions = np.flatnonzero(np.bincount(position))
            sums = tuple(np.bincount(position, weights=column)[used_positions] for column in columns)
            return Runs(used_positions // count, used_positions % count, used_positions % count + 1, sums)
        order = order_of(position, (int(key.max()) + 1) * count)
        first = np.flatnonzero(run_starts(position[order]))
        position = position[order[first]]
        totals = tuple(np.add.reduceat(column[order], first) for column in columns)
        return Runs(position // count, position % count, position % count + 1, totals)
    # Sweep line: +value at each begin, -value at each end; the prefix sum is the height between events.
    event = np.concatenate([key * (count + 1) + low, key * (count + 1) + high])  # (key, segment) as one number
    order = order_of(event, (int(key.max()) + 1) * (count + 1))
    event = event[order]
    last = np.flatnonzero(np.append(event[1:] != event[:-1], True))
    heights = [np.cumsum(np.concatenate([column, -column])[order])[last] for column in columns]
    event = event[last]
    # Floating-point sums do not return to exactly 0 behind the last run; integers do. So 1e-12 of the maximum is zero.
    is_nonzero = [np.abs(h) > (1e-12 * np.abs(h).max() if h.dtype.kind == "f" else 0) for h in heights]
    nonzero = np.flatnonzero(np.any(is_nonzero, axis=0)[:-1])  # beyond the end of a key all is 0 again
    key, low = np.divmod(event[nonzero], count + 1)
    return Runs(key, low, event[nonzero + 1] % (count + 1), tuple(height[nonzero] for height in heights))


def merge_runs(key: Longs, low: Longs, high: Longs, count: int) -> tuple[Longs, Longs, Longs]:
    """Merge overlapping or adjacent runs of equal keys: (key, low, high) of the union. One sort.

    >>> merge_runs(np.array([7, 7, 9]), np.array([0, 1, 0]), np.array([2, 3, 1]), count=3)
    (array([7, 9]), array([0, 0]), array([3, 1]))
    """
    order = order_of(key * count + low, (int(key.max(initial=0)) + 1) * count)
    key, low, high = key[order], low[order], high[order]
    # the end of all runs so far; with the key in front, the maximum begins anew with each key
    covered_until = np.maximum.accumulate(key * (count + 1) + high)
    begins_run = run_starts(key)
    begins_run[1:] |= (key * (count + 1) + low)[1:] > covered_until[:-1]
    first = np.flatnonzero(begins_run)
    last = np.append(first[1:], len(key)) - 1
    return key[first], low[first], covered_until[last] - key[first] * (count + 1)


def highest_per_key(runs: Runs, count: int) -> Runs:
    """Return per key the maximum, in every segment, of runs with a single column of values >= 0; they may overlap.

    O(n log n) in runs, linear if every run is one segment long.

    >>> top = highest_per_key(Runs(np.array([7, 7]), np.array([0, 1]), np.array([2, 3]), (np.array([4, 5]),)), 3)
    >>> top.key.tolist(), top.low.tolist(), top.high.tolist(), top.values[0].tolist()
    ([7, 7, 7], [0, 1, 2], [1, 2, 3], [4, 5, 5])
    """
    (values,) = runs.values
    if are_single_segments(runs.low, runs.high):
        positions, position = unique_inverse(runs.key * count + runs.low, (int(runs.key.max(initial=0)) + 1) * count)
        maxima = np.zeros(len(positions), values.dtype)
        np.maximum.at(maxima, position, values)
        return Runs(positions // count, positions % count, positions % count + 1, (maxima,))
    max_pairs = (int(runs.key.max(initial=0)) + 1) * (count + 1)
    ends = np.concatenate([runs.key * (count + 1) + runs.low, runs.key * (count + 1) + runs.high])
    marks, position = unique_inverse(ends, max_pairs)
    size = len(runs.key)
    # from each mark to the next: the greatest value of the runs there, and the run that has it (-1: none)
    top, winner = upper_envelope(position[:size], position[size:], values, len(marks))
    used_segments = np.flatnonzero(winner >= 0)
    key, low = np.divmod(marks[used_segments], count + 1)
    return Runs(key, low, marks[used_segments + 1] % (count + 1), (top[used_segments],))


def align_runs(runs: Runs, other: Runs, count: int) -> Runs:
    """Split the first function's runs where the other one changes, and add the other's first value as a column (0: no
    run).

    O(n log n). A run of 5 from 0 to 3, and another of 8 from 1 to 2:

    >>> first, second = (Runs(*np.array([[7], [a], [b]]), (np.array([v]),)) for a, b, v in ((0, 3, 5), (1, 2, 8)))
    >>> cut = align_runs(first, second, count=3)
    >>> cut.low.tolist(), cut.high.tolist(), [column.tolist() for column in cut.values]
    ([0, 1, 2], [1, 2, 3], [[5, 5, 5], [0, 8, 0]])
    """
    if not len(other.key) or not len(runs.key):
        return Runs(runs.key, runs.low, runs.high, (*runs.values, np.zeros(len(runs.key), np.int64)))
    width = count + 1
    begin, end = runs.key * width + runs.low, runs.key * width + runs.high
    other_begin, other_end = other.key * width + other.low, other.key * width + other.high
    # Cut at every begin of a run and at every change of the other function.
    points = distinct(np.concatenate([begin, other_begin, other_end]))
    run = np.searchsorted(begin, points, side="right") - 1
    inside = (run >= 0) & (points < end[run])
    # A piece ends at the next point, or where its run ends if that comes first. No point comes after the last one, so a
    # piece from there on is of the last run and ends with it.
    next_point = np.append(points[1:], end[-1])
    piece_end = np.minimum(next_point[inside], end[run[inside]])
    points, run = points[inside], run[inside]
    other_run = np.searchsorted(other_begin, points, side="right") - 1
    value = np.where((other_run >= 0) & (points < other_end[other_run]), other.values[0][other_run], 0)
    low = points % width
    values = (*(column[run] for column in runs.values), value)
    return Runs(runs.key[run], low, low + (piece_end - points), values)


def greatest_per_segment(low: Longs, high: Longs, value: Floats, count: int) -> Longs:
    """Return per segment the run of greatest value that covers it (the first of equal ones), or -1.

    O(n log n) in runs.

    >>> greatest_per_segment(np.array([0, 1]), np.array([2, 3]), np.array([4.0, 5.0]), count=4)
    array([ 0,  1,  1, -1])
    """
    if not len(low):
        return np.full(count, -1, np.int64)
    # Reversed, so that of equal values the first run wins; `count` segments lie between count + 1 marks.
    _, winner = upper_envelope(low[::-1], high[::-1], value[::-1], count + 1)
    return np.where(winner >= 0, len(low) - 1 - winner, -1)[:count]
