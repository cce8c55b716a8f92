"""Message-level simulation: every message is one piece. Compiled; docs/models/loggp.md tells what is simulated.

A message has one event at a time: it asks for a port (ASK), its first byte leaves (SEND), comes (ARRIVE) and goes in
(PASS), it is combined (COMBINE). What follows at once needs none. A port has one only where somebody waits for it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from antiphon.core.columns import Bools, Floats, Ints, Longs
from antiphon.cost.loggp.compiled import compiled, inlined
from antiphon.cost.loggp.heap import new_queue, put, take

# events of a message; at message level it has one at a time
ASK, SEND, PACKET, FREE = 0, 1, 2, 3  # of its sending side (of packets: number m of the queue)
ARRIVE, PASS, LANDED, COMBINE, DONE = 4, 5, 6, 7, 8  # of its receiving side (of packets: number of messages + m)
# what it waited for
NOTHING, SEND_PORT, NIC_OUT, RECEIVE_PORT, NIC_IN, RANK_BUSY, PROCESSOR = 0, 1, 2, 3, 4, 5, 6
FAR = -1e300


class Graph(NamedTuple):
    """Who waits for what. A condition holds when all that gives to it is done, and all that the one before it waits
    for; a message is ready when all conditions it needs hold.

    Messages: ends, class, how many conditions they need. `give`: the conditions that get one from a message when it is
    done, and `early` those that do when its last byte has left. Per condition how many give to it (`waits`, counting
    the one before it), the messages that need it, and the condition after it (-1: none).
    """

    src: Ints
    dst: Ints
    klass: Ints
    needed: Ints
    give_ptr: Ints
    give: Ints
    early_ptr: Ints
    early: Ints
    release_ptr: Ints
    release: Ints
    waits: Ints
    after: Ints


class Cost(NamedTuple):
    """Per class: seconds of latency, overheads, gap; from the first byte to the last; on a NIC; of combining."""

    latency: Floats
    send: Floats
    receive: Floats
    gap: Floats
    flight: Floats
    busy: Floats
    work: Floats


class Log(NamedTuple):
    """Per message, or empty: when it was ready, its first byte left, its last byte was in, it was done; seconds it
    waited for ports and for NICs, and to be combined; the message that made it ready last; what it waited for longest,
    and whose end that was."""

    ready: Floats
    begin: Floats
    landed: Floats
    done: Floats
    port: Floats
    nic: Floats
    combining: Floats
    before: Ints
    cause: NDArray[np.uint8]
    holder: Ints
    longest: Floats


class Room(NamedTuple):
    """What a simulation works in. Made outside of the compiled loop: NumPy asks for large pages, Numba does not."""

    heap: Floats
    lists: Longs
    event: NDArray[np.uint8]
    needed: Ints
    waits: Ints
    ready: Floats
    held: Floats


def new_room(graph: Graph, events: int, ports: int) -> Room:
    """For so many events of messages at once, and the ends of so many ports."""
    heap, lists = new_queue(events + ports)
    ready, held = np.zeros(len(graph.src)), np.zeros(len(graph.waits))
    return Room(heap, lists, np.empty(events, np.uint8), graph.needed.copy(), graph.waits.copy(), ready, held)


def simulate_messages(
    graph: Graph, cost: Cost, node: Longs, ports: int, nics: int, log: Log
) -> tuple[float, int, int, int]:
    """Seconds until all is done, the message done last, how many were done, ports still held. `ports`, `nics`: 0 for no
    limit. O(M log(messages under way))."""
    found: tuple[float, int, int, int] = _simulated(
        new_room(graph, len(graph.src), 2 * len(node) * ports), graph, cost, node, ports, nics, log
    )
    return found


@compiled
def _simulated(
    room: Room, graph: Graph, cost: Cost, node: Longs, ports: int, nics: int, log: Log
) -> tuple[float, int, int, int]:
    src, dst, klass = graph.src, graph.dst, graph.klass
    give_ptr, give, early_ptr, early = graph.give_ptr, graph.give, graph.early_ptr, graph.early
    latency, send, receive, gap, flight, busy, work = cost
    count, ranks = len(src), len(node)
    record, tells_early = len(log.ready) > 0, len(early_ptr) > 0
    nodes = int(node.max()) + 1 if ranks else 0
    out_wake, in_wake = count, count + ranks * ports  # where the numbers of ports begin in the queue
    heap, lists, event, needed, waits, ready, _ = room
    who = np.full(len(waits) if record else 0, -1, np.int32)  # gave to each condition last
    out_last, in_last = np.full(ranks * ports, FAR), np.full(ranks * ports, FAR)
    out_held, in_held = np.zeros(ranks * ports, np.bool_), np.zeros(ranks * ports, np.bool_)
    out_user, in_user = np.full(ranks * ports, -1, np.int32), np.full(ranks * ports, -1, np.int32)
    kept = count if ports > 1 else 0  # with one port its number is the rank's
    out_port, in_port = np.empty(kept, np.int32), np.empty(kept, np.int32)
    out_line, in_line = np.empty(count, np.int32), np.empty(count, np.int32)  # the next of those that wait
    out_head, out_tail = np.full(ranks, -1, np.int32), np.full(ranks, -1, np.int32)
    in_head, in_tail = np.full(ranks, -1, np.int32), np.full(ranks, -1, np.int32)
    nic_out, nic_in = np.full(nodes * nics, FAR), np.full(nodes * nics, FAR)
    nic_out_user, nic_in_user = np.full(nodes * nics, -1, np.int32), np.full(nodes * nics, -1, np.int32)
    free, combiner = np.zeros(ranks), np.full(ranks, -1, np.int32)
    freed = np.empty(count, np.int32)  # messages that one event makes ready
    last, last_message, finished = 0.0, -1, 0
    for m in range(count):
        if needed[m] == 0:
            event[m] = ASK
            put(heap, lists, send[klass[m]], m)
    while True:
        now, number = take(heap, lists)
        if number < 0:
            break
        if number >= out_wake:  # a port is free, and somebody waits for one
            if number < in_wake:
                port = number - out_wake
                h = out_head[port // ports]
                if h < 0:  # another port came first
                    out_held[port] = False
                    continue
                out_head[port // ports] = out_line[h]
                event[h] = SEND
                if ports > 1:
                    out_port[h] = port
                put(heap, lists, now + gap[klass[h]], h)
                if record:
                    blame(log, h, SEND_PORT, out_user[port], now + gap[klass[h]] - ready[h] - send[klass[h]])
            else:
                port = number - in_wake
                h = in_head[port // ports]
                if h < 0:
                    in_held[port] = False
                    continue
                in_head[port // ports] = in_line[h]
                event[h] = PASS
                if ports > 1:
                    in_port[h] = port
                put(heap, lists, now + gap[klass[h]], h)
                if record:
                    blame(log, h, RECEIVE_PORT, in_user[port], now + gap[klass[h]] - log.begin[h] - latency[klass[h]])
            continue
        m, kind = number, event[number]
        k = klass[m]
        s, d = src[m], dst[m]
        give_from, give_to, then, leaving = 0, 0, now, False
        if (
            kind == ASK and s == d and (tells_early or work[k] > 0)
        ):  # inside a rank: has left, then is combined and done
            event[m] = COMBINE if work[k] > 0 else DONE
            put(heap, lists, now, m)
            if not tells_early:
                continue
            give_from, give_to, leaving = early_ptr[m], early_ptr[m + 1], True
        if kind == ASK and s != d:
            if ports:
                port = unheld(out_last, out_held, s * ports, ports, now)
                if port < 0:
                    for i in range(s * ports, s * ports + ports):
                        if not out_held[i]:
                            out_held[i] = True
                            put(heap, lists, out_last[i], out_wake + i)
                    out_line[m] = -1
                    if out_head[s] < 0:
                        out_head[s] = m
                    else:
                        out_line[out_tail[s]] = m
                    out_tail[s] = m
                    continue
                out_held[port] = True
                if ports > 1:
                    out_port[m] = port
                at = out_last[port] + gap[k]
                if record:
                    blame(log, m, SEND_PORT, out_user[port], at - now)
                if at > now:
                    event[m] = SEND
                    put(heap, lists, at, m)
                    continue
            kind = SEND
        if kind == SEND:
            start, a = now, node[s]
            if nics > 0 and a >= 0 and a != node[d]:
                nic, at = earliest(nic_out, a * nics, nics)
                start = max(now, at)
                nic_out[nic] = start + busy[k]
                if record:
                    log.nic[m] = start - now
                    blame(log, m, NIC_OUT, nic_out_user[nic], start - now)
                    nic_out_user[nic] = m
            if record:
                log.ready[m], log.begin[m] = ready[m], start
                log.port[m] = max(now - ready[m] - send[k], 0.0)
            event[m] = ARRIVE
            put(heap, lists, start + latency[k], m)
            then = start + flight[k]
            if ports:
                port = out_port[m] if ports > 1 else s
                out_last[port], out_held[port] = then, out_head[s] >= 0
                if record:
                    out_user[port] = m
                if out_head[s] >= 0:
                    put(heap, lists, then, out_wake + port)
            if not tells_early:
                continue
            give_from, give_to, leaving = early_ptr[m], early_ptr[m + 1], True
        elif kind == ARRIVE:
            if ports:
                port = unheld(in_last, in_held, d * ports, ports, now)
                if port < 0:
                    for i in range(d * ports, d * ports + ports):
                        if not in_held[i]:
                            in_held[i] = True
                            put(heap, lists, in_last[i], in_wake + i)
                    in_line[m] = -1
                    if in_head[d] < 0:
                        in_head[d] = m
                    else:
                        in_line[in_tail[d]] = m
                    in_tail[d] = m
                    continue
                in_held[port] = True
                if ports > 1:
                    in_port[m] = port
                at = in_last[port] + gap[k]
                if record:
                    blame(log, m, RECEIVE_PORT, in_user[port], at - now)
                if at > now:
                    event[m] = PASS
                    put(heap, lists, at, m)
                    continue
            kind = PASS
        if kind == PASS:
            start, a = now, node[d]
            if nics > 0 and a >= 0 and a != node[s]:
                nic, at = earliest(nic_in, a * nics, nics)
                start = max(now, at)
                nic_in[nic] = start + busy[k]
                if record:
                    log.nic[m] += start - now
                    blame(log, m, NIC_IN, nic_in_user[nic], start - now)
                    nic_in_user[nic] = m
            if record:
                log.port[m] += max(now - log.begin[m] - latency[k], 0.0)
            then = start + flight[k]
            if ports:
                port = in_port[m] if ports > 1 else d
                in_last[port], in_held[port] = then, in_head[d] >= 0
                if record:
                    in_user[port] = m
                if in_head[d] >= 0:
                    put(heap, lists, then, in_wake + port)
            if record:
                log.landed[m] = then
            then += receive[k]
            if work[k] > 0:
                event[m] = COMBINE
                put(heap, lists, then, m)
                continue
        elif kind == COMBINE:
            then = max(now, free[d]) + work[k]
            if record:
                log.combining[m] = then - now
                blame(log, m, RANK_BUSY, combiner[d], free[d] - now)
                combiner[d] = m
            free[d] = then
        if not leaving:
            if len(give_ptr):
                give_from, give_to = give_ptr[m], give_ptr[m + 1]
            else:
                give_from, give_to = 2 * m, 2 * m + 2
            finished += 1
            if then > last or last_message < 0:
                last, last_message = then, m
            if record:
                log.done[m] = then
                if s == d:
                    log.ready[m], log.begin[m], log.landed[m] = ready[m], then - work[k], then
        gives = early if leaving else give
        for i in range(freed_by(room, graph, log, who, freed, gives, give_from, give_to, then, m)):
            other = freed[i]
            event[other] = ASK
            put(heap, lists, ready[other] + send[klass[other]], other)
    return last, last_message, finished, int(out_held.sum() + in_held.sum())


@inlined
def freed_by(  # noqa: PLR0913, PLR0917
    room: Room, graph: Graph, log: Log, who: Ints, freed: Ints, gives: Ints, first: int, end: int, then: float, m: int
) -> int:
    """How many messages become ready (in `freed`, in order), now that message m gives to gives[first:end] at a moment.

    A condition holds from the latest moment that was given to it (`held`; `who`: by whom, where a log is kept), then
    gives to the one after it.
    """
    count = 0
    for i in range(first, end):
        c = gives[i]
        moment, by = then, m
        while c >= 0:
            if moment >= room.held[c]:
                room.held[c] = moment
                if len(who):
                    who[c] = by
            room.waits[c] -= 1
            if room.waits[c] > 0:
                break
            moment = room.held[c]
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
    """The port that was left the longest time ago, of those that nobody has now or is promised; -1 where none is."""
    best = -1
    for i in range(first, first + count):
        if not held[i] and times[i] <= now and (best < 0 or times[i] < times[best]):
            best = i
    return best


@compiled
def in_order(some: Ints, count: int) -> None:
    """The first so many in ascending order: those of one condition are already, those of several seldom are not."""
    for i in range(1, count):
        if some[i] < some[i - 1]:
            some[:count].sort()
            return


@compiled
def earliest(times: Floats, first: int, count: int) -> tuple[int, float]:
    """The place of the least of some, and it."""
    best, least = first, times[first]
    for i in range(first + 1, first + count):
        if times[i] < least:
            best, least = i, times[i]
    return best, least


@compiled
def blame(log: Log, m: int, cause: int, holder: int, seconds: float) -> None:
    if seconds > log.longest[m]:
        log.longest[m], log.cause[m], log.holder[m] = seconds, cause, holder


def no_log() -> Log:
    empty, whole = np.empty(0), np.empty(0, np.int32)
    return Log(empty, empty, empty, empty, empty, empty, empty, whole, np.empty(0, np.uint8), whole, empty)


def new_log(count: int) -> Log:
    before, holder = np.full(count, -1, np.int32), np.full(count, -1, np.int32)
    cause = np.zeros(count, np.uint8)
    ready, begin, landed, done, port, nic, combining, longest = (np.zeros(count) for _ in range(8))
    return Log(ready, begin, landed, done, port, nic, combining, before, cause, holder, longest)
