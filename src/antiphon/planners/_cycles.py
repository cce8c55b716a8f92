"""Hamiltonian cycles: the rings that the links of a machine hold."""

from __future__ import annotations

from fractions import Fraction

from antiphon.core.topology import Topology

TRIES = 200_000  # extensions of a partial cycle before the search gives up


def link_table(topology: Topology, members: tuple[int, ...]) -> dict[tuple[int, int], int]:
    """The widest direct link between any two of these ranks (the first of equals)."""
    inside = set(members)
    table: dict[tuple[int, int], int] = {}
    columns = (topology.link_src.tolist(), topology.link_dst.tolist())
    for link, pair in enumerate(zip(*columns, strict=True)):
        known = table.get(pair)
        if pair[0] in inside and pair[1] in inside and (
            known is None or topology.bandwidth(link) > topology.bandwidth(known)
        ):  # fmt: skip
            table[pair] = link
    return table


def widest_cycle(topology: Topology, members: tuple[int, ...]) -> tuple[list[int], bool]:
    """A cycle through all members over direct links whose narrowest link is as wide as found, or [].

    Also says whether the search was complete. Widths are tried from the greatest down; backtracking, bounded
    by TRIES for each width; a pair of members with no link back still counts as linked one way.
    """
    table = link_table(topology, members)
    complete = True
    for width in sorted({topology.bandwidth(link) for link in table.values()}, reverse=True):
        found, finished = _cycle(_neighbours(topology, table, members, width), members)
        complete &= finished
        if found:
            return found, complete
    return [], complete


def _neighbours(
    topology: Topology, table: dict[tuple[int, int], int], members: tuple[int, ...], width: Fraction
) -> dict[int, list[int]]:
    near: dict[int, list[int]] = {rank: [] for rank in members}
    for (a, b), link in table.items():
        if topology.bandwidth(link) >= width:
            near[a].append(b)
    return {rank: sorted(ranks) for rank, ranks in near.items()}


def _cycle(near: dict[int, list[int]], members: tuple[int, ...]) -> tuple[list[int], bool]:
    """Depth-first: go on to the free neighbour with the fewest free neighbours of its own."""
    start = members[0]
    if any(not ranks for ranks in near.values()):
        return [], True
    path, used = [start], {start}
    choices = [_choices(near, start, used)]
    tries = 0
    while choices:
        if len(path) == len(members) and start in near[path[-1]]:
            return path, True
        if len(path) < len(members) and choices[-1]:
            tries += 1
            if tries > TRIES:
                return [], False
            path.append(choices[-1].pop())
            used.add(path[-1])
            choices.append(_choices(near, path[-1], used))
        else:
            choices.pop()
            used.discard(path.pop())
    return [], True


def _choices(near: dict[int, list[int]], rank: int, used: set[int]) -> list[int]:
    """Free neighbours, the best last: fewest free neighbours first, then the lowest number."""
    free = [(sum(x not in used for x in near[other]), other) for other in near[rank] if other not in used]
    return [other for _, other in sorted(free, reverse=True)]
