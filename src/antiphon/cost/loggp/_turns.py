"""The event queue of the processor-level simulation: the earliest first, and of one moment what has the oldest turn.

`heap` is faster, but forgets how long an event has been waiting when it is put back for a later moment. Here the
turn that an event got when it was set in motion stays with it: who waits longest is served first.

A heap with four children to a node, in two arrays: the event at place i has its moment at times[i], and what it is,
turn << BITS | number, at turns[1 + i]; turns[0] is how many there are. Place i has the children 4 i + 1 to 4 i + 4,
none of which is before it. `heap` has the same way up and down, in arrays that hold more.
"""

from __future__ import annotations

import numpy as np

from antiphon.core.columns import Floats, Longs
from antiphon.cost.loggp.compiled import compiled

BITS = 31  # of an event's number beside its turn


def new_turns(most: int) -> tuple[Floats, Longs]:
    """Room for so many events: their moments, and how many there are, then turn << BITS | number of each.

    Event 7 has turn 1 and event 5 turn 2; 7 is put back for moment 4 after 5 was put in for it, and yet comes first:

    >>> times, turns = new_turns(2)
    >>> enter(times, turns, 4.0, 2 << BITS | 5)
    >>> enter(times, turns, 4.0, 1 << BITS | 7)
    >>> for _ in range(2):
    ...     now, what = leave(times, turns)
    ...     print(now, what >> BITS, what & ((1 << BITS) - 1))
    4.0 1 7
    4.0 2 5
    """
    return np.empty(most), np.zeros(most + 1, np.int64)


@compiled
def enter(times: Floats, turns: Longs, time: float, what: int) -> None:
    """An event (turn << BITS | number) at this moment. O(log events)."""
    at = turns[0]
    turns[0] += 1
    while at > 0:  # those that come later go down, on the way from the last place to the top
        up = (at - 1) >> 2
        if times[up] < time or (times[up] == time and turns[1 + up] < what):
            break
        times[at], turns[1 + at] = times[up], turns[1 + up]
        at = up
    times[at], turns[1 + at] = time, what


@compiled
def leave(times: Floats, turns: Longs) -> tuple[float, int]:
    """The next event, taken out: its moment, and turn << BITS | number. There must be one."""
    now, first = times[0], turns[1]
    turns[0] -= 1
    count = turns[0]
    time, what = times[count], turns[1 + count]
    at = 0
    while True:  # the last takes the place at the top: the earliest child goes up, as long as that is before it
        best = 4 * at + 1
        if best >= count:
            break
        for child in range(best + 1, min(best + 4, count)):
            if times[child] < times[best] or (times[child] == times[best] and turns[1 + child] < turns[1 + best]):
                best = child
        if time < times[best] or (time == times[best] and what < turns[1 + best]):
            break
        times[at], turns[1 + at] = times[best], turns[1 + best]
        at = best
    times[at], turns[1 + at] = time, what
    return now, first
