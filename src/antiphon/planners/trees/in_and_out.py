"""Allreduce on machines whose links differ each way: trees in and trees out that meet in the same roots.

For every rank r the trees in to r (a reduction) and those out of r (a broadcast) carry the same w_r in all; all trees
together keep within every link and limit; the sum of the w_r is maximised. No construction known is faster on directed
machines, and none faster has been found by exhaustive search on small ones; what any schedule may reach
(core.bounds) can be more. On machines alike both ways trees used up and down are as good (see _both_ways).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from antiphon.core.bounds.network import network_of
from antiphon.core.reshape import reverse
from antiphon.core.topology import Topology
from antiphon.errors import Invalid
from antiphon.planners.trees.columns import Search, View, check_reach, eccentricity
from antiphon.planners.trees.generation import Generation, Rooted
from antiphon.planners.trees.images import images
from antiphon.planners.trees.tree import Tree


@dataclass(frozen=True)
class InAndOut:
    """`rate`: of the whole vector, bytes per second. No packing of such trees exceeds `bound`.

    `trees_in` are trees of the turned machine (core.reshape.reverse: links keep their numbers): a hop leads from the
    parent down, and what is reduced takes its path backwards, last link first.
    """

    rate: Fraction
    trees_in: tuple[Tree, ...]
    trees_out: tuple[Tree, ...]
    bound: Fraction

    @property
    def proved(self) -> bool:
        """Whether no packing of such trees is faster."""
        return self.rate == self.bound

    @property
    def depth(self) -> int:
        return max(max((tree.depth for tree in trees), default=0) for trees in (self.trees_in, self.trees_out))


def pack_allreduce_lp(
    topology: Topology, members: Sequence[int], *, orbits: bool = False, hops: int | None = None, seed: int = 0
) -> InAndOut:
    """The fastest trees in and out with common roots, then shallow; every member may be a root.

    `orbits`: by the machine's symmetries, if it has any (see _orbits): for large machines. Each round solves a linear
    program of links + limits + 2 members rows, or orbits of such, and prices two trees per member or orbit.
    """
    roots = sorted(set(members))
    if len(roots) < 2:
        raise Invalid("allreduce: nothing must move among fewer than 2 ranks")
    check_reach(topology, roots[:1], roots)
    check_reach(reverse(topology), roots[:1], roots, back=True)
    out, into = network_of(topology).degrees()
    limit = Fraction(min(int(degree[rank]) for degree in (out, into) for rank in roots))  # all passes every member
    view = View.of(topology, dict.fromkeys(roots, 1), roots, seed) if orbits else View.plain(topology, roots)
    groups = [Rooted(root, turned) for turned in (False, True) for root in view.roots]
    share = [{at: 1} for _ in range(2) for at in range(len(view.roots))]
    gain = [len(view.group)] * len(view.roots)
    search = Search(lambda: Generation(topology, groups, share, gain, roots, limit, view.row_of, view.alike), limit)
    found = search.best(hops, eccentricity(topology, groups, roots), False)
    scale = topology.resources.scale
    trees: dict[bool, list[Tree]] = {False: [], True: []}
    for column, rate in found.rates:
        group = groups[column.group]
        trees[group.turned].append(Tree(group.root, rate * scale, column.tree))
    up, down = (images(topology, view.group, trees[turned]) for turned in (True, False))
    return InAndOut(found.value * scale, up, down, found.bound * scale)
