"""Pack Hamiltonian cycles in large networks whose edges lie in squares: grids, tori of any dimension, hypercubes.

Input (`joined_factors`, called by cycles.py and edge_disjoint.py): an undirected network and the number n of cycles
wanted. Output: up to n edge-disjoint cycles, each through all ranks; [] if the method finds none. A 2-factor (here:
factor) is a set of edges in which every rank has degree two, that is, a set of cycles that together visit every rank
once. Factors are easy to find; then their cycles are joined:

    1. choose edges that give every rank degree 2n (a maximum flow, for bipartite networks)
    2. split them into n factors (Petersen 1891): orient the edges along closed walks, so that n edges leave and n enter
       every rank; then each perfect matching of ranks with their successors is a factor
    3. turn squares: if two opposite edges of a square belong to one factor, and the other two to another (or to none),
       the factors swap them. Such a turn is made if it joins two cycles of the first factor, even though it may
       split one of the other; repeat until every factor is a single cycle

Example: a 4 x 4 grid. Its factor could be four squares of 4 ranks each; turning the square between two of them joins
them to a cycle of 8.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

import numpy as np

MAX_EXAMINED = 60_000  # squares; then no further pass over all squares begins for this set of factors
MAX_SQUARES = 100_000  # squares listed; further ones are left out

Edge = tuple[int, int]  # ranks a < b


def bipartite_sides(edges: Iterable[Edge], ranks: int) -> tuple[list[int], bool] | None:
    """Return a side (0 or 1) for every rank such that all edges join different sides, and whether edges connect all.

    None if the network is not bipartite (it has a cycle of odd length).
    """
    neighbours: list[list[int]] = [[] for _ in range(ranks)]
    for a, b in edges:
        neighbours[a].append(b)
        neighbours[b].append(a)
    side, components = [-1] * ranks, 0
    for start in range(ranks):
        if side[start] >= 0:
            continue
        components += 1
        side[start], stack = 0, [start]
        while stack:
            rank = stack.pop()
            for neighbour in neighbours[rank]:
                if side[neighbour] < 0:
                    side[neighbour] = 1 - side[rank]
                    stack.append(neighbour)
                elif side[neighbour] == side[rank]:
                    return None
    return side, components == 1


def joined_factors(edges: list[Edge], ranks: int, count: int, seed: int = 0) -> list[list[int]]:
    """Return up to `count` edge-disjoint Hamiltonian cycles; [] if this method finds none.

    `edges`: pairs a < b, each once. O(count * edges), plus MAX_EXAMINED squares, each O(ranks).
    """
    for number in range(count, 0, -1):
        regular_edges = _regular_edges(edges, ranks, 2 * number)
        if regular_edges is not None:
            cycles = _Factors(
                edges, ranks, _two_factors(regular_edges, ranks, number), random.Random(seed)
            ).join_cycles()
            if cycles:
                return cycles
    return []


def _regular_edges(edges: list[Edge], ranks: int, degree: int) -> list[Edge] | None:
    """Return edges that give every rank exactly this degree, by a maximum flow.

    None if there are none, or if the network is neither bipartite nor of this degree already.
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_flow

    # trivial cases: too few edges, or exactly as many as needed
    degrees = np.bincount(np.array(edges).ravel(), minlength=ranks)
    if degrees.min() < degree:
        return None
    if degrees.max() == degree:
        return edges
    two_sides = bipartite_sides(edges, ranks)
    if two_sides is None:
        return None
    (side, _), source, sink = two_sides, ranks, ranks + 1
    # flow from source > side 0 > side 1 > sink: capacity `degree` at every rank, 1 per edge
    from_side_0 = [(a, b) if side[a] == 0 else (b, a) for a, b in edges]
    rows = [*(a for a, _ in from_side_0), *(source if side[rank] == 0 else rank for rank in range(ranks))]
    columns = [*(b for _, b in from_side_0), *(rank if side[rank] == 0 else sink for rank in range(ranks))]
    capacity = np.array([1] * len(edges) + [degree] * ranks, np.int32)
    network = csr_array((capacity, (rows, columns)), shape=(ranks + 2, ranks + 2), dtype=np.int32)
    flow = maximum_flow(network, source, sink)
    if 2 * flow.flow_value != degree * ranks:  # an edge serves two ranks
        return None
    return [edge for edge, (a, b) in zip(edges, from_side_0, strict=True) if flow.flow[a, b] > 0]


def _two_factors(edges: list[Edge], ranks: int, count: int) -> list[list[Edge]]:
    """Split the edges of a network in which every rank has degree 2 * `count` into `count` factors."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_bipartite_matching

    arcs = _orient_edges(edges, ranks)
    factors = []
    for _ in range(count):
        rows, columns = zip(*arcs, strict=True)
        network = csr_array((np.ones(len(arcs)), (rows, columns)), shape=(ranks, ranks))
        # as many arcs leave as enter every rank, so ranks and their successors have a perfect matching (König)
        matching = set(enumerate(maximum_bipartite_matching(network, perm_type="column").tolist()))
        factors.append([(min(pair), max(pair)) for pair in matching])
        arcs = [arc for arc in arcs if arc not in matching]
    return factors


def _orient_edges(edges: list[Edge], ranks: int) -> list[Edge]:
    """Return every edge in the direction of a closed walk over it, so that as many arcs leave as enter every rank."""
    neighbours: list[list[tuple[int, int]]] = [[] for _ in range(ranks)]
    for edge_index, (a, b) in enumerate(edges):
        neighbours[a].append((b, edge_index))
        neighbours[b].append((a, edge_index))
    is_used, arcs = [False] * len(edges), []
    for start in range(ranks):
        rank = start
        while neighbours[rank]:  # degrees are even: a walk that gets stuck is back at its start
            next_rank, edge_index = neighbours[rank].pop()
            if not is_used[edge_index]:
                is_used[edge_index] = True
                arcs.append((rank, next_rank))
                rank = next_rank
    return arcs


class _Factors:
    """The factors of a network while squares are turned. `cycle_counts`: by factor, the number of its cycles."""

    def __init__(self, edges: list[Edge], ranks: int, factors: list[list[Edge]], rng: random.Random) -> None:
        self.ranks, self.rng = ranks, rng
        self.owner = dict.fromkeys(edges, -1)  # by edge: the number of its factor, -1 for none
        # by factor and rank, its two neighbours
        self.neighbours: list[list[list[int]]] = [[[] for _ in range(ranks)] for _ in factors]
        for index, factor in enumerate(factors):
            for a, b in factor:
                self._add_edge((a, b), index)
        # by factor and rank, the number of the cycle that the rank is on
        self.label = [self._label_cycles(index) for index in range(len(factors))]
        self.cycle_counts = [max(label) + 1 for label in self.label]

    def join_cycles(self) -> list[list[int]]:
        """Turn squares in random order until every factor is one cycle; return these cycles, or [] after
        MAX_EXAMINED.
        """
        squares = self._list_squares()
        examined = 0
        while squares and sum(self.cycle_counts) > len(self.neighbours) and examined < MAX_EXAMINED:
            self.rng.shuffle(squares)
            for a, b, c, d in squares:
                examined += 1
                # either pair of opposite edges may be the one to give up
                self._turn_square(a, b, c, d)
                self._turn_square(b, c, d, a)
        if sum(self.cycle_counts) > len(self.neighbours):
            return []
        return [self._walk_cycle(factor) for factor in range(len(self.neighbours))]

    def _list_squares(self) -> list[tuple[int, int, int, int]]:
        """Return the squares of the network, each as its ranks in order around it."""
        neighbours: list[set[int]] = [set() for _ in range(self.ranks)]
        for a, b in self.owner:
            neighbours[a].add(b)
            neighbours[b].add(a)
        squares = []
        for a in range(self.ranks):
            for b in neighbours[a]:
                for c in neighbours[b]:
                    # each square once: a is its smallest corner and d > b fixes the direction
                    if b > a and c > a:
                        squares += [(a, b, c, d) for d in neighbours[a] & neighbours[c] if d > b]
            if len(squares) > MAX_SQUARES:
                break
        return sorted(squares)

    def _turn_square(self, a: int, b: int, c: int, d: int) -> None:
        """Give the factor of ab and cd the edges bc and da instead, if that joins two of its cycles."""
        ab, cd, bc, da = ((min(p), max(p)) for p in ((a, b), (c, d), (b, c), (d, a)))
        factor, other_factor = self.owner[ab], self.owner[bc]
        if factor < 0 or self.owner[cd] != factor or self.owner[da] != other_factor or other_factor == factor:
            return
        # if ab and cd are on different cycles of the factor, bc and da join these; on one cycle they might split it
        if self.label[factor][a] == self.label[factor][c]:
            return
        before = self.cycle_counts[other_factor] if other_factor >= 0 else 0
        self._swap_edges(factor, other_factor, ab, cd, bc, da)
        if other_factor >= 0 and self.cycle_counts[other_factor] > before and self.rng.random() < 0.5:
            self._swap_edges(factor, other_factor, bc, da, ab, cd)  # no gain in total: undo it half of the time

    def _swap_edges(self, own_factor: int, other_factor: int, ab: Edge, cd: Edge, bc: Edge, da: Edge) -> None:
        """Give edges bc and da to factor `own_factor`, and ab and cd to `other_factor` (-1: to none)."""
        for edge in (ab, cd, bc, da):
            self._remove_edge(edge)
        for edges, factor in (((bc, da), own_factor), ((ab, cd), other_factor)):
            for edge in edges:
                self._add_edge(edge, factor)
        for factor in (own_factor, other_factor):
            if factor >= 0:
                self.label[factor] = self._label_cycles(factor)
                self.cycle_counts[factor] = max(self.label[factor]) + 1

    def _add_edge(self, edge: Edge, factor: int) -> None:
        """Give an edge to a factor (-1: to none)."""
        self.owner[edge] = factor
        if factor >= 0:
            a, b = edge
            self.neighbours[factor][a].append(b)
            self.neighbours[factor][b].append(a)

    def _remove_edge(self, edge: Edge) -> None:
        """Take an edge from its factor."""
        factor = self.owner[edge]
        if factor >= 0:
            a, b = edge
            self.neighbours[factor][a].remove(b)
            self.neighbours[factor][b].remove(a)

    def _label_cycles(self, factor: int) -> list[int]:
        """Return the number of every rank's cycle in a factor."""
        label, cycle = [-1] * self.ranks, 0
        for start in range(self.ranks):
            if label[start] < 0:
                for rank in self._walk_cycle(factor, start):
                    label[rank] = cycle
                cycle += 1
        return label

    def _walk_cycle(self, factor: int, start: int = 0) -> list[int]:
        """Return the ranks of the cycle that `start` is on, in order."""
        neighbours, path, previous, rank = self.neighbours[factor], [start], start, self.neighbours[factor][start][0]
        while rank != start:
            path.append(rank)
            first, second = neighbours[rank]
            previous, rank = rank, second if first == previous else first
        return path
