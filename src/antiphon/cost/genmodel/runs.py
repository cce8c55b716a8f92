"""Functions that are constant over runs of segments, one per key: added up, compared, put beside each other.

A segment is a stretch of steps between two that follow each other among those where some message, with its pieces,
begins or ends. So pieces are never written out: a message is under way from segment `low` up to `high`, without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.core.columns import Floats, Longs, dense, distinct, order_of, starts
from antiphon.core.loads import envelope
from antiphon.core.messages import Messages

Numbers = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Segments:
    """The segments of a schedule: how many steps each lasts; for every message the first, and the first after it."""

    begin: Longs  # the step with which each segment begins
    length: Longs
    low: Longs
    high: Longs

    def __len__(self) -> int:
        return len(self.length)

    @cached_property
    def single(self) -> bool:
        """Every message is under way in one segment only: nothing is pipelined."""
        return alone(self.low, self.high)


def alone(low: Longs, high: Longs) -> bool:
    return bool((high - low == 1).all())


def segments(sent: Messages) -> Segments:
    """O(n), or one sort where steps are few and far between."""
    begin = sent.step.astype(np.int64)
    end = begin + sent.pieces
    if not len(begin):
        return Segments(begin, begin, begin, begin)
    marks, place = dense(np.concatenate([begin, end]), int(end.max()) + 1)
    return Segments(marks[:-1], np.diff(marks), place[: len(begin)], place[len(begin) :])


@dataclass(frozen=True, eq=False)
class Runs:
    """Runs of constant value, in the order of (key, low), disjoint for a key; 0 between them."""

    key: Longs
    low: Longs
    high: Longs
    values: tuple[Numbers, ...]


def summed(key: Longs, low: Longs, high: Longs, columns: Sequence[Numbers], count: int) -> Runs:
    """Per key the sums of what is under way. `count` segments. One sort; with pieces, whole numbers stay exact."""
    if not len(key):
        return Runs(key, low, high, tuple(columns))
    if alone(low, high):
        place = key * count + low
        if (int(key.max()) + 1) * count <= 4 * len(key):  # few enough to add up in a table instead of sorting
            used = np.flatnonzero(np.bincount(place))
            sums = tuple(np.bincount(place, weights=column)[used] for column in columns)
            return Runs(used // count, used % count, used % count + 1, sums)
        order = order_of(place, (int(key.max()) + 1) * count)
        first = np.flatnonzero(starts(place[order]))
        place = place[order[first]]
        totals = tuple(np.add.reduceat(column[order], first) for column in columns)
        return Runs(place // count, place % count, place % count + 1, totals)
    at = np.concatenate([key * (count + 1) + low, key * (count + 1) + high])
    order = order_of(at, (int(key.max()) + 1) * (count + 1))
    at = at[order]
    last = np.flatnonzero(np.append(at[1:] != at[:-1], True))
    heights = [np.cumsum(np.concatenate([column, -column])[order])[last] for column in columns]
    at = at[last]
    busy = [np.abs(h) > (1e-12 * np.abs(h).max() if h.dtype.kind == "f" else 0) for h in heights]
    kept = np.flatnonzero(np.any(busy, axis=0)[:-1])  # beyond the end of a key all is 0 again
    key, low = np.divmod(at[kept], count + 1)
    return Runs(key, low, at[kept + 1] % (count + 1), tuple(height[kept] for height in heights))


def once(key: Longs, low: Longs, high: Longs, count: int) -> tuple[Longs, Longs, Longs]:
    """What overlaps or meets of equal keys counted once: (key, low, high) of the union. One sort."""
    order = order_of(key * count + low, (int(key.max(initial=0)) + 1) * count)
    key, low, high = key[order], low[order], high[order]
    lasting = np.maximum.accumulate(key * (count + 1) + high)
    fresh = starts(key)
    fresh[1:] |= (key * (count + 1) + low)[1:] > lasting[:-1]
    first = np.flatnonzero(fresh)
    last = np.append(first[1:], len(key)) - 1
    return key[first], low[first], lasting[last] - key[first] * (count + 1)


def highest(runs: Runs, count: int) -> Runs:
    """Per key the greatest first value of runs that may overlap. O(E log E), linear where nothing is pipelined."""
    if alone(runs.low, runs.high):
        places, at = dense(runs.key * count + runs.low, (int(runs.key.max(initial=0)) + 1) * count)
        most = np.zeros(len(places), runs.values[0].dtype)
        np.maximum.at(most, at, runs.values[0])
        return Runs(places // count, places % count, places % count + 1, (most,))
    bound = (int(runs.key.max(initial=0)) + 1) * (count + 1)
    ends = np.concatenate([runs.key * (count + 1) + runs.low, runs.key * (count + 1) + runs.high])
    marks, place = dense(ends, bound)
    half = len(runs.key)
    top, winner = envelope(place[:half], place[half:], runs.values[0], len(marks))
    used = np.flatnonzero(winner >= 0)
    key, low = np.divmod(marks[used], count + 1)
    return Runs(key, low, marks[used + 1] % (count + 1), (top[used],))


def beside(runs: Runs, other: Runs, count: int) -> Runs:
    """The first runs, cut where the others change, with the others' first value (0 where there is none) beside."""
    if not len(other.key) or not len(runs.key):
        return Runs(runs.key, runs.low, runs.high, (*runs.values, np.zeros(len(runs.key), np.int64)))
    width = count + 1
    begin, stop = runs.key * width + runs.low, runs.key * width + runs.high
    start, end = other.key * width + other.low, other.key * width + other.high
    points = distinct(np.concatenate([begin, start, end]))
    at = np.searchsorted(begin, points, side="right") - 1
    inside = (at >= 0) & (points < stop[at])
    after = np.minimum(np.append(points[1:], max(points[-1], stop[-1]))[inside], stop[at[inside]])
    points, at = points[inside], at[inside]
    its = np.searchsorted(start, points, side="right") - 1
    value = np.where((its >= 0) & (points < end[its]), other.values[0][its], 0)
    low = points % width
    values = (*(column[at] for column in runs.values), value)
    return Runs(runs.key[at], low, low + (after - points), values)


def greatest(low: Longs, high: Longs, value: Floats, count: int) -> Longs:
    """Per segment the run of greatest value that covers it, the first of those, -1 for none. O(E log E)."""
    if not len(low):
        return np.full(count, -1, np.int64)
    _, winner = envelope(low[::-1], high[::-1], value[::-1], count + 1)
    return np.where(winner >= 0, len(low) - 1 - winner, -1)[:count]
