"""The algorithms of Blink (Wang et al., MLSys 2020), which blink.py combines into a planner. Numbers are its sections.

    3.2, 3.3   `blink_broadcast`, `blink_allreduce` pack trees on a machine without switches
    3.5        `three_phases` plans an allreduce over several servers
    3.4        `split_by_rate` divides data between two kinds of links; `with_link_kinds` and `with_links` select links

Packing is the multiplicative-weights method of Garg and Könemann (1998). Every edge has a length:

    length[e] = 1 / capacity[e]
    repeat: take the tree of least length, as heavily as its narrowest edge allows;
            length[e] *= 1 + epsilon * weight / capacity[e]     for its edges
    until   total weight, scaled down to fit >= (1 - epsilon) * min over rounds of (sum length * capacity / tree length)

The right-hand side is an upper bound by LP duality. This packs many trees (10 to 299 on one machine, by epsilon and
ties), so an integer program then chooses few of them (3.2.1), with weights of 0 or 1. If its best total misses the
optimum by more than the threshold, weights are relaxed step by step: to integers, halves, thirds and so on, and last to
any fractions. Results are exact rationals that fit the capacities; floats only guide the search.

Three phases, for any number of servers of any size: every server packs its own undirected trees. Their shares of the
data differ between servers, so the data are cut wherever a share of any server ends. Each part of the data has one tree
in every server. It is (1) reduced over these trees to their roots, (2) exchanged between the n roots, where each root
adds up 1/n of the part and sends the result to the others, (3) broadcast down the same trees. The data are also cut
where the shares of a server's network cards end, each proportional to the card's rate: then the root of a part's tree
can be a rank at the part's card.

Example: servers with shares (1/2, 1/2) and (1/3, 2/3): three parts, of 1/3, 1/6 and 1/2.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from math import ceil, log
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.core.collective import Collective
from antiphon.core.schedule import COPY, MAX_DENOMINATOR, REDUCE, Schedule
from antiphon.core.topology import SharedLimit, Topology
from antiphon.core.transform import Placement, Spans, assemble_parts
from antiphon.errors import Invalid, Unsupported
from antiphon.planners.shared.reach import Hop, Path, Reach, reroot_tree
from antiphon.planners.shared.rows import Row, schedule_of
from antiphon.planners.shared.tree_schedules import SpanningTree, refine_shares
from antiphon.planners.trees.direct_links import Directed, Undirected, tree_of_arcs, tree_of_edges
from antiphon.planners.trees.fewest import heaviest_first, tightest_side
from antiphon.planners.trees.pricing import cheapest_tree
from antiphon.planners.trees.spanning import weakest_partition_of

EdgeSet = tuple[int, ...]  # a tree, by the numbers of its edges
WeightedTrees = list[tuple[Fraction, EdgeSet]]
LARGEST_DENOMINATOR = 8  # of the weights that the integer program tries
FRACTION_DENOMINATOR = 2**20  # to which the linear program's weights are rounded down if all these fail
MOST_NODES = 100  # branch-and-bound nodes per integer program
SOLVER_ERROR = 1e-9  # relative: weights are lowered by it, so that rounding overloads no link
PackServer = Callable[[Sequence[int]], list[SpanningTree]]  # packs the undirected trees of one server's ranks


@dataclass(frozen=True)
class Blink:
    """Packed trees, in bytes/s: their total `rate`, and the `optimum` of any packing.

    `packed`, `packed_rate`: number and rate of the trees before the integer program chose among them.
    `weights`: the kind of the chosen trees' weights, in units of capacity: "0 or 1", "whole", "1/2", ..., "fractions".
    """

    trees: tuple[SpanningTree, ...]
    rate: Fraction
    optimum: Fraction
    packed: int
    packed_rate: Fraction
    weights: str


def blink_broadcast(
    machine: Directed, root: int, *, epsilon: float = 0.05, threshold: Fraction = Fraction(1, 20)
) -> Blink:
    """Pack directed trees out of a root (a rank) (3.2).

    `epsilon`: accuracy of the multiplicative weights. `threshold`: fraction of the optimum that may be lost to have few
    trees.
    """
    root_vertex = machine.members.index(root)
    _, optimum = tightest_side(machine, root)
    usable, ends, capacity = list[int](), list[tuple[int, int]](), list[int]()  # arcs that do not enter the root
    for e, (a, b, arc_capacity, *_) in enumerate(machine.arcs):
        if b != root_vertex:
            usable.append(e)
            ends.append((a, b))
            capacity.append(arc_capacity)

    def find_cheapest(lengths: Sequence[float]) -> EdgeSet:
        """Return the cheapest tree out of the root, as positions in `usable`."""
        return least_arborescence(machine.vertices, ends, lengths, root_vertex)

    packed = multiplicative_weights(capacity, find_cheapest, epsilon)
    selected, weight_kind = select_few_trees(packed, capacity, Fraction(optimum), threshold)
    trees = tuple(tree_of_arcs(machine, root, [usable[e] for e in chosen], w * machine.unit) for w, chosen in selected)
    return _blink_result(trees, optimum * machine.unit, packed, machine.unit, weight_kind)


def blink_allreduce(machine: Undirected, *, epsilon: float = 0.05, threshold: Fraction = Fraction(1, 20)) -> Blink:
    """Pack undirected spanning trees, for a reduce up and a broadcast down (3.3); options as `blink_broadcast`."""
    edges = [(a, b, capacity) for a, b, capacity, *_ in machine.edges]
    optimum, _ = weakest_partition_of(machine.vertices, edges)
    ends, capacity = [(a, b) for a, b, _ in edges], [capacity for *_, capacity in edges]

    def find_cheapest(lengths: Sequence[float]) -> EdgeSet:
        """Return the cheapest spanning tree."""
        return least_spanning_tree(machine.vertices, ends, lengths)

    packed = multiplicative_weights(capacity, find_cheapest, epsilon)
    selected, weight_kind = select_few_trees(packed, capacity, optimum, threshold)
    trees = tuple(tree_of_edges(machine, chosen, w * machine.unit) for w, chosen in selected)
    return _blink_result(trees, optimum * machine.unit, packed, machine.unit, weight_kind)


def _blink_result(
    trees: tuple[SpanningTree, ...], optimum: Fraction, packed: WeightedTrees, unit: Fraction, weight_kind: str
) -> Blink:
    """Return the result with rates in bytes/s. `packed`: the trees before the integer program, with rates in `unit`."""
    rate = sum((tree.rate for tree in trees), Fraction(0))
    packed_rate = sum((w for w, _ in packed), Fraction(0)) * unit
    return Blink(trees, rate, optimum, packed=len(packed), packed_rate=packed_rate, weights=weight_kind)


def multiplicative_weights(
    capacity: Sequence[int], find_least_tree: Callable[[Sequence[float]], EdgeSet], epsilon: float
) -> WeightedTrees:
    """Return trees with exact weights that fit the capacities, their total within epsilon of the optimum.

    `find_least_tree`: returns the tree of least total length for given lengths of edges. It is called O(edges *
    ln(edges) / epsilon^2) times.
    """
    if not 0 < epsilon < 1:
        raise Invalid(f"epsilon: expected a number between 0 and 1, got {epsilon}")
    length = [1.0 / c for c in capacity]
    load = [0] * len(capacity)
    weight_of: dict[EdgeSet, int] = {}
    total, upper_bound = 0, float("inf")
    # several times the number of rounds that the method needs; it ends by itself below
    for _ in range(1000 + ceil(4 * len(capacity) * (1 + log(len(capacity) + 1)) / epsilon**2)):
        tree = find_least_tree(length)
        tree_length = sum(length[e] for e in tree)
        # weak duality: for any lengths, (sum of capacity * length) / (length of the shortest tree) bounds every packing
        upper_bound = min(upper_bound, sum(x * c for x, c in zip(length, capacity, strict=True)) / tree_length)
        weight = min(capacity[e] for e in tree)
        weight_of[tree] = weight_of.get(tree, 0) + weight
        total += weight
        for e in tree:
            load[e] += weight
            length[e] *= 1 + epsilon * weight / capacity[e]
        # only ratios of lengths matter: rescale before floats overflow
        if tree_length > 1e200:
            length = [x * 2.0**-600 for x in length]  # a power of 2 changes no digits
        fullest = max(x / c for x, c in zip(load, capacity, strict=True))
        if total / fullest >= (1 - epsilon) * upper_bound:
            break
    scale = max(Fraction(x, c) for x, c in zip(load, capacity, strict=True))  # dividing by it makes every edge fit
    return heaviest_first((Fraction(w) / scale, tree) for tree, w in weight_of.items())


def least_spanning_tree(vertices: int, ends: Sequence[tuple[int, int]], length: Sequence[float]) -> EdgeSet:
    """Return a minimum spanning tree (Kruskal); ties go to the first edge. O(edges log edges).

    `ends`, `length`: by edge, its two vertices and its length.
    """
    label = list(range(vertices))
    chosen = []
    for e in sorted(range(len(ends)), key=lambda e: (length[e], e)):
        a, b = (label[v] for v in ends[e])
        if a != b:
            label = [b if x == a else x for x in label]
            chosen.append(e)
            if len(chosen) == vertices - 1:
                break
    return tuple(sorted(chosen))


def least_arborescence(vertices: int, ends: Sequence[tuple[int, int]], length: Sequence[float], root: int) -> EdgeSet:
    """Return the arcs of the cheapest tree out of the root (Chu and Liu; Edmonds), which must reach every vertex.

    O(vertices^3) at worst.
    """
    cost = np.full((vertices, vertices), np.inf)
    arc = np.zeros((vertices, vertices), np.int64)
    for e, (a, b) in enumerate(ends):
        if length[e] < cost[a, b]:
            cost[a, b], arc[a, b] = length[e], e
    parents = cheapest_tree(cost, root, far=np.inf)
    assert parents is not None
    return tuple(sorted(int(arc[parent, v]) for v, parent in enumerate(parents) if parent >= 0))


def select_few_trees(
    packed: WeightedTrees, capacity: Sequence[int], optimum: Fraction, threshold: Fraction = Fraction(1, 20)
) -> tuple[WeightedTrees, str]:
    """Return fewer trees that reach (1 - threshold) of the optimum, and the kind of their weights (3.2.1).

    The coarsest kind with which that is possible is taken; see `Blink.weights`.
    """
    if not 0 <= threshold < 1:
        raise Invalid(f"threshold: expected a fraction from 0 to below 1, got {threshold}")
    selected, weight_kind = _select_trees(tuple(packed), tuple(capacity), optimum, threshold)
    return [*selected], weight_kind


@lru_cache(maxsize=64)
def _select_trees(
    packed: tuple[tuple[Fraction, EdgeSet], ...], capacity: tuple[int, ...], optimum: Fraction, threshold: Fraction
) -> tuple[WeightedTrees, str]:
    """Do the work of `select_few_trees`, cached: integer programs take long, and several collectives need the
    same one.
    """
    trees = [tree for _, tree in packed]
    uses = np.zeros((len(capacity), len(trees)))
    for i, tree in enumerate(trees):
        uses[list(tree), i] = 1
    narrowest = [min(capacity[e] for e in tree) for tree in trees]
    min_total, packed_total = (1 - threshold) * optimum, sum((w for w, _ in packed), Fraction(0))
    # in words; the denominator of the weights; by tree, the greatest weight in units of 1 / denominator
    kinds = [("0 or 1", 1, [1] * len(trees)), ("whole", 1, narrowest)]
    kinds += [(f"1/{d}", d, [width * d for width in narrowest]) for d in range(2, LARGEST_DENOMINATOR + 1)]
    for weight_kind, denominator, max_weight in kinds:
        scaled_capacity = [c * denominator for c in capacity]
        chosen = _integer_weights(uses, scaled_capacity, max_weight, min_sum=None)
        if chosen is not None and sum(chosen) >= min_total * denominator:
            # first maximize the total; then, at the required total, minimize the number of trees (with weights of 0 or
            # 1 that is the total itself)
            if weight_kind != "0 or 1":
                min_sum = ceil(min_total * denominator)
                chosen = _integer_weights(uses, scaled_capacity, max_weight, min_sum) or chosen
            return _weighted_trees(chosen, denominator, trees), weight_kind
    fractions = _fractional_weights(uses, capacity, trees)
    total = sum((w for w, _ in fractions), Fraction(0))
    return fractions if total >= min(min_total, packed_total) else [*packed], "fractions"


def _weighted_trees(chosen: Sequence[int], scale: int, trees: Sequence[EdgeSet]) -> WeightedTrees:
    """Return the trees with nonzero weight, the heaviest first. `scale`: denominator of the weights."""
    return heaviest_first((Fraction(w, scale), tree) for w, tree in zip(chosen, trees, strict=True) if w)


def _integer_weights(
    uses: Any, capacity: Sequence[int], max_weight: Sequence[int], min_sum: int | None
) -> list[int] | None:
    """Return integral weights of trees that fit the capacities, or None if none are found.

    Without `min_sum`, their sum is the greatest. With it, the trees are the fewest whose weights sum to at least that.
    `uses[edge, tree]`: 1 if the tree uses the edge.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp

    _, count = uses.shape
    limits, max_values = np.array(capacity, float), np.array(max_weight, float)
    goal, constraints = -np.ones(count), [LinearConstraint(uses, -np.inf, limits)]
    if min_sum is not None:
        # variables: the weights, then per tree 0 or 1 for "chosen"
        total = np.repeat([[1.0, 0.0]], count, axis=1)
        # a weight is nonzero only if its tree is chosen: w <= max_weight * chosen
        allowed = np.hstack([np.eye(count), -np.diag(max_values)])
        constraints = [
            LinearConstraint(np.hstack([uses, np.zeros_like(uses)]), -np.inf, limits),
            LinearConstraint(allowed, -np.inf, 0),
            LinearConstraint(total, min_sum, np.inf),
        ]
        goal, max_values = np.repeat([0.0, 1.0], count), np.append(max_values, np.ones(count))
    solution = milp(
        goal, constraints=constraints, bounds=Bounds(0, max_values), integrality=np.ones(len(goal)),
        options={"node_limit": MOST_NODES},
    )  # fmt: skip
    if solution.x is None:
        return None
    weights = [round(x) for x in solution.x[:count]]
    # the solver works with tolerances: check the rounded weights exactly
    fits = all(
        sum(w for w, use in zip(weights, row, strict=True) if use) <= c for row, c in zip(uses, capacity, strict=True)
    )
    return weights if fits and min(weights) >= 0 and (min_sum is None or sum(weights) >= min_sum) else None


def _fractional_weights(uses: Any, capacity: Sequence[int], trees: Sequence[EdgeSet]) -> WeightedTrees:
    """Return the weights of greatest sum that the linear program finds, rounded so that they fit.

    The solver returns a vertex, so at most as many trees as edges have weight.
    """
    from scipy.optimize import linprog

    solution = linprog(-np.ones(len(trees)), A_ub=uses, b_ub=np.array(capacity, float), method="highs-ds")
    weights = [int(max(x, 0) * (1 - SOLVER_ERROR) * FRACTION_DENOMINATOR) for x in solution.x]
    loads = [sum(w for w, use in zip(weights, row, strict=True) if use) for row in uses]
    scale = max(Fraction(x, c * FRACTION_DENOMINATOR) for x, c in zip(loads, capacity, strict=True))
    weighted_trees = _weighted_trees(weights, FRACTION_DENOMINATOR, trees)
    return weighted_trees if scale <= 1 else [(w / scale, tree) for w, tree in weighted_trees]


def one_hop_trees(topology: Topology, members: Sequence[int]) -> list[SpanningTree]:
    """Return a tree of rate 1 from every member that reaches all other members in one hop.

    Raises Unsupported if two members are joined neither directly nor through switches.
    """
    reach = Reach(topology)
    trees = []
    for root in members:
        hops = []
        for rank in sorted(set(members) - {root}):
            to_rank, back = reach.neighbours(root).get(rank), reach.neighbours(rank).get(root)
            if not to_rank or not back:
                raise Unsupported(
                    f"planner blink: ranks {root} and {rank} of {topology.name} are joined neither directly nor "
                    "through switches; use planner trees"
                )
            hops.append((rank, Hop(root, to_rank[0], depth=1, back=back[0])))
        trees.append(SpanningTree(root, Fraction(1), tuple(hops)))
    return trees


@dataclass(frozen=True)
class _NetworkCard:
    """Ranks of a server that leave it by the same network card, and the card's rate."""

    ranks: tuple[int, ...]
    rate: Fraction


def three_phases(
    topology: Topology, collective: Collective, servers: Sequence[Sequence[int]], pack_server: PackServer
) -> tuple[Schedule, int]:
    """Return an allreduce over several servers in three phases, and the number of parts into which it cuts the data.

    `servers`: the ranks of each. `pack_server`: returns packed undirected trees over a server's ranks. O(rows).
    """
    reach = Reach(topology)
    # cut the data wherever the share of a tree or of a network card ends, in any server
    packed = [
        pack_server(ranks) if len(ranks) > 1 else [SpanningTree(ranks[0], Fraction(1), hops=())] for ranks in servers
    ]
    connected_servers = range(len(servers)) if len(servers) > 1 else ()  # cards matter only between servers
    network_cards = [_network_cards(reach, servers, server_number) for server_number in connected_servers]
    items_with_rates: list[Sequence[SpanningTree | _NetworkCard]] = [*packed, *network_cards]
    # per part: its share of the data; each server's tree, then each server's card
    refinement = refine_shares(items_with_rates)
    # len(servers): the roots of a part exchange it in as many equal fractions
    denominator = len(servers) * math.lcm(*(share.denominator for share, _ in refinement))
    if denominator >= MAX_DENOMINATOR:
        raise Unsupported(
            "the shares of the trees have no common denominator below 2^62; use planner trees, which rounds them"
        )
    data = Spans.side_by_side(np.array([int(share * denominator) for share, _ in refinement]))
    load: dict[int, Fraction] = defaultdict(Fraction)
    stages: list[Placement] = []
    # each part of the data: choose a root in every server, at the part's card if there are cards
    for number, (share, items) in enumerate(refinement):
        trees = [item for item in items if isinstance(item, SpanningTree)]
        cards = [item for item in items if isinstance(item, _NetworkCard)]
        roots = []
        for server_number, tree in enumerate(trees):
            roots.append(_choose_root(tree, cards[server_number].ranks, load) if cards else tree.root)
            load[roots[-1]] += share
        rerooted = [reroot_tree(tree.hops, root) for tree, root in zip(trees, roots, strict=True)]
        root_trees = list(zip(roots, rerooted, strict=True))
        stages += _part_stages(reach, collective.ranks, root_trees, data.take(np.array([number])))
    return assemble_parts(stages, collective, Spans.side_by_side(np.array([denominator]))), len(refinement)


def _part_stages(reach: Reach, ranks: int, trees: Sequence[tuple[int, dict[int, Hop]]], data: Spans) -> list[Placement]:
    """Return the three phases for one part of the data, as schedules with the step in which each starts.

    `trees`: per server the root and its tree; `data`: where the part lies in the whole of the data.
    """
    start = max(_tree_height(hops) for _, hops in trees)  # the step of the exchange: all servers' reduces end before it
    servers = [_tree_schedules(ranks, root, hops) for root, hops in trees if hops]
    stages = [replace(Placement.single_copy(up, data), start=start - up.steps) for up, _ in servers]
    # the roots exchange: each adds up an equal fraction of the part from all others, then sends the sum back to them
    if len(trees) > 1:
        borders = np.arange(len(trees) + 1) * (int(data.lengths.sum()) // len(trees))
        # by root, the equal stretches of the part, all cut from its only block (0)
        own_shares = data.cut(np.zeros(len(trees), np.int64), borders[:-1], borders[1:])
        for number, (center, _) in enumerate(trees):
            other_roots = [root for root, _ in trees if root != center]
            star = {
                root: Hop(center, _one_hop_path(reach, center, root), depth=1, back=_one_hop_path(reach, root, center))
                for root in other_roots
            }
            own_data = own_shares.take(np.array([number]))
            stages += [
                replace(Placement.single_copy(phase, own_data), start=start + i)
                for i, phase in enumerate(_tree_schedules(ranks, center, star))
            ]
        start += 2
    return [*stages, *(replace(Placement.single_copy(down, data), start=start) for _, down in servers)]


def _tree_schedules(ranks: int, root: int, hops: dict[int, Hop]) -> tuple[Schedule, Schedule]:
    """Return a reduce up a tree to its root, and a broadcast down from there."""
    height, members = _tree_height(hops), (root, *hops)
    # rows: step, chunk, sender, receiver, operation, links
    up: list[Row] = [(height - hop.depth, 0, rank, hop.parent, REDUCE, hop.back) for rank, hop in hops.items()]
    down: list[Row] = [(hop.depth - 1, 0, hop.parent, rank, COPY, hop.path) for rank, hop in hops.items()]
    shares = [(0, Fraction(1))]
    return (
        schedule_of(Collective("reduce", ranks, members, (root,)), shares, up),
        schedule_of(Collective("broadcast", ranks, members, (root,)), shares, down),
    )


def _choose_root(tree: SpanningTree, ranks: Sequence[int], load: dict[int, Fraction]) -> int:
    """Return, of the ranks at a card, the one that is root of the least data so far; ties: with the shallowest tree.

    `load`: by rank, the share of the data that it is root of.
    """
    return min(ranks, key=lambda rank: (load[rank], _tree_height(reroot_tree(tree.hops, rank)), rank))


def _network_cards(reach: Reach, servers: Sequence[Sequence[int]], server: int) -> list[_NetworkCard]:
    """Return the network cards of the server with number `server`, with their ranks and rates.

    A machine names no cards: ranks share one if their paths to another server begin with the same link or shared limit.
    Its rate is the sum of these first links, at most its narrowest limit (without limits, the link).
    """
    topology = reach.topology
    outside_rank, *_ = servers[server - 1]  # of the server before; before the first comes the last
    ranks_of_card: dict[tuple[int, ...], list[int]] = {}
    rate_of_card: dict[tuple[int, ...], Fraction] = {}
    for rank in servers[server]:
        first, *_ = _one_hop_path(reach, rank, outside_rank)
        limits = [limit for limit in topology.limits if first in limit.links]
        key = tuple(sorted({link for limit in limits for link in limit.links})) or (first,)
        ranks_of_card.setdefault(key, []).append(rank)
        narrowest = min([limit.bandwidth for limit in limits], default=topology.bandwidth(first))
        rate_of_card[key] = min(narrowest, rate_of_card.get(key, Fraction(0)) + topology.bandwidth(first))
    return [_NetworkCard(tuple(ranks), rate_of_card[key]) for key, ranks in ranks_of_card.items()]


def _one_hop_path(reach: Reach, src: int, dst: int) -> Path:
    """Return the links of a direct path, or of one through switches; raises Unsupported if there is none."""
    one_hop_paths = reach.neighbours(src).get(dst)
    if not one_hop_paths:
        raise Unsupported(
            f"planner blink: servers exchange over one-hop trees, and rank {src} of {reach.topology.name} has no link "
            f"or path through switches to rank {dst}; use planner trees"
        )
    return one_hop_paths[0]


def _tree_height(hops: dict[int, Hop]) -> int:
    return max((hop.depth for hop in hops.values()), default=0)


@dataclass(frozen=True)
class LinkSubset:
    """A machine with some of the links of another machine: its link i is link `links[i]` there. Ranks are the same."""

    topology: Topology
    links: tuple[int, ...]

    def map_path(self, path: Iterable[int]) -> tuple[int, ...]:
        """Return a path in the other machine's link numbers."""
        return tuple(self.links[link] for link in path)

    def map_tree(self, tree: SpanningTree) -> SpanningTree:
        """Return the tree in the other machine's link numbers."""
        hops = tuple(
            (rank, Hop(hop.parent, self.map_path(hop.path), hop.depth, self.map_path(hop.back)))
            for rank, hop in tree.hops
        )
        return replace(tree, hops=hops)


def with_links(topology: Topology, keep: NDArray[np.bool_]) -> LinkSubset:
    """Return the machine with these links only; shared limits keep their remaining links. O(links)."""
    links = np.flatnonzero(keep)
    new_number = np.cumsum(keep) - 1
    limits = []
    for limit in topology.limits:
        remaining = tuple(int(new_number[link]) for link in limit.links if keep[link])
        if remaining:
            limits.append(SharedLimit(limit.name, remaining, limit.bandwidth))
    subset = replace(
        topology, link_src=topology.link_src[links], link_dst=topology.link_dst[links],
        link_type=topology.link_type[links], limits=tuple(limits),
    )  # fmt: skip
    return LinkSubset(subset, tuple(links.tolist()))


def with_link_kinds(topology: Topology, kinds: Iterable[str]) -> LinkSubset:
    """Return the machine with the links whose type has one of these kinds, such as "nvlink"."""
    kept_kinds = set(kinds)
    keep = np.array([kind.kind in kept_kinds for kind in topology.types])[topology.link_type]
    return with_links(topology, keep)


def links_within(topology: Topology, place: str) -> LinkSubset:
    """Return the machine with only the links between nodes at or inside this place, such as host0."""
    inside = np.array([name == place or name.startswith(place + "/") for name in topology.places])
    return with_links(topology, inside[topology.link_src] & inside[topology.link_dst])


def split_by_rate(total: Fraction, fast: Fraction, slow: Fraction, delay: Fraction) -> Fraction:
    """Return the bytes of `total` that go over the slow links (PCIe) so that both kinds finish together (Equation 8).

    `fast`, `slow`: bytes/s of the trees over each kind of links. `delay`: T_dpa, the time before the slow links may
    start. If the equation gives a negative amount (little data, which the paper does not treat), all data use the fast
    links.
    """
    share = (total * slow - delay * slow * fast) / (slow + fast)
    return max(share, Fraction(0))
