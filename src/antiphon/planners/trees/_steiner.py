"""Trees that must reach some ranks only, the others may relay: exactly cheapest where there are no such others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from antiphon.planners.trees.pricing import Costs, Parents, cheapest, shallow


def tree_of(
    cost: Costs, root: int, hops: int | None, sinks: Sequence[int], useful: Sequence[int], far: int, tries: int = 0
) -> Parents | None:
    """A cheap tree from the root to the sinks over `useful` ranks, at most `hops` deep; None if none is found.

    `tries`: how hard few hops are looked for (see shallow).

    Exactly the cheapest where every useful rank is root or sink and `hops` is None. Otherwise the cheapest of three
    tries: without relays, with all of them and idle ones cut off, and (without a limit to hops) a tree over shortest
    ways between sinks, grown again on the ranks it passes.
    """
    need = sorted({root, *sinks})
    if len(need) == len(cost):
        return _grow(cost, root, hops, far, tries)
    trees = [_within(cost, root, hops, need, far, tries)]
    if len(useful) > len(need):
        near = useful if hops is None else _near(cost, root, hops, need, useful, far)
        trees.append(_pruned(_within(cost, root, hops, near, far, tries), need))
    if len(useful) > len(need) and hops is None:
        passed = _passed(cost, root, need, far)
        if passed is not None:
            trees.append(_pruned(_within(cost, root, hops, passed, far), need))
    found = [parents for parents in trees if parents is not None]
    return min(found, key=lambda parents: total(cost, parents)) if found else None


def total(cost: Costs, parents: Parents) -> int:
    return sum(int(cost[p, v]) for v, p in enumerate(parents) if p >= 0)


def _grow(cost: Costs, root: int, hops: int | None, far: int, tries: int) -> Parents | None:
    return cheapest(cost, root, far) if hops is None else shallow(cost, root, hops, far, tries)


def _within(
    cost: Costs, root: int, hops: int | None, ranks: Sequence[int], far: int, tries: int = 0
) -> Parents | None:  # fmt: skip
    """A tree over these ranks alone."""
    found = _grow(cost[np.ix_(ranks, ranks)], list(ranks).index(root), hops, far, tries)
    if found is None:
        return None
    parents = [-1] * len(cost)
    for rank, parent in zip(ranks, found, strict=True):
        parents[rank] = ranks[parent] if parent >= 0 else -1
    return parents


def _near(cost: Costs, root: int, hops: int, need: Sequence[int], useful: Sequence[int], far: int) -> list[int]:
    """What is needed, and the useful ranks less than `hops` hops away."""
    seen = np.zeros(len(cost), bool)
    seen[root] = True
    for _ in range(hops - 1):
        seen = seen | (cost[seen] < far).any(axis=0)
    return sorted({*need, *(rank for rank in useful if seen[rank])})


def _pruned(parents: Parents | None, need: Sequence[int]) -> Parents | None:
    """Without what leads to no rank of `need`."""
    if parents is None:
        return None
    kept: set[int] = set()
    for rank in need:
        at = rank
        while at >= 0 and at not in kept:
            kept.add(at)
            at = parents[at]
    return [parent if rank in kept else -1 for rank, parent in enumerate(parents)]


def _passed(cost: Costs, root: int, need: Sequence[int], far: int) -> list[int] | None:
    """The ranks on the cheapest tree over shortest ways between the ranks of `need`. O(ranks^3)."""
    count = len(cost)
    way, via = cost.copy(), np.full((count, count), -1, np.int64)
    for middle in range(count):
        through = way[:, middle][:, None] + way[middle][None, :]
        better = through < way
        way = np.where(better, through, way)
        via[better] = middle
    parents = _within(way, root, None, need, far)
    if parents is None:
        return None
    ranks: set[int] = set(need)
    todo = [(p, v) for v, p in enumerate(parents) if p >= 0]
    while todo:
        a, b = todo.pop()
        middle = int(via[a, b])
        if middle >= 0:
            ranks.add(middle)
            todo += [(a, middle), (middle, b)]
    return sorted(ranks)
