"""Prepare a schedule for the LogGP simulators: messages in classes of equal cost, and their dependencies.

Input: a schedule (or a graph of messages from a file), a topology and LogGP figures by level (figures.py), or None to
derive L and G from routes. Output: `SentWork`. Messages with equal weight, combined weight and level cost the same at
every size: they form a class, and simulators look up costs by class. Dependencies are conditions
(core/messages/waits.py), inverted so that a condition knows the messages that it releases.

Example (`core.example.star`): messages 0 and 1 to rank 0 are combined, 2 and 3 back are not: two classes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.core.columns import Floats, Ints, Longs, narrow, packed, pointers, sums
from antiphon.core.messages import (
    LEFT,
    RECEIVED,
    MessageGraph,
    Messages,
    Paths,
    Waits,
    messages,
    paths,
    seconds_per_byte,
    waits,
)
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.cost.figures import LogGP
from antiphon.cost.loggp import passes
from antiphon.cost.loggp.compiled import fixed
from antiphon.cost.loggp.state import Graph
from antiphon.errors import Invalid

FEW_CLASSES = 64  # up to this many classes are numbered by a linear search


@dataclass(frozen=True, eq=False)
class SentWork:
    """Messages in the order of `antiphon.core.messages`; per class its level, its share of nbytes, the share that is
    combined on arrival, and further seconds of work.

    Level -1: within a rank, where only combining takes time. `node`: per rank. `latency`, `per_byte`: per level, if no
    profile gives figures.
    """

    sent: Messages | MessageGraph
    klass: Ints
    level: Longs
    share: Floats
    combined: Floats
    seconds: Floats
    node: Longs
    waits: Waits
    latency: Floats
    per_byte: Floats
    capacity: float  # seconds per byte of nbytes on the busiest link alone, if no profile gives figures
    busiest: int  # that link or limit

    def __len__(self) -> int:
        return len(self.sent)

    @cached_property
    def graph(self) -> Graph:
        """Dependencies indexed by condition; built when a simulation first needs them."""
        return _build_graph(self.sent, self.klass, self.waits)

    @property
    def in_rounds(self) -> bool:
        """Whether every message waits for one condition only: that its rank has received everything of the round
        before."""
        return not len(self.waits.need_ptr) and not len(self.waits.left)


def work_of(
    schedule: Schedule, topology: Topology, figures: LogGP | None, order: str, sent: str = RECEIVED
) -> SentWork:
    """Prepare a schedule whose pieces are already expanded, one per row.

    O(rows) for order "rounds" (rows by message), otherwise one sort of them.

    `core.example.star` has the messages 0: 2 to 0, 1: 1 to 0, 2: 0 to 1, 3: 0 to 2, all of level 0, which matches all
    pairs; 0 and 1 are combined. In rounds 2 and 3 wait for condition 0, what rank 0 received, which two contribute to:

    >>> from antiphon.core.example import machine, star
    >>> from antiphon.cost.figures import Level
    >>> work = work_of(star(), machine(), LogGP((Level(),)), "rounds")
    >>> work.klass.tolist(), work.level.tolist(), work.share.tolist(), work.combined.tolist()
    ([0, 0, 1, 1], [0, 0], [1.0, 1.0], [1.0, 0.0])
    >>> work.graph.needed.tolist(), work.graph.release.tolist(), work.graph.waits.tolist()
    ([0, 0, 1, 1], [2, 3], [2, 1, 1, 3, 2, 2])
    """
    message_table = messages(schedule)
    if figures is None:
        level, latency, per_byte, capacity, busiest = _from_links(paths(message_table, topology))
        node = np.full(message_table.ranks, -1, np.int64)
    else:
        level = _find_levels(message_table, figures, topology)
        node, latency, per_byte, capacity, busiest = figures.nodes(topology), np.empty(0), np.empty(0), 0.0, -1
    level[message_table.src == message_table.dst] = -1
    klass, kinds = _find_classes([message_table.weight, message_table.combined, level])
    levels, (share, combined) = (
        kinds[2].astype(np.int64),
        (kinds[i].astype(np.float64) / message_table.scale for i in (0, 1)),
    )
    wait = waits(message_table, order, sent, level)
    return SentWork(
        message_table, klass, levels, share, combined, np.zeros(len(levels)), node, wait, latency, per_byte, capacity,
        busiest,
    )  # fmt: skip


def work_of_messages(graph: MessageGraph, topology: Topology, figures: LogGP, sent: str = RECEIVED) -> SentWork:
    """Prepare a graph of messages; its shares are in bytes, so predict for 1 byte. O(messages + dependencies).

    With `sent` "left", dependencies between messages of the same sender only require that the earlier one has left,
    even if the graph asks for more.
    """
    if sent == LEFT:
        owner = np.repeat(np.arange(len(graph)), np.diff(graph.deps_ptr))
        # Among messages of one sender (work inside of the rank aside) it is enough that the earlier one has left.
        own = (graph.src[owner] == graph.src[graph.deps]) & (graph.src[graph.deps] != graph.dst[graph.deps])
        graph = replace(graph, left=graph.left | own)
    level = _find_levels(graph, figures, topology)
    level[graph.src == graph.dst] = -1
    times, seconds = np.unique(graph.seconds, return_inverse=True)
    klass, kinds = _find_classes([graph.nbytes, graph.combined, level, seconds.ravel()])
    share, combined = (kinds[i].astype(np.float64) for i in (0, 1))
    return SentWork(
        graph, klass, kinds[2].astype(np.int64), share, combined, times[kinds[3].astype(np.int64)],
        figures.nodes(topology), graph.waits(), np.empty(0), np.empty(0), 0.0, -1,
    )  # fmt: skip


def _find_classes(columns: list[NDArray[Any]]) -> tuple[Ints, list[NDArray[Any]]]:
    """Group messages with equal columns into classes; return each message's class, and each column's value by class.

    Few classes are numbered as they come, many by their values:

    >>> weight, combined, level = np.array([6, 6, 2, 6]), np.array([6, 6, 0, 0]), np.array([1, 1, 1, 1], np.int32)
    >>> klass, kinds = _find_classes([weight, combined, level])
    >>> klass.tolist(), [kind.tolist() for kind in kinds]
    ([0, 0, 1, 2], [[6, 2, 6], [6, 0, 0], [1, 1, 1]])
    """
    if len(columns) == 3 and all(column.dtype != object for column in columns):
        # Broadcast columns (stride 0) are constant: pass one value instead of copying the column.
        weight, combined = (column[:1] if column.strides == (0,) else column for column in columns[:2])
        weight, combined = (column.astype(np.int64, copy=False) for column in (weight, combined))
        weight, combined, level = fixed(weight, combined, columns[2])
        klass = np.empty(len(level), np.int32)
        kinds, count = passes.number_classes(weight, combined, level, FEW_CLASSES, klass)
        if count <= FEW_CLASSES:
            return klass, list(kinds[:count].T)
    # Many classes: rank each column, pack the ranks into one key, and number the distinct keys.
    encoded = [np.unique(column, return_inverse=True) for column in columns]
    key, _ = packed(*((place.ravel(), len(values)) for values, place in encoded))
    _, at, place = np.unique(key, return_index=True, return_inverse=True)
    return narrow(place.ravel()), [column[at] for column in columns]


def _find_levels(sent: Messages | MessageGraph, figures: LogGP, topology: Topology) -> Ints:
    """Return the level of every message between ranks; raise Invalid if the profile has none for it."""
    src, dst = fixed(sent.src, sent.dst)
    level: Ints = passes.find_levels(src, dst, np.stack(figures.groups(topology)), np.empty(len(sent), np.int32))
    missing = np.flatnonzero((level == len(figures.levels)) & (src != dst))
    if len(missing):
        a, b = int(src[missing[0]]), int(dst[missing[0]])
        scopes = ", ".join(profile_level.within for profile_level in figures.levels)
        raise Invalid(
            f"profile loggp: has figures within {scopes} only, but ranks {a} and {b} of {topology.name} (at "
            f'{topology.places[a]} and {topology.places[b]}) share none; add a level without "within"'
        )
    return level


def _from_links(routes: Paths) -> tuple[Ints, Floats, Floats, float, int]:
    """Derive levels from routes: routes with equal latency and bottleneck bandwidth form a level.

    Return per message its level; per level the latency and the seconds per byte; the busiest resource's seconds per
    byte of nbytes, and its number.

    The links of `core.example.machine` are equal, and in `core.example.star` each carries one message:

    >>> from antiphon.core.example import machine, star
    >>> level, latency, per_byte, capacity, busiest = _from_links(paths(messages(star()), machine()))
    >>> level.tolist(), latency.tolist(), per_byte.tolist(), capacity, busiest
    ([0, 0, 0, 0], [1e-06], [1e-09], 1e-09, 0)
    """
    slowness = seconds_per_byte(routes.topology)
    beta = np.zeros(len(routes.messages))
    # beta: the slowest link or limit on the route; load: seconds per byte that each resource is busy in total.
    np.maximum.at(beta, routes.use_message, slowness[routes.use_resource])
    kinds, kind = np.unique(np.stack([routes.alpha, beta], axis=1), axis=0, return_inverse=True)
    carried = sums(routes.use_resource, routes.messages.weight[routes.use_message], routes.resources)
    load = (carried / routes.messages.scale).astype(np.float64) * slowness
    busiest = int(load.argmax()) if len(load) else -1
    return narrow(kind.ravel()), kinds[:, 0], kinds[:, 1], float(load[busiest]) if len(load) else 0.0, busiest


def _build_graph(sent: Messages | MessageGraph, klass: Ints, wait: Waits) -> Graph:
    """Invert the dependencies (`antiphon.core.messages.Waits`): for each condition, the messages that it releases."""
    if len(wait.need_ptr):
        message, condition = wait.pairs("need")
        order = np.argsort(condition, kind="stable")
        needed = np.diff(wait.need_ptr)
        pointer, release = narrow(pointers(condition[order], len(wait))), narrow(message[order])
    else:
        needed = (wait.need >= 0).astype(np.int32)
        pointer, release = passes.group_by_condition(wait.need, len(wait))
    count, after = passes.count_contributions(wait.done, wait.left, wait.before)
    return Graph(
        sent.src, sent.dst, klass, needed, wait.done_ptr, wait.done, wait.left_ptr, wait.left, pointer, release,
        count, after,
    )  # fmt: skip
