"""Links without those that only slow ways take: a step lasts as long as its slowest way."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from antiphon.core.columns import Longs
from antiphon.core.topology import Topology
from antiphon.planners.shared.begins import Floats

SAME = 1 + 1e-9


def quick_links(topology: Topology, root: int, ranks: Sequence[int], rate: float) -> Longs | None:
    """The links on ways no slower than it takes for each of these ranks to receive at this rate; None where that takes
    all."""
    quickest = _quickest(topology)
    taken = np.isfinite(quickest)  # the others are on no way at all
    some = np.unique(quickest[taken])
    below, enough = -1, len(some) - 1  # more links carry no less, so the fewest are found by halves
    while enough - below > 1:
        middle = (below + enough) // 2
        if wide(topology, root, ranks, np.flatnonzero(quickest <= some[middle] * SAME), rate):
            enough = middle
        else:
            below = middle
    kept = quickest <= some[enough] * SAME if len(some) else taken
    return None if (kept == taken).all() else np.flatnonzero(kept)


def wide(topology: Topology, root: int, ranks: Sequence[int], links: Longs, rate: float) -> bool:
    """Whether so much could flow to each of these ranks alone."""
    import igraph

    ends = zip(topology.link_src[links].tolist(), topology.link_dst[links].tolist(), strict=True)
    graph = igraph.Graph(topology.nodes, list(ends), directed=True)
    capacity = [float(topology.bandwidth(link)) for link in links.tolist()]
    return all(graph.maxflow_value(root, rank, capacity) * SAME >= rate for rank in ranks if rank != root)


def _quickest(topology: Topology) -> Floats:
    """By link the least latency of a way from rank to rank through switches that takes it.

    A rail and a spine above it, which the ways between rails take:

    >>> from antiphon.topologies import topology
    >>> rails = _quickest(topology("cluster:box=hgx-h100,boxes=2,fabric=rail"))
    >>> sorted(set((rails * 1e9).round().tolist()))
    [700.0, 1700.0, 1960.0]
    """
    late = np.array([kind.latency for kind in topology.types])[topology.link_type]
    return _far(topology, late, False)[topology.link_src] + late + _far(topology, late, True)[topology.link_dst]


def _far(topology: Topology, late: Floats, back: bool) -> Floats:
    """By node the least latency of a way there from a rank; `back`: from there to a rank."""
    tail, head = (topology.link_dst, topology.link_src) if back else (topology.link_src, topology.link_dst)
    far = np.where(np.arange(topology.nodes) < topology.ranks, 0.0, np.inf)
    while True:
        nearer = far.copy()
        np.minimum.at(nearer, head, far[tail] + late)
        if (nearer == far).all():
            return far
        far = nearer
