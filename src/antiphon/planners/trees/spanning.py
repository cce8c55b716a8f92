"""Allreduce on links alike both ways: undirected spanning trees, packed exactly at the greatest rate.

tau = min over partitions of capacity between the parts / (parts - 1) (Tutte; Nash-Williams; Cunningham): every tree
crosses a partition at least parts - 1 times, and a fractional packing attains it. A tree is used up (reduce) and down
(broadcast), so trees at rate tau make an allreduce at tau, which no schedule beats (core.bounds). The packing is found
in whole numbers: with tau = p/q and capacities times q, there are trees of total weight p. It goes by orientation
(Frank): within what is kept of the edges, as much as a forest may use, every vertex but a root can be given p of the
capacity that meets it; then p arborescences exist (Edmonds), and are cut off one after the other, each as heavily as a
flow allows (Lovász).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from antiphon.core.bounds.maxflow import EXACT_DOUBLES, Flows
from antiphon.planners.trees.both_ways import Undirected, laid, strength
from antiphon.planners.trees.tree import Tree

Weighted = tuple[int, tuple[int, ...]]  # a tree by its edges (or arcs), and its weight
Plain = tuple[int, int, int]  # a, b, capacity


@dataclass(frozen=True)
class Spanning:
    """Trees of total rate `tau` units (a unit = `unit` bytes/s), and the partition (of ranks) that bounds it."""

    trees: tuple[Tree, ...]
    tau: Fraction
    unit: Fraction
    parts: tuple[tuple[int, ...], ...]

    @property
    def rate(self) -> Fraction:
        """Bytes per second of the allreduce."""
        return self.tau * self.unit


def spanning(machine: Undirected) -> Spanning:
    """Trees that attain tau exactly, each hung from its middle; at most about as many as edges.

    O(trees * vertices) maximum flows after those for tau.
    """
    bound = strength(machine)
    place = {rank: v for v, rank in enumerate(machine.members)}
    parts = [[place[rank] for rank in part] for part in bound.parts]
    weighted = pack(machine.vertices, [edge[:3] for edge in machine.edges], bound.tau, parts)
    scale = machine.unit / bound.tau.denominator
    trees = tuple(laid(machine, chosen, weight * scale) for weight, chosen in weighted)
    return Spanning(trees, bound.tau, machine.unit, bound.parts)


def pack(vertices: int, edges: Sequence[Plain], tau: Fraction, parts: Sequence[Sequence[int]]) -> list[Weighted]:
    """Spanning trees of weights that add up to tau.numerator, within tau.denominator times the capacities.

    `parts` is a weakest partition, so all that crosses it is used up and each tree crosses it as seldom as it can:
    what joins the parts and what lies in each are packed apart, and laid side by side.
    """
    goal, scale = tau.numerator, tau.denominator
    owner = {v: i for i, part in enumerate(parts) for v in part}
    across = [e for e, (a, b, _) in enumerate(edges) if owner[a] != owner[b]]
    joint = [(owner[edges[e][0]], owner[edges[e][1]], edges[e][2] * scale) for e in across]
    layers = [_named(_base(len(parts), joint, goal), across)]
    for i, part in enumerate(parts):
        if len(part) > 1:
            number = {v: j for j, v in enumerate(part)}
            inner = [e for e, (a, b, _) in enumerate(edges) if owner[a] == owner[b] == i]
            plain = [(number[edges[e][0]], number[edges[e][1]], edges[e][2] * scale) for e in inner]
            layers.append(_named(_base(len(part), plain, goal), inner))
    return side_by_side(layers)


def _named(trees: list[Weighted], numbers: Sequence[int]) -> list[Weighted]:
    return [(weight, tuple(numbers[e] for e in chosen)) for weight, chosen in trees]


def side_by_side(layers: Sequence[list[Weighted]]) -> list[Weighted]:
    """Packings of equal total weight as one: each tree joins one of every layer, by the common refinement."""
    stacks = [sorted(layer, reverse=True) for layer in layers]
    merged: dict[tuple[int, ...], int] = {}
    at = [0] * len(stacks)
    left = [stack[0][0] for stack in stacks]
    while True:
        step = min(left)
        chosen = tuple(sorted(e for stack, i in zip(stacks, at, strict=True) for e in stack[i][1]))
        merged[chosen] = merged.get(chosen, 0) + step
        for s, stack in enumerate(stacks):
            left[s] -= step
            if not left[s]:
                at[s] += 1
                if at[s] == len(stack):
                    return [(weight, chosen) for chosen, weight in merged.items()]
                left[s] = stack[at[s]][0]


def _base(vertices: int, edges: Sequence[Plain], goal: int) -> list[Weighted]:
    """Spanning trees of total weight `goal`, where no partition forbids it."""
    pull = _Orientation(vertices, edges, goal)
    arcs, amount = pull.arcs()
    found = Arborescences(vertices, arcs, amount, pull.root).run(goal)
    return [(weight, tuple(e // 2 for e in chosen)) for weight, chosen in found]


class _Orientation:
    """How much of each edge is kept, and at which of its ends it counts: at most `goal` at each vertex.

    Edges come in one by one, each kept as far as no set S of vertices holds more than goal * (|S| - 1): that much
    room can be gathered at its ends by turning edges round (Hakimi; a maximum flow). O(edges) maximum flows, one
    where all of every edge fits.
    """

    def __init__(self, vertices: int, edges: Sequence[Plain], goal: int) -> None:
        self.vertices, self.edges, self.goal = vertices, edges, goal
        self.root = _centre(vertices, edges)
        total = sum(capacity for *_, capacity in edges)
        if total == goal * (vertices - 1):
            self.held = self._at_once()
        else:
            self.held = self._one_by_one()

    def arcs(self) -> tuple[list[tuple[int, int]], list[int]]:
        """Arcs 2e (a to b) and 2e + 1 (b to a) with their capacities."""
        pairs = [pair for a, b, _ in self.edges for pair in ((a, b), (b, a))]
        return pairs, [x for at_a, at_b in self.held for x in (at_b, at_a)]

    def _at_once(self) -> list[tuple[int, int]]:
        """All of every edge to its ends, so that every vertex but the root has `goal`."""
        n, m = self.vertices, len(self.edges)
        source, sink = n + m, n + m + 1
        tail, head, capacity = [source] * m, [n + e for e in range(m)], [c for *_, c in self.edges]
        for e, (a, b, c) in enumerate(self.edges):
            tail += [n + e, n + e]
            head += [a, b]
            capacity += [c, c]
        for v in range(n):
            tail.append(v)
            head.append(sink)
            capacity.append(0 if v == self.root else self.goal)
        flow = arc_flows(n + m + 2, tail, head, capacity, source, sink)
        return [(flow[m + 2 * e], flow[m + 2 * e + 1]) for e in range(m)]

    def _one_by_one(self) -> list[tuple[int, int]]:
        """The widest edges first. What an edge counts at one end may move to the other: an arc between them."""
        n, goal = self.vertices, self.goal
        held = [(0, 0)] * len(self.edges)
        order = sorted(range(len(self.edges)), key=lambda e: (-self.edges[e][2], e))
        wanted = goal * (n - 1)
        for e in order:
            a, b, capacity = self.edges[e]
            held = self._gathered(held, (a, b), goal + capacity)
            room_a, room_b = (goal - self._load(held, v) for v in (a, b))
            keep = min(capacity, room_a + room_b - goal)
            held[e] = (min(keep, room_a), keep - min(keep, room_a))
            wanted -= keep
            if not wanted:
                break
        return self._gathered(held, (self.root,), goal)

    def _load(self, held: list[tuple[int, int]], v: int) -> int:
        return sum((a == v) * x + (b == v) * y for (a, b, _), (x, y) in zip(self.edges, held, strict=True))

    def _gathered(self, held: list[tuple[int, int]], at: Sequence[int], want: int) -> list[tuple[int, int]]:
        """Edges turned round until these vertices have `want` of room together, or as much as can be."""
        n, goal = self.vertices, self.goal
        load = [0] * n
        for (a, b, _), (x, y) in zip(self.edges, held, strict=True):
            load[a] += x
            load[b] += y
        missing = want - sum(goal - load[v] for v in at)
        if missing <= 0:
            return list(held)
        tail, head, capacity = [n] * len(at), list(at), [load[v] for v in at]
        for (a, b, _), (x, y) in zip(self.edges, held, strict=True):
            tail += [a, b]
            head += [b, a]
            capacity += [x, y]
        for v in range(n):
            tail.append(v)
            head.append(n + 1)
            capacity.append(0 if v in at else goal - load[v])
        tail.append(n + 2)  # no more than is missing
        head.append(n)
        capacity.append(missing)
        flow = arc_flows(n + 3, tail, head, capacity, n + 2, n + 1)[len(at) :]
        turned = [flow[2 * e] - flow[2 * e + 1] for e in range(len(self.edges))]
        return [(x - t, y + t) for (x, y), t in zip(held, turned, strict=True)]


class Arborescences:
    """Whole capacities in which every vertex but the root can be reached `goal` times over, by disjoint ways.

    For one root; for many see arborescences, whose flows are kept from tree to tree. With one root flows made anew by
    a compiled library are the quicker ones, tenfold on 128 ranks.

    Such arborescences of total weight `goal` exist (Edmonds). One is grown arc by arc and its weight kept as great as
    lets the rest be packed: an arc from u (in the tree) to v can take w more if the flow from u and the root to v
    exceeds what all other trees need by w (Lovász's condition, for all sets with v and without u).
    """

    def __init__(self, vertices: int, arcs: Sequence[tuple[int, int]], capacity: Sequence[int], root: int) -> None:
        self.vertices, self.arcs, self.root = vertices, arcs, root
        self.left = list(capacity)

    def run(self, goal: int) -> list[Weighted]:
        found: dict[tuple[int, ...], int] = {}
        while goal:
            weight, chosen = self._cut_off(goal)
            found[chosen] = found.get(chosen, 0) + weight
            goal -= weight
        return [(weight, chosen) for chosen, weight in found.items()]

    def _live(self) -> None:
        """The arcs that are not yet used up, and the network of them."""
        n, left = self.vertices, self.left
        live = [e for e in range(len(self.arcs)) if left[e]]
        self.place = {e: i for i, e in enumerate(live)}
        self.out: list[list[int]] = [[] for _ in range(n)]
        self.into: list[list[int]] = [[] for _ in range(n)]
        for e in live:
            self.out[self.arcs[e][0]].append(e)
            self.into[self.arcs[e][1]].append(e)
        tail, head = [self.arcs[e][0] for e in live], [self.arcs[e][1] for e in live]
        self.now = [left[e] for e in live]
        self.flows = Flows(n + 1, tail + [n] * n, head + list(range(n)))  # n feeds any vertex, where opened

    def _cut_off(self, goal: int) -> Weighted:
        """One arborescence, as heavy as it grows: arcs near the root and wide ones first."""
        self._live()
        most = [max((self.left[e] for e in into), default=0) for into in self.into]
        weight = min([goal, *(most[v] for v in range(self.vertices) if v != self.root)])
        depth = {self.root: 0}
        chosen: list[int] = []
        ready: list[tuple[int, int, int]] = []  # arcs out of the tree that may take all of the weight
        aside: dict[int, int] = {}  # those that cannot, and what they take at most

        def offer(e: int) -> None:
            if self.left[e] >= weight:
                heapq.heappush(ready, (depth[self.arcs[e][0]], -self.left[e], e))
            else:
                aside[e] = self.left[e]

        for e in self.out[self.root]:
            offer(e)
        while len(depth) < self.vertices:
            while ready:
                e = heapq.heappop(ready)[2]
                if self.arcs[e][1] not in depth:
                    slack = self._spare(e, goal - weight, weight)
                    if slack >= weight:
                        break
                    aside[e] = slack
            else:  # all of the tree so far gets lighter
                aside = {e: most for e, most in aside.items() if self.arcs[e][1] not in depth}
                e, slack = self._widest(aside, goal - weight, weight)
                for used in chosen:
                    self._give(used, slack - weight)
                weight = slack
                again = [other for other in aside if other != e]
                aside = {}
                for other in again:
                    offer(other)
            self._give(e, weight)
            chosen.append(e)
            v = self.arcs[e][1]
            depth[v] = depth[self.arcs[e][0]] + 1
            for other in self.out[v]:
                if self.arcs[other][1] not in depth:
                    offer(other)
        return weight, tuple(sorted(chosen))

    def _give(self, e: int, weight: int) -> None:
        self.left[e] -= weight
        self.now[self.place[e]] -= weight

    def _widest(self, aside: dict[int, int], rest: int, weight: int) -> tuple[int, int]:
        """The arc that takes most: what is known is at most what was found when the tree was smaller."""
        best, most = -1, 0
        for e in sorted(aside, key=lambda e: (-aside[e], e)):
            if aside[e] <= most:
                break
            slack = min(self.left[e], self._spare(e, rest, weight))
            if slack > most:
                best, most = e, slack
        return best, most

    def _spare(self, e: int, rest: int, weight: int) -> int:
        """How much more than `rest` flows to the head of an arc from its tail and the root: weight, if that much."""
        u, v = self.arcs[e]
        enough = rest + weight
        fed = [0] * self.vertices
        for w in {u, self.root}:
            for other in self.out[w]:
                fed[self.arcs[other][1]] += self.left[other]
        fed[u] = fed[self.root] = enough
        near: dict[int, int] = {}
        for other in self.into[v]:
            near[self.arcs[other][0]] = near.get(self.arcs[other][0], 0) + self.left[other]
        if sum(min(x, fed[w]) for w, x in near.items()) >= enough:
            return weight  # paths of one or two arcs do
        opened = [0] * self.vertices
        opened[u] = opened[self.root] = enough
        source = u if u == self.root else self.vertices
        return min(weight, self.flows.value(self.now + opened, source, v) - rest)


def _centre(vertices: int, edges: Sequence[Plain]) -> int:
    """A vertex from which none is far; of these one that is met by most capacity."""
    near: list[list[int]] = [[] for _ in range(vertices)]
    width = [0] * vertices
    for a, b, capacity in edges:
        near[a].append(b)
        near[b].append(a)
        width[a] += capacity
        width[b] += capacity
    best: tuple[int, int, int] | None = None
    for start in range(vertices):
        depth, queue = {start: 0}, [start]
        for v in queue:
            for w in near[v]:
                if w not in depth:
                    depth[w] = depth[v] + 1
                    queue.append(w)
        key = (depth[queue[-1]], -width[start], start)
        best = key if best is None or key < best else best
    assert best is not None
    return best[2]


def arc_flows(nodes: int, tail: list[int], head: list[int], capacity: list[int], source: int, sink: int) -> list[int]:
    """How much a maximum flow sends over every arc, in whole numbers of any size.

    Doubles hold sums up to 2^53: larger ones come by capacity scaling, 20 bits at a time from the top.
    """
    import igraph

    pairs = list(zip(tail, head, strict=True))
    if sum(capacity) < EXACT_DOUBLES:
        return [int(x) for x in igraph.Graph(nodes, pairs, directed=True).maxflow(source, sink, capacity).flow]
    both = igraph.Graph(nodes, pairs + [(b, a) for a, b in pairs], directed=True)
    top = EXACT_DOUBLES // (4 * len(pairs))
    flow = [0] * len(pairs)
    shift = sum(capacity).bit_length()
    while shift:
        shift = max(shift - 20, 0)
        while True:
            residual = [c - x for c, x in zip(capacity, flow, strict=True)] + flow
            more = both.maxflow(source, sink, [min(x >> shift, top) for x in residual]).flow
            gained = [int(x) - int(y) for x, y in zip(more[: len(pairs)], more[len(pairs) :], strict=True)]
            if not any(gained):
                break
            flow = [x + (y << shift) for x, y in zip(flow, gained, strict=True)]
    return flow
