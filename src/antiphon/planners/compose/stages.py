"""Compose a collective of stages, level by level: in each, every group of a level carries out a plan for its data.

The input is a split (nested groups of ranks) and the plans for groups (inside.py); the output is a `StagedPlan`, from
which the schedule is built.

    allgather       outermost level first: groups exchange what they hold, then the subgroups do (shared/groups)
    reducescatter   the same backwards, on the reversed machine
    allreduce       reducescatter within groups; allreduce among ranks that hold the same data; allgather within groups.
                    Or, on the `undivided` outer levels, an allreduce of everything held: fewer steps, more data
    broadcast       the root's group scatters, each holder broadcasts its part among the groups, every group gathers
    reduce          the same backwards
    alltoall        among groups first (to the rank with the sender's number in its group), then within groups

All data of the collective stand on an imagined line of length `line`, scaled so that all borders are integers.
A `Spans` lists the intervals that each of several owners has, such as the blocks of a group. A stage consists of
placed schedules: a `Placement` is (schedule, groups of ranks, spans, links). A seat is a position in the split's order
of ranks. `forward` plans on the machine. `backward` plans on the machine with all links reversed, for schedules that
are then run backwards.

Example: allgather on 2 boxes of 2 ranks. Stage 0: ranks 0 and 2 exchange, 1 and 3 exchange (each two blocks then).
Stage 1: within boxes, 0 and 1 exchange two blocks each, 2 and 3 likewise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
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
    reverse_placements,
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
    with many slices, in the slowest group. `planners`: the planner of each placement. `separate`: whether the stage
    runs in some groups of its level only, and other stages in the others: then their loads are on different links.
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
        """In words, what the groups do and which planners plan it."""
        words = []
        for placement, planner in zip(self.placements, self.planners, strict=True):
            groups, members = placement.ranks.shape
            kind = placement.schedule.collective.kind
            where = f"in {groups} groups of {members}" if groups > 1 else f"among {members}"
            words.append(f"{DUAL[kind] if self.backwards else kind} {where} by {planner}")
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
        """What each stage does, in words."""
        return tuple(stage.description for stage in self.stages)

    def loads(self) -> dict[int, Fraction]:
        """Return, by level, the load of its links in seconds per byte; `separate` stages load other links."""
        seconds: dict[tuple[int, bool], Fraction] = {}  # by (level, separate)
        for stage in self.stages:
            key = stage.level, stage.separate
            seconds[key] = seconds.get(key, Fraction(0)) + stage.pipelined
        loads: dict[int, Fraction] = {}
        for (level, _), load in seconds.items():
            loads[level] = max(loads.get(level, load), load)
        return loads

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
    # exchanges cut the data of every rank at up to `size` borders, for each root
    if size * size * len(collective.roots or (0,)) > MOST_SPANS:
        suggestion = suggest_planners(forward.request.topology, collective, "ring", "relay", "greedy")
        raise Unsupported(f"planner compose: {size} ranks are too many to be split; {suggestion}")
    if not collective.weights.any():  # no data at all: planned as if blocks were equal
        collective = replace(collective, weights=np.zeros(0, np.int64))
    planners = StagePlanner(collective, split, forward, aim), StagePlanner(collective, split, backward, aim)
    if undivided <= 1:  # `_stage_allreduce` itself considers an undivided allreduce on the outermost level
        return stage_kind(collective, split, *planners)
    return _stage_undivided(split, *planners, undivided)


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
        # all groups have equally much data, so the blocks of the first stand for those of any
        group_length = int(where.lengths[: target.blocks].sum())
        # the buffer of a group, as a fraction of the whole collective's
        share = _buffer_bytes(target, group_length) / _buffer_bytes(self.collective, line)
        for group_class in self.inside.classify_groups(groups):
            plan = min(self.inside.plans_for(group_class.machine, target), key=AIMS[self.aim])
            # the spans of these groups: group g's block b is owned by number g * blocks + b
            owners = (group_class.groups[:, None] * target.blocks + np.arange(target.blocks)).ravel()
            placements.append(
                Placement(plan.schedule, groups[group_class.groups], where.take(owners), group_class.links)
            )
            # groups run at the same time, so the slowest counts
            unpipelined = max(unpipelined, plan.unpipelined * share)
            pipelined = max(pipelined, plan.pipelined * share)
            planners.append(plan.planner)
        return Stage(level, tuple(placements), unpipelined, pipelined, tuple(planners))

    def plan_exchange(self, exchange: SeatExchange, line: int) -> Stage:
        """Plan one exchange of an allgather (shared/groups) as a stage."""
        target = Collective("allgather", exchange.width, weights=np.array(exchange.sizes))
        level = len(exchange.path) - 1  # the path has an entry for every level down to this one
        return self.plan_stage(level, exchange.seats, exchange.where, target, line)


def _buffer_bytes(collective: Collective, length: int) -> Fraction:
    """Return the `nbytes` of a collective whose blocks have this total length on the line."""
    return Fraction(length * collective.buffer_weight, int(collective.weights.sum()))


@dataclass(frozen=True, eq=False)
class _Timeline:
    """Stages in the order of time, and their placements."""

    stages: list[Stage] = field(default_factory=list)
    placements: list[Placement] = field(default_factory=list)

    def append(self, other: _Timeline) -> None:
        """Add another timeline after the end of this one."""
        self.placements.extend(delay_after(other.placements, self.placements))
        self.stages.extend(other.stages)

    def append_stages(self, *stages: Stage) -> None:
        """Add stages that run at the same time, after the end of all before."""
        self.append(_Timeline([*stages], [placement for stage in stages for placement in stage.placed_at(0)]))

    def run_backwards(self) -> _Timeline:
        """Return what is planned on the reversed machine, run backwards on the machine."""
        stages = [replace(stage, backwards=True) for stage in self.stages[::-1]]
        return _Timeline(stages, reverse_placements(self.placements))

    def to_plan(self, split: Split, where: Spans, undivided: int = 1) -> StagedPlan:
        """Return a plan of these stages. `where`: the spans of the blocks of the collective."""
        return StagedPlan(split, tuple(self.placements), tuple(self.stages), where, undivided)


def _run_plan_backwards(plan: StagedPlan) -> StagedPlan:
    """Return a plan for the reversed machine as one for the machine, run backwards."""
    timeline = _Timeline([*plan.stages], [*plan.placements])
    return timeline.run_backwards().to_plan(plan.split, plan.where)


def _plan_exchanges(planner: StagePlanner, exchanges: Sequence[SeatExchange], line: int) -> _Timeline:
    """Plan all exchanges; each starts as soon as the one that brings its data is done."""
    timeline = _Timeline()
    # by the path of an exchange, the first step after it; exchanges without one before them start at 0
    stop: dict[tuple[tuple[int, ...], ...], int] = {}
    for exchange in exchanges:  # outer levels first
        stage = planner.plan_exchange(exchange, line)
        outer_path = exchange.path[:-1]  # the exchange that brought the data to the groups of this one
        start = stop.get(outer_path, 0)
        stop[exchange.path] = start + stage.steps
        timeline.stages.append(stage)
        timeline.placements.extend(stage.placed_at(start))
    return timeline


def _whole_line(line: int) -> Spans:
    """Return all data as those of one owner."""
    return Spans.side_by_side(np.array([line]))


def _cut_line(line: int, borders: Longs) -> Spans:
    """Return an owner for each interval of the line from one border to the next."""
    return _whole_line(line).cut(np.zeros(len(borders) - 1, np.int64), borders[:-1], borders[1:])


def _blocks_in_seat_order(split: Split, units: int) -> Spans:
    """Return where each member's block is, if data are in the order of seats."""
    seat_of_member = np.argsort(split.seating)
    return Spans.side_by_side(np.full(len(split.seating), units)).take(seat_of_member)


# The functions for the kinds of collectives (_KINDS) have one signature, though some need only two of its arguments.


def _stage_allgather(collective: Collective, split: Split, forward: StagePlanner, backward: StagePlanner) -> StagedPlan:
    units = units_per_seat(split.groups)
    timeline = _plan_exchanges(forward, split.exchanges, len(split.seating) * units)
    return timeline.to_plan(split, _blocks_in_seat_order(split, units))


def _stage_reducescatter(
    collective: Collective, split: Split, forward: StagePlanner, backward: StagePlanner
) -> StagedPlan:
    return _run_plan_backwards(_stage_allgather(collective, split, backward, forward))


def _stage_allreduce(collective: Collective, split: Split, forward: StagePlanner, backward: StagePlanner) -> StagedPlan:
    """Stage an allreduce: reducescatters within groups, a middle stage among the outermost groups, allgathers within
    groups.

    The middle is an allreduce, or a reducescatter and an allgather (two halves), whichever is better at the aim.
    """
    line = len(split.seating) * units_per_seat(split.groups)
    outer, *inner = split.exchanges
    # an allreduce has one block: everything that the seats of a row of the exchange hold
    outer_spans = outer.where.grouped(np.arange(len(outer.seats) + 1) * outer.width)
    allreduce = forward.plan_stage(0, outer.seats, outer_spans, Collective("allreduce", outer.width), line)
    scatter, gather = backward.plan_exchange(outer, line), forward.plan_exchange(outer, line)
    halves = StagesCost(
        scatter.steps + gather.steps, scatter.unpipelined + gather.unpipelined, scatter.pipelined + gather.pipelined
    )
    timeline = _plan_exchanges(backward, inner, line).run_backwards()
    if AIMS[forward.aim](allreduce) < AIMS[forward.aim](halves):
        timeline.append_stages(allreduce)
    else:
        timeline.append(_Timeline([scatter], scatter.placed_at(0)).run_backwards())
        timeline.append_stages(gather)
    timeline.append(_plan_exchanges(forward, inner, line))
    return timeline.to_plan(split, _whole_line(line))


def _stage_undivided(split: Split, forward: StagePlanner, backward: StagePlanner, undivided: int) -> StagedPlan:
    """Stage an allreduce of equal groups: a reducescatter on the inner levels, an allreduce on each of the `undivided`
    outer ones, an allgather on the inner levels.

    On a hypercube of 2^d ranks with all d levels: d steps, the fewest possible, d times the data per rank.
    """
    size, units = len(split.seating), units_per_seat(split.groups)
    line = size * units
    inner = [exchange for exchange in split.exchanges if len(exchange.path) > undivided]
    outer_levels = list(_level_strides(split.groups))[:undivided]
    # Seat s is number s % inner_size of its innermost undivided group. After the reducescatter it holds the data of all
    # seats with this number: `held` has an owner per number.
    _, inner_size = outer_levels[-1]
    seats = np.arange(size)
    by_number = np.argsort(seats % inner_size, kind="stable")
    held = Spans.of(seats[by_number] % inner_size, by_number * units, (by_number + 1) * units, owners=inner_size)
    timeline = _plan_exchanges(backward, inner, line).run_backwards()
    for level, (fan, stride) in enumerate(outer_levels):
        # groups of the seats that differ only in their digit on this level (`_level_strides`)
        first_seats = _seats_of_digit_zero(size, fan, stride)
        groups = first_seats[:, None] + np.arange(fan) * stride
        where = held.take(first_seats % inner_size)
        timeline.append_stages(forward.plan_stage(level, groups, where, Collective("allreduce", fan), line))
    timeline.append(_plan_exchanges(forward, inner, line))
    return timeline.to_plan(split, _whole_line(line), undivided)


def _stage_broadcast(collective: Collective, split: Split, forward: StagePlanner, backward: StagePlanner) -> StagedPlan:
    """Stage a broadcast from a single root, among the outermost groups and within each: the best of its variants."""
    if len(collective.roots) > 1:
        raise Unsupported("planner compose: several roots are not planned together; use planner trees")
    broadcast = _TwoLevelBroadcast(collective, split, forward)
    outer_stage = broadcast.plan_outer()
    plans = []
    for first_stages, last_stages in broadcast.list_variants():
        timeline = _Timeline()
        for stages in (first_stages, [outer_stage], last_stages):
            timeline.append_stages(*stages)
        plans.append(timeline.to_plan(split, _whole_line(broadcast.line)))
    return min(plans, key=lambda staged: AIMS[forward.aim](staged.cost))


class _TwoLevelBroadcast:
    """The stages of a broadcast among the outermost groups and within each.

    Seats of group g begin at `starts[g]` and are `sizes[g]`. Each group holds all data together, each of its ranks an
    equal share. `home`: the number of the root's group.
    """

    def __init__(self, collective: Collective, split: Split, forward: StagePlanner) -> None:
        self.forward = forward
        # two levels: the split's outermost groups, and the single ranks in each
        groups = Groups.of_subgroups([Groups.ring(group.size) for group in split.groups.subgroups])
        self.subgroups = groups.subgroups
        self.starts = np.array(groups.subgroup_starts())
        self.sizes = np.array([group.size for group in groups.subgroups])
        root_seat = int(np.flatnonzero(split.seating == collective.roots[0])[0])
        self.home = int(np.searchsorted(self.starts, root_seat, side="right")) - 1
        self.root_index = root_seat - int(self.starts[self.home])  # in the root's group
        # to deal out the root's share, each share must be divisible by the number of the others in its group
        receivers = int(self.sizes[self.home]) - 1
        shortest_line = groups.size * units_per_seat(groups)
        self.can_deal = receivers > 1 and shortest_line * receivers < MOST_WHOLE  # else positions could overflow
        self.line = shortest_line * receivers if self.can_deal else shortest_line

    def plan_outer(self) -> Stage:
        """Plan the broadcast from the root's group to the others: of each stretch of data, among its holders.

        A stretch is an interval of the data that one rank of each group holds.
        """
        edges, scale = find_stretches(self.subgroups)  # borders of stretches, where all data have length `scale`
        # [stretch, group] -> seat: of a group of n ranks, the one whose n-th of the data the stretch is in
        holders = self.starts + edges[:-1, None] * self.sizes // scale
        stretches = _cut_line(self.line, edges * (self.line // scale))
        target = Collective("broadcast", len(self.sizes), roots=(self.home,))
        return self.forward.plan_stage(0, holders, stretches, target, self.line)

    def list_variants(self) -> list[tuple[list[Stage], list[Stage]]]:
        """Return the stages before and after that of `plan_outer`, for every way to begin in the root's group.

        The root scatters and all gather; or it broadcasts; or it deals out (`_deal_from_root`) and the others gather.
        """
        groups = np.arange(len(self.sizes))
        gather_all = self.gather_within(groups)
        if self.sizes[self.home] == 1:
            return [([], gather_all)]
        home_group, other_groups = groups[groups == self.home], groups[groups != self.home]
        variants = [
            ([self.plan_within(home_group, kind, (self.root_index,))], self.gather_within(gathering))
            for kind, gathering in (("scatter", groups), ("broadcast", other_groups))
        ]
        with suppress(Unsupported):  # needs a root that reaches all others, and these each other without it
            if self.can_deal:
                home_seats = self.starts[self.home] + np.arange(self.sizes[self.home])
                deal_stage, gather_stage = _deal_from_root(self.forward, home_seats, self.root_index, self.line)
                variants.append(([deal_stage], [*self.gather_within(other_groups), gather_stage]))
        return variants

    def plan_within(self, group_numbers: Longs, kind: str, roots: tuple[int, ...] = ()) -> Stage:
        """Plan a stage within groups of one size: each rank holds its share of the data, in a broadcast all."""
        size = int(self.sizes[group_numbers[0]])
        shares = _cut_line(self.line, np.arange(size + 1) * (self.line // size))
        blocks = _whole_line(self.line) if kind == "broadcast" else shares
        where = blocks.take(np.tile(np.arange(len(blocks)), len(group_numbers)))  # the same for every group
        seats = self.starts[group_numbers][:, None] + np.arange(size)
        return self.forward.plan_stage(1, seats, where, Collective(kind, size, roots=roots), self.line)

    def gather_within(self, group_numbers: Longs) -> list[Stage]:
        """Plan the allgathers within these groups, a stage for each size of groups."""
        sizes = self.sizes[group_numbers]
        is_separate = len(group_numbers) < len(self.sizes)
        return [
            replace(self.plan_within(group_numbers[sizes == size], "allgather"), separate=is_separate)
            for size in np.unique(sizes).tolist()
            if size > 1
        ]


def _deal_from_root(planner: StagePlanner, seats: Longs, root_index: int, line: int) -> tuple[Stage, Stage]:
    """Let a group's root send all data to the others, which then gather. So each byte leaves the root once.

    `seats`: of the group. `root_index`: the root's place among them.

    Each of the others receives its own share of the line and an equal part of the root's share.
    """
    size = len(seats)
    share, root_part = line // size, line // (size * (size - 1))
    receivers = np.flatnonzero(np.arange(size) != root_index)
    # two intervals per receiver: its own share of the line, and its part of the root's
    begin = np.stack([receivers * share, root_index * share + np.arange(size - 1) * root_part], axis=1)
    end = begin + np.array([share, root_part])
    intervals = _whole_line(line).cut(np.zeros(begin.size, np.int64), begin.ravel(), end.ravel())
    received = intervals.grouped(np.arange(size) * 2)
    # a scatter has a block per rank; the root's is empty
    spans_per_rank = np.zeros(size, np.int64)
    spans_per_rank[receivers] = np.diff(received.ptr)
    scatter_spans = Spans(np.append(0, np.cumsum(spans_per_rank)), received.begin, received.end)
    weights = (np.arange(size) != root_index).astype(np.int64)
    scatter = Collective("scatter", size, roots=(root_index,), weights=weights)
    scatter_stage = planner.plan_stage(1, seats[None], scatter_spans, scatter, line)
    if any((placement.schedule.src != root_index).any() for placement in scatter_stage.placements):
        raise Unsupported("planner compose: run backwards, a rank that relays a part would add its own data again")
    gather_stage = planner.plan_stage(1, seats[None, receivers], received, Collective("allgather", size - 1), line)
    placements = tuple(_as_broadcast(placement) for placement in scatter_stage.placements)
    planners = tuple(f"{planner}, a part each" for planner in scatter_stage.planners)
    scatter_stage = replace(scatter_stage, placements=placements, planners=planners)
    # in both stages together the others receive as much as the root sends, which the first stage already counts
    return scatter_stage, replace(gather_stage, pipelined=Fraction(0))


def _as_broadcast(placement: Placement) -> Placement:
    """Return a scatter as the first part of a broadcast: run backwards, its root reduces the data that arrive.

    The blocks of the scatter, side by side, are the one block of the broadcast.
    """
    collective = placement.schedule.collective
    target = Collective("broadcast", collective.ranks, roots=collective.roots)
    blocks, line = Spans.side_by_side(collective.weights), _whole_line(int(collective.weights.sum()))
    schedule = assemble_parts([Placement.single_copy(placement.schedule, blocks)], target, line)
    where = placement.where.grouped(np.arange(0, len(placement.where) + 1, collective.blocks))
    return replace(placement, schedule=schedule, where=where)


def _stage_reduce(collective: Collective, split: Split, forward: StagePlanner, backward: StagePlanner) -> StagedPlan:
    """Stage a reduce: a broadcast on the reversed machine, run backwards."""
    broadcast_collective = Collective("broadcast", collective.ranks, collective.members, collective.roots)
    planner = replace(backward, collective=broadcast_collective)
    return _run_plan_backwards(_stage_broadcast(broadcast_collective, split, planner, forward))


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
    timeline = _Timeline()
    # block d * size + s of an alltoall goes from member s to member d
    receiver, sender = np.divmod(np.arange(size * size), size)
    seat_of_member = np.argsort(split.seating)
    # invariant: after a level, each block's holder agrees with its destination in the digits of all levels so far
    holder, destination = seat_of_member[sender], seat_of_member[receiver]
    for level, (fan, stride) in enumerate(_level_strides(split.groups)):
        # the holder's digit on this level, and the digit that the block must get to
        digit, target_digit = holder // stride % fan, destination // stride % fan
        group_base = holder - digit * stride  # the group's seat with digit 0
        first_seats = _seats_of_digit_zero(size, fan, stride)
        group = np.searchsorted(first_seats, group_base)
        # the owners are the blocks of the groups' alltoalls, group by group: by destination, then by sender
        owner = (group * fan + target_digit) * fan + digit
        by_owner = np.argsort(owner, kind="stable")
        # block i of the alltoall is the interval from i to i + 1 of the line
        where = Spans.of(owner[by_owner], by_owner, by_owner + 1, owners=len(first_seats) * fan * fan)
        groups = first_seats[:, None] + np.arange(fan) * stride
        timeline.append_stages(forward.plan_stage(level, groups, where, Collective("alltoall", fan), size * size))
        holder = group_base + target_digit * stride
    return timeline.to_plan(split, Spans.side_by_side(np.ones(size * size, np.int64)))


def _seats_of_digit_zero(size: int, fan: int, stride: int) -> Longs:
    """Return the seats that are the first of their groups of `fan` seats, `stride` apart."""
    return np.flatnonzero(np.arange(size) // stride % fan == 0)


def _level_strides(groups: Groups) -> Iterator[tuple[int, int]]:
    """Yield the fan-in of every level of equal groups, and the ranks of a subgroup (the stride), the outermost first.

    So the digit of a seat on a level, the number of its subgroup there, is seat // stride % fan-in.
    """
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
