"""Grow several trees per source that share its data, so that together they use more links than a single tree can.

A small form of Blink's tree packing (Blink, section 3.1: multiplicative weights): grow a tree over the links that are
cheapest now, make the links that it loads more expensive, repeat. A link's price is exponential in its load. After each
round the rate is (number of trees) / (largest load). The trees up to the round of the best rate share the data evenly,
so a tree that was grown three times carries three shares. The result need not be optimal.

Example: a ring of 4 with links in both directions, source 0: the first tree goes around in one direction, which makes
its links expensive, so the second goes around in the other.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from antiphon.core.collective import Collective
from antiphon.core.portable import exp
from antiphon.core.schedule import COPY, REDUCE, Schedule
from antiphon.core.topology import Topology
from antiphon.planners.shared.reach import Hop, Path, Reach, reroot_tree
from antiphon.planners.shared.rows import schedule_in_parts

ROUNDS = 16  # trees grown per source
MAX_HOPS = 2**18  # hops examined in total; if there are more, each source has one tree
_STEEPNESS = 2.0  # a unit of relative load multiplies a link's price by e^_STEEPNESS
_MIN_GAIN = 1.02  # more trees must improve the rate by this factor: each adds chunks

Tree = tuple[tuple[int, Hop], ...]  # every rank but the source with the hop that leads to it, in order of ranks


@dataclass(frozen=True)
class Packing:
    """`trees`: per source its trees, each with the number of shares that it carries, of `shares` in all."""

    trees: dict[int, list[tuple[Tree, int]]]
    shares: int

    @property
    def max_trees(self) -> int:
        """Return the largest number of different trees of one source."""
        return max(len(trees) for trees in self.trees.values())


def pack_trees(
    reach: Reach, sources: Sequence[int], members: Sequence[int], max_trees: int, duplex: bool
) -> Packing | None:
    """Grow trees from every source to all members, at most `max_trees` different ones per source. None if a
    member is out of reach, or if more than MAX_HOPS hops would be examined.

    `duplex`: trees are used in both directions (a reduction up, a broadcast down). O(rounds * sources * hops).
    """
    topology = reach.topology
    if not _has_few_hops(reach, sources):
        return None
    prices = _Prices(topology)
    rounds_of_trees: list[dict[int, Tree]] = []
    best, best_rounds = 0.0, 0
    for number in range(1, ROUNDS + 1):
        round_trees: dict[int, Tree] = {}
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
        # after `number` rounds every source has that many trees: the rate is their number over the fullest link's load
        rate = number / prices.max_load
        if rate > best * _MIN_GAIN:
            best, best_rounds = rate, number
    tree_counts = {source: Counter(tree[source] for tree in rounds_of_trees[:best_rounds]) for source in sources}
    return Packing({source: list(trees.items()) for source, trees in tree_counts.items()}, best_rounds)


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
        self.resources_of: list[list[int]] = [[link] for link in range(topology.links)]
        for number, limit in enumerate(topology.limits):
            for link in limit.links:
                self.resources_of[link].append(topology.links + number)
        self.load = np.zeros(len(speeds))
        self._update_prices()

    def _update_prices(self) -> None:
        relative_load = self.load / self.capacity
        self.max_load = float(relative_load.max(initial=0.0))
        price = np.maximum(exp(_STEEPNESS * (relative_load - self.max_load)), 1e-9) / self.capacity
        self.price = [float(f"{p:.6g}") for p in price.tolist()]  # 6 digits: prices that differ by rounding are equal

    def add_load(self, paths: Iterable[Path]) -> None:
        """Add a unit of load to every link of these paths."""
        for path in paths:
            for link in path:
                self.load[self.resources_of[link]] += 1
        self._update_prices()

    def path_price(self, path: Path) -> float:
        return sum(self.price[resource] for link in path for resource in self.resources_of[link])


def _grow_tree(reach: Reach, prices: _Prices, source: int, members: Sequence[int], duplex: bool) -> Tree | None:
    """Grow a cheap tree: repeatedly add the cheapest hop out of the tree (Prim), then prune branches without
    members.
    """
    tree = {source: Hop(-1, (), 0)}
    missing = set(members) - {source}
    offers: list[tuple[float, int, int, int, Path, Path]] = []

    def offer_hops(rank: int, depth: int) -> None:
        for head, paths in reach.neighbours(rank).items():
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
    needed: set[int] = {source}
    for member in members:
        at = member
        while at not in needed:
            needed.add(at)
            at = tree[at].parent
    return tuple((rank, tree[rank]) for rank in sorted(needed - {source}))


def spread_on_trees(collective: Collective, packing: Packing, source_of_block: dict[int, int]) -> Schedule:
    """Return the schedule that sends every block along the trees of its source; each tree carries its shares."""
    chunk_trees = [
        (block, tree, count)
        for block in sorted(source_of_block)
        for tree, count in packing.trees[source_of_block[block]]
    ]
    rows = [
        (hop.depth - 1, chunk, hop.parent, rank, COPY, hop.path)
        for chunk, (_, tree, _) in enumerate(chunk_trees)
        for rank, hop in tree
    ]
    return schedule_in_parts(collective, [(block, count) for block, _, count in chunk_trees], packing.shares, rows)


def reduce_and_spread(collective: Collective, packing: Packing) -> Schedule:
    """Plan an allreduce: every share is reduced up its tree to the centre, then broadcast down."""
    rows, counts = [], []
    for chunk, (tree, count) in enumerate(t for trees in packing.trees.values() for t in trees):
        hops = _root_at_centre(tree)
        deepest = max(hop.depth for hop in hops.values())
        rows += [(deepest - h.depth, chunk, rank, h.parent, REDUCE, h.back) for rank, h in hops.items()]
        rows += [(deepest + h.depth - 1, chunk, h.parent, rank, COPY, h.path) for rank, h in hops.items()]
        counts.append((0, count))
    return schedule_in_parts(collective, counts, packing.shares, rows)


def _root_at_centre(tree: Tree) -> dict[int, Hop]:
    """Return the hop to each rank in the tree rooted at its centre (the rank whose farthest rank is nearest)."""
    ranks = sorted({end for rank, hop in tree for end in (rank, hop.parent)})
    return min((reroot_tree(tree, start) for start in ranks), key=lambda hops: max(hop.depth for hop in hops.values()))
