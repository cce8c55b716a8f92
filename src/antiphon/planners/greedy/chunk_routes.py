"""Routes of chunks that have one source and one destination, read from the tree of each source.

The route of a chunk is a chain of hops; a hop leads from rank to rank without a rank in between. A route is traced
backwards: from the destination to the hop by which the tree reaches it, to the start of that hop, and so on to the
source.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from antiphon.core.columns import Longs, pointers
from antiphon.planners.greedy.hops import Hops


@dataclass(frozen=True, eq=False)
class ChunkRoutes:
    """The hops of every chunk from its source to its destination: those of chunk c are hop[ptr[c]:ptr[c + 1]]."""

    ptr: Longs
    hop: Longs


def chunk_routes(hops: Hops, parent: Longs, source: Longs, want: Longs) -> ChunkRoutes:
    """Return the routes. O(chunks * hops of a route).

    `parent[root, rank]`: the hop by which the tree of a root reaches a rank; `source`, `want`: the rank where each
    chunk starts, and the rank that wants it.

    A line of ranks 0, 1, 2, whose hops 0 and 1 lead along it:

    >>> from types import SimpleNamespace
    >>> line = SimpleNamespace(src=np.array([0, 1]), dst=np.array([1, 2]))
    >>> routes = chunk_routes(line, np.array([[-1, 0, 1]]), np.array([0, 0]), np.array([2, 1]))
    >>> routes.ptr.tolist(), routes.hop.tolist()
    ([0, 2, 3], [0, 1, 0])
    """
    reached_rank = want.copy()
    chunk_columns: list[Longs] = []
    hop_columns: list[Longs] = []
    moving = np.flatnonzero(reached_rank != source)
    while len(moving):
        hop = parent[source[moving], reached_rank[moving]]
        chunk_columns.append(moving)
        hop_columns.append(hop)
        reached_rank[moving] = hops.src[hop]
        moving = moving[reached_rank[moving] != source[moving]]
    # reversed, so that after the stable sort by chunk the hops of a chunk begin at its source
    chunk = np.concatenate([np.zeros(0, np.int64), *chunk_columns[::-1]])
    order = np.argsort(chunk, kind="stable")
    hop = np.concatenate([np.zeros(0, np.int64), *hop_columns[::-1]])[order]
    return ChunkRoutes(pointers(chunk[order], len(source)), hop)
