"""Make rings of factors: swap links between factors until every factor is a single cycle.

A factor gives every rank one successor, and every rank is the successor of one: a permutation, that is, a set of
directed cycles that visit every rank once. Input (`join_by_swaps`): several factors that together use the links of a
network. Output: the same number of factors over the same links, each a single cycle (a ring); [] if the search fails.

A swap exchanges links between two factors. Take a smallest set of ranks (a swap set) that has the same set of
successors in both factors, and exchange the successors of these ranks between the factors. Swaps that do not increase
the number of cycles are kept; so the search is a random walk towards few cycles.

Parity: the sign of a permutation is (-1)^(P - cycles) for P ranks, and a swap leaves the product of the signs of all
factors the same. If every factor is a single cycle, the product is known; from a start with the opposite product swaps
cannot reach it. A "column swap" in an odd number of factors changes the product: two ranks a and b exchange their
successors in each of these factors. Over these factors a and b have the same set of successors, so no link is used
twice.

Example: factors 0>1>0, 2>3>2 and 0>3>0, 1>2>1. The swap set {0, 2} has the successors {1, 3} in both; after the swap
the factors are 0>3>2>1>0 and 0>1>2>3>0, single cycles.
"""

from __future__ import annotations

import random

MAX_SHUFFLES = 20  # times that all factors are swapped at random in search of a column swap
PAIRS_PER_RANK = 20  # pairs of ranks, per rank, that are tried for a column swap before each shuffle
MOST_SWAPS = 200_000  # swaps examined; complete networks of up to 64 ranks need at most about 16,000

Factor = list[int]  # successor of each rank


def join_by_swaps(factors: list[Factor], seed: int = 0, max_swaps: int = MOST_SWAPS) -> list[Factor]:
    """Return the same number of factors of the same links, each a single cycle; [] if this search finds none.

    Again and again, a random factor that is not a single cycle and another factor make their best swap. O(ranks) per
    swap examined; in complete networks about 80 swaps per rank are examined.
    """
    state = _SwapSearch([list(factor) for factor in factors], random.Random(seed), max_swaps)
    ranks = len(factors[0]) if factors else 0
    if ranks < 3:  # rings of 2 ranks need no search (edge_disjoint.py)
        return []
    # swaps preserve the parity of the total number of cycles, so it must match that of one cycle per factor
    parity_differs = (sum(state.cycle_counts) - len(factors)) % 2  # each additional cycle flips the sign
    if parity_differs and (len(factors) < 2 or not state.change_sign()):
        return []
    return state.factors if state.join_cycles() else []


class _SwapSearch:
    """The factors while swaps are made.

    `cycle_counts`: by factor, the number of its cycles. `remaining`: number of swaps that may still be examined.
    """

    def __init__(self, factors: list[Factor], rng: random.Random, max_swaps: int) -> None:
        self.factors, self.rng, self.remaining = factors, rng, max_swaps
        self.cycle_counts = [count_cycles(factor) for factor in factors]

    def join_cycles(self) -> bool:
        """Swap until every factor is a single cycle; return whether that succeeds within the limit."""
        count = len(self.factors)
        while sum(self.cycle_counts) > count:
            if count < 2 or self.remaining <= 0:
                return False
            broken = [i for i, cycles in enumerate(self.cycle_counts) if cycles > 1]
            first, second = self.rng.choice(broken), self.rng.randrange(count)
            if first != second:
                self._improve_pair(first, second)
        return True

    def _improve_pair(self, first: int, second: int) -> None:
        """Make the swap between two factors that leaves the fewest cycles, unless all swaps leave more than before."""
        first_factor, second_factor = self.factors[first], self.factors[second]
        best: tuple[int, int, int, list[int]] | None = None  # cycles of both, of the first, of the second; swap set
        swap_sets = _find_swap_sets(first_factor, second_factor)
        self.remaining -= max(len(swap_sets), 1)
        if len(swap_sets) < 2:  # a swap of all ranks only exchanges the factors
            return
        # try each minimal swap and keep the one that leaves the fewest cycles (also if the number stays the same)
        for ranks in swap_sets:
            _swap_successors(first_factor, second_factor, ranks)
            a, b = count_cycles(first_factor), count_cycles(second_factor)
            if best is None or a + b < best[0]:
                best = (a + b, a, b, ranks)
            _swap_successors(first_factor, second_factor, ranks)
        assert best is not None
        total, a, b, ranks = best
        if total <= self.cycle_counts[first] + self.cycle_counts[second]:
            _swap_successors(first_factor, second_factor, ranks)
            self.cycle_counts[first], self.cycle_counts[second] = a, b

    def change_sign(self) -> bool:
        """Make a column swap in an odd number of factors, if necessary after random swaps.

        Return whether that was possible.
        """
        ranks = len(self.factors[0])
        for _ in range(MAX_SHUFFLES):
            # look for a column swap of an odd number of factors
            pairs = [(a, b) for a in range(ranks) for b in range(ranks) if a != b]
            for a, b in pairs[: PAIRS_PER_RANK * ranks]:
                for column in self._column_swaps(a, b):
                    if len(column) % 2:
                        for i in column:
                            factor = self.factors[i]
                            factor[a], factor[b] = factor[b], factor[a]
                            self.cycle_counts[i] = count_cycles(factor)
                        return True
            # there is none: make some random swaps and look again
            for _ in range(len(self.factors)):
                first, second = self.rng.sample(range(len(self.factors)), 2)
                swap_set, *_ = _find_swap_sets(self.factors[first], self.factors[second])
                _swap_successors(self.factors[first], self.factors[second], swap_set)
                self.cycle_counts[first], self.cycle_counts[second] = (
                    count_cycles(self.factors[first]),
                    count_cycles(self.factors[second]),
                )
        return False

    def _column_swaps(self, a: int, b: int) -> list[list[int]]:
        """Return minimal sets of factors (by index) over which ranks a and b have the same set of successors."""
        factor_with = {factor[a]: i for i, factor in enumerate(self.factors)}
        if len(factor_with) < len(self.factors) or len({factor[b] for factor in self.factors}) < len(self.factors):
            return []  # parallel links: a successor occurs in several factors
        columns: list[list[int]] = []
        in_columns: set[int] = set()
        for start in range(len(self.factors)):
            # from the successor of b to the factor in which a has it, until a factor closes the column: there b has the
            # successor that a has in the first factor
            column, next_rank = [start], self.factors[start][b]
            while start not in in_columns and next_rank in factor_with and factor_with[next_rank] != start:
                column.append(factor_with[next_rank])
                next_rank = self.factors[column[-1]][b]
            if start not in in_columns and next_rank in factor_with:
                columns.append(column)
                in_columns.update(column)
        return columns


def _swap_successors(first: Factor, second: Factor, ranks: list[int]) -> None:
    """Let these ranks swap their successors in two factors, in place."""
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


def _find_swap_sets(first: Factor, second: Factor) -> list[list[int]]:
    """Return the smallest sets of ranks that have the same set of successors in both factors. O(ranks)."""
    predecessor = [0] * len(second)
    for rank, successor in enumerate(second):
        predecessor[successor] = rank
    visited, swap_sets = bytearray(len(first)), []
    for start in range(len(first)):
        ranks, member = [], start
        while not visited[member]:
            visited[member] = 1
            ranks.append(member)
            member = predecessor[first[member]]
        if ranks:
            swap_sets.append(ranks)
    return swap_sets
