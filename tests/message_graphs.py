"""A schedule as a graph of messages, as a file of another program tells it: what readers and models are held to."""

import numpy as np

from antiphon.core.columns import as_int32, pointers
from antiphon.core.messages import RECEIVED, MessageGraph, messages, sets, waits
from antiphon.core.schedule import Schedule
from antiphon.core.transform import expand


def message_graph(schedule: Schedule, nbytes: int, order: str = "rounds", sent: str = RECEIVED) -> MessageGraph:
    """The messages of a schedule at a size, in their canonical order, and what each waits for (`waits`), in pairs."""
    table = messages(expand(schedule))
    owner, item = sets(waits(table, order, sent)).listed()
    size, combined = table.nbytes(nbytes)
    return MessageGraph(
        table.ranks, table.src, table.dst, size, pointers(owner, len(table)), as_int32(item >> 1), combined,
        (item & 1).astype(np.bool_),
    )  # fmt: skip
