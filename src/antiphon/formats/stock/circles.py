"""Find the ring or chain of ranks that each chunk of a schedule follows, from its rows alone.

The copies (and reductions) of a chunk are hops. They form a ring if they lead through all ranks, each once; a
reduction along a path and the broadcast back along the reverse path form a chain. Example: the hops 2>3, 3>0, 0>1 are
the path 2 3 0 1, written from rank 0 as the ring 0 1 2 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from antiphon.core.schedule import REDUCE, Schedule
from antiphon.errors import Unsupported

RING, CHAIN = "ring", "chain"
Hops = list[tuple[int, int]]


@dataclass(frozen=True)
class Order:
    """Ranks one after the other. `form`: a ring, which begins with rank 0, or a chain, whose first is the root of what
    is combined towards it. `share`: its part of all data. `rows`: those of the schedule that go along it."""

    form: str
    ranks: tuple[int, ...]
    share: Fraction
    rows: tuple[int, ...]


def find_orders(schedule: Schedule) -> list[Order]:
    """Return the rings (or chains) with the share of the data that goes along each. Unsupported names the first chunk
    that goes along neither. O(rows log rows).

    A ring: every chunk passes through all ranks in one order, wherever it begins, and where it is combined and then
    spread it goes on in the same direction. A chain: it is combined towards one end, and comes back the way it went.

    >>> from antiphon.core.example import of_rows
    >>> chain = [(0, 0, 2, 1, 1), (1, 0, 1, 0, 1), (2, 0, 0, 1, 0), (3, 0, 1, 2, 0)]
    >>> find_orders(of_rows("allreduce", 3, chain))
    [Order(form='chain', ranks=(0, 1, 2), share=Fraction(1, 1), rows=(0, 1, 2, 3))]
    """
    by_order: dict[tuple[str, tuple[int, ...]], tuple[Fraction, list[int]]] = {}
    weights, total = schedule.chunks.weights(schedule.collective)
    # Group the rows by chunk; `cuts` are the limits of the groups.
    by_chunk = np.argsort(schedule.chunk, kind="stable")
    cuts = np.searchsorted(schedule.chunk[by_chunk], np.arange(len(schedule.chunks) + 1))
    for chunk in range(len(schedule.chunks)):
        rows = by_chunk[cuts[chunk] : cuts[chunk + 1]]
        key = _order_of(schedule, rows)
        if key is None:
            raise Unsupported(f"chunk {chunk} goes along no ring and no chain of all ranks")
        share, rows_before = by_order.get(key, (Fraction(0), []))
        by_order[key] = share + Fraction(int(weights[chunk]), int(total)), [*rows_before, *rows.tolist()]
    return [Order(form, ranks, share, tuple(rows)) for (form, ranks), (share, rows) in sorted(by_order.items())]


def _order_of(schedule: Schedule, rows: np.ndarray) -> tuple[str, tuple[int, ...]] | None:
    pairs = list(zip(schedule.src[rows].tolist(), schedule.dst[rows].tolist(), strict=True))
    combines = (schedule.op[rows] == REDUCE).tolist()
    # Separate reductions (True) from copies (False): each must be a path by itself.
    hops = {c: [pair for pair, combined in zip(pairs, combines, strict=True) if combined == c] for c in (True, False)}
    paths = [_find_path(pairs_of_op, schedule.collective.ranks) for pairs_of_op in hops.values() if pairs_of_op]
    if not paths or None in paths:
        return None
    inward = _from_rank_zero(paths[0])
    # One direction throughout: a ring, wherever its paths begin.
    if len(paths) == 1 or _from_rank_zero(paths[1]) == inward:
        return RING, inward
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
