"""Which ranks are one step away, and trees of shortest paths over such steps."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from antiphon.core.columns import Ints, Longs, order_of, pointers, ranges
from antiphon.core.routes import Routes, out_links
from antiphon.core.topology import Topology

Path = tuple[int, ...]


@dataclass(frozen=True)
class Hop:
    """How a rank is reached: from which rank, over which links, after how many hops; and the links back, if known."""

    parent: int
    path: Path
    depth: int
    back: Path = ()


def hung_from(hops: Collection[tuple[int, Hop]], start: int) -> dict[int, Hop]:
    """The undirected tree of these ranks, each with how it is reached, hung from another rank."""
    near: dict[int, dict[int, tuple[Path, Path]]] = defaultdict(dict)
    for rank, hop in hops:
        near[hop.parent][rank] = (hop.path, hop.back)
        near[rank][hop.parent] = (hop.back, hop.path)
    found, todo = {start: Hop(-1, (), 0)}, [start]
    for rank in todo:
        for head, (path, back) in near[rank].items():
            if head not in found:
                found[head] = Hop(rank, path, found[rank].depth + 1, back)
                todo.append(head)
    return {rank: hop for rank, hop in found.items() if rank != start}


class Reach:
    """A machine by its steps. Trees of shortest paths take links that earlier ones used little."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.out = out_links(topology)
        self.head = topology.link_dst.tolist()
        self.width = [float(topology.bandwidth(link) / topology.unit) for link in range(topology.links)]
        self.used = [0.0] * topology.links
        self.known: dict[int, dict[int, Hop]] = {}
        self.near: dict[int, dict[int, tuple[Path, ...]]] = {}

    def neighbours(self, rank: int) -> dict[int, tuple[Path, ...]]:
        """The ranks one step away, and the ways there: all parallel links, or one path through switches."""
        if rank not in self.near:
            found: dict[int, list[Path]] = {}
            came: dict[int, Path] = {rank: ()}
            queue = deque([rank])
            while queue:
                node = queue.popleft()
                for link in self.out[node]:
                    head, path = self.head[link], (*came[node], link)
                    if head < self.topology.ranks:
                        if head != rank and (node == rank or head not in found):
                            found.setdefault(head, []).append(path)
                    elif head not in came:
                        came[head] = path
                        queue.append(head)
            self.near[rank] = {head: tuple(paths) for head, paths in found.items()}
        return self.near[rank]

    def of(self, source: int) -> dict[int, Hop]:
        """How every rank within reach is reached from the source by shortest paths."""
        if source not in self.known:
            tree = {source: Hop(-1, (), 0)}
            level = [source]
            while level and len(tree) < self.topology.ranks:  # where all are reached nobody looks at his neighbours
                reach: dict[int, list[tuple[int, Path]]] = {}
                for rank in level:
                    near = self.neighbours(rank)
                    for head in [one for one in near if one not in tree]:
                        reach.setdefault(head, []).extend([(rank, path) for path in near[head]])
                level = sorted(reach)
                for head in level:
                    ways = reach[head]
                    best = min(ways, key=lambda way: (self._worst(way[1]), way)) if len(ways) > 1 else ways[0]
                    parent, path = best
                    tree[head] = Hop(parent, path, tree[parent].depth + 1)
                    for link in path:
                        self.used[link] += 1 / self.width[link]
            self.known[source] = tree
        return self.known[source]

    def _worst(self, path: Path) -> float:
        return max(self.used[link] + 1 / self.width[link] for link in path)


def centre(trees: Reach, members: Sequence[int]) -> int:
    """The member whose farthest member is nearest."""

    def farthest(source: int) -> int:
        tree = trees.of(source)
        return max(tree[other].depth if other in tree else len(members) ** 2 for other in members)

    best: tuple[int, int] | None = None
    for member in sorted(members):
        found = farthest(member), member
        best = found if best is None else min(best, found)
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
    came = np.full((len(sources), topology.nodes), -1, np.int32)  # the link by which a node is entered first
    flat, who, node = came.reshape(-1), np.arange(len(sources)), sources
    while len(node):
        many = first[node + 1] - first[node]
        of, link = np.repeat(who, many), order[ranges(first[node], many)]
        key = of * topology.nodes + heads[link]
        new = (flat[key] < 0) & (heads[link] != sources[of])
        of, link, key = of[new], link[new], key[new]
        flat[key[::-1]] = link[::-1]  # of several the first
        here, switch = flat[key] == link, heads[link] >= topology.ranks
        if node is sources and not (here | switch).all():  # parallel links to a rank: several ways
            return None
        switch &= here
        who, node = of[switch], heads[link[switch]].astype(np.int64)
    reached = came[:, : topology.ranks] >= 0
    if int(reached.sum()) < len(sources) * (topology.ranks - 1):
        return None
    who, node = np.nonzero(reached)
    return _ways_back(topology, came, sources, who, node)


def _ways_back(topology: Topology, came: Ints, sources: Longs, who: Longs, node: Longs) -> Routes:
    """The path to each of these nodes from the source sources[who], by the links that entered them."""
    places, links, at = [], [], np.arange(len(who))
    hops = np.zeros(len(who), np.int64)
    while len(at):
        link = came[who[at], node]
        places.append(at)
        links.append(link)
        hops[at] += 1
        node = topology.link_src[link].astype(np.int64)
        more = node != sources[who[at]]
        at, node = at[more], node[more]
    ends = np.cumsum(hops)
    out = np.empty(int(hops.sum()), np.int32)
    for back, (mine, link) in enumerate(zip(places, links, strict=True), 1):
        out[ends[mine] - back] = link
    return Routes(np.append(0, ends), out)
