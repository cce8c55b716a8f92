"""Find the fewest trees that reach the greatest rate (or come within a given loss of it), and prove it if possible.

Input: a graph without switches (direct_links.py), and for a broadcast its root. Output (`Fewest`): weighted trees, and
a lower bound on the number of trees that the rate needs. Fewer trees mean larger messages and fewer channels. Of the
packings with this number of trees, one with shallower trees is then looked for.

Why a finite search suffices: the best weights of K given trees are a vertex of a linear program with integral
capacities. By Cramer's rule they are a_i / D with integers a_i, where D is the determinant of a K x K matrix of zeros
and ones. Such determinants are at most 1, 1, 2, 3, 5, 9, 32, ... for K = 1, 2, ... (Hadamard's problem, OEIS A003432).
So for each K there are finitely many weight vectors, and fewest_search.py decides for each whether trees of these
weights exist. Some K need no search:

    denominators   a rate of 24/7 needs a D that is a multiple of 7, so at least 6 trees
    cuts           K trees cross a cut on at most K of its links, so their rate is at most the sum of the K widest

Example: allreduce on a ring of 3. The greatest rate is 3/2. One tree has weight 1 at most, and two of weight 3/4
overload their common edge; with D = 2, three trees of weight 1/2 fit. So the minimum is 3.

Effort is counted in search nodes. Larger machines get the exact packing, minus its lightest trees within the loss.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from antiphon.core.bounds.cuts import tightest_cut
from antiphon.core.bounds.network import Network
from antiphon.errors import Invalid
from antiphon.planners.shared.tree_schedules import SpanningTree
from antiphon.planners.trees.direct_links import Directed, Undirected, radius, tree_of_arcs, tree_of_edges
from antiphon.planners.trees.fewest_search import (
    ArborescenceSearch,
    NodeLimitReached,
    SpanningSearch,
    TreeSearch,
    WeightedEdge,
)
from antiphon.planners.trees.spanning import Arborescences, merge_arcs, pack_edges, weakest_partition_of

EFFORT = 20_000  # search nodes in total
# search for trees only on graphs up to this size; larger ones keep the exact packing
MOST_VERTICES = 16
MOST_EDGES = 80
MOST_UNITS = 400  # the greatest rate in units of capacity
MOST_VECTORS = 2000  # weight vectors tried for one number of trees
NODE_LIMITS = (60, 600, 6000, 60_000, 10**6)  # search nodes per weight vector, one limit per pass over the vectors
# by K = 0, 1, 2, ...: the largest determinant of a K x K matrix of zeros and ones (OEIS A003432)
DETERMINANTS = (1, 1, 1, 2, 3, 5, 9, 32, 56, 144, 320, 1458, 3645, 9477)
WeightedTrees = list[tuple[Fraction, tuple[int, ...]]]  # (weight in units of capacity, indices of the tree's edges)


@dataclass(frozen=True)
class Fewest:
    """Trees with total `rate` bytes/s.

    `optimum`: the greatest rate of any packing, in bytes/s. `at_least`: a lower bound on the number of trees of any
    packing within the requested loss.
    """

    trees: tuple[SpanningTree, ...]
    rate: Fraction
    optimum: Fraction
    at_least: int

    @property
    def proved(self) -> bool:
        """Whether the number of trees is proved minimal."""
        return self.at_least == len(self.trees)

    def describe(self) -> str:
        """Return the number of trees in words, and whether it is proved minimal."""
        count = len(self.trees)
        return (
            f"{count} trees, the fewest: proved" if self.proved else f"{count} trees, at least {self.at_least} needed"
        )


def fewest_spanning(machine: Undirected, *, loss: Fraction = Fraction(0), effort: int = EFFORT) -> Fewest:
    """Return the fewest undirected trees for an allreduce at the greatest rate (tau) times (1 - loss).

    `effort`: the most search nodes.
    """
    n, edges = machine.vertices, [edge[:3] for edge in machine.edges]
    # Nash-Williams and Tutte: tau = min over partitions P of (capacity between the parts) / (|P| - 1)
    tau, partition = weakest_partition_of(n, edges)
    label = {v: i for i, side in enumerate(partition) for v in side}
    # partitions for pruning, as a label per vertex. The search adds the partition into single vertices by itself
    partitions = [[label[v] for v in range(n)]] if len(partition) < n else []
    widths = [[c for a, b, c in edges if v in (a, b)] for v in range(n)]  # of the cut around each vertex

    def make_search(scale: int, max_depth: int | None) -> TreeSearch:
        """Return a search for trees at most `max_depth` deep, on capacities times `scale`."""
        return SpanningSearch(n, [(a, b, c * scale) for a, b, c in edges], partitions, max_depth)

    def pack_exactly() -> WeightedTrees:
        """Return an exact packing, with as many trees as that method gives."""
        return [(Fraction(w, tau.denominator), chosen) for w, chosen in pack_edges(edges, tau, partition)]

    def depth(chosen: Sequence[int]) -> int:
        """Return the depth of the tree with these edges (indices), rooted at its center."""
        return radius(n, [edges[e][:2] for e in chosen])

    search = _FewestSearch(
        vertices=n, edges=edges, rate=tau, loss=loss, make_search=make_search, pack_exactly=pack_exactly, depth=depth,
        cut_widths=widths, effort=effort,
    )  # fmt: skip
    weighted, lower_bound = search.find_trees()
    trees = tuple(tree_of_edges(machine, chosen, weight * machine.unit) for weight, chosen in weighted)
    return Fewest(trees, sum((tree.rate for tree in trees), Fraction(0)), tau * machine.unit, lower_bound)


def fewest_broadcast(machine: Directed, root: int, *, loss: Fraction = Fraction(0), effort: int = EFFORT) -> Fewest:
    """Return the fewest directed trees out of a root (a rank) at the greatest broadcast rate times (1 - loss).

    `effort`: the most search nodes.
    """
    n, arcs, root_vertex = machine.vertices, [arc[:3] for arc in machine.arcs], machine.members.index(root)
    side, rate = tightest_side(machine, root)
    # Edmonds: the greatest rate is the least capacity into a set without the root. Cuts for pruning, as bit masks of
    # such sets: each other rank alone, all of them together, and the minimum cut
    far_side = sum(1 << v for v in range(n) if v not in side)
    cuts = list(
        dict.fromkeys([*(1 << v for v in range(n) if v != root_vertex), (1 << n) - 1 - (1 << root_vertex), far_side])
    )
    widths = [[c for a, b, c in arcs if cut >> b & 1 and not cut >> a & 1] for cut in cuts]

    def make_search(scale: int, max_depth: int | None) -> TreeSearch:
        """Return a search for trees at most `max_depth` deep, on capacities times `scale`."""
        scaled = [(a, b, c * scale) for a, b, c in arcs]
        return ArborescenceSearch(n, scaled, root_vertex, cuts, max_depth)

    def pack_exactly() -> WeightedTrees:
        """Return an exact packing, with as many trees as that method gives."""
        usable = [c if b != root_vertex else 0 for _, b, c in arcs]
        weighted = Arborescences(n, [(a, b) for a, b, _ in arcs], usable, root_vertex).pack_all(rate)
        return [(Fraction(w), chosen) for w, chosen in weighted]

    def depth(chosen: Sequence[int]) -> int:
        """Return the depth of the tree with these arcs (indices)."""
        return tree_of_arcs(machine, root, chosen, Fraction(1)).depth

    search = _FewestSearch(
        vertices=n, edges=arcs, rate=Fraction(rate), loss=loss, make_search=make_search, pack_exactly=pack_exactly,
        depth=depth, cut_widths=widths, effort=effort,
    )  # fmt: skip
    weighted, lower_bound = search.find_trees()
    trees = tuple(tree_of_arcs(machine, root, chosen, weight * machine.unit) for weight, chosen in weighted)
    return Fewest(trees, sum((tree.rate for tree in trees), Fraction(0)), rate * machine.unit, lower_bound)


def tightest_side(machine: Directed, root: int) -> tuple[frozenset[int], int]:
    """Return the root's side (vertices) of a minimum cut, and the cut's capacity in units.

    This capacity is the greatest rate of a broadcast. Raises Invalid if the root cannot reach a rank.
    """
    n, root_vertex = machine.vertices, machine.members.index(root)
    if n < 2:
        raise Invalid("one rank alone has no trees to pack; give at least two ranks")
    reached, queue = {root_vertex}, [root_vertex]
    for v in queue:
        for a, b, c, _ in machine.arcs:
            if a == v and c and b not in reached:
                reached.add(b)
                queue.append(b)
    names = [str(rank) for v, rank in enumerate(machine.members) if v not in reached]
    if names:
        raise Invalid(
            f"rank {root} cannot reach rank{'s' * (len(names) > 1)} {', '.join(names)}; add links, or leave them out"
        )
    tail, head, capacity = merge_arcs([arc[:3] for arc in machine.arcs])
    network = Network(nodes=n, ranks=n, tail=tail, head=head, capacity=capacity)  # no switches: every node is a rank
    supply: dict[tuple[int, ...], int] = {(root_vertex,): 1}  # by holders, the weight of the data that they begin with
    side, rate = tightest_cut(network, supply, sinks=[v for v in range(n) if v != root_vertex])
    return frozenset(v for v in range(n) if side[v]), int(rate)


def heaviest_first(trees: Iterable[tuple[Fraction, tuple[int, ...]]]) -> WeightedTrees:
    """Return weighted trees, the heaviest first; those of equal weight in the order of their edges."""
    return sorted(trees, key=lambda weighted_tree: (-weighted_tree[0], weighted_tree[1]))


@dataclass
class _FewestSearch:
    """The search for the fewest trees on one graph, undirected or directed."""

    vertices: int
    edges: Sequence[WeightedEdge]
    rate: Fraction  # the greatest possible, in units of capacity
    loss: Fraction  # share of this rate that may be lost to have fewer trees
    # search on capacities times the first argument, for trees up to the depth of the second (None: any)
    make_search: Callable[[int, int | None], TreeSearch]
    pack_exactly: Callable[[], WeightedTrees]  # a packing at the full rate
    depth: Callable[[Sequence[int]], int]  # the depth of the tree with these edges
    cut_widths: Sequence[Sequence[int]]  # by cut: the capacities of the edges across it
    effort: int  # search nodes left
    best: WeightedTrees = field(default_factory=list)  # the fewest trees so far

    def find_trees(self) -> tuple[WeightedTrees, int]:
        """Return the trees, and a lower bound on their number. Stages: exact packing, fewer trees, shallower trees."""
        if not 0 <= self.loss < 1:
            raise Invalid(f"loss: expected a fraction from 0 to below 1, got {self.loss}")
        self.min_rate = self.rate * (1 - self.loss)
        self.best = self._exact_packing()
        low = self._lower_bound()
        if self.vertices > MOST_VERTICES or len(self.edges) > MOST_EDGES or self.rate > MOST_UNITS:
            return self.best, low
        self.searches: dict[tuple[int, int | None], TreeSearch] = {}
        low = self._try_fewer(low)
        self._try_shallower()
        return heaviest_first(self.best), low

    def _exact_packing(self) -> WeightedTrees:
        """Return the exact packing without its lightest trees, as far as the loss allows."""
        packing = heaviest_first(self.pack_exactly())
        spare = self.rate - self.min_rate  # less than the total weight, so that some tree stays
        while (lightest := packing[-1][0]) <= spare:
            spare -= lightest
            packing.pop()
        return packing

    def _lower_bound(self) -> int:
        """Return a lower bound on the number of trees, by cuts and by denominators."""
        low = 1
        for widths in self.cut_widths:
            total, count = 0, 0
            # K trees cross this cut on K links at most: count the widest links until they reach the rate
            for width in sorted(widths, reverse=True):
                if total >= self.min_rate:
                    break
                total, count = total + width, count + 1
            low = max(low, count)
        # the denominator argument: no weights over a denominator up to the largest determinant add up to an allowed
        # rate
        while low < len(DETERMINANTS) and not any(True for _ in self._weight_sums(low)):
            low += 1
        return low

    def _weight_sums(self, count: int) -> Iterator[tuple[int, int]]:
        """Yield the sums that the weights of `count` trees may have, as (denominator, integer over it)."""
        # beyond the table denominators are a guess, so `_weight_vectors` does not call its list complete
        top = DETERMINANTS[count] if count < len(DETERMINANTS) else 10 * self.rate.denominator
        for scale in range(1, top + 1):
            for total in range(math.floor(self.rate * scale), math.ceil(self.min_rate * scale) - 1, -1):
                yield scale, total

    def _weight_vectors(self, count: int) -> tuple[list[tuple[int, tuple[int, ...]]], bool]:
        """Return the weight vectors of `count` trees, the highest rates first, and whether these are all.

        A vector is (denominator, the weights as descending integers over it).
        """
        widest = _widest_tree(self.vertices, self.edges)
        choices = (
            (scale, weights)
            for scale, total in self._weight_sums(count)
            for weights in _partitions_of(total, count, widest * scale)
            if math.gcd(scale, *weights) == 1
        )
        # take one more than allowed, to learn whether the list is complete: an incomplete one proves nothing
        vectors = list(itertools.islice(choices, MOST_VECTORS + 1))
        complete = len(vectors) <= MOST_VECTORS and count < len(DETERMINANTS)

        def by_rate(vector: tuple[int, tuple[int, ...]]) -> tuple[Fraction, int, int]:
            """Sort the highest rates first, then by denominator, then the smallest greatest weight first."""
            scale, weights = vector
            return Fraction(-sum(weights), scale), scale, weights[0]

        return sorted(vectors[:MOST_VECTORS], key=by_rate), complete

    def _try_fewer(self, low: int) -> int:
        """Try every number of trees from `low` on, with growing effort; return the raised lower bound.

        If trees are found, they become the best. If all weight vectors of `low` trees are refuted, `low` rises by 1.
        """
        untried = {count: self._weight_vectors(count) for count in range(low, len(self.best))}
        for limit in NODE_LIMITS:
            for count in sorted(untried):
                if count < len(self.best):
                    vectors, complete = untried[count]
                    untried[count] = self._try_weights(vectors, limit, max_depth=None), complete
                # all weights of `low` trees are refuted, so at least one more is needed
                while low < len(self.best) and untried[low] == ([], True):
                    low += 1
                if low == len(self.best) or self.effort <= 0:
                    return low
        return low

    def _try_weights(
        self, vectors: list[tuple[int, tuple[int, ...]]], limit: int, max_depth: int | None
    ) -> list[tuple[int, tuple[int, ...]]]:
        """Search trees for each weight vector, with `limit` nodes each; return the vectors that stay undecided.

        If trees are found, they become the best, and [] is returned. `max_depth`: the most hops of a tree; None: any.
        """
        undecided: list[tuple[int, tuple[int, ...]]] = []
        for i, (scale, weights) in enumerate(vectors):
            if self.effort <= 0:
                return undecided + vectors[i:]
            # searches depend on denominator and depth only: reuse them
            search = self.searches.get((scale, max_depth))
            if search is None:
                search = self.searches[scale, max_depth] = self.make_search(scale, max_depth)
            allowed = min(limit, self.effort)
            try:
                trees, nodes = search.search_trees(weights, allowed)
            except NodeLimitReached:
                # to be tried again in a later pass, with more nodes
                undecided.append((scale, weights))
                self.effort -= allowed
                continue
            self.effort -= nodes
            if trees is not None:
                self.best = [(Fraction(w, scale), tree) for w, tree in zip(weights, trees, strict=True)]
                return []
        return undecided

    def _try_shallower(self) -> None:
        """Look for the same number of trees with a smaller maximum depth, within a quarter of the remaining effort."""
        self.effort = max(self.effort // 4, 0)
        while True:
            before = self.best
            max_depth = max(self.depth(tree) for _, tree in before) - 1
            vectors, _ = self._weight_vectors(len(before))
            for limit in NODE_LIMITS:
                vectors = self._try_weights(vectors, limit, max_depth)
                if not vectors or self.effort <= 0:
                    break
            if self.best is before:
                return


def _partitions_of(total: int, count: int, largest: int) -> Iterator[tuple[int, ...]]:
    """Yield all ways to write a number as `count` descending integers up to `largest`, the most even first."""
    if count == 1:
        if 1 <= total <= largest:
            yield (total,)
        return
    for first in range(-(-total // count), min(largest, total - count + 1) + 1):
        # descending: no later integer may exceed the first
        for rest in _partitions_of(total - first, count - 1, first):
            yield (first, *rest)


def _widest_tree(vertices: int, edges: Sequence[WeightedEdge]) -> int:
    """Return the largest weight of a single spanning tree: that of its narrowest edge, made as wide as possible.

    Directions of arcs are ignored: for directed trees it is an upper bound.
    """
    label = list(range(vertices))
    components = vertices
    for a, b, capacity in sorted(edges, key=lambda edge: -edge[2]):
        # Kruskal's algorithm on descending capacity: the last edge that joins two components limits every spanning tree
        if label[a] != label[b]:
            old, new = label[a], label[b]
            label = [new if x == old else x for x in label]
            components -= 1
            if components == 1:
                return capacity
    raise Invalid("these links do not join all ranks")
