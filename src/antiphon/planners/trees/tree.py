"""What every way of packing gives: trees, each with the rate it carries."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from antiphon.planners.shared.reach import Hop


@dataclass(frozen=True)
class Tree:
    """Data flows from the root down, at `rate` bytes per second.

    `hops`: every rank but the root and how it is reached, by rank; ranks that only pass data on are among them. Where
    the tree is to be used up as well (an allreduce), every hop names its links back.
    """

    root: int
    rate: Fraction
    hops: tuple[tuple[int, Hop], ...]

    @property
    def depth(self) -> int:
        return max((hop.depth for _, hop in self.hops), default=0)
