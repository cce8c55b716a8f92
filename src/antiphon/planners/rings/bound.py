"""Bound the speed of rings over switches from below in time: how fast can any number of rings be together?

Input: a machine and its members. Output (`least_time`): seconds per byte that a step of all rings together takes at
least, and the reason in words. Every ring leaves and enters every rank at least once, and likewise every group of
ranks whose places have a common beginning (a host, a rack). So the data of all rings in a step cross the links out
of each such group; the group with the least bandwidth out (or in) gives the bound.

Example: hosts that are left by 4 network cards of 25 GB/s: all rings together carry at most 100 GB/s per step.
"""

from __future__ import annotations

import numpy as np

from antiphon.core.columns import Longs
from antiphon.core.topology import Topology
from antiphon.units import format_bandwidth


def least_time(topology: Topology, members: tuple[int, ...]) -> tuple[float, str]:
    """Return a lower bound on seconds per byte of a step of all rings together, and its reason; 0 if none is known.

    A link in several shared limits counts for the narrowest one. O(links) per level of places.

    >>> from antiphon.core.example import machine
    >>> seconds, why = least_time(machine(), (0, 1, 2))
    >>> float(seconds), why
    (1e-09, 'only 1 GB/s leave rank 1')
    """
    resources = topology.resources
    capacity = np.array(resources.capacity, float)[resources.klass] * float(resources.scale)
    link_capacity, limit = _narrowest_limits(topology, capacity)
    active_ranks = np.zeros(topology.nodes, bool)
    active_ranks[list(members)] = True
    best = (0.0, "")
    for names, label in _partition_levels(topology):
        counts = np.bincount(label[active_ranks], minlength=len(names))
        cut = (counts > 0) & (counts < len(members))  # groups that rings must leave: with some members, not all
        for end, verb in ((topology.link_src, "leave"), (topology.link_dst, "enter")):
            crossing = np.flatnonzero(label[topology.link_src] != label[topology.link_dst])
            # bandwidth across the border of each group: links in no limit, then limits with the sum of their links here
            alone = crossing[limit[crossing] < 0]
            bandwidth_across = np.bincount(
                label[end[alone]], weights=link_capacity[alone], minlength=len(names)
            ).astype(float)
            bound = crossing[limit[crossing] >= 0]
            keys, place = np.unique(label[end[bound]] * len(capacity) + limit[bound], return_inverse=True)
            summed = np.bincount(place, weights=link_capacity[bound], minlength=len(keys))
            bandwidth_across += np.bincount(
                keys // len(capacity), weights=np.minimum(summed, capacity[keys % len(capacity)]), minlength=len(names)
            )
            if not cut.any():
                continue
            worst = int(np.argmin(np.where(cut, bandwidth_across, np.inf)))
            if bandwidth_across[worst] > 0 and 1 / bandwidth_across[worst] > best[0]:
                best = (
                    1 / bandwidth_across[worst],
                    f"only {format_bandwidth(float(bandwidth_across[worst]))} {verb} {names[worst]}",
                )
    return best


def _narrowest_limits(topology: Topology, capacity: np.ndarray) -> tuple[np.ndarray, Longs]:
    """Return, by link, its own capacity and the narrowest shared limit that it belongs to (-1: none)."""
    resources = topology.resources
    limit = np.full(topology.links, -1, np.int64)
    owner = np.repeat(np.arange(topology.links), np.diff(resources.limit_ptr))
    order = np.argsort(-capacity[resources.limit_of], kind="stable")  # narrowest last, so that it overwrites the others
    limit[owner[order]] = resources.limit_of[order]
    return capacity[: topology.links], limit


def _partition_levels(topology: Topology) -> list[tuple[list[str], Longs]]:
    """Return partitions of the nodes, as (names of groups, group of every node): each node alone; then by the first
    1, 2, ... components of places.
    """
    levels = [([f"rank {node}" for node in range(topology.nodes)], np.arange(topology.nodes))]
    paths = [place.split("/") for place in topology.places]
    for depth in range(1, max(map(len, paths), default=0)):
        named = ["/".join(path[:depth]) for path in paths]
        names = sorted(set(named))
        number = {name: i for i, name in enumerate(names)}
        levels.append((names, np.array([number[name] for name in named])))
    return levels
