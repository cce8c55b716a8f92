"""Pack directed spanning trees at the rate of the tightest cut, exactly, by a combinatorial algorithm (Edmonds).

Input: a machine; roots, each with a demand (its relative amount of data); sinks, the ranks that receive all of it.
Output (`pack_forests`): weighted trees that send every root's data to all sinks, together within the capacity of every
link, and their rate. None if switches or relaying ranks keep this method from the greatest rate; columns.py then takes
over.

Why it works: Edmonds ("Edge-disjoint branchings", 1973) proved: if every sink alone could receive every root's supply
(by some flow), the supplies can be sent to all sinks at once within the capacities. They go along spanning
arborescences (trees directed away from their roots). So the greatest rate is that of the tightest cut, a fraction p/q.
With capacities times q and demands times p all numbers are integers. First the switches are replaced by arcs between
ranks (splitting.py), then trees are packed in integral weights.

The constructive proof grows a tree arc by arc, such that the remaining capacity still serves all sinks. Here a whole
batch of equal trees grows at once, as one tree with as much weight as possible (Schrijver, "Combinatorial
Optimization", 53.2; Berczi and Frank 2010 for many roots). `ForestGrower` keeps a flow per sink (`SinkFlows`), so that
testing an arc costs a few augmenting paths instead of a maximum flow per sink.

Example: broadcast from 0 on 0 > 1 (2 units), 0 > 2 (1), 1 > 2 (1): the cut around rank 1 and that around 2 both have 2.
The first tree takes 0 > 1 and 0 > 2 with weight 1, all that 0 > 2 has. The second, 0 > 1 > 2, takes the remaining unit.

Finally a few trees at a time are removed and regrown in another order, to make them fewer and shallower
(`regrow_trees`).
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
from antiphon.planners.shared.tree_schedules import SpanningTree
from antiphon.planners.trees.splitting import (
    Arc,
    ArcPaths,
    LinkGraph,
    Path,
    SinkFlows,
    build_link_graph,
    serves_all_sinks,
    set_bits,
    without_switches,
)

MOST_TRIES = 200  # tries of regrowing trees
REGROW_EFFORT = 10**7  # upper limit of tries * ranks^3: a second or two
MAX_TRIES_WITHOUT_GAIN = 60  # regrowing ends after this many
Quality = tuple[int, list[int]]  # number of trees, their depths in descending order: smaller is better


def pack_forests(
    topology: Topology, demand: Mapping[int, int], sinks: Sequence[int], *, tries: int | None = None
) -> tuple[Fraction, list[SpanningTree]] | None:
    """Pack trees from every root to all sinks that carry demand[root] * rate bytes/s, at the greatest possible rate.

    Return the rate and the trees, at rates in bytes/s. The tightest cut (core.bounds) proves that no packing is faster.
    None where this method does not reach that rate. It always reaches it if every rank is a sink, switches are balanced
    and there are no shared limits; it often reaches it with limits on links with a common end, with other switches, and
    with ranks that only relay. Raises Invalid if a sink cannot be reached. `tries`: of `regrow_trees` (default: by the
    number of ranks). Time grows with about ranks^3.
    """
    weights = {root: int(weight) for root, weight in sorted(demand.items()) if weight}
    members = sorted({*sinks, *weights})
    _check_arguments(topology, weights, members)
    link_graph = build_link_graph(topology)
    if link_graph is None:
        return None
    divisor = math.gcd(*weights.values())
    weights = {root: weight // divisor for root, weight in weights.items()}
    # `tightest_cut` has a key per set of ranks that hold the same data: here a root alone
    supplies: dict[tuple[int, ...], int] = {(root,): weight for root, weight in weights.items()}
    # `side`: by node, whether it is inside the cut, the set that limits the rate by the capacity out of it
    side, cut_rate = tightest_cut(
        link_graph.to_network(link_graph.to_arc_paths()), supplies, _receiving_sinks(sinks, weights)
    )
    if not cut_rate:
        raise Invalid(_unreachable_message(topology, next(root for root in weights if side[root]), members))
    # the rate is p/q: with demands times p, and capacities times q, everything is integral
    supply = {root: weight * cut_rate.numerator for root, weight in weights.items()}
    unit = topology.resources.scale / cut_rate.denominator  # bytes/s for a tree's weight of 1
    # try trees over the members only, then over all ranks as if all were sinks, which lets the others relay
    for spanned in (members, list(range(topology.ranks))):
        trees = _pack_spanned(link_graph, link_graph.to_arc_paths(cut_rate.denominator), supply, spanned, tries)
        if trees is not None:
            # `weights` were divided by the divisor, so the rate per unit of `demand` is as much lower
            rate = cut_rate * topology.resources.scale / divisor
            return rate, [_to_tree(tree, set(members), unit) for tree in trees]
        if len(spanned) == topology.ranks:
            break
    return None


def fit_trees(link_graph: LinkGraph, supply: Mapping[int, int]) -> list[SpanningTree] | None:
    """Return trees from every root to all ranks, of total weight `supply[root]`; None if such trees do not fit."""
    everyone = list(range(link_graph.ranks))
    trees = _pack_spanned(link_graph, link_graph.to_arc_paths(), supply, everyone, MOST_TRIES)
    return None if trees is None else [_to_tree(tree, set(everyone), Fraction(1)) for tree in trees]


def _check_arguments(topology: Topology, weights: Mapping[int, int], members: Sequence[int]) -> None:
    """Raise Invalid for ranks that do not exist, negative demands, or a rank alone."""
    for rank in members:
        if not 0 <= rank < topology.ranks:
            raise Invalid(f"rank {rank}: topology {topology.name} has ranks 0 to {topology.ranks - 1}")
    if not weights or min(weights.values()) < 0:
        raise Invalid("demands of roots: expected whole numbers, none negative and some greater than 0")
    if len(members) < 2:
        raise Invalid(f"rank {members[0]} alone has nobody to send to; a tree needs 2 ranks or more")


def _unreachable_message(topology: Topology, root: int, members: Sequence[int]) -> str:
    """Return the message for members that no links with bandwidth lead to from the root."""
    has_bandwidth = np.array([bool(kind.bandwidth) for kind in topology.types])[topology.link_type]
    side = reachable_nodes(topology, [root], has_bandwidth)
    unreachable = [str(rank) for rank in members if not side[rank]]
    shown = ", ".join(unreachable[:8]) + (f" and {len(unreachable) - 8} more" if len(unreachable) > 8 else "")
    return f"topology {topology.name}: no path leads from rank {root} to rank {shown}; add links or leave these out"


def _receiving_sinks(sinks: Sequence[int], supply: Mapping[int, int]) -> list[int]:
    """Return the sinks that receive from some other rank: all but a sink that is the only root."""
    return [sink for sink in sorted(set(sinks)) if supply.keys() - {sink}]


def _pack_spanned(
    link_graph: LinkGraph, scaled: ArcPaths, supply: Mapping[int, int], spanned: Sequence[int], tries: int | None
) -> list[Arborescence] | None:
    """Return trees over the ranks `spanned`, through any switches; None if they cannot carry the supply.

    `scaled`: the machine's arcs, with capacities times the denominator of the rate.
    """
    usable_nodes = {*spanned, *range(link_graph.ranks, link_graph.nodes)}
    arc_paths = {arc: capacities for arc, capacities in scaled.items() if usable_nodes.issuperset(arc)}
    sinks = _receiving_sinks(spanned, supply)
    if not serves_all_sinks(link_graph, arc_paths, supply, sinks):
        return None
    direct = without_switches(link_graph, arc_paths, supply, sinks)
    if direct is None:
        return None
    index = {rank: number for number, rank in enumerate(spanned)}
    arcs = {(index[tail], index[head]): capacities for (tail, head), capacities in direct.items()}
    packing = ForestGrower(len(spanned), arcs, {index[root]: amount for root, amount in supply.items()})
    trees = packing.grow_all()
    if tries is None:
        tries = min(MOST_TRIES, REGROW_EFFORT // len(spanned) ** 3)
    return [_renumber_tree(link_graph, tree, spanned) for tree in regrow_trees(packing, trees, tries)]


def _renumber_tree(link_graph: LinkGraph, tree: Arborescence, ranks: Sequence[int]) -> Arborescence:
    """Return the tree in ranks and the topology's own links, from positions in `ranks` and links of the graph."""
    hops = tuple((ranks[parent], ranks[node], link_graph.links_of(path)) for parent, node, path in tree.hops)
    return Arborescence(ranks[tree.root], tree.weight, hops, tree.depth)


def _to_tree(tree: Arborescence, members: set[int], unit: Fraction) -> SpanningTree:
    """Return the tree at a rate in bytes/s, without non-members that relay nothing. `unit`: bytes/s per weight."""
    # hops list parents first, so in reverse a rank comes after all ranks below it
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
    return SpanningTree(tree.root, tree.weight * unit, tuple(sorted(hops)))


@dataclass(frozen=True)
class Arborescence:
    """A directed tree of integral weight: the units of capacity that it takes of each of its arcs.

    `hops`: every node but the root as (parent, node, links of the arc), a parent before its children.
    """

    root: int
    weight: int
    hops: tuple[tuple[int, int, Path], ...]
    depth: int


class ForestGrower:
    """Grow trees one after the other out of the remaining capacity, breadth first so that they are shallow.

    Every node is a sink. Invariant between trees: `flows` brings every sink all of `remaining_supply`, the supply that
    no tree carries yet. While a tree grows, a sink outside it must still receive the tree's weight, too, from any of
    the tree's nodes (`SinkFlows.tree_flow`). An arc that cannot take the whole weight under this rule is left out. If
    no arc can, the weight of the whole tree is lowered.
    """

    def __init__(self, nodes: int, arc_paths: Mapping[Arc, Mapping[Path, int]], supply: Mapping[int, int]) -> None:
        """`arc_paths`: the paths of links that each arc stands for; a tree that takes an arc takes one of them."""
        self.arc_paths = {
            arc: sorted((amount, path) for path, amount in capacities.items()) for arc, capacities in arc_paths.items()
        }
        arcs = {arc: sum(capacities.values()) for arc, capacities in arc_paths.items()}
        self.flows = SinkFlows(nodes=nodes, sinks=nodes, arcs=arcs, supply=supply)
        self.remaining_supply = {root: amount for root, amount in sorted(supply.items()) if amount}
        self.out: list[list[int]] = [[] for _ in range(nodes)]
        for arc, tail in enumerate(self.flows.tail):
            self.out[tail].append(arc)
        # the growing tree: its nodes in the order they joined (also as a bit mask), and by node the arc that leads
        # there and the depth
        self.tree_nodes: list[int] = []
        self.tree_mask = 0
        self.arc = [-1] * nodes
        self.depth = [0] * nodes
        self.weight = 0
        self.max_weight: list[int] = []  # by arc: upper bound on the weight that it can carry of this tree
        self.head_order = list(range(nodes))  # tie-break between arcs of equal capacity, by head

    def grow_all(self) -> list[Arborescence]:
        """Return trees that carry all the remaining supply. O(nodes^2) tests of arcs per tree, each some searches."""
        trees = []
        while self.remaining_supply:
            for root in list(self.remaining_supply):
                self._grow_tree(root)
                trees.append(self._finish_tree())
        return trees

    def _finish_tree(self) -> Arborescence:
        """Return the grown tree; subtract its weight from its root's supply and from a path of each of its arcs."""
        root, flows = self.tree_nodes[0], self.flows
        self.remaining_supply[root] -= self.weight
        if not self.remaining_supply[root]:
            del self.remaining_supply[root]
        arcs = [(flows.tail[self.arc[node]], node) for node in self.tree_nodes[1:]]
        hops = tuple((*arc, _take_path(self.arc_paths[arc], self.weight)) for arc in arcs)
        return Arborescence(root, self.weight, hops, max(self.depth[node] for node in self.tree_nodes))

    def take_back(self, tree: Arborescence) -> None:
        """Remove a finished tree: its weight returns to its root's supply, its capacity to its arcs."""
        flows = self.flows
        # make it the growing tree, which now has all nodes, and lower its weight to 0
        self.tree_nodes, self.tree_mask = [tree.root, *(node for _, node, _ in tree.hops)], (1 << flows.nodes) - 1
        for parent, node, path in tree.hops:
            self.arc[node] = flows.at[parent][node]  # the number of the arc between them
            _put_path(self.arc_paths[parent, node], path, tree.weight)
        self.weight = tree.weight
        self._return_weight(tree.weight)
        self.remaining_supply[tree.root] = self.remaining_supply.get(tree.root, 0) + tree.weight

    def save_state(self) -> tuple[Any, ...]:
        """Return what `restore_state` needs: flows, capacities and residual arcs (`open`), and the paths of arcs.

        To be called only between trees, with no supply left to carry.

        The state of the growing tree is not part of it: the next tree sets that anew.
        """
        flows, arc_paths = self.flows, {arc: capacities[:] for arc, capacities in self.arc_paths.items()}
        return [row[:] for row in flows.flow], flows.capacity[:], [row[:] for row in flows.open], arc_paths

    def restore_state(self, saved: tuple[Any, ...]) -> None:
        """Return to the state that `save_state` returned."""
        self.flows.flow, self.flows.capacity, self.flows.open, self.arc_paths = saved
        self.remaining_supply = {}

    def _grow_tree(self, root: int) -> None:
        """Grow a tree from the root to all nodes, as heavy as possible."""
        flows, nodes = self.flows, self.flows.nodes
        self.tree_nodes, self.tree_mask, self.weight = [root], 1 << root, self.remaining_supply[root]
        self.depth[root] = 0
        # at first the tree's weight starts at the root for every sink; `sources`: the nodes where it does, as bits
        for sink in range(nodes):
            flows.tree_flow[root][sink] = self.weight if sink != root else 0
            flows.sources[sink] = 1 << root if sink != root else 0
        ends = zip(flows.tail, flows.head, strict=True)
        self.max_weight = [self.arc_paths[arc][-1][0] for arc in ends]  # the widest path: a tree takes only one
        self._add_full_arcs()
        while len(self.tree_nodes) < nodes:
            self._lower_weight()
            self._add_full_arcs()

    def _add_full_arcs(self) -> None:
        """Add all arcs that take the whole weight: level by level, within a level those of greatest capacity first.

        What an arc can take of this tree only decreases while the tree grows, so each arc is tried once.
        """
        flows, capacity = self.flows, self.flows.capacity
        for depth in range(flows.nodes):
            level = [node for node in self.tree_nodes if self.depth[node] == depth]
            candidates = [a for x in level for a in self.out[x] if self.max_weight[a] >= self.weight]
            for arc in sorted(candidates, key=lambda a: (-capacity[a], self.head_order[flows.head[a]])):
                if self.tree_mask >> flows.head[arc] & 1:
                    continue
                if self._try_arc(arc, self.weight, keep=True):
                    self.join_arc(arc)
                    if len(self.tree_nodes) == flows.nodes:
                        return

    def _lower_weight(self) -> None:
        """Lower the tree's weight to the most that some arc takes (if none takes the whole weight)."""
        flows = self.flows
        candidates = [a for x in self.tree_nodes for a in self.out[x] if not self.tree_mask >> flows.head[a] & 1]
        while True:
            best = max(candidates, key=lambda a: self.max_weight[a], default=-1)
            if best < 0 or not self.max_weight[best]:
                raise AssertionError("no tree can grow: the supplies were not within the cuts")
            weight = self.max_weight[best]
            # `max_weight` is an upper bound; a failed test lowers it, so retry with the next best
            if self._try_arc(best, weight, keep=False):
                break
        self._return_weight(self.weight - weight)

    def _try_arc(self, arc: int, weight: int, keep: bool) -> bool:
        """Return whether the arc can carry this much of the tree while all sinks stay served.

        If so and `keep`, the capacity is taken; otherwise it is put back. Either way `max_weight` falls to what the
        arc accepted. O(sinks), and a path search for each sink whose flow must move.
        """
        flows, row = self.flows, self.flows.flow[arc]
        tail, head, capacity = flows.tail[arc], flows.head[arc], flows.capacity[arc]
        # take the arc first; every sink whose flow used more than what remains must find another path, or the weight
        # shrinks
        accepted = min(weight, capacity)
        remaining = capacity - accepted
        # only sinks whose flow uses the remaining capacity in full, or exceeds it, are affected
        affected = [sink for sink, amount in enumerate(row) if amount >= remaining]
        flows.capacity[arc] = remaining
        for sink in affected:
            if row[sink] > remaining:
                # the tree is about to reach the arc's head, so flow to the sink may start there, too
                lacking = flows.divert_excess(sink, arc, joining=head)
                accepted, remaining = accepted - lacking, remaining + lacking
                flows.capacity[arc] = remaining
                if not accepted:
                    break
            else:
                flows.refresh_pair(sink, tail, head)  # its flow fills what remains: the arc is closed to it now
        self.max_weight[arc] = min(self.max_weight[arc], accepted)
        if accepted == weight and keep:
            return True
        # the arc's head does not join after all: only flow that starts there must move back; other diverted flow is as
        # good as it was
        flows.capacity[arc] = capacity
        for sink in affected:
            flows.restore_start(sink, arc)
        return accepted == weight

    def join_arc(self, arc: int) -> None:
        """Extend the tree by this arc, whose capacity `_try_arc` has taken; the invariant holds again."""
        flows = self.flows
        node = flows.head[arc]
        self.arc[node] = arc
        self.depth[node] = self.depth[flows.tail[arc]] + 1
        self.tree_nodes.append(node)
        self.tree_mask |= 1 << node
        self._release_sink(node)

    def _release_sink(self, sink: int) -> None:
        """Cancel the flow that the tree's weight needed to reach a sink: the sink is now a node of the tree itself.

        This flow then starts nowhere (new=-1 of `move_start`).
        """
        flows = self.flows
        flows.move_start(sink, sink, new=-1, amount=flows.tree_flow[sink][sink])
        for source in set_bits(flows.sources[sink]):
            while flows.tree_flow[source][sink]:
                path = self._flow_path(source, sink)
                amount = min(flows.tree_flow[source][sink], *(flows.flow[arc][sink] for arc in path))
                for arc in path:
                    flows.send_flow(sink, flows.head[arc], flows.tail[arc], amount)
                flows.move_start(sink, source, new=-1, amount=amount)

    def _flow_path(self, source: int, sink: int) -> list[int]:
        """Return arcs that the sink's flow uses from source to sink, as few as possible."""
        flows = self.flows
        entered_by = {source: -1}
        # breadth-first search; the queue grows while it is read
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

    def _return_weight(self, amount: int) -> None:
        """Lower the tree's weight: the amount returns to its arcs, and the flows bring it from the root again.

        `remaining_supply` is left to the caller: a growing tree's weight is still part of it (see `_finish_tree`).

        Each sink's flow of this amount then starts at the root and follows the tree, to where it started before.
        """
        flows = self.flows
        for node in self.tree_nodes[1:]:
            flows.widen_arc(self.arc[node], amount)
        for sink in range(flows.nodes):
            if self.tree_mask >> sink & 1:  # a node of the tree: the flow reaches it along the tree
                self._add_flow_along(sink, sink, amount)
                continue
            # another sink: flow of this amount that starts at the tree's nodes comes there from the root
            missing = amount
            for source in set_bits(flows.sources[sink]):
                amount_here = min(missing, flows.tree_flow[source][sink])
                flows.move_start(sink, source, new=-1, amount=amount_here)
                self._add_flow_along(sink, source, amount_here)
                missing -= amount_here
        self.weight -= amount

    def _add_flow_along(self, sink: int, node: int, amount: int) -> None:
        """Increase the sink's flow on the tree's path from the root to the node."""
        flows, root = self.flows, self.tree_nodes[0]
        while amount and node != root:
            arc = self.arc[node]
            flows.flow[arc][sink] += amount
            tail = flows.tail[arc]
            flows.refresh_pair(sink, tail, node)
            flows.refresh_pair(sink, node, tail)
            node = tail


def _take_path(arc_paths: list[tuple[int, Path]], weight: int) -> Path:
    """Take the weight from the path of least sufficient capacity: others stay for heavier trees. Keep it sorted.

    There is such a path, as no tree is heavier than the widest path of each of its arcs (`ForestGrower.max_weight`).
    """
    at = bisect_left(arc_paths, (weight, ()))
    amount, path = arc_paths.pop(at)
    insort(arc_paths, (amount - weight, path))
    return path


def _put_path(arc_paths: list[tuple[int, Path]], path: Path, weight: int) -> None:
    """Add the weight to the capacity of the path."""
    at = next(at for at, (_, other) in enumerate(arc_paths) if other == path)
    amount, _ = arc_paths.pop(at)
    insort(arc_paths, (amount + weight, path))


def regrow_trees(packing: ForestGrower, trees: Sequence[Arborescence], tries: int) -> list[Arborescence]:
    """Remove and regrow a few trees, `tries` times, to have fewer and shallower ones; return the best trees.

    A try keeps the new trees if they are no more and no deeper than the removed ones; it costs as much as growing at
    most 8 trees. Stops early if every root has one tree of minimum depth, and after many tries without gain.
    """
    rng = random.Random(0)
    best_trees = list(trees)
    min_depths = [_root_eccentricity(packing, root) for root in sorted({tree.root for tree in trees})]
    best, without_gain = measure_quality(best_trees), 0
    for _ in range(tries):
        if best <= (len(min_depths), sorted(min_depths, reverse=True)) or without_gain == MAX_TRIES_WITHOUT_GAIN:
            break
        # remove some trees and grow others in their capacity; restore the old ones if the new ones are not as good
        chosen = _select_trees(best_trees, rng)
        removed = [best_trees[at] for at in sorted(chosen)]
        saved_state = packing.save_state()
        for tree in removed:
            packing.take_back(tree)
        packing.remaining_supply = {
            best_trees[at].root: packing.remaining_supply[best_trees[at].root] for at in chosen
        }  # the first chosen grows first
        rng.shuffle(packing.head_order)
        regrown = packing.grow_all()
        if measure_quality(regrown) <= measure_quality(removed):
            best_trees = [tree for at, tree in enumerate(best_trees) if at not in chosen] + regrown
        else:
            packing.restore_state(saved_state)
        without_gain = without_gain + 1 if measure_quality(best_trees) == best else 0
        best = measure_quality(best_trees)
    return sorted(best_trees, key=lambda tree: tree.root)


def measure_quality(trees: Sequence[Arborescence]) -> Quality:
    """Return the number of trees and their depths in descending order, which `regrow_trees` minimizes."""
    return len(trees), sorted((tree.depth for tree in trees), reverse=True)


def _select_trees(trees: Sequence[Arborescence], rng: random.Random) -> list[int]:
    """Return the positions of trees to regrow: a deepest one, or two of one root, which may merge; up to 6 others."""
    trees_of_root: dict[int, list[int]] = {}
    for at, tree in enumerate(trees):
        trees_of_root.setdefault(tree.root, []).append(at)
    pairs = [root_trees for root_trees in trees_of_root.values() if len(root_trees) > 1]
    if pairs and rng.randrange(2):
        root_trees = pairs[rng.randrange(len(pairs))]
        start = rng.randrange(len(root_trees))
        chosen = [root_trees[start], root_trees[start - 1]]
    else:
        deepest = max(tree.depth for tree in trees)
        deepest_trees = [at for at, tree in enumerate(trees) if tree.depth == deepest]
        chosen = [deepest_trees[rng.randrange(len(deepest_trees))]]
    for _ in range(1 + rng.randrange(6)):
        at = rng.randrange(len(trees))
        if at not in chosen:
            chosen.append(at)
    return chosen


def _root_eccentricity(packing: ForestGrower, root: int) -> int:
    """Return the distance of the farthest node from the root: no tree is shallower."""
    flows = packing.flows
    depth = {root: 0}
    for node in (queue := [root]):
        for arc in packing.out[node]:
            head = flows.head[arc]
            if head not in depth:
                depth[head] = depth[node] + 1
                queue.append(head)
    return max(depth.values())
