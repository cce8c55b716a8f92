"""Trees of all roots, from those of one root per orbit (see planners/shared/orbits)."""

from __future__ import annotations

from collections.abc import Sequence

from antiphon.core.topology import Topology
from antiphon.planners.shared.orbits import Table
from antiphon.planners.shared.reach import Hop
from antiphon.planners.trees.tree import Tree


def images(topology: Topology, group: Table, trees: Sequence[Tree]) -> tuple[Tree, ...]:
    """Every tree of every root. O(hops of all trees)."""
    out = []
    for element in group:
        node, link = element[: topology.nodes].tolist(), (element[topology.nodes :] - topology.nodes).tolist()
        paths: dict[tuple[int, ...], tuple[int, ...]] = {}
        for tree in trees:
            hops = []
            for rank, hop in tree.hops:
                path = paths.get(hop.path)
                if path is None:
                    path = paths[hop.path] = tuple([link[x] for x in hop.path])
                hops.append((node[rank], Hop(node[hop.parent], path, hop.depth)))
            hops.sort(key=_rank)
            out.append(Tree(node[tree.root], tree.rate, tuple(hops)))
    return tuple(sorted(out, key=lambda tree: tree.root))


def _rank(hop: tuple[int, Hop]) -> int:
    return hop[0]
