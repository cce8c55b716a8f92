"""The event loop of the LogGP simulator in which a rank has one processor (`cpu=shared`, as in LogGOPSim). Compiled.

In `event_loop` the overheads of several messages overlap, and bytes arrive independently of what the rank does. Here
every rank has one processor, which does one operation at a time:

    operation   the processor is busy for        and before it begins it needs
    SENDING     o_s                              the processor and a port to send
    TAKING      G (b - 1) + o_r                  the processor and a port to receive, L after the sending
    COMBINING   gamma times the bytes            the processor

Operations of each kind queue in a *line* per rank. When the processor of a rank becomes idle, of the operations that
are first in their lines and could begin, the one that was enqueued first begins.

This needs a loop of its own: events are ordered by *turns*, numbers that an operation keeps when it is put back for a
later time. `event_loop` orders events of the same time by when they were put in (`heap`), which is faster, but does not
know for how long an event has been waiting. Both loops share the bookkeeping of dependencies (`contribute`), the
classes of cost and the log. docs/models/loggp.md specifies the model; the example is that of `event_loop`.

The queue is a heap (`heapq`) of pairs: time, and turn << BITS | operation. At equal times the oldest turn comes first.
"""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np

from antiphon.core.columns import Bools, Longs
from antiphon.cost.loggp.compiled import compiled
from antiphon.cost.loggp.state import FAR_PAST, Cost, Graph, Log, Workspace, contribute, find_earliest, new_workspace

SENDING, TAKING, COMBINING = 0, 1, 2  # kinds of operations; each rank has a line for each
BITS = 31  # low bits of a key that hold the operation's number; the turn is above them


def simulate_processors(
    graph: Graph, cost: Cost, eager: Bools, ranks: int, ports: int, log: Log
) -> tuple[float, int, int]:
    """Return the time at which all is done, the message done last, and the number of messages done.

    `ports`: number per rank and direction, 0 for no limit. `eager`: by class, whether a message counts as left before
    the receiver takes it. At the start all operations are enqueued rank by rank. O(M log(messages in progress)).

    The example of `event_loop` (o_s = o_r = g = 1 s, L = 2 s, G (b - 1) = 3 s, combining takes 1 s) with one processor
    per rank. Message 1 is sent by rank 1, so it is enqueued before message 0, which rank 2 sends. Rank 0 takes 1 in
    from 3 to 7. Then it takes 0 in from 7 to 11, as that was enqueued before the combining of 1. 1 and 0 are combined
    at 12 and 13. Rank 0 then begins to send at 13 and, as its port is busy for G (b - 1) and g, at 17:

    >>> from antiphon.core.example import machine, star
    >>> from antiphon.cost.figures import Level, LogGP
    >>> from antiphon.cost.loggp.state import new_log
    >>> from antiphon.cost.loggp.work import work_of
    >>> work, log = work_of(star(), machine(), LogGP((Level(),)), "rounds"), new_log(4)
    >>> cost = Cost(*np.array([[2, 2], [1, 1], [1, 1], [1, 1], [3, 3], [4, 4], [1, 0]], np.float64))
    >>> print(*simulate_processors(work.graph, cost, np.array([True, True]), 3, 1, log))
    24.0 3 4
    >>> log.begin.tolist(), log.landed.tolist(), log.done.tolist()
    ([1.0, 1.0, 14.0, 18.0], [10.0, 6.0, 19.0, 23.0], [13.0, 12.0, 20.0, 24.0])
    """
    workspace = new_workspace(graph, events=0, ports=0)
    first_messages = np.flatnonzero(graph.needed == 0)
    first_messages = first_messages[np.argsort(graph.src[first_messages], kind="stable")]
    last, message, done = _simulate_queue(first_messages, workspace, graph, cost, eager, ranks, ports, log)
    return last, message, done


@compiled
def _simulate_queue(
    first_messages: Longs, workspace: Workspace, graph: Graph, cost: Cost, eager: Bools,
    ranks: int, ports: int, log: Log,
) -> tuple[float, int, int]:  # fmt: skip
    """Run `simulate_processors` in a workspace that cannot be used again; the log is filled if there is one.

    `first_messages`: the messages that wait for nothing, in the order of turns.

    Operation m is the sending of message m. Operation count + m is what its receiver does: taking in, then combining.
    An operation gets a turn when it is enqueued, with the time from which it may begin. When it is taken out, it joins
    its line; if it is the first there, it is put back for the time when processor and port are idle, with the same
    turn, and then it begins. So an operation is in the queue until it joins its line, and again once it is first in its
    line: those behind it cannot begin before it. All consequences of its beginning are known then, so it is one event.
    """
    src, dst, cost_class = graph.src, graph.dst, graph.cost_class
    on_done_ptr, on_done, on_left_ptr, on_left = graph.on_done_ptr, graph.on_done, graph.on_left_ptr, graph.on_left
    latency, send, receive, gap, flight, _, work = cost
    count, record, reports_left = len(src), len(log.ready) > 0, len(on_left_ptr) > 0
    turn = np.zeros(2 * count, np.int64)  # operation -> turn << BITS | operation, once it is enqueued
    taken_in = np.zeros(count, np.bool_)  # m -> it was taken in; combining remains
    # made_ready: the messages that one event makes ready
    ready, made_ready = workspace.ready, np.empty(count, np.int32)
    # c -> the message that contributed last
    last_contributor = np.full(len(workspace.waits) if record else 0, -1, np.int32)
    # 3 * rank + kind: the first and the last in each line, -1: it is empty; operation -> the next in line
    head, tail = np.full(3 * ranks, -1, np.int64), np.full(3 * ranks, -1, np.int64)
    next_in_line = np.full(2 * count, -1, np.int64)
    # rank -> when its processor is idle; the same for port i of a rank, at index (kind * ranks + rank) * ports + i
    processor_idle_from, idle_from = np.zeros(ranks), np.full(2 * ranks * ports, FAR_PAST)
    # the latest end of a message, and which; messages done; turns given
    last, last_message, finished, turn_count = 0.0, -1, 0, 0
    queue = [(0.0, 0)]
    queue.clear()  # for Numba, a list that begins empty has no type
    for m in first_messages:
        taken_in[m] = src[m] == dst[m]
        operation = count + m if taken_in[m] else m
        turn[operation] = turn_count << BITS | operation
        heappush(queue, (0.0, turn[operation]))
        turn_count += 1
    while queue:
        now, entry = heappop(queue)
        operation = entry & ((1 << BITS) - 1)
        # ---- an operation that is first in its line begins when the processor and the port that it needs are idle ----
        m = operation if operation < count else operation - count
        kind = SENDING if operation < count else COMBINING if taken_in[m] else TAKING
        rank = src[m] if kind == SENDING else dst[m]
        line, first_port = 3 * rank + kind, (kind * ranks + rank) * ports  # a line for each of the three kinds
        uses_port = ports > 0 and kind != COMBINING
        if head[line] >= 0 and head[line] != operation:  # behind others
            next_in_line[tail[line]] = operation
            tail[line] = operation
            continue
        port, port_idle = find_earliest(idle_from, first_port, ports) if uses_port else (0, FAR_PAST)
        may_begin = max(processor_idle_from[rank], port_idle)
        if may_begin > now:  # first in line, too early
            head[line] = operation
            if next_in_line[operation] < 0:  # none is behind it, so it is also the last
                tail[line] = operation
            heappush(queue, (may_begin, entry))
            continue
        k, inside = cost_class[m], src[m] == dst[m]
        if record:  # how long it waited since it could have begun
            if kind == SENDING or inside:
                waited = now - ready[m]
            elif kind == TAKING:
                waited = now - (log.begin[m] + latency[k])
            else:
                waited = now - (log.landed[m] + receive[k])
            if kind != COMBINING or inside:  # a wait for combining is part of `log.combining`
                log.port[m] += waited
        # ---- it begins: find until when processor and port are busy, and whether the message has left, or is done ----
        has_left, done, sent_time = False, False, now
        if kind == SENDING:
            processor_idle_from[rank] = now + send[k]
            has_left, sent_time = eager[k], processor_idle_from[rank]
            # enqueue the taking in, for when the first byte has arrived
            turn[count + m] = turn_count << BITS | (count + m)
            heappush(queue, (processor_idle_from[rank] + latency[k], turn[count + m]))
            turn_count += 1
            if record:
                log.ready[m], log.begin[m] = ready[m], processor_idle_from[rank]
        elif kind == TAKING:
            processor_idle_from[rank] = now + flight[k] + receive[k]
            has_left, done = not eager[k], work[k] == 0
            if record:
                log.landed[m] = now + flight[k]
            if not done:
                taken_in[m] = True
                turn[operation] = turn_count << BITS | operation
                heappush(queue, (processor_idle_from[rank], turn[operation]))
                turn_count += 1
        else:
            processor_idle_from[rank] = now + work[k]
            has_left, sent_time, done = inside, processor_idle_from[rank], True
            if record and inside:
                log.ready[m], log.begin[m], log.landed[m], log.combining[m] = ready[m], now, sent_time, work[k]
            elif record:
                log.combining[m] = sent_time - (log.landed[m] + receive[k])
        if uses_port:
            idle_from[port] = now + gap[k] + flight[k]
        end_time = processor_idle_from[rank]
        if head[line] == operation:  # the next in line is the first now
            head[line] = next_in_line[operation]
            next_in_line[operation] = -1
            if head[line] >= 0:
                _, port_idle = find_earliest(idle_from, first_port, ports) if uses_port else (0, FAR_PAST)
                heappush(queue, (max(end_time, port_idle), turn[head[line]]))
        if done:
            finished += 1
            if end_time > last or last_message < 0:
                last, last_message = end_time, m
            if record:
                log.done[m] = end_time
        # ---- contribute to conditions that wait until the message has left (side 0), or until it is done (side 1) ----
        for side in range(2):
            first_condition, end_condition, moment = 0, 0, end_time
            if side == 0 and has_left and reports_left:
                first_condition, end_condition, moment = on_left_ptr[m], on_left_ptr[m + 1], sent_time
            elif side == 1 and done:
                if len(on_done_ptr):
                    first_condition, end_condition = on_done_ptr[m], on_done_ptr[m + 1]
                else:  # every message contributes to two conditions (Graph.on_done_ptr)
                    first_condition, end_condition = 2 * m, 2 * m + 2
            conditions = on_left if side == 0 else on_done
            ready_count = contribute(
                workspace, graph, log, last_contributor, made_ready,
                conditions, first_condition, end_condition, moment, m,
            )  # fmt: skip
            for i in range(ready_count):
                new = int(made_ready[i])  # not int32, whose turns would overflow where this is not compiled
                taken_in[new] = src[new] == dst[new]
                operation = count + new if taken_in[new] else new
                turn[operation] = turn_count << BITS | operation
                heappush(queue, (ready[new], turn[operation]))
                turn_count += 1
    return last, last_message, finished
