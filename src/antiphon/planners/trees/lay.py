"""From trees with rates to schedules: every tree carries its share of the data."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from typing import Protocol, TypeVar

from antiphon.core.collective import Collective
from antiphon.core.schedule import COPY, REDUCE, Schedule
from antiphon.planners.shared.reach import Hop, Path, hung_from
from antiphon.planners.shared.shares import Row, schedule_of
from antiphon.planners.trees.tree import Tree

Leg = tuple[int, int, Path, int]


def spread(collective: Collective, trees: Iterable[Tree]) -> Schedule:
    """Every block from the rank that has it along the trees of that rank, to all that want it. O(rows).

    Ranks that want no block of a tree and lead to none that does are left out, so it serves a scatter, too.
    """
    relation = collective.relation
    source = dict(zip(relation.pre_block.tolist(), relation.pre_rank.tolist(), strict=True))
    wanted: dict[int, set[int]] = defaultdict(set)
    for block, rank in zip(relation.post_block.tolist(), relation.post_rank.tolist(), strict=True):
        wanted[block].add(rank)
    rooted = _by_root(trees)
    pruned: dict[tuple[int, frozenset[int]], list[list[tuple[int, Hop]]]] = {}
    shares: list[tuple[int, Fraction]] = []
    rows: list[Row] = []
    for block in range(collective.blocks):
        root, ends = source[block], frozenset(wanted[block])
        mine = rooted.get(root, []) if ends - {root} else []
        if (root, ends) not in pruned:
            pruned[root, ends] = [leading_to(dict(tree.hops), root, ends) for tree in mine]
        whole = sum((tree.rate for tree in mine), Fraction(0))
        for tree, hops in zip(mine, pruned[root, ends], strict=True):
            rows += [(hop.depth - 1, len(shares), hop.parent, rank, COPY, hop.path) for rank, hop in hops]
            shares.append((block, tree.rate / whole))
        if not mine:
            shares.append((block, Fraction(1)))
    return schedule_of(collective, shares, rows)


@dataclass(frozen=True)
class Pair:
    """Part of an allreduce: to the root along `up` and back along `down`. A leg of `up` is (rank, parent, links from
    the rank to its parent, depth), one of `down` the same with the links from the parent."""

    rate: Fraction
    up: tuple[Leg, ...]
    down: tuple[Leg, ...]

    @staticmethod
    def of(tree: Tree) -> Pair:
        """An undirected tree, every hop of which has its links back, from where it is least deep."""
        hops = from_the_middle(tree).items()
        up = tuple((rank, hop.parent, hop.back, hop.depth) for rank, hop in hops)
        return Pair(tree.rate, up, tuple((rank, hop.parent, hop.path, hop.depth) for rank, hop in hops))

    @staticmethod
    def met(rate: Fraction, into: Tree, out: Tree) -> Pair:
        """Two trees with one root; `into` is given as a tree out of the root on the machine with all links turned."""
        up = tuple((rank, hop.parent, hop.path[::-1], hop.depth) for rank, hop in into.hops)
        return Pair(rate, up, tuple((rank, hop.parent, hop.path, hop.depth) for rank, hop in out.hops))


def reduce_and_spread(collective: Collective, pairs: Sequence[Pair]) -> Schedule:
    """An allreduce: every share up to a root, adding on the way, and down again. O(rows)."""
    whole = sum((pair.rate for pair in pairs), Fraction(0))
    rows: list[Row] = []
    for chunk, pair in enumerate(pairs):
        high = max(depth for *_, depth in pair.up)
        rows += [(high - depth, chunk, rank, parent, REDUCE, path) for rank, parent, path, depth in pair.up]
        rows += [(high + depth - 1, chunk, parent, rank, COPY, path) for rank, parent, path, depth in pair.down]
    return schedule_of(collective, [(0, pair.rate / whole) for pair in pairs], rows)


class Rated(Protocol):
    """Whatever has a rate."""

    @property
    def rate(self) -> Fraction: ...


Some = TypeVar("Some", bound=Rated)


def refined(lists: Sequence[Sequence[Some]]) -> list[tuple[Fraction, tuple[Some, ...]]]:
    """All lists side by side, by the common refinement of their rates, each list's taken as shares of 1: at most as
    many parts as there are items, less one for every list but the first."""
    ends = []
    for items in lists:
        whole = sum((item.rate for item in items), Fraction(0))
        ends.append(list(accumulate(item.rate / whole for item in items)))
    found, at, done = [], [0] * len(lists), Fraction(0)
    while done < 1:
        upto = min(mine[i] for mine, i in zip(ends, at, strict=True))
        found.append((upto - done, tuple(items[i] for items, i in zip(lists, at, strict=True))))
        at = [i + (mine[i] == upto) for mine, i in zip(ends, at, strict=True)]
        done = upto
    return found


def from_the_middle(tree: Tree) -> dict[int, Hop]:
    """The same undirected tree, hung from the middle of a longest way: least deep. O(ranks)."""
    first = hung_from(tree.hops, tree.root)
    far = max(first, key=lambda rank: (first[rank].depth, -rank), default=tree.root)
    longest = hung_from(tree.hops, far)
    end = max(longest, key=lambda rank: (longest[rank].depth, -rank), default=far)
    way = [end]
    while way[-1] != far:
        way.append(longest[way[-1]].parent)
    return hung_from(tree.hops, way[len(way) // 2])


def _by_root(trees: Iterable[Tree]) -> dict[int, list[Tree]]:
    found: dict[int, list[Tree]] = defaultdict(list)
    for tree in trees:
        found[tree.root].append(tree)
    return found


def leading_to(hops: dict[int, Hop], root: int, ends: frozenset[int]) -> list[tuple[int, Hop]]:
    """The hops on the ways from the root to these ends."""
    kept = {root}
    for end in ends:
        at = end
        while at not in kept:
            kept.add(at)
            at = hops[at].parent
    return [(rank, hops[rank]) for rank in sorted(kept - {root})]
