"""Joints for as much as a switch has room for, and around a ring what the links have left beside them.

Where a switch serves r joints at once, k = r // 2 parts are reduced in a step while the k of the step before are
multicast. With pieces of one size q, and what a rank has itself crossing the switch (`own`), every way out then carries
k q for the reductions, and those of the ranks that multicast q more; every way in k q for the multicasts, and those of
the ranks where reductions end q more. All others have room for one piece more, out and in. The turns go around with the
ranks: those that multicast in a step stand right before those where reductions end. So what is in the way of a ring is,
in every step, only k of its edges, other ones each time: over all other edges a piece goes on. The pieces that go
around the ring (P-1 hops to be combined, P-1 more to reach all) fill what the joints leave idle.
"""

from __future__ import annotations

from dataclasses import replace
from heapq import heappop, heappush

import numpy as np

from antiphon.core.collective import Collective
from antiphon.core.columns import Longs
from antiphon.core.schedule import COPY, REDUCE, Schedule, cut
from antiphon.planners.inswitch.sheet import Sheet
from antiphon.planners.inswitch.tree import SwitchTree


def mixed(collective: Collective, trees: list[SwitchTree], room: int, laps: int) -> Schedule:
    """An allreduce of which every rank sets out `laps` pieces around the ring; a share of it on every tree. O(rows)."""
    sheet, count, chunks = Sheet(), len(collective.members), 0
    served = window(count, room // 2)
    step, seat, piece, hop = around(count, served, laps)
    turn = np.repeat(np.arange(int(step.max())), len(served))  # of every joint piece; one step later it is multicast
    end = (np.tile(served, int(step.max())) + turn) % count
    for tree in trees:
        ring = np.lexsort(tree.node.T[::-1])  # positions, those below one switch together
        chunk = np.arange(len(end)) + chunks
        which = np.repeat(chunk, count - 1)
        other = (np.tile(np.arange(1, count), len(end)) + np.repeat(end, count - 1)) % count
        for later, op in ((0, REDUCE), (1, COPY)):
            src, dst = (other, np.repeat(end, count - 1))[:: 1 - 2 * later]
            sheet.lay(tree, turn.repeat(count - 1) + later, which, ring[src], ring[dst], op, which)
        chunks += len(end)
        alone = np.full(len(step), -1, np.int64)
        to = ring[(seat + 1) % count]
        sheet.lay(tree, step, piece + chunks, ring[seat], to, np.where(hop < count - 1, REDUCE, COPY), alone)
        chunks += count * laps
    return replace(sheet.schedule(collective, cut(collective, chunks // collective.blocks)), pieces=1)


def mixture_rows(count: int, served: int, laps: int) -> int:
    """How many rows a mixture has, about: those of the ring, and two joints for each of `served` pieces a step."""
    hops = 2 * (count - 1) * count * laps
    return hops + 2 * (count - 1) * served * (hops // max(count - served, 1))


def window(count: int, served: int) -> Longs:
    """The seats where the first step's reductions end, apart from each other evenly; later ones are turned by one each.

    >>> window(8, 3).tolist()
    [0, 2, 5]
    """
    return np.arange(served) * count // served


def around(count: int, served: Longs, laps: int) -> tuple[Longs, Longs, Longs, Longs]:
    """When every hop is made, from which seat, of which piece, and the how manieth of its 2 (P-1): a seat that
    multicasts rests, all others pass on what is farthest behind of what they have. Of equal pieces the lowest.

    >>> step, seat, piece, hop = around(3, window(3, 1), 1)
    >>> list(zip(step.tolist(), seat.tolist(), piece.tolist(), hop.tolist(), strict=True))[:4]
    [(0, 0, 0, 0), (0, 1, 1, 0), (1, 1, 0, 1), (1, 2, 2, 0)]
    """
    has: list[list[tuple[int, int]]] = [[(0, lap * count + seat) for lap in range(laps)] for seat in range(count)]
    rests = [np.isin((np.arange(count) - step + 1) % count, served).tolist() for step in range(count)]
    rows: list[tuple[int, int, int, int]] = []
    step, last = 0, 2 * (count - 1)
    while len(rows) < count * laps * last:
        sent = [
            (step, seat, piece, hop)
            for seat in range(count)
            if has[seat] and not rests[step % count][seat]
            for hop, piece in (heappop(has[seat]),)
        ]
        for _, seat, piece, hop in sent:
            if hop + 1 < last:
                heappush(has[(seat + 1) % count], (hop + 1, piece))
        rows += sent
        step += 1
    columns = np.array(rows, np.int64).T
    return columns[0], columns[1], columns[2], columns[3]
