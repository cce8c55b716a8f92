"""The way of every message through a machine: its latency, and the links and shared limits that it loads."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from antiphon.core.columns import Floats, Ints, Longs, dense, order_of, ranges
from antiphon.core.messages.table import Messages
from antiphon.core.routes import Resolved, Routes, resolve
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.errors import Invalid


def resolved(schedule: Schedule, topology: Topology) -> Resolved:
    """The path of every row; Invalid where one has none."""
    return _found(schedule, resolve(topology, schedule.src, schedule.dst, schedule.route, schedule.routes))


def _found(schedule: Schedule, found: Resolved, row: Ints | None = None) -> Resolved:
    if len(found.bad):
        at = int(found.bad[0] if row is None else row[found.bad[0]])
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
class Paths:
    """Per message its route in `table` (-1: within a rank) and its latency in seconds; and who uses what.

    Uses are in the order of (step, resource, message): a link or, from topology.links on, a shared limit.
    """

    messages: Messages
    topology: Topology
    table: Routes
    route: Ints
    alpha: Floats
    use_message: Longs
    use_resource: Longs

    @property
    def resources(self) -> int:
        return self.topology.links + len(self.topology.limits)

    def use_cost(self) -> Floats:
        """Of every use, in seconds per byte of nbytes."""
        cost: Floats = self.messages.share[self.use_message] * seconds_per_byte(self.topology)[self.use_resource]
        return cost


def paths(messages: Messages, topology: Topology) -> Paths:
    """Invalid where a message has no path, or no single one. O(n log n) in messages times hops."""
    schedule = messages.schedule
    given = None if schedule.route is None else messages.route
    found = resolve(topology, messages.src, messages.dst, given, schedule.routes)
    _found(schedule, found, messages.row)
    route = found.route
    alpha = np.where(route >= 0, latencies(topology, found.table)[route], 0.0)
    message, resource = uses_of(topology, found.table, route)
    times, time = dense(messages.step.astype(np.int64), schedule.steps or 1)
    order = order_of(message, max(len(messages), 1))  # stable, thrice: by message, resource, step
    order = order[order_of(resource[order], topology.links + len(topology.limits))]
    order = order[order_of(time[message[order]], max(len(times), 1))]
    return Paths(messages, topology, found.table, route, alpha, message[order], resource[order])
