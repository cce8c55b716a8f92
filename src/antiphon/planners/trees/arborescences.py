"""Edmonds' theorem made to work: arborescences, each with a whole weight, that use up every root's supply.

Edmonds, "Edge-disjoint branchings" (1973): if every sink could receive all of every root's supply (by some flow), then
the supplies can be sent along spanning arborescences within the capacities. The proof grows trees arc by arc with
care that what is left could still serve all; done in batches (Schrijver, "Combinatorial Optimization", 53.2; Berczi and
Frank 2010 for many roots), every batch one tree of as much weight as it takes.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from antiphon.planners.trees.kernel import Arc, SinkFlows, bits
from antiphon.planners.trees.wires import Path


@dataclass(frozen=True)
class Arborescence:
    """`hops`: every node but the root as (parent, node, piece of the arc), a parent before its children."""

    root: int
    weight: int
    hops: tuple[tuple[int, int, Path], ...]
    depth: int


class Packing:
    """Grows one tree after the other, breadth first, so that trees are shallow and take whole weights.

    State: the flows of all sinks (every node is one) for what the roots have left, and the growing tree: its
    `members` in the order they joined, the `arc` by which each did, its `weight`.
    """

    def __init__(self, nodes: int, pieces: Mapping[Arc, Mapping[Path, int]], supply: Mapping[int, int]) -> None:
        """`pieces`: what each arc is made of, with capacities; a tree takes an arc within one piece."""
        self.pieces = {arc: sorted((amount, piece) for piece, amount in made.items()) for arc, made in pieces.items()}
        arcs = {arc: sum(made.values()) for arc, made in pieces.items()}
        self.flows = SinkFlows(nodes, nodes, arcs, supply)
        self.left = {root: amount for root, amount in sorted(supply.items()) if amount}
        self.out: list[list[int]] = [[] for _ in range(nodes)]
        for arc, tail in enumerate(self.flows.tail):
            self.out[tail].append(arc)
        self.members: list[int] = []
        self.inside = 0
        self.arc = [-1] * nodes
        self.depth = [0] * nodes
        self.turn = list(range(nodes))  # who comes first where arcs are alike
        self.weight = 0
        self.most: list[int] = []  # by arc: at most this much of the growing tree can take it

    def run(self) -> list[Arborescence]:
        """All trees: each root's weights sum to its supply. O(nodes^2) tries per tree, each some searches."""
        found = []
        while self.left:
            for root in list(self.left):
                self._grow(root)
                found.append(self._finish())
        return found

    def _finish(self) -> Arborescence:
        root, flows = self.members[0], self.flows
        self.left[root] -= self.weight
        if not self.left[root]:
            del self.left[root]
        arcs = [(flows.tail[self.arc[node]], node) for node in self.members[1:]]
        hops = tuple((*arc, _take_piece(self.pieces[arc], self.weight)) for arc in arcs)
        return Arborescence(root, self.weight, hops, max(self.depth[node] for node in self.members))

    def take_back(self, tree: Arborescence) -> None:
        """A finished tree's weight returns to its root's supply, its capacity to its arcs."""
        flows = self.flows
        self.members, self.inside = [tree.root, *(node for _, node, _ in tree.hops)], (1 << flows.nodes) - 1
        for parent, node, piece in tree.hops:
            self.arc[node] = flows.at[parent][node]
            _put_piece(self.pieces[parent, node], piece, tree.weight)
        self.weight = tree.weight
        self._give_back(tree.weight)
        self.left[tree.root] = self.left.get(tree.root, 0) + tree.weight

    def save(self) -> tuple[Any, ...]:
        """What `restore` needs to come back to this state. Between trees, with no supply left."""
        flows, pieces = self.flows, {arc: made[:] for arc, made in self.pieces.items()}
        return [row[:] for row in flows.flow], flows.capacity[:], [row[:] for row in flows.open], pieces

    def restore(self, saved: tuple[Any, ...]) -> None:
        self.flows.flow, self.flows.capacity, self.flows.open, self.pieces = saved
        self.left = {}

    def _grow(self, root: int) -> None:
        flows, nodes = self.flows, self.flows.nodes
        self.members, self.inside, self.weight = [root], 1 << root, self.left[root]
        self.depth[root] = 0
        for sink in range(nodes):
            flows.taken[root][sink] = self.weight if sink != root else 0
            flows.sources[sink] = 1 << root if sink != root else 0
        ends = zip(flows.tail, flows.head, strict=True)
        self.most = [self.pieces[arc][-1][0] for arc in ends]
        self._widen()
        while len(self.members) < nodes:
            self._narrow()
            self._widen()

    def _widen(self) -> None:
        """Add whatever takes all of the weight: level by level, and of a level the roomiest arcs first.

        What an arc can take of this tree only falls while the tree grows, so each is tried once.
        """
        flows, capacity = self.flows, self.flows.capacity
        for depth in range(flows.nodes):
            level = [node for node in self.members if self.depth[node] == depth]
            ready = [a for x in level for a in self.out[x] if self.most[a] >= self.weight]
            for arc in sorted(ready, key=lambda a: (-capacity[a], self.turn[flows.head[a]])):
                if self.inside >> flows.head[arc] & 1:
                    continue
                if self._take(arc, self.weight, keep=True):
                    self.join(arc)
                    if len(self.members) == flows.nodes:
                        return

    def _narrow(self) -> None:
        """No arc takes all of the weight: lower it to the most that some arc does take."""
        flows = self.flows
        ready = [a for x in self.members for a in self.out[x] if not self.inside >> flows.head[a] & 1]
        while True:
            best = max(ready, key=lambda a: self.most[a], default=-1)
            if best < 0 or not self.most[best]:
                raise AssertionError("no tree can grow: the supplies were not within the cuts")
            asked = self.most[best]
            if self._take(best, asked, keep=False):
                break
        self._give_back(self.weight - asked)

    def _take(self, arc: int, weight: int, keep: bool) -> bool:
        """Whether that much of the tree can take the arc while all sinks stay served; `most` learns how much can.

        If so and `keep`, the capacity is taken; else all is as before. O(sinks), and a search for each sink
        whose flow is in the way.
        """
        flows, row = self.flows, self.flows.flow[arc]
        tail, head, full = flows.tail[arc], flows.head[arc], flows.capacity[arc]
        got = min(weight, full)
        left = full - got
        near = [sink for sink, amount in enumerate(row) if amount >= left]
        flows.capacity[arc] = left
        for sink in near:
            if row[sink] > left:
                lacking = flows.divert(sink, arc, head)
                got, left = got - lacking, left + lacking
                flows.capacity[arc] = left
                if not got:
                    break
            else:
                flows.refresh(sink, tail, head)
        self.most[arc] = min(self.most[arc], got)
        if got == weight and keep:
            return True
        flows.capacity[arc] = full
        for sink in near:
            flows.untake(sink, arc)
        return got == weight

    def join(self, arc: int) -> None:
        """The tree goes on over this arc, which `_take` has kept for it; afterwards every sink's flow is one again."""
        flows = self.flows
        node = flows.head[arc]
        self.arc[node] = arc
        self.depth[node] = self.depth[flows.tail[arc]] + 1
        self.members.append(node)
        self.inside |= 1 << node
        self._release(node)

    def _release(self, sink: int) -> None:
        """A sink within the tree needs no flow from it: cancel it along its way."""
        flows = self.flows
        flows.retake(sink, sink, -1, flows.taken[sink][sink])
        for source in bits(flows.sources[sink]):
            while flows.taken[source][sink]:
                path = self._way(source, sink)
                amount = min(flows.taken[source][sink], *(flows.flow[arc][sink] for arc in path))
                for arc in path:
                    flows.send(sink, flows.head[arc], flows.tail[arc], amount)
                flows.retake(sink, source, -1, amount)

    def _way(self, source: int, sink: int) -> list[int]:
        """Arcs that the sink's flow uses from source to sink, as few as may be."""
        flows = self.flows
        came = {source: -1}
        for node in (queue := [source]):
            for arc in self.out[node]:
                head = flows.head[arc]
                if head not in came and flows.flow[arc][sink]:
                    came[head] = arc
                    queue.append(head)
            if sink in came:
                break
        path = [came[sink]]
        while flows.tail[path[-1]] != source:
            path.append(came[flows.tail[path[-1]]])
        return path

    def _give_back(self, amount: int) -> None:
        """That much of the tree's weight returns to its root's supply and its arcs: sinks that had it from
        somewhere in the tree get it from the root along the tree instead.
        """
        flows = self.flows
        for node in self.members[1:]:
            flows.widen(self.arc[node], amount)
        for sink in range(flows.nodes):
            if self.inside >> sink & 1:
                self._along(sink, sink, amount)
                continue
            left = amount
            for source in bits(flows.sources[sink]):
                part = min(left, flows.taken[source][sink])
                flows.retake(sink, source, -1, part)
                self._along(sink, source, part)
                left -= part
        self.weight -= amount

    def _along(self, sink: int, node: int, amount: int) -> None:
        """The sink's flow grows by that much on the tree's way from the root to the node."""
        flows, root = self.flows, self.members[0]
        while amount and node != root:
            arc = self.arc[node]
            flows.flow[arc][sink] += amount
            tail = flows.tail[arc]
            flows.refresh(sink, tail, node)
            flows.refresh(sink, node, tail)
            node = tail


def _take_piece(pieces: list[tuple[int, Path]], weight: int) -> Path:
    """Take the weight from the smallest piece that has it. The list stays ascending."""
    at = bisect_left(pieces, (weight, ()))
    amount, piece = pieces.pop(at)
    insort(pieces, (amount - weight, piece))
    return piece


def _put_piece(pieces: list[tuple[int, Path]], piece: Path, weight: int) -> None:
    """Give the weight back to the piece."""
    at = next(at for at, (_, other) in enumerate(pieces) if other == piece)
    amount, _ = pieces.pop(at)
    insort(pieces, (amount + weight, piece))
