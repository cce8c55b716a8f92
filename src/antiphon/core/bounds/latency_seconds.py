"""The minimum latency in seconds: along the quickest path from the holders of a contribution to its destination.

A need is a row (block, holders, dst) of `needs.py`: rank dst, the destination, must get a contribution that only the
ranks `needs.sets[holders]` have at first. Any of them may send it, so the quickest counts.

Data reach a rank over a chain of messages, one after the other, and each message pays the summed latency of its links.
So under every model that charges a chain the cost of its messages, no schedule is faster than the greatest, over all
needs, of the shortest path by latency (Dijkstra).

Example: two hosts joined by a 5 us network, NVLink 1 us inside. An allgather needs data from the other host: 5 us, even
though the minimum number of steps is only 1.

Work is bounded: one search per holder, or backwards per destination, whichever are fewer, and at most MOST_WORK; fewer
searches give a weaker bound, but a bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.core.bounds.needs import Needs
from antiphon.core.bounds.witness import Distance
from antiphon.core.columns import Longs
from antiphon.core.topology import Topology
from antiphon.units import format_seconds

MOST_WORK = 2**24  # links times searches; beyond it only the first searches are made
MAX_DISTANCES = 2**22  # in memory at once


@dataclass(frozen=True)
class Quickest:
    """Data of rank src cannot reach rank dst earlier than `seconds` after the beginning."""

    seconds: float
    src: int
    dst: int

    def describe(self) -> str:
        return f"latency: rank {self.dst} is {format_seconds(self.seconds)} from rank {self.src} by the quickest way"


def find_slowest_need(topology: Topology, needs: Needs, distance: Distance | None) -> Quickest | None:
    """Return the need whose quickest path takes longest; None if nothing must move.

    The bound holds under any model that charges a chain of messages their costs, with barriers between steps or
    without. `distance` (the witness of the fewest steps) is tried first, so that the result is never less than these
    steps at the least latency of any link.

    One search per holder, or backwards per destination, whichever are fewer: O(searches * links * log nodes). If that
    exceeds MOST_WORK, only the first searches are made, and the result is a weaker bound.
    """
    if not len(needs) or distance is None:
        return None
    # latencies of the types of link in use
    latencies = topology.types and [topology.types[i].latency for i in np.unique(topology.link_type).tolist()]
    # All links alike: steps times latency, without a search.
    if not topology.switches and latencies and max(latencies) == min(latencies):
        return Quickest(distance.steps * latencies[0], distance.path[0], distance.rank)
    # the quickest path for the need with the most steps
    first = _slowest_from_sets(topology, [distance.holders], np.zeros(1, np.int64), np.array([distance.rank]))
    all_single = all(len(holders) == 1 for holders in needs.sets)
    max_searches = max(1, MOST_WORK // max(1, topology.links))
    if not all_single:
        searched = needs.holders < max_searches  # one search per set of holders: the first sets only
        sets, holders, dst = list(needs.sets[:max_searches]), needs.holders[searched], needs.dst[searched]
        return _slowest(first, _slowest_from_sets(topology, sets, holders, dst))
    src = np.array([holders[0] for holders in needs.sets], np.int64)[needs.holders]
    if len(np.unique(needs.dst)) < len(np.unique(src)):
        greatest = _slowest_between_ranks(topology, needs.dst, src, max_searches, backwards=True)
    else:
        greatest = _slowest_between_ranks(topology, src, needs.dst, max_searches, backwards=False)
    return _slowest(first, greatest)


def _slowest(first: Quickest, other: Quickest) -> Quickest:
    """Return whichever takes longer."""
    return other if other.seconds > first.seconds else first


def _latency_graph(topology: Topology, backwards: bool = False) -> Any:
    """Return the links (`backwards`: reversed) as a sparse matrix of latencies, the quickest of parallel ones; latency
    0 stays as a stored zero."""
    from scipy.sparse import csr_array

    tail, head = topology.link_src.astype(np.int64), topology.link_dst.astype(np.int64)
    if backwards:
        tail, head = head, tail
    latency = np.array([t.latency for t in topology.types], np.float64)[topology.link_type]
    order = np.lexsort((latency, head, tail))
    key = (tail * topology.nodes + head)[order]
    quickest_links = order[np.flatnonzero(np.diff(key, prepend=-1))]
    pointers = np.searchsorted(tail[quickest_links], np.arange(topology.nodes + 1))
    return csr_array((latency[quickest_links], head[quickest_links], pointers), shape=(topology.nodes, topology.nodes))


def _slowest_from_sets(topology: Topology, sets: list[tuple[int, ...]], holders: Longs, dst: Longs) -> Quickest:
    """Return the slowest of the rows (sets[holders], dst), each by its quickest path from any rank of the set to
    dst."""
    from scipy.sparse.csgraph import dijkstra

    graph, best = _latency_graph(topology), Quickest(seconds=-1.0, src=0, dst=0)
    for i in np.unique(holders).tolist():
        # to every node from the nearest rank of the set, and which rank that is
        latency, _, nearest = dijkstra(graph, indices=list(sets[i]), min_only=True, return_predecessors=True)
        destinations = dst[holders == i]
        slowest = int(destinations[latency[destinations].argmax()])
        best = _slowest(best, Quickest(float(latency[slowest]), int(nearest[slowest]), slowest))
    return best


def _slowest_between_ranks(
    topology: Topology, begin: Longs, end: Longs, max_searches: int, *, backwards: bool
) -> Quickest:
    """Return the slowest of the rows (begin, end) of ranks, many searches at once; `backwards`: along reversed
    links."""
    from scipy.sparse.csgraph import dijkstra

    graph, best = _latency_graph(topology, backwards), Quickest(seconds=-1.0, src=0, dst=0)
    starts = np.unique(begin)[:max_searches]
    block = max(1, MAX_DISTANCES // topology.nodes)
    for low in range(0, len(starts), block):
        batch = starts[low : low + block]
        latency: NDArray[np.float64] = dijkstra(graph, indices=batch)
        rows = np.flatnonzero((begin >= batch[0]) & (begin <= batch[-1]))  # those of this batch: `starts` is sorted
        latencies = latency[np.searchsorted(batch, begin[rows]), end[rows]]
        slowest = int(latencies.argmax())
        pair = (int(begin[rows[slowest]]), int(end[rows[slowest]]))
        best = _slowest(best, Quickest(float(latencies[slowest]), *(pair[::-1] if backwards else pair)))
    return best
