"""Count the trees along which the data of a schedule travel, and the hops of the deepest, from its transfers alone."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.core.columns import Longs
from antiphon.core.schedule import REDUCE, Schedule

_MIXERS = np.array([0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 0xD6E8FEB86659FD93], np.uint64)
_SHIFT = np.uint64(31)


def count_trees(schedule: Schedule) -> set[int]:
    """How many distinct trees the chunks of one block take: of all roots, and of the root with most.

    An allreduce has one block and may have trees with many roots, of which planners count either. O(n log n).
    """
    hops = _hops(schedule)
    if not len(hops):
        return {0}
    chunk = schedule.chunk[hops].astype(np.int64)
    tree = np.zeros(len(schedule.chunks), np.uint64)  # a chunk's tree by the sum of its hashed hops
    np.add.at(tree, chunk, _hashed(schedule, hops))
    used = np.unique(chunk)
    keys = np.stack(
        [schedule.chunks.block[used].astype(np.int64), _roots(schedule, hops)[used], tree[used].view(np.int64)]
    )
    distinct = np.unique(keys, axis=1)
    of_block = np.unique(distinct[[0, 2]], axis=1)[0]
    of_root = np.unique(distinct[:2], axis=1, return_counts=True)[1]
    return {int(np.bincount(of_block).max()), int(of_root.max())}


def deepest_tree(schedule: Schedule) -> int:
    """The most hops one after the other that a chunk is copied, or that its sums are passed on: O(n log n)."""
    hops, ranks = _hops(schedule), schedule.collective.ranks
    deepest = 0
    for is_reduce in (False, True):
        rows = hops[(schedule.op[hops] == REDUCE) == is_reduce]
        rows = rows[np.argsort(schedule.step[rows], kind="stable")]
        depth = np.zeros(len(schedule.chunks) * ranks, np.int64)
        at = schedule.chunk[rows].astype(np.int64) * ranks
        ends = np.flatnonzero(np.diff(schedule.step[rows], append=-1))
        begin = 0
        for end in (ends + 1).tolist():  # one step after the other: what arrives is passed on in a later one
            now = slice(begin, end)
            begin = end
            np.maximum.at(depth, at[now] + schedule.dst[rows[now]], depth[at[now] + schedule.src[rows[now]]] + 1)
        deepest = max(deepest, int(depth.max(initial=0)))
    return deepest


def _hops(schedule: Schedule) -> Longs:
    return np.flatnonzero(schedule.src != schedule.dst).astype(np.int64)


def _hashed(schedule: Schedule, hops: Longs) -> NDArray[np.uint64]:
    columns: list[NDArray[Any]] = [schedule.src, schedule.dst, schedule.op]
    columns += [] if schedule.route is None else [schedule.route]
    mixed = np.zeros(len(hops), np.uint64)
    for column, mixer in zip(columns, _MIXERS, strict=False):  # as many as there are columns
        mixed = (mixed ^ column[hops].astype(np.int64).view(np.uint64)) * mixer
        mixed ^= mixed >> _SHIFT
    return mixed


def _roots(schedule: Schedule, hops: Longs) -> Longs:
    """Of each chunk the rank at which its sums end; 0 where nothing is summed, as a block then has one root."""
    sums = hops[schedule.op[hops] == REDUCE]
    roots = np.zeros(len(schedule.chunks), np.int64)
    last = sums[np.argsort(schedule.step[sums], kind="stable")]
    roots[schedule.chunk[last]] = schedule.dst[last]
    return roots
