"""Blink's micro-benchmarks (sections 2.2 and A.1) as schedules: chains, fan-in, fan-out, MIMO and MCA.

    chain-forward           1 -> 2 -> ... -> n: the data of the first, passed on
    chain-reduce            the same, each but the last adding its own
    chain-reduce-broadcast  and the result back the way it came
    fan-in-forward          n sources -> center -> successor, which ends with the data of all
    fan-in-reduce           the same, the center adding all and its own
    fan-out-forward         source -> center -> n others
    mimo                    two -> center -> two others: the center adds to each of two streams, at the same time
    mca                     two chains of two that reduce, merged by a center

Places of a pattern are ranks of a machine, each link of it a direct link there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from antiphon.core.collective import Collective, custom_relation
from antiphon.core.plan import Entry, Plan
from antiphon.core.schedule import COPY, REDUCE, Schedule, cut
from antiphon.core.topology import Topology
from antiphon.core.transform import pipeline
from antiphon.errors import Invalid, Unsupported, unknown

Row = tuple[int, int, int, int, int]  # step, block, src, dst, op
PIECE, DEEPEST = 2**18, 32  # bytes of a piece, where that many are enough; pieces at most
CHAIN, FAN = (3, 8), (1, 3)  # lengths and widths that the paper has


@dataclass(frozen=True)
class Pattern:
    """`have`: (block, place), `want`: the same; every place that has of a block gives its own."""

    name: str
    size: int  # length of chains, width of fans; 0: there is one alone
    places: int
    have: Sequence[tuple[int, int]]
    want: Sequence[tuple[int, int]]
    rows: Sequence[Row]

    @property
    def title(self) -> str:
        return f"{self.name} {self.size}" if self.size else self.name

    @property
    def links(self) -> list[tuple[int, int]]:
        return sorted({(src, dst) for _, _, src, dst, _ in self.rows})

    @property
    def busiest(self) -> int:
        """Blocks that one link carries."""
        carried = [(src, dst) for _, _, src, dst, _ in self.rows]
        return max(carried.count(link) for link in self.links)


def _chain(size: int, back: bool = False, op: int = COPY) -> Pattern:
    last = size - 1
    name = "chain-reduce-broadcast" if back else "chain-reduce" if op == REDUCE else "chain-forward"
    rows = [(at, 0, at, at + 1, op if at + 1 < last else COPY) for at in range(last)]
    have = [(0, at) for at in range(last if op == REDUCE else 1)]
    want = [(0, last)] if op == REDUCE else [(0, at) for at in range(1, size)]
    if back:
        rows += [(last + at, 0, last - at, last - at - 1, COPY) for at in range(last)]
        want = [(0, at) for at in range(size)]
    return Pattern(name, size, size, have, want, rows)


def _fan_in(size: int, op: int) -> Pattern:
    center, after = size, size + 1
    if op == REDUCE:
        rows = [(0, 0, at, center, REDUCE) for at in range(size)] + [(1, 0, center, after, COPY)]
        have = [(0, at) for at in range(size + 1)]
        return Pattern("fan-in-reduce", size, size + 2, have, [(0, after)], rows)
    rows = [(0, at, at, center, COPY) for at in range(size)] + [(1, at, center, after, COPY) for at in range(size)]
    ends = [(at, after) for at in range(size)]
    return Pattern("fan-in-forward", size, size + 2, [(at, at) for at in range(size)], ends, rows)


def _fan_out(size: int) -> Pattern:
    ends = range(2, size + 2)
    rows = [(0, 0, 0, 1, COPY), *((1, 0, 1, at, COPY) for at in ends)]
    return Pattern("fan-out-forward", size, size + 2, [(0, 0)], [(0, at) for at in ends], rows)


def _mimo() -> Pattern:
    rows = [(0, 0, 0, 2, REDUCE), (0, 1, 1, 2, REDUCE), (1, 0, 2, 3, COPY), (1, 1, 2, 4, COPY)]
    return Pattern("mimo", 0, 5, [(0, 0), (0, 2), (1, 1), (1, 2)], [(0, 3), (1, 4)], rows)


def _mca() -> Pattern:
    rows = [(0, 0, 0, 1, REDUCE), (0, 0, 2, 3, REDUCE), (1, 0, 1, 4, REDUCE), (1, 0, 3, 4, REDUCE)]
    return Pattern("mca", 0, 5, [(0, at) for at in range(5)], [(0, 4)], rows)


MADE: Mapping[str, tuple[Callable[[int], Pattern], tuple[int, int]]] = {
    "chain-forward": (_chain, CHAIN),
    "chain-reduce": (lambda size: _chain(size, op=REDUCE), CHAIN),
    "chain-reduce-broadcast": (lambda size: _chain(size, True, REDUCE), CHAIN),
    "fan-in-forward": (lambda size: _fan_in(size, COPY), FAN),
    "fan-in-reduce": (lambda size: _fan_in(size, REDUCE), FAN),
    "fan-out-forward": (_fan_out, FAN),
    "mimo": (lambda _: _mimo(), (0, 0)),
    "mca": (lambda _: _mca(), (0, 0)),
}


def patterns(names: Sequence[str] = (), most: int | None = None) -> Iterator[Pattern]:
    """Those of these names (all), in the sizes of the paper, that need no more than so many ranks."""
    for name in names or MADE:
        if name not in MADE:
            raise unknown("pattern", name, MADE)
        make, (low, high) = MADE[name]
        found = [one for one in map(make, range(low, high + 1)) if most is None or one.places <= most]
        if names and not found:
            raise Invalid(f"{name}: needs {make(low).places} ranks at least, and there are {most}")
        yield from found


def places_on(pattern: Pattern, machine: Topology) -> list[int]:
    """A rank for each place, so that links of the pattern are links there: the first that is found, of the least ranks.
    Backtracking; patterns have 8 places at most."""
    near: dict[tuple[int, bool], set[int]] = {}

    def near_to(rank: int, back: bool) -> set[int]:
        if (rank, back) not in near:
            near[rank, back] = beside(machine, rank, back)
        return near[rank, back]

    def candidates(chosen: list[int]) -> Iterable[int]:
        """Least first: any for the first place, else neighbours of those that are set, of which there is one."""
        known, place = dict(zip(order, chosen, strict=False)), order[len(chosen)]
        linked = [near_to(known[a], False) for a, b in pattern.links if b == place and a in known]
        linked += [near_to(known[b], True) for a, b in pattern.links if a == place and b in known]
        return sorted(set.intersection(*linked).difference(chosen)) if chosen else range(machine.ranks)

    def further(chosen: list[int]) -> list[int] | None:
        if len(chosen) == len(order):
            return chosen
        return next(filter(None, (further([*chosen, rank]) for rank in candidates(chosen))), None)

    order = _outward(pattern)
    found = further([])
    if found is None:
        raise Unsupported(f"{pattern.title}: {machine.name} has no ranks that are linked like this")
    return [found[order.index(place)] for place in range(pattern.places)]


def beside(machine: Topology, rank: int, back: bool) -> set[int]:
    """The ranks that this one reaches by a link or through switches, or, `back`, that reach it so."""
    tails, heads = (machine.link_dst, machine.link_src) if back else (machine.link_src, machine.link_dst)
    seen = np.zeros(machine.nodes, np.bool_)
    line = np.array([rank], np.int32)
    while line.size:
        here = np.zeros(machine.nodes, np.bool_)
        here[line] = True
        there = np.unique(heads[here[tails]])
        there = there[~seen[there]]
        seen[there] = True
        line = there[there >= machine.ranks]
    return set(np.flatnonzero(seen[: machine.ranks]).tolist()) - {rank}


def _outward(pattern: Pattern) -> list[int]:
    """Places in an order in which each is linked to one before it."""
    order = [max(range(pattern.places), key=lambda at: sum(at in link for link in pattern.links))]
    while len(order) < pattern.places:
        order.append(next(b for link in pattern.links for a, b in (link, link[::-1]) if a in order and b not in order))
    return order


def plan_on(pattern: Pattern, machine: Topology, pieces: int | None = None) -> Plan:
    """The pattern on ranks of a machine. `pieces`: the pipelining depth, else by size."""
    rank = places_on(pattern, machine)
    have = [(block, rank[at], rank[at]) for block, at in pattern.have]
    want = [(block, rank[at], None) for block, at in pattern.want]
    collective = Collective("custom", machine.ranks, custom=custom_relation(have, want, machine.ranks))
    step, block, src, dst, op = (np.array(column, np.int32) for column in zip(*sorted(pattern.rows), strict=True))
    where = np.array(rank, np.int32)
    made = Schedule(
        collective, cut(collective, 1), step, block, where[src], where[dst], op.astype(np.uint8),
        provenance={"planner": pattern.title, "options": {}},
    )  # fmt: skip
    claims = {"planner": pattern.title}
    if pieces is not None:
        return Plan.of(machine, pipeline(made, pieces), claims)
    depths = [2**power for power in range(DEEPEST.bit_length())]
    starts = [0, *(depth * PIECE for depth in depths[1:])]
    ends = [*starts[1:], None]
    entries = [
        Entry(start, stop, pipeline(made, depth), claims)
        for start, stop, depth in zip(starts, ends, depths, strict=True)
    ]
    return Plan(machine, collective, tuple(entries))
