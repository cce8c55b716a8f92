"""GOAL, read: what every rank sends, receives and computes becomes a graph of messages that can be simulated."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field

import numpy as np

from antiphon.core.columns import narrow
from antiphon.core.files import name_of, read_bytes, reading
from antiphon.core.messages import MOST_DEPENDENCIES, MessageGraph
from antiphon.errors import Invalid, Unsupported, quote

SEND, RECEIVE, CALC = "send", "recv", "calc"
MOST_OPERATIONS = 2**22
_OPERATION = re.compile(
    r"(\w+)\s*:\s*(?:(send|recv)\s+(\d{1,15})b\s+(?:to|from)\s+(\d{1,9})(?:\s+tag\s+(\d{1,9}))?|calc\s+(\d{1,15}))"
    r"(?:\s+cpu\s+\d{1,9})?(?:\s+nic\s+\d{1,9})?"
)
_WAIT = re.compile(r"(\w+)\s+(i?)requires\s+(\w+)")
_NUMBER = re.compile(r"//\s*message\s+(\d{1,9})")
_RANKS = re.compile(r"num_ranks\s+(\d{1,9})")
_RANK = re.compile(r"rank\s+(\d{1,9})\s*\{")


@dataclass
class _Operations:
    """By number, in the order of the file; `waits`: pairs (who waits, for whom, whether it is enough that it began)."""

    ranks: int = 0
    rank: list[int] = field(default_factory=list)
    kind: list[str] = field(default_factory=list)
    size: list[int] = field(default_factory=list)  # bytes, or nanoseconds
    peer: list[int] = field(default_factory=list)
    tag: list[int] = field(default_factory=list)  # of a calc: the message within a rank that it is, or -1
    line: list[int] = field(default_factory=list)
    waits: list[tuple[int, int, bool]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.rank)


def read_goal(path: str | os.PathLike[str]) -> MessageGraph:
    """What `export --to goal` writes, and other files of its form: sends with the receives of the same ends and tag.

    Messages are numbered by their tags, those within a rank by comments ("// message 17") above their calcs. A send
    waits for what it requires; a receive that requires something holds up those who require it, but takes what comes
    before: receivers have buffers here. A calc is work of its rank, one after another; one that follows a receive that
    nothing else follows, and has no such number, is what the message takes there. What only must have begun (irequires)
    may be a calc. Every fault is one line that names file and line. Not for more than 2^22 operations, or 2^27
    dependencies with those that calcs of no length stand for.
    """
    with reading(name_of(path)):
        return _graph(_parsed(read_bytes(path).decode("utf-8", "replace")))


def _parsed(text: str) -> _Operations:
    r"""The operations of a file, in its order. Linear.

    >>> lines = ["num_ranks 2", "rank 0 {", "a: send 8b to 1", "}", "rank 1 {", "a: recv 8b from 0", "b: calc 5"]
    >>> table = _parsed("\n".join([*lines, "b requires a", "}"]))
    >>> table.rank, table.kind, table.size, table.waits
    ([0, 1, 1], ['send', 'recv', 'calc'], [8, 8, 5], [(2, 1, False)])
    """
    table, rank, known, inside = _Operations(), -1, dict[str, int](), -1
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.partition("//")[0].strip()
        if not line:
            told = _NUMBER.fullmatch(raw.strip())
            inside = int(told[1]) if told else inside
            continue
        if rank < 0 and (match := _RANKS.fullmatch(line)):
            table.ranks = int(match[1])
        elif rank < 0 and (match := _RANK.fullmatch(line)):
            rank, known = int(match[1]), {}
            if rank >= table.ranks:
                raise Invalid(f"line {number}: rank {rank}, but num_ranks is {table.ranks}")
        elif rank >= 0 and line == "}":
            rank = -1
        elif rank >= 0 and (match := _OPERATION.fullmatch(line)):
            _add(table, rank, known, match, number, inside)
            inside = -1
        elif rank >= 0 and (match := _WAIT.fullmatch(line)):
            for name in (match[1], match[3]):
                if name not in known:
                    raise Invalid(f"line {number}: rank {rank} has no {quote(name)} above; name it before it is used")
            table.waits.append((known[match[1]], known[match[3]], bool(match[2])))
        else:
            raise Invalid(f"line {number}: {quote(line)} is not understood; expected 'l1: send 8b to 1 tag 0' or alike")
    if rank >= 0 or not table.ranks:
        raise Invalid("ends within a rank" if rank >= 0 else "has no num_ranks")
    return table


def _add(table: _Operations, rank: int, known: dict[str, int], match: re.Match[str], line: int, inside: int) -> None:
    if match[1] in known:
        raise Invalid(f"line {line}: rank {rank} has a second {quote(match[1])}; give each its own name")
    if len(table) == MOST_OPERATIONS:
        raise Unsupported(f"line {line}: has more than {MOST_OPERATIONS} operations; simulate the plan itself")
    known[match[1]] = len(table)
    peer = int(match[4] or 0)
    if match[2] and (peer >= table.ranks or peer == rank):
        raise Invalid(f"line {line}: from rank {rank} to {peer}, of {table.ranks} ranks")
    for column, value in (
        (table.rank, rank), (table.size, int(match[3] or match[6])), (table.peer, peer),
        (table.tag, int(match[5] or 0) if match[2] else inside), (table.line, line),
    ):  # fmt: skip
        column.append(value)
    table.kind.append(match[2] or CALC)


@dataclass
class _Parts:
    """Messages in their order, those within a rank as (calc, calc), then other calcs that take time; of every operation
    the one that it is part of, or -1."""

    ends: list[tuple[int, int]]  # (send, receive)
    number: list[int]
    merged: dict[int, int]  # calc -> the receive that it follows


def _graph(table: _Operations) -> MessageGraph:
    r"""Messages and calcs, with what each waits for. O(operations and dependencies).

    Rank 1 takes 5 ns for what it receives, and then sends it back:

    >>> lines = ["num_ranks 2", "rank 0 {", "a: send 8b to 1", "b: recv 8b from 1", "}", "rank 1 {"]
    >>> lines += ["a: recv 8b from 0", "b: calc 5", "c: send 8b to 0", "b requires a", "c requires b", "}"]
    >>> graph = _graph(_parsed("\n".join(lines)))
    >>> [column.tolist() for column in (graph.src, graph.dst, graph.nbytes, graph.seconds, graph.deps_ptr, graph.deps)]
    [[0, 1], [1, 0], [8, 8], [5e-09, 0.0], [0, 0, 1], [0]]
    """
    parts = _parts(table)
    deps = _dependencies(table, parts)
    owner = [send for send, _ in parts.ends]
    inside = np.array([send == receive for send, receive in parts.ends], np.bool_)
    many = [len(deps[operation]) for operation in owner]
    if sum(many) > MOST_DEPENDENCIES:
        raise Unsupported(f"its messages have {sum(many)} dependencies in pairs; simulate the plan itself")
    items = np.array([item for operation in owner for item in sorted(deps[operation])], np.int64)
    size = np.array([table.size[operation] for operation in owner], np.int64)
    seconds = np.where(inside, size / 1e9, 0.0)
    for calc, receive in parts.merged.items():
        seconds[parts.number[receive]] = table.size[calc] / 1e9
    src, dst = (np.array([table.rank[ends[side]] for ends in parts.ends], np.int64) for side in (0, 1))
    pointer = np.concatenate([[0], np.cumsum(np.array(many, np.int64))]).astype(np.int64)
    return MessageGraph(
        table.ranks, narrow(src), narrow(dst), np.where(inside, 0, size), pointer, narrow(items >> 1),
        left=(items & 1).astype(np.bool_), seconds=seconds,
    )  # fmt: skip


def _parts(table: _Operations) -> _Parts:
    """Sends with the receives of the same ends and tag, in the order of tags; then the calcs. O(n log n)."""
    open_: dict[tuple[int, int, int], list[int]] = {}
    for i, kind in enumerate(table.kind):
        if kind == SEND:
            open_.setdefault((table.rank[i], table.peer[i], table.tag[i]), []).append(i)
    for sends in open_.values():
        sends.reverse()
    pairs = []
    for i, kind in enumerate(table.kind):
        if kind != RECEIVE:
            continue
        sends = open_.get((table.peer[i], table.rank[i], table.tag[i]), [])
        if not sends:
            raise Invalid(f"line {table.line[i]}: nobody sends what is received here")
        send = sends.pop()
        if table.size[send] != table.size[i]:
            raise Invalid(
                f"line {table.line[i]}: {table.size[i]} bytes, but line {table.line[send]} sends {table.size[send]}"
            )
        pairs.append((send, i))
    lost = [sends[-1] for sends in open_.values() if sends]
    if lost:
        raise Invalid(f"line {table.line[min(lost)]}: nobody receives what is sent here")
    merged = _following(table)
    calcs = [i for i, kind in enumerate(table.kind) if kind == CALC and i not in merged]
    pairs += [(calc, calc) for calc in calcs if table.tag[calc] >= 0]
    pairs.sort(key=lambda pair: (table.tag[pair[0]], pair))
    pairs += [(calc, calc) for calc in calcs if table.tag[calc] < 0 and table.size[calc]]
    number = [-1] * len(table)
    for n, pair in enumerate(pairs):
        for operation in pair:
            number[operation] = n
    return _Parts(pairs, number, merged)


def _following(table: _Operations) -> dict[int, int]:
    r"""Calcs that wait for one receive alone, which nothing else waits for, and are no message of their own: calc ->
    receive. Linear.

    >>> lines = ["num_ranks 2", "rank 1 {", "a: recv 8b from 0", "b: calc 5", "c: calc 5", "b requires a", "}"]
    >>> _following(_parsed("\n".join(lines)))
    {1: 0}
    """
    needs: list[list[int]] = [[] for _ in range(len(table))]
    readers = [0] * len(table)
    for later, earlier, begun in table.waits:
        needs[later].append(-1 if begun else earlier)
        readers[earlier] += 1
    return {
        i: needs[i][0]
        for i, kind in enumerate(table.kind)
        if kind == CALC and table.size[i] and table.tag[i] < 0 and len(needs[i]) == 1
        and needs[i][0] >= 0 and table.kind[needs[i][0]] == RECEIVE and readers[needs[i][0]] == 1
    }  # fmt: skip


def _dependencies(table: _Operations, parts: _Parts) -> list[set[int]]:
    r"""Of every operation what it waits for: 2 m for message or calc m done, 2 m + 1 where it is enough that it left.
    O(waits and dependencies).

    The send back (operation 4) waits for message 0, of which the calc (3) is a part:

    >>> lines = ["num_ranks 2", "rank 0 {", "a: send 8b to 1", "b: recv 8b from 1", "}", "rank 1 {"]
    >>> lines += ["a: recv 8b from 0", "b: calc 5", "c: send 8b to 0", "b requires a", "c requires b", "}"]
    >>> table = _parsed("\n".join(lines))
    >>> _dependencies(table, _parts(table))
    [set(), set(), set(), {0}, {0}]
    """
    needs: list[list[tuple[int, bool]]] = [[] for _ in range(len(table))]
    missing, readers = [0] * len(table), [list[int]() for _ in range(len(table))]
    for later, earlier, begun in table.waits:
        needs[later].append((earlier, begun))
        readers[earlier].append(later)
        missing[later] += 1
    todo = [i for i, count in enumerate(missing) if not count]
    deps: list[set[int]] = [set() for _ in range(len(table))]
    for i in todo:
        for earlier, begun in needs[i]:
            deps[i] |= _items(table, parts, deps, earlier, begun)
        for later in readers[i]:
            missing[later] -= 1
            if not missing[later]:
                todo.append(later)
    if len(todo) < len(table):
        stuck = next(i for i, count in enumerate(missing) if count)
        raise Invalid(f"line {table.line[stuck]}: waits for itself, by way of others; remove one of these requires")
    return deps


def _items(table: _Operations, parts: _Parts, deps: list[set[int]], operation: int, begun: bool) -> set[int]:
    """What somebody waits for who requires this operation."""
    kind, number = table.kind[operation], parts.number[operation]
    if begun and kind != CALC:
        raise Unsupported(f"line {table.line[operation]}: only a calc may be waited for by its beginning (irequires)")
    if operation in parts.merged:
        if begun:
            return deps[operation]
        receive = parts.merged[operation]
        return {2 * parts.number[receive]} | deps[receive]
    if number < 0:  # a calc of no length
        return deps[operation]
    if kind == RECEIVE:
        return {2 * number} | deps[operation]
    return {2 * number + (begun or kind == SEND)}
