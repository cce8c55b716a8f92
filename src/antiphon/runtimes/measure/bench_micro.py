"""Blink's micro-benchmarks (sections 2.2 and A.1) on a runtime, beside the prediction of a model and the paper.

    chain-forward           1 -> 2 -> ... -> n: the data of the first rank, forwarded
    chain-reduce            the same, each but the last adding its own data
    chain-reduce-broadcast  the same, and the result back along the chain
    fan-in-forward          n sources -> center -> successor, which ends with the data of all
    fan-in-reduce           the same, the center adding all data and its own
    fan-out-forward         source -> center -> n others
    mimo                    two -> center -> two others: the center adds to each of two streams at the same time
    mca                     two chains of two that reduce, merged by a center

A pattern's places (1, 2, center, ...) become ranks of a machine such that each of its links is a link there, or a path
through switches only. `antiphon bench micro` calls `bench_micro`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from antiphon.core.collective import Collective, custom_relation
from antiphon.core.columns import reached_nodes
from antiphon.core.plan import Entry, Plan
from antiphon.core.schedule import COPY, REDUCE, Schedule, cut
from antiphon.core.topology import Topology
from antiphon.core.transform import pipeline
from antiphon.errors import Invalid, Unsupported, unknown
from antiphon.runtimes.measure.bench import decides, measure_plans
from antiphon.runtimes.measure.case import Row
from antiphon.select.parse_request import machine_of
from antiphon.topologies import topology as named
from antiphon.units import Sizes

RANKS = 5  # enough for the smallest pattern of every kind
MAX_DEPTH = 2**20  # pieces that may be requested: more than any message has use for
# (pattern, its size) -> (bytes per second of a link, bytes on that link from which they hold), on a DGX-1 with V100s:
# sections 2.2 (Figures 7, 8) and A.1 (Figure 24).
PUBLISHED = {
    ("chain-forward", 3): (22e9, 10**9), ("chain-forward", 8): (20e9, 10**9),
    ("chain-reduce", 3): (21e9, 10**9), ("chain-reduce", 8): (19e9, 10**9),
    ("chain-reduce-broadcast", 3): (19e9, 10**9), ("chain-reduce-broadcast", 8): (16e9, 10**9),
    ("mimo", 0): (18e9, 10**7), ("mca", 0): (18e9, 10**7),
}  # fmt: skip


def bench_micro(
    machine: Topology | str | None = None,
    nbytes: Sizes = "1MB:16MB:4",
    *,
    ranks: int | None = None,
    patterns: Sequence[str] = (),
    pieces: int | None = None,
    progress: Callable[[Row], None] | None = None,
    **how: Any,
) -> list[Row] | None:
    """Measure patterns: rows of `measure_plans`, out of place, with four more keys.

    They are `pattern`, `throughput` (bytes per second of the busiest link), `predicted_throughput` and `published` (the
    paper's, at its sizes). On `ranks` fully connected ranks (5), or on a machine. `patterns`: names; default: those
    that fit. `how`: of `measure_plans`. Under mpiexec or srun only process 0 has rows, the others None.
    """
    if machine is not None and ranks is not None:
        raise Invalid("ranks: the machine has its own; leave one of both out")
    if pieces is not None and not 1 <= pieces <= MAX_DEPTH:
        raise Invalid(f"pieces: expected 1 to {MAX_DEPTH}, got {pieces}")
    topology = named(f"full:ranks={RANKS if ranks is None else ranks}") if machine is None else machine_of(machine)
    selected = list(select_patterns(patterns, topology.ranks))
    if not selected:
        raise Invalid(f"{topology.name} has {topology.ranks} ranks: every pattern needs 3 at least")
    with decides(how.get("on", "mpi"), mpiexec=how.get("mpiexec", "")) as deciding:
        if not deciding:
            return None
        plans = {pattern.title: plan_on(pattern, topology, pieces) for pattern in selected}
        pattern_of = {pattern.title: pattern for pattern in selected}

        def complete(row: Row) -> Row:
            return _with_throughput(row, pattern_of[row["planner"]], plans[row["planner"]].collective.buffer_weight)

        def on_row(row: Row) -> None:
            if progress is not None:
                progress(complete(row))

        return [
            complete(row) for row in measure_plans(list(plans.values()), nbytes, progress=on_row, in_place=False, **how)
        ]


def _with_throughput(row: Row, pattern: Pattern, blocks: int) -> Row:
    """Add the keys on throughput to a row. `blocks`: number of blocks in a buffer of row["nbytes"]."""
    carried = row["nbytes"] * pattern.busiest / blocks
    published, min_nbytes = PUBLISHED.get((pattern.name, pattern.size), (None, 0))
    return {
        **row, "pattern": pattern.title, "throughput": carried / row["seconds"] if row["seconds"] else 0.0,
        "predicted_throughput": carried / row["predicted_seconds"] if row["predicted_seconds"] else None,
        "published": published if carried >= min_nbytes else None,
    }  # fmt: skip


# ---- patterns ----

Transfer = tuple[int, int, int, int, int]  # step, block, src, dst, op
PIECE, MAX_PIECES = 2**18, 32  # minimum bytes of a piece; maximum number of pieces, a power of two
CHAIN, FAN = (3, 8), (1, 3)  # lengths and widths that the paper has


@dataclass(frozen=True)
class Pattern:
    """A pattern of transfers between places, to which `places_on` assigns ranks.

    `have`, `want`: (block, place); every place that has a block contributes its own data to it.
    """

    name: str
    size: int  # length of a chain, width of a fan; 0: not parametrized
    places: int
    have: Sequence[tuple[int, int]]
    want: Sequence[tuple[int, int]]
    rows: Sequence[Transfer]  # with places as src and dst

    @property
    def title(self) -> str:
        return f"{self.name} {self.size}" if self.size else self.name

    @property
    def links(self) -> list[tuple[int, int]]:
        return sorted({(src, dst) for _, _, src, dst, _ in self.rows})

    @property
    def busiest(self) -> int:
        """Return the most blocks that one link carries."""
        carried = [(src, dst) for _, _, src, dst, _ in self.rows]
        return max(carried.count(link) for link in self.links)


# Places are numbered along the data: sources first, then a center, then receivers.


def _chain_pattern(size: int, back: bool = False, op: int = COPY) -> Pattern:
    """Return a chain of places. `op`: of its transfers; `back`: the result goes back along the chain."""
    last = size - 1  # has no data of its own, so it gets a copy in any case
    name = "chain-reduce-broadcast" if back else "chain-reduce" if op == REDUCE else "chain-forward"
    rows = [(place, 0, place, place + 1, op if place + 1 < last else COPY) for place in range(last)]
    have = [(0, place) for place in range(last if op == REDUCE else 1)]
    want = [(0, last)] if op == REDUCE else [(0, place) for place in range(1, size)]
    if back:
        rows += [(last + place, 0, last - place, last - place - 1, COPY) for place in range(last)]
        want = [(0, place) for place in range(size)]
    return Pattern(name, size, places=size, have=have, want=want, rows=rows)


def _fan_in(size: int, op: int) -> Pattern:
    """Return a fan-in of `size` sources. With REDUCE the center adds all blocks and its own."""
    center, after = size, size + 1  # two places more than senders
    if op == REDUCE:
        rows = [(0, 0, place, center, REDUCE) for place in range(size)] + [(1, 0, center, after, COPY)]
        have = [(0, place) for place in range(size + 1)]
        return Pattern("fan-in-reduce", size, places=size + 2, have=have, want=[(0, after)], rows=rows)
    rows = [(0, place, place, center, COPY) for place in range(size)] + [
        (1, place, center, after, COPY) for place in range(size)
    ]
    have = [(place, place) for place in range(size)]
    want = [(place, after) for place in range(size)]
    return Pattern("fan-in-forward", size, places=size + 2, have=have, want=want, rows=rows)


def _fan_out(size: int) -> Pattern:
    receivers = range(2, size + 2)
    rows = [(0, 0, 0, 1, COPY), *((1, 0, 1, place, COPY) for place in receivers)]
    want = [(0, place) for place in receivers]
    return Pattern("fan-out-forward", size, places=size + 2, have=[(0, 0)], want=want, rows=rows)


def _mimo_pattern() -> Pattern:
    rows = [(0, 0, 0, 2, REDUCE), (0, 1, 1, 2, REDUCE), (1, 0, 2, 3, COPY), (1, 1, 2, 4, COPY)]
    return Pattern("mimo", size=0, places=5, have=[(0, 0), (0, 2), (1, 1), (1, 2)], want=[(0, 3), (1, 4)], rows=rows)


def _mca_pattern() -> Pattern:
    rows = [(0, 0, 0, 1, REDUCE), (0, 0, 2, 3, REDUCE), (1, 0, 1, 4, REDUCE), (1, 0, 3, 4, REDUCE)]
    return Pattern("mca", size=0, places=5, have=[(0, place) for place in range(5)], want=[(0, 4)], rows=rows)


# name -> the function that makes the pattern of a size, and the first and the last size
PATTERNS: Mapping[str, tuple[Callable[[int], Pattern], tuple[int, int]]] = {
    "chain-forward": (_chain_pattern, CHAIN),
    "chain-reduce": (lambda size: _chain_pattern(size, op=REDUCE), CHAIN),
    "chain-reduce-broadcast": (lambda size: _chain_pattern(size, back=True, op=REDUCE), CHAIN),
    "fan-in-forward": (lambda size: _fan_in(size, COPY), FAN),
    "fan-in-reduce": (lambda size: _fan_in(size, REDUCE), FAN),
    "fan-out-forward": (_fan_out, FAN),
    "mimo": (lambda _: _mimo_pattern(), (0, 0)),
    "mca": (lambda _: _mca_pattern(), (0, 0)),
}


def select_patterns(names: Sequence[str] = (), max_ranks: int | None = None) -> Iterator[Pattern]:
    """Yield the patterns of these names (all), in the sizes of the paper, that need at most `max_ranks` ranks."""
    for name in names or PATTERNS:
        if name not in PATTERNS:
            raise unknown("pattern", name, PATTERNS)
        make, (low, high) = PATTERNS[name]
        fitting = [
            pattern for pattern in map(make, range(low, high + 1)) if max_ranks is None or pattern.places <= max_ranks
        ]
        if names and not fitting:
            raise Invalid(f"{name}: needs {make(low).places} ranks at least, and there are {max_ranks}")
        yield from fitting


def places_on(pattern: Pattern, machine: Topology) -> list[int]:
    """Return a rank for each place such that links of the pattern are links of the machine, or paths through switches
    only, the lowest ranks first.

    Backtracking; patterns have 8 places at most."""
    near: dict[tuple[int, bool], set[int]] = {}  # by rank and direction the ranks of `reachable_ranks`

    def near_to(rank: int, is_backward: bool) -> set[int]:
        if (rank, is_backward) not in near:
            near[rank, is_backward] = reachable_ranks(machine, rank, is_backward)
        return near[rank, is_backward]

    def candidates(chosen: list[int]) -> Iterable[int]:
        """Return candidates for the next place in `order`, lowest first: they are linked as the pattern requires to the
        ranks already chosen, at least one of which is adjacent."""
        rank_of, place = dict(zip(order, chosen, strict=False)), order[len(chosen)]
        linked = [near_to(rank_of[a], is_backward=False) for a, b in pattern.links if b == place and a in rank_of]
        linked += [near_to(rank_of[b], is_backward=True) for a, b in pattern.links if a == place and b in rank_of]
        return sorted(set.intersection(*linked).difference(chosen)) if chosen else range(machine.ranks)

    def extend(chosen: list[int]) -> list[int] | None:
        """Return ranks for all places that begin with these; None if there are none."""
        if len(chosen) == len(order):
            return chosen
        return next(filter(None, (extend([*chosen, rank]) for rank in candidates(chosen))), None)

    order = _order_places(pattern)
    ranks = extend([])
    if ranks is None:
        raise Unsupported(f"{pattern.title}: {machine.name} has no ranks that are linked like this")
    return [ranks[order.index(place)] for place in range(pattern.places)]


def reachable_ranks(machine: Topology, rank: int, is_backward: bool) -> set[int]:
    """Return the ranks that this one reaches by a link or through switches; with `is_backward`, those that reach it."""
    tails, heads = (machine.link_dst, machine.link_src) if is_backward else (machine.link_src, machine.link_dst)
    # on through switches only: a rank does not forward for others here
    usable = (tails == rank) | (tails >= machine.ranks)
    reached = reached_nodes(np.arange(machine.nodes) == rank, tails[usable], heads[usable])
    return set(np.flatnonzero(reached[: machine.ranks]).tolist()) - {rank}


def _order_places(pattern: Pattern) -> list[int]:
    """Return the places in an order in which each is linked to an earlier one."""
    order = [max(range(pattern.places), key=lambda place: sum(place in link for link in pattern.links))]
    while len(order) < pattern.places:
        order.append(next(b for link in pattern.links for a, b in (link, link[::-1]) if a in order and b not in order))
    return order


def plan_on(pattern: Pattern, machine: Topology, pieces: int | None = None) -> Plan:
    """Return a plan of the pattern on ranks of a machine. `pieces`: the pipelining depth; default: by size."""
    rank = places_on(pattern, machine)
    have = [(block, rank[place], rank[place]) for block, place in pattern.have]
    want = [(block, rank[place], None) for block, place in pattern.want]  # None: every contribution to the block
    collective = Collective("custom", machine.ranks, custom=custom_relation(have, want, machine.ranks))
    step, block, src, dst, op = (np.array(column, np.int32) for column in zip(*sorted(pattern.rows), strict=True))
    rank_of_place = np.array(rank, np.int32)
    schedule = Schedule(
        collective, cut(collective, parts=1), step, block, rank_of_place[src], rank_of_place[dst], op.astype(np.uint8),
        provenance={"planner": pattern.title, "options": {}},
    )  # fmt: skip
    claims = {"planner": pattern.title}
    if pieces is not None:
        return Plan.of(machine, pipeline(schedule, pieces), claims)
    # one entry per pipelining depth: pieces of at least PIECE bytes of nbytes, which counts all blocks of a buffer
    depths = [2**power for power in range(MAX_PIECES.bit_length())]
    starts = [0, *(depth * PIECE for depth in depths[1:])]
    ends = [*starts[1:], None]
    entries = [
        Entry(start, stop, pipeline(schedule, depth), claims)
        for start, stop, depth in zip(starts, ends, depths, strict=True)
    ]
    return Plan(machine, collective, tuple(entries))
