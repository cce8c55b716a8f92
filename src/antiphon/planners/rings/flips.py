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


def joined_flips(factors: list[Factor], seed: int = 0, most: int = MOST_SWAPS) -> list[Factor]:
    """As many factors, of the same links, each a single cycle; [] where this search finds none.

    One factor that is not a cycle and any other swap the class that leaves the fewest cycles, if these are no more
    than before: equals wander on. O(ranks) per swap looked at; in complete networks about 80 of them per rank.
    """
    state = _Flips([list(factor) for factor in factors], random.Random(seed), most)
    ranks = len(factors[0]) if factors else 0
    if ranks < 3:
        return []
    wrong = (sum(state.cycles) - len(factors)) % 2  # each cycle more or less is another sign
    if wrong and (len(factors) < 2 or not state.turn_sign()):
        return []
    return state.factors if state.join() else []


class _Flips:
    def __init__(self, factors: list[Factor], chance: random.Random, most: int) -> None:
        self.factors, self.chance, self.left = factors, chance, most
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
        one, two = self.factors[first], self.factors[second]
        best: tuple[int, int, int, list[int]] | None = None
        classes = _classes(one, two)
        self.left -= max(len(classes), 1)
        if len(classes) < 2:
            return
        for ranks in classes:
            _swap(one, two, ranks)
            a, b = count(one), count(two)
            if best is None or a + b < best[0]:
                best = (a + b, a, b, ranks)
            _swap(one, two, ranks)
        if best is not None and best[0] <= self.cycles[first] + self.cycles[second]:
            _swap(one, two, best[3])
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
        seen: set[int] = set()
        for start in range(len(self.factors)):
            column, here = [start], self.factors[start][b]
            while start not in seen and here in at and at[here] != start:
                column.append(at[here])
                here = self.factors[column[-1]][b]
            if start not in seen and here in at:
                columns.append(column)
                seen.update(column)
        return columns


def _swap(one: Factor, two: Factor, ranks: list[int]) -> None:
    for rank in ranks:
        one[rank], two[rank] = two[rank], one[rank]


def count(factor: Factor) -> int:
    """How many cycles a factor has. O(ranks)."""
    seen, cycles = bytearray(len(factor)), 0
    for start in range(len(factor)):
        if not seen[start]:
            cycles += 1
            while not seen[start]:
                seen[start] = 1
                start = factor[start]  # noqa: PLW2901 (walking on)
    return cycles


def _classes(one: Factor, two: Factor) -> list[list[int]]:
    """Ranks by the smallest sets from which both factors lead to the same ranks. O(ranks)."""
    before = [0] * len(two)
    for rank, after in enumerate(two):
        before[after] = rank
    seen, found = bytearray(len(one)), []
    for start in range(len(one)):
        ranks, here = [], start
        while not seen[here]:
            seen[here] = 1
            ranks.append(here)
            here = before[one[here]]
        if ranks:
            found.append(ranks)
    return found
