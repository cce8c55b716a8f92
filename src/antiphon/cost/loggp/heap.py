"""The event queue of the LogGP simulators: the earliest event first, and among equal times the one put in first.

Schedules are regular, and many events share a moment. Events put in one after another for the same moment form one
*entry*, a list, of a heap with four children per node. Every message has at most one pending event, so the lists are
threaded through one array. Everything is in two arrays, `heap` and `lists`, because a call of a compiled function costs
by the number of arrays it is passed.

Example: events (1.0, message 4), (1.0, message 2), (0.5, message 3) are two entries; they come out as 3, 4, 2.

`heap`: the times of entries that may still grow, the current moment, then the heap's times. `lists`: counters, those
entries, then the heap's (sequence << BITS | entry), and per entry its first and last message, per message the next, and
entries to use again. With room for R events, by index:

| heap                    | lists                                                                                    |
|-------------------------|------------------------------------------------------------------------------------------|
| 0..3: times, -1: none   | 0..7: ENTRIES in the heap, SPARE ones, FRESH: the least never used, SEQUENCE: the next,  |
| MOMENT: the current one | OLDEST of the growing, NOW: the current entry (-1), ROOM: R                              |
| TIMES + i: of the entry | GROWING..: the entries that may grow; WHATS + i: at place i of the heap                  |
| at place i of the heap  | WHATS + R + entry: its first message left; + 2 R: its last; + 3 R + message: the next;   |
|                         | + 4 R..: entries to use again                                                            |

An entry grows while it is among the last RECENT that were begun; a later event of that moment begins another one, which
has a higher sequence number and so comes after it.
"""

from __future__ import annotations

import numpy as np

from antiphon.core.columns import Floats, Longs
from antiphon.cost.loggp.compiled import compiled

RECENT = 4  # entries that may still grow
BITS = 26  # low bits of a key for the entry's number; its sequence number is above them
ENTRIES, SPARE, FRESH, SEQUENCE, OLDEST, NOW, ROOM, GROWING, WHATS = 0, 1, 2, 3, 4, 5, 6, 8, 16
MOMENT, TIMES = 4, 8


def new_queue(messages: int) -> tuple[Floats, Longs]:
    """Allocate a queue for one event of each of that many messages; memory is touched only as it fills.

    Messages 4 and 2 have an event at moment 1, put in in this order, and 3 one before:

    >>> heap, lists = new_queue(5)
    >>> for time, message in ((1.0, 4), (1.0, 2), (0.5, 3)):
    ...     put(heap, lists, time, message)
    >>> int(lists[ENTRIES])
    2
    >>> for _ in range(4):
    ...     print(*take(heap, lists))
    0.5 3
    1.0 4
    1.0 2
    0.0 -1
    """
    heap, lists = np.empty(TIMES + messages + 1), np.empty(WHATS + 5 * (messages + 1), np.int64)
    heap[:TIMES] = -1.0
    lists[:WHATS] = 0
    lists[NOW], lists[ROOM] = -1, messages + 1
    lists[GROWING : GROWING + RECENT] = -1
    return heap, lists


@compiled
def put(heap: Floats, lists: Longs, time: float, message: int) -> None:
    """Insert the event of a message at this time. O(1) if an entry of that time may still grow, else O(log entries)."""
    room = lists[ROOM]
    first, last, following = WHATS + room, WHATS + 2 * room, WHATS + 3 * room
    lists[following + message] = -1
    for i in range(RECENT):  # an entry of that moment, with messages left or none: at its end
        if heap[i] == time:
            entry = lists[GROWING + i]
            if lists[first + entry] < 0:
                lists[first + entry] = message
            else:
                lists[following + lists[last + entry]] = message
            lists[last + entry] = message
            return
    # A new entry, preferably one to use again; it is the youngest of those that may grow.
    if lists[SPARE]:
        lists[SPARE] -= 1
        entry = lists[WHATS + 4 * room + lists[SPARE]]
    else:
        entry = lists[FRESH]
        lists[FRESH] += 1
    lists[first + entry] = message
    lists[last + entry] = message
    at = lists[OLDEST]
    heap[at] = time
    lists[GROWING + at] = entry
    lists[OLDEST] = (at + 1) % RECENT
    key = (lists[SEQUENCE] << BITS) | entry
    lists[SEQUENCE] += 1
    at = lists[ENTRIES]
    lists[ENTRIES] += 1
    # Sift up from the last place: parents later than the new entry move down. Ties go by sequence number.
    while at > 0:
        up = (at - 1) >> 2
        if heap[TIMES + up] < time or (heap[TIMES + up] == time and lists[WHATS + up] < key):
            break
        heap[TIMES + at] = heap[TIMES + up]
        lists[WHATS + at] = lists[WHATS + up]
        at = up
    heap[TIMES + at] = time
    lists[WHATS + at] = key


@compiled
def take(heap: Floats, lists: Longs) -> tuple[float, int]:
    """Remove the next event and return its time and its message; -1 where the queue is empty."""
    room = lists[ROOM]
    first, following = WHATS + room, WHATS + 3 * room
    entry = lists[NOW]
    if entry >= 0:  # the next of the current moment; an exhausted entry may not grow, and can be used again
        message = lists[first + entry]
        if message >= 0:
            lists[first + entry] = lists[following + message]
            return heap[MOMENT], message
        for i in range(RECENT):
            if lists[GROWING + i] == entry:
                lists[GROWING + i], heap[i] = -1, -1.0
        lists[WHATS + 4 * room + lists[SPARE]] = entry
        lists[SPARE] += 1
        lists[NOW] = -1
    if lists[ENTRIES] == 0:
        return 0.0, -1
    now, entry = heap[TIMES], lists[WHATS] & ((1 << BITS) - 1)
    _remove_first(heap, lists)
    heap[MOMENT], lists[NOW] = now, entry
    message = lists[first + entry]
    lists[first + entry] = lists[following + message]
    return now, message


@compiled
def _remove_first(heap: Floats, lists: Longs) -> None:
    """Remove the heap's first entry: move the last one to the top and sift it down."""
    lists[ENTRIES] -= 1
    count = lists[ENTRIES]
    time, key = heap[TIMES + count], lists[WHATS + count]
    at = 0
    while True:
        best = 4 * at + 1
        if best >= count:
            break
        best_time, best_key = heap[TIMES + best], lists[WHATS + best]
        # Four children per node: fewer levels and cache misses than a binary heap.
        for child in range(best + 1, min(best + 4, count)):
            if heap[TIMES + child] < best_time or (
                heap[TIMES + child] == best_time and lists[WHATS + child] < best_key
            ):
                best, best_time, best_key = child, heap[TIMES + child], lists[WHATS + child]
        if time < best_time or (time == best_time and key < best_key):
            break
        heap[TIMES + at] = best_time
        lists[WHATS + at] = best_key
        at = best
    heap[TIMES + at] = time
    lists[WHATS + at] = key
