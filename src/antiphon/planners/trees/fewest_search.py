"""Search for trees of given weights on given capacities, as backtracking: complete, so that failure is a proof.

The items (edges or arcs) are decided one after the other: which of the trees take this one? Trees of equal weight and
equal history are interchangeable (`Alike`), so only their number is chosen. A state per group of such trees records
the connected nodes. Pruning:

    capacity        the trees that take an item have at most its capacity together
    connectivity    trees that cannot be connected without the item must take it; cycles are never closed
    slack           for a tracked partition (or cut), capacity - load that any such trees must send across it. Capacity
                    left unused there, and unnecessary crossings, use it up; below 0 there is no solution
    waste           what no subset of the weights can fill of the items to come counts as used already

Example: two trees of weight 1 on a triangle whose edges have capacity 1. Each tree takes 2 edges, 4 in all, of 3: the
slack of the finest partition is 3 - 2 * 2 < 0, so the search ends before its first node. One tree leaves slack 1: it
may leave one edge unused, and the first two edges that are tried form a tree.

`SpanningSearch` has spanning trees and partitions, `ArborescenceSearch` arborescences from a root and cuts.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from antiphon.planners.trees.direct_links import radius

Chosen = list[tuple[int, ...]]  # per tree its edges
Plain = tuple[int, int, int]  # a, b, capacity


class Spent(Exception):
    """The search reached its limit of nodes."""


class Alike(NamedTuple):
    """Trees of one weight with the same history."""

    state: Any
    trees: tuple[int, ...]
    weight: int


class Search(ABC):
    """Backtracking over items (edges or arcs), common to both kinds of trees.

    `ends` and `capacity` by position; `tracked`: the slacks that an item's unused capacity counts against.
    """

    def __init__(self, items: Sequence[int], ends: Sequence[Plain], tracked: Sequence[tuple[int, ...]]) -> None:
        self.items, self.ends, self.tracked = items, ends, tracked

    @abstractmethod
    def start_state(self) -> Any:
        """Return the state before the first item."""

    @abstractmethod
    def take_item(self, state: Any, at: int) -> tuple[Any, tuple[int, ...]] | None:
        """Return the state with item `at`, and the slacks that it counts against; None if the tree may not take it."""

    @abstractmethod
    def can_skip(self, state: Any, at: int) -> bool:
        """Return whether a tree can still be connected without item `at`."""

    @abstractmethod
    def count_slacks(self, total: int) -> list[int]:
        """Return the capacity of every cut or partition beyond what trees of this total weight must send across it."""

    def search_trees(self, weights: Sequence[int], limit: int) -> tuple[Chosen | None, int]:
        """Return trees of these weights (descending) or None, and the nodes visited; raises Spent after `limit` of
        them.

        Complete: None proves that there are none.
        """
        slack = self.count_slacks(sum(weights))
        self._compute_waste(weights, len(slack))
        self.limit, self.nodes = limit, 0
        self.picked: list[tuple[int, ...]] = [()] * len(self.items)
        # even the waste that no choice avoids exceeds some slack: refuted without a node
        if any(s < lost for s, lost in zip(slack, self.lost[0], strict=True)):
            return None, 0
        alike = itertools.groupby(range(len(weights)), key=lambda i: weights[i])
        groups = [Alike(self.start_state(), tuple(trees), weight) for weight, trees in alike]
        if not self._search_from(0, groups, slack):
            return None, self.nodes
        trees: list[list[int]] = [[] for _ in weights]
        for at, picked in enumerate(self.picked):
            for i in picked:
                trees[i].append(self.items[at])
        return [tuple(sorted(tree)) for tree in trees], self.nodes

    def _compute_waste(self, weights: Sequence[int], slacks: int) -> None:
        """Compute, per slack, the capacity from each item on that must stay unused since no subset of the weights
        fills it.
        """
        sums = {0}
        for weight in weights:
            # all sums of subsets of the weights: the only loads that a link can have
            sums |= {x + weight for x in sums}
        reach = sorted(sums)
        self.lost = [[0] * slacks]
        for (_, _, capacity), tracked in zip(reversed(self.ends), reversed(self.tracked), strict=True):
            row = list(self.lost[-1])
            # what the best-filling subset leaves of this item
            unused = capacity - max(x for x in reach if x <= capacity)
            for t in tracked:
                row[t] += unused
            self.lost.append(row)
        self.lost.reverse()

    def _search_from(self, at: int, groups: list[Alike], slack: list[int]) -> bool:
        self.nodes += 1
        if self.nodes > self.limit:
            raise Spent
        if at == len(self.items):
            return True
        with_item = [self.take_item(group.state, at) for group in groups]
        can_skip = [self.can_skip(group.state, at) for group in groups]
        room = min((slack[t] - self.lost[at + 1][t] for t in self.tracked[at]), default=None)
        # the number of trees of each group that take this item, fullest use first
        for counts, unused in _list_assignments(groups, with_item, can_skip, self.ends[at][2], room):
            new_slack = list(slack)
            for t in self.tracked[at]:
                new_slack[t] -= unused
            new_groups: list[Alike] = []
            picked: tuple[int, ...] = ()
            for group, into, j in zip(groups, with_item, counts, strict=True):
                if j:
                    assert into is not None
                    # an unnecessary crossing: these trees cross the cut (or join the parts) once more than they must
                    for t in into[1]:
                        new_slack[t] -= j * group.weight
                    # the group splits into those that take the item and those that do not; which trees of it is
                    # irrelevant by symmetry
                    new_groups.append(Alike(into[0], group.trees[:j], group.weight))
                    picked += group.trees[:j]
                if j < len(group.trees):
                    new_groups.append(Alike(group.state, group.trees[j:], group.weight))
            if all(s >= lost for s, lost in zip(new_slack, self.lost[at + 1], strict=True)):
                self.picked[at] = picked
                if self._search_from(at + 1, new_groups, new_slack):
                    return True
        return False


def _list_assignments(
    groups: Sequence[Alike], with_item: Sequence[Any], can_skip: Sequence[bool], capacity: int, room: int | None
) -> list[tuple[tuple[int, ...], int]]:
    """Return the numbers of each group that may take an item, and the capacity left unused: fullest first, at most
    `room` unused.
    """
    choices: list[tuple[int, tuple[int, ...]]] = []
    fillable = [0]  # capacity that the groups from here on can use
    for group, into in zip(reversed(groups), reversed(with_item), strict=True):
        fillable.append(fillable[-1] + (len(group.trees) * group.weight if into is not None else 0))
    fillable.reverse()

    def extend(g: int, unused: int, counts: tuple[int, ...]) -> None:
        # even if all further groups took the item, more would stay unused than the slack allows
        if room is not None and unused - fillable[g] > room:
            return
        if g == len(groups):
            choices.append((unused, counts))
            return
        group = groups[g]
        max_count = min(len(group.trees), unused // group.weight) if with_item[g] is not None else 0
        # trees that cannot be connected without the item must take it, all of them
        min_count = 0 if can_skip[g] else len(group.trees)
        for j in range(max_count, min_count - 1, -1):
            extend(g + 1, unused - j * group.weight, (*counts, j))

    extend(0, capacity, ())
    choices.sort(key=lambda x: x[0])
    return [(counts, unused) for unused, counts in choices]


def _edge_order(vertices: int, edges: Sequence[Plain]) -> list[int]:
    """Return edges vertex by vertex, those with the fewest remaining edges first, to complete vertices early."""
    unordered = set(range(len(edges)))
    at: list[list[int]] = [[e for e, edge in enumerate(edges) if v in edge[:2]] for v in range(vertices)]
    order, waiting = [], set(range(vertices))
    while waiting:
        v = min(waiting, key=lambda v: (sum(e in unordered for e in at[v]), -len(at[v]), v))
        waiting.discard(v)
        vertex_edges = sorted((e for e in at[v] if e in unordered), key=lambda e: (-edges[e][2], e))
        unordered.difference_update(vertex_edges)
        order += vertex_edges
    return order


class SpanningSearch(Search):
    """Spanning trees; `partitions` (labels by vertex) have their slack tracked, besides the finest.

    State: per partition and vertex the set of vertices connected to it (bits), and the edges taken (positions).
    """

    def __init__(
        self, vertices: int, edges: Sequence[Plain], partitions: Sequence[Sequence[int]], deepest: int | None = None
    ) -> None:
        self.vertices, self.deepest = vertices, deepest
        self.labels = [list(range(vertices)), *map(list, partitions)]
        order = _edge_order(vertices, edges)
        ends = [edges[e] for e in order]
        tracked = [tuple(t for t, of in enumerate(self.labels) if of[a] != of[b]) for a, b, _ in ends]
        super().__init__(order, ends, tracked)
        self.later = [[0] * vertices]  # by position: neighbours over the items from there on
        for a, b, _ in reversed(ends):
            row = list(self.later[-1])
            row[a] |= 1 << b
            row[b] |= 1 << a
            self.later.append(row)
        self.later.reverse()
        self.whole = (1 << vertices) - 1

    def count_slacks(self, total: int) -> list[int]:
        crossing = [0] * len(self.labels)
        for (_, _, capacity), tracked in zip(self.ends, self.tracked, strict=True):
            for t in tracked:
                crossing[t] += capacity
        return [c - (len(set(of)) - 1) * total for c, of in zip(crossing, self.labels, strict=True)]

    def start_state(self) -> Any:
        alone = [1 << v for v in range(self.vertices)]
        merged = [
            sum(1 << w for w in range(self.vertices) if of[w] == of[v])
            for of in self.labels
            for v in range(self.vertices)
        ]
        return (
            tuple(alone),
            *(tuple(merged[t * self.vertices :][: self.vertices]) for t in range(1, len(self.labels))),
            (),
        )

    def take_item(self, state: Any, at: int) -> tuple[Any, tuple[int, ...]] | None:
        a, b, _ = self.ends[at]
        joined, edges_taken = state[0], (*state[-1], at)
        # a cycle
        if joined[a] >> b & 1:
            return None
        union_of_ends = joined[a] | joined[b]
        # spanning now: check the depth; otherwise the component must still have an edge to the rest among the items to
        # come
        if union_of_ends == self.whole:
            if (
                self.deepest is not None
                and radius(self.vertices, [self.ends[i][:2] for i in edges_taken]) > self.deepest
            ):
                return None
        elif not self._has_exit(union_of_ends, at):
            return None
        new, again = [], []
        for t, joined_by_partition in enumerate(state[:-1]):
            if t not in self.tracked[at]:
                new.append(joined_by_partition)
            elif joined_by_partition[a] >> b & 1:
                again.append(t)
                new.append(joined_by_partition)
            else:
                union = joined_by_partition[a] | joined_by_partition[b]
                new.append(tuple(union if union >> v & 1 else x for v, x in enumerate(joined_by_partition)))
        return (*new, edges_taken), tuple(again)

    def can_skip(self, state: Any, at: int) -> bool:
        a, b, _ = self.ends[at]
        joined = state[0]
        return joined[a] == self.whole or (self._has_exit(joined[a], at) and self._has_exit(joined[b], at))

    def _has_exit(self, inside: int, at: int) -> bool:
        """Return whether some edge after this position leaves these vertices."""
        later = self.later[at + 1]
        return any(inside >> v & 1 and later[v] & ~inside for v in range(self.vertices))


class ArborescenceSearch(Search):
    """Arborescences from a root; `cuts` (vertex sets without the root, as bits) have their slack tracked.

    State: per vertex the top of its component and its depth below it, and the cuts crossed (bits).
    """

    def __init__(
        self, vertices: int, arcs: Sequence[Plain], root: int, cuts: Sequence[int], deepest: int | None = None
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
        self.rest: list[tuple[int, ...]] = []  # by position: the tails of further arcs into the same vertex
        for at, (_, b, _) in enumerate(ends):
            self.rest.append(tuple(u for u, v, _ in ends[at + 1 :] if v == b))

    def count_slacks(self, total: int) -> list[int]:
        crossing = [0] * len(self.cuts)
        for (_, _, capacity), tracked in zip(self.ends, self.tracked, strict=True):
            for t in tracked:
                crossing[t] += capacity
        return [c - total for c in crossing]

    def start_state(self) -> Any:
        return tuple(range(self.vertices)), (0,) * self.vertices, 0

    def take_item(self, state: Any, at: int) -> tuple[Any, tuple[int, ...]] | None:
        a, b, _ = self.ends[at]
        top, below, crossed = state
        # b already has a parent, or is itself the top of a's component (a cycle)
        if top[b] != b or top[a] == b:
            return None
        # b's whole component now hangs below a
        added_depth = below[a] + 1
        now = tuple(x + added_depth if t == b else x for x, t in zip(below, top, strict=True))
        if max(now) > self.deepest:
            return None
        again = tuple(t for t in self.tracked[at] if crossed >> t & 1)
        for t in self.tracked[at]:
            crossed |= 1 << t
        return (tuple(top[a] if t == b else t for t in top), now, crossed), again

    def can_skip(self, state: Any, at: int) -> bool:
        b = self.ends[at][1]
        top = state[0]
        return bool(top[b] != b or any(top[a] != b for a in self.rest[at]))


def _breadth_first(arcs: Sequence[Plain], root: int) -> Iterator[int]:
    visited, queue = {root}, [root]
    for v in queue:
        for a, b, _ in arcs:
            if a == v and b not in visited:
                visited.add(b)
                queue.append(b)
    return iter(queue[1:])


def _arcs_into(arcs: Sequence[Plain], v: int) -> list[int]:
    return sorted((e for e, arc in enumerate(arcs) if arc[1] == v), key=lambda e: (-arcs[e][2], e))
