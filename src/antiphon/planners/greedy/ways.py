"""Routes of chunks with one source and one destination, read off the trees of their sources."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from antiphon.core.columns import Longs, pointers
from antiphon.planners.greedy.hops import Hops


@dataclass(frozen=True, eq=False)
class ChunkRoutes:
    """The hops of every chunk, from where it is to who wants it: those of chunk c from ptr[c] on."""

    ptr: Longs
    hop: Longs


def chunk_routes(hops: Hops, parent: Longs, source: Longs, want: Longs) -> ChunkRoutes:
    """`parent[root, rank]`: the hop by which the tree of a root reaches a rank. O(chunks * hops of a way).

    A line of ranks 0, 1, 2, whose hops 0 and 1 lead along it:

    >>> from types import SimpleNamespace
    >>> line = SimpleNamespace(src=np.array([0, 1]), dst=np.array([1, 2]))
    >>> ways = chunk_routes(line, np.array([[-1, 0, 1]]), np.array([0, 0]), np.array([2, 1]))
    >>> ways.ptr.tolist(), ways.hop.tolist()
    ([0, 2, 3], [0, 1, 0])
    """
    at = want.copy()
    chunks: list[Longs] = []
    used: list[Longs] = []
    moving = np.flatnonzero(at != source)
    while len(moving):
        hop = parent[source[moving], at[moving]]
        chunks.append(moving)
        used.append(hop)
        at[moving] = hops.src[hop]
        moving = moving[at[moving] != source[moving]]
    chunk = np.concatenate([np.zeros(0, np.int64), *chunks[::-1]])
    order = np.argsort(chunk, kind="stable")
    hop = np.concatenate([np.zeros(0, np.int64), *used[::-1]])[order]
    return ChunkRoutes(pointers(chunk[order], len(source)), hop)
