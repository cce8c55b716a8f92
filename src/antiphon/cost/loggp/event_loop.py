"""The event loop of the LogGP simulator, for whole messages and for packets. Compiled.

**The model.** LogGP charges a message of b bytes o_s at the sender, G for every byte but the first while it is on the
wire, a latency of L, and o_r at the receiver; between two messages of a port there is at least a time of g. Contention
comes from two kinds of resources, each with a sending and a receiving side. The *ports* of a rank are occupied by one
message each. The *NICs* (network cards) of a node serve the bytes that leave it or enter it; here a node is a host with
several ranks. Messages queue for a resource in use.

**The simulation** keeps a queue of events, takes out the earliest, and processes it. That moves one message to its next
stage and puts further events into the queue. Of events at the same time, those put in first come first, so a run always
has the same result. A message goes through these stages; stages that need no waiting follow one another at once:

    event     the message has   and next                                                           side
    ASK       paid o_s          takes a port of the sender, or queues for one                      sending
    SEND      the port          its first byte leaves, as soon as a NIC of the node is free        sending
    ARRIVE    travelled for L   takes a port of the receiver, or queues for one                    receiving
    PASS      that port         its bytes enter by a NIC, for G (b - 1), and o_r is paid           receiving
    COMBINE   been received     is combined with the rank's data, one message after another        receiving

A *condition* is an event that messages wait for, such as "rank 0 has received all messages of step 3". It holds when
all the messages that contribute to it are done, or have left their senders (`Graph`). A message becomes *ready* when
the last condition that it needs holds, and asks for a port (ASK) o_s later.

**Whole messages.** Once a message has its port and its NIC, everything up to the end of its transfer is known. So it
has one event at a time, and a port in use needs no event: the loop stores when the port will be idle again. Only a port
for which messages queue gets an event at that time; such events are numbered from the number of messages on.

**Packets** of several messages take turns on NICs, so the end of a transfer is not known in advance. Between nodes,
PACKET repeats for every packet of a message, and PASS for every packet that arrives. At FREE the last byte has left,
and at LANDED it has arrived, so the port is idle again. Sender and receiver have events of their own; those of the
receiver are numbered from the number of messages on.

**An example.** In `core.example.star` ranks 2 and 1 send to 0, which sends the sum to 1 and 2. Let o_s = o_r = g = 1 s,
L = 2 s, G (b - 1) = 3 s, combining take 1 s, and a rank have one port. (`Cost` has a row per term, from L to combining,
and a column per cost class: messages 0 and 1, which are combined, and messages 2 and 3.) The bytes of message 0 leave
from 1 to 4 and arrive from 3 to 6; it is received at 7 and combined at 8. Message 1 arrives at 3 as well. It queues for
the port until 6 and waits for g until 7; it has arrived at 10 and is combined at 12. Rank 0 then sends twice, and the
second message queues in the same way:

>>> from antiphon.core.example import machine, star
>>> from antiphon.cost.figures import Level, LogGP
>>> from antiphon.cost.loggp.state import new_log
>>> from antiphon.cost.loggp.work import work_of
>>> work, log = work_of(star(), machine(), LogGP((Level(),)), "rounds"), new_log(4)
>>> cost = Cost(*np.array([[2, 2], [1, 1], [1, 1], [1, 1], [3, 3], [4, 4], [1, 0]], np.float64))
>>> print(*simulate(work.graph, cost, packets=None, node=work.node, ports=1, nics=0, log=log))
23.0 3 4 0 0.0
>>> log.begin.tolist(), log.landed.tolist(), log.done.tolist()
([1.0, 1.0, 13.0, 17.0], [6.0, 10.0, 18.0, 22.0], [8.0, 12.0, 19.0, 23.0])

With every rank a node of its own and packets of 2 bytes (G = 1 s, b = 4), those of message 0 leave at 1 and 3 and have
arrived at 4 and 6. Those of message 1 arrive at the same times, but are delayed by 3 s (the port and g), and a NIC that
takes a byte per second has them at 8 and 10. Here the messages end at the same times as above:

>>> log, cut = new_log(4), Packets(2.0, np.array([4.0, 4.0]), np.array([1.0, 1.0]))
>>> print(*simulate(work.graph, cost, packets=cut, node=np.arange(3), ports=1, nics=1, log=log))
23.0 3 4 0 16.0
>>> log.begin.tolist(), log.landed.tolist(), log.done.tolist()
([1.0, 1.0, 13.0, 17.0], [6.0, 10.0, 18.0, 22.0], [8.0, 12.0, 19.0, 23.0])

**One source, two functions.** The argument `packets` is None for whole messages, else a `Packets`. Numba compiles a
function for each combination of argument types and drops the branches of `if packets is None` that are never taken, so
neither function is slowed down by the other (docs/decisions.md has the measurements). The loop is one long function,
since the cost of a call of a compiled function grows with the number of arrays that are passed. docs/models/loggp.md
specifies the model.
"""

from __future__ import annotations

import numpy as np

from antiphon.core.columns import Longs
from antiphon.cost.loggp.compiled import compiled
from antiphon.cost.loggp.heap import put, take
from antiphon.cost.loggp.state import (  # fmt: skip
    FAR_PAST,
    ROUNDING,
    Cost,
    Graph,
    Log,
    Packets,
    Workspace,
    contribute,
    find_earliest,
    find_free_port,
    find_latest_before,
    new_workspace,
)

ASK, SEND, PACKET, FREE = 0, 1, 2, 3  # events of the sending side
# and of the receiving side; DONE: a message within a rank that is not combined; also a placeholder for "no message"
ARRIVE, PASS, LANDED, COMBINE, DONE = 4, 5, 6, 7, 8


def simulate(
    graph: Graph, cost: Cost, packets: Packets | None, node: Longs, ports: int, nics: int, log: Log,
    stop: float = np.inf,
) -> tuple[float, int, int, int, float]:  # fmt: skip
    """Return (time at which all is done, message done last, messages done, ports still in use, bytes received).

    run.py calls this once per size, with all times in whole femtoseconds: hence the rounding (`rint`) of the times of
    packets. The last two values are for checks; bytes are counted only for packets. `packets`: None for whole messages.
    `node`: per rank its node, -1 if none. `ports`: number per rank and side. `nics`: number per node and side. 0: no
    limit. The log is filled unless it is empty. If not all is done before `stop`, the time is infinite. O(n
    log(messages in progress)) for n messages, or n packets.
    """
    count = len(graph.src)
    workspace = (
        new_workspace(graph, count, 2 * len(node) * ports)
        if packets is None
        else new_workspace(graph, 2 * count, ports=0)
    )
    outcome: tuple[float, int, int, int, float] = _simulate(
        workspace, graph, cost, packets, node, ports, nics, log, stop
    )  # fmt: skip
    return outcome


@compiled
def _simulate(
    workspace: Workspace, graph: Graph, cost: Cost, packets: Packets | None,
    node: Longs, ports: int, nics: int, log: Log, stop: float,
) -> tuple[float, int, int, int, float]:  # fmt: skip
    """Run `simulate` in a workspace that cannot be used again.

    A side is 0 for sending and 1 for receiving. Indices into the arrays below:

        (side * ranks + rank) * ports + i   port i of a rank
        side * ranks + rank                 the queue for the ports of a rank
        (side * nodes + node) * nics + i    NIC i of a node
        side * count + m                    message m on this side

    m is a message, k its cost class, s and d its sender and receiver, b bytes (of the message or of a packet).
    """
    src, dst, cost_class = graph.src, graph.dst, graph.cost_class
    on_done_ptr, on_done, on_left_ptr, on_left = graph.on_done_ptr, graph.on_done, graph.on_left_ptr, graph.on_left
    latency, send, receive, gap, flight, busy, work = cost  # per cost class: L, o_s, o_r, g, G (b - 1), G b, combining
    heap, lists, event, needed, waits, ready, _ = workspace  # `event`: number of an event -> its kind, such as ASK
    count, ranks, nodes = len(src), len(node), int(node.max()) + 1 if len(node) else 0
    record, reports_left = len(log.ready) > 0, len(on_left_ptr) > 0
    # m + receiver_offset: number of the receiver's events of message m, which has others only with packets
    receiver_offset = 0 if packets is None else count
    # condition -> the message that contributed last
    last_contributor = np.full(len(waits) if record else 0, -1, np.int32)
    # port -> when its last byte has passed; whether it is in use or reserved for its queue
    idle_from = np.full(2 * ranks * ports, FAR_PAST)
    port_taken = np.zeros(2 * ranks * ports, np.bool_)
    port_of = np.empty(2 * count if ports else 0, np.int32)  # message and side -> its port
    # queue for ports -> its first and its last message, -1 if empty; message and side -> the next message in the queue
    head, tail = np.full(2 * ranks, -1, np.int32), np.full(2 * ranks, -1, np.int32)
    next_in_queue = np.empty(2 * count if ports else 0, np.int32)
    nic_idle_from = np.full(2 * nodes * nics, FAR_PAST)  # NIC -> when it is idle
    rank_idle_from = np.zeros(ranks)  # rank -> when it has combined everything received so far
    made_ready = np.empty(count, np.int32)  # the messages that one event makes ready
    # the latest end of a message, and which; messages done; bytes received
    last, last_message, finished, received = 0.0, -1, 0, 0.0
    if packets is not None:
        packet_bytes, size, per_byte = packets
        # m -> bytes left to send, bytes received; when all packets so far have arrived; when the first arrived (-1: not
        # yet); the delay of all its packets, as the first waited for a port
        to_send, received_bytes, arrived_at = size[cost_class], np.zeros(count), np.zeros(count)
        first_arrival, delay = np.full(count, -1.0), np.zeros(count)
        # Packets in transit: m -> the first and the last in a list, -1 if none; packet -> when it arrives, and the next
        # in the list. Only the first has an event. `free_packet`: first of a list of packet numbers to use again;
        # `unused_packet`: the least number never used.
        next_packet, last_packet = np.full(count, -1, np.int64), np.full(count, -1, np.int64)
        arrival, following_packet = np.empty(1024), np.empty(1024, np.int64)  # doubled whenever they are full
        free_packet, unused_packet = -1, 0
    for m in range(count):
        if needed[m] == 0:
            event[m] = ASK
            put(heap, lists, send[cost_class[m]], m)
    while True:
        now, number = take(heap, lists)
        if number < 0:
            break
        if now >= stop:  # the work of this event ends now or later
            last = np.inf
            break
        m, kind, idle_port = number, DONE, -1
        if packets is None:
            if number < count:
                kind = event[number]
            else:  # a port with a queue is idle
                idle_port = number - count
        else:
            m, kind = number if number < count else number - count, event[number]
            if ports and (kind == FREE or kind == LANDED):
                idle_port = port_of[m if kind == FREE else count + m]
                idle_from[idle_port] = now
        # ---- a port is idle: the first message in its queue takes it, and goes on g later ----
        if idle_port >= 0:
            queue = idle_port // ports
            queued = head[queue]
            if queued < 0:
                port_taken[idle_port] = False
            else:
                side = 0 if queue < ranks else 1
                head[queue] = next_in_queue[side * count + queued]
                port_of[side * count + queued] = idle_port
                at = now + gap[cost_class[queued]]
                if packets is not None and side == 1:  # delay all its packets by as much as the first waited
                    delay[queued] = now - first_arrival[queued] + gap[cost_class[queued]]
                    at = first_arrival[queued] + delay[queued]
                queued += side * receiver_offset
                event[queued] = SEND if side == 0 else PASS
                put(heap, lists, at, queued)
            if packets is None:
                continue
        # ---- a message: the conditions that it contributes to (from, to), when, and whether because it has left ----
        k, s, d = cost_class[m], src[m], dst[m]
        first_condition, end_condition, contribution_time, has_left_now = 0, 0, now, False
        # ---- a message within a rank: it has left at once, then is combined and done. If nothing waits for its leaving
        # and it is not combined, it is done now (see below) ----
        if kind == ASK and s == d and (reports_left or work[k] > 0):
            event[receiver_offset + m] = COMBINE if work[k] > 0 else DONE
            put(heap, lists, now, receiver_offset + m)
            if not reports_left:
                continue
            first_condition, end_condition, has_left_now = on_left_ptr[m], on_left_ptr[m + 1], True
        # ---- o_s is paid, or the first byte has arrived: take a port (now or g after its last use), or queue ----
        elif (kind == ASK and s != d) or kind == ARRIVE:
            side = 0 if kind == ASK else 1
            if packets is not None and side == 1:
                first_arrival[m] = now
            if ports:
                queue = s if side == 0 else ranks + d
                port = find_free_port(idle_from, port_taken, queue * ports, ports, now)
                if port < 0:
                    if packets is None:  # all ports are in use: from now on each has an event when it becomes idle
                        for i in range(queue * ports, queue * ports + ports):
                            if not port_taken[i]:
                                port_taken[i] = True
                                put(heap, lists, idle_from[i], count + i)
                    next_in_queue[side * count + m] = -1
                    if head[queue] < 0:
                        head[queue] = m
                    else:
                        next_in_queue[side * count + tail[queue]] = m
                    tail[queue] = m
                    continue
                port_taken[port] = True
                port_of[side * count + m] = port
                at = idle_from[port] + gap[k]
                if at > now:
                    if packets is not None and side == 1:
                        delay[m] = at - now
                        at = now + delay[m]
                    event[side * receiver_offset + m] = SEND if side == 0 else PASS
                    put(heap, lists, at, side * receiver_offset + m)
                    continue
            kind = SEND if side == 0 else PASS
        if packets is None:
            # ---- it has a port: its bytes pass as soon as a NIC is idle, the last G (b - 1) after the first ----
            if kind == SEND or kind == PASS:
                side = 0 if kind == SEND else 1
                start, nic_node = now, node[s] if side == 0 else node[d]
                if nics > 0 and nic_node >= 0 and node[s] != node[d]:
                    nic, nic_idle = find_earliest(nic_idle_from, (side * nodes + nic_node) * nics, nics)
                    start = max(now, nic_idle)
                    nic_idle_from[nic] = start + busy[k]
                    if record:
                        log.nic[m] += start - now
                if side == 0:
                    event[m] = ARRIVE
                    put(heap, lists, start + latency[k], m)
                contribution_time = start + flight[k]
                if record and side == 0:
                    log.ready[m], log.begin[m] = ready[m], start
                    log.port[m] = log.port_out[m] = max(now - ready[m] - send[k], 0.0)
                elif record:
                    log.landed[m] = contribution_time
                    log.port[m] += max(now - log.begin[m] - latency[k], 0.0)
                if ports:
                    port, waiting = port_of[side * count + m], head[s if side == 0 else ranks + d] >= 0
                    idle_from[port], port_taken[port] = contribution_time, waiting  # reserved for the queue
                    if waiting:
                        put(heap, lists, contribution_time, count + port)
                if side == 0:
                    if not reports_left:
                        continue
                    first_condition, end_condition, has_left_now = on_left_ptr[m], on_left_ptr[m + 1], True
        else:
            crosses = nics > 0 and (node[s] != node[d])
            # ---- it has a port: its first packet is at the NIC; without a NIC to cross, all of it is sent ----
            if kind == SEND:
                if record:
                    log.ready[m], log.begin[m] = ready[m], now
                    log.port[m] = log.port_out[m] = now - ready[m] - send[k]
                kind = PACKET
                if not crosses:
                    event[m], event[count + m] = FREE, ARRIVE
                    put(heap, lists, now + flight[k], m)
                    b = min(packet_bytes, size[k])
                    put(heap, lists, now + np.rint(per_byte[k] * max(b - 1, 0.0)) + latency[k], count + m)
                    continue
            # ---- a packet at the NIC is sent once the NIC is idle, and the next packet queues after that ----
            if kind == PACKET:
                b, start, nic_node = min(packet_bytes, to_send[m]), now, node[s]
                if nic_node >= 0:
                    nic, nic_idle = find_earliest(nic_idle_from, nic_node * nics, nics)
                    start = max(now, nic_idle)
                    nic_idle_from[nic] = start + np.rint(per_byte[k] * b)
                departed = start + np.rint(per_byte[k] * max(b - 1, 0.0))
                packet = free_packet
                if free_packet >= 0:
                    free_packet = following_packet[free_packet]
                else:
                    packet = unused_packet
                    unused_packet += 1
                    if packet == len(arrival):
                        arrival = np.concatenate((arrival, np.empty(packet)))
                        following_packet = np.concatenate((following_packet, np.empty(packet, np.int64)))
                arrival[packet], following_packet[packet] = departed + latency[k], -1
                if next_packet[m] >= 0:
                    following_packet[last_packet[m]] = packet
                else:  # no other packet is in transit: this is the next to arrive
                    next_packet[m] = packet
                    event[count + m] = ARRIVE if first_arrival[m] < 0 else PASS
                    put(heap, lists, arrival[packet] + delay[m], count + m)
                last_packet[m] = packet
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
                if not reports_left:
                    continue
                first_condition, end_condition, has_left_now = on_left_ptr[m], on_left_ptr[m + 1], True
            # ---- a packet, or all of a message that crosses no NIC, arrives; the next packet follows ----
            elif kind == PASS:
                if not crosses:  # ARRIVE was the end of its first packet: the rest of its bytes follow
                    b = size[k]
                    contribution_time = now + (flight[k] - np.rint(per_byte[k] * max(min(packet_bytes, b) - 1, 0.0)))
                else:
                    b, nic_node = min(packet_bytes, size[k] - received_bytes[m]), node[d]
                    if nic_node >= 0:
                        behind_first = np.rint(per_byte[k] * max(b - 1, 0.0))  # from its first byte to its last
                        first_byte = now - behind_first + now * ROUNDING  # when it is here, or a rounding error later
                        # of the NICs that are idle by then, the one that was busy last; if none is, the first to be
                        nic, nic_idle = find_latest_before(nic_idle_from, (nodes + nic_node) * nics, nics, first_byte)
                        contribution_time = max(now, nic_idle + behind_first)
                        # the last byte, too, occupies the NIC for G
                        nic_idle_from[nic] = contribution_time + np.rint(per_byte[k] * min(b, 1.0))
                    packet = next_packet[m]
                    next_packet[m] = following_packet[packet]
                    following_packet[packet] = free_packet
                    free_packet = packet
                received_bytes[m] += b
                # a short last packet may overtake one on another NIC
                arrived_at[m] = max(arrived_at[m], contribution_time)
                if received_bytes[m] >= size[k]:
                    event[count + m] = LANDED
                    put(heap, lists, arrived_at[m], count + m)
                elif next_packet[m] >= 0:
                    event[count + m] = PASS
                    put(heap, lists, arrival[next_packet[m]] + delay[m], count + m)
                continue
            # ---- the last byte has arrived ----
            elif kind == LANDED:
                received += received_bytes[m]
                if record:
                    log.landed[m] = now
                    log.port[m] += delay[m]
                    log.nic[m] = max(0.0, now - delay[m] - log.begin[m] - latency[k] - flight[k])
        # ---- all bytes have arrived: it is received o_r later, and combined after what the rank is combining ----
        if kind == PASS or kind == LANDED:
            contribution_time += receive[k]
            if work[k] > 0:
                event[receiver_offset + m] = COMBINE
                put(heap, lists, contribution_time, receiver_offset + m)
                continue
        elif kind == COMBINE:
            contribution_time = max(now, rank_idle_from[d]) + work[k]
            if record:
                log.combining[m] = contribution_time - now
            rank_idle_from[d] = contribution_time
        # ---- it is done at this time, unless it has only left ----
        if not has_left_now:
            if len(on_done_ptr):
                first_condition, end_condition = on_done_ptr[m], on_done_ptr[m + 1]
            else:  # every message contributes to two conditions (Graph.on_done_ptr)
                first_condition, end_condition = 2 * m, 2 * m + 2
            finished += 1
            if contribution_time > last or last_message < 0:
                last, last_message = contribution_time, m
            if record:
                log.done[m] = contribution_time
                if s == d:
                    log.ready[m], log.begin[m], log.landed[m] = ready[m], contribution_time - work[k], contribution_time
        # ---- messages that become ready ask for a port o_s later ----
        conditions = on_left if has_left_now else on_done
        ready_count = contribute(
            workspace, graph, log, last_contributor, made_ready,
            conditions, first_condition, end_condition, contribution_time, m,
        )  # fmt: skip
        for i in range(ready_count):
            other = made_ready[i]
            event[other] = ASK
            put(heap, lists, ready[other] + send[cost_class[other]], other)
    return last, last_message, finished, int(port_taken.sum()), received
