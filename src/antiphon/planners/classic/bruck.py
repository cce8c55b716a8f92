"""Bruck's algorithm: ceil(log2 P) steps on any number of ranks, without folding (Bruck et al. 1997).

Allgather: in step s every rank sends the 2^s blocks that it has (fewer in the last step) to the rank 2^s before it.
Alltoall: a block that has to travel a distance d makes one hop of 2^s for every bit s of d, so P blocks take log2 P
steps, but log2(P) / 2 times the traffic.

Example: P = 5, allgather: rank 0 receives block 1; then blocks 2, 3; then block 4.

Messages are contiguous in a buffer that begins with the rank's own block. So every rank rotates its buffer: once for
allgather, at the end; before the first step and after the last for alltoall, where the blocks of a step must also be
packed and unpacked. The rotations are priced as local work, a copy of the buffer each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

import numpy as np

from antiphon.core.collective import Collective
from antiphon.core.request import Request
from antiphon.core.schedule import Local, Schedule
from antiphon.planners.shared.rows import (
    Order,
    Seats,
    finish_schedule,
    plan_backwards,
    plan_in_halves,
    refuse_too_many_transfers,
    rows_to_schedule,
)


def bruck(request: Request, *, order: Order = None) -> Iterator[Schedule]:
    """Yield one schedule: O(P^2) transfers, for alltoall O(P^2 log P). Every rank sends (P-1)/P nbytes in allgather and
    reducescatter, twice that in allreduce, about log2(P)/2 nbytes in alltoall.
    """
    collective = request.collective
    ranks = len(collective.members)
    # transfers, as a multiple of P^2
    relative_rows = {"alltoall": ranks.bit_length() / 2, "allreduce": 2}.get(collective.kind, 1)
    refuse_too_many_transfers("bruck", request, int(ranks * ranks * relative_rows))
    buffer_copies = {"alltoall": 2, "allreduce": 2}.get(collective.kind, 1)
    schedule = replace(_plan_collective(collective, order), local=(Local("rotation", Fraction(buffer_copies)),))
    yield finish_schedule(schedule, request, "bruck", {"order": order})


def _plan_collective(collective: Collective, order: Order) -> Schedule:
    """Return the schedule; collectives that combine are made of allgathers, run backwards or after one another."""
    if collective.kind == "allgather":
        return _plan_allgather(collective, order)
    if collective.kind == "alltoall":
        return _plan_alltoall(collective, order)
    if collective.kind == "reducescatter":
        return plan_backwards(collective, lambda dual: _plan_collective(dual, order))
    return plan_in_halves(collective, lambda half: _plan_collective(half, order))


def _plan_allgather(collective: Collective, order: Order) -> Schedule:
    """Return the allgather: the block at distance d arrives in step floor(log2 d)."""
    seats = Seats.in_order(collective, order)
    size = len(seats)
    distance, dst = (x.ravel() for x in np.meshgrid(np.arange(1, size), np.arange(size), indexing="ij"))
    step = np.frexp(distance)[1].astype(np.int64) - 1  # floor(log2)
    block = seats.member[(dst + distance) % size]  # a rank's block has the rank's number among the members
    src = (dst + (1 << step)) % size
    return rows_to_schedule(collective, seats, step, block, src, dst)


def _plan_alltoall(collective: Collective, order: Order) -> Schedule:
    """Return the alltoall: one step per bit of the distance, in which all blocks with that bit move."""
    seats = Seats.in_order(collective, order)
    size = len(seats)
    rows = []  # by bit: step, block, sender, receiver
    for bit in range((size - 1).bit_length()):
        distance = np.arange(1, size)
        distance = distance[distance >> bit & 1 == 1][:, None]
        origin = np.arange(size)[None, :]
        src = (origin + (distance & ((1 << bit) - 1))) % size
        goal = (origin + distance) % size
        block = seats.member[goal] * size + seats.member[origin]  # numbered by receiver, then sender, among members
        rows.append([np.full(block.size, bit), block, src, (src + (1 << bit)) % size])
    step, block, src, dst = (np.concatenate([row[i].ravel() for row in rows]) for i in range(4))
    return rows_to_schedule(collective, seats, step, block, src, dst)
