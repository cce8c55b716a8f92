"""Several servers, or GPUs on switches: the three phases of Blink (3.5), for any number of servers of any size.

Every server packs trees of its own. Their shares of the data differ from server to server, so the data are cut where
any server's shares end (common refinement). A part is reduced over its tree of every server to that tree's root; then
the roots exchange it over one-hop trees, one for every server, which carries one n-th of the part; then it goes down
the same trees. Undirected trees can be hung from any rank: so the data are cut also where the shares of a server's
cards end, each as wide as the card, and a part's root is a rank at its card.

GPUs on a switch, as in DGX-2, have one-hop trees: every GPU is the root of one.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from antiphon.core.collective import Collective
from antiphon.core.schedule import COPY, MAX_DENOMINATOR, REDUCE, Schedule
from antiphon.core.topology import Topology
from antiphon.core.transform import Part, Spans, laid
from antiphon.errors import Unsupported
from antiphon.planners.shared.reach import Hop, Path, Reach, hung_from
from antiphon.planners.shared.shares import Row, schedule_of
from antiphon.planners.trees.lay import refined
from antiphon.planners.trees.tree import Tree

Local = Callable[[Sequence[int]], list[Tree]]


def one_hop(topology: Topology, members: Sequence[int]) -> list[Tree]:
    """A tree of one hop from every member; Unsupported where two are not joined directly or over switches."""
    reach = Reach(topology)
    found = []
    for root in members:
        hops = []
        for rank in sorted(set(members) - {root}):
            there, back = reach.neighbours(root).get(rank), reach.neighbours(rank).get(root)
            if not there or not back:
                raise Unsupported(
                    f"planner blink: ranks {root} and {rank} of {topology.name} are joined neither directly nor "
                    "through switches; use planner trees"
                )
            hops.append((rank, Hop(root, there[0], 1, back[0])))
        found.append(Tree(root, Fraction(1), tuple(hops)))
    return found


@dataclass(frozen=True)
class _Exit:
    """Ranks of a server that leave it by the same card, and how fast that is."""

    ranks: tuple[int, ...]
    rate: Fraction


def three_phases(
    topology: Topology, collective: Collective, servers: Sequence[Sequence[int]], local: Local
) -> tuple[Schedule, int]:
    """An allreduce, and of how many parts. `local` packs the undirected trees of one server's ranks. O(rows)."""
    reach = Reach(topology)
    packed = [local(ranks) if len(ranks) > 1 else [Tree(ranks[0], Fraction(1), ())] for ranks in servers]
    exits = [_exits(reach, servers, at) for at in range(len(servers))] if len(servers) > 1 else []
    lists: list[Sequence[Tree | _Exit]] = [*packed, *exits]
    refinement = refined(lists)
    whole = len(servers) * math.lcm(*(share.denominator for share, _ in refinement))
    if whole >= MAX_DENOMINATOR:
        raise Unsupported(
            "the shares of the trees have no common denominator below 2^62; use planner trees, which rounds them"
        )
    data = Spans.side_by_side(np.array([int(share * whole) for share, _ in refinement]))
    load: dict[int, Fraction] = defaultdict(Fraction)
    parts: list[Part] = []
    for number, (share, items) in enumerate(refinement):
        trees = [item for item in items if isinstance(item, Tree)]
        cards = [item for item in items if isinstance(item, _Exit)]
        tops = []
        for server, tree in enumerate(trees):
            tops.append(_root(tree, cards[server].ranks, load) if cards else tree.root)
            load[tops[-1]] += share
        hung = [hung_from(tree.hops, top) for tree, top in zip(trees, tops, strict=True)]
        parts += _part(reach, collective.ranks, list(zip(tops, hung, strict=True)), data.take(np.array([number])))
    return laid(parts, collective, Spans.side_by_side(np.array([whole]))), len(refinement)


def _part(reach: Reach, ranks: int, trees: Sequence[tuple[int, dict[int, Hop]]], data: Spans) -> list[Part]:
    """Reduced in all servers, each over its tree; exchanged by the roots, each of which has an equal part; spread."""
    high = max(_height(hops) for _, hops in trees)
    servers = [_tree(ranks, top, hops) for top, hops in trees if hops]
    parts = [replace(Part.alone(up, data), start=high - up.steps) for up, _ in servers]
    if len(trees) > 1:
        edge = np.arange(len(trees) + 1) * (int(data.lengths[0]) // len(trees))
        for number, (middle, _) in enumerate(trees):
            others = [top for top, _ in trees if top != middle]
            star = {top: Hop(middle, _way(reach, middle, top), 1, _way(reach, top, middle)) for top in others}
            mine = data.cut(np.zeros(1, np.int64), edge[number : number + 1], edge[number + 1 : number + 2])
            parts += [
                replace(Part.alone(one, mine), start=high + i) for i, one in enumerate(_tree(ranks, middle, star))
            ]
        high += 2
    return [*parts, *(replace(Part.alone(down, data), start=high) for _, down in servers)]


def _tree(ranks: int, top: int, hops: dict[int, Hop]) -> tuple[Schedule, Schedule]:
    """A reduce to the root of a tree, and a broadcast from there."""
    high, members = _height(hops), (top, *hops)
    up: list[Row] = [(high - hop.depth, 0, rank, hop.parent, REDUCE, hop.back) for rank, hop in hops.items()]
    down: list[Row] = [(hop.depth - 1, 0, hop.parent, rank, COPY, hop.path) for rank, hop in hops.items()]
    shares = [(0, Fraction(1))]
    return (
        schedule_of(Collective("reduce", ranks, members, (top,)), shares, up),
        schedule_of(Collective("broadcast", ranks, members, (top,)), shares, down),
    )


def _root(tree: Tree, ranks: Sequence[int], load: dict[int, Fraction]) -> int:
    """Of the ranks at a card that which has been a root least, then that from which the tree is least deep."""
    return min(ranks, key=lambda rank: (load[rank], _height(hung_from(tree.hops, rank)), rank))


def _exits(reach: Reach, servers: Sequence[Sequence[int]], at: int) -> list[_Exit]:
    """The ranks of a server by what their ways out have in common with each other's; each card gets as much of the
    data as it is fast."""
    topology = reach.topology
    away = servers[at - 1][0]
    groups: dict[tuple[int, ...], list[int]] = {}
    speed: dict[tuple[int, ...], Fraction] = {}
    for rank in servers[at]:
        first = _way(reach, rank, away)[0]
        limits = [limit for limit in topology.limits if first in limit.links]
        key = tuple(sorted({link for limit in limits for link in limit.links})) or (first,)
        groups.setdefault(key, []).append(rank)
        least = min([limit.bandwidth for limit in limits], default=topology.bandwidth(first))
        speed[key] = min(least, speed.get(key, Fraction(0)) + topology.bandwidth(first))
    return [_Exit(tuple(ranks), speed[key]) for key, ranks in groups.items()]


def _way(reach: Reach, src: int, dst: int) -> Path:
    found = reach.neighbours(src).get(dst)
    if not found:
        raise Unsupported(
            f"planner blink: servers exchange over one-hop trees, and rank {src} of {reach.topology.name} has no link "
            f"or path through switches to rank {dst}; use planner trees"
        )
    return found[0]


def _height(hops: dict[int, Hop]) -> int:
    return max((hop.depth for hop in hops.values()), default=0)
