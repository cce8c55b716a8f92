"""Hamiltonian cycles of large networks whose links lie in squares: grids, tori of any dimension, hypercubes.

First the links are split into 2-factors (every rank on exactly one cycle of each; Petersen 1891 for even degrees), then
squares are turned: two opposite links of one factor for the other two, which another factor or nobody had. A turn that
joins two cycles into one is kept, also if it parts a cycle of the other factor; until every factor is one cycle.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

import numpy as np

TURNS = 60_000  # squares looked at
MOST_SQUARES = 100_000

Edge = tuple[int, int]


def sides(edges: Iterable[Edge], ranks: int) -> tuple[list[int], bool] | None:
    """The two sides of a bipartite network (0 or 1 per rank) and whether it is connected; None if there is an odd
    cycle."""
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
    """Up to `count` Hamiltonian cycles that share no edge; [] where this method finds none.

    `edges`: a < b, each once. O(count * edges) plus a bounded number of turns, each O(ranks).
    """
    for number in range(count, 0, -1):
        chosen = _regular(edges, ranks, 2 * number)
        if chosen is not None:
            cycles = _Factors(edges, ranks, _two_factors(chosen, ranks, number), random.Random(seed)).join()
            if cycles:
                return cycles
    return []


def _regular(edges: list[Edge], ranks: int, degree: int) -> list[Edge] | None:
    """Edges that give every rank exactly this degree, or None: by a maximum flow where the network is bipartite."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_flow

    have = np.bincount(np.array(edges).ravel(), minlength=ranks)
    if have.min() < degree:
        return None
    if have.max() == degree:
        return edges
    two_sides = sides(edges, ranks)
    if two_sides is None:
        return None
    side, source, sink = two_sides[0], ranks, ranks + 1
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
    """Directed along closed walks, so that as many enter every rank as leave it; then perfect matchings out -> in."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_bipartite_matching

    arcs = _walked(edges, ranks)
    factors = []
    for _ in range(number):
        rows, columns = zip(*arcs, strict=True)
        network = csr_array((np.ones(len(arcs)), (rows, columns)), shape=(ranks, ranks))
        matching = set(enumerate(maximum_bipartite_matching(network, perm_type="column").tolist()))
        factors.append([(min(pair), max(pair)) for pair in matching])
        arcs = [arc for arc in arcs if arc not in matching]
    return factors


def _walked(edges: list[Edge], ranks: int) -> list[Edge]:
    """Every edge in the direction in which a closed walk through its part of the network passes it."""
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
    """Which factor every edge belongs to (-1: none), and the two neighbours of every rank in every factor."""

    def __init__(self, edges: list[Edge], ranks: int, factors: list[list[Edge]], chance: random.Random) -> None:
        self.ranks, self.chance = ranks, chance
        self.owner = dict.fromkeys(edges, -1)
        self.near: list[list[list[int]]] = [[[] for _ in range(ranks)] for _ in factors]
        for number, factor in enumerate(factors):
            for a, b in factor:
                self._give((a, b), number)
        self.label = [self._labels(number) for number in range(len(factors))]
        self.cycles = [max(label) + 1 for label in self.label]

    def join(self) -> list[list[int]]:
        """The factors as single cycles, or [] if the turns are used up."""
        squares = self._squares()
        turns = 0
        while squares and sum(self.cycles) > len(self.near) and turns < TURNS:
            self.chance.shuffle(squares)
            for a, b, c, d in squares:
                turns += 1
                self._turn(a, b, c, d)
                self._turn(b, c, d, a)
        if sum(self.cycles) > len(self.near):
            return []
        return [self._walk(number) for number in range(len(self.near))]

    def _squares(self) -> list[tuple[int, int, int, int]]:
        near: list[set[int]] = [set() for _ in range(self.ranks)]
        for a, b in self.owner:
            near[a].add(b)
            near[b].add(a)
        squares = []
        for a in range(self.ranks):
            for b in near[a]:
                for c in near[b]:
                    if b > a and c > a:
                        squares += [(a, b, c, d) for d in near[a] & near[c] if d > b]
            if len(squares) > MOST_SQUARES:
                break
        return sorted(squares)

    def _turn(self, a: int, b: int, c: int, d: int) -> None:
        """Give the factor of ab and cd the edges bc and da instead, if that joins two of its cycles."""
        ab, cd, bc, da = ((min(p), max(p)) for p in ((a, b), (c, d), (b, c), (d, a)))
        own, other = self.owner[ab], self.owner[bc]
        if own < 0 or self.owner[cd] != own or self.owner[da] != other or other == own:
            return
        if self.label[own][a] == self.label[own][c]:
            return
        before = self.cycles[other] if other >= 0 else 0
        self._swap(own, other, ab, cd, bc, da)
        if other >= 0 and self.cycles[other] > before and self.chance.random() < 0.5:
            self._swap(own, other, bc, da, ab, cd)  # no gain: half of the time as it was

    def _swap(self, own: int, other: int, ab: Edge, cd: Edge, bc: Edge, da: Edge) -> None:
        for edge in (ab, cd, bc, da):
            self._take(edge)
        for edges, factor in (((bc, da), own), ((ab, cd), other)):
            for edge in edges:
                self._give(edge, factor)
        for factor in (own, other):
            if factor >= 0:
                self.label[factor] = self._labels(factor)
                self.cycles[factor] = max(self.label[factor]) + 1

    def _give(self, edge: Edge, factor: int) -> None:
        self.owner[edge] = factor
        if factor >= 0:
            a, b = edge
            self.near[factor][a].append(b)
            self.near[factor][b].append(a)

    def _take(self, edge: Edge) -> None:
        factor = self.owner[edge]
        if factor >= 0:
            a, b = edge
            self.near[factor][a].remove(b)
            self.near[factor][b].remove(a)

    def _labels(self, factor: int) -> list[int]:
        label, number = [-1] * self.ranks, 0
        for start in range(self.ranks):
            if label[start] < 0:
                for rank in self._walk(factor, start):
                    label[rank] = number
                number += 1
        return label

    def _walk(self, factor: int, start: int = 0) -> list[int]:
        near, path, before, rank = self.near[factor], [start], start, self.near[factor][start][0]
        while rank != start:
            path.append(rank)
            first, second = near[rank]
            before, rank = rank, second if first == before else first
        return path
