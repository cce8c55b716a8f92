"""Choose a path between every two ranks that exchange data: `with_routes` adds routes to a schedule.

Input: a schedule that names senders and receivers but no links, or pairs of ranks (`find_paths`). Output: the schedule
with a route for every transfer, or a path per pair.

A transfer takes its direct link (the widest of several), else a shortest path through switches; no path passes through
a rank. Among equally short paths the widest links are taken, and among equally wide ones a different one for every
destination, so that many transfers use all of them. At a switch `level` hops above the ranks with k equal links up,
the number of the link is

    (destination / k^level) mod k        (destination-modulo routing of fat trees, D-mod-k)

Example: a leaf switch with 2 uplinks sends to even destinations over the first, to odd ones over the second. A spine
one level up with 2 equal links chooses by the next bit of the destination.

If ranks have several equal uplinks (to planes of switches), `with_routes` also stripes the data over them.

All pairs are routed together in NumPy: `SwitchLinks` holds the links at switches; its `find_links` follows all pairs
link by link.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from antiphon.core.columns import (
    Bools,
    Ints,
    Longs,
    as_int32,
    concat_ranges,
    freeze,
    order_of,
    pointers,
    run_starts,
    sums_by_group,
    unique_inverse,
)
from antiphon.core.routes import Routes
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.core.transform import merge
from antiphon.errors import Unsupported
from antiphon.planners.shared.reach import suggest_planners

MOST_STRIPES = 8  # stripes of the data over equal uplinks
MOST_ENTRIES = 2**20  # table entries (distances and links) of one batch of destinations: bounds the memory
HIGHEST_LEVEL = 6  # switches above this level count as of this level
FAR = 2**30  # distance where no path leads to the target


@dataclass(frozen=True, eq=False)
class PairPaths:
    """One path per pair of ranks: pair i takes `table[i]`.

    `only_link[i]`: whether the path is the only direct link, so that the schedule need not name it.
    `equal_links[i]`: the number of equally good links out of the source.
    `unreachable`: the pairs without a path; their paths in `table` are empty.
    """

    table: Routes
    only_link: NDArray[np.bool_]
    equal_links: Longs
    unreachable: Longs


def find_paths(topology: Topology, src: Ints, dst: Ints, stripe: int = 0) -> PairPaths:
    """Return a path for every pair of source and destination.

    `stripe`: number of the stripe of the data, from 0; each stripe leaves the source by another of the equal links.
    O(links log links), and for pairs without a direct link O(links on their paths) and a search per switch next to a
    destination.

    >>> from antiphon.core.topology import LinkType, both_ways, build
    >>> wire = LinkType("wire", "1GB/s")
    >>> mixed = build("mixed", 3, both_ways([(0, 1), (0, 3), (1, 3), (2, 3)], wire), switches=1)
    >>> paths = find_paths(mixed, np.array([0, 0]), np.array([1, 2]))
    >>> [paths.table[i] for i in range(2)], paths.only_link.tolist()
    ([(0,), (2, 7)], [True, False])
    """
    width = _width_rank(topology)
    link, link_count = _direct_links(topology, src, dst, width)
    unlinked = np.flatnonzero(link_count == 0)
    equal_links_out = np.ones(len(src), np.int64)
    hops = np.ones(len(src), np.int64)
    hops[unlinked] = 0
    routed_rows: list[tuple[Longs, Ints]] = []  # pairs, and their links padded with -1
    for rows, lengths, links, equal_links in _switched_paths(topology, src, dst, unlinked, width, stripe):
        hops[rows], equal_links_out[rows] = lengths, equal_links
        routed_rows.append((rows, links))
    # assemble both kinds of paths in one ragged table
    ptr = np.concatenate([[0], np.cumsum(hops)]).astype(np.int64)
    flat = np.empty(int(ptr[-1]), np.int32)
    linked = np.flatnonzero(link_count > 0)
    flat[ptr[linked]] = link[linked]
    for rows, links in routed_rows:
        inside = links >= 0
        position = ptr[rows][:, None] + np.arange(links.shape[1])
        flat[position[inside]] = links[inside]
    return PairPaths(Routes(ptr, flat), link_count == 1, equal_links_out, np.flatnonzero(hops == 0))


def with_routes(schedule: Schedule, topology: Topology, planner: str) -> Schedule:
    """Return the schedule with routes; a transfer whose ranks have one direct link needs none.

    Raises Unsupported, in the name of `planner`, if a pair has no path. If ranks have several equal uplinks, data are
    striped over them. O(rows), and `find_paths` for the pairs of ranks.

    Over two switches (nodes 2 and 3), half of the data each:

    >>> from antiphon.core.example import of_rows
    >>> from antiphon.core.topology import LinkType, both_ways, build
    >>> wire = LinkType("wire", "1GB/s")
    >>> planes = build("planes", 2, both_ways([(0, 2), (1, 2), (0, 3), (1, 3)], wire), switches=2)
    >>> striped = with_routes(of_rows("broadcast", 2, [(0, 0, 0, 1, 0)], roots=(0,)), planes, "example")
    >>> striped.chunk.tolist(), [striped.routes[i] for i in striped.route.tolist()]
    ([0, 1], [(4, 7), (0, 3)])
    """
    nodes = topology.nodes
    # the distinct pairs of ranks as numbers below nodes^2, and by row the index of its pair
    keys, inverse = unique_inverse(schedule.src.astype(np.int64) * nodes + schedule.dst, nodes * nodes)
    src, dst = (keys // nodes).astype(np.int32), (keys % nodes).astype(np.int32)
    first = find_paths(topology, src, dst)
    within_rank = src == dst  # rows within a rank take no route
    unreachable = first.unreachable[~within_rank[first.unreachable]]
    if len(unreachable):
        pair = int(unreachable[0])
        suggestion = suggest_planners(
            topology, schedule.collective, "relay", "ring", "multi-ring", other="a machine with routers or switches"
        )
        raise Unsupported(
            f"planner {planner}: no link or path through switches leads from rank {src[pair]} to rank {dst[pair]} of "
            f"{topology.name}; {suggestion}"
        )
    count = min(int(first.equal_links.max(initial=1)), MOST_STRIPES)
    stripes = [first, *(find_paths(topology, src, dst, stripe) for stripe in range(1, count))]
    striped = [_with_routes(schedule, stripe_paths, inverse, within_rank) for stripe_paths in stripes]
    return striped[0] if count == 1 else merge(striped)


def _with_routes(schedule: Schedule, by_pair: PairPaths, pair: Longs, within_rank: Bools) -> Schedule:
    """Return the schedule with the routes of one stripe, `by_pair`. `pair`: by row, the number of its pair. O(rows).

    Rows over the only direct link, and rows within a rank (`within_rank`, by pair), get no route.
    """
    routed_pairs = np.flatnonzero(~(by_pair.only_link | within_rank))
    if not len(routed_pairs):
        return schedule
    number = np.full(len(by_pair.only_link), -1, np.int32)
    number[routed_pairs] = np.arange(len(routed_pairs))
    return replace(schedule, route=freeze(number[pair]), routes=by_pair.table.take(routed_pairs))


def are_joined(topology: Topology, src: Ints, dst: Ints) -> bool:
    """Return whether every pair has a link or a path through switches."""
    return not len(find_paths(topology, src, dst).unreachable)


def narrowest_link(topology: Topology, paths_of_pairs: PairPaths) -> int:
    """Return the link of least bandwidth on any of these paths."""
    return int(paths_of_pairs.table.links[np.argmin(_width_rank(topology)[paths_of_pairs.table.links])])


def _width_rank(topology: Topology) -> Longs:
    """Return, by link, the position of its bandwidth among those of the machine, ascending. O(links).

    >>> from antiphon.core.topology import LinkType, build
    >>> slow, fast = LinkType("pcie", "10GB/s"), LinkType("nvlink", "25GB/s")
    >>> _width_rank(build("two", 2, [(0, 1, fast), (1, 0, slow), (1, 0, fast)]))
    array([1, 0, 1])
    """
    distinct = sorted({kind.bandwidth for kind in topology.types})
    of_type = np.array([distinct.index(kind.bandwidth) for kind in topology.types], np.int64)
    return of_type[topology.link_type]


def _direct_links(topology: Topology, src: Ints, dst: Ints, width: Longs) -> tuple[Longs, Longs]:
    """Return the widest direct link of every pair (the first of equals), and the number of direct links. One sort.

    >>> from antiphon.core.example import machine
    >>> _direct_links(machine(), np.array([1, 1, 2]), np.array([0, 2, 0]), np.zeros(4, np.int64))
    (array([ 1, -1,  3]), array([1, 0, 1]))
    """
    nodes = topology.nodes
    if not topology.links:
        return np.full(len(src), -1, np.int64), np.zeros(len(src), np.int64)
    # links sorted by pair of ends, the widest first: the first of each pair is wanted
    key = topology.link_src.astype(np.int64) * nodes + topology.link_dst
    order = np.lexsort((np.arange(len(key)), -width, key))
    first = np.flatnonzero(run_starts(key[order]))
    link_count = np.diff(np.append(first, len(key)))
    pair_keys = key[order][first]
    wanted_keys = src.astype(np.int64) * nodes + dst
    group = np.minimum(np.searchsorted(pair_keys, wanted_keys), len(pair_keys) - 1)
    has_link = pair_keys[group] == wanted_keys
    return np.where(has_link, order[first][group], -1), np.where(has_link, link_count[group], 0)


def _switched_paths(
    topology: Topology, src: Ints, dst: Ints, unlinked: Longs, width: Longs, stripe: int
) -> Iterator[tuple[Longs, Longs, Ints, Longs]]:
    """Yield, for a batch of destinations at a time, pairs and their paths through switches.

    As (pairs, numbers of links, links padded with -1, equal links out of the source); see `PathTable`. `unlinked`: the
    pairs without a direct link. O(links on paths), and a search per switch next to a destination.

    >>> from antiphon.core.topology import LinkType, both_ways, build
    >>> wire = LinkType("wire", "1GB/s")
    >>> switched = build("switched", 3, both_ways([(0, 3), (1, 3), (2, 3)], wire), switches=1)
    >>> src, dst = np.array([0, 0, 1]), np.array([1, 2, 2])
    >>> for pairs, hops, links, equal in _switched_paths(switched, src, dst, np.arange(3), np.zeros(6, np.int64), 0):
    ...     print(pairs, hops, links.tolist(), equal)
    [0 1 2] [2 2 2] [[0, 3], [0, 5], [2, 5]] [1 1 1]
    """
    if not len(unlinked) or not topology.switches:
        return
    net = SwitchLinks.of_topology(topology, width)
    targets, target_index = unique_inverse(dst[unlinked].astype(np.int64), topology.nodes)
    # pairs grouped by target, so that a batch shares its targets' searches
    order = order_of(target_index, len(targets))
    pairs, target_index = unlinked[order], target_index[order]
    ptr = pointers(target_index, len(targets))  # by target, where its pairs begin
    for low, high in net.split_batches(src[pairs], target_index, targets):
        rows, local_index = pairs[ptr[low] : ptr[high]], target_index[ptr[low] : ptr[high]] - low
        path_table = net.find_links(src[rows], local_index, targets[low:high], stripe)
        reached = path_table.hops > 0
        yield rows[reached], path_table.hops[reached], path_table.links[reached], path_table.equal_links[reached]


@dataclass(frozen=True, eq=False)
class Links:
    """Links grouped by owner: a node, or a pair of nodes. Owner i has entries ptr[i] to ptr[i + 1], the widest first.

    `link`: number of the link. `head`: the switch at its other end. `width`: a number that grows with its bandwidth.
    """

    ptr: Longs
    link: Longs
    head: Longs
    width: Longs

    def count_links(self, owner: Ints | Longs) -> Longs:
        """Return the number of links of each of these owners."""
        return self.ptr[owner + 1] - self.ptr[owner]


@dataclass(frozen=True, eq=False)
class PathTable:
    """One path per pair of ranks.

    `hops[i]`: number of links of path i (0: unreachable). `links[i]`: these links, padded with -1. `equal_links[i]`:
    number of equally good first links.
    """

    hops: Longs
    links: Ints
    equal_links: Longs


@dataclass(frozen=True, eq=False)
class SwitchLinks:
    """The links at switches, as tables. Switches are numbered from 0 here.

    `up`: links to a switch, grouped by the node that they leave.
    `down`: links from a switch to a rank, grouped by pair (switch, rank).
    `pair`: these pairs ascending, each as the number switch * ranks + rank.
    `near`: the switches with a link to a rank; those of rank r are near[near_ptr[r]] to near[near_ptr[r + 1] - 1].
    `level`: by switch, its distance from the ranks: 0 next to ranks.
    """

    ranks: int
    switches: int
    up: Links
    down: Links
    pair: Longs
    near_ptr: Longs
    near: Longs
    level: Longs

    @staticmethod
    def of_topology(topology: Topology, width: Longs) -> SwitchLinks:
        """Return the tables of a machine. `width`: by link, a number that grows with its bandwidth. O(links log links).

        Ranks 0 and 1 at a switch:

        >>> from antiphon.core.topology import LinkType, both_ways, build
        >>> wires = both_ways([(0, 2), (1, 2)], LinkType("wire", "1GB/s"))
        >>> net = SwitchLinks.of_topology(build("one", 2, wires, switches=1), np.zeros(4, np.int64))
        >>> net.up.link.tolist(), net.up.ptr.tolist(), net.down.link.tolist(), net.pair.tolist(), net.level.tolist()
        ([0, 2], [0, 1, 2, 2], [1, 3], [0, 1], [0])
        """
        ranks = topology.ranks
        tail, head = topology.link_src.astype(np.int64), topology.link_dst.astype(np.int64)
        # links to switches by the node that they leave, then links to ranks by (switch, rank); of each the widest first
        up = np.flatnonzero(head >= ranks)
        up = up[np.lexsort((up, -width[up], tail[up]))]
        down = np.flatnonzero((tail >= ranks) & (head < ranks))
        down = down[np.lexsort((down, -width[down], head[down], tail[down]))]
        key = (tail[down] - ranks) * ranks + head[down]
        first = np.flatnonzero(run_starts(key))
        by_rank = order_of(key[first] % ranks, ranks)
        return SwitchLinks(
            ranks, topology.switches,
            up=Links(pointers(tail[up], topology.nodes), up, head[up] - ranks, width[up]),
            down=Links(np.append(first, len(down)), down, tail[down] - ranks, width[down]),
            pair=key[first], near_ptr=pointers(key[first][by_rank] % ranks, ranks), near=key[first][by_rank] // ranks,
            level=_switch_levels(topology, tail, head),
        )  # fmt: skip

    def split_batches(self, src: Ints | Longs, target_index: Longs, targets: Longs) -> Iterator[tuple[int, int]]:
        """Yield ranges (low, high) of targets that fit one batch. `target_index`: by pair, its target, ascending."""
        # entries per target: distances from its switches to all, links between switches, links out of its sources
        distances = (self.near_ptr[targets + 1] - self.near_ptr[targets] + 1) * self.switches
        between_switches = len(self.up.link) - int(self.up.ptr[self.ranks])
        entries = distances + between_switches + sums_by_group(target_index, self.up.count_links(src), len(targets))
        # a batch begins wherever the running total passes another multiple of MOST_ENTRIES
        edge = np.flatnonzero(run_starts(np.cumsum(entries) // MOST_ENTRIES))
        yield from zip(edge.tolist(), [*edge[1:].tolist(), len(targets)], strict=True)

    def find_links(self, src: Ints | Longs, target_index: Longs, targets: Longs, stripe: int) -> PathTable:
        """Return a path from every src[i] to targets[target_index[i]], through switches.

        Backward searches give the distance from every switch to every target; then each path goes, link by link, to a
        switch that is one link nearer to its target. `stripe`: see `find_paths`; it affects the first link only.

        Rank 0 at switch 3, ranks 1 and 2 at switch 4; from 0 and 1 to 2:

        >>> from antiphon.core.topology import LinkType, both_ways, build
        >>> wires = both_ways([(0, 3), (3, 4), (1, 4), (2, 4)], LinkType("wire", "1GB/s"))
        >>> net = SwitchLinks.of_topology(build("two", 3, wires, switches=2), np.zeros(8, np.int64))
        >>> path_table = net.find_links(np.array([0, 1]), np.array([0, 0]), np.array([2]), 0)
        >>> path_table.hops.tolist(), path_table.links.tolist()
        ([3, 2], [[0, 2, 7], [4, 7, -1]])
        """
        distance = self._target_distances(targets)
        first, at_switch, hops_left, equal_links = self._next_links(distance, target_index, src, targets, stripe)
        hops = np.where(hops_left < FAR, hops_left + 1, 0)
        links = np.full((len(src), int(hops.max(initial=0))), -1, np.int32)
        links[:, :1] = first[:, None]
        # in each pass every pair whose path has more than `left_now` links takes one link, so that `left_now` remain
        # after it. Pairs at the same switch with the same target take the same link, so it is computed once
        for left_now in range(links.shape[1] - 1, 0, -1):
            moving = np.flatnonzero(hops > left_now)
            requests, request_index = unique_inverse(
                target_index[moving] * self.switches + at_switch[moving], len(targets) * self.switches
            )
            request_target, switch = requests // self.switches, requests % self.switches
            if left_now > 1:
                link, head, _, _ = self._next_links(distance, request_target, switch + self.ranks, targets, stripe=0)
                at_switch[moving] = head[request_index]
            else:
                link = self._last_links(switch, targets[request_target])
            links[moving, hops[moving] - left_now] = link[request_index]
        return PathTable(hops, links, equal_links)

    def _target_distances(self, targets: Longs) -> Ints:
        """Return [target, switch]: the number of links from the switch to the target, FAR if unreachable."""
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import dijkstra

        near_count = self.near_ptr[targets + 1] - self.near_ptr[targets]
        distances = np.full((len(targets), self.switches), FAR, np.int32)
        with_switch = np.flatnonzero(near_count)
        if not len(with_switch):
            return distances
        # one search per distinct switch next to a target, backwards; a target's distance is the least of its switches'
        begins, begin_index = unique_inverse(
            self.near[concat_ranges(self.near_ptr[targets[with_switch]], near_count[with_switch])], self.switches
        )
        tail = np.repeat(np.arange(self.switches), np.diff(self.up.ptr[self.ranks :]))
        head = self.up.head[self.up.ptr[self.ranks] :]
        reversed_links = csr_array((np.ones(len(tail)), (head, tail)), shape=(self.switches, self.switches))
        search_distances = dijkstra(reversed_links, unweighted=True, indices=begins)
        hops = np.where(np.isfinite(search_distances), search_distances + 1, FAR).astype(np.int32)
        distances[with_switch] = np.minimum.reduceat(
            hops[begin_index], (np.cumsum(near_count) - near_count)[with_switch]
        )
        return distances

    def _next_links(
        self, distance: Ints, target_index: Longs, node: Ints | Longs, targets: Longs, stripe: int
    ) -> tuple[Ints, Longs, Longs, Longs]:
        """Return, by row, the best link from node[i] towards targets[target_index[i]].

        As arrays: the link, the switch that it leads to, the links that remain from there (FAR: unreachable), and the
        number of equally good links.
        """
        link_count = self.up.count_links(node)
        row, owner = concat_ranges(self.up.ptr[node], link_count), np.repeat(np.arange(len(node)), link_count)
        hops_left = distance[target_index[owner], self.up.head[row]]
        min_hops = np.full(len(node), FAR, np.int64)
        with_links = np.flatnonzero(link_count)
        if len(with_links):
            min_hops[with_links] = np.minimum.reduceat(hops_left, (np.cumsum(link_count) - link_count)[with_links])
        # filter twice: nearest to the target, then as wide as the first, since the links of a node are sorted by width;
        # D-mod-k decides among those that remain
        is_shortest = (hops_left == min_hops[owner]) & (hops_left < FAR)
        row, owner = row[is_shortest], owner[is_shortest]
        widest = np.zeros(len(node), np.int64)
        begin = np.flatnonzero(run_starts(owner))
        widest[owner[begin]] = self.up.width[row[begin]]
        is_widest = self.up.width[row] == widest[owner]
        row, owner = row[is_widest], owner[is_widest]
        begin = np.flatnonzero(run_starts(owner))
        count = np.diff(np.append(begin, len(owner)))
        reached = owner[begin]
        # D-mod-k (Zahavi): on level l take link (target / count^l) mod count; so targets spread over equal links
        level = np.append(np.zeros(self.ranks, np.int64), self.level)[node[reached]]
        chosen = row[begin + (targets[target_index[reached]] // count**level + stripe) % count]
        link, head, equal_links = (
            np.full(len(node), -1, np.int32),
            np.full(len(node), -1),
            np.zeros(len(node), np.int64),
        )
        link[reached], head[reached], equal_links[reached] = self.up.link[chosen], self.up.head[chosen], count
        return link, head, min_hops, equal_links

    def _last_links(self, switch: Longs, target: Longs) -> Ints:
        """Return the link from every switch[i] to the rank target[i] next to it: the widest, ties by D-mod-k."""
        group = np.searchsorted(self.pair, switch * self.ranks + target)
        row = concat_ranges(self.down.ptr[group], self.down.count_links(group))
        owner = np.repeat(np.arange(len(group)), self.down.count_links(group))
        # links are sorted by width: only those as wide as the first of the group take part
        first = self.down.ptr[group]
        count = np.bincount(owner[self.down.width[row] == self.down.width[first][owner]], minlength=len(group))
        return as_int32(self.down.link[first + target // count ** self.level[switch] % count])


def _switch_levels(topology: Topology, tail: Longs, head: Longs) -> Longs:
    """Return the level of every switch: 0 if a rank leads to it, 1 if one of level 0 does, ... up to HIGHEST_LEVEL."""
    ranks = topology.ranks
    level = np.zeros(topology.nodes, np.int64)
    level[ranks:] = HIGHEST_LEVEL
    # breadth-first from the ranks upwards; what is higher than HIGHEST_LEVEL counts as HIGHEST_LEVEL
    for depth in range(HIGHEST_LEVEL):
        low = tail[(level[tail] == depth - 1) & (tail >= ranks)] if depth else np.arange(ranks)
        above = head[np.isin(tail, low) & (head >= ranks)]
        level[above] = np.minimum(level[above], depth)
    return level[ranks:]
