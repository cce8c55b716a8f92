"""State shared by the simulation loops (dependencies, costs per class, log), and small compiled functions on it.

In comments m is a message, k its class (messages of one class cost the same), c a condition; "m -> x" describes an
array indexed by m. Times are in seconds, or in whole *femtoseconds* (1e-15 s) while a simulation runs. A message
contributes to conditions when it is done, and to others when its last byte has left. A condition holds when all its
contributions have happened; a message is ready when all conditions that it needs hold (core/messages/waits.py).

Example: messages 0 and 1 contribute to condition 0, which messages 2 and 3 need: waits[0] = 2, release = [2, 3]. When 0
is done at 8 and 1 at 12, condition 0 holds from 12, and `contribute` reports that 2 and 3 are ready at 12.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from antiphon.core.columns import Bools, Floats, Ints, Longs
from antiphon.cost.loggp.compiled import compiled, inlined
from antiphon.cost.loggp.heap import new_queue

FAR_PAST = -1e300  # a time before all others: when ports and NICs were last in use
ROUNDING = 1e-12  # relative to the time so far: times closer than this are equal
# Femtoseconds per second, the unit of the loops (run.py converts). Sums of whole femtoseconds are exact up to 9 s, so
# equal times compare equal however they were computed.
FEMTOSECONDS = 1e15


# numba's cache files name these classes: with another name here, the files of an older installation cannot be read.
class Graph(NamedTuple):
    """Dependencies between messages: `antiphon.core.messages.Waits`, and the same indexed by condition.

    Conditions form chains: a condition may have one before it. It holds when all its contributing messages are done (or
    have left), and the condition before it holds.
    """

    src: Ints  # m -> rank
    dst: Ints  # m -> rank
    cost_class: Ints  # m -> k
    needed: Ints  # m -> number of conditions that it needs
    # When m is done, it contributes to the conditions on_done[on_done_ptr[m]:on_done_ptr[m + 1]]. If on_done_ptr is
    # empty, every message contributes to two conditions: on_done[2 * m : 2 * m + 2].
    on_done_ptr: Ints
    on_done: Ints
    on_left_ptr: Ints  # likewise, when its last byte has left; empty if no message does so
    on_left: Ints
    release_ptr: Ints  # c -> the messages that need it, by number: release[release_ptr[c]:release_ptr[c + 1]]
    release: Ints
    waits: Ints  # c -> number of contributions to it, counting the condition before it
    after: Ints  # c -> the condition after it in its chain, -1: none


class Cost(NamedTuple):
    """The cost of a message of b bytes in seconds, or in femtoseconds; arrays are per class."""

    latency: Floats  # L
    send: Floats  # o_s
    receive: Floats  # o_r
    gap: Floats  # g: least time between two messages of a port
    flight: Floats  # G (b - 1): time from the first byte to the last
    busy: Floats  # G b: time that it occupies a NIC
    work: Floats  # gamma times the bytes that are combined, plus other local work; 0: it is not combined


class Packets(NamedTuple):
    """How messages are divided into packets between hosts."""

    nbytes: float  # bytes of a packet
    size: Floats  # k -> bytes of a message
    per_byte: Floats  # k -> G, in femtoseconds


class Log(NamedTuple):
    """Records per message; empty arrays if nothing is recorded."""

    ready: Floats  # when the last condition that it needs held
    begin: Floats  # when its first byte left
    landed: Floats  # when its last byte arrived
    done: Floats  # when it was received, and combined
    port: Floats  # time that it waited for ports (or processors), at both ends
    port_out: Floats  # of that, for ports of its sender; not known with processors
    nic: Floats  # time that it waited for NICs
    combining: Floats  # time between its arrival and the end of combining it
    before: Ints  # the message that made it ready last, -1: none


class Workspace(NamedTuple):
    """Arrays that a simulation changes. Allocated outside the compiled loop, as NumPy uses large pages and Numba does
    not.
    """

    heap: Floats  # the event queue, see heap.py
    lists: Longs  # of the event queue, too
    event: NDArray[np.uint8]  # number in the queue -> kind of event: ASK, SEND, ...
    needed: Ints  # m -> number of conditions that it still needs
    waits: Ints  # c -> number of contributions still missing
    ready: Floats  # m -> the latest time, so far, from which a condition that it needs holds
    holds_from: Floats  # c -> the latest time, so far, of a contribution to it


def new_workspace(graph: Graph, events: int, ports: int) -> Workspace:
    """Allocate the workspace for this many simultaneous events of messages, and of ports."""
    heap, lists = new_queue(events + ports)
    ready, latest = np.zeros(len(graph.src)), np.zeros(len(graph.waits))
    return Workspace(heap, lists, np.empty(events, np.uint8), graph.needed.copy(), graph.waits.copy(), ready, latest)


@inlined
def contribute(  # noqa: PLR0913, PLR0917
    workspace: Workspace,
    graph: Graph,
    log: Log,
    last_contributor: Ints,
    made_ready: Ints,
    conditions: Ints,
    first: int,
    end: int,
    contribution_time: float,
    m: int,
) -> int:
    """Let message m contribute to conditions[first:end] at `contribution_time`; return the number that become ready.

    Their numbers are written to the beginning of `made_ready`, in ascending order. A condition holds from the latest
    time of its contributions; then it contributes to the condition after it. `last_contributor`: c -> the message that
    contributed last, if a log is kept. Contributions may be for times after the current event, so the last one to be
    processed need not be the latest: hence the maximum.
    """
    count = 0
    for i in range(first, end):
        c = conditions[i]
        # a condition that now holds contributes to the next in its chain: follow the chain until one does not hold yet
        time, contributor = contribution_time, m
        while c >= 0:
            if time >= workspace.holds_from[c]:
                workspace.holds_from[c] = time
                if len(last_contributor):
                    last_contributor[c] = contributor
            workspace.waits[c] -= 1
            if workspace.waits[c] > 0:
                break
            time = workspace.holds_from[c]  # condition c holds: count it for the messages that need it
            if len(last_contributor):
                contributor = last_contributor[c]
            for j in range(graph.release_ptr[c], graph.release_ptr[c + 1]):
                other = graph.release[j]
                if time >= workspace.ready[other]:
                    workspace.ready[other] = time
                    if len(last_contributor):
                        log.before[other] = contributor
                workspace.needed[other] -= 1
                if workspace.needed[other] == 0:
                    made_ready[count] = other
                    count += 1
            c = graph.after[c]
    if count > 1:
        sort_ascending(made_ready, count)
    return count


@compiled
def find_free_port(times: Floats, reserved: Bools, first: int, count: int, now: float) -> int:
    """Return the port that has been idle for longest, among those that are neither in use nor reserved; -1 if none.

    Ports are first, ..., first + count - 1. `times`: per port when its last byte passed or will pass. `reserved`: per
    port whether it is reserved. Port 0 is idle since 3; port 1 since 2, but is reserved; port 2 since 1; port 3 is in
    use until 9:

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
def sort_ascending(values: Ints, count: int) -> None:
    """Sort the first `count` values in ascending order. Mostly they are sorted already, as one condition released them.

    This is Shell sort, which compiles in a tenth of the time that NumPy's sort takes.

    >>> values = np.array([3, 5, 4, 0], np.int32)
    >>> sort_ascending(values, 3)
    >>> values.tolist()
    [3, 4, 5, 0]
    """
    sorted_so_far = 1
    while sorted_so_far < count and values[sorted_so_far - 1] <= values[sorted_so_far]:
        sorted_so_far += 1
    if sorted_so_far == count:
        return
    # distance of the elements compared: to 5/11 per pass, as Gonnet and Baeza-Yates advise, and 1 in the last
    stride = count // 2
    while stride > 0:
        for i in range(stride, count):
            value, at = values[i], i
            while at >= stride and values[at - stride] > value:
                values[at] = values[at - stride]
                at -= stride
            values[at] = value
        stride = stride * 5 // 11 if stride > 2 else stride - 1


@compiled
def find_earliest(times: Floats, first: int, count: int) -> tuple[int, float]:
    """Return index and value of the least of times[first:first + count]: the port or NIC that is idle first.

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
def find_latest_before(times: Floats, first: int, count: int, time: float) -> tuple[int, float]:
    """Return index and value of the greatest of times[first:first + count] up to `time`; the least if all are later.

    Of the NICs that are idle by then, this is the one that was busy last. The others remain idle for messages that
    arrived earlier, but whose events are processed later.

    >>> times = np.array([0.0, 7.0, 4.0, 5.0])
    >>> [(i, float(at)) for i, at in (find_latest_before(times, 1, 3, 6.0), find_latest_before(times, 1, 3, 3.0))]
    [(3, 5.0), (2, 4.0)]
    """
    best, best_time = first, times[first]
    for i in range(first + 1, first + count):
        if (times[i] > best_time and times[i] <= time) or (times[i] < best_time and best_time > time):
            best, best_time = i, times[i]
    return best, best_time


def new_log(count: int) -> Log:
    """Allocate a log for this many messages; of none, for loops that record nothing."""
    ready, begin, landed, done, port, port_out, nic, combining = (np.zeros(count) for _ in range(8))
    return Log(ready, begin, landed, done, port, port_out, nic, combining, np.full(count, -1, np.int32))
