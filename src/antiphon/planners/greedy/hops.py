"""The hops between ranks of a machine, in batches where no rank sends or receives twice. Called by search.py.

A hop is a path from rank to rank, direct or through switches, without a rank in between. The simulation of planner
`greedy` handles whole batches as NumPy columns; since the destinations of a batch differ, its hops cannot bring one
rank the same chunk twice.

Kinds: hops are grouped by width (narrowest link or limit), the widest first, then by length. Behind switches every two
ranks are joined; on more than 256 ranks only some distances in rank numbers are kept, spread geometrically.

Example: a ring of 4 both ways has 8 hops of one kind, dealt into 2 batches: all "right" hops and all "left" hops.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from antiphon.core.columns import Bools, Floats, Longs, concat_ranges, pointers
from antiphon.core.routes import Routes
from antiphon.core.topology import Topology

MANY_RANKS = 256  # on more ranks not all pairs of ranks behind switches are hops, to bound time and memory
MOST_SHIFTS = 48  # distances in rank numbers (shifts) that are then kept per kind
UNREACHABLE = 2**20  # as a distance of switches


@dataclass(frozen=True, eq=False)
class Batch:
    """A batch of hops: numbers, ends, and the resources (links, shared limits) that they load.

    `every`: 0, 1, ..., one per hop. `loaded`: the resources that hop i loads are its entries from ptr[i] on. `order`:
    the order of these entries by resource. `shared`: whether several hops load the same resource. `plain`: whether each
    hop is a single link that no other hop loads, so that loaded[i] belongs to hop i.
    """

    every: Longs
    hop: Longs
    src: Longs
    dst: Longs
    ptr: Longs
    loaded: Longs
    order: Longs
    shared: bool
    plain: bool


@dataclass(frozen=True, eq=False)
class Hops:
    """All hops in use, by kind: the widest first, of these the shortest; `routes` are their paths."""

    src: Longs  # rank
    dst: Longs  # rank
    kind: Longs  # index into `width` and `batches`
    routes: Routes
    width: Floats  # of every kind: capacity of its narrowest link or limit, in units of resources.scale
    batches: tuple[tuple[Batch, ...], ...]  # of every kind
    capacity: Floats  # of every link and shared limit
    ptr: Longs  # links and limits of hop i: entries from ptr[i] on of `loaded`
    loaded: Longs

    def __len__(self) -> int:
        return len(self.src)


def hops_of(topology: Topology) -> Hops:
    """Return the hops of a machine. O(hops * links of a path).

    With switches, pairs of ports take O((ranks * ports of a rank)^2), and the distances between switches take
    O(greatest distance * switches^3) time and O(switches^2) memory.

    With more than 256 ranks behind switches, a rank has hops to some of the others only, at fixed distances in numbers.

    >>> from antiphon.core.example import machine
    >>> hops = hops_of(machine())
    >>> hops.src.tolist(), hops.dst.tolist(), hops.kind.tolist(), hops.loaded.tolist()
    ([0, 2, 0, 1], [1, 0, 2, 0], [0, 0, 0, 0], [0, 3, 2, 1])
    """
    resources = topology.resources
    # of links, then shared limits: resources of a class have equal capacity
    capacity = np.array([float(c) for c in resources.capacity])[resources.class_of]
    # the width of a link: its own capacity, or that of a narrower shared limit
    link_width = capacity[: topology.links].copy()
    limited = np.repeat(np.arange(topology.links), np.diff(resources.limit_ptr))
    np.minimum.at(link_width, limited, capacity[resources.limit_of])
    usable_links = np.flatnonzero(link_width > 0)
    ranks = topology.ranks
    link_src, link_dst = topology.link_src.astype(np.int64), topology.link_dst.astype(np.int64)
    direct = usable_links[(link_src[usable_links] < ranks) & (link_dst[usable_links] < ranks)]
    src, dst, paths = (
        [link_src[direct]],
        [link_dst[direct]],
        [Routes(np.arange(len(direct) + 1), direct.astype(np.int32))],
    )
    if topology.switches:
        switch_src, switch_dst, switch_paths = _hops_through_switches(topology, link_width, usable_links)
        src.append(switch_src)
        dst.append(switch_dst)
        paths.append(switch_paths)
    routes = paths[0] if len(paths) == 1 else paths[0].join(paths[1])
    return _sort_by_kind(topology, np.concatenate(src), np.concatenate(dst), routes, link_width, capacity)


def _sort_by_kind(
    topology: Topology, src: Longs, dst: Longs, routes: Routes, link_width: Floats, capacity: Floats
) -> Hops:
    """Number the hops by kind and divide them into batches."""
    lengths = np.diff(routes.ptr)
    width = np.minimum.reduceat(link_width[routes.links], routes.ptr[:-1]) if len(lengths) else np.zeros(0)
    _, kind = np.unique(np.stack([-width, lengths], axis=1), axis=0, return_inverse=True)
    kind = kind.reshape(-1).astype(np.int64)
    # by kind, then distance in rank numbers: neighbours in the order are shifts of each other, so they form batches
    # easily
    order = np.lexsort((src, (dst - src) % topology.ranks, kind))
    src, dst, kind, routes = src[order], dst[order], kind[order], routes.take(order)
    kinds = int(kind.max(initial=-1)) + 1
    widths = np.zeros(kinds)
    widths[kind] = width[order]
    loaded, ptr = _loaded_resources(topology, routes)
    batches = []
    for number in range(kinds):
        of_kind = np.flatnonzero(kind == number)
        batches.append(
            tuple(
                _make_batch(rows, src, dst, ptr, loaded)
                for rows in _divide_into_sets(of_kind, src, dst, topology.ranks)
            )
        )
    return Hops(src, dst, kind, routes, widths, tuple(batches), capacity, ptr, loaded)


def _loaded_resources(topology: Topology, routes: Routes) -> tuple[Longs, Longs]:
    """Return the links and shared limits that every path loads, and where those of each begin."""
    resources = topology.resources
    link = routes.links.astype(np.int64)
    owner = np.repeat(np.arange(len(routes)), np.diff(routes.ptr))
    index, resource = resources.with_limits(link)  # link[index[i]] loads resource[i]: the link itself, or its limit
    # as (hop, resource) in one number: unique, since a path may cross a shared limit twice;
    # + 1: the divisor is not 0, even on a machine without links
    pair = np.unique(owner[index] * (len(resources.class_of) + 1) + resource)
    return pair % (len(resources.class_of) + 1), pointers(pair // (len(resources.class_of) + 1), len(routes))


def _make_batch(rows: Longs, src: Longs, dst: Longs, ptr: Longs, loaded: Longs) -> Batch:
    """Return the batch of the hops `rows`; `src` to `loaded`: the columns of all hops, as in `Hops`."""
    load_counts = ptr[rows + 1] - ptr[rows]
    resources = loaded[concat_ranges(ptr[rows], load_counts)]
    order = np.argsort(resources, kind="stable")
    shared = len(resources) > 1 and bool((resources[order][1:] == resources[order][:-1]).any())
    plain = bool((load_counts == 1).all()) and not shared
    first = np.append(0, np.cumsum(load_counts))
    return Batch(
        every=np.arange(len(rows)), hop=rows, src=src[rows], dst=dst[rows], ptr=first, loaded=resources, order=order,
        shared=shared, plain=plain,
    )  # fmt: skip


def _divide_into_sets(rows: Longs, src: Longs, dst: Longs, ranks: int) -> list[Longs]:
    """Divide hops into sets where each rank sends and receives at most once; equal distances stay together if possible.

    `rows`: the numbers of hops of one kind, in order of their distance in rank numbers.

    >>> src, dst = np.array([0, 1, 2, 0]), np.array([1, 2, 0, 2])
    >>> [rows.tolist() for rows in _divide_into_sets(np.arange(4), src, dst, 3)]
    [[0, 1, 2], [3]]
    """
    shift = (dst[rows] - src[rows]) % ranks
    cuts = np.flatnonzero(np.diff(shift)) + 1
    runs: list[Longs] = []
    for of_shift in np.split(rows, cuts):
        # hops of one shift and sender are parallel: they go to different sets
        run = of_shift[np.lexsort((of_shift, src[of_shift]))]
        starts_sender = np.append(True, src[run][1:] != src[run][:-1])
        occurrence = np.arange(len(run)) - np.maximum.accumulate(np.where(starts_sender, np.arange(len(run)), 0))
        runs += [run[occurrence == number] for number in range(int(occurrence.max(initial=-1)) + 1)]
    runs.sort(key=len, reverse=True)
    sets: list[list[Longs]] = []  # by set, its runs
    sends: NDArray[np.bool_] = np.zeros((len(runs), ranks), np.bool_)
    receives: NDArray[np.bool_] = np.zeros((len(runs), ranks), np.bool_)
    for run in runs:
        is_busy = sends[: len(sets), src[run]].any(axis=1) | receives[: len(sets), dst[run]].any(axis=1)
        free_sets = np.flatnonzero(~is_busy)
        chosen_set = int(free_sets[0]) if len(free_sets) else len(sets)
        if chosen_set == len(sets):
            sets.append([])
        sets[chosen_set].append(run)
        sends[chosen_set, src[run]] = receives[chosen_set, dst[run]] = True
    return [np.concatenate(rows_of_set) for rows_of_set in sets]


# ---- through switches ----


def _hops_through_switches(topology: Topology, link_width: Floats, usable_links: Longs) -> tuple[Longs, Longs, Routes]:
    """Return senders, receivers and paths of hops: for every pair of ranks the paths with the widest end links, and of
    these the shortest."""
    ranks = topology.ranks
    src, dst = topology.link_src.astype(np.int64), topology.link_dst.astype(np.int64)
    # [rank, port]: links from each rank to switches, and from switches to it; -1: it has no more ports
    ports_out = _ports_of(usable_links[(src[usable_links] < ranks) & (dst[usable_links] >= ranks)], src, ranks)
    ports_in = _ports_of(usable_links[(src[usable_links] >= ranks) & (dst[usable_links] < ranks)], dst, ranks)
    distance, switch_links = _switch_distances(topology, usable_links)
    # (width, length) -> by shift, arrays of two rows: the first and the last link of every hop
    hops_by_kind: dict[tuple[float, int], list[Longs]] = {}
    all_ranks = np.arange(ranks)
    for shift in range(1, ranks):
        out_ports, in_ports = ports_out[all_ranks], ports_in[(all_ranks + shift) % ranks]  # by sender
        # [sender, its port, the receiver's port]: all pairs of ports, for all ranks at this shift at once
        usable = (out_ports >= 0)[:, :, None] & (in_ports >= 0)[:, None, :]
        out_link, in_link = np.where(usable, out_ports[:, :, None], 0), np.where(usable, in_ports[:, None, :], 0)
        first, last = np.where(usable, dst[out_link] - ranks, 0), np.where(usable, src[in_link] - ranks, 0)  # switches
        length = np.where(usable, distance[first, last] + 2, UNREACHABLE)
        usable &= length < UNREACHABLE
        path_width = np.where(usable, np.minimum(link_width[out_link], link_width[in_link]), 0.0)
        # per hop keep only its widest ports, and of these the shortest paths
        best = path_width.max(axis=(1, 2), initial=0.0, keepdims=True)
        usable &= path_width >= best
        length = np.where(usable, length, UNREACHABLE)
        usable &= length == length.min(axis=(1, 2), initial=UNREACHABLE, keepdims=True)
        where = np.nonzero(usable)
        for width, best_length in set(zip(path_width[where].tolist(), length[where].tolist(), strict=True)):
            matching = (path_width[where] == width) & (length[where] == best_length)
            links = np.stack([out_link[where][matching], in_link[where][matching]])
            hops_by_kind.setdefault((width, int(best_length)), []).append(links)
    hop_links: list[Longs] = []
    for shifts in hops_by_kind.values():
        # too many hops in all: keep shifts at geometric distances, as many near the first as near the last
        if ranks > MANY_RANKS and len(shifts) > MOST_SHIFTS:
            most_hops = max(links.shape[1] for links in shifts)
            common = [links for links in shifts if 2 * links.shape[1] >= most_hops]  # others serve few ranks
            positions = np.unique(np.rint(np.geomspace(1, max(len(common) // 2, 1), MOST_SHIFTS // 2)).astype(int) - 1)
            hop_links += [common[at] for at in sorted({*positions.tolist(), *(len(common) - 1 - positions).tolist()})]
        else:
            hop_links += shifts
    if not hop_links:
        nothing = np.zeros(0, np.int64)
        return nothing, nothing, Routes(np.zeros(1, np.int64), np.zeros(0, np.int32))
    first_links, last_links = np.concatenate(hop_links, axis=1)
    paths = _switch_paths(topology, first_links, last_links, distance, switch_links)
    return src[first_links], dst[last_links], paths


def _ports_of(links: Longs, end: Longs, ranks: int) -> Longs:
    """Return the links of every rank, side by side, padded with -1. `end`: by link, the rank to which it counts."""
    order = links[np.argsort(end[links], kind="stable")]
    ptr = pointers(end[order], ranks)
    counts = np.diff(ptr)
    table = np.full((ranks, int(counts.max(initial=0))), -1, np.int64)
    table[end[order], np.arange(len(order)) - ptr[end[order]]] = order
    return table


def _switch_distances(topology: Topology, usable_links: Longs) -> tuple[Longs, Longs]:
    """Return the distances between switches through switches, and each switch's links to others, side by side."""
    ranks, switches = topology.ranks, topology.switches
    src, dst = topology.link_src.astype(np.int64), topology.link_dst.astype(np.int64)
    inner = usable_links[(src[usable_links] >= ranks) & (dst[usable_links] >= ranks)]
    switch_links = _ports_of(inner, src - ranks, switches)
    adjacent = np.zeros((switches, switches), np.float32)
    adjacent[src[inner] - ranks, dst[inner] - ranks] = 1
    distance = np.full((switches, switches), UNREACHABLE, np.int64)
    frontier: Bools = np.eye(switches, dtype=np.bool_)
    depth = 0
    while frontier.any():
        distance[frontier] = depth
        depth += 1
        # breadth-first search from all switches at once, by matrix products
        frontier = (frontier.astype(np.float32) @ adjacent > 0) & (distance == UNREACHABLE)
    return distance, switch_links


def _switch_paths(topology: Topology, first: Longs, last: Longs, distance: Longs, switch_links: Longs) -> Routes:
    """Return the paths of hops with these first and last links; equally short paths are used alternately."""
    ranks = topology.ranks
    src, dst = topology.link_src.astype(np.int64), topology.link_dst.astype(np.int64)
    switch, goal_switch = dst[first] - ranks, src[last] - ranks
    columns, owners = [first], [np.arange(len(first))]
    alternation = src[first] + dst[last]
    unfinished = np.flatnonzero(switch != goal_switch)
    while len(unfinished):
        options = switch_links[switch[unfinished]]
        # the distance that remains after each link; links that come nearer to the goal are on a shortest path
        remaining = distance[np.where(options >= 0, dst[options] - ranks, 0), goal_switch[unfinished][:, None]]
        is_nearer = (options >= 0) & (remaining == distance[switch[unfinished], goal_switch[unfinished]][:, None] - 1)
        # of the nearer links take number `choice`: the first one up to which more than that are counted
        choice = alternation[unfinished] % is_nearer.sum(axis=1)
        next_link = options[np.arange(len(unfinished)), (np.cumsum(is_nearer, axis=1) > choice[:, None]).argmax(axis=1)]
        columns.append(next_link)
        owners.append(unfinished)
        switch[unfinished] = dst[next_link] - ranks
        unfinished = unfinished[switch[unfinished] != goal_switch[unfinished]]
    columns.append(last)
    owners.append(np.arange(len(first)))
    link, owner = np.concatenate(columns), np.concatenate(owners)
    order = np.argsort(owner, kind="stable")
    return Routes(pointers(owner[order], len(first)), link[order].astype(np.int32))
