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
from antiphon.cost.loggp.messages import (  # fmt: skip
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
    freed_by,
    new_room,
    unheld,
)


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

    `size` in bytes and `per_byte` in seconds by class. O((messages + packets between nodes) log of those under way).
    """
    found: tuple[float, int, int, int, float] = _simulated(
        new_room(graph, 2 * len(graph.src), 0), graph, cost, size, per_byte, packet, node, ports, nics, log
    )
    return found


@compiled
def _simulated(  # noqa: PLR0913, PLR0917
    room: Room, graph: Graph, cost: Cost, size: Floats, per_byte: Floats, packet: float, node: Longs, ports: int,
    nics: int, log: Log,
) -> tuple[float, int, int, int, float]:  # fmt: skip
    src, dst, klass = graph.src, graph.dst, graph.klass
    give_ptr, give, early_ptr, early = graph.give_ptr, graph.give, graph.early_ptr, graph.early
    latency, send, receive, gap, flight, _, work = cost
    count, ranks = len(src), len(node)
    record = len(log.ready) > 0
    nodes = int(node.max()) + 1 if ranks else 0
    heap, lists, event, needed, waits, ready, _ = room
    who = np.full(len(waits) if record else 0, -1, np.int32)  # gave to each condition last
    width = max(ports, 1)
    out_last, in_last = np.full(ranks * width, FAR), np.full(ranks * width, FAR)
    out_held, in_held = np.zeros(ranks * width, np.bool_), np.zeros(ranks * width, np.bool_)
    out_user, in_user = np.full(ranks * width, -1, np.int32), np.full(ranks * width, -1, np.int32)
    out_port, in_port = np.full(count, -1, np.int32), np.full(count, -1, np.int32)
    out_line, in_line = np.empty(count, np.int32), np.empty(count, np.int32)
    out_head, out_tail = np.full(ranks, -1, np.int32), np.full(ranks, -1, np.int32)
    in_head, in_tail = np.full(ranks, -1, np.int32), np.full(ranks, -1, np.int32)
    nic_out, nic_in = np.full(nodes * nics, FAR), np.full(nodes * nics, FAR)
    nic_out_user, nic_in_user = np.full(nodes * nics, -1, np.int32), np.full(nodes * nics, -1, np.int32)
    left, got = np.empty(count), np.zeros(count)  # bytes still to send, bytes received
    through = np.zeros(count)
    first, shift, begin = np.full(count, -1.0), np.zeros(count), np.zeros(count)
    flying, newest = np.full(count, -1, np.int64), np.full(count, -1, np.int64)  # packets under way, in order
    arrival, link = np.empty(1024), np.empty(1024, np.int64)  # of such a packet: when, and the one behind it
    spare, fresh = -1, 0
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
        kind = event[number]
        m = number if number < count else number - count
        k = klass[m]
        s, d = src[m], dst[m]
        crosses = nics > 0 and (node[s] != node[d])
        give_from, give_to, then, leaving = 0, 0, now, False
        if (
            kind == ASK and s == d and (len(early_ptr) or work[k] > 0)
        ):  # inside a rank: has left, then is combined and done
            event[count + m] = COMBINE if work[k] > 0 else DONE
            put(heap, lists, now, count + m)
            if not len(early_ptr):
                continue
            give_from, give_to, leaving = early_ptr[m], early_ptr[m + 1], True
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
                put(heap, lists, now + per_byte[k] * max(b - 1, 0.0) + latency[k], count + m)
                continue
            kind = PACKET
        if kind == PACKET:
            b = min(packet, left[m])
            start = now
            a = node[s]
            if a >= 0:
                nic, at = earliest(nic_out, a * nics, nics)
                start = max(now, at)
                nic_out[nic] = start + per_byte[k] * b
                if record:
                    if nic_out_user[nic] != m:
                        blame(log, m, NIC_OUT, nic_out_user[nic], start - now)
                    nic_out_user[nic] = m
            there = start + per_byte[k] * max(b - 1, 0.0) + latency[k]
            if spare >= 0:
                one = spare
                spare = link[one]
            else:
                one = fresh
                fresh += 1
                if one == len(arrival):
                    arrival = np.concatenate((arrival, np.empty(one)))
                    link = np.concatenate((link, np.empty(one, np.int64)))
            arrival[one], link[one] = there, -1
            if flying[m] < 0:
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
                put(heap, lists, start + per_byte[k] * b, m)
            else:
                event[m] = FREE
                put(heap, lists, start + per_byte[k] * max(b - 1, 0.0), m)
            continue
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
        if kind == PASS:
            if not crosses:
                b = size[k]
                rest = flight[k] - per_byte[k] * max(min(packet, b) - 1, 0.0)
                then = now + rest
            else:
                b = min(packet, size[k] - got[m])
                a = node[d]
                if a >= 0:
                    nic, at = earliest(nic_in, a * nics, nics)
                    then = max(now, at + per_byte[k] * max(b - 1, 0.0))
                    nic_in[nic] = then + per_byte[k] * min(b, 1.0)
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
    return last, last_message, finished, int(out_held.sum() + in_held.sum()), received
