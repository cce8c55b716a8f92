"""Plan every collective around a cycle of ranks; routes are added later.

Input: a collective and its members in the order of the cycle. Output of `plan_around`: a schedule in which each of the
P ranks sends only to the next one of the cycle. Of `plan_both_ways`: one that uses both directions, with half of the
data each, or in an alltoall each block by the shorter way.

    allgather       step s: forward the block that arrived in step s - 1;  P - 1 steps
    reducescatter   the same with addition
    allreduce       reducescatter, then allgather;                         2 (P - 1) steps
    broadcast       a chain from the root, worth pipelining
    scatter         the farthest block first, so that all arrive in the last step
    alltoall        every block travels its distance; (P - 1) / 2 hops on average with one direction

Example: allgather on 0 -> 1 -> 2. In step 0 ranks 0, 1, 2 send blocks 0, 1, 2 to the next rank; in step 1 they forward
blocks 2, 0, 1, which they have just received.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from antiphon.core.collective import ROOTED, Collective
from antiphon.core.columns import Longs, as_int32, concat_ranges, freeze
from antiphon.core.request import Request
from antiphon.core.schedule import COPY, REDUCE, Chunks, Schedule, cut
from antiphon.core.transform import merge
from antiphon.planners.shared.rows import (
    MOST_TRANSFERS,
    Seats,
    per_root,
    plan_backwards,
    plan_in_halves,
    refuse_too_many_transfers,
    rows_to_schedule,
)

CHAINS = ("broadcast", "reduce")  # collectives planned as a chain, which are pipelined by default
CHAIN_PIECES = 32  # default number of slices of a chain
MAX_ALLTOALL_TRANSFERS = 2**24  # lower than MOST_TRANSFERS: other planners are always faster


def refuse_too_long(planner: str, request: Request, trips: float) -> None:
    """Raise Unsupported if `trips` times around a cycle have too many transfers.

    The limit for an alltoall is lower, because it relays nearly everything.
    """
    limit = MAX_ALLTOALL_TRANSFERS if request.collective.kind == "alltoall" else MOST_TRANSFERS
    refuse_too_many_transfers(planner, request, int(count_transfers(request.collective) * trips), limit)


def count_transfers(collective: Collective) -> int:
    """Return the approximate number of transfers of `plan_around`."""
    members, roots = len(collective.members), max(len(collective.roots), 1)
    if collective.kind in ROOTED:
        return roots * members * (1 if collective.kind in CHAINS else members // 2)
    # a block of an alltoall makes about P / 2 hops, so the schedule has P^3 / 2 rows
    return members * members * {"allreduce": 2, "alltoall": members // 2}.get(collective.kind, 1)


def plan_around(collective: Collective, cycle: Sequence[int]) -> Schedule:
    """Plan a collective around the cycle: P - 1 steps, allreduce 2 (P - 1)."""
    kind = collective.kind
    if kind in ("allgather", "reducescatter"):
        return _ring_hops(collective, cycle)
    if kind == "allreduce":
        return plan_in_halves(collective, lambda half: _ring_hops(half, cycle))
    if kind == "alltoall":
        return _relay_alltoall(collective, cycle)
    if kind == "broadcast":
        return per_root(collective, lambda single_root: _broadcast_chain(single_root, cycle))
    if kind == "scatter":
        return per_root(collective, lambda single_root: _scatter_chain(single_root, cycle))
    # gather and reduce: the dual is planned on the reversed cycle, so that data flow along the cycle itself
    return plan_backwards(collective, lambda single_root: plan_around(single_root, [cycle[0], *cycle[:0:-1]]))


def plan_both_ways(collective: Collective, cycle: Sequence[int]) -> Schedule:
    """Send half of the data each way round.

    An alltoall sends every block the shorter way, in P // 2 steps. If P is even, the block for the opposite rank is as
    far both ways: it is split, and half of it goes each way.
    """
    if collective.kind != "alltoall":
        return merge([plan_around(collective, cycle), plan_around(collective, [cycle[0], *cycle[:0:-1]])])
    seats = Seats.in_order(collective, list(cycle))  # by seat: the rank, and its number (`member`) among the members
    size = len(seats)
    seat_numbers = np.arange(size)
    # With an even number of seats, every seat splits its block for the opposite seat: the half at offset 0 travels
    # forward, that at offset 1 backward. Chunk b is block b or its first half; the second halves follow.
    senders = seat_numbers[: size if size % 2 == 0 else 0]
    split_blocks = _block_numbers(seats, (senders + size // 2) % size, senders)
    block, length_in_halves = np.arange(size * size), np.full(size * size, 2)
    length_in_halves[split_blocks] = 1
    chunks = Chunks(
        block=as_int32(np.concatenate([block, split_blocks])),
        offset=np.repeat(np.array([0, 1]), [len(block), len(split_blocks)]),
        share=np.concatenate([length_in_halves, np.ones_like(split_blocks)]),
        denominator=2,
    )
    backward_chunk = np.arange(size * size)  # by block, the chunk of it that travels backward
    backward_chunk[split_blocks] = size * size + np.arange(len(split_blocks))
    # both directions cover distances up to P // 2; at a distance of exactly P / 2 each carries one half
    forward, backward = _relay_rows(seats, size // 2, direction=1), _relay_rows(seats, size // 2, direction=-1)
    backward_step, backward_block, backward_src, backward_dst = backward
    backward = (backward_step, backward_chunk[backward_block], backward_src, backward_dst)
    step, chunk, src, dst = (np.concatenate(pair) for pair in zip(forward, backward, strict=True))
    return Schedule(
        collective, chunks, as_int32(step), as_int32(chunk), seats.rank[src], seats.rank[dst],
        np.full(len(step), COPY, np.uint8),
    )  # fmt: skip


def exchange_in_pairs(collective: Collective, cycle: Sequence[int]) -> Schedule:
    """Plan an allreduce of whole vectors around a cycle of an even number P of ranks in P / 2 steps, the fewest.

    Pairs of neighbours exchange, then the other pairs, in turn. A rank sends its own vector first, then the sum of the
    first pair, then always what it received in the step before: these are contributions that the other lacks. (For
    allgathers: Chen, Zhang and Yuan 2005.) That uses every second link of the cycle in a step. So ring.py plans half of
    the data around the cycle begun one rank later, which uses the others.

    >>> schedule = exchange_in_pairs(Collective("allreduce", 4), [0, 1, 2, 3])
    >>> schedule.steps, schedule.src[:4].tolist(), schedule.dst[:4].tolist()
    (2, [0, 1, 2, 3], [1, 0, 3, 2])
    """
    rank, size = np.array(cycle, np.int32), len(cycle)
    seats, steps = np.arange(size), size // 2
    columns = []  # a row per seat: step, sender, receiver, op, slot read, slot written
    for number in range(steps):
        # The pairs of even steps begin at even seats, those of odd steps at odd ones (seat -1 is the last). What
        # arrives in step n > 0, but for the last, is stored in slot n + 1 and sent on in the next step. 0 * seats + x:
        # a column of x for all seats.
        partner = seats ^ 1 if number % 2 == 0 else ((seats + 1) ^ 1) - 1
        sent_slot, stored_slot = (number if number > 1 else 0), (number + 1 if 0 < number < steps - 1 else 0)
        op = COPY if stored_slot else REDUCE
        columns.append(
            [0 * seats + number, seats, partner % size, *(0 * seats + x for x in (op, sent_slot, stored_slot))]
        )
        if sent_slot:  # the sum that came in the step before, and is sent on now, also goes into the rank's own
            columns.append([0 * seats + number, seats, seats, *(0 * seats + x for x in (REDUCE, sent_slot, 0))])
    step, src, dst, ops, src_slot, dst_slot = (
        as_int32(np.concatenate(column)) for column in zip(*columns, strict=True)
    )
    return Schedule(
        collective, cut(collective, parts=1), step, np.zeros_like(step), rank[src], rank[dst], ops.astype(np.uint8),
        src_slot=src_slot, dst_slot=dst_slot,
    )  # fmt: skip


def _ring_hops(collective: Collective, cycle: Sequence[int]) -> Schedule:
    """Plan an allgather or reducescatter; a seat is a position on the cycle.

    In step s seat j sends the block of seat j - s (allgather), or its partial sum of the block of seat j - s - 1
    (reducescatter).

    >>> schedule = _ring_hops(Collective("allgather", 3), [0, 2, 1])
    >>> schedule.step.tolist(), schedule.chunk.tolist(), schedule.src.tolist(), schedule.dst.tolist()
    ([0, 0, 0, 1, 1, 1], [0, 2, 1, 1, 0, 2], [0, 2, 1, 0, 2, 1], [2, 1, 0, 2, 1, 0])
    """
    seats = Seats.in_order(collective, list(cycle))
    size = len(seats)
    steps = np.arange(size - 1)
    is_allgather = collective.kind == "allgather"
    member = as_int32(seats.member)
    rotations = sliding_window_view(np.concatenate([member, member]), size)  # row i: the members from seat i on
    return Schedule(
        collective, cut(collective, parts=1),
        freeze(np.repeat(as_int32(steps), size)),
        freeze(rotations[(-steps - (0 if is_allgather else 1)) % size].ravel()),
        freeze(np.tile(seats.rank, size - 1)),
        freeze(np.tile(np.roll(seats.rank, -1), size - 1)),
        freeze(np.full(size * (size - 1), COPY if is_allgather else REDUCE, np.uint8)),
    )  # fmt: skip


def _broadcast_chain(collective: Collective, cycle: Sequence[int]) -> Schedule:
    """Plan a broadcast: in step s seat s, counted from the root, sends to the next."""
    seats = Seats.in_order(collective, list(cycle), collective.roots[0])
    step = np.arange(len(seats) - 1)
    return rows_to_schedule(collective, seats, step, chunk=np.zeros_like(step), src=step, dst=step + 1)


def _scatter_chain(collective: Collective, cycle: Sequence[int]) -> Schedule:
    """Plan a scatter, the farthest block first: all arrive in the last step, and a hop carries one block per step."""
    seats = Seats.in_order(collective, list(cycle), collective.roots[0])
    distances = np.arange(1, len(seats))
    # the block for seat g makes hops 0..g-1 in steps P-1-g .. P-2
    goal, hop = np.repeat(distances, distances), _count_up(distances)
    step = len(seats) - 1 - goal + hop
    return rows_to_schedule(collective, seats, step, chunk=seats.member[goal], src=hop, dst=hop + 1)


def _relay_alltoall(collective: Collective, cycle: Sequence[int]) -> Schedule:
    """Plan an alltoall: every block travels along the cycle to its receiver."""
    seats = Seats.in_order(collective, list(cycle))
    return rows_to_schedule(collective, seats, *_relay_rows(seats, len(seats) - 1, direction=1))


def _relay_rows(seats: Seats, max_distance: int, direction: int) -> tuple[Longs, Longs, Longs, Longs]:
    """Return the columns step, block, sending seat and receiving seat of an alltoall in one direction (1 or -1).

    A block over a distance of d seats, up to `max_distance`, makes d hops in steps 0 to d - 1.
    """
    size = len(seats)
    # all pairs of a distance and an origin, then one row per hop
    distance, origin = (x.ravel() for x in np.meshgrid(np.arange(1, max_distance + 1), np.arange(size), indexing="ij"))
    step = _count_up(distance)
    origin, goal = np.repeat(origin, distance), np.repeat((origin + direction * distance) % size, distance)
    seat = (origin + direction * step) % size
    return step, _block_numbers(seats, goal, origin), seat, (seat + direction) % size


def _block_numbers(seats: Seats, receiver: Longs, sender: Longs) -> Longs:
    """Return the blocks of an alltoall between these seats: receiver * P + sender, by number among the members."""
    return seats.member[receiver] * len(seats) + seats.member[sender]


def _count_up(times: Longs) -> Longs:
    """Return 0..times[0]-1, then 0..times[1]-1, ..."""
    return concat_ranges(np.zeros(len(times), np.int64), times)
