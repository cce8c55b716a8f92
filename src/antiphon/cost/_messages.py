"""The messages of a schedule: rows with equal (step, src, dst, route) travel as one, and pay latency once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from antiphon.core.columns import Ints, Longs, dense, order_of, ranges, starts
from antiphon.core.loads import pieces_of
from antiphon.core.routes import Resolved, Routes, resolve
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.errors import Invalid

Floats = NDArray[np.float64]


def resolved(schedule: Schedule, topology: Topology) -> Resolved:
    """The path of every row; Invalid where one has none."""
    found = resolve(topology, schedule.src, schedule.dst, schedule.route, schedule.routes)
    if len(found.bad):
        at = int(found.bad[0])
        raise Invalid(f"step {schedule.step[at]}, chunk {schedule.chunk[at]}: the transfer {found.why[0]}")
    return found


def latencies(topology: Topology, table: Routes) -> Floats:
    """Seconds of latency of every route: the sum over its links."""
    kinds = np.array([t.latency for t in topology.types], np.float64)
    owner = np.repeat(np.arange(len(table)), np.diff(table.ptr))
    taken = kinds[topology.link_type[table.links]]
    return np.bincount(owner, weights=taken, minlength=len(table)).astype(np.float64, copy=False)


def seconds_per_byte(topology: Topology) -> Floats:
    """Of every link, then of every shared limit."""
    resources = topology.resources
    return np.array([1 / float(c * resources.scale) for c in resources.capacity], np.float64)[resources.klass]


def resource_name(topology: Topology, resource: int) -> str:
    """A link or shared limit as people call it."""
    if resource >= topology.links:
        return f"limit {topology.limits[resource - topology.links].name}"
    src, dst = (topology.node_name(int(c[resource])) for c in (topology.link_src, topology.link_dst))
    return f"link {resource} ({src} to {dst}, {topology.types[int(topology.link_type[resource])].kind})"


def uses_of(topology: Topology, table: Routes, route: Ints) -> tuple[Longs, Longs]:
    """Which links and limits each of these routes (-1: none) loads: (position in `route`, resource)."""
    moved = np.flatnonzero(route >= 0)
    taken = route[moved]
    hops = table.ptr[taken + 1] - table.ptr[taken]
    link = table.links[ranges(table.ptr[taken], hops)].astype(np.int64)
    owner: Longs = np.repeat(moved, hops)
    resources = topology.resources
    if len(resources.limit_of):
        more = resources.limit_ptr[link + 1] - resources.limit_ptr[link]
        shared = resources.limit_of[ranges(resources.limit_ptr[link], more)].astype(np.int64)
        return np.concatenate([owner, np.repeat(owner, more)]), np.concatenate([link, shared])
    return owner, link


@dataclass(frozen=True, eq=False)
class Messages:
    """Messages in the order of (step, src, dst, route), and the links and limits that each uses.

    `share` is the part of nbytes that a message carries. Uses are in the order of (step, resource, message);
    `use_cost` is in seconds per byte of nbytes.
    """

    step: Longs
    src: Ints
    dst: Ints
    share: Floats
    alpha: Floats
    of_row: Longs  # row of the schedule -> message
    use_message: Longs
    use_resource: Longs
    use_cost: Floats

    def __len__(self) -> int:
        return len(self.step)


def messages(schedule: Schedule, topology: Topology) -> Messages:
    """O(n log n) in rows times hops. Every piece is a row here: expand first."""
    found = resolved(schedule, topology)
    ranks = schedule.collective.ranks
    pairs, pair = dense(schedule.src * np.int64(ranks) + schedule.dst, ranks * ranks)
    many = len(found.table) + 1
    ways, way = dense(pair * many + found.route + 1, len(pairs) * many)
    times, time = dense(schedule.step.astype(np.int64), schedule.steps or 1)
    _, of_row = dense(time * len(ways) + way, max(len(times) * len(ways), 1))
    first = np.zeros(int(of_row.max(initial=-1)) + 1, np.int64)
    first[of_row] = np.arange(len(of_row))
    weights, scale = schedule.chunks.weights(schedule.collective)
    parts = (weights / (scale * pieces_of(schedule))).astype(np.float64)
    share = np.bincount(of_row, weights=parts[schedule.chunk], minlength=len(first)).astype(np.float64, copy=False)
    step, route = schedule.step[first].astype(np.int64), found.route[first]
    alpha = np.where(route >= 0, latencies(topology, found.table)[route], 0.0)
    message, resource = uses_of(topology, found.table, route)
    bound = topology.links + len(topology.limits)
    order = order_of(message, max(len(first), 1))  # stable, thrice: by message, resource, step
    order = order[order_of(resource[order], bound)]
    order = order[order_of(time[first][message[order]], max(len(times), 1))]
    message, resource = message[order], resource[order]
    cost = share[message] * seconds_per_byte(topology)[resource]
    return Messages(
        step, schedule.src[first], schedule.dst[first], share, alpha, of_row, message, resource, cost
    )  # fmt: skip


def places(group: Longs) -> Longs:
    """The place of every element in its run of equal values."""
    flags = starts(group)
    at = np.arange(len(group))
    return at - np.maximum.accumulate(np.where(flags, at, 0)) if len(group) else at
