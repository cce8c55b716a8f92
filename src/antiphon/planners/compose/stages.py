"""A collective as stages, level by level: in each, every group has a plan for what it does there.

allgather: what groups hold, among the groups, then within them; reducescatter: backwards, on the machine with its links
turned. allreduce: a reducescatter within the groups, an allreduce among those who hold the same, an allgather.
broadcast: the root's group scatters (to all of it, or to all but the root), whoever has a part broadcasts it among the
groups, every group gathers; reduce: backwards. alltoall: among groups what goes there, then within them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from operator import attrgetter
from typing import NamedTuple, Protocol

import numpy as np

from antiphon.core.collective import DUAL, Collective
from antiphon.core.columns import Longs
from antiphon.core.schedule import Schedule
from antiphon.core.transform import Part, Spans, laid
from antiphon.errors import Unsupported
from antiphon.planners.compose.inside import Inside
from antiphon.planners.compose.split import Split
from antiphon.planners.shared.groups import (
    MOST_WHOLE,
    Exchange,
    Groups,
    delay_after,
    find_stretches,
    list_exchanges,
    pieces_per_seat,
    reverse_parts,
)
from antiphon.planners.shared.reach import suggest_planners

SMALL, STEP = 2**14, Fraction(1, 10**6)  # fewest steps, as far as they are worth it: for so many bytes, seconds each


def few(steps: int, alone: Fraction) -> Fraction:
    """What a small message takes."""
    return steps * STEP + alone * SMALL


class Cost(Protocol):
    """Steps, and seconds per byte in one piece and in ever finer ones."""

    @property
    def steps(self) -> int: ...
    @property
    def alone(self) -> Fraction: ...
    @property
    def piped(self) -> Fraction: ...


AIMS: dict[str, Callable[[Cost], tuple[Fraction | int, ...]]] = {
    "steps": lambda way: (few(way.steps, way.alone), way.piped),
    "time": attrgetter("alone", "steps", "piped"),
    "rate": attrgetter("piped", "alone", "steps"),
}  # what a plan for a group should be best at, and what counts among equals
MOST_TOKENS = 2**22  # of an alltoall: blocks
MOST_SPANS = 2**24


class Sum(NamedTuple):
    steps: int
    alone: Fraction
    piped: Fraction


@dataclass(frozen=True, eq=False)
class Stage:
    """What groups of one level do at once: parts that begin with it, the seconds per byte of the whole that they take,
    alone and in ever finer pieces, at most; and on which level they are, 0 the outermost."""

    level: int
    parts: tuple[Part, ...]
    alone: Fraction
    piped: Fraction
    planners: tuple[str, ...]
    turned: bool = False
    others: bool = False  # of groups that have nothing to do with those of this level's other stages

    @property
    def told(self) -> str:
        words = []
        for part, planner in zip(self.parts, self.planners, strict=True):
            times = f"{len(part.ranks)} times " if len(part.ranks) > 1 else ""
            kind = part.schedule.collective.kind
            words.append(f"{times}{DUAL[kind] if self.turned else kind} among {part.ranks.shape[1]} by {planner}")
        return "; ".join(words)

    @property
    def steps(self) -> int:
        return max(part.schedule.steps for part in self.parts)

    def at(self, start: int) -> list[Part]:
        return [replace(part, start=start) for part in self.parts]


@dataclass(frozen=True, eq=False)
class Staged:
    """A collective by one split: what every level does. `where`: which data each of its blocks is."""

    split: Split
    parts: tuple[Part, ...]
    stages: tuple[Stage, ...]
    where: Spans

    @property
    def steps(self) -> int:
        return max(part.stop for part in self.parts)

    @property
    def told(self) -> tuple[str, ...]:
        return tuple(stage.told for stage in self.stages)

    def loads(self) -> dict[int, Fraction]:
        """By level what its links carry, in seconds per byte."""
        seconds: dict[tuple[int, bool], Fraction] = {}
        for stage in self.stages:
            where = stage.level, stage.others
            seconds[where] = seconds.get(where, Fraction(0)) + stage.piped
        return {level: max(load for (at, _), load in seconds.items() if at == level) for level, _ in seconds}

    @property
    def cost(self) -> Sum:
        """What it takes if levels have links of their own."""
        alone = sum((stage.alone for stage in self.stages), Fraction(0))
        return Sum(self.steps, alone, max(self.loads().values()))

    def schedule(self, collective: Collective) -> Schedule:
        """Blocks are as long as each other here, whatever they weigh: chunks are parts of blocks."""
        plain = replace(collective, weights=np.zeros(0, np.int64))
        schedule = laid(self.parts, plain, self.where)
        return schedule if plain == collective else replace(schedule, collective=collective)


def staged(collective: Collective, split: Split, forth: Inside, back: Inside, aim: str) -> Staged:
    """By the plans for groups that are best at `aim`; `back`: those on the machine with all links turned."""
    make = _KINDS.get(collective.kind)
    if make is None:
        raise Unsupported(f"planner compose: plans {', '.join(_KINDS)}, not {collective.kind}; use planner flows")
    size = len(split.seating)
    if size * size * len(collective.roots or (0,)) > MOST_SPANS:
        would = suggest_planners(forth.request.topology, collective, "ring", "relay", "greedy")
        raise Unsupported(f"planner compose: {size} ranks are too many to be split; {would}")
    return make(collective, split, Plans(collective, split, forth, aim), Plans(collective, split, back, aim))


@dataclass(frozen=True, eq=False)
class Plans:
    """Stages of groups, with the plans that are best at the aim."""

    collective: Collective
    split: Split
    inside: Inside
    aim: str

    def stage(self, level: int, seats: Longs, where: Spans, target: Collective, line: int) -> Stage:
        """Groups (rows of seats) do `target`, each with its owners of `where`: as many as it has blocks."""
        parts, alone, piped, planners = [], Fraction(0), Fraction(0), []
        groups = self.split.seating[seats]
        own, total = _bytes(target, int(where.lengths[: target.blocks].sum())), _bytes(self.collective, line)
        for alike in self.inside.alike(groups):
            way = min(self.inside.ways(alike.machine, target), key=AIMS[self.aim])
            owners = (alike.groups[:, None] * target.blocks + np.arange(target.blocks)).ravel()
            parts.append(Part(way.schedule, groups[alike.groups], where.take(owners), alike.links))
            alone, piped = max(alone, way.alone * own / total), max(piped, way.piped * own / total)
            planners.append(way.planner)
        return Stage(level, tuple(parts), alone, piped, tuple(planners))

    def exchange(self, exchange: Exchange, line: int) -> Stage:
        target = Collective("allgather", exchange.width, weights=np.array(exchange.sizes))
        return self.stage(len(exchange.path) - 1, exchange.seats, exchange.where, target, line)


def _bytes(collective: Collective, length: int) -> Fraction:
    """The `nbytes` of a collective whose blocks are so much of the line together."""
    return Fraction(length * collective.buffer_weight, int(collective.weights.sum()))


def _gathered(plans: Plans, exchange_list: Sequence[Exchange], line: int) -> tuple[list[Stage], list[Part]]:
    """Every exchange as soon as those that come before it are done."""
    stop: dict[tuple[tuple[int, ...], ...], int] = {(): 0}
    stages, parts = [], []
    for exchange in exchange_list:
        stage = plans.exchange(exchange, line)
        start = stop.get(exchange.path[:-1], 0)
        stop[exchange.path] = start + stage.steps
        stages.append(stage)
        parts += stage.at(start)
    return stages, parts


def _turned(stages: Sequence[Stage]) -> tuple[Stage, ...]:
    return tuple(replace(stage, turned=True) for stage in stages[::-1])


def _seated(split: Split, fine: int) -> Spans:
    """Where the block of each member is, where data are in the order of seats."""
    return Spans.side_by_side(np.full(len(split.seating), fine)).take(np.argsort(split.seating))


def _allgather(collective: Collective, split: Split, forth: Plans, back: Plans) -> Staged:
    fine = pieces_per_seat(split.groups)
    line = len(split.seating) * fine
    stages, parts = _gathered(forth, list_exchanges(split.groups, Spans.side_by_side(np.array([line]))), line)
    return Staged(split, tuple(parts), tuple(stages), _seated(split, fine))


def _reducescatter(collective: Collective, split: Split, forth: Plans, back: Plans) -> Staged:
    allgather = _allgather(collective, split, back, forth)
    return replace(allgather, parts=tuple(reverse_parts(allgather.parts)), stages=_turned(allgather.stages))


def _allreduce(collective: Collective, split: Split, forth: Plans, back: Plans) -> Staged:
    """Among the outermost groups an allreduce as one plan, or a reducescatter and an allgather, whichever is better."""
    line = len(split.seating) * pieces_per_seat(split.groups)
    all_spans = Spans.side_by_side(np.array([line]))
    outer, *inner = list_exchanges(split.groups, all_spans)
    joint = outer.where.grouped(np.arange(len(outer.seats) + 1) * outer.width)
    among = forth.stage(0, outer.seats, joint, Collective("allreduce", outer.width), line)
    first, second = back.exchange(outer, line), forth.exchange(outer, line)
    halves = Sum(first.steps + second.steps, first.alone + second.alone, first.piped + second.piped)
    down, up = _gathered(back, inner, line), _gathered(forth, inner, line)
    lowest = reverse_parts(down[1])
    if AIMS[forth.aim](among) < AIMS[forth.aim](halves):
        middle, stages = delay_after(among.at(0), lowest), [among]
    else:
        parted = reverse_parts(first.at(0))
        middle, stages = delay_after([*parted, *delay_after(second.at(0), parted)], lowest), [*_turned([first]), second]
    parts = [*lowest, *middle, *delay_after(up[1], middle if middle else lowest)]
    return Staged(split, tuple(parts), (*_turned(down[0]), *stages, *up[0]), all_spans)


def _broadcast(collective: Collective, split: Split, forth: Plans, back: Plans) -> Staged:
    return min(broadcasts(collective, split, forth), key=lambda staged: AIMS[forth.aim](staged.cost))


def broadcasts(collective: Collective, split: Split, forth: Plans) -> Iterator[Staged]:
    """Two levels: the outermost groups, and each as a whole. One root, whose group scatters and gathers as all do, or
    broadcasts, or deals out all to the others, who gather it."""
    if len(collective.roots) > 1:
        raise Unsupported("planner compose: several roots are not planned together; use planner trees")
    flat = Groups.of_parts([Groups.ring(part.size) for part in split.groups.parts])
    root = int(np.flatnonzero(split.seating == collective.roots[0])[0])
    fine = _finer(flat, root)
    line = len(split.seating) * pieces_per_seat(flat) * fine
    all_spans = Spans.side_by_side(np.array([line]))
    starts, sizes = np.array(flat.part_starts()), np.array([part.size for part in flat.parts])
    home = int(np.searchsorted(starts, root, side="right")) - 1
    edges, scale = find_stretches(flat.parts)
    holders = starts + edges[:-1, None] * sizes // scale

    def stretched(edge: Longs) -> Spans:
        return all_spans.cut(np.zeros(len(edge) - 1, np.int64), edge[:-1], edge[1:])

    def among(parts: Longs, kind: str, roots: tuple[int, ...] = ()) -> Stage:
        """In groups of one size; what each of its ranks holds, or, of a broadcast, all."""
        size = int(sizes[parts[0]])
        holdings = all_spans if kind == "broadcast" else stretched(np.arange(size + 1) * (line // size))
        seats = starts[parts][:, None] + np.arange(size)
        where = holdings.take(np.tile(np.arange(len(holdings)), len(parts)))
        return forth.stage(1, seats, where, Collective(kind, size, roots=roots), line)

    def gathers(parts: Longs) -> list[Stage]:
        by_size = [parts[sizes[parts] == size] for size in np.unique(sizes[parts]).tolist() if size > 1]
        return [replace(among(same_size, "allgather"), others=len(parts) < len(sizes)) for same_size in by_size]

    across = forth.stage(
        0, holders, stretched(edges * (line // scale)), Collective("broadcast", len(sizes), roots=(home,)), line
    )
    every = np.arange(len(sizes))
    stage_pairs: list[tuple[list[Stage], list[Stage]]] = [([], gathers(every))]
    if sizes[home] > 1:
        alone, own = every[home : home + 1], (root - int(starts[home]),)
        stage_pairs = [([among(alone, "scatter", own)], gathers(every))]
        stage_pairs.append(([among(alone, "broadcast", own)], gathers(every[every != home])))
        with suppress(Unsupported):  # where the root reaches all of them, and they each other without it
            if fine > 1:
                dealt, second = _dealt(forth, np.arange(sizes[home]) + starts[home], own[0], all_spans)
                stage_pairs.append(([dealt], [*gathers(every[every != home]), second]))
    for ahead, last in stage_pairs:
        parts = [part for stage in ahead for part in stage.at(0)]
        parts += delay_after(across.at(0), parts)
        ready = max(part.stop for part in parts)
        parts += [part for stage in last for part in stage.at(ready)]
        yield Staged(split, tuple(parts), (*ahead, across, *last), all_spans)


def _finer(groups: Groups, root: int) -> int:
    """By how much the line must be finer for what the root holds to be dealt to the others of its group; 1 where there
    are too few of them, or it would be too fine."""
    ends = np.cumsum([part.size for part in groups.parts])
    receivers = groups.parts[int(np.searchsorted(ends, root, side="right"))].size - 1
    return receivers if receivers > 1 and groups.size * pieces_per_seat(groups) * receivers < MOST_WHOLE else 1


def _dealt(plans: Plans, seats: Longs, own: int, all_spans: Spans) -> tuple[Stage, Stage]:
    """A group's root deals out all of the data to the others, each what it is to hold and a part of what the root is
    to hold; and they gather it among themselves. So all leaves the root once."""
    size = len(seats)
    line = int(all_spans.lengths.sum())
    own_length, part = line // size, line // (size * (size - 1))
    receivers = np.flatnonzero(np.arange(size) != own)
    low = np.stack([receivers * own_length, own * own_length + np.arange(size - 1) * part], axis=1)
    high = low + np.array([own_length, part])
    holdings = all_spans.cut(np.zeros(low.size, np.int64), low.ravel(), high.ravel()).grouped(np.arange(size) * 2)
    weights = (np.arange(size) != own).astype(np.int64)
    dealt = Spans(
        np.cumsum([0, *(np.diff(holdings.ptr)[np.cumsum(weights) - 1] * weights)]), holdings.begin, holdings.end
    )
    ahead = plans.stage(1, seats[None], dealt, Collective("scatter", size, roots=(own,), weights=weights), line)
    if any((part.schedule.src != own).any() for part in ahead.parts):
        raise Unsupported("planner compose: who relays a part would, backwards, add to it once more")
    second = plans.stage(1, seats[None, receivers], holdings, Collective("allgather", size - 1), line)
    parts = tuple(_as_broadcast(stage_part) for stage_part in ahead.parts)
    planners = tuple(f"{by}, a part each" for by in ahead.planners)
    # in both together others get as much as the root sends, which is what the first one counts
    return replace(ahead, parts=parts, planners=planners), replace(second, piped=Fraction(0))


def _as_broadcast(part: Part) -> Part:
    """A scatter as the first part of a broadcast: backwards its root adds what comes to what it has."""
    collective = part.schedule.collective
    target = Collective("broadcast", collective.ranks, roots=collective.roots)
    line = Spans.side_by_side(np.array([collective.weights.sum()]))
    schedule = laid([Part.alone(part.schedule, Spans.side_by_side(collective.weights))], target, line)
    where = part.where.grouped(np.arange(0, len(part.where) + 1, collective.blocks))
    return replace(part, schedule=schedule, where=where)


def _reduce(collective: Collective, split: Split, forth: Plans, back: Plans) -> Staged:
    turned = Collective("broadcast", collective.ranks, collective.members, collective.roots)
    broadcast = _broadcast(turned, split, replace(back, collective=turned), forth)
    return replace(broadcast, parts=tuple(reverse_parts(broadcast.parts)), stages=_turned(broadcast.stages))


def _alltoall(collective: Collective, split: Split, forth: Plans, back: Plans) -> Staged:
    """Level by level, the outermost first: what goes to another group goes to the rank of one's own number there."""
    if not split.groups.is_even():
        raise Unsupported("planner compose: an alltoall is split into groups of equal size only; use planner flows")
    size = len(split.seating)
    if size * size > MOST_TOKENS:
        raise Unsupported(
            f"planner compose: an alltoall among {size} ranks is too large to be split; "
            + suggest_planners(forth.inside.request.topology, collective, "direct", "pairwise")
        )
    stages: list[Stage] = []
    parts: list[Part] = []
    seat = np.argsort(split.seating)  # of the member of each number
    to, origin = (seat[x] for x in np.divmod(np.arange(size * size), size))
    holder = origin.copy()
    for level, (fan, stride) in enumerate(_digits(split.groups)):
        digit, aim = holder // stride % fan, to // stride % fan
        base = holder - digit * stride  # the first of the group
        seats = np.flatnonzero(np.arange(size) // stride % fan == 0)
        owner = (np.searchsorted(seats, base) * fan + aim) * fan + digit
        order = np.argsort(owner, kind="stable")
        where = Spans.of(owner[order], order, order + 1, len(seats) * fan * fan)
        stage = forth.stage(
            level, seats[:, None] + np.arange(fan) * stride, where, Collective("alltoall", fan), size * size
        )
        stages.append(stage)
        parts += delay_after(stage.at(0), parts)
        holder = base + aim * stride
    return Staged(split, tuple(parts), tuple(stages), Spans.side_by_side(np.ones(size * size, np.int64)))


def _digits(groups: Groups) -> Iterator[tuple[int, int]]:
    """Fan-in and stride of every level of equal groups, the outermost first."""
    while groups.parts:
        yield len(groups.parts), groups.parts[0].size
        groups = groups.parts[0]


_KINDS = {
    "allgather": _allgather, "reducescatter": _reducescatter, "allreduce": _allreduce, "broadcast": _broadcast,
    "reduce": _reduce, "alltoall": _alltoall,
}  # fmt: skip
KINDS = tuple(_KINDS)
