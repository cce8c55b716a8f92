"""What the messages of a schedule wait for, in few words: conditions that several may share, never all pairs.

Among 1024 ranks that all send to all twice, pairs of messages would be 10^9; conditions are two million numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from antiphon.core.columns import Ints, Longs, dense, distinct, narrow, order_of, ranges, starts
from antiphon.core.dependencies import versions
from antiphon.core.interpret import block_elements
from antiphon.core.interpret.buffers import chunk_bounds
from antiphon.core.schedule import REDUCE, Schedule
from antiphon.core.transform import expand
from antiphon.errors import Invalid, quote

ORDERS = ("rounds", "data")


@dataclass(frozen=True, eq=False)
class Sent:
    """The messages of a schedule of unpipelined chunks: rows with equal (step, src, dst, route), in this order.

    `combined`: of nbytes, how many the receiver combines with what it has. Rows inside one rank are messages to itself.
    """

    schedule: Schedule
    of_row: Longs
    step: Longs
    src: Ints
    dst: Ints
    route: Ints
    nbytes: Longs
    combined: Longs

    def __len__(self) -> int:
        return len(self.src)


def sent(schedule: Schedule, nbytes: int) -> Sent:
    """Pieces are written out. Chunks are cut at whole bytes as they are at whole elements when a schedule runs: the
    chunks of a block have together what the block has. O(n log n) in rows, in practice linear."""
    schedule = expand(schedule)
    ranks = schedule.collective.ranks
    low, high = chunk_bounds(schedule.chunks, block_elements(schedule.collective, nbytes, 1))
    size = (high - low)[schedule.chunk]
    ways, way = dense(schedule.src * np.int64(ranks) + schedule.dst, ranks * ranks)
    routes = len(schedule.routes) + 1
    given = np.full(schedule.transfers, -1, np.int32) if schedule.route is None else schedule.route
    if schedule.route is not None:
        routes = max(routes, int(given.max(initial=0)) + 2)
    pairs, pair = dense(way * routes + given + 1, max(len(ways) * routes, 1))
    times, time = dense(schedule.step.astype(np.int64), schedule.steps or 1)
    key, of_row = dense(time * len(pairs) + pair, max(len(times) * len(pairs), 1))
    count = len(key)
    reduced = np.where(schedule.op == REDUCE, size, 0)
    at, route = np.divmod(pairs[key % max(len(pairs), 1)], routes) if count else (key, key)
    ends = ways[at] if count else key
    return Sent(
        schedule, of_row, times[key // max(len(pairs), 1)] if count else key, narrow(ends // ranks),
        narrow(ends % ranks), narrow(route - 1), _sums(of_row, size, count), _sums(of_row, reduced, count),
    )  # fmt: skip


def _sums(of_row: Longs, size: Longs, count: int) -> Longs:
    if float(size.sum(dtype=np.float64)) < 2.0**53:  # exact in floating point, too, and that is faster
        return np.bincount(of_row, weights=size, minlength=count).astype(np.int64)
    out = np.zeros(count, np.int64)
    np.add.at(out, of_row, size)
    return out


@dataclass(frozen=True, eq=False)
class Waits:
    """Message `message[i]` waits for condition `condition[i]` (every pair once, by message, then condition).

    Condition c is met when the messages items[low[c]:high[c]] are done; no two conditions are the same, though an item
    may stand in one twice.
    """

    items: Ints
    low: Longs
    high: Longs
    message: Ints
    condition: Ints

    @property
    def pairs(self) -> int:
        """How many pairs of messages they stand for, before repeated ones are left out."""
        return int((self.high - self.low)[self.condition].sum())


def waits(messages: Sent, order: str) -> Waits:
    """By "rounds" a message waits for all that its source sent or received in earlier steps; by "data" for those that
    brought what it carries (what is overwritten only later waits for nobody here: receivers have buffers)."""
    if order not in ORDERS:
        raise Invalid(f"order: expected {' or '.join(ORDERS)}, got {quote(order)}")
    return _by_data(messages) if order == "data" else _by_rounds(messages)


def _by_rounds(messages: Sent) -> Waits:
    """A round is what a rank sends and receives in one step. Those of the round before suffice, if the rank sent in it:
    what it sent had waited for the rest. Else those of the rounds before that too, back to one in which it sent."""
    count = len(messages)
    ends = np.stack([messages.src, messages.dst], axis=1).ravel()  # in the order of steps
    order = order_of(ends.astype(np.int64), messages.schedule.collective.ranks)
    item = order >> 1
    rank = ends[order].astype(np.int64)
    step = messages.step[item]
    begins = starts(rank) | starts(step)
    first = np.flatnonzero(begins)
    number = np.cumsum(begins) - 1
    new_rank = starts(rank[first])
    sends = np.zeros(len(first), np.bool_)
    own = (order & 1) == 0
    sends[number[own]] = True
    rounds = np.arange(len(first))
    # per round the one from which on all counts: the last before it in which the rank sent, or the rank's first
    back = np.maximum.accumulate(np.where(sends | new_rank, rounds, 0)) if len(first) else rounds
    since = np.where(new_rank, rounds, np.concatenate([[0], back[:-1]])[: len(first)])
    sender = np.empty(count, np.int64)  # per message the round of its source
    sender[item[own]] = number[own]
    some = since < rounds
    place = np.cumsum(some) - 1
    waiting = np.flatnonzero(some[sender]) if count else sender
    return _merged(
        narrow(item), first[since[some]], first[rounds[some]], waiting, place[sender[waiting]] if count else sender
    )


def _by_data(messages: Sent) -> Waits:
    """The versions that a message reads, each with the messages that wrote it; what was added to an earlier version
    needs that one too, back to the last copy. The versions of a cell have consecutive numbers, so that is a range."""
    found = versions(messages.schedule)
    ptr, rows = found.writers
    adds = np.zeros(len(found), np.bool_)
    adds[found.write] = messages.schedule.op == REDUCE
    number = np.arange(len(found))
    base = np.maximum.accumulate(np.where(found.initial | ~adds, number, 0)) if len(found) else number
    low, high = ptr[base], ptr[1:]
    read = np.flatnonzero((high > low)[found.read]) if len(found) else number
    used, place = dense(found.read[read].astype(np.int64), max(len(found), 1))
    return _merged(narrow(messages.of_row[rows]), low[used], high[used], messages.of_row[read], place)


def _merged(items: Ints, low: Longs, high: Longs, message: Longs, condition: Longs) -> Waits:
    """Conditions of the same items become one, and every pair stands once.

    Sets of items are told apart by sums of two random numbers of 64 bits for each: O(items), and for all practical
    purposes certain.
    """
    if not len(low):
        none = np.zeros(0, np.int32)
        return Waits(items, low.astype(np.int64), high.astype(np.int64), none, none)
    draw = np.random.default_rng(20240229)
    most = int(items.max(initial=0)) + 1
    marks = []
    for _ in range(2):
        value: NDArray[np.uint64] = draw.integers(0, 2**64, most, np.uint64)
        total = np.concatenate([np.zeros(1, np.uint64), np.cumsum(value[items], dtype=np.uint64)])  # modulo 2^64
        marks.append(total[high] - total[low])
    by_mark = np.lexsort(marks)
    new = starts(marks[0][by_mark]) | starts(marks[1][by_mark])
    group = np.empty(len(low), np.int64)
    group[by_mark] = np.cumsum(new) - 1
    kept = by_mark[new]
    conditions = len(kept)
    pair = distinct(message * conditions + group[condition])
    return Waits(items, low[kept], high[kept], narrow(pair // conditions), narrow(pair % conditions))


def listed(found: Waits, pick: NDArray[np.intp] | slice = slice(None)) -> tuple[Longs, Longs]:
    """The pairs (message, message that it waits for) of these waits, each once, in order."""
    message, condition = found.message[pick], found.condition[pick]
    many = (found.high - found.low)[condition]
    most = int(found.items.max(initial=0)) + 1
    wanted = found.items[ranges(found.low[condition], many)]
    pair = distinct(np.repeat(message.astype(np.int64), many) * most + wanted)
    return pair // most, pair % most
