"""What a collective asks for, in chunks of about the same size: who has, who wants, and who may pass on what."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from antiphon.core.bounds.needs import needs_of
from antiphon.core.collective import Collective
from antiphon.core.columns import Bools, Floats, Longs, ranges
from antiphon.core.schedule import Chunks
from antiphon.core.topology import Topology
from antiphon.errors import Infeasible, Unsupported
from antiphon.planners.greedy.bits import Words
from antiphon.planners.greedy.hops import Hops
from antiphon.planners.greedy.spread import Task
from antiphon.planners.shared.reach import Reach

MOST_CELLS = 2**30  # of chunks and ranks


def chunks_of(collective: Collective, parts: int) -> Chunks:
    """The heaviest blocks cut into `parts`, the others into half as many, a quarter, ...: about as heavy each.

    Weights 8, 4 and 1, and 2 parts:

    >>> from antiphon.core.collective import Collective
    >>> chunks = chunks_of(Collective("allgather", 3, weights=[8, 4, 1]), 2)
    >>> chunks.block.tolist(), chunks.offset.tolist(), chunks.share.tolist(), chunks.denominator
    ([0, 0, 1, 2], [0, 1, 0, 0], [1, 1, 2, 2], 2)
    """
    weight = collective.weights.astype(np.float64)
    top = float(weight.max(initial=0)) or 1.0
    halved = np.floor(np.log2(np.maximum(top / np.maximum(weight, top / 2**30), 1)))
    count = np.maximum(parts // 2 ** np.minimum(halved, 30), 1).astype(np.int64)
    whole = int(np.lcm.reduce(np.unique(count))) if len(count) else 1
    block = np.repeat(np.arange(len(count)), count)
    share = whole // count[block]
    offset = ranges(np.zeros(len(count), np.int64), count) * share
    return Chunks(block.astype(np.int32), offset, share, whole)


def task_of(topology: Topology, collective: Collective, hops: Hops, chunks: Chunks) -> Task:
    """Unsupported where data must be combined; Infeasible where something is out of reach."""
    if collective.combining or (collective.custom is not None and needs_of(collective).joined):
        raise Unsupported("planner greedy: it moves and copies data, but custom collectives that combine need relay")
    ranks, blocks = topology.ranks, collective.blocks
    if ranks * len(chunks) > MOST_CELLS:
        raise Unsupported(
            f"planner greedy: {len(chunks)} chunks on {ranks} ranks are too many; use fewer parts, or planner flows"
        )
    relation = collective.relation
    have, want = np.zeros((ranks, blocks), np.bool_), np.zeros((ranks, blocks), np.bool_)
    have[relation.pre_rank, relation.pre_block] = True
    want[relation.post_rank, relation.post_block] = True
    allowed = None if (have | want).all() else _allowed(hops, have, want, relation_sources(collective))
    out = _out_of_reach(topology, hops, have, want)
    if out is not None:
        raise out
    block = chunks.block
    may = None if allowed is None else packed_bits(allowed[:, block])
    return Task(ranks, len(chunks), packed_bits(have[:, block]), packed_bits(want[:, block]), may)


def relation_sources(collective: Collective) -> Longs:
    """Of every block the first rank that has it."""
    relation = collective.relation
    source = np.zeros(collective.blocks, np.int64)
    source[relation.pre_block[::-1]] = relation.pre_rank[::-1]
    return source


def packed_bits(cells: Bools) -> Words:
    """Columns of yes and no as bits.

    >>> packed_bits(np.array([[True, False, True]])).tolist()
    [[5]]
    """
    rows, many = cells.shape
    octets = np.packbits(np.pad(cells, ((0, 0), (0, -many % 64))), axis=1, bitorder="little")
    return np.ascontiguousarray(octets).view("<u8").astype(np.uint64).reshape(rows, -1)


def _allowed(hops: Hops, have: Bools, want: Bools, source: Longs) -> Bools:
    """Whoever wants a block, and those on the way: along a tree of fewest hops from the rank that has it, over hops
    that earlier trees used least. O(sources * hops)."""
    allowed = want.copy()
    used = np.zeros(len(hops))
    price = 1 / np.maximum(hops.width[hops.kind], 1e-300) if len(hops) else np.zeros(0)
    for root in np.unique(source).tolist():
        mine = np.flatnonzero(source == root)
        levels = _tree(hops, root, used, len(have))
        wanted = want[:, mine] & ~have[:, mine]
        for taken in reversed(levels):
            src, dst = hops.src[taken], hops.dst[taken]
            used[taken] += wanted[dst].sum(axis=1) * price[taken]
            np.logical_or.at(wanted, src, wanted[dst])
        allowed[:, mine] |= wanted
    return allowed


def _tree(hops: Hops, root: int, used: Floats, ranks: int) -> list[Longs]:
    """The hops of a tree of fewest hops to all that can be reached, level by level."""
    seen = np.zeros(ranks, np.bool_)
    seen[root] = True
    near = seen.copy()
    levels: list[Longs] = []
    while True:
        open_ = np.flatnonzero(near[hops.src] & ~seen[hops.dst])
        if not len(open_):
            return levels
        order = open_[np.lexsort((hops.kind[open_], used[open_], hops.dst[open_]))]
        taken = order[np.append(True, hops.dst[order][1:] != hops.dst[order][:-1])]
        near = np.zeros(ranks, np.bool_)
        near[hops.dst[taken]] = True
        seen |= near
        levels.append(taken)


def _out_of_reach(topology: Topology, hops: Hops, have: Bools, want: Bools) -> Exception | None:
    """What to say where some rank cannot be brought what it wants."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    ranks = topology.ranks
    graph = csr_array((np.ones(len(hops)), (hops.src, hops.dst)), shape=(ranks, ranks))
    if connected_components(graph, directed=True, connection="strong")[0] == 1:
        return None
    known = have.copy()
    while True:
        before = int(known.sum())
        np.logical_or.at(known, hops.dst, known[hops.src])
        if int(known.sum()) == before:
            break
    lost = np.argwhere(want & ~known)
    if not len(lost):
        return None
    rank, block = lost[0].tolist()
    return _lost(topology, np.flatnonzero(have[:, block]).tolist(), rank)


def _lost(topology: Topology, holders: Sequence[int], rank: int) -> Exception:
    reach = Reach(topology)
    for holder in holders:
        if rank in reach.of(holder):
            return Unsupported(
                f"planner greedy: what rank {rank} wants comes from rank {holder} by links without bandwidth, or "
                "farther than it looks; use planner relay"
            )
    return Infeasible(
        f"planner greedy: no links lead from rank {holders[0]} to rank {rank} of {topology.name}, not even by way of "
        "others; no planner can do that"
    )
