"""Rings out of factors: exchange links between factors until every factor is a single cycle.

A factor is a permutation of the ranks (every rank has one successor). The network is the union of all factors, and must
stay the same. Allowed exchange between two factors: take a minimal set of ranks that both factors map to the same set
of successors ("class"), and swap the successors of these ranks. Swaps that do not increase the number of cycles are
kept.

Invariant: a swap changes neither the union nor the product of the signs of all factors. A single cycle of P ranks has
sign (-1)^(P-1), so a start with the wrong product can never succeed. A "column swap" changes the sign: two ranks
exchange their successors in an odd number of factors in which together they have the same successors.

Example: factors 0>1>0, 2>3>2 and 0>3>0, 1>2>1. The class {0, 2} has the successors {1, 3} in both; after the swap they
are 0>3>2>1>0 and 0>1>2>3>0, single cycles.
"""

from __future__ import annotations

import random

MOST_SWAPS = 200_000  # examined; complete networks of up to 64 ranks need at most about 16,000

Factor = list[int]  # successor of each rank


def joined_flips(factors: list[Factor], seed: int = 0, max_swaps: int = MOST_SWAPS) -> list[Factor]:
    """Return as many factors, of the same links, each a single cycle; [] if this search finds none.

    A factor that is not a cycle and any other one swap the class that leaves the fewest cycles, if these are not more
    than before: ties make a random walk. O(ranks) per swap examined; in complete networks about 80 of them per rank.
    """
    state = _Flips([list(factor) for factor in factors], random.Random(seed), max_swaps)
    ranks = len(factors[0]) if factors else 0
    if ranks < 3:
        return []
    # swaps preserve the parity of the total number of cycles, so it must match that of one cycle per factor
    wrong = (sum(state.cycles) - len(factors)) % 2  # each additional cycle flips the sign
    if wrong and (len(factors) < 2 or not state.turn_sign()):
        return []
    return state.factors if state.join_cycles() else []


class _Flips:
    def __init__(self, factors: list[Factor], chance: random.Random, max_swaps: int) -> None:
        self.factors, self.chance, self.left = factors, chance, max_swaps
        self.cycles = [count_cycles(factor) for factor in factors]

    def join_cycles(self) -> bool:
        number = len(self.factors)
        while sum(self.cycles) > number:
            if number < 2 or self.left <= 0:
                return False
            broken = [i for i, cycles in enumerate(self.cycles) if cycles > 1]
            first, second = self.chance.choice(broken), self.chance.randrange(number)
            if first != second:
                self._improve_pair(first, second)
        return True

    def _improve_pair(self, first: int, second: int) -> None:
        first_factor, second_factor = self.factors[first], self.factors[second]
        best: tuple[int, int, int, list[int]] | None = None
        classes = _swap_classes(first_factor, second_factor)
        self.left -= max(len(classes), 1)
        if len(classes) < 2:
            return
        # try each minimal swap, and keep the one that leaves the fewest cycles (ties are accepted: they may lead on)
        for ranks in classes:
            _swap_successors(first_factor, second_factor, ranks)
            a, b = count_cycles(first_factor), count_cycles(second_factor)
            if best is None or a + b < best[0]:
                best = (a + b, a, b, ranks)
            _swap_successors(first_factor, second_factor, ranks)
        if best is not None and best[0] <= self.cycles[first] + self.cycles[second]:
            _swap_successors(first_factor, second_factor, best[3])
            self.cycles[first], self.cycles[second] = best[1], best[2]

    def turn_sign(self) -> bool:
        """Do a column swap in an odd number of factors; if there is none, retry after a few random swaps."""
        ranks = len(self.factors[0])
        for _ in range(20):
            pairs = [(a, b) for a in range(ranks) for b in range(ranks) if a != b]
            for a, b in pairs[: 20 * ranks]:
                for column in self._column_swaps(a, b):
                    if len(column) % 2:
                        for i in column:
                            factor = self.factors[i]
                            factor[a], factor[b] = factor[b], factor[a]
                            self.cycles[i] = count_cycles(factor)
                        return True
            for _ in range(len(self.factors)):
                first, second = self.chance.sample(range(len(self.factors)), 2)
                _swap_successors(
                    self.factors[first],
                    self.factors[second],
                    _swap_classes(self.factors[first], self.factors[second])[0],
                )
                self.cycles[first], self.cycles[second] = (
                    count_cycles(self.factors[first]),
                    count_cycles(self.factors[second]),
                )
        return False

    def _column_swaps(self, a: int, b: int) -> list[list[int]]:
        """Return minimal sets of factors in which ranks a and b together have the same successors."""
        at = {factor[a]: i for i, factor in enumerate(self.factors)}
        if len(at) < len(self.factors) or len({factor[b] for factor in self.factors}) < len(self.factors):
            return []  # parallel links: a successor occurs in several factors
        columns: list[list[int]] = []
        done: set[int] = set()
        for start in range(len(self.factors)):
            column, next_rank = [start], self.factors[start][b]
            while start not in done and next_rank in at and at[next_rank] != start:
                column.append(at[next_rank])
                next_rank = self.factors[column[-1]][b]
            if start not in done and next_rank in at:
                columns.append(column)
                done.update(column)
        return columns


def _swap_successors(first: Factor, second: Factor, ranks: list[int]) -> None:
    for rank in ranks:
        first[rank], second[rank] = second[rank], first[rank]


def count_cycles(factor: Factor) -> int:
    """Count the cycles of a factor. O(ranks)."""
    visited, cycles = bytearray(len(factor)), 0
    for start in range(len(factor)):
        if not visited[start]:
            cycles += 1
            while not visited[start]:
                visited[start] = 1
                start = factor[start]  # noqa: PLW2901 (walking on)
    return cycles


def _swap_classes(first: Factor, second: Factor) -> list[list[int]]:
    """Return the minimal sets of ranks that both factors map to the same successors. O(ranks)."""
    before = [0] * len(second)
    for rank, after in enumerate(second):
        before[after] = rank
    visited, classes = bytearray(len(first)), []
    for start in range(len(first)):
        ranks, place = [], start
        while not visited[place]:
            visited[place] = 1
            ranks.append(place)
            place = before[first[place]]
        if ranks:
            classes.append(ranks)
    return classes
