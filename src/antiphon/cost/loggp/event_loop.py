"""The event loop of the LogGP simulator, for whole messages and for packets. Compiled.

**The model.** LogGP charges a message of b bytes o_s at the sender, G for every byte but the first while it is on the
wire, a latency of L, and o_r at the receiver; messages that one port sends keep a gap of g. Contention is added by two
kinds of resources, each with a side for sending and one for receiving: the *ports* of a rank, which hold a message, and
the *NICs* of a node, which serve the bytes that leave it or enter it. Messages queue for a resource in use.

**The simulation** keeps a queue of events, takes out the earliest, and processes it: it moves one message one stage on,
which puts further events into the queue. Of events at the same moment, those put in first come first, so a run always
has the same result. A message goes through these stages; stages that need no waiting follow one another at once:

    event     the message has   and next                                                           side
    ASK       paid o_s          takes a port of the sender, or queues for one                      sending
    SEND      the port          its first byte leaves, as soon as a NIC of the node is free        sending
    ARRIVE    travelled for L   takes a port of the receiver, or queues for one                    receiving
    PASS      that port         its bytes enter by a NIC, for G (b - 1), and o_r is paid           receiving
    COMBINE   been received     is combined with the rank's data, one message after another        receiving

A message that is done contributes to conditions (`Graph`); a message whose last condition is satisfied asks for a port
(ASK) o_s later.

**Whole messages.** Once a message has its port and its NIC, everything up to the end of its transfer is known, so it
has one event at a time, and a port in use needs none: the loop stores when it will be clear (free again). Only a port
with a queue gets an event at that moment (such events are numbered from the number of messages on).

**Packets** share NICs in turns, so the end of a transfer is known only when it comes. Between nodes, PACKET repeats for
every packet of a message, and PASS for every packet that arrives; at FREE the last byte has left and at LANDED it has
come in, so the port is clear. Both ends have events; the receiver's are numbered from the number of messages on.

**An example.** In `core.example.star` ranks 2 and 1 send to 0, which sends the sum to 1 and 2. Let o_s = o_r = g = 1 s,
L = 2 s, G (b - 1) = 3 s, combining take 1 s, and a rank have one port. Message 0 leaves from 1 to 4, arrives from 3 to
6, is received at 7 and combined at 8. Message 1 arrives at 3 as well, queues for the port until 6 and waits for the gap
until 7, is in at 10 and combined at 12. Rank 0 then sends twice, and the second message queues in the same way:

>>> from antiphon.core.example import machine, star
>>> from antiphon.cost.figures import Level, LogGP
>>> from antiphon.cost.loggp.state import new_log
>>> from antiphon.cost.loggp.work import work_of
>>> work, log = work_of(star(), machine(), LogGP((Level(),)), "rounds"), new_log(4)
>>> cost = Cost(*np.array([[2, 2], [1, 1], [1, 1], [1, 1], [3, 3], [4, 4], [1, 0]], np.float64))
>>> print(*simulate(work.graph, cost, None, work.node, 1, 0, log))
23.0 3 4 0 0.0
>>> log.begin.tolist(), log.landed.tolist(), log.done.tolist()
([1.0, 1.0, 13.0, 17.0], [6.0, 10.0, 18.0, 22.0], [8.0, 12.0, 19.0, 23.0])

With every rank a node of its own and packets of 2 bytes (G = 1 s, b = 4), those of message 0 leave at 1 and 3 and have
arrived at 4 and 6. Those of message 1 arrive then too, but are late by 3 s (the port and its gap), and a NIC that takes
a byte per second has them at 8 and 10. Here the messages end at the same times:

>>> log, cut = new_log(4), Packets(2.0, np.array([4.0, 4.0]), np.array([1.0, 1.0]))
>>> print(*simulate(work.graph, cost, cut, np.arange(3), 1, 1, log))
23.0 3 4 0 16.0
>>> log.begin.tolist(), log.landed.tolist(), log.done.tolist()
([1.0, 1.0, 13.0, 17.0], [6.0, 10.0, 18.0, 22.0], [8.0, 12.0, 19.0, 23.0])

**One source, two functions.** The fidelity is the type of the argument `cut`, None or `Packets`. Numba compiles a
function for the types of its arguments and drops the branches of `if cut is None` that cannot be taken, so neither
fidelity pays for the other (docs/decisions.md has the measurements). The loop is one long function since a
call of a compiled function costs by the number of arrays it is passed. docs/models/loggp.md specifies the model.
"""

from __future__ import annotations

import numpy as np

from antiphon.core.columns import Longs
from antiphon.cost.loggp.compiled import compiled
from antiphon.cost.loggp.heap import put, take
from antiphon.cost.loggp.state import (  # fmt: skip
    FAR,
    NIC_IN,
    NIC_OUT,
    RANK_BUSY,
    RECEIVE_PORT,
    ROUNDING,
    SEND_PORT,
    Cost,
    Graph,
    Log,
    Packets,
    Room,
    find_earliest,
    find_free_port,
    find_latest_before,
    freed_by,
    new_room,
    record_blame,
)

ASK, SEND, PACKET, FREE = 0, 1, 2, 3  # events of the sending side
ARRIVE, PASS, LANDED, COMBINE, DONE = 4, 5, 6, 7, 8  # and of the receiving side


def simulate(
    graph: Graph, cost: Cost, cut: Packets | None, node: Longs, ports: int, nics: int, log: Log
) -> tuple[float, int, int, int, float]:  # fmt: skip
    """Return (time at which all is done, message done last, number of messages done, ports still held, bytes received).

    `cut`: None for whole messages, whose received bytes are not counted. `node`: per rank, -1: in none. `ports`: per
    rank and side; `nics`: per node and side; 0: no limit. The log is filled unless it is empty. O(n log(messages in
    progress)) for n messages, or n packets.
    """
    count = len(graph.src)
    room = new_room(graph, count, 2 * len(node) * ports) if cut is None else new_room(graph, 2 * count, 0)
    outcome: tuple[float, int, int, int, float] = _simulate(room, graph, cost, cut, node, ports, nics, log)
    return outcome


@compiled
def _simulate(
    room: Room, graph: Graph, cost: Cost, cut: Packets | None, node: Longs, ports: int, nics: int, log: Log
) -> tuple[float, int, int, int, float]:  # fmt: skip
    """Run `simulate` in a workspace that is used up.

    Sides: 0 sends, 1 receives. Indices: port i of a rank is (side * ranks + rank) * ports + i, the queue for its ports
    side * ranks + rank, the entry of a message on a side side * count + m; NIC i of a node is numbered like a port.
    """
    src, dst, klass = graph.src, graph.dst, graph.klass
    give_ptr, give, early_ptr, early = graph.give_ptr, graph.give, graph.early_ptr, graph.early
    latency, send, receive, gap, flight, busy, work = cost
    heap, lists, event, needed, waits, ready, _ = room
    count, ranks, nodes = len(src), len(node), int(node.max()) + 1 if len(node) else 0
    record, tells_early = len(log.ready) > 0, len(early_ptr) > 0
    receiver = 0 if cut is None else count  # added to m: the number of the receiver's events
    giver = np.full(len(waits) if record else 0, -1, np.int32)  # condition -> the message that gave to it last
    # port -> when its last byte has passed; whether it is taken, or reserved for its queue; the last message it had
    clear = np.full(2 * ranks * ports, FAR)
    port_taken, user = np.zeros(2 * ranks * ports, np.bool_), np.full(2 * ranks * ports, -1, np.int32)
    port_of = np.empty(2 * count if ports else 0, np.int32)
    # queues for ports: the first and the last message of each, -1: empty; message and side -> the next in the queue
    head, tail = np.full(2 * ranks, -1, np.int32), np.full(2 * ranks, -1, np.int32)
    behind = np.empty(2 * count if ports else 0, np.int32)
    # NIC -> when it is free; the message that it served last
    nic_free, nic_user = np.full(2 * nodes * nics, FAR), np.full(2 * nodes * nics, -1, np.int32)
    # rank -> when it has combined everything received so far; the message combined last
    rank_free, combiner = np.zeros(ranks), np.full(ranks, -1, np.int32)
    freed = np.empty(count, np.int32)  # messages that one event makes ready
    last, last_message, finished, received = 0.0, -1, 0, 0.0
    if cut is not None:
        limit, size, per_byte = cut
        # m -> bytes to send, bytes received; when all packets so far are in; when the first arrived (-1: not yet), and
        # by how much all packets are late because that one waited for a port
        to_send, got, through = size[klass], np.zeros(count), np.zeros(count)
        first, late = np.full(count, -1.0), np.zeros(count)
        # Packets under way: m -> the first and the last in a list, -1: none; packet -> when it arrives, and the next in
        # the list. Only the first has an event. `spare`: a list of places to use again before `fresh` ones.
        flying, newest = np.full(count, -1, np.int64), np.full(count, -1, np.int64)
        arrival, link = np.empty(1024), np.empty(1024, np.int64)
        spare, fresh = -1, 0
    for m in range(count):
        if needed[m] == 0:
            event[m] = ASK
            put(heap, lists, send[klass[m]], m)
    while True:
        now, number = take(heap, lists)
        if number < 0:
            break
        m, kind, clear_port = number, DONE, -1
        if cut is None:
            if number < count:
                kind = event[number]
            else:  # a port that somebody queues for is clear
                clear_port = number - count
        else:
            m, kind = number if number < count else number - count, event[number]
            if ports and (kind == FREE or kind == LANDED):
                clear_port = port_of[m if kind == FREE else count + m]
                clear[clear_port] = now
                if record:
                    user[clear_port] = m
        # ---- a port is clear: the first in its queue takes it over, and goes on g later ----
        if clear_port >= 0:
            line = clear_port // ports
            h = head[line]
            if h < 0:
                port_taken[clear_port] = False
            else:
                side = 0 if line < ranks else 1
                head[line] = behind[side * count + h]
                port_of[side * count + h] = clear_port
                at = now + gap[klass[h]]
                if cut is not None and side == 1:  # its packets are late by as much as the first waited
                    late[h] = now - first[h] + gap[klass[h]]
                    at = first[h] + late[h]
                if record:
                    if side == 0:
                        record_blame(log, h, SEND_PORT, user[clear_port], at - ready[h] - send[klass[h]])
                    elif cut is None:
                        record_blame(log, h, RECEIVE_PORT, user[clear_port], at - log.begin[h] - latency[klass[h]])
                    else:
                        record_blame(log, h, RECEIVE_PORT, user[clear_port], late[h])
                h += side * receiver
                event[h] = SEND if side == 0 else PASS
                put(heap, lists, at, h)
            if cut is None:
                continue
        # ---- a message: the conditions it gives to (from, to), when (`give_time`), whether because it has left ----
        k, s, d = klass[m], src[m], dst[m]
        give_from, give_to, give_time, leaving = 0, 0, now, False
        # ---- within a rank: it has left, then is combined and done ----
        if kind == ASK and s == d and (tells_early or work[k] > 0):
            event[receiver + m] = COMBINE if work[k] > 0 else DONE
            put(heap, lists, now, receiver + m)
            if not tells_early:
                continue
            give_from, give_to, leaving = early_ptr[m], early_ptr[m + 1], True
        # ---- o_s is over, or its first byte is there: a port, now, or g after its last use, or the queue for one ----
        elif (kind == ASK and s != d) or kind == ARRIVE:
            side = 0 if kind == ASK else 1
            if cut is not None and side == 1:
                first[m] = now
            if ports:
                line = s if side == 0 else ranks + d
                port = find_free_port(clear, port_taken, line * ports, ports, now)
                if port < 0:
                    if cut is None:  # all are in use: from here on each has an event when it is clear
                        for i in range(line * ports, line * ports + ports):
                            if not port_taken[i]:
                                port_taken[i] = True
                                put(heap, lists, clear[i], count + i)
                    behind[side * count + m] = -1
                    if head[line] < 0:
                        head[line] = m
                    else:
                        behind[side * count + tail[line]] = m
                    tail[line] = m
                    continue
                port_taken[port] = True
                port_of[side * count + m] = port
                at = clear[port] + gap[k]
                if record:
                    record_blame(log, m, SEND_PORT if side == 0 else RECEIVE_PORT, user[port], at - now)
                if at > now:
                    if cut is not None and side == 1:
                        late[m] = at - now
                        at = now + late[m]
                    event[side * receiver + m] = SEND if side == 0 else PASS
                    put(heap, lists, at, side * receiver + m)
                    continue
            kind = SEND if side == 0 else PASS
        if cut is None:
            # ---- it has a port: its bytes pass as soon as a NIC is free, the last G (b - 1) after the first ----
            if kind == SEND or kind == PASS:
                side = 0 if kind == SEND else 1
                start, a = now, node[s] if side == 0 else node[d]
                if nics > 0 and a >= 0 and node[s] != node[d]:
                    nic, at = find_earliest(nic_free, (side * nodes + a) * nics, nics)
                    start = max(now, at)
                    nic_free[nic] = start + busy[k]
                    if record:
                        log.nic[m] += start - now
                        record_blame(log, m, NIC_OUT if side == 0 else NIC_IN, nic_user[nic], start - now)
                        nic_user[nic] = m
                if side == 0:
                    event[m] = ARRIVE
                    put(heap, lists, start + latency[k], m)
                give_time = start + flight[k]
                if record and side == 0:
                    log.ready[m], log.begin[m] = ready[m], start
                    log.port[m] = max(now - ready[m] - send[k], 0.0)
                elif record:
                    log.landed[m] = give_time
                    log.port[m] += max(now - log.begin[m] - latency[k], 0.0)
                if ports:
                    port, waiting = port_of[side * count + m], head[s if side == 0 else ranks + d] >= 0
                    clear[port], port_taken[port] = give_time, waiting  # reserved for the queue
                    if record:
                        user[port] = m
                    if waiting:
                        put(heap, lists, give_time, count + port)
                if side == 0:
                    if not tells_early:
                        continue
                    give_from, give_to, leaving = early_ptr[m], early_ptr[m + 1], True
        else:
            crosses = nics > 0 and (node[s] != node[d])
            # ---- it has a port: its first packet is at the NIC; if it crosses none, it is on its way as a whole ----
            if kind == SEND:
                if record:
                    log.ready[m], log.begin[m] = ready[m], now
                    log.port[m] = now - ready[m] - send[k]
                kind = PACKET
                if not crosses:
                    event[m], event[count + m] = FREE, ARRIVE
                    put(heap, lists, now + flight[k], m)
                    b = min(limit, size[k])
                    put(heap, lists, now + np.rint(per_byte[k] * max(b - 1, 0.0)) + latency[k], count + m)
                    continue
            # ---- a packet at the NIC is under way once it is served, and the next one queues after that ----
            if kind == PACKET:
                b, start, a = min(limit, to_send[m]), now, node[s]
                if a >= 0:
                    nic, at = find_earliest(nic_free, a * nics, nics)
                    start = max(now, at)
                    nic_free[nic] = start + np.rint(per_byte[k] * b)
                    if record:
                        if nic_user[nic] != m:
                            record_blame(log, m, NIC_OUT, nic_user[nic], start - now)
                        nic_user[nic] = m
                departed = start + np.rint(per_byte[k] * max(b - 1, 0.0))
                packet = spare
                if spare >= 0:
                    spare = link[spare]
                else:
                    packet = fresh
                    fresh += 1
                    if packet == len(arrival):
                        arrival = np.concatenate((arrival, np.empty(packet)))
                        link = np.concatenate((link, np.empty(packet, np.int64)))
                arrival[packet], link[packet] = departed + latency[k], -1
                if flying[m] >= 0:
                    link[newest[m]] = packet
                else:  # the receiver expects no other: this is the next
                    flying[m] = packet
                    event[count + m] = ARRIVE if first[m] < 0 else PASS
                    put(heap, lists, arrival[packet] + late[m], count + m)
                newest[m] = packet
                to_send[m] -= b
                if to_send[m] > 0:
                    event[m] = PACKET
                    put(heap, lists, start + np.rint(per_byte[k] * b), m)
                else:
                    event[m] = FREE
                    put(heap, lists, departed, m)
                continue
            # ---- the last byte has left ----
            if kind == FREE:
                if not tells_early:
                    continue
                give_from, give_to, leaving = early_ptr[m], early_ptr[m + 1], True
            # ---- a packet, or all of what crosses no NIC, goes in; the one behind it is next ----
            elif kind == PASS:
                if not crosses:
                    b = size[k]
                    give_time = now + (flight[k] - np.rint(per_byte[k] * max(min(limit, b) - 1, 0.0)))
                else:
                    b, a = min(limit, size[k] - got[m]), node[d]
                    if a >= 0:
                        behind_first = np.rint(per_byte[k] * max(b - 1, 0.0))  # since its first byte came
                        at_first = now - behind_first + now * ROUNDING
                        nic, at = find_latest_before(nic_free, (nodes + a) * nics, nics, at_first)
                        give_time = max(now, at + behind_first)
                        nic_free[nic] = give_time + np.rint(per_byte[k] * min(b, 1.0))
                        if record:
                            if nic_user[nic] != m:
                                record_blame(log, m, NIC_IN, nic_user[nic], give_time - now)
                            nic_user[nic] = m
                    packet = flying[m]
                    flying[m] = link[packet]
                    link[packet] = spare
                    spare = packet
                got[m] += b
                through[m] = max(through[m], give_time)  # a short last packet may overtake one on another NIC
                if got[m] >= size[k]:
                    event[count + m] = LANDED
                    put(heap, lists, through[m], count + m)
                elif flying[m] >= 0:
                    event[count + m] = PASS
                    put(heap, lists, arrival[flying[m]] + late[m], count + m)
                continue
            # ---- the last byte is in ----
            elif kind == LANDED:
                received += got[m]
                if record:
                    log.landed[m] = now
                    log.port[m] += late[m]
                    log.nic[m] = max(0.0, now - late[m] - log.begin[m] - latency[k] - flight[k])
        # ---- all is in: it is received o_r later, and combined after what the rank is combining ----
        if kind == PASS or kind == LANDED:
            give_time += receive[k]
            if work[k] > 0:
                event[receiver + m] = COMBINE
                put(heap, lists, give_time, receiver + m)
                continue
        elif kind == COMBINE:
            give_time = max(now, rank_free[d]) + work[k]
            if record:
                log.combining[m] = give_time - now
                record_blame(log, m, RANK_BUSY, combiner[d], rank_free[d] - now)
                combiner[d] = m
            rank_free[d] = give_time
        # ---- it is done at `give_time`, unless it has just left ----
        if not leaving:
            if len(give_ptr):
                give_from, give_to = give_ptr[m], give_ptr[m + 1]
            else:
                give_from, give_to = 2 * m, 2 * m + 2
            finished += 1
            if give_time > last or last_message < 0:
                last, last_message = give_time, m
            if record:
                log.done[m] = give_time
                if s == d:
                    log.ready[m], log.begin[m], log.landed[m] = ready[m], give_time - work[k], give_time
        # ---- messages that are ready by that ask o_s later ----
        gives = early if leaving else give
        for i in range(freed_by(room, graph, log, giver, freed, gives, give_from, give_to, give_time, m)):
            other = freed[i]
            event[other] = ASK
            put(heap, lists, ready[other] + send[klass[other]], other)
    return last, last_message, finished, int(port_taken.sum()), received
