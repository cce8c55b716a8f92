"""One trip around a circle of ranks: every collective, without routes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from antiphon.core.collective import ROOTED, Collective
from antiphon.core.columns import Longs, narrow, own, ranges
from antiphon.core.schedule import COPY, REDUCE, Chunks, Schedule, cut
from antiphon.core.topology import Topology
from antiphon.core.transform import compose, merge
from antiphon.planners.shared.rows import (
    MOST_TRANSFERS,
    Seats,
    collective_among,
    per_root,
    plan_backwards,
    refuse_more_than_fits,
    rows_to_schedule,
)

CHAINS = ("broadcast", "reduce")  # worth pipelining: one chain each
CHAIN_PIECES = 32
MOST_RELAYED = 2**24


def refuse_too_long(planner: str, topology: Topology, collective: Collective, trips: float) -> None:
    """Unsupported if so many trips around would have too many transfers; an alltoall relays nearly everything, and
    is refused early: there is always something better."""
    limit = MOST_RELAYED if collective.kind == "alltoall" else MOST_TRANSFERS
    refuse_more_than_fits(planner, topology, collective, int(transfers(collective) * trips), limit)


def transfers(collective: Collective) -> int:
    """Count the rows of one trip."""
    size, roots = len(collective.members), max(len(collective.roots), 1)
    if collective.kind in ROOTED:
        return roots * size * (1 if collective.kind in CHAINS else size // 2)
    return size * size * {"allreduce": 2, "alltoall": size // 2}.get(collective.kind, 1)


def around(collective: Collective, cycle: Sequence[int]) -> Schedule:
    """P - 1 steps, allreduce 2 (P - 1). Every rank only sends to the next one of the cycle."""
    kind = collective.kind
    if kind in ("allgather", "reducescatter"):
        return _hops(collective, cycle)
    if kind == "allreduce":
        return compose(
            _hops(collective_among(collective, "reducescatter"), cycle),
            _hops(collective_among(collective, "allgather"), cycle),
        )
    if kind == "alltoall":
        return _alltoall(collective, cycle)
    if kind == "broadcast":
        return per_root(collective, lambda single_root: _chain(single_root, cycle))
    if kind == "scatter":
        return per_root(collective, lambda single_root: _scatter(single_root, cycle))
    return plan_backwards(collective, lambda single_root: around(single_root, [cycle[0], *cycle[:0:-1]]))


def both_ways(collective: Collective, cycle: Sequence[int]) -> Schedule:
    """Half of the data each way round; an alltoall sends every block its shorter way, halves of it where both are
    equally long: P // 2 steps."""
    if collective.kind != "alltoall":
        return merge([around(collective, cycle), around(collective, [cycle[0], *cycle[:0:-1]])])
    seats = Seats.in_order(collective, list(cycle))
    size = len(seats)
    seat_numbers = np.arange(size)
    tied = seat_numbers[: size if size % 2 == 0 else 0]  # what these send to the opposite seat goes either way
    opposite = seats.member[(tied + size // 2) % size] * size + seats.member[tied]
    block, share = np.arange(size * size), np.full(size * size, 2)
    share[opposite] = 1
    chunks = Chunks(
        narrow(np.concatenate([block, opposite])),
        np.repeat(np.array([0, 1]), [len(block), len(opposite)]),
        np.concatenate([share, np.ones_like(opposite)]),
        2,
    )
    second = np.arange(size * size)  # the chunk of each block that goes backwards
    second[opposite] = size * size + np.arange(len(opposite))
    forward, back = _passed_on(seats, size // 2, 1), _passed_on(seats, size // 2, -1)
    back = (back[0], second[back[1]], *back[2:])
    when, chunk, src, dst = (np.concatenate(pair) for pair in zip(forward, back, strict=True))
    return Schedule(
        collective, chunks, narrow(when), narrow(chunk), seats.rank[src], seats.rank[dst],
        np.full(len(when), COPY, np.uint8),
    )  # fmt: skip


def _hops(collective: Collective, cycle: Sequence[int]) -> Schedule:
    """At step s seat j passes on the part of seat j - s (allgather), or adds to that of j - s - 1 (reducescatter).

    >>> schedule = _hops(Collective("allgather", 3), [0, 2, 1])
    >>> schedule.step.tolist(), schedule.chunk.tolist(), schedule.src.tolist(), schedule.dst.tolist()
    ([0, 0, 0, 1, 1, 1], [0, 2, 1, 1, 0, 2], [0, 2, 1, 0, 2, 1], [2, 1, 0, 2, 1, 0])
    """
    seats = Seats.in_order(collective, list(cycle))
    size = len(seats)
    steps = np.arange(size - 1)
    copies = collective.kind == "allgather"
    member = narrow(seats.member)
    turned = sliding_window_view(np.concatenate([member, member]), size)  # row i: the members from seat i on
    return Schedule(
        collective, cut(collective, 1),
        own(np.repeat(narrow(steps), size)),
        own(turned[(-steps - (0 if copies else 1)) % size].ravel()),
        own(np.tile(seats.rank, size - 1)),
        own(np.tile(np.roll(seats.rank, -1), size - 1)),
        own(np.full(size * (size - 1), COPY if copies else REDUCE, np.uint8)),
    )  # fmt: skip


def _chain(collective: Collective, cycle: Sequence[int]) -> Schedule:
    seats = Seats.in_order(collective, list(cycle), collective.roots[0])
    step = np.arange(len(seats) - 1)
    return rows_to_schedule(collective, seats, step, np.zeros_like(step), step, step + 1)


def _scatter(collective: Collective, cycle: Sequence[int]) -> Schedule:
    """The farthest part first: all arrive in the last step, and every hop carries one part a step."""
    seats = Seats.in_order(collective, list(cycle), collective.roots[0])
    away = np.arange(1, len(seats))
    goal, hop = np.repeat(away, away), _count(away)
    return rows_to_schedule(collective, seats, len(seats) - 1 - goal + hop, seats.member[goal], hop, hop + 1)


def _alltoall(collective: Collective, cycle: Sequence[int]) -> Schedule:
    seats = Seats.in_order(collective, list(cycle))
    return rows_to_schedule(collective, seats, *_passed_on(seats, len(seats) - 1, 1))


def _passed_on(seats: Seats, farthest: int, direction: int) -> tuple[Longs, Longs, Longs, Longs]:
    """Everyone passes on all that has farther to go: step, block, from and to. What goes a distance d, up to the
    farthest, makes d hops, in steps 0 to d - 1; `way`: 1 or -1, the direction."""
    size = len(seats)
    away, origin = (x.ravel() for x in np.meshgrid(np.arange(1, farthest + 1), np.arange(size), indexing="ij"))
    step = _count(away)
    origin, goal = np.repeat(origin, away), np.repeat((origin + direction * away) % size, away)
    seat = (origin + direction * step) % size
    return step, seats.member[goal] * size + seats.member[origin], seat, (seat + direction) % size


def _count(times: Longs) -> Longs:
    """0..times[0]-1, then 0..times[1]-1, ..."""
    return ranges(np.zeros(len(times), np.int64), times)
