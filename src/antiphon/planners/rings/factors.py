"""Hamiltonian cycles of large networks whose links lie in squares: grids, tori of any dimension, hypercubes.

    1. choose a subgraph of even degree 2n (a maximum flow, for bipartite networks)
    2. split it into n 2-factors: every rank on exactly one cycle of each (Petersen 1891): orient edges along closed
       walks, then each perfect matching "out -> in" is a 2-factor
    3. turn squares: if two opposite edges of a square belong to one factor, and the other two to another (or to none),
       exchange them. A turn that joins two cycles of the first factor is kept, even if it may split one of the other;
       until every factor is a single cycle

Example: a 4 x 4 grid. Its 2-factor could be four squares of 4 ranks; turning the square between two of them joins them
to a cycle of 8.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

import numpy as np

TURNS = 60_000  # squares examined
MOST_SQUARES = 100_000

Edge = tuple[int, int]


def bipartite_sides(edges: Iterable[Edge], ranks: int) -> tuple[list[int], bool] | None:
    """Return the sides of a bipartite network (0 or 1 per rank) and whether it is connected; None if it has an odd
    cycle.
    """
    near: list[list[int]] = [[] for _ in range(ranks)]
    for a, b in edges:
        near[a].append(b)
        near[b].append(a)
    side, components = [-1] * ranks, 0
    for start in range(ranks):
        if side[start] >= 0:
            continue
        components += 1
        side[start], todo = 0, [start]
        while todo:
            rank = todo.pop()
            for other in near[rank]:
                if side[other] < 0:
                    side[other] = 1 - side[rank]
                    todo.append(other)
                elif side[other] == side[rank]:
                    return None
    return side, components == 1


def joined_factors(edges: list[Edge], ranks: int, count: int, seed: int = 0) -> list[list[int]]:
    """Return up to `count` edge-disjoint Hamiltonian cycles; [] if this method finds none.

    `edges`: a < b, each once. O(count * edges) plus a bounded number of turns, each O(ranks).
    """
    for number in range(count, 0, -1):
        chosen = _regular_edges(edges, ranks, 2 * number)
        if chosen is not None:
            cycles = _Factors(edges, ranks, _two_factors(chosen, ranks, number), random.Random(seed)).join_cycles()
            if cycles:
                return cycles
    return []


def _regular_edges(edges: list[Edge], ranks: int, degree: int) -> list[Edge] | None:
    """Return edges that give every rank exactly this degree, or None: by a maximum flow if the network is bipartite."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_flow

    have = np.bincount(np.array(edges).ravel(), minlength=ranks)
    if have.min() < degree:
        return None
    if have.max() == degree:
        return edges
    two_sides = bipartite_sides(edges, ranks)
    if two_sides is None:
        return None
    side, source, sink = two_sides[0], ranks, ranks + 1
    # source > one side > other side > sink, with `degree` units to and from every rank, one per edge: integral flows
    # exist
    turned = [(a, b) if side[a] == 0 else (b, a) for a, b in edges]
    rows = [*(a for a, _ in turned), *(source if side[rank] == 0 else rank for rank in range(ranks))]
    columns = [*(b for _, b in turned), *(rank if side[rank] == 0 else sink for rank in range(ranks))]
    capacity = np.array([1] * len(edges) + [degree] * ranks, np.int32)
    network = csr_array((capacity, (rows, columns)), shape=(ranks + 2, ranks + 2), dtype=np.int32)
    flow = maximum_flow(network, source, sink)
    if 2 * flow.flow_value != degree * ranks:
        return None
    return [edge for edge, (a, b) in zip(edges, turned, strict=True) if flow.flow[a, b] > 0]


def _two_factors(edges: list[Edge], ranks: int, number: int) -> list[list[Edge]]:
    """Split a regular network into 2-factors: orient along closed walks, then take perfect matchings out -> in."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_bipartite_matching

    arcs = _orient_edges(edges, ranks)
    factors = []
    for _ in range(number):
        rows, columns = zip(*arcs, strict=True)
        network = csr_array((np.ones(len(arcs)), (rows, columns)), shape=(ranks, ranks))
        # Petersen: the oriented network is regular, so out- and in-copies of the ranks have a perfect matching (König)
        matching = set(enumerate(maximum_bipartite_matching(network, perm_type="column").tolist()))
        factors.append([(min(pair), max(pair)) for pair in matching])
        arcs = [arc for arc in arcs if arc not in matching]
    return factors


def _orient_edges(edges: list[Edge], ranks: int) -> list[Edge]:
    """Return every edge in the direction in which a closed walk passes it, so that in- and out-degrees are equal."""
    near: list[list[tuple[int, int]]] = [[] for _ in range(ranks)]
    for number, (a, b) in enumerate(edges):
        near[a].append((b, number))
        near[b].append((a, number))
    used, arcs = [False] * len(edges), []
    for start in range(ranks):
        rank = start
        while near[rank]:  # degrees are even: a walk that gets stuck is back at its start
            next_rank, number = near[rank].pop()
            if not used[number]:
                used[number] = True
                arcs.append((rank, next_rank))
                rank = next_rank
    return arcs


class _Factors:
    """The factor of every edge (-1: none), and the two neighbours of every rank in every factor."""

    def __init__(self, edges: list[Edge], ranks: int, factors: list[list[Edge]], chance: random.Random) -> None:
        self.ranks, self.chance = ranks, chance
        self.owner = dict.fromkeys(edges, -1)
        self.near: list[list[list[int]]] = [[[] for _ in range(ranks)] for _ in factors]
        for number, factor in enumerate(factors):
            for a, b in factor:
                self._add_edge((a, b), number)
        self.label = [self._label_cycles(number) for number in range(len(factors))]
        self.cycles = [max(label) + 1 for label in self.label]

    def join_cycles(self) -> list[list[int]]:
        """Return the factors as single cycles, or [] if the turns are used up."""
        squares = self._list_squares()
        turns = 0
        while squares and sum(self.cycles) > len(self.near) and turns < TURNS:
            self.chance.shuffle(squares)
            for a, b, c, d in squares:
                turns += 1
                self._turn_square(a, b, c, d)
                self._turn_square(b, c, d, a)
        if sum(self.cycles) > len(self.near):
            return []
        return [self._walk_cycle(number) for number in range(len(self.near))]

    def _list_squares(self) -> list[tuple[int, int, int, int]]:
        near: list[set[int]] = [set() for _ in range(self.ranks)]
        for a, b in self.owner:
            near[a].add(b)
            near[b].add(a)
        squares = []
        for a in range(self.ranks):
            for b in near[a]:
                for c in near[b]:
                    # each square once: a is its smallest corner and d > b fixes the direction
                    if b > a and c > a:
                        squares += [(a, b, c, d) for d in near[a] & near[c] if d > b]
            if len(squares) > MOST_SQUARES:
                break
        return sorted(squares)

    def _turn_square(self, a: int, b: int, c: int, d: int) -> None:
        """Give the factor of ab and cd the edges bc and da instead, if that joins two of its cycles."""
        ab, cd, bc, da = ((min(p), max(p)) for p in ((a, b), (c, d), (b, c), (d, a)))
        own, other = self.owner[ab], self.owner[bc]
        if own < 0 or self.owner[cd] != own or self.owner[da] != other or other == own:
            return
        # ab and cd must be in different cycles of the factor, then bc and da join these two; in one cycle they might
        # split it
        if self.label[own][a] == self.label[own][c]:
            return
        before = self.cycles[other] if other >= 0 else 0
        self._swap_edges(own, other, ab, cd, bc, da)
        if other >= 0 and self.cycles[other] > before and self.chance.random() < 0.5:
            self._swap_edges(own, other, bc, da, ab, cd)  # no gain in total: undo it half of the time

    def _swap_edges(self, own: int, other: int, ab: Edge, cd: Edge, bc: Edge, da: Edge) -> None:
        for edge in (ab, cd, bc, da):
            self._remove_edge(edge)
        for edges, factor in (((bc, da), own), ((ab, cd), other)):
            for edge in edges:
                self._add_edge(edge, factor)
        for factor in (own, other):
            if factor >= 0:
                self.label[factor] = self._label_cycles(factor)
                self.cycles[factor] = max(self.label[factor]) + 1

    def _add_edge(self, edge: Edge, factor: int) -> None:
        self.owner[edge] = factor
        if factor >= 0:
            a, b = edge
            self.near[factor][a].append(b)
            self.near[factor][b].append(a)

    def _remove_edge(self, edge: Edge) -> None:
        factor = self.owner[edge]
        if factor >= 0:
            a, b = edge
            self.near[factor][a].remove(b)
            self.near[factor][b].remove(a)

    def _label_cycles(self, factor: int) -> list[int]:
        label, number = [-1] * self.ranks, 0
        for start in range(self.ranks):
            if label[start] < 0:
                for rank in self._walk_cycle(factor, start):
                    label[rank] = number
                number += 1
        return label

    def _walk_cycle(self, factor: int, start: int = 0) -> list[int]:
        near, path, before, rank = self.near[factor], [start], start, self.near[factor][start][0]
        while rank != start:
            path.append(rank)
            first, second = near[rank]
            before, rank = rank, second if first == before else first
        return path
