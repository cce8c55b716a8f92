"""Rings out of factors: a network that is split into factors (every rank on one directed cycle of each) keeps its
links while two factors swap some of them, until every factor is a single cycle.

A swap: the ranks fall into classes on which two factors, as sets of links, enter the same ranks; on any of these
classes they may exchange what leaves it. This never changes the product of the signs of all factors as permutations,
so a search that starts with the wrong product cannot end. A column swap does change it: two ranks exchange what they
send to in an odd number of factors.
"""

from __future__ import annotations

import random

MOST_SWAPS = 200_000  # looked at; complete networks of up to 64 ranks need at most about 16,000

Factor = list[int]  # by rank the rank that follows it


def joined_flips(factors: list[Factor], seed: int = 0, max_swaps: int = MOST_SWAPS) -> list[Factor]:
    """As many factors, of the same links, each a single cycle; [] where this search finds none.

    One factor that is not a cycle and any other swap the class that leaves the fewest cycles, if these are no more
    than before: equals wander on. O(ranks) per swap looked at; in complete networks about 80 of them per rank.
    """
    state = _Flips([list(factor) for factor in factors], random.Random(seed), max_swaps)
    ranks = len(factors[0]) if factors else 0
    if ranks < 3:
        return []
    wrong = (sum(state.cycles) - len(factors)) % 2  # each cycle more or less is another sign
    if wrong and (len(factors) < 2 or not state.turn_sign()):
        return []
    return state.factors if state.join() else []


class _Flips:
    def __init__(self, factors: list[Factor], chance: random.Random, max_swaps: int) -> None:
        self.factors, self.chance, self.left = factors, chance, max_swaps
        self.cycles = [count(factor) for factor in factors]

    def join(self) -> bool:
        number = len(self.factors)
        while sum(self.cycles) > number:
            if number < 2 or self.left <= 0:
                return False
            broken = [i for i, cycles in enumerate(self.cycles) if cycles > 1]
            first, second = self.chance.choice(broken), self.chance.randrange(number)
            if first != second:
                self._improve(first, second)
        return True

    def _improve(self, first: int, second: int) -> None:
        first_factor, second_factor = self.factors[first], self.factors[second]
        best: tuple[int, int, int, list[int]] | None = None
        classes = _classes(first_factor, second_factor)
        self.left -= max(len(classes), 1)
        if len(classes) < 2:
            return
        for ranks in classes:
            _swap(first_factor, second_factor, ranks)
            a, b = count(first_factor), count(second_factor)
            if best is None or a + b < best[0]:
                best = (a + b, a, b, ranks)
            _swap(first_factor, second_factor, ranks)
        if best is not None and best[0] <= self.cycles[first] + self.cycles[second]:
            _swap(first_factor, second_factor, best[3])
            self.cycles[first], self.cycles[second] = best[1], best[2]

    def turn_sign(self) -> bool:
        """A column swap in an odd number of factors; if there is none, after a few swaps at random."""
        ranks = len(self.factors[0])
        for _ in range(20):
            pairs = [(a, b) for a in range(ranks) for b in range(ranks) if a != b]
            for a, b in pairs[: 20 * ranks]:
                for column in self._columns(a, b):
                    if len(column) % 2:
                        for i in column:
                            factor = self.factors[i]
                            factor[a], factor[b] = factor[b], factor[a]
                            self.cycles[i] = count(factor)
                        return True
            for _ in range(len(self.factors)):
                first, second = self.chance.sample(range(len(self.factors)), 2)
                _swap(self.factors[first], self.factors[second], _classes(self.factors[first], self.factors[second])[0])
                self.cycles[first], self.cycles[second] = count(self.factors[first]), count(self.factors[second])
        return False

    def _columns(self, a: int, b: int) -> list[list[int]]:
        """Sets of factors in which ranks a and b together send to the same ranks."""
        at = {factor[a]: i for i, factor in enumerate(self.factors)}
        if len(at) < len(self.factors) or len({factor[b] for factor in self.factors}) < len(self.factors):
            return []  # parallel links: one rank follows in several factors
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


def _swap(first: Factor, second: Factor, ranks: list[int]) -> None:
    for rank in ranks:
        first[rank], second[rank] = second[rank], first[rank]


def count(factor: Factor) -> int:
    """Count the cycles of a factor. O(ranks)."""
    visited, cycles = bytearray(len(factor)), 0
    for start in range(len(factor)):
        if not visited[start]:
            cycles += 1
            while not visited[start]:
                visited[start] = 1
                start = factor[start]  # noqa: PLW2901 (walking on)
    return cycles


def _classes(first: Factor, second: Factor) -> list[list[int]]:
    """Ranks by the smallest sets from which both factors lead to the same ranks. O(ranks)."""
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
