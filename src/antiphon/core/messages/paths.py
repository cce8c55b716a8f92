"""The path of every message through a machine: its latency, and the links and shared limits that it loads.

Cost models start from this: `alpha[m]` is the latency of message m in seconds, and (message, resource) pairs list its
uses, where a *resource* is a link or, numbered after the links, a shared limit. A joint (a multicast or reduction in
switches) is one message that uses every link of its tree once.

Example: a message 0 -> 1 through a switch, links 4 (0 to switch) and 7 (switch to 1), link 4 under limit 0 of a machine
of 10 links: alpha is the sum of two latencies, and the uses are the resources 4, 7 and 10.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from antiphon.core.columns import Floats, Ints, Longs, concat_ranges, order_of, unique_inverse
from antiphon.core.joints import crossed_links, joints_of
from antiphon.core.loads import resolve_routes
from antiphon.core.messages.table import Messages
from antiphon.core.routes import Routes, latencies
from antiphon.core.topology import Topology


def seconds_per_byte(topology: Topology) -> Floats:
    """Return the seconds per byte of every link, then of every shared limit."""
    resources = topology.resources  # resources of equal capacity form a class
    of_class = np.array([1 / float(c * resources.scale) for c in resources.capacity], np.float64)
    return of_class[resources.class_of]


def resource_name(topology: Topology, resource: int) -> str:
    """Return the name of a link or shared limit for messages."""
    if resource >= topology.links:
        return f"limit {topology.limits[resource - topology.links].name}"
    src, dst = (topology.node_name(int(c[resource])) for c in (topology.link_src, topology.link_dst))
    return f"link {resource} ({src} to {dst}, {topology.types[int(topology.link_type[resource])].kind})"


def uses_of(topology: Topology, table: Routes, route: Ints) -> tuple[Longs, Longs]:
    """Return the links and limits that these routes (-1: none) load, as (index in `route`, resource)."""
    routed = np.flatnonzero(route >= 0)
    used_routes = route[routed]
    hops = table.ptr[used_routes + 1] - table.ptr[used_routes]
    link = table.links[concat_ranges(table.ptr[used_routes], hops)].astype(np.int64)
    owner: Longs = np.repeat(routed, hops)
    index, resource = topology.resources.with_limits(link)  # index: of the link that loads the resource
    return owner[index], resource


@dataclass(frozen=True, eq=False)
class Paths:
    """The routes and latencies of messages, and their uses of resources.

    Uses are sorted by (step, resource, message) and computed on first access, because models that price steps by loads
    never need them.
    """

    messages: Messages
    topology: Topology
    table: Routes
    route: Ints  # per message its route in `table`; -1: within a rank
    alpha: Floats  # per message its latency in seconds
    joint_uses: tuple[Longs, Longs] | None = None  # if the schedule has joints: the uses (message, resource), unsorted

    @property
    def use_message(self) -> Longs:
        """The message of every use."""
        message, _ = self._ordered_uses
        return message

    @property
    def use_resource(self) -> Longs:
        """The resource of every use: a link or, from topology.links on, a shared limit."""
        _, resource = self._ordered_uses
        return resource

    @cached_property
    def _ordered_uses(self) -> tuple[Longs, Longs]:
        uses = uses_of(self.topology, self.table, self.route) if self.joint_uses is None else self.joint_uses
        return _sort_uses(self.messages, self.resources, *uses)

    @property
    def resources(self) -> int:
        """The number of links and shared limits."""
        return self.topology.links + len(self.topology.limits)

    def use_cost(self) -> Floats:
        """Return the cost of every use in seconds per byte of nbytes."""
        cost: Floats = self.messages.share[self.use_message] * seconds_per_byte(self.topology)[self.use_resource]
        return cost


def paths(messages: Messages, topology: Topology) -> Paths:
    """Return the paths of all messages; raise Invalid if a message has no path, or several and names none.

    O(n) in messages; uses take O(n log n), times links per route.
    """
    schedule = messages.schedule
    if schedule.joint is not None:
        return _with_joints(messages, topology)
    routes = resolve_routes(schedule, topology, messages.row)
    route = routes.route
    alpha = np.append(latencies(topology, routes.table), 0.0)[route]  # route -1, within a rank, takes the last: 0
    return Paths(messages, topology, routes.table, route, alpha)


def _with_joints(messages: Messages, topology: Topology) -> Paths:
    """Return the paths of a schedule with joints: a joint takes as long as the longest of its rows, and uses each link
    once."""
    schedule, message_of_row = messages.schedule, messages.of_row
    routes = resolve_routes(schedule, topology)
    row_latency = np.append(latencies(topology, routes.table), 0.0)[routes.route]  # route -1 takes the last: 0
    # Latency of a message: the maximum over its rows; for rows of one route all are equal.
    alpha = np.zeros(len(messages))
    np.maximum.at(alpha, message_of_row, row_latency)
    joints = joints_of(schedule)
    # Rows that load links: one per message, and every row of a joint, whose links are merged below.
    loads_links = np.zeros(schedule.transfers, np.bool_)
    loads_links[messages.row] = True  # the first row of every message
    if joints is not None:
        loads_links |= joints.of_row >= 0  # -1: a row of no joint
    route = np.where(loads_links, routes.route, np.int32(-1))  # the rows of a message use their common links once
    link, row = crossed_links(schedule, replace(routes, route=route), topology)
    index, resource = topology.resources.with_limits(link)  # index: of the link that loads the resource
    message = message_of_row[row[index]].astype(np.int64)
    return Paths(messages, topology, routes.table, routes.route[messages.row], alpha, (message, resource))


def _sort_uses(messages: Messages, resources: int, message: Longs, resource: Longs) -> tuple[Longs, Longs]:
    """Sort uses (message, resource) by step, then resource, then message.

    Messages 0 and 2 are of step 0, message 1 of step 1:

    >>> from types import SimpleNamespace as Namespace
    >>> class Three(Namespace):
    ...     __len__ = lambda self: 3
    >>> [column.tolist() for column in
    ...  _sort_uses(Three(step=np.array([0, 1, 0])), 9, np.array([1, 2, 0, 0]), np.array([5, 7, 7, 6]))]
    [[0, 0, 2, 1], [6, 7, 7, 5]]
    """
    steps, step_index = unique_inverse(messages.step.astype(np.int64), bound=int(messages.step.max(initial=0)) + 1)
    order = order_of(message, bound=max(len(messages), 1))  # three stable sorts: by message, by resource, by step
    order = order[order_of(resource[order], bound=resources)]
    order = order[order_of(step_index[message[order]], bound=max(len(steps), 1))]
    return message[order], resource[order]
