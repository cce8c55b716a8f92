"""Find a ring over direct links: a cycle that visits every member once (a Hamiltonian cycle).

Input: a machine and its members. Output of `widest_cycle`: the members in the order of the cycle whose narrowest link
is as wide as can be found, or [] if there is none. `search_cycle` is the search for one cycle in a given network.

Finding a Hamiltonian cycle is NP-hard in general, but machines are regular. Bandwidths are tried from the widest down,
each time with the links that have at least that much. First the members in the given order; then a depth-first search
that extends a path to the neighbour with the fewest free neighbours (Warnsdorff's rule), at most MOST_EXTENSIONS times.
If the search gives up, the method of factors.py follows, which suits grids. It covers the members by disjoint cycles (a
2-factor); where opposite sides of a square are on two cycles, the other two sides replace them and so join the cycles.

A bipartite machine with sides of different size has no cycle at all, which is checked first: a grid of 3 x 3 has five
black and four white ranks, and a cycle alternates.

Example: a grid of 2 x 3, ranks 0 1 2 above 3 4 5. From 0 the neighbours 1 and 3 have 2 and 1 free neighbours: on to 3,
which would otherwise become a dead end. Then 4 (its only one), then 1 or 5, which have one free neighbour each: the
lower number, 1, leads to 0 3 4 1 2 5, which does not close. The search backs up to 4 and finds 0 3 4 5 2 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from antiphon.core.topology import Topology
from antiphon.planners.rings.factors import bipartite_sides, joined_factors

MOST_EXTENSIONS = 20_000  # extensions of a partial cycle before the search gives up

Pair = tuple[int, int]  # from rank, to rank
# (rank, neighbour, number of the neighbour's free neighbours) -> key; the neighbour with the greatest key is tried
# first
Preference = Callable[[int, int, int], tuple[float, ...]]


def link_table(topology: Topology, members: tuple[int, ...]) -> dict[Pair, int]:
    """Return the widest direct link between any two of these ranks. O(links log links).

    Of several links of the greatest bandwidth, those of the last type in `topology.types` count, of these the first:
    any fixed rule would do.
    """
    inside = np.zeros(topology.nodes, bool)
    inside[list(members)] = True
    link = np.flatnonzero(inside[topology.link_src] & inside[topology.link_dst])
    types_by_width = sorted(range(len(topology.types)), key=lambda i: topology.types[i].bandwidth)
    width_order = np.empty(len(types_by_width), np.int64)  # by type, its position in types_by_width
    width_order[types_by_width] = np.arange(len(types_by_width))
    link = link[np.lexsort((-link, width_order[topology.link_type[link]]))]  # the last of a pair overwrites the others
    pairs = zip(topology.link_src[link].tolist(), topology.link_dst[link].tolist(), strict=True)
    return dict(zip(pairs, link.tolist(), strict=True))


def widest_cycle(topology: Topology, members: tuple[int, ...]) -> tuple[list[int], bool]:
    """Return a cycle through all members over direct links whose narrowest link is as wide as possible, or [].

    Also return whether the search was complete, so that [] proves that there is none. Links may be one-way.
    """
    table = link_table(topology, members)
    bandwidth_of_type = [kind.bandwidth for kind in topology.types]
    width = dict(
        zip(table, (bandwidth_of_type[kind] for kind in topology.link_type[list(table.values())].tolist()), strict=True)
    )
    consecutive_pairs = list(zip(members, [*members[1:], members[0]], strict=True))
    number = {rank: i for i, rank in enumerate(members)}
    bipartition = bipartite_sides([(number[a], number[b]) for a, b in table], len(members))
    if bipartition is not None:
        side, is_connected = bipartition
        # a cycle alternates between the sides, so they must have equal size; only a connected network has unique sides
        if is_connected and 2 * sum(side) != len(members):
            return [], True
    complete = True
    # thresholds from the widest down: the first one with a cycle gives the widest narrowest link
    for min_width in sorted(set(width.values()), reverse=True):
        wide_pairs = [pair for pair in table if width[pair] >= min_width]
        if all(width.get(pair, 0) >= min_width for pair in consecutive_pairs):
            return list(members), complete
        # next to the neighbour with the fewest free neighbours of its own; of equals, the lowest number
        cycle, finished = search_cycle(neighbours(wide_pairs, members), members, lambda _, other, free: (-free, -other))
        if not finished:
            cycle = _cycle_by_factors(wide_pairs, members)
        complete &= finished
        if cycle:
            return cycle, complete
    return [], complete


def _cycle_by_factors(pairs: Iterable[Pair], members: tuple[int, ...]) -> list[int]:
    """Return a cycle by joining the cycles of a 2-factor (factors.py), over links that have a link back; or []."""
    linked_pairs, number = set(pairs), {rank: i for i, rank in enumerate(members)}
    edges = [
        (number[a], number[b]) for a, b in sorted(linked_pairs) if number[a] < number[b] and (b, a) in linked_pairs
    ]
    return [members[i] for cycle in joined_factors(edges, len(members), count=1) for i in cycle] if edges else []


def neighbours(pairs: Iterable[Pair], members: tuple[int, ...]) -> dict[int, list[int]]:
    """Return the ranks that each member has a link to, ascending."""
    near: dict[int, list[int]] = {rank: [] for rank in members}
    for a, b in pairs:
        near[a].append(b)
    return {rank: sorted(ranks) for rank, ranks in near.items()}


def search_cycle(
    near: dict[int, list[int]], members: tuple[int, ...], preference: Preference
) -> tuple[list[int], bool]:
    """Return a cycle through all members, or [], and whether the search was complete. `near`: as of `neighbours`.

    Depth-first with at most MOST_EXTENSIONS extensions, to the free neighbour with the greatest `preference` first. A
    rank is free if the partial cycle has not visited it.
    """
    start = members[0]
    if any(not ranks for ranks in near.values()):
        return [], True
    # neighbours and free ranks as bit masks: free neighbours are counted by one AND
    bits = {rank: sum(1 << other for other in ranks) for rank, ranks in near.items()}
    path, free = [start], sum(1 << rank for rank in members) & ~(1 << start)

    def list_free(rank: int) -> list[int]:
        """Return the free neighbours of a rank, the best last."""
        candidates = [other for other in near[rank] if free >> other & 1]
        keyed = [(preference(rank, other, (bits[other] & free).bit_count()), other) for other in candidates]
        return [other for _, other in sorted(keyed)]

    # stack[i]: ranks still to be tried after the first i + 1 of the path
    stack = [list_free(start)]
    extensions = 0
    while stack:
        if len(path) == len(members) and start in near[path[-1]]:
            return path, True
        # extend the path, or else backtrack and free its last rank
        if len(path) < len(members) and stack[-1]:
            extensions += 1
            if extensions > MOST_EXTENSIONS:
                return [], False
            path.append(stack[-1].pop())
            free &= ~(1 << path[-1])
            stack.append(list_free(path[-1]))
        else:
            stack.pop()
            free |= 1 << path.pop()
    return [], True
