"""The problem that SCCL's synthesis solves (section 3.2 of its paper), for any machine and non-combining collective.

An algorithm of S steps takes r_s rounds in step s, R in all; it is called k-synchronous if R <= S + k. In one round a
resource (a link or a shared limit) of c times the bandwidth of the unit link carries c chunks. A block of weight w (its
relative size) is cut into w * parts_per_unit chunks of equal size; here "unit" is a weight of 1. With input_weight, the
total weight of the blocks that a rank starts with, SCCL's number of chunks per rank is C = parts_per_unit *
input_weight.

Three reductions keep instances small:

- Blocks with the same holders and destinations form one `Kind`; their chunks are interchangeable.
- Parallel links between the same nodes under the same limits form one *bond*; whole numbers of chunks divide over them
  freely. Links with a fractional capacity stay separate: two links of 3/2 carry 1 chunk each per round, not 3 together.
- A transfer from rank to rank is an *arc*: a bond, or a simple path of bonds through switches, within one step. Where
  paths do not matter, a *move* is one chunk crossing one bond in one step.

Example: an allgather on a DGX-1 has 8 kinds (one per source rank), each with one holder and 7 destinations. A machine
of 4 ranks around one switch has 8 bonds (up and down) and 12 arcs, one per ordered pair of ranks.

Combining collectives are planned as their dual on the machine with all links reversed; `instance_of` refuses them.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from antiphon.core.collective import Collective
from antiphon.core.columns import Ints
from antiphon.core.topology import Topology
from antiphon.errors import Invalid, Unsupported

# At most this many paths through switches are listed per pair of ranks, and per rank and switch on the way. The search
# goes by length, so the paths that are dropped are at least as long as those listed.
MOST_PATHS = 12
MOST_NODES = 1024  # larger machines are refused
FAR = 10**6  # the distance of nodes that cannot be reached


@dataclass(frozen=True)
class Kind:
    """Interchangeable chunks: the ranks that hold them, the ranks that lack and want them, and their blocks."""

    holders: tuple[int, ...]
    dests: tuple[int, ...]
    blocks: tuple[int, ...]
    weights: tuple[int, ...]  # one per block

    @property
    def weight(self) -> int:
        return sum(self.weights)


@dataclass(frozen=True, eq=False)
class Arcs:
    """Transfers from rank to rank in one step."""

    tail: Ints  # per arc its source rank
    head: Ints  # per arc its target rank
    paths: tuple[tuple[int, ...], ...]  # per arc its bonds
    load: tuple[Ints, Ints]  # (arc, resource) pairs; a resource loaded twice is listed twice
    exhaustive: bool  # no simple path was left out

    def __len__(self) -> int:
        return len(self.tail)


@dataclass(frozen=True, eq=False)
class Instance:
    """A machine and a collective as in SCCL's problem, without the numbers of chunks, steps and rounds.

    Resources are numbered: the bonds, then the shared limits.
    """

    topology: Topology
    collective: Collective
    bonds: tuple[tuple[int, ...], ...]  # per bond its links
    tail: Ints  # per bond its source node
    head: Ints  # per bond its target node
    capacity: tuple[Fraction, ...]  # per resource, in chunks per round
    limits_of: tuple[tuple[int, ...], ...]  # per bond its shared limits, as resources
    kinds: tuple[Kind, ...]

    @property
    def ranks(self) -> int:
        return self.topology.ranks

    @property
    def nodes(self) -> int:
        return self.topology.nodes

    @property
    def input_weight(self) -> int:
        return self.collective.input_weight

    @cached_property
    def distance(self) -> NDArray[np.int32]:
        """Steps from every node to every other; FAR if there is no path. A link into a switch takes no step."""
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import dijkstra

        # Encode "steps first, then switch hops" in one integer: a link into a rank costs more than any path of switch
        # hops.
        link_cost = self.nodes + 1  # more than the switches of one path
        cost = np.where(self.head < self.ranks, link_cost, 1)
        # Bonds that join the same nodes have the same cost.
        edge_cost = dict(zip(zip(self.tail.tolist(), self.head.tolist(), strict=True), cost.tolist(), strict=True))
        ends = np.array(list(edge_cost), np.int64).reshape(-1, 2)
        costs = np.array(list(edge_cost.values()), float)
        graph = csr_array((costs, (ends[:, 0], ends[:, 1])), shape=(self.nodes,) * 2)
        encoded_distance = dijkstra(graph)
        encoded_distance[~np.isfinite(encoded_distance)] = FAR * link_cost
        # Division by link_cost drops the switch hops again.
        return np.asarray(encoded_distance // link_cost, np.int32)

    def from_holders(self, kind: Kind) -> NDArray[np.int32]:
        """Return per node the number of steps after which a chunk of this kind can be there at the earliest."""
        steps: NDArray[np.int32] = self.distance[list(kind.holders)].min(axis=0)
        return steps

    def to_dests(self, kind: Kind) -> NDArray[np.int32]:
        """Return per node the number of steps to the nearest destination."""
        steps: NDArray[np.int32] = self.distance[:, list(kind.dests)].min(axis=1)
        return steps

    def useful_moves(self, kind: Kind, steps: int) -> NDArray[np.bool_]:
        """Return per bond and step whether a move of a chunk of this kind can be useful.

        It is useful if the chunk can be at the tail by then, and can still get from the head to a destination in time.
        Any algorithm can leave out all other moves.
        """
        earliest = self.from_holders(kind)[self.tail]
        # A move into a rank takes its whole step, so the chunk is there only in the next one.
        latest = steps - self.to_dests(kind)[self.head] - (self.head < self.ranks)
        step = np.arange(steps)
        # Sends back to a holder are never useful.
        in_time = (earliest[:, None] <= step) & (step <= latest[:, None])
        return np.asarray(in_time & ~np.isin(self.head, kind.holders)[:, None])

    @cached_property
    def least_steps(self) -> int:
        """The greatest distance from a nearest holder to a destination: no algorithm has fewer steps.

        SCCL's lower bound a_l is the diameter of the machine, which is too great if, for example, a root is central.
        """
        farthest = [int(self.from_holders(k)[list(k.dests)].max()) for k in self.kinds]
        return max(farthest, default=0)

    @cached_property
    def arcs(self) -> Arcs:
        """All transfers that are possible in one step."""
        return _list_arcs(self)

    def chunks_of_kind(self, kind: Kind, parts_per_unit: int) -> list[tuple[int, int]]:
        """Return the chunks of a kind as (block, number of the chunk in the block)."""
        sizes = zip(kind.blocks, kind.weights, strict=True)
        return [(block, part_number) for block, weight in sizes for part_number in range(weight * parts_per_unit)]

    def parts_of(self, chunks: int) -> int:
        """Return the parts per unit of weight for this number of chunks per rank; Invalid if no whole number fits."""
        if chunks < 1 or chunks % self.input_weight:
            raise Invalid(
                f"chunks: {self.collective.kind} among {len(self.collective.members)} ranks takes a multiple of "
                f"{self.input_weight} chunks per rank, got {chunks}"
            )
        return chunks // self.input_weight


class _BondKey(NamedTuple):
    """Everything of a link that a plan could distinguish: links with equal keys form one bond."""

    tail: int
    head: int
    limits: tuple[int, ...]  # as resources of the topology: numbered after the links
    fractional_link: int  # the link itself if its capacity is a fraction, so that it stays separate; else -1


def instance_of(topology: Topology, collective: Collective) -> Instance:
    """Return the problem of a non-combining collective on a machine. O(links + rows of the relation)."""
    if collective.ranks != topology.ranks:
        raise Invalid(
            f"the collective is for {collective.ranks} ranks, but topology {topology.name} has {topology.ranks}"
        )
    if collective.combining:
        raise Unsupported(
            f"{collective.kind} combines data, which this search does not; plan its dual (the collective with holders "
            "and destinations exchanged) on the machine with all links reversed, and reverse the result"
        )
    if topology.nodes > MOST_NODES:
        raise Unsupported(f"topology {topology.name} has {topology.nodes} nodes; synthesis takes up to {MOST_NODES}")
    resources, links = topology.resources, topology.links
    # Chunks per round: the bandwidth of every resource (the links, then the limits) in those of the unit link.
    unit = topology.unit
    capacity = [resources.bytes_per_second(resource) / unit for resource in range(links + len(topology.limits))]
    # Merge parallel links into bonds.
    links_by_key: dict[_BondKey, list[int]] = {}
    for link in range(links):
        limits = tuple(sorted(resources.limits_of(link)))
        fractional_link = link if capacity[link].denominator != 1 else -1
        key = _BondKey(int(topology.link_src[link]), int(topology.link_dst[link]), limits, fractional_link)
        links_by_key.setdefault(key, []).append(link)
    bonds = tuple(tuple(members) for members in links_by_key.values())
    shift = len(bonds) - links  # limits were numbered after the links, and are now after the bonds
    instance = Instance(
        topology, collective, bonds,
        tail=np.array([key.tail for key in links_by_key], np.int32),
        head=np.array([key.head for key in links_by_key], np.int32),
        capacity=(*(sum((capacity[x] for x in bond), Fraction(0)) for bond in bonds), *capacity[links:]),
        limits_of=tuple(tuple(limit + shift for limit in key.limits) for key in links_by_key),
        kinds=_group_blocks(collective),
    )  # fmt: skip
    # Report an unreachable destination here, by rank, rather than as an unsatisfiable search later.
    for kind in instance.kinds:
        unreachable = [d for d in kind.dests if instance.from_holders(kind)[d] >= FAR]
        if unreachable:
            raise Invalid(
                f"no links lead from rank {kind.holders[0]} to rank {unreachable[0]} of {topology.name}, "
                "not even by way of others"
            )
    return instance


def _group_blocks(collective: Collective) -> tuple[Kind, ...]:
    """Group the blocks by holders and destinations."""
    relation = collective.relation
    holders_of: dict[int, set[int]] = defaultdict(set)
    destinations_of: dict[int, set[int]] = defaultdict(set)
    for block, rank in zip(relation.pre_block.tolist(), relation.pre_rank.tolist(), strict=True):
        holders_of[block].add(rank)
    for block, rank in zip(relation.post_block.tolist(), relation.post_rank.tolist(), strict=True):
        destinations_of[block].add(rank)
    blocks_of: dict[tuple[tuple[int, ...], tuple[int, ...]], list[tuple[int, int]]] = {}
    for block, weight in enumerate(collective.weights.tolist()):
        # Blocks without weight and blocks that every destination already holds need no transfers.
        lacking_ranks = tuple(sorted(destinations_of[block] - holders_of[block]))
        if weight and lacking_ranks:
            blocks_of.setdefault((tuple(sorted(holders_of[block])), lacking_ranks), []).append((block, weight))
    return tuple(
        Kind(holders, dests, tuple(b for b, _ in blocks), tuple(w for _, w in blocks))
        for (holders, dests), blocks in blocks_of.items()
    )


def _list_arcs(instance: Instance) -> Arcs:
    """Return the bonds between ranks, and paths through switches: all simple ones, or the shortest if they are too
    many."""
    ranks = instance.ranks
    out: list[list[int]] = [[] for _ in range(instance.nodes)]
    for bond, tail in enumerate(instance.tail.tolist()):
        out[tail].append(bond)
    head = instance.head.tolist()
    paths: list[tuple[int, ...]] = []
    exhaustive = True
    for rank in range(ranks):
        # A rank that has only direct links needs no search: every bond is an arc.
        if not all(head[bond] < ranks for bond in out[rank]):
            new_paths, is_complete = _paths_through_switches(rank, out, head, ranks)
            exhaustive &= is_complete
            paths += new_paths
        else:
            paths += [(bond,) for bond in out[rank]]
    tails = np.array([instance.tail[p[0]] for p in paths], np.int32)
    heads = np.array([instance.head[p[-1]] for p in paths], np.int32)
    # Load table: each path loads its bonds and, once per bond, the limits of that bond.
    loads = [(i, bond) for i, path in enumerate(paths) for bond in path]
    loads += [(i, limit) for i, path in enumerate(paths) for bond in path for limit in instance.limits_of[bond]]
    table = np.array(loads, np.int32).reshape(-1, 2)
    load = table[:, 0].copy(), table[:, 1].copy()
    return Arcs(tail=tails, head=heads, paths=tuple(paths), load=load, exhaustive=exhaustive)


def _paths_through_switches(
    rank: int, out: list[list[int]], head: list[int], ranks: int
) -> tuple[list[tuple[int, ...]], bool]:
    """Return simple paths from a rank through switches to other ranks, shortest first, and whether these are all.

    Breadth-first, limited to MOST_PATHS to each rank and to each switch: O(MOST_PATHS * switches * links).
    """
    paths_to: dict[int, list[tuple[int, ...]]] = defaultdict(list)
    paths_to_switch: dict[int, int] = defaultdict(int)
    level: list[tuple[tuple[int, ...], frozenset[int]]] = [((), frozenset())]
    is_complete = True
    while level:
        next_level = []
        for path, visited in level:
            node = head[path[-1]] if path else rank
            for bond in out[node]:
                end = head[bond]
                if end == rank or end in visited:
                    continue
                if end < ranks:
                    if len(paths_to[end]) < MOST_PATHS:
                        paths_to[end].append((*path, bond))
                    else:
                        is_complete = False
                # Pruning bounds the work; a pruned search is not exhaustive, so it can find plans but not refute them.
                elif paths_to_switch[end] < MOST_PATHS:
                    paths_to_switch[end] += 1
                    next_level.append(((*path, bond), visited | {end}))
                else:
                    is_complete = False
        level = next_level
    return [path for end in sorted(paths_to) for path in paths_to[end]], is_complete
