"""Write a plan as Chakra execution traces: a file per rank, which ASTRA-sim replays or takes as a custom collective.

A send is a COMM_SEND node, a receive a COMM_RECV node with the same tag, the number of the message; a combination is
a COMP_NODE with its duration. Additional attributes record the rows of the schedule, so that `read.plan_of` can
restore the plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from fractions import Fraction

import numpy as np

from antiphon.core.columns import Longs, order_of, pointers
from antiphon.core.joints import refuse_joints
from antiphon.core.messages import LEFT, RECEIVED, Messages, sets, waits
from antiphon.core.messages import messages as messages_of
from antiphon.core.plan import Plan
from antiphon.core.serialize import dumps
from antiphon.core.transform import expand
from antiphon.cost.trace import expanded_rows
from antiphon.errors import Invalid, Unsupported, quote
from antiphon.formats.chakra.nodes import COMPUTE, RECEIVE, SEND, attribute, head, node
from antiphon.formats.chakra.wire import octets
from antiphon.formats.message_options import check_order, local_work, read_gamma
from antiphon.units import parse_size

MAX_ROWS, MAX_WAITS = 2**20, 2**23  # a node per row and an edge per wait: files of some 100 MB
ROWS = ("chunk", "op", "src_slot", "dst_slot")  # columns that are lists in the attributes of a node

_GPU_OPERATION = {"is_cpu_op": False}  # ASTRA-sim refuses messages of processors
# Node numbers of message m: send 4 m + 1, receive 4 m + 2, combination 4 m + 3; 4 m is left out, so none is 0
_NUMBERS_PER_MESSAGE = 4


def chakra(
    plan: Plan, *, nbytes: int | str, order: str = "data", gamma: float = 0.0, local: str = "", name: str = "chakra"
) -> dict[str, Iterator[bytes]]:
    """Write the messages of a plan at one size as Chakra traces: COMM_SEND and COMM_RECV nodes, a file per rank.

    The tag is the number of the message. Additional names and attributes record the rows of the schedule, so that
    reading the traces restores the plan. O(n log n).

    Parameters
    ----------
    order
        When a send may start: "data" waits for what it reads, "rounds" for everything that its rank sent or received in
        earlier steps (docs/program.md). Receives wait for nothing.
    gamma
        Seconds per byte of combining; combinations and copies within a rank are COMP nodes, in whole microseconds.
    local
        Local work that the schedule declares: "100GB/s" writes it as a COMP node at the end of every rank, "off" omits
        it. Default: such a schedule is an error.
    name
        Prefix of the file names.
    """
    seconds_per_byte = read_gamma(gamma)
    check_order(order)
    if not name.replace("-", "").replace("_", "").isalnum() or not name.isascii():
        raise Invalid(f"name: expected letters, digits, - and _, got {quote(name)}")
    size = parse_size(nbytes, "nbytes")
    entry = plan.at(size)
    refuse_joints(entry.schedule, "export to chakra")
    if expanded_rows(entry.schedule) > MAX_ROWS:
        raise Unsupported(f"format chakra writes every piece out, and at most {MAX_ROWS} rows; plan with fewer pieces")
    local_work_us = local_work(entry.schedule, size, local, "COMP node", per_second=10**6)
    schedule = expand(entry.schedule)
    # the plan without its rows, for the head of the first file: the nodes record the rows
    empty = replace(plan, entries=(replace(entry, start=0, stop=None, schedule=schedule.take([])),))
    head_attributes = {"antiphon": dumps(empty).decode(), "nbytes": str(size)}
    files = _Files(messages_of(schedule), size, order, seconds_per_byte, local_work_us)
    ranks = range(plan.collective.ranks)
    return {f"{name}.{rank}.et": files.text(rank, head_attributes if rank == 0 else {}) for rank in ranks}


class _Files:
    """The columns from which all files are written.

    `waits`: per message the nodes that its send waits for.
    `rows`: rows of the schedule, sorted by message.
    `by_rank`: per rank the messages that it sends, and those that it receives, with number + message count.

    The star's messages 0 and 1 are combined at rank 0; 2 and 3, sent by it, wait for that:

    >>> from antiphon.core.example import star
    >>> files = _Files(messages_of(star()), 8, "data", Fraction(0), 0)
    >>> files.waits, files.rows.tolist(), [rank.tolist() for rank in files.by_rank]
    ({2: [3, 7], 3: [3, 7]}, [1, 0, 2, 3], [[2, 3, 4, 5], [1, 6], [0, 7]])
    """

    def __init__(self, messages: Messages, nbytes: int, order: str, gamma: Fraction, local_work_us: int) -> None:
        # "rounds": a rank's next round may begin as soon as its sends have left it; "data" ignores this argument.
        # `sets` lists the awaited messages of each message, as nodes cannot share conditions.
        needs = sets(waits(messages, order, LEFT if order == "rounds" else RECEIVED))
        if needs.pairs > MAX_WAITS:
            raise Unsupported(
                f"these {len(messages)} messages have {needs.pairs} dependencies in pairs, more than {MAX_WAITS}; "
                "goal writes them shared"
            )
        self.messages, self.local_work_us = messages, local_work_us
        size, combined = messages.nbytes(nbytes)
        # an empty message is written as one byte (docs/export.md)
        self.size, self.combined = np.maximum(size, 1).tolist(), combined.tolist()
        self.combine_us = np.rint(combined * float(gamma) * 1e6).astype(np.int64).tolist()
        self.src, self.dst, self.step = messages.src.tolist(), messages.dst.tolist(), messages.step.tolist()
        self.waits: dict[int, list[int]] = {}
        for message, item in zip(*(column.tolist() for column in needs.listed()), strict=True):
            # item 2 m: message m must be done; 2 m + 1: it must have left its sender
            self.waits.setdefault(message, []).append(self._node_number(item >> 1, bool(item & 1)))
        columns = messages.schedule.columns()
        self.columns = {name: columns[name] for name in ROWS if name in columns}
        # sorted by all columns, so that the order of the schedule's rows does not matter
        rows = np.lexsort((*reversed(self.columns.values()), messages.of_row))
        self.rows, self.row_ptr = rows, pointers(messages.of_row[rows], len(messages))
        ends = np.concatenate([messages.src, messages.dst])
        order_by_rank = order_of(ends, messages.ranks)
        self.by_rank = np.split(order_by_rank, np.cumsum(np.bincount(ends, minlength=messages.ranks))[:-1])

    def _node_number(self, message: int, sent: bool) -> int:
        """Return the node that ends when a message has left (`sent`), or when it is done: received and combined."""
        if sent or self.src[message] == self.dst[message]:
            return _NUMBERS_PER_MESSAGE * message + 1
        return _NUMBERS_PER_MESSAGE * message + (3 if self.combined[message] else 2)

    def text(self, rank: int, head_attributes: Mapping[str, str]) -> Iterator[bytes]:
        """Yield the file of a rank."""
        yield head(head_attributes)
        finished: list[int] = []  # numbers of the nodes that local work at the end waits for
        for message in np.unique(self.by_rank[rank] % max(len(self.messages), 1)).tolist():
            src, dst = self.src[message], self.dst[message]
            if src == rank:
                yield self._write_send(message, COMPUTE if src == dst else SEND)
                finished.append(_NUMBERS_PER_MESSAGE * message + 1)
            if dst == rank and src != rank:
                yield self._write_receive(message)
                finished.append(self._node_number(message, sent=False))
        if self.local_work_us:
            number = _NUMBERS_PER_MESSAGE * len(self.messages)  # above the numbers of all messages
            yield node(number, "local work", COMPUTE, finished, self.local_work_us, _encode_attributes(_GPU_OPERATION))

    def _write_send(self, message: int, kind: int) -> bytes:
        """Return the node of a message at its sender, with its rows: a send, or (`kind` COMPUTE) a copy in the rank."""
        src, dst = self.src[message], self.dst[message]
        attributes = _encode_attributes(
            {"is_cpu_op": False, "step": self.step[message], **self._row_attributes(message)}
        )
        name, combine_us = f"copy at {src}, step {self.step[message]}", self.combine_us[message]
        if kind == SEND:
            attributes += self._endpoint_attributes(message)
            name, combine_us = f"send {src} to {dst}, step {self.step[message]}", 0
        return node(_NUMBERS_PER_MESSAGE * message + 1, name, kind, self.waits.get(message, ()), combine_us, attributes)

    def _write_receive(self, message: int) -> bytes:
        """Return the node that receives a message, and the computation after it if the data is combined."""
        src, dst, number = self.src[message], self.dst[message], _NUMBERS_PER_MESSAGE * message + 2
        attributes = _encode_attributes(_GPU_OPERATION) + self._endpoint_attributes(message)
        receive = node(
            number,
            f"receive {src} to {dst}, step {self.step[message]}",
            RECEIVE,
            dependencies=(),
            duration_us=0,
            attributes=attributes,
        )
        if not self.combined[message]:
            return receive
        name = f"combine {src} to {dst}, step {self.step[message]}"
        return receive + node(
            number + 1, name, COMPUTE, (number,), self.combine_us[message], _encode_attributes(_GPU_OPERATION)
        )

    def _endpoint_attributes(self, message: int) -> bytes:
        ends = {"comm_src": self.src[message], "comm_dst": self.dst[message], "comm_tag": message}
        return _encode_attributes(ends, short=True) + _encode_attributes({"comm_size": self.size[message]})

    def _row_attributes(self, message: int) -> dict[str, list[int] | int]:
        """Return the rows of the schedule that a message carries, as lists by column."""
        rows: Longs = self.rows[self.row_ptr[message] : self.row_ptr[message + 1]]
        columns: dict[str, list[int] | int] = {name: column[rows].tolist() for name, column in self.columns.items()}
        route = int(self.messages.route[message])
        return columns if route < 0 else {**columns, "route": route}


def _encode_attributes(values: Mapping[str, bool | int | list[int]], short: bool = False) -> bytes:
    """Encode attributes, each as field 10 of a node; `short`: as numbers of 32 bits, which ASTRA-sim expects of ranks
    and tags."""
    return b"".join(octets(10, attribute(name, value, short)) for name, value in values.items())
