"""What is alike in a plan: chunks, hops and resources that no counting of what meets what tells apart.

Of a schedule: `before`, which of its rows (hops) must wait for which; and the coarsest classes of hops, chunks and
resources so that all of a class meet as many of every other class. What is done alike with all of a class loads a
class of resources alike, and of any way to time hops the mean over classes is no slower. So a program over classes
loses nothing to one over hops; no symmetries need be known for that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.core.columns import Bools, Floats, Longs, ranges
from antiphon.core.dependencies import versions
from antiphon.core.routes import latencies, resolve
from antiphon.core.schedule import REDUCE, Schedule
from antiphon.core.topology import Topology

Marks = NDArray[np.uint64]


@dataclass(frozen=True, eq=False)
class Before:
    """Hop `then[i]` begins `lag[i]` steps after hop `first[i]` at the earliest: 1 for what it must have, 0 for what is
    sent before it is overwritten."""

    first: Longs
    then: Longs
    lag: Longs


def before(schedule: Schedule) -> Before:
    """What any timing of the rows must keep. Sums that nobody reads in between are taken in in any order.

    Rank 0 takes in what 1 and 2 have (rows 0 and 1), then tells both (rows 2 and 3):

    >>> from antiphon.core.example import star
    >>> found = before(star())
    >>> list(zip(found.first.tolist(), found.then.tolist(), found.lag.tolist()))
    [(0, 2, 1), (0, 3, 1), (1, 2, 1), (1, 3, 1), (0, 2, 0), (1, 3, 0)]
    """
    known = versions(schedule)
    read_at, readers = known.readers
    write_at, writers = known.writers
    copied = np.zeros(len(known), bool)
    copied[known.write[schedule.op != REDUCE]] = True
    first, idle = known.initial, np.diff(read_at) == 0
    joins = np.zeros(len(known), bool)  # what only adds to sums that nobody read is one group of writes with these
    joins[1:] = ~first[1:] & ~first[:-1] & idle[:-1] & ~copied[1:] & ~copied[:-1]
    begin = np.flatnonzero(~joins)
    end = np.append(begin[1:], len(known))
    wrote, read = (write_at[begin], write_at[end]), (read_at[begin], read_at[end])
    every, later = np.arange(len(begin)), np.flatnonzero(~first[begin])  # later: not the first of its cell
    unread = later[read[0][later - 1] == read[1][later - 1]]
    pairs = [
        (_product(writers, wrote, every, readers, read, every), 1),
        (_product(readers, read, later - 1, writers, wrote, later), 0),
        (_product(writers, wrote, unread - 1, writers, wrote, unread), 1),
    ]
    before, then = (np.concatenate([pair[side] for pair, _ in pairs]) for side in (0, 1))
    lag = np.concatenate([np.full(len(pair[0]), late, np.int64) for pair, late in pairs])
    apart = before != then
    return Before(before[apart], then[apart], lag[apart])


Span = tuple[Longs, Longs]


def _product(
    left: Longs, of_left: Span, some: Longs, right: Longs, of_right: Span, others: Longs
) -> tuple[Longs, Longs]:
    """Of some groups every item of the left with every item of the right."""
    low, many = of_left[0][some], (of_left[1] - of_left[0])[some]
    start, more = of_right[0][others], (of_right[1] - of_right[0])[others]
    each = many * more
    owner = np.repeat(np.arange(len(some)), each)
    place = ranges(np.zeros(len(each), np.int64), each)
    across = more[owner]
    return left[low[owner] + place // across].astype(np.int64), right[start[owner] + place % across].astype(np.int64)


@dataclass(frozen=True, eq=False)
class Alike:
    """Classes of one schedule by number: of every row, chunk, block and resource. `crossed`: row and resource of every
    crossing, `late`, `weight` and `adds` of every row: the latency of its way, its part of nbytes, and
    whether it is a sum's."""

    hop: Longs
    chunk: Longs
    block: Longs
    resource: Longs
    crossed: tuple[Longs, Longs]
    late: Floats
    weight: Floats
    adds: Bools
    before: Before


def alike(schedule: Schedule, topology: Topology) -> Alike:
    """The coarsest classes that counting tells apart, as long as that makes more of them. O(rounds * rows * hops)."""
    found = resolve(topology, schedule.src, schedule.dst, schedule.route, schedule.routes)
    rows, resources = schedule.transfers, topology.resources
    hops = np.diff(found.table.ptr)[found.route]
    row = np.repeat(np.arange(rows), hops)
    on = found.table.links[ranges(found.table.ptr[found.route], hops)].astype(np.int64)
    more = (resources.limit_ptr[on + 1] - resources.limit_ptr[on]) if len(resources.limit_of) else np.zeros_like(on)
    row = np.concatenate([row, np.repeat(row, more)])
    if more.any():
        on = np.concatenate([on, resources.limit_of[ranges(resources.limit_ptr[on], more)]])
    late = np.append(latencies(topology, found.table), 0.0)[found.route]
    weights, scale = schedule.chunks.weights(schedule.collective)
    waits = before(schedule)
    chunk = schedule.chunk.astype(np.int64)
    mark = _mix(_numbered(weights)[chunk], _numbered(late), schedule.op.astype(np.uint64))
    place = _mix(_numbered(resources.klass))
    owner = _mix(_numbered(weights))
    home = _mix(_numbered(schedule.collective.weights))
    block = schedule.chunks.block.astype(np.int64)
    kinds = 0
    while True:
        place = _mix(place, _summed(_mix(mark[row]), on, len(place)))
        owner = _mix(owner, _summed(_mix(mark), chunk, len(owner)), home[block])
        home = _mix(home, _summed(_mix(owner), block, len(home)))
        mark = _mix(
            mark,
            owner[chunk],
            _summed(_mix(place[on]), row, rows),
            _summed(_mix(mark[waits.first], waits.lag.astype(np.uint64)), waits.then, rows),
            _summed(_mix(mark[waits.then], waits.lag.astype(np.uint64)), waits.first, rows),
        )
        now = sum(len(np.unique(some)) for some in (mark, place, owner, home))
        if now <= kinds:
            break
        kinds = now
    hop, owners, blocks, places = (
        np.unique(some, return_inverse=True)[1].astype(np.int64) for some in (mark, owner, home, place)
    )
    weight = np.asarray(weights, np.float64)[chunk] / float(scale)
    return Alike(hop, owners, blocks, places, (row, on), late, weight, schedule.op == REDUCE, waits)


def tied(known: Alike, owner: Longs) -> Longs:
    """Fewer classes of hops: of chunks with the same label those that cross ways of one latency and wait for the same
    classes are one, or, of sums on their way to where they are added up, those for which the same classes wait.
    `owner`: of every row the label of its chunk."""
    waits, rows = known.before, len(known.hop)
    adds = known.adds if not (~known.adds[waits.first] & known.adds[waits.then]).any() else np.zeros(rows, bool)
    inside = adds[waits.first] == adds[waits.then]
    first, then, lag = waits.first[inside], waits.then[inside], waits.lag[inside]
    first, then = np.where(adds[first], then, first), np.where(adds[first], first, then)
    base = _mix(_numbered(owner), _numbered(known.late), adds.astype(np.uint64))
    mark, kinds = base, 0
    while (now := len(np.unique(mark))) > kinds:
        kinds, seen = now, _mix(mark[first], lag.astype(np.uint64))
        order = np.lexsort((seen, then))
        fresh = np.ones(len(order), bool)
        fresh[1:] = (np.diff(then[order]) != 0) | (seen[order][1:] != seen[order][:-1])
        kept = order[fresh]  # each class once, however many of it there are
        mark = _mix(base, _summed(seen[kept], then[kept], rows))
    return np.unique(mark, return_inverse=True)[1].astype(np.int64)


def chains(first: Longs, then: Longs, lag: Longs, count: int) -> Longs:
    """Of every one of so many the most lags of others that must go before, one after the other."""
    depth = np.zeros(count, np.int64)
    while True:
        reached = depth.copy()
        np.maximum.at(reached, then, depth[first] + lag)
        if (reached == depth).all():
            return depth
        depth = reached


def _numbered(values: NDArray[Any]) -> Marks:
    return np.unique(values, return_inverse=True)[1].astype(np.uint64)


def _mix(*columns: Marks) -> Marks:
    """A number of 64 bits for what stands side by side."""
    with np.errstate(over="ignore"):
        out = np.full(len(columns[0]), 0x9E3779B97F4A7C15, np.uint64)
        for values in columns:
            out = (out ^ values) * np.uint64(0xD6E8FEB86659FD93)
            out ^= out >> np.uint64(32)
            out *= np.uint64(0xD6E8FEB86659FD93)
            out ^= out >> np.uint64(29)
        return out


def _summed(values: Marks, at: Longs, size: int) -> Marks:
    """By place the sum of its values, modulo 2^64: the same whatever their order."""
    out = np.zeros(size, np.uint64)
    with np.errstate(over="ignore"):
        np.add.at(out, at, values)
    return out
