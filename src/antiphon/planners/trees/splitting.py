"""Replace switches by direct arcs between ranks, so that trees can be packed over ranks alone (edge splitting).

Input: a machine as a `LinkGraph`; the supply, that is, the amount that each root sends; the sinks, that is, ranks that
must each be able to receive the whole supply. Output (`without_switches`): arcs between ranks that still let every sink
receive the whole supply. Each arc comes with the paths of links that it stands for (`ArcPaths`), so that trees over
arcs translate back to links.

A switch with equal capacity in and out can be split off. For a pair of neighbours (ports) u and t, some capacity of the
arcs u -> switch and switch -> t moves to a new arc u -> t. This is repeated until no capacity passes through the
switch. Some choice of amounts keeps every sink served (Mader 1982; Frank 1989; Jackson 1988; Bang-Jensen, Frank and
Jackson 1995), and it is found in any order of pairs if each pair moves at most what the cuts allow (`ExactSplit`).
Spreading capacity evenly over the pairs is a cheap guess that usually suffices; the exact amounts are computed only
where the guess fails. An unbalanced switch is treated in the same way; if that leaves some sink short, the result is
None.

Example: 4 ranks on one switch, 3 units in and out each. The even guess gives 1 unit to each of the 12 ordered pairs:
a complete graph, with the same cuts between ranks as before.

`SinkFlows` answers the central question of splitting and of packing (forest.py): how much capacity may an arc lose? It
maintains a maximum flow per sink while capacities change. A flow of the whole supply proves that its sink is served;
when an arc loses capacity, the excess flow is pushed onto other paths. Removing x units of capacity lowers each cut by
x or not at all, so if d units of some sink's flow find no other path, exactly x - d units may be removed.

Capacities are Python ints: exact for any size. The open arcs of a sink's flow are one bit mask per node, so a search
takes one operation per node and not per arc. Measured (CPU seconds, packing the forest of 128 GPUs in 16 boxes): 11
where searches go arc by arc, 0.8 with masks. Compiled with numba, arc by arc takes 0.3, but compiling takes 4 s,
importing 0.25 s and installing 200 MB. So this is plain Python.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from antiphon.core.bounds.cuts import tightest_cut
from antiphon.core.bounds.network import Network
from antiphon.core.columns import SAFE_INT64
from antiphon.core.topology import SharedLimit, Topology

Arc = tuple[int, int]  # from node, to node
Amounts = dict[Arc, int]  # pair of neighbours (from, to) -> capacity that the switch passes between them
Path = tuple[int, ...]  # links, in order
ArcPaths = dict[Arc, dict[Path, int]]  # arc -> the paths of links that it stands for, each with its capacity


def without_switches(
    link_graph: LinkGraph, arc_paths: ArcPaths, supply: Mapping[int, int], sinks: Sequence[int], *, guess: bool = True
) -> ArcPaths | None:
    """Return arcs between ranks through which every sink can still receive every root's supply.

    `arc_paths`: arcs between ranks and switches. `guess`: try even amounts before exact ones. None where a switch could
    not be removed. That never happens if all switches are balanced and every rank is a sink. O(switches * ports^2) for
    guesses, and O(ports^2 * sinks) path searches for each switch that is split exactly.
    """
    order = _switches_far_first(link_graph, arc_paths)
    # first guess all switches at once, checked by one cut computation
    if guess:
        guessed = arc_paths
        for switch in order:
            # even shares suit symmetric machines, so nearly always this guess suffices
            guessed = _split_off(link_graph, guessed, switch, _even_amounts(guessed, switch, link_graph.nodes))
        if not order or serves_all_sinks(link_graph, guessed, supply, sinks):
            return guessed
    # the guess loses rate somewhere: go switch by switch, exactly where necessary
    for switch in order:
        amounts = _even_amounts(arc_paths, switch, link_graph.nodes) if guess else {}
        without_switch = _split_off(link_graph, arc_paths, switch, amounts)
        if not guess or not serves_all_sinks(link_graph, without_switch, supply, sinks):
            exact = ExactSplit(link_graph, arc_paths, supply, sinks, switch).split_all_pairs(amounts)
            without_switch = _split_off(link_graph, arc_paths, switch, exact)
            if not serves_all_sinks(link_graph, without_switch, supply, sinks):
                return None
        arc_paths = without_switch
    return arc_paths


def _switches_far_first(link_graph: LinkGraph, arc_paths: ArcPaths) -> list[int]:
    """Return the switches, those farthest from any rank first: spine switches become arcs between leaf switches."""
    tails_of: dict[int, set[int]] = {}
    for tail, head in arc_paths:
        tails_of.setdefault(head, set()).add(tail)
    depth = dict.fromkeys(range(link_graph.ranks), 0)
    level = list(depth)
    while level:
        level = sorted({tail for head in level for tail in tails_of.get(head, ()) if tail not in depth})
        depth |= dict.fromkeys(level, max(depth.values()) + 1)
    used = {node for arc in arc_paths for node in arc if node >= link_graph.ranks}
    return sorted(used, key=lambda node: (-depth.get(node, link_graph.nodes), node))


def serves_all_sinks(
    link_graph: LinkGraph, arc_paths: ArcPaths, supply: Mapping[int, int], sinks: Sequence[int]
) -> bool:
    """Return whether every sink can receive all of the supply, by the tightest cut."""
    supplies: dict[tuple[int, ...], int] = {(root,): amount for root, amount in supply.items()}
    if not arc_paths:
        return False
    _, rate = tightest_cut(link_graph.to_network(arc_paths), supplies, sinks)
    return rate >= 1  # every set that excludes a sink lets out at least the supply that begins inside it


def _port_capacities(arc_paths: ArcPaths, switch: int) -> tuple[dict[int, int], dict[int, int]]:
    """Return the capacity that enters the switch, by node, and the capacity that leaves it."""
    arcs = sorted(arc for arc in arc_paths if switch in arc)
    into = {tail: sum(arc_paths[tail, head].values()) for tail, head in arcs if head == switch}
    out = {head: sum(arc_paths[tail, head].values()) for tail, head in arcs if tail == switch}
    return into, out


def _port_groups(arc_paths: ArcPaths, switch: int, ports: Sequence[int], nodes: int) -> dict[int, tuple[int, int]]:
    """Return for each neighbour of the switch (port) the number of its group and its position in the group.

    A group is a connected component of the graph without the switch, such as a box. If that graph is connected, each
    port is a group of its own.
    """
    import igraph

    graph = igraph.Graph(nodes, [arc for arc in arc_paths if switch not in arc])
    label = graph.connected_components(mode="weak").membership
    if len({label[port] for port in ports}) == 1:
        return {port: (number, 0) for number, port in enumerate(ports)}
    group: dict[int, list[int]] = {}
    for port in ports:
        group.setdefault(label[port], []).append(port)
    return {
        port: (number, position)
        for number, group_ports in enumerate(group.values())
        for position, port in enumerate(group_ports)
    }


def _pair_stages(arc_paths: ArcPaths, switch: int, nodes: int) -> list[list[Arc]]:
    """Return all pairs (from, to) of ports in three stages: to other groups, within a group, back to the same node.

    Pairs of different groups come first, as only the switch joins groups; capacity back to the same node is lost.
    A stage goes round by round; in each round every node has another partner. A node's partners are ordered by the
    capacity of the direct arc to them (least first), then by position: equal positions first, so that each network card
    sends to its peers in other boxes.
    """
    into, out = _port_capacities(arc_paths, switch)
    group_of = _port_groups(arc_paths, switch, sorted({*into, *out}), nodes)
    groups = 1 + max((group for group, _ in group_of.values()), default=0)
    largest_group = 1 + max((position for _, position in group_of.values()), default=0)
    stages: list[list[tuple[int, Arc]]] = [[], [], []]  # by stage: the round of a pair, and the pair
    for tail in into:
        own_group, own_position = group_of[tail]
        partners: list[list[tuple[int, int, int, int]]] = [[], [], []]  # by stage: sort keys, and the partner
        for head in out:
            other_group, position = group_of[head]
            stage_number = 2 if tail == head else 1 if own_group == other_group else 0
            direct_capacity = sum(arc_paths.get((tail, head), {}).values())
            # equal positions first, then the next ones; likewise groups
            distance, group_distance = (position - own_position) % largest_group, (other_group - own_group) % groups
            partners[stage_number].append((direct_capacity, distance, group_distance, head))
        for stage, stage_partners in zip(stages, partners, strict=True):
            stage += [(round_number, (tail, head)) for round_number, (*_, head) in enumerate(sorted(stage_partners))]
    return [[pair for _, pair in sorted(stage)] for stage in stages]


def _even_amounts(arc_paths: ArcPaths, switch: int, nodes: int) -> Amounts:
    """Return amounts that spread the switch's capacity evenly over the pairs of ports.

    In each stage of `_pair_stages`: first in proportion to the capacities of both ports, then single units in turns,
    then the remainder.
    """
    into, out = _port_capacities(arc_paths, switch)
    amounts: Amounts = {}
    for stage in _pair_stages(arc_paths, switch, nodes):
        outward, inward = dict.fromkeys(into, 0), dict.fromkeys(out, 0)
        for tail, head in stage:
            outward[tail] += out[head]
            inward[head] += into[tail]
        # first pass: a pair gets capacity in * capacity out / (the sum over all partners of the one with more), rounded
        # down; the second pass deals out single units, the third the remainder
        share = {(a, b): into[a] * out[b] // (max(outward[a], inward[b]) or 1) for a, b in stage}
        for limit in (share, dict.fromkeys(stage, 1), None):
            for tail, head in stage:
                amount = min(into[tail], out[head])
                amount = amount if limit is None else min(amount, limit[tail, head])
                if amount:
                    into[tail] -= amount
                    out[head] -= amount
                    amounts[tail, head] = amounts.get((tail, head), 0) + amount
    return amounts


def _split_off(link_graph: LinkGraph, arc_paths: ArcPaths, switch: int, amounts: Amounts) -> ArcPaths:
    """Return the arcs without the switch: for each pair of `amounts`, paths in are joined to paths out.

    Capacity from a node back to itself is dropped.
    """
    paths_at_switch = {arc: list(capacities.items()) for arc, capacities in sorted(arc_paths.items()) if switch in arc}
    remaining_paths = {arc: dict(capacities) for arc, capacities in arc_paths.items() if switch not in arc}
    for (tail, head), amount in amounts.items():
        missing = amount
        while missing:
            # join the last path in with the last path out, by the lesser of their capacities
            (first, a), (second, b) = paths_at_switch[tail, switch][-1], paths_at_switch[switch, head][-1]
            moved = min(missing, a, b)
            missing -= moved
            for arc, path, path_capacity in (((tail, switch), first, a), ((switch, head), second, b)):
                paths_at_switch[arc].pop()
                if path_capacity > moved:
                    paths_at_switch[arc].append((path, path_capacity - moved))
            if tail != head:
                capacities = remaining_paths.setdefault((tail, head), {})
                path = link_graph.join_paths(first, second)
                capacities[path] = capacities.get(path, 0) + moved
    return remaining_paths


class ExactSplit:
    """Split off one switch exactly: move as much capacity of each pair of ports as leaves every sink served.

    Nodes are renumbered, sinks first. Invariant: after each `split_pair`, every sink's flow carries all of the supply.
    """

    def __init__(
        self, link_graph: LinkGraph, arc_paths: ArcPaths, supply: Mapping[int, int], sinks: Sequence[int], switch: int
    ) -> None:
        used = {node for arc in arc_paths for node in arc}
        order = [*sinks, *sorted(used - set(sinks))]
        self.index = {node: number for number, node in enumerate(order)}
        arcs = {(self.index[a], self.index[b]): sum(capacities.values()) for (a, b), capacities in arc_paths.items()}
        self.flows = SinkFlows(len(order), len(sinks), arcs, {self.index[r]: k for r, k in supply.items()})
        self.switch = self.index[switch]
        self.pairs = [pair for stage in _pair_stages(arc_paths, switch, link_graph.nodes) for pair in stage]

    def split_all_pairs(self, guess: Amounts) -> Amounts:
        """Return the amount of each pair: as much of the guess as possible, then as much more as possible."""
        amounts: Amounts = {}
        for (tail, head), limit in [*guess.items(), *((pair, -1) for pair in self.pairs)]:
            amount = self.split_pair(self.index[tail], self.index[head], limit)
            if amount:
                amounts[tail, head] = amounts.get((tail, head), 0) + amount
        return amounts

    def split_pair(self, tail: int, head: int, limit: int) -> int:
        """Move capacity of tail -> switch -> head to an arc tail -> head; return the amount.

        `limit`: the most to move; -1 is as much as possible.
        """
        flows = self.flows
        # both arcs exist, as tail and head are ports; at most the capacity of either can be split off
        into, out = flows.at[tail][self.switch], flows.at[self.switch][head]
        amount = min(flows.capacity[into], flows.capacity[out])
        amount = amount if limit < 0 else min(amount, limit)
        if not amount:
            return 0
        # optimistically move everything, then give back the capacity that some sink's flow cannot do without
        direct = flows.add_arc(tail, head, amount) if tail != head else -1
        flows.capacity[into] -= amount
        flows.capacity[out] -= amount
        for sink in range(flows.sinks):
            lacking = self._reroute_sink(sink, into, out, direct)
            if lacking:
                amount -= lacking
                for arc in (into, out):
                    flows.widen_arc(arc, lacking)
                    flows.refresh_both(sink, arc)  # the unplaced flow uses the returned capacity
                if direct >= 0:
                    self._lower_arc(direct, lacking, sink)
        return amount

    def _reroute_sink(self, sink: int, into: int, out: int, direct: int) -> int:
        """Fit the sink's flow to the reduced arcs `into` and `out`; return the amount that finds no other path.

        `direct`: the new arc; -1 where a pair leads back to the same node.
        """
        flows = self.flows
        used_in, used_out = flows.flow[into][sink], flows.flow[out][sink]
        if used_in < flows.capacity[into] and used_out < flows.capacity[out]:
            return 0  # both arcs still have room, so the sink's residual arcs need no update
        excess = max(used_in - flows.capacity[into], used_out - flows.capacity[out], 0)
        # flow that passes both arcs can use the new direct arc without any search
        shift = min(excess, used_in, used_out)
        for arc in (into, out, direct):
            if arc >= 0:
                flows.flow[arc][sink] += shift if arc == direct else -shift
        # Now at most one arc exceeds its capacity: a `shift` below the excess is all flow of the other arc.
        lacking = 0
        for arc in (into, out):
            if flows.flow[arc][sink] > flows.capacity[arc]:
                lacking += flows.divert_excess(sink, arc)
        for arc in (into, out, direct):
            if arc >= 0:
                flows.refresh_both(sink, arc)
        return lacking

    def _lower_arc(self, arc: int, amount: int, last: int) -> None:
        """Reduce the new arc's capacity; excess flow of sinks up to `last` returns to the path through the switch."""
        flows = self.flows
        flows.capacity[arc] -= amount
        for sink in range(flows.sinks):
            # sinks up to `last` were already rerouted over the larger arc; later ones are rerouted in their turn
            if sink <= last and flows.flow[arc][sink] > flows.capacity[arc]:
                flows.divert_excess(sink, arc)
            flows.refresh_both(sink, arc)


@dataclass(frozen=True)
class LinkGraph:
    """A machine as a graph: the ends of every link, with integer capacities in units of resources.scale.

    Shared limits become part of the graph. If all links of a limit begin (or all end) at one node, an extra switch
    stands between them and that node, joined to it by one extra link of the limit's capacity. Extra switches are
    numbered after the topology's nodes and extra links after its links, in the order of the limits.
    """

    ranks: int
    nodes: int  # with extra switches
    topology_links: int  # number of the topology's own links; extra links come after them
    tail: tuple[int, ...]  # by link
    head: tuple[int, ...]
    capacity: tuple[int, ...]

    def to_arc_paths(self, factor: int = 1) -> ArcPaths:
        """Return the arcs, each link as a path of its own, capacities times the factor; without links of capacity 0."""
        arc_paths: ArcPaths = {}
        for link, (tail, head, capacity) in enumerate(zip(self.tail, self.head, self.capacity, strict=True)):
            if capacity:
                arc_paths.setdefault((tail, head), {})[link,] = capacity * factor
        return arc_paths

    def to_network(self, arc_paths: Mapping[Arc, Mapping[Path, int]]) -> Network:
        """Return the arcs as a `Network`, for cuts."""
        arcs = sorted(arc_paths)
        amounts = [sum(arc_paths[arc].values()) for arc in arcs]
        # int64 if it has room for sums that count every arc four times (as in `link_capacities`); else Python ints
        dtype = np.int64 if 4 * sum(amounts) < SAFE_INT64 else object
        ends = np.array(arcs, np.int64).reshape(-1, 2)
        return Network(self.nodes, self.ranks, ends[:, 0], ends[:, 1], np.array(amounts, dtype))

    def join_paths(self, first: Path, second: Path) -> Path:
        """Return the concatenation of two paths without the loop where it returns to a switch."""
        path: list[int] = []
        for link in (*first, *second):
            path.append(link)
            # if `link` ends where an earlier link of the path began, the links from that one on are a loop
            for i, earlier in enumerate(path):
                if self.tail[earlier] == self.head[link]:
                    del path[i:]
                    break
        return tuple(path)

    def links_of(self, path: Path) -> Path:
        """Return the topology's own links of a path."""
        return tuple(link for link in path if link < self.topology_links)


def build_link_graph(topology: Topology) -> LinkGraph | None:
    """Return the machine as a graph; None if links of a shared limit have no common end, or a link has several
    limits.
    """
    resources = topology.resources
    width = [resources.capacity[number] for number in resources.class_of.tolist()]
    tail, head, capacity = topology.link_src.tolist(), topology.link_dst.tolist(), width[: topology.links]
    limited_links: set[int] = set()
    for number, limit in enumerate(topology.limits):
        side = _common_end(topology, limit)
        if side is None or not limited_links.isdisjoint(limit.links):
            return None
        limited_links |= set(limit.links)
        # the shared limit becomes a switch `middle`: its links end (or begin) there, and one link of the limit's
        # capacity joins it to the node where they ended (or began)
        middle = topology.nodes + number
        first, *_ = limit.links
        ends = tail if side == "tail" else head
        extra_tail, extra_head = (tail[first], middle) if side == "tail" else (middle, head[first])
        for link in limit.links:
            ends[link] = middle
        tail.append(extra_tail)
        head.append(extra_head)
        capacity.append(min(width[topology.links + number], sum(width[link] for link in limit.links)))
    nodes = topology.nodes + len(topology.limits)
    return LinkGraph(
        topology.ranks, nodes, topology.links, tail=tuple(tail), head=tuple(head), capacity=tuple(capacity)
    )


def _common_end(topology: Topology, limit: SharedLimit) -> str | None:
    """Return "tail" if all the limit's links begin at one node, "head" if all end at one, else None."""
    links = list(limit.links)
    for side, ends in (("tail", topology.link_src), ("head", topology.link_dst)):
        if len(set(ends[links].tolist())) == 1:
            return side
    return None


def set_bits(mask: int) -> list[int]:
    """Return the numbers of the set bits, ascending."""
    numbers = []
    while mask:
        low = mask & -mask
        numbers.append(low.bit_length() - 1)
        mask ^= low
    return numbers


class SinkFlows:
    """Per sink a flow that brings it every root's whole supply, maintained while capacities change.

    Nodes are 0..nodes-1, and 0..sinks-1 are the sinks; each ordered pair of nodes has at most one arc. `served`:
    whether every sink could be served at the start.

    For packing (forest.py) one tree grows at a time. Its weight has left the root's supply, but a sink outside the tree
    must still be able to receive that weight: from any node that the tree has reached, over capacity that the tree does
    not use. `tree_flow[node][sink]` is the amount of the sink's flow that starts at that node of the tree.
    """

    def __init__(self, nodes: int, sinks: int, arcs: Mapping[Arc, int], supply: Mapping[int, int]) -> None:
        self.nodes, self.sinks = nodes, sinks
        self.tail: list[int] = []  # by arc
        self.head: list[int] = []
        self.capacity: list[int] = []
        self.flow: list[list[int]] = []  # [arc][sink]
        self.at = [[-1] * nodes for _ in range(nodes)]  # [tail][head]: number of the arc
        self.open = [[0] * nodes for _ in range(sinks)]  # [sink][node]: bit mask of the heads of residual arcs
        self.tree_flow = [[0] * sinks for _ in range(nodes)]
        self.sources = [0] * sinks  # by sink: bit mask of the nodes at which `tree_flow` is not 0
        for (tail, head), capacity in sorted(arcs.items()):
            self.add_arc(tail, head, capacity)
        self.served = all(
            self.push_flow(sink, root, 1 << sink, amount) == 0
            for sink in range(sinks)
            for root, amount in sorted(supply.items())
            if root != sink
        )

    def add_arc(self, tail: int, head: int, capacity: int) -> int:
        """Add capacity from tail to head, creating the arc if necessary; return its number."""
        arc = self.at[tail][head]
        if arc < 0:
            arc = self.at[tail][head] = len(self.tail)
            self.tail.append(tail)
            self.head.append(head)
            self.capacity.append(0)
            self.flow.append([0] * self.sinks)
        self.widen_arc(arc, capacity)
        return arc

    def widen_arc(self, arc: int, gain: int) -> None:
        """Increase the arc's capacity."""
        if gain > 0:
            self.capacity[arc] += gain
            tail, bit = self.tail[arc], 1 << self.head[arc]
            for masks in self.open:
                masks[tail] |= bit

    def refresh_pair(self, sink: int, tail: int, head: int) -> None:
        """Update the residual arc from tail to head: open if the arc has room or the opposite one carries flow."""
        forward, back = self.at[tail][head], self.at[head][tail]
        if (forward >= 0 and self.flow[forward][sink] < self.capacity[forward]) or (
            back >= 0 and self.flow[back][sink] > 0
        ):
            self.open[sink][tail] |= 1 << head
        else:
            self.open[sink][tail] &= ~(1 << head)

    def refresh_both(self, sink: int, arc: int) -> None:
        """Update the residual arcs in both directions of an arc."""
        self.refresh_pair(sink, self.tail[arc], self.head[arc])
        self.refresh_pair(sink, self.head[arc], self.tail[arc])

    def push_flow(self, sink: int, start: int, goals: int, amount: int, joining: int = -1) -> int:
        """Send `amount` of the sink's flow from start to some goal by shortest augmenting paths.

        Return the amount that finds no path.

        `goals`: bit mask of nodes. `joining`: the node that joins the growing tree, by an arc that the tree takes, else
        -1. With it, the goals are that node and the nodes of the tree at which flow of this sink starts. Flow that
        reaches one of the latter goes on along the flow that started there, so as much of that flow starts at `joining`
        instead.
        """
        while amount:
            path = self._shortest_path(self.open[sink], start, goals)
            if path is None:
                return amount
            # Edmonds-Karp: as much as the fullest arc of the path allows
            end = path[-1]
            bottleneck = amount
            for x, y in itertools.pairwise(path):
                bottleneck = min(bottleneck, self._residual_capacity(sink, x, y))
            if joining >= 0 and end != joining:
                bottleneck = min(bottleneck, self.tree_flow[end][sink])
                self.move_start(sink, end, joining, bottleneck)
                if not self.tree_flow[end][sink]:
                    goals &= ~(1 << end)
            for x, y in itertools.pairwise(path):
                self.send_flow(sink, x, y, bottleneck)
            amount -= bottleneck
        return 0

    @staticmethod
    def _shortest_path(masks: Sequence[int], start: int, goals: int) -> list[int] | None:
        """Return the nodes of a path from start to some goal with the fewest arcs, or None. O(nodes) mask operations.

        `masks`: per node the heads of its residual arcs; `goals`: bit mask of nodes.
        """
        if goals >> start & 1:
            return [start]
        visited, level = 1 << start, [start]
        levels = [level]
        while level:
            reached = 0
            for node in level:
                reached |= masks[node]
            reached_goals = reached & goals & ~visited
            if reached_goals:
                # back from the goal, level by level: any node of the level before with a residual arc to the path
                path = [(reached_goals & -reached_goals).bit_length() - 1]
                for level_nodes in reversed(levels):
                    bit = 1 << path[-1]
                    path.append(next(node for node in level_nodes if masks[node] & bit))
                path.reverse()
                return path
            reached &= ~visited
            visited |= reached
            level = set_bits(reached)
            levels.append(level)
        return None

    def _residual_capacity(self, sink: int, x: int, y: int) -> int:
        """Return how much more of the sink's flow can go from x to y, cancelled opposite flow included."""
        forward, back = self.at[x][y], self.at[y][x]
        residual = self.capacity[forward] - self.flow[forward][sink] if forward >= 0 else 0
        return residual + (self.flow[back][sink] if back >= 0 else 0)

    def send_flow(self, sink: int, x: int, y: int, amount: int) -> None:
        """Send this much of the sink's flow from x to y, where there is room; opposite flow is cancelled first."""
        forward, back = self.at[x][y], self.at[y][x]
        if back >= 0:
            # flows in opposite directions on a pair of nodes would cancel out: reduce the opposite one first
            cancelled = min(amount, self.flow[back][sink])
            self.flow[back][sink] -= cancelled
            amount -= cancelled
        if amount:
            self.flow[forward][sink] += amount
        self.refresh_pair(sink, x, y)
        self.open[sink][y] |= 1 << x

    def move_start(self, sink: int, old: int, new: int, amount: int) -> None:
        """Let this much of the sink's flow start at the tree's node `new` instead of `old` (-1: at no node of the
        tree).

        Only the bookkeeping changes; the caller adjusts the flow on arcs.
        """
        remaining = self.tree_flow[old][sink] = self.tree_flow[old][sink] - amount
        if not remaining:
            self.sources[sink] &= ~(1 << old)
        if new >= 0 and amount:
            self.tree_flow[new][sink] += amount
            self.sources[sink] |= 1 << new

    def restore_start(self, sink: int, arc: int) -> None:
        """Undo a move of the flow's start from the arc's tail to its head: it starts at the tail again and uses the
        arc.
        """
        tail, head = self.tail[arc], self.head[arc]
        returned = self.tree_flow[head][sink]
        if returned:
            self.move_start(sink, head, tail, returned)
            self.flow[arc][sink] += returned
        self.refresh_both(sink, arc)

    def divert_excess(self, sink: int, arc: int, joining: int = -1) -> int:
        """Reroute the flow that exceeds the arc's capacity.

        Return the amount that finds no other path, which stays on the arc.

        `joining`: the arc's head if the growing tree is about to take the arc, so that flow may start there; else -1.
        """
        tail, head = self.tail[arc], self.head[arc]
        flow = self.flow[arc]
        excess = flow[sink] - self.capacity[arc]
        flow[sink] -= excess
        self.refresh_both(sink, arc)
        goals = 1 << head | (self.sources[sink] if joining >= 0 else 0)
        unplaced = self.push_flow(sink, tail, goals, excess, joining)
        if unplaced:
            flow[sink] += unplaced
            self.refresh_pair(sink, head, tail)
        return unplaced
