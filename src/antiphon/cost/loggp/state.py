"""What every loop that simulates works on: who waits for whom, what each class costs, what is written down; and the
small compiled functions that the loops share.

In arrays m is a message, k its class (those of one class cost the same), c a condition. Moments and spans are seconds.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from antiphon.core.columns import Bools, Floats, Ints, Longs
from antiphon.cost.loggp.compiled import compiled, inlined
from antiphon.cost.loggp.heap import new_queue

# what a message waited for
NOTHING, SEND_PORT, NIC_OUT, RECEIVE_PORT, NIC_IN, RANK_BUSY, PROCESSOR = 0, 1, 2, 3, 4, 5, 6
FAR = -1e300
ROUNDING = 1e-12  # relative to the time so far: moments closer than this are one
GRAINS = 1e15  # in a second. Sums of whole ones are exact up to 9 s: what comes to one moment by two ways is seen to


class Graph(NamedTuple):
    """Who waits for whom: `antiphon.core.messages.Waits`, and the same turned about.

    A condition holds when all that give to it have, and the condition before it holds; a message is ready when all the
    conditions that it needs hold.
    """

    src: Ints  # m -> rank
    dst: Ints  # m -> rank
    klass: Ints  # m -> k
    needed: Ints  # m -> how many conditions it needs
    give_ptr: Ints  # m gives to the conditions give[give_ptr[m]:give_ptr[m + 1]] when it is done;
    give: Ints  # an empty give_ptr stands for two each: give[2 * m : 2 * m + 2]
    early_ptr: Ints  # likewise, when its last byte has left; empty where none does
    early: Ints
    release_ptr: Ints  # c -> the messages that need it, by number: release[release_ptr[c]:release_ptr[c + 1]]
    release: Ints
    waits: Ints  # c -> how many give to it, counting the condition before it
    after: Ints  # c -> the condition after it, -1: none


class Cost(NamedTuple):
    """Seconds, or grains, of a message of each class, of b bytes."""

    latency: Floats  # L
    send: Floats  # o_s
    receive: Floats  # o_r
    gap: Floats  # g, between two messages of a port
    flight: Floats  # G (b - 1): from the first byte to the last
    busy: Floats  # G b: on a NIC
    work: Floats  # gamma times the bytes that are combined, and what it takes besides; 0: it is not combined


class Packets(NamedTuple):
    """How messages are cut into packets between nodes."""

    nbytes: float  # of a packet
    size: Floats  # k -> bytes of a message
    per_byte: Floats  # k -> G, in grains


class Log(NamedTuple):
    """What is written down of every message; empty arrays where nothing is."""

    ready: Floats  # the moment when all that it waited for was there
    begin: Floats  # when its first byte left
    landed: Floats  # when its last byte was in
    done: Floats  # when it was received, and combined
    port: Floats  # seconds that it waited for ports (or processors), both ends together
    nic: Floats  # for NICs
    combining: Floats  # from being in to being combined
    before: Ints  # the message that made it ready last, -1: none
    cause: NDArray[np.uint8]  # what it waited for longest: NOTHING, SEND_PORT, ...
    holder: Ints  # the message that had that, -1: none
    longest: Floats  # for so many seconds


class Room(NamedTuple):
    """What a simulation works in. Made outside of the compiled loop: NumPy asks for large pages, Numba does not."""

    heap: Floats  # the event queue (`heap`): what is to come,
    lists: Longs  # by its number
    event: NDArray[np.uint8]  # number in the queue -> what happens then: ASK, SEND, ...
    needed: Ints  # m -> how many conditions it still needs
    waits: Ints  # c -> how many have still to give to it
    ready: Floats  # m -> the latest moment at which a condition that it needs came to hold, so far
    held: Floats  # c -> the latest moment that was given to it, so far


def new_room(graph: Graph, events: int, ports: int) -> Room:
    """For so many events of messages at once, and the ends of so many ports."""
    heap, lists = new_queue(events + ports)
    ready, held = np.zeros(len(graph.src)), np.zeros(len(graph.waits))
    return Room(heap, lists, np.empty(events, np.uint8), graph.needed.copy(), graph.waits.copy(), ready, held)


@inlined
def freed_by(  # noqa: PLR0913, PLR0917
    room: Room, graph: Graph, log: Log, who: Ints, freed: Ints, gives: Ints, first: int, end: int, then: float, m: int
) -> int:
    """How many messages become ready now that message m gives to the conditions gives[first:end] at the moment `then`.

    Their numbers are left in `freed`, ascending: that is the order in which they ask for what they need. A condition
    holds from the latest moment that was given to it; then it gives to the one after it. `who`: c -> the message that
    gave last, where a log is kept. Moments may lie ahead of the event at hand, so the last to give need not be the
    latest: hence the greatest.
    """
    count = 0
    for i in range(first, end):
        c = gives[i]
        moment, by = then, m
        while c >= 0:  # along the chain of conditions, as far as they hold
            if moment >= room.held[c]:
                room.held[c] = moment
                if len(who):
                    who[c] = by
            room.waits[c] -= 1
            if room.waits[c] > 0:
                break
            moment = room.held[c]  # it holds: those that need it get nearer
            if len(who):
                by = who[c]
            for j in range(graph.release_ptr[c], graph.release_ptr[c + 1]):
                other = graph.release[j]
                if moment >= room.ready[other]:
                    room.ready[other] = moment
                    if len(who):
                        log.before[other] = by
                room.needed[other] -= 1
                if room.needed[other] == 0:
                    freed[count] = other
                    count += 1
            c = graph.after[c]
    if count > 1:
        in_order(freed, count)
    return count


@compiled
def unheld(times: Floats, held: Bools, first: int, count: int, now: float) -> int:
    """The port that was left the longest time ago, of those that nobody has now or is promised; -1 where none is.

    Of the ports first, ..., first + count - 1: `times` when the last byte passed or will, `held` whether one is taken.
    Port 0 was left at 3, 1 at 2 but is promised, 2 at 1, 3 is in use until 9:

    >>> times, held = np.array([3.0, 2.0, 1.0, 9.0]), np.array([False, True, False, False])
    >>> [unheld(times, held, 0, many, 5.0) for many in (1, 3)], unheld(times, held, 3, 1, 5.0)
    ([0, 2], -1)
    """
    best = -1
    for i in range(first, first + count):
        if not held[i] and times[i] <= now and (best < 0 or times[i] < times[best]):
            best = i
    return best


@compiled
def in_order(some: Ints, count: int) -> None:
    """The first so many in ascending order: those of one condition are already, those of several seldom are not.

    By Shell's method, which takes a tenth of the time to compile of what NumPy's sort takes.

    >>> some = np.array([3, 5, 4, 0], np.int32)
    >>> in_order(some, 3)
    >>> some.tolist()
    [3, 4, 5, 0]
    """
    sorted_so_far = 1
    while sorted_so_far < count and some[sorted_so_far - 1] <= some[sorted_so_far]:
        sorted_so_far += 1
    if sorted_so_far == count:
        return
    gap = count // 2
    while gap > 0:
        for i in range(gap, count):
            one, at = some[i], i
            while at >= gap and some[at - gap] > one:
                some[at] = some[at - gap]
                at -= gap
            some[at] = one
        gap = gap * 5 // 11 if gap > 2 else gap - 1


@compiled
def earliest(times: Floats, first: int, count: int) -> tuple[int, float]:
    """The place of the least of times[first:first + count], the first of equal ones, and it: the server free soonest.

    >>> place, moment = earliest(np.array([0.0, 7.0, 4.0, 4.0]), 1, 3)
    >>> place, float(moment)
    (2, 4.0)
    """
    best, least = first, times[first]
    for i in range(first + 1, first + count):
        if times[i] < least:
            best, least = i, times[i]
    return best, least


@inlined
def fitting(times: Floats, first: int, count: int, moment: float) -> tuple[int, float]:
    """The place of the greatest of times[first:first + count] that is no later than `moment`, or if there is none, of
    the least, and it: of those free by then the server that was busy last, so that others stay free for what came
    earlier and asks later.

    >>> times = np.array([0.0, 7.0, 4.0, 5.0])
    >>> [(place, float(at)) for place, at in (fitting(times, 1, 3, 6.0), fitting(times, 1, 3, 3.0))]
    [(3, 5.0), (2, 4.0)]
    """
    best, least = first, times[first]
    for i in range(first + 1, first + count):
        if (times[i] > least and times[i] <= moment) or (times[i] < least and least > moment):
            best, least = i, times[i]
    return best, least


@inlined
def blame(log: Log, m: int, cause: int, holder: int, seconds: float) -> None:
    """Write down that message m waited so long for a thing that another had, if it waited for nothing longer."""
    if seconds > log.longest[m]:
        log.longest[m], log.cause[m], log.holder[m] = seconds, cause, holder


def no_log() -> Log:
    """For loops that are to write nothing down."""
    empty, whole = np.empty(0), np.empty(0, np.int32)
    return Log(empty, empty, empty, empty, empty, empty, empty, whole, np.empty(0, np.uint8), whole, empty)


def new_log(count: int) -> Log:
    """Room to write down so many messages."""
    before, holder = np.full(count, -1, np.int32), np.full(count, -1, np.int32)
    cause = np.zeros(count, np.uint8)
    ready, begin, landed, done, port, nic, combining, longest = (np.zeros(count) for _ in range(8))
    return Log(ready, begin, landed, done, port, nic, combining, before, cause, holder, longest)
