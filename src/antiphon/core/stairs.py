"""Staircases: piecewise constant loads over steps, per resource, and their upper envelope.

A transfer that loads a link in each of p steps from step s on adds its load at s and removes it at s + p. Summing these
changes in order of steps gives the *staircase* of the link (a sweep, O(n log n)). The upper envelope of all staircases
is, for every step, the greatest load and the resource (link or shared limit) that carries it.

Example: link 5 carries 3 in steps 0 and 1, and 4 in steps 1 and 2. Changes: +3 at 0, +4 at 1, -3 at 2, -4 at 3.
Staircase: 3 in [0, 1), 7 in [1, 2), 4 in [2, 3).

`upper_envelope` takes the runs of all staircases (intervals of constant load), with their ends given as indices into
the sorted steps at which some run begins or ends ("marks"). It is a sparse table used backwards: a run of length n is
covered by two overlapping intervals of length 2^k <= n, and each interval passes its value down to its two halves,
longest first. That takes O(n + marks log marks).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.core.columns import (
    SAFE_INT64,
    TABLE_PER_ROW,
    Longs,
    distinct,
    order_of,
    run_starts,
    sums_by_group,
)

Exact = NDArray[Any]  # int64 where nothing can overflow, Python ints otherwise
Runs = tuple[Longs, Longs, Longs, Exact]  # resource, begin, end, value; in order of resource and begin


def add_equal_keys(key: Longs, load: Exact, bound: int) -> tuple[Longs, Exact]:
    """Return each key once, ascending, and the sum of its loads. All keys are below `bound`.

    >>> add_equal_keys(np.array([7, 3, 7]), np.array([1, 2, 4]), 1000)
    (array([3, 7]), array([2, 5]))
    """
    # With few possible keys, adding up in a table is faster than sorting.
    if bound <= TABLE_PER_ROW * len(key) and load.dtype != object:
        keys = distinct(key, bound)
        return keys, sums_by_group(key, load, bound)[keys]
    order = order_of(key, bound=bound)
    first = np.flatnonzero(run_starts(key[order]))
    load = load[order]
    return key[order][first], np.add.reduceat(load, first) if len(first) else load


def build_staircase(resource: Longs, step: Longs, window: Longs, load: Exact) -> Runs:
    """Return every resource's load as runs of constant value, without zero runs, in order of resources and steps.

    `load[i]` is on `resource[i]` in each of `window[i]` steps from `step[i]` on. O(n log n).

    >>> runs = build_staircase(np.array([5, 5]), np.array([0, 1]), np.array([2, 2]), np.array([3, 4]))
    >>> [column.tolist() for column in runs]
    [[5, 5, 5], [0, 1, 2], [1, 2, 3], [3, 7, 4]]
    """
    if bool((window == 1).all()):
        return resource, step, step + 1, load
    step_bound = int((step + window).max(initial=0)) + 1
    key_bound = (int(resource.max(initial=0)) + 1) * step_bound
    if key_bound >= SAFE_INT64:  # (resource, step) as one number would not fit into int64
        resource, border = np.tile(resource, 2), np.concatenate([step, step + window])
        order = np.lexsort((border, resource))
        resource, border, change = resource[order], border[order], np.concatenate([load, -load])[order]
    else:
        first = resource * step_bound + step
        key, change = add_equal_keys(np.concatenate([first, first + window]), np.concatenate([load, -load]), key_bound)
        resource, border = np.divmod(key, step_bound)
    # Running sum over all resources in a row: each resource's changes cancel, so the next one starts at 0 again.
    height = np.cumsum(change)
    is_run = (resource[1:] == resource[:-1]) & (border[1:] > border[:-1]) & (height[:-1] != 0)
    run_rows = np.flatnonzero(is_run)
    return resource[run_rows], border[run_rows], border[run_rows + 1], height[run_rows]


def merge_equal_runs(resource: Longs, begin: Longs, end: Longs, load: Exact) -> Runs:
    """Merge consecutive runs of a resource that have the same load.

    >>> runs = merge_equal_runs(np.array([5, 5, 6]), np.array([0, 2, 3]), np.array([2, 3, 4]), np.array([8, 8, 8]))
    >>> [column.tolist() for column in runs]
    [[5, 6], [0, 3], [3, 4], [8, 8]]
    """
    continues = (resource[1:] == resource[:-1]) & (begin[1:] == end[:-1]) & (load[1:] == load[:-1])
    # Comparing arrays of objects yields an array of objects, hence the conversion.
    first = np.flatnonzero(np.append(True, ~continues.astype(np.bool_)))
    last = np.append(first[1:], len(resource)) - 1
    return resource[first], begin[first], end[last], load[first]


def upper_envelope(low: Longs, high: Longs, value: Exact, marks: int) -> tuple[Exact, Longs]:
    """Return per interval between marks the greatest value of the runs that cover it (0: none), and the run (-1: none).

    Run i has `value[i]` and covers the intervals low[i] to high[i] - 1; there are `marks` intervals, and at least one
    run. Of equal values the last run's counts.

    >>> upper_envelope(np.array([0, 1]), np.array([3, 2]), np.array([5, 7]), 4)  # 5 in 0 to 2, 7 in 1
    (array([5, 7, 5, 0]), array([ 0,  1,  0, -1]))
    """
    by_value = np.argsort(value, kind="stable")
    position = np.empty(len(value), np.int64)  # per run its position by value, which is compared in place of the value
    position[by_value] = np.arange(len(value))
    level = np.frexp(high - low)[1].astype(np.int64) - 1  # the greatest k with 2^k <= length
    table = np.full(marks, -1, np.int64)
    for k in range(int(level.max()), -1, -1):
        size = 1 << k
        runs_of_level = np.flatnonzero(level == k)
        np.maximum.at(table, low[runs_of_level], position[runs_of_level])
        np.maximum.at(table, high[runs_of_level] - size, position[runs_of_level])
        if k:  # table[i] covers `size` intervals from i on: pass it to both halves
            half = size // 2
            halves = table.copy()
            np.maximum(halves[half:], table[:-half], out=halves[half:])
            table = halves
    covered = table >= 0
    envelope: Exact = np.zeros(marks, value.dtype)
    run = np.full(marks, -1, np.int64)
    run[covered] = by_value[table[covered]]
    envelope[covered] = value[run[covered]]
    return envelope, run
