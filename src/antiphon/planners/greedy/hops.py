"""The hops between ranks of a machine, in batches where no rank sends or receives twice.

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

MANY_RANKS = 256  # on more ranks not all pairs of ranks behind switches are hops
MOST_SHIFTS = 48  # number of distances in rank numbers (shifts) that are then kept per kind
FAR = 2**20  # distance of switches that cannot be reached


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

    src: Longs
    dst: Longs
    kind: Longs
    routes: Routes
    width: Floats  # of every kind: capacity of its narrowest link or limit, in units of resources.scale
    batches: tuple[tuple[Batch, ...], ...]  # of every kind
    capacity: Floats  # of every link and shared limit
    ptr: Longs  # links and limits of hop i: entries from ptr[i] on of `loaded`
    loaded: Longs

    def __len__(self) -> int:
        return len(self.src)


def hops_of(topology: Topology) -> Hops:
    """Return the hops of a machine. O(hops * links of a path), and the square of the switches.

    With more than 256 ranks behind switches, a rank has hops to some of the others only, at fixed distances in numbers.

    >>> from antiphon.core.example import machine
    >>> hops = hops_of(machine())
    >>> hops.src.tolist(), hops.dst.tolist(), hops.kind.tolist(), hops.loaded.tolist()
    ([0, 2, 0, 1], [1, 0, 2, 0], [0, 0, 0, 0], [0, 3, 2, 1])
    """
    resources = topology.resources
    capacity = np.array([float(c) for c in resources.capacity])[resources.class_of]
    # the width of a link: its own capacity, or less if it is in a narrower shared limit
    narrow = capacity[: topology.links].copy()
    limited = np.repeat(np.arange(topology.links), np.diff(resources.limit_ptr))
    np.minimum.at(narrow, limited, capacity[resources.limit_of])
    wide = np.flatnonzero(narrow > 0)
    ranks = topology.ranks
    link_src, link_dst = topology.link_src.astype(np.int64), topology.link_dst.astype(np.int64)
    direct = wide[(link_src[wide] < ranks) & (link_dst[wide] < ranks)]
    src, dst, paths = (
        [link_src[direct]],
        [link_dst[direct]],
        [Routes(np.arange(len(direct) + 1), direct.astype(np.int32))],
    )
    if topology.switches:
        through = _hops_through_switches(topology, narrow, wide)
        src.append(through[0])
        dst.append(through[1])
        paths.append(through[2])
    first, last = np.concatenate(src), np.concatenate(dst)
    routes = paths[0] if len(paths) == 1 else paths[0].join(paths[1])
    return _sort_by_kind(topology, first, last, routes, narrow, capacity)


def _sort_by_kind(topology: Topology, src: Longs, dst: Longs, routes: Routes, narrow: Floats, capacity: Floats) -> Hops:
    """Number the hops by kind and divide them into batches."""
    lengths = np.diff(routes.ptr)
    width = np.minimum.reduceat(narrow[routes.links], routes.ptr[:-1]) if len(lengths) else np.zeros(0)
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
    limits_per_link = resources.limit_ptr[link + 1] - resources.limit_ptr[link]
    shared = resources.limit_of[concat_ranges(resources.limit_ptr[link], limits_per_link)].astype(np.int64)
    owners = np.concatenate([owner, np.repeat(owner, limits_per_link)])
    # as (hop, resource) in one number: unique, since a path may cross a shared limit twice
    pair = np.unique(owners * (len(resources.class_of) + 1) + np.concatenate([link, shared]))
    return pair % (len(resources.class_of) + 1), pointers(pair // (len(resources.class_of) + 1), len(routes))


def _make_batch(rows: Longs, src: Longs, dst: Longs, ptr: Longs, loaded: Longs) -> Batch:
    """Return the batch of these hops."""
    load_counts = ptr[rows + 1] - ptr[rows]
    links = loaded[concat_ranges(ptr[rows], load_counts)]
    order = np.argsort(links, kind="stable")
    shared = len(links) > 1 and bool((links[order][1:] == links[order][:-1]).any())
    plain = bool((load_counts == 1).all()) and not shared
    first = np.append(0, np.cumsum(load_counts))
    return Batch(np.arange(len(rows)), rows, src[rows], dst[rows], first, links, order, shared, plain)


def _divide_into_sets(rows: Longs, src: Longs, dst: Longs, ranks: int) -> list[Longs]:
    """Divide hops into sets where each rank sends and receives at most once; equal distances stay together if possible.

    >>> src, dst = np.array([0, 1, 2, 0]), np.array([1, 2, 0, 2])
    >>> [rows.tolist() for rows in _divide_into_sets(np.arange(4), src, dst, 3)]
    [[0, 1, 2], [3]]
    """
    shift = (dst[rows] - src[rows]) % ranks
    cuts = np.flatnonzero(np.diff(shift)) + 1
    runs: list[Longs] = []
    for parallel_run in np.split(rows, cuts):  # parallel hops go to different sets
        run = parallel_run[np.lexsort((parallel_run, src[parallel_run]))]
        new = np.append(True, src[run][1:] != src[run][:-1])
        occurrence = np.arange(len(run)) - np.maximum.accumulate(np.where(new, np.arange(len(run)), 0))
        runs += [run[occurrence == number] for number in range(int(occurrence.max(initial=-1)) + 1)]
    runs.sort(key=len, reverse=True)
    sets: list[list[Longs]] = []
    sends: NDArray[np.bool_] = np.zeros((len(runs), ranks), np.bool_)
    receives: NDArray[np.bool_] = np.zeros((len(runs), ranks), np.bool_)
    for run in runs:
        busy = sends[: len(sets), src[run]].any(axis=1) | receives[: len(sets), dst[run]].any(axis=1)
        free_sets = np.flatnonzero(~busy)
        chosen_set = int(free_sets[0]) if len(free_sets) else len(sets)
        if chosen_set == len(sets):
            sets.append([])
        sets[chosen_set].append(run)
        sends[chosen_set, src[run]] = receives[chosen_set, dst[run]] = True
    return [np.concatenate(rows_of_set) for rows_of_set in sets]


# ---- through switches ----


def _hops_through_switches(topology: Topology, narrow: Floats, wide: Longs) -> tuple[Longs, Longs, Routes]:
    """Return for every pair of ranks behind switches the best paths: of those with the widest ends, the shortest."""
    ranks = topology.ranks
    src, dst = topology.link_src.astype(np.int64), topology.link_dst.astype(np.int64)
    out = _ports_of(wide[(src[wide] < ranks) & (dst[wide] >= ranks)], src, ranks)
    into = _ports_of(wide[(src[wide] >= ranks) & (dst[wide] < ranks)], dst, ranks)
    distance, switch_links = _switch_distances(topology, wide)
    chosen: list[tuple[Longs, Longs, Longs]] = []
    tally: dict[tuple[float, int], list[int]] = {}
    by_shift: list[tuple[tuple[float, int], Longs, Longs]] = []
    every = np.arange(ranks)
    for shift in range(1, ranks):
        out_ports, in_ports = out[every], into[(every + shift) % ranks]  # ports by hop
        # all pairs of a port of the sender and a port of the receiver, for all ranks at this shift at once
        usable = (out_ports >= 0)[:, :, None] & (in_ports >= 0)[:, None, :]
        a, b = np.where(usable, out_ports[:, :, None], 0), np.where(usable, in_ports[:, None, :], 0)
        first, last = np.where(usable, dst[a] - ranks, 0), np.where(usable, src[b] - ranks, 0)
        length = np.where(usable, distance[first, last] + 2, FAR)
        usable &= length < FAR
        path_width = np.where(usable, np.minimum(narrow[a], narrow[b]), 0.0)
        # per hop keep only its broadest ports, and of these the shortest ways
        best = path_width.max(axis=(1, 2), initial=0.0, keepdims=True)
        usable &= path_width >= best
        length = np.where(usable, length, FAR)
        usable &= length == length.min(axis=(1, 2), initial=FAR, keepdims=True)
        where = np.nonzero(usable)
        for breadth, best_length in set(zip(path_width[where].tolist(), length[where].tolist(), strict=True)):
            matching = (path_width[where] == breadth) & (length[where] == best_length)
            key = (breadth, int(best_length))
            by_shift.append((key, a[where][matching], b[where][matching]))
            tally.setdefault(key, []).append(len(by_shift) - 1)
    for of_key in tally.values():
        numbers = of_key
        # too many hops in all: keep shifts at geometric distances, as many near the first as near the last
        if ranks > MANY_RANKS and len(of_key) > MOST_SHIFTS:
            full = max(len(by_shift[number][1]) for number in of_key)
            broadest = [number for number in of_key if 2 * len(by_shift[number][1]) >= full]
            picked = np.unique(np.rint(np.geomspace(1, max(len(broadest) // 2, 1), MOST_SHIFTS // 2)).astype(int) - 1)
            numbers = sorted({*(broadest[at] for at in picked), *(broadest[-1 - at] for at in picked)})
        chosen += [(src[by_shift[n][1]], dst[by_shift[n][2]], np.stack(by_shift[n][1:])) for n in numbers]
    if not chosen:
        nothing = np.zeros(0, np.int64)
        return nothing, nothing, Routes(np.zeros(1, np.int64), np.zeros(0, np.int32))
    first, last = np.concatenate([k[0] for k in chosen]), np.concatenate([k[1] for k in chosen])
    ends = np.concatenate([k[2] for k in chosen], axis=1)
    return first, last, _switch_paths(topology, ends[0], ends[1], distance, switch_links)


def _ports_of(links: Longs, end: Longs, ranks: int) -> Longs:
    """Return the links of every rank, side by side, padded with -1."""
    order = links[np.argsort(end[links], kind="stable")]
    ptr = pointers(end[order], ranks)
    counts = np.diff(ptr)
    table = np.full((ranks, int(counts.max(initial=0))), -1, np.int64)
    table[end[order], np.arange(len(order)) - ptr[end[order]]] = order
    return table


def _switch_distances(topology: Topology, wide: Longs) -> tuple[Longs, Longs]:
    """Return the distances between switches through switches, and each switch's links to others, side by side."""
    ranks, switches = topology.ranks, topology.switches
    src, dst = topology.link_src.astype(np.int64), topology.link_dst.astype(np.int64)
    inner = wide[(src[wide] >= ranks) & (dst[wide] >= ranks)]
    switch_links = _ports_of(inner, src - ranks, switches)
    near = np.zeros((switches, switches), np.float32)
    near[src[inner] - ranks, dst[inner] - ranks] = 1
    far = np.full((switches, switches), FAR, np.int64)
    front: Bools = np.eye(switches, dtype=np.bool_)
    depth = 0
    while front.any():
        far[front] = depth
        depth += 1
        # breadth-first search from all switches at once, by matrix products
        front = (front.astype(np.float32) @ near > 0) & (far == FAR)
    return far, switch_links


def _switch_paths(topology: Topology, first: Longs, last: Longs, distance: Longs, switch_links: Longs) -> Routes:
    """Return the paths of hops with these first and last links; equally short paths are used alternately."""
    ranks = topology.ranks
    src, dst = topology.link_src.astype(np.int64), topology.link_dst.astype(np.int64)
    at, goal = dst[first] - ranks, src[last] - ranks
    columns, owners = [first], [np.arange(len(first))]
    alternation = src[first] + dst[last]
    moving = np.flatnonzero(at != goal)
    while len(moving):
        offered = switch_links[at[moving]]
        # each offered link's remaining distance; those that come nearer to the goal are on a shortest path
        ahead = distance[np.where(offered >= 0, dst[offered] - ranks, 0), goal[moving][:, None]]
        good = (offered >= 0) & (ahead == distance[at[moving], goal[moving]][:, None] - 1)
        choice = alternation[moving] % good.sum(axis=1)
        next_link = offered[np.arange(len(moving)), (np.cumsum(good, axis=1) > choice[:, None]).argmax(axis=1)]
        columns.append(next_link)
        owners.append(moving)
        at[moving] = dst[next_link] - ranks
        moving = moving[at[moving] != goal[moving]]
    columns.append(last)
    owners.append(np.arange(len(first)))
    link, owner = np.concatenate(columns), np.concatenate(owners)
    order = np.argsort(owner, kind="stable")
    return Routes(pointers(owner[order], len(first)), link[order].astype(np.int32))
