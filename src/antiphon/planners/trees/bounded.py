"""Pack trees of bounded depth out of one root, at nearly the greatest rate that such trees can have.

Input: a machine, its root and members (`PricedTreeGrower`), and the maximum depth. Output (`pack_bounded`): trees
with rates that fit all links and shared limits together. The planner `shallow` uses it.

The method is a heuristic column generation (compare columns.py). In stage 1, trees are grown at prices of links. The
first prices grow exponentially with the load that earlier trees put on a link (multiplicative weights), so that trees
avoid each other. In stage 2, a linear program finds the best rates of all trees so far; its dual prices, blended with
the former, show where another tree would help. This repeats until the rate gains no more. With symmetries that keep the
root in place, a tree stands for all its images, and a row of the linear program is an orbit of links or limits.

Growing one tree: minimum spanning trees of bounded depth are NP-hard (facility location is a special case), so no
optimum is promised. `grow_tree` starts with a tree of the fewest hops, or of the cheapest paths. Then it adds hubs: the
rank that saves most becomes the parent of every rank to which its hop is cheaper, within the depth; and so on until no
rank saves anything.

Example: root 0, eight ranks at price 10 from the root and price 1 from each other, depth 2. All from the root cost 80.
One hub costs 10 + 7 * 1 = 17.

Effort is counted in ranks^2 times hubs, so results are the same on every computer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from antiphon.core.columns import Bools, Floats, Longs
from antiphon.core.portable import exp, row_dot
from antiphon.core.symmetry import automorphisms, orbit_labels
from antiphon.core.topology import Topology, hosts
from antiphon.planners.shared.orbits import Symmetries, free_group, orbit_rows, permutation_power
from antiphon.planners.shared.reach import Hop
from antiphon.planners.shared.tree_schedules import SpanningTree
from antiphon.planners.trees.pricing import Parents, grow_by_layer, tree_shape
from antiphon.planners.trees.to_schedule import SymmetricTrees

Hops = tuple[tuple[int, Hop], ...]  # a tree: every rank but the root with the hop that leads to it


@dataclass(frozen=True)
class BoundedLimits:
    """Effort and tolerances of the search for trees of bounded depth."""

    round_effort: int = 4000  # each stage has this / ranks rounds,
    min_rounds: int = 24  # but at least this many
    max_rounds: int = 120  # and at most this many
    max_effort: int = 20 * 10**8  # in entries of cost matrices (ranks^2 per hub), each about 1e-8 seconds
    hub_overhead: int = 3 * 10**4  # effort of trying a hub, besides ranks^2
    min_trees: int = 10  # no tree may use more than max_effort / min_trees
    trees_per_lp: int = 8  # on more than large_ranks, stage 1 checks its goal by a linear program after 8 more trees
    max_idle: int = 10  # rounds of stage 2 without gain, after which the search ends
    sharpness: float = 8.0  # the fullest row costs e^sharpness times an empty one
    random_factors: tuple[float, float] = (0.5, 2.0)  # range of factors on prices, so that trees differ
    min_gain: float = 1e-4  # relative: smaller differences of rates do not count
    sparse_rounds: int = 4  # linear programs solved in turn to have few trees
    small_rate: float = 0.1  # rates below this fraction of total rate / ranks count as small
    large_ranks: int = 128  # on more ranks, symmetries within boxes are not used: they would multiply the trees
    tie_price: float = 1e-6  # surcharge per link, as a fraction of the mean price; slow links have more
    solver_gap: float = 1e-7  # relative optimality gap of the linear programs
    max_denominator: int = 10**6  # to which rates, in unit links, are rounded
    min_rate: Fraction = Fraction(1, 1000)  # smaller rates stay as they are: rounding would distort them
    missing_price: float = 1e30  # price of a missing path
    min_saving: float = 1e-9  # a hub must save more than this fraction of the tree's cost


BOUNDED = BoundedLimits()


class PricedTreeGrower:
    """A machine prepared for growing trees out of one root.

    `capacity`: by row, bytes/s; a row is a link, a shared limit, or an orbit of these under `group`.
    `spent`: effort so far. `grown_trees`: every tree that was grown. `position`: by rank, its index in the members.
    """

    def __init__(
        self, topology: Topology, root: int, members: Sequence[int], group: Symmetries | None = None,
        links: Longs | None = None,
    ) -> None:  # fmt: skip
        """`members`: the ranks that trees reach. `group`: symmetries that keep the root and the members (default: only
        the identity). `links`: the links that paths may use (default: all)."""
        self.topology, self.root, self.spent = topology, root, 0
        self.grown_trees: dict[Hops, None] = {}
        identity = np.arange(topology.nodes + topology.links + len(topology.limits), dtype=np.int64)[None]
        self.group = identity if group is None else group
        self.row = orbit_rows(topology, self.group)
        resources = topology.resources  # one capacity per class of equal resources, in units of `scale`
        capacity = np.array([float(c * resources.scale) for c in resources.capacity])[resources.class_of]
        self.capacity: Floats = np.bincount(self.row, weights=capacity).astype(np.float64)
        # link crossing_link[i] loads row crossing_row[i]: the row of the link itself, and those of its limits
        self.crossing_link, crossed = resources.with_limits(np.arange(topology.links))
        self.crossing_row = self.row[crossed]
        self.paths = PricedPaths(
            topology, np.array(members, np.int64), np.arange(topology.links) if links is None else links
        )
        link_latency = np.array([kind.latency for kind in topology.types])[topology.link_type]
        # a slight surcharge per link, larger on slow links, decides between equally cheap paths
        self.tie_surcharge = BOUNDED.tie_price * (
            1 + link_latency / link_latency.mean() if link_latency.any() else np.ones(topology.links)
        )
        self.position = {rank: number for number, rank in enumerate(members)}

    @property
    def has_no_symmetry(self) -> bool:
        """Whether the only symmetry is the identity."""
        return len(self.group) == 1

    def grow_priced(self, price: Floats, max_depth: int, from_prim: bool = False) -> tuple[Hops, Floats] | None:
        """Return a cheap tree at these prices of rows, and its load on each row; None if no tree is that shallow.

        `from_prim`: as for `grow_tree`.
        """
        link_price = np.bincount(self.crossing_link, weights=price[self.crossing_row], minlength=self.topology.links)
        # 1e-300: no price may be 0, which a sparse graph takes for a missing link
        priced_paths = self.paths.price_paths(link_price + self.tie_surcharge * link_price.mean() + 1e-300)
        # grow the tree over positions in the members, then look up its links
        hub_effort = len(self.position) ** 2 + BOUNDED.hub_overhead
        grown = grow_tree(
            priced_paths.cost,
            self.position[self.root],
            max_depth,
            hubs=max(BOUNDED.max_effort // BOUNDED.min_trees // hub_effort, 1),
            from_prim=from_prim,
        )
        if grown is None:
            return None
        self.spent += hub_effort * grown.hubs
        hops = []
        for rank, i in self.position.items():
            if rank != self.root:
                parent = int(grown.parent[i])
                path = self.paths.path_links(priced_paths, parent, i)
                hops.append((rank, Hop(int(self.paths.ranks[parent]), path, int(grown.depth[i]))))
        self.grown_trees[tuple(hops)] = None
        return tuple(hops), self.row_load(hops)

    def row_load(self, hops: Iterable[tuple[int, Hop]]) -> Floats:
        """Return how often a tree uses each row."""
        links = np.array([link for _, hop in hops for link in hop.path])
        crossed = np.bincount(links, minlength=self.topology.links)
        load = np.bincount(self.crossing_row, weights=crossed[self.crossing_link], minlength=len(self.capacity))
        return load.astype(np.float64)


def pack_bounded(
    grower: PricedTreeGrower, max_depth: int, goal: float, start_trees: Sequence[SpanningTree] = ()
) -> SymmetricTrees | None:
    """Return a packing of trees at most `max_depth` deep, or None if no tree is that shallow.

    `goal`: the rate (bytes/s) at which to stop. `start_trees`: trees to start with instead of stage 1.
    """
    # columns of the linear program: trees with how often they use each row
    columns = {tree.hops: grower.row_load(tree.hops) for tree in start_trees}
    row_loads = np.sum([*columns.values(), np.zeros(len(grower.capacity))], axis=0)
    rounds = min(BOUNDED.max_rounds, max(BOUNDED.min_rounds, BOUNDED.round_effort // len(grower.position)))
    rng = np.random.default_rng(max_depth)  # any fixed seed: the same input gives the same trees
    # stage 1: prices from loads only, perturbed in every other round so that trees differ
    for round_number in range(0 if start_trees else rounds):
        if columns and (
            grower.spent >= BOUNDED.max_effort
            or (round_number % BOUNDED.trees_per_lp == 0 and _reaches_goal(grower, list(columns.values()), goal))
        ):
            break
        price = _load_prices(row_loads, grower.capacity) * (
            rng.uniform(*BOUNDED.random_factors, len(row_loads)) if round_number % 2 else 1
        )
        # odd rounds perturb the prices; of four rounds, the last two start from a tree grown as by Prim
        grown = grower.grow_priced(price, max_depth, from_prim=round_number % 4 > 1)
        if grown is None:
            return None
        hops, load = grown
        columns[hops] = load
        row_loads += load
    # stage 2: prices of the linear program, blended with those of loads
    rates, price = _solve_rates(grower, list(columns.values()))
    best, idle = rates.sum(), 0
    for round_number in range(rounds):
        if best >= goal * (1 - BOUNDED.min_gain) or idle > BOUNDED.max_idle or grower.spent >= BOUNDED.max_effort:
            break
        tree_count = len(columns)
        # per round four trees: at the linear program's prices alone, and at two blends with prices of loads (the second
        # differs from round to round, so that new trees appear), the second in either way of growing
        for number, blend in enumerate((0.0, 0.1, 0.2 + 0.05 * (round_number % 4))):
            load_price = _load_prices(row_loads, grower.capacity) * (
                rng.uniform(*BOUNDED.random_factors, len(row_loads)) if blend else 1
            )
            blended_price = _blend_prices(price, load_price, grower.capacity, blend)
            from_prim_choices = (False, True) if number == 2 else (round_number % 2 == 0,)
            for from_prim in from_prim_choices:
                grown = grower.grow_priced(blended_price, max_depth, from_prim)
                assert grown is not None
                hops, load = grown
                columns[hops] = load
                row_loads += load
        if len(columns) > tree_count:
            rates, price = _solve_rates(grower, list(columns.values()))
        idle = 0 if rates.sum() > best * (1 + BOUNDED.min_gain) else idle + 1
        best = rates.sum()
    return _rated_packing(grower, list(columns), _prefer_few_shallow_trees(grower, columns, rates))


def _reaches_goal(grower: PricedTreeGrower, loads: Sequence[Floats], goal: float) -> bool:
    """Return whether trees with these loads reach the goal already; False on smaller machines, where stage 2 is
    quick.
    """
    if len(grower.position) <= BOUNDED.large_ranks:
        return False
    rates, _ = _solve_rates(grower, loads)
    return bool(rates.sum() >= goal * (1 - BOUNDED.min_gain))


def _load_prices(row_loads: Floats, capacity: Floats) -> Floats:
    """Return prices that grow exponentially with each row's load relative to its capacity."""
    relative_load = row_loads / capacity
    fullest = relative_load.max()
    return exp(BOUNDED.sharpness * (relative_load / fullest - 1)) / capacity if fullest else 1 / capacity


def _blend_prices(price: Floats, load_price: Floats, capacity: Floats, blend: float) -> Floats:
    """Blend two price vectors, each scaled so that all capacity together costs 1. `blend`: weight of `load_price`."""
    return (1 - blend) * price / row_dot(price, capacity) + blend * load_price / row_dot(load_price, capacity)


def _scaled_table(grower: PricedTreeGrower, loads: Sequence[Floats]) -> tuple[Floats, Floats, Bools]:
    """Return the matrix of the linear program, the greatest rate of each tree on its own, and which rows have load.

    An entry [row, tree] is the fraction of the row's capacity that the tree uses at that rate. So entries are at most
    1, which suits the solver. Rows without load are left out.
    """
    table = np.array(loads).T / grower.capacity[:, None]
    single_rate = 1 / table.max(axis=0)
    table = table * single_rate
    loaded_rows: Bools = table.any(axis=1)
    return table[loaded_rows], single_rate, loaded_rows


def _solve_rates(grower: PricedTreeGrower, loads: Sequence[Floats]) -> tuple[Floats, Floats]:
    """Return rates of the trees with these loads whose sum is greatest, and the dual prices of rows."""
    import scipy.sparse as sp
    from scipy.optimize import linprog

    table, single_rate, loaded_rows = _scaled_table(grower, loads)
    solution = linprog(
        -single_rate / single_rate.max(), A_ub=sp.csr_array(table), b_ub=np.ones(len(table)), method="highs-ds"
    )
    assert solution.status == 0, "a packing of trees has an optimum"
    price = np.zeros(len(grower.capacity))
    # dual prices of the scaled rows, back to prices per byte
    price[loaded_rows] = np.maximum(-solution.ineqlin.marginals, 0)
    return solution.x * single_rate, price / grower.capacity


def _prefer_few_shallow_trees(grower: PricedTreeGrower, columns: Mapping[Hops, Floats], rates: Floats) -> Floats:
    """Return rates with the same total on few and shallow trees.

    A linear program minimizes the mean depth of ranks, over all trees weighted by rate. It is repeated with costs that
    favour trees of large rate in the previous solution (reweighted L1 minimization), so that few trees remain.
    """
    import scipy.sparse as sp
    from scipy.optimize import linprog

    table, single_rate, _ = _scaled_table(grower, list(columns.values()))
    depth_sums = np.array([sum(hop.depth for _, hop in hops) for hops in columns], float)
    total_rate, sparse_rates = rates.sum(), rates
    for round_number in range(BOUNDED.sparse_rounds):
        # a tree of small rate costs more, up to twice as much as one of large rate
        unit_rate = total_rate / len(grower.position)
        cost = (
            depth_sums
            / depth_sums.mean()
            * (1 + BOUNDED.small_rate / (sparse_rates / unit_rate + BOUNDED.small_rate) if round_number else 1)
            * single_rate
            / total_rate
        )
        # the total must stay the same, up to the solver's accuracy
        solution = linprog(
            cost,
            A_ub=sp.csr_array(table),
            b_ub=np.ones(len(table)),
            A_eq=(single_rate / total_rate)[None],
            b_eq=[1 - BOUNDED.solver_gap],
            method="highs-ds",
        )
        if solution.status != 0:
            break
        sparse_rates = solution.x * single_rate
    return np.asarray(sparse_rates, np.float64)


def _rated_packing(grower: PricedTreeGrower, trees: Sequence[Hops], rates: Floats) -> SymmetricTrees:
    """Return the trees of non-negligible rate at rounded rates, each with its images, which share its rate equally.

    Rounded rates may exceed capacities slightly: schedules take only the trees' shares of the data from them.
    """
    negligible_rate = BOUNDED.min_gain / max(len(trees), 1) * float(rates.sum())
    unit, packed_trees = grower.topology.unit, []
    for hops, rate in zip(trees, rates.tolist(), strict=True):
        if rate > negligible_rate:
            units = Fraction(rate / float(unit))
            rounded_rate = (
                units.limit_denominator(BOUNDED.max_denominator) if units > BOUNDED.min_rate else units
            ) * unit
            packed_trees.append(SpanningTree(grower.root, rounded_rate, hops))
    return SymmetricTrees.of_trees(grower.topology, packed_trees, grower.group)


def symmetries_fixing_root(topology: Topology, root: int, members: Sequence[int], seed: int = 0) -> Symmetries | None:
    """Return symmetries that keep the root in place and move as many other members as possible; None without any.

    No symmetry but the identity keeps a moved member in place (the group acts freely on them), so that all trees have
    equally many images.
    """
    inside = set(members)
    # symmetries take nodes to nodes of equal color: the root (2), other members (1), other ranks (0), switches (3)
    color = [2 if node == root else int(node in inside) for node in range(topology.ranks)] + [3] * topology.switches
    generators = automorphisms(topology, color)
    if not generators:
        return None
    orbit = orbit_labels(generators, topology.nodes)
    other_members = [rank for rank in members if rank != root]
    sizes = np.bincount(orbit[other_members], minlength=topology.nodes)
    if sizes.max(initial=0) < 2:
        return None
    # the group moves the ranks of the largest orbits; their demands are equal, as `free_group` maps no rank to one of
    # another demand
    demand = {rank: 1 for rank in other_members if sizes[orbit[rank]] == sizes.max()}
    return _box_rotations(topology, free_group(topology, demand, other_members, seed))


def _box_rotations(topology: Topology, group: Symmetries) -> Symmetries:
    """Return the symmetries; on large machines only those that rotate the boxes other than the root's, since more would
    multiply the trees."""
    boxes = len(set(hosts(topology))) - 1  # without that of the root
    if boxes < 2 or len(group) <= boxes or topology.ranks <= BOUNDED.large_ranks:
        return group
    # a rotation of all other boxes, repeated once per box, is the identity
    identity = np.arange(group.shape[1])
    rotates = [bool((permutation_power(element, boxes) == identity).all()) for element in group]
    box_rotations = group[rotates]
    return box_rotations if len(box_rotations) == boxes else group


class PathPrices(NamedTuple):
    """The cheapest paths at some prices. Ranks are positions in `PricedPaths.ranks`, nodes those of its graph.

    `link_table`: one row with the ends of each used link, as tail * (number of nodes) + head, ascending; one with its
    number.
    """

    cost: Floats  # [from rank, to rank]
    predecessor: NDArray[np.int32]  # [from rank, node]: the node before it on the path to it
    link_table: Longs


class PricedPaths:
    """Cheapest paths between ranks at changing prices of links, by direct links or through switches."""

    def __init__(self, topology: Topology, ranks: Longs, links: Longs) -> None:
        """Use only `links`. In the graph each rank is two nodes: links into rank r lead to node r, and links out of it
        begin at node r + (nodes of the topology). So no path passes through a rank.
        """
        self.ranks, self.nodes, self.links_used = ranks, topology.nodes, links
        src, dst = topology.link_src[links].astype(np.int64), topology.link_dst[links].astype(np.int64)
        self.tail = np.where(src < topology.ranks, src + topology.nodes, src)
        self.head = dst
        self.size = topology.nodes + topology.ranks

    def price_paths(self, price: Floats) -> PathPrices:
        """Return the cheapest paths between all ranks at these prices of links."""
        import scipy.sparse as sp
        from scipy.sparse.csgraph import dijkstra

        price = price[self.links_used]
        # of parallel links only the cheapest is in the graph
        order = np.lexsort((price, self.head, self.tail))
        first = np.ones(len(order), bool)
        first[1:] = (np.diff(self.tail[order]) != 0) | (np.diff(self.head[order]) != 0)
        cheapest_links = order[first]
        graph = sp.csr_array(
            (price[cheapest_links], (self.tail[cheapest_links], self.head[cheapest_links])),
            shape=(self.size, self.size),
        )
        distance, predecessor = dijkstra(graph, indices=self.ranks + self.nodes, return_predecessors=True)
        cost = distance[:, self.ranks]
        cost[~np.isfinite(cost)] = BOUNDED.missing_price
        np.fill_diagonal(cost, BOUNDED.missing_price)
        key = self.tail[cheapest_links] * self.size + self.head[cheapest_links]
        ascending = np.argsort(key)
        link_table = np.stack([key[ascending], self.links_used[cheapest_links[ascending]]])
        return PathPrices(cost, predecessor, link_table)

    def path_links(self, priced_paths: PathPrices, tail: int, head: int) -> tuple[int, ...]:
        """Return the links of the cheapest path between `tail` and `head`, positions in `ranks`, by `price_paths`."""
        predecessor, (key, link) = priced_paths.predecessor, priced_paths.link_table
        path = []
        node, start = int(self.ranks[head]), int(self.ranks[tail]) + self.nodes
        while node != start:
            last = int(predecessor[tail, node])
            path.append(int(link[np.searchsorted(key, last * self.size + node)]))
            node = last
        return tuple(path[::-1])


@dataclass(frozen=True, eq=False)
class GrownTree:
    """A tree over positions in the members: by position, the parent (the root's is itself) and the depth.

    `hubs`: hubs tried.
    """

    parent: Longs
    depth: Longs
    hubs: int


def grow_tree(cost: Floats, root: int, max_depth: int, hubs: int, from_prim: bool = False) -> GrownTree | None:
    """Return a cheap tree out of the root, at most `max_depth` deep; None if there is none. O(ranks^2) per hub.

    `from_prim`: start with a tree grown as by Prim, rank by rank by the cheapest hop (if that reaches all ranks), and
    not with one grown level by level. `hubs`: the most hubs to try.
    """
    first_tree = (_grow_nearest(cost, root, max_depth) if from_prim else None) or grow_by_layer(
        cost, root, max_depth, BOUNDED.missing_price
    )
    return None if first_tree is None else _add_hubs(cost, root, max_depth, hubs, first_tree)


def _add_hubs(cost: Floats, root: int, max_depth: int, hubs: int, parents: Parents) -> GrownTree:
    """Improve a tree by hubs: the rank that saves most becomes the parent of all ranks to which its hop is cheaper."""
    count = len(cost)
    everyone = np.arange(count)
    parent, hub_count = np.array(parents, np.int64), 0
    parent[root] = root
    while hub_count < min(4 * count, hubs):  # 4: a backstop; savings end long before
        hub_count += 1
        depth, height, below = tree_shape(parent, root)
        hop_cost = cost[parent, everyone]
        hop_cost[root] = 0
        savings = hop_cost[None, :] - cost  # by [new parent, rank]
        savings[(depth[:, None] + 1 + height[None, :]) > max_depth] = 0
        savings[:, root] = 0
        savings[below] = 0  # below[a, b]: a lies below b, so it cannot become its parent
        np.maximum(savings, 0, out=savings)
        gain = savings.sum(axis=1)
        hub = int(gain.argmax())
        if gain[hub] <= BOUNDED.min_saving * (hop_cost.sum() + BOUNDED.min_saving):
            break
        moved = np.flatnonzero(savings[hub] > 0)
        parent[moved] = hub
    depth, _, _ = tree_shape(parent, root)
    return GrownTree(parent, depth, hub_count)


def _grow_nearest(cost: Floats, root: int, max_depth: int) -> Parents | None:
    """Return a tree grown as by Prim, always by the cheapest hop that keeps within the depth.

    None if that leaves ranks unreachable.

    >>> far = BOUNDED.missing_price
    >>> cost = np.array([[far, 2, 3], [far, far, 1], [far, far, far]])
    >>> _grow_nearest(cost, 0, 2), _grow_nearest(cost, 0, 1)
    ([-1, 0, 1], [-1, 0, 0])
    """
    count = len(cost)
    parent, depth = np.full(count, -1, np.int64), np.full(count, -1, np.int64)
    depth[root] = 0
    # by rank outside the tree, the parent and the price of its cheapest hop; the price of ranks in the tree is infinite
    best_parent, price = np.full(count, root), cost[root].copy()
    price[root] = np.inf
    for _ in range(count - 1):
        rank = int(price.argmin())
        if price[rank] >= BOUNDED.missing_price:
            return None
        parent[rank], depth[rank] = best_parent[rank], depth[best_parent[rank]] + 1
        price[rank] = np.inf
        if depth[rank] < max_depth:
            cheaper = (cost[rank] < price) & (depth < 0)
            best_parent[cheaper], price[cheaper] = rank, cost[rank][cheaper]
    return parent.tolist()
