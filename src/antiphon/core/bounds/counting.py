"""Turn a set of nodes or a partition into a witness: the weight that must cross and the capacity that carries it.

The capacity of a set of links is the sum of their capacities, unless a shared limit covers several of them: counting
the limit instead of its links may give less. Choosing the best limits is a covering problem; any choice gives a valid
bound. If limits overlap, a greedy choice is therefore made twice, once in listed order and once by descending saving,
and the smaller total is used.

Example: 4 links of 25 GB/s leave a host under one limit of 50 GB/s. The links sum to 100 GB/s, the limit to 50: count
the limit once, and no link.

Capacities are whole numbers in units of `topology.resources.scale` bytes/s until the last step. Resources are numbered:
the links, then the limits, so limit i is resource `topology.links + i`.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.core.bounds.cuts import Side
from antiphon.core.bounds.lp import count_crossings
from antiphon.core.bounds.needs import Needs
from antiphon.core.bounds.network import link_capacities
from antiphon.core.bounds.witness import Cut, Partition
from antiphon.core.collective import Collective
from antiphon.core.columns import SAFE_INT64, Longs, distinct
from antiphon.core.topology import Topology


def _cheapest_cover(topology: Topology, multiplicity: NDArray[Any]) -> tuple[tuple[tuple[int, int], ...], Fraction]:
    """Return the shared limits to count instead of their links, as (limit, count) pairs, and the total capacity.

    `multiplicity`: how often each link counts, 0 for links that do not cross. In a cut it is 0 or 1. In a partition
    it is greater where a link leaves several parts (ranks are in one part each, but a switch may count to several) or
    leaves one part and enters another while both directions are summed.

    Any choice of limits gives a valid capacity. A link covered by one limit is not counted again for the next, so the
    order matters if limits overlap: then listed order and descending saving are both tried. O(links + sum of the sizes
    of the limits over links that cross).
    """
    capacity, limit_numbers = link_capacities(topology), _limits_over(topology, multiplicity)
    # `link_capacities` leaves room for a few counts of each link; a switch that is in many parts has more
    if float(multiplicity.max(initial=0)) * float(capacity.max(initial=0)) * len(capacity) >= SAFE_INT64:
        capacity = capacity.astype(object)
    cover, total = _apply_limits(topology, capacity, multiplicity, limit_numbers)
    limited_links = [link for number in limit_numbers for link in topology.limits[number].links]
    if cover and len(limited_links) > len(set(limited_links)):
        remaining = multiplicity.astype(np.int64)
        saving_of = {}
        for number in limit_numbers:
            _, saving_of[number] = _saving_of_limit(topology, capacity, remaining, number)
        by_saving = sorted(limit_numbers, key=saving_of.__getitem__, reverse=True)
        other_cover, other_total = _apply_limits(topology, capacity, multiplicity, by_saving)
        if other_total < total:
            cover, total = other_cover, other_total
    return tuple(sorted(cover)), total * topology.resources.scale


def capacity_of(topology: Topology, crossing: NDArray[np.bool_]) -> Fraction:
    """Return the bytes per second of these links together, within their shared limits."""
    _, capacity = _cheapest_cover(topology, crossing)
    return capacity


def _limits_over(topology: Topology, multiplicity: NDArray[Any]) -> list[int]:
    """Return the numbers of the limits that cover a link of multiplicity 1 or more, ascending."""
    _, resource = topology.resources.with_limits(np.flatnonzero(multiplicity))  # links that cross, then their limits
    limits: list[int] = (np.unique(resource[resource >= topology.links]) - topology.links).tolist()
    return limits


def _saving_of_limit(topology: Topology, capacity: NDArray[Any], remaining: Longs, number: int) -> tuple[int, int]:
    """Return how often to count a limit, and how much capacity that saves against counting its links.

    `remaining`: the multiplicity of every link, less the counts of the limits over it that are counted already. The
    count is the greatest of its links: the loads of all of them, each times its multiplicity, then sum to at most count
    times the limit.
    """
    links = np.array(topology.limits[number].links)
    count = int(remaining[links].max())
    if not count:
        return 0, 0
    bound = topology.resources.scaled_capacity(topology.links + number)
    return count, int((remaining[links] * capacity[links]).sum()) - bound * count


def _apply_limits(
    topology: Topology, capacity: NDArray[Any], multiplicity: NDArray[Any], order: Sequence[int]
) -> tuple[list[tuple[int, int]], int]:
    """Count limits in this order, each where it saves something; return (limit, count) pairs and the total capacity."""
    remaining, applied_limits, total = multiplicity.astype(np.int64).copy(), [], 0
    for number in order:
        count, saved = _saving_of_limit(topology, capacity, remaining, number)
        if saved > 0:
            links = np.array(topology.limits[number].links)
            applied_limits.append((number, count))
            # What the limit covers is no longer counted at its links.
            remaining[links] = np.maximum(remaining[links] - count, 0)
            total += count * topology.resources.scaled_capacity(topology.links + number)
    return applied_limits, total + int((remaining * capacity).sum())


def cut_of(topology: Topology, needs: Needs, side: Side) -> Cut:
    """Return the witness for a set of nodes. Its weight is 0 if nothing must leave them."""
    crossing = distinct(needs.block[needs.crossing(side)], len(needs.weights))
    limits, capacity = _cheapest_cover(topology, side[topology.link_src] & ~side[topology.link_dst])
    limit_numbers = tuple(number for number, _ in limits)
    nodes, weight = tuple(np.flatnonzero(side).tolist()), int(needs.weights[crossing].sum())
    return Cut(side=nodes, weight=weight, capacity=capacity, limits=limit_numbers)


def partition_of(
    topology: Topology, collective: Collective, part_sets: Sequence[Sequence[int]], direction: str
) -> Partition:
    """Return the witness for a partition of the nodes, for an allreduce.

    `direction`: count links "out" of the parts, "in" to them, or "both". An allreduce has one block, so the weight that
    must cross is that of block 0.
    """
    sorted_parts = tuple(sorted(tuple(part_nodes) for part_nodes in part_sets))
    multiplicity = count_crossings(topology.link_src, topology.link_dst, sorted_parts, direction, topology.nodes)
    limits, capacity = _cheapest_cover(topology, multiplicity)
    assert collective.weights is not None
    return Partition(sorted_parts, direction, weight=int(collective.weights[0]), capacity=capacity, limits=limits)
