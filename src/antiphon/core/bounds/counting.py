"""Turn a set of nodes or a partition into a witness: the weight that must cross and the capacity that carries it.

The capacity of a set of links is the sum of theirs, unless a shared limit covers several of them: counting the limit
instead of its links may give less. Choosing the best limits is a covering problem; any choice is a valid bound. Limits
that overlap are therefore taken greedily, in given order and by saving, and the lesser of both totals counts.

Example: 4 links of 25 GB/s leave a host under one limit of 50 GB/s. The links sum to 100 GB/s, the limit to 50: count
the limit once, and no link.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.core.bounds.cuts import Side
from antiphon.core.bounds.lp import count_crossings
from antiphon.core.bounds.needs import Needs
from antiphon.core.bounds.network import link_capacities
from antiphon.core.bounds.witness import Cut, Partition
from antiphon.core.collective import Collective
from antiphon.core.columns import Longs, distinct, ranges
from antiphon.core.topology import Topology


def _cheapest_cover(topology: Topology, times: NDArray[Any]) -> tuple[tuple[tuple[int, int], ...], Fraction]:
    """Return the shared limits worth counting instead of their links, and the resulting capacity of all these links.

    `times`: how often each link counts. Any choice of limits gives a valid capacity. If limits overlap, a link covered
    by one is no longer counted for the next, so two orders are tried: as listed, and by saving; the lesser total
    counts. O(links), and the limits over links that count.
    """
    capacity, concerned = link_capacities(topology), _limits_over(topology, times)
    cover = _apply_limits(topology, capacity, times, concerned)
    limited_links = [link for number in concerned for link in topology.limits[number].links]
    if cover[0] and len(limited_links) > len(set(limited_links)):
        remaining = times.astype(np.int64)
        saved = {number: _saving_of_limit(topology, capacity, remaining, number)[1] for number in concerned}
        # Greedy by saving; only where limits overlap can the order matter.
        cover = min(
            cover,
            _apply_limits(topology, capacity, times, sorted(concerned, key=saved.__getitem__, reverse=True)),
            key=itemgetter(1),
        )
    return tuple(sorted(cover[0])), cover[1] * topology.resources.scale


def capacity_of(topology: Topology, crossing: NDArray[np.bool_]) -> Fraction:
    """Return the bytes per second of these links together, within their shared limits."""
    return _cheapest_cover(topology, crossing)[1]


def _limits_over(topology: Topology, times: NDArray[Any]) -> list[int]:
    """Return the limits over links that count at all, ascending."""
    resources, links = topology.resources, np.flatnonzero(times)
    first = resources.limit_ptr[links]
    over = resources.limit_of[ranges(first, resources.limit_ptr[links + 1] - first)]
    return [int(number) for number in np.unique(over) - topology.links]


def _saving_of_limit(topology: Topology, capacity: NDArray[Any], remaining: Longs, number: int) -> tuple[int, int]:
    """Return how often a limit is to be counted, and by how much less it then carries than its links."""
    resources = topology.resources
    links = np.array(topology.limits[number].links)
    count = int(remaining[links].max())
    bound = resources.capacity[int(resources.klass[topology.links + number])]
    return count, int((remaining[links] * capacity[links]).sum()) - bound * count if count else 0


def _apply_limits(
    topology: Topology, capacity: NDArray[Any], times: NDArray[Any], order: Sequence[int]
) -> tuple[list[tuple[int, int]], int]:
    """Count limits in this order, each where it saves something; return (limit, count) pairs and the total capacity."""
    resources = topology.resources
    remaining, used, total = times.astype(np.int64).copy(), [], 0
    for number in order:
        count, saved = _saving_of_limit(topology, capacity, remaining, number)
        if saved > 0:
            links = np.array(topology.limits[number].links)
            used.append((number, count))
            # What the limit covers is no longer counted at its links.
            remaining[links] = np.maximum(remaining[links] - count, 0)
            total += count * resources.capacity[int(resources.klass[topology.links + number])]
    return used, total + int((remaining * capacity).sum())


def cut_of(topology: Topology, needs: Needs, side: Side) -> Cut:
    """Return the witness for a set of nodes. Its weight is 0 if nothing must leave them."""
    crossing = distinct(needs.block[needs.crossing(side)], len(needs.weights))
    limits, capacity = _cheapest_cover(topology, side[topology.link_src] & ~side[topology.link_dst])
    used = tuple(number for number, _ in limits)
    return Cut(tuple(np.flatnonzero(side).tolist()), int(needs.weights[crossing].sum()), capacity, used)


def partition_of(
    topology: Topology, collective: Collective, part_sets: Sequence[Sequence[int]], direction: str
) -> Partition:
    """Return the witness for a partition, by the capacity out of or into its parts."""
    listed = tuple(sorted(tuple(part_nodes) for part_nodes in part_sets))
    times = count_crossings(topology.link_src, topology.link_dst, listed, direction, topology.nodes)
    limits, capacity = _cheapest_cover(topology, times)
    assert collective.weights is not None
    return Partition(listed, direction, int(collective.weights[0]), capacity, limits)
