"""Joints: rows of a schedule that a switch turns into one multicast or one reduction, and the links that they load.

Kinds: a multicast has one source and several destinations; a reduction several sources and one destination; THROUGH has
several of both (the switch reduces and multicasts the result at once). All rows of a joint belong to one step, and a
link that several of their routes share carries the data once. See docs/schedule.md, "Joints"; `verify` checks joints
with independent code.

Example: a multicast 0 -> {1, 2} through switch s has the rows 0 -> 1 (links 0s, s1) and 0 -> 2 (links 0s, s2). Without
the joint link 0s would carry the data twice; with it, the joint's tree is the links 0s, s1, s2, each once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from antiphon.core.columns import (
    Bools,
    Longs,
    are_among,
    concat_ranges,
    distinct,
    index_in_run,
    order_of,
    pointers,
)
from antiphon.core.routes import Resolved
from antiphon.core.schedule import Schedule, number_joints
from antiphon.core.topology import Topology
from antiphon.errors import Unsupported

MULTICAST, REDUCTION, THROUGH = 0, 1, 2  # kinds of joints


@dataclass(frozen=True, eq=False)
class Joints:
    """The joints with at least two rows, numbered 0, 1, ... in the order of their numbers in the schedule."""

    of_row: Longs  # per row of the schedule its joint; -1: the row belongs to none
    row: Longs  # the rows of joint j are row[ptr[j]:ptr[j + 1]], ascending
    ptr: Longs
    sources: Longs  # per joint the number of sending ranks
    destinations: Longs  # per joint the number of receiving ranks

    def __len__(self) -> int:
        return len(self.sources)

    @cached_property
    def kind(self) -> Longs:
        """MULTICAST, REDUCTION or THROUGH, per joint."""
        return np.where(self.sources == 1, MULTICAST, np.where(self.destinations == 1, REDUCTION, THROUGH))

    @property
    def first(self) -> Longs:
        """The first row of each joint."""
        return self.row[self.ptr[:-1]]


@dataclass(frozen=True, eq=False)
class Trees:
    """The links that joints load, each once, as ordered (joint, link) pairs.

    A switch with the ability `own` lets the destination's own contribution to a reduction, and the copy that the source
    of a multicast keeps, cross a link between rank and switch, although no row's route takes that link.
    """

    joint: Longs
    link: Longs
    own: Bools  # whether only such own data load the link


def joints_of(schedule: Schedule) -> Joints | None:
    """Return the joints of a schedule, or None if every row stands alone. One sort of the rows in joints.

    >>> from antiphon.core.example import of_rows
    >>> rows = [(0, 0, 0, 1, 0), (0, 0, 0, 2, 0), (1, 0, 1, 3, 0)]  # step, chunk, src, dst, op
    >>> joints = joints_of(of_rows("broadcast", 4, rows, roots=(0,), joint=[5, 5, -1]))
    >>> joints.of_row.tolist(), joints.row.tolist(), joints.ptr.tolist()
    ([0, 0, -1], [0, 1], [0, 2])
    >>> joints.sources.tolist(), joints.destinations.tolist()
    ([1], [2])
    """
    if schedule.joint is None:
        return None
    joint_rows, number = number_joints(schedule.joint)
    count = int(number.max(initial=-1)) + 1
    if not count:
        return None
    of_row = np.full(schedule.transfers, -1, np.int64)
    of_row[joint_rows] = number
    order = order_of(number, bound=count)
    ranks = schedule.collective.ranks
    # Count the distinct ranks per joint, not its rows: rows may share a source or a destination.
    sources, destinations = (
        np.bincount(distinct(number * ranks + end[joint_rows]) // ranks, minlength=count)
        for end in (schedule.src, schedule.dst)
    )
    ptr = pointers(number[order], count)
    return Joints(of_row=of_row, row=joint_rows[order], ptr=ptr, sources=sources, destinations=destinations)


def trees(joints: Joints, resolved: Resolved, topology: Topology) -> Trees:
    """Return the links that each joint loads.

    `resolved`: the path of every row: route r has the links `table.links[table.ptr[r]:table.ptr[r + 1]]` in order; the
    row stays within a rank if its route is -1. O(n log n) in rows times links per route.
    """
    route = resolved.route[joints.row]
    between_ranks = route >= 0
    route, joint = route[between_ranks], joints.of_row[joints.row[between_ranks]]
    begin = resolved.table.ptr[route]
    hops = resolved.table.ptr[route + 1] - begin
    # A link that several routes of a joint share carries the data once: distinct keys joint * topology.links + link.
    routed = distinct(np.repeat(joint, hops) * topology.links + resolved.table.links[concat_ranges(begin, hops)])
    own = distinct(_own_crossings(joints, resolved, topology))
    own = own[~are_among(own, routed)]  # a crossing that some route makes anyway costs nothing more
    keys = np.concatenate([routed, own])
    order = order_of(keys, bound=len(joints) * max(topology.links, 1))
    # in `keys` the links of own data come last, from position len(routed) on
    return Trees(keys[order] // topology.links, keys[order] % topology.links, own=order >= len(routed))


def _own_crossings(joints: Joints, resolved: Resolved, topology: Topology) -> Longs:
    """Return joint * topology.links + link for links that carry a rank's own data at switches with ability `own`.

    Own data are the destination's operand of a reduction, or the source's copy of a multicast. They cross the link
    opposite to the one of the joint between that rank and the switch.
    """
    nothing = np.zeros(0, np.int64)
    if not any(ability.own for ability in topology.abilities):
        return nothing
    returns_own = np.array([topology.ability(node).own for node in range(topology.nodes)])
    crossings = []
    # THROUGH adds none: a rank that is both source and destination loads its links in both directions by its rows
    for kind in (MULTICAST, REDUCTION):
        joint = np.flatnonzero(joints.kind == kind)
        joint = joint[resolved.route[joints.first[joint]] >= 0]
        # The first row stands for its joint: all begin at the only source (multicast), or end at the only destination.
        route = resolved.route[joints.first[joint]]
        position = resolved.table.ptr[route] if kind == MULTICAST else resolved.table.ptr[route + 1] - 1
        link = resolved.table.links[position]
        switch = (topology.link_dst if kind == MULTICAST else topology.link_src)[link]
        joint, link = joint[returns_own[switch]], link[returns_own[switch]]
        opposite_link = link_back(topology, link)
        crossings.append((joint * topology.links + opposite_link)[opposite_link >= 0])
    return np.concatenate([nothing, *crossings])


def link_back(topology: Topology, link: Longs) -> Longs:
    """Return for each of these links the one in the opposite direction, or -1.

    The k-th of parallel links is paired with the k-th link back; if there are fewer, they are used in turn.
    """
    src, dst = topology.link_src.astype(np.int64), topology.link_dst.astype(np.int64)
    key = src * topology.nodes + dst
    order = order_of(key, bound=topology.nodes**2)
    sorted_keys = key[order]
    parallel_index = np.empty(topology.links, np.int64)  # per link, its index among its parallel links
    parallel_index[order] = index_in_run(sorted_keys)
    reverse_key = dst[link] * topology.nodes + src[link]
    low, high = (np.searchsorted(sorted_keys, reverse_key, side) for side in ("left", "right"))
    has_back = high > low
    position = low + parallel_index[link] % np.maximum(high - low, 1)
    # `position` of a link without one back may be behind the end: any index will do, as -1 replaces its value.
    return np.where(has_back, order[np.minimum(position, max(topology.links - 1, 0))], -1)


def crossed_links(schedule: Schedule, resolved: Resolved, topology: Topology) -> tuple[Longs, Longs]:
    """Return (link, row) pairs: every row on each link of its path, but each link of a joint once, for one of its rows.

    Linear in rows times links per route, except for joints, whose links are sorted.
    """
    joints = joints_of(schedule)
    is_alone = resolved.route >= 0
    if joints is not None:
        is_alone &= joints.of_row < 0
    rows = np.flatnonzero(is_alone)
    route = resolved.route[rows]
    hops = resolved.table.ptr[route + 1] - resolved.table.ptr[route]
    link = resolved.table.links[concat_ranges(resolved.table.ptr[route], hops)].astype(np.int64)
    row: Longs = np.repeat(rows, hops)
    if joints is None:
        return link, row
    joint_trees = trees(joints, resolved, topology)
    return np.concatenate([link, joint_trees.link]), np.concatenate([row, joints.first[joint_trees.joint]])


def refuse_joints(schedule: Schedule, output: str, alternative: str = "") -> None:
    """Raise Unsupported for an output that cannot express joints, and name alternatives.

    `alternative`: what the message suggests first, such as another output; "": nothing.
    """
    if joints_of(schedule) is not None:
        raise Unsupported(
            f"{output}: cannot express joints (switches that multicast or combine), which the schedule has; "
            f"{alternative + '; ' if alternative else ''}transform.unjoined returns it without joints, and planners "
            "that do not use switches make others"
        )
