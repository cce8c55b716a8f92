"""Ranks numbered in mixed radix: arithmetic and rounds that recmult, permrecmult, halving-doubling and recursive
doubling share (section III.B of the paper on parameterized collectives, docs/planners/radix.md).

The number of ranks is written as a product of radices r_0 * r_1 * ...; so each rank has a digit per round, and in round
i all ranks that differ only in digit i exchange. `distances` lists the distances between these partners: near first (1,
r_0, r_0 r_1, ...) or far first. If there are more ranks than the product, some fold: the ranks that take part in the
rounds are the cores, and every other rank gives its data to a neighbouring core before and gets the result after
(`core_of`). A seat is a position in the option `order`, by default the rank's number. In this file an item is the data
that one core has at the start.

`gather_rounds` builds the rows of all rounds as NumPy broadcasts; `allgather_rounds`, `allreduce_whole` and
`allreduce_in_parts` make schedules of them.

Example: 12 = 3 * 4, near first: rank 7 has digits 1 and 2 (7 = 1 + 3 * 2). It exchanges with 6 and 8 in round 0, and
with 1, 4 and 10 in round 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np

from antiphon.core.collective import Collective
from antiphon.core.columns import Ints, Longs, as_int32, concat_ranges
from antiphon.core.schedule import COPY, REDUCE, Chunks, Schedule, cut
from antiphon.core.transform import compose, invert
from antiphon.errors import Invalid, quote
from antiphon.options import Option
from antiphon.planners.shared.rows import Order, Seats, fold_extra_ranks, rows_to_schedule

DEFAULT_K = 4  # ranks that exchange in a round

Radix = str | int | Sequence[int]
RoundSize = Annotated[int | None, Option("maximum number of ranks that exchange in a round (default: 4)", minimum=2)]
RoundRadices = Annotated[Radix | None, Option("ranks that exchange, round by round, such as 4x4x2 (default: by k)")]
Fold = Annotated[bool, Option("fold to a power of k even where P has factors of at most k")]
LargeAllreduce = Annotated[bool, Option("allreduce as a reducescatter and an allgather, not by whole vectors")]


@dataclass(frozen=True)
class Radices:
    """The radix of every round, in order. If `ranks` exceeds their product (`size`), the other ranks fold."""

    rounds: tuple[int, ...]
    ranks: int

    @property
    def size(self) -> int:
        return math.prod(self.rounds)

    def distances(self, far: bool) -> list[int]:
        """Return how far apart the partners of every round are: 1 first and growing, or the farthest first."""
        products = [math.prod(self.rounds[:i]) for i in range(len(self.rounds) + 1)]
        return [self.size // d for d in products[1:]] if far else products[:-1]

    def __str__(self) -> str:
        return "x".join(map(str, self.rounds))


def resolve_k(k: int | None, ranks: int) -> int:
    """Return the option `k`, or its default; values above the number of ranks count as that number."""
    return min(DEFAULT_K if k is None else k, ranks)


def choose_radices(ranks: int, k: int | None, radices: Radix | None, fold: bool) -> Radices:
    """Return the option `radices`, else radices by `k`.

    These are the fewest factors of the number of ranks that are at most k. If there are none, or with `fold`, they are
    k, as often as its power is at most the number of ranks.
    """
    if radices is not None:
        if k is not None:
            raise Invalid("options k and radices: give one of them, as radices name every round's k")
        return Radices(_parse_radices(radices, ranks), ranks)
    limit = resolve_k(k, ranks)
    factors = None if fold else factors_up_to(ranks, limit)
    return Radices(factors or (limit,) * power_below(ranks, limit), ranks)


def doubling_radices(ranks: int) -> Radices:
    """Return the radices of recursive doubling: 2, as often as the ranks allow.

    >>> doubling_radices(11)
    Radices(rounds=(2, 2, 2), ranks=11)
    """
    return Radices((2,) * power_below(ranks, k=2), ranks)


def _parse_radices(radices: Radix, ranks: int) -> tuple[int, ...]:
    """Parse the option `radices`, such as "4x4x2"."""
    try:
        fans = tuple(int(r) for r in (str(radices).split("x") if isinstance(radices, str | int) else radices))
    except (TypeError, ValueError):
        raise Invalid(f"option radices: expected numbers such as 4x4x2, got {quote(radices)}") from None
    if not fans or min(fans) < 2:
        raise Invalid(f"option radices: every round needs a radix of 2 or more, such as 4x4x2, got {quote(radices)}")
    if math.prod(fans) > ranks:
        raise Invalid(
            f"option radices: the product of {quote(radices)} is {math.prod(fans)}, but only {ranks} ranks take part; "
            f"give radices whose product is {ranks}, or less to let the rest fold"
        )
    return fans


def power_below(ranks: int, k: int) -> int:
    """Return the greatest e with k^e <= ranks, in whole numbers (logarithms in floats are off by one at 5^3 and
    3^5).
    """
    power = 0
    while k ** (power + 1) <= ranks:
        power += 1
    return power


def powers_above(ranks: int, k: int) -> tuple[int, ...]:
    """Return k as often as needed for a product of at least `ranks`: the levels of a tree, the last of them not full.

    >>> powers_above(9, 2)
    (2, 2, 2, 2)
    """
    levels: tuple[int, ...] = ()
    while k ** len(levels) < ranks:
        levels = (*levels, k)
    return levels


def edges(ranks: int, levels: Sequence[int]) -> tuple[Longs, Longs, Longs, Longs]:
    """Return (step, parent, child, size of the child's subtree) for the edges of a broadcast tree over seats
    0..ranks-1.

    Step by step, every holder of the data sends it to the others of a group. `levels`: the ranks per group of every
    level, the nearest ranks first. The farthest partners come first: a subtree is a run of neighbours, and most hops
    are short. O(ranks).

    >>> [column.tolist() for column in edges(5, (2, 2, 2))]
    [[0, 1, 2, 2], [0, 0, 0, 2], [4, 2, 1, 3], [1, 2, 1, 1]]
    """
    rows: list[tuple[Longs, ...]] = []  # by step, the columns of the result
    for number, level in enumerate(reversed(range(len(levels)))):
        # on this level a group is `levels[level]` subtrees of `distance` seats; the first seat of each is its root
        distance = math.prod(levels[:level])
        parents = np.arange(0, ranks, distance * levels[level])
        children = parents[:, None] + np.arange(1, levels[level]) * distance
        exists = children < ranks
        parent, child = np.broadcast_to(parents[:, None], children.shape)[exists], children[exists]
        rows.append((np.full(len(child), number), parent, child, np.minimum(distance, ranks - child)))
    step, parent, child, size = (np.concatenate(column) for column in zip(*rows, strict=True))
    return step, parent, child, size


def factors_up_to(number: int, max_factor: int) -> tuple[int, ...] | None:
    """Factor the number into as few factors from 2 to `max_factor` as possible, the most even ones, the greatest last.

    None where a prime factor is greater.

    The last round moves most: with the greatest factor last the messages of a round, which are as large as the product
    of the factors before, are smallest. O(divisors^2).

    >>> factors_up_to(24, 4), factors_up_to(7, 4)
    ((2, 3, 4), None)
    """
    divisors = [d for d in range(2, min(max_factor, number) + 1) if number % d == 0]
    best: dict[int, tuple[int, ...]] = {1: ()}  # number -> its factors, the greatest first

    def search(cofactor: int) -> tuple[int, ...] | None:
        """Return the best factors of a cofactor, the greatest first; None if there are none."""
        # (0,) marks numbers without such a factorization, so that they are searched once
        if cofactor not in best:
            factorings = [(d, search(cofactor // d)) for d in divisors if cofactor % d == 0]
            products = [tuple(sorted((d, *tail), reverse=True)) for d, tail in factorings if tail is not None]
            best[cofactor] = min(products, key=lambda f: (len(f), f), default=(0,))
        return best[cofactor] if best[cofactor] != (0,) else None

    factors = search(number)
    return None if factors is None else factors[::-1]


@dataclass(frozen=True, eq=False)
class Core:
    """Core c is at seat `seat[c]` and represents the `count[c]` seats from `first[c]` on; it is the last of these.

    Seat `extra[i]` is represented by seat `partner[i]`.
    """

    seat: Longs
    first: Longs
    count: Longs
    extra: Longs
    partner: Longs


def core_of(ranks: int, size: int) -> Core:
    """Assign the seats to `size` cores, neighbours to the same one, as evenly as possible. O(ranks).

    Five seats over four cores: seat 0 gives its part to seat 1, which is core 0.

    >>> core = core_of(5, 4)
    >>> [c.tolist() for c in (core.seat, core.first, core.count, core.extra, core.partner)]
    [[1, 2, 3, 4], [0, 2, 3, 4], [2, 1, 1, 1], [0], [1]]
    """
    # the first (ranks % size) cores represent one seat more
    count = ranks // size + (np.arange(size) < ranks % size)
    first = np.cumsum(count) - count
    extra = concat_ranges(first, count - 1)
    return Core(first + count - 1, first, count, extra, np.repeat(first + count - 1, count - 1))


@dataclass(frozen=True, eq=False)
class Rows:
    """Transfers as columns: in step[i], item[i] goes from src[i] to dst[i]."""

    step: Ints
    item: Ints
    src: Ints
    dst: Ints


def gather_rounds(radices: Radices, far: bool, node: Ints, item: Ints) -> Rows:
    """Return the transfers by which all cores exchange all their data, a digit per round.

    `far`: the farthest partners exchange first, else the nearest. `node`, `item`: per core, the numbers that the result
    uses for it and for its initial data.

    One row per core and foreign item, the rows of a message adjacent; every column is written once, as a broadcast of
    small tables. O(cores^2).

    Two rounds among four: with the neighbour, then with the one two away.

    >>> names = np.arange(4, dtype=np.int32)
    >>> rows = gather_rounds(Radices((2, 2), 4), False, names, names)
    >>> [column[:4].tolist() for column in (rows.step, rows.item, rows.src, rows.dst)]
    [[0, 0, 0, 0], [0, 1, 2, 3], [0, 1, 2, 3], [1, 0, 3, 2]]
    >>> [column[4:].tolist() for column in (rows.step, rows.item, rows.src, rows.dst)]
    [[1, 1, 1, 1, 1, 1, 1, 1], [0, 1, 0, 1, 2, 3, 2, 3], [0, 0, 1, 1, 2, 2, 3, 3], [2, 2, 3, 3, 0, 0, 1, 1]]
    """
    size = radices.size
    rows = size * (size - 1)
    step, items, src, dst = (np.empty(rows, np.int32) for _ in range(4))
    cores, first_row = np.arange(size), 0
    # invariant: before a round, core c has the items base[c] + offsets (all combinations of the digits done so far)
    base, offsets = cores.copy(), np.zeros(1, np.int64)
    for number, (radix, distance) in enumerate(zip(radices.rounds, radices.distances(far), strict=True)):
        digit = cores // distance % radix
        partner = cores + ((digit + np.arange(1, radix)[:, None]) % radix - digit) * distance
        shape = (radix - 1, size, len(offsets))
        end_row = first_row + math.prod(shape)
        step[first_row:end_row] = number
        items[first_row:end_row].reshape(shape)[...] = item[base[:, None] + offsets]
        src[first_row:end_row].reshape(shape)[...] = node[cores][:, None]
        dst[first_row:end_row].reshape(shape)[...] = node[partner][:, :, None]
        # after the round all digits of this position are present: the common base has digit 0 there
        base = base - digit * distance
        offsets = (np.arange(radix)[:, None] * distance + offsets).ravel()
        first_row = end_row
    return Rows(step, items, src, dst)


def allgather_rounds(collective: Collective, order: Order, radices: Radices, far: bool) -> Schedule:
    """Plan an allgather, a round per radix. Folded ranks send their data first and receive all other data last. O(P^2).

    Among three, two cores (ranks 1 and 2); rank 0 folds into 1:

    >>> schedule = allgather_rounds(Collective("allgather", 3), None, Radices((2,), 3), False)
    >>> list(zip(*(c.tolist() for c in (schedule.step, schedule.chunk, schedule.src, schedule.dst))))
    [(0, 0, 0, 1), (1, 0, 1, 2), (1, 1, 1, 2), (1, 2, 2, 1), (2, 1, 1, 0), (2, 2, 1, 0)]
    """
    seats = Seats.in_order(collective, order)
    core = core_of(len(seats), radices.size)
    if not len(core.extra):
        rows = gather_rounds(radices, far, seats.rank, as_int32(seats.member))
        op = np.full(len(rows.step), COPY, np.uint8)
        return Schedule(collective, cut(collective, parts=1), rows.step, rows.item, rows.src, rows.dst, op)
    number = np.arange(radices.size, dtype=np.int32)
    moves = gather_rounds(radices, far, number, number)
    # a core's item stands for all seats that it represents
    block_counts = core.count[moves.item]
    receiver, missing_seat = pair_extra_seats(core, len(seats))
    last_step = np.full(len(missing_seat), len(radices.rounds) + 1, np.int64)
    # in step 0 the extra seats send to their cores, then the cores exchange, in the last step the extra seats receive
    core_step = (np.repeat(moves.step, block_counts) + 1).astype(np.int64)
    step: list[Longs] = [np.zeros_like(core.extra), core_step, last_step]
    item = [core.extra, concat_ranges(core.first[moves.item], block_counts), missing_seat]
    src = [core.extra, core.seat[np.repeat(moves.src, block_counts)], np.repeat(core.partner, len(seats) - 1)]
    dst = [core.partner, core.seat[np.repeat(moves.dst, block_counts)], receiver]
    block = seats.member[np.concatenate(item)]
    return rows_to_schedule(collective, seats, np.concatenate(step), block, np.concatenate(src), np.concatenate(dst))


def pair_extra_seats(core: Core, ranks: int) -> tuple[Longs, Longs]:
    """Return all pairs of an extra seat and another seat, whose data it receives in the end. O(extra * ranks).

    >>> pair_extra_seats(core_of(3, 2), 3)
    (array([0, 0]), array([1, 2]))
    """
    index = np.arange(ranks - 1)[None, :]
    other_seat = (index + (index >= core.extra[:, None])).ravel()
    return np.repeat(core.extra, ranks - 1), other_seat


def allreduce_whole(collective: Collective, order: Order, radices: Radices, far: bool) -> Schedule:
    """Plan an allreduce of whole vectors: the k partners of a round exchange and add up theirs. O(P k) per round.

    >>> schedule = allreduce_whole(Collective("allreduce", 4), None, Radices((2, 2), 4), False)
    >>> list(zip(*(c.tolist() for c in (schedule.step, schedule.src, schedule.dst))))
    [(0, 0, 1), (0, 1, 0), (0, 2, 3), (0, 3, 2), (1, 0, 2), (1, 1, 3), (1, 2, 0), (1, 3, 1)]
    """
    seats = Seats.in_order(collective, order)
    core = core_of(len(seats), radices.size)
    cores = np.arange(radices.size)
    src, dst, step = [], [], []
    for number, (radix, distance) in enumerate(zip(radices.rounds, radices.distances(far), strict=True)):
        digit = cores // distance % radix
        partner = cores + ((digit + np.arange(1, radix)[:, None]) % radix - digit) * distance
        src.append(np.broadcast_to(cores, partner.shape).ravel())
        dst.append(partner.ravel())
        step.append(np.full(partner.size, number))
    steps = np.concatenate(step)
    ends = core.seat[np.concatenate(src)], core.seat[np.concatenate(dst)]
    core_rows = rows_to_schedule(collective, seats, steps, np.zeros_like(steps), *ends, REDUCE)
    return fold_extra_ranks(collective, core_rows, seats.rank[core.extra], seats.rank[core.partner])


def digit_reversal(radices: Radices) -> Longs:
    """Return by core the number that has its digits in reverse order: the first round's digit counts least. O(cores).

    >>> digit_reversal(Radices((2, 2), 4))
    array([0, 2, 1, 3])
    """
    cores, reversed_digits, weight = np.arange(radices.size), np.zeros(radices.size, np.int64), 1
    for radix, distance in zip(radices.rounds, radices.distances(far=True), strict=True):
        reversed_digits += cores // distance % radix * weight
        weight *= radix
    return reversed_digits


def allreduce_in_parts(collective: Collective, order: Order, radices: Radices, far: bool) -> Schedule:
    """Plan an allreduce of large vectors: a reducescatter among the cores, then their allgather. O(cores^2).

    Folded ranks give their whole vector before, and receive the whole result after. Which core owns which part in
    between is free: parts are assigned such that every message is contiguous in the vector, and nothing is permuted.

    Two ranks: each adds up a half, then they exchange.

    >>> schedule = allreduce_in_parts(Collective("allreduce", 2), None, Radices((2,), 2), False)
    >>> list(zip(*(c.tolist() for c in (schedule.step, schedule.chunk, schedule.src, schedule.dst, schedule.op))))
    [(0, 0, 1, 0, 1), (0, 1, 0, 1, 1), (1, 0, 0, 1, 0), (1, 1, 1, 0, 0)]
    """
    seats = Seats.in_order(collective, order)
    core = core_of(len(seats), radices.size)
    core_ranks = seats.rank[core.seat].tolist()
    core_collective = Collective("allgather", collective.ranks, tuple(core_ranks))
    gathered = allgather_rounds(core_collective, core_ranks, Radices(radices.rounds, radices.size), far)
    exchange = _deal_parts(
        compose(invert(gathered), gathered), core_ranks, digit_reversal(radices) if far else np.arange(radices.size)
    )
    return fold_extra_ranks(collective, exchange, seats.rank[core.extra], seats.rank[core.partner])


def _deal_parts(schedule: Schedule, core_ranks: Sequence[int], part_of_core: Longs) -> Schedule:
    """Reassign the parts of the vector: core c owns part part_of_core[c] after the reducescatter. O(chunks)."""
    count = len(core_ranks)
    # part i of the vector was that of the core with the i-th lowest rank, since blocks stand in the order of ranks
    new_part = np.empty(count, np.int64)  # by part: its position in the vector from now on
    new_part[np.argsort(np.argsort(core_ranks))] = part_of_core
    chunks = schedule.chunks
    old_part = chunks.offset * count // chunks.denominator
    offset = chunks.offset + (new_part[old_part] - old_part) * (chunks.denominator // count)
    return replace(schedule, chunks=Chunks(chunks.block, offset, chunks.share, chunks.denominator))


def rows_needed(kind: str, radices: Radices, large: bool = False) -> int:
    """Estimate the number of transfers; ranks beyond `radices.size` send to a rank before and receive after."""
    ranks, outside = radices.ranks, radices.ranks - radices.size
    if kind == "allreduce" and not large:
        return radices.size * sum(r - 1 for r in radices.rounds) + 2 * outside
    if kind == "allreduce":  # a reducescatter and an allgather of `size` blocks
        return 2 * radices.size**2 + 2 * outside * radices.size
    return ranks * ranks
