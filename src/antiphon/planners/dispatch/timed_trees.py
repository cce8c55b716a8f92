"""Grow trees into a timeline: each item of data gets a tree that arrives in time and loads links as little as it can.

The planner `dispatch` calls `TimedTreeGrower.grow` for one item after the other. A turn is the time for which data
occupy a resource (link or shared limit); each item sees the turns that earlier ones have booked. For each item

    1. Dijkstra's algorithm finds the earliest arrival at every node, with the free intervals of all links.
    2. Arrivals by the deadline are as good as the earliest ones. So nodes move to cheaper arcs, the most costly first,
       as long as all nodes below them still get their data by the deadline. The cost of an arc is the time of its
       turns, where busy resources count more.
    3. The turns of the tree are booked.

Example: two boxes with several links between them. The earliest tree sends a block over all of these, so
that every GPU of the other box gets it directly. With a deadline, one link carries it, and the GPUs there forward it.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

from antiphon.planners.dispatch.network import Arc, ArcNetwork, BusyTimeline


@dataclass(frozen=True)
class Delivery:
    """A chunk with its sender and receivers."""

    chunk: int
    source: int
    receivers: frozenset[int]  # ranks that want it, without the source
    turns: Sequence[int]  # by resource, the femtoseconds for which the chunk occupies it


@dataclass
class _Visit:
    """When data are at a node of a tree, in femtoseconds.

    At a switch, the message that carries them goes on: it was ready at `ready`, its turns so far end at `end`, and its
    latencies so far are `latency`. At a rank the data have arrived, which is when the next message is ready.
    """

    ready: int
    end: int
    latency: int

    @property
    def arrival(self) -> int:
        return self.end + self.latency


@dataclass
class TimedTree:
    """The tree of an item. `arcs`: by node, the arc that leads to it, parents first."""

    item: Delivery
    arcs: dict[int, Arc] = field(default_factory=dict)
    finish: int = 0  # the last arrival, in femtoseconds


class TimedTreeGrower:
    """Grows the trees of all items. `price`: by resource, the cost of occupying it for a femtosecond (dispatch.py)."""

    def __init__(self, network: ArcNetwork, price: Sequence[float]) -> None:
        self.network, self.price = network, price
        self.timeline = BusyTimeline(len(network.pace))  # `pace` has one entry per resource

    def grow(self, item: Delivery, deadline: int | None) -> TimedTree | None:
        """Return the booked tree of an item; None if a rank is out of reach. `deadline` None: the earliest tree.

        The search sees the turns of earlier items only, not that two arcs of this tree may need a resource at the same
        time. Booking does, so `finish` may be later than the arrivals that were found, and than the deadline.
        """
        visits, arcs = self._find_earliest(item)
        if not item.receivers <= arcs.keys():
            return None
        _prune(arcs, item)
        if deadline is not None:
            self._cheapen(item, visits, arcs, deadline)
            _prune(arcs, item)
        return self._book(item, visits, arcs)

    def _visit(self, turns: Sequence[int], before: _Visit, arc: Arc, book: bool = False) -> _Visit:
        """Return the visit of the arc's head by data whose visit of its tail is `before`; book the turns if `book`.

        By the model's rules (network.py) every resource gives its turn from `ready` on, whenever the others do: a later
        link perhaps before an earlier one.
        """
        ready, end, timeline = before.ready, before.end, self.timeline
        for resource in arc.resources:
            begin = timeline.find_turn(resource, ready, turns[resource])
            end = max(end, begin + turns[resource])
            if book:
                timeline.book_turn(resource, begin, turns[resource])
        latency = before.latency + arc.latency
        if arc.head < self.network.ranks:
            return _Visit(end + latency, end + latency, latency=0)
        return _Visit(ready, end, latency)

    def _find_earliest(self, item: Delivery) -> tuple[dict[int, _Visit], dict[int, Arc]]:
        """Return the earliest visits of nodes, and the arcs that lead there (Dijkstra)."""
        visits, arcs = {item.source: _Visit(ready=0, end=0, latency=0)}, {}
        heap, done, missing = [(0, item.source)], set(), set(item.receivers)
        while heap and missing:
            _, node = heapq.heappop(heap)
            if node in done:
                continue
            done.add(node)
            missing.discard(node)
            for arc in self.network.out[node]:
                if arc.head not in done:
                    visit = self._visit(item.turns, visits[node], arc)
                    if arc.head not in visits or visit.arrival < visits[arc.head].arrival:
                        visits[arc.head], arcs[arc.head] = visit, arc
                        heapq.heappush(heap, (visit.arrival, arc.head))
        return visits, {node: arc for node, arc in arcs.items() if node in done}

    def _cheapen(self, item: Delivery, visits: dict[int, _Visit], arcs: dict[int, Arc], deadline: int) -> None:
        """Move nodes to arcs of less cost if all receivers below still get their data by the deadline.

        Changes `visits` and `arcs`.
        """

        def cost_of(arc: Arc) -> float:
            return sum(item.turns[resource] * self.price[resource] for resource in arc.resources)

        children: dict[int, set[int]] = {node: set() for node in (item.source, *arcs)}
        for node, arc in arcs.items():
            children[arc.tail].add(node)
        for node in sorted(arcs, key=lambda node: (-cost_of(arcs[node]), -visits[node].arrival, node)):
            old_arc = arcs[node]
            subtree = [node]  # parents first
            for descendant in subtree:
                subtree.extend(sorted(children[descendant]))
            options = [
                (cost_of(arc), arc.tail, arc.links, arc)
                for arc in self.network.into[node]
                if arc.tail in children and arc.tail not in subtree and cost_of(arc) < cost_of(old_arc)
            ]
            for *_, arc in sorted(options, key=lambda option: option[:3]):
                new_visits = {arc.tail: visits[arc.tail]}
                for descendant in subtree:
                    into = arc if descendant == node else arcs[descendant]
                    new_visits[descendant] = self._visit(item.turns, new_visits[into.tail], into)
                if all(new_visits[rank].arrival <= deadline for rank in subtree if rank in item.receivers):
                    children[old_arc.tail].discard(node)
                    children[arc.tail].add(node)
                    arcs[node] = arc
                    visits.update(new_visits)
                    break

    def _book(self, item: Delivery, visits: dict[int, _Visit], arcs: dict[int, Arc]) -> TimedTree:
        """Book the turns of a tree, parents first, and return it."""
        tree, booked_visits = TimedTree(item), {item.source: _Visit(ready=0, end=0, latency=0)}
        todo = sorted(arcs, key=lambda node: (visits[node].arrival, node), reverse=True)
        while todo:
            node = todo.pop()
            if arcs[node].tail not in booked_visits:  # ties, and moves to other arcs, may put it before its parent
                todo += [node, arcs[node].tail]
            elif node not in booked_visits:
                booked_visits[node] = self._visit(item.turns, booked_visits[arcs[node].tail], arcs[node], book=True)
                tree.arcs[node] = arcs[node]
                tree.finish = max(tree.finish, booked_visits[node].arrival)
        return tree


def _prune(arcs: dict[int, Arc], item: Delivery) -> None:
    """Drop the nodes below which nothing is wanted."""
    needed = {item.source}
    for rank in item.receivers:
        node = rank
        while node not in needed:
            needed.add(node)
            node = arcs[node].tail
    for node in arcs.keys() - needed:
        del arcs[node]
