"""A graph of messages: source, destination and bytes of each, and its dependencies.

This is what the files of other tools (GOAL, traces) contain. It is less than a schedule: which data a message carries
is unknown, so it cannot be verified, only timed. Example: message 0 from rank 0 to 1, message 1 from rank 1 to 2 that
starts when message 0 is done: src = [0, 1], dst = [1, 2], deps_ptr = [0, 0, 1], deps = [0] (CSR).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from antiphon.core.columns import SAFE_INT64, Bools, Floats, Ints, Longs, as_int32, column, distinct, order_of, pointers
from antiphon.core.messages.waits import Waits
from antiphon.errors import Invalid, quote

MOST_DEPENDENCIES = 2**27  # in a graph; checked by those who list them, before they fill the memory (formats)
MOST_BYTES = 2**60  # of all messages together
MAX_SHOWN = 8  # messages of a cycle that an error lists
NOTHING = np.empty(0, np.int32)


@dataclass(frozen=True, eq=False)
class MessageGraph:
    """Messages with their dependencies.

    src[i] = dst[i] is work within a rank. Messages that request a resource at the same time get it in the order of
    their numbers. Checked when built, in linear time: ranges, and that dependencies have no cycle.

    `nbytes`, `combined`, `seconds`
        Per message its bytes; the number that the receiver combines with its own data; and how long it then computes.
    `deps_ptr`, `deps`
        Message i starts when the messages deps[deps_ptr[i]:deps_ptr[i + 1]] are done.
    `left`
        Per dependency: it is enough that the last byte of that message has left the sender.
    """

    ranks: int
    src: Ints
    dst: Ints
    nbytes: Longs
    deps_ptr: Longs
    deps: Ints
    combined: Longs = field(default_factory=lambda: np.zeros(0, np.int64))
    left: Bools = field(default_factory=lambda: np.zeros(0, np.bool_))
    seconds: Floats = field(default_factory=lambda: np.zeros(0))

    def __post_init__(self) -> None:
        if isinstance(self.ranks, bool) or not isinstance(self.ranks, int) or not 1 <= self.ranks < 2**31:
            raise Invalid(f"ranks: expected a whole number from 1, got {quote(self.ranks)}")
        for name in ("src", "dst"):
            object.__setattr__(self, name, column(getattr(self, name), name, 0, self.ranks))
        count = len(self.src)
        object.__setattr__(self, "nbytes", _check_longs(self.nbytes, "nbytes", MOST_BYTES))
        combined = self.combined if len(self.combined) or not count else np.zeros(count, np.int64)
        object.__setattr__(self, "combined", _check_longs(combined, "combined", MOST_BYTES))
        if not len(self.dst) == len(self.nbytes) == len(self.combined) == count:
            raise Invalid("messages: src, dst and nbytes differ in length")
        excessive = np.flatnonzero(self.combined > self.nbytes)
        if excessive.size:
            raise Invalid(f"combined[{excessive[0]}]: more bytes than the message has")
        object.__setattr__(self, "deps_ptr", _check_longs(self.deps_ptr, "deps_ptr", SAFE_INT64))
        object.__setattr__(self, "deps", column(self.deps, "deps", 0, max(count, 1)))
        if (
            len(self.deps_ptr) != count + 1
            or self.deps_ptr[0] != 0
            or self.deps_ptr[-1] != len(self.deps)
            or bool((np.diff(self.deps_ptr) < 0).any())
        ):
            raise Invalid(f"deps_ptr: expected {count + 1} ascending numbers from 0 to {len(self.deps)}")
        counts_when_left = np.asarray(self.left if len(self.left) else np.zeros(len(self.deps)), np.bool_)
        seconds = np.asarray(self.seconds if len(self.seconds) else np.zeros(count), np.float64)
        if len(counts_when_left) != len(self.deps) or len(seconds) != count or not bool((seconds >= 0).all()):
            raise Invalid("messages: left has one flag for each of deps, seconds one figure from 0 on for each message")
        object.__setattr__(self, "left", counts_when_left)
        object.__setattr__(self, "seconds", seconds)
        cycle = cycle_of(self.deps_ptr, self.deps)
        if cycle:
            raise Invalid(cycle_text(cycle))

    def __len__(self) -> int:
        return len(self.src)

    @property
    def step(self) -> Ints:
        """The step of every message: 0, as a graph has no steps."""
        return np.zeros(len(self), np.int32)

    def waits(self) -> Waits:
        """Return the dependencies as conditions: "message m is done", or "has left". O(dependencies).

        Message 1 waits until 0 is done (condition 0), message 2 until 0 is done and 1 has left (condition 1):

        >>> graph = MessageGraph(3, [0, 1, 2], [1, 2, 0], [8] * 3, [0, 0, 1, 3], [0, 0, 1], left=[0, 0, 1])
        >>> [graph.waits().pairs(what) for what in ("done", "left", "need")]
        [(array([0]), array([0])), (array([1]), array([1])), (array([1, 2, 2]), array([0, 0, 1]))]
        """
        count = len(self)
        owner = np.repeat(np.arange(count), np.diff(self.deps_ptr))
        # One condition per distinct event: 2 m is "message m is done", 2 m + 1 "message m has left".
        item = 2 * self.deps.astype(np.int64) + self.left
        items = distinct(item)
        condition = np.searchsorted(items, item)
        # conditions are numbered as `items`, and a message has at most one of either event
        done_items, left_items = (np.flatnonzero((items & 1) == has_left) for has_left in (0, 1))
        left_ptr = as_int32(pointers(items[left_items] >> 1, count)) if len(left_items) else NOTHING
        # The conditions of each message in ascending order, as CSR consumers expect.
        order = order_of(owner * max(len(items), 1) + condition, bound=max(count * len(items), 1))
        return Waits(
            done_ptr=as_int32(pointers(items[done_items] >> 1, count)), done=as_int32(done_items),
            left_ptr=left_ptr, left=as_int32(left_items),
            need_ptr=as_int32(self.deps_ptr), need=as_int32(condition[order]),
            before=np.full(len(items), -1, np.int32),  # no condition depends on another
        )  # fmt: skip


def cycle_text(cycle: list[int], item_name: str = "message") -> str:
    """Describe messages that wait for each other in a cycle."""
    if len(cycle) == 1:
        return f"{item_name} {cycle[0]} waits for itself; remove that dependency"
    shown = [str(i) for i in cycle[:MAX_SHOWN]] + (["..."] if len(cycle) > MAX_SHOWN else []) + [str(cycle[0])]
    return (
        f"{item_name}s wait for each other in a circle: {' waits for '.join(shown)}; remove one of these dependencies"
    )


def cycle_of(deps_ptr: Longs, deps: Ints) -> list[int]:
    """Return a cycle, in which each message waits for the next and the last for the first; empty if there is none.

    O(messages + dependencies); immediate where each waits only for messages before it.

    >>> cycle_of(np.array([0, 1, 2, 3, 3]), np.array([2, 3, 0]))
    [0, 2]
    """
    count = len(deps_ptr) - 1
    owner = np.repeat(np.arange(count, dtype=np.int32), np.diff(deps_ptr))
    # Dependencies on earlier messages only are acyclic: the common case ends here.
    forward = np.flatnonzero(deps >= owner)
    if not forward.size:
        return []
    self_loops = forward[deps[forward] == owner[forward]]
    if self_loops.size:
        return [int(owner[self_loops[0]])]
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import connected_components

    arcs = csr_matrix((np.ones(len(deps), np.int8), deps, deps_ptr), shape=(count, count))
    # A cycle exists exactly if some strongly connected component has more than one message.
    component_count, component = connected_components(arcs, directed=True, connection="strong")
    if component_count == count:
        return []
    is_inside = component[owner] == component[deps]
    next_in_cycle = np.full(count, -1, np.int32)  # per message in a cycle: one that it waits for within the cycle
    next_in_cycle[owner[is_inside]] = deps[is_inside]
    # Follow one dependency inside the component from message to message until one repeats: in a component of several,
    # each message waits for another of it.
    message, next_message = int(owner[is_inside].min()), next_in_cycle.tolist()
    path: dict[int, int] = {}
    while message not in path:
        path[message] = len(path)
        message = next_message[message]
    return list(path)[path[message] :]


def _check_longs(values: Longs, column_name: str, bound: int) -> Longs:
    """Return a read-only int64 column; raise Invalid unless all values are in 0..bound-1."""
    array = np.asarray(values)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise Invalid(f"{column_name}: expected a list of whole numbers")
    out_of_range = np.flatnonzero((array < 0) | (array >= bound)) if array.size else np.zeros(0, np.int64)
    if out_of_range.size:
        raise Invalid(f"{column_name}[{out_of_range[0]}] = {array[out_of_range[0]]} is out of range (0 to {bound - 1})")
    out = array.astype(np.int64)
    out.setflags(write=False)
    return out
