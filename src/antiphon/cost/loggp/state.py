"""State shared by the simulation loops (dependencies, costs per class, log), and small compiled functions on it.

In arrays m is a message, k its class (messages of one class cost the same), c a condition. Moments and spans are in
seconds, or in whole grains of 1e-15 s while a simulation runs. A message contributes to ("gives to") conditions when it
is done or when its last byte has left; a message is ready when all conditions that it needs hold
(core/messages/waits.py).

Example: messages 0 and 1 give to condition 0, which messages 2 and 3 need: waits[0] = 2, release = [2, 3]. When 0 is
done at 8 and 1 at 12, condition 0 holds from 12, and `freed_by` returns 2 and 3, ready at 12.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from antiphon.core.columns import Bools, Floats, Ints, Longs
from antiphon.cost.loggp.compiled import compiled, inlined
from antiphon.cost.loggp.heap import new_queue

# The resource that a message waited for.
NOTHING, SEND_PORT, NIC_OUT, RECEIVE_PORT, NIC_IN, RANK_BUSY, PROCESSOR = 0, 1, 2, 3, 4, 5, 6
FAR = -1e300  # a moment before all others
ROUNDING = 1e-12  # relative to the time so far: moments closer than this are equal
GRAINS = 1e15  # per second. Sums of whole grains are exact up to 9 s, so equal moments compare equal however computed


class Graph(NamedTuple):
    """Dependencies between messages: `antiphon.core.messages.Waits`, and the same indexed by condition.

    A condition is satisfied when all its contributors are done and the condition before it is satisfied; a message is
    ready when all the conditions that it needs hold.
    """

    src: Ints  # m -> rank
    dst: Ints  # m -> rank
    klass: Ints  # m -> k
    needed: Ints  # m -> number of conditions that it needs
    give_ptr: Ints  # m gives to the conditions give[give_ptr[m]:give_ptr[m + 1]] when it is done;
    give: Ints  # an empty give_ptr stands for two each: give[2 * m : 2 * m + 2]
    early_ptr: Ints  # likewise, when its last byte has left; empty where none does
    early: Ints
    release_ptr: Ints  # c -> the messages that need it, by number: release[release_ptr[c]:release_ptr[c + 1]]
    release: Ints
    waits: Ints  # c -> number of contributions to it, counting the condition before it
    after: Ints  # c -> the condition after it, -1: none


class Cost(NamedTuple):
    """Seconds, or grains, for a message of b bytes, per class."""

    latency: Floats  # L
    send: Floats  # o_s
    receive: Floats  # o_r
    gap: Floats  # g, between two messages of a port
    flight: Floats  # G (b - 1): from the first byte to the last
    busy: Floats  # G b: on a NIC
    work: Floats  # gamma times the bytes that are combined, plus other local work; 0: it is not combined


class Packets(NamedTuple):
    """How messages are cut into packets between nodes."""

    nbytes: float  # of a packet
    size: Floats  # k -> bytes of a message
    per_byte: Floats  # k -> G, in grains


class Log(NamedTuple):
    """Records per message; empty arrays if nothing is recorded."""

    ready: Floats  # the moment when its last condition held
    begin: Floats  # when its first byte left
    landed: Floats  # when its last byte was in
    done: Floats  # when it was received, and combined
    port: Floats  # seconds that it waited for ports (or processors), both ends together
    nic: Floats  # for NICs
    combining: Floats  # from being in to being combined
    before: Ints  # the message that made it ready last, -1: none
    cause: NDArray[np.uint8]  # the resource of its longest wait: NOTHING, SEND_PORT, ...
    holder: Ints  # the message that held that resource, -1: none
    longest: Floats  # the longest wait in seconds


class Room(NamedTuple):
    """Workspace of a simulation. Allocated outside the compiled loop: NumPy asks for large pages, Numba does not."""

    heap: Floats  # the event queue, see heap.py
    lists: Longs
    event: NDArray[np.uint8]  # number in the queue -> kind of event: ASK, SEND, ...
    needed: Ints  # m -> number of conditions that it still needs
    waits: Ints  # c -> number of contributions still missing
    ready: Floats  # m -> the latest moment, so far, at which a condition that it needs was satisfied
    held: Floats  # c -> the latest moment, so far, of a contribution to it


def new_room(graph: Graph, events: int, ports: int) -> Room:
    """Allocate the workspace for that many simultaneous events of messages, and for the port events."""
    heap, lists = new_queue(events + ports)
    ready, latest = np.zeros(len(graph.src)), np.zeros(len(graph.waits))
    return Room(heap, lists, np.empty(events, np.uint8), graph.needed.copy(), graph.waits.copy(), ready, latest)


@inlined
def freed_by(  # noqa: PLR0913, PLR0917
    room: Room,
    graph: Graph,
    log: Log,
    who: Ints,
    freed: Ints,
    gives: Ints,
    first: int,
    end: int,
    give_time: float,
    m: int,
) -> int:
    """Count the messages that become ready when message m contributes to the conditions gives[first:end] at
    `give_time`.

    Their numbers are left in `freed` in ascending order, in which they then ask for resources. A condition holds from
    the latest moment of its contributions; then it contributes to the condition after it. `who`: c -> the message that
    contributed last, if a log is kept. Moments may lie ahead of the current event, so the last contribution need not be
    the latest: hence the maximum.
    """
    count = 0
    for i in range(first, end):
        c = gives[i]
        # A condition that now holds contributes to its successor in turn: follow the chain until one still waits.
        moment, by = give_time, m
        while c >= 0:
            if moment >= room.held[c]:
                room.held[c] = moment
                if len(who):
                    who[c] = by
            room.waits[c] -= 1
            if room.waits[c] > 0:
                break
            moment = room.held[c]  # it holds: count it for the messages that need it
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
def find_free_port(times: Floats, reserved: Bools, first: int, count: int, now: float) -> int:
    """Return the port idle for longest among those neither in use nor reserved; -1 if there is none.

    Ports are first, ..., first + count - 1; `times`: when the last byte passed or will pass; `reserved`: whether it is
    taken. Port 0 was left at 3, 1 at 2 but is reserved, 2 at 1, 3 is in use until 9:

    >>> times, reserved = np.array([3.0, 2.0, 1.0, 9.0]), np.array([False, True, False, False])
    >>> [find_free_port(times, reserved, 0, ports, 5.0) for ports in (1, 3)], find_free_port(times, reserved, 3, 1, 5.0)
    ([0, 2], -1)
    """
    best = -1
    for i in range(first, first + count):
        if not reserved[i] and times[i] <= now and (best < 0 or times[i] < times[best]):
            best = i
    return best


@compiled
def in_order(values: Ints, count: int) -> None:
    """Sort the first `count` values in ascending order; those released by a single condition are sorted already.

    Shell's method: it compiles in a tenth of the time that NumPy's sort takes.

    >>> values = np.array([3, 5, 4, 0], np.int32)
    >>> in_order(values, 3)
    >>> values.tolist()
    [3, 4, 5, 0]
    """
    sorted_so_far = 1
    while sorted_so_far < count and values[sorted_so_far - 1] <= values[sorted_so_far]:
        sorted_so_far += 1
    if sorted_so_far == count:
        return
    gap = count // 2
    # Shell sort with gaps shrinking by 5/11; the last pass has gap 1.
    while gap > 0:
        for i in range(gap, count):
            value, at = values[i], i
            while at >= gap and values[at - gap] > value:
                values[at] = values[at - gap]
                at -= gap
            values[at] = value
        gap = gap * 5 // 11 if gap > 2 else gap - 1


@compiled
def find_earliest(times: Floats, first: int, count: int) -> tuple[int, float]:
    """Return index and value of the smallest of times[first:first + count] (the first of equal ones): the server free
    soonest.

    >>> place, moment = find_earliest(np.array([0.0, 7.0, 4.0, 4.0]), 1, 3)
    >>> place, float(moment)
    (2, 4.0)
    """
    best, best_time = first, times[first]
    for i in range(first + 1, first + count):
        if times[i] < best_time:
            best, best_time = i, times[i]
    return best, best_time


@inlined
def find_latest_before(times: Floats, first: int, count: int, moment: float) -> tuple[int, float]:
    """Return index and value of the greatest of times[first:first + count] that is at most `moment`, or else of the
    smallest.

    Of the servers free by then this is the one that was busy last, so the others stay free for earlier arrivals that
    ask later.

    >>> times = np.array([0.0, 7.0, 4.0, 5.0])
    >>> [(i, float(at)) for i, at in (find_latest_before(times, 1, 3, 6.0), find_latest_before(times, 1, 3, 3.0))]
    [(3, 5.0), (2, 4.0)]
    """
    best, best_time = first, times[first]
    for i in range(first + 1, first + count):
        if (times[i] > best_time and times[i] <= moment) or (times[i] < best_time and best_time > moment):
            best, best_time = i, times[i]
    return best, best_time


@inlined
def record_blame(log: Log, m: int, cause: int, holder: int, seconds: float) -> None:
    """Record how long message m waited for a resource and for which message, if that was its longest wait."""
    if seconds > log.longest[m]:
        log.longest[m], log.cause[m], log.holder[m] = seconds, cause, holder


def no_log() -> Log:
    """Return an empty log, for loops that record nothing."""
    empty, empty_ints = np.empty(0), np.empty(0, np.int32)
    return Log(empty, empty, empty, empty, empty, empty, empty, empty_ints, np.empty(0, np.uint8), empty_ints, empty)


def new_log(count: int) -> Log:
    """Allocate a log for that many messages."""
    before, holder = np.full(count, -1, np.int32), np.full(count, -1, np.int32)
    cause = np.zeros(count, np.uint8)
    ready, begin, landed, done, port, nic, combining, longest = (np.zeros(count) for _ in range(8))
    return Log(ready, begin, landed, done, port, nic, combining, before, cause, holder, longest)
