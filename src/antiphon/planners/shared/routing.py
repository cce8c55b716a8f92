"""Which way every transfer goes: its direct link, else a shortest path through switches.

Of several direct links the widest is taken. Of several shortest paths the widest links are taken, and of equally
wide ones another for every destination, so that many transfers use all of them: at a switch `level` hops above
the ranks with k equal ways on, way (destination / k^level) mod k, the usual routing of fat trees.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from antiphon.core.columns import Bools, Ints, Longs, dense, dense_pairs, order_of, own, pointers, starts, taken
from antiphon.core.routes import Routes
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.core.transform import merge
from antiphon.errors import Unsupported
from antiphon.planners.shared._switched import Switched
from antiphon.planners.shared.instead import instead

MOST_STRIPES = 8


@dataclass(frozen=True, eq=False)
class Paths:
    """One path per pair of ranks: pair i takes `table[i]`; where `plain[i]` it is the only direct link.

    `ways[i]`: how many equally good links lead out of the source. `lost`: pairs that nothing joins (empty paths).
    """

    table: Routes
    plain: NDArray[np.bool_]
    ways: Longs
    lost: Longs


def paths(topology: Topology, src: Ints, dst: Ints, turn: int = 0) -> Paths:
    """A path for every pair. `turn`: take the next of the equally good links out of the source.

    O(links log links), and for pairs not linked directly O(links on their ways) and a search per switch next to a
    destination.

    >>> from antiphon.core.topology import LinkType, both_ways, build
    >>> wire = LinkType("wire", "1GB/s")
    >>> mixed = build("mixed", 3, both_ways([(0, 1), (0, 3), (1, 3), (2, 3)], wire), switches=1)
    >>> found = paths(mixed, np.array([0, 0]), np.array([1, 2]))
    >>> [found.table[i] for i in range(2)], found.plain.tolist()
    ([(0,), (2, 7)], [True, False])
    """
    width = _width_rank(topology)
    link, number = _direct(topology, src, dst, width)
    far = np.flatnonzero(number == 0)
    ways = np.ones(len(src), np.int64)
    hops = np.ones(len(src), np.int64)
    hops[far] = 0
    found: list[tuple[Longs, Ints]] = []
    for rows, lengths, links, many in _through(topology, src, dst, far, width, turn):
        hops[rows], ways[rows] = lengths, many
        found.append((rows, links))
    ptr = np.concatenate([[0], np.cumsum(hops)]).astype(np.int64)
    flat = np.empty(int(ptr[-1]), np.int32)
    near = np.flatnonzero(number > 0)
    flat[ptr[near]] = link[near]
    for rows, links in found:
        inside = links >= 0
        at = ptr[rows][:, None] + np.arange(links.shape[1])
        flat[at[inside]] = links[inside]
    return Paths(Routes(ptr, flat), number == 1, ways, np.flatnonzero(hops == 0))


def routed(schedule: Schedule, topology: Topology, planner: str) -> Schedule:
    """The schedule with its routes named where the machine leaves a choice; Unsupported where nothing joins a pair.

    A machine whose ranks have several equal ways out (planes of switches) gets the data striped over them. O(rows), and
    `paths` for each pair of ranks.

    Over two switches (nodes 2 and 3) half the data each:

    >>> from antiphon.core.example import of_rows
    >>> from antiphon.core.topology import LinkType, both_ways, build
    >>> wire = LinkType("wire", "1GB/s")
    >>> planes = build("planes", 2, both_ways([(0, 2), (1, 2), (0, 3), (1, 3)], wire), switches=2)
    >>> striped = routed(of_rows("broadcast", 2, [(0, 0, 0, 1, 0)], roots=(0,)), planes, "example")
    >>> striped.chunk.tolist(), [striped.routes[i] for i in striped.route.tolist()]
    ([0, 1], [(4, 7), (0, 3)])
    """
    nodes = topology.nodes
    keys, inverse = dense_pairs(schedule.src, schedule.dst, nodes)
    src, dst = (keys // nodes).astype(np.int32), (keys % nodes).astype(np.int32)
    first = paths(topology, src, dst)
    stay = src == dst  # rows within a rank take no route
    lost = first.lost[~stay[first.lost]]
    if len(lost):
        at = int(lost[0])
        would = instead(
            topology, schedule.collective, "relay", "ring", "multi-ring", other="a machine with routers or switches"
        )
        raise Unsupported(
            f"planner {planner}: no link or path through switches leads from rank {src[at]} to rank {dst[at]} of "
            f"{topology.name}; {would}"
        )
    count = min(int(first.ways.max(initial=1)), MOST_STRIPES)
    stripes = [first, *(paths(topology, src, dst, turn) for turn in range(1, count))]
    lanes = [_named(schedule, stripe, inverse, stay) for stripe in stripes]
    return lanes[0] if count == 1 else merge(lanes)


def _named(schedule: Schedule, by_pair: Paths, pair: Ints, stay: Bools) -> Schedule:
    """Rows with the route of their pair, where it is not the only direct link, and there is any. O(rows)."""
    named = np.flatnonzero(~(by_pair.plain | stay))
    if not len(named):
        return schedule
    number = np.full(len(by_pair.plain), -1, np.int32)
    number[named] = np.arange(len(named))
    return replace(schedule, route=own(taken(number, pair)), routes=by_pair.table.take(named))


def joined(topology: Topology, src: Ints, dst: Ints) -> bool:
    """Whether every pair has a link or a path through switches."""
    return not len(paths(topology, src, dst).lost)


def narrowest(topology: Topology, found: Paths) -> int:
    """The link of least bandwidth on any of these paths."""
    return int(found.table.links[np.argmin(_width_rank(topology)[found.table.links])])


def _width_rank(topology: Topology) -> Longs:
    """Per link a small number that grows with its bandwidth. O(links).

    >>> from antiphon.core.topology import LinkType, build
    >>> slow, fast = LinkType("pcie", "10GB/s"), LinkType("nvlink", "25GB/s")
    >>> _width_rank(build("two", 2, [(0, 1, fast), (1, 0, slow), (1, 0, fast)]))
    array([1, 0, 1])
    """
    distinct = sorted({kind.bandwidth for kind in topology.types})
    of_type = np.array([distinct.index(kind.bandwidth) for kind in topology.types], np.int64)
    return of_type[topology.link_type]


def _direct(topology: Topology, src: Ints, dst: Ints, width: Longs) -> tuple[Longs, Longs]:
    """The widest direct link of every pair (of equals the first), and how many there are. One sort.

    >>> from antiphon.core.example import machine
    >>> _direct(machine(), np.array([1, 1, 2]), np.array([0, 2, 0]), np.zeros(4, np.int64))
    (array([ 1, -1,  3]), array([1, 0, 1]))
    """
    nodes = topology.nodes
    if not topology.links:
        return np.full(len(src), -1, np.int64), np.zeros(len(src), np.int64)
    key = topology.link_src.astype(np.int64) * nodes + topology.link_dst
    order = np.lexsort((np.arange(len(key)), -width, key))
    first = np.flatnonzero(starts(key[order]))
    number = np.diff(np.append(first, len(key)))
    have = key[order][first]
    want = src.astype(np.int64) * nodes + dst
    at = np.minimum(np.searchsorted(have, want), len(have) - 1)
    hit = have[at] == want
    return np.where(hit, order[first][at], -1), np.where(hit, number[at], 0)


def _through(
    topology: Topology, src: Ints, dst: Ints, far: Longs, width: Longs, turn: int
) -> Iterator[tuple[Longs, Longs, Ints, Longs]]:
    """(pairs, hops, their links padded with -1, ways out of the source), for some destinations at a time. O(hops), and
    a search per switch next to one.

    >>> from antiphon.core.topology import LinkType, both_ways, build
    >>> wire = LinkType("wire", "1GB/s")
    >>> switched = build("switched", 3, both_ways([(0, 3), (1, 3), (2, 3)], wire), switches=1)
    >>> src, dst = np.array([0, 0, 1]), np.array([1, 2, 2])
    >>> for pairs, hops, links, ways in _through(switched, src, dst, np.arange(3), np.zeros(6, np.int64), 0):
    ...     print(pairs, hops, links.tolist(), ways)
    [0 1 2] [2 2 2] [[0, 3], [0, 5], [2, 5]] [1 1 1]
    """
    if not len(far) or not topology.switches:
        return
    net = Switched.of(topology, width)
    targets, place = dense(dst[far].astype(np.int64), topology.nodes)
    order = order_of(place, len(targets))
    far, place = far[order], place[order]
    ptr = pointers(place, len(targets))
    for low, high in net.batches(src[far], place, targets):
        rows, mine = far[ptr[low] : ptr[high]], place[ptr[low] : ptr[high]] - low
        found = net.find(src[rows], mine, targets[low:high], turn)
        reached = found.hops > 0
        yield rows[reached], found.hops[reached], found.links[reached], found.ways[reached]
