"""Propose splits of a machine into nested groups: by places, by fast links, and with levels in any cyclic order.

The input is a machine and the members of a collective; the output is splits (split.py): levels of groups within groups.

    by places   "host0/gpu3": one level per component of the names that makes several groups
    by links    ranks connected by links of at least some bandwidth (NVLink islands), or around one switch
    rotations   for equal groups the levels may be exchanged: 4 boxes of 8 GPUs is also 8 rails of 4 GPUs

Any subset of these levels is a split, too: few levels give few steps, many levels fit the widths of links better.
`find_splits` lists the distinct ones: those by places, then those by links.

Fan-ins joined by x stand innermost first (the option `groups`: 8x4 is four groups of eight), those joined by *
outermost first (as groups print: 4*8).

Example: 2 hosts, each of 2 sockets of 4 GPUs. Splits: 2*(2*4), 2*8 (hosts only), 4*4 (sockets only).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from antiphon.core.columns import Bools
from antiphon.core.topology import Topology
from antiphon.planners.compose.split import Split
from antiphon.planners.shared.groups import Groups, groups_at, nest_by_labels, parse_fanins, parse_groups

MOST_LEVELS = 5  # partitions by places that are considered, and as many by links; those of one group count, too


def parse_split(text: str, members: Sequence[int]) -> Split:
    """Parse the option `groups`: "8x4", fan-ins with the innermost first, or "3+4", the sizes of unequal groups."""
    if set(text) & set("+*()"):
        return Split(np.array(members), parse_groups(text, len(members), option="groups"))
    return Split(np.array(members), Groups.of_fans(parse_fanins(text, len(members), name="groups")))


def fans_of(groups: Groups) -> list[int]:
    """Return the fan-ins of even groups, the innermost first."""
    fans = []
    while groups.subgroups:
        fans.append(len(groups.subgroups))
        groups = groups.subgroups[0]
    return fans[::-1]


def find_splits(topology: Topology, members: Sequence[int]) -> list[Split]:
    """Return the distinct splits with two levels or more: first by places, then by links; of either, those of the most
    partitions first."""
    distinct: dict[tuple[str, bytes], Split] = {}  # by groups and order of the ranks
    for partitions in (_by_places(topology, members), _by_links(topology, members)):
        for count in range(len(partitions), 0, -1):
            for subset in combinations(partitions, count):
                split = _nest_groups(subset, members)
                if any(group.subgroups for group in split.groups.subgroups):
                    distinct.setdefault((str(split.groups), split.seating.tobytes()), split)
    return list(distinct.values())


def rotate_levels(split: Split) -> list[Split]:
    """Return, for equal groups, every cyclic order of the levels, the split itself first.

    >>> grid = Split(np.arange(6), Groups.of_fans([3, 2]))
    >>> [(str(rotated), rotated.seating.tolist()) for rotated in rotate_levels(grid)]
    [('2*3', [0, 1, 2, 3, 4, 5]), ('3*2', [0, 3, 1, 4, 2, 5])]
    """
    if not split.groups.is_even():
        return [split]
    fans = fans_of(split.groups)
    grid = split.seating.reshape(fans[::-1])  # axis 0: the outermost
    axes = list(range(len(fans)))
    rotations = [split]
    for first in axes[1:]:
        order = axes[first:] + axes[:first]
        rotated_fans = [grid.shape[axis] for axis in order][::-1]
        rotations.append(Split(grid.transpose(order).ravel(), Groups.of_fans(rotated_fans)))
    return rotations


Partition = list[list[int]]  # the members of each group


def _by_places(topology: Topology, members: Sequence[int]) -> list[Partition]:
    """Return the useful partitions by places, one per depth, the largest groups first."""
    deepest = max(topology.places[rank].count("/") for rank in members)
    partitions = [groups_at(topology, members, depth) for depth in range(1, min(deepest, MOST_LEVELS) + 1)]
    return _useful_partitions(partitions, len(members))


def _by_links(topology: Topology, members: Sequence[int]) -> list[Partition]:
    """Return connected components of links of at least some bandwidth, and of switches next to ranks."""
    # Bandwidths in ascending order: each threshold drops the narrower links, which gives nested islands.
    level_of = {bandwidth: i for i, bandwidth in enumerate(sorted({t.bandwidth for t in topology.types}))}
    level = np.array([level_of[t.bandwidth] for t in topology.types])[topology.link_type]  # by link
    partitions = [_connected_groups(topology, members, level >= low) for low in range(1, len(level_of))]
    # Links that end at a rank join the ranks around one switch, but not switches with each other.
    to_rank = (topology.link_src < topology.ranks) | (topology.link_dst < topology.ranks)
    partitions.append(_connected_groups(topology, members, to_rank))
    return _useful_partitions(sorted(partitions, key=len)[:MOST_LEVELS], len(members))


def _connected_groups(topology: Topology, members: Sequence[int], links: Bools) -> Partition:
    """Return the members by connected component of these links."""
    label = np.arange(topology.nodes)
    src, dst = topology.link_src[links], topology.link_dst[links]
    # Label propagation with pointer jumping: each component ends with its smallest node as label.
    while True:
        before = label.copy()
        np.minimum.at(label, dst, label[src])
        np.minimum.at(label, src, label[dst])
        label = label[label]
        if np.array_equal(label, before):
            break
    by_label: dict[int, list[int]] = {}
    for rank in members:
        by_label.setdefault(int(label[rank]), []).append(rank)
    return list(by_label.values())


def _useful_partitions(partitions: Sequence[Partition], ranks: int) -> list[Partition]:
    """Return the partitions with more than one group and fewer than one per rank, by ascending number of groups."""
    useful: list[Partition] = []
    for groups in partitions:
        # A longer partition has smaller groups; equal counts are treated as the same level.
        if 1 < len(groups) < ranks and (not useful or len(groups) > len(useful[-1])):
            useful.append(groups)
    return useful


def _nest_groups(partitions: Sequence[Partition], members: Sequence[int]) -> Split:
    """Return groups within groups: the first partition gives the outermost groups."""
    # by partition, the number of every rank's group
    group_numbers = [{rank: i for i, group in enumerate(groups) for rank in group} for groups in partitions]
    labels = {rank: [numbers[rank] for numbers in group_numbers] for rank in members}
    groups, seating = nest_by_labels(list(members), labels)
    return Split(np.array(seating), groups)
