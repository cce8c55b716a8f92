"""What a search may spend: effort, which is counted, and so spent alike on every machine; CPU time as a safety stop.

A unit of effort is about a second of a processor of today. It is counted by what was done, never by a clock: the
literals that were written and the propagations of SAT solvers, the pivots of linear programs and their columns, the
nodes of mixed-integer ones. Prices are in billionths of a unit, whole numbers, so that sums are exact.
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
TOO_LATE = "the budget is spent; give it more with --budget"


def mixed_price(entries: int, nodes: int) -> int:
    """Of a mixed-integer program with so many entries in its matrix."""
    return MIXED + ROOT_ENTRY * entries + NODE_ENTRY * entries * max(nodes - 1, 0)


def nodes_for(effort_left: int | None, entries: int, max_nodes: int) -> int:
    """As many nodes of it, up to `most`, as there is effort for; at least the first."""
    if effort_left is None:
        return max_nodes
    return max(1, min(max_nodes, (effort_left - mixed_price(entries, 1)) // (NODE_ENTRY * max(entries, 1))))


@dataclass
class Purse:
    """`effort`: what there is (None: no end); `until`: of `cpu_clock`."""

    effort: int | None = None
    until: float = math.inf
    spent: int = 0

    def pay(self, price: int) -> None:
        """EffortSpent where there is not as much: then all is spent. TimedOut where the budget is."""
        self.spent += price
        self.check()

    def check(self) -> None:
        if cpu_clock() >= self.until:
            raise TimedOut(TOO_LATE)
        if self.effort is not None and self.spent >= self.effort:
            self.spent = self.effort
            raise EffortSpent(NO_MORE)

    def left(self) -> int | None:
        """Effort; None for no end."""
        return None if self.effort is None else self.effort - self.spent

    def seconds(self) -> float | None:
        """Of CPU time, for who works apart; None for no end. TimedOut where there are none."""
        if self.until == math.inf:
            return None
        self.check()
        return self.until - cpu_clock()
