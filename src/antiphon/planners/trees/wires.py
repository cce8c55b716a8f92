"""A machine as packing sees it: arcs with whole capacities, and shared limits drawn as links where they can be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from antiphon.core.bounds.network import Network
from antiphon.core.topology import SharedLimit, Topology
from antiphon.planners.trees.kernel import Arc

Path = tuple[int, ...]
Pieces = dict[Arc, dict[Path, int]]  # what each arc is made of: paths of links, with capacities


@dataclass(frozen=True)
class Wires:
    """Links by their ends, with capacities in units of resources.scale.

    A shared limit whose links all begin at one node, or all end at one, is the same as one more switch between them
    and that node, joined to it by one link of the limit's capacity. Such switches have the numbers after the
    topology's nodes, such links those after its links, in the order of limits.
    """

    ranks: int
    nodes: int
    real: int
    tail: tuple[int, ...]
    head: tuple[int, ...]
    capacity: tuple[int, ...]

    def pieces(self, factor: int = 1) -> Pieces:
        """Every link as a piece of the arc it belongs to, capacities times the factor. Links without any are left
        out.
        """
        found: Pieces = {}
        for link, (tail, head, capacity) in enumerate(zip(self.tail, self.head, self.capacity, strict=True)):
            if capacity:
                found.setdefault((tail, head), {})[link,] = capacity * factor
        return found

    def network(self, pieces: Mapping[Arc, Mapping[Path, int]]) -> Network:
        """The same arcs, as cuts see them."""
        arcs = sorted(pieces)
        amounts = [sum(pieces[arc].values()) for arc in arcs]
        kind = np.int64 if 4 * sum(amounts) < 2**62 else object
        ends = np.array(arcs, np.int64).reshape(-1, 2)
        return Network(self.nodes, self.ranks, ends[:, 0], ends[:, 1], np.array(amounts, kind))

    def joined(self, first: Path, second: Path) -> Path:
        """One path after the other, without the way round where it comes back to a switch."""
        path: list[int] = []
        for link in (*first, *second):
            path.append(link)
            for at, before in enumerate(path):
                if self.tail[before] == self.head[link]:
                    del path[at:]
                    break
        return tuple(path)

    def links_of(self, path: Path) -> Path:
        """The topology's own links of a path."""
        return tuple(link for link in path if link < self.real)


def wires_of(topology: Topology) -> Wires | None:
    """None where a shared limit cannot be drawn: its links have no common end, or are in other limits too."""
    resources = topology.resources
    width = [resources.capacity[klass] for klass in resources.klass.tolist()]
    tail, head, capacity = topology.link_src.tolist(), topology.link_dst.tolist(), width[: topology.links]
    seen: set[int] = set()
    for number, limit in enumerate(topology.limits):
        side = _common_end(topology, limit)
        if side is None or not seen.isdisjoint(limit.links):
            return None
        seen |= set(limit.links)
        middle = topology.nodes + number
        ends = (tail, head)[side]
        extra = [middle, middle]
        extra[side] = ends[limit.links[0]]
        for link in limit.links:
            ends[link] = middle
        tail.append(extra[0])
        head.append(extra[1])
        capacity.append(min(width[topology.links + number], sum(width[link] for link in limit.links)))
    nodes = topology.nodes + len(topology.limits)
    return Wires(topology.ranks, nodes, topology.links, tuple(tail), tuple(head), tuple(capacity))


def _common_end(topology: Topology, limit: SharedLimit) -> int | None:
    """0 if all its links begin at one node, 1 if all end at one."""
    links = list(limit.links)
    for side, ends in enumerate((topology.link_src, topology.link_dst)):
        if len(set(ends[links].tolist())) == 1:
            return side
    return None
