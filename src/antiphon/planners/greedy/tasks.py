"""Turn a collective into a task of the simulation: chunks of about equal size, who has them, who needs them, and who
may relay them.

Blocks are cut into parts such that all chunks have about the same weight (`chunks_of`), as the simulation counts every
chunk as one. Each rank then has a set of chunks that it has, that it needs, and that it may be given.

If some ranks are not members, or blocks are needed by few (scatter), letting everyone receive everything would waste
links. Then `_choose_relays` grows a tree from each source, at prices of links that rise with use, and only ranks on the
path to a receiver may be given a block. If each chunk has one source and one destination, the tree path is its route
(moves.py).

Example: a scatter from rank 0 on a grid of 3 x 3. Block 8 may be given to rank 8 and to the ranks on one path to it,
say 1, 2, 5; nobody else stores it. The path of block 6 avoids these links, as their prices have risen.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from antiphon.core.bounds.needs import needs_of
from antiphon.core.collective import Collective
from antiphon.core.columns import WORD_BITS, Bools, Floats, Longs, concat_ranges, reached_nodes
from antiphon.core.portable import exp
from antiphon.core.schedule import Chunks
from antiphon.core.topology import Topology
from antiphon.errors import Infeasible, Unsupported
from antiphon.planners.greedy.bits import Words
from antiphon.planners.greedy.chunk_routes import chunk_routes
from antiphon.planners.greedy.hops import Hops
from antiphon.planners.greedy.spread import SpreadTask
from antiphon.planners.shared.reach import Reach, suggest_planners

MOST_BITS = 2**30  # chunks times ranks
SWEEPS = 3  # how often each source's tree is grown again
MIN_PRICE = 0.01  # relative to that of the narrowest hop: avoids detours over wide links
STEEPNESS = 6.0  # the fullest hop costs e^6 times an empty one
NOT_ZERO = 1e-300  # a divisor where capacities or loads may be 0


def chunks_of(collective: Collective, part_count: int) -> Chunks:
    """Cut the heaviest blocks into `part_count` chunks, others into half as many, a quarter, ..., for about equal
    weights.

    Weights 8, 4 and 1, and 2 parts:

    >>> from antiphon.core.collective import Collective
    >>> chunks = chunks_of(Collective("allgather", 3, weights=[8, 4, 1]), 2)
    >>> chunks.block.tolist(), chunks.offset.tolist(), chunks.share.tolist(), chunks.denominator
    ([0, 0, 1, 2], [0, 1, 0, 0], [1, 1, 2, 2], 2)
    """
    weight = collective.weights.astype(np.float64)
    heaviest = float(weight.max(initial=0)) or 1.0
    # how often the heaviest weight must be halved to come down to this block's weight: 30 times at most, for weight 0
    halvings = np.floor(np.log2(np.maximum(heaviest / np.maximum(weight, heaviest / 2**30), 1)))
    count = np.maximum(part_count // 2**halvings, 1).astype(np.int64)
    denominator = int(np.lcm.reduce(np.unique(count))) if len(count) else 1
    block = np.repeat(np.arange(len(count)), count)
    share = denominator // count[block]
    offset = concat_ranges(np.zeros(len(count), np.int64), count) * share
    return Chunks(block.astype(np.int32), offset, share, denominator)


def task_of(topology: Topology, collective: Collective, hops: Hops, chunks: Chunks) -> SpreadTask:
    """Return the task. Raises Unsupported if data must be combined, Infeasible if something is unreachable."""
    # Built-in collectives that combine come as their dual (greedy.py); `joined`: a custom one may have to combine.
    if collective.combining or (collective.custom is not None and needs_of(collective).joined):
        raise Unsupported(
            "planner greedy: it moves and copies data, but custom collectives that combine need planner relay"
        )
    ranks, blocks = topology.ranks, collective.blocks
    if ranks * len(chunks) > MOST_BITS:
        suggestion = "fewer parts" if len(chunks) > blocks else "fewer ranks"
        raise Unsupported(
            f"planner greedy: {len(chunks)} chunks on {ranks} ranks are too many; "
            + suggest_planners(topology, collective, "compose", "flows", "direct", "relay", other=suggestion)
        )
    relation = collective.relation
    have, want = np.zeros((ranks, blocks), np.bool_), np.zeros((ranks, blocks), np.bool_)
    have[relation.pre_rank, relation.pre_block] = True
    want[relation.post_rank, relation.post_block] = True
    # refuse impossible requests before any tree is grown; the message names another planner if one could do it
    error = _find_unreachable(topology, hops, have, want)
    if error is not None:
        raise error
    source = relation_sources(collective)
    allowed, parent = (None, None) if (have | want).all() else _choose_relays(hops, have, want, source)
    block = chunks.block
    allowed_chunks = None if allowed is None else packed_bits(allowed[:, block])
    lacking = want & ~have
    routes = None
    if parent is not None and bool((have.sum(axis=0) <= 1).all() and (lacking.sum(axis=0) <= 1).all()):
        # one source and one receiver per block: routes can be fixed in advance. A block that is already in place
        # ends at its source
        destination = np.where(lacking.any(axis=0), lacking.argmax(axis=0), source)
        routes = chunk_routes(hops, parent, source[block], destination[block])
    return SpreadTask(
        ranks, len(chunks), packed_bits(have[:, block]), packed_bits(want[:, block]), allowed_chunks, routes
    )


def relation_sources(collective: Collective) -> Longs:
    """Return for every block the first rank that has it."""
    relation = collective.relation
    source = np.zeros(collective.blocks, np.int64)
    # backwards, as the last of several assignments to a block stays
    source[relation.pre_block[::-1]] = relation.pre_rank[::-1]
    return source


def packed_bits(cells: Bools) -> Words:
    """Pack boolean columns into bits.

    >>> packed_bits(np.array([[True, False, True]])).tolist()
    [[5]]
    """
    rows, columns = cells.shape
    octets = np.packbits(np.pad(cells, ((0, 0), (0, -columns % WORD_BITS))), axis=1, bitorder="little")
    return np.ascontiguousarray(octets).view("<u8").astype(np.uint64).reshape(rows, -1)


def _choose_relays(hops: Hops, have: Bools, want: Bools, source: Longs) -> tuple[Bools, Longs]:
    """Return allowed[rank, block], whether the rank may be given the block, and parent[root, rank], the hop of the
    root's tree that leads to the rank.

    A tree per source, each grown SWEEPS times at prices that depend on the load by all other trees. O(sources * hops).
    """
    from scipy.sparse import csr_array

    ranks = len(have)
    parent = np.full((ranks, ranks), -1, np.int64)
    # loads[hop, resource] = 1 where the hop uses the resource: loads @ price prices hops, loads.T @ amount sums their
    # use
    loads = csr_array((np.ones(len(hops.loaded)), hops.loaded, hops.ptr), shape=(len(hops), len(hops.capacity)))
    resource_load = np.zeros(len(hops.capacity))
    unit_time = 1 / np.maximum(hops.capacity, NOT_ZERO)
    unit_time = np.maximum(unit_time / unit_time[np.unique(hops.loaded)].max(initial=NOT_ZERO), MIN_PRICE)
    roots = [(root, np.flatnonzero(source == root)) for root in np.unique(source).tolist()]
    own_load: dict[int, Floats] = {root: np.zeros(len(hops)) for root, _ in roots}
    rng = np.random.default_rng(0)
    for _ in range(SWEEPS):
        for root, own_blocks in roots:
            # take this root's tree out and grow it again at the prices that the other roots' trees cause
            resource_load -= loads.T @ own_load[root]
            busy_time = resource_load * unit_time
            # the exponential price of multiplicative-weights routing: a nearly full resource is avoided, an empty one
            # costs its time
            price = unit_time * exp(STEEPNESS * busy_time / max(float(busy_time.max(initial=0.0)), NOT_ZERO))
            # up to 1/8 of noise breaks ties differently for every root; otherwise all trees would choose the same of
            # equal paths
            hop_price = (loads @ price) * (1 + rng.random(len(hops)) / 8)
            count = (want[:, own_blocks] & ~have[:, own_blocks]).sum(axis=1)
            own_load[root] = np.zeros(len(hops))
            # from the leaves to the root: a hop carries what its end needs and what passes on from there
            for hop in _cheapest_tree(hops, root, hop_price, ranks)[::-1]:
                own_load[root][hop] = count[hops.dst[hop]]
                np.add.at(count, hops.src[hop], count[hops.dst[hop]])
                parent[root, hops.dst[hop]] = hop
            resource_load += loads.T @ own_load[root]
    allowed = want.copy()
    for root, own_blocks in roots:
        # from every receiver up the tree to the root: all ranks on the way may be given the block
        rank, column = np.nonzero(want[:, own_blocks] & ~have[:, own_blocks])
        while len(rank):
            allowed[rank, own_blocks[column]] = True
            below_root = rank != root
            rank, column = hops.src[parent[root, rank[below_root]]], column[below_root]
    return allowed, parent


def _cheapest_tree(hops: Hops, root: int, price: Floats, ranks: int) -> list[Longs]:
    """Return the hops of a tree of cheapest paths to all reachable ranks, level by level."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import dijkstra

    pair = hops.src * ranks + hops.dst
    order = np.lexsort((price, pair))
    # of parallel hops keep the cheapest: sorted by pair, then price, it is the first of its pair
    order = order[np.append(True, pair[order][1:] != pair[order][:-1])]
    graph = csr_array((price[order], (hops.src[order], hops.dst[order])), shape=(ranks, ranks))
    predecessor = dijkstra(graph, indices=root, return_predecessors=True)[1]
    reached = np.flatnonzero(predecessor >= 0)
    hop = np.full(ranks, -1)  # by rank: the hop into it from its predecessor
    hop[reached] = order[np.searchsorted(pair[order], predecessor[reached].astype(np.int64) * ranks + reached)]
    levels: list[Longs] = []
    in_last_level = np.zeros(ranks, np.bool_)
    in_last_level[root] = True
    while True:
        level = reached[in_last_level[predecessor[reached]]]
        if not len(level):
            return levels
        levels.append(hop[level])
        in_last_level = np.zeros(ranks, np.bool_)
        in_last_level[level] = True


def _find_unreachable(topology: Topology, hops: Hops, have: Bools, want: Bools) -> Exception | None:
    """Return the error to raise if some rank cannot be sent what it needs; None if all can."""
    # Usually rank 0 reaches all ranks, and all reach it: then nothing is out of reach.
    first = np.arange(topology.ranks) == 0
    if all(reached_nodes(first, *ends).all() for ends in ((hops.src, hops.dst), (hops.dst, hops.src))):
        return None
    reached = have.copy()
    while True:
        before = int(reached.sum())
        np.logical_or.at(reached, hops.dst, reached[hops.src])
        if int(reached.sum()) == before:
            break
    # block by block, then rank by rank: the error names the same ranks as that of planner relay
    unreachable = np.argwhere((want & ~reached).T)
    if not len(unreachable):
        return None
    block, rank = unreachable[0].tolist()
    return _explain_unreachable(topology, np.flatnonzero(have[:, block]).tolist(), rank)


def _explain_unreachable(topology: Topology, holders: Sequence[int], rank: int) -> Exception:
    """Return the error for a rank that no hop sequence reaches."""
    reach = Reach(topology)  # unlike hops (hops.py): links without bandwidth, too, and all distances between ranks
    for holder in holders:
        if rank in reach.tree_from(holder):
            return Unsupported(
                f"planner greedy: what rank {rank} wants comes from rank {holder} by links without bandwidth, or "
                "farther than it looks; use planner relay"
            )
    return Infeasible(
        f"planner greedy: no links lead from rank {holders[0]} to rank {rank} of {topology.name}, not even by way of "
        "others; no planner can do that"
    )
