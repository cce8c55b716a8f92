"""Paths between ranks: one per transfer (`paths`, `routed`), or trees of shortest paths (`Reach`).

A transfer takes its direct link, else a shortest path through switches; no path passes through a rank. Of several
direct links the widest is taken. Of several shortest paths the widest links are taken, and of equally wide ones another
for every destination, so that many transfers use all of them: at a switch `level` hops above the ranks with k equal
ways on, way (destination / k^level) mod k, the usual routing of fat trees.

`instead` suggests planners for a machine and collective that a planner refuses.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from antiphon.core.collective import Collective
from antiphon.core.columns import (
    Bools,
    Ints,
    Longs,
    dense,
    dense_pairs,
    narrow,
    order_of,
    own,
    pointers,
    ranges,
    starts,
    sums,
    taken,
)
from antiphon.core.routes import Routes, out_links
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.core.transform import merge
from antiphon.errors import Unsupported
from antiphon.registry import Entry, PlannerCapabilities, find

MOST_STRIPES = 8
MOST_CELLS = 2**20  # distances and links that are looked at together
HIGHEST = 6  # levels told apart
FAR = 2**30  # hops: out of reach
Path = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Paths:
    """One path per pair of ranks: pair i takes `table[i]`; where `plain[i]` it is the only direct link.

    `ways[i]`: how many equally good links lead out of the source. `lost`: pairs that nothing joins (empty paths).
    """

    table: Routes
    plain: NDArray[np.bool_]
    ways: Longs
    lost: Longs


def paths(topology: Topology, src: Ints, dst: Ints, turn: int = 0) -> Paths:
    """A path for every pair. `turn`: take the next of the equally good links out of the source.

    O(links log links), and for pairs not linked directly O(links on their ways) and a search per switch next to a
    destination.

    >>> from antiphon.core.topology import LinkType, both_ways, build
    >>> wire = LinkType("wire", "1GB/s")
    >>> mixed = build("mixed", 3, both_ways([(0, 1), (0, 3), (1, 3), (2, 3)], wire), switches=1)
    >>> found = paths(mixed, np.array([0, 0]), np.array([1, 2]))
    >>> [found.table[i] for i in range(2)], found.plain.tolist()
    ([(0,), (2, 7)], [True, False])
    """
    width = _width_rank(topology)
    link, number = _direct_links(topology, src, dst, width)
    far = np.flatnonzero(number == 0)
    way_count = np.ones(len(src), np.int64)
    hops = np.ones(len(src), np.int64)
    hops[far] = 0
    routed_rows: list[tuple[Longs, Ints]] = []
    for rows, lengths, links, equal_links in _switched_paths(topology, src, dst, far, width, turn):
        hops[rows], way_count[rows] = lengths, equal_links
        routed_rows.append((rows, links))
    ptr = np.concatenate([[0], np.cumsum(hops)]).astype(np.int64)
    flat = np.empty(int(ptr[-1]), np.int32)
    near = np.flatnonzero(number > 0)
    flat[ptr[near]] = link[near]
    for rows, links in routed_rows:
        inside = links >= 0
        at = ptr[rows][:, None] + np.arange(links.shape[1])
        flat[at[inside]] = links[inside]
    return Paths(Routes(ptr, flat), number == 1, way_count, np.flatnonzero(hops == 0))


def routed(schedule: Schedule, topology: Topology, planner: str) -> Schedule:
    """The schedule with its routes named where the machine leaves a choice; Unsupported where nothing joins a pair.

    A machine whose ranks have several equal ways out (planes of switches) gets the data striped over them. O(rows), and
    `paths` for each pair of ranks.

    Over two switches (nodes 2 and 3) half the data each:

    >>> from antiphon.core.example import of_rows
    >>> from antiphon.core.topology import LinkType, both_ways, build
    >>> wire = LinkType("wire", "1GB/s")
    >>> planes = build("planes", 2, both_ways([(0, 2), (1, 2), (0, 3), (1, 3)], wire), switches=2)
    >>> striped = routed(of_rows("broadcast", 2, [(0, 0, 0, 1, 0)], roots=(0,)), planes, "example")
    >>> striped.chunk.tolist(), [striped.routes[i] for i in striped.route.tolist()]
    ([0, 1], [(4, 7), (0, 3)])
    """
    nodes = topology.nodes
    keys, inverse = dense_pairs(schedule.src, schedule.dst, nodes)
    src, dst = (keys // nodes).astype(np.int32), (keys % nodes).astype(np.int32)
    first = paths(topology, src, dst)
    stay = src == dst  # rows within a rank take no route
    lost = first.lost[~stay[first.lost]]
    if len(lost):
        at = int(lost[0])
        would = instead(
            topology, schedule.collective, "relay", "ring", "multi-ring", other="a machine with routers or switches"
        )
        raise Unsupported(
            f"planner {planner}: no link or path through switches leads from rank {src[at]} to rank {dst[at]} of "
            f"{topology.name}; {would}"
        )
    count = min(int(first.ways.max(initial=1)), MOST_STRIPES)
    stripes = [first, *(paths(topology, src, dst, turn) for turn in range(1, count))]
    lanes = [_with_routes(schedule, stripe, inverse, stay) for stripe in stripes]
    return lanes[0] if count == 1 else merge(lanes)


def _with_routes(schedule: Schedule, by_pair: Paths, pair: Ints, stay: Bools) -> Schedule:
    """Rows with the route of their pair, where it is not the only direct link, and there is any. O(rows)."""
    named = np.flatnonzero(~(by_pair.plain | stay))
    if not len(named):
        return schedule
    number = np.full(len(by_pair.plain), -1, np.int32)
    number[named] = np.arange(len(named))
    return replace(schedule, route=own(taken(number, pair)), routes=by_pair.table.take(named))


def joined(topology: Topology, src: Ints, dst: Ints) -> bool:
    """Whether every pair has a link or a path through switches."""
    return not len(paths(topology, src, dst).lost)


def narrowest(topology: Topology, paths_of_pairs: Paths) -> int:
    """The link of least bandwidth on any of these paths."""
    return int(paths_of_pairs.table.links[np.argmin(_width_rank(topology)[paths_of_pairs.table.links])])


def _width_rank(topology: Topology) -> Longs:
    """Per link a small number that grows with its bandwidth. O(links).

    >>> from antiphon.core.topology import LinkType, build
    >>> slow, fast = LinkType("pcie", "10GB/s"), LinkType("nvlink", "25GB/s")
    >>> _width_rank(build("two", 2, [(0, 1, fast), (1, 0, slow), (1, 0, fast)]))
    array([1, 0, 1])
    """
    distinct = sorted({kind.bandwidth for kind in topology.types})
    of_type = np.array([distinct.index(kind.bandwidth) for kind in topology.types], np.int64)
    return of_type[topology.link_type]


def _direct_links(topology: Topology, src: Ints, dst: Ints, width: Longs) -> tuple[Longs, Longs]:
    """The widest direct link of every pair (of equals the first), and how many there are. One sort.

    >>> from antiphon.core.example import machine
    >>> _direct_links(machine(), np.array([1, 1, 2]), np.array([0, 2, 0]), np.zeros(4, np.int64))
    (array([ 1, -1,  3]), array([1, 0, 1]))
    """
    nodes = topology.nodes
    if not topology.links:
        return np.full(len(src), -1, np.int64), np.zeros(len(src), np.int64)
    key = topology.link_src.astype(np.int64) * nodes + topology.link_dst
    order = np.lexsort((np.arange(len(key)), -width, key))
    first = np.flatnonzero(starts(key[order]))
    number = np.diff(np.append(first, len(key)))
    have = key[order][first]
    want = src.astype(np.int64) * nodes + dst
    at = np.minimum(np.searchsorted(have, want), len(have) - 1)
    hit = have[at] == want
    return np.where(hit, order[first][at], -1), np.where(hit, number[at], 0)


def _switched_paths(
    topology: Topology, src: Ints, dst: Ints, far: Longs, width: Longs, turn: int
) -> Iterator[tuple[Longs, Longs, Ints, Longs]]:
    """(pairs, hops, their links padded with -1, ways out of the source), for some destinations at a time. O(hops), and
    a search per switch next to one.

    >>> from antiphon.core.topology import LinkType, both_ways, build
    >>> wire = LinkType("wire", "1GB/s")
    >>> switched = build("switched", 3, both_ways([(0, 3), (1, 3), (2, 3)], wire), switches=1)
    >>> src, dst = np.array([0, 0, 1]), np.array([1, 2, 2])
    >>> for pairs, hops, links, ways in _switched_paths(switched, src, dst, np.arange(3), np.zeros(6, np.int64), 0):
    ...     print(pairs, hops, links.tolist(), ways)
    [0 1 2] [2 2 2] [[0, 3], [0, 5], [2, 5]] [1 1 1]
    """
    if not len(far) or not topology.switches:
        return
    net = Switched.of(topology, width)
    targets, place = dense(dst[far].astype(np.int64), topology.nodes)
    order = order_of(place, len(targets))
    far, place = far[order], place[order]
    ptr = pointers(place, len(targets))
    for low, high in net.batches(src[far], place, targets):
        rows, local_place = far[ptr[low] : ptr[high]], place[ptr[low] : ptr[high]] - low
        near_links = net.find(src[rows], local_place, targets[low:high], turn)
        reached = near_links.hops > 0
        yield rows[reached], near_links.hops[reached], near_links.links[reached], near_links.ways[reached]


@dataclass(frozen=True, eq=False)
class Links:
    """Links of owners numbered from 0: owner i has rows ptr[i] to ptr[i + 1], the widest first. `head`: the switch
    where each ends."""

    ptr: Longs
    link: Longs
    head: Longs
    width: Longs

    def many(self, owner: Ints | Longs) -> Longs:
        return self.ptr[owner + 1] - self.ptr[owner]


@dataclass(frozen=True, eq=False)
class NearLinks:
    """By pair of a rank and a place among the targets: hops (0: out of reach), the links padded with -1, and how many
    links out of the rank were equally good."""

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
            _switch_levels(topology, tail, head),
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
        distance = self._target_distances(targets)
        first, at_switch, hops_left, equal_links = self._next_links(distance, place, src, targets, turn)
        hops = np.where(hops_left < FAR, hops_left + 1, 0)
        links = np.full((len(src), int(hops.max(initial=0))), -1, np.int32)
        links[:, :1] = first[:, None]
        for left_now in range(links.shape[1] - 1, 0, -1):  # whoever has so many hops to go; each switch is asked once
            going = np.flatnonzero(hops > left_now)
            questions, which = dense(place[going] * self.switches + at_switch[going], len(targets) * self.switches)
            at, switch = questions // self.switches, questions % self.switches
            if left_now > 1:
                link, head, _, _ = self._next_links(distance, at, switch + self.ranks, targets, 0)
                at_switch[going] = head[which]
            else:
                link = self._last_links(switch, targets[at])
            links[going, hops[going] - left_now] = link[which]
        return NearLinks(hops, links, equal_links)

    def _target_distances(self, targets: Longs) -> Ints:
        """Per target and switch the hops to there, FAR where none lead."""
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import dijkstra

        near_count = self.near_ptr[targets + 1] - self.near_ptr[targets]
        out = np.full((len(targets), self.switches), FAR, np.int32)
        with_switch = np.flatnonzero(near_count)
        if not len(with_switch):
            return out
        begins, place = dense(
            self.near[ranges(self.near_ptr[targets[with_switch]], near_count[with_switch])], self.switches
        )
        tail = np.repeat(np.arange(self.switches), np.diff(self.up.ptr[self.ranks :]))
        head = self.up.head[self.up.ptr[self.ranks] :]
        back = csr_array((np.ones(len(tail)), (head, tail)), shape=(self.switches, self.switches))
        reach = dijkstra(back, unweighted=True, indices=begins)
        hops = np.where(np.isfinite(reach), reach + 1, FAR).astype(np.int32)
        out[with_switch] = np.minimum.reduceat(hops[place], (np.cumsum(near_count) - near_count)[with_switch])
        return out

    def _next_links(
        self, distance: Ints, place: Longs, node: Ints | Longs, targets: Longs, turn: int
    ) -> tuple[Ints, Longs, Longs, Longs]:
        """From every node the link to a switch that is nearest to the target of its place, the switch, its distance
        (FAR: none leads there), and how many links were as good."""
        link_count = self.up.many(node)
        row, owner = ranges(self.up.ptr[node], link_count), np.repeat(np.arange(len(node)), link_count)
        hops_left = distance[place[owner], self.up.head[row]]
        min_hops = np.full(len(node), FAR, np.int64)
        with_links = np.flatnonzero(link_count)
        if len(with_links):
            min_hops[with_links] = np.minimum.reduceat(hops_left, (np.cumsum(link_count) - link_count)[with_links])
        good = (hops_left == min_hops[owner]) & (hops_left < FAR)
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
        link, head, equal_links = (
            np.full(len(node), -1, np.int32),
            np.full(len(node), -1),
            np.zeros(len(node), np.int64),
        )
        link[reached], head[reached], equal_links[reached] = self.up.link[chosen], self.up.head[chosen], count
        return link, head, min_hops, equal_links

    def _last_links(self, switch: Longs, target: Longs) -> Ints:
        """From every switch the link to the target beside it: the widest, of equals as everywhere."""
        group = np.searchsorted(self.pair, switch * self.ranks + target)
        row = ranges(self.down.ptr[group], self.down.many(group))
        owner = np.repeat(np.arange(len(group)), self.down.many(group))
        first = self.down.ptr[group]
        count = np.bincount(owner[self.down.width[row] == self.down.width[first][owner]], minlength=len(group))
        return narrow(self.down.link[first + target // count ** self.level[switch] % count])


def _switch_levels(topology: Topology, tail: Longs, head: Longs) -> Longs:
    """Return the hops of every switch above ranks, at most HIGHEST: 0 next to ranks, 1 next to these, ..."""
    ranks = topology.ranks
    level = np.zeros(topology.nodes, np.int64)
    level[ranks:] = HIGHEST
    for depth in range(HIGHEST):
        low = tail[(level[tail] == depth - 1) & (tail >= ranks)] if depth else np.arange(ranks)
        above = head[np.isin(tail, low) & (head >= ranks)]
        level[above] = np.minimum(level[above], depth)
    return level[ranks:]


@dataclass(frozen=True)
class Hop:
    """How a rank is reached: from which rank, over which links, after how many hops; and the links back, if known."""

    parent: int
    path: Path
    depth: int
    back: Path = ()


def hung_from(hops: Collection[tuple[int, Hop]], start: int) -> dict[int, Hop]:
    """Return the undirected tree of these hops, hung from another rank."""
    near: dict[int, dict[int, tuple[Path, Path]]] = defaultdict(dict)
    for rank, hop in hops:
        near[hop.parent][rank] = (hop.path, hop.back)
        near[rank][hop.parent] = (hop.back, hop.path)
    tree, todo = {start: Hop(-1, (), 0)}, [start]
    for rank in todo:
        for head, (path, back) in near[rank].items():
            if head not in tree:
                tree[head] = Hop(rank, path, tree[rank].depth + 1, back)
                todo.append(head)
    return {rank: hop for rank, hop in tree.items() if rank != start}


class Reach:
    """The steps of a machine. Trees of shortest paths prefer links that earlier trees used little."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.out = out_links(topology)
        self.head = topology.link_dst.tolist()
        self.width = [float(topology.bandwidth(link) / topology.unit) for link in range(topology.links)]
        self.used = [0.0] * topology.links
        self.trees: dict[int, dict[int, Hop]] = {}
        self.near: dict[int, dict[int, tuple[Path, ...]]] = {}

    def neighbours(self, rank: int) -> dict[int, tuple[Path, ...]]:
        """The ranks one step away, and the ways there: all parallel links, or one path through switches."""
        if rank not in self.near:
            paths_to: dict[int, list[Path]] = {}
            path_to_switch: dict[int, Path] = {rank: ()}
            queue = deque([rank])
            while queue:
                node = queue.popleft()
                for link in self.out[node]:
                    head, path = self.head[link], (*path_to_switch[node], link)
                    if head < self.topology.ranks:
                        if head != rank and (node == rank or head not in paths_to):
                            paths_to.setdefault(head, []).append(path)
                    elif head not in path_to_switch:
                        path_to_switch[head] = path
                        queue.append(head)
            self.near[rank] = {head: tuple(paths) for head, paths in paths_to.items()}
        return self.near[rank]

    def of(self, source: int) -> dict[int, Hop]:
        """How every rank within reach is reached from the source by shortest paths."""
        if source not in self.trees:
            tree = {source: Hop(-1, (), 0)}
            level = [source]
            while level and len(tree) < self.topology.ranks:  # where all are reached nobody looks at his neighbours
                reach: dict[int, list[tuple[int, Path]]] = {}
                for rank in level:
                    near = self.neighbours(rank)
                    for head in [neighbour for neighbour in near if neighbour not in tree]:
                        reach.setdefault(head, []).extend([(rank, path) for path in near[head]])
                level = sorted(reach)
                for head in level:
                    options = reach[head]
                    best = (
                        min(options, key=lambda option: (self._fullest_use(option[1]), option))
                        if len(options) > 1
                        else options[0]
                    )
                    parent, path = best
                    tree[head] = Hop(parent, path, tree[parent].depth + 1)
                    for link in path:
                        self.used[link] += 1 / self.width[link]
            self.trees[source] = tree
        return self.trees[source]

    def _fullest_use(self, path: Path) -> float:
        return max(self.used[link] + 1 / self.width[link] for link in path)


def centre(trees: Reach, members: Sequence[int]) -> int:
    """The member whose farthest member is nearest."""

    def farthest(source: int) -> int:
        tree = trees.of(source)
        return max(tree[other].depth if other in tree else len(members) ** 2 for other in members)

    best: tuple[int, int] | None = None
    for member in sorted(members):
        candidate = farthest(member), member
        best = candidate if best is None else min(best, candidate)
        if best[0] <= 1:  # nobody is nearer to all
            break
    assert best is not None
    return best[1]


def stars(topology: Topology, sources: Longs) -> Routes | None:
    """The ways from each source to all other ranks, in order of ranks, where every rank is one step away and by one way
    only; None elsewhere. Those that `Reach` finds. All sources at once: O(sources * links), without a loop over them.

    >>> from antiphon.topologies import topology
    >>> found = stars(topology("star:ranks=3"), np.array([2, 0]))
    >>> [found[i] for i in range(4)]
    [(2, 3), (2, 4), (0, 4), (0, 5)]
    """
    order, heads = order_of(topology.link_src, topology.nodes), topology.link_dst
    first = pointers(topology.link_src, topology.nodes)
    entered_by = np.full((len(sources), topology.nodes), -1, np.int32)  # the link by which a node is entered first
    flat, who, node = entered_by.reshape(-1), np.arange(len(sources)), sources
    while len(node):
        link_count = first[node + 1] - first[node]
        of, link = np.repeat(who, link_count), order[ranges(first[node], link_count)]
        key = of * topology.nodes + heads[link]
        new = (flat[key] < 0) & (heads[link] != sources[of])
        of, link, key = of[new], link[new], key[new]
        flat[key[::-1]] = link[::-1]  # of several the first
        is_first, switch = flat[key] == link, heads[link] >= topology.ranks
        if node is sources and not (is_first | switch).all():  # parallel links to a rank: several ways
            return None
        switch &= is_first
        who, node = of[switch], heads[link[switch]].astype(np.int64)
    reached = entered_by[:, : topology.ranks] >= 0
    if int(reached.sum()) < len(sources) * (topology.ranks - 1):
        return None
    who, node = np.nonzero(reached)
    return _ways_back(topology, entered_by, sources, who, node)


def _ways_back(topology: Topology, entered_by: Ints, sources: Longs, who: Longs, node: Longs) -> Routes:
    """The path to each of these nodes from the source sources[who], by the links that entered them."""
    places, links, at = [], [], np.arange(len(who))
    hops = np.zeros(len(who), np.int64)
    while len(at):
        link = entered_by[who[at], node]
        places.append(at)
        links.append(link)
        hops[at] += 1
        node = topology.link_src[link].astype(np.int64)
        unfinished = node != sources[who[at]]
        at, node = at[unfinished], node[unfinished]
    ends = np.cumsum(hops)
    out = np.empty(int(hops.sum()), np.int32)
    for back, (place, link) in enumerate(zip(places, links, strict=True), 1):
        out[ends[place] - back] = link
    return Routes(np.append(0, ends), out)


def instead(topology: Topology, collective: Collective, *names: str, other: str = "fewer ranks") -> str:
    """Suggest those of these planners whose table entries support the collective, the number of ranks and the machine;
    then `other`.

    On 4096 ranks of a torus no alltoall is planned; the ring goes round whatever all ranks want:

    >>> from antiphon.topologies import topology
    >>> torus = topology("torus:dims=64x64")
    >>> instead(torus, Collective("alltoall", 4096), "relay", "direct", "flows")
    'use fewer ranks'
    >>> instead(torus, Collective("allgather", 4096), "relay", "direct", "ring")
    'use planner ring, or fewer ranks'
    """
    able = [name for name in names if _can_plan(find("planner", name), topology, collective)]
    if not able:
        return f"use {other}"
    first = f"{', '.join(able[:-1])} or " if able[1:] else ""
    return f"use planner {first}{able[-1]}, or {other}"


def _can_plan(entry: Entry[PlannerCapabilities], topology: Topology, collective: Collective) -> bool:
    can = entry.can
    if collective.kind not in can.collectives:
        return False
    if len(collective.members) > can.most.get(collective.kind, topology.ranks):
        return False
    return not can.joined or _is_joined(topology, collective)


def _is_joined(topology: Topology, collective: Collective) -> bool:
    """Whether links or switches lead from the first that takes part to all others."""
    first, *other_members = collective.members
    return Reach(topology).neighbours(first).keys() >= set(other_members)
