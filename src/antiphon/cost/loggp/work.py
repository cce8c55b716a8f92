"""A schedule as a LogGP simulation sees it: messages in classes of equal cost, and what waits for what."""

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

FEW_CLASSES = 64


@dataclass(frozen=True, eq=False)
class SentWork:
    """Messages in the order of `antiphon.core.messages`; per class its level, its part of nbytes, the part that is
    combined on arrival, and seconds of work besides.

    Level -1: within a rank, where only combining takes time. `latency`, `per_byte`: per level, where no profile gives
    figures.
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
    capacity: float  # seconds per byte of nbytes that the busiest link takes alone, where no profile gives figures
    busiest: int

    def __len__(self) -> int:
        return len(self.sent)

    @cached_property
    def graph(self) -> Graph:
        """What waits for what, turned about: made where a simulation asks who is released."""
        return _graph(self.sent, self.klass, self.waits)

    @property
    def in_rounds(self) -> bool:
        """Whether every message waits for one condition, the round before, which holds when all of it is received."""
        return not len(self.waits.need_ptr) and not len(self.waits.left)


def work_of(schedule: Schedule, topology: Topology, given: LogGP | None, order: str, sent: str = RECEIVED) -> SentWork:
    """Every piece is a row here: expand first. O(rows) for order "rounds" (rows by message), else a sort of them.

    `core.example.star` has the messages 0: 2 to 0, 1: 1 to 0, 2: 0 to 1, 3: 0 to 2, of the level that is for all (0);
    0 and 1 are combined. In rounds 2 and 3 wait for condition 0, what rank 0 received, which two give to:

    >>> from antiphon.core.example import machine, star
    >>> from antiphon.cost.figures import Level
    >>> work = work_of(star(), machine(), LogGP((Level(),)), "rounds")
    >>> work.klass.tolist(), work.level.tolist(), work.share.tolist(), work.combined.tolist()
    ([0, 0, 1, 1], [0, 0], [1.0, 1.0], [1.0, 0.0])
    >>> work.graph.needed.tolist(), work.graph.release.tolist(), work.graph.waits.tolist()
    ([0, 0, 1, 1], [2, 3], [2, 1, 1, 3, 2, 2])
    """
    found = messages(schedule)
    if given is None:
        level, latency, per_byte, capacity, busiest = _from_links(paths(found, topology))
        node = np.full(found.ranks, -1, np.int64)
    else:
        level = _levels(found, given, topology)
        node, latency, per_byte, capacity, busiest = given.nodes(topology), np.empty(0), np.empty(0), 0.0, -1
    level[found.src == found.dst] = -1
    klass, kinds = _classes([found.weight, found.combined, level])
    levels, (share, combined) = kinds[2].astype(np.int64), (kinds[i].astype(np.float64) / found.scale for i in (0, 1))
    wait = waits(found, order, sent, level)
    return SentWork(
        found, klass, levels, share, combined, np.zeros(len(levels)), node, wait, latency, per_byte, capacity,
        busiest,
    )  # fmt: skip


def work_of_messages(graph: MessageGraph, topology: Topology, given: LogGP, sent: str = RECEIVED) -> SentWork:
    """The same of a graph of messages; shares are bytes: ask for one byte. O(messages + dependencies).

    With `sent` "left" that is enough for what the same rank sends, whatever the graph says.
    """
    if sent == LEFT:
        owner = np.repeat(np.arange(len(graph)), np.diff(graph.deps_ptr))
        own = (graph.src[owner] == graph.src[graph.deps]) & (graph.src[graph.deps] != graph.dst[graph.deps])
        graph = replace(graph, left=graph.left | own)
    level = _levels(graph, given, topology)
    level[graph.src == graph.dst] = -1
    times, seconds = np.unique(graph.seconds, return_inverse=True)
    klass, kinds = _classes([graph.nbytes, graph.combined, level, seconds.ravel()])
    share, combined = (kinds[i].astype(np.float64) for i in (0, 1))
    return SentWork(
        graph, klass, kinds[2].astype(np.int64), share, combined, times[kinds[3].astype(np.int64)],
        given.nodes(topology), graph.waits(), np.empty(0), np.empty(0), 0.0, -1,
    )  # fmt: skip


def _classes(columns: list[NDArray[Any]]) -> tuple[Ints, list[NDArray[Any]]]:
    """The class of every message, those of equal columns being one, and each column's value by class.

    Few classes are numbered as they come, many by their values:

    >>> weight, combined, level = np.array([6, 6, 2, 6]), np.array([6, 6, 0, 0]), np.array([1, 1, 1, 1], np.int32)
    >>> klass, kinds = _classes([weight, combined, level])
    >>> klass.tolist(), [kind.tolist() for kind in kinds]
    ([0, 0, 1, 2], [[6, 2, 6], [6, 0, 0], [1, 1, 1]])
    """
    if len(columns) == 3 and all(column.dtype != object for column in columns):
        weight, combined = (column[:1] if column.strides == (0,) else column for column in columns[:2])
        weight, combined = (column.astype(np.int64, copy=False) for column in (weight, combined))
        weight, combined, level = fixed(weight, combined, columns[2])
        klass = np.empty(len(level), np.int32)
        kinds, count = passes.classes(weight, combined, level, FEW_CLASSES, klass)
        if count <= FEW_CLASSES:
            return klass, list(kinds[:count].T)
    several = [np.unique(column, return_inverse=True) for column in columns]
    key, _ = packed(*((place.ravel(), len(few)) for few, place in several))
    _, at, place = np.unique(key, return_index=True, return_inverse=True)
    return narrow(place.ravel()), [column[at] for column in columns]


def _levels(sent: Messages | MessageGraph, given: LogGP, topology: Topology) -> Ints:
    """The level of every message between ranks; Invalid where the profile has none."""
    src, dst = fixed(sent.src, sent.dst)
    level: Ints = passes.levels(src, dst, np.stack(given.groups(topology)), np.empty(len(sent), np.int32))
    missing = np.flatnonzero((level == len(given.levels)) & (src != dst))
    if len(missing):
        a, b = int(src[missing[0]]), int(dst[missing[0]])
        known = ", ".join(one.within for one in given.levels)
        raise Invalid(
            f"profile loggp: has figures within {known} only, but ranks {a} and {b} of {topology.name} (at "
            f'{topology.places[a]} and {topology.places[b]}) share none; add a level without "within"'
        )
    return level


def _from_links(found: Paths) -> tuple[Ints, Floats, Floats, float, int]:
    """Per message its level, per level seconds of latency and per byte; seconds per byte of nbytes that the busiest
    resource takes, and its number. Without figures there are as many levels as routes differ in latency and least
    bandwidth.

    The links of `core.example.machine` are alike, and in `core.example.star` each carries one message:

    >>> from antiphon.core.example import machine, star
    >>> level, latency, per_byte, capacity, busiest = _from_links(paths(messages(star()), machine()))
    >>> level.tolist(), latency.tolist(), per_byte.tolist(), capacity, busiest
    ([0, 0, 0, 0], [1e-06], [1e-09], 1e-09, 0)
    """
    slowness = seconds_per_byte(found.topology)
    beta = np.zeros(len(found.messages))
    np.maximum.at(beta, found.use_message, slowness[found.use_resource])
    kinds, kind = np.unique(np.stack([found.alpha, beta], axis=1), axis=0, return_inverse=True)
    carried = sums(found.use_resource, found.messages.weight[found.use_message], found.resources)
    load = (carried / found.messages.scale).astype(np.float64) * slowness
    busiest = int(load.argmax()) if len(load) else -1
    return narrow(kind.ravel()), kinds[:, 0], kinds[:, 1], float(load[busiest]) if len(load) else 0.0, busiest


def _graph(found: Messages | MessageGraph, klass: Ints, wait: Waits) -> Graph:
    """What waits for what (`antiphon.core.messages.Waits`), turned about: who is released by which condition."""
    if len(wait.need_ptr):
        message, condition = wait.pairs("need")
        order = np.argsort(condition, kind="stable")
        needed = np.diff(wait.need_ptr)
        pointer, release = narrow(pointers(condition[order], len(wait))), narrow(message[order])
    else:
        needed = (wait.need >= 0).astype(np.int32)
        pointer, release = passes.released(wait.need, len(wait))
    count, after = passes.chained(wait.done, wait.left, wait.before)
    return Graph(
        found.src, found.dst, klass, needed, wait.done_ptr, wait.done, wait.left_ptr, wait.left, pointer, release,
        count, after,
    )  # fmt: skip
