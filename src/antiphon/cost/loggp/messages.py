"""Message-level simulation: every message is one piece. Compiled; docs/models/loggp.md tells what is simulated.

A message has one event at a time: it asks for a port (ASK), its first byte leaves (SEND), comes (ARRIVE) and goes in
(PASS), it is combined (COMBINE). What follows at once needs none. A port has one only where somebody waits for it.
"""

from __future__ import annotations

import numpy as np

from antiphon.core.columns import Longs
from antiphon.cost.loggp.compiled import compiled
from antiphon.cost.loggp.heap import put, take
from antiphon.cost.loggp.state import (  # fmt: skip
    ARRIVE,
    ASK,
    COMBINE,
    DONE,
    FAR,
    NIC_IN,
    NIC_OUT,
    PASS,
    RANK_BUSY,
    RECEIVE_PORT,
    SEND,
    SEND_PORT,
    Cost,
    Graph,
    Log,
    Room,
    blame,
    earliest,
    freed_by,
    new_room,
    unheld,
)


def simulate_messages(
    graph: Graph, cost: Cost, node: Longs, ports: int, nics: int, log: Log
) -> tuple[float, int, int, int]:
    """Seconds until all is done, the message done last, how many were done, ports still held.

    `node`: of every rank, -1 where it is in none. `ports` of every rank and way, `nics` of every node and way; 0 for no
    limit. O(M log(messages under way)).

    In `core.example.star` ranks 2 and 1 send to 0, which sends the sum to 1 and 2. Let o_s = o_r = g = 1 s, L = 2 s,
    G (b - 1) = 3 s, combining take 1 s, and a rank have one port: message 0 leaves from 1 to 4, comes from 3 to 6, is
    received at 7 and combined at 8. Message 1 comes at 3 too, waits for the port until 6 and g until 7, is in at 10,
    combined at 12. Of the two to 1 and 2 the second waits for the first in the same way, from 13 to 17:

    >>> from antiphon.core.example import machine, star
    >>> from antiphon.cost.figures import Level, LogGP
    >>> from antiphon.cost.loggp.state import new_log
    >>> from antiphon.cost.loggp.work import work_of
    >>> work, log = work_of(star(), machine(), LogGP((Level(),)), "rounds"), new_log(4)
    >>> work.graph.klass.tolist(), work.combined.tolist()
    ([0, 0, 1, 1], [1.0, 0.0])
    >>> cost = Cost(*np.array([[2, 2], [1, 1], [1, 1], [1, 1], [3, 3], [4, 4], [1, 0]], np.float64))
    >>> print(*simulate_messages(work.graph, cost, work.node, 1, 0, log))
    23.0 3 4 0
    >>> log.begin.tolist(), log.landed.tolist(), log.done.tolist()
    ([1.0, 1.0, 13.0, 17.0], [6.0, 10.0, 18.0, 22.0], [8.0, 12.0, 19.0, 23.0])
    """
    outcome: tuple[float, int, int, int] = _simulated(
        new_room(graph, len(graph.src), 2 * len(node) * ports), graph, cost, node, ports, nics, log
    )
    return outcome


@compiled
def _simulated(
    room: Room, graph: Graph, cost: Cost, node: Longs, ports: int, nics: int, log: Log
) -> tuple[float, int, int, int]:
    """What `simulate_messages` says, in a room that is used up; the log is filled where there is one.

    A message asks (ASK) at ready + o_s, sends (SEND) once it has a port, g after who had that before; takes a NIC, and
    L later asks the receiver (ARRIVE), goes in (PASS) once it has a port there, takes a NIC, and G (b - 1) + o_r later
    is done, or combined when the rank is free (COMBINE). A step that need not wait is done within the event before it.
    So most moments that follow (`then`) are known before they come; conditions take them as they are.

    A port that is free at once is taken without an event. Only where somebody waits it has one, at the moment when its
    last byte has passed: numbers from out_wake and in_wake on, one for every port. Where a rank has no port left, those
    in use get one, and are promised (held) from then on to those in line.

    `_packets` has the same steps with packets in them, and both ends under way at a time; what is alike is written out
    in both: functions would be handed a dozen arrays at every event, which costs more than what they do.
    """
    src, dst, klass = graph.src, graph.dst, graph.klass
    give_ptr, give, early_ptr, early = graph.give_ptr, graph.give, graph.early_ptr, graph.early
    latency, send, receive, gap, flight, busy, work = cost
    count, ranks = len(src), len(node)
    record, tells_early = len(log.ready) > 0, len(early_ptr) > 0
    nodes = int(node.max()) + 1 if ranks else 0
    out_wake, in_wake = count, count + ranks * ports  # where the numbers of ports begin in the queue
    heap, lists, event, needed, waits, ready, _ = room
    who = np.full(len(waits) if record else 0, -1, np.int32)  # gave to each condition last
    # rank * ports + i: port i of a rank, each way: when its last byte has passed; whether somebody has it, or is
    # promised it; whose the last byte was
    out_last, in_last = np.full(ranks * ports, FAR), np.full(ranks * ports, FAR)
    out_held, in_held = np.zeros(ranks * ports, np.bool_), np.zeros(ranks * ports, np.bool_)
    out_user, in_user = np.full(ranks * ports, -1, np.int32), np.full(ranks * ports, -1, np.int32)
    # m -> the port that it has; with one port that is the rank's
    kept = count if ports > 1 else 0
    out_port, in_port = np.empty(kept, np.int32), np.empty(kept, np.int32)
    # the lines for ports: m -> the next in line; rank -> the first and the last in its line, -1: nobody waits
    out_line, in_line = np.empty(count, np.int32), np.empty(count, np.int32)
    out_head, out_tail = np.full(ranks, -1, np.int32), np.full(ranks, -1, np.int32)
    in_head, in_tail = np.full(ranks, -1, np.int32), np.full(ranks, -1, np.int32)
    # node * nics + i: NIC server i of a node, each way: when it is free; whom it served last
    nic_out, nic_in = np.full(nodes * nics, FAR), np.full(nodes * nics, FAR)
    nic_out_user, nic_in_user = np.full(nodes * nics, -1, np.int32), np.full(nodes * nics, -1, np.int32)
    # rank -> when it has combined all that it got so far; what it combined last
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
        # ---- a port is clear that was promised: the first in line has it, and goes on g later ----
        if number >= out_wake:
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
                if h < 0:  # likewise
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
        # ---- a message: which conditions it gives to (from, to), when (`then`), and whether as one that has left ----
        m, kind = number, event[number]
        k = klass[m]
        s, d = src[m], dst[m]
        give_from, give_to, then, leaving = 0, 0, now, False
        # ---- within a rank: it has left, then is combined and done ----
        if kind == ASK and s == d and (tells_early or work[k] > 0):
            event[m] = COMBINE if work[k] > 0 else DONE
            put(heap, lists, now, m)
            if not tells_early:
                continue
            give_from, give_to, leaving = early_ptr[m], early_ptr[m + 1], True
        # ---- o_s is over: a port to send, now, or g after who had it, or the line for one ----
        if kind == ASK and s != d:
            if ports:
                port = unheld(out_last, out_held, s * ports, ports, now)
                if port < 0:  # all in use: each says when it is clear
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
        # ---- its first byte leaves as soon as a NIC is free; L later it arrives, and after G (b - 1) it has left ----
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
                out_last[port], out_held[port] = then, out_head[s] >= 0  # held on for who waits
                if record:
                    out_user[port] = m
                if out_head[s] >= 0:
                    put(heap, lists, then, out_wake + port)
            if not tells_early:
                continue
            give_from, give_to, leaving = early_ptr[m], early_ptr[m + 1], True
        # ---- its first byte is there: a port to receive, in the same way ----
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
        # ---- it goes in as soon as a NIC is free; G (b - 1) later all is in, and o_r later received ----
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
        # ---- it is combined, after what the rank combines already ----
        elif kind == COMBINE:
            then = max(now, free[d]) + work[k]
            if record:
                log.combining[m] = then - now
                blame(log, m, RANK_BUSY, combiner[d], free[d] - now)
                combiner[d] = m
            free[d] = then
        # ---- it is done at `then`, unless it has just left ----
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
        # ---- who is ready by that asks o_s later ----
        gives = early if leaving else give
        for i in range(freed_by(room, graph, log, who, freed, gives, give_from, give_to, then, m)):
            other = freed[i]
            event[other] = ASK
            put(heap, lists, ready[other] + send[klass[other]], other)
    return last, last_message, finished, int(out_held.sum() + in_held.sum())
