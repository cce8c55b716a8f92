"""Limits of a search: effort, which is counted and so the same on every machine, and CPU time as a safety stop.

A unit of effort is about a second on a current processor. It is counted, never measured: literals given to SAT solvers
and their propagations, pivots of linear programs times their columns, search nodes of mixed-integer ones. Each has a
price in billionths of a unit, an integer, so sums are exact and results reproducible. A search pays the price of each
piece of work from its `EffortBudget`, which raises an error when it is used up.

Example: an LP with 1,000 columns that takes 500 pivots costs PROGRAM + PIVOT_COLUMN * 500 * 1000 = 18,000,000, that is
0.018 units.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from antiphon.errors import EffortSpent, TimedOut
from antiphon.isolate import cpu_clock

UNIT = 10**9  # a unit of effort, in the billionths in which prices are stated
# Prices of work, which the engines pay (sat.py, refute.py, linear.py, flow.py, tree_prices.py)
LITERAL, PROPAGATION = 600, 130  # SAT: a literal of a clause; a propagation
ELABORATED, LEMMA = 2_000, 60_000  # resolution proof: a literal of the formula; a lemma turned into a chain
PROGRAM, PIVOT_COLUMN = 3_000_000, 30  # linear program: in any case; for each pivot, per column
MIXED, ROOT_ENTRY, NODE_ENTRY = 5_000_000, 8_000, 1_000  # mixed-integer: in any case; first node, others, per entry
LIMIT_REACHED = 1  # status of SciPy's milp: the limit of nodes (or time) ended it
EFFORT_SPENT = "its effort is spent; give it more with --effort"
BUDGET_SPENT = "the budget is used up; raise it with --budget"


def mixed_price(entries: int, nodes: int) -> int:
    """Return the price of a mixed-integer program with this many matrix entries and search nodes."""
    return MIXED + ROOT_ENTRY * entries + NODE_ENTRY * entries * max(nodes - 1, 0)


def nodes_for(effort_left: int | None, entries: int, max_nodes: int) -> int:
    """Return the number of search nodes that the effort allows: at least the first, at most `max_nodes`.

    `entries`: of the program's matrix. `effort_left` None: unlimited.
    """
    if effort_left is None:
        return max_nodes
    return max(1, min(max_nodes, (effort_left - mixed_price(entries, nodes=1)) // (NODE_ENTRY * max(entries, 1))))


@dataclass
class EffortBudget:
    """Effort and CPU time that a search may use.

    `effort`: limit of the sum of prices (None: unlimited); `until`: CPU deadline on `cpu_clock`; `spent`: the sum so
    far.
    """

    effort: int | None = None
    until: float = math.inf
    spent: int = 0

    def pay(self, price: int) -> None:
        """Add `price` to what is spent. Raises EffortSpent or TimedOut as `check` does."""
        self.spent += price
        self.check()

    def check(self) -> None:
        """Raise TimedOut after the deadline, EffortSpent if the effort is used up."""
        if cpu_clock() >= self.until:
            raise TimedOut(BUDGET_SPENT)
        if self.effort is not None and self.spent >= self.effort:
            self.spent = self.effort  # never above the limit, even if the last price exceeds it
            raise EffortSpent(EFFORT_SPENT)

    def left(self) -> int | None:
        """Return the remaining effort; None if unlimited."""
        return None if self.effort is None else self.effort - self.spent

    def seconds(self) -> float | None:
        """Return the remaining CPU seconds for a child process; None if unlimited. Raises TimedOut if none remain."""
        if self.until == math.inf:
            return None
        self.check()
        return self.until - cpu_clock()
