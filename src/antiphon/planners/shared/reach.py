"""Find how ranks reach each other: neighbours, trees of shortest paths, and other planners to suggest.

A hop leads from one rank to another by a direct link or by links through switches, never through a third rank.
`Reach.neighbours` returns the ranks one hop away, with paths. `Reach.tree_from` returns a tree of the fewest hops from
a source to all ranks; it prefers links that earlier trees used little, so that trees from many sources spread over
parallel paths. `drop_slow_hops` leaves out hops that a chain of quicker hops beats. `star_routes` computes the same
trees for machines where all ranks are one hop apart, in NumPy without a loop over sources. `suggest_planners` makes the
hint for error messages of planners.

Example: ranks 0, 1, 2 on a switch (node 3): the neighbours of 0 are {1: ((0>3, 3>1),), 2: ((0>3, 3>2),)}.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from antiphon.core.collective import Collective
from antiphon.core.columns import Ints, Longs, concat_ranges, order_of, pointers
from antiphon.core.routes import Routes, out_links
from antiphon.core.topology import Topology
from antiphon.registry import Entry, PlannerCapabilities, find

Path = tuple[int, ...]  # links, in order
_SAME_TIME = 1e-9  # relative difference below which two times are the same: sums of floats depend on their order


@dataclass(frozen=True)
class Hop:
    """How a tree leads to a rank."""

    parent: int  # the rank that it receives from; -1: the rank is the root
    path: Path  # over these links
    depth: int  # hops from the root
    back: Path = ()  # the links from the rank back to the parent; `tree_from` leaves it empty


def reroot_tree(hops: Collection[tuple[int, Hop]], start: int) -> dict[int, Hop]:
    """Return the hops of the same undirected tree with rank `start` as its root.

    `hops`: (rank, hop) pairs of all ranks but the root. Where the direction of a hop turns round, its path is the old
    `back`, so callers that use paths must have filled it in.
    """
    neighbours: dict[int, dict[int, tuple[Path, Path]]] = defaultdict(dict)  # paths to and from each
    for rank, hop in hops:
        neighbours[hop.parent][rank] = (hop.path, hop.back)
        neighbours[rank][hop.parent] = (hop.back, hop.path)
    tree, queue = {start: Hop(parent=-1, path=(), depth=0)}, [start]
    for rank in queue:
        for head, (path, back) in neighbours[rank].items():
            if head not in tree:
                tree[head] = Hop(rank, path, tree[rank].depth + 1, back)
                queue.append(head)
    return {rank: hop for rank, hop in tree.items() if rank != start}


class Reach:
    """A machine's neighbours and trees of shortest paths, cached.

    `near`: by rank, the ranks one hop away. `out`: by node, its outgoing links. `width`: by link, in unit links.
    `used`: by link, the number of trees that use it divided by its bandwidth.
    """

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.out = out_links(topology)
        self.head = topology.link_dst.tolist()
        self.width = [float(topology.bandwidth(link) / topology.unit) for link in range(topology.links)]
        self.used = [0.0] * topology.links
        self.trees: dict[int, dict[int, Hop]] = {}
        self.near: dict[int, dict[int, tuple[Path, ...]]] = {}
        self.has_dropped = False  # whether `drop_slow_hops` left a hop out

    def neighbours(self, rank: int) -> dict[int, tuple[Path, ...]]:
        """Return the ranks one hop away with their paths: all parallel direct links, or one path through switches."""
        if rank not in self.near:
            paths_to: dict[int, list[Path]] = {}
            path_to_switch: dict[int, Path] = {rank: ()}
            queue = deque([rank])
            while queue:
                node = queue.popleft()
                for link in self.out[node]:
                    head, path = self.head[link], (*path_to_switch[node], link)
                    if head < self.topology.ranks:
                        # all parallel direct links are kept, but of the paths through switches only the first
                        if head != rank and (node == rank or head not in paths_to):
                            paths_to.setdefault(head, []).append(path)
                    elif head not in path_to_switch:
                        path_to_switch[head] = path
                        queue.append(head)
            self.near[rank] = {head: tuple(paths) for head, paths in paths_to.items()}
        return self.near[rank]

    def tree_from(self, source: int) -> dict[int, Hop]:
        """Return a tree with the fewest hops: for every reachable rank (and the source) the hop that leads to it."""
        if source not in self.trees:
            tree = {source: Hop(parent=-1, path=(), depth=0)}
            level = [source]
            while level and len(tree) < self.topology.ranks:  # stop once all ranks are reached
                options_of: dict[int, list[tuple[int, Path]]] = {}  # rank -> possible (parent, path)
                for rank in level:
                    near = self.neighbours(rank)
                    for head in [neighbour for neighbour in near if neighbour not in tree]:
                        options_of.setdefault(head, []).extend([(rank, path) for path in near[head]])
                # Ranks of the next level in order of number; for each, the path that minimises the greatest use of its
                # links, ties by parent and path.
                level = sorted(options_of)
                for head in level:
                    options = options_of[head]
                    best = (
                        min(options, key=lambda option: (self._fullest_use(option[1]), option))
                        if len(options) > 1
                        else options[0]
                    )
                    parent, path = best
                    tree[head] = Hop(parent, path, tree[parent].depth + 1)
                    for link in path:
                        self.used[link] += 1 / self.width[link]
            self.trees[source] = tree
        return self.trees[source]

    def _fullest_use(self, path: Path) -> float:
        """Return the use of the path's most used link if another tree took it."""
        return max(self.used[link] + 1 / self.width[link] for link in path)


def drop_slow_hops(reach: Reach, block_bytes: float) -> bool:
    """Leave out of `reach` every hop that is slower, for a block of that size, than a chain of hops; return whether
    there was one.

    A hop takes the latencies of its links and the bytes over its narrowest link; each rank of a chain has received the
    whole block before it sends. O(ranks^3).

    Example: a link 0 > 2 of 100 us beside links 0 > 1 and 1 > 2 of 0.1 us each is left out for blocks of up to about
    100 us times the bandwidth.
    """
    topology, ranks = reach.topology, range(reach.topology.ranks)

    def seconds(path: Path) -> float:
        """Return the time of a block over this path."""
        types = [topology.types[int(topology.link_type[link])] for link in path]
        return sum(t.latency for t in types) + block_bytes / min(float(t.bandwidth) for t in types)

    direct_seconds = [
        {head: min(map(seconds, paths)) for head, paths in reach.neighbours(rank).items()} for rank in ranks
    ]
    chain_seconds = np.full((topology.ranks, topology.ranks), np.inf)
    for rank in ranks:
        chain_seconds[rank, list(direct_seconds[rank])] = list(direct_seconds[rank].values())
    for middle in ranks:  # Floyd and Warshall: chains through ranks up to this one
        np.minimum(chain_seconds, chain_seconds[:, middle, None] + chain_seconds[None, middle, :], out=chain_seconds)
    slow = {
        (rank, head)
        for rank in ranks
        for head, time in direct_seconds[rank].items()
        if chain_seconds[rank, head] < time * (1 - _SAME_TIME)
    }
    for rank in ranks:
        reach.near[rank] = {head: paths for head, paths in reach.near[rank].items() if (rank, head) not in slow}
    reach.has_dropped = bool(slow)
    return reach.has_dropped


def find_center(reach: Reach, members: Sequence[int]) -> int:
    """Return the member with the least distance to its farthest member; members that reach all others come first."""

    def farthest(source: int) -> int:
        """Return the hops to the farthest member; if some member is out of reach, more than any path has."""
        tree = reach.tree_from(source)
        return max(tree[other].depth if other in tree else reach.topology.ranks for other in members)

    best: tuple[int, int] | None = None
    for member in sorted(members):
        candidate = farthest(member), member
        best = candidate if best is None else min(best, candidate)
        if best[0] <= 1:  # cannot be improved
            break
    assert best is not None
    return best[1]


def star_routes(topology: Topology, sources: Longs) -> Routes | None:
    """Return the paths from each source to all other ranks, in order of ranks; None unless all are one hop away.

    Also None if parallel links leave a choice. The paths are those of `Reach`, but computed for all sources at once:
    O(sources * links).

    >>> from antiphon.topologies import topology
    >>> routes = star_routes(topology("star:ranks=3"), np.array([2, 0]))
    >>> [routes[i] for i in range(4)]
    [(2, 3), (2, 4), (0, 4), (0, 5)]
    """
    # the links out of node n are order[first[n]] to order[first[n + 1] - 1]
    order, heads = order_of(topology.link_src, topology.nodes), topology.link_dst
    first = pointers(topology.link_src, topology.nodes)
    entered_by = np.full((len(sources), topology.nodes), -1, np.int32)  # first link that enters each node
    flat_entered = entered_by.reshape(-1)  # a view: what is written to it is in `entered_by`
    # Breadth-first from all sources at once: pairs of a source and a node that it has just reached.
    source_index, node = np.arange(len(sources)), sources
    is_first_round = True
    while len(node):
        link_count = first[node + 1] - first[node]
        link_source, link = np.repeat(source_index, link_count), order[concat_ranges(first[node], link_count)]
        key = link_source * topology.nodes + heads[link]  # (source, node) as one number
        is_new = (flat_entered[key] < 0) & (heads[link] != sources[link_source])
        link_source, link, key = link_source[is_new], link[is_new], key[is_new]
        flat_entered[key[::-1]] = link[::-1]  # reversed, so that the first of several wins
        is_first, switch = flat_entered[key] == link, heads[link] >= topology.ranks
        if is_first_round and not (is_first | switch).all():  # parallel links to a rank: more than one path
            return None
        is_first_round = False
        switch &= is_first
        source_index, node = link_source[switch], heads[link[switch]].astype(np.int64)
    reached = entered_by[:, : topology.ranks] >= 0
    if int(reached.sum()) < len(sources) * (topology.ranks - 1):
        return None
    source_index, node = np.nonzero(reached)
    return _trace_paths(topology, entered_by, sources, source_index, node)


def _trace_paths(topology: Topology, entered_by: Ints, sources: Longs, source_index: Longs, node: Longs) -> Routes:
    """Return the path to each node[i] from sources[source_index[i]], by the links that entered nodes, backwards."""
    rows_of_round, links_of_round, rows = [], [], np.arange(len(source_index))
    lengths = np.zeros(len(source_index), np.int64)
    while len(rows):
        link = entered_by[source_index[rows], node]
        rows_of_round.append(rows)
        links_of_round.append(link)
        lengths[rows] += 1
        node = topology.link_src[link].astype(np.int64)
        unfinished = node != sources[source_index[rows]]
        rows, node = rows[unfinished], node[unfinished]
    ends = np.cumsum(lengths)
    out = np.empty(int(lengths.sum()), np.int32)
    for back, (rows, link) in enumerate(zip(rows_of_round, links_of_round, strict=True), 1):
        out[ends[rows] - back] = link
    return Routes(np.append(0, ends), out)


def suggest_planners(topology: Topology, collective: Collective, *names: str, other: str = "fewer ranks") -> str:
    """Return the hint to use those of the named planners that support this collective on this machine, or `other`.

    On 4096 ranks of a torus neither relay, direct nor flows plans an alltoall, but ring plans an allgather:

    >>> from antiphon.topologies import topology
    >>> torus = topology("torus:dims=64x64")
    >>> suggest_planners(torus, Collective("alltoall", 4096), "relay", "direct", "flows")
    'use fewer ranks'
    >>> suggest_planners(torus, Collective("allgather", 4096), "relay", "direct", "ring")
    'use planner ring, or fewer ranks'
    """
    suitable = [name for name in names if _can_plan(find("planner", name), topology, collective)]
    if not suitable:
        return f"use {other}"
    listed = f"{', '.join(suitable[:-1])} or " if suitable[1:] else ""
    return f"use planner {listed}{suitable[-1]}, or {other}"


def _can_plan(entry: Entry[PlannerCapabilities], topology: Topology, collective: Collective) -> bool:
    """Return whether a planner's declared capabilities cover the collective, the number of ranks and the machine."""
    can = entry.can
    if collective.kind not in can.collectives:
        return False
    if len(collective.members) > can.most.get(collective.kind, topology.ranks):
        return False
    return not can.joined or _are_one_hop_from_first(topology, collective)


def _are_one_hop_from_first(topology: Topology, collective: Collective) -> bool:
    """Return whether all members are one hop from the first one.

    Planners that declare `joined` need every two members one hop apart. For a hint this cheaper test of one member is
    enough: few machines pass it without being joined.
    """
    first, *other_members = collective.members
    return Reach(topology).neighbours(first).keys() >= set(other_members)
