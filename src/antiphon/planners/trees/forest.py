"""Directed forests that reach the cut bound exactly, by combinatorial algorithms.

Edmonds, "Edge-disjoint branchings" (1973): if every sink alone could receive all of every root's supply (by some flow),
then the supplies can be sent along spanning arborescences within the capacities. So the greatest rate is that of the
tightest cut, p/q. With capacities times q and demands times p everything is integral: the switches are split off
(splitting.py) and the trees packed in integral amounts. Shared limits at one end of their links are drawn as switches.

The constructive proof grows one tree arc by arc, each time keeping the remaining capacity sufficient for all sinks.
Here it is done in batches (Schrijver, "Combinatorial Optimization", 53.2; Berczi and Frank 2010 for many roots): each
batch is one tree with as much weight as possible. `Packing` keeps a flow per sink (`SinkFlows`), so a test of an arc
costs a few augmenting paths instead of a maximum flow per sink.

Example: broadcast from 0 on 0 > 1 (2 units), 0 > 2 (1), 1 > 2 (1): the cut around rank 1 and that around 2 both have 2.
The first tree takes 0 > 1 and 0 > 2 with weight 1: a heavier one would leave rank 2 short. The second, 0 > 1 > 2, takes
the remaining unit.

Finally trees are regrown at random, a few at a time, to make them fewer and shallower (`regrow_trees`).
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from antiphon.core.bounds.candidates import reachable_nodes
from antiphon.core.bounds.cuts import tightest_cut
from antiphon.core.topology import Topology
from antiphon.errors import Invalid
from antiphon.planners.shared.reach import Hop
from antiphon.planners.trees.splitting import (
    Arc,
    Path,
    Pieces,
    SinkFlows,
    Wires,
    serves_all_sinks,
    set_bits,
    wires_of,
    without_switches,
)
from antiphon.planners.trees.to_schedule import Tree

MOST_TRIES = 200
SPARE = 10**7  # limit of tries * ranks^3: a second or two
Quality = tuple[int, list[int]]  # number of trees, their depths in descending order: smaller is better
PATIENCE = 60


def pack_forests(
    topology: Topology, demand: Mapping[int, int], sinks: Sequence[int], *, tries: int | None = None
) -> tuple[Fraction, list[Tree]] | None:
    """Pack trees from every root to all sinks that carry demand[root] * rate bytes/s, at the greatest possible rate.

    The rate is that of the tightest cut (core.bounds), which proves it. None where this method does not reach it. It
    always does if every rank is a sink and switches are balanced, without shared limits; it often does with limits on
    links with a common end, with other switches, and with ranks that are not members. Raises Invalid if a sink cannot
    be reached.

    Trees are grown level by level, so few and shallow; `tries` times a few of them are grown anew (by default fewer
    times with more ranks). Time grows with about ranks^3.
    """
    weights = {root: int(weight) for root, weight in sorted(demand.items()) if weight}
    members = sorted({*sinks, *weights})
    _check_arguments(topology, weights, members)
    wires = wires_of(topology)
    if wires is None:
        return None
    common = math.gcd(*weights.values())
    weights = {root: weight // common for root, weight in weights.items()}
    supplies: dict[tuple[int, ...], int] = {(root,): weight for root, weight in weights.items()}
    side, best = tightest_cut(wires.to_network(wires.to_pieces()), supplies, _receiving_sinks(sinks, weights))
    if not best:
        raise Invalid(_cut_off(topology, next(root for root in weights if side[root]), members))
    supply = {root: weight * best.numerator for root, weight in weights.items()}
    unit = topology.resources.scale / best.denominator
    # without relaying ranks first; then with all ranks as sinks, which Edmonds' theorem covers
    for spanned in (members, list(range(topology.ranks))):
        trees = _pack_spanned(wires, wires.to_pieces(best.denominator), supply, spanned, tries)
        if trees is not None:
            return best * topology.resources.scale / common, [_to_tree(tree, set(members), unit) for tree in trees]
        if len(spanned) == topology.ranks:
            break
    return None


def fit_trees(wires: Wires, supply: Mapping[int, int]) -> list[Tree] | None:
    """Return trees from every root to all ranks of exactly these integral weights; None where they do not fit."""
    everyone = list(range(wires.ranks))
    trees = _pack_spanned(wires, wires.to_pieces(), supply, everyone, MOST_TRIES)
    return None if trees is None else [_to_tree(tree, set(everyone), Fraction(1)) for tree in trees]


def _check_arguments(topology: Topology, weights: Mapping[int, int], members: Sequence[int]) -> None:
    for rank in members:
        if not 0 <= rank < topology.ranks:
            raise Invalid(f"rank {rank}: topology {topology.name} has ranks 0 to {topology.ranks - 1}")
    if not weights or min(weights.values()) < 0:
        raise Invalid("demands of roots: expected whole numbers, none negative and some greater than 0")
    if len(members) < 2:
        raise Invalid(f"rank {members[0]} alone has nobody to send to; a tree needs 2 ranks or more")


def _cut_off(topology: Topology, root: int, members: Sequence[int]) -> str:
    wide = np.array([bool(kind.bandwidth) for kind in topology.types])[topology.link_type]
    side = reachable_nodes(topology, [root], wide)
    lost = [str(rank) for rank in members if not side[rank]]
    shown = ", ".join(lost[:8]) + (f" and {len(lost) - 8} more" if len(lost) > 8 else "")
    return f"topology {topology.name}: no way leads from rank {root} to rank {shown}; add links or leave these out"


def _receiving_sinks(sinks: Sequence[int], supply: Mapping[int, int]) -> list[int]:
    """Return the sinks that some other rank must send to."""
    return [sink for sink in sorted(set(sinks)) if supply.keys() - {sink}]


def _pack_spanned(
    wires: Wires, scaled: Pieces, supply: Mapping[int, int], spanned: Sequence[int], tries: int | None
) -> list[Arborescence] | None:
    """Return trees over these ranks, through any switches; None where they cannot carry the supply."""
    usable_nodes = {*spanned, *range(wires.ranks, wires.nodes)}
    pieces = {arc: capacities for arc, capacities in scaled.items() if usable_nodes.issuperset(arc)}
    sinks = _receiving_sinks(spanned, supply)
    if not serves_all_sinks(wires, pieces, supply, sinks):
        return None
    direct = without_switches(wires, pieces, supply, sinks)
    if direct is None:
        return None
    index = {rank: number for number, rank in enumerate(spanned)}
    arcs = {(index[tail], index[head]): capacities for (tail, head), capacities in direct.items()}
    packing = Packing(len(spanned), arcs, {index[root]: amount for root, amount in supply.items()})
    trees = packing.grow_all()
    if tries is None:
        tries = min(MOST_TRIES, SPARE // len(spanned) ** 3)
    return [_renumber_tree(wires, tree, spanned) for tree in regrow_trees(packing, trees, tries)]


def _renumber_tree(wires: Wires, tree: Arborescence, ranks: Sequence[int]) -> Arborescence:
    hops = tuple((ranks[parent], ranks[node], wires.links_of(path)) for parent, node, path in tree.hops)
    return Arborescence(ranks[tree.root], tree.weight, hops, tree.depth)


def _to_tree(tree: Arborescence, members: set[int], unit: Fraction) -> Tree:
    """Convert to bytes per second, without non-members that relay nothing."""
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


@dataclass(frozen=True)
class Arborescence:
    """`hops`: every node but the root as (parent, node, piece of the arc), a parent before its children."""

    root: int
    weight: int
    hops: tuple[tuple[int, int, Path], ...]
    depth: int


class Packing:
    """Grows one tree after the other, breadth first, so that trees are shallow and take integral weights.

    State: the flows of all sinks (every node is one) for the roots' remaining supply, and the growing tree: its
    `members` in the order they joined, the `arc` by which each did, its `weight`.
    """

    def __init__(self, nodes: int, pieces: Mapping[Arc, Mapping[Path, int]], supply: Mapping[int, int]) -> None:
        """`pieces`: what each arc is made of, with capacities; a tree takes an arc within one piece."""
        self.pieces = {
            arc: sorted((amount, piece) for piece, amount in capacities.items()) for arc, capacities in pieces.items()
        }
        arcs = {arc: sum(capacities.values()) for arc, capacities in pieces.items()}
        self.flows = SinkFlows(nodes, nodes, arcs, supply)
        self.left = {root: amount for root, amount in sorted(supply.items()) if amount}
        self.out: list[list[int]] = [[] for _ in range(nodes)]
        for arc, tail in enumerate(self.flows.tail):
            self.out[tail].append(arc)
        self.members: list[int] = []
        self.inside = 0
        self.arc = [-1] * nodes
        self.depth = [0] * nodes
        self.turn = list(range(nodes))  # tie-break between equally wide arcs, by head
        self.weight = 0
        self.most: list[int] = []  # by arc: upper bound on the weight that can take it

    def grow_all(self) -> list[Arborescence]:
        """Return all trees; each root's weights sum to its supply. O(nodes^2) tests of arcs per tree, each some
        searches.
        """
        trees = []
        while self.left:
            for root in list(self.left):
                self._grow_tree(root)
                trees.append(self._finish_tree())
        return trees

    def _finish_tree(self) -> Arborescence:
        root, flows = self.members[0], self.flows
        self.left[root] -= self.weight
        if not self.left[root]:
            del self.left[root]
        arcs = [(flows.tail[self.arc[node]], node) for node in self.members[1:]]
        hops = tuple((*arc, _take_piece(self.pieces[arc], self.weight)) for arc in arcs)
        return Arborescence(root, self.weight, hops, max(self.depth[node] for node in self.members))

    def take_back(self, tree: Arborescence) -> None:
        """Dissolve a finished tree: its weight returns to its root's supply, its capacity to its arcs."""
        flows = self.flows
        self.members, self.inside = [tree.root, *(node for _, node, _ in tree.hops)], (1 << flows.nodes) - 1
        for parent, node, piece in tree.hops:
            self.arc[node] = flows.at[parent][node]
            _put_piece(self.pieces[parent, node], piece, tree.weight)
        self.weight = tree.weight
        self._give_back(tree.weight)
        self.left[tree.root] = self.left.get(tree.root, 0) + tree.weight

    def save_state(self) -> tuple[Any, ...]:
        """Return what `restore_state` needs. Only between trees, with no supply left."""
        flows, pieces = self.flows, {arc: capacities[:] for arc, capacities in self.pieces.items()}
        return [row[:] for row in flows.flow], flows.capacity[:], [row[:] for row in flows.open], pieces

    def restore_state(self, saved: tuple[Any, ...]) -> None:
        self.flows.flow, self.flows.capacity, self.flows.open, self.pieces = saved
        self.left = {}

    def _grow_tree(self, root: int) -> None:
        flows, nodes = self.flows, self.flows.nodes
        self.members, self.inside, self.weight = [root], 1 << root, self.left[root]
        self.depth[root] = 0
        for sink in range(nodes):
            flows.taken[root][sink] = self.weight if sink != root else 0
            flows.sources[sink] = 1 << root if sink != root else 0
        ends = zip(flows.tail, flows.head, strict=True)
        self.most = [self.pieces[arc][-1][0] for arc in ends]
        self._add_full_arcs()
        while len(self.members) < nodes:
            self._lower_weight()
            self._add_full_arcs()

    def _add_full_arcs(self) -> None:
        """Add all arcs that take the whole weight: level by level, within a level the widest first.

        What an arc can take of this tree only decreases while the tree grows, so each is tried once.
        """
        flows, capacity = self.flows, self.flows.capacity
        for depth in range(flows.nodes):
            level = [node for node in self.members if self.depth[node] == depth]
            ready = [a for x in level for a in self.out[x] if self.most[a] >= self.weight]
            for arc in sorted(ready, key=lambda a: (-capacity[a], self.turn[flows.head[a]])):
                if self.inside >> flows.head[arc] & 1:
                    continue
                if self._try_arc(arc, self.weight, keep=True):
                    self.join_arc(arc)
                    if len(self.members) == flows.nodes:
                        return

    def _lower_weight(self) -> None:
        """Lower the tree's weight to the most that some arc takes (no arc takes the whole weight)."""
        flows = self.flows
        ready = [a for x in self.members for a in self.out[x] if not self.inside >> flows.head[a] & 1]
        while True:
            best = max(ready, key=lambda a: self.most[a], default=-1)
            if best < 0 or not self.most[best]:
                raise AssertionError("no tree can grow: the supplies were not within the cuts")
            weight = self.most[best]
            # `most` is an upper bound; a failed test lowers it, so retry with the next best
            if self._try_arc(best, weight, keep=False):
                break
        self._give_back(self.weight - weight)

    def _try_arc(self, arc: int, weight: int, keep: bool) -> bool:
        """Return whether this much of the tree can take the arc while all sinks stay served; `most` learns how much
        can.

        If so and `keep`, the capacity is taken; otherwise nothing changes. O(sinks), and a search for each sink whose
        flow must move.
        """
        flows, row = self.flows, self.flows.flow[arc]
        tail, head, full = flows.tail[arc], flows.head[arc], flows.capacity[arc]
        # optimistically take the arc; every sink that used more than what remains must find another path, or the weight
        # shrinks
        accepted = min(weight, full)
        remaining = full - accepted
        # only sinks whose flow fills what remains are affected
        near = [sink for sink, amount in enumerate(row) if amount >= remaining]
        flows.capacity[arc] = remaining
        for sink in near:
            if row[sink] > remaining:
                lacking = flows.divert_excess(sink, arc, head)
                accepted, remaining = accepted - lacking, remaining + lacking
                flows.capacity[arc] = remaining
                if not accepted:
                    break
            else:
                flows.refresh_pair(sink, tail, head)
        self.most[arc] = min(self.most[arc], accepted)
        if accepted == weight and keep:
            return True
        flows.capacity[arc] = full
        for sink in near:
            flows.restore_taken(sink, arc)
        return accepted == weight

    def join_arc(self, arc: int) -> None:
        """Extend the tree by this arc, whose capacity `_try_arc` has taken; every sink's flow is complete again."""
        flows = self.flows
        node = flows.head[arc]
        self.arc[node] = arc
        self.depth[node] = self.depth[flows.tail[arc]] + 1
        self.members.append(node)
        self.inside |= 1 << node
        self._release_sink(node)

    def _release_sink(self, sink: int) -> None:
        """Cancel a sink's flow from the tree that it has joined."""
        flows = self.flows
        flows.move_taken(sink, sink, -1, flows.taken[sink][sink])
        for source in set_bits(flows.sources[sink]):
            while flows.taken[source][sink]:
                path = self._flow_path(source, sink)
                amount = min(flows.taken[source][sink], *(flows.flow[arc][sink] for arc in path))
                for arc in path:
                    flows.send_flow(sink, flows.head[arc], flows.tail[arc], amount)
                flows.move_taken(sink, source, -1, amount)

    def _flow_path(self, source: int, sink: int) -> list[int]:
        """Return arcs that the sink's flow uses from source to sink, as few as possible."""
        flows = self.flows
        entered_by = {source: -1}
        for node in (queue := [source]):
            for arc in self.out[node]:
                head = flows.head[arc]
                if head not in entered_by and flows.flow[arc][sink]:
                    entered_by[head] = arc
                    queue.append(head)
            if sink in entered_by:
                break
        path = [entered_by[sink]]
        while flows.tail[path[-1]] != source:
            path.append(entered_by[flows.tail[path[-1]]])
        return path

    def _give_back(self, amount: int) -> None:
        """Return part of the tree's weight to its root's supply and its arcs.

        Sinks that got it from elsewhere in the tree get it from the root along the tree instead.
        """
        flows = self.flows
        for node in self.members[1:]:
            flows.widen_arc(self.arc[node], amount)
        for sink in range(flows.nodes):
            if self.inside >> sink & 1:
                self._add_flow_along(sink, sink, amount)
                continue
            missing = amount
            for source in set_bits(flows.sources[sink]):
                amount_here = min(missing, flows.taken[source][sink])
                flows.move_taken(sink, source, -1, amount_here)
                self._add_flow_along(sink, source, amount_here)
                missing -= amount_here
        self.weight -= amount

    def _add_flow_along(self, sink: int, node: int, amount: int) -> None:
        """Increase the sink's flow on the tree's path from the root to the node."""
        flows, root = self.flows, self.members[0]
        while amount and node != root:
            arc = self.arc[node]
            flows.flow[arc][sink] += amount
            tail = flows.tail[arc]
            flows.refresh_pair(sink, tail, node)
            flows.refresh_pair(sink, node, tail)
            node = tail


def _take_piece(pieces: list[tuple[int, Path]], weight: int) -> Path:
    """Take the weight from the smallest piece that has it. The list stays ascending."""
    # the least sufficient piece: larger ones stay for heavier trees
    at = bisect_left(pieces, (weight, ()))
    amount, piece = pieces.pop(at)
    insort(pieces, (amount - weight, piece))
    return piece


def _put_piece(pieces: list[tuple[int, Path]], piece: Path, weight: int) -> None:
    """Give the weight back to the piece."""
    at = next(at for at, (_, other) in enumerate(pieces) if other == piece)
    amount, _ = pieces.pop(at)
    insort(pieces, (amount + weight, piece))


def regrow_trees(packing: Packing, trees: Sequence[Arborescence], tries: int) -> list[Arborescence]:
    """Return no more trees than before, and no deeper ones. Each try costs as much as growing at most 8 trees.

    Stops early if every root has one tree of minimum depth, and after many tries without gain.
    """
    rng = random.Random(0)
    best_trees = list(trees)
    goal = [_root_eccentricity(packing, root) for root in sorted({tree.root for tree in trees})]
    best, since = measure_quality(best_trees), 0
    for _ in range(tries):
        if best <= (len(goal), sorted(goal, reverse=True)) or since == PATIENCE:
            break
        chosen = _choose_trees(best_trees, rng)
        removed = [best_trees[at] for at in sorted(chosen)]
        before = packing.save_state()
        for tree in removed:
            packing.take_back(tree)
        packing.left = {
            best_trees[at].root: packing.left[best_trees[at].root] for at in chosen
        }  # the first chosen grows first
        rng.shuffle(packing.turn)
        regrown = packing.grow_all()
        if measure_quality(regrown) <= measure_quality(removed):
            best_trees = [tree for at, tree in enumerate(best_trees) if at not in chosen] + regrown
        else:
            packing.restore_state(before)
        since = since + 1 if measure_quality(best_trees) == best else 0
        best = measure_quality(best_trees)
    return sorted(best_trees, key=lambda tree: tree.root)


def measure_quality(trees: Sequence[Arborescence]) -> Quality:
    return len(trees), sorted((tree.depth for tree in trees), reverse=True)


def _choose_trees(trees: Sequence[Arborescence], rng: random.Random) -> list[int]:
    """Choose one of the deepest trees first, or two of one root; and some others."""
    several: dict[int, list[int]] = {}
    for at, tree in enumerate(trees):
        several.setdefault(tree.root, []).append(at)
    pairs = [root_trees for root_trees in several.values() if len(root_trees) > 1]
    if pairs and rng.randrange(2):
        root_trees = pairs[rng.randrange(len(pairs))]
        start = rng.randrange(len(root_trees))
        chosen = [root_trees[start], root_trees[start - 1]]
    else:
        deepest = max(tree.depth for tree in trees)
        worst = [at for at, tree in enumerate(trees) if tree.depth == deepest]
        chosen = [worst[rng.randrange(len(worst))]]
    for _ in range(1 + rng.randrange(6)):
        at = rng.randrange(len(trees))
        if at not in chosen:
            chosen.append(at)
    return chosen


def _root_eccentricity(packing: Packing, root: int) -> int:
    """Return the distance of the farthest node: no tree is shallower."""
    flows = packing.flows
    depth = {root: 0}
    for node in (queue := [root]):
        for arc in packing.out[node]:
            head = flows.head[arc]
            if head not in depth:
                depth[head] = depth[node] + 1
                queue.append(head)
    return max(depth.values())
