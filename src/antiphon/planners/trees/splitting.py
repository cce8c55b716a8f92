"""Switches removed: what may pass through them becomes arcs from rank to rank, and no rate is lost.

A switch that as much capacity enters as leaves can be split off: u -> switch -> t gives up some capacity to a new arc
u -> t, until nothing passes through it any more. Splitting that keeps every sink's demand exists (Mader 1982; Frank
1989; Jackson 1988; Bang-Jensen, Frank and Jackson 1995), and any order of pairs finds it as long as each pair gives up
no more than the cuts allow. A cheap guess that spreads evenly mostly does; only where it loses is the exact one made.
An unbalanced switch is tried in the same way, which may lose rate; that is then seen. Every arc remembers which links
it is made of.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from antiphon.core.bounds.cuts import tightest_cut
from antiphon.planners.trees.kernel import Arc, SinkFlows
from antiphon.planners.trees.wires import Pieces, Wires

Amounts = dict[Arc, int]  # (from, to) -> how much of it passes through the switch


def without_switches(
    wires: Wires, pieces: Pieces, supply: Mapping[int, int], sinks: Sequence[int], *, guess: bool = True
) -> Pieces | None:
    """Arcs between ranks, through which every sink can still get every root's supply, as it could before.

    `pieces`: arcs between ranks and switches. None where some switch could not be removed: never if all are balanced
    and every rank is a sink. O(switches * ports^2), and where the guess loses rate (or without it)
    O(ports^2 * sinks) searches for that switch.
    """
    order = _far_first(wires, pieces)
    if guess:
        guessed = pieces
        for switch in order:
            guessed = _split_off(wires, guessed, switch, _guess(guessed, switch, wires.nodes))
        if not order or serves(wires, guessed, supply, sinks):
            return guessed
    for switch in order:
        amounts = _guess(pieces, switch, wires.nodes) if guess else {}
        tried = _split_off(wires, pieces, switch, amounts)
        if not guess or not serves(wires, tried, supply, sinks):
            exact = ExactSplit(wires, pieces, supply, sinks, switch).run(amounts)
            tried = _split_off(wires, pieces, switch, exact)
            if not serves(wires, tried, supply, sinks):
                return None
        pieces = tried
    return pieces


def _far_first(wires: Wires, pieces: Pieces) -> list[int]:
    """Switches, those farthest from any rank first: so that a spine becomes arcs from leaf to leaf."""
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


def serves(wires: Wires, pieces: Pieces, supply: Mapping[int, int], sinks: Sequence[int]) -> bool:
    """Whether every sink can get all of the supply, by the tightest cut."""
    held: dict[tuple[int, ...], int] = {(root,): amount for root, amount in supply.items()}
    return bool(pieces) and tightest_cut(wires.network(pieces), held, sinks)[1] >= 1


def _ports(pieces: Pieces, switch: int) -> tuple[dict[int, int], dict[int, int]]:
    """What enters the switch, by node, and what leaves it."""
    arcs = sorted(arc for arc in pieces if switch in arc)
    into = {tail: sum(pieces[tail, head].values()) for tail, head in arcs if head == switch}
    out = {head: sum(pieces[tail, head].values()) for tail, head in arcs if tail == switch}
    return into, out


def _groups(pieces: Pieces, switch: int, ports: Sequence[int], nodes: int) -> dict[int, tuple[int, int]]:
    """What hangs together without the switch: each port's group and its place there. If all does, each is alone."""
    import igraph

    graph = igraph.Graph(nodes, [arc for arc in pieces if switch not in arc])
    label = graph.connected_components(mode="weak").membership
    if len({label[port] for port in ports}) == 1:
        return {port: (number, 0) for number, port in enumerate(ports)}
    group: dict[int, list[int]] = {}
    for port in ports:
        group.setdefault(label[port], []).append(port)
    return {port: (number, place) for number, here in enumerate(group.values()) for place, port in enumerate(here)}


def _stages(pieces: Pieces, switch: int, nodes: int) -> list[list[Arc]]:
    """All pairs (from, to) in three stages: to other groups, within a group, back to where it came from.

    In a stage by turns: each node has one partner in a turn, another in the next; first those that other switches
    have joined it with least, of these those of its own place in the other groups (so that each card feeds its like
    in the other boxes).
    """
    into, out = _ports(pieces, switch)
    where = _groups(pieces, switch, sorted({*into, *out}), nodes)
    groups = 1 + max((group for group, _ in where.values()), default=0)
    widest = 1 + max((place for _, place in where.values()), default=0)
    stages: list[list[tuple[int, Arc]]] = [[], [], []]
    for tail in into:
        own, seat = where[tail]
        rows: list[list[tuple[int, int, int, int]]] = [[], [], []]
        for head in out:
            other, place = where[head]
            kin = 2 if tail == head else 1 if own == other else 0
            known = sum(pieces.get((tail, head), {}).values())
            rows[kin].append((known, (place - seat) % widest, (other - own) % groups, head))
        for stage, row in zip(stages, rows, strict=True):
            stage += [(turn, (tail, head)) for turn, (*_, head) in enumerate(sorted(row))]
    return [[pair for _, pair in sorted(stage)] for stage in stages]


def _guess(pieces: Pieces, switch: int, nodes: int) -> Amounts:
    """An even spread, stage by stage: in proportion to what the others take, the remainders one by one by turns,
    then whatever is left.
    """
    into, out = _ports(pieces, switch)
    found: Amounts = {}
    for stage in _stages(pieces, switch, nodes):
        ahead, behind = dict.fromkeys(into, 0), dict.fromkeys(out, 0)
        for tail, head in stage:
            ahead[tail] += out[head]
            behind[head] += into[tail]
        share = {(a, b): into[a] * out[b] // (max(ahead[a], behind[b]) or 1) for a, b in stage}
        for limit in (share, dict.fromkeys(stage, 1), None):
            for tail, head in stage:
                amount = min(into[tail], out[head])
                amount = amount if limit is None else min(amount, limit[tail, head])
                if amount:
                    into[tail] -= amount
                    out[head] -= amount
                    found[tail, head] = found.get((tail, head), 0) + amount
    return found


def _split_off(wires: Wires, pieces: Pieces, switch: int, amounts: Amounts) -> Pieces:
    """The pieces without the switch: what came in goes on as told, its paths joined. What would come back to the
    node it came from is dropped.
    """
    rest = {arc: list(made.items()) for arc, made in sorted(pieces.items()) if switch in arc}
    found = {arc: dict(made) for arc, made in pieces.items() if switch not in arc}
    for (tail, head), amount in amounts.items():
        left = amount
        while left:
            (first, a), (second, b) = rest[tail, switch][-1], rest[switch, head][-1]
            part = min(left, a, b)
            left -= part
            for arc, path, had in (((tail, switch), first, a), ((switch, head), second, b)):
                rest[arc].pop()
                if had > part:
                    rest[arc].append((path, had - part))
            if tail != head:
                made = found.setdefault((tail, head), {})
                path = wires.joined(first, second)
                made[path] = made.get(path, 0) + part
    return found


class ExactSplit:
    """Splitting one switch off by as much per pair as leaves every sink served, exactly.

    `flows`: one per sink. They carry all of the supply after each `split`, whatever that was asked for.
    """

    def __init__(
        self, wires: Wires, pieces: Pieces, supply: Mapping[int, int], sinks: Sequence[int], switch: int
    ) -> None:
        used = {node for arc in pieces for node in arc}
        order = [*sinks, *sorted(used - set(sinks))]
        self.index = {node: number for number, node in enumerate(order)}
        arcs = {(self.index[a], self.index[b]): sum(made.values()) for (a, b), made in pieces.items()}
        self.flows = SinkFlows(len(order), len(sinks), arcs, {self.index[r]: k for r, k in supply.items()})
        self.switch = self.index[switch]
        self.pairs = [pair for stage in _stages(pieces, switch, wires.nodes) for pair in stage]

    def run(self, guess: Amounts) -> Amounts:
        """How much of each pair passes: first as much of the guess as may be, then of every pair."""
        found: Amounts = {}
        for pair, most in [*guess.items(), *((pair, -1) for pair in self.pairs)]:
            amount = self.split(self.index[pair[0]], self.index[pair[1]], most)
            if amount:
                found[pair] = found.get(pair, 0) + amount
        return found

    def split(self, tail: int, head: int, most: int) -> int:
        """Give up to `most` (-1: whatever may be) of tail -> switch -> head to an arc tail -> head; how much."""
        flows = self.flows
        into, out = flows.at[tail][self.switch], flows.at[self.switch][head]
        amount = min(flows.capacity[into], flows.capacity[out])
        amount = amount if most < 0 else min(amount, most)
        if not amount:
            return 0
        direct = flows.add(tail, head, amount) if tail != head else -1
        flows.capacity[into] -= amount
        flows.capacity[out] -= amount
        for sink in range(flows.sinks):
            lacking = self._reroute(sink, into, out, direct)
            if lacking:
                amount -= lacking
                for arc in (into, out):
                    flows.widen(arc, lacking)
                    flows.refresh_both(sink, arc)  # what found no way fills what was given back
                if direct >= 0:
                    self._lower(direct, lacking, sink)
        return amount

    def _reroute(self, sink: int, into: int, out: int, direct: int) -> int:
        """Fit the sink's flow to what the arcs through the switch still hold; what finds no way."""
        flows = self.flows
        used = [flows.flow[into][sink], flows.flow[out][sink]]
        if used[0] < flows.capacity[into] and used[1] < flows.capacity[out]:
            return 0
        over = max(used[0] - flows.capacity[into], used[1] - flows.capacity[out], 0)
        shift = min(over, *used)
        for arc in (into, out, direct):
            if arc >= 0:
                flows.flow[arc][sink] += shift if arc == direct else -shift
        lacking = 0
        for arc in (into, out):
            if flows.flow[arc][sink] > flows.capacity[arc]:
                lacking += flows.divert(sink, arc)
        for arc in (into, out, direct):
            if arc >= 0:
                flows.refresh_both(sink, arc)
        return lacking

    def _lower(self, arc: int, amount: int, last: int) -> None:
        """The new arc gets less than thought; what it carried of that fits through the switch again."""
        flows = self.flows
        flows.capacity[arc] -= amount
        for sink in range(flows.sinks):
            if sink <= last and flows.flow[arc][sink] > flows.capacity[arc]:
                flows.divert(sink, arc)
            flows.refresh_both(sink, arc)
