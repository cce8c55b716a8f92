"""GOAL: what every rank sends, receives and computes, and what waits for what; LogGOPSim and ATLAHS replay it.

T. Hoefler, C. Siebert, A. Lumsdaine: Group Operation Assembly Language (ICPP 2009).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from antiphon.core.columns import Bools, Ints, Longs, dense, narrow, order_of, pointers, starts
from antiphon.core.loads import pieces_of
from antiphon.core.plan import Plan
from antiphon.core.schedule import Schedule
from antiphon.cost._waits import Sent, Waits, listed, sent, waits
from antiphon.errors import Invalid, Unsupported, quote
from antiphon.lower._text import Lines
from antiphon.units import exact, parse_size

FILE = "schedule.goal"
MOST_NICS = 256
MOST_ROWS = 2**25  # transfers with their pieces written out: some 250 bytes of memory for each
SEND, RECEIVE, COMPUTE, JOIN, LOCAL = range(5)


def goal(
    plan: Plan, *, nbytes: int | str, order: str = "data", gamma: float = 0.0, nics: int = 1
) -> dict[str, Iterator[bytes]]:
    """The messages of a plan at a size, as sends and receives of the same tag: the k-th from one rank to another has
    tag k. Receives are posted at once; a send waits by "data" for the receives (and computations) that brought what it
    carries, by "rounds" for all that its rank sent or received in earlier steps. (A rank knows only what happens at
    itself: what it has sent is done when the send is, not when that has arrived.)

    What is combined takes `gamma` seconds per byte, as a calc in whole nanoseconds. Many that wait for the same many
    wait for one calc 0 that does, on cpu 1: it is no work that waits for a processor. `nics`: messages that a rank
    sends, or receives, in one step are dealt to so many.
    O(n log n) in rows; where a message would be empty it has one byte, because replayers charge for size - 1.
    """
    seconds = exact(gamma, "gamma")
    if not 0 <= seconds <= 1:
        raise Invalid(f"gamma: expected seconds per byte, from 0 to 1, got {quote(gamma)}")
    if isinstance(nics, bool) or not isinstance(nics, int) or not 1 <= nics <= MOST_NICS:
        raise Invalid(f"nics: expected a whole number from 1 to {MOST_NICS}, got {quote(nics)}")
    size = parse_size(nbytes, "nbytes")
    _refuse_too_many(plan.at(size).schedule)
    messages = sent(plan.at(size).schedule, size)
    found = waits(messages, order)
    told = f"{plan.collective.kind} of {size} bytes on {messages.schedule.collective.ranks} ranks, order {order}"
    return {FILE: _text(messages, found, float(seconds) * 1e9, nics, told)}


def _refuse_too_many(schedule: Schedule) -> None:
    """GOAL has no pipelines: every piece is written out."""
    pieces = pieces_of(schedule)
    rows = int(pieces[schedule.chunk].sum(dtype=object)) if schedule.transfers else 0
    if rows > MOST_ROWS:
        most = int(pieces.max())
        fewer = (
            f"plan with fewer pieces, about {max(most * MOST_ROWS // rows, 1)}" if most > 1 else "a smaller plan can be"
        )
        raise Unsupported(
            f"back end goal writes every piece out: {rows} rows ({schedule.transfers} transfers of up to {most} "
            f"pieces); it takes {MOST_ROWS}, in some 8 GB of memory; {fewer}"
        )


@dataclass(frozen=True, eq=False)
class _Operations:
    """Sorted by rank, then as they may be done; an operation is named l1, l2, ... within its rank."""

    rank: Ints
    kind: Ints
    of: Longs  # the message, or the condition that a join stands for
    label: Longs

    def number(self, kind: int, count: int) -> Longs:
        """Of each message or condition its operation of this kind, -1 where it has none."""
        out = np.full(count, -1, np.int64)
        rows = np.flatnonzero(self.kind == kind)
        out[self.of[rows]] = rows
        return out


def _text(messages: Sent, found: Waits, scale: float, nics: int, told: str) -> Iterator[bytes]:
    count = len(messages)
    pause = np.rint(messages.combined * scale).astype(np.int64)
    local = messages.src == messages.dst
    joined = _worth_joining(found)
    made = _operations(messages, found, local, pause > 0, joined)
    after, before = _edges(messages, found, made, local, joined)
    lines = Lines()
    ranks = messages.schedule.collective.ranks
    at = 2 * (np.arange(len(made.rank)) + made.rank) + 1  # room for a head before every rank's
    ends = np.cumsum(np.bincount(made.rank, minlength=ranks))
    head = 2 * (np.concatenate([[0], ends[:-1]]) + np.arange(ranks))
    lines.add(head, "\nrank %d {\n", np.arange(ranks))
    wire = _wires(messages, local, nics)
    tag, bytes_of = _tags(messages), np.maximum(messages.nbytes, 1)
    for kind, word, peer in ((SEND, "send %db to", messages.dst), (RECEIVE, "recv %db from", messages.src)):
        rows = np.flatnonzero(made.kind == kind)
        of = made.of[rows]
        more = ("", ()) if nics == 1 else (" cpu 0 nic %d", (wire[kind][of],))
        template = f"l%d: {word} %d tag %d{more[0]}\n"
        lines.add(at[rows], template, made.label[rows], bytes_of[of], peer[of], tag[of], *more[1])
    for kind in (COMPUTE, LOCAL):
        rows = np.flatnonzero(made.kind == kind)
        lines.add(at[rows], "l%d: calc %d\n", made.label[rows], pause[made.of[rows]])
    rows = np.flatnonzero(made.kind == JOIN)
    lines.add(at[rows], "l%d: calc 0 cpu 1\n", made.label[rows])
    lines.add(at[after] + 1, "l%d requires l%d\n", made.label[after], made.label[before])
    lines.add(2 * (ends + np.arange(ranks)) + 1, "}\n")
    yield f"// {told}\n// {count} messages\nnum_ranks {ranks}\n".encode()
    yield from lines.text()


def _worth_joining(found: Waits) -> Bools:
    """Per condition whether lines are saved by an operation in between: many messages wait for the same many."""
    many = found.high - found.low
    readers = np.bincount(found.condition, minlength=len(many))
    return many * readers > 2 * (many + readers)


def _operations(messages: Sent, found: Waits, local: Bools, computes: Bools, joined: Bools) -> _Operations:
    """In the order of messages, thus of steps; a join stands before the first that waits for it."""
    number = np.arange(len(messages))
    crossing = number[~local]
    pairs = np.flatnonzero(joined[found.condition])
    conditions = found.condition[pairs]
    first = pairs[np.unique(conditions, return_index=True)[1]]  # pairs come by message
    conditions_of = found.condition[first].astype(np.int64)
    working, inner = number[computes & ~local], number[local]
    parts: list[tuple[Ints, int, Longs, Longs]] = [
        (messages.src[crossing], SEND, crossing, 4 * crossing + 1),
        (messages.dst[crossing], RECEIVE, crossing, 4 * crossing + 2),
        (messages.dst[working], COMPUTE, working, 4 * working + 3),
        (messages.src[inner], LOCAL, inner, 4 * inner + 1),
        (messages.src[found.message[first]], JOIN, conditions_of, 4 * found.message[first].astype(np.int64)),
    ]
    rank = np.concatenate([part[0] for part in parts])
    kind = np.concatenate([np.full(len(part[2]), part[1], np.int8) for part in parts])
    of = np.concatenate([part[2] for part in parts])
    place = np.concatenate([part[3] for part in parts])
    order = order_of(place, 4 * len(messages) + 4)
    order = order[order_of(rank[order], messages.schedule.collective.ranks)]
    rank = rank[order]
    begins = np.flatnonzero(starts(rank)) if len(rank) else order
    first_of = np.repeat(begins, np.diff(np.append(begins, len(rank))))
    return _Operations(rank, kind[order], of[order], np.arange(len(rank)) - first_of + 1)


def _edges(messages: Sent, found: Waits, made: _Operations, local: Bools, joined: Bools) -> tuple[Longs, Longs]:
    """Operations that wait, and those that they wait for, in the order of the former."""
    count, conditions = len(messages), len(found.low)
    send, receive, compute = (made.number(kind, count) for kind in (SEND, RECEIVE, COMPUTE))
    send = np.where(local, made.number(LOCAL, count), send)
    join = made.number(JOIN, conditions)
    arrived = np.where(compute >= 0, compute, np.where(local, send, receive))

    def done(rank: Ints, item: Longs) -> Longs:
        """The operation of this rank with which a message is done there."""
        return np.where(messages.dst[item] == rank, arrived[item], send[item])

    pair_joined = joined[found.condition]
    message, item = listed(found, np.flatnonzero(~pair_joined))
    edges = [(send[message], done(messages.src[message], item))]
    some = np.flatnonzero(pair_joined)
    edges.append((send[found.message[some]], join[found.condition[some]]))
    which = np.flatnonzero(joined & (join >= 0))
    each = Waits(found.items, found.low, found.high, narrow(which), narrow(which))
    condition, item = listed(each)
    edges.append((join[condition], done(made.rank[join[condition]], item)))
    computing = np.flatnonzero(compute >= 0)
    edges.append((compute[computing], receive[computing]))
    after = np.concatenate([edge[0] for edge in edges])
    before = np.concatenate([edge[1] for edge in edges])
    order = np.lexsort((before, after))
    return after[order], before[order]


def _tags(messages: Sent) -> Longs:
    """Of the messages from one rank to another the first has tag 0, the next 1, ...: no two alike."""
    ranks = messages.schedule.collective.ranks
    pairs, pair = dense(messages.src.astype(np.int64) * ranks + messages.dst, ranks * ranks)
    return _turn(pair, len(pairs))


def _wires(messages: Sent, local: Bools, nics: int) -> dict[int, Longs]:
    """Per kind the NIC of every message: those of one rank and step in turn."""
    if nics == 1:
        return {}
    ranks = messages.schedule.collective.ranks
    times, time = dense(messages.step, messages.schedule.steps or 1)
    out = {}
    for kind, rank in ((SEND, messages.src), (RECEIVE, messages.dst)):
        key, group = dense((time * ranks + rank) * 2 + local, len(times) * ranks * 2)
        out[kind] = _turn(group, len(key)) % nics
    return out


def _turn(group: Longs, groups: int) -> Longs:
    """The place of every element among those of its group."""
    order = order_of(group, max(groups, 1))
    first = pointers(group, groups)[:-1]
    out = np.empty(len(group), np.int64)
    out[order] = np.arange(len(group)) - first[group[order]]
    return out
