"""The event queue of the processor-level simulation: the earliest first, and of one moment what has the oldest turn.

`_loggp_heap` is faster, but forgets how long an event has been waiting when it is put back for a later moment. Here the
turn that an event got when it was set in motion stays with it: who waits longest is served first.
"""

from __future__ import annotations

import numpy as np

from antiphon.core.columns import Floats, Longs
from antiphon.cost.loggp.compiled import compiled

BITS = 31  # of an event's number beside its turn


def new_turns(most: int) -> tuple[Floats, Longs]:
    """Room for so many events: their moments, and how many there are, then turn << BITS | number of each."""
    return np.empty(most), np.zeros(most + 1, np.int64)


@compiled
def enter(times: Floats, turns: Longs, time: float, what: int) -> None:
    """An event (turn << BITS | number) at this moment. O(log events)."""
    at = turns[0]
    turns[0] += 1
    while at > 0:
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
    while True:
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
