"""Sets of nodes worth trying as cuts and parts where an exact search does not see the shared limits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from antiphon.core.bounds.cuts import Side
from antiphon.core.bounds.witness import LpDual
from antiphon.core.topology import Topology


def limit_sides(topology: Topology) -> list[Side]:
    """What each shared limit closes in: all that its links' tails reach, and all but what reaches their
    heads, without it.

    O(limits * links).
    """
    sides = []
    for limit in topology.limits:
        links = list(limit.links)
        kept = np.ones(topology.links, bool)
        kept[links] = False
        ahead = reached(topology, topology.link_src[links], kept)
        behind = reached(topology, topology.link_dst[links], kept, back=True)
        sides += [ahead, ~behind]
    return distinct(side for side in sides if 0 < side[: topology.ranks].sum() < topology.ranks)


def limit_partitions(topology: Topology, members: Sequence[int]) -> list[list[list[int]]]:
    """Parts that shared limits close in, as many as are disjoint; the other ranks alone, or together."""
    is_member = np.zeros(topology.nodes, bool)
    is_member[list(members)] = True
    free = np.ones(topology.nodes, bool)
    parts: list[list[int]] = []
    for side in sorted(limit_sides(topology), key=np.count_nonzero):
        if free[side].all() and is_member[side].any():
            free &= ~side
            parts.append(np.flatnonzero(side).tolist())
    rest = np.flatnonzero(free[: topology.ranks]).tolist()
    if not parts:
        return []
    if not rest:
        return [parts] if len(parts) > 1 else []
    found = []
    if all(is_member[rest]):
        found.append(parts + [[rank] for rank in rest])
    if is_member[rest].any():
        found.append([*parts, rest])
    return found


def free_sides(topology: Topology, dual: LpDual) -> list[Side]:
    """What every rank reaches without paying: the cut behind a dual whose prices are all equal, if there is
    one.
    """
    if len({price for _, price in dual.prices}) > 1:
        return []
    free = np.ones(topology.links, bool)
    for resource, _ in dual.prices:
        free[list(topology.limits[resource - topology.links].links) if resource >= topology.links else resource] = False
    return distinct(reached(topology, [rank], free) for rank in range(topology.ranks))


def reached(topology: Topology, start: Iterable[int], kept: Side, back: bool = False) -> Side:
    """Nodes reached from `start` along links that are kept. O(links) per layer."""
    tail, head = topology.link_src[kept], topology.link_dst[kept]
    if back:
        tail, head = head, tail
    side = np.zeros(topology.nodes, bool)
    side[list(start)] = True
    while True:
        new = head[side[tail] & ~side[head]]
        if not new.size:
            return side
        side[new] = True


def distinct(sides: Iterable[Side]) -> list[Side]:
    return list({side.tobytes(): side for side in sides}.values())
