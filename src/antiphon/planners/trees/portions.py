"""Which part of every link serves which trees: a linear program over cuts, for machines of any kind.

Trees of given weights fit into given parts of the links if and only if every sink could receive all of every root's
weight by itself (Edmonds 1973; Bang-Jensen, Frank and Jackson 1995 where as much enters each switch as leaves it, which
is so of whatever trees load). So the fastest trees need not be looked for among trees: unknown is how much of each link
they load, within links and shared limits, and rows are the cuts, added as long as a maximum flow shows one that is
violated. Trees out of the roots and trees in to them (an allreduce) share the links: a part of each for both.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.core.columns import Bools
from antiphon.core.portable import dot
from antiphon.core.topology import Topology
from antiphon.planners.trees.forest import fitted
from antiphon.planners.trees.tree import Tree
from antiphon.planners.trees.wires import Wires

Floats = NDArray[np.float64]
# the solver's pivots times rows, of all rounds: clusters and grids of 64 ranks take 2 to 4 times 10^7, some 3 s;
# with dead links once in eight 16 times 10^7
MOST_WORK = 25 * 10**7
SCALED = 8.0  # what the rate is at most, and at least its inverse, in units of the solver's capacities
VIOLATED = 1e-6  # of all that a sink must receive
SHORT = 1e-5  # what a hop costs, against all of the rate: ways that are longer than need be are not taken
SIMPLE, NEAR = 128, 1e-6  # parts that all amounts are whole numbers of, if there are so few
FINE = 1024  # else amounts are rounded to such parts
LESS = (0, 1, 4, 16)  # of them: by how much a link may have less, where switches cannot be balanced otherwise
OVER = 1.01  # by how much a link may be overloaded by rounding
ROOM = (0, 1, 2, 4, 8, 16, 32)  # of these parts: by how much all links are taken to be wider, so that cuts still hold
MOST_TRIES = 20  # to make trees fewer


@dataclass(frozen=True)
class Portioned:
    """Trees by direction, of whole weights that add up to `parts` in each."""

    trees: dict[bool, tuple[Tree, ...]]
    parts: int


def portioned(topology: Topology, demand: Mapping[int, int] | None, turned: Sequence[bool]) -> Portioned | None:
    """Trees from roots to all ranks in each of these directions (turned: on the machine with all links turned round),
    near the greatest rate that trees have.

    `demand`: how much of the data which root has; None: that is free, but the same in all directions. None where
    rounding lost the cuts, or they were too much work. A round solves a linear program of links times directions
    columns, and finds a maximum flow per rank and direction.
    """
    program = _Program(topology, demand, turned)
    found = program.run()
    return None if found is None else _whole_trees(program, *found)


def at_full_rate(topology: Topology, trees: Sequence[Tree]) -> tuple[Tree, ...]:
    """The same trees in bytes per second, in the same proportions, as fast as links and shared limits allow."""
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


class _Program:
    """Columns: of each direction the load of every link; then, where free, the weight of every root, else the rate."""

    def __init__(self, topology: Topology, demand: Mapping[int, int] | None, turned: Sequence[bool]) -> None:
        self.topology, self.turned = topology, list(turned)
        self.roots = sorted(range(topology.ranks) if demand is None else demand)
        self.links, self.ways = topology.links, len(turned)
        given = [] if demand is None else [demand[root] // math.gcd(*demand.values()) for root in self.roots]
        self.least = sum(given) or 1  # parts of which all weights are whole numbers
        self.weight = np.eye(len(self.roots)) if demand is None else np.array(given, float)[:, None] / self.least
        self.width = self.links * self.ways + self.weight.shape[1]
        resources = topology.resources
        capacity = np.array([float(c * resources.scale) for c in resources.capacity])[resources.klass]
        self.capacity: Floats = capacity / _narrowest(topology, capacity)
        self.ends = [
            (topology.link_dst, topology.link_src) if back else (topology.link_src, topology.link_dst)
            for back in self.turned
        ]
        self.work = 0
        self.cuts: dict[bytes, tuple[int, Bools]] = {}
        for way in range(self.ways):
            for rank in range(topology.ranks):
                alone = np.arange(topology.nodes) == rank
                self._add(way, ~alone)
                if rank in self.roots:
                    self._add(way, alone)

    def _add(self, way: int, side: Bools) -> bool:
        key = bytes([way]) + side.tobytes()
        if key in self.cuts:
            return False
        self.cuts[key] = way, side
        return True

    def run(self) -> tuple[Floats, Floats] | None:
        """By direction and link what is loaded, and the weight of every root."""
        while self.work < MOST_WORK:
            answer = self._solved()
            if answer is None:
                return None
            loads = answer[: self.links * self.ways].reshape(self.ways, self.links)
            weight = dot(self.weight, answer[self.links * self.ways :])
            rate = float(weight.sum())
            if not rate:
                return None
            if not 1 / SCALED < rate < SCALED:
                self.capacity = self.capacity / rate
            elif not self._violated(loads, weight):
                return loads, weight
        return None

    def _solved(self) -> Floats | None:
        import scipy.sparse as sp
        from scipy.optimize import linprog

        rows = sp.vstack([*self._full(), *(sp.csr_array(self._cut(way, side)) for way, side in self.cuts.values())])
        usable = np.minimum(self.capacity, SCALED * self.ways * self.topology.ranks)
        most = np.concatenate([usable, np.zeros(len(self.cuts))])
        cost = np.full(self.width, SHORT)
        cost[self.links * self.ways :] = -1.0
        even = self._balances()
        found = linprog(
            cost, A_ub=rows.tocsr(), b_ub=most, A_eq=even if even.shape[0] else None,
            b_eq=np.zeros(even.shape[0]) if even.shape[0] else None, method="highs-ds",
        )  # fmt: skip
        self.work += found.nit * len(most)
        return np.maximum(found.x, 0) if found.status == 0 else None

    def _full(self) -> list[Any]:
        """What links and shared limits carry."""
        import scipy.sparse as sp

        limits = self.topology.limits
        rows = [*range(self.links), *(self.links + n for n, limit in enumerate(limits) for _ in limit.links)]
        columns = [*range(self.links), *(link for limit in limits for link in limit.links)]
        one = sp.csr_array((np.ones(len(rows)), (rows, columns)), shape=(len(self.capacity), self.links))
        none = sp.csr_array((len(self.capacity), self.weight.shape[1]))
        return [sp.hstack([*[one] * self.ways, none])]

    def _balances(self) -> Any:
        """As much enters a switch as leaves it, in each direction."""
        import scipy.sparse as sp

        topology = self.topology
        one = balance(topology)
        none = sp.csr_array((one.shape[0] * self.ways, self.weight.shape[1]))
        return sp.csr_array(sp.hstack([sp.block_diag([one] * self.ways), none]))

    def _cut(self, way: int, side: Bools) -> Floats:
        """Not more weight inside than what leaves can carry."""
        tail, head = self.ends[way]
        row = np.zeros(self.width)
        row[self.links * way : self.links * (way + 1)] = -(side[tail] & ~side[head]).astype(float)
        row[self.links * self.ways :] = dot(self.weight.T, side[self.roots].astype(float))
        return row

    def slack(self, loads: Floats) -> Floats:
        """What each direction may have of each link beside its load."""
        limits, used = self.topology.limits, loads.sum(axis=0)
        free = np.maximum(self.capacity[: self.links] - used, 0)
        for number, limit in enumerate(limits):
            links = list(limit.links)
            left = max(float(self.capacity[self.links + number] - used[links].sum()), 0.0)
            free[links] = np.minimum(free[links], left / len(links))
        return np.minimum(free, float(self.topology.ranks) * SCALED) / self.ways

    def _violated(self, loads: Floats, weight: Floats) -> bool:
        """Whether some cuts that were not known are violated; they are known then."""
        import igraph

        topology, whole = self.topology, float(weight.sum())
        fresh = False
        for way, (tail, head) in enumerate(self.ends):
            arcs = [*zip(tail.tolist(), head.tolist(), strict=True), *((topology.nodes, root) for root in self.roots)]
            graph = igraph.Graph(topology.nodes + 1, arcs, directed=True)
            amounts = [*loads[way].tolist(), *weight.tolist()]
            for sink in range(topology.ranks):
                found = graph.maxflow(topology.nodes, sink, amounts)
                if found.value < whole * (1 - VIOLATED):
                    side = np.zeros(topology.nodes + 1, bool)
                    side[found.partition[0]] = True
                    fresh |= self._add(way, side[: topology.nodes])
        return fresh


def balance(topology: Topology) -> Any:
    """A row per switch: 1 for links into it, -1 for links out of it."""
    import scipy.sparse as sp

    rows, columns, values = [], [], []
    for ends, value in ((topology.link_dst, 1.0), (topology.link_src, -1.0)):
        at = np.flatnonzero(ends >= topology.ranks)
        rows += (ends[at] - topology.ranks).tolist()
        columns += at.tolist()
        values += [value] * len(at)
    return sp.csr_array((values, (rows, columns)), shape=(topology.switches, topology.links))


def _narrowest(topology: Topology, capacity: Floats) -> float:
    """What enters or leaves the narrowest rank: no rate of all data is greater."""
    sums = [np.bincount(ends, weights=capacity[: topology.links], minlength=topology.nodes)[: topology.ranks]
            for ends in (topology.link_src, topology.link_dst)]  # fmt: skip
    return float(min(one.min() for one in sums)) or 1.0


def _whole_trees(program: _Program, loads: Floats, weight: Floats) -> Portioned | None:
    """Loads and weights in whole parts of all data, as few as will do; then trees."""
    whole, free = float(weight.sum()), program.slack(loads)
    for parts in _tried(loads / whole, weight / whole, program.least):
        wanted = dict(zip(program.roots, _largest(weight / whole, parts), strict=True))
        for room in ROOM:
            made = {
                back: _packed(program, way, loads[way] / whole * (parts + room), free / whole * parts, wanted)
                for way, back in enumerate(program.turned)
            }
            trees = {back: tuple(some) for back, some in made.items() if some is not None}
            if len(trees) == program.ways:
                return Portioned(trees, parts)
    return None


def _tried(loads: Floats, weight: Floats, least: int) -> list[int]:
    """So many parts that all amounts are whole numbers of them, if so few do; then many."""
    amounts = np.concatenate([loads.ravel(), weight])
    some = range(least, max(SIMPLE, least) + 1, least)
    simple = [k for k in some if np.abs(amounts * k - np.round(amounts * k)).max() < NEAR * k]
    return [*simple[:1], -(-FINE // least) * least]


def _largest(share: Floats, parts: int) -> list[int]:
    """Whole numbers near these shares that add up to so many, by largest remainders."""
    found = np.floor(share * parts + NEAR).astype(np.int64)
    order = np.argsort(found - share * parts, kind="stable")
    found[order[: parts - int(found.sum())]] += 1
    return [int(amount) for amount in found]


def _packed(program: _Program, way: int, amounts: Floats, free: Floats, wanted: Mapping[int, int]) -> list[Tree] | None:
    topology = program.topology
    widths = _rounded(topology, amounts, free)
    if widths is None:
        return None
    tail, head = (tuple(ends.tolist()) for ends in program.ends[way])
    wires = Wires(topology.ranks, topology.nodes, topology.links, tail, head, tuple(widths))
    return fitted(wires, {root: amount for root, amount in wanted.items() if amount}, MOST_TRIES)


def _rounded(topology: Topology, amounts: Floats, free: Floats) -> list[int] | None:
    """Whole numbers next to these or greater by what is free, as great as may be (which makes trees shallow), with as
    much into each switch as out of it. A link gets more than it has only where that is little to it: what is narrow
    against a part gets none. The program's matrix is that of a network, so its vertices are whole."""
    from scipy.optimize import linprog

    low, up = np.floor(amounts + NEAR), np.ceil(amounts - NEAR)
    high = np.maximum(np.where(up <= amounts * OVER, up, low), np.floor(amounts + free + NEAR))
    even = balance(topology)
    for less in LESS:
        found = linprog(
            -np.ones(len(amounts)), A_eq=even if topology.switches else None,
            b_eq=np.zeros(topology.switches) if topology.switches else None,
            bounds=np.stack([np.maximum(low - less, 0), high], axis=1), method="highs-ds",
        )  # fmt: skip
        if found.status == 0:
            return [round(x) for x in found.x.tolist()]
    return None
