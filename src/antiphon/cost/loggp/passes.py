"""Single passes over millions of messages that prepare, or replace, a LogGP simulation. Compiled by Numba.

    number_classes       classes of messages that cost the same: equal weight, reduced weight, and level
    count_contributions  per condition, the number of messages that must happen before it is satisfied
    group_by_condition   invert "message m needs condition c" into lists per condition (CSR, counting sort)
    find_levels          per message the innermost place (socket, host, rack) that both ends share
    max_simultaneous     bound the messages that are in progress at the same time, so that limits need not be simulated
    simulate_free        replace the event loop if nothing queues

Example: messages 0 and 1 need condition 1, message 2 needs condition 0. Counting sort: pointers [0, 1, 3], messages
[2, 0, 1].

Arrays for long results are passed in as `out`, as NumPy allocates large pages and Numba does not.
"""

from __future__ import annotations

import numpy as np

from antiphon.core.columns import Floats, Ints, Longs
from antiphon.cost.loggp.compiled import compiled
from antiphon.cost.loggp.state import Cost


@compiled
def number_classes(weight: Longs, combined: Longs, level: Ints, max_classes: int, out: Ints) -> tuple[Longs, int]:
    """Number the distinct (weight, combined, level) and write each message's number into `out`.

    `combined`: the weight that is reduced on arrival. `weight` or `combined` of one element hold for all messages.
    Return the distinct triples and their count, which is above `max_classes` if they are too many for a linear search.
    O(messages * max_classes), mostly O(messages).

    Four messages of one weight, 6; the second and third are combined:

    >>> combined, level = np.array([0, 6, 6, 0]), np.array([1, 1, 1, 1], np.int32)
    >>> cost_class = np.empty(4, np.int32)
    >>> classes, count = number_classes(np.array([6]), combined, level, 64, cost_class)
    >>> cost_class.tolist(), classes[:count].tolist()
    ([0, 1, 1, 0], [[6, 0, 1], [6, 6, 1]])
    """
    classes = np.empty((max_classes, 3), np.int64)
    count, last = 0, 0
    for m in range(len(level)):
        a = weight[m] if len(weight) > 1 else weight[0]  # one value: of all messages
        b = combined[m] if len(combined) > 1 else combined[0]
        c = level[m]
        if count == 0 or classes[last, 0] != a or classes[last, 1] != b or classes[last, 2] != c:
            last = 0
            while last < count and (classes[last, 0] != a or classes[last, 1] != b or classes[last, 2] != c):
                last += 1
            if last == count:
                if count == max_classes:
                    return classes, max_classes + 1
                classes[last, 0], classes[last, 1], classes[last, 2] = a, b, c
                count += 1
        out[m] = last
    return classes, count


@compiled
def count_contributions(done: Ints, after_sent: Ints, predecessor: Ints) -> tuple[Ints, Ints]:
    """Return the number of events that each condition waits for (contributing messages and its predecessor), and
    its successor or -1.

    `done`: per contribution that a message makes when it is received, the condition; `after_sent`: likewise when its
    last byte has left the sender. `predecessor`: condition -> the one before it, -1 if none. With order "rounds" the
    messages of `core.example.star` contribute to conditions 0, 0, 1, 2, and to the later ones 3, 3, 4, 5:

    >>> done, after_sent = np.array([2, 0, 1, 0, 3, 4, 3, 5], np.int32), np.empty(0, np.int32)
    >>> [column.tolist() for column in count_contributions(done, after_sent, np.array([-1, -1, -1, 0, 1, 2], np.int32))]
    [[2, 1, 1, 3, 2, 2], [3, 4, 5, -1, -1, -1]]
    """
    counts, successor = np.zeros(len(predecessor), np.int32), np.full(len(predecessor), -1, np.int32)
    for i in range(len(done)):
        counts[done[i]] += 1
    for i in range(len(after_sent)):
        counts[after_sent[i]] += 1
    for c in range(len(predecessor)):
        if predecessor[c] >= 0:
            counts[c] += 1
            successor[predecessor[c]] = c
    return counts, successor


@compiled
def group_by_condition(needed_condition: Ints, count: int) -> tuple[Ints, Ints]:
    """Return in CSR form the messages that wait for each condition; each message waits for at most one (-1: none).

    Messages 0 and 1 wait for none, 2 and 4 for condition 0, 3 for condition 2:

    >>> [column.tolist() for column in group_by_condition(np.array([-1, -1, 0, 2, 0], np.int32), 3)]
    [[0, 2, 2, 3], [2, 4, 3]]
    """
    pointer = np.zeros(count + 1, np.int32)
    for m in range(len(needed_condition)):
        if needed_condition[m] >= 0:
            pointer[needed_condition[m] + 1] += 1
    for n in range(count):
        pointer[n + 1] += pointer[n]
    at = pointer[:count].copy()
    out = np.empty(pointer[count], np.int32)
    for m in range(len(needed_condition)):
        n = needed_condition[m]
        if n >= 0:
            out[at[n]] = m
            at[n] += 1
    return pointer, out


@compiled
def max_simultaneous(step: Ints, src: Ints, dst: Ints, node: Longs, limit: int) -> tuple[int, int]:
    """Bound the messages that a rank can send, or receive, at once, and those between a node (host) and other nodes.

    For order "rounds", in which a rank goes on only when it has received all of a step. So only one step of a rank's
    sends is in progress, and one message from each sender to a receiver. Return `limit` + 1 if the count is higher or
    unknown. Messages are sorted by step. O(messages * limit).

    Ranks 0 and 1 are a node, 2 and 3 another. In step 0 rank 0 sends to 1 and to 2, in step 1 rank 2 to 1 and 3 to 1.
    So rank 1 has three sources, which may all send to it at once; two of them are in another node:

    >>> step, src = np.array([0, 0, 1, 1], np.int32), np.array([0, 0, 2, 3], np.int32)
    >>> dst, node = np.array([1, 2, 1, 1], np.int32), np.array([0, 0, 1, 1])
    >>> print(*max_simultaneous(step, src, dst, node, 4), *max_simultaneous(step, src, dst, node, 2))
    3 2 3 3
    """
    ranks, nodes, unknown = len(node), int(node.max()) + 1, limit + 1
    sources, source_count = np.empty((ranks, limit), np.int32), np.zeros(ranks, np.int32)
    # rank -> the step in which it last sent; its messages in that step; those of them to other nodes; the maximum of
    # these over the steps so far
    last_step, sends, leaving = np.full(ranks, -1, np.int32), np.zeros(ranks, np.int32), np.zeros(ranks, np.int32)
    max_per_rank, max_leaving = 0, np.zeros(ranks, np.int32)
    # node -> the senders in other nodes to all its ranks: as many messages can arrive at once
    arriving = np.zeros(nodes + 1, np.int32)
    for m in range(len(src)):
        a, b = src[m], dst[m]
        crosses = node[a] != node[b]
        if last_step[a] != step[m]:
            last_step[a], sends[a], leaving[a] = step[m], 0, 0
        sends[a] += 1
        leaving[a] += crosses
        max_leaving[a] = max(max_leaving[a], leaving[a])
        i = 0  # position of a among the senders to b
        while i < source_count[b] and sources[b, i] != a:
            i += 1
        # Two messages from one rank to another in a step, neighbours in their order: sources would count them as one.
        is_repeated = m > 0 and src[m - 1] == a and dst[m - 1] == b and step[m - 1] == step[m]
        if i == limit or sends[a] > limit or is_repeated:
            return unknown, unknown
        if i == source_count[b]:
            sources[b, i] = a
            source_count[b] += 1
            arriving[node[b]] += crosses  # for ranks in no node (-1) the last entry, which is not used
        max_per_rank = max(max_per_rank, sends[a], source_count[b])
    max_per_node, departing = 0, np.zeros(nodes + 1, np.int32)  # departing: node -> the sum of its ranks' maxima
    for a in range(ranks):
        departing[node[a]] += max_leaving[a]
    for n in range(nodes):
        max_per_node = max(max_per_node, departing[n], arriving[n])
    return max_per_rank, max_per_node


@compiled
def find_levels(src: Ints, dst: Ints, group: Longs, out: Ints) -> Ints:
    """Write into `out` per message the innermost level whose place both ends share; the number of levels if none is.

    group[level, rank]: the number of the rank's place at this level, -1 if none.

    Ranks 0 and 1 are in one host and 2 in another; the second level is for all:

    >>> src, dst, group = np.array([0, 1], np.int32), np.array([1, 2], np.int32), np.array([[0, 0, 1], [0, 0, 0]])
    >>> find_levels(src, dst, group, np.empty(2, np.int32)).tolist()
    [0, 1]
    """
    for m in range(len(src)):
        a, b = src[m], dst[m]
        level = 0
        while level < len(group) and (group[level, a] < 0 or group[level, a] != group[level, b]):
            level += 1
        out[m] = level
    return out


@compiled
def simulate_free(
    cost_class: Ints, cost: Cost, needed_condition: Ints, contributes_to: Ints, predecessor: Ints, latest: Floats,
    stop: float = np.inf,
) -> tuple[float, int]:  # fmt: skip
    """Return the time at which all is done, and the message done last, if no message queues.

    One pass in the order of steps computes what the event loop would. Times are added in the same order, so that they
    are equal to the last bit. Every message waits for one condition and contributes to two, as with order "rounds"
    (`antiphon.core.messages`). O(messages).

    Messages m are sorted by step. `cost_class`: m -> its class. `needed_condition`: m -> the condition that it waits
    for, -1 if none. contributes_to[2 * m : 2 * m + 2]: the conditions that m contributes to. `predecessor`: condition
    -> the one before it, -1 if none. `latest`: condition -> the latest contribution to it, zeros at first. A message
    needs only contributions of earlier steps, so `latest` is final when it is read. If not all is done before `stop`,
    the time is infinite.

    Messages of `core.example.star`, with o_s = o_r = 1 s, L = 2 s, G (b - 1) = 3 s, and 1 s to combine: messages 0
    and 1 are done at 8, and those that wait for them 7 s later:

    >>> contributes_to = np.array([2, 0, 1, 0, 3, 4, 3, 5], np.int32)
    >>> predecessor = np.array([-1, -1, -1, 0, 1, 2], np.int32)
    >>> cost = Cost(*np.array([[2, 2], [1, 1], [1, 1], [1, 1], [3, 3], [4, 4], [1, 0]], np.float64))
    >>> cost_class, needed_condition = np.array([0, 0, 1, 1], np.int32), np.array([-1, -1, 0, 0], np.int32)
    >>> print(*simulate_free(cost_class, cost, needed_condition, contributes_to, predecessor, np.zeros(6)))
    15.0 2
    """
    latency, send, receive, _, flight, _, work = cost  # no gap and no busy time: nothing queues
    last, last_message = 0.0, -1
    for m in range(len(cost_class)):
        need, k = needed_condition[m], cost_class[m]
        ready = latest[need] if need >= 0 else 0.0
        done = ready + send[k] + latency[k] + flight[k] + receive[k] + work[k]
        if done > last:
            last, last_message = done, m
            if done >= stop:
                return np.inf, m
        for i in range(2 * m, 2 * m + 2):  # the two conditions that a message contributes to
            c = contributes_to[i]
            earlier = predecessor[c]
            moment = max(done, latest[earlier]) if earlier >= 0 else done
            latest[c] = max(latest[c], moment)
    return last, last_message
