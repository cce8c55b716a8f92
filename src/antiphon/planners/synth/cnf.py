"""Clauses under construction, and counters."""

from __future__ import annotations

from collections.abc import Sequence


class Clauses:
    """Variables are numbered from 1; a clause is a list of literals."""

    def __init__(self) -> None:
        self.variables = 0
        self.rows: list[list[int]] = []

    def new(self) -> int:
        self.variables += 1
        return self.variables

    def count(self, literals: Sequence[int], most: int) -> list[int]:
        """Outputs o[0..]: o[j] is true if at least j + 1 literals are (up to `most` + 1 of them): a totalizer of
        O(n log n * most) clauses (Bailleux and Boufkhad 2003).
        """
        if len(literals) <= 1:
            return list(literals)
        half = len(literals) // 2
        first, second = self.count(literals[:half], most), self.count(literals[half:], most)
        out = [self.new() for _ in range(min(len(literals), most + 1))]
        for i in range(len(first) + 1):
            for j in range(len(second) + 1):
                if i + j == 0:
                    continue
                clause = [out[min(i + j, len(out)) - 1]]
                if i:
                    clause.append(-first[i - 1])
                if j:
                    clause.append(-second[j - 1])
                self.rows.append(clause)
        return out
