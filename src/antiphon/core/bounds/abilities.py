"""Nodes where data may be combined or copied: all ranks, and switches with that ability that the collective can use.

Bounds depend on these nodes. If switches only forward, a byte that two ranks below a switch need crosses the link into
the switch twice; if the switch multicasts, once. So a switch that helps counts like a rank: a partition must put it
into one of its parts, and its loads need not be conserved in the linear program.

Example: 8 GPUs under an NVSwitch that reduces and multicasts (NVLS), allreduce of N bytes. Without help every link
carries 2 * 7/8 N each way. With it, each GPU is responsible for a share of N/8. It sends its contributions to the 7
other shares and the result of its own: 7/8 + 1/8 = 1 N; as much comes back. With `own` (below) its contribution to its
own share crosses the link, too: (8 + 1)/8 N each way. See `time_in_switches`.

Two details of an ability matter here. `own`: a rank's own contribution to the reduction that it receives crosses its
link to the switch, too (and the copy of its own multicast comes back). `through`: the switch can combine data on their
way to other switches.

In all of this file, `abilities` are those switches that help, with their abilities (`abilities_of`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np

from antiphon.core.bounds.network import Network
from antiphon.core.bounds.partition import tie_to_members
from antiphon.core.collective import Collective
from antiphon.core.topology import Ability, Topology


def abilities_of(topology: Topology, collective: Collective) -> dict[int, Ability]:
    """Return the abilities of switches that help this collective, by switch. O(links).

    A reduction helps if data are combined and several links lead into the switch; a multicast helps if two ranks want
    the same block and several links lead out.
    """
    if not topology.abilities:
        return {}
    pairs = np.unique(np.stack([topology.link_src, topology.link_dst], axis=1), axis=0)
    into, out = (np.bincount(pairs[:, side], minlength=topology.nodes) for side in (1, 0))
    is_wanted_twice, helping = bool(np.any(np.bincount(collective.relation.post_block) > 1)), {}
    for node in range(topology.ranks, topology.nodes):
        ability = topology.ability(node)
        # A switch can only help where several links meet and something leaves again.
        reduces = ability.reduce and collective.combining and into[node] > 1 and out[node] > 0
        multicasts = ability.multicast and is_wanted_twice and out[node] > 1 and into[node] > 0
        if reduces or multicasts:
            helping[node] = replace(ability, reduce=bool(reduces), multicast=bool(multicasts))
    return helping


def strip_abilities(topology: Topology) -> Topology:
    """Return the same machine with switches that only forward."""
    return replace(topology, abilities=()) if topology.abilities else topology


def switches_with_own_data(topology: Topology, abilities: Mapping[int, Ability]) -> set[int]:
    """Return the switches whose links surely carry a rank's own data as well.

    Own data are the destination's own contribution to a reduction, and the copy that the source of a multicast keeps.
    The switches have the ability `own`, not `through` (see `_crossing_share`), and links only with ranks, with each in
    both directions.
    """
    into: dict[int, set[int]] = {
        node: set() for node, ability in abilities.items() if ability.own and not ability.through
    }
    out: dict[int, set[int]] = {node: set() for node in into}
    for a, b in zip(topology.link_src.tolist(), topology.link_dst.tolist(), strict=True):
        if a in out:
            out[a].add(b)
        if b in into:
            into[b].add(a)
    return {node for node in into if into[node] == out[node] and max(into[node]) < topology.ranks}


# ---- parts for a partition, and what attains it ----


def switches_to_assign(abilities: Mapping[int, Ability], direction: str) -> list[int]:
    """Return the switches that a partition must assign to a part, as it does ranks.

    `direction` "out" (the capacity out of the parts is counted): those that multicast, as one copy that leaves a part
    could reach several parts through them. "in": those that reduce, likewise. "both": all.
    """
    counted = {"out": ("multicast",), "in": ("reduce",)}.get(direction, ("multicast", "reduce"))
    return sorted(
        node for node, ability in abilities.items() if any(getattr(ability, operation) for operation in counted)
    )


def assign_to_parts(network: Network, switches: Iterable[int], part_sets: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return the parts; each of these switches that is in no part joins that of the rank with the widest connection to
    it."""
    extended = [list(part_nodes) for part_nodes in part_sets]
    part_of = {node: part_nodes for part_nodes in extended for node in part_nodes}
    missing = sorted(set(switches) - part_of.keys())
    ranks = list(range(network.ranks))
    # tie_to_members returns positions in its list of members; in `ranks` the position is the rank
    for switch, rank in (tie_to_members(network, ranks, missing) if missing else {}).items():
        part_of[rank].append(switch)
    return extended


def members_alone(
    topology: Topology, collective: Collective, network: Network, abilities: Mapping[int, Ability]
) -> list[list[int]] | None:
    """Return one part per member, with each other rank added to the member with the widest connection to it.

    The switches of `switches_with_own_data` are in no part. None if there are none, or fewer than three members: the
    proof for partitions that count both directions (`Partition.times`) takes three parts or more.
    """
    members, left_out = collective.members, switches_with_own_data(topology, abilities)
    if not left_out or len(members) < 3:
        return None
    non_members = sorted(set(range(topology.ranks)) - set(members))
    tied = tie_to_members(network, list(members), non_members) if non_members else {}
    # tied: rank -> position of its member in `members`
    part_sets = [[member, *(rank for rank in non_members if tied[rank] == i)] for i, member in enumerate(members)]
    return assign_to_parts(network, abilities.keys() - left_out, part_sets)


def time_in_switches(
    topology: Topology, collective: Collective, abilities: Mapping[int, Ability]
) -> tuple[Fraction, str] | None:
    """Return the least time of an allreduce that combines and copies in switches, and a text that says how.

    The time is in units of weight / (bytes per second): for all the blocks' weight, not for nbytes.

    None if no switch can do it. Shared limits are not considered. Option 1: one switch joins all members. Each member
    has an equal share combined there, and the switch copies the result to all. Option 2: each box has a switch that
    combines a share per member; the i-th members of all boxes combine their results in a switch between the boxes
    (`through`), and the switches of the boxes copy them.
    """
    weight, members = int(collective.weights[0]), collective.members  # an allreduce has one block
    cables = _find_cables(topology, abilities)
    # switches without a limit on joints per step
    capable = {
        s: ability for s, ability in abilities.items() if ability.reduce and ability.multicast and not ability.at_once
    }
    joined = {switch: [rank for rank in members if (rank, switch) in cables] for switch in capable}
    options = []
    # Option 1: one switch joins all members.
    for switch, ability in capable.items():
        if len(joined[switch]) == len(members):
            slowest = min(cables[rank, switch] for rank in members)
            how = "attained where every rank combines its share in the switch, which copies it to all"
            options.append((_crossing_share(ability, len(members)) * weight / slowest, how))
    # Option 2: a switch per box, and switches between the boxes for the i-th rank of each box.
    boxes = {switch: joined[switch] for switch, ability in capable.items() if not ability.through and joined[switch]}
    times = _times_between_boxes(boxes, {s: ranks for s, ranks in joined.items() if capable[s].through}, cables)
    if times and sorted(rank for ranks in boxes.values() for rank in ranks) == list(members):
        times += [_crossing_share(capable[s], len(boxes[s])) / cables[rank, s] for s in boxes for rank in boxes[s]]
        how = "attained where the switches of boxes combine and copy, and one between them combines what they have"
        options.append((max(times) * weight, how))
    return min(options, default=None)


def _times_between_boxes(
    boxes: Mapping[int, list[int]], joined: Mapping[int, list[int]], cables: Mapping[tuple[int, int], Fraction]
) -> list[Fraction]:
    """Return the times between boxes, one per cable of a rank: the i-th ranks of all boxes need a switch that joins
    them.

    `boxes`: per switch of a box the members in it. `joined`: per switch between boxes the members with a cable to it.
    `cables`: of `_find_cables`. Empty if boxes differ in size or a switch between them is missing.
    """
    if len(boxes) < 2 or len({len(ranks) for ranks in boxes.values()}) > 1:
        return []
    times = []
    box_size = len(next(iter(boxes.values())))
    for counterparts in zip(*boxes.values(), strict=True):  # the i-th ranks of all boxes
        hub = next((switch for switch, ranks in joined.items() if set(counterparts) <= set(ranks)), None)
        if hub is None:
            return []
        # each rank has one share of 1 / box_size of the data, combined within its box
        times += [1 / (cables[rank, hub] * box_size) for rank in counterparts]
    return times


def _crossing_share(ability: Ability, ranks: int) -> Fraction:
    """Return the fraction of all data that each link of a switch carries each way, if every rank has an equal share
    combined there and copied to the others."""
    # A rank's operand of its own share, or its copy of the result. With `through` one joint leads from all ranks to
    # all: every operand and every result crosses once, a rank's own among them, and nothing is added.
    own_share = int(ability.own and not ability.through)
    return Fraction(ranks + own_share, ranks)


def _find_cables(topology: Topology, abilities: Mapping[int, Ability]) -> dict[tuple[int, int], Fraction]:
    """Return the capacity of each (rank, switch that helps) pair joined by exactly one link each way: the narrower of
    the two."""
    links_between: dict[tuple[int, int], list[int]] = {}
    for link, ends in enumerate(zip(topology.link_src.tolist(), topology.link_dst.tolist(), strict=True)):
        if abilities.keys() & set(ends):
            links_between.setdefault(ends, []).append(link)
    return {
        (a, b): min(topology.bandwidth(forward[0]), topology.bandwidth(links_between[b, a][0]))
        for (a, b), forward in links_between.items()
        if b in abilities and a < topology.ranks and len(forward) == len(links_between.get((b, a), ())) == 1
    }
