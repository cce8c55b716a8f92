"""The machine for cuts and flows: parallel links merged, capacities whole numbers.

Capacities are counted in units of `topology.resources.scale` bytes/s, the greatest unit in which all are whole numbers.

Example: two links of 25 GB/s from rank 0 to rank 1 and one of 10 GB/s back become two arcs: 0 -> 1 of capacity 10 and
1 -> 0 of capacity 2, in units of 5 GB/s.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.core.columns import SAFE_INT64, Longs
from antiphon.core.topology import Topology


@dataclass(frozen=True, eq=False)
class Network:
    """The machine with parallel links merged: one arc per joined pair of nodes, with a whole-number capacity.

    `capacity` is int64, or Python ints if sums could overflow.
    """

    nodes: int
    ranks: int
    tail: Longs
    head: Longs
    capacity: NDArray[Any]

    @property
    def reversed(self) -> Network:
        return replace(self, tail=self.head, head=self.tail)

    def out_of(self, inside: NDArray[np.bool_]) -> int:
        """Return the capacity out of a set of nodes."""
        return int(self.capacity[inside[self.tail] & ~inside[self.head]].sum())

    def node_capacities(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the capacity out of and into every node."""
        out, into = np.zeros(self.nodes, self.capacity.dtype), np.zeros(self.nodes, self.capacity.dtype)
        np.add.at(out, self.tail, self.capacity)
        np.add.at(into, self.head, self.capacity)
        return out, into

    @property
    def balanced(self) -> bool:
        """Whether as much capacity enters every switch as leaves it."""
        out, into = self.node_capacities()
        return bool(np.all(out[self.ranks :] == into[self.ranks :]))

    @property
    def symmetric(self) -> bool:
        """Whether every pair of nodes has the same capacity in both directions."""
        forward = self.tail * self.nodes + self.head
        reversed_pair = self.head * self.nodes + self.tail
        order, reverse = np.argsort(forward), np.argsort(reversed_pair)
        return bool(
            np.array_equal(forward[order], reversed_pair[reverse])
            and np.all(self.capacity[order] == self.capacity[reverse])
        )


def link_capacities(topology: Topology) -> NDArray[Any]:
    """Return the capacity of every link in units of `resources.scale`: int64 if no sum can overflow, else objects."""
    resources = topology.resources
    largest = max(resources.capacity, default=1)
    # room for sums that count every link and limit up to four times; counting.py checks by itself if it counts more
    fits_int64 = largest * 4 * (topology.links + len(topology.limits) + 1) < SAFE_INT64
    class_capacity = np.array(resources.capacity, np.int64 if fits_int64 else object)
    return class_capacity[resources.class_of[: topology.links]]


def network_of(topology: Topology) -> Network:
    """Merge links by their ends. A link under a shared limit narrower than itself gets the limit's capacity. O(links
    log links)."""
    resources = topology.resources
    capacity = link_capacities(topology).copy()
    for i, limit in enumerate(topology.limits):
        links = np.array(limit.links)
        limit_capacity = resources.scaled_capacity(topology.links + i)
        capacity[links] = np.minimum(capacity[links], limit_capacity)
    nodes = topology.nodes
    key = topology.link_src.astype(np.int64) * nodes + topology.link_dst
    pairs, inverse = np.unique(key, return_inverse=True)
    merged = np.zeros(len(pairs), capacity.dtype)
    np.add.at(merged, inverse, capacity)
    return Network(nodes, topology.ranks, pairs // nodes, pairs % nodes, merged)
