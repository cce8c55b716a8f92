"""What a search may spend: effort, which is counted and so the same on every machine, and CPU time as a safety stop.

A unit of effort is about a second on a current processor. It is counted, never measured: literals written and
propagations made by SAT solvers, pivots of linear programs times their columns, nodes of mixed-integer ones. Prices are
integers in billionths of a unit, so sums are exact and results reproducible.

Example: an LP with 1,000 columns that takes 500 pivots costs PROGRAM + PIVOT_COLUMN * 500 * 1000 = 18,000,000, that is
0.018 units.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from antiphon.errors import EffortSpent, TimedOut
from antiphon.isolate import cpu_clock

UNIT = 10**9
LITERAL, PROPAGATION = 600, 130
ELABORATED, LEMMA = 2_000, 60_000  # a literal that a proof is about, and a line of it made a chain
PROGRAM, PIVOT_COLUMN = 3_000_000, 30  # a linear program; every pivot, per column
MIXED, ROOT_ENTRY, NODE_ENTRY = 5_000_000, 8_000, 1_000  # a mixed-integer one; its first node and others, per entry
LIMIT_REACHED = 1  # status of SciPy: of the nodes, here
NO_MORE = "its effort is spent; give it more with --effort"
TOO_LATE = "the budget is used up; raise it with --budget"


def mixed_price(entries: int, nodes: int) -> int:
    """Return the price of a mixed-integer program with this many matrix entries and search nodes."""
    return MIXED + ROOT_ENTRY * entries + NODE_ENTRY * entries * max(nodes - 1, 0)


def nodes_for(effort_left: int | None, entries: int, max_nodes: int) -> int:
    """Return the number of search nodes that the effort allows: at least the first, at most `max_nodes`."""
    if effort_left is None:
        return max_nodes
    return max(1, min(max_nodes, (effort_left - mixed_price(entries, 1)) // (NODE_ENTRY * max(entries, 1))))


@dataclass
class Purse:
    """`effort`: limit in price units (None: no limit); `until`: CPU deadline on `cpu_clock`."""

    effort: int | None = None
    until: float = math.inf
    spent: int = 0

    def pay(self, price: int) -> None:
        """Spend `price`. Raises EffortSpent if the effort is exceeded (then all is spent), TimedOut after the
        deadline.
        """
        self.spent += price
        self.check()

    def check(self) -> None:
        if cpu_clock() >= self.until:
            raise TimedOut(TOO_LATE)
        if self.effort is not None and self.spent >= self.effort:
            self.spent = self.effort
            raise EffortSpent(NO_MORE)

    def left(self) -> int | None:
        """Return the remaining effort; None if unlimited."""
        return None if self.effort is None else self.effort - self.spent

    def seconds(self) -> float | None:
        """Return the remaining CPU seconds for a child process; None if unlimited. Raises TimedOut if none remain."""
        if self.until == math.inf:
            return None
        self.check()
        return self.until - cpu_clock()
