"""Decide for each message of a program its stream, and whether it needs a credit.

A stream is a sequence of steps of a rank; streams run at the same time, so messages that do not depend on each other
should be in different streams. A **credit** is the receiver's signal that the place of a message is free; it is needed
only if the sender cannot know that otherwise.

Example: rank 1 sends to rank 0, and rank 0 later answers into the place from which rank 1 sent. Rank 0 knows by the
message that this place has been read, so its answer needs no credit.
"""

from __future__ import annotations

import numpy as np

from antiphon.core.columns import Bools, Longs, distinct, pointers, run_starts, unique_inverse
from antiphon.core.program import Program
from antiphon.core.program.kinds import JOIN, RECEIVE, SEND
from antiphon.lower.onesided.switched import Switched


def find_credits(program: Program, *, farther: bool) -> Bools:
    """Return which messages need a credit of their receiver. O(n log n), and with `farther` one pass per time.

    The sender knows that a place is free if the receive waits for nothing, or only for messages between the same two
    ranks in an earlier step. With `farther`, it also knows it if the receive waits only for operations that happen
    before the send by way of any ranks: the sum that comes back around a ring implies that its first term has been
    read. (Not if switches are on that path: some of the messages that they replace are not even signals.)

    >>> from antiphon.core.example import of_rows
    >>> from antiphon.lower.lowering import lower
    >>> rows = [(0, 0, 1, 0, 1), (1, 0, 0, 2, 1), (2, 0, 2, 1, 0), (2, 0, 2, 0, 0)]
    >>> program = lower(of_rows("allreduce", 3, rows), in_place=True)  # 1 adds to 0, 0 to 2; 2 sends the sum to both
    >>> program.rank[program.pairs.send].tolist(), program.rank[program.pairs.receive].tolist()
    ([0, 1, 2, 2], [2, 0, 0, 1])
    >>> find_credits(program, farther=False).tolist()  # 2 cannot know that 1 has sent what it had there
    [False, False, False, True]
    >>> find_credits(program, farther=True).tolist()  # but it has by way of 0
    [False, False, False, False]
    """
    # Operation wait_op[i] waits for operation wait[i]. `is_known`: the sender of wait_op[i] knows that wait[i] is done;
    # only the waits of receives are used in the end.
    is_known = np.zeros(len(program.wait), bool)
    is_message = (program.kind[program.wait] == SEND) | (program.kind[program.wait] == RECEIVE)
    is_known[is_message] = program.peer[program.wait[is_message]] == program.peer[program.wait_op[is_message]]
    send_of = np.full(program.operations, -1, np.int64)
    send_of[program.pairs.receive] = program.pairs.send
    unknown = np.flatnonzero(~is_known & (send_of[program.wait_op] >= 0))
    if farther and len(unknown):
        first_number, end_number = _number_trees(program, send_of)
        awaited, sent = first_number[program.wait[unknown]], first_number[send_of[program.wait_op[unknown]]]
        is_known[unknown] = (awaited <= sent) & (sent < end_number[program.wait[unknown]])
    unknown_waits = np.bincount(program.wait_op[~is_known], minlength=program.operations)
    needed: Bools = unknown_waits[program.pairs.receive] > 0
    return needed


def _number_trees(program: Program, send: Longs) -> tuple[Longs, Longs]:
    """Number operations in trees so that each subtree has consecutive numbers: it happens after the operation at its
    top.

    The parent of a receive is its send; the parent of any other operation is the latest operation that it waits for.
    Return per operation its number, which is the first of its subtree, and the number after the last of its subtree.
    So a happens before b if b's number is in the range of a. `send`: per receive its send; -1 for other operations.
    """
    parent = send.copy()  # per operation; -1: none
    order = np.lexsort((program.when[program.wait], program.wait_op))
    # the last wait of each operation ([: len]: without waits, append makes one entry)
    last_waits = order[np.append(run_starts(program.wait_op[order])[1:], True)[: len(order)]]
    last_waits = last_waits[send[program.wait_op[last_waits]] < 0]
    parent[program.wait_op[last_waits]] = program.wait[last_waits]
    time = 2 * program.when.astype(np.int64) + (send >= 0)  # parents have smaller times
    by_time = np.argsort(time, kind="stable")
    levels = np.split(by_time, np.flatnonzero(run_starts(time[by_time]))[1:])
    size = np.ones(program.operations + 1, np.int64)
    for rows in reversed(levels):
        np.add.at(size, parent[rows], size[rows])  # the last entry (index -1) counts the roots
    siblings = np.argsort(parent, kind="stable")
    size_through = np.cumsum(size[:-1][siblings])
    begins_family = run_starts(parent[siblings])
    size_before_family = (size_through - size[:-1][siblings])[begins_family]
    offset = np.empty(program.operations, np.int64)  # the size of all subtrees of earlier siblings
    offset[siblings] = size_through - size[:-1][siblings] - size_before_family[np.cumsum(begins_family) - 1]
    first = np.full(program.operations + 1, -1, np.int64)
    for rows in levels:
        first[rows] = first[parent[rows]] + 1 + offset[rows]
    return first[:-1], (first + size)[:-1]


# ---- streams ----


def streams(program: Program, max_streams: int, switched: Switched) -> Longs:
    """Return the stream of each operation, at most `max_streams` of them.

    Operations that wait for each other, a send and its receive, and the operations of one switch share a stream. Beyond
    that, streams balance the work of every rank.

    >>> from antiphon.core.example import of_rows
    >>> from antiphon.lower.lowering import lower
    >>> program = lower(of_rows("allgather", 2, [(0, 0, 0, 1, 0), (0, 1, 1, 0, 0)]))
    >>> program.rank.tolist(), program.kind.tolist(), program.peer.tolist()
    ([0, 0, 0, 1, 1, 1], [1, 0, 2, 1, 0, 2], [1, 1, 0, 0, 0, 1])
    >>> streams(program, 2, Switched.none(program)).tolist()
    [0, 0, 1, 0, 0, 1]
    """
    component = _find_components(program, switched)
    component_count = int(component.max(initial=-1)) + 1
    if component_count <= max_streams:
        return component
    return _balance_components(program, component, component_count, max_streams)[component]


def _find_components(program: Program, switched: Switched) -> Longs:
    """Return per operation its connected component, numbered by the components' first operations."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    switched_rows = np.flatnonzero(switched.switch_of >= 0)
    # per operation of a switch, the send that requests it (the 0 is for programs without switches)
    requests = np.array([*switched.requests, 0], np.int64)[switched.switch_of[switched_rows]]
    src = np.concatenate([program.wait_op, program.pairs.send, switched_rows])
    dst = np.concatenate([program.wait, program.pairs.receive, requests])
    shape = (program.operations, program.operations)
    graph = csr_array((np.ones(len(src), np.int8), (src, dst)), shape=shape)
    _, labels = connected_components(graph, directed=False)
    component = labels.astype(np.int64)
    _, first_row = np.unique(component, return_index=True)
    number = np.empty(len(first_row), np.int64)  # per component, by the time of its first row
    order = np.lexsort((first_row, program.when[first_row]))
    number[order] = np.arange(len(first_row))
    return number[component]


def _balance_components(program: Program, component: Longs, component_count: int, stream_count: int) -> Longs:
    """Return per component its stream: the one in which the component's busiest rank has the least work.

    Components between the same two ranks share a stream, since a connection serves both directions.
    """
    rank, work = program.rank, np.where(program.kind == JOIN, 0, 1)  # a join only waits
    keys = distinct(component * program.ranks + rank)
    component_of_key, rank_of_key = keys // program.ranks, keys % program.ranks
    ptr = pointers(component_of_key, component_count)
    # Per component the number of its two ranks as a pair, or, if it has more ranks, a number of its own.
    pair = np.arange(component_count) + program.ranks**2
    of_two_ranks = np.flatnonzero(np.diff(ptr) == 2)
    pair[of_two_ranks] = rank_of_key[ptr[of_two_ranks]] * program.ranks + rank_of_key[ptr[of_two_ranks] + 1]
    _, group = unique_inverse(pair, int(pair.max()) + 1)  # per component; components of a group share a stream
    # The work of each group at each of its ranks; group g has the rows begin[g] to begin[g + 1] - 1.
    load_keys, load_number = np.unique(group[component] * program.ranks + rank, return_inverse=True)
    load = np.bincount(load_number, weights=work).astype(np.int64)
    groups, ranks = load_keys // program.ranks, load_keys % program.ranks
    begin = pointers(groups, int(group.max()) + 1)
    load_of_stream = np.zeros((stream_count, program.ranks), np.int64)  # so far, at each rank
    stream_of_group = np.empty(len(begin) - 1, np.int64)
    _, first_component = np.unique(group, return_index=True)
    for number in np.argsort(first_component, kind="stable").tolist():
        rows = slice(int(begin[number]), int(begin[number + 1]))
        ranks_of_group = ranks[rows]
        best_stream = int(np.argmin(load_of_stream[:, ranks_of_group].max(axis=1)))
        load_of_stream[best_stream, ranks_of_group] += load[rows]
        stream_of_group[number] = best_stream
    return stream_of_group[group]
