"""Exact maximum flows and minimum cuts with integer capacities of any size.

igraph computes in doubles, which are exact for integers as long as no sum exceeds 2^53. Above that, capacities are
scaled: first the flow of their highest 20 bits, then, with 20 bits more at a time, augmenting flows in the residual
graph.

>>> flows = MaxFlows(3, [0, 0, 1], [1, 2, 2])
>>> flows.arc_flows([3, 1, 2], 0, 2).tolist()  # 0 -> 1 -> 2 carries 2, 0 -> 2 carries 1
[2, 1, 2]
>>> flows.cut([3 * 10**17, 10**17, 2 * 10**17], 0, 2)
(300000000000000000, [True, True, False])
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.core.columns import Bools, reached_nodes

EXACT_DOUBLES = 2**53  # doubles hold whole numbers below this exactly
# A round of `arc_flows` takes this many bits more of the capacities. The flow gains less than 2 * arcs * 2^20 units in
# it. On machines of up to 2^15 arcs that is below `max_capacity`, so that one maximum flow per round suffices.
BITS_PER_ROUND = 20


class MaxFlows:
    """Maximum flows on fixed arcs whose capacities change from call to call."""

    def __init__(self, nodes: int, tail: Sequence[int], head: Sequence[int]) -> None:
        self.nodes, self.tail, self.head = nodes, list(tail), list(head)
        self._graph: Any = None

    def _build_graph(self) -> Any:
        if self._graph is None:
            import igraph

            self._graph = igraph.Graph(self.nodes, list(zip(self.tail, self.head, strict=True)), directed=True)
        return self._graph

    def value(self, capacity: Sequence[int], source: int, sink: int) -> int:
        """Return the value of a maximum flow from source to sink."""
        if sum(capacity) < EXACT_DOUBLES:
            return int(self._build_graph().maxflow_value(source, sink, list(capacity)))
        value, _ = self.cut(capacity, source, sink)
        return value

    def cut(self, capacity: Sequence[int], source: int, sink: int) -> tuple[int, list[bool]]:
        """Return the capacity of a minimum cut, and for every node whether it is on the source's side.

        Which minimum cut that is depends on the method; see `smallest_cut`.
        """
        if sum(capacity) >= EXACT_DOUBLES:
            side = self.smallest_cut(capacity, source, sink).tolist()
            ends = zip(self.tail, self.head, capacity, strict=True)
            return sum(c for a, b, c in ends if side[a] and not side[b]), side
        minimum_cut = self._build_graph().maxflow(source, sink, list(capacity))
        source_side, _ = minimum_cut.partition
        return int(minimum_cut.value), self._mark_nodes(source_side)

    def smallest_cut(self, capacity: Sequence[int], source: int, sink: int) -> Bools:
        """Return for every node whether it is on the source's side of the minimum cut with the fewest nodes there.

        These are the nodes that the source still reaches over residual capacity. The source's side of every other
        minimum cut contains them.
        """
        flow = self.arc_flows(capacity, source, sink)
        has_residual = np.concatenate([np.array(capacity) > flow, flow > 0]).astype(np.bool_)
        tail, head = (np.concatenate(ends) for ends in ((self.tail, self.head), (self.head, self.tail)))
        return reached_nodes(np.arange(self.nodes) == source, tail[has_residual], head[has_residual])

    def arc_flows(self, capacity: Sequence[int], source: int, sink: int) -> NDArray[Any]:
        """Return the flow on every arc of a maximum flow: int64, or Python ints where capacities are large."""
        if sum(capacity) < EXACT_DOUBLES:
            exact: NDArray[Any] = np.rint(self._build_graph().maxflow(source, sink, list(capacity)).flow)
            return exact.astype(np.int64)
        import igraph

        pairs, count = list(zip(self.tail, self.head, strict=True)), len(self.tail)
        residual_graph = igraph.Graph(self.nodes, pairs + [(b, a) for a, b in pairs], directed=True)
        # Larger capacities are cut to this: the 2 * count arcs sum to at most half of what doubles hold exactly.
        max_capacity = EXACT_DOUBLES // (4 * count)
        flow = [0] * count
        shift = sum(capacity).bit_length()
        while shift:
            shift = max(shift - BITS_PER_ROUND, 0)
            while True:
                residual = [c - x for c, x in zip(capacity, flow, strict=True)] + flow
                gain = residual_graph.maxflow(source, sink, [min(x >> shift, max_capacity) for x in residual])
                if not gain.value:  # 0: at most circulations, which could be added forever
                    break
                gained = [int(x) - int(y) for x, y in zip(gain.flow[:count], gain.flow[count:], strict=True)]
                # y may be negative (flow sent back); the residual capacities keep the sum within 0..capacity
                flow = [x + (y << shift) for x, y in zip(flow, gained, strict=True)]
        return np.array(flow, object)

    def cut_floats(self, capacity: NDArray[np.float64], source: int, sink: int) -> tuple[float, list[bool]]:
        """Return a minimum cut as `cut` does, by inexact floating point: evaluate the cut exactly afterwards."""
        minimum_cut = self._build_graph().maxflow(source, sink, capacity.tolist())
        source_side, _ = minimum_cut.partition
        return float(minimum_cut.value), self._mark_nodes(source_side)

    def _mark_nodes(self, marked: Sequence[int]) -> list[bool]:
        """Return for every node whether it is among these."""
        flags = [False] * self.nodes
        for node in marked:
            flags[node] = True
        return flags
