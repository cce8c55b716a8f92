"""Write the messages of a plan as a GOAL file, for `antiphon export --to goal`: operations and dependencies per rank.

The simulators LogGOPSim and ATLAHS replay it. T. Hoefler, C. Siebert, A. Lumsdaine: Group Operation Assembly Language
(ICPP 2009).

Input: a plan and a message size. Output: one file, made as a stream of bytes. Stages: expand pieces into messages;
compute the set of events that each send waits for; list the operations of each rank (send, receive, calc, which stands
for computing, and join) in an order in which they can be executed; write one line per operation and one per dependency.
A `join` is a calc of 0 ns for a set that several operations wait for, so that m operations waiting for the same n need
m + n lines instead of m * n:

    rank 0 {
    l1: recv 1024b from 1 tag 0
    l2: send 1024b to 2 tag 1
    l2 requires l1
    }
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from antiphon.core.columns import (
    Bools,
    Ints,
    Longs,
    as_int32,
    index_in_run,
    order_of,
    pack_columns,
    run_starts,
)
from antiphon.core.joints import refuse_joints
from antiphon.core.loads import pieces_of
from antiphon.core.messages import LEFT, RECEIVED, Messages, Sets, sets, waits
from antiphon.core.messages import messages as messages_of
from antiphon.core.plan import Plan
from antiphon.core.schedule import Schedule
from antiphon.core.transform import expand
from antiphon.errors import Invalid, Unsupported, quote
from antiphon.formats.message_options import check_order, local_work, read_gamma
from antiphon.formats.text import Lines
from antiphon.units import parse_size

FILE = "schedule.goal"
MAX_NICS = 256  # network cards of a rank
MAX_ROWS = 2**25  # transfers with their pieces written out: each takes some 250 bytes of memory
# kinds of operations; COMPUTE combines a message, LOCAL is a message within a rank, LAST the local work at the end
SEND, RECEIVE, COMPUTE, JOIN, LOCAL, LAST = range(6)


def goal(
    plan: Plan, *, nbytes: int | str, order: str = "data", gamma: float = 0.0, nics: int = 1, local: str = ""
) -> dict[str, Iterator[bytes]]:
    """Write the messages of a plan at one size as GOAL: sends and receives with the number of the message as tag.

    Receives are posted at once. A rank knows only its own events: a send counts as done when the data has left, not
    when it has been received. A message within a rank is a calc. Empty messages have one byte, because replayers charge
    for size - 1. O(n log n) in rows.

    Parameters
    ----------
    order
        When a send may start: "data" waits for the versions that it reads, "rounds" for everything that its rank sent
        or received in earlier steps (docs/program.md).
    gamma
        Seconds per byte of combining, written as a calc in whole nanoseconds.
    nics
        Distribute the messages that a rank sends or receives in one step over this number of network cards.
    local
        Local work that the schedule declares: "100GB/s" writes it as a calc of that speed at the end of every rank,
        "off" omits it. Default: such a schedule is an error.
    """
    seconds_per_byte = read_gamma(gamma)
    if isinstance(nics, bool) or not isinstance(nics, int) or not 1 <= nics <= MAX_NICS:
        raise Invalid(f"nics: expected a whole number from 1 to {MAX_NICS}, got {quote(nics)}")
    size = parse_size(nbytes, "nbytes")
    schedule = plan.at(size).schedule
    refuse_joints(schedule, "export to goal")
    _refuse_too_many(schedule)
    check_order(order)
    end_work_ns = local_work(schedule, size, local, "calc", per_second=10**9)
    messages = messages_of(expand(schedule))
    title = f"{plan.collective.kind} of {size} bytes on {messages.ranks} ranks, order {order}"
    bytes_of, combined = messages.nbytes(size)
    # "rounds": a rank's next round may begin as soon as its sends have left it; "data" ignores this argument
    needs = sets(waits(messages, order, LEFT if order == "rounds" else RECEIVED))
    priced = _PricedMessages(
        messages,
        nbytes=np.maximum(bytes_of, 1),
        combining_ns=np.rint(combined * float(seconds_per_byte) * 1e9).astype(np.int64),
        end_work_ns=end_work_ns,
    )
    return {FILE: _write_text(priced, needs, nics, title)}


def _refuse_too_many(schedule: Schedule) -> None:
    """Raise Unsupported if the schedule has too many transfers; GOAL has no pipelines, so every piece is written."""
    pieces = pieces_of(schedule)
    rows = int(pieces[schedule.chunk].sum(dtype=object)) if schedule.transfers else 0
    if rows > MAX_ROWS:
        max_pieces = int(pieces.max())
        fewer = (
            f"plan with fewer pieces, about {max(max_pieces * MAX_ROWS // rows, 1)}"
            if max_pieces > 1
            else "a smaller plan can be"
        )
        raise Unsupported(
            f"format goal writes every piece out: {rows} rows ({schedule.transfers} transfers of up to {max_pieces} "
            f"pieces); it takes {MAX_ROWS}, in some 8 GB of memory; {fewer}"
        )


@dataclass(frozen=True, eq=False)
class _PricedMessages:
    """Messages at one size of the call, with their costs."""

    messages: Messages
    nbytes: Longs  # per message
    combining_ns: Longs  # per message: nanoseconds of combining it
    end_work_ns: int  # nanoseconds of local work at the end of every rank

    @property
    def inside(self) -> Bools:
        """Return, per message, whether it stays within its rank."""
        return self.messages.src == self.messages.dst


@dataclass(frozen=True, eq=False)
class _Operations:
    """All operations, sorted by rank, then in an order of execution; within a rank they are labelled l1, l2, ..."""

    rank: Ints
    kind: Ints  # SEND, RECEIVE, ...
    subject: Longs  # the message, the set that a join stands for, or the rank
    label: Longs  # its number within the rank, from 1

    def number(self, kind: int, count: int) -> Longs:
        """Return for each of `count` messages (or sets) the row of its operation of this kind, -1 if it has none."""
        row_of = np.full(count, -1, np.int64)
        rows = np.flatnonzero(self.kind == kind)
        row_of[self.subject[rows]] = rows
        return row_of


def _write_text(priced: _PricedMessages, needs: Sets, nics: int, title: str) -> Iterator[bytes]:
    """Yield the file. Lines are added kind by kind, each with its *position*, and written in the order of positions."""
    messages = priced.messages
    has_join = _find_useful_joins(needs)
    operations = _list_operations(priced, needs, has_join)
    after, before, begun = _list_edges(priced, needs, operations, has_join)
    lines = Lines()
    ranks = messages.ranks
    # operations have odd positions, their dependencies the even positions after them; before those of each rank is one
    # position for its head, behind them one for its closing brace
    at = 2 * (np.arange(len(operations.rank)) + operations.rank) + 1
    ends = np.cumsum(np.bincount(operations.rank, minlength=ranks))
    head = 2 * (np.concatenate([[0], ends[:-1]]) + np.arange(ranks))
    lines.add(head, "\nrank %d {\n", np.arange(ranks))
    # sends and receives
    nic_of = _assign_nics(messages, priced.inside, nics)
    for kind, word, peer in ((SEND, "send %db to", messages.dst), (RECEIVE, "recv %db from", messages.src)):
        rows = np.flatnonzero(operations.kind == kind)
        subject = operations.subject[rows]
        columns: list[Ints | Longs] = [operations.label[rows], priced.nbytes[subject], peer[subject], subject]
        nic = " cpu 0 nic %d" if nics > 1 else ""
        if nics > 1:
            columns.append(nic_of[kind][subject])
        lines.add(at[rows], f"l%d: {word} %d tag %d{nic}\n", *columns)
    # combinations
    rows = np.flatnonzero(operations.kind == COMPUTE)
    lines.add(at[rows], "l%d: calc %d\n", operations.label[rows], priced.combining_ns[operations.subject[rows]])
    rows = np.flatnonzero(operations.kind == LOCAL)
    subject = operations.subject[rows]
    lines.add(at[rows], "// message %d\nl%d: calc %d\n", subject, operations.label[rows], priced.combining_ns[subject])
    # joins on cpu 1, where they delay no real work
    rows = np.flatnonzero(operations.kind == JOIN)
    lines.add(at[rows], "l%d: calc 0 cpu 1\n", operations.label[rows])
    rows = np.flatnonzero(operations.kind == LAST)
    lines.add(at[rows], "l%d: calc %d\n", operations.label[rows], np.full(len(rows), priced.end_work_ns))
    # GOAL's "requires" waits until the operation is done, "irequires" until it has begun
    templates = ("l%d requires l%d\n", "l%d irequires l%d\n")
    lines.mixed(at[after] + 1, templates, begun.astype(np.int64), operations.label[after], operations.label[before])
    lines.add(2 * (ends + np.arange(ranks)) + 1, "}\n")
    yield f"// {title}\n// {len(messages)} messages\nnum_ranks {ranks}\n".encode()
    yield from lines.text()


def _find_useful_joins(needs: Sets) -> Bools:
    """Return, per set of operations that messages wait for, whether a join saves lines. O(pairs of message and set).

    Set s has the operations of `needs.items` from `low[s]` to below `high[s]`; message `message[i]` waits for set
    `set[i]`. Five messages wait for set 0, of ten operations, one for set 1:

    >>> low, high, set_of_reader = np.array([0, 10]), np.array([10, 20]), np.array([0, 0, 0, 0, 0, 1])
    >>> _find_useful_joins(Sets(np.arange(20), low, high, np.arange(6), set_of_reader))
    array([ True, False])
    """
    sizes = needs.high - needs.low
    readers = np.bincount(needs.set, minlength=len(sizes))
    # m readers of n operations: m * n lines without a join, m + n with one; the factor 2 is for the operation it adds
    return sizes * readers > 2 * (sizes + readers)


def _list_operations(priced: _PricedMessages, needs: Sets, has_join: Bools) -> _Operations:
    """List the operations of all ranks, in the order of messages. O(n log n).

    A join stands before the first operation that waits for it; the local work at the end is last. `needs`: sets of
    events, and pairs (`needs.message`, `needs.set`): this message waits for all events of this set.

    Of `core.example.star` rank 0 receives (1) messages 0 and 1 and sends (0) 2 and 3, as l1 to l4:

    >>> from antiphon.core.example import star
    >>> table = messages_of(star())
    >>> priced, needs = _PricedMessages(table, np.full(4, 8), np.zeros(4, np.int64), 0), sets(waits(table, "rounds"))
    >>> operations = _list_operations(priced, needs, _find_useful_joins(needs))
    >>> list(zip(*(c[:4].tolist() for c in (operations.rank, operations.kind, operations.subject, operations.label))))
    [(0, 1, 0, 1), (0, 1, 1, 2), (0, 0, 2, 3), (0, 0, 3, 4)]
    """
    messages, inside = priced.messages, priced.inside
    # four positions per message: join before it, send, receive, combination
    number, end = np.arange(len(messages)), 4 * len(messages)
    crossing = number[~inside]
    pairs = np.flatnonzero(has_join[needs.set])
    joins, first_pair = np.unique(needs.set[pairs].astype(np.int64), return_index=True)  # pairs come by message
    first = pairs[first_pair]
    reducing, inner = number[(priced.combining_ns > 0) & ~inside], number[inside]
    ranks = np.arange(messages.ranks if priced.end_work_ns else 0)
    # (rank, kind, subject, position) of each kind of operation
    groups: list[tuple[Ints, int, Longs, Longs]] = [
        (messages.src[crossing], SEND, crossing, 4 * crossing + 1),
        (messages.dst[crossing], RECEIVE, crossing, 4 * crossing + 2),
        (messages.dst[reducing], COMPUTE, reducing, 4 * reducing + 3),
        (messages.src[inner], LOCAL, inner, 4 * inner + 1),
        (messages.src[needs.message[first]], JOIN, joins, 4 * needs.message[first].astype(np.int64)),
        (as_int32(ranks), LAST, ranks, np.full(len(ranks), end)),
    ]
    columns = [(rank, np.full(len(rank), kind, np.int8), subject, position) for rank, kind, subject, position in groups]
    rank, kind, subject, position = (np.concatenate(column) for column in zip(*columns, strict=True))
    order = order_of(*pack_columns((rank, messages.ranks), (position, end + 1)))
    rank = rank[order]
    return _Operations(rank, kind[order], subject[order], index_in_run(rank) + 1)


def _list_edges(
    priced: _PricedMessages, needs: Sets, operations: _Operations, has_join: Bools
) -> tuple[Longs, Longs, Bools]:
    """Return the dependencies, sorted by the first column: rows of operations that wait; rows of those that they wait
    for; whether it suffices that these have begun. O(n log n).

    An item of a set is 2 * message + 1 for "has left the sender", 2 * message for "has been received".

    The sends of rank 0 (2 and 3) wait for its receives (0 and 1):

    >>> from antiphon.core.example import star
    >>> table = messages_of(star())
    >>> priced, needs = _PricedMessages(table, np.full(4, 8), np.zeros(4, np.int64), 0), sets(waits(table, "rounds"))
    >>> has_join = _find_useful_joins(needs)
    >>> _list_edges(priced, needs, _list_operations(priced, needs, has_join), has_join)
    (array([2, 2, 3, 3]), array([0, 1, 0, 1]), array([False, False, False, False]))
    """
    count = len(priced.messages)
    send, receive, compute = (operations.number(kind, count) for kind in (SEND, RECEIVE, COMPUTE))
    send = np.where(priced.inside, operations.number(LOCAL, count), send)
    join = operations.number(JOIN, len(needs.low))
    done = np.where(compute >= 0, compute, np.where(priced.inside, send, receive))

    def row_of_item(item: Longs) -> Longs:
        """Return the operations that these items stand for."""
        return np.where(item & 1, send[item >> 1], done[item >> 1])

    # A message within a rank counts as having left once its calc has begun (`irequires`), other messages when the send
    # is done.
    pair_joined = has_join[needs.set]
    message, item = needs.listed(np.flatnonzero(~pair_joined))  # of each such message all items, without a join
    joined_pairs = np.flatnonzero(pair_joined)
    owner, member = needs.members(np.flatnonzero(has_join & (join >= 0)))  # of each joined set (`owner`) all items
    computing = np.flatnonzero(compute >= 0)
    edges = [
        (send[message], row_of_item(item), (item & 1 == 1) & priced.inside[item >> 1]),
        (send[needs.message[joined_pairs]], join[needs.set[joined_pairs]], _all_false(joined_pairs)),
        (join[owner], row_of_item(member), (member & 1 == 1) & priced.inside[member >> 1]),
        (compute[computing], receive[computing], _all_false(computing)),
    ]
    last = np.flatnonzero(operations.kind == LAST)
    if len(last):  # waits for all of its rank that nothing else waits for
        unawaited = np.ones(len(operations.rank), np.bool_)
        for _, before, begun in edges:
            unawaited[before[~begun]] = False
        unawaited[last] = False
        unfinished = np.flatnonzero(unawaited)
        edges.append((last[operations.rank[unfinished]], unfinished, _all_false(unfinished)))
    after, before, begun = (np.concatenate(column) for column in zip(*edges, strict=True))
    order = np.lexsort((begun, before, after))
    after, before, begun = after[order], before[order], begun[order]
    is_distinct = run_starts(after) | run_starts(before)  # waiting for the end implies the beginning
    return after[is_distinct], before[is_distinct], begun[is_distinct]


def _all_false(rows: Longs) -> Bools:
    return np.zeros(len(rows), np.bool_)


def _assign_nics(messages: Messages, inside: Bools, nics: int) -> dict[int, Longs]:
    """Return by kind (SEND, RECEIVE) the NIC of every message: those of a rank and step in turn. One sort per kind.

    >>> from antiphon.core.example import star
    >>> nic_of = _assign_nics(messages_of(star()), np.zeros(4, np.bool_), 2)
    >>> nic_of[SEND].tolist(), nic_of[RECEIVE].tolist()
    ([0, 0, 0, 1], [0, 1, 0, 0])
    """
    if nics == 1:
        return {}
    nic_of = {}
    for kind, rank in ((SEND, messages.src), (RECEIVE, messages.dst)):
        # messages within a rank, which use no NIC, take no turn of the others: `inside` is a part of the key
        key, bound = pack_columns((messages.step, messages.schedule.steps), (rank, messages.ranks), (inside, 2))
        order = order_of(key, bound)
        turn = np.empty(len(key), np.int64)
        turn[order] = index_in_run(key[order])
        nic_of[kind] = turn % nics
    return nic_of
