"""Decide by backtracking whether trees of given weights fit into given capacities.

Input: a graph with integral capacities, and the weight of each tree. Output (`TreeSearch.search_trees`): trees of these
weights that together load no edge beyond its capacity, or None, which proves that there are none. fewest.py calls this
to find the fewest trees.

The edges are decided one after the other: which of the trees take this one? Trees of equal weight that have taken the
same edges so far are interchangeable (`TreeClass`), so only their number is chosen. A state per class records which
vertices its trees connect. Branches are cut off by

    capacity        the trees that take an edge have at most its capacity together
    connectivity    trees that cannot be connected without the edge must take it; no tree closes a cycle
    slack           for some partitions (or cuts): the capacity across them, minus the load that any trees of these
                    weights must send across. Capacity that stays unused there uses up slack, and so do trees that
                    cross more often than they must. A slack below 0 means that there is no solution
    waste           an undecided edge carries the sum of some of the weights; capacity that no such sum can fill counts
                    as unused already

Example: two trees of weight 1 on a triangle whose edges have capacity 1. Each tree takes 2 edges, 4 in all, of 3: the
slack of the finest partition is 3 - 2 * 2 < 0, so the search ends before its first node. One tree leaves slack 1: it
may leave one edge unused, and the first two edges that are tried form a tree.

`SpanningSearch` looks for undirected spanning trees and tracks the slack of partitions; `ArborescenceSearch` looks for
trees of arcs out of a root and tracks that of cuts. In both, "item" is an edge or arc.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from antiphon.planners.trees.direct_links import radius

EdgeSets = list[tuple[int, ...]]  # by tree: the numbers of its edges
WeightedEdge = tuple[int, int, int]  # a, b, capacity
Joined = tuple[tuple[int, ...], ...]  # by partition and vertex: a set of vertices, as a bit mask
SpanningState = tuple[int, tuple[int, ...]]  # number of the connections; positions of the edges taken


class NodeLimitReached(Exception):
    """The search reached its limit of search nodes (calls of `_search_from`)."""


class TreeClass(NamedTuple):
    """Trees (by number) of one weight that have taken the same items so far, which `state` describes."""

    state: Any
    trees: tuple[int, ...]
    weight: int


class TreeSearch(ABC):
    """Backtracking over items (edges or arcs), common to both kinds of trees."""

    def __init__(self, items: Sequence[int], ends: Sequence[WeightedEdge], tracked: Sequence[tuple[int, ...]]) -> None:
        """Set what both searches need.

        `items`: edges or arcs in the order of decisions. By position in `items`: `ends`: its two ends and its capacity.
        `tracked`: the numbers of the partitions (or cuts) that it crosses.
        """
        self.items, self.ends, self.tracked = items, ends, tracked

    @abstractmethod
    def start_state(self) -> Any:
        """Return the state of a tree that has taken no item."""

    @abstractmethod
    def take_item(self, state: Any, at: int) -> tuple[Any, tuple[int, ...]] | None:
        """Return the state of a tree after it takes the item at position `at`; None if it may not take it.

        Also return the numbers of the partitions (or cuts) that the tree now crosses more often than it must, whose
        slack its weight reduces.
        """

    @abstractmethod
    def can_skip(self, state: Any, at: int) -> bool:
        """Return whether a tree can still be connected without item `at`."""

    @abstractmethod
    def count_slacks(self, total: int) -> list[int]:
        """Return the slack of every partition (or cut) for trees of this total weight, before the first item."""

    def search_trees(self, weights: Sequence[int], limit: int) -> tuple[EdgeSets | None, int]:
        """Return trees of these weights (descending) or None, and the number of nodes visited.

        None proves that there are none. Raises NodeLimitReached after `limit` nodes.
        """
        slack = self.count_slacks(sum(weights))
        self._compute_waste(weights, len(slack))
        self.limit, self.nodes = limit, 0
        self.picked: list[tuple[int, ...]] = [()] * len(self.items)
        # if the waste, which no choice avoids, exceeds some slack, there are no such trees
        if any(s < waste for s, waste in zip(slack, self.waste[0], strict=True)):
            return None, 0
        by_weight = itertools.groupby(range(len(weights)), key=lambda i: weights[i])
        groups = [TreeClass(self.start_state(), tuple(trees), weight) for weight, trees in by_weight]
        if not self._search_from(at=0, groups=groups, slack=slack):
            return None, self.nodes
        trees: list[list[int]] = [[] for _ in weights]
        for at, picked in enumerate(self.picked):
            for i in picked:
                trees[i].append(self.items[at])
        return [tuple(sorted(tree)) for tree in trees], self.nodes

    def _compute_waste(self, weights: Sequence[int], slack_count: int) -> None:
        """Set `waste[at][t]`: the capacity of items from `at` on, across partition t, that no sum of weights
        can fill.
        """
        sums = {0}
        for weight in weights:
            # all sums of subsets of the weights: the only loads that a link can have
            sums |= {x + weight for x in sums}
        loads = sorted(sums)
        self.waste = [[0] * slack_count]
        for (_, _, capacity), tracked in zip(reversed(self.ends), reversed(self.tracked), strict=True):
            row = list(self.waste[-1])
            # capacity minus the largest sum of weights that fits
            unused = capacity - max(x for x in loads if x <= capacity)
            for t in tracked:
                row[t] += unused
            self.waste.append(row)
        self.waste.reverse()

    def _search_from(self, at: int, groups: list[TreeClass], slack: list[int]) -> bool:
        """Decide the items from position `at` on; return whether there are trees. `picked`: by item, the trees that
        take it.
        """
        self.nodes += 1
        if self.nodes > self.limit:
            raise NodeLimitReached
        if at == len(self.items):
            return True
        with_item = [self.take_item(group.state, at) for group in groups]
        can_skip = [self.can_skip(group.state, at) for group in groups]
        # the most capacity of the item that may stay unused: no slack may fall below the waste of the later items
        room = min((slack[t] - self.waste[at + 1][t] for t in self.tracked[at]), default=None)
        # try all numbers of trees per group that may take this item, those that leave the least unused first
        _, _, capacity = self.ends[at]
        for counts, unused in _list_assignments(groups, with_item, can_skip, capacity, room):
            new_slack = list(slack)
            for t in self.tracked[at]:
                new_slack[t] -= unused
            new_groups: list[TreeClass] = []
            picked: tuple[int, ...] = ()
            for group, into, j in zip(groups, with_item, counts, strict=True):
                if j:
                    assert into is not None
                    state, crossed_again = into
                    for t in crossed_again:
                        new_slack[t] -= j * group.weight
                    # the class splits into trees that take the item and trees that do not; by symmetry it does not
                    # matter which ones
                    new_groups.append(TreeClass(state, group.trees[:j], group.weight))
                    picked += group.trees[:j]
                if j < len(group.trees):
                    new_groups.append(TreeClass(group.state, group.trees[j:], group.weight))
            if all(s >= waste for s, waste in zip(new_slack, self.waste[at + 1], strict=True)):
                self.picked[at] = picked
                if self._search_from(at + 1, new_groups, new_slack):
                    return True
        return False


def _list_assignments(
    groups: Sequence[TreeClass], with_item: Sequence[Any], can_skip: Sequence[bool], capacity: int, room: int | None
) -> list[tuple[tuple[int, ...], int]]:
    """Return the possible numbers of trees per class that take an item, with the capacity then unused, the least first.

    `with_item`: by class, None if its trees may not take the item. `can_skip`: by class, whether its trees need not
    take it. `room`: the most capacity that may stay unused (None: any amount).
    """
    fillable = 0  # capacity that the classes not yet decided can use
    for group, into in zip(groups, with_item, strict=True):
        fillable += len(group.trees) * group.weight if into is not None else 0
    # (unused capacity, choice for the classes so far), class by class
    choices: list[tuple[int, tuple[int, ...]]] = [(capacity, ())]
    for (_, trees, weight), into, skippable in zip(groups, with_item, can_skip, strict=True):
        max_count = len(trees) if into is not None else 0
        # trees that cannot be connected without the item must take it, all of them
        min_count = 0 if skippable else len(trees)
        fillable -= max_count * weight
        # leave out choices where more would stay unused than the slack allows, even if all later classes took the item
        max_unused = capacity if room is None else room + fillable
        choices = [
            (remaining, (*counts, j))
            for unused, counts in choices
            for j in range(min(max_count, unused // weight), min_count - 1, -1)
            if (remaining := unused - j * weight) <= max_unused
        ]
    choices.sort(key=itemgetter(0))  # by unused capacity; equal ones stay in order
    return [(counts, unused) for unused, counts in choices]


def _edge_order(vertices: int, edges: Sequence[WeightedEdge]) -> list[int]:
    """Return the order of decisions: vertex by vertex, that with the fewest undecided edges first.

    So all edges of some vertices are decided early, and dead ends show up early.
    """
    unordered = set(range(len(edges)))
    edges_at: list[list[int]] = [[e for e, (a, b, _) in enumerate(edges) if v in (a, b)] for v in range(vertices)]
    order, remaining = [], set(range(vertices))
    while remaining:
        v = min(remaining, key=lambda v: (sum(e in unordered for e in edges_at[v]), -len(edges_at[v]), v))
        remaining.discard(v)
        vertex_edges = _widest_first(edges, (e for e in edges_at[v] if e in unordered))
        unordered.difference_update(vertex_edges)
        order += vertex_edges
    return order


def _widest_first(edges: Sequence[WeightedEdge], numbers: Iterable[int]) -> list[int]:
    """Return these edges (or arcs) by descending capacity, then by number."""
    capacity = [edge_capacity for _, _, edge_capacity in edges]
    return sorted(numbers, key=lambda e: (-capacity[e], e))


class SpanningSearch(TreeSearch):
    """Search for undirected spanning trees, at most `deepest` deep.

    Slack is tracked for the partition into single vertices and for `partitions` (by vertex, the label of its part).
    State: the position in `connections` of what is connected (`Joined`: by partition and vertex, the vertices connected
    with it if those of one part count as connected); and, if `deepest` is given, the positions of the edges taken.
    """

    def __init__(
        self,
        vertices: int,
        edges: Sequence[WeightedEdge],
        partitions: Sequence[Sequence[int]],
        deepest: int | None = None,
    ) -> None:
        self.vertices, self.deepest = vertices, deepest
        self.labels = [list(range(vertices)), *map(list, partitions)]
        order = _edge_order(vertices, edges)
        ends = [edges[e] for e in order]
        tracked = [tuple(t for t, part_of in enumerate(self.labels) if part_of[a] != part_of[b]) for a, b, _ in ends]
        super().__init__(order, ends, tracked)
        self.later_neighbours = [[0] * vertices]  # by position: neighbours over the items from there on
        for a, b, _ in reversed(ends):
            row = list(self.later_neighbours[-1])
            row[a] |= 1 << b
            row[b] |= 1 << a
            self.later_neighbours.append(row)
        self.later_neighbours.reverse()
        self.all_vertices = (1 << vertices) - 1
        self.exits: list[dict[int, bool]] = [{} for _ in ends]  # by position and set of vertices: `_has_exit`
        self.connections: list[Joined] = []
        self.number_of: dict[Joined, int] = {}  # the inverse of `connections`
        # by position, and number in `connections`: the results of `_join_ends` and `_stays_connected`
        self.joins: list[dict[int, tuple[SpanningState, tuple[int, ...]] | None]] = [{} for _ in ends]
        self.skips: list[dict[int, bool]] = [{} for _ in ends]

    def count_slacks(self, total: int) -> list[int]:
        """Return the slacks: each tree crosses a partition (parts - 1) times at least."""
        crossing = [0] * len(self.labels)
        for (_, _, capacity), tracked in zip(self.ends, self.tracked, strict=True):
            for t in tracked:
                crossing[t] += capacity
        return [c - (len(set(part_of)) - 1) * total for c, part_of in zip(crossing, self.labels, strict=True)]

    def start_state(self) -> Any:
        """Return the state where every vertex is connected with itself only, or in coarser partitions with its part."""
        joined = (
            tuple(sum(1 << w for w, other in enumerate(labels) if other == label) for label in labels)
            for labels in self.labels
        )
        return self._number_of(tuple(joined)), ()

    def take_item(self, state: Any, at: int) -> tuple[Any, tuple[int, ...]] | None:
        """Join the ends of the edge; None if that closes a cycle, is too deep, or isolates vertices."""
        number, edges_taken = state
        # few connections recur at every edge, reached by different trees: 900 in 78,000 calls on a DGX-1
        if number not in self.joins[at]:
            self.joins[at][number] = self._join_ends(number, at)
        result = self.joins[at][number]
        if result is None or self.deepest is None:
            return result
        (joined, _), crossed_again = result
        edges_taken = (*edges_taken, at)
        single_vertices, *_ = self.connections[joined]  # the partition into these: what is connected in fact
        complete = single_vertices[0] == self.all_vertices
        # radius: the depth below the middle of the tree, which is the root of least depth
        if complete and radius(self.vertices, [self.ends[i][:2] for i in edges_taken]) > self.deepest:
            return None
        return (joined, edges_taken), crossed_again

    def _join_ends(self, number: int, at: int) -> tuple[SpanningState, tuple[int, ...]] | None:
        """Return the state with edge `at`, without edges taken, and the partitions crossed again.

        None if the edge closes a cycle, or if an incomplete component then has no edge to other vertices.
        """
        a, b, _ = self.ends[at]
        joined = self.connections[number]
        component, *_ = joined
        if component[a] >> b & 1:
            return None
        union_of_ends = component[a] | component[b]
        if union_of_ends != self.all_vertices and not self._has_exit(union_of_ends, at):
            return None
        new, crossed_again = [], []
        # an edge across a partition joins its ends there, or, if they are connected there already, crosses it again
        for t, joined_by_partition in enumerate(joined):
            if t not in self.tracked[at]:
                new.append(joined_by_partition)
            elif joined_by_partition[a] >> b & 1:
                crossed_again.append(t)
                new.append(joined_by_partition)
            else:
                union = joined_by_partition[a] | joined_by_partition[b]
                new.append(tuple(union if union >> v & 1 else x for v, x in enumerate(joined_by_partition)))
        return (self._number_of(tuple(new)), ()), tuple(crossed_again)

    def _number_of(self, joined: Joined) -> int:
        """Return the number of these connections in `connections`, where new ones are added."""
        number = self.number_of.setdefault(joined, len(self.connections))
        if number == len(self.connections):
            self.connections.append(joined)
        return number

    def can_skip(self, state: Any, at: int) -> bool:
        """Return whether the components of both ends have an edge to other vertices among later items."""
        number, _ = state
        if number not in self.skips[at]:
            component, *_ = self.connections[number]
            self.skips[at][number] = self._stays_connected(component, at)
        return self.skips[at][number]

    def _stays_connected(self, component: Sequence[int], at: int) -> bool:
        """Return whether the components of both ends of edge `at` can grow without it."""
        a, b, _ = self.ends[at]
        of_a, of_b = component[a], component[b]
        return of_a == self.all_vertices or (self._has_exit(of_a, at) and self._has_exit(of_b, at))

    def _has_exit(self, inside: int, at: int) -> bool:
        """Return whether some edge after this position leaves the vertices `inside`; cached, as it is asked often."""
        has_exit = self.exits[at].get(inside)
        if has_exit is None:
            later = self.later_neighbours[at + 1]
            has_exit = any(inside >> v & 1 and later[v] & ~inside for v in range(self.vertices))
            self.exits[at][inside] = has_exit
        return has_exit


class ArborescenceSearch(TreeSearch):
    """Search for trees of arcs out of a root, at most `deepest` deep.

    Slack is tracked for `cuts` (sets of vertices without the root, as bit masks). State of a tree: by vertex the top of
    its component; by vertex its depth below the top; the cuts crossed so far (bit mask).
    """

    def __init__(
        self, vertices: int, arcs: Sequence[WeightedEdge], root: int, cuts: Sequence[int], deepest: int | None = None
    ) -> None:
        self.vertices, self.root, self.cuts = vertices, root, list(cuts)
        self.deepest = vertices if deepest is None else deepest
        order = [e for v in _breadth_first(arcs, root) for e in _arcs_into(arcs, v)]
        ends = [arcs[e] for e in order]
        tracked = [
            tuple(t for t, inside in enumerate(self.cuts) if inside >> b & 1 and not inside >> a & 1)
            for a, b, _ in ends
        ]
        super().__init__(order, ends, tracked)
        self.later_tails: list[tuple[int, ...]] = []  # by position: the tails of further arcs into the same vertex
        for at, (_, b, _) in enumerate(ends):
            self.later_tails.append(tuple(u for u, v, _ in ends[at + 1 :] if v == b))

    def count_slacks(self, total: int) -> list[int]:
        """Return the slacks: each tree crosses a cut once at least."""
        crossing = [0] * len(self.cuts)
        for (_, _, capacity), tracked in zip(self.ends, self.tracked, strict=True):
            for t in tracked:
                crossing[t] += capacity
        return [c - total for c in crossing]

    def start_state(self) -> Any:
        """Return the state where every vertex is the top of its own component, at depth 0, and no cut is crossed."""
        return tuple(range(self.vertices)), (0,) * self.vertices, 0

    def take_item(self, state: Any, at: int) -> tuple[Any, tuple[int, ...]] | None:
        """Put the component of the arc's head below its tail; None if that is too deep or no tree."""
        a, b, _ = self.ends[at]
        top, depth, crossed_cuts = state
        # b already has a parent, or is itself the top of a's component (a cycle)
        if top[b] != b or top[a] == b:
            return None
        # b's whole component comes below a
        added_depth = depth[a] + 1
        new_depth = tuple(x + added_depth if t == b else x for x, t in zip(depth, top, strict=True))
        if max(new_depth) > self.deepest:
            return None
        crossed_again = tuple(t for t in self.tracked[at] if crossed_cuts >> t & 1)
        for t in self.tracked[at]:
            crossed_cuts |= 1 << t
        return (tuple(top[a] if t == b else t for t in top), new_depth, crossed_cuts), crossed_again

    def can_skip(self, state: Any, at: int) -> bool:
        """Return whether the head has a parent already, or a later arc can still enter it."""
        _, b, _ = self.ends[at]
        top, *_ = state
        return bool(top[b] != b or any(top[a] != b for a in self.later_tails[at]))


def _breadth_first(arcs: Sequence[WeightedEdge], root: int) -> Iterator[int]:
    """Yield the vertices but the root in breadth-first order from it."""
    visited, queue = {root}, [root]
    for v in queue:
        for a, b, _ in arcs:
            if a == v and b not in visited:
                visited.add(b)
                queue.append(b)
    return iter(queue[1:])


def _arcs_into(arcs: Sequence[WeightedEdge], v: int) -> list[int]:
    """Return the arcs into a vertex, the widest first."""
    return _widest_first(arcs, (e for e, (_, head, _) in enumerate(arcs) if head == v))
