"""What every way of packing gives: trees, each with the rate it carries."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from antiphon.core.topology import Topology
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


def overloaded(trees: Iterable[Tree], topology: Topology) -> list[str]:
    """Links and shared limits that carry more than they can: empty for a packing. O(hops)."""
    load = [Fraction(0)] * topology.links
    for tree in trees:
        for _, hop in tree.hops:
            for link in (*hop.path, *hop.back):
                load[link] += tree.rate
    speed = [topology.bandwidth(link) for link in range(topology.links)]
    wrong = [f"link {i}: {load[i]} of {speed[i]}" for i in range(topology.links) if load[i] > speed[i]]
    for limit in topology.limits:
        total = sum((load[link] for link in limit.links), Fraction(0))
        if total > limit.bandwidth:
            wrong.append(f"limit {limit.name}: {total} of {limit.bandwidth}")
    return wrong
