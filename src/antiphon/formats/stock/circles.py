"""Which rings or chains of ranks a schedule goes along, read off its rows alone."""

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


def orders(schedule: Schedule) -> list[Order]:
    """The rings (or chains) with the part of the data that goes along each. Unsupported names the first chunk that goes
    along neither. O(rows log rows).

    A ring: every chunk passes through all ranks in one order, wherever it begins, and where it is combined and then
    spread it goes on in the same direction. A chain: it is combined towards one end, and comes back the way it went.

    >>> from antiphon.core.example import of_rows
    >>> chain = [(0, 0, 2, 1, 1), (1, 0, 1, 0, 1), (2, 0, 0, 1, 0), (3, 0, 1, 2, 0)]
    >>> orders(of_rows("allreduce", 3, chain))
    [Order(form='chain', ranks=(0, 1, 2), share=Fraction(1, 1), rows=(0, 1, 2, 3))]
    """
    found: dict[tuple[str, tuple[int, ...]], tuple[Fraction, list[int]]] = {}
    weights, whole = schedule.chunks.weights(schedule.collective)
    order = np.argsort(schedule.chunk, kind="stable")
    cuts = np.searchsorted(schedule.chunk[order], np.arange(len(schedule.chunks) + 1))
    for chunk in range(len(schedule.chunks)):
        rows = order[cuts[chunk] : cuts[chunk + 1]]
        key = _order_of(schedule, rows)
        if key is None:
            raise Unsupported(f"chunk {chunk} goes along no ring and no chain of all ranks")
        share, mine = found.get(key, (Fraction(0), []))
        found[key] = share + Fraction(int(weights[chunk]), int(whole)), [*mine, *rows.tolist()]
    return [Order(form, ranks, share, tuple(rows)) for (form, ranks), (share, rows) in sorted(found.items())]


def _order_of(schedule: Schedule, rows: np.ndarray) -> tuple[str, tuple[int, ...]] | None:
    pairs = list(zip(schedule.src[rows].tolist(), schedule.dst[rows].tolist(), strict=True))
    combines = (schedule.op[rows] == REDUCE).tolist()
    ways = [
        _path(
            [pair for pair, combined in zip(pairs, combines, strict=True) if combined == which],
            schedule.collective.ranks,
        )
        for which in (True, False)
        if which in combines
    ]
    if not ways or any(way is None for way in ways):
        return None
    there = _turned(ways[0])
    if len(ways) == 1 or _turned(ways[1]) == there:
        return RING, there
    return (CHAIN, tuple(ways[1] or ())) if ways[0] == (ways[1] or [])[::-1] else None


def _path(hops: Hops, ranks: int) -> list[int] | None:
    """The ranks in the order in which these hops lead through all of them, each once; None where they do not."""
    after = dict(hops)
    starts = [a for a in after if a not in set(after.values())]
    if len(hops) != ranks - 1 or len(after) != ranks - 1 or len(starts) != 1:
        return None
    way = starts
    while way[-1] in after and len(way) <= ranks:
        way.append(after[way[-1]])
    return way if len(set(way)) == ranks else None


def _turned(way: Sequence[int] | None) -> tuple[int, ...]:
    """A ring written from rank 0 on."""
    found = tuple(way or ())
    at = found.index(0)
    return found[at:] + found[:at]
