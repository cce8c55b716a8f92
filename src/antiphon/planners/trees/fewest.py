"""The fewest trees at the greatest rate, or within a stated loss of it; with a proof, or a bound; then shallow ones.

The greatest rate of given K trees is attained at a vertex of their linear program, so by weights a_i / D with whole
a_i (capacities whole), where D is a determinant of zeros and ones of at most K rows: at most 1, 1, 2, 3, 5, 9, 32, ...
(Hadamard's problem). So for every K there are finitely many weights to try, and `search` settles each completely.
Some K go without any search: 24/7 needs D to be a multiple of 7, so at least 6 trees; and K trees cross a cut on at
most K of its links, so at most at the sum of the K widest.

Effort is counted in nodes of the search, so the result is the same on every machine. Where the machine is too large for
that, the trees are those of the exact packing, the lightest dropped as far as the loss allows.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from antiphon.core.bounds.cuts import tightest_cut
from antiphon.core.bounds.network import Network
from antiphon.errors import Invalid
from antiphon.planners.trees.both_ways import Directed, Undirected, hung, laid, merged, radius, weakest
from antiphon.planners.trees.search import Arborescent, Plain, Search, Spent
from antiphon.planners.trees.search import Undirected as Spanners
from antiphon.planners.trees.spanning import Arborescences, pack
from antiphon.planners.trees.tree import Tree

EFFORT = 20_000  # nodes
PROOF = 400_000
MOST_VERTICES = 16
MOST_EDGES = 80
MOST_VECTORS = 2000  # weights tried for one number of trees
MOST_UNITS = 400  # in the greatest rate
ROUNDS = (60, 600, 6000, 60_000, 10**6)  # nodes for one choice of weights

# the greatest determinant of a K x K matrix of zeros and ones (OEIS A003432)
DETERMINANTS = (1, 1, 1, 2, 3, 5, 9, 32, 56, 144, 320, 1458, 3645, 9477)

Found = list[tuple[Fraction, tuple[int, ...]]]  # trees by their edges, with weights in units


@dataclass(frozen=True)
class Fewest:
    """Few trees of summed `rate` bytes/s, of `optimum` possible; `at_least` that many are needed within that loss."""

    trees: tuple[Tree, ...]
    rate: Fraction
    optimum: Fraction
    at_least: int

    @property
    def proved(self) -> bool:
        return self.at_least == len(self.trees)

    def describe(self) -> str:
        count = len(self.trees)
        return (
            f"{count} trees, the fewest: proved" if self.proved else f"{count} trees, at least {self.at_least} needed"
        )


def fewest_spanning(
    machine: Undirected, *, loss: Fraction = Fraction(0), prove: bool = False, effort: int | None = None
) -> Fewest:
    """The fewest undirected trees for an allreduce at tau * (1 - loss), each hung from its middle."""
    n, edges = machine.vertices, [edge[:3] for edge in machine.edges]
    tau, parts = weakest(n, edges)
    label = {v: i for i, part in enumerate(parts) for v in part}
    partitions = [[label[v] for v in range(n)]] if len(parts) < n else []
    cuts = [[c for a, b, c in edges if v in (a, b)] for v in range(n)]

    def make(scale: int, deepest: int | None) -> Search:
        return Spanners(n, [(a, b, c * scale) for a, b, c in edges], partitions, deepest)

    def known() -> Found:
        return [(Fraction(w, tau.denominator), chosen) for w, chosen in pack(n, edges, tau, parts)]

    def depth(chosen: Sequence[int]) -> int:
        return radius(n, [edges[e][:2] for e in chosen])

    hunt = _Hunt(n, edges, tau, loss, make, known, depth, cuts, _effort(prove, effort))
    found, least = hunt.run()
    trees = tuple(laid(machine, chosen, weight * machine.unit) for weight, chosen in found)
    return Fewest(trees, sum((tree.rate for tree in trees), Fraction(0)), tau * machine.unit, least)


def fewest_broadcast(
    machine: Directed, root: int, *, loss: Fraction = Fraction(0), prove: bool = False, effort: int | None = None
) -> Fewest:
    """The fewest arborescences from a root (a rank) at the greatest broadcast rate, times (1 - loss)."""
    n, arcs, top = machine.vertices, [arc[:3] for arc in machine.arcs], machine.members.index(root)
    side, rate = tightest(machine, root)
    inside = sum(1 << v for v in range(n) if v not in side)
    cuts = list(dict.fromkeys([*(1 << v for v in range(n) if v != top), (1 << n) - 1 - (1 << top), inside]))
    widths = [[c for a, b, c in arcs if cut >> b & 1 and not cut >> a & 1] for cut in cuts]

    def make(scale: int, deepest: int | None) -> Search:
        inner = [(a, b, c * scale) for a, b, c in arcs]
        return Arborescent(n, inner, top, cuts, deepest)

    def known() -> Found:
        usable = [c if b != top else 0 for _, b, c in arcs]
        found = Arborescences(n, [(a, b) for a, b, _ in arcs], usable, top).run(rate)
        return [(Fraction(w), chosen) for w, chosen in found]

    def depth(chosen: Sequence[int]) -> int:
        return hung(machine, root, chosen, Fraction(1)).depth

    hunt = _Hunt(n, arcs, Fraction(rate), loss, make, known, depth, widths, _effort(prove, effort))
    found, least = hunt.run()
    trees = tuple(hung(machine, root, chosen, weight * machine.unit) for weight, chosen in found)
    return Fewest(trees, sum((tree.rate for tree in trees), Fraction(0)), rate * machine.unit, least)


def tightest(machine: Directed, root: int) -> tuple[frozenset[int], int]:
    """The side (vertices) with the root of a least cut, and its capacity in units: the greatest rate of a broadcast."""
    n, top = machine.vertices, machine.members.index(root)
    if n < 2:
        raise Invalid("one rank alone has no trees to pack; give at least two ranks")
    seen, queue = {top}, [top]
    for v in queue:
        for a, b, c, _ in machine.arcs:
            if a == v and c and b not in seen:
                seen.add(b)
                queue.append(b)
    lost = [str(rank) for v, rank in enumerate(machine.members) if v not in seen]
    if lost:
        raise Invalid(
            f"rank {root} cannot reach rank{'s' * (len(lost) > 1)} {', '.join(lost)}; add links, or leave them out"
        )
    tail, head, capacity = merged([arc[:3] for arc in machine.arcs])
    side, rate = tightest_cut(Network(n, n, tail, head, capacity), {(top,): 1}, [v for v in range(n) if v != top])
    return frozenset(v for v in range(n) if side[v]), int(rate)


def _effort(prove: bool, effort: int | None) -> int:
    return effort if effort is not None else PROOF if prove else EFFORT


@dataclass
class _Hunt:
    """One machine and rate: what is left to try for each number of trees, and the best found."""

    vertices: int
    edges: Sequence[Plain]
    rate: Fraction
    loss: Fraction
    make: Callable[[int, int | None], Search]
    known: Callable[[], Found]
    depth: Callable[[Sequence[int]], int]
    cuts: Sequence[Sequence[int]]
    effort: int
    best: Found = field(default_factory=list)

    def run(self) -> tuple[Found, int]:
        """The trees, and how many are needed at least."""
        if not 0 <= self.loss < 1:
            raise Invalid(f"loss: expected a fraction from 0 to below 1, got {self.loss}")
        self.least = self.rate * (1 - self.loss)
        self.best = self._known()
        low = self._bound()
        if self.vertices > MOST_VERTICES or len(self.edges) > MOST_EDGES or self.rate > MOST_UNITS:
            return self.best, min(low, len(self.best))
        self.searches: dict[tuple[int, int | None], Search] = {}
        low = self._fewer(low)
        self._shallower()
        return sorted(self.best, key=lambda tree: (-tree[0], tree[1])), low

    def _known(self) -> Found:
        """The exact packing, without its lightest trees as far as the loss allows."""
        found = sorted(self.known(), key=lambda tree: (-tree[0], tree[1]))
        spare = self.rate - self.least
        while found[-1][0] <= spare:
            spare -= found.pop()[0]
        return found

    def _bound(self) -> int:
        """Fewer trees than this cannot do, by cuts and by denominators."""
        low = 1
        for widths in self.cuts:
            total, count = 0, 0
            for width in sorted(widths, reverse=True):
                if total >= self.least:
                    break
                total, count = total + width, count + 1
            low = max(low, count)
        while low < len(DETERMINANTS) and not any(True for _ in self._sums(low)):
            low += 1
        return low

    def _sums(self, count: int) -> Iterator[tuple[int, int]]:
        """Common denominators of the weights, and sums of the weights over them."""
        top = DETERMINANTS[count] if count < len(DETERMINANTS) else 10 * self.rate.denominator
        for scale in range(1, top + 1):
            for total in range(math.floor(self.rate * scale), math.ceil(self.least * scale) - 1, -1):
                yield scale, total

    def _vectors(self, count: int) -> tuple[list[tuple[int, tuple[int, ...]]], bool]:
        """Weights (scale, descending) for so many trees, and whether these are all: those of small scale first."""
        wide = _bottleneck(self.vertices, self.edges)
        choices = (
            (scale, weights)
            for scale, total in self._sums(count)
            for weights in _parts(total, count, wide * scale)
            if math.gcd(scale, *weights) == 1
        )
        found = list(itertools.islice(choices, MOST_VECTORS + 1))
        complete = len(found) <= MOST_VECTORS and count < len(DETERMINANTS)
        found = found[:MOST_VECTORS]
        return sorted(found, key=lambda x: (Fraction(-sum(x[1]), x[0]), x[0], x[1][0])), complete

    def _fewer(self, low: int) -> int:
        """Try every number of trees, a little at first; what fits lowers the most, what cannot fit raises `low`."""
        waiting = {count: self._vectors(count) for count in range(low, len(self.best))}
        for limit in ROUNDS:
            for count in sorted(waiting):
                if count < len(self.best):
                    vectors, complete = waiting[count]
                    waiting[count] = self._round(vectors, limit, None), complete
                while low < len(self.best) and waiting[low] == ([], True):
                    low += 1
                if low == len(self.best) or self.effort <= 0:
                    return low
        return low

    def _round(
        self, vectors: list[tuple[int, tuple[int, ...]]], limit: int, deepest: int | None
    ) -> list[tuple[int, tuple[int, ...]]]:
        """Weights that this many nodes do not settle; [] where trees are found, which become the best."""
        left: list[tuple[int, tuple[int, ...]]] = []
        for i, (scale, weights) in enumerate(vectors):
            if self.effort <= 0:
                return left + vectors[i:]
            search = self.searches.get((scale, deepest))
            if search is None:
                search = self.searches[scale, deepest] = self.make(scale, deepest)
            allowed = min(limit, self.effort)
            try:
                trees, nodes = search.run(weights, allowed)
            except Spent:
                left.append((scale, weights))
                self.effort -= allowed
                continue
            self.effort -= nodes
            if trees is not None:
                self.best = [(Fraction(w, scale), tree) for w, tree in zip(weights, trees, strict=True)]
                return []
        return left

    def _shallower(self) -> None:
        """As many trees, but with the deepest less deep, as long as a quarter of the effort lasts."""
        self.effort = max(self.effort // 4, 0)
        while True:
            now = self.best
            deepest = max(self.depth(tree) for _, tree in now) - 1
            vectors, _ = self._vectors(len(now))
            for limit in ROUNDS:
                vectors = self._round(vectors, limit, deepest)
                if not vectors or self.effort <= 0:
                    break
            if self.best is now:
                return


def _parts(total: int, count: int, most: int) -> Iterator[tuple[int, ...]]:
    """A number as a sum of so many, descending, none above `most`: the most even sums first."""
    if count == 1:
        if 1 <= total <= most:
            yield (total,)
        return
    for first in range(-(-total // count), min(most, total - count + 1) + 1):
        for rest in _parts(total - first, count - 1, first):
            yield (first, *rest)


def _bottleneck(vertices: int, edges: Sequence[Plain]) -> int:
    """No tree is heavier: the capacity at which the edges at least as wide join all vertices. (Arcs: as if edges.)"""
    label = list(range(vertices))
    parts = vertices
    for a, b, capacity in sorted(edges, key=lambda edge: -edge[2]):
        if label[a] != label[b]:
            old, new = label[a], label[b]
            label = [new if x == old else x for x in label]
            parts -= 1
            if parts == 1:
                return capacity
    raise Invalid("these links do not join all ranks")
