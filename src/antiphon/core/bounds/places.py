"""Where data may be combined or copied: ranks, and switches that can, where a collective has use for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np

from antiphon.core.bounds.network import Network
from antiphon.core.bounds.partition import strongest
from antiphon.core.collective import Collective
from antiphon.core.topology import Ability, Topology


def wanted_twice(collective: Collective) -> bool:
    """Whether some block is wanted by several ranks: else nobody has use for a multicast."""
    return bool(np.any(np.bincount(collective.relation.post_block) > 1))


def abilities_of(topology: Topology, collective: Collective) -> dict[int, Ability]:
    """What the switches can do that helps this collective, of those that can: nothing where no data are combined and
    no block is wanted by two, nor at a switch that several links neither lead into nor out of. O(links)."""
    if not topology.abilities:
        return {}
    pairs = np.unique(np.stack([topology.link_src, topology.link_dst], axis=1), axis=0)
    into, out = (np.bincount(pairs[:, side], minlength=topology.nodes) for side in (1, 0))
    twice, found = wanted_twice(collective), {}
    for node in range(topology.ranks, topology.nodes):
        mine = topology.ability(node)
        reduces = mine.reduce and collective.combining and into[node] > 1 and out[node] > 0
        multicasts = mine.multicast and twice and out[node] > 1 and into[node] > 0
        if reduces or multicasts:
            found[node] = replace(mine, reduce=bool(reduces), multicast=bool(multicasts))
    return found


def forwarding(topology: Topology) -> Topology:
    """The same machine, its switches doing no more than forward."""
    return replace(topology, abilities=()) if topology.abilities else topology


def aside(topology: Topology, helps: Mapping[int, Ability]) -> set[int]:
    """Switches at which what the destination of a reduction has itself, and the copy that the source of a multicast
    keeps, surely cross: `own`, not `through`, and joined with ranks alone, with each of them both ways."""
    into: dict[int, set[int]] = {node: set() for node, mine in helps.items() if mine.own and not mine.through}
    out: dict[int, set[int]] = {node: set() for node in into}
    for a, b in zip(topology.link_src.tolist(), topology.link_dst.tolist(), strict=True):
        if a in out:
            out[a].add(b)
        if b in into:
            into[b].add(a)
    return {node for node in into if into[node] == out[node] and max(into[node]) < topology.ranks}


# ---- parts for a partition, and what attains it ----


def places_for(helps: Mapping[int, Ability], direction: str) -> list[int]:
    """The switches that a partition has to take for places: of what leaves the parts, those that multicast; of what
    enters them, those that reduce; of both together, all that help."""
    counted = {"out": ("multicast",), "in": ("reduce",)}.get(direction, ("multicast", "reduce"))
    return sorted(node for node, mine in helps.items() if any(getattr(mine, what) for what in counted))


def placed(network: Network, places: Iterable[int], parts: Sequence[Sequence[int]]) -> list[list[int]]:
    """The parts, and the places that are in none yet with the rank that they are tied to best."""
    found = [list(part) for part in parts]
    part_of = {node: part for part in found for node in part}
    missing = sorted(set(places) - part_of.keys())
    ranks = list(range(network.ranks))
    for switch, rank in (strongest(network, ranks, missing) if missing else {}).items():
        part_of[rank].append(switch)
    return found


def alone(
    topology: Topology, collective: Collective, network: Network, helps: Mapping[int, Ability]
) -> list[list[int]] | None:
    """Every member alone, other ranks with the member that they are tied to best, and in no part the switches aside;
    None where there are none of these, or fewer than three members."""
    members, left = collective.members, aside(topology, helps)
    if not left or len(members) < 3:
        return None
    others = sorted(set(range(topology.ranks)) - set(members))
    tied = strongest(network, list(members), others) if others else {}
    parts = [[member, *(rank for rank in others if tied[rank] == i)] for i, member in enumerate(members)]
    return placed(network, helps.keys() - left, parts)


def in_a_switch(topology: Topology, collective: Collective, helps: Mapping[int, Ability]) -> Fraction | None:
    """The least time (weight over bytes per second) in which one switch combines for every member an equal share of all
    data and copies it to all others; None where no switch joins them all by a link each way, or can do so."""
    members, times = collective.members, []
    for switch, mine in helps.items():
        links = [_links(topology, *ends) for member in members for ends in ((member, switch), (switch, member))]
        if mine.reduce and mine.multicast and not mine.at_once and all(len(found) == 1 for found in links):
            much = Fraction(len(members) + (mine.own and not mine.through), len(members))
            slowest = min(topology.bandwidth(found[0]) for found in links)
            times.append(much * int(collective.weights[0]) / slowest)
    return min(times, default=None)


def _links(topology: Topology, tail: int, head: int) -> list[int]:
    found: list[int] = np.flatnonzero((topology.link_src == tail) & (topology.link_dst == head)).tolist()
    return found
