"""Compute a lower bound on the time of any number of rings that share the data of a collective.

Input: a machine and its members. Output (`least_time_per_byte`): seconds that a step of all rings takes at least, per
byte that a rank sends in it over all rings together, and the reason in words. Every ring leaves and enters every rank
at least once, and likewise every group of ranks whose places have a common beginning (a host, a rack; a place is a path
such as rack0/host1/gpu2). So the data of all rings in a step cross the links out of each such group; the group with the
least bandwidth out (or in) gives the bound.

Example: hosts that are left by 4 network cards of 25 GB/s: all rings together carry at most 100 GB/s per step.
"""

from __future__ import annotations

import numpy as np

from antiphon.core.columns import Longs
from antiphon.core.topology import Topology
from antiphon.units import format_bandwidth


def least_time_per_byte(topology: Topology, members: tuple[int, ...]) -> tuple[float, str]:
    """Return a lower bound on the seconds per byte of a step of all rings together, and its reason.

    0: no bound is known. Of the shared limits that a link is in, only the narrowest counts. O(links) per level of
    places.

    >>> from antiphon.core.example import machine
    >>> seconds, why = least_time_per_byte(machine(), (0, 1, 2))
    >>> float(seconds), why
    (1e-09, 'only 1 GB/s leave rank 1')
    """
    # bytes/s by resource (first the links, then the shared limits), which keep one capacity per class of equal ones, in
    # units of `scale`
    resources = topology.resources
    capacity = np.array(resources.capacity, float)[resources.class_of] * float(resources.scale)
    link_capacity, limit = _narrowest_limits(topology, capacity)
    active_ranks = np.zeros(topology.nodes, bool)
    active_ranks[list(members)] = True
    best = (0.0, "")
    for names, label in _partition_levels(topology):
        counts = np.bincount(label[active_ranks], minlength=len(names))
        must_leave = (counts > 0) & (counts < len(members))  # groups with some members, but not all
        for end, verb in ((topology.link_src, "leave"), (topology.link_dst, "enter")):
            crossing = np.flatnonzero(label[topology.link_src] != label[topology.link_dst])
            # Bandwidth across the border of each group: that of its crossing links without a limit, plus for each limit
            # min(its bandwidth, sum over its crossing links).
            unlimited = crossing[limit[crossing] < 0]
            bandwidth_across = np.bincount(
                label[end[unlimited]], weights=link_capacity[unlimited], minlength=len(names)
            ).astype(float)
            limited = crossing[limit[crossing] >= 0]
            keys, group_and_limit = np.unique(label[end[limited]] * len(capacity) + limit[limited], return_inverse=True)
            link_sums = np.bincount(group_and_limit, weights=link_capacity[limited], minlength=len(keys))
            bandwidth_across += np.bincount(
                keys // len(capacity),
                weights=np.minimum(link_sums, capacity[keys % len(capacity)]),
                minlength=len(names),
            )
            if not must_leave.any():
                continue
            # If no link leaves the worst group, there are no rings and hence no bound on them.
            tightest = int(np.argmin(np.where(must_leave, bandwidth_across, np.inf)))
            if bandwidth_across[tightest] > 0 and 1 / bandwidth_across[tightest] > best[0]:
                best = (
                    1 / bandwidth_across[tightest],
                    f"only {format_bandwidth(float(bandwidth_across[tightest]))} {verb} {names[tightest]}",
                )
    return best


def _narrowest_limits(topology: Topology, capacity: np.ndarray) -> tuple[np.ndarray, Longs]:
    """Return, by link, its own capacity and the resource number of its narrowest shared limit (-1: none)."""
    resources = topology.resources
    limit = np.full(topology.links, -1, np.int64)
    owner = np.repeat(np.arange(topology.links), np.diff(resources.limit_ptr))
    order = np.argsort(-capacity[resources.limit_of], kind="stable")  # narrowest last, so that it overwrites the others
    limit[owner[order]] = resources.limit_of[order]
    return capacity[: topology.links], limit


def _partition_levels(topology: Topology) -> list[tuple[list[str], Longs]]:
    """Return partitions of the nodes, each as (names of the groups, group of every node).

    The first has a group per node, the others group nodes by the first 1, 2, ... components of their places. Groups of
    a switch alone have no members, so that no reason names them.
    """
    levels = [([f"rank {node}" for node in range(topology.nodes)], np.arange(topology.nodes))]
    paths = [place.split("/") for place in topology.places]
    for depth in range(1, max(map(len, paths), default=0)):
        name_of_node = ["/".join(path[:depth]) for path in paths]
        names = sorted(set(name_of_node))
        number = {name: i for i, name in enumerate(names)}
        levels.append((names, np.array([number[name] for name in name_of_node])))
    return levels
