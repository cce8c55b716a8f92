"""Find prices of links at which no allreduce can be cheap enough (core/ksync/trees.py), by linear programs with cuts.

The program maximizes what the sends of a chunk cost at least, V, where the capacity of all links costs 1. Its rows are
trees: at first none, then in every turn those that are cheapest at the last prices, until these cost V. Prices are
alike under the symmetries of the machine. Rounded to whole numbers, they are evaluated as the checker does.

    bound_sends     prices for all of S steps: equal ones, or those of `price_roots`
    price_roots     one tree towards and one away from every rank, each with lengths of its own
    price_pairs     prices at which every pair of trees is too dear, for every split of the rounds over the steps

Example: on a hypercube of 8 in 3 steps the trees of all ranks cost 24 if every send costs 1. In a round its 24 links
carry 24 sends, so no allreduce has R/C < 1.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.core.ksync.dual import FAR_COST, StepInequality
from antiphon.core.ksync.instance import Instance
from antiphon.core.ksync.trees import Costs, TreeDual, evaluate_tree_dual, list_pairs, list_tree_costs, send_costs
from antiphon.errors import EffortSpent
from antiphon.planners.synth.effort_budget import PIVOT_COLUMN, PROGRAM, EffortBudget
from antiphon.planners.synth.group import SymmetryGroup, group_of, orbits

MAX_TURNS = 60  # of a program: each turn adds the trees that are cheapest at the last prices
MAX_TURNS_OF_ROOTS = 12  # the same for `price_roots`, whose trees soon suffice where they prove anything
PAIRS_PER_TURN = 20  # cheapest pairs that a turn adds: with 10 a refutation takes a fifth longer
TOLERANCE = 1e-6  # floats closer than this count as equal; results are evaluated in whole numbers
MAX_SPLITS = 200  # splits of the rounds over the steps, which are refuted one by one; with more, none is tried
SCALES = (*range(1, 13), 60, 1000, 10**5)  # prices are rounded to multiples of 1 / scale of the greatest
TREE_SET = 300  # effort of a set of ranks and of one that follows it, in units of effort_budget.py
Floats = NDArray[np.float64]
Pay = Callable[[int], None]  # charges effort; raises EffortSpent
Crossing = tuple[int, int]  # bond, step: a send crosses the bond in the step


def bound_sends(instance: Instance, steps: int, effort_left: int | None) -> tuple[TreeDual, bool, int]:
    """Return a dual that bounds R / C in this number of steps, whether no solver can improve the bound, and the effort.

    None can if some pair of trees crosses only 2 (n - 1) links, which is the least that any chunk crosses.
    """
    budget = EffortBudget(effort_left)
    bonds = range(len(instance.bonds))
    equal_prices = TreeDual(steps, tuple((bond, step, 1) for bond in bonds for step in range(steps)))
    fewest = 2 * (instance.ranks - 1)
    if evaluate_tree_dual(instance, equal_prices).value <= fewest:
        return equal_prices, True, budget.spent
    if steps > instance.least_steps:  # with steps to spare a solver refutes fewer sends sooner
        return equal_prices, False, budget.spent
    with contextlib.suppress(EffortSpent):
        of_roots = price_roots(instance, group_of(instance), steps, budget.pay)
        ratios = [evaluate_tree_dual(instance, dual).rounds_per_part for dual in (equal_prices, of_roots) if dual]
        if of_roots is not None and ratios[1] > ratios[0]:
            return of_roots, False, budget.spent
    return equal_prices, False, budget.spent


def price_roots(instance: Instance, group: SymmetryGroup, steps: int, pay: Pay) -> TreeDual | None:
    """Return the dual with a tree towards and away from every rank that bounds R / C best; None if no tree exists."""
    roots = orbits(group.nodes)[: instance.ranks]  # per rank the first rank of its orbit
    trees = [(int(root), toward) for root in np.unique(roots) for toward in (False, True)]
    # lengths of a tree are alike under the symmetries that fix its root
    fixing = {root: np.flatnonzero(group.nodes[:, root] == root) for root, _ in trees}
    length_orbits = [orbits(group.bonds[fixing[root]]) for root, _ in trees]
    capacity = np.array([float(c) for c in instance.capacity[: len(instance.bonds)]])
    shape, count = (len(instance.bonds), steps), len(trees)
    # Variables: the lengths of each tree by bond and step, one for each orbit of bonds (at the place of its first
    # bond); then the cost of each tree. The capacity of each step costs 1 at most. A tree stands for those of all roots
    # of its orbit, `np.sum(roots == root)` in number.
    size = shape[0] * steps
    rows, limits = [], list[float]()
    for step in range(steps):
        row = np.zeros(count * size + count)
        for number, (root, _) in enumerate(trees):
            table = np.zeros(shape)
            np.add.at(table[:, step], length_orbits[number], np.sum(roots == root) * capacity)
            row[number * size : (number + 1) * size] = table.ravel()
        rows.append(row)
        limits.append(1.0)
    goal = np.zeros(count * size + count)
    goal[count * size :] = [-float(np.sum(roots == root)) for root, _ in trees]
    lengths = [np.full(shape, 1.0) for _ in trees]
    # Turn by turn: the cheapest tree at the last lengths becomes a row, "the cost is at most what this tree costs".
    for _ in range(MAX_TURNS_OF_ROOTS):
        added = False
        for number, (root, toward) in enumerate(trees):
            by_step = send_costs(instance, lengths[number].tolist(), toward)
            tables = list_tree_costs(by_step)
            pay(TREE_SET * steps * 3**instance.ranks)  # 3^ranks: pairs of a set of ranks and a subset of it
            if tables[0][1 << root] >= FAR_COST:  # tables[step][set of ranks that have the data before it]: least cost
                return None
            row = np.zeros(count * size + count)
            for bond, step in _crossings(
                instance, lengths[number], by_step, tables, step=0, owners=1 << root, toward=toward
            ):
                # lengths are one variable per orbit of bonds: the crossing counts at that of the bond's orbit
                row[number * size + int(length_orbits[number][bond]) * steps + step] -= 1.0
            row[count * size + number] = 1.0
            if not any(np.array_equal(row, other) for other in rows):
                rows.append(row)
                limits.append(0.0)
                added = True
        if not added:
            break
        solution = _solve(goal, np.array(rows), limits, pay)
        for number in range(count):
            table = solution[number * size : (number + 1) * size].reshape(shape)
            lengths[number] = table[length_orbits[number]]
    return _round_roots(instance, group, trees, lengths, steps)


def _round_roots(
    instance: Instance, group: SymmetryGroup, trees: Sequence[tuple[int, bool]], lengths: Sequence[Floats], steps: int
) -> TreeDual | None:
    """Return the best dual of these lengths in whole numbers, with the images of the trees at all ranks."""
    best: tuple[Fraction, TreeDual] | None = None
    top = max(float(table.max()) for table in lengths)
    for scale in SCALES if top else ():
        images = []
        for (root, toward), table in zip(trees, lengths, strict=True):
            rounded = np.floor(table / top * scale + TOLERANCE).astype(np.int64)
            # for every root of the orbit, an element that takes this root there
            _, elements = np.unique(group.nodes[:, root], return_index=True)
            for element in elements.tolist():
                image = np.zeros_like(rounded)
                image[group.bonds[element]] = rounded
                images.append((int(group.nodes[element, root]), toward, image))
        prices = _rows(sum(image for _, _, image in images))
        if not prices:
            continue
        dual = TreeDual(steps, prices, tuple((root, toward, _rows(image)) for root, toward, image in images))
        ratio = evaluate_tree_dual(instance, dual).rounds_per_part
        if best is None or ratio > best[0]:
            best = ratio, dual
    return None if best is None else best[1]


def price_pairs(
    instance: Instance, point: tuple[int, int, int], effort_left: int | None
) -> tuple[list[TreeDual] | None, int]:
    """Return duals that together forbid every split of the rounds of this (C, S, R), and the effort spent; None if they
    leave a split.
    """
    budget = EffortBudget(effort_left)
    duals: list[TreeDual] | None = None
    _, steps, rounds = point
    if math.comb(rounds - 1, steps - 1) <= MAX_SPLITS:  # the number of splits, each step with a round at least
        with contextlib.suppress(EffortSpent):
            duals = _forbid_splits(PairProgram(instance, group_of(instance), steps, budget.pay), point)
    return duals, budget.spent


def _forbid_splits(program: PairProgram, point: tuple[int, int, int]) -> list[TreeDual] | None:
    """Return duals such that each split of this (C, S, R) is forbidden by one of them; None if a split remains."""
    (chunks, steps, rounds), duals = point, dict[TreeDual, StepInequality]()
    for places in itertools.combinations(range(1, rounds), steps - 1):
        split = [b - a for a, b in itertools.pairwise((0, *places, rounds))]
        if any(inequality.forbids(split, chunks) for inequality in duals.values()):
            continue
        dual = program.forbid_split(chunks, split)
        if dual is None:
            return None
        duals[dual] = evaluate_tree_dual(program.instance, dual)
    return list(duals)


class PairProgram:
    """The program of pairs of trees. Variables: a price per step of each orbit of bonds, and V.

    `rows`: V is at most the cost of each pair found so far, and of any 2 n - 1 sends. They hold for every split.
    """

    def __init__(self, instance: Instance, group: SymmetryGroup, steps: int, pay: Pay) -> None:
        self.instance, self.steps, self.pay = instance, steps, pay
        bond_orbits = orbits(group.bonds)
        self.orbit = np.searchsorted(np.unique(bond_orbits), bond_orbits)  # by bond
        self.capacity = np.bincount(self.orbit, [float(c) for c in instance.capacity[: len(instance.bonds)]])
        self.rows: dict[tuple[float, ...], None] = {}
        # 2 n - 1 sends over each arc in each step: a chunk with more sends than a pair costs as much at least
        for path, step in itertools.product(instance.arcs.paths, range(steps)):
            self._add_row([(bond, step) for bond in path] * (2 * instance.ranks - 1))

    def _add_row(self, crossings: Iterable[Crossing]) -> None:
        """Add the row V - (prices of these crossings) <= 0."""
        counts = np.zeros((len(self.capacity), self.steps))
        for bond, step in crossings:
            counts[self.orbit[bond], step] -= 1.0
        self.rows.setdefault((*counts.ravel().tolist(), 1.0))

    def forbid_split(self, chunks: int, split: Sequence[int]) -> TreeDual | None:
        """Return a dual by which this number of chunks does not fit into these rounds per step, or None."""
        size, row_count = len(self.capacity) * self.steps, 0
        # the first row: what the links carry in these rounds costs 1 at most; the last column is V
        all_links = np.append(np.outer(self.capacity, split).ravel(), 0.0)
        goal = np.append(np.zeros(size), -1.0)
        for _ in range(MAX_TURNS):
            if len(self.rows) == row_count:  # no pair is cheaper than V
                return None
            row_count = len(self.rows)
            rows = np.array([all_links, *self.rows])
            solution = _solve(goal, rows, np.append(1.0, np.zeros(row_count)), self.pay)
            if solution[-1] * chunks <= 1 + TOLERANCE:  # they fit, as far as these pairs say
                return None
            prices = solution[:-1].reshape(-1, self.steps)[self.orbit]
            if self._add_pairs(prices) * chunks > 1 + TOLERANCE:
                dual = _round_prices(self.instance, prices, chunks, split)
                if dual is not None:
                    return dual
        return None

    def _add_pairs(self, prices: Floats) -> float:
        """Add the cheapest pairs at these prices by bond and step; return the cost of the cheapest."""
        costs, reversed_costs = (send_costs(self.instance, prices.tolist(), toward) for toward in (False, True))
        down, up = list_tree_costs(costs), list_tree_costs(reversed_costs)
        self.pay(4 * TREE_SET * self.steps * 3**self.instance.ranks)  # `list_pairs` lists the costs of trees twice, too
        pairs = list_pairs(costs, reversed_costs)
        # a pair: a tree up in the first t steps to the owners (one rank, or two, which then exchange in step t: then
        # `exchanges` is 1), and a tree down from there
        for cost, (t, owners, exchanges) in pairs[:PAIRS_PER_TURN]:
            if cost >= FAR_COST:
                break
            crossings = [*_crossings(self.instance, prices, reversed_costs, up, self.steps - t, owners, toward=True)]
            crossings += _crossings(self.instance, prices, costs, down, t + exchanges, owners, toward=False)
            if exchanges:  # in step t, between the trees
                v, w = (rank for rank in range(self.instance.ranks) if owners >> rank & 1)
                paths = (_cheapest_path(self.instance, prices, ends, t) for ends in ((v, w), (w, v)))
                crossings += [(bond, t) for path in paths for bond in path]
            self._add_row(crossings)
        (least_cost, _), *_ = pairs
        return float(least_cost)


def _round_prices(instance: Instance, table: Floats, chunks: int, split: Sequence[int]) -> TreeDual | None:
    """Return prices in whole numbers that forbid the split, the coarsest from scale 12 on; None if these do not.

    `table`: prices by bond and step.
    """
    for scale in SCALES[SCALES.index(12) :]:
        prices = _rows(np.round(table / table.max() * scale).astype(np.int64))
        dual = TreeDual(len(split), prices)
        if prices and evaluate_tree_dual(instance, dual).forbids(split, chunks):
            return dual
    return None


def _solve(goal: Floats, rows: Floats, limits: Sequence[float] | Floats, pay: Pay) -> Floats:
    """Return the values from 0 up that minimize `goal`, where rows @ values <= limits."""
    from scipy.optimize import linprog
    from scipy.sparse import csr_array

    result = linprog(goal, A_ub=csr_array(rows), b_ub=limits, method="highs-ds")
    if result.status != 0:
        raise RuntimeError(f"the linear program of trees failed: {result.message}")
    pay(PROGRAM + PIVOT_COLUMN * int(result.nit) * len(goal))
    return np.asarray(result.x)


def _rows(table: NDArray[np.int64]) -> tuple[tuple[int, int, int], ...]:
    """Return the entries of a table by bond and step that are not 0, as rows (bond, step, entry)."""
    return tuple((int(bond), int(step), int(table[bond, step])) for bond, step in np.argwhere(table))


def _crossings(
    instance: Instance, lengths: Floats, costs: Costs, tables: Sequence[Sequence[Any]], step: int, owners: int,
    toward: bool,
) -> Iterator[Crossing]:  # fmt: skip
    """Yield the crossings of the cheapest tree that brings to all ranks what these owners have before the step.

    `lengths`: by bond and step. `costs`: of sends at these lengths, [step][sender][receiver] (`send_costs`). `tables`:
    [step][owners], the least cost from there on (`list_tree_costs`). `owners`: a set of ranks, as bits. `toward`: links
    and steps of `costs` and `step` are reversed.
    """
    ranks = range(instance.ranks)
    full = (1 << len(ranks)) - 1
    while owners != full:
        later = [(owners, 0.0, tuple[tuple[int, int], ...]())]  # owners after the step, cost, sends (sender, receiver)
        for v in ranks:
            if not owners >> v & 1:
                paid, u = min((costs[step][u][v], u) for u in ranks if owners >> u & 1)
                if paid < FAR_COST:
                    later += [(to | 1 << v, cost + paid, (*sends, (u, v))) for to, cost, sends in later]
        owners, _, sends = min(later, key=lambda option: (option[1] + tables[step + 1][option[0]], option[0]))
        for u, v in sends:
            original_step = len(costs) - 1 - step if toward else step
            for bond in _cheapest_path(instance, lengths, (v, u) if toward else (u, v), original_step):
                yield bond, original_step
        step += 1


def _cheapest_path(instance: Instance, lengths: Floats, ends: tuple[int, int], step: int) -> tuple[int, ...]:
    """Return the bonds of the cheapest arc from one rank to another (`ends`) at the lengths of this step."""
    arcs = zip(instance.arcs.tail.tolist(), instance.arcs.head.tolist(), instance.arcs.paths, strict=True)
    paths = [path for tail, head, path in arcs if (tail, head) == ends]
    return min(paths, key=lambda path: (sum(lengths[bond, step] for bond in path), path))
