"""Where data may be combined or copied: ranks, and switches that can, where a collective has use for it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from antiphon.core.collective import Collective
from antiphon.core.columns import Bools
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


def places_of(topology: Topology, collective: Collective) -> Bools:
    """Per node whether data may be combined or copied there: at ranks, and at switches that help."""
    places = np.arange(topology.nodes) < topology.ranks
    places[list(abilities_of(topology, collective))] = True
    return places


def forwarding(topology: Topology) -> Topology:
    """The same machine, its switches doing no more than forward."""
    return replace(topology, abilities=()) if topology.abilities else topology


def aside(topology: Topology, helps: dict[int, Ability]) -> set[int]:
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
