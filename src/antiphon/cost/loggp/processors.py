"""The event loop of the LogGP simulator in which a rank has one processor (`cpu=shared`, as in LogGOPSim). Compiled.

In `event_loop` the overheads of several messages overlap, and bytes come in independently of what the rank does. Here
every rank has one processor, which does one operation at a time:

    operation   the processor is busy for        and before it begins it needs
    SENDING     o_s                              the processor and a port to send
    TAKING      G (b - 1) + o_r                  the processor and a port to receive, L after the sending
    COMBINING   gamma times the bytes            the processor

Operations of each kind queue in a *line* per rank. Of the heads of lines that could begin at a moment, the one that was
enqueued first does. That is why this is a loop of its own: its events are ordered by *turns*, numbers which an
operation keeps when it is put back for a later moment, where `event_loop` orders by when an event was put in (`heap`,
which is faster but forgets how long an event has been waiting); and processing an event has nothing in common with a
stage there. Both loops share the bookkeeping of dependencies (`freed_by`), the classes of cost and the log.
docs/models/loggp.md specifies the model; the example is that of `event_loop`.

The queue is a heap with four children per node, in two arrays: the event at place i has its moment at times[i], and
turn << BITS | number at turns[1 + i]; turns[0] is the number of events. The children of place i are 4 i + 1 to 4 i + 4,
and none is earlier than it.
"""

from __future__ import annotations

import numpy as np

from antiphon.core.columns import Bools, Floats, Longs
from antiphon.cost.loggp.compiled import compiled
from antiphon.cost.loggp.state import (
    FAR,
    PROCESSOR,
    RECEIVE_PORT,
    SEND_PORT,
    Cost,
    Graph,
    Log,
    Room,
    find_earliest,
    freed_by,
    new_room,
    record_blame,
)

SENDING, TAKING, COMBINING = 0, 1, 2  # what a processor does; each rank has a line for each
BITS = 31  # low bits of a key for the event's number; the turn is above them


def simulate_processors(
    graph: Graph, cost: Cost, eager: Bools, ranks: int, ports: int, log: Log
) -> tuple[float, int, int]:
    """Return the time at which all is done, the message done last, and the number done.

    `ports`: per rank and direction, 0 for no limit; `eager`: by class, whether a send is over before the receiver takes
    it. At the start all operations are enqueued rank by rank. O(M log(messages in progress)).

    The example of `event_loop` (o_s = o_r = g = 1 s, L = 2 s, G (b - 1) = 3 s, combining takes 1 s) with one processor
    per rank. Message 1 is rank 1's, so it is enqueued before 0: rank 0 takes it in from 3 to 7, then 0, which was
    enqueued before the combining of 1, from 7 to 11; 1 and 0 are combined at 12 and 13. Rank 0 then begins to send at
    13 and, as its port is busy for G (b - 1) and g, at 17:

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
    room = new_room(graph, 0, 0)
    begin = np.flatnonzero(graph.needed == 0)
    begin = begin[np.argsort(graph.src[begin], kind="stable")]
    last, message, done = _simulate_queue(
        *new_turns(2 * len(graph.src)), begin, room, graph, cost, eager, ranks,
        ports, log,
    )  # fmt: skip
    return last, message, done


@compiled
def _simulate_queue(  # noqa: PLR0913, PLR0917
    times: Floats, turns: Longs, begin: Longs, room: Room, graph: Graph, cost: Cost, eager: Bools,
    ranks: int, ports: int, log: Log,
) -> tuple[float, int, int]:  # fmt: skip
    """Run `simulate_processors` in a workspace that is used up; the log is filled if there is one.

    `times`, `turns`: an empty queue; `begin`: the messages that wait for nothing, in the order of turns.

    Operation m is the sending of message m, operation count + m what its receiver does: taking in, then combining. An
    operation gets a turn when it is enqueued, and enters the queue for the moment from which it may begin. Taken out,
    it joins its line, or, if it is first there, goes back in for when processor and port are free, with the same turn;
    then it begins. So an operation is in the queue until it joins its line, and again at the head of its line: those
    behind it cannot begin before it does. Everything that the beginning causes is known at once: it is one event.
    """
    src, dst, klass = graph.src, graph.dst, graph.klass
    give_ptr, give, early_ptr, early = graph.give_ptr, graph.give, graph.early_ptr, graph.early
    latency, send, receive, gap, flight, _, work = cost
    count, record, tells_early = len(src), len(log.ready) > 0, len(early_ptr) > 0
    turn = np.zeros(2 * count, np.int64)  # operation -> turn << BITS | operation, once it is enqueued
    taken_in = np.zeros(count, np.bool_)  # m -> it was taken in; combining remains
    ready, freed = room.ready, np.empty(count, np.int32)  # freed: the messages that one event makes ready
    who = np.full(len(room.waits) if record else 0, -1, np.int32)  # c -> who gave to it last
    # 3 * rank + kind: the first and the last in each line, -1: it is empty; operation -> the next in line
    head, tail = np.full(3 * ranks, -1, np.int64), np.full(3 * ranks, -1, np.int64)
    behind = np.full(2 * count, -1, np.int64)
    # rank -> when its processor is free, and whom it served last; (kind * ranks + rank) * ports + i: port i, likewise
    processor, served = np.zeros(ranks), np.full(ranks, -1, np.int32)
    clear, user = np.full(2 * ranks * ports, FAR), np.full(2 * ranks * ports, -1, np.int32)
    last, last_message, finished, now, turned = 0.0, -1, 0, 0.0, 0
    for m in begin:
        taken_in[m] = src[m] == dst[m]
        operation = count + m if taken_in[m] else m
        turn[operation] = turned << BITS | operation
        push_event(times, turns, 0.0, turn[operation])
        turned += 1
    while turns[0]:
        now, entry = pop_event(times, turns)
        operation = entry & ((1 << BITS) - 1)
        # ---- the first of its line begins when the processor and the port that it needs are free ----
        m = operation if operation < count else operation - count
        kind = SENDING if operation < count else COMBINING if taken_in[m] else TAKING
        rank = src[m] if kind == SENDING else dst[m]
        line, first_port = 3 * rank + kind, (kind * ranks + rank) * ports
        uses_port = ports > 0 and kind != COMBINING
        if head[line] >= 0 and head[line] != operation:  # behind others
            behind[tail[line]] = operation
            tail[line] = operation
            continue
        port, free = find_earliest(clear, first_port, ports) if uses_port else (0, FAR)
        if max(processor[rank], free) > now:  # first in line, too early
            head[line] = operation
            if behind[operation] < 0:
                tail[line] = operation
            push_event(times, turns, max(processor[rank], free), entry)
            continue
        k, inside = klass[m], src[m] == dst[m]
        if record:  # how long it waited since it could have begun
            if kind == SENDING or inside:
                waited = now - ready[m]
            elif kind == TAKING:
                waited = now - (log.begin[m] + latency[k])
            else:
                waited = now - (log.landed[m] + receive[k])
            if free > processor[rank]:
                record_blame(log, m, SEND_PORT if kind == SENDING else RECEIVE_PORT, user[port], waited)
            else:
                record_blame(log, m, PROCESSOR, served[rank], waited)
            served[rank] = m
            if uses_port:
                user[port] = m
            if kind != COMBINING or inside:
                log.port[m] += waited
        # ---- it begins: until when processor and port are busy; whether the send is over; whether it is done ----
        lets_go, done, sent_time = False, False, now
        if kind == SENDING:
            processor[rank] = now + send[k]
            lets_go, sent_time = eager[k], processor[rank]
            # enqueue the taking in, for when the first byte has arrived
            turn[count + m] = turned << BITS | (count + m)
            push_event(times, turns, processor[rank] + latency[k], turn[count + m])
            turned += 1
            if record:
                log.ready[m], log.begin[m] = ready[m], processor[rank]
        elif kind == TAKING:
            processor[rank] = now + flight[k] + receive[k]
            lets_go, done = not eager[k], work[k] == 0
            if record:
                log.landed[m] = now + flight[k]
            if not done:
                taken_in[m] = True
                turn[operation] = turned << BITS | operation
                push_event(times, turns, processor[rank], turn[operation])
                turned += 1
        else:
            processor[rank] = now + work[k]
            lets_go, sent_time, done = inside, processor[rank], True
            if record and inside:
                log.ready[m], log.begin[m], log.landed[m], log.combining[m] = ready[m], now, sent_time, work[k]
            elif record:
                log.combining[m] = sent_time - (log.landed[m] + receive[k])
        if uses_port:
            clear[port] = now + gap[k] + flight[k]
        end_time = processor[rank]
        if head[line] == operation:  # the next in line is the first now
            head[line] = behind[operation]
            behind[operation] = -1
            if head[line] >= 0:
                free = find_earliest(clear, first_port, ports)[1] if uses_port else FAR
                push_event(times, turns, max(end_time, free), turn[head[line]])
        if done:
            finished += 1
            if end_time > last or last_message < 0:
                last, last_message = end_time, m
            if record:
                log.done[m] = end_time
        # ---- give to the conditions of messages that wait for it to have left, then of those that wait until done ----
        for side in range(2):
            give_from, give_to, moment = 0, 0, end_time
            if side == 0 and lets_go and tells_early:
                give_from, give_to, moment = early_ptr[m], early_ptr[m + 1], sent_time
            elif side == 1 and done:
                if len(give_ptr):
                    give_from, give_to = give_ptr[m], give_ptr[m + 1]
                else:
                    give_from, give_to = 2 * m, 2 * m + 2
            gives = early if side == 0 else give
            for i in range(freed_by(room, graph, log, who, freed, gives, give_from, give_to, moment, m)):
                other = freed[i]
                taken_in[other] = src[other] == dst[other]
                operation = count + other if taken_in[other] else other
                turn[operation] = turned << BITS | operation
                push_event(times, turns, ready[other], turn[operation])
                turned += 1
    return last, last_message, finished


# ---- the queue: the earliest event first; at equal times the one with the oldest turn ----


def new_turns(capacity: int) -> tuple[Floats, Longs]:
    """Allocate a queue of `capacity` events: their times; and the number of events, then turn << BITS | number of each.

    Event 7 has turn 1 and event 5 turn 2; 7 is put back for moment 4 after 5 was put in for it, and yet comes first:

    >>> times, turns = new_turns(2)
    >>> push_event(times, turns, 4.0, 2 << BITS | 5)
    >>> push_event(times, turns, 4.0, 1 << BITS | 7)
    >>> for _ in range(2):
    ...     now, entry = pop_event(times, turns)
    ...     print(now, entry >> BITS, entry & ((1 << BITS) - 1))
    4.0 1 7
    4.0 2 5
    """
    return np.empty(capacity), np.zeros(capacity + 1, np.int64)


@compiled
def push_event(times: Floats, turns: Longs, time: float, entry: int) -> None:
    """Insert an event (turn << BITS | number) at this time. O(log events)."""
    at = turns[0]
    turns[0] += 1
    while at > 0:  # sift up: later events on the way from the last place to the top move down
        up = (at - 1) >> 2
        if times[up] < time or (times[up] == time and turns[1 + up] < entry):
            break
        times[at], turns[1 + at] = times[up], turns[1 + up]
        at = up
    times[at], turns[1 + at] = time, entry


@compiled
def pop_event(times: Floats, turns: Longs) -> tuple[float, int]:
    """Remove the next event and return its time and its turn << BITS | number. The queue must not be empty."""
    now, first = times[0], turns[1]
    turns[0] -= 1
    count = turns[0]
    time, entry = times[count], turns[1 + count]
    at = 0
    while True:  # sift down the last event from the top: the earliest child moves up while it is earlier
        best = 4 * at + 1
        if best >= count:
            break
        for child in range(best + 1, min(best + 4, count)):
            if times[child] < times[best] or (times[child] == times[best] and turns[1 + child] < turns[1 + best]):
                best = child
        if time < times[best] or (time == times[best] and entry < turns[1 + best]):
            break
        times[at], turns[1 + at] = times[best], turns[1 + best]
        at = best
    times[at], turns[1 + at] = time, entry
    return now, first
