"""Islands: sets of ranks joined by wide hops. Each chunk should enter an island once over a narrow hop and spread
inside.

A hop is a path from rank to rank without a rank in between (hops.py). For each kind of hops (by width and length, the
widest first) the islands are the strongly connected components of all wider kinds. If two narrow hops bring the same
chunk into an island, the second is wasted; `strict` says that the entry is the bottleneck, so that waste costs time.

Example: boxes with NVLink and a network. For NVLink every rank is an island; for network hops every box is one, so each
chunk should enter a box once, at any of its ranks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from antiphon.core.columns import Floats, Longs, run_starts
from antiphon.planners.greedy.bits import Words
from antiphon.planners.greedy.hops import Hops


@dataclass(frozen=True, eq=False)
class IslandLevel:
    """The islands for one kind of hops: `label` has the island of each rank.

    `strict`: whether the links into islands are the bottleneck, so that no chunk should enter twice. `gate`: the links
    that enter islands from outside; those of island i are gate[ptr[i]:ptr[i + 1]].
    """

    label: Longs
    islands: int
    strict: bool
    ptr: Longs
    gate: Longs

    @property
    def trivial(self) -> bool:
        """Whether every rank is an island of its own."""
        return self.islands == len(self.label)

    def island_sets(self, sets: Words) -> Words:
        """Return the chunks that the ranks of every island have together."""
        if self.trivial:
            return sets[np.argsort(self.label)]
        order = np.argsort(self.label, kind="stable")
        island_sets: Words = np.bitwise_or.reduceat(sets[order], np.flatnonzero(run_starts(self.label[order])), axis=0)
        return island_sets

    def least_time_for_sets(self, lacking: Words, rate: Floats) -> float:
        """Return the least time to bring the islands the chunks that their ranks lack. `rate`: as for `least_time`."""
        return self.least_time(np.bitwise_count(self.island_sets(lacking)).sum(axis=1), rate)

    def least_time(self, count: Longs, rate: Floats) -> float:
        """Return the least time to bring each island `count` chunks. `rate`: chunks per unit of time, by link."""
        entry_rate = np.bincount(np.repeat(np.arange(self.islands), np.diff(self.ptr)), rate[self.gate], self.islands)
        is_waiting = (count > 0) & (entry_rate > 0)
        return float((count[is_waiting] / entry_rate[is_waiting]).max(initial=0.0))


def levels_of(hops: Hops, ranks: int) -> tuple[IslandLevel, ...]:
    """Return a level for every kind of hops. O(hops)."""
    levels: list[IslandLevel] = []
    # The times are those of an allgather of one unit per rank, for every collective: only their order matters.
    time_inside = 0.0  # the most time that spreading data within an island takes
    for kind in range(len(hops.width)):
        islands, label = _join_ranks(hops, kind, ranks)
        ptr, gate = _find_gates(hops, label, islands)
        foreign_ranks = ranks - np.bincount(label, minlength=islands)
        entry_capacity = np.bincount(np.repeat(np.arange(islands), np.diff(ptr)), hops.capacity[gate], islands)
        has_entry = entry_capacity > 0
        entry_time = float((foreign_ranks[has_entry] / entry_capacity[has_entry]).max(initial=0.0))
        levels.append(IslandLevel(label, islands, islands < ranks and entry_time >= time_inside, ptr, gate))
        time_inside = max(time_inside, _spread_time(hops, kind, ranks))
    return tuple(levels)


def _join_ranks(hops: Hops, kind: int, ranks: int) -> tuple[int, Longs]:
    """Return the number of islands that wider or shorter hops form, and each rank's island."""
    if not kind:
        return ranks, np.arange(ranks)
    from scipy.sparse import csr_array  # imported late: 0.2 s that machines of equal links do not need
    from scipy.sparse.csgraph import connected_components

    wider = hops.kind < kind
    graph = csr_array((np.ones(int(wider.sum())), (hops.src[wider], hops.dst[wider])), shape=(ranks, ranks))
    islands, label = connected_components(graph, directed=True, connection="strong")
    return islands, label.astype(np.int64)


def _find_gates(hops: Hops, label: Longs, islands: int) -> tuple[Longs, Longs]:
    """Return the links over which hops from outside enter each island, as `ptr` and `gate` of an `IslandLevel`."""
    entering = np.flatnonzero(label[hops.src] != label[hops.dst])
    last_link = hops.routes.links[hops.routes.ptr[entering + 1] - 1].astype(np.int64)
    # island and link in one number, so that each pair counts once
    base = len(hops.capacity) + 1
    island, gate = np.divmod(np.unique(label[hops.dst[entering]] * base + last_link), base)
    ptr = np.concatenate([[0], np.cumsum(np.bincount(island, minlength=islands))]).astype(np.int64)
    return ptr, gate


def _spread_time(hops: Hops, kind: int, ranks: int) -> float:
    """Return the time to bring every rank everything over hops of this kind and wider ones."""
    usable_hops = np.flatnonzero(hops.kind <= kind)
    last_link = hops.routes.links[hops.routes.ptr[usable_hops + 1] - 1].astype(np.int64)
    # rank and link in one number, so that each pair counts once
    base = len(hops.capacity) + 1
    rank, link = np.divmod(np.unique(hops.dst[usable_hops] * base + last_link), base)
    entry_capacity = np.bincount(rank, hops.capacity[link], ranks)
    return float((ranks / entry_capacity[entry_capacity > 0]).max(initial=0.0))
