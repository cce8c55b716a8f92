"""Shortest paths through switches for many pairs of ranks at once; none passes through a rank on its way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from antiphon.core.columns import Ints, Longs, dense, narrow, order_of, pointers, ranges, starts, sums
from antiphon.core.topology import Topology

MOST_CELLS = 2**20  # distances and links that are looked at together
HIGHEST = 6  # levels told apart
FAR = 2**30  # hops: out of reach


@dataclass(frozen=True, eq=False)
class Links:
    """Links of owners numbered from 0: those of owner i are rows ptr[i] to ptr[i + 1], the widest first. `head`: the
    switch where each ends."""

    ptr: Longs
    link: Longs
    head: Longs
    width: Longs

    def many(self, owner: Ints | Longs) -> Longs:
        return self.ptr[owner + 1] - self.ptr[owner]


@dataclass(frozen=True, eq=False)
class NearLinks:
    """Of every pair of a rank and a place among the targets: hops (0: out of reach), the links padded with -1, and how
    many links out of the rank were as good."""

    hops: Longs
    links: Ints
    ways: Longs


@dataclass(frozen=True, eq=False)
class Switched:
    """The links at switches, which count from 0 here: `up`, of every node, lead to a switch; `down`, of every pair
    (switch, rank), to that rank. `pair`: these pairs ascending, switch * ranks + rank. `near`: of every rank the
    switches that have a link to it, from near_ptr[rank] on. `level`: of every switch its hops above ranks."""

    ranks: int
    switches: int
    up: Links
    down: Links
    pair: Longs
    near_ptr: Longs
    near: Longs
    level: Longs

    @staticmethod
    def of(topology: Topology, width: Longs) -> Switched:
        """O(links log links). Ranks 0 and 1 at a switch:

        >>> from antiphon.core.topology import LinkType, both_ways, build
        >>> wires = both_ways([(0, 2), (1, 2)], LinkType("wire", "1GB/s"))
        >>> net = Switched.of(build("one", 2, wires, switches=1), np.zeros(4, np.int64))
        >>> net.up.link.tolist(), net.up.ptr.tolist(), net.down.link.tolist(), net.pair.tolist(), net.level.tolist()
        ([0, 2], [0, 1, 2, 2], [1, 3], [0, 1], [0])
        """
        ranks = topology.ranks
        tail, head = topology.link_src.astype(np.int64), topology.link_dst.astype(np.int64)
        up = np.flatnonzero(head >= ranks)
        up = up[np.lexsort((up, -width[up], tail[up]))]
        down = np.flatnonzero((tail >= ranks) & (head < ranks))
        down = down[np.lexsort((down, -width[down], head[down], tail[down]))]
        key = (tail[down] - ranks) * ranks + head[down]
        first = np.flatnonzero(starts(key))
        beside = order_of(key[first] % ranks, ranks)
        return Switched(
            ranks, topology.switches,
            Links(pointers(tail[up], topology.nodes), up, head[up] - ranks, width[up]),
            Links(np.append(first, len(down)), down, tail[down] - ranks, width[down]),
            key[first], pointers(key[first][beside] % ranks, ranks), key[first][beside] // ranks,
            _levels(topology, tail, head),
        )  # fmt: skip

    def batches(self, src: Ints | Longs, place: Longs, targets: Longs) -> Iterator[tuple[int, int]]:
        """Pairs with their places among the targets, ascending: from which to which target as many as are looked at
        together. O(pairs)."""
        near = (self.near_ptr[targets + 1] - self.near_ptr[targets] + 1) * self.switches
        beyond = len(self.up.link) - int(self.up.ptr[self.ranks])  # links from switch to switch
        cells = near + beyond + sums(place, self.up.many(src), len(targets))
        edge = np.flatnonzero(starts(np.cumsum(cells) // MOST_CELLS))
        yield from zip(edge.tolist(), [*edge[1:].tolist(), len(targets)], strict=True)

    def find(self, src: Ints | Longs, place: Longs, targets: Longs, turn: int) -> NearLinks:
        """A path from every src to the target of its place. A search per switch next to a target, O(links that lead on)
        per pair, and per target and switch on its way.

        Rank 0 at switch 3, ranks 1 and 2 at switch 4; from 0 and 1 to 2:

        >>> from antiphon.core.topology import LinkType, both_ways, build
        >>> wires = both_ways([(0, 3), (3, 4), (1, 4), (2, 4)], LinkType("wire", "1GB/s"))
        >>> net = Switched.of(build("two", 3, wires, switches=2), np.zeros(8, np.int64))
        >>> found = net.find(np.array([0, 1]), np.array([0, 0]), np.array([2]), 0)
        >>> found.hops.tolist(), found.links.tolist()
        ([3, 2], [[0, 2, 7], [4, 7, -1]])
        """
        distance = self._distances(targets)
        first, here, left, ways = self._onward(distance, place, src, targets, turn)
        hops = np.where(left < FAR, left + 1, 0)
        links = np.full((len(src), int(hops.max(initial=0))), -1, np.int32)
        links[:, :1] = first[:, None]
        for left_now in range(links.shape[1] - 1, 0, -1):  # whoever has so many hops to go; each switch is asked once
            going = np.flatnonzero(hops > left_now)
            asked, which = dense(place[going] * self.switches + here[going], len(targets) * self.switches)
            at, switch = asked // self.switches, asked % self.switches
            if left_now > 1:
                link, head, _, _ = self._onward(distance, at, switch + self.ranks, targets, 0)
                here[going] = head[which]
            else:
                link = self._down(switch, targets[at])
            links[going, hops[going] - left_now] = link[which]
        return NearLinks(hops, links, ways)

    def _distances(self, targets: Longs) -> Ints:
        """Per target and switch the hops to there, FAR where none lead."""
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import dijkstra

        many = self.near_ptr[targets + 1] - self.near_ptr[targets]
        out = np.full((len(targets), self.switches), FAR, np.int32)
        some = np.flatnonzero(many)
        if not len(some):
            return out
        begins, place = dense(self.near[ranges(self.near_ptr[targets[some]], many[some])], self.switches)
        tail = np.repeat(np.arange(self.switches), np.diff(self.up.ptr[self.ranks :]))
        head = self.up.head[self.up.ptr[self.ranks] :]
        back = csr_array((np.ones(len(tail)), (head, tail)), shape=(self.switches, self.switches))
        reach = dijkstra(back, unweighted=True, indices=begins)
        hops = np.where(np.isfinite(reach), reach + 1, FAR).astype(np.int32)
        out[some] = np.minimum.reduceat(hops[place], (np.cumsum(many) - many)[some])
        return out

    def _onward(
        self, distance: Ints, place: Longs, node: Ints | Longs, targets: Longs, turn: int
    ) -> tuple[Ints, Longs, Longs, Longs]:
        """From every node the link to a switch that is nearest to the target of its place, the switch, its distance
        (FAR: none leads there), and how many links were as good."""
        many = self.up.many(node)
        row, owner = ranges(self.up.ptr[node], many), np.repeat(np.arange(len(node)), many)
        left = distance[place[owner], self.up.head[row]]
        least = np.full(len(node), FAR, np.int64)
        some = np.flatnonzero(many)
        if len(some):
            least[some] = np.minimum.reduceat(left, (np.cumsum(many) - many)[some])
        good = (left == least[owner]) & (left < FAR)
        row, owner = row[good], owner[good]
        widest = np.zeros(len(node), np.int64)
        begin = np.flatnonzero(starts(owner))
        widest[owner[begin]] = self.up.width[row[begin]]
        good = self.up.width[row] == widest[owner]
        row, owner = row[good], owner[good]
        begin = np.flatnonzero(starts(owner))
        count = np.diff(np.append(begin, len(owner)))
        reached = owner[begin]
        level = np.append(np.zeros(self.ranks, np.int64), self.level)[node[reached]]
        chosen = row[begin + (targets[place[reached]] // count**level + turn) % count]
        link, head, ways = np.full(len(node), -1, np.int32), np.full(len(node), -1), np.zeros(len(node), np.int64)
        link[reached], head[reached], ways[reached] = self.up.link[chosen], self.up.head[chosen], count
        return link, head, least, ways

    def _down(self, switch: Longs, target: Longs) -> Ints:
        """From every switch the link to the target beside it: the widest, of equals as everywhere."""
        group = np.searchsorted(self.pair, switch * self.ranks + target)
        row = ranges(self.down.ptr[group], self.down.many(group))
        owner = np.repeat(np.arange(len(group)), self.down.many(group))
        first = self.down.ptr[group]
        count = np.bincount(owner[self.down.width[row] == self.down.width[first][owner]], minlength=len(group))
        return narrow(self.down.link[first + target // count ** self.level[switch] % count])


def _levels(topology: Topology, tail: Longs, head: Longs) -> Longs:
    """Of every switch its hops above ranks, HIGHEST at most: those next to ranks are 0, those next to these 1, ..."""
    ranks = topology.ranks
    level = np.zeros(topology.nodes, np.int64)
    level[ranks:] = HIGHEST
    for depth in range(HIGHEST):
        low = tail[(level[tail] == depth - 1) & (tail >= ranks)] if depth else np.arange(ranks)
        above = head[np.isin(tail, low) & (head >= ranks)]
        level[above] = np.minimum(level[above], depth)
    return level[ranks:]
