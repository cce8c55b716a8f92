"""Allgather on a Cartesian product of two machines, assembled from allgathers on both factors.

A machine is the product of G and H if its ranks are pairs (g, h), its links join (g, h) to (g', h) as G joins g to g',
and (g, h) to (g, h') as H joins h to h'. Tori, meshes, hypercubes, and equal boxes joined rail by rail are products.
The links of G and of H can then work at the same time. Every rank's data are divided into A and B:

    A goes along G first, then along H;      B goes along H first, then along G.

The ranks with one h form a copy of G, those with one g a copy of H. The links of G carry A and B of each rank itself,
then the B of the other ranks of its copy of H. The links of H carry B and A of each rank itself, then the A of the
other ranks of its copy of G. With m = |G|, n = |H|, rho and sigma the R/C of the two allgathers, and b the fraction of
B, both are finished together when

    rho * (1 + (n - 1) * b) = sigma * (1 + (m - 1) * (1 - b)).

The result is bandwidth-optimal if the factors' allgathers are and no link waits. Plain search rarely finds such
schedules because every link is full in every round: for four DGX-1 in a ring, joined GPU by GPU, (168, 11, 651) meets
the bound after 2 CPU seconds, while search alone has R/C = 4, 1.03 times the bound, after 29 and nothing better within
150. On machines of 12 or 15 ranks search is as good. Input is the search state of a machine; output is a frontier
point, or None if the machine is no product.

Example: a 4 x 4 torus is a ring of 4 times a ring of 4. rho = sigma = 3/2 (three foreign chunks over two links), so
b = 1/2, and R/C = 3/2 * (1 + 3/2) = 15/4: fifteen foreign inputs over four links per rank, which is the bound.

Factors are found from the prime factorization of graphs (Feder 1992): `_edge_classes` computes a relation on edges
whose classes each belong to one prime factor; every division of the classes into two is tried.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from antiphon.core.bounds import Cut, bound
from antiphon.core.collective import Collective
from antiphon.core.ksync.certificate import BEST_FOUND, OPTIMAL
from antiphon.core.ksync.dual import PriceSplit, StepDual, evaluate_dual
from antiphon.core.ksync.instance import Instance, instance_of
from antiphon.core.topology import LinkType, build
from antiphon.errors import EffortSpent
from antiphon.planners.synth.effort_budget import EffortBudget
from antiphon.planners.synth.frontier import Limits, Point, find_frontier, usual_steps
from antiphon.planners.synth.linear import Proved
from antiphon.planners.synth.search import SearchState
from antiphon.planners.synth.task import Move, rounds_of

MOST_CHUNKS = 2048  # of each rank
MOST_ROWS = 2**21  # of the schedule
MOST_LINKS = 2048  # of the machine; finding factors takes time and memory in proportion to its square
MOST_CLASSES = 8  # classes of edges of which every division into two factors is tried
FACTOR_TURNS = 2  # of engine `auto`, for a candidate of a factor
FACTOR_EFFORT = 0.4  # fraction of the remaining effort, for both factors

Pairs = dict[tuple[int, int], int]  # (tail, head) -> chunks per round
Tell = Callable[[str], None]
Hops = list[list[tuple[int, int, int, int]]]  # per step (owner, chunk, tail, head)


@dataclass(frozen=True)
class Factors:
    """Two factors as tables of links, and each rank's coordinates (g, h) in them."""

    pairs: tuple[Pairs, Pairs]
    coordinates: NDArray[np.int64]  # rank x 2

    @property
    def sizes(self) -> tuple[int, int]:
        return int(self.coordinates[:, 0].max()) + 1, int(self.coordinates[:, 1].max()) + 1


@dataclass(frozen=True)
class Gather:
    """An allgather of a factor: `chunks` per rank, the rounds of each step, and what each step moves."""

    chunks: int
    rounds: tuple[int, ...]
    hops: Hops

    @property
    def ratio(self) -> Fraction:
        return Fraction(sum(self.rounds), self.chunks)

    @staticmethod
    def from_moves(instance: Instance, parts: int, moves: tuple[Move, ...]) -> Gather:
        rounds = tuple(rounds_of(instance, moves))
        hops: Hops = [[] for _ in rounds]
        for kind, chunk, path, step in moves:
            tail, head = int(instance.tail[path[0]]), int(instance.head[path[-1]])
            hops[step].append((instance.kinds[kind].holders[0], chunk, tail, head))
        return Gather(parts, rounds, hops)


def by_product(search: SearchState, tell: Tell = lambda text: None) -> Point | None:
    """Return an optimal or nearly optimal point if the machine is a product and both factors are solved in time, else
    None.
    """
    instance = search.instance
    factors = factor_machine(instance)
    if factors is None:
        return None
    tell(f"the machine is the product of one of {factors.sizes[0]} ranks and one of {factors.sizes[1]}")
    effort_left = search.budget.left()
    budget = EffortBudget(None if effort_left is None else int(FACTOR_EFFORT * effort_left), search.budget.until)
    first = _solve_factor(search, factors.pairs[0], factors.sizes[0], budget)
    second = _solve_factor(search, factors.pairs[1], factors.sizes[1], budget)
    search.budget.pay(budget.spent)
    if first is None or second is None:
        return None
    # _plan_lines expects the factor with the smaller R/C first
    if first.ratio > second.ratio:
        factors, first, second = Factors(factors.pairs[::-1], factors.coordinates[:, ::-1]), second, first
    combination = combine_gathers(instance, factors, (first, second))
    if combination is None:
        return None
    parts, moves = combination
    rounds = rounds_of(instance, moves)
    cut_bound = _by_cut(instance, len(rounds))
    if cut_bound is None:
        return None
    ratio = Fraction(sum(rounds), parts)
    proof = OPTIMAL if ratio == cut_bound.worth.rounds_per_part else BEST_FOUND
    return Point(instance, parts, len(rounds), sum(rounds), moves, "product", proof, cut_bound)


def _solve_factor(search: SearchState, pairs: Pairs, ranks: int, budget: EffortBudget) -> Gather | None:
    """Return the last point of a factor's frontier, the one with the smallest R/C, or None."""
    links = [(a, b, LinkType("link", Fraction(units))) for (a, b), units in sorted(pairs.items())]
    collective = Collective("allgather", ranks)
    topology = build("factor", ranks, links)
    instance = instance_of(topology, collective)
    best_point: Point | None = None
    factor_search = SearchState(instance, search.seed, budget, search.cache)
    try:
        limits = Limits(k=None, steps=usual_steps(instance.least_steps), turns=FACTOR_TURNS)
        for point in find_frontier(factor_search, bound(topology, collective).without_help.inverse, limits):
            best_point = point
    except EffortSpent:  # use the best point so far
        pass
    return None if best_point is None else Gather.from_moves(instance, best_point.parts, best_point.moves)


def _by_cut(instance: Instance, steps: int) -> Proved | None:
    """Return the bound of the tightest cut as a dual: price 1 on every link that leaves the cut, in every step."""
    witness = bound(instance.topology, instance.collective).without_help.witness
    if not isinstance(witness, Cut) or witness.limits:
        return None
    inside = np.isin(np.arange(instance.nodes), witness.side)
    leaving = np.flatnonzero(inside[instance.tail] & ~inside[instance.head])
    rows = np.array([(bond, step, 1) for bond in leaving for step in range(steps)], np.int64).reshape(-1, 3)
    price_splits = {}
    for number, kind in enumerate(instance.kinds):
        lacking = [dest for dest in kind.dests if not inside[dest]]
        if inside[list(kind.holders)].all() and lacking:
            dest_column = np.full((len(rows), 1), lacking[0], np.int64)
            price_splits[number] = PriceSplit(np.hstack([dest_column, rows]), np.zeros((0, 3), np.int64))
    dual = StepDual(steps, rows, price_splits, like={})
    return Proved(dual, evaluate_dual(instance, dual))


# ---- finding the factors ----


def factor_machine(instance: Instance) -> Factors | None:
    """Return the machine as a product of two, as equal in size as possible, or None.

    None also with switches, shared limits or parallel bonds, or if the collective is not an even allgather.
    O(links^2 + links * 2^classes).
    """
    links = _plain_links(instance)
    if links is None:
        return None
    edges = sorted({(min(a, b), max(a, b)) for a, b in links})
    classes = _edge_classes(instance.ranks, edges).tolist()
    splits = []
    for chosen in range(1, 2 ** min(max(classes), MOST_CLASSES)):  # which classes are the second factor's; never all
        side = {edge: chosen >> c & 1 for edge, c in zip(edges, classes, strict=True)}
        split = _split_factors(instance.ranks, links, side)
        if split is not None:
            splits.append(split)
    return min(splits, key=lambda factors: max(factors.sizes), default=None)


def _plain_links(instance: Instance) -> Pairs | None:
    """Return the links with their integral capacities; None unless this is an even allgather on plain symmetric
    links.
    """
    ranks = instance.ranks
    if instance.nodes > ranks or len(instance.bonds) > MOST_LINKS or any(instance.limits_of):
        return None
    everyone = frozenset(range(ranks))
    if len(instance.kinds) != ranks or any(
        len(k.holders) != 1 or k.weight != 1 or frozenset(k.dests) | {*k.holders} != everyone for k in instance.kinds
    ):
        return None
    pairs: Pairs = {}
    for bond, (a, b) in enumerate(zip(instance.tail.tolist(), instance.head.tolist(), strict=True)):
        if (a, b) in pairs or instance.capacity[bond].denominator != 1:
            return None
        pairs[a, b] = int(instance.capacity[bond])
    return pairs if all((b, a) in pairs for a, b in pairs) else None


def _edge_classes(ranks: int, edges: list[tuple[int, int]]) -> NDArray[np.int64]:
    """Return a class per edge; edges of one class are in the same factor (Feder 1992, possibly coarser).

    Two edges belong together if distances between their ends do not add up as in a product, or if they meet and span no
    square of their own.
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components, shortest_path

    ends = np.array(edges, np.int64).reshape(-1, 2)
    a, b = ends[:, 0], ends[:, 1]
    joined = csr_array((np.ones(len(ends)), (a, b)), shape=(ranks, ranks))
    distance = shortest_path(joined, directed=False, unweighted=True)
    # Djokovic-Winkler relation: in a product, edges of different factors satisfy d(a,a') + d(b,b') = d(a,b') + d(b,a')
    same_class = distance[np.ix_(a, a)] + distance[np.ix_(b, b)] != distance[np.ix_(a, b)] + distance[np.ix_(b, a)]
    adjacent = (distance == 1).astype(np.int64)
    common_neighbours = adjacent @ adjacent
    for i, (x, y) in enumerate(edges):
        for other, shared_end in ((x, y), (y, x)):  # edges that meet this one at `shared_end`
            meets = (a == shared_end) | (b == shared_end)
            third = a + b - shared_end
            same_class[i] |= meets & (third != other) & (common_neighbours[other, np.where(meets, third, other)] == 1)
    return np.asarray(connected_components(csr_array(same_class), directed=False)[1], np.int64)


def _split_factors(ranks: int, links: Pairs, side: dict[tuple[int, int], int]) -> Factors | None:
    """Return the factors where the edges with side 1 are the first's; None where capacities do not match a product."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    coordinates = np.zeros((ranks, 2), np.int64)
    for factor in (0, 1):  # a factor's components are the other factor's coordinates
        ends = np.array([edge for edge, s in side.items() if s == factor], np.int64).reshape(-1, 2)
        joined = csr_array((np.ones(len(ends)), (ends[:, 0], ends[:, 1])), shape=(ranks, ranks))
        coordinates[:, factor] = connected_components(joined, directed=False)[1]
    sizes = coordinates.max(axis=0) + 1
    if len({tuple(p) for p in coordinates.tolist()}) != ranks or int(sizes.prod()) != ranks or min(sizes) < 2:
        return None
    pairs: tuple[Pairs, Pairs] = ({}, {})
    for (tail, head), units in links.items():
        factor = 1 - side[min(tail, head), max(tail, head)]
        p, q = coordinates[tail].tolist(), coordinates[head].tolist()
        if p[1 - factor] != q[1 - factor] or pairs[factor].setdefault((p[factor], q[factor]), units) != units:
            return None
    if len(pairs[0]) * sizes[1] + len(pairs[1]) * sizes[0] != len(links):
        return None
    return Factors(pairs, coordinates)


# ---- putting them together ----

Item = tuple[int, int]  # (distance in the other factor to the rank whose data it is, number of the chunk)
Segment = tuple[int, int, list[tuple[Item, int, int, int]]]  # from round, to round, hops (item, owner, tail, head)
Lines = tuple[list[Segment], list[Segment]]  # a line is what one factor's links do, segment by segment


def combine_gathers(
    instance: Instance, factors: Factors, gathers: tuple[Gather, Gather]
) -> tuple[int, tuple[Move, ...]] | None:
    """Return chunks per rank and the moves; None where no integral number of chunks fits within the limits.

    The first factor must have the allgather with the smaller ratio. O(ranks^2 * chunks).
    """
    shares = _balance_shares(factors.sizes, gathers)
    if shares is None or instance.ranks**2 * sum(shares) > MOST_ROWS:
        return None
    return sum(shares), _merge_lines(instance, factors, _plan_lines(factors.sizes, gathers, *shares))


def _plan_lines(sizes: tuple[int, int], gathers: tuple[Gather, Gather], a: int, b: int) -> Lines:
    """Return the segments of both factors. A is the first `a` chunks of every rank, B the other `b`.

    B goes along the second factor in batches, each as large as can arrive before the first factor's links would idle.
    """
    (first_gather, second_gather), (first_size, second_size) = gathers, sizes
    first = _append_gather(first_gather, [(0, j) for j in range(a + b)])
    # by this round every rank has A of the other ranks of its copy of the first factor
    a_arrived = first[-1][1]
    second: list[Segment] = []
    batch_unit = math.lcm(second_gather.chunks, first_gather.chunks // math.gcd(first_gather.chunks, second_size - 1))
    sent = a
    while sent < a + b:
        rounds_left = first[-1][1] - (second[-1][1] if second else 0)
        size = min(max(int(rounds_left / second_gather.ratio) // batch_unit, 1) * batch_unit, a + b - sent)
        batch = range(sent, sent + size)
        second += _append_gather(second_gather, [(0, j) for j in batch], second)
        first += _append_gather(
            first_gather, [(h, j) for h in range(1, second_size) for j in batch], first, second[-1][1]
        )
        sent += size
    second += _append_gather(second_gather, [(0, j) for j in range(a)], second)
    second += _append_gather(second_gather, [(g, j) for g in range(1, first_size) for j in range(a)], second, a_arrived)
    return first, second


def _balance_shares(sizes: tuple[int, int], gathers: tuple[Gather, Gather]) -> tuple[int, int] | None:
    """Return the numbers of chunks of A and B for which the links of both factors finish together; None if too many."""
    (m, n), (first_gather, second_gather) = sizes, gathers
    rho, sigma = first_gather.ratio, second_gather.ratio
    balanced = (sigma * m - rho) / (rho * (n - 1) + sigma * (m - 1))  # rho (1 + (n-1) b) = sigma (1 + (m-1) (1-b))
    b = min(max(balanced, Fraction(0)), Fraction(1))
    c, d = first_gather.chunks, second_gather.chunks
    for chunks in range(b.denominator, MOST_CHUNKS + 1, b.denominator):
        of_b = int(chunks * b)
        of_a = chunks - of_b
        if chunks % c == 0 and (n - 1) * of_b % c == 0 and of_a % d == 0 and of_b % d == 0:
            return of_a, of_b
    return None


def _append_gather(gather: Gather, items: list[Item], after: Sequence[Segment] = (), ready: int = 0) -> list[Segment]:
    """Return the segments in which one factor's links spread these items of every rank, one segment per step.

    They start when the segments `after` have ended and the items are `ready`.
    """
    segments = []
    start = max(after[-1][1] if after else 0, ready)
    times = len(items) // gather.chunks
    for rounds, hops in zip(gather.rounds, gather.hops, strict=True):
        if times:
            end = start + times * rounds
            copies = range(times)
            moved = [(items[i * gather.chunks + j], owner, tail, head) for i in copies for owner, j, tail, head in hops]
            segments.append((start, end, moved))
            start = end
    return segments


def _merge_lines(instance: Instance, factors: Factors, lines: Lines) -> tuple[Move, ...]:
    """Interleave both lines: a step ends where a segment of either ends.

    A segment that spans several steps moves in each of them as much as its links can carry.
    """
    step_begins = sorted({t for line in lines for start, end, _ in line for t in (start, end)})
    rank = np.zeros(factors.sizes, np.int64)
    rank[factors.coordinates[:, 0], factors.coordinates[:, 1]] = np.arange(instance.ranks)
    bond = {ends: i for i, ends in enumerate(zip(instance.tail.tolist(), instance.head.tolist(), strict=True))}
    kind = {k.holders[0]: i for i, k in enumerate(instance.kinds)}
    moves: list[Move] = []
    for factor, line in enumerate(lines):
        units = factors.pairs[factor]
        rank_at = (rank if factor == 0 else rank.T).tolist()  # [coordinate in this factor][in the other]
        copies = len(rank_at[0])
        for start, end, hops in line:
            used: dict[tuple[int, int], int] = defaultdict(int)
            first_step = step_begins.index(start)
            for (distance, chunk), owner, tail, head in hops:  # distance in the other factor, see Item
                step = first_step
                while used[tail, head] >= (step_begins[step + 1] - start) * units[tail, head]:
                    step += 1
                used[tail, head] += 1
                for copy in range(copies):
                    path = (bond[rank_at[tail][copy], rank_at[head][copy]],)
                    moves.append((kind[rank_at[owner][(copy + distance) % copies]], chunk, path, step))
            assert end in step_begins
    return tuple(sorted(moves))
