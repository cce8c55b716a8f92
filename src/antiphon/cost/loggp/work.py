"""Prepare a schedule for the LogGP simulators: messages in classes of equal cost, and their dependencies.

Input: a schedule (or a graph of messages from a file), a topology and LogGP parameters by level (figures.py), or None
to derive L and G from routes. A level holds the parameters between ranks that share a place, such as a host. Output:
`SentWork`. Messages with equal weight, combined weight and level cost the same at every size: they form a *class*, and
simulators look up costs by class. Dependencies are conditions (core/messages/waits.py): a message needs some, and
contributes to some when it is done. `run.py` computes the costs and runs the simulation.

Example (`core.example.star`): messages 0 and 1 to rank 0 are combined, 2 and 3 back are not: two classes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.core.columns import Floats, Ints, Longs, as_int32, pack_columns, pointers, sums_by_group
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
    uses_of,
    waits,
)
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.cost.figures import LogGP
from antiphon.cost.loggp import passes
from antiphon.cost.loggp.compiled import read_only
from antiphon.cost.loggp.state import Graph
from antiphon.errors import Invalid

FEW_CLASSES = 64  # up to this many classes are numbered by a linear search


@dataclass(frozen=True, eq=False)
class SentWork:
    """The messages of a schedule, prepared for simulation."""

    sent: Messages | MessageGraph  # in the order of `antiphon.core.messages`
    cost_class: Ints  # per message its class
    # per class
    level: Longs  # index into the profile's levels; -1: within a rank, where only combining takes time
    share: Floats  # bytes of a message as a share of nbytes
    combined: Floats  # bytes that are combined on arrival as a share of nbytes
    seconds: Floats  # further seconds of work
    node: Longs  # per rank the node (host) whose NICs it uses, -1 if none
    waits: Waits  # dependencies
    # Only if the profile has no parameters: per level, and the busiest link or limit.
    latency: Floats  # seconds
    per_byte: Floats  # seconds per byte
    capacity: float  # seconds per byte of nbytes for which the busiest link or limit is busy
    busiest: int

    def __len__(self) -> int:
        return len(self.sent)

    @cached_property
    def graph(self) -> Graph:
        """Return the dependencies indexed by condition; built when a simulation first needs them."""
        return _build_graph(self.sent, self.cost_class, self.waits)

    @property
    def in_rounds(self) -> bool:
        """Return whether every message waits only until its rank has received everything of the step before.

        With order "rounds" each message needs one condition, so `need_ptr` is empty, and none waits for what has left.
        """
        return not len(self.waits.need_ptr) and not len(self.waits.left)


def work_of(
    schedule: Schedule, topology: Topology, figures: LogGP | None, order: str, sent_when: str = RECEIVED
) -> SentWork:
    """Prepare a schedule whose pieces are already expanded. O(rows) for order "rounds", otherwise one sort of rows.

    `order`: the rule of `core.messages.waits`; `sent_when`: RECEIVED or LEFT, when a message counts for its sender.

    `core.example.star` has the messages 0: 2 to 0, 1: 1 to 0, 2: 0 to 1, 3: 0 to 2, all of level 0, which matches all
    pairs; 0 and 1 are combined. With order "rounds" messages 2 and 3 wait for condition 0 (rank 0 has received its
    messages), to which 0 and 1 contribute. Conditions 0 to 2 are of ranks 0 to 2 in step 0, 3 to 5 of them in step 1:

    >>> from antiphon.core.example import machine, star
    >>> from antiphon.cost.figures import Level
    >>> work = work_of(star(), machine(), LogGP((Level(),)), "rounds")
    >>> work.cost_class.tolist(), work.level.tolist(), work.share.tolist(), work.combined.tolist()
    ([0, 0, 1, 1], [0, 0], [1.0, 1.0], [1.0, 0.0])
    >>> work.graph.needed.tolist(), work.graph.release.tolist(), work.graph.waits.tolist()
    ([0, 0, 1, 1], [2, 3], [2, 1, 1, 3, 2, 2])
    """
    message_table = messages(schedule)
    if figures is None:
        level, latency, per_byte, capacity, busiest = _derive_levels(paths(message_table, topology))
        node = np.full(message_table.ranks, -1, np.int64)
    else:
        level = _find_levels(message_table, figures, topology)
        node, latency, per_byte, capacity, busiest = figures.nodes(topology), np.empty(0), np.empty(0), 0.0, -1
    level[message_table.src == message_table.dst] = -1
    cost_class, (weights, combined_weights, class_levels) = _find_classes(
        [message_table.weight, message_table.combined, level]
    )
    levels = class_levels.astype(np.int64)
    share, combined = (values.astype(np.float64) / message_table.scale for values in (weights, combined_weights))
    wait = waits(message_table, order, sent_when, level)
    return SentWork(
        message_table, cost_class, level=levels, share=share, combined=combined, seconds=np.zeros(len(levels)),
        node=node, waits=wait, latency=latency, per_byte=per_byte, capacity=capacity, busiest=busiest,
    )  # fmt: skip


def work_of_messages(graph: MessageGraph, topology: Topology, figures: LogGP, sent_when: str = RECEIVED) -> SentWork:
    """Prepare a graph of messages; its shares are in bytes, so predict for 1 byte. O(messages + dependencies).

    With `sent_when` LEFT, dependencies between messages of the same sender only require that the earlier one has left,
    even if the graph asks for more.
    """
    if sent_when == LEFT:
        owner = np.repeat(np.arange(len(graph)), np.diff(graph.deps_ptr))
        same_sender = (graph.src[owner] == graph.src[graph.deps]) & (graph.src[graph.deps] != graph.dst[graph.deps])
        graph = replace(graph, left=graph.left | same_sender)
    level = _find_levels(graph, figures, topology)
    level[graph.src == graph.dst] = -1
    # a class has the number of its seconds in `distinct_seconds`
    distinct_seconds, seconds = np.unique(graph.seconds, return_inverse=True)
    cost_class, (nbytes, combined, levels, seconds_of) = _find_classes(
        [graph.nbytes, graph.combined, level, seconds.ravel()]
    )
    return SentWork(
        graph, cost_class, level=levels.astype(np.int64), share=nbytes.astype(np.float64),
        combined=combined.astype(np.float64), seconds=distinct_seconds[seconds_of.astype(np.int64)],
        node=figures.nodes(topology), waits=graph.waits(), latency=np.empty(0), per_byte=np.empty(0), capacity=0.0,
        busiest=-1,
    )  # fmt: skip


def _find_classes(columns: list[NDArray[Any]]) -> tuple[Ints, list[NDArray[Any]]]:
    """Group messages with equal columns into classes; return each message's class, and each column's value by class.

    Up to FEW_CLASSES are numbered in order of their first message, more by their values:

    >>> weight, combined, level = np.array([6, 6, 2, 6]), np.array([6, 6, 0, 0]), np.array([1, 1, 1, 1], np.int32)
    >>> cost_class, class_values = _find_classes([weight, combined, level])
    >>> cost_class.tolist(), [values.tolist() for values in class_values]
    ([0, 0, 1, 2], [[6, 2, 6], [6, 0, 0], [1, 1, 1]])
    """
    if len(columns) == 3 and all(column.dtype != object for column in columns):  # two weights and a level
        # a column of stride 0 is constant: pass one value instead of copying the column
        *weights, level = columns
        weight, combined = (column[:1] if column.strides == (0,) else column for column in weights)
        weight, combined = (column.astype(np.int64, copy=False) for column in (weight, combined))
        weight, combined, level = read_only(weight, combined, level)
        cost_class = np.empty(len(level), np.int32)
        class_values, count = passes.number_classes(weight, combined, level, FEW_CLASSES, cost_class)
        if count <= FEW_CLASSES:
            return cost_class, list(class_values[:count].T)
    # many classes: number the distinct values of each column, pack these numbers into one key, number the distinct keys
    encoded = [np.unique(column, return_inverse=True) for column in columns]
    key, _ = pack_columns(*((code.ravel(), len(values)) for values, code in encoded))
    _, first, number = np.unique(key, return_index=True, return_inverse=True)
    return as_int32(number.ravel()), [column[first] for column in columns]


def _find_levels(sent: Messages | MessageGraph, figures: LogGP, topology: Topology) -> Ints:
    """Return the level of every message between ranks; raise Invalid if the profile has none for it."""
    src, dst = read_only(sent.src, sent.dst)
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


def _derive_levels(routes: Paths) -> tuple[Ints, Floats, Floats, float, int]:
    """Derive levels from routes: routes with equal latency and equal bandwidth of their slowest link form a level.

    Return per message its level; per level the latency in seconds and the seconds per byte; the seconds per byte of
    nbytes for which the busiest link or limit is busy; and its number.

    The links of `core.example.machine` are equal, and in `core.example.star` each carries one message:

    >>> from antiphon.core.example import machine, star
    >>> level, latency, per_byte, capacity, busiest = _derive_levels(paths(messages(star()), machine()))
    >>> level.tolist(), latency.tolist(), per_byte.tolist(), capacity, busiest
    ([0, 0, 0, 0], [1e-06], [1e-09], 1e-09, 0)
    """
    inverse_bandwidth, route = seconds_per_byte(routes.topology), routes.route
    # by route, as there may be a thousand times as many messages
    # one entry per route and link or limit that it loads: their numbers
    use_route, use_resource = uses_of(routes.topology, routes.table, np.arange(len(routes.table), dtype=np.int32))
    # beta: seconds per byte of the slowest link or limit on the route; load: total for which each link or limit is busy
    beta_of_route = np.zeros(len(routes.table) + 1)  # the last: within a rank
    np.maximum.at(beta_of_route, use_route, inverse_bandwidth[use_resource])
    beta = beta_of_route[route]
    # the bits of floats from 0 on, read as integers, are in the same order: number levels by (latency, beta) this way
    bits = [np.asarray(times, np.float64).view(np.int64) for times in (routes.alpha, beta)]
    number, (latency_bits, beta_bits, _) = _find_classes([*bits, np.zeros(len(beta), np.int32)])  # zeros for the level
    in_order = np.lexsort((beta_bits, latency_bits))
    latency, per_byte = (column[in_order].view(np.float64) for column in (latency_bits, beta_bits))
    level = as_int32(np.argsort(in_order))[number]
    # route -1, within a rank, is group 0, which is dropped
    weight_of_route = sums_by_group(route + 1, routes.messages.weight, len(routes.table) + 1)[1:]
    weight_carried = sums_by_group(use_resource, weight_of_route[use_route], routes.resources)
    load = (weight_carried / routes.messages.scale).astype(np.float64) * inverse_bandwidth
    busiest = int(load.argmax()) if len(load) else -1
    return level, latency, per_byte, float(load[busiest]) if len(load) else 0.0, busiest


def _build_graph(sent: Messages | MessageGraph, cost_class: Ints, wait: Waits) -> Graph:
    """Index the dependencies (`antiphon.core.messages.Waits`) by condition: for each, the messages that need it."""
    if len(wait.need_ptr):
        message, condition = wait.pairs("need")
        order = np.argsort(condition, kind="stable")
        needed = np.diff(wait.need_ptr)
        pointer, release = as_int32(pointers(condition[order], len(wait))), as_int32(message[order])
    else:
        needed = (wait.need >= 0).astype(np.int32)
        pointer, release = passes.group_by_condition(wait.need, len(wait))
    contributions, after = passes.count_contributions(wait.done, wait.left, wait.before)
    return Graph(
        sent.src, sent.dst, cost_class, needed, on_done_ptr=wait.done_ptr, on_done=wait.done, on_left_ptr=wait.left_ptr,
        on_left=wait.left, release_ptr=pointer, release=release, waits=contributions, after=after,
    )  # fmt: skip
