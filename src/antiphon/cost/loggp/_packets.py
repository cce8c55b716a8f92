"""Packet-level simulation: between nodes messages travel in packets that take turns on NICs. Compiled.

docs/models/loggp.md tells what is simulated, step by step. The two ends of a message have events at the same time, its
sender's as number m of the queue, its receiver's as number count + m. Sender: it asks for a port (ASK), its first byte
leaves (SEND), between nodes each packet lines up at the NIC (PACKET), its last byte has left (FREE). Receiver: the
first packet asks for a port (ARRIVE), each passes the NIC (PASS), all is in (LANDED), it is combined (COMBINE). Packets
of a message that are under way are a list (`flying` its first, `newest` its last): one event stands for all, as each
comes after the one before.
"""

from __future__ import annotations

import numpy as np

from antiphon.core.columns import Floats, Longs
from antiphon.cost.loggp.compiled import compiled
from antiphon.cost.loggp.heap import put, take
from antiphon.cost.loggp.state import (  # fmt: skip
    ARRIVE,
    ASK,
    COMBINE,
    DONE,
    FAR,
    FREE,
    LANDED,
    NIC_IN,
    NIC_OUT,
    PACKET,
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
    fitting,
    freed_by,
    new_room,
    unheld,
)

ROUNDING = 1e-12  # of the time so far: what is as near as that is one moment


def simulate_packets(
    graph: Graph,
    cost: Cost,
    size: Floats,
    per_byte: Floats,
    packet: float,
    node: Longs,
    ports: int,
    nics: int,
    log: Log,
) -> tuple[float, int, int, int, float]:
    """Seconds until all is done, the message done last, how many were done; ports still held, bytes received.

    `size` (bytes) and `per_byte` (G, in grains: spans are whole) by class; `packet`: bytes of one; `node`, `ports`,
    `nics` as in `simulate_messages`. O((messages + packets between nodes) log of those under way).

    Ranks 1 and 2 of `core.example.star` send to 0 first. Here each rank is a node by itself, with one port and one NIC;
    o_s = o_r = 1 s, L = 2 s, G = 1 s, messages have 4 bytes and packets 2. Of message 0 packets leave at 1 and 3, and
    arrive at 4 and 6 with their last bytes: all is in at 6, a second later received, and combined at 8. Those of
    message 1, there at 4 and 6, are late by 3 s (the port until 6, and g), and a NIC that takes a byte at a time has
    them at 8 and 10:

    >>> from antiphon.core.example import machine, star
    >>> from antiphon.cost.figures import Level, LogGP
    >>> from antiphon.cost.loggp.state import new_log
    >>> from antiphon.cost.loggp.work import work_of
    >>> work, log = work_of(star(), machine(), LogGP((Level(),)), "rounds"), new_log(4)
    >>> cost = Cost(*np.array([[2, 2], [1, 1], [1, 1], [1, 1], [3, 3], [4, 4], [1, 0]], np.float64))
    >>> size, per_byte = np.array([4.0, 4.0]), np.array([1.0, 1.0])
    >>> print(*simulate_packets(work.graph, cost, size, per_byte, 2.0, np.arange(3), 1, 1, log))
    23.0 3 4 0 16.0
    >>> log.begin.tolist(), log.landed.tolist(), log.done.tolist()
    ([1.0, 1.0, 13.0, 17.0], [6.0, 10.0, 18.0, 22.0], [8.0, 12.0, 19.0, 23.0])
    """
    outcome: tuple[float, int, int, int, float] = _simulated(
        new_room(graph, 2 * len(graph.src), 0), graph, cost, size, per_byte, packet, node, ports, nics, log
    )
    return outcome


@compiled
def _simulated(  # noqa: PLR0913, PLR0917
    room: Room, graph: Graph, cost: Cost, size: Floats, per_byte: Floats, packet: float, node: Longs, ports: int,
    nics: int, log: Log,
) -> tuple[float, int, int, int, float]:  # fmt: skip
    """What `simulate_packets` says, in a room that is used up; the log is filled where there is one.

    The sender of a message asks (ASK) at ready + o_s, sends (SEND) once it has a port, then packet after packet takes a
    NIC (PACKET), until the last byte has left and the port goes to the next in line (FREE). The receiver asks for a
    port when the first packet is there (ARRIVE), and each passes the NIC (PASS), later by what the first waited; when
    all are through (LANDED) the port goes to the next in line, and o_r later the message is done, or combined
    (COMBINE). Packets are under way from PACKET to PASS. What crosses no NIC has the same events but PACKET: it is
    one packet, whose receiver asks for a port once the first `packet` bytes are there.

    As in `messages`, a step that need not wait is done within the event before it, and what is alike is written out.
    Here the end of every use of a port is an event anyway, so ports have none of their own.
    """
    src, dst, klass = graph.src, graph.dst, graph.klass
    give_ptr, give, early_ptr, early = graph.give_ptr, graph.give, graph.early_ptr, graph.early
    latency, send, receive, gap, flight, _, work = cost
    count, ranks = len(src), len(node)
    record = len(log.ready) > 0
    nodes = int(node.max()) + 1 if ranks else 0
    heap, lists, event, needed, waits, ready, _ = room
    who = np.full(len(waits) if record else 0, -1, np.int32)  # gave to each condition last
    width = max(ports, 1)
    # rank * width + i: port i of a rank, each way: when its last byte passed; whether somebody has it; whose that was
    out_last, in_last = np.full(ranks * width, FAR), np.full(ranks * width, FAR)
    out_held, in_held = np.zeros(ranks * width, np.bool_), np.zeros(ranks * width, np.bool_)
    out_user, in_user = np.full(ranks * width, -1, np.int32), np.full(ranks * width, -1, np.int32)
    # m -> the port that it has at either end
    out_port, in_port = np.full(count, -1, np.int32), np.full(count, -1, np.int32)
    # the lines for ports: m -> the next in line; rank -> the first and the last in its line, -1: nobody waits
    out_line, in_line = np.empty(count, np.int32), np.empty(count, np.int32)
    out_head, out_tail = np.full(ranks, -1, np.int32), np.full(ranks, -1, np.int32)
    in_head, in_tail = np.full(ranks, -1, np.int32), np.full(ranks, -1, np.int32)
    # node * nics + i: NIC server i of a node, each way: when it is free; whom it served last
    nic_out, nic_in = np.full(nodes * nics, FAR), np.full(nodes * nics, FAR)
    nic_out_user, nic_in_user = np.full(nodes * nics, -1, np.int32), np.full(nodes * nics, -1, np.int32)
    # m -> bytes still to send, bytes received; when all packets so far are through
    left, got = np.empty(count), np.zeros(count)
    through = np.zeros(count)
    # m -> when its first packet was there (-1: not yet), how late all of its packets are by that, when it began
    first, shift, begin = np.full(count, -1.0), np.zeros(count), np.zeros(count)
    # packets under way: m -> the first and the last of its list, -1: none; packet -> when it is there, and the one
    # behind it. Those that are through are a list as well (`spare`), to be used again before `fresh` ones
    flying, newest = np.full(count, -1, np.int64), np.full(count, -1, np.int64)
    arrival, link = np.empty(1024), np.empty(1024, np.int64)
    spare, fresh = -1, 0
    # rank -> when it has combined all that it got so far; what it combined last
    free, combiner = np.zeros(ranks), np.full(ranks, -1, np.int32)
    freed = np.empty(count, np.int32)  # messages that one event makes ready
    last, last_message, finished, received = 0.0, -1, 0, 0.0
    for m in range(count):
        left[m] = size[klass[m]]
        if needed[m] == 0:
            event[m] = ASK
            put(heap, lists, send[klass[m]], m)
    while True:
        now, number = take(heap, lists)
        if number < 0:
            break
        # ---- an end of a message: which conditions it gives to (from, to), when, and whether as one that has left ----
        kind = event[number]
        m = number if number < count else number - count
        k = klass[m]
        s, d = src[m], dst[m]
        crosses = nics > 0 and (node[s] != node[d])
        give_from, give_to, then, leaving = 0, 0, now, False
        # ---- within a rank: it has left, then is combined and done ----
        if kind == ASK and s == d and (len(early_ptr) or work[k] > 0):
            event[count + m] = COMBINE if work[k] > 0 else DONE
            put(heap, lists, now, count + m)
            if not len(early_ptr):
                continue
            give_from, give_to, leaving = early_ptr[m], early_ptr[m + 1], True
        # ---- o_s is over: a port to send, now, or g after who had it, or the line for one ----
        if kind == ASK and s != d:
            if ports:
                port = unheld(out_last, out_held, s * ports, ports, now)
                if port < 0:
                    out_line[m] = -1
                    if out_head[s] < 0:
                        out_head[s] = m
                    else:
                        out_line[out_tail[s]] = m
                    out_tail[s] = m
                    continue
                out_port[m], out_held[port] = port, True
                at = out_last[port] + gap[k]
                if record:
                    blame(log, m, SEND_PORT, out_user[port], at - now)
                if at > now:
                    event[m] = SEND
                    put(heap, lists, at, m)
                    continue
            kind = SEND
        # ---- it has the port: its first byte leaves, or its first packet lines up at the NIC ----
        if kind == SEND:
            begin[m] = now
            if record:
                log.ready[m], log.begin[m] = ready[m], now
                log.port[m] = now - ready[m] - send[k]
                if ports:
                    out_user[out_port[m]] = m
            if not crosses:
                event[m], event[count + m] = FREE, ARRIVE
                put(heap, lists, now + flight[k], m)
                b = min(packet, size[k])
                put(heap, lists, now + np.rint(per_byte[k] * max(b - 1, 0.0)) + latency[k], count + m)
                continue
            kind = PACKET
        # ---- a packet at the NIC: it is under way from when it is served, and the next lines up when it has been ----
        if kind == PACKET:
            b = min(packet, left[m])
            start = now
            a = node[s]
            if a >= 0:
                nic, at = earliest(nic_out, a * nics, nics)
                start = max(now, at)
                nic_out[nic] = start + np.rint(per_byte[k] * b)
                if record:
                    if nic_out_user[nic] != m:
                        blame(log, m, NIC_OUT, nic_out_user[nic], start - now)
                    nic_out_user[nic] = m
            there = start + np.rint(per_byte[k] * max(b - 1, 0.0)) + latency[k]
            if spare >= 0:  # a place for it, at the end of its message's list
                one = spare
                spare = link[one]
            else:
                one = fresh
                fresh += 1
                if one == len(arrival):
                    arrival = np.concatenate((arrival, np.empty(one)))
                    link = np.concatenate((link, np.empty(one, np.int64)))
            arrival[one], link[one] = there, -1
            if flying[m] < 0:  # the receiver waits for none: this is the next
                flying[m] = one
                if first[m] < 0:
                    event[count + m] = ARRIVE
                    put(heap, lists, there, count + m)
                else:
                    event[count + m] = PASS
                    put(heap, lists, there + shift[m], count + m)
            else:
                link[newest[m]] = one
            newest[m] = one
            left[m] -= b
            if left[m] > 0:
                event[m] = PACKET
                put(heap, lists, start + np.rint(per_byte[k] * b), m)
            else:
                event[m] = FREE
                put(heap, lists, start + np.rint(per_byte[k] * max(b - 1, 0.0)), m)
            continue
        # ---- the last byte has left: the port is the next's in line, which sends g later ----
        if kind == FREE:
            if ports:
                port = out_port[m]
                out_last[port], out_held[port] = now, False
                h = out_head[s]
                if h >= 0:
                    out_head[s] = out_line[h]
                    out_port[h], out_held[port] = port, True
                    event[h] = SEND
                    put(heap, lists, now + gap[klass[h]], h)
                    if record:
                        blame(log, h, SEND_PORT, m, now + gap[klass[h]] - ready[h] - send[klass[h]])
            if len(early_ptr) == 0:
                continue
            give_from, give_to, leaving = early_ptr[m], early_ptr[m + 1], True
        # ---- the first packet is there: a port to receive, or the line for one ----
        elif kind == ARRIVE:
            first[m] = now
            if ports:
                port = unheld(in_last, in_held, d * ports, ports, now)
                if port < 0:
                    in_line[m] = -1
                    if in_head[d] < 0:
                        in_head[d] = m
                    else:
                        in_line[in_tail[d]] = m
                    in_tail[d] = m
                    continue
                in_port[m], in_held[port] = port, True
                shift[m] = max(0.0, in_last[port] + gap[k] - now)
                if record:
                    blame(log, m, RECEIVE_PORT, in_user[port], shift[m])
            event[count + m] = PASS
            if shift[m] > 0:
                put(heap, lists, now + shift[m], count + m)
                continue
            kind = PASS
        # ---- a packet (where there is no NIC: all bytes) goes in; the one behind it is next ----
        if kind == PASS:
            if not crosses:
                b = size[k]
                rest = flight[k] - np.rint(per_byte[k] * max(min(packet, b) - 1, 0.0))
                then = now + rest
            else:
                b = min(packet, size[k] - got[m])
                a = node[d]
                if a >= 0:
                    behind = np.rint(per_byte[k] * max(b - 1, 0.0))  # its first byte came so long ago; but for rounding
                    nic, at = fitting(nic_in, a * nics, nics, now - behind + now * ROUNDING)
                    then = max(now, at + behind)
                    nic_in[nic] = then + np.rint(per_byte[k] * min(b, 1.0))
                    if record:
                        if nic_in_user[nic] != m:
                            blame(log, m, NIC_IN, nic_in_user[nic], then - now)
                        nic_in_user[nic] = m
                one = flying[m]
                flying[m] = link[one]
                link[one] = spare
                spare = one
            got[m] += b
            through[m] = max(through[m], then)  # a short last packet may pass the one before it on another server
            if got[m] >= size[k]:
                event[count + m] = LANDED
                put(heap, lists, through[m], count + m)
            elif flying[m] >= 0:
                event[count + m] = PASS
                put(heap, lists, arrival[flying[m]] + shift[m], count + m)
            continue
        # ---- the last byte is in: the port is the next's in line, whose packets are late by that; then o_r ----
        if kind == LANDED:
            received += got[m]
            if ports:
                port = in_port[m]
                in_last[port], in_held[port] = now, False
                if record:
                    in_user[port] = m
                h = in_head[d]
                if h >= 0:
                    in_head[d] = in_line[h]
                    in_port[h], in_held[port] = port, True
                    shift[h] = now - first[h] + gap[klass[h]]
                    event[count + h] = PASS
                    put(heap, lists, first[h] + shift[h], count + h)
                    if record:
                        blame(log, h, RECEIVE_PORT, m, shift[h])
            then = now + receive[k]
            if record:
                log.landed[m] = now
                log.port[m] += shift[m]
                log.nic[m] = max(0.0, now - shift[m] - begin[m] - latency[k] - flight[k])
            if work[k] > 0:
                event[count + m] = COMBINE
                put(heap, lists, then, count + m)
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
    return last, last_message, finished, int(out_held.sum() + in_held.sum()), received
