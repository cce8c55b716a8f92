"""Plan an allreduce by joints and, at the same time, a ring, for switches that serve few joints at once.

Input: the members, trees of switches, and the number r of joints that these serve at once. Output of `plan_mixture`: a
schedule in which the switches reduce and multicast a fixed share of the data. (A joint is one reduction or one
multicast by a switch.) The rest goes around a ring of plain transfers over the links that joints leave idle.

With r joints at once, k = r // 2 chunks are reduced in a step while the k chunks of the step before are multicast. Let
all chunks have size q, and let a rank's own data cross the switch, too (as on NVSwitches). Then every link
out of a rank carries k q for the reductions, and q more if a multicast begins at the rank; every link in carries k q
for the multicasts, and q more if a reduction ends there. All other ranks can send and receive one more chunk.

The ranks where reductions end move on by one in each step, and those that multicast come right before them on the ring.
So only k edges of the ring are blocked in each step, other ones each time, and over all other edges a chunk advances.
Chunks that go around the ring take P - 1 hops to be combined and P - 1 more to reach all.

Example: 8 ranks and k = 3: in step 0 reductions end at ranks 0, 2, 5; in step 1 these chunks are multicast from there
while reductions end at 1, 3, 6.
"""

from __future__ import annotations

from dataclasses import replace
from heapq import heappop, heappush

import numpy as np

from antiphon.core.collective import Collective
from antiphon.core.columns import Longs
from antiphon.core.schedule import COPY, REDUCE, Schedule, cut
from antiphon.planners.inswitch.schedule_builder import ScheduleBuilder
from antiphon.planners.inswitch.tree import SwitchTree


def plan_mixture(collective: Collective, trees: list[SwitchTree], joints_at_once: int, laps: int) -> Schedule:
    """Return an allreduce in which every rank starts `laps` chunks on the ring; the trees share the data. O(rows)."""
    builder, count, chunks = ScheduleBuilder(), len(collective.members), 0
    first_seats = reduction_seats(count, joints_at_once // 2)
    step, seat, ring_chunk, hop = ring_hops(count, first_seats, laps)
    # of every chunk that joints carry: the step in which it is reduced (it is multicast in the next), and at which seat
    reduce_step = np.repeat(np.arange(int(step.max())), len(first_seats))
    reduction_seat = (np.tile(first_seats, int(step.max())) + reduce_step) % count
    for tree in trees:
        # by seat, the rank's position in the tree; those below one switch together
        ring = np.lexsort(tree.node.T[::-1])
        chunk_of_row = np.repeat(np.arange(len(reduction_seat)) + chunks, count - 1)
        other_seat = (np.tile(np.arange(1, count), len(reduction_seat)) + np.repeat(reduction_seat, count - 1)) % count
        own_seat, joint_step = np.repeat(reduction_seat, count - 1), reduce_step.repeat(count - 1)
        # the reduction to a seat, and in the next step the multicast from it
        for step_of_row, src, dst, op in (
            (joint_step, other_seat, own_seat, REDUCE), (joint_step + 1, own_seat, other_seat, COPY),
        ):  # fmt: skip
            builder.add_rows(
                tree, step_of_row, chunk_of_row, src=ring[src], dst=ring[dst], op=op,
                joint=chunk_of_row,  # a joint has the number of its chunk
            )  # fmt: skip
        chunks += len(reduction_seat)
        no_joint = np.full(len(step), -1, np.int64)
        # a chunk's first P - 1 hops combine it, the others spread it
        builder.add_rows(
            tree, step, ring_chunk + chunks, src=ring[seat], dst=ring[(seat + 1) % count],
            op=np.where(hop < count - 1, REDUCE, COPY), joint=no_joint,
        )  # fmt: skip
        chunks += count * laps
    return replace(builder.to_schedule(collective, cut(collective, chunks // collective.blocks)), pieces=1)


def mixture_rows(count: int, per_step: int, laps: int) -> int:
    """Return about the number of rows of a mixture: the ring, and two joints for each of `per_step` chunks per step."""
    hops = 2 * (count - 1) * count * laps
    steps = hops // max(count - per_step, 1)  # of the ring: seats that multicast pause
    return hops + 2 * (count - 1) * per_step * steps


def reduction_seats(count: int, per_step: int) -> Longs:
    """Return the seats (positions on the ring) where the first step's reductions end, evenly spaced.

    In each later step they are one further.

    >>> reduction_seats(8, 3).tolist()
    [0, 2, 5]
    """
    return np.arange(per_step) * count // per_step


def ring_hops(count: int, first_seats: Longs, laps: int) -> tuple[Longs, Longs, Longs, Longs]:
    """Return the columns step, sending seat, chunk and hop number (0 to 2 (P - 1) - 1) of every hop on the ring.

    `first_seats`: where the first step's reductions end. A seat that multicasts pauses; all others forward the chunk
    that is farthest behind (ties: the lowest number).

    >>> step, seat, ring_chunk, hop = ring_hops(3, reduction_seats(3, 1), 1)
    >>> list(zip(step.tolist(), seat.tolist(), ring_chunk.tolist(), hop.tolist(), strict=True))[:4]
    [(0, 0, 0, 0), (0, 1, 1, 0), (1, 1, 0, 1), (1, 2, 2, 0)]
    """
    # by seat, a heap of (hop number, chunk) that wait there; and by step (modulo count), which seats multicast
    waiting: list[list[tuple[int, int]]] = [[(0, lap * count + seat) for lap in range(laps)] for seat in range(count)]
    multicasting = [np.isin((np.arange(count) - step + 1) % count, first_seats).tolist() for step in range(count)]
    rows: list[tuple[int, int, int, int]] = []  # step, sending seat, chunk, hop number
    step, hops_per_chunk = 0, 2 * (count - 1)
    while len(rows) < count * laps * hops_per_chunk:
        sent = [
            (step, seat, ring_chunk, hop)
            for seat in range(count)
            if waiting[seat] and not multicasting[step % count][seat]
            for hop, ring_chunk in (heappop(waiting[seat]),)
        ]
        for _, seat, ring_chunk, hop in sent:
            if hop + 1 < hops_per_chunk:
                heappush(waiting[(seat + 1) % count], (hop + 1, ring_chunk))
        rows += sent
        step += 1
    step_of, seat_of, chunk_of, hop_of = np.array(rows, np.int64).T
    return step_of, seat_of, chunk_of, hop_of
