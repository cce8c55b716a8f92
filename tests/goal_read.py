"""GOAL as Antiphon writes it, read: the operations of every rank, and the graph of messages that they stand for."""

import re
from dataclasses import dataclass, field

import numpy as np

from antiphon.core.columns import as_int32
from antiphon.core.messages import MessageGraph

Key = tuple[int, str]  # rank and label
LINE = re.compile(
    r"(?P<label>l\d+): (?:(?P<way>send|recv) (?P<bytes>\d+)b (?:to|from) (?P<peer>\d+) tag (?P<tag>\d+)"
    r"(?: cpu 0 nic (?P<nic>\d+))?|calc (?P<ns>\d+)(?P<join> cpu 1)?)"
)


@dataclass
class Operation:
    """`size`: bytes, or nanoseconds of a calc. `tag`: of a calc the message within a rank that it is, or -1."""

    way: str
    size: int = 0
    peer: int = -1
    tag: int = -1
    nic: int = 0
    needs: list[Key] = field(default_factory=list)
    begun: set[Key] = field(default_factory=set)  # of `needs`, those that need only have begun


def read(text: str) -> tuple[int, dict[Key, Operation]]:
    """A strict reader: every label once, and known before it is referred to."""
    ranks, rank, inside, operations = -1, -1, -1, dict[Key, Operation]()
    read_ranks = []
    for line in text.splitlines():
        if not line or line.startswith("//"):
            inside = int(line.split()[-1]) if line.startswith("// message ") else inside
        elif match := re.fullmatch(r"num_ranks (\d+)", line):
            ranks = int(match[1])
        elif match := re.fullmatch(r"rank (\d+) \{", line):
            assert rank == -1
            rank = int(match[1])
            read_ranks.append(rank)
        elif line == "}":
            rank = -1
        elif match := re.fullmatch(r"(l\d+) (i?)requires (l\d+)", line):
            needed = rank, match[3]
            assert needed in operations
            assert needed not in operations[rank, match[1]].needs
            operations[rank, match[1]].needs.append(needed)
            operations[rank, match[1]].begun |= {needed} if match[2] else set()
        else:
            whole = LINE.fullmatch(line)
            assert whole is not None, line
            assert rank >= 0
            assert (rank, whole["label"]) not in operations
            operations[rank, whole["label"]] = (
                Operation("calc", int(whole["ns"]), tag=inside)
                if whole["ns"] is not None
                else Operation(
                    whole["way"], int(whole["bytes"]), int(whole["peer"]), int(whole["tag"]), int(whole["nic"] or 0)
                )
            )
            inside = -1
    assert read_ranks == list(range(ranks))
    return ranks, operations


def partner(operations: dict[Key, Operation]) -> dict[Key, Key]:
    """The one send of every receive."""
    sends: dict[tuple[int, int, int], Key] = {}
    for (rank, label), op in operations.items():
        if op.way == "send":
            assert sends.setdefault((rank, op.peer, op.tag), (rank, label)) == (rank, label)
    out = {}
    for (rank, label), op in operations.items():
        if op.way == "recv":
            out[rank, label] = sends.pop((op.peer, rank, op.tag))
            assert operations[out[rank, label]].size == op.size
    assert not sends
    return out


def read_goal(text: str) -> MessageGraph:
    """The messages of a file, by their tags, and then its other work. A calc that alone follows a receive is what the
    message takes there; one of no length joins what it waits for."""
    ranks, operations = read(text)
    send_of = partner(operations)
    readers = [needed for op in operations.values() for needed in op.needs]
    takes = {
        key: op.needs[0]
        for key, op in operations.items()
        if op.way == "calc" and op.size and op.tag < 0 and len(op.needs) == 1 and not op.begun
        and op.needs[0] in send_of and readers.count(op.needs[0]) == 1
    }  # fmt: skip
    work = [key for key, op in operations.items() if op.way == "calc" and key not in takes and (op.size or op.tag >= 0)]
    pairs = [*((send, receive) for receive, send in send_of.items()), *((key, key) for key in work)]
    pairs.sort(key=lambda pair: (operations[pair[0]].tag < 0, operations[pair[0]].tag))
    number = {key: place for place, pair in enumerate(pairs) for key in pair}
    waits: dict[Key, set[int]] = {}  # 2 m: message m is done; 2 m + 1: it has left

    def waits_for(key: Key, begun: bool) -> set[int]:
        assert operations[key].way == "calc" or not begun
        if key in takes:
            return waits[key] if begun else {2 * number[takes[key]]} | waits[takes[key]]
        if key not in number:
            return waits[key]
        if key in send_of:
            return {2 * number[key]} | waits[key]
        return {2 * number[key] + (begun or operations[key].way == "send")}

    for key, op in operations.items():
        waits[key] = set().union(*(waits_for(needed, needed in op.begun) for needed in op.needs))
    inside = np.array([first == last for first, last in pairs], np.bool_)
    size = np.array([operations[first].size for first, _ in pairs], np.int64)
    seconds = np.where(inside, size / 1e9, 0.0)
    for calc, receive in takes.items():
        seconds[number[receive]] = operations[calc].size / 1e9
    items = np.array([item for first, _ in pairs for item in sorted(waits[first])], np.int64)
    pointer = np.cumsum([0, *(len(waits[first]) for first, _ in pairs)]).astype(np.int64)
    src, dst = (np.array([pair[side][0] for pair in pairs], np.int64) for side in (0, 1))
    return MessageGraph(
        ranks, as_int32(src), as_int32(dst), np.where(inside, 0, size), pointer, as_int32(items >> 1),
        left=(items & 1).astype(np.bool_), seconds=seconds,
    )  # fmt: skip
