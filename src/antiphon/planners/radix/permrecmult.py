"""Permuted recursive multiplying: recursive multiplying with the farthest partners first, so that the large messages
of late rounds stay near (parameterized collectives, section III.C).

What a rank receives then is not in order. The buffer is filled as it arrives, so that every message is one run of
memory on both sides (Figure 3b), and a permutation at the end puts it in order; `layout` says what lies where. The
alternatives of the paper's Figure 7 are here as well: an exchange at the beginning, or runs sent one by one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np

from antiphon.core.collective import Collective
from antiphon.core.columns import Longs, narrow, ranges
from antiphon.core.request import Request
from antiphon.core.schedule import Local, Schedule
from antiphon.errors import Invalid, unknown
from antiphon.options import parse_yes
from antiphon.planners.radix.lanes import seats_by_place
from antiphon.planners.radix.mixed import (
    Radices,
    Radix,
    allgather,
    chosen,
    core_of,
    gather_rounds,
    given_k,
    in_parts,
    reversal,
    rows_needed,
    whole_vectors,
)
from antiphon.planners.shared.rows import (
    Order,
    Seats,
    finish_schedule,
    given_order,
    plan_backwards,
    refuse_more_than_fits,
    rows_to_schedule,
)

BY = ("permute", "exchange", "exchange-minimal", "separate")


def permrecmult(
    request: Request,
    *,
    k: int | None = None,
    radices: Radix | None = None,
    fold: bool = False,
    by: str = "permute",
    large: bool = False,
    order: Order = None,
    pieces: int = 1,
) -> Iterator[Schedule]:
    """Yields one schedule: O(P^2) transfers, allreduce of whole vectors O(P k log_k P).

    `k`, `radices`, `fold`, `large`, `pieces`: as those of `recmult`. `by`: how allgather and reducescatter get their
    blocks in order: "permute" at the end, "exchange" or "exchange-minimal" at the beginning, or "separate" runs.
    `order`: by default ranks of one host, as the places tell, are side by side.
    """
    topology, collective = request.topology, request.collective
    large, fold = parse_yes(large, "option large"), parse_yes(fold, "option fold")
    _check(collective, by)
    resolved = chosen(len(collective.members), k, radices, fold)
    refuse_more_than_fits("permrecmult", topology, collective, rows_needed(collective.kind, resolved, large))
    seating = given_order(order, collective) if order is not None else seats_by_place(topology, collective)
    schedule = _plan(collective, seating, resolved, by, large)
    natural = seating == list(collective.members)
    options = {
        "k": None if radices is not None else given_k(k, resolved.ranks, 2), "radices": radices and str(resolved),
        "fold": fold or None, "by": None if by == "permute" else by, "large": large or None,
        "order": None if natural else ",".join(map(str, seating)), "pieces": pieces,
    }  # fmt: skip
    facts = {"radices": str(resolved), "rounds": schedule.steps}
    done = finish_schedule(schedule, topology, collective, "permrecmult", options, pieces, facts)
    if by == "permute" and collective.kind != "allreduce":
        share = moved_share(collective, seating, resolved)
        rule = {"rule": "arrival", "radices": list(resolved.rounds), "ranks": resolved.ranks}
        local = (Local("permute", share),) if share else ()
        done = replace(done, local=local, provenance={**done.provenance, "layout": rule})
    yield done


def _check(collective: Collective, by: str) -> None:
    if by not in BY:
        raise unknown("way of option by", by, BY)
    if by != "permute" and collective.kind == "allreduce":
        raise Invalid(f"option by: an allreduce needs no permutation, so {by} has nothing to do; leave it out")
    if by == "exchange" and collective.kind == "reducescatter":
        raise Invalid(
            "option by: the redundant transfers of exchange have no meaning run backwards; use exchange-minimal"
        )


def _plan(collective: Collective, order: Sequence[int], radices: Radices, by: str, large: bool) -> Schedule:
    if collective.kind == "reducescatter":
        return plan_backwards(collective, lambda single: _plan(single, order, radices, by, large))
    if collective.kind == "allreduce":
        return (in_parts if large else whole_vectors)(collective, list(order), radices, True)
    if by in ("exchange", "exchange-minimal"):
        return _plan_exchange(collective, order, radices, by == "exchange-minimal")
    gathered = allgather(collective, list(order), radices, far=True)
    return _separate_runs(gathered) if by == "separate" else gathered


# ---- the layout ----


def layout(radices: Sequence[int], rank: int, ranks: int | None = None) -> Longs:
    """The block at each position of this rank's buffer when all has arrived, before the permutation.

    Ranks are numbered as seats of the order, and blocks as those who contribute them. A buffer begins with the rank's
    own block and those that fold into it, and goes on as messages arrive: of round r those of the partners at 1, 2,
    ... k - 1 times the distance, each the whole buffer of its sender at that time. `ranks`: with those that
    fold. In order again: `permute_in_place(buffer, np.argsort(layout(radices, rank)))`. O(P) per round.

    >>> [layout((2, 2), rank).tolist() for rank in range(4)]
    [[0, 2, 1, 3], [1, 3, 0, 2], [2, 0, 3, 1], [3, 1, 2, 0]]
    >>> layout((2,), 0, ranks=3).tolist(), layout((2,), 1, ranks=3).tolist()  # one of three folds
    ([0, 1, 2], [1, 0, 2])
    """
    size = math.prod(radices)
    total = size if ranks is None else ranks
    if not 0 <= rank < total or total < size:
        raise Invalid(f"layout: rank {rank} of {total} ranks with radices {'x'.join(map(str, radices))} does not exist")
    core = core_of(total, size)
    own_core = int(np.searchsorted(core.first, rank, side="right")) - 1
    order = np.array([own_core])
    for radix, distance in zip(radices, Radices(tuple(radices), total).distances(far=True), strict=True):
        digit = order // distance % radix
        away = np.arange(radix)[:, None]
        order = (order + ((digit + away) % radix - digit) * distance).ravel()
    blocks = ranges(core.first[order], core.count[order])
    ends = np.cumsum(core.count[order]) - 1  # the one who speaks for them comes first, whose number is the last
    begins = ends - core.count[order] + 1
    blocks = np.where(_marks(begins, total), blocks + np.repeat(core.count[order], core.count[order]) - 1, blocks - 1)
    if rank == core.seat[own_core]:
        return blocks
    return np.concatenate([[rank], blocks[blocks != rank]])


def _marks(at: Longs, length: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
    marks = np.zeros(length, np.bool_)
    marks[at] = True
    return marks


def moved_share(collective: Collective, order: Sequence[int], radices: Radices) -> Fraction:
    """Return the share of nbytes that the permutation moves at the rank where it moves most. O(P^2)."""
    seats = Seats.in_order(collective, list(order))
    weight = collective.weights
    goal = np.cumsum(weight) - weight
    max_moved = 0
    for seat in range(len(seats)):
        block = seats.member[layout(radices.rounds, seat, len(seats))]
        width = weight[block]
        away = (np.cumsum(width) - width) != goal[block]
        max_moved = max(max_moved, int(width[away].sum()))
        if max_moved == int(weight.sum()):
            break  # as a rule already for one of the first
    return Fraction(max_moved, collective.buffer_weight)


# ---- the alternatives ----


def _plan_exchange(collective: Collective, order: Sequence[int], radices: Radices, minimal: bool) -> Schedule:
    """First everyone sends its block to where, gathered far first, the blocks come out in order (Sack and Gropp 2012);
    every message is then a run of the buffer, and those who fold hand theirs in by the same exchange.

    So a block comes back to where it began, unless `minimal`: then whoever contributed it kept it, and neither gets it
    nor, in messages, a run without a hole.
    """
    seats = Seats.in_order(collective, list(order))
    ranks = len(seats)
    core = core_of(ranks, radices.size)
    number = np.arange(radices.size, dtype=np.int32)
    moves = gather_rounds(radices, True, number, number)
    place = reversal(radices)
    edge = np.arange(radices.size + 1) * ranks // radices.size  # blocks of each place
    first, count = edge[:-1], np.diff(edge)
    times = count[place[moves.item]]
    home = np.argsort(seats.member)  # who contributes each block
    holder = core.seat[np.argsort(place)][np.repeat(np.arange(radices.size), count)]
    block = np.arange(ranks)
    moving = holder != home
    targets = np.repeat(core.extra, ranks)
    step = [0 * block[moving], np.repeat(moves.step, times) + 1, np.full(len(targets), len(radices.rounds) + 1)]
    item = [block[moving], ranges(first[place[moves.item]], times), np.tile(block, len(core.extra))]
    src = [home[moving], core.seat[np.repeat(moves.src, times)], np.repeat(core.partner, ranks)]
    dst = [holder[moving], core.seat[np.repeat(moves.dst, times)], targets]
    when, items, senders, receivers = (np.concatenate(column) for column in (step, item, src, dst))
    keep = receivers != home[items] if minimal else np.ones(len(when), np.bool_)
    return rows_to_schedule(collective, seats, when[keep], items[keep], senders[keep], receivers[keep])


def _separate_runs(schedule: Schedule) -> Schedule:
    """Put every contiguous run of blocks of a message in a step of its own. O(rows log rows)."""
    block = schedule.chunks.block[schedule.chunk]
    order = np.lexsort((block, schedule.dst, schedule.src, schedule.step))
    step, src, dst, blocks = (column[order] for column in (schedule.step, schedule.src, schedule.dst, block))
    message = np.ones(len(order), np.bool_)
    message[1:] = (step[1:] != step[:-1]) | (src[1:] != src[:-1]) | (dst[1:] != dst[:-1])
    run = message.copy()
    run[1:] |= blocks[1:] != blocks[:-1] + 1
    number = np.cumsum(run) - 1
    within = number - np.maximum.accumulate(np.where(message, number, 0))
    longest = np.zeros(schedule.steps, np.int64)
    np.maximum.at(longest, step, within + 1)
    begin = np.cumsum(longest) - longest
    return schedule.take(order, step=narrow(begin[step] + within))
