"""Scratch: stretches that hold what has come until nobody needs it, dealt to slots that are used again and again."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from antiphon.core.columns import Longs, numbered, order_of, pointers, starts
from antiphon.lower.rows import DataLine


@dataclass(frozen=True, eq=False)
class Slots:
    """Per stretch its slot (numbered by rank) and the stretch that had it before, -1; per slot its class."""

    slot: Longs
    before: Longs
    ptr: Longs  # by rank
    of_class: Longs
    class_whole: Longs
    class_part: Longs
    class_pieces: Longs


def dealt(
    line: DataLine, ranks: int, where: tuple[Longs, Longs, Longs, Longs], life: tuple[Longs, Longs], lag: int
) -> Slots:
    """Give every stretch (rank, first and last point, pieces; begin and end of its life) a slot of its class.

    A slot is taken up again by the stretch that begins next, the one that is free for longest first, and not before
    `lag` steps after its last use, so that one step's receives need not wait for the last step's combinations.
    Whether a slot is free when stretch k begins depends only on how many have begun and ended, so no loop is needed.
    O(n log n).

    Stretches of rank 0 as long as the first block, which live from 0 to 2, from 1 to 5 and from 3 to 4: the third takes
    the slot of the first.

    >>> from antiphon.core.example import star
    >>> point, same = np.zeros(3, np.int64), np.ones(3, np.int64)
    >>> slots = dealt(DataLine.of(star()), 1, (point, point, same, same), (np.array([0, 1, 3]), np.array([2, 5, 4])), 0)
    >>> slots.slot.tolist(), slots.before.tolist(), slots.ptr.tolist()
    ([0, 1, 0], [-1, -1, 0], [0, 2])
    """
    rank, begin, end, pieces = where
    whole, part = line.whole[end] - line.whole[begin], line.part[end] - line.part[begin]
    whole, part = whole - (part < 0), part % line.denominator
    kind = numbered(whole, part, pieces)
    kinds = int(kind.max(initial=-1)) + 1
    one = np.zeros(kinds, np.int64)
    one[kind] = np.arange(len(kind))
    pool = numbered(rank, kind)
    pools = int(pool.max(initial=-1)) + 1
    number = np.zeros(pools, np.int64)
    number[pool] = np.arange(len(pool))
    index, before, many = _first_in_first_out(pool, pools, life[0], life[1] + 1 + 2 * lag)
    base = np.cumsum(many) - many
    of_rank, of_kind = rank[number], kind[number]
    ptr = pointers(np.repeat(of_rank, many), ranks)
    slot = base[pool] + index - ptr[rank] if len(rank) else index
    return Slots(slot, before, ptr, np.repeat(of_kind, many), whole[one], part[one], pieces[one])


def _first_in_first_out(pool: Longs, pools: int, begin: Longs, free: Longs) -> tuple[Longs, Longs, Longs]:
    """Per stretch the number of its slot in its pool, and who had it before; per pool how many slots there are.
    O(n log n).

    One pool; the slot of the first is free from 2 on:

    >>> _first_in_first_out(np.zeros(3, np.int64), 1, np.array([0, 1, 3]), np.array([2, 6, 5]))
    (array([0, 1, 0]), array([-1, -1,  0]), array([2]))
    """
    count = len(pool)
    if not count:
        return pool, pool, np.zeros(pools, np.int64)
    span = int(max(begin.max(), free.max())) + 1
    order, by_end = order_of(pool * span + begin, pools * span), order_of(pool * span + free, pools * span)
    head = pointers(pool[order], pools)
    mine = pool[order]
    nth = np.arange(count) - head[mine]
    freed = np.searchsorted((pool * span + free)[by_end], (pool * span + begin)[order], side="right") - head[mine]
    slots = np.maximum.accumulate(nth + 1 - freed + mine * (count + 1)) - mine * (count + 1)  # slots so far
    slots_before = np.where(nth > 0, np.concatenate([[0], slots[:-1]]), 0)
    again = slots == slots_before
    before = np.full(count, -1, np.int64)
    before[order[again]] = by_end[(head[mine] + nth - slots_before)[again]]
    index = np.full(count, -1, np.int64)
    index[order[~again]] = slots[~again] - 1
    root = np.where(before >= 0, before, np.arange(count))
    while True:  # to the first one of the slot, twice as far each time
        further = root[root]
        if np.array_equal(further, root):
            break
        root = further
    last = np.append(starts(mine)[1:], True)
    return index[root], before, slots[last]
