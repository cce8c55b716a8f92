"""Into which groups a machine may be split: as its places say, as its fast links do, in every order of dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from antiphon.core.columns import Bools
from antiphon.core.topology import Topology
from antiphon.planners.compose.split import Split
from antiphon.planners.shared.groups import Groups, given_fans, given_groups, groups_at

MOST_LEVELS = 5  # of places that are told apart


def given_split(text: str, members: Sequence[int]) -> Split:
    """The option `groups`: "8x4", the innermost first, or "3+4"."""
    if set(text) & set("+*()"):
        return Split(np.array(members), given_groups(text, len(members)))
    return Split(np.array(members), Groups.of_fans(given_fans(text, len(members), "groups")))


def fans_of(groups: Groups) -> list[int]:
    """The way back, of even groups: the innermost first."""
    fans = []
    while groups.parts:
        fans.append(len(groups.parts))
        groups = groups.parts[0]
    return fans[::-1]


def splits(topology: Topology, members: Sequence[int]) -> list[Split]:
    """Those with two levels or more, the one with the most levels first; each once."""
    by_name: dict[tuple[str, bytes], Split] = {}
    for partitions in (_by_places(topology, members), _by_links(topology, members)):
        for count in range(len(partitions), 0, -1):
            for chosen in combinations(partitions, count):
                split = _nested(chosen, members)
                if any(group.parts for group in split.groups.parts):
                    by_name.setdefault((str(split.groups), split.seating.tobytes()), split)
    return list(by_name.values())


def turned(split: Split) -> list[Split]:
    """Of equal groups every order of levels that begins at another one and goes on around; the split itself first.

    >>> grid = Split(np.arange(6), Groups.of_fans([3, 2]))
    >>> [(str(one), one.seating.tolist()) for one in turned(grid)]
    [('2*3', [0, 1, 2, 3, 4, 5]), ('3*2', [0, 3, 1, 4, 2, 5])]
    """
    if not split.groups.is_even():
        return [split]
    fans = fans_of(split.groups)
    grid = split.seating.reshape(fans[::-1])  # axis 0: the outermost
    axes = list(range(len(fans)))
    out = []
    for first in axes:
        order = axes[first:] + axes[:first]
        turned_fans = [grid.shape[axis] for axis in order][::-1]
        out.append(Split(grid.transpose(order).ravel(), Groups.of_fans(turned_fans)))
    return out


Partition = list[list[int]]


def _by_places(topology: Topology, members: Sequence[int]) -> list[Partition]:
    """Groups at every depth of the places at which there are several, and not only single ranks: the widest first."""
    deepest = max(topology.places[rank].count("/") for rank in members)
    partitions = [groups_at(topology, members, depth) for depth in range(1, min(deepest, MOST_LEVELS) + 1)]
    return _telling(partitions, len(members))


def _by_links(topology: Topology, members: Sequence[int]) -> list[Partition]:
    """What hangs together by links of at least some bandwidth, or around one switch."""
    rank_of = {kind: i for i, kind in enumerate(sorted({t.bandwidth for t in topology.types}))}
    width = np.array([rank_of[t.bandwidth] for t in topology.types])[topology.link_type]
    partitions = [_together(topology, members, width >= low) for low in range(1, len(rank_of))]
    to_rank = (topology.link_src < topology.ranks) | (topology.link_dst < topology.ranks)
    partitions.append(_together(topology, members, to_rank))
    return _telling(sorted(partitions, key=len)[:MOST_LEVELS], len(members))


def _together(topology: Topology, members: Sequence[int], links: Bools) -> Partition:
    label = np.arange(topology.nodes)
    src, dst = topology.link_src[links], topology.link_dst[links]
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


def _telling(partitions: Sequence[Partition], ranks: int) -> list[Partition]:
    """Those into several groups that are not all single ranks, each once, finer ones later."""
    chosen: list[Partition] = []
    for groups in partitions:
        if 1 < len(groups) < ranks and (not chosen or len(groups) > len(chosen[-1])):
            chosen.append(groups)
    return chosen


def _nested(partitions: Sequence[Partition], members: Sequence[int]) -> Split:
    """Groups within groups, the widest first."""
    number = [{rank: i for i, group in enumerate(groups) for rank in group} for groups in partitions]

    def tree(ranks: list[int], depth: int) -> tuple[Groups, list[int]]:
        if depth == len(number) or len(ranks) == 1:
            return Groups.ring(len(ranks)), ranks
        inside: dict[int, list[int]] = {}
        for rank in ranks:
            inside.setdefault(number[depth][rank], []).append(rank)
        below = [tree(ranks_inside, depth + 1) for ranks_inside in inside.values()]
        return Groups.of_parts([groups for groups, _ in below]), [rank for _, order in below for rank in order]

    groups, seating = tree(list(members), 0)
    return Split(np.array(seating), groups)
