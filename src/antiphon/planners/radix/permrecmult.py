"""Permuted recursive multiplying: the farthest partners first (section III.C of the paper on parameterized collectives,
docs/planners/radix.md).

In recursive multiplying (recmult.py) k ranks exchange all data that they have in every round, so the messages grow from
round to round. With near partners first, the largest messages go the farthest, over the slowest links. Here the
farthest partners exchange first, while messages are small. But then blocks arrive out of order. The buffer is filled in
order of arrival, so that every message is contiguous on both sides (Figure 3b), and a permutation at the end puts the
blocks in order; `layout` maps positions to blocks. Ranks beyond the product of the radices *fold*: each gives its data
to a partner, its representative, before the rounds and gets the result after them.

Example: P = 4, k = 2. Rank 0 exchanges with 2 first, then with 1: its buffer holds blocks 0, 2, 1, 3.

Alternatives (the paper's Figure 7): an exchange at the beginning, after which blocks arrive in order (`exchange`,
`exchange-minimal`), or every contiguous run of blocks as a message of its own (`separate`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Annotated, Any

import numpy as np

from antiphon.core.collective import Collective
from antiphon.core.columns import Longs, as_int32, concat_ranges
from antiphon.core.request import Request
from antiphon.core.schedule import Local, Schedule
from antiphon.errors import Invalid
from antiphon.options import Option
from antiphon.planners.radix.lanes import seats_by_place
from antiphon.planners.radix.mixed import (
    Fold,
    LargeAllreduce,
    Radices,
    RoundRadices,
    RoundSize,
    allgather_rounds,
    allreduce_in_parts,
    allreduce_whole,
    choose_radices,
    core_of,
    digit_reversal,
    gather_rounds,
    resolve_k,
    rows_needed,
)
from antiphon.planners.shared.rows import (
    Pieces,
    Seats,
    finish_schedule,
    parse_order,
    plan_backwards,
    refuse_too_many_transfers,
    rows_to_schedule,
)

BY = ("permute", "exchange", "exchange-minimal", "separate")  # values of the option `by`, see above


By = Annotated[
    str,
    Option(
        "how allgather and reducescatter bring blocks into order: permute at the end, exchange at the beginning, or "
        "separate runs",
        choices=BY,
    ),
]
HostOrder = Annotated[
    str | int | Sequence[int] | None, Option("the ranks in this order (default: those of a host side by side)")
]


def permrecmult(
    request: Request,
    *,
    k: RoundSize = None,
    radices: RoundRadices = None,
    fold: Fold = False,
    by: By = "permute",
    large: LargeAllreduce = False,
    order: HostOrder = None,
    pieces: Pieces = 1,
) -> Iterator[Schedule]:
    """Yield one schedule: O(P^2) transfers, allreduce of whole vectors O(P k log_k P)."""
    topology, collective = request.topology, request.collective
    _check_options(collective, by)
    resolved = choose_radices(len(collective.members), k, radices, fold)
    refuse_too_many_transfers("permrecmult", request, rows_needed(collective.kind, resolved, large))
    seating = parse_order(order, collective) if order is not None else seats_by_place(topology, collective)
    schedule = _plan_collective(collective, seating, resolved, by, large)
    # a plan names every order that was asked for, or that is not the members' own, even the default one by hosts
    is_member_order = seating == list(collective.members)
    options = {
        "k": None if radices is not None else resolve_k(k, resolved.ranks), "radices": radices and str(resolved),
        "fold": fold or None, "by": None if by == "permute" else by, "large": large or None,
        "order": None if order is None and is_member_order else ",".join(map(str, seating)), "pieces": pieces,
    }  # fmt: skip
    facts = {"radices": str(resolved), "rounds": schedule.steps}
    finished = finish_schedule(schedule, request, "permrecmult", options, pieces, facts)
    if by == "permute" and collective.kind != "allreduce":
        # cost models price the permutation as local work; our tables for GPUs read the layout (lower/device/arrival.py)
        share = moved_share(collective, seating, resolved)
        rule = {"rule": "arrival", "radices": list(resolved.rounds), "ranks": resolved.ranks}
        local = (Local("permute", share),) if share else ()
        finished = replace(finished, local=local, provenance={**finished.provenance, "layout": rule})
    yield finished


def _check_options(collective: Collective, by: str) -> None:
    """Raise Invalid for a value of `by` that the collective cannot use."""
    if by != "permute" and collective.kind == "allreduce":
        raise Invalid(f"option by: an allreduce needs no permutation, so {by} has nothing to do; leave it out")
    if by == "exchange" and collective.kind == "reducescatter":
        raise Invalid(
            "option by: the redundant transfers of exchange have no meaning run backwards; use exchange-minimal"
        )


def _plan_collective(collective: Collective, order: Sequence[int], radices: Radices, by: str, large: bool) -> Schedule:
    """Return the schedule; `by`: how blocks get into order."""
    if collective.kind == "reducescatter":
        return plan_backwards(collective, lambda dual: _plan_collective(dual, order, radices, by, large))
    if collective.kind == "allreduce":
        return (allreduce_in_parts if large else allreduce_whole)(collective, list(order), radices, far=True)
    if by in ("exchange", "exchange-minimal"):
        return _plan_exchange(collective, order, radices, by == "exchange-minimal")
    gathered = allgather_rounds(collective, list(order), radices, far=True)
    return _separate_runs(gathered) if by == "separate" else gathered


# ---- the layout ----


def layout(radices: Sequence[int], rank: int, ranks: int | None = None) -> Longs:
    """Return the block at each position of this rank's buffer when all has arrived, before the permutation. O(P) per
    round.

    Ranks are numbered as seats of the order, and blocks as their contributors. A buffer begins with the rank's own
    block and those folded into it, and continues as messages arrive: in round r those of the partners at 1, 2, ... k -
    1 times the distance, each the whole buffer of its sender at that time. `ranks`: including those that fold. To
    restore the order: `buffer[np.argsort(layout(radices, rank))]`.

    >>> [layout((2, 2), rank).tolist() for rank in range(4)]
    [[0, 2, 1, 3], [1, 3, 0, 2], [2, 0, 3, 1], [3, 1, 2, 0]]
    >>> layout((2,), 0, ranks=3).tolist(), layout((2,), 1, ranks=3).tolist()  # rank 0 folds into 1
    ([0, 1, 2], [1, 0, 2])
    """
    size = math.prod(radices)
    total = size if ranks is None else ranks
    if not 0 <= rank < total or total < size:
        raise Invalid(f"layout: rank {rank} of {total} ranks with radices {'x'.join(map(str, radices))} does not exist")
    # the representatives of the ranks, which take part in the rounds: core c for the `core.count[c]` seats from
    # `core.first[c]` on; it is the last of these
    core = core_of(total, size)
    own_core = int(np.searchsorted(core.first, rank, side="right")) - 1
    order = np.array([own_core])
    for radix, distance in zip(radices, Radices(tuple(radices), total).distances(far=True), strict=True):
        digit = order // distance % radix
        shift = np.arange(radix)[:, None]
        # each round multiplies the buffer: the partner `shift` digits on contributes the same pattern, shifted
        order = (order + ((digit + shift) % radix - digit) * distance).ravel()
    blocks = concat_ranges(core.first[order], core.count[order])
    # each core's run of blocks is rotated by one: its own block (that of its last seat) first, then the others in order
    ends = np.cumsum(core.count[order]) - 1
    begins = ends - core.count[order] + 1
    blocks = np.where(
        _mark_positions(begins, total), blocks + np.repeat(core.count[order], core.count[order]) - 1, blocks - 1
    )
    # a representative's buffer is what the rounds give; a folded rank has its own block first, then all others
    if rank == core.seat[own_core]:
        return blocks
    return np.concatenate([[rank], blocks[blocks != rank]])


def _mark_positions(at: Longs, length: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return a mask of this length that is true at these positions."""
    marks = np.zeros(length, np.bool_)
    marks[at] = True
    return marks


def moved_share(collective: Collective, order: Sequence[int], radices: Radices) -> Fraction:
    """Return the fraction of nbytes that the permutation moves at the rank where it moves most. O(P^2)."""
    seats = Seats.in_order(collective, list(order))
    weight = collective.weights
    goal = np.cumsum(weight) - weight  # by block: where it begins in the ordered buffer
    max_moved = 0
    for seat in range(len(seats)):
        block = seats.member[layout(radices.rounds, seat, len(seats))]
        width = weight[block]
        is_misplaced = (np.cumsum(width) - width) != goal[block]
        max_moved = max(max_moved, int(width[is_misplaced].sum()))
        if max_moved == int(weight.sum()):
            break  # the maximum possible; usually one of the first ranks has it
    return Fraction(max_moved, collective.buffer_weight)


# ---- the alternatives ----


def _plan_exchange(collective: Collective, order: Sequence[int], radices: Radices, minimal: bool) -> Schedule:
    """Plan an allgather that begins with an exchange after which far-first rounds give the blocks in order (Sack and
    Gropp 2012).

    Every message is then contiguous in the buffer; folded ranks send theirs in the same exchange. A block returns to
    its contributor, unless `minimal`: then the contributor keeps it, and messages have a hole there.
    """
    seats = Seats.in_order(collective, list(order))
    ranks = len(seats)
    # core c is at seat `core.seat[c]`; seats `core.extra`, which fold, are each represented by their `core.partner`
    core = core_of(ranks, radices.size)
    number = np.arange(radices.size, dtype=np.int32)
    moves = gather_rounds(radices, far=True, node=number, item=number)
    # by core: its position, which is its number with the digits reversed, so that the far-first rounds join neighbours
    position = digit_reversal(radices)
    # Blocks by position and not by core as in `core.first`: far-first rounds need ascending blocks at ascending
    # positions.
    edge = np.arange(radices.size + 1) * ranks // radices.size
    # by position: its first block and number of blocks; rounded differently from `core.first` and `core.count`
    first, count = edge[:-1], np.diff(edge)
    times = count[position[moves.item]]  # by move: its number of blocks
    home = np.argsort(seats.member)  # by block: the seat that contributes it
    # which core must hold each block first, so that far-first rounds append blocks in ascending order
    holder = core.seat[np.argsort(position)][np.repeat(np.arange(radices.size), count)]
    block = np.arange(ranks)
    is_moved = holder != home
    targets = np.repeat(core.extra, ranks)
    # rows of the exchange, of the rounds, and of the folded ranks, which get every block in a last step
    exchange_step = np.zeros_like(block[is_moved])
    step = [exchange_step, np.repeat(moves.step, times) + 1, np.full(len(targets), len(radices.rounds) + 1)]
    item = [block[is_moved], concat_ranges(first[position[moves.item]], times), np.tile(block, len(core.extra))]
    src = [home[is_moved], core.seat[np.repeat(moves.src, times)], np.repeat(core.partner, ranks)]
    dst = [holder[is_moved], core.seat[np.repeat(moves.dst, times)], targets]
    when, items, senders, receivers = (np.concatenate(column) for column in (step, item, src, dst))
    keep = receivers != home[items] if minimal else np.ones(len(when), np.bool_)
    return rows_to_schedule(collective, seats, when[keep], chunk=items[keep], src=senders[keep], dst=receivers[keep])


def _separate_runs(schedule: Schedule) -> Schedule:
    """Put every contiguous run of blocks of a message in a step of its own. O(rows log rows)."""
    block = schedule.chunks.block[schedule.chunk]
    order = np.lexsort((block, schedule.dst, schedule.src, schedule.step))
    step, src, dst, blocks = (column[order] for column in (schedule.step, schedule.src, schedule.dst, block))
    starts_message = np.ones(len(order), np.bool_)
    starts_message[1:] = (step[1:] != step[:-1]) | (src[1:] != src[:-1]) | (dst[1:] != dst[:-1])
    # a run ends with its message, or where the next block is not the next number
    starts_run = starts_message.copy()
    starts_run[1:] |= blocks[1:] != blocks[:-1] + 1
    run = np.cumsum(starts_run) - 1
    run_in_message = run - np.maximum.accumulate(np.where(starts_message, run, 0))
    max_runs = np.zeros(schedule.steps, np.int64)  # by step, of any message
    np.maximum.at(max_runs, step, run_in_message + 1)
    begin = np.cumsum(max_runs) - max_runs
    return schedule.take(order, step=as_int32(begin[step] + run_in_message))
