"""Packings of trees of bounded depth out of one root, near the greatest rate that such trees have.

Trees are grown at prices of links (hubs), first at those that what earlier trees load suggests, then at those of a
linear program that weighs all trees found so far, until that gains no more. With symmetries that keep the root a tree
stands for all its images, and a row of the program is an orbit of links or limits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from antiphon.core.columns import Bools, Ints, Longs
from antiphon.core.symmetry import automorphisms
from antiphon.core.topology import Topology, hosts
from antiphon.planners.shared.orbits import Table, free_group, rows_of
from antiphon.planners.shared.reach import Hop
from antiphon.planners.trees.hubs import Floats, Ways, grown
from antiphon.planners.trees.images import images
from antiphon.planners.trees.tree import Tree

EFFORT, LEAST, MOST = 4000, 24, 120  # trees grown at prices of loads, by ranks, and as often at those of programs
IDLE = 10  # programs without a new tree, or without gain, after which no more are asked for
SHARP = 8.0  # how much dearer the fullest row is than the empty: e to this
LUCK = (0.7, 1.3)  # prices are shaken, so that trees differ
GAIN = 1e-4
TURNS, FEW = 4, 0.1  # linear programs asked for few trees, and what part of a usual rate counts as little
LARGE = 128  # ranks beyond which symmetries within boxes would make too many trees
NEARLY = 1e-7  # what the solver may lack
Hops = tuple[tuple[int, Hop], ...]
SIMPLE = 10**6  # denominators of rates
LITTLE = Fraction(1, 1000)  # of a unit link, up to which a rate is taken as it is: such denominators would distort it


@dataclass(frozen=True, eq=False)
class Bounded:
    """`rate`: bytes per second of all trees together. `label`: of every tree the one that it is an image of."""

    trees: tuple[Tree, ...]
    label: tuple[int, ...]
    rate: float

    @property
    def depth(self) -> int:
        return max((tree.depth for tree in self.trees), default=0)


class Machine:
    """A machine as trees out of one root see it: rows of links and limits, ways between ranks."""

    def __init__(self, topology: Topology, root: int, members: Sequence[int], group: Table | None = None) -> None:
        """`group`: symmetries that keep the root and the members; none: the identity alone."""
        self.topology, self.root = topology, root
        identity = np.arange(topology.nodes + topology.links + len(topology.limits), dtype=np.int64)[None]
        self.group = identity if group is None else group
        self.row = rows_of(topology, self.group)
        resources = topology.resources
        capacity = np.array([float(c * resources.scale) for c in resources.capacity])[resources.klass]
        self.capacity: Floats = np.bincount(self.row, weights=capacity).astype(np.float64)
        more = np.diff(resources.limit_ptr)
        self.of_row = np.concatenate([self.row[: topology.links], self.row[resources.limit_of]])
        self.of_link = np.concatenate([np.arange(topology.links), np.repeat(np.arange(topology.links), more)])
        self.ways = Ways(topology, np.array(members, np.int64))
        self.place = {rank: number for number, rank in enumerate(members)}

    def tree(self, price: Floats, most: int) -> tuple[Hops, Floats] | None:
        """A cheap tree at prices of rows, and what it loads; None where none is so shallow."""
        paid = np.bincount(self.of_link, weights=price[self.of_row], minlength=self.topology.links)
        found = self.ways.priced(paid + 1e-6 * paid.mean() + 1e-300)
        made = grown(found[0], self.place[self.root], most)
        if made is None:
            return None
        hops, crossed = [], np.zeros(self.topology.links)
        for rank, at in self.place.items():
            if rank != self.root:
                parent = int(made.parent[at])
                path = self.ways.links(found, parent, at)
                hops.append((rank, Hop(int(self.ways.ranks[parent]), path, int(made.depth[at]))))
                crossed[list(path)] += 1
        load = np.bincount(self.of_row, weights=crossed[self.of_link], minlength=len(self.capacity))
        return tuple(hops), load.astype(np.float64)


def bounded(machine: Machine, most: int, goal: float) -> Bounded | None:
    """Trees no deeper than `most`; None where there are none. `goal`: the rate beyond which nothing is looked for."""
    columns: dict[Hops, Floats] = {}
    used = np.zeros(len(machine.capacity))
    rounds = min(MOST, max(LEAST, EFFORT // len(machine.place)))
    luck = np.random.default_rng(most)
    for turn in range(rounds):
        price = _dear(used, machine.capacity) * (luck.uniform(*LUCK, len(used)) if turn % 2 else 1)
        found = machine.tree(price, most)
        if found is None:
            return None
        columns[found[0]] = found[1]
        used += found[1]
    rates, price = _program(machine, list(columns.values()))
    best, idle = rates.sum(), 0
    for turn in range(rounds):
        if best >= goal * (1 - GAIN) or idle > IDLE:
            break
        before = len(columns)
        for mixed in (0.0, 0.1, 0.2 + 0.05 * (turn % 4)):
            dear = _dear(used, machine.capacity) * (luck.uniform(*LUCK, len(used)) if mixed else 1)
            found = machine.tree(_blend(price, dear, machine.capacity, mixed), most)
            assert found is not None
            columns[found[0]] = found[1]
            used += found[1]
        if len(columns) > before:
            rates, price = _program(machine, list(columns.values()))
        idle = 0 if rates.sum() > best * (1 + GAIN) else idle + 1
        best = rates.sum()
    return _packing(machine, list(columns), _nearer(machine, columns, rates))


def _dear(used: Floats, capacity: Floats) -> Floats:
    full = used / capacity
    top = full.max()
    return np.exp(SHARP * (full / top - 1)) / capacity if top else 1 / capacity


def _blend(price: Floats, other: Floats, capacity: Floats, mixed: float) -> Floats:
    """Both as parts of what all capacity costs."""
    return (1 - mixed) * price / (price @ capacity) + mixed * other / (other @ capacity)


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


def _packing(machine: Machine, trees: Sequence[Hops], rates: Floats) -> Bounded:
    """The trees that carry anything, each with its images at an equal part of its rate."""
    least = GAIN / max(len(trees), 1) * float(rates.sum())
    merged: dict[Hops, tuple[Fraction, int]] = {}
    order = len(machine.group)
    unit = machine.topology.unit
    for label, (hops, rate) in enumerate(zip(trees, rates.tolist(), strict=True)):
        if rate > least:
            units = Fraction(rate / float(unit))
            part = (units.limit_denominator(SIMPLE) if units > LITTLE else units) * unit / order
            for tree in images(machine.topology, machine.group, [Tree(machine.root, part, hops)]):
                known = merged.get(tree.hops, (Fraction(0), label))
                merged[tree.hops] = known[0] + part, known[1]
    found = tuple(Tree(machine.root, rate, hops) for hops, (rate, _) in merged.items())
    return Bounded(found, tuple(label for _, label in merged.values()), float(sum(tree.rate for tree in found)))


def with_images(topology: Topology, group: Table, packed: Bounded) -> Bounded:
    """The same packing taken to all its images at once, which is as fast, and loads alike what is alike."""
    found: dict[Hops, tuple[Tree, int]] = {}
    for label, tree in enumerate(packed.trees):
        for image in images(topology, group, [replace(tree, rate=tree.rate / len(group))]):
            known = found.get(image.hops)
            found[image.hops] = (
                (image, label) if known is None else (replace(image, rate=image.rate + known[0].rate), known[1])
            )
    return Bounded(tuple(tree for tree, _ in found.values()), tuple(label for _, label in found.values()), packed.rate)


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
    power = group
    for _ in range(boxes - 1):
        power = np.take_along_axis(group, power, 1)
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
