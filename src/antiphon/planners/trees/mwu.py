"""Trees packed as Blink does: multiplicative weights, then an integer program for few trees (Blink, 3.2 and 3.3).

First, lengths of edges that grow with their load: the tree of least length is taken as heavily as its narrowest edge
allows, its edges get longer by (1 + epsilon * that / capacity), again and again, until the total, scaled down to what
fits, is within epsilon of what the lengths prove possible (Garg and Könemann). Then (3.2.1) weights of 0 or 1 are given
to the trees found; where the best of these misses the optimum by more than the threshold, weights are relaxed: any
whole numbers, then halves, thirds and so on, at last the fractions that linear programming gives.

How many trees come out of the first part says little (10 to 299 on one machine, by epsilon and ties). Results are exact
rationals that fit; floats only guide.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import ceil, log
from typing import Any

import numpy as np

from antiphon.errors import Invalid
from antiphon.planners.trees.both_ways import Directed, Undirected, hung, laid, weakest
from antiphon.planners.trees.fewest import tightest
from antiphon.planners.trees.pricing import cheapest
from antiphon.planners.trees.tree import Tree

Chosen = tuple[int, ...]
Weighted = list[tuple[Fraction, Chosen]]
Plain = tuple[int, int, int]  # a, b, capacity

FINEST = 8  # weights in parts of a unit that are tried before fractions
GRAIN = 2**20  # fractions are rounded down to such parts
NODES = 100  # of the integer program


@dataclass(frozen=True)
class Blink:
    """Trees of summed `rate` bytes/s, of `optimum`. `packed` trees came out of the weights; `weights` says what the
    integer program was allowed: "0 or 1", "whole", "1/2", ..., "fractions"."""

    trees: tuple[Tree, ...]
    rate: Fraction
    optimum: Fraction
    packed: int
    packed_rate: Fraction
    weights: str


def blink_broadcast(
    machine: Directed, root: int, *, epsilon: float = 0.05, threshold: Fraction = Fraction(1, 20)
) -> Blink:
    """Arborescences from a root (a rank) by least-cost arborescences (3.2)."""
    n, arcs, top = machine.vertices, [arc[:3] for arc in machine.arcs], machine.members.index(root)
    _, optimum = tightest(machine, root)
    usable = [e for e, (_, b, _) in enumerate(arcs) if b != top]
    ends = [arcs[e][:2] for e in usable]

    def least(lengths: Sequence[float]) -> Chosen:
        return least_arborescence(n, ends, lengths, top)

    packed = multiplicative_weights([arcs[e][2] for e in usable], least, epsilon)
    few, weights = minimise(packed, [arcs[e][2] for e in usable], Fraction(optimum), threshold)
    trees = tuple(hung(machine, root, [usable[e] for e in chosen], w * machine.unit) for w, chosen in few)
    return _result(trees, optimum * machine.unit, packed, machine.unit, weights)


def blink_allreduce(machine: Undirected, *, epsilon: float = 0.05, threshold: Fraction = Fraction(1, 20)) -> Blink:
    """Undirected spanning trees, for reduce one way and broadcast the other (3.3)."""
    n, edges = machine.vertices, [edge[:3] for edge in machine.edges]
    optimum, _ = weakest(n, edges)
    ends = [edge[:2] for edge in edges]

    def least(lengths: Sequence[float]) -> Chosen:
        return least_spanning_tree(n, ends, lengths)

    packed = multiplicative_weights([c for *_, c in edges], least, epsilon)
    few, weights = minimise(packed, [c for *_, c in edges], optimum, threshold)
    trees = tuple(laid(machine, chosen, w * machine.unit) for w, chosen in few)
    return _result(trees, optimum * machine.unit, packed, machine.unit, weights)


def _result(trees: tuple[Tree, ...], optimum: Fraction, packed: Weighted, unit: Fraction, weights: str) -> Blink:
    rate = sum((tree.rate for tree in trees), Fraction(0))
    return Blink(trees, rate, optimum, len(packed), sum((w for w, _ in packed), Fraction(0)) * unit, weights)


def multiplicative_weights(
    capacity: Sequence[int], least: Callable[[Sequence[float]], Chosen], epsilon: float
) -> Weighted:
    """Trees with exact weights that fit, in total within epsilon of the most. O(edges ln(edges) / epsilon^2) trees."""
    if not 0 < epsilon < 1:
        raise Invalid(f"epsilon: expected a number between 0 and 1, got {epsilon}")
    length = [1.0 / c for c in capacity]
    load = [0] * len(capacity)
    times: dict[Chosen, int] = {}
    total, proved = 0, float("inf")
    for _ in range(1000 + ceil(4 * len(capacity) * (1 + log(len(capacity) + 1)) / epsilon**2)):
        tree = least(length)
        across = sum(length[e] for e in tree)
        proved = min(proved, sum(x * c for x, c in zip(length, capacity, strict=True)) / across)
        weight = min(capacity[e] for e in tree)
        times[tree] = times.get(tree, 0) + weight
        total += weight
        for e in tree:
            load[e] += weight
            length[e] *= 1 + epsilon * weight / capacity[e]
        if across > 1e200:
            length = [x * 2.0**-600 for x in length]
        fullest = max(x / c for x, c in zip(load, capacity, strict=True))
        if total / fullest >= (1 - epsilon) * proved:
            break
    scale = max(Fraction(x, c) for x, c in zip(load, capacity, strict=True))  # what no edge exceeds after it
    return sorted(((Fraction(w) / scale, tree) for tree, w in times.items()), key=lambda x: (-x[0], x[1]))


def least_spanning_tree(vertices: int, ends: Sequence[tuple[int, int]], length: Sequence[float]) -> Chosen:
    """Kruskal; of equal lengths the first. O(edges log edges)."""
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


def least_arborescence(vertices: int, ends: Sequence[tuple[int, int]], length: Sequence[float], root: int) -> Chosen:
    """The cheapest arborescence (Chu and Liu; Edmonds). Every vertex must be within reach. O(vertices^3) at worst."""
    cost = np.full((vertices, vertices), np.inf)
    arc = np.zeros((vertices, vertices), np.int64)
    for e, (a, b) in enumerate(ends):
        if length[e] < cost[a, b]:
            cost[a, b], arc[a, b] = length[e], e
    parents = cheapest(cost, root, np.inf)
    assert parents is not None
    return tuple(sorted(int(arc[parent, v]) for v, parent in enumerate(parents) if parent >= 0))


def minimise(
    packed: Weighted, capacity: Sequence[int], optimum: Fraction, threshold: Fraction = Fraction(1, 20)
) -> tuple[Weighted, str]:
    """Fewer of the trees, with coarse weights (in units), at (1 - threshold) of the optimum; and how coarse (3.2.1)."""
    if not 0 <= threshold < 1:
        raise Invalid(f"threshold: expected a fraction from 0 to below 1, got {threshold}")
    few, weights = _minimised(tuple(packed), tuple(capacity), optimum, threshold)
    return [*few], weights


@lru_cache(maxsize=64)
def _minimised(
    packed: tuple[tuple[Fraction, Chosen], ...], capacity: tuple[int, ...], optimum: Fraction, threshold: Fraction
) -> tuple[Weighted, str]:
    """Kept, since collectives that go both ways ask for the same trees, and integer programs take most of the time."""
    trees = [tree for _, tree in packed]
    uses = np.zeros((len(capacity), len(trees)))
    for i, tree in enumerate(trees):
        uses[list(tree), i] = 1
    widest = [min(capacity[e] for e in tree) for tree in trees]
    enough = (1 - threshold) * optimum
    best: tuple[Fraction, Weighted, str] = (sum((w for w, _ in packed), Fraction(0)), [*packed], "fractions")
    for parts in range(FINEST + 1):  # 0: weights of 0 or 1
        scale = max(parts, 1)
        most = [1 if parts == 0 else width * scale for width in widest]
        chosen = _integers(uses, [c * scale for c in capacity], most, None)
        if chosen is not None and sum(chosen) >= enough * scale:
            if parts:
                chosen = _integers(uses, [c * scale for c in capacity], most, ceil(enough * scale)) or chosen
            return _weighted(chosen, scale, trees), "0 or 1" if not parts else "whole" if parts == 1 else f"1/{parts}"
    fractions = _fractions(uses, capacity, trees)
    total = sum((w for w, _ in fractions), Fraction(0))
    if total >= min(enough, best[0]):
        return fractions, "fractions"
    return best[1], "fractions"


def _weighted(chosen: Sequence[int], scale: int, trees: Sequence[Chosen]) -> Weighted:
    found = [(Fraction(w, scale), tree) for w, tree in zip(chosen, trees, strict=True) if w]
    return sorted(found, key=lambda x: (-x[0], x[1]))


def _integers(uses: Any, capacity: Sequence[int], most: Sequence[int], enough: int | None) -> list[int] | None:
    """Whole weights that fit, of the greatest sum; or, of sum `enough`, on the fewest trees. None if none was found."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    count = uses.shape[1]
    limits = np.array(capacity, float)
    if enough is None:
        program = milp(
            -np.ones(count),
            constraints=LinearConstraint(uses, -np.inf, limits),
            bounds=Bounds(0, np.array(most, float)),
            integrality=np.ones(count),
            options={"node_limit": NODES},
        )
    else:
        zero = np.zeros_like(uses)
        allowed = np.hstack([np.eye(count), -np.diag(np.array(most, float))])
        total = np.hstack([np.ones((1, count)), np.zeros((1, count))])
        program = milp(
            np.concatenate([np.zeros(count), np.ones(count)]),
            constraints=[
                LinearConstraint(np.hstack([uses, zero]), -np.inf, limits),
                LinearConstraint(allowed, -np.inf, 0),
                LinearConstraint(total, enough, np.inf),
            ],
            bounds=Bounds(0, np.concatenate([np.array(most, float), np.ones(count)])),
            integrality=np.ones(2 * count),
            options={"node_limit": NODES},
        )
    if program.x is None:
        return None
    found = [round(x) for x in program.x[:count]]
    fits = all(
        sum(w for w, use in zip(found, row, strict=True) if use) <= c for row, c in zip(uses, capacity, strict=True)
    )
    return found if fits and min(found) >= 0 and (enough is None or sum(found) >= enough) else None


def _fractions(uses: Any, capacity: Sequence[int], trees: Sequence[Chosen]) -> Weighted:
    """A vertex of the linear program, so at most as many trees as edges; rounded down, so that it fits."""
    from scipy.optimize import linprog

    program = linprog(-np.ones(len(trees)), A_ub=uses, b_ub=np.array(capacity, float), method="highs-ds")
    weights = [int(max(x, 0) * (1 - 1e-9) * GRAIN) for x in program.x]
    over = [sum(w for w, use in zip(weights, row, strict=True) if use) for row in uses]
    scale = max(Fraction(x, c * GRAIN) for x, c in zip(over, capacity, strict=True))
    found = _weighted(weights, GRAIN, trees)
    return found if scale <= 1 else [(w / scale, tree) for w, tree in found]
