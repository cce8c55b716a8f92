"""Groups of ranks that are near each other, as their places say: "host0/quad1/gpu5" is in host0, in its quad1."""

from __future__ import annotations

from collections.abc import Sequence

from antiphon.core.topology import Topology


def groups_at(topology: Topology, members: Sequence[int], depth: int) -> list[list[int]]:
    """The ranks by the first `depth` parts of their places, groups and ranks in order of first appearance."""
    found: dict[tuple[str, ...], list[int]] = {}
    for rank in members:
        found.setdefault(tuple(topology.places[rank].split("/")[:depth]), []).append(rank)
    return list(found.values())


def nested_groups(topology: Topology, members: Sequence[int]) -> tuple[list[int], list[int]]:
    """Fan-ins, innermost first, of the levels at which all groups are equally large; and the ranks sorted so that all
    groups are runs. Without such levels: the number of ranks alone."""
    deepest = max(topology.places[rank].count("/") for rank in members)
    seating = list(members)
    sizes: list[int] = []  # of groups, from the innermost
    for depth in range(deepest, 0, -1):
        seating = [rank for group in groups_at(topology, seating, depth) for rank in group]
        lengths = {len(group) for group in groups_at(topology, seating, depth)}
        if len(lengths) == 1 and (size := lengths.pop()) > (sizes[-1] if sizes else 1):
            sizes.append(size)
    if not sizes or sizes[-1] < len(members):
        sizes.append(len(members))
    return [size // below for size, below in zip(sizes, [1, *sizes[:-1]], strict=True)], seating


def hosts(topology: Topology, members: Sequence[int]) -> list[list[int]]:
    """The ranks by host: by the part of their places named host..., box... or server..., else the last but one."""
    parts = [topology.places[rank].split("/") for rank in members]
    for depth in range(1, max(map(len, parts)) + 1):
        if all(len(p) >= depth and p[depth - 1].startswith(("host", "box", "server", "node")) for p in parts):
            return groups_at(topology, members, depth)
    return groups_at(topology, members, max(max(map(len, parts)) - 1, 0))
