"""A machine with some of its links only, and trees found there as trees of the whole."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from antiphon.core.topology import SharedLimit, Topology
from antiphon.planners.shared.reach import Hop
from antiphon.planners.trees.tree import Tree


@dataclass(frozen=True)
class Slice:
    """Same ranks and switches, fewer links: link i is link `links[i]` of the whole machine."""

    topology: Topology
    links: tuple[int, ...]

    def path(self, path: Iterable[int]) -> tuple[int, ...]:
        return tuple(self.links[link] for link in path)

    def tree(self, tree: Tree) -> Tree:
        """The same tree in the links of the whole machine."""
        hops = tuple(
            (rank, Hop(hop.parent, self.path(hop.path), hop.depth, self.path(hop.back))) for rank, hop in tree.hops
        )
        return replace(tree, hops=hops)


def with_links(topology: Topology, keep: NDArray[np.bool_]) -> Slice:
    """The machine with these links; a shared limit stays for those of its links that stay. O(links)."""
    links = np.flatnonzero(keep)
    place = np.cumsum(keep) - 1
    limits = []
    for limit in topology.limits:
        left = tuple(int(place[link]) for link in limit.links if keep[link])
        if left:
            limits.append(SharedLimit(limit.name, left, limit.bandwidth))
    part = replace(
        topology, link_src=topology.link_src[links], link_dst=topology.link_dst[links],
        link_type=topology.link_type[links], limits=tuple(limits),
    )  # fmt: skip
    return Slice(part, tuple(links.tolist()))


def of_kinds(topology: Topology, kinds: Iterable[str]) -> Slice:
    """Only the links of these kinds."""
    wanted = set(kinds)
    keep = np.array([kind.kind in wanted for kind in topology.types])[topology.link_type]
    return with_links(topology, keep)


def within(topology: Topology, place: str) -> Slice:
    """Only the links between nodes at this place or inside it, such as host0."""
    inside = np.array([name == place or name.startswith(place + "/") for name in topology.places])
    return with_links(topology, inside[topology.link_src] & inside[topology.link_dst])
