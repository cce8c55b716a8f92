"""Which ranks are one step away, and trees of shortest paths over such steps."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection
from dataclasses import dataclass

from antiphon.core.routes import out_links
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
