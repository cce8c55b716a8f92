"""Find the ring or chain of ranks that each chunk of a schedule follows; nccl_graph.py writes them for NCCL.

The copies of a chunk are hops between ranks, and so are its reductions. Hops that visit every rank once form a ring. A
reduction along such a path and a broadcast back along the reverse path form a chain. Example: the hops 2>3, 3>0, 0>1
are the path 2 3 0 1, written from rank 0 as the ring 0 1 2 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from antiphon.core.schedule import REDUCE, Schedule
from antiphon.errors import Unsupported

RING, CHAIN = "ring", "chain"
Hops = list[tuple[int, int]]  # (sender, receiver)


@dataclass(frozen=True)
class CircleOrder:
    """The ranks of a ring or chain in order.

    `form`: RING, which is written from rank 0, or CHAIN, which is written from the end where reductions arrive.
    `share`: the fraction of all data that follows this order. `rows`: the rows of the schedule that move this data.
    """

    form: str
    ranks: tuple[int, ...]
    share: Fraction
    rows: tuple[int, ...]


def find_orders(schedule: Schedule) -> list[CircleOrder]:
    """Return the rings and chains, with the share of the data that follows each. O(rows log rows).

    In a ring a chunk may begin at any rank; an allreduce reduces and then copies it in the same direction. In a chain
    it is reduced towards one end and copied back in the other direction. Raises Unsupported for the first chunk that
    follows neither. Rows of the example: step, chunk, from, to, and 1 for a reduction.

    >>> from antiphon.core.example import of_rows
    >>> chain = [(0, 0, 2, 1, 1), (1, 0, 1, 0, 1), (2, 0, 0, 1, 0), (3, 0, 1, 2, 0)]
    >>> find_orders(of_rows("allreduce", 3, chain))
    [CircleOrder(form='chain', ranks=(0, 1, 2), share=Fraction(1, 1), rows=(0, 1, 2, 3))]
    """
    by_order: dict[tuple[str, tuple[int, ...]], tuple[Fraction, list[int]]] = {}
    weights, total = schedule.chunks.weights(schedule.collective)
    # Rows sorted by chunk: those of chunk c are by_chunk[cuts[c]:cuts[c + 1]].
    by_chunk = np.argsort(schedule.chunk, kind="stable")
    cuts = np.searchsorted(schedule.chunk[by_chunk], np.arange(len(schedule.chunks) + 1))
    for chunk in range(len(schedule.chunks)):
        rows = by_chunk[cuts[chunk] : cuts[chunk + 1]]
        key = _order_of(schedule, rows)
        if key is None:
            raise Unsupported(f"chunk {chunk} goes along no ring and no chain of all ranks")
        share, rows_before = by_order.get(key, (Fraction(0), []))
        by_order[key] = share + Fraction(int(weights[chunk]), int(total)), [*rows_before, *rows.tolist()]
    return [CircleOrder(form, ranks, share, tuple(rows)) for (form, ranks), (share, rows) in sorted(by_order.items())]


def _order_of(schedule: Schedule, rows: np.ndarray) -> tuple[str, tuple[int, ...]] | None:
    """Return the form and ranks of the order that the rows of one chunk follow; None if they follow none."""
    pairs = list(zip(schedule.src[rows].tolist(), schedule.dst[rows].tolist(), strict=True))
    combines = (schedule.op[rows] == REDUCE).tolist()
    # Separate reductions (True) from copies (False): each must be a path by itself. That of reductions, if there are
    # any, is paths[0].
    hops = {c: [pair for pair, combined in zip(pairs, combines, strict=True) if combined == c] for c in (True, False)}
    paths = [_find_path(pairs_of_op, schedule.collective.ranks) for pairs_of_op in hops.values() if pairs_of_op]
    if not paths or None in paths:
        return None
    ring = _from_rank_zero(paths[0])
    # One direction throughout: a ring, wherever its paths begin.
    if len(paths) == 1 or _from_rank_zero(paths[1]) == ring:
        return RING, ring
    return (CHAIN, tuple(paths[1] or ())) if paths[0] == (paths[1] or [])[::-1] else None


def _find_path(hops: Hops, ranks: int) -> list[int] | None:
    """Return the ranks in the order in which these hops lead through all of them, each once; None if they do not."""
    after = dict(hops)
    # A path through P ranks has P - 1 hops, one start, and no rank with two successors.
    starts = [a for a in after if a not in set(after.values())]
    if len(hops) != ranks - 1 or len(after) != ranks - 1 or len(starts) != 1:
        return None
    path = starts
    # The limit ends the walk if it enters a cycle.
    while path[-1] in after and len(path) <= ranks:
        path.append(after[path[-1]])
    return path if len(set(path)) == ranks else None


def _from_rank_zero(path: Sequence[int] | None) -> tuple[int, ...]:
    """Return a ring, written from rank 0 on."""
    ring = tuple(path or ())
    at = ring.index(0)
    return ring[at:] + ring[:at]
