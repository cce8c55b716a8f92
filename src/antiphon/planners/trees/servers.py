"""Several servers, or GPUs on switches: the three phases of Blink (3.5), for any number of servers of any size.

Every server packs trees of its own. Their shares of the data differ from server to server, so the data are cut where
any server's shares end (common refinement). A part is reduced over its tree of every server to that tree's root; then
the roots exchange it over one-hop trees, one for every server, which carries one n-th of the part; then it goes down
the same trees. Undirected trees can be hung from any rank: so the data are cut also where the shares of a server's
cards end, each as wide as the card, and a part's root is a rank at its card.

GPUs on a switch, as in DGX-2, have one-hop trees: every GPU is the root of one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from antiphon.core.collective import Collective
from antiphon.core.schedule import COPY, REDUCE, Schedule
from antiphon.core.topology import Topology
from antiphon.errors import Unsupported
from antiphon.planners.shared.reach import Hop, Path, Reach
from antiphon.planners.trees.lay import Row, refined, schedule_of, seen_from
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
    count = len(servers)
    shares: list[tuple[int, Fraction]] = []
    rows: list[Row] = []
    load: dict[int, Fraction] = defaultdict(Fraction)
    lists: list[Sequence[Tree | _Exit]] = [*packed, *exits]
    parts = refined(lists)
    for share, items in parts:
        trees = [item for item in items if isinstance(item, Tree)]
        cards = [item for item in items if isinstance(item, _Exit)]
        hung, tops = [], []
        for server, tree in enumerate(trees):
            top = _root(tree, cards[server].ranks, load) if cards else tree.root
            load[top] += share
            tops.append(top)
            hung.append(seen_from(tree, top))
        high = max((hop.depth for hops in hung for hop in hops.values()), default=0)
        for middle in tops:
            chunk = len(shares)
            shares.append((0, share / count))
            for hops in hung:
                rows += [(high - h.depth, chunk, rank, h.parent, REDUCE, h.back) for rank, h in hops.items()]
            across = [top for top in tops if top != middle]
            rows += [(high, chunk, top, middle, REDUCE, _way(reach, top, middle)) for top in across]
            rows += [(high + 1, chunk, middle, top, COPY, _way(reach, middle, top)) for top in across]
            start = high + 2 if across else high
            for hops in hung:
                rows += [(start + h.depth - 1, chunk, h.parent, rank, COPY, h.path) for rank, h in hops.items()]
    return schedule_of(collective, shares, rows), len(parts)


def _root(tree: Tree, ranks: Sequence[int], load: dict[int, Fraction]) -> int:
    """Of the ranks at a card that which has been a root least, then that from which the tree is least deep."""
    return min(ranks, key=lambda rank: (load[rank], _height(seen_from(tree, rank)), rank))


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
