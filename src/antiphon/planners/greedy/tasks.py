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
from antiphon.planners.greedy.ways import ways_of
from antiphon.planners.shared.reach import Reach

MOST_CELLS = 2**30  # of chunks and ranks
SWEEPS = 3
STEEP = 6.0  # how much dearer the fullest hop is than an empty one: this power of e


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
    out = _out_of_reach(topology, hops, have, want)
    if out is not None:
        raise out
    source = relation_sources(collective)
    allowed, parent = (None, None) if (have | want).all() else _allowed(hops, have, want, source)
    block = chunks.block
    may = None if allowed is None else packed_bits(allowed[:, block])
    lacking = want & ~have
    ways = None
    if parent is not None and bool((have.sum(axis=0) <= 1).all() and (lacking.sum(axis=0) <= 1).all()):
        goal = np.where(lacking.any(axis=0), lacking.argmax(axis=0), source)
        ways = ways_of(hops, parent, source[block], goal[block])
    return Task(ranks, len(chunks), packed_bits(have[:, block]), packed_bits(want[:, block]), may, ways)


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


def _allowed(hops: Hops, have: Bools, want: Bools, source: Longs) -> tuple[Bools, Longs]:
    """Whoever wants a block, and those on the way: along a tree of fewest hops from the rank that has it, over hops
    that the other trees use least. Then by root and rank the hop of its tree that leads to the rank.

    Every tree is grown `SWEEPS` times, each time at prices by what all others use. O(sources * hops).
    """
    parent = np.full((len(have), len(have)), -1, np.int64)
    used = np.zeros(len(hops))
    slow = 1 / hops.width[hops.kind] if len(hops) else used
    roots = [(root, np.flatnonzero(source == root)) for root in np.unique(source).tolist()]
    mine_of = {root: np.zeros(len(hops)) for root, _ in roots}
    passed: dict[int, Bools] = {}
    rng = np.random.default_rng(0)
    for _ in range(SWEEPS):
        for root, mine in roots:
            used -= mine_of[root]
            full = used * slow
            price = np.exp(STEEP * full / max(float(full.max(initial=0.0)), 1e-300)) * (1 + rng.random(len(hops)) / 8)
            levels = _tree(hops, root, price * slow / slow.max(initial=1e-300), len(have))
            wanted = want[:, mine] & ~have[:, mine]
            mine_of[root] = np.zeros(len(hops))
            for taken in reversed(levels):
                src, dst = hops.src[taken], hops.dst[taken]
                mine_of[root][taken] = wanted[dst].sum(axis=1)
                np.logical_or.at(wanted, src, wanted[dst])
                parent[root, dst] = taken
            used += mine_of[root]
            passed[root] = wanted
    allowed = want.copy()
    for root, mine in roots:
        allowed[:, mine] |= passed[root]
    return allowed, parent


def _tree(hops: Hops, root: int, price: Floats, ranks: int) -> list[Longs]:
    """The hops of a tree of fewest hops to all that can be reached, the cheapest of such, level by level."""
    seen = np.zeros(ranks, np.bool_)
    seen[root] = True
    near, cost = seen.copy(), np.zeros(ranks)
    levels: list[Longs] = []
    while True:
        open_ = np.flatnonzero(near[hops.src] & ~seen[hops.dst])
        if not len(open_):
            return levels
        paid = cost[hops.src[open_]] + price[open_]
        order = np.lexsort((paid, hops.dst[open_]))
        order = order[np.append(True, hops.dst[open_[order]][1:] != hops.dst[open_[order]][:-1])]
        taken = open_[order]
        cost[hops.dst[taken]] = paid[order]
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
