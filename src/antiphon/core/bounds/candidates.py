"""Sets of nodes worth trying as cuts and parts, where the exact search does not see shared limits or is too expensive.

Four sources of candidates:

    limit_sides       nodes that a shared limit encloses. Without the limit's links: the nodes that their tails reach,
                      and the nodes that do not reach their heads
    limit_partitions  disjoint sides of this kind, and the other ranks alone or together
    middle_sides      halves of the machine on both sides of a link on a long shortest path: nodes nearer to one
                      end than to the other. On grids, tori and hypercubes these are cuts across one dimension.
    free_sides        for a dual with equal prices: what a rank reaches over unpriced links, i.e. the cut behind it

Any set of nodes is a valid cut, so a poor candidate costs time but never correctness.

Example: two hosts of 8 GPUs whose NICs share one limit of 50 GB/s each. The tails of the first limit's links reach all
of host 0 and nothing else without it: the cut "host 0" uses the limit once instead of 8 links.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import count, pairwise

import numpy as np
from numpy.typing import NDArray

from antiphon.core.bounds.cuts import Side
from antiphon.core.bounds.network import link_capacities
from antiphon.core.bounds.witness import LpDual
from antiphon.core.columns import Floats, reached_nodes
from antiphon.core.portable import row_dot
from antiphon.core.topology import Topology, hosts

LONG_PATHS = 4  # shortest paths between distant ranks whose links are tried


def limit_sides(topology: Topology) -> list[Side]:
    """Return the sets of nodes that each shared limit encloses.

    Without the limit's links: the nodes reachable from their tails, and the nodes that cannot reach their heads.
    O(limits * links).
    """
    sides = []
    for limit in topology.limits:
        links = list(limit.links)
        other_links = np.ones(topology.links, bool)
        other_links[links] = False
        ahead = reachable_nodes(topology, topology.link_src[links], other_links)
        behind = reachable_nodes(topology, topology.link_dst[links], other_links, back=True)
        sides += [ahead, ~behind]
    return distinct_sides(side for side in sides if 0 < side[: topology.ranks].sum() < topology.ranks)


def limit_partitions(topology: Topology, members: Sequence[int]) -> list[list[list[int]]]:
    """Return partitions whose parts are disjoint sets enclosed by shared limits; other ranks are single parts, or one
    part."""
    is_member = np.zeros(topology.nodes, bool)
    is_member[list(members)] = True
    is_unassigned = np.ones(topology.nodes, bool)
    part_sets: list[list[int]] = []
    # Greedy: the smallest sides first, while they are disjoint.
    for side in sorted(limit_sides(topology), key=np.count_nonzero):
        if is_unassigned[side].all() and is_member[side].any():
            is_unassigned &= ~side
            part_sets.append(np.flatnonzero(side).tolist())
    other_ranks = np.flatnonzero(is_unassigned[: topology.ranks]).tolist()
    if not part_sets:
        return []
    if not other_ranks:
        return [part_sets] if len(part_sets) > 1 else []
    partitions = []
    # every part must have a member
    if all(is_member[other_ranks]):
        partitions.append(part_sets + [[rank] for rank in other_ranks])
    if is_member[other_ranks].any():
        partitions.append([*part_sets, other_ranks])
    return partitions


def place_partitions(topology: Topology) -> list[list[list[int]]]:
    """Return two partitions: into single ranks; and, if there are several hosts, into hosts with their switches."""
    single_ranks, host_of = [[rank] for rank in range(topology.ranks)], hosts(topology)
    if not host_of:
        return [single_ranks]
    # A node's place names its levels, such as "rack3/host2/gpu1".
    paths = [place.split("/") for place in topology.places]
    # The number of levels at which all hosts (0 to max(host_of)) are distinct; there is one, as `hosts` reads hosts
    # from places.
    depth = next(d for d in count(1) if len({tuple(levels[:d]) for levels in paths[: topology.ranks]}) > max(host_of))
    nodes_at: dict[tuple[str, ...], list[int]] = {tuple(levels[:depth]): [] for levels in paths[: topology.ranks]}
    for node, levels in enumerate(paths):
        if tuple(levels[:depth]) in nodes_at:
            nodes_at[tuple(levels[:depth])].append(node)
    return [single_ranks, list(nodes_at.values())]


def free_sides(topology: Topology, dual: LpDual) -> list[Side]:
    """Return the sets of nodes that each rank reaches over unpriced links.

    If all prices of a dual are equal, it is often a cut in disguise: these sets are its sides. Otherwise [].
    """
    if len({price for _, price in dual.prices}) > 1:
        return []
    is_unpriced = np.ones(topology.links, bool)
    for resource, _ in dual.prices:
        limit = resource - topology.links  # negative: the resource is a link
        is_unpriced[list(topology.limits[limit].links) if limit >= 0 else resource] = False
    return distinct_sides(reachable_nodes(topology, [rank], is_unpriced) for rank in range(topology.ranks))


def middle_sides(topology: Topology, demand: Floats, max_sides: int) -> list[Side]:
    """Return the most promising halves of the machine: for a link, the nodes nearer to one of its ends than to the
    other.

    On grids, tori and hypercubes these are cuts across one dimension. The links tried are those of some shortest paths
    between distant ranks. `demand[i, j]`: the weight that rank i must send to rank j. At most `max_sides` are returned.
    O(links tried * (links * diameter + ranks^2)).
    """
    capacity = link_capacities(topology).astype(np.float64)
    sides: dict[bytes, tuple[float, Side]] = {}
    # Every link on a long path splits the nodes by "nearer to this end"; ties go to either side.
    for path in _long_paths(topology):
        distances = [_hop_distances(topology, node) for node in path]
        for from_a, from_b in pairwise(distances):  # distances of all nodes from the ends a and b of a link
            for side in (from_a < from_b, from_a <= from_b, from_a > from_b, from_a >= from_b):
                if 0 < side[: topology.ranks].sum() < topology.ranks:
                    sides[side.tobytes()] = _crossing_time(topology, side, demand, capacity), side
    # the greatest crossing times first; the sides themselves decide between equal ones
    ranked = sorted((-crossing_time, key) for key, (crossing_time, _) in sides.items())
    best = [sides[key] for _, key in ranked[:max_sides]]
    return [side for _, side in best]


def _long_paths(topology: Topology) -> Iterator[list[int]]:
    """Yield shortest paths between ranks, each starting as far as possible from the earlier ones."""
    distances = [_hop_distances(topology, start=0)]
    start = int(np.argmax(distances[0][: topology.ranks]))
    # Farthest-point traversal: each start is the rank farthest from all earlier ones.
    for _ in range(LONG_PATHS):
        distances.append(_hop_distances(topology, start))
        yield _longest_path(topology, start, distances[-1])
        start = int(np.argmax(np.min(distances[1:], axis=0)[: topology.ranks]))


def _longest_path(topology: Topology, start: int, distance: NDArray[np.int64]) -> list[int]:
    """Return a shortest path from a rank to the farthest rank that it reaches, backwards."""
    rank_distance = distance[: topology.ranks]
    node = int(np.argmax(np.where(rank_distance < topology.nodes, rank_distance, -1)))  # unreached ranks have `nodes`
    path = [node]
    while node != start:
        predecessors = topology.link_src[topology.link_dst == node]
        node = int(predecessors[np.argmin(distance[predecessors])])
        path.append(node)
    return path


def _hop_distances(topology: Topology, start: int) -> NDArray[np.int64]:
    """Return the distance of every node in links; the number of nodes if it cannot be reached."""
    distance = np.full(topology.nodes, topology.nodes, np.int64)
    distance[start], level = 0, 0
    while True:
        heads = topology.link_dst[distance[topology.link_src] == level]
        heads = heads[distance[heads] == topology.nodes]
        if not heads.size:
            return distance
        level += 1
        distance[heads] = level


def _crossing_time(topology: Topology, side: Side, demand: Floats, capacity: Floats) -> float:
    """Return the weight that must leave a set of nodes over the capacity out of it."""
    is_inside = side[: topology.ranks].astype(np.float64)
    capacity_out = float(capacity[side[topology.link_src] & ~side[topology.link_dst]].sum())
    return float(row_dot(is_inside, row_dot(demand, 1 - is_inside))) / capacity_out if capacity_out else 0.0


def reachable_nodes(topology: Topology, start: Iterable[int], usable_links: Side, back: bool = False) -> Side:
    """Return the nodes reached from `start` over `usable_links` (with `back`: those that reach it). O(links) per
    layer."""
    tail, head = topology.link_src[usable_links], topology.link_dst[usable_links]
    side = np.zeros(topology.nodes, bool)
    side[list(start)] = True
    return reached_nodes(side, head, tail) if back else reached_nodes(side, tail, head)


def distinct_sides(sides: Iterable[Side]) -> list[Side]:
    """Drop repeated sets of nodes."""
    return list({side.tobytes(): side for side in sides}.values())
