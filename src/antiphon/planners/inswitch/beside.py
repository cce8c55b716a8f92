"""Joints for as much as a switch serves at once, and a ring over the links that they leave idle.

A joint is one reduction or one multicast by the switch. If it serves r joints at once, k = r // 2 pieces are reduced in
a step while the k pieces of the step before are multicast. With pieces of one size q, and a rank's own data crossing
the switch (`own`), every link out of a rank carries k q for the reductions, and q more where a multicast begins; every
link in carries k q for the multicasts, and q more where a reduction ends. All other ranks have room for one more piece,
out and in.

The turns rotate around the ranks: those that multicast in a step stand right before those where reductions end. So only
k edges of a ring are blocked in each step, others each time, and over all other edges a piece advances. Pieces that go
around the ring take P-1 hops to be combined and P-1 more to reach all.

Example: 8 ranks and k = 3: in step 0 reductions end at ranks 0, 2, 5; in step 1 these pieces are multicast from there
while reductions end at 1, 3, 6.
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


def plan_mixture(collective: Collective, trees: list[SwitchTree], room: int, laps: int) -> Schedule:
    """Plan an allreduce in which every rank starts `laps` pieces around the ring; a share of it on every tree.
    O(rows).
    """
    sheet, count, chunks = Sheet(), len(collective.members), 0
    served = reduction_seats(count, room // 2)
    step, seat, piece, hop = ring_hops(count, served, laps)
    turn = np.repeat(np.arange(int(step.max())), len(served))  # of every joint piece; one step later it is multicast
    end = (np.tile(served, int(step.max())) + turn) % count
    for tree in trees:
        ring = np.lexsort(tree.node.T[::-1])  # positions, those below one switch together
        chunk = np.arange(len(end)) + chunks
        which = np.repeat(chunk, count - 1)
        other = (np.tile(np.arange(1, count), len(end)) + np.repeat(end, count - 1)) % count
        for later, op in ((0, REDUCE), (1, COPY)):
            src, dst = (other, np.repeat(end, count - 1))[:: 1 - 2 * later]
            sheet.add_rows(tree, turn.repeat(count - 1) + later, which, ring[src], ring[dst], op, which)
        chunks += len(end)
        alone = np.full(len(step), -1, np.int64)
        to = ring[(seat + 1) % count]
        sheet.add_rows(tree, step, piece + chunks, ring[seat], to, np.where(hop < count - 1, REDUCE, COPY), alone)
        chunks += count * laps
    return replace(sheet.to_schedule(collective, cut(collective, chunks // collective.blocks)), pieces=1)


def mixture_rows(count: int, served: int, laps: int) -> int:
    """Estimate the rows of a mixture: those of the ring, and two joints for each of `served` pieces per step."""
    hops = 2 * (count - 1) * count * laps
    return hops + 2 * (count - 1) * served * (hops // max(count - served, 1))


def reduction_seats(count: int, served: int) -> Longs:
    """Return the seats where the first step's reductions end, evenly spaced; later steps are rotated by one each.

    >>> reduction_seats(8, 3).tolist()
    [0, 2, 5]
    """
    return np.arange(served) * count // served


def ring_hops(count: int, served: Longs, laps: int) -> tuple[Longs, Longs, Longs, Longs]:
    """Return step, seat, piece and hop number (0 to 2 (P-1) - 1) of every hop of the ring.

    A seat that multicasts pauses; all others forward the piece that is farthest behind (ties: the lowest).

    >>> step, seat, piece, hop = ring_hops(3, reduction_seats(3, 1), 1)
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
