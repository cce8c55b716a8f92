"""Pack trees by a linear program over link loads and cuts, for machines of any kind.

Input: a machine, and the directions that trees are wanted in: out of roots (allgather), into them, or both (an
allreduce reduces into a root and copies out of it). Output (`pack_by_cuts`): trees from every root to all ranks, per
direction, near the greatest rate; relative weights, which `at_full_rate` turns into bytes per second.

Trees of given weights fit into given loads of the links if and only if every rank alone could receive all of every
root's weight within these loads (Edmonds 1973; with switches whose load in and out is equal: Bang-Jensen, Frank and
Jackson 1995). So the loads of the fastest trees can be found without enumerating trees:

    variables    load of each link in each direction, and the roots' weights
    constraints  capacity of links and shared limits; load into a switch = load out of it; for every cut (a set of
                 nodes), the load on links that leave it >= the weight of the roots inside
    maximize     total weight

There are exponentially many cuts, so they are added lazily: solve, ask a maximum flow per rank for a violated cut, add
it, repeat. Then loads and weights are rounded to integers (`_trees_of_loads`) and forest.py packs the trees.

Example: an allreduce of ranks 0 and 1 with links 0->1 of capacity 2 and 1->0 of capacity 1. A root of weight w needs
load w on its outgoing link for the tree out, and w on the other for the tree in. Both roots together load 1->0 by
w0 + w1, so the greatest total weight is 1.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from antiphon.core.columns import Bools, Floats, largest_remainders
from antiphon.core.portable import row_dot
from antiphon.core.topology import Topology
from antiphon.planners.shared.tree_schedules import SpanningTree
from antiphon.planners.trees.forest import fit_trees
from antiphon.planners.trees.splitting import LinkGraph

# limit of the solver's pivots times rows, over all rounds. Clusters and grids of 64 ranks take 2e7 to 4e7, some 3 s;
# with one dead link in eight they take 16e7
MOST_WORK = 25 * 10**7
MAX_SCALE = 8.0  # for the solver, capacities are scaled so that the rate lies between 1 / MAX_SCALE and MAX_SCALE
VIOLATION = 1e-6  # a cut is violated if the flow to a sink lacks more than this fraction of the total weight
LOAD_COST = 1e-5  # cost of a unit of load relative to the rate: avoids unnecessary detours
MAX_DENOMINATOR = 128  # common denominators of loads up to this are tried
TOLERANCE = 1e-6  # tolerance of floats in that search
ROUNDED_DENOMINATOR = 1024  # if none of these fits, amounts are rounded to about this denominator
SHORTFALLS = (0, 1, 4, 16)  # units that a link may lose, tried in turn until rounding can balance the switches
MAX_OVERLOAD = 1.01  # factor by which rounding up may overload a link
# Loads grow by the factor 1 + widening / denominator; tried in turn until the cuts hold after rounding.
WIDENINGS = (0, 1, 2, 4, 8, 16, 32)


@dataclass(frozen=True)
class Portioned:
    """Trees by direction (True: trees of the reversed machine), whose integral weights sum to `total` per direction."""

    trees: dict[bool, tuple[SpanningTree, ...]]
    total: int


def pack_by_cuts(topology: Topology, demand: Mapping[int, int] | None, directions: Sequence[bool]) -> Portioned | None:
    """Pack trees from roots to all ranks in each direction, near the greatest rate; None if none are found.

    `demand`: weight of each root; None lets the linear program choose one weight per root for all directions.
    `directions`: False for the machine, True for the reversed machine, or both. None is returned if the rounded loads
    violate cuts or the effort limit is reached. A round solves a linear program with links times directions columns,
    and a maximum flow per rank and direction.
    """
    program = _CutProgram(topology, demand, directions)
    solution = program.solve_loads()
    return None if solution is None else _trees_of_loads(program, *solution)


def at_full_rate(topology: Topology, trees: Sequence[SpanningTree]) -> tuple[SpanningTree, ...]:
    """Return the same trees in bytes per second, in the same proportions, as fast as links and shared limits allow."""
    load: Counter[int] = Counter()
    for tree in trees:
        for _, hop in tree.hops:
            for link in hop.path:
                load[link] += int(tree.rate)
    for number, limit in enumerate(topology.limits):
        load[topology.links + number] = sum(load[link] for link in limit.links)
    resources = topology.resources
    rate = min(resources.bytes_per_second(resource) / amount for resource, amount in load.items() if amount)
    return tuple(replace(tree, rate=tree.rate * rate) for tree in trees)


class _CutProgram:
    """The linear program over cuts.

    Variables: per direction the load of every link; then the weight of every root if free, otherwise the rate.
    """

    def __init__(self, topology: Topology, demand: Mapping[int, int] | None, directions: Sequence[bool]) -> None:
        self.topology, self.inward = topology, list(directions)
        self.roots = sorted(range(topology.ranks) if demand is None else demand)
        self.links, self.directions = topology.links, len(directions)
        demands = [] if demand is None else [demand[root] // math.gcd(*demand.values()) for root in self.roots]
        self.unit = sum(demands) or 1  # common denominator of the roots' weights relative to their sum
        # weights of the roots = this matrix times the last variables (a weight per root, or one rate)
        self.weight = np.eye(len(self.roots)) if demand is None else np.array(demands, float)[:, None] / self.unit
        self.column_count = self.links * self.directions + self.weight.shape[1]
        resources = topology.resources
        # by link, then by limit, in bytes/s: resources keep one capacity per class of equal ones, in units of `scale`
        capacity = np.array([float(c * resources.scale) for c in resources.capacity])[resources.class_of]
        # in units in which the rate is about 1
        self.capacity: Floats = capacity / _narrowest_rank(topology, capacity)
        self.ends = [
            (topology.link_dst, topology.link_src) if is_reversed else (topology.link_src, topology.link_dst)
            for is_reversed in self.inward
        ]
        self.work = 0  # the solver's pivots times rows so far
        self.cuts: dict[bytes, tuple[int, Bools]] = {}
        # start with the cuts around single ranks: data into every rank, and out of every root
        for direction in range(self.directions):
            for rank in range(topology.ranks):
                around_rank = np.arange(topology.nodes) == rank
                self._add_cut(direction, ~around_rank)
                if rank in self.roots:
                    self._add_cut(direction, around_rank)

    def _add_cut(self, direction: int, side: Bools) -> bool:
        """Add the cut around these nodes; return whether it is new."""
        key = bytes([direction]) + side.tobytes()
        if key in self.cuts:
            return False
        self.cuts[key] = direction, side
        return True

    def solve_loads(self) -> tuple[Floats, Floats] | None:
        """Return the loads by direction and link, and the weight of every root; None if infeasible or too much work."""
        while self.work < MOST_WORK:
            answer = self._solve_program()
            if answer is None:
                return None
            loads = answer[: self.links * self.directions].reshape(self.directions, self.links)
            weight = row_dot(self.weight, answer[self.links * self.directions :])
            rate = float(weight.sum())
            if not rate:
                return None
            if not 1 / MAX_SCALE < rate < MAX_SCALE:
                # scale the linear program, then solve again
                self.capacity = self.capacity / rate
            elif not self._add_violated_cuts(loads, weight):
                return loads, weight
        return None

    def _solve_program(self) -> Floats | None:
        """Return the optimal variables under the cuts so far, or None if the solver ends without an optimum."""
        import scipy.sparse as sp
        from scipy.optimize import linprog

        rows = sp.vstack(
            [
                *self._capacity_rows(),
                *(sp.csr_array(self._cut_row(direction, side)) for direction, side in self.cuts.values()),
            ]
        )
        # A capacity that no solution can use would only spoil the scaling. A tree crosses a link once, and a shared
        # limit about once per rank; the rate of all trees is below MAX_SCALE.
        usable = np.minimum(self.capacity, MAX_SCALE * self.directions * self.topology.ranks)
        row_limits = np.concatenate([usable, np.zeros(len(self.cuts))])
        cost = np.full(self.column_count, LOAD_COST)
        cost[self.links * self.directions :] = -1.0
        balances = self._balance_rows()
        solution = linprog(
            cost, A_ub=rows.tocsr(), b_ub=row_limits, A_eq=balances if balances.shape[0] else None,
            b_eq=np.zeros(balances.shape[0]) if balances.shape[0] else None, method="highs-ds",
        )  # fmt: skip
        self.work += solution.nit * len(row_limits)
        return np.maximum(solution.x, 0) if solution.status == 0 else None

    def _capacity_rows(self) -> list[Any]:
        """Return the rows for links and shared limits."""
        import scipy.sparse as sp

        limits = self.topology.limits
        rows = [*range(self.links), *(self.links + n for n, limit in enumerate(limits) for _ in limit.links)]
        columns = [*range(self.links), *(link for limit in limits for link in limit.links)]
        link_rows = sp.csr_array((np.ones(len(rows)), (rows, columns)), shape=(len(self.capacity), self.links))
        weight_columns = sp.csr_array((len(self.capacity), self.weight.shape[1]))
        return [sp.hstack([*[link_rows] * self.directions, weight_columns])]

    def _balance_rows(self) -> Any:
        """Return the rows "load into a switch equals load out of it", per direction."""
        import scipy.sparse as sp

        topology = self.topology
        switch_rows = balance_matrix(topology)
        weight_columns = sp.csr_array((switch_rows.shape[0] * self.directions, self.weight.shape[1]))
        return sp.csr_array(sp.hstack([sp.block_diag([switch_rows] * self.directions), weight_columns]))

    def _cut_row(self, direction: int, side: Bools) -> Floats:
        """Return the row "weight inside a cut <= load that leaves it"."""
        tail, head = self.ends[direction]
        row = np.zeros(self.column_count)
        row[self.links * direction : self.links * (direction + 1)] = -(side[tail] & ~side[head]).astype(float)
        row[self.links * self.directions :] = row_dot(self.weight.T, side[self.roots].astype(float))
        return row

    def spare_capacity(self, loads: Floats) -> Floats:
        """Return the capacity of each link that no load uses, divided equally between the directions."""
        limits, link_load = self.topology.limits, loads.sum(axis=0)
        link_spare = np.maximum(self.capacity[: self.links] - link_load, 0)
        for number, limit in enumerate(limits):
            links = list(limit.links)
            limit_spare = max(float(self.capacity[self.links + number] - link_load[links].sum()), 0.0)
            link_spare[links] = np.minimum(link_spare[links], limit_spare / len(links))
        return np.minimum(link_spare, float(self.topology.ranks) * MAX_SCALE) / self.directions

    def _add_violated_cuts(self, loads: Floats, weight: Floats) -> bool:
        """Add cuts that these loads violate; return whether there were any."""
        import igraph

        topology, total_weight = self.topology, float(weight.sum())
        added = False
        for direction, (tail, head) in enumerate(self.ends):
            arcs = [*zip(tail.tolist(), head.tolist(), strict=True), *((topology.nodes, root) for root in self.roots)]
            graph = igraph.Graph(topology.nodes + 1, arcs, directed=True)
            amounts = [*loads[direction].tolist(), *weight.tolist()]
            for sink in range(topology.ranks):
                # super source -> roots (their weights) -> sink; less than the total weight means a violated cut
                flow = graph.maxflow(topology.nodes, sink, amounts)
                if flow.value < total_weight * (1 - VIOLATION):
                    side = np.zeros(topology.nodes + 1, bool)
                    side[flow.partition[0]] = True  # the side of the super source
                    added |= self._add_cut(direction, side[: topology.nodes])
        return added


def balance_matrix(topology: Topology) -> Any:
    """Return a row per switch: 1 for links into it, -1 for links out of it."""
    import scipy.sparse as sp

    rows, columns, values = [], [], []
    for ends, value in ((topology.link_dst, 1.0), (topology.link_src, -1.0)):
        link = np.flatnonzero(ends >= topology.ranks)
        rows += (ends[link] - topology.ranks).tolist()
        columns += link.tolist()
        values += [value] * len(link)
    return sp.csr_array((values, (rows, columns)), shape=(topology.switches, topology.links))


def _narrowest_rank(topology: Topology, capacity: Floats) -> float:
    """Return the capacity of the narrowest rank, in or out: an upper bound on the rate of all data."""
    sums = [np.bincount(ends, weights=capacity[: topology.links], minlength=topology.nodes)[: topology.ranks]
            for ends in (topology.link_src, topology.link_dst)]  # fmt: skip
    return float(min(rank_capacity.min() for rank_capacity in sums)) or 1.0


def _trees_of_loads(program: _CutProgram, loads: Floats, weight: Floats) -> Portioned | None:
    """Round loads and weights to integers over a common denominator and pack the trees; None if none fit."""
    total_weight, spare = float(weight.sum()), program.spare_capacity(loads)
    for denominator in _list_denominators(loads / total_weight, weight / total_weight, program.unit):
        counts = largest_remainders(weight / total_weight * denominator, denominator, TOLERANCE)
        demand = dict(zip(program.roots, counts.tolist(), strict=True))
        for widening in WIDENINGS:
            # larger loads make it likelier that the cuts hold; where they exceed a capacity, the rate falls accordingly
            packings = {
                is_reversed: _pack_direction(
                    program,
                    direction,
                    loads[direction] / total_weight * (denominator + widening),
                    spare / total_weight * denominator,
                    demand,
                )
                for direction, is_reversed in enumerate(program.inward)
            }
            trees = {
                is_reversed: tuple(direction_trees)
                for is_reversed, direction_trees in packings.items()
                if direction_trees is not None
            }
            if len(trees) == program.directions:
                return Portioned(trees, denominator)
    return None


def _list_denominators(loads: Floats, weight: Floats, unit: int) -> list[int]:
    """Return the denominators to try: a small exact one if there is one, then one near ROUNDED_DENOMINATOR."""
    amounts = np.concatenate([loads.ravel(), weight])
    multiples = range(unit, max(MAX_DENOMINATOR, unit) + 1, unit)
    exact = [k for k in multiples if np.abs(amounts * k - np.round(amounts * k)).max() < TOLERANCE * k]
    return [*exact[:1], -(-ROUNDED_DENOMINATOR // unit) * unit]


def _pack_direction(
    program: _CutProgram, direction: int, amounts: Floats, spare: Floats, demand: Mapping[int, int]
) -> list[SpanningTree] | None:
    """Pack the trees of one direction into rounded loads; None where they do not fit.

    By link: `amounts`, the loads to round; `spare`, the capacity that they may use besides. `demand`: weight per root.
    """
    topology = program.topology
    widths = _round_widths(topology, amounts, spare)
    if widths is None:
        return None
    tail, head = (tuple(ends.tolist()) for ends in program.ends[direction])
    link_graph = LinkGraph(topology.ranks, topology.nodes, topology.links, tail=tail, head=head, capacity=tuple(widths))
    return fit_trees(link_graph, {root: amount for root, amount in demand.items() if amount})


def _round_widths(topology: Topology, amounts: Floats, spare: Floats) -> list[int] | None:
    """Round the links' loads to integral widths with equal sums into and out of each switch; None if impossible.

    Widths may use the capacity `spare`, too, and are as large as possible, which makes trees shallow. Beyond that, a
    link is rounded up only where the excess is relatively small (MAX_OVERLOAD). A linear program suffices: its matrix
    is a network matrix, so its vertices are integral.
    """
    from scipy.optimize import linprog

    floor, ceiling = np.floor(amounts + TOLERANCE), np.ceil(amounts - TOLERANCE)
    highest = np.maximum(
        np.where(ceiling <= amounts * MAX_OVERLOAD, ceiling, floor), np.floor(amounts + spare + TOLERANCE)
    )
    balances = balance_matrix(topology)
    for shortfall in SHORTFALLS:
        solution = linprog(
            -np.ones(len(amounts)), A_eq=balances if topology.switches else None,
            b_eq=np.zeros(topology.switches) if topology.switches else None,
            bounds=np.stack([np.maximum(floor - shortfall, 0), highest], axis=1), method="highs-ds",
        )  # fmt: skip
        if solution.status == 0:
            return [round(x) for x in solution.x.tolist()]
    return None
