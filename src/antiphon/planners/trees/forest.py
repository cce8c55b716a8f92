"""The best forests by combinatorial means: directed trees that reach the cut bound exactly.

From the tightest cut's rate p/q: capacities times q and demands times p are whole, and with these the switches can be
split off (splitting) and the trees packed (arborescences) in whole amounts. Shared limits at one end of their links are
switches too (wires).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction

import numpy as np

from antiphon.core.bounds.candidates import reached
from antiphon.core.bounds.cuts import tightest_cut
from antiphon.core.topology import Topology
from antiphon.errors import Invalid
from antiphon.planners.shared.reach import Hop
from antiphon.planners.trees._regrow import regrow
from antiphon.planners.trees.arborescences import Arborescence, Packing
from antiphon.planners.trees.splitting import serves, without_switches
from antiphon.planners.trees.tree import Tree
from antiphon.planners.trees.wires import Pieces, Wires, wires_of

MOST_TRIES = 200
SPARE = 10**7  # tries * ranks^3: a second or two


def forests(
    topology: Topology, demand: Mapping[int, int], sinks: Sequence[int], *, tries: int | None = None
) -> tuple[Fraction, list[Tree]] | None:
    """Trees from every root to all sinks that carry demand[root] * rate bytes/s, at the greatest rate there is.

    The rate is that of the tightest cut (core.bounds), so it is proved best. None where this method does not reach
    it. It always does if every rank is a sink and switches are balanced (as much capacity enters as leaves), without
    shared limits; it often does with limits on links that begin or end together, with other switches, and with ranks
    that take no part. Invalid where a sink cannot be reached.

    Trees are grown level by level, few and shallow as far as that goes, and `tries` times a few of them are grown
    anew (by default fewer times the more ranks there are). Time grows with about ranks^3: see arborescences.
    """
    weights = {root: int(weight) for root, weight in sorted(demand.items()) if weight}
    members = sorted({*sinks, *weights})
    _check(topology, weights, members)
    wires = wires_of(topology)
    if wires is None:
        return None
    common = math.gcd(*weights.values())
    weights = {root: weight // common for root, weight in weights.items()}
    held: dict[tuple[int, ...], int] = {(root,): weight for root, weight in weights.items()}
    side, best = tightest_cut(wires.network(wires.pieces()), held, _others(sinks, weights))
    if not best:
        raise Invalid(_cut_off(topology, next(root for root in weights if side[root]), members))
    supply = {root: weight * best.numerator for root, weight in weights.items()}
    unit = topology.resources.scale / best.denominator
    for spanned in (members, list(range(topology.ranks))):
        trees = _packed(wires, wires.pieces(best.denominator), supply, spanned, tries)
        if trees is not None:
            return best * topology.resources.scale / common, [_tree(tree, set(members), unit) for tree in trees]
        if len(spanned) == topology.ranks:
            break
    return None


def fitted(wires: Wires, supply: Mapping[int, int], tries: int) -> list[Tree] | None:
    """Trees from every root to all ranks of just these whole weights; None where they do not fit."""
    everyone = list(range(wires.ranks))
    trees = _packed(wires, wires.pieces(), supply, everyone, tries)
    return None if trees is None else [_tree(tree, set(everyone), Fraction(1)) for tree in trees]


def _check(topology: Topology, weights: Mapping[int, int], members: Sequence[int]) -> None:
    for rank in members:
        if not 0 <= rank < topology.ranks:
            raise Invalid(f"rank {rank}: topology {topology.name} has ranks 0 to {topology.ranks - 1}")
    if not weights or min(weights.values()) < 0:
        raise Invalid("demands of roots: expected whole numbers, none negative and some greater than 0")
    if len(members) < 2:
        raise Invalid(f"rank {members[0]} alone has nobody to send to; a tree needs 2 ranks or more")


def _cut_off(topology: Topology, root: int, members: Sequence[int]) -> str:
    wide = np.array([bool(kind.bandwidth) for kind in topology.types])[topology.link_type]
    side = reached(topology, [root], wide)
    lost = [str(rank) for rank in members if not side[rank]]
    shown = ", ".join(lost[:8]) + (f" and {len(lost) - 8} more" if len(lost) > 8 else "")
    return f"topology {topology.name}: no way leads from rank {root} to rank {shown}; add links or leave these out"


def _others(sinks: Sequence[int], supply: Mapping[int, int]) -> list[int]:
    """Sinks that some other rank must send to."""
    return [sink for sink in sorted(set(sinks)) if supply.keys() - {sink}]


def _packed(
    wires: Wires, scaled: Pieces, supply: Mapping[int, int], spanned: Sequence[int], tries: int | None
) -> list[Arborescence] | None:
    """Trees over these ranks, by way of any switches; None where they cannot carry the supply."""
    kept = {*spanned, *range(wires.ranks, wires.nodes)}
    pieces = {arc: made for arc, made in scaled.items() if kept.issuperset(arc)}
    sinks = _others(spanned, supply)
    if not serves(wires, pieces, supply, sinks):
        return None
    direct = without_switches(wires, pieces, supply, sinks)
    if direct is None:
        return None
    index = {rank: number for number, rank in enumerate(spanned)}
    arcs = {(index[tail], index[head]): made for (tail, head), made in direct.items()}
    packing = Packing(len(spanned), arcs, {index[root]: amount for root, amount in supply.items()})
    trees = packing.run()
    if tries is None:
        tries = min(MOST_TRIES, SPARE // len(spanned) ** 3)
    return [_renumbered(wires, tree, spanned) for tree in regrow(packing, trees, tries)]


def _renumbered(wires: Wires, tree: Arborescence, ranks: Sequence[int]) -> Arborescence:
    hops = tuple((ranks[parent], ranks[node], wires.links_of(path)) for parent, node, path in tree.hops)
    return Arborescence(ranks[tree.root], tree.weight, hops, tree.depth)


def _tree(tree: Arborescence, members: set[int], unit: Fraction) -> Tree:
    """In bytes per second, without ranks that take no part and pass nothing on."""
    needed: set[int] = set()
    for parent, rank, _ in reversed(tree.hops):
        if rank in members or rank in needed:
            needed.add(parent)
    depth = {tree.root: 0}
    hops = []
    for parent, rank, path in tree.hops:
        depth[rank] = depth[parent] + 1
        if rank in members or rank in needed:
            hops.append((rank, Hop(parent, path, depth[rank])))
    return Tree(tree.root, tree.weight * unit, tuple(sorted(hops)))
