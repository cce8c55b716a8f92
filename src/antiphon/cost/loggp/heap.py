"""The event queue of the LogGP simulator (event_loop, state): earliest first, equal times in insertion order.

As schedules are regular, many events have the same time. Events that are inserted one after another for the same time
form one *entry* of a heap: a linked list of messages. In the heap each entry has four children. Every message has at
most one event in the queue, so all lists share one array, "message -> the next message". Everything is in two arrays,
`heap` and `lists`, as the cost of a call of a compiled function grows with the number of arrays that are passed.

Example: the events (time 1.0, message 4), (1.0, message 2), (0.5, message 3) form two entries, one for each time; they
come out as 3, 4, 2.

A key of the heap is `sequence << BITS | entry`, so that equal times are ordered by insertion. With room for R events:

    heap    0..3            time of the entry at GROWING + 0..3 of lists; -1: none
            MOMENT          time of the entry that is being taken out
            TIMES + i       time of the entry at index i of the heap
    lists   ENTRIES         number of entries in the heap
            FREED           number of entries to use again
            UNUSED          the least entry that was never used
            SEQUENCE        the next sequence number
            OLDEST_GROWING  which of 0..3 in GROWING the next new entry replaces
            CURRENT         the entry that is being taken out; -1: none
            CAPACITY        R
            GROWING + 0..3  an entry that may grow; -1: none
            KEYS + i        the key at index i of the heap
            KEYS + R + e, KEYS + 2 R + e    entry e's next message to take, and its last
            KEYS + 3 R + m  the message after message m in its entry; -1: none
            KEYS + 4 R + i  the entries to use again

An entry may grow while it is among the last RECENT entries that were made, until `take` has emptied it and goes on to
the next. A later event of the same time makes another entry, which has a higher sequence number and so comes after it.
"""

from __future__ import annotations

import numpy as np

from antiphon.core.columns import Floats, Longs
from antiphon.cost.loggp.compiled import compiled

RECENT = 4  # entries that may still grow
BITS = 26  # low bits of a key that hold the entry (at most 2^26 at once); its sequence number is above them
# Indices into `lists`, and in the second line into `heap`; the table above explains each. 7 and 12 to 15 are unused, so
# that blocks of the array begin at multiples of 8.
ENTRIES, FREED, UNUSED, SEQUENCE, OLDEST_GROWING, CURRENT, CAPACITY, GROWING, KEYS = 0, 1, 2, 3, 4, 5, 6, 8, 16
MOMENT, TIMES = 4, 8  # positions in `heap`, see above


def new_queue(messages: int) -> tuple[Floats, Longs]:
    """Allocate a queue for one event of each of this many messages; memory is touched only as it fills.

    Messages 4 and 2 have an event at time 1, put in in this order, and 3 has one at 0.5:

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
    # an entry per message, and one that `take` has emptied but not yet freed; five lists (see the table)
    heap, lists = np.empty(TIMES + messages + 1), np.empty(KEYS + 5 * (messages + 1), np.int64)
    heap[:TIMES] = -1.0
    lists[:KEYS] = 0
    lists[CURRENT], lists[CAPACITY] = -1, messages + 1
    lists[GROWING : GROWING + RECENT] = -1
    return heap, lists


@compiled
def put(heap: Floats, lists: Longs, time: float, message: int) -> None:
    """Insert the event of a message at this time. O(1) if an entry of that time may still grow, else O(log entries)."""
    capacity = lists[CAPACITY]
    first, last, next_message = KEYS + capacity, KEYS + 2 * capacity, KEYS + 3 * capacity
    lists[next_message + message] = -1
    for i in range(RECENT):  # append to an entry of that time; it may grow even if all its messages were taken
        if heap[i] == time:
            entry = lists[GROWING + i]
            if lists[first + entry] < 0:
                lists[first + entry] = message
            else:
                lists[next_message + lists[last + entry]] = message
            lists[last + entry] = message
            return
    # make a new entry; it replaces the oldest of those that may grow
    if lists[FREED]:
        lists[FREED] -= 1
        entry = lists[KEYS + 4 * capacity + lists[FREED]]
    else:
        entry = lists[UNUSED]
        lists[UNUSED] += 1
    lists[first + entry] = message
    lists[last + entry] = message
    at = lists[OLDEST_GROWING]
    heap[at] = time
    lists[GROWING + at] = entry
    lists[OLDEST_GROWING] = (at + 1) % RECENT
    key = (lists[SEQUENCE] << BITS) | entry
    lists[SEQUENCE] += 1
    at = lists[ENTRIES]
    lists[ENTRIES] += 1
    # sift up from the last index: parents later than the new entry move down; equal times go by sequence number
    while at > 0:
        parent = (at - 1) >> 2  # each entry has four children
        if heap[TIMES + parent] < time or (heap[TIMES + parent] == time and lists[KEYS + parent] < key):
            break
        heap[TIMES + at] = heap[TIMES + parent]
        lists[KEYS + at] = lists[KEYS + parent]
        at = parent
    heap[TIMES + at] = time
    lists[KEYS + at] = key


@compiled
def take(heap: Floats, lists: Longs) -> tuple[float, int]:
    """Remove the next event and return its time and its message; -1 if the queue is empty."""
    capacity = lists[CAPACITY]
    first, next_message = KEYS + capacity, KEYS + 3 * capacity
    entry = lists[CURRENT]
    if entry >= 0:  # the next of the current moment; if there is none, the entry is closed here and can be used again
        message = lists[first + entry]
        if message >= 0:
            lists[first + entry] = lists[next_message + message]
            return heap[MOMENT], message
        for i in range(RECENT):
            if lists[GROWING + i] == entry:
                lists[GROWING + i], heap[i] = -1, -1.0
        lists[KEYS + 4 * capacity + lists[FREED]] = entry
        lists[FREED] += 1
        lists[CURRENT] = -1
    if lists[ENTRIES] == 0:
        return 0.0, -1
    # the next moment: the first entry leaves the heap and becomes the current one
    now, entry = heap[TIMES], lists[KEYS] & ((1 << BITS) - 1)
    _remove_first(heap, lists)
    heap[MOMENT], lists[CURRENT] = now, entry
    message = lists[first + entry]
    lists[first + entry] = lists[next_message + message]
    return now, message


@compiled
def _remove_first(heap: Floats, lists: Longs) -> None:
    """Remove the heap's first entry: move the last one to the top and sift it down."""
    lists[ENTRIES] -= 1
    count = lists[ENTRIES]
    time, key = heap[TIMES + count], lists[KEYS + count]
    at = 0
    while True:
        best = 4 * at + 1
        if best >= count:
            break
        best_time, best_key = heap[TIMES + best], lists[KEYS + best]
        # four children per entry: fewer levels and cache misses than in a binary heap
        for child in range(best + 1, min(best + 4, count)):
            if heap[TIMES + child] < best_time or (heap[TIMES + child] == best_time and lists[KEYS + child] < best_key):
                best, best_time, best_key = child, heap[TIMES + child], lists[KEYS + child]
        if time < best_time or (time == best_time and key < best_key):
            break
        heap[TIMES + at] = best_time
        lists[KEYS + at] = best_key
        at = best
    heap[TIMES + at] = time
    lists[KEYS + at] = key
