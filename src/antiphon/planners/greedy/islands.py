"""Islands: ranks that wider hops join. Over a narrow hop into one, a chunk should come once, and spread there."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from antiphon.core.columns import Floats, Longs, starts
from antiphon.planners.greedy.bits import Words
from antiphon.planners.greedy.hops import Hops


@dataclass(frozen=True, eq=False)
class Level:
    """The islands for one kind of hops, as the wider and shorter ones join them.

    `strict`: what comes in this way is the narrowest place, so nothing may come twice. `gate`: by island, what its
    ranks are entered by from elsewhere; those of island i from ptr[i] on.
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

    def gathered(self, sets: Words) -> Words:
        """What the ranks of every island have together."""
        if self.trivial:
            return sets[np.argsort(self.label)]
        order = np.argsort(self.label, kind="stable")
        island_sets: Words = np.bitwise_or.reduceat(sets[order], np.flatnonzero(starts(self.label[order])), axis=0)
        return island_sets

    def slots(self, lacking: Words, rate: Floats) -> float:
        """How long it takes at least to bring the islands what they lack."""
        return self.time(np.bitwise_count(self.gathered(lacking)).sum(axis=1), rate)

    def time(self, count: Longs, rate: Floats) -> float:
        """How long it takes at least to bring the islands so many chunks."""
        open_ = np.bincount(np.repeat(np.arange(self.islands), np.diff(self.ptr)), rate[self.gate], self.islands)
        needy = (count > 0) & (open_ > 0)
        return float((count[needy] / open_[needy]).max(initial=0.0))


def levels_of(hops: Hops, ranks: int) -> tuple[Level, ...]:
    """One for every kind of hops. O(hops)."""
    levels: list[Level] = []
    inside = 0.0  # how long it takes at most to spread a chunk within an island
    for kind in range(len(hops.width)):
        islands, label = _joined(hops, kind, ranks)
        ptr, gate = _gates(hops, label, islands)
        outside = ranks - np.bincount(label, minlength=islands)
        opened = np.bincount(np.repeat(np.arange(islands), np.diff(ptr)), hops.capacity[gate], islands)
        across = float((outside[opened > 0] / opened[opened > 0]).max(initial=0.0))
        levels.append(Level(label, islands, islands < ranks and across >= inside, ptr, gate))
        inside = max(inside, _alone(hops, kind, ranks))
    return tuple(levels)


def _joined(hops: Hops, kind: int, ranks: int) -> tuple[int, Longs]:
    """How many islands the hops that are wider or shorter than this kind make of the ranks, and which is whose."""
    if not kind:
        return ranks, np.arange(ranks)
    from scipy.sparse import csr_array  # a fifth of a second, which a machine of equal links can do without
    from scipy.sparse.csgraph import connected_components

    wider = hops.kind < kind
    graph = csr_array((np.ones(int(wider.sum())), (hops.src[wider], hops.dst[wider])), shape=(ranks, ranks))
    islands, label = connected_components(graph, directed=True, connection="strong")
    return islands, label.astype(np.int64)


def _gates(hops: Hops, label: Longs, islands: int) -> tuple[Longs, Longs]:
    """Of every island the links over which hops from elsewhere enter."""
    cross = np.flatnonzero(label[hops.src] != label[hops.dst])
    last = hops.routes.links[hops.routes.ptr[cross + 1] - 1].astype(np.int64)
    pair = np.unique(label[hops.dst[cross]] * (len(hops.capacity) + 1) + last)
    owner = pair // (len(hops.capacity) + 1)
    ptr = np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=islands))]).astype(np.int64)
    return ptr, pair % (len(hops.capacity) + 1)


def _alone(hops: Hops, kind: int, ranks: int) -> float:
    """How long it takes to bring everyone everything over hops of this kind and wider ones."""
    used = np.flatnonzero(hops.kind <= kind)
    last = hops.routes.links[hops.routes.ptr[used + 1] - 1].astype(np.int64)
    pair = np.unique(hops.dst[used] * (len(hops.capacity) + 1) + last)
    into = np.bincount(pair // (len(hops.capacity) + 1), hops.capacity[pair % (len(hops.capacity) + 1)], ranks)
    return float((ranks / into[into > 0]).max(initial=0.0))
