"""Blink's trees on one set of links: multiplicative weights on direct links, one-hop trees over switches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from antiphon.core.collective import Collective
from antiphon.errors import Invalid, Unsupported
from antiphon.planners.shared.reach import hung_from
from antiphon.planners.trees.allreduce import pairs_of
from antiphon.planners.trees.both_ways import directed, undirected
from antiphon.planners.trees.in_and_out import pack_allreduce_lp
from antiphon.planners.trees.lay import Pair
from antiphon.planners.trees.mwu import Blink, blink_allreduce, blink_broadcast
from antiphon.planners.trees.out import FEW_RANKS, out_of
from antiphon.planners.trees.restrict import Slice
from antiphon.planners.trees.servers import one_hop
from antiphon.planners.trees.tree import Tree


@dataclass(frozen=True)
class Asked:
    """Blink's knobs: how near to the optimum the weights must come, and how far from it fewer trees may be."""

    epsilon: float = 0.05
    threshold: Fraction = Fraction(1, 20)


@dataclass(frozen=True)
class Set:
    """The trees of one set of links, in those of the whole machine, and what they carry together, in bytes/s: of the
    whole vector in an allreduce (`pairs`), else of every root's data (`trees`)."""

    rate: Fraction
    how: str
    count: int
    pairs: tuple[Pair, ...] = ()
    trees: tuple[Tree, ...] = ()

    def scaled(self, share: Fraction) -> Set:
        """With rates that add up to `share`, in an allreduce and for every root."""
        pairs = tuple(replace(pair, rate=pair.rate * share / self.rate) for pair in self.pairs)
        return replace(self, pairs=pairs, trees=tuple(replace(t, rate=t.rate * share / self.rate) for t in self.trees))


def packed(part: Slice, collective: Collective, asked: Asked) -> Set:
    """For an allreduce, an allgather, a broadcast or a scatter."""
    if collective.kind == "allreduce":
        return _allreduce(part, collective, asked)
    if collective.kind == "allgather":
        return _allgather(part, collective, asked)
    return _from_roots(part, collective, asked)


def undirected_trees(part: Slice, members: Sequence[int], asked: Asked) -> Blink | None:
    """Trees of direct links alike both ways; None where there are switches or narrow limits, or where other ranks must
    pass data on."""
    try:
        machine = undirected(part.topology, members)
    except (Unsupported, Invalid):
        return None
    return blink_allreduce(machine, epsilon=asked.epsilon, threshold=asked.threshold)


def local_trees(part: Slice, members: Sequence[int], asked: Asked) -> list[Tree]:
    """The undirected trees of a server: packed ones, or one-hop trees over its switches."""
    found = undirected_trees(part, members, asked)
    trees = found.trees if found is not None else one_hop(part.topology, members)
    return [part.tree(tree) for tree in trees]


def _allreduce(part: Slice, collective: Collective, asked: Asked) -> Set:
    members = collective.members
    found = undirected_trees(part, members, asked)
    if found is not None:
        pairs = tuple(Pair.of(part.tree(tree)) for tree in found.trees)
        return Set(found.rate, _told(found), len(pairs), pairs)
    try:
        trees = one_hop(part.topology, members)
    except Unsupported:
        trees = []
    if trees and not part.topology.limits:
        pairs = tuple(Pair.of(part.tree(tree)) for tree in trees)
        return Set(Fraction(len(pairs)), "one-hop trees", len(pairs), pairs)
    if len(members) > FEW_RANKS:
        raise Unsupported("planner blink: no one-hop trees, and too many ranks for trees in and out; use planner trees")
    both = pack_allreduce_lp(part.topology, members)
    pairs = tuple(_of_whole(part, pair) for pair in pairs_of(both.trees_in, both.trees_out))
    return Set(both.rate, "trees in and out with common roots", len(pairs), pairs)


def _of_whole(part: Slice, pair: Pair) -> Pair:
    up = tuple((rank, parent, part.path(path), depth) for rank, parent, path, depth in pair.up)
    return replace(pair, up=up, down=tuple((r, p, part.path(path), depth) for r, p, path, depth in pair.down))


def _allgather(part: Slice, collective: Collective, asked: Asked) -> Set:
    """Every rank's block over all undirected trees, hung from that rank."""
    found = undirected_trees(part, collective.members, asked)
    if found is None:
        return _spread(part, collective)
    trees = tuple(
        replace(tree, root=root, hops=tuple(sorted(hung_from(tree.hops, root).items(), key=_rank)))
        for root in collective.members
        for tree in map(part.tree, found.trees)
    )
    return Set(found.rate, _told(found), len(found.trees), trees=trees)


def _rank(item: tuple[int, object]) -> int:
    return item[0]


def _from_roots(part: Slice, collective: Collective, asked: Asked) -> Set:
    if len(collective.roots) > 1:
        return _spread(part, collective)
    try:
        machine = directed(part.topology, collective.members)
        found = blink_broadcast(machine, collective.roots[0], epsilon=asked.epsilon, threshold=asked.threshold)
    except (Unsupported, Invalid):
        return _spread(part, collective)
    return Set(found.rate, _told(found), len(found.trees), trees=tuple(map(part.tree, found.trees)))


def _spread(part: Slice, collective: Collective) -> Set:
    """What the published method leaves out (switches, several roots, relaying ranks): the exact packing."""
    roots = collective.roots if collective.kind in ("broadcast", "scatter") else collective.members
    found = out_of(part.topology, dict.fromkeys(roots, 1), collective.members)
    count = max(sum(tree.root == root for tree in found.trees) for root in roots)
    return Set(found.rate, found.how, count, trees=tuple(map(part.tree, found.trees)))


def _told(found: Blink) -> str:
    return f"multiplicative weights: {found.packed} trees; integer program: {len(found.trees)}, weights {found.weights}"
