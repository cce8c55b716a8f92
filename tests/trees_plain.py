"""What trees whose rows may be joints attain on small machines: all of them, and the best mixture in fractions.

Written apart from the bounds: nothing here knows of cuts, partitions or prices. One element of a collective is done by
an in-tree (every rank sends once, combined with what it was sent), an out-tree, or one and then the other. A rank sends
alone along a path through switches, or with others as one joint, by the rules of docs/schedule.md.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from typing import NamedTuple

from antiphon.core.collective import Collective
from antiphon.core.topology import Topology

Load = tuple[int, ...]  # per link: how often it is loaded
Path = tuple[int, ...]  # links


def greatest(columns: Sequence[dict[int, Fraction]], gain: Sequence[int], right: Sequence[Fraction]) -> Fraction:
    """max gain.x, columns x <= right, x >= 0 with right >= 0: the simplex method in fractions, by Bland's
    rule.
    """
    rows, width = len(right), len(columns)
    table = [[column.get(r, Fraction(0)) for column in columns] for r in range(rows)]
    for r in range(rows):
        table[r] += [Fraction(int(i == r)) for i in range(rows)] + [right[r]]
    last = [Fraction(-g) for g in gain] + [Fraction(0)] * (rows + 1)
    basis = [width + r for r in range(rows)]
    while True:
        enter = next((j for j in range(width + rows) if last[j] < 0), None)
        if enter is None:
            return last[-1]
        ratios = [(table[r][-1] / table[r][enter], basis[r], r) for r in range(rows) if table[r][enter] > 0]
        assert ratios, "unbounded"
        _, _, leave = min(ratios)
        basis[leave] = enter
        pivot = table[leave][enter]
        table[leave] = [x / pivot for x in table[leave]]
        hot = [(j, x) for j, x in enumerate(table[leave]) if x]
        for row in [*(table[r] for r in range(rows) if r != leave), last]:
            if times := row[enter]:
                for j, x in hot:
                    row[j] -= times * x


class Event(NamedTuple):
    """Some ranks send to one node, alone or as a reduction of the network."""

    sources: frozenset[int]
    to: int
    load: Load


class Machine:
    """A topology as plain lists; `back`: with all links turned round, so that a multicast is a reduction."""

    def __init__(self, topology: Topology, back: bool = False) -> None:
        ends = list(zip(topology.link_src.tolist(), topology.link_dst.tolist(), strict=True))
        self.ends = [(b, a) for a, b in ends] if back else ends
        self.ranks, self.nodes = topology.ranks, topology.nodes
        mine = [topology.ability(node) for node in range(self.nodes)]
        self.merges = [ability.multicast if back else ability.reduce for ability in mine]
        self.own = [ability.own for ability in mine]
        self.through = [ability.through for ability in mine]

    def paths(self, a: int, b: int, seen: frozenset[int] = frozenset()) -> Iterator[Path]:
        """From node to node by way of switches alone, none twice."""
        for link, (tail, head) in enumerate(self.ends):
            if tail != a:
                continue
            if head == b:
                yield (link,)
            elif head >= self.ranks and head not in seen:
                for rest in self.paths(head, b, seen | {head}):
                    yield (link, *rest)

    def load(self, links: Iterable[int]) -> Load:
        used = list(links)
        return tuple(used.count(link) for link in range(len(self.ends)))

    def events(self, to: int) -> list[Event]:
        """All ways to send to a node, a rank or the hub of a joint."""
        paths = {a: list(self.paths(a, to, frozenset({to}))) for a in range(self.ranks) if a != to}
        found = [Event(frozenset({a}), to, self.load(path)) for a in paths for path in paths[a]]
        for size in range(2, len(paths) + 1):
            for sources in itertools.combinations(paths, size):
                for chosen in itertools.product(*(paths[a] for a in sources)):
                    links = {link for path in chosen for link in path}
                    crossing = self._crossing(chosen, to) if self._tree(links, to) else None
                    if crossing is not None:
                        found.append(Event(frozenset(sources), to, self.load([*links, *crossing])))
        return found

    def _tree(self, links: set[int], to: int) -> bool:
        """Every node is left once, switches that join can, and into a rank leads one link."""
        tails = [self.ends[link][0] for link in links]
        heads = [self.ends[link][1] for link in links]
        joins = {node for node in heads if heads.count(node) > 1}
        able = all(self.merges[node] for node in joins)
        return len(set(tails)) == len(tails) and able and (to >= self.ranks or to not in joins)

    def _crossing(self, chosen: Sequence[Path], to: int) -> list[int] | None:
        """The link that what the destination has itself takes to the last switch, which loads it too; None: it has
        none."""
        last = self.ends[chosen[0][-1]][0]
        if to >= self.ranks or not self.own[last]:
            return []
        return [link for link, ends in enumerate(self.ends) if ends == (to, last)][:1] or None

    def trees(self, root: int, members: Iterable[int]) -> set[Load]:
        """The loads of all in-trees of these ranks, and of others that may relay, none worse than another."""
        able = [event for to in range(self.ranks) for event in self.events(to)]
        found: set[Load] = set()
        for sending in self._senders(root, members):
            usable = [e for e in able if e.sources <= sending and (e.to == root or e.to in sending)]
            for chosen in self._choices(sending, usable):
                if leads(chosen, root):
                    found.add(added([e.load for e in chosen]))
        return least(found)

    def _senders(self, root: int, members: Iterable[int]) -> Iterator[frozenset[int]]:
        must = frozenset(members) - {root}
        may = sorted(set(range(self.ranks)) - must - {root})
        for size in range(len(may) + 1):
            for extra in itertools.combinations(may, size):
                yield must | frozenset(extra)

    def _choices(self, left: frozenset[int], events: Sequence[Event]) -> Iterator[list[Event]]:
        """All ways in which each of these ranks sends just once."""
        if not left:
            yield []
            return
        first = min(left)
        for event in events:
            if first in event.sources and event.sources <= left:
                for rest in self._choices(left - event.sources, events):
                    yield [event, *rest]

    def at_hub(self, hub: int, members: Sequence[int], straight: bool) -> set[Load]:
        """The loads of all ways in which the ranks send to a hub, several at the end as one; over one link each, where
        that is asked for."""
        found: set[Load] = set()
        every = frozenset(members)
        inner = [e for to in members for e in self.events(to) if e.sources <= every]
        for event in self.events(hub):
            far = sum(event.load) > len(event.sources)
            if len(event.sources) > 1 and event.sources <= every and not (far and straight):
                for chosen in self._choices(every - event.sources, inner):
                    if leads(chosen, -1, event.sources):
                        found.add(added([event.load, *(e.load for e in chosen)]))
        return least(found)


def leads(chosen: Sequence[Event], root: int, roots: frozenset[int] = frozenset()) -> bool:
    """Whether from every rank that sends one comes to a root."""
    goes = {a: event.to for event in chosen for a in event.sources}
    for start in goes:
        node, steps = start, 0
        while node in goes and node not in roots and steps <= len(goes):
            node, steps = goes[node], steps + 1
        if node != root and node not in roots:
            return False
    return True


def added(loads: Sequence[Load]) -> Load:
    return tuple(map(sum, zip(*loads, strict=True)))


def least(loads: set[Load]) -> set[Load]:
    """Those that no other is as good as or better everywhere."""
    return {x for x in loads if not any(y != x and all(b <= a for a, b in zip(x, y, strict=True)) for y in loads)}


def best_time(topology: Topology, collective: Collective) -> Fraction:
    """Time (weight over bytes per second) of the best mixture of trees. Beside other switches those who meet at a hub
    are joined with it by a link: so no tree comes by a switch both on the way to it and on the way from it."""
    forward, back = Machine(topology), Machine(topology, back=True)
    members, kind = collective.members, collective.kind
    right = [topology.bandwidth(link) for link in range(topology.links)]
    right += [limit.bandwidth for limit in topology.limits]
    columns: list[dict[int, Fraction]] = []
    gain: list[int] = []

    def add(load: Load, more: dict[int, int], gains: int) -> None:
        column = {row: Fraction(x) for row, x in enumerate(load) if x}
        for number, limit in enumerate(topology.limits):
            if used := sum(load[link] for link in limit.links):
                column[topology.links + number] = Fraction(used)
        columns.append(column | {row: Fraction(x) for row, x in more.items()})
        gain.append(gains)

    base = len(right)
    weight = int(collective.weights[0])
    if kind == "allreduce":
        for root in range(topology.ranks):
            for load in forward.trees(root, members):
                add(load, {base + root: -1}, 0)
            for load in back.trees(root, members):
                add(load, {base + root: 1}, 1)
        for hub in range(topology.ranks, topology.nodes):
            if forward.through[hub]:
                ways = (turned.at_hub(hub, members, topology.switches > 1) for turned in (forward, back))
                for up, down in itertools.product(*ways):
                    add(added([up, down]), {}, 1)
        return weight / greatest(columns, gain, right + [Fraction(0)] * topology.ranks)
    way = back if kind in ("broadcast", "allgather") else forward
    ends = collective.roots if kind in ("broadcast", "reduce") else members
    blocks = [block for block in range(collective.blocks) if collective.weights[block]]
    for row, block in enumerate(blocks):
        for load in way.trees(ends[block], members):
            add(load, {base + row: -1}, 0)
    columns.append({base + row: Fraction(int(collective.weights[block])) for row, block in enumerate(blocks)})
    return 1 / greatest(columns, [*gain, 1], right + [Fraction(0)] * len(blocks))
