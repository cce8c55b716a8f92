"""Clauses for a SAT solver under construction, with a totalizer to count true literals.

A literal is a variable x or its negation -x; a clause is a list of literals, at least one of them true.

A totalizer (Bailleux and Boufkhad, CP 2003) is a binary tree: each leaf is a literal, each inner node has outputs o[0],
o[1], ... in unary, where o[j] is implied by "at least j + 1 leaves below are true". To limit a count to k, add the unit
clause -o[k]. Outputs beyond k + 1 are never needed, so nodes are cut off there.

Example: two literals x, y give o[0] <- x, o[0] <- y, o[1] <- x and y.
"""

from __future__ import annotations

from collections.abc import Sequence


class Clauses:
    """The clauses so far (`rows`, each a list of literals), over variables 1 to `variables`."""

    def __init__(self, variables: int = 0, rows: Sequence[list[int]] = ()) -> None:
        self.variables = variables
        self.rows = list(rows)

    def new_variable(self) -> int:
        """Return the number of a new variable."""
        self.variables += 1
        return self.variables

    def count_true(self, literals: Sequence[int], max_count: int) -> list[int]:
        """Return outputs o[0..]: o[j] is implied by j + 1 true literals, for j up to `max_count`.

        O(n log n * max_count) clauses.
        """
        if len(literals) <= 1:
            return list(literals)
        half = len(literals) // 2
        first, second = self.count_true(literals[:half], max_count), self.count_true(literals[half:], max_count)
        outputs = [self.new_variable() for _ in range(min(len(literals), max_count + 1))]
        # i true on the left and j on the right imply i + j in total: its output is totals[i + j - 1]
        totals = outputs + outputs[-1:] * (len(first) + len(second) - len(outputs))
        left, right = [-x for x in first], [-y for y in second]
        self.rows += [[total, y] for total, y in zip(totals, right, strict=False)]
        for i, x in enumerate(left):
            self.rows.append([totals[i], x])
            self.rows += [[total, x, y] for total, y in zip(totals[i + 1 :], right, strict=False)]
        return outputs
