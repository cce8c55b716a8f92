"""Remove switches without losing rate: what passes through them becomes arcs between ranks.

A switch with equal capacity in and out can be split off: u -> switch -> t gives up some capacity to a new arc u -> t,
until nothing passes through it any more. A splitting that keeps every sink's demand exists (Mader 1982; Frank 1989;
Jackson 1988; Bang-Jensen, Frank and Jackson 1995), and any order of pairs finds it if each pair gives up at most
what the cuts allow. A cheap guess that spreads evenly usually suffices; only where it loses rate, the exact splitting
is computed. An unbalanced switch is tried in the same manner, which may lose rate; that is then detected. Every arc
remembers the links it is made of (`Wires`).

Example: 4 ranks on one switch, 3 units in and out each. The even guess gives 1 unit to each of the 12 ordered pairs:
a complete graph, with the same cuts between ranks as before.

`SinkFlows` answers the central question of splitting and of packing (forest.py): how much capacity may be removed? It
maintains a maximum flow per sink while capacities change. The flow's existence proves that the sink is served; removing
capacity only pushes the excess onto other paths. A change that removes a units lowers a cut's capacity by a or not at
all, so if d units of some sink's flow find no other path, exactly a - d units may be removed.

Capacities are Python ints: exact for any size. The open arcs of a sink's flow are one bit mask per node, so a search
takes one operation per node and not per arc. Measured (CPU seconds, packing the forest of 128 GPUs in 16 boxes):
searching arc by arc 11, with masks 0.8; arc by arc compiled with numba 0.3, but 4 s for compiling, 0.25 s for importing
and 200 MB to install. Hence no compiled core.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from antiphon.core.bounds.cuts import tightest_cut
from antiphon.core.bounds.network import Network
from antiphon.core.topology import SharedLimit, Topology

Arc = tuple[int, int]
Amounts = dict[Arc, int]  # (from, to) -> amount that passes through the switch
Path = tuple[int, ...]
Pieces = dict[Arc, dict[Path, int]]  # composition of each arc: paths of links, with capacities


def without_switches(
    wires: Wires, pieces: Pieces, supply: Mapping[int, int], sinks: Sequence[int], *, guess: bool = True
) -> Pieces | None:
    """Return arcs between ranks through which every sink can still receive every root's supply.

    `pieces`: arcs between ranks and switches. None where some switch could not be removed: never if all are balanced
    and every rank is a sink. O(switches * ports^2), and where the guess loses rate (or without it) O(ports^2 * sinks)
    searches for that switch.
    """
    order = _switches_far_first(wires, pieces)
    # first guess all switches at once, checked by one cut computation
    if guess:
        guessed = pieces
        for switch in order:
            # even shares suit symmetric machines, so nearly always this guess suffices
            guessed = _split_off(wires, guessed, switch, _even_amounts(guessed, switch, wires.nodes))
        if not order or serves_all_sinks(wires, guessed, supply, sinks):
            return guessed
    # the guess loses rate somewhere: go switch by switch, exactly where necessary
    for switch in order:
        amounts = _even_amounts(pieces, switch, wires.nodes) if guess else {}
        tried = _split_off(wires, pieces, switch, amounts)
        if not guess or not serves_all_sinks(wires, tried, supply, sinks):
            exact = ExactSplit(wires, pieces, supply, sinks, switch).split_all_pairs(amounts)
            tried = _split_off(wires, pieces, switch, exact)
            if not serves_all_sinks(wires, tried, supply, sinks):
                return None
        pieces = tried
    return pieces


def _switches_far_first(wires: Wires, pieces: Pieces) -> list[int]:
    """Return the switches, those farthest from any rank first, so that a spine becomes arcs from leaf to leaf."""
    near: dict[int, set[int]] = {}
    for tail, head in pieces:
        near.setdefault(head, set()).add(tail)
    depth = dict.fromkeys(range(wires.ranks), 0)
    level = list(depth)
    while level:
        level = sorted({tail for head in level for tail in near.get(head, ()) if tail not in depth})
        depth |= dict.fromkeys(level, max(depth.values()) + 1)
    used = {node for arc in pieces for node in arc if node >= wires.ranks}
    return sorted(used, key=lambda node: (-depth.get(node, wires.nodes), node))


def serves_all_sinks(wires: Wires, pieces: Pieces, supply: Mapping[int, int], sinks: Sequence[int]) -> bool:
    """Return whether every sink can receive all of the supply, by the tightest cut."""
    supplies: dict[tuple[int, ...], int] = {(root,): amount for root, amount in supply.items()}
    return bool(pieces) and tightest_cut(wires.to_network(pieces), supplies, sinks)[1] >= 1


def _port_capacities(pieces: Pieces, switch: int) -> tuple[dict[int, int], dict[int, int]]:
    """Return the capacity that enters the switch, by node, and the capacity that leaves it."""
    arcs = sorted(arc for arc in pieces if switch in arc)
    into = {tail: sum(pieces[tail, head].values()) for tail, head in arcs if head == switch}
    out = {head: sum(pieces[tail, head].values()) for tail, head in arcs if tail == switch}
    return into, out


def _port_groups(pieces: Pieces, switch: int, ports: Sequence[int], nodes: int) -> dict[int, tuple[int, int]]:
    """Return for each port its connected component without the switch, and its place there.

    If the rest is connected, each port is a group of its own.
    """
    import igraph

    graph = igraph.Graph(nodes, [arc for arc in pieces if switch not in arc])
    label = graph.connected_components(mode="weak").membership
    if len({label[port] for port in ports}) == 1:
        return {port: (number, 0) for number, port in enumerate(ports)}
    group: dict[int, list[int]] = {}
    for port in ports:
        group.setdefault(label[port], []).append(port)
    return {
        port: (number, place)
        for number, group_ports in enumerate(group.values())
        for place, port in enumerate(group_ports)
    }


def _pair_stages(pieces: Pieces, switch: int, nodes: int) -> list[list[Arc]]:
    """Return all pairs (from, to) in three stages: to other groups, within a group, back to the same node.

    Within a stage in turns, such that each node has another partner in each turn: first the pairs with the least
    capacity between them so far, of these the ones with equal place in their groups (so each card feeds its peers in
    other boxes).
    """
    into, out = _port_capacities(pieces, switch)
    where = _port_groups(pieces, switch, sorted({*into, *out}), nodes)
    groups = 1 + max((group for group, _ in where.values()), default=0)
    widest = 1 + max((place for _, place in where.values()), default=0)
    stages: list[list[tuple[int, Arc]]] = [[], [], []]
    for tail in into:
        own, seat = where[tail]
        rows: list[list[tuple[int, int, int, int]]] = [[], [], []]
        for head in out:
            other, place = where[head]
            kin = 2 if tail == head else 1 if own == other else 0
            joined_capacity = sum(pieces.get((tail, head), {}).values())
            # keys of the turn order: capacity so far, then equal places, then the nearest group
            rows[kin].append((joined_capacity, (place - seat) % widest, (other - own) % groups, head))
        for stage, row in zip(stages, rows, strict=True):
            stage += [(turn, (tail, head)) for turn, (*_, head) in enumerate(sorted(row))]
    return [[pair for _, pair in sorted(stage)] for stage in stages]


def _even_amounts(pieces: Pieces, switch: int, nodes: int) -> Amounts:
    """Return an even distribution, stage by stage: in proportion to the ports, then single units in turns, then all
    that remains.
    """
    into, out = _port_capacities(pieces, switch)
    amounts: Amounts = {}
    for stage in _pair_stages(pieces, switch, nodes):
        outward, inward = dict.fromkeys(into, 0), dict.fromkeys(out, 0)
        for tail, head in stage:
            outward[tail] += out[head]
            inward[head] += into[tail]
        # each port's capacity in proportion to the other ports' of its stage, rounded down; units and the rest are
        # dealt after
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


def _split_off(wires: Wires, pieces: Pieces, switch: int, amounts: Amounts) -> Pieces:
    """Remove the switch from the pieces: what came in leaves as `amounts` specify, with joined paths.

    What would return to the node that it came from is dropped.
    """
    rest = {arc: list(capacities.items()) for arc, capacities in sorted(pieces.items()) if switch in arc}
    remaining_pieces = {arc: dict(capacities) for arc, capacities in pieces.items() if switch not in arc}
    for (tail, head), amount in amounts.items():
        missing = amount
        while missing:
            # join the last path in with the last path out, by the lesser of their capacities
            (first, a), (second, b) = rest[tail, switch][-1], rest[switch, head][-1]
            moved = min(missing, a, b)
            missing -= moved
            for arc, path, had in (((tail, switch), first, a), ((switch, head), second, b)):
                rest[arc].pop()
                if had > moved:
                    rest[arc].append((path, had - moved))
            if tail != head:
                capacities = remaining_pieces.setdefault((tail, head), {})
                path = wires.join_paths(first, second)
                capacities[path] = capacities.get(path, 0) + moved
    return remaining_pieces


class ExactSplit:
    """Split off one switch exactly: each pair by as much as leaves every sink served.

    Invariant: after each `split_pair`, every sink's flow carries all of the supply.
    """

    def __init__(
        self, wires: Wires, pieces: Pieces, supply: Mapping[int, int], sinks: Sequence[int], switch: int
    ) -> None:
        used = {node for arc in pieces for node in arc}
        order = [*sinks, *sorted(used - set(sinks))]
        self.index = {node: number for number, node in enumerate(order)}
        arcs = {(self.index[a], self.index[b]): sum(capacities.values()) for (a, b), capacities in pieces.items()}
        self.flows = SinkFlows(len(order), len(sinks), arcs, {self.index[r]: k for r, k in supply.items()})
        self.switch = self.index[switch]
        self.pairs = [pair for stage in _pair_stages(pieces, switch, wires.nodes) for pair in stage]

    def split_all_pairs(self, guess: Amounts) -> Amounts:
        """Return the amount of each pair: first as much of the guess as possible, then as much as possible of every
        pair.
        """
        amounts: Amounts = {}
        for pair, limit in [*guess.items(), *((pair, -1) for pair in self.pairs)]:
            amount = self.split_pair(self.index[pair[0]], self.index[pair[1]], limit)
            if amount:
                amounts[pair] = amounts.get(pair, 0) + amount
        return amounts

    def split_pair(self, tail: int, head: int, limit: int) -> int:
        """Move up to `limit` (-1: as much as possible) of tail -> switch -> head to an arc tail -> head; return the
        amount.
        """
        flows = self.flows
        # at most the capacity of either arc can be split off
        into, out = flows.at[tail][self.switch], flows.at[self.switch][head]
        amount = min(flows.capacity[into], flows.capacity[out])
        amount = amount if limit < 0 else min(amount, limit)
        if not amount:
            return 0
        # optimistically move everything, then give back what some sink's flow cannot do without
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
        """Fit the sink's flow to the remaining capacity through the switch; return the amount that finds no other
        path.
        """
        flows = self.flows
        used = [flows.flow[into][sink], flows.flow[out][sink]]
        if used[0] < flows.capacity[into] and used[1] < flows.capacity[out]:
            return 0
        over = max(used[0] - flows.capacity[into], used[1] - flows.capacity[out], 0)
        # what went in and out through this pair of arcs can use the new direct arc without any search
        shift = min(over, *used)
        for arc in (into, out, direct):
            if arc >= 0:
                flows.flow[arc][sink] += shift if arc == direct else -shift
        lacking = 0
        for arc in (into, out):
            if flows.flow[arc][sink] > flows.capacity[arc]:
                lacking += flows.divert_excess(sink, arc)
        for arc in (into, out, direct):
            if arc >= 0:
                flows.refresh_both(sink, arc)
        return lacking

    def _lower_arc(self, arc: int, amount: int, last: int) -> None:
        """Reduce the new arc's capacity; flow that it carried returns to the path through the switch."""
        flows = self.flows
        flows.capacity[arc] -= amount
        for sink in range(flows.sinks):
            # sinks up to `last` were already rerouted on the assumption of the larger arc; later ones are handled in
            # their turn
            if sink <= last and flows.flow[arc][sink] > flows.capacity[arc]:
                flows.divert_excess(sink, arc)
            flows.refresh_both(sink, arc)


@dataclass(frozen=True)
class Wires:
    """Links by their ends, with capacities in units of resources.scale.

    A shared limit whose links all begin (or all end) at one node equals one more switch between them and that node,
    joined to it by one link of the limit's capacity. Such switches are numbered after the topology's nodes, such links
    after its links, in the order of limits.
    """

    ranks: int
    nodes: int
    real: int
    tail: tuple[int, ...]
    head: tuple[int, ...]
    capacity: tuple[int, ...]

    def to_pieces(self, factor: int = 1) -> Pieces:
        """Return every link as a piece of its arc, capacities times the factor, without links of capacity 0."""
        pieces: Pieces = {}
        for link, (tail, head, capacity) in enumerate(zip(self.tail, self.head, self.capacity, strict=True)):
            if capacity:
                pieces.setdefault((tail, head), {})[link,] = capacity * factor
        return pieces

    def to_network(self, pieces: Mapping[Arc, Mapping[Path, int]]) -> Network:
        """Return the arcs as a `Network`, for cuts."""
        arcs = sorted(pieces)
        amounts = [sum(pieces[arc].values()) for arc in arcs]
        kind = np.int64 if 4 * sum(amounts) < 2**62 else object
        ends = np.array(arcs, np.int64).reshape(-1, 2)
        return Network(self.nodes, self.ranks, ends[:, 0], ends[:, 1], np.array(amounts, kind))

    def join_paths(self, first: Path, second: Path) -> Path:
        """Return the concatenation of two paths without the loop where it returns to a switch."""
        path: list[int] = []
        for link in (*first, *second):
            path.append(link)
            # `link` ends where an earlier link began: what lies between is a loop
            for at, before in enumerate(path):
                if self.tail[before] == self.head[link]:
                    del path[at:]
                    break
        return tuple(path)

    def links_of(self, path: Path) -> Path:
        """Return the topology's own links of a path."""
        return tuple(link for link in path if link < self.real)


def wires_of(topology: Topology) -> Wires | None:
    """Return the wires; None where a shared limit cannot be drawn: no common end, or links in several limits."""
    resources = topology.resources
    width = [resources.capacity[klass] for klass in resources.klass.tolist()]
    tail, head, capacity = topology.link_src.tolist(), topology.link_dst.tolist(), width[: topology.links]
    drawn_links: set[int] = set()
    for number, limit in enumerate(topology.limits):
        side = _common_end(topology, limit)
        if side is None or not drawn_links.isdisjoint(limit.links):
            return None
        drawn_links |= set(limit.links)
        # the shared limit becomes a switch: its links end (or begin) there, and one link of the limit's capacity leads
        # on
        middle = topology.nodes + number
        ends = (tail, head)[side]
        extra = [middle, middle]
        extra[side] = ends[limit.links[0]]
        for link in limit.links:
            ends[link] = middle
        tail.append(extra[0])
        head.append(extra[1])
        capacity.append(min(width[topology.links + number], sum(width[link] for link in limit.links)))
    nodes = topology.nodes + len(topology.limits)
    return Wires(topology.ranks, nodes, topology.links, tuple(tail), tuple(head), tuple(capacity))


def _common_end(topology: Topology, limit: SharedLimit) -> int | None:
    """Return 0 if all the limit's links begin at one node, 1 if all end at one, else None."""
    links = list(limit.links)
    for side, ends in enumerate((topology.link_src, topology.link_dst)):
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
    """For every sink a flow that brings it each root's whole supply, maintained under changes of capacity.

    Nodes 0..nodes-1 (0..sinks-1 are the sinks); one arc per pair. `capacity[arc]`, `flow[arc][sink]`;
    `open[sink][x]`: mask of nodes to which more of the sink's flow could go from x (residual arcs). Besides the roots
    there may be one growing tree. What the sink gets of it starts at `taken[node][sink]`, anywhere in the tree;
    `sources[sink]` is the mask of these nodes.
    """

    def __init__(self, nodes: int, sinks: int, arcs: Mapping[Arc, int], supply: Mapping[int, int]) -> None:
        self.nodes, self.sinks = nodes, sinks
        self.tail: list[int] = []
        self.head: list[int] = []
        self.capacity: list[int] = []
        self.flow: list[list[int]] = []
        self.at = [[-1] * nodes for _ in range(nodes)]
        self.open = [[0] * nodes for _ in range(sinks)]
        self.taken = [[0] * sinks for _ in range(nodes)]
        self.sources = [0] * sinks
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
        """Update whether more of the sink's flow could go from tail to head, along the arc or by cancelling the
        opposite one.
        """
        forward, back = self.at[tail][head], self.at[head][tail]
        if (forward >= 0 and self.flow[forward][sink] < self.capacity[forward]) or (
            back >= 0 and self.flow[back][sink] > 0
        ):
            self.open[sink][tail] |= 1 << head
        else:
            self.open[sink][tail] &= ~(1 << head)

    def refresh_both(self, sink: int, arc: int) -> None:
        self.refresh_pair(sink, self.tail[arc], self.head[arc])
        self.refresh_pair(sink, self.head[arc], self.tail[arc])

    def push_flow(self, sink: int, start: int, goals: int, amount: int, goal: int = -1) -> int:
        """Send more of the sink's flow from start to some goal (shortest augmenting paths); return what finds no path.

        With `goal`, the goals are that node and the sources of the growing tree, from which it continues to `goal`
        within the tree.
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
            if goal >= 0 and end != goal:
                bottleneck = min(bottleneck, self.taken[end][sink])
                self.move_taken(sink, end, goal, bottleneck)
                if not self.taken[end][sink]:
                    goals &= ~(1 << end)
            for x, y in itertools.pairwise(path):
                self.send_flow(sink, x, y, bottleneck)
            amount -= bottleneck
        return 0

    @staticmethod
    def _shortest_path(masks: Sequence[int], start: int, goals: int) -> list[int] | None:
        """Return the nodes of a path with the fewest arcs to some goal. O(nodes) operations on masks."""
        if goals >> start & 1:
            return [start]
        visited, level = 1 << start, [start]
        levels = [level]
        while level:
            reached = 0
            for node in level:
                reached |= masks[node]
            hit = reached & goals & ~visited
            if hit:
                # back from the goal level by level, to any node of the level before that has an open arc to the path's
                # beginning
                path = [(hit & -hit).bit_length() - 1]
                for before in reversed(levels):
                    bit = 1 << path[-1]
                    path.append(next(node for node in before if masks[node] & bit))
                path.reverse()
                return path
            reached &= ~visited
            visited |= reached
            level = set_bits(reached)
            levels.append(level)
        return None

    def _residual_capacity(self, sink: int, x: int, y: int) -> int:
        forward, back = self.at[x][y], self.at[y][x]
        room = self.capacity[forward] - self.flow[forward][sink] if forward >= 0 else 0
        return room + (self.flow[back][sink] if back >= 0 else 0)

    def send_flow(self, sink: int, x: int, y: int, amount: int) -> None:
        """Send flow along an arc with room; opposite flow is cancelled first."""
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

    def move_taken(self, sink: int, old: int, new: int, amount: int) -> None:
        """Let the sink get this much of the growing tree from another of its nodes, or (-1) no longer from the tree."""
        remaining = self.taken[old][sink] = self.taken[old][sink] - amount
        if not remaining:
            self.sources[sink] &= ~(1 << old)
        if new >= 0 and amount:
            self.taken[new][sink] += amount
            self.sources[sink] |= 1 << new

    def restore_taken(self, sink: int, arc: int) -> None:
        """Send what the sink gets from the growing tree at the arc's head over the arc again."""
        tail, head = self.tail[arc], self.head[arc]
        back = self.taken[head][sink]
        if back:
            self.move_taken(sink, head, tail, back)
            self.flow[arc][sink] += back
        self.refresh_both(sink, arc)

    def divert_excess(self, sink: int, arc: int, goal: int = -1) -> int:
        """Reroute what exceeds the arc's capacity; return what finds no other path, and put that back on the arc.

        `goal`: the arc's head, if the growing tree could then reach it by itself.
        """
        tail, head = self.tail[arc], self.head[arc]
        flow = self.flow[arc]
        excess = flow[sink] - self.capacity[arc]
        flow[sink] -= excess
        self.refresh_both(sink, arc)
        goals = 1 << head | (self.sources[sink] if goal >= 0 else 0)
        unplaced = self.push_flow(sink, tail, goals, excess, goal)
        if unplaced:
            flow[sink] += unplaced
            self.refresh_pair(sink, head, tail)
        return unplaced
