"""Packings of trees of bounded depth out of one root, near the greatest rate that such trees have.

Trees are grown at prices of links (hubs), first at those that what earlier trees load suggests, then at those of a
linear program that weighs all trees found so far, until that gains no more. With symmetries that keep the root a tree
stands for all its images, and a row of the program is an orbit of links or limits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction

import numpy as np

from antiphon.core.columns import Bools, Ints, Longs
from antiphon.core.portable import dot, exp
from antiphon.core.symmetry import automorphisms
from antiphon.core.topology import Topology, hosts
from antiphon.planners.shared.orbits import Table, free_group, rows_of
from antiphon.planners.shared.reach import Hop
from antiphon.planners.trees.hubs import Floats, Ways, grown
from antiphon.planners.trees.images import Mirrored
from antiphon.planners.trees.tree import Tree

EFFORT, LEAST, MOST = 4000, 24, 120  # trees grown at prices of loads, by ranks, and as often at those of programs
SPENT = 20 * 10**8  # ranks^2 times hubs, some 1e-8 seconds each: what all of that may take
EACH = 3 * 10**4  # what a hub takes besides, of these
FEWER = 10  # trees that it must be enough for at least
SOON = 8  # trees after which a program is asked on machines of more than LARGE ranks
IDLE = 10  # programs without a new tree, or without gain, after which no more are asked for
SHARP = 8.0  # how much dearer the fullest row is than the empty: e to this
LUCK = (0.5, 2.0)  # prices are shaken, so that trees differ
GAIN = 1e-4
TURNS, FEW = 4, 0.1  # linear programs asked for few trees, and what part of a usual rate counts as little
LARGE = 128  # ranks beyond which symmetries within boxes would make too many trees
TIE = 1e-6  # of the mean price: what a way costs besides, the slow ones more
NEARLY = 1e-7  # what the solver may lack
Hops = tuple[tuple[int, Hop], ...]
SIMPLE = 10**6  # denominators of rates
LITTLE = Fraction(1, 1000)  # of a unit link, up to which a rate is taken as it is: such denominators would distort it


class Machine:
    """A machine as trees out of one root see it: rows of links and limits, ways between ranks."""

    def __init__(
        self, topology: Topology, root: int, members: Sequence[int], group: Table | None = None,
        links: Longs | None = None,
    ) -> None:  # fmt: skip
        """`group`: symmetries that keep the root and the members; none: the identity alone. `links`: those that ways
        take; none: all."""
        self.topology, self.root, self.spent = topology, root, 0
        self.known: dict[Hops, None] = {}  # all trees that were grown
        identity = np.arange(topology.nodes + topology.links + len(topology.limits), dtype=np.int64)[None]
        self.group = identity if group is None else group
        self.row = rows_of(topology, self.group)
        resources = topology.resources
        capacity = np.array([float(c * resources.scale) for c in resources.capacity])[resources.klass]
        self.capacity: Floats = np.bincount(self.row, weights=capacity).astype(np.float64)
        more = np.diff(resources.limit_ptr)
        self.of_row = np.concatenate([self.row[: topology.links], self.row[resources.limit_of]])
        self.of_link = np.concatenate([np.arange(topology.links), np.repeat(np.arange(topology.links), more)])
        self.ways = Ways(topology, np.array(members, np.int64), np.arange(topology.links) if links is None else links)
        late = np.array([kind.latency for kind in topology.types])[topology.link_type]
        self.slow = TIE * (1 + late / late.mean() if late.any() else np.ones(topology.links))
        self.place = {rank: number for number, rank in enumerate(members)}

    @property
    def plain(self) -> bool:
        """Whether no symmetry is known."""
        return len(self.group) == 1

    def tree(self, price: Floats, most: int, near: bool = False) -> tuple[Hops, Floats] | None:
        """A cheap tree at prices of rows, and what it loads; None where none is so shallow. `near`: another way to
        begin it, with other answers."""
        paid = np.bincount(self.of_link, weights=price[self.of_row], minlength=self.topology.links)
        found = self.ways.priced(paid + self.slow * paid.mean() + 1e-300)
        cells = len(self.place) ** 2 + EACH
        made = grown(found[0], self.place[self.root], most, max(SPENT // FEWER // cells, 1), near)
        if made is None:
            return None
        self.spent += cells * made.hubs
        hops = []
        for rank, at in self.place.items():
            if rank != self.root:
                parent = int(made.parent[at])
                path = self.ways.links(found, parent, at)
                hops.append((rank, Hop(int(self.ways.ranks[parent]), path, int(made.depth[at]))))
        self.known[tuple(hops)] = None
        return tuple(hops), self.load(hops)

    def load(self, hops: Iterable[tuple[int, Hop]]) -> Floats:
        """How often a tree crosses each row."""
        links = np.array([link for _, hop in hops for link in hop.path])
        crossed = np.bincount(links, minlength=self.topology.links)
        load = np.bincount(self.of_row, weights=crossed[self.of_link], minlength=len(self.capacity))
        return load.astype(np.float64)


def bounded(machine: Machine, most: int, goal: float, known: Sequence[Tree] = ()) -> Mirrored | None:
    """Trees no deeper than `most`; None where there are none. `goal`: the rate beyond which nothing is looked for;
    `known`: trees to begin with."""
    columns = {tree.hops: machine.load(tree.hops) for tree in known}
    used = np.sum([*columns.values(), np.zeros(len(machine.capacity))], axis=0)
    rounds = min(MOST, max(LEAST, EFFORT // len(machine.place)))
    luck = np.random.default_rng(most)
    for turn in range(0 if known else rounds):
        if columns and (machine.spent >= SPENT or (turn % SOON == 0 and _met(machine, list(columns.values()), goal))):
            break
        price = _dear(used, machine.capacity) * (luck.uniform(*LUCK, len(used)) if turn % 2 else 1)
        found = machine.tree(price, most, turn % 4 > 1)
        if found is None:
            return None
        columns[found[0]] = found[1]
        used += found[1]
    rates, price = _program(machine, list(columns.values()))
    best, idle = rates.sum(), 0
    for turn in range(rounds):
        if best >= goal * (1 - GAIN) or idle > IDLE or machine.spent >= SPENT:
            break
        before = len(columns)
        for number, mixed in enumerate((0.0, 0.1, 0.2 + 0.05 * (turn % 4))):
            dear = _dear(used, machine.capacity) * (luck.uniform(*LUCK, len(used)) if mixed else 1)
            dear = _blend(price, dear, machine.capacity, mixed)
            for near in (False, True) if number == 2 else (turn % 2 == 0,):
                found = machine.tree(dear, most, near)
                assert found is not None
                columns[found[0]] = found[1]
                used += found[1]
        if len(columns) > before:
            rates, price = _program(machine, list(columns.values()))
        idle = 0 if rates.sum() > best * (1 + GAIN) else idle + 1
        best = rates.sum()
    return _packing(machine, list(columns), _nearer(machine, columns, rates))


def _met(machine: Machine, loads: Sequence[Floats], goal: float) -> bool:
    """Whether a large machine needs no more trees."""
    return len(machine.place) > LARGE and _program(machine, loads)[0].sum() >= goal * (1 - GAIN)


def _dear(used: Floats, capacity: Floats) -> Floats:
    full = used / capacity
    top = full.max()
    return exp(SHARP * (full / top - 1)) / capacity if top else 1 / capacity


def _blend(price: Floats, other: Floats, capacity: Floats, mixed: float) -> Floats:
    """Both as parts of what all capacity costs."""
    return (1 - mixed) * price / dot(price, capacity) + mixed * other / dot(other, capacity)


def _scaled(machine: Machine, loads: Sequence[Floats]) -> tuple[Floats, Floats, Bools]:
    """By tree the greatest rate that it has alone, and by row and tree how full that makes the row: 1 at most, so that
    no number is too small for the solver. Rows that none loads are left out."""
    table = np.array(loads).T / machine.capacity[:, None]
    alone = 1 / table.max(axis=0)
    table = table * alone
    kept: Bools = table.any(axis=1)
    return table[kept], alone, kept


def _program(machine: Machine, loads: Sequence[Floats]) -> tuple[Floats, Floats]:
    """The best rates of these trees, and the prices of rows."""
    import scipy.sparse as sp
    from scipy.optimize import linprog

    table, alone, kept = _scaled(machine, loads)
    found = linprog(-alone / alone.max(), A_ub=sp.csr_array(table), b_ub=np.ones(len(table)), method="highs-ds")
    assert found.status == 0, "a packing of trees has an optimum"
    price = np.zeros(len(machine.capacity))
    price[kept] = np.maximum(-found.ineqlin.marginals, 0)
    return found.x * alone, price / machine.capacity


def _nearer(machine: Machine, columns: Mapping[Hops, Floats], rates: Floats) -> Floats:
    """Rates of few trees that are as fast in all, ranks being as near to the root as they can be on the whole.

    Few: what a tree carried in one answer makes it cheaper in the next (a sum of weights that stands for a number).
    """
    import scipy.sparse as sp
    from scipy.optimize import linprog

    table, alone, _ = _scaled(machine, list(columns.values()))
    deep = np.array([sum(hop.depth for _, hop in hops) for hops in columns], float)
    whole, found = rates.sum(), rates
    for turn in range(TURNS):
        rare = whole / len(machine.place)
        cost = deep / deep.mean() * (1 + FEW / (found / rare + FEW) if turn else 1) * alone / whole
        answer = linprog(
            cost,
            A_ub=sp.csr_array(table),
            b_ub=np.ones(len(table)),
            A_eq=(alone / whole)[None],
            b_eq=[1 - NEARLY],
            method="highs-ds",
        )
        if answer.status != 0:
            break
        found = answer.x * alone
    return np.asarray(found, np.float64)


def _packing(machine: Machine, trees: Sequence[Hops], rates: Floats) -> Mirrored:
    """The trees that carry anything, each with its images at an equal part of its rate."""
    least = GAIN / max(len(trees), 1) * float(rates.sum())
    unit, found = machine.topology.unit, []
    for hops, rate in zip(trees, rates.tolist(), strict=True):
        if rate > least:
            units = Fraction(rate / float(unit))
            part = (units.limit_denominator(SIMPLE) if units > LITTLE else units) * unit
            found.append(Tree(machine.root, part, hops))
    return Mirrored.of(machine.topology, found, machine.group)


def around(topology: Topology, root: int, members: Sequence[int], seed: int = 0) -> Table | None:
    """Symmetries that keep the root, and move freely as many of the others as can be moved alike."""
    inside = set(members)
    colour = [2 if node == root else int(node in inside) for node in range(topology.ranks)] + [3] * topology.switches
    orbit = _orbit_of(automorphisms(topology, colour), topology.nodes)
    others = [rank for rank in members if rank != root]
    sizes = np.bincount(orbit[others], minlength=topology.nodes)
    if sizes.max(initial=0) < 2:
        return None
    moved = {rank: 1 for rank in others if sizes[orbit[rank]] % int(sizes.max()) == 0}
    return _of_boxes(topology, free_group(topology, moved, others, seed))


def _of_boxes(topology: Topology, group: Table) -> Table:
    """On large machines those symmetries alone that take boxes round: what more there are would only make more trees of
    every one."""
    boxes = len(set(hosts(topology))) - 1
    if boxes < 2 or len(group) <= boxes or topology.ranks <= LARGE:
        return group
    power, square, times = np.broadcast_to(np.arange(group.shape[1]), group.shape), group, boxes
    while times:
        power = np.take_along_axis(square, power, 1) if times & 1 else power
        square, times = np.take_along_axis(square, square, 1), times // 2
    some = group[(power == np.arange(group.shape[1])).all(axis=1)]
    return some if len(some) == boxes else group


def _orbit_of(generators: Sequence[Ints], nodes: int) -> Longs:
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    if not generators:
        return np.arange(nodes)
    ends = np.tile(np.arange(nodes), len(generators)), np.concatenate(generators)
    joined = coo_array((np.ones(len(ends[0])), ends), shape=(nodes, nodes))
    return np.asarray(connected_components(joined, directed=False)[1], np.int64)
