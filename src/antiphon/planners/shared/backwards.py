"""Where to plan what is then run backwards: a reduce is a broadcast backwards, a reducescatter an allgather."""

from __future__ import annotations

from collections import Counter

from antiphon.core.columns import Ints
from antiphon.core.reshape import reverse
from antiphon.core.routes import opposite_links
from antiphon.core.topology import Topology
from antiphon.errors import Unsupported


def backwards(topology: Topology) -> tuple[Topology, Ints | None]:
    """A machine to plan on, and what to give `invert` with the plan.

    Where every link has one like it that leads back, and shared limits have, the machine itself, so that what is
    gathered is as fast as what is spread: with all links turned it is the same machine, but for their numbers, and a
    search may end elsewhere. Else the machine with all links turned. O(links log links).
    """
    try:
        links = opposite_links(topology)
    except Unsupported:
        return reverse(topology), None
    there = Counter((limit.bandwidth, frozenset(limit.links)) for limit in topology.limits)
    back = Counter((limit.bandwidth, frozenset(links[list(limit.links)].tolist())) for limit in topology.limits)
    return (topology, links) if there == back else (reverse(topology), None)
