"""Whether trees of given weights fit: a complete search, edge by edge, for small machines.

Every edge (or arc) in turn gets a set of the trees; trees of equal weight and equal history are told apart only when
they come to differ. What prunes: a tree that can no longer be joined up; and slack: across a partition (or cut) whose
capacity hardly exceeds what the trees must send across it, hardly anything may be left unused or crossed needlessly.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from antiphon.planners.trees.both_ways import radius

Chosen = list[tuple[int, ...]]  # per tree its edges
Plain = tuple[int, int, int]  # a, b, capacity


class Spent(Exception):
    """The search came to its limit of nodes."""


class Alike(NamedTuple):
    """Trees of one weight that are alike so far."""

    state: Any
    trees: tuple[int, ...]
    weight: int


class Search:
    """Common to both: `ends` and `capacity` by position, `tracked`: the slacks an item left unused counts against."""

    def __init__(self, items: Sequence[int], ends: Sequence[Plain], tracked: Sequence[tuple[int, ...]]) -> None:
        self.items, self.ends, self.tracked = items, ends, tracked

    def start(self) -> Any:
        raise NotImplementedError

    def take(self, state: Any, at: int) -> tuple[Any, tuple[int, ...]] | None:
        """The state with item `at`, and the slacks it counts against; None if it may not be taken."""
        raise NotImplementedError

    def skip(self, state: Any, at: int) -> bool:
        """Whether a tree can still be joined up without item `at`."""
        raise NotImplementedError

    def slacks(self, total: int) -> list[int]:
        raise NotImplementedError

    def run(self, weights: Sequence[int], limit: int) -> tuple[Chosen | None, int]:
        """Trees of these weights (descending) or None, and the nodes looked at; Spent after `limit` of them.

        Complete: None is a proof that there are none.
        """
        slack = self.slacks(sum(weights))
        self._waste(weights, len(slack))
        self.limit, self.nodes = limit, 0
        self.picked: list[tuple[int, ...]] = [()] * len(self.items)
        if any(s < lost for s, lost in zip(slack, self.lost[0], strict=True)):
            return None, 0
        alike = itertools.groupby(range(len(weights)), key=lambda i: weights[i])
        groups = [Alike(self.start(), tuple(trees), weight) for weight, trees in alike]
        if not self._go(0, groups, slack):
            return None, self.nodes
        trees: list[list[int]] = [[] for _ in weights]
        for at, picked in enumerate(self.picked):
            for i in picked:
                trees[i].append(self.items[at])
        return [tuple(sorted(tree)) for tree in trees], self.nodes

    def _waste(self, weights: Sequence[int], slacks: int) -> None:
        """What must stay unused from each item on, by slack: no set of these weights fills it."""
        sums = {0}
        for weight in weights:
            sums |= {x + weight for x in sums}
        reach = sorted(sums)
        self.lost = [[0] * slacks]
        for (_, _, capacity), tracked in zip(reversed(self.ends), reversed(self.tracked), strict=True):
            row = list(self.lost[-1])
            unused = capacity - max(x for x in reach if x <= capacity)
            for t in tracked:
                row[t] += unused
            self.lost.append(row)
        self.lost.reverse()

    def _go(self, at: int, groups: list[Alike], slack: list[int]) -> bool:
        self.nodes += 1
        if self.nodes > self.limit:
            raise Spent
        if at == len(self.items):
            return True
        taken = [self.take(group.state, at) for group in groups]
        free = [self.skip(group.state, at) for group in groups]
        room = min((slack[t] - self.lost[at + 1][t] for t in self.tracked[at]), default=None)
        for counts, left in _counts(groups, taken, free, self.ends[at][2], room):
            now = list(slack)
            for t in self.tracked[at]:
                now[t] -= left
            split: list[Alike] = []
            picked: tuple[int, ...] = ()
            for group, into, j in zip(groups, taken, counts, strict=True):
                if j:
                    assert into is not None
                    for t in into[1]:
                        now[t] -= j * group.weight
                    split.append(Alike(into[0], group.trees[:j], group.weight))
                    picked += group.trees[:j]
                if j < len(group.trees):
                    split.append(Alike(group.state, group.trees[j:], group.weight))
            if all(s >= lost for s, lost in zip(now, self.lost[at + 1], strict=True)):
                self.picked[at] = picked
                if self._go(at + 1, split, now):
                    return True
        return False


def _counts(
    groups: Sequence[Alike], taken: Sequence[Any], free: Sequence[bool], capacity: int, room: int | None
) -> list[tuple[tuple[int, ...], int]]:
    """How many of each group may take an item, and the capacity that is left: fullest first, at most `room` left."""
    found: list[tuple[int, tuple[int, ...]]] = []
    ahead = [0]  # what the groups from here on can fill
    for group, into in zip(reversed(groups), reversed(taken), strict=True):
        ahead.append(ahead[-1] + (len(group.trees) * group.weight if into is not None else 0))
    ahead.reverse()

    def extend(g: int, left: int, counts: tuple[int, ...]) -> None:
        if room is not None and left - ahead[g] > room:
            return
        if g == len(groups):
            found.append((left, counts))
            return
        group = groups[g]
        most = min(len(group.trees), left // group.weight) if taken[g] is not None else 0
        least = 0 if free[g] else len(group.trees)
        for j in range(most, least - 1, -1):
            extend(g + 1, left - j * group.weight, (*counts, j))

    extend(0, capacity, ())
    found.sort(key=lambda x: x[0])
    return [(counts, left) for left, counts in found]


def _order(vertices: int, edges: Sequence[Plain]) -> list[int]:
    """Edges vertex by vertex, those with fewest edges left first, so that vertices are done with early."""
    left = set(range(len(edges)))
    at: list[list[int]] = [[e for e, edge in enumerate(edges) if v in edge[:2]] for v in range(vertices)]
    order, waiting = [], set(range(vertices))
    while waiting:
        v = min(waiting, key=lambda v: (sum(e in left for e in at[v]), -len(at[v]), v))
        waiting.discard(v)
        mine = sorted((e for e in at[v] if e in left), key=lambda e: (-edges[e][2], e))
        left.difference_update(mine)
        order += mine
    return order


class Undirected(Search):
    """Spanning trees; `partitions` (labels by vertex) are those that the slack is kept of, beside the finest.

    State: per partition and vertex the set of vertices joined with it (bits), and the edges taken (positions).
    """

    def __init__(
        self, vertices: int, edges: Sequence[Plain], partitions: Sequence[Sequence[int]], deepest: int | None = None
    ) -> None:
        self.vertices, self.deepest = vertices, deepest
        self.labels = [list(range(vertices)), *map(list, partitions)]
        order = _order(vertices, edges)
        ends = [edges[e] for e in order]
        tracked = [tuple(t for t, of in enumerate(self.labels) if of[a] != of[b]) for a, b, _ in ends]
        super().__init__(order, ends, tracked)
        self.later = [[0] * vertices]  # by position: the neighbours over items from there on
        for a, b, _ in reversed(ends):
            row = list(self.later[-1])
            row[a] |= 1 << b
            row[b] |= 1 << a
            self.later.append(row)
        self.later.reverse()
        self.whole = (1 << vertices) - 1

    def slacks(self, total: int) -> list[int]:
        crossing = [0] * len(self.labels)
        for (_, _, capacity), tracked in zip(self.ends, self.tracked, strict=True):
            for t in tracked:
                crossing[t] += capacity
        return [c - (len(set(of)) - 1) * total for c, of in zip(crossing, self.labels, strict=True)]

    def start(self) -> Any:
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

    def take(self, state: Any, at: int) -> tuple[Any, tuple[int, ...]] | None:
        a, b, _ = self.ends[at]
        joined, taken = state[0], (*state[-1], at)
        if joined[a] >> b & 1:
            return None
        both = joined[a] | joined[b]
        if both == self.whole:
            if self.deepest is not None and radius(self.vertices, [self.ends[i][:2] for i in taken]) > self.deepest:
                return None
        elif not self._open(both, at):
            return None
        new, again = [], []
        for t, part in enumerate(state[:-1]):
            if t not in self.tracked[at]:
                new.append(part)
            elif part[a] >> b & 1:
                again.append(t)
                new.append(part)
            else:
                union = part[a] | part[b]
                new.append(tuple(union if union >> v & 1 else x for v, x in enumerate(part)))
        return (*new, taken), tuple(again)

    def skip(self, state: Any, at: int) -> bool:
        a, b, _ = self.ends[at]
        joined = state[0]
        return joined[a] == self.whole or (self._open(joined[a], at) and self._open(joined[b], at))

    def _open(self, inside: int, at: int) -> bool:
        """Whether some edge after this position leaves these vertices."""
        later = self.later[at + 1]
        return any(inside >> v & 1 and later[v] & ~inside for v in range(self.vertices))


class Arborescent(Search):
    """Arborescences from a root; `cuts` (vertex sets without the root, as bits) are those that slack is kept of.

    State: per vertex the top of its piece and how far below it is, and the cuts crossed (bits).
    """

    def __init__(
        self, vertices: int, arcs: Sequence[Plain], root: int, cuts: Sequence[int], deepest: int | None = None
    ) -> None:
        self.vertices, self.root, self.cuts = vertices, root, list(cuts)
        self.deepest = vertices if deepest is None else deepest
        order = [e for v in _near_first(vertices, arcs, root) for e in _into(arcs, v)]
        ends = [arcs[e] for e in order]
        tracked = [
            tuple(t for t, inside in enumerate(self.cuts) if inside >> b & 1 and not inside >> a & 1)
            for a, b, _ in ends
        ]
        super().__init__(order, ends, tracked)
        self.rest: list[tuple[int, ...]] = []  # by position: the tails of further arcs into the same vertex
        for at, (_, b, _) in enumerate(ends):
            self.rest.append(tuple(u for u, v, _ in ends[at + 1 :] if v == b))

    def slacks(self, total: int) -> list[int]:
        crossing = [0] * len(self.cuts)
        for (_, _, capacity), tracked in zip(self.ends, self.tracked, strict=True):
            for t in tracked:
                crossing[t] += capacity
        return [c - total for c in crossing]

    def start(self) -> Any:
        return tuple(range(self.vertices)), (0,) * self.vertices, 0

    def take(self, state: Any, at: int) -> tuple[Any, tuple[int, ...]] | None:
        a, b, _ = self.ends[at]
        top, below, crossed = state
        if top[b] != b or top[a] == b:
            return None
        more = below[a] + 1
        now = tuple(x + more if t == b else x for x, t in zip(below, top, strict=True))
        if max(now) > self.deepest:
            return None
        again = tuple(t for t in self.tracked[at] if crossed >> t & 1)
        for t in self.tracked[at]:
            crossed |= 1 << t
        return (tuple(top[a] if t == b else t for t in top), now, crossed), again

    def skip(self, state: Any, at: int) -> bool:
        b = self.ends[at][1]
        top = state[0]
        return bool(top[b] != b or any(top[a] != b for a in self.rest[at]))


def _near_first(vertices: int, arcs: Sequence[Plain], root: int) -> Iterator[int]:
    seen, queue = {root}, [root]
    for v in queue:
        for a, b, _ in arcs:
            if a == v and b not in seen:
                seen.add(b)
                queue.append(b)
    return iter(queue[1:])


def _into(arcs: Sequence[Plain], v: int) -> list[int]:
    return sorted((e for e, arc in enumerate(arcs) if arc[1] == v), key=lambda e: (-arcs[e][2], e))
