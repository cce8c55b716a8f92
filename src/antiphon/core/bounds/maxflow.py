"""Exact maximum flows and minimum cuts with integer capacities of any size.

igraph computes in doubles, which are exact for integers as long as no sum exceeds 2^53. Above that, Dinic's algorithm
(1970) runs on Python integers: build the level graph by breadth-first search, send a blocking flow along rising
levels, repeat until the sink is out of reach; the nodes then reached form the source side of a minimum cut.

>>> value, on_source_side = dinic(3, [0, 0, 1], [1, 2, 2], [3, 1, 2], 0, 2)  # 0 -> 1 -> 2 carries 2, 0 -> 2 carries 1
>>> value, on_source_side
(3, [True, True, False])
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

EXACT_DOUBLES = 2**53  # doubles hold whole numbers below this exactly


class Flows:
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
        return self.cut(capacity, source, sink)[0]

    def cut(self, capacity: Sequence[int], source: int, sink: int) -> tuple[int, list[bool]]:
        """Return the capacity of a minimum cut, and for every node whether it is on the source's side.

        Which minimum cut that is depends on the method; see `smallest_cut`.
        """
        if sum(capacity) >= EXACT_DOUBLES:
            return dinic(self.nodes, self.tail, self.head, capacity, source, sink)
        minimum_cut = self._build_graph().maxflow(source, sink, list(capacity))
        return int(minimum_cut.value), self._mark_nodes(minimum_cut.partition[0])

    def smallest_cut(self, capacity: Sequence[int], source: int, sink: int) -> NDArray[np.bool_]:
        """Return for every node whether it is on the source's side of the minimum cut with the fewest nodes there.

        These are the nodes that the source still reaches over residual capacity. The source's side of every other
        minimum cut contains them.
        """
        if sum(capacity) >= EXACT_DOUBLES:
            return np.array(dinic(self.nodes, self.tail, self.head, capacity, source, sink)[1])
        flow = np.rint(self._build_graph().maxflow(source, sink, list(capacity)).flow).astype(np.int64)
        spare = np.concatenate([np.array(capacity) > flow, flow > 0])
        tail, head = (np.concatenate(ends) for ends in ((self.tail, self.head), (self.head, self.tail)))
        reached = np.arange(self.nodes) == source
        while len(newly_reached := head[spare & reached[tail] & ~reached[head]]):
            reached[newly_reached] = True
        return np.asarray(reached)

    def cut_floats(self, capacity: NDArray[np.float64], source: int, sink: int) -> tuple[float, list[bool]]:
        """Return a minimum cut as `cut` does, by inexact floating point: evaluate the cut exactly afterwards."""
        minimum_cut = self._build_graph().maxflow(source, sink, capacity.tolist())
        return float(minimum_cut.value), self._mark_nodes(minimum_cut.partition[0])

    def _mark_nodes(self, marked: Sequence[int]) -> list[bool]:
        """Return for every node whether it is among these."""
        flags = [False] * self.nodes
        for node in marked:
            flags[node] = True
        return flags


def dinic(
    nodes: int, tail: Sequence[int], head: Sequence[int], capacity: Sequence[int], source: int, sink: int
) -> tuple[int, list[bool]]:
    """Return the value of a maximum flow in Python ints, and for every node whether it is on the source's side.

    Of all minimum cuts it is the one with the fewest nodes on that side: those that the source still reaches over
    residual capacity. The time is O(nodes^2 * arcs), in practice far less.
    """
    # Arc i of the input becomes arc 2i, and 2i + 1 in the other direction. ends[a] is the node that arc a leads to;
    # it leaves ends[a ^ 1].
    ends = [end for arc in zip(head, tail, strict=True) for end in arc]
    residual = [amount for c in capacity for amount in (int(c), 0)]
    out: list[list[int]] = [[] for _ in range(nodes)]
    for arc in range(len(ends)):
        out[ends[arc ^ 1]].append(arc)
    total = 0
    while True:
        level = _bfs_levels(out, ends, residual, source)
        if level[sink] < 0:
            return total, [depth >= 0 for depth in level]
        # next_arc[node]: the first of out[node] that may still lead to the sink in this level graph. It only advances,
        # so each arc is abandoned once per phase.
        next_arc = [0] * nodes
        while path := _augmenting_path(out, ends, residual, level, next_arc, source, sink):
            push = min(residual[arc] for arc in path)
            # Arc i and its reverse i ^ 1 form a pair: pushing forward makes room backward.
            for arc in path:
                residual[arc] -= push
                residual[arc ^ 1] += push
            total += push


def _bfs_levels(out: list[list[int]], ends: list[int], residual: list[int], source: int) -> list[int]:
    """Return the distance of every node from the source over arcs with residual capacity; -1 if it cannot be
    reached."""
    level = [-1] * len(out)
    level[source] = 0
    queue = deque([source])
    while queue:
        node = queue.popleft()
        for arc in out[node]:
            if residual[arc] and level[ends[arc]] < 0:
                level[ends[arc]] = level[node] + 1
                queue.append(ends[arc])
    return level


def _augmenting_path(
    out: list[list[int]],
    ends: list[int],
    residual: list[int],
    level: list[int],
    next_arc: list[int],
    source: int,
    sink: int,
) -> list[int]:
    """Return the arcs of a path along rising levels, or [] if there is none; advance `next_arc` past dead ends."""
    path: list[int] = []
    node = source
    while node != sink:
        while next_arc[node] < len(out[node]):
            arc = out[node][next_arc[node]]
            if residual[arc] and level[ends[arc]] == level[node] + 1:
                break
            next_arc[node] += 1
        else:
            if not path:
                return []
            # Dead end: retreat over the last arc and abandon it.
            node = ends[path.pop() ^ 1]
            next_arc[node] += 1
            continue
        path.append(arc)
        node = ends[arc]
    return path
