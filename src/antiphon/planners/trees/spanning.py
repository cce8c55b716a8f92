"""Pack undirected spanning trees for an allreduce, exactly, at the greatest possible rate tau.

Input: ranks joined directly by links that are equal in both directions, without switches (`Undirected`). Output
(`pack_spanning`): undirected trees with rates that sum to tau and fit all links. An allreduce reduces each share up its
tree to the root and broadcasts it down the same links in the other direction, so it runs at rate tau, and no schedule
is faster (core.bounds). The rate is

    tau = min over partitions of the ranks of   capacity between the parts / (number of parts - 1)

because every spanning tree crosses a partition at least (parts - 1) times; a fractional packing attains the minimum
(Tutte 1961; Nash-Williams 1961; computed after Cunningham 1985).

Example: a ring of n ranks. The finest partition has n links and n parts, so tau = n / (n - 1): the n paths that each
omit one link, at rate 1 / (n - 1) each.

The packing is constructed in integers. With tau = p/q, multiply capacities by q; then trees of total weight p exist:

    1. divide: every tree crosses the weakest partition (the one that attains tau) exactly (parts - 1) times, so trees
       between the parts and trees inside each part can be packed separately and combined (`pack_edges`)
    2. orient (Frank): divide the capacity of each edge into one arc each way, such that the arcs into every vertex but
       the root have capacity p in total (`_Orientation`, by maximum flow)
    3. peel: now directed trees out of the root of total weight p exist (Edmonds). They are removed one after the other,
       each as heavy as Lovász's condition allows: the remaining arcs must still let the remaining weight flow from the
       root to every vertex (`Arborescences`)
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.core.bounds.maxflow import MaxFlows
from antiphon.core.bounds.network import Network
from antiphon.core.bounds.partition import weakest_partition
from antiphon.core.columns import SAFE_INT64, Longs
from antiphon.errors import Invalid
from antiphon.planners.shared.tree_schedules import SpanningTree
from antiphon.planners.trees.direct_links import Undirected, tree_of_edges

WeightedTree = tuple[int, tuple[int, ...]]  # its weight, and the numbers of its edges (or arcs)
WeightedEdge = tuple[int, int, int]  # a, b, capacity


def weakest_partition_of(vertices: int, edges: Sequence[tuple[int, int, int]]) -> tuple[Fraction, list[list[int]]]:
    """Return tau of a graph of edges (a, b, capacity), exactly, and a partition that attains it.

    O(vertices * Newton rounds) maximum flows, by `core.bounds.partition`.
    """
    tail, head, capacity = merge_arcs([*edges, *((b, a, c) for a, b, c in edges)])
    # without switches every node is a rank
    network = Network(nodes=vertices, ranks=vertices, tail=tail, head=head, capacity=capacity)
    partition, ratio = weakest_partition(network, range(vertices))
    return ratio / 2, sorted(sorted(side) for side in partition)  # / 2: an edge is two arcs, so it counts twice


def merge_arcs(arcs: Iterable[tuple[int, int, int]]) -> tuple[Longs, Longs, NDArray[Any]]:
    """Merge arcs (from, to, capacity) with equal ends; return tails, heads and capacities."""
    total: dict[tuple[int, int], int] = {}
    for a, b, capacity in arcs:
        total[a, b] = total.get((a, b), 0) + capacity
    pairs = sorted(total)
    capacities = [total[pair] for pair in pairs]
    # int64 if the sums of flows surely fit (an arc and its residual, twice each), else Python ints
    fits_int64 = 4 * sum(capacities) < SAFE_INT64
    tail, head = np.array(pairs, np.int64).reshape(-1, 2).T
    return tail, head, np.array(capacities, np.int64 if fits_int64 else object)


def pack_spanning(machine: Undirected) -> tuple[SpanningTree, ...]:
    """Return trees whose rates sum to tau: about as many as edges, or fewer.

    The root of each tree is its middle. O(trees * vertices) maximum flows, besides those for tau.
    """
    if machine.vertices < 2:
        raise Invalid("one rank alone has no trees to pack; give at least two ranks")
    edges = [edge[:3] for edge in machine.edges]
    tau, partition = weakest_partition_of(machine.vertices, edges)
    scale = machine.unit / tau.denominator
    weighted = pack_edges(edges, tau, partition)
    return tuple(tree_of_edges(machine, chosen, weight * scale) for weight, chosen in weighted)


def pack_edges(edges: Sequence[WeightedEdge], tau: Fraction, partition: Sequence[Sequence[int]]) -> list[WeightedTree]:
    """Return spanning trees of weights that sum to tau.numerator, within tau.denominator times the capacities.

    `partition` attains tau, so each tree crosses it as seldom as it can: the edges between its parts and those inside
    each part are packed separately, and the trees combined.
    """
    goal, scale = tau.numerator, tau.denominator

    def pack_layer(number_of: dict[int, int], chosen: Sequence[int]) -> list[WeightedTree]:
        """Pack trees of the chosen edges, whose ends are renumbered by `number_of`."""
        ends = [edges[e] for e in chosen]
        layer_edges = [(number_of[a], number_of[b], capacity * scale) for a, b, capacity in ends]
        trees = _pack_base(len(set(number_of.values())), layer_edges, goal)
        return [(weight, tuple(chosen[e] for e in tree)) for weight, tree in trees]

    # the first layer has the edges between parts, each part as one vertex; then a layer of the edges inside each part
    part_of = {v: i for i, side in enumerate(partition) for v in side}
    layers = [pack_layer(part_of, [e for e, (a, b, _) in enumerate(edges) if part_of[a] != part_of[b]])]
    for i, side in enumerate(partition):
        if len(side) > 1:
            inner_edges = [e for e, (a, b, _) in enumerate(edges) if part_of[a] == part_of[b] == i]
            layers.append(pack_layer({v: j for j, v in enumerate(side)}, inner_edges))
    return side_by_side(layers)


def side_by_side(layers: Sequence[list[WeightedTree]]) -> list[WeightedTree]:
    """Combine packings of equal total weight: each result is the union of one tree of every layer.

    Layers with weights (2, 1) and (1, 2) combine to three trees of weight 1.
    """
    stacks = [sorted(layer) for layer in layers]  # of each layer the trees not used up, the heaviest last
    weight_of: dict[tuple[int, ...], int] = {}
    current = [stack.pop() for stack in stacks]  # of each layer the remaining weight of a tree, and the tree
    while True:
        step = min(weight for weight, _ in current)
        chosen = tuple(sorted(e for _, tree in current for e in tree))
        weight_of[chosen] = weight_of.get(chosen, 0) + step
        current = [(weight - step, tree) for weight, tree in current]
        for layer, (weight, _) in enumerate(current):
            if not weight:
                if not stacks[layer]:
                    return [(weight, chosen) for chosen, weight in weight_of.items()]
                current[layer] = stacks[layer].pop()


def _pack_base(vertices: int, edges: Sequence[WeightedEdge], goal: int) -> list[WeightedTree]:
    """Return spanning trees of total weight `goal`, which must not exceed the tau of these edges."""
    orientation = _Orientation(vertices, edges, goal)
    arcs, amount = orientation.to_arcs()
    arborescences = Arborescences(vertices, arcs, amount, orientation.root).pack_all(goal)
    # arcs 2e and 2e + 1 are edge e
    return [(weight, tuple(e // 2 for e in chosen)) for weight, chosen in arborescences]


class _Orientation:
    """How much of each edge is used in which direction: `inflows[e]` is the amount into its first and second end.

    Nothing enters the root; exactly `goal` enters every other vertex. Edges are added one by one, each with as much
    capacity as leaves every set S of vertices with at most goal * (|S| - 1) on the edges inside S. That much is
    possible if enough room can be made at the edge's ends by turning other edges, that is, by moving amounts from one
    direction to the other (Hakimi 1965; a maximum flow). O(edges) maximum flows, or one if all edges fit in full.
    """

    def __init__(self, vertices: int, edges: Sequence[WeightedEdge], goal: int) -> None:
        self.vertices, self.edges, self.goal = vertices, edges, goal
        self.root = _central_vertex(vertices, edges)
        total = sum(capacity for *_, capacity in edges)
        if total == goal * (vertices - 1):
            self.inflows = self._orient_all()
        else:
            self.inflows = self._orient_each()

    def to_arcs(self) -> tuple[list[tuple[int, int]], list[int]]:
        """Return arcs 2e (a to b) and 2e + 1 (b to a) with their capacities."""
        pairs = [pair for a, b, _ in self.edges for pair in ((a, b), (b, a))]
        return pairs, [x for at_a, at_b in self.inflows for x in (at_b, at_a)]

    def _orient_all(self) -> list[tuple[int, int]]:
        """Orient the whole capacity of every edge so that `goal` enters every vertex but the root: one maximum flow."""
        n, m = self.vertices, len(self.edges)
        source, sink = n + m, n + m + 1
        # flow network: source -> edge e (node n + e) -> its two ends -> sink; arcs in this order
        tail, head, capacity = [source] * m, [n + e for e in range(m)], [c for *_, c in self.edges]
        for e, (a, b, c) in enumerate(self.edges):
            tail += [n + e, n + e]
            head += [a, b]
            capacity += [c, c]
        for v in range(n):
            tail.append(v)
            head.append(sink)
            capacity.append(0 if v == self.root else self.goal)
        flow = MaxFlows(n + m + 2, tail, head).arc_flows(capacity, source, sink).tolist()
        return [(flow[m + 2 * e], flow[m + 2 * e + 1]) for e in range(m)]

    def _orient_each(self) -> list[tuple[int, int]]:
        """Add edges by descending capacity, as much of each as possible, turning earlier edges to make room."""
        n, goal = self.vertices, self.goal
        inflows = [(0, 0)] * len(self.edges)
        by_capacity = sorted((-capacity, e, a, b) for e, (a, b, capacity) in enumerate(self.edges))
        missing = goal * (n - 1)
        for minus_capacity, e, a, b in by_capacity:
            capacity = -minus_capacity
            inflows = self._gather_room(inflows, (a, b), goal + capacity)
            room_a, room_b = (goal - self._vertex_load(inflows, v) for v in (a, b))
            # room of `goal` must remain at both ends together: S = {a, b} may carry (|S| - 1) * goal, not |S| * goal
            amount = min(capacity, room_a + room_b - goal)
            inflows[e] = (min(amount, room_a), amount - min(amount, room_a))
            missing -= amount
            if not missing:
                break
        return self._gather_room(inflows, (self.root,), goal)

    def _vertex_load(self, inflows: list[tuple[int, int]], v: int) -> int:
        """Return the amount that enters a vertex."""
        return sum((a == v) * x + (b == v) * y for (a, b, _), (x, y) in zip(self.edges, inflows, strict=True))

    def _gather_room(
        self, inflows: list[tuple[int, int]], at: Sequence[int], wanted_room: int
    ) -> list[tuple[int, int]]:
        """Turn edges until the vertices `at` have `wanted_room` together, or as much as possible; return the amounts.

        A vertex has room `goal` minus the amount that enters it. A maximum flow carries load away from `at`: turning
        an edge moves load from one of its ends to the other.
        """
        n, goal = self.vertices, self.goal
        load = [0] * n
        for (a, b, _), (x, y) in zip(self.edges, inflows, strict=True):
            load[a] += x
            load[b] += y
        missing = wanted_room - sum(goal - load[v] for v in at)
        if missing <= 0:
            return list(inflows)
        # flow network: source, which limits the flow to the missing room -> start -> the vertices `at` (their load) ->
        # along edges, as far as they can be turned -> vertices with room -> sink
        start, sink, source = n, n + 1, n + 2
        tail, head, capacity = [start] * len(at), list(at), [load[v] for v in at]
        for (a, b, _), (x, y) in zip(self.edges, inflows, strict=True):
            tail += [a, b]
            head += [b, a]
            capacity += [x, y]
        for v in range(n):
            tail.append(v)
            head.append(sink)
            capacity.append(0 if v in at else goal - load[v])
        flows = MaxFlows(n + 3, [*tail, source], [*head, start]).arc_flows([*capacity, missing], source, sink).tolist()
        along_edges = flows[len(at) : len(at) + 2 * len(self.edges)]  # of each edge one way, then the other
        turned_amounts = [
            forward - backward for forward, backward in zip(along_edges[::2], along_edges[1::2], strict=True)
        ]
        return [(x - t, y + t) for (x, y), t in zip(inflows, turned_amounts, strict=True)]


class Arborescences:
    """Pack directed trees out of one root, of total weight `goal`, where a flow of `goal` reaches every vertex.

    Such trees exist (Edmonds). A tree is grown arc by arc, with the greatest weight that still lets the remaining trees
    be packed. An arc from u (in the tree) to v can carry weight w if the flow from u and the root together to v exceeds
    the weight of all other trees by w. This is Lovász's condition, for all sets with v and without u.

    For many roots see forest.ForestGrower, which updates its flows from tree to tree. With one root, new flows by a
    compiled library are ten times faster on 128 ranks.
    """

    def __init__(self, vertices: int, arcs: Sequence[tuple[int, int]], capacity: Sequence[int], root: int) -> None:
        self.vertices, self.root = vertices, root
        self.tail, self.head = [u for u, _ in arcs], [v for _, v in arcs]  # of every arc
        self.remaining = list(capacity)

    def pack_all(self, goal: int) -> list[WeightedTree]:
        """Return trees of total weight `goal`, as arc numbers."""
        weight_of: dict[tuple[int, ...], int] = {}
        while goal:
            weight, chosen = self._peel_tree(goal)
            weight_of[chosen] = weight_of.get(chosen, 0) + weight
            goal -= weight
        return [(weight, chosen) for chosen, weight in weight_of.items()]

    def _start_flows(self) -> None:
        """Build the flow network of the arcs that are not used up."""
        n, remaining = self.vertices, self.remaining
        usable = [e for e, amount in enumerate(remaining) if amount]
        self.position = {e: i for i, e in enumerate(usable)}
        self.out: list[list[int]] = [[] for _ in range(n)]
        self.into: list[list[int]] = [[] for _ in range(n)]
        for e in usable:
            self.out[self.tail[e]].append(e)
            self.into[self.head[e]].append(e)
        tail, head = [self.tail[e] for e in usable], [self.head[e] for e in usable]
        self.capacity_now = [remaining[e] for e in usable]
        # an extra source n has an arc to every vertex; `_spare_flow` opens those to the vertices that it starts at
        self.flows = MaxFlows(n + 1, tail + [n] * n, head + list(range(n)))

    def _peel_tree(self, goal: int) -> WeightedTree:
        """Remove one tree, as heavy as possible, from the remaining capacity; arcs near the root and wide ones come
        first.

        `goal`: the weight of all trees still to be packed.
        """
        self._start_flows()
        widest_in = [max((self.remaining[e] for e in into), default=0) for into in self.into]
        weight = min([goal, *(widest_in[v] for v in range(self.vertices) if v != self.root)])
        depth = {self.root: 0}
        chosen: list[int] = []
        ready: list[tuple[int, int, int]] = []  # (depth, -capacity, arc) out of the tree that may take the whole weight
        aside: dict[int, int] = {}  # other arcs out of the tree: arc -> upper bound on the weight that it can take

        def offer(e: int) -> None:
            """Sort an arc into `ready` or `aside`."""
            if self.remaining[e] >= weight:
                heapq.heappush(ready, (depth[self.tail[e]], -self.remaining[e], e))
            else:
                aside[e] = self.remaining[e]

        # start with the arcs out of the root, then add an arc at a time
        for e in self.out[self.root]:
            offer(e)
        while len(depth) < self.vertices:
            while ready:
                _, _, e = heapq.heappop(ready)
                if self.head[e] not in depth:
                    slack = self._spare_flow(e, goal - weight, weight)
                    if slack >= weight:
                        break
                    aside[e] = slack
            else:  # no arc takes the whole weight: lower the weight of the whole tree
                aside = {e: limit for e, limit in aside.items() if self.head[e] not in depth}
                e, slack = self._widest_arc(aside, goal - weight, weight)
                for used in chosen:
                    self._use_arc(used, slack - weight)
                weight = slack
                retried = [other for other in aside if other != e]
                aside = {}
                for other in retried:
                    offer(other)
            self._use_arc(e, weight)
            chosen.append(e)
            v = self.head[e]
            depth[v] = depth[self.tail[e]] + 1
            for other in self.out[v]:
                if self.head[other] not in depth:
                    offer(other)
        return weight, tuple(sorted(chosen))

    def _use_arc(self, e: int, weight: int) -> None:
        """Subtract the weight from an arc's capacity."""
        self.remaining[e] -= weight
        self.capacity_now[self.position[e]] -= weight

    def _widest_arc(self, aside: dict[int, int], other_weight: int, weight: int) -> tuple[int, int]:
        """Return the arc of `aside` that can carry the greatest weight, and this weight.

        The bounds in `aside` were computed for an earlier, smaller tree; what arcs can carry has only fallen since.
        Some arc can carry a weight above 0, by Edmonds' theorem.
        """
        best, max_slack = -1, 0
        # by descending upper bound: stop once it is no better than the best so far
        for e in sorted(aside, key=lambda e: (-aside[e], e)):
            if aside[e] <= max_slack:
                break
            slack = min(self.remaining[e], self._spare_flow(e, other_weight, weight))
            if slack > max_slack:
                best, max_slack = e, slack
        return best, max_slack

    def _spare_flow(self, e: int, other_weight: int, weight: int) -> int:
        """Return how much of `weight` the flow from an arc's tail and the root to its head has beside the other trees.

        `other_weight`: the weight of all other trees.
        """
        u, v = self.tail[e], self.head[e]
        needed = other_weight + weight
        # cheap test first: paths of at most two arcs often carry enough, and need no maximum flow
        inflow = [0] * self.vertices
        for start in {u, self.root}:
            for other in self.out[start]:
                inflow[self.head[other]] += self.remaining[other]
        inflow[u] = inflow[self.root] = needed
        inflow_of: dict[int, int] = {}
        for other in self.into[v]:
            inflow_of[self.tail[other]] = inflow_of.get(self.tail[other], 0) + self.remaining[other]
        if sum(min(x, inflow[w]) for w, x in inflow_of.items()) >= needed:
            return weight  # paths of one or two arcs suffice
        feed = [0] * self.vertices
        feed[u] = feed[self.root] = needed
        source = u if u == self.root else self.vertices
        # capacities of the usable arcs, then of the arcs from the extra source
        return min(weight, self.flows.value([*self.capacity_now, *feed], source, v) - other_weight)


def _central_vertex(vertices: int, edges: Sequence[WeightedEdge]) -> int:
    """Return a vertex of least eccentricity (distance to the farthest vertex); ties: the one with most capacity."""
    neighbours: list[list[int]] = [[] for _ in range(vertices)]
    width = [0] * vertices
    for a, b, capacity in edges:
        neighbours[a].append(b)
        neighbours[b].append(a)
        width[a] += capacity
        width[b] += capacity
    keys: list[tuple[int, int, int]] = []  # eccentricity, -capacity, vertex
    for start in range(vertices):
        depth, queue = {start: 0}, [start]
        for v in queue:
            for w in neighbours[v]:
                if w not in depth:
                    depth[w] = depth[v] + 1
                    queue.append(w)
        farthest = queue[-1]
        keys.append((depth[farthest], -width[start], start))
    *_, vertex = min(keys)
    return vertex
