"""Spread unicast data evenly over shortest paths: if its time equals a lower bound, routing and bound are optimal.

For every source, data flow along all shortest paths. At a node the flow from each incoming arc is proportional to the
number of paths that arrive over it, each path as wide as the product of its arcs' capacities. One forward pass counts
paths in order of distance, one backward pass distributes the demand, as in Brandes' betweenness algorithm (2001). An
arc (`MergedArcs`) is all parallel links with the same ends and shared limits; `exact` is their summed capacity as an
integer.

On symmetric machines (rings, tori, hypercubes, full meshes) this is optimal for alltoall. The links and limits that
are busy all the time suggest a witness: equal prices on them.

Example: alltoall on a ring of 4 unit links. Rank 0 sends to rank 2 half each way, to ranks 1 and 3 directly: 1.5 units
over each of its links, and every link carries 1 + 1/2 + 1/2 = 2 units in total.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from antiphon.core.bounds.lp import MergedArcs, arcs_of
from antiphon.core.bounds.needs import Needs
from antiphon.core.bounds.witness import Family, LpDual
from antiphon.core.topology import Topology

MOST_WORK = 2_000_000  # sets of holders times links: above this, `even_routings` does not try
_CLOSE = 1e-9  # relative difference at which sums of doubles count as equal


@dataclass(frozen=True)
class EvenRouting:
    """The time of a routing, and the links and limits that are always busy.

    Time is weight / capacity, with capacities as whole multiples of topology.resources.scale bytes/s: time / scale is
    the seconds per byte of a block of weight 1.
    """

    time: float
    busiest: tuple[int, ...]  # resources (links, then limits)

    @property
    def dual(self) -> LpDual:
        """The witness that this routing suggests: its busiest links and limits, all at price 1."""
        everything = Family("all", at=())  # all needs, each with its distance by these prices
        return LpDual(tuple((resource, 1) for resource in self.busiest), (everything,))


def even_routings(topology: Topology, needs: Needs) -> list[EvenRouting]:
    """Return the results of up to two routings: over paths of fewest links and, if bandwidths differ, over paths of
    least time per byte.

    [] if some data have several holders, or if there are too many sources and links. O(sources * links log links) each.
    """
    holder_sets = np.unique(needs.holders).tolist()
    if any(len(needs.sets[s]) > 1 for s in holder_sets) or len(holder_sets) * topology.links > MOST_WORK:
        return []
    arcs = arcs_of(topology)
    lengths = [[1] * len(arcs)]
    # Lengths by time are made whole numbers, which doubles add exactly: 10^9 per arc leave room for paths of 10^6 arcs.
    # The common multiple of many speeds is larger, so that is not even computed.
    speeds = set(arcs.exact)
    common = math.lcm(*speeds) if len(speeds) < 20 else 0
    if 0 < common < 10**9 and len(speeds) > 1:
        lengths.append([common // c for c in arcs.exact])
    routings = (_spread_evenly(topology, arcs, needs, holder_sets, length) for length in lengths)
    return [routing for routing in routings if math.isfinite(routing.time)]


def _spread_evenly(
    topology: Topology, arcs: MergedArcs, needs: Needs, holder_sets: Sequence[int], length: Sequence[int]
) -> EvenRouting:
    """Route all demands over shortest paths of these arc lengths, and return the greatest load over capacity.

    `holder_sets`: numbers of the sets of holders, each of a single rank.
    """
    demand = np.zeros((topology.nodes, topology.nodes))
    sources = np.array([needs.sets[s][0] for s in holder_sets])
    source_index = np.searchsorted(holder_sets, needs.holders)
    np.add.at(demand, (sources[source_index], needs.dst), needs.weights[needs.block])
    load = np.zeros(len(arcs))
    distances = _arc_distances(topology.nodes, arcs, sources, length)
    relative_width = (arcs.capacity / arcs.capacity.max()).tolist()
    tail, head = arcs.tail.tolist(), arcs.head.tolist()
    for source, distance in zip(sources.tolist(), distances, strict=True):
        on_shortest = np.flatnonzero(distance[arcs.tail] + length == distance[arcs.head])
        ordered = on_shortest[np.argsort(distance[arcs.head[on_shortest]], kind="stable")].tolist()
        path_width = [0.0] * topology.nodes  # paths to a node, each as wide as the product of its arcs
        path_width[source] = 1.0
        # Forward: widths in order of distance, so that the tail is complete before the head.
        for arc in ordered:
            path_width[head[arc]] += path_width[tail[arc]] * relative_width[arc]
        flow = demand[source].tolist()
        # Backward: a node's flow, its own demand plus what it forwards, is split by path width.
        for arc in reversed(ordered):
            if flow[head[arc]]:
                if not path_width[head[arc]]:
                    return EvenRouting(math.inf, busiest=())  # too long and narrow for doubles
                share = flow[head[arc]] * (path_width[tail[arc]] * relative_width[arc] / path_width[head[arc]])
                load[arc] += share
                flow[tail[arc]] += share
    return _busiest_resources(topology, arcs, load)


def _arc_distances(
    nodes: int, arcs: MergedArcs, sources: NDArray[np.int64], length: Sequence[int]
) -> NDArray[np.float64]:
    """Return the distances from every source; they are whole numbers, so doubles are exact."""
    import scipy.sparse as sp
    from scipy.sparse.csgraph import dijkstra

    shortest_arc: dict[tuple[int, int], int] = {}
    for a, b, arc_length in zip(arcs.tail.tolist(), arcs.head.tolist(), length, strict=True):
        shortest_arc[a, b] = min(arc_length, shortest_arc.get((a, b), arc_length))
    rows, columns = zip(*shortest_arc, strict=True)
    graph = sp.csr_array((np.array(list(shortest_arc.values()), np.float64), (rows, columns)), shape=(nodes, nodes))
    return np.asarray(dijkstra(graph, indices=sources))


def _busiest_resources(topology: Topology, arcs: MergedArcs, load: NDArray[np.float64]) -> EvenRouting:
    """Return the time of the most loaded links and limits, and which these are."""
    resources = topology.resources
    limit_load = np.zeros(len(topology.limits))
    times: dict[int, float] = {}
    for arc, amount in enumerate(load.tolist()):
        limit_load[list(arcs.limits[arc])] += amount
        times |= dict.fromkeys(arcs.links[arc], amount / arcs.exact[arc])
    for resource, amount in enumerate(limit_load.tolist(), start=topology.links):
        times[resource] = amount / resources.scaled_capacity(resource)
    top = max(times.values())
    return EvenRouting(top, tuple(sorted(r for r, t in times.items() if t >= top * (1 - _CLOSE))))
