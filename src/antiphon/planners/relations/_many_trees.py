"""Grow several trees per source that share its data, so that together they use more links than a single tree can.

A small form of Blink's tree packing (Blink, section 3.1: multiplicative weights): grow a tree over the links that are
cheapest now, make the links that it loads more expensive, repeat. A link's price is exponential in its load. After each
round the throughput is (number of trees) / (largest load). The trees up to the round of the best throughput share the
data evenly, so a tree that was grown three times carries three shares. The result need not be optimal.

Example: a ring of 4 with links in both directions, source 0: the first tree goes around in one direction, which makes
its links expensive, so the second goes around in the other.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Sequence
from fractions import Fraction

import numpy as np

from antiphon.core.portable import exp
from antiphon.core.topology import Topology
from antiphon.planners.shared.reach import Hop, Path, Reach
from antiphon.planners.shared.tree_schedules import SpanningTree

ROUNDS = 16  # trees grown per source
MAX_HOPS = 2**18  # hops examined in total; if there are more, each source has one tree
_STEEPNESS = 2.0  # a unit of relative load multiplies a link's price by e^_STEEPNESS
_MIN_PRICE = 1e-9  # least price of a link, relative to that of the fullest: no link is free
_MIN_GAIN = 1.02  # more trees must improve the throughput by this factor: each adds chunks

Hops = tuple[tuple[int, Hop], ...]  # a tree: every rank but the source with the hop that leads to it, by rank


def pack_trees(
    reach: Reach, sources: Sequence[int], members: Sequence[int], max_trees: int, duplex: bool
) -> list[SpanningTree] | None:
    """Grow trees from every source to all members, at most `max_trees` different ones per source. None if a
    member is out of reach, or if more than MAX_HOPS hops would be examined. `SpanningTree.rate` is the number of shares
    that the tree carries.

    `duplex`: trees are used in both directions (a reduction up, a broadcast down). O(rounds * sources * hops).
    """
    topology = reach.topology
    if not _has_few_hops(reach, sources):
        return None
    prices = _Prices(topology)
    rounds_of_trees: list[dict[int, Hops]] = []
    best, best_rounds = 0.0, 0
    for number in range(1, ROUNDS + 1):
        round_trees: dict[int, Hops] = {}
        for source in sources:
            tree = _grow_tree(reach, prices, source, members, duplex)
            if tree is None:
                return None
            prices.add_load(path for _, hop in tree for path in (hop.path, hop.back))
            round_trees[source] = tree
        # too many different trees for some source: use only the rounds before this one
        if any(len({tree[source] for tree in [*rounds_of_trees, round_trees]}) > max_trees for source in sources):
            break
        rounds_of_trees.append(round_trees)
        # after `number` rounds every source has that many trees; throughput: their number over the greatest load
        throughput = number / prices.max_load
        if throughput > best * _MIN_GAIN:
            best, best_rounds = throughput, number
    return [
        SpanningTree(source, Fraction(count), hops)
        for source in sources
        for hops, count in Counter(tree[source] for tree in rounds_of_trees[:best_rounds]).items()
    ]


def _has_few_hops(reach: Reach, sources: Sequence[int]) -> bool:
    """Return whether packing examines at most MAX_HOPS hops. The count stops at the first hop beyond."""
    reached, todo, hops = set(sources), list(sources), 0
    while todo:
        neighbours = reach.neighbours(todo.pop())
        hops += ROUNDS * len(sources) * len(neighbours)
        if hops > MAX_HOPS:
            return False
        new_ranks = [rank for rank in neighbours if rank not in reached]
        reached.update(new_ranks)
        todo += new_ranks
    return True


class _Prices:
    """Prices of links by the load on them and on their shared limits.

    Resources are numbered: first the links, then the shared limits. `resources_of[link]`: the link and its limits.
    `price`, `load`, `capacity`: by resource, a capacity in unit links. `max_load`: the greatest load / capacity.
    """

    def __init__(self, topology: Topology) -> None:
        speeds = [topology.bandwidth(link) for link in range(topology.links)] + [x.bandwidth for x in topology.limits]
        self.capacity = np.array([float(speed / topology.unit) for speed in speeds])
        self.resources_of = [[link, *topology.resources.limits_of(link)] for link in range(topology.links)]
        self.load = np.zeros(len(speeds))
        self._update_prices()

    def _update_prices(self) -> None:
        """Compute prices and `max_load` from the loads."""
        relative_load = self.load / self.capacity
        self.max_load = float(relative_load.max(initial=0.0))
        price = np.maximum(exp(_STEEPNESS * (relative_load - self.max_load)), _MIN_PRICE) / self.capacity
        self.price = [float(f"{p:.6g}") for p in price.tolist()]  # 6 digits: prices that differ by rounding are equal

    def add_load(self, paths: Iterable[Path]) -> None:
        """Add a unit of load to every link of these paths."""
        for path in paths:
            for link in path:
                self.load[self.resources_of[link]] += 1
        self._update_prices()

    def path_price(self, path: Path) -> float:
        """Return the price of a path at the present loads."""
        return sum(self.price[resource] for link in path for resource in self.resources_of[link])


def _grow_tree(reach: Reach, prices: _Prices, source: int, members: Sequence[int], duplex: bool) -> Hops | None:
    """Grow a cheap tree: repeatedly add the cheapest hop out of the tree (Prim), then prune branches without
    members.
    """
    tree = {source: Hop(parent=-1, path=(), depth=0)}
    missing = set(members) - {source}
    offers: list[tuple[float, int, int, int, Path, Path]] = []  # heap of (price, depth, parent, rank, path, path back)

    def offer_hops(rank: int, depth: int) -> None:
        """Offer the hops from a rank of the tree to ranks outside, which come to be at this depth."""
        for head, paths in reach.neighbours(rank).items():
            # unless duplex, no way back is needed: an empty path, of price 0
            back_paths = reach.neighbours(head).get(rank, ()) if duplex else ((),)
            if head not in tree and back_paths:
                # of parallel links the cheapest at present
                (price, path), (back_price, back) = (
                    min((prices.path_price(path), path) for path in parallel) for parallel in (paths, back_paths)
                )
                heapq.heappush(offers, (price + back_price, depth, rank, head, path, back))

    offer_hops(source, 1)
    while missing and offers:
        _, depth, rank, head, path, back = heapq.heappop(offers)
        if head not in tree:
            tree[head] = Hop(rank, path, depth, back)
            missing.discard(head)
            offer_hops(head, depth + 1)
    if missing:
        return None
    # from every member up to the source: no other rank is needed
    needed: set[int] = {source}
    for member in members:
        at = member
        while at not in needed:
            needed.add(at)
            at = tree[at].parent
    return tuple((rank, tree[rank]) for rank in sorted(needed - {source}))
