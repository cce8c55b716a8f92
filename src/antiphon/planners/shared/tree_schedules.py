"""Schedules of packed trees: every tree carries its share of the data.

Input: trees with rates (`SpanningTree`). Output: a schedule with one chunk per tree and block of its root. The chunk's
size is the tree's share of its root's total rate; a hop of depth d becomes a transfer in step d - 1.

    `spread_trees`       broadcast or allgather: down the trees
    `reduce_and_spread`  allreduce: up to a root and down again (`Pair`)

Example: root 0 with trees 0 > 1 > 2 at rate 2 and 0 > 2 > 1 at rate 1: two chunks, of 2/3 and 1/3 of the block; the
transfers of the first are (step 0, 0 -> 1) and (step 1, 1 -> 2).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from typing import Protocol, TypeVar

import numpy as np

from antiphon.core.collective import Collective
from antiphon.core.columns import Longs
from antiphon.core.schedule import COPY, REDUCE, Schedule
from antiphon.planners.shared.reach import Hop, Path, reroot_tree
from antiphon.planners.shared.rows import Row, schedule_of

Leg = tuple[int, int, Path, int]  # rank, parent, links, depth
Item = TypeVar("Item", bound="Rated")


@dataclass(frozen=True)
class SpanningTree:
    """A spanning tree along which data flow from the root down, at `rate` bytes per second.

    `hops`: every rank but the root with the hop that leads to it, ascending by rank; relaying ranks are included. If
    the tree is also used upwards (allreduce), `back` of every hop holds the links from the rank to its parent.
    """

    root: int
    rate: Fraction
    hops: tuple[tuple[int, Hop], ...]

    @property
    def depth(self) -> int:
        """Hops from the root to the farthest rank."""
        return max((hop.depth for _, hop in self.hops), default=0)


def spread_trees(collective: Collective, trees: Iterable[SpanningTree]) -> Schedule:
    """Return a schedule that sends every block from its source, along that rank's trees, to all ranks that want it.

    Branches that lead to no rank that wants the block are pruned, so this serves a scatter, too. O(rows).
    """
    relation = collective.relation
    source = dict(zip(relation.pre_block.tolist(), relation.pre_rank.tolist(), strict=True))
    receivers: dict[int, set[int]] = defaultdict(set)
    for block, rank in zip(relation.post_block.tolist(), relation.post_rank.tolist(), strict=True):
        receivers[block].add(rank)
    by_root = trees_by_root(trees)
    pruned: dict[tuple[int, frozenset[int]], list[list[tuple[int, Hop]]]] = {}
    shares: list[tuple[int, Fraction]] = []  # by chunk: block, fraction of it
    rows: list[Row] = []
    # a chunk per block and tree of its source; a block without receivers gets one chunk that does not move
    for block in range(collective.blocks):
        root, ends = source[block], frozenset(receivers[block])
        block_trees = by_root.get(root, []) if ends - {root} else []
        if (root, ends) not in pruned:
            pruned[root, ends] = [leading_to(dict(tree.hops), root, ends) for tree in block_trees]
        total = sum((tree.rate for tree in block_trees), Fraction(0))
        for tree, hops in zip(block_trees, pruned[root, ends], strict=True):
            rows += [(hop.depth - 1, len(shares), hop.parent, rank, COPY, hop.path) for rank, hop in hops]
            shares.append((block, tree.rate / total))
        if not block_trees:
            shares.append((block, Fraction(1)))
    return schedule_of(collective, shares, rows)


@dataclass(frozen=True)
class Pair:
    """A tree in to a root and one out of it, which together carry one share of an allreduce, at `rate` bytes/s.

    A leg of `up` is (rank, parent, links from the rank to its parent, depth of the rank); a leg of `down` is (rank,
    parent, links from the parent to the rank, depth of the rank).
    """

    rate: Fraction
    up: tuple[Leg, ...]
    down: tuple[Leg, ...]

    @staticmethod
    def of_tree(tree: SpanningTree) -> Pair:
        """Return both directions of an undirected tree whose hops have links back, its root moved to the middle."""
        hops = reroot_at_center(tree).items()
        up = tuple((rank, hop.parent, hop.back, hop.depth) for rank, hop in hops)
        return Pair(tree.rate, up, tuple((rank, hop.parent, hop.path, hop.depth) for rank, hop in hops))

    @staticmethod
    def of_two_trees(rate: Fraction, into: SpanningTree, out: SpanningTree) -> Pair:
        """Return the pair of two trees with one root; `into` is a tree out of the root on the reversed machine."""
        up = tuple((rank, hop.parent, hop.path[::-1], hop.depth) for rank, hop in into.hops)
        return Pair(rate, up, tuple((rank, hop.parent, hop.path, hop.depth) for rank, hop in out.hops))


def reduce_and_spread(collective: Collective, pairs: Iterable[Pair]) -> Schedule:
    """Return an allreduce: every pair's share is reduced up to its root, then copied down again. O(rows).

    If only one child of the root has ranks of the greatest depth below it, it exchanges its sum with that of the root
    and all others, so that both know the result a step earlier.
    """
    pairs = list(pairs)
    total = sum((pair.rate for pair in pairs), Fraction(0))
    rows: list[Row] = []
    for chunk, pair in enumerate(pairs):
        # upwards the deepest hops come first, and every hop after those below it; then down, level by level
        deepest = max(depth for *_, depth in pair.up)
        up, down = _branches(pair.up), _branches(pair.down)
        deepest_branches = {up[rank] for rank, *_, depth in pair.up if depth == deepest}
        partner = min(deepest_branches) if len(deepest_branches) == 1 and deepest_branches <= {*down.values()} else None
        # with a partner, all other branches are less deep: they reduce a step early (True counts as 1), and the root
        # exchanges with the partner in step deepest - 1
        for rank, parent, path, depth in pair.up:
            early = partner not in (None, up[rank])
            rows.append((deepest - depth - early, chunk, rank, parent, REDUCE, path))
        for rank, parent, path, depth in pair.down:
            step = deepest + depth - 1 - (down[rank] == partner)
            rows.append((step, chunk, parent, rank, REDUCE if rank == partner else COPY, path))
    return schedule_of(collective, [(0, pair.rate / total) for pair in pairs], rows)


def _branches(legs: Sequence[Leg]) -> dict[int, int]:
    """Return for each rank but the root the child of the root that it is below, or is itself."""
    branch: dict[int, int] = {}
    for rank, parent, _, depth in sorted(legs, key=lambda leg: leg[-1]):
        branch[rank] = rank if depth == 1 else branch[parent]
    return branch


def part_exchanges(schedule: Schedule) -> tuple[Longs, Longs]:
    """Return op and step of every row, with each exchange of sums turned into one sum and a copy back.

    The copy, and all other copies of its chunk, are one step later than in the schedule.
    """
    op, step = schedule.op.astype(np.int64), schedule.step.astype(np.int64)
    src, dst, ranks = schedule.src, schedule.dst, schedule.collective.ranks
    chunk_and_step = (schedule.chunk.astype(np.int64) * (schedule.steps + 1) + step) * ranks
    is_sum = op == REDUCE
    # rows whose opposite, in the same chunk and step, is a sum, too: of such a pair the one from the lower rank becomes
    # the copy
    has_reverse = np.isin((chunk_and_step + src) * ranks + dst, ((chunk_and_step + dst) * ranks + src)[is_sum])
    parted = is_sum & has_reverse & (src < dst)
    op[parted] = COPY
    return op, step + (np.isin(schedule.chunk, schedule.chunk[parted]) & (op == COPY))


class Rated(Protocol):
    """Anything with a rate, in any unit."""

    @property
    def rate(self) -> Fraction: ...


def refine_shares(lists: Sequence[Sequence[Item]]) -> list[tuple[Fraction, tuple[Item, ...]]]:
    """Divide [0, 1] wherever an item of any list ends; return each interval's length and, per list, the item there.

    The items of a list lie side by side on [0, 1], with lengths in proportion to their rates. Lists of rates (1, 1) and
    (1, 2) give intervals of 1/3, 1/6 and 1/2.
    """
    ends = []
    for items in lists:
        total = sum((item.rate for item in items), Fraction(0))
        ends.append(list(accumulate(item.rate / total for item in items)))
    # sweep over [0, 1]: a portion ends where an item of any list ends
    refinement, item_index, position = [], [0] * len(lists), Fraction(0)
    while position < 1:
        next_end = min(list_ends[i] for list_ends, i in zip(ends, item_index, strict=True))
        refinement.append((next_end - position, tuple(items[i] for items, i in zip(lists, item_index, strict=True))))
        item_index = [i + (list_ends[i] == next_end) for list_ends, i in zip(ends, item_index, strict=True)]
        position = next_end
    return refinement


def hops_of_parents(
    parents: Mapping[int, int], root: int, path_of: Callable[[int, int], Path]
) -> tuple[tuple[int, Hop], ...]:
    """Return every rank of a tree but its root with the hop that leads to it, by rank.

    `parents`: by rank, where it receives from. `path_of`: returns the links from a parent to a rank.
    """
    depth = {root: 0}
    for rank in parents:
        # climb to a rank of known depth, then number the trail from there downwards
        trail = [rank]
        while trail[-1] not in depth:
            trail.append(parents[trail[-1]])
        for node in reversed(trail[:-1]):
            depth[node] = depth[parents[node]] + 1
    return tuple((rank, Hop(parents[rank], path_of(parents[rank], rank), depth[rank])) for rank in sorted(parents))


def reroot_at_center(tree: SpanningTree) -> dict[int, Hop]:
    """Return the hops of the same undirected tree with the middle of a longest path as root, which makes it shallowest.

    O(ranks).
    """
    # the rank farthest from any rank is one end of a longest path; the rank farthest from that is the other
    hops_from_root = reroot_tree(tree.hops, tree.root)
    far_end = max(hops_from_root, key=lambda rank: (hops_from_root[rank].depth, -rank), default=tree.root)
    hops_from_end = reroot_tree(tree.hops, far_end)
    other_end = max(hops_from_end, key=lambda rank: (hops_from_end[rank].depth, -rank), default=far_end)
    longest_path = [other_end]
    while longest_path[-1] != far_end:
        longest_path.append(hops_from_end[longest_path[-1]].parent)
    return reroot_tree(tree.hops, longest_path[len(longest_path) // 2])


def trees_by_root(trees: Iterable[SpanningTree]) -> dict[int, list[SpanningTree]]:
    """Return the trees of every root, in the given order."""
    by_root: dict[int, list[SpanningTree]] = defaultdict(list)
    for tree in trees:
        by_root[tree.root].append(tree)
    return by_root


def count_trees_per_root(trees: Iterable[SpanningTree]) -> int:
    """Return the most trees that one root has."""
    return max(Counter(tree.root for tree in trees).values(), default=0)


def leading_to(hops: dict[int, Hop], root: int, receivers: frozenset[int]) -> list[tuple[int, Hop]]:
    """Return the hops on the paths from the root to the ranks `receivers`."""
    reached = {root}
    for end in receivers:
        rank = end
        while rank not in reached:
            reached.add(rank)
            rank = hops[rank].parent
    return [(rank, hops[rank]) for rank in sorted(reached - {root})]
