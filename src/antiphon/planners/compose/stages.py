"""Compose a collective of stages, level by level: in each, every group of a level carries out a plan for its data.

Input is a split (nested groups of ranks) and the plans for groups (inside.py); output is a `StagedPlan`, from which the
schedule is built.

    allgather       outermost level first: groups exchange what they hold, then the subgroups do (shared/groups)
    reducescatter   the same backwards, on the reversed machine
    allreduce       reducescatter within groups, allreduce among ranks that hold the same data, allgather within groups;
                    or of whole vectors on one outer level after the other: fewer steps, more data
    broadcast       the root's group scatters, each holder broadcasts its part among the groups, every group gathers
    reduce          the same backwards
    alltoall        among groups first (to the rank with the sender's number in its group), then within groups

Which data a group works on is described by spans: intervals of an imagined line on which all data of the collective
stand, scaled so that all borders are integers (`line` is its length). A stage consists of placed schedules: a
`Placement` is (schedule, groups of ranks, spans, links). A seat is a position in the split's order of ranks.
Throughout, `forward` plans on the machine and `backward` on the machine with all links reversed, for schedules that are
then run backwards.

Example: allgather on 2 boxes of 2 ranks. Stage 0: ranks 0 and 2 exchange, 1 and 3 exchange (each two blocks then).
Stage 1: within boxes, 0 and 1 exchange two blocks each, 2 and 3 likewise.
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
from antiphon.core.transform import Placement, Spans, assemble_parts
from antiphon.errors import Unsupported
from antiphon.planners.compose.inside import GroupPlanner
from antiphon.planners.compose.split import Split
from antiphon.planners.shared.groups import (
    MOST_WHOLE,
    Groups,
    SeatExchange,
    delay_after,
    find_stretches,
    reverse_parts,
    units_per_seat,
)
from antiphon.planners.shared.reach import suggest_planners

SMALL_BYTES = 2**14  # size by which plans are compared for the aim "steps"
STEP_SECONDS = Fraction(1, 10**6)  # assumed latency of a step


def small_message_time(steps: int, unpipelined: Fraction) -> Fraction:
    """Estimate the seconds that SMALL_BYTES take. `unpipelined`: seconds per byte."""
    return steps * STEP_SECONDS + unpipelined * SMALL_BYTES


class StageCost(Protocol):
    """Steps, and seconds per byte unpipelined (`unpipelined`) and in the limit of many slices (`pipelined`)."""

    @property
    def steps(self) -> int: ...
    @property
    def unpipelined(self) -> Fraction: ...
    @property
    def pipelined(self) -> Fraction: ...


AIMS: dict[str, Callable[[StageCost], tuple[Fraction | int, ...]]] = {
    "steps": lambda cost: (small_message_time(cost.steps, cost.unpipelined), cost.pipelined),
    "time": attrgetter("unpipelined", "steps", "pipelined"),
    "rate": attrgetter("pipelined", "unpipelined", "steps"),
}  # sort keys of plans by aim: first the figure to minimize, then tie-breaks
MOST_BLOCKS = 2**22  # of an alltoall
MOST_SPANS = 2**24  # maximum number of intervals of data


class StagesCost(NamedTuple):
    """The cost of several stages together."""

    steps: int
    unpipelined: Fraction
    pipelined: Fraction


@dataclass(frozen=True, eq=False)
class Stage:
    """The schedules that the groups of one level carry out at the same time.

    `level`: 0 is the outermost. `unpipelined`, `pipelined`: seconds per byte of the whole collective, in one piece and
    with many slices, in the slowest group. `planners`: the planner of each placement. `separate`: whether the level's
    other stages run in other groups, so that their loads do not add up.
    """

    level: int
    placements: tuple[Placement, ...]
    unpipelined: Fraction
    pipelined: Fraction
    planners: tuple[str, ...]
    backwards: bool = False
    separate: bool = False

    @property
    def description(self) -> str:
        words = []
        for placement, planner in zip(self.placements, self.planners, strict=True):
            times = f"{len(placement.ranks)} times " if len(placement.ranks) > 1 else ""
            kind = placement.schedule.collective.kind
            words.append(
                f"{times}{DUAL[kind] if self.backwards else kind} among {placement.ranks.shape[1]} by {planner}"
            )
        return "; ".join(words)

    @property
    def steps(self) -> int:
        return max(placement.schedule.steps for placement in self.placements)

    def placed_at(self, start: int) -> list[Placement]:
        """Return the placements, beginning in step `start`."""
        return [replace(placement, start=start) for placement in self.placements]


@dataclass(frozen=True, eq=False)
class StagedPlan:
    """A collective by one split. `placements`: all schedules of its `stages`. `where`: the spans of its blocks.

    `undivided`: number of outer levels on which ranks combine everything they hold.
    """

    split: Split
    placements: tuple[Placement, ...]
    stages: tuple[Stage, ...]
    where: Spans
    undivided: int = 1

    @property
    def steps(self) -> int:
        return max(placement.stop for placement in self.placements)

    @property
    def descriptions(self) -> tuple[str, ...]:
        return tuple(stage.description for stage in self.stages)

    def loads(self) -> dict[int, Fraction]:
        """Return, by level, the load of its links in seconds per byte; `separate` stages load other links."""
        seconds: dict[tuple[int, bool], Fraction] = {}
        for stage in self.stages:
            key = stage.level, stage.separate
            seconds[key] = seconds.get(key, Fraction(0)) + stage.pipelined
        return {level: max(load for (at, _), load in seconds.items() if at == level) for level, _ in seconds}

    @property
    def cost(self) -> StagesCost:
        """The cost if levels have links of their own."""
        unpipelined = sum((stage.unpipelined for stage in self.stages), Fraction(0))
        return StagesCost(self.steps, unpipelined, max(self.loads().values()))

    def schedule(self, collective: Collective) -> Schedule:
        """Build the schedule. Blocks of any weight have equal length here: chunks are fractions of blocks."""
        unweighted = replace(collective, weights=np.zeros(0, np.int64))
        schedule = assemble_parts(self.placements, unweighted, self.where)
        return schedule if unweighted == collective else replace(schedule, collective=collective)


def stage_collective(
    collective: Collective, split: Split, forward: GroupPlanner, backward: GroupPlanner, aim: str, undivided: int = 1
) -> StagedPlan:
    """Stage a collective with the group plans that are best at `aim`.

    `forward`, `backward`: plan groups on the machine and on the machine with reversed links. `undivided`: for an
    allreduce of equal groups, the number of outer levels on which ranks combine everything they hold.
    """
    stage_kind = _KINDS.get(collective.kind)
    if stage_kind is None:
        raise Unsupported(f"planner compose: plans {', '.join(_KINDS)}, not {collective.kind}; use planner flows")
    size = len(split.seating)
    if size * size * len(collective.roots or (0,)) > MOST_SPANS:
        suggestion = suggest_planners(forward.request.topology, collective, "ring", "relay", "greedy")
        raise Unsupported(f"planner compose: {size} ranks are too many to be split; {suggestion}")
    if not collective.weights.any():  # no data at all: planned as if blocks were equal
        collective = replace(collective, weights=np.zeros(0, np.int64))
    planners = StagePlanner(collective, split, forward, aim), StagePlanner(collective, split, backward, aim)
    return stage_kind(collective, split, *planners) if undivided < 2 else _stage_undivided(split, *planners, undivided)


@dataclass(frozen=True, eq=False)
class StagePlanner:
    """Makes stages of groups, with the plans that are best at the aim."""

    collective: Collective
    split: Split
    inside: GroupPlanner
    aim: str

    def plan_stage(self, level: int, seats: Longs, where: Spans, target: Collective, line: int) -> Stage:
        """Plan the collective `target` within groups, as a stage.

        `seats`: a row per group. `where`: the spans of each group's blocks, one group after the other. `line`: the
        length of all data together.
        """
        placements, unpipelined, pipelined, planners = [], Fraction(0), Fraction(0), []
        groups = self.split.seating[seats]
        target_bytes = _buffer_bytes(target, int(where.lengths[: target.blocks].sum()))
        total_bytes = _buffer_bytes(self.collective, line)
        for group_class in self.inside.classify_groups(groups):
            plan = min(self.inside.plans_for(group_class.machine, target), key=AIMS[self.aim])
            # the spans of these groups: group g's block b is owned by number g * blocks + b
            owners = (group_class.groups[:, None] * target.blocks + np.arange(target.blocks)).ravel()
            placements.append(
                Placement(plan.schedule, groups[group_class.groups], where.take(owners), group_class.links)
            )
            # groups run at the same time, so the slowest counts; its buffer is the fraction target / total of the whole
            # collective's
            unpipelined = max(unpipelined, plan.unpipelined * target_bytes / total_bytes)
            pipelined = max(pipelined, plan.pipelined * target_bytes / total_bytes)
            planners.append(plan.planner)
        return Stage(level, tuple(placements), unpipelined, pipelined, tuple(planners))

    def plan_exchange(self, exchange: SeatExchange, line: int) -> Stage:
        """Plan one exchange of an allgather (shared/groups) as a stage."""
        target = Collective("allgather", exchange.width, weights=np.array(exchange.sizes))
        return self.plan_stage(len(exchange.path) - 1, exchange.seats, exchange.where, target, line)


def _buffer_bytes(collective: Collective, length: int) -> Fraction:
    """Return the `nbytes` of a collective whose blocks have this total length on the line."""
    return Fraction(length * collective.buffer_weight, int(collective.weights.sum()))


def _stage_exchanges(
    plans: StagePlanner, exchange_list: Sequence[SeatExchange], line: int
) -> tuple[list[Stage], list[Placement]]:
    """Plan all exchanges; each starts as soon as the one that brings its data is done."""
    stop: dict[tuple[tuple[int, ...], ...], int] = {(): 0}
    stages, placements = [], []
    for exchange in exchange_list:
        stage = plans.plan_exchange(exchange, line)
        # an exchange needs what its group's parent exchange brought, not what happens in other groups
        start = stop.get(exchange.path[:-1], 0)
        stop[exchange.path] = start + stage.steps
        stages.append(stage)
        placements += stage.placed_at(start)
    return stages, placements


def _reverse_stages(stages: Sequence[Stage]) -> tuple[Stage, ...]:
    """Return the stages run backwards, in reverse order."""
    return tuple(replace(stage, backwards=True) for stage in stages[::-1])


def _blocks_in_seat_order(split: Split, units: int) -> Spans:
    """Return where each member's block is, if data are in the order of seats."""
    return Spans.side_by_side(np.full(len(split.seating), units)).take(np.argsort(split.seating))


def _stage_allgather(collective: Collective, split: Split, forward: StagePlanner, backward: StagePlanner) -> StagedPlan:
    units = units_per_seat(split.groups)
    line = len(split.seating) * units
    stages, placements = _stage_exchanges(forward, split.exchanges, line)
    return StagedPlan(split, tuple(placements), tuple(stages), _blocks_in_seat_order(split, units))


def _stage_reducescatter(
    collective: Collective, split: Split, forward: StagePlanner, backward: StagePlanner
) -> StagedPlan:
    allgather = _stage_allgather(collective, split, backward, forward)
    return replace(
        allgather, placements=tuple(reverse_parts(allgather.placements)), stages=_reverse_stages(allgather.stages)
    )


def _stage_allreduce(collective: Collective, split: Split, forward: StagePlanner, backward: StagePlanner) -> StagedPlan:
    """Stage an allreduce; among the outermost groups the better of one plan and of a reducescatter and an allgather."""
    line = len(split.seating) * units_per_seat(split.groups)
    all_spans = Spans.side_by_side(np.array([line]))
    outer, *inner = split.exchanges
    # the data of each outermost group's exchange, one span set per group: the block of an allreduce
    outer_spans = outer.where.grouped(np.arange(len(outer.seats) + 1) * outer.width)
    allreduce = forward.plan_stage(
        level=0, seats=outer.seats, where=outer_spans, target=Collective("allreduce", outer.width), line=line
    )
    scatter, gather = backward.plan_exchange(outer, line), forward.plan_exchange(outer, line)
    halves = StagesCost(
        scatter.steps + gather.steps, scatter.unpipelined + gather.unpipelined, scatter.pipelined + gather.pipelined
    )
    # in time: reducescatters within groups, then the middle (among the outermost groups), then allgathers within groups
    reverse_stages, reverse_placements = _stage_exchanges(backward, inner, line)
    gather_stages, gather_placements = _stage_exchanges(forward, inner, line)
    first_placements = reverse_parts(reverse_placements)
    if AIMS[forward.aim](allreduce) < AIMS[forward.aim](halves):
        middle_placements, middle_stages = delay_after(allreduce.placed_at(0), first_placements), [allreduce]
    else:
        scatter_placements = reverse_parts(scatter.placed_at(0))
        halves_placements = [*scatter_placements, *delay_after(gather.placed_at(0), scatter_placements)]
        middle_placements = delay_after(halves_placements, first_placements)
        middle_stages = [*_reverse_stages([scatter]), gather]
    last_placements = delay_after(gather_placements, middle_placements or first_placements)
    stages = (*_reverse_stages(reverse_stages), *middle_stages, *gather_stages)
    return StagedPlan(split, (*first_placements, *middle_placements, *last_placements), stages, all_spans)


def _stage_undivided(split: Split, forward: StagePlanner, backward: StagePlanner, undivided: int) -> StagedPlan:
    """Stage an allreduce of equal groups: a reducescatter on the inner levels, an allreduce on each of the `undivided`
    outer ones, an allgather on the inner levels.

    On a hypercube of 2^d ranks with all d levels: d steps, the fewest possible, d times the data per rank.
    """
    size, units = len(split.seating), units_per_seat(split.groups)
    inner = [exchange for exchange in split.exchanges if len(exchange.path) > undivided]
    scatter_stages, scatter_placements = _stage_exchanges(backward, inner, size * units)
    gather_stages, gather_placements = _stage_exchanges(forward, inner, size * units)
    placements = reverse_parts(scatter_placements)
    strides = list(_level_strides(split.groups))[:undivided]
    # After the reducescatter, ranks of equal digits on the inner levels hold the same data.
    _, inner_size = strides[-1]
    seats = np.arange(size)
    order = np.argsort(seats % inner_size, kind="stable")
    held = Spans.of(seats[order] % inner_size, order * units, (order + 1) * units, inner_size)
    stages = []
    for level, (fan, stride) in enumerate(strides):
        first = np.flatnonzero(seats // stride % fan == 0)
        where = (
            held.take(first % inner_size)
            if inner_size > 1
            else Spans.side_by_side(np.array([size * units])).take(first * 0)
        )
        groups = first[:, None] + np.arange(fan) * stride
        stages.append(forward.plan_stage(level, groups, where, Collective("allreduce", fan), size * units))
        placements += delay_after(stages[-1].placed_at(0), placements)
    placements += delay_after(gather_placements, placements)
    all_spans = Spans.side_by_side(np.array([size * units]))
    all_stages = (*_reverse_stages(scatter_stages), *stages, *gather_stages)
    return StagedPlan(split, tuple(placements), all_stages, all_spans, undivided)


def _stage_broadcast(collective: Collective, split: Split, forward: StagePlanner, backward: StagePlanner) -> StagedPlan:
    return min(broadcast_variants(collective, split, forward), key=lambda staged: AIMS[forward.aim](staged.cost))


def broadcast_variants(collective: Collective, split: Split, forward: StagePlanner) -> Iterator[StagedPlan]:
    """Yield broadcasts on two levels, among the outermost groups and within each, for a single root.

    In the root's group either the root scatters and all gather, or it broadcasts, or it deals all data out to the
    others, who then gather (`_deal_from_root`).
    """
    if len(collective.roots) > 1:
        raise Unsupported("planner compose: several roots are not planned together; use planner trees")
    flat = Groups.of_parts([Groups.ring(placement.size) for placement in split.groups.subgroups])
    root = int(np.flatnonzero(split.seating == collective.roots[0])[0])
    dealing_factor = _dealing_factor(flat, root)
    line = len(split.seating) * units_per_seat(flat) * dealing_factor
    all_spans = Spans.side_by_side(np.array([line]))
    starts, sizes = np.array(flat.part_starts()), np.array([placement.size for placement in flat.subgroups])
    # the number of the root's group
    home = int(np.searchsorted(starts, root, side="right")) - 1
    # a stretch is an interval of the data that one rank of each group holds; `edges`: borders of stretches, all data
    # being `scale` long; `holders`: [stretch, group] -> seat
    edges, scale = find_stretches(flat.subgroups)
    holders = starts + edges[:-1, None] * sizes // scale

    def spans_between(edge: Longs) -> Spans:
        """Return a span between each position on the line and the next."""
        return all_spans.cut(np.zeros(len(edge) - 1, np.int64), edge[:-1], edge[1:])

    def plan_within(group_numbers: Longs, kind: str, roots: tuple[int, ...] = ()) -> Stage:
        """Plan a stage within groups of one size: each rank holds its share of the data, in a broadcast all."""
        size = int(sizes[group_numbers[0]])
        holdings = all_spans if kind == "broadcast" else spans_between(np.arange(size + 1) * (line // size))
        seats = starts[group_numbers][:, None] + np.arange(size)
        where = holdings.take(np.tile(np.arange(len(holdings)), len(group_numbers)))
        return forward.plan_stage(
            level=1, seats=seats, where=where, target=Collective(kind, size, roots=roots), line=line
        )

    def gather_within(group_numbers: Longs) -> list[Stage]:
        """Plan the allgathers within these groups, a stage for each size of groups."""
        by_size = [
            group_numbers[sizes[group_numbers] == size] for size in np.unique(sizes[group_numbers]).tolist() if size > 1
        ]
        return [
            replace(plan_within(same_size, "allgather"), separate=len(group_numbers) < len(sizes))
            for same_size in by_size
        ]

    outer_stage = forward.plan_stage(
        level=0,
        seats=holders,
        where=spans_between(edges * (line // scale)),
        target=Collective("broadcast", len(sizes), roots=(home,)),
        line=line,
    )
    all_groups = np.arange(len(sizes))
    # three ways to begin in the root's group: stages (before, after) `outer_stage`, the broadcast among groups
    stage_pairs: list[tuple[list[Stage], list[Stage]]] = [([], gather_within(all_groups))]
    if sizes[home] > 1:
        home_group, other_groups = all_groups[home : home + 1], all_groups[all_groups != home]
        home_root = (root - int(starts[home]),)
        stage_pairs = [([plan_within(home_group, "scatter", home_root)], gather_within(all_groups))]
        stage_pairs.append(([plan_within(home_group, "broadcast", home_root)], gather_within(other_groups)))
        # the third: the root deals everything out and keeps nothing to itself, so each byte leaves it once
        with suppress(Unsupported):  # needs a root that reaches all others, and these each other without it
            if dealing_factor > 1:
                scatter_stage, gather_stage = _deal_from_root(
                    forward, np.arange(sizes[home]) + starts[home], home_root[0], all_spans
                )
                stage_pairs.append(([scatter_stage], [*gather_within(other_groups), gather_stage]))
    for first_stages, last_stages in stage_pairs:
        placements = [placement for stage in first_stages for placement in stage.placed_at(0)]
        placements += delay_after(outer_stage.placed_at(0), placements)
        last_start = max(placement.stop for placement in placements)
        placements += [placement for stage in last_stages for placement in stage.placed_at(last_start)]
        yield StagedPlan(split, tuple(placements), (*first_stages, outer_stage, *last_stages), all_spans)


def _dealing_factor(groups: Groups, root: int) -> int:
    """Return the factor by which the line must be scaled so that the root's part can be divided among its group.

    1 if the group is too small, or the line would become too long.
    """
    ends = np.cumsum([group.size for group in groups.subgroups])
    receivers = groups.subgroups[int(np.searchsorted(ends, root, side="right"))].size - 1
    return receivers if receivers > 1 and groups.size * units_per_seat(groups) * receivers < MOST_WHOLE else 1


def _deal_from_root(plans: StagePlanner, seats: Longs, root_index: int, all_spans: Spans) -> tuple[Stage, Stage]:
    """Let a group's root send all data to the others, which then gather. So each byte leaves the root once.

    Each of the others receives its own part and a share of the root's part.
    """
    size = len(seats)
    line = int(all_spans.lengths.sum())
    own_length, root_share = line // size, line // (size * (size - 1))
    receivers = np.flatnonzero(np.arange(size) != root_index)
    # two intervals per receiver: its own part of the line, and its share of the root's part
    begin = np.stack([receivers * own_length, root_index * own_length + np.arange(size - 1) * root_share], axis=1)
    end = begin + np.array([own_length, root_share])
    holdings = all_spans.cut(np.zeros(begin.size, np.int64), begin.ravel(), end.ravel()).grouped(np.arange(size) * 2)
    weights = (np.arange(size) != root_index).astype(np.int64)
    # the root has no span; the i-th receiver has the i-th holdings
    scatter_spans = Spans(
        np.cumsum([0, *(np.diff(holdings.ptr)[np.cumsum(weights) - 1] * weights)]), holdings.begin, holdings.end
    )
    scatter_stage = plans.plan_stage(
        level=1,
        seats=seats[None],
        where=scatter_spans,
        target=Collective("scatter", size, roots=(root_index,), weights=weights),
        line=line,
    )
    if any((placement.schedule.src != root_index).any() for placement in scatter_stage.placements):
        raise Unsupported("planner compose: run backwards, a rank that relays a part would add its own data again")
    gather_stage = plans.plan_stage(
        level=1, seats=seats[None, receivers], where=holdings, target=Collective("allgather", size - 1), line=line
    )
    placements = tuple(_as_broadcast(placement) for placement in scatter_stage.placements)
    planners = tuple(f"{by}, a part each" for by in scatter_stage.planners)
    scatter_stage = replace(scatter_stage, placements=placements, planners=planners)
    # in both stages together the others receive as much as the root sends, which the first stage already counts
    return scatter_stage, replace(gather_stage, pipelined=Fraction(0))


def _as_broadcast(placement: Placement) -> Placement:
    """Return a scatter as the first part of a broadcast, so that its root reduces what arrives when run backwards."""
    collective = placement.schedule.collective
    target = Collective("broadcast", collective.ranks, roots=collective.roots)
    line = Spans.side_by_side(np.array([collective.weights.sum()]))
    schedule = assemble_parts(
        [Placement.single_copy(placement.schedule, Spans.side_by_side(collective.weights))], target, line
    )
    where = placement.where.grouped(np.arange(0, len(placement.where) + 1, collective.blocks))
    return replace(placement, schedule=schedule, where=where)


def _stage_reduce(collective: Collective, split: Split, forward: StagePlanner, backward: StagePlanner) -> StagedPlan:
    broadcast_collective = Collective("broadcast", collective.ranks, collective.members, collective.roots)
    broadcast = _stage_broadcast(
        broadcast_collective, split, replace(backward, collective=broadcast_collective), forward
    )
    return replace(
        broadcast, placements=tuple(reverse_parts(broadcast.placements)), stages=_reverse_stages(broadcast.stages)
    )


def _stage_alltoall(collective: Collective, split: Split, forward: StagePlanner, backward: StagePlanner) -> StagedPlan:
    """Stage an alltoall level by level, the outermost first.

    Data for another group go to the rank there that has the sender's number in its group.
    """
    if not split.groups.is_even():
        raise Unsupported("planner compose: an alltoall is split into groups of equal size only; use planner flows")
    size = len(split.seating)
    if size * size > MOST_BLOCKS:
        raise Unsupported(
            f"planner compose: an alltoall among {size} ranks is too large to be split; "
            + suggest_planners(forward.inside.request.topology, collective, "direct", "pairwise")
        )
    stages: list[Stage] = []
    placements: list[Placement] = []
    seat = np.argsort(split.seating)  # of the member of each number
    destination, origin = (seat[x] for x in np.divmod(np.arange(size * size), size))
    # invariant: after a level, each block's holder agrees with its destination in the digits of all levels so far
    holder = origin.copy()
    for level, (fan, stride) in enumerate(_level_strides(split.groups)):
        # the holder's digit on this level, and the digit that the block must get to
        digit, target_digit = holder // stride % fan, destination // stride % fan
        base = holder - digit * stride  # the first of the group
        seats = np.flatnonzero(np.arange(size) // stride % fan == 0)
        owner = (np.searchsorted(seats, base) * fan + target_digit) * fan + digit
        # owner: the spans' number in the order (group, destination digit, holder's digit), as blocks of an alltoall are
        order = np.argsort(owner, kind="stable")
        where = Spans.of(owner[order], order, order + 1, len(seats) * fan * fan)
        stage = forward.plan_stage(
            level, seats[:, None] + np.arange(fan) * stride, where, Collective("alltoall", fan), size * size
        )
        stages.append(stage)
        placements += delay_after(stage.placed_at(0), placements)
        holder = base + target_digit * stride
    return StagedPlan(split, tuple(placements), tuple(stages), Spans.side_by_side(np.ones(size * size, np.int64)))


def _level_strides(groups: Groups) -> Iterator[tuple[int, int]]:
    """Yield the subgroups per group, and the ranks of each, of every level of equal groups, the outermost first."""
    while groups.subgroups:
        yield len(groups.subgroups), groups.subgroups[0].size
        groups = groups.subgroups[0]


_KINDS = {
    "allgather": _stage_allgather,
    "reducescatter": _stage_reducescatter,
    "allreduce": _stage_allreduce,
    "broadcast": _stage_broadcast,
    "reduce": _stage_reduce,
    "alltoall": _stage_alltoall,
}
KINDS = tuple(_KINDS)
