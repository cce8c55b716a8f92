"""Planner `compose`: plans of other planners for groups of ranks, combined level by level.

Most clusters are hierarchical: GPUs in boxes, boxes in racks. A flat plan treats slow and fast links alike; a
hierarchical one does, for an allreduce on boxes,

    reducescatter within each box  ->  allreduce among equal ranks of all boxes  ->  allgather within each box

so the slow links carry 1 / (ranks per box) of the data. Each of these is a collective on a small machine, which any
other planner can plan. splits.py proposes the groups (a split). inside.py plans each set of isomorphic groups once and
verifies the plan. stages.py combines these plans into the whole collective. rotate.py divides the data so that all
levels work at once.

For each aim (fewest steps; least time unpipelined; greatest rate, that is, bandwidth with many slices):

    1. `_rank_splits`   estimate every split, also with all rotations of its levels at once
    2. `_best_of`       build the schedules of the splits with the best estimates, and compute their exact times
    3. `_pipeline_plans` choose the number of slices for the message size

Example: 4 boxes of 8 GPUs: candidates are 8x4 (boxes), 4x8 (rails) and both at once, each for half of the data.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Annotated, Any, TypeVar

import numpy as np

from antiphon.core.loads import throughput, timeline
from antiphon.core.request import Request
from antiphon.core.reshape import reverse
from antiphon.core.routes import NO_ROUTES
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.core.transform import merge
from antiphon.cost.barriers.alpha_beta import alpha_beta
from antiphon.cost.profile import as_profile
from antiphon.errors import AntiphonError, Invalid, Unsupported, quote
from antiphon.options import Option
from antiphon.planners.compose.inside import GroupPlanner, usual_planners
from antiphon.planners.compose.rotate import Mark, RotatedPlan, share_data
from antiphon.planners.compose.split import Split
from antiphon.planners.compose.splits import fans_of, find_splits, parse_split, rotate_levels
from antiphon.planners.compose.stages import AIMS, StageCost, StagedPlan, stage_collective
from antiphon.planners.shared.end_sizes import Pipeline
from antiphon.planners.shared.pipelining import PIECE_NUMBERS
from antiphon.planners.shared.routing import with_routes
from antiphon.planners.shared.rows import Order, PiecesOrBest, parse_order
from antiphon.registry import find

EFFORT = 24.0  # default: sets of isomorphic groups that are planned
MOST_BUILT = 2  # plans built per aim, of those with the best estimates
MOST_FEW_STEPS = 4  # the same for the aim "steps", for which several plans are yielded
MOST_COMPARED = 2**22  # pairs of ranks; with more, plans are compared by estimates only
MOST_ROUTED = 2**22  # transfers of a schedule for which new routes through switches are tried

Costed = TypeVar("Costed", bound=StageCost)

Levels = Annotated[
    str,
    Option("8x4, four groups of eight, or 3+4 (default: what the places of the ranks and the widths of links show)"),
]
InsidePlanners = Annotated[
    str, Option("the planners that may plan within groups, such as direct,trees (default: all quick ones)")
]
Best = Annotated[str | None, Option("only the plan that is best by this (default: all)", choices=tuple(AIMS))]
Turn = Annotated[bool | None, Option("data in parts that begin at different levels (default: where that is faster)")]
Undivided = Annotated[
    int | None,
    Option("outer levels on which the ranks of an allreduce combine whole vectors (default: several)", minimum=1),
]
Ends = Annotated[
    int | None, Option("smaller parts before and behind the pieces (default: where that is faster)", minimum=0)
]


def compose(
    request: Request, *, groups: Levels = "", order: Order = None, inside: InsidePlanners = "", best: Best = None,
    turn: Turn = None, undivided: Undivided = None, pieces: PiecesOrBest = None, ends: Ends = None,
) -> Iterator[Schedule]:  # fmt: skip
    """Yield the plans with few steps (several), the least time and the greatest rate of all splits; for a size the
    fastest.

    Effort counts the sets of isomorphic groups that are planned; when it is spent, no more splits are examined.
    """
    search = _Search.from_options(request, groups, order, inside, best, turn, undivided)
    ranked = _for_size([(aim, plan) for aim in search.aims for plan in _rank_splits(search, aim)], search)
    plans = [
        best_plan
        for aim in search.aims
        for best_plan in _best_of(search, aim, [plan for aim_of_plan, plan in ranked if aim_of_plan == aim])
    ]
    if not plans:
        raise Unsupported(search.first_error or _NO_GROUPS.format(search.request.topology.name))
    distinct = _distinct_plans(plans)
    any_yielded = False
    for nbytes in request.sizes:
        for schedule in _pipeline_plans(distinct, nbytes, pieces, ends, search):
            any_yielded = True
            yield schedule
    # only a requested number of end parts can rule out all plans
    if not any_yielded:
        raise Invalid(_TOO_MANY_ENDS.format(ends))


def _pipeline_plans(
    plans: Sequence[_BuiltPlan], nbytes: int | None, pieces: int | None, ends: int | None, search: _Search
) -> Iterator[Schedule]:
    """Yield the fastest plan for a size, or without a size all plans in several numbers of pieces.

    Yields nothing if no plan can have the requested number of end parts (smaller pieces before and after the others).
    """
    if nbytes is None:
        for plan in plans:
            # the first number is 1: only plans for a great rate that pieces make faster are pipelined
            numbers = PIECE_NUMBERS if plan.aim == "rate" and plan.pipelined < plan.unpipelined else PIECE_NUMBERS[:1]
            yield from plan.in_pieces(numbers if pieces is None else (pieces,), ends or 0, search)
        return
    request = search.request
    fastest = (plan.fastest_for(nbytes, pieces, ends, search) for plan in plans)
    schedules = [schedule for schedule in fastest if schedule is not None]
    if schedules:
        seconds = [alpha_beta(plan, request.topology, profile=request.profile)(nbytes).seconds for plan in schedules]
        yield schedules[int(np.argmin(seconds))]


_NO_GROUPS = (
    "planner compose: neither places nor link bandwidths of {} show groups of ranks; give option "
    "groups=4x2, or use planner trees or relay"
)

_TOO_MANY_ENDS = (
    "option ends: {} parts at each end are more than the plans found here can have; give fewer, or leave it out"
)


@dataclass(eq=False)
class _Search:
    """The request's options, and the state of the search.

    `names`: planners that may plan within groups. `aims`: keys of AIMS. `turn`: the option: whether data is divided
    among all rotations of the levels. `undivided`: the option. `first_error`: the first reason why a split failed.
    `inside`: the option, for provenance. `all_examined`: whether all splits within the
    effort were examined for the first aim; later aims see the same. `built`: by the mark that equal plans share, the
    built schedules. `rotated`: splits with their levels in every cyclic order. `forward`, `backward`: planners of
    groups on the machine, and on the machine with all links reversed.
    """

    request: Request
    splits: list[Split]
    names: tuple[str, ...]
    aims: tuple[str, ...]
    turn: bool | None
    undivided: int | None
    inside: str | None
    first_error: str = ""
    all_examined: bool = False
    built: dict[Mark, list[_BuiltPlan]] = field(default_factory=dict)
    rotated: dict[Split, list[Split]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.forward = GroupPlanner(self.request, self.names)
        reversed_request = replace(self.request, topology=reverse(self.request.topology))
        self.backward = GroupPlanner(reversed_request, self.names, mirror=self.forward)  # shares groups and plans

    def stage_split(self, split: Split, aim: str, undivided: int = 1) -> StagedPlan:
        """Stage the collective by a split, with the plans for groups that are best at the aim."""
        return stage_collective(self.request.collective, split, self.forward, self.backward, aim, undivided)

    def undivided_levels(self, split: Split, aim: str) -> Sequence[int]:
        """Return the numbers of outer levels whose groups may combine whole vectors: fewer steps, more data.

        1 stands for the usual plan, which considers that on the outermost level by itself (stages.py).
        """
        allows_several = self.request.collective.kind == "allreduce" and split.groups.is_even() and not self.large
        levels = len(fans_of(split.groups)) if allows_several and aim == "steps" else 1
        return range(1, levels + 1) if self.undivided is None else [min(self.undivided, levels)]

    def wants_several(self, aim: str) -> bool:
        """Return whether several plans of few steps are wanted: those with fewer steps suit smaller sizes."""
        return aim == "steps" and len(self.aims) > 1 and not self.large

    @property
    def large(self) -> bool:
        """Whether building plans just to compare them would take too long."""
        return len(self.request.collective.members) ** 2 > MOST_COMPARED

    @property
    def spent(self) -> bool:
        """Whether the effort is spent, during the first pass over the splits."""
        effort = EFFORT if self.request.effort is None else self.request.effort
        planned = self.forward.tried + self.backward.tried  # sets of isomorphic groups, counted per collective
        return planned >= effort and not self.all_examined

    @staticmethod
    def from_options(
        request: Request, groups: str, order: Order, inside: str, best: str | None, turn: bool | None,
        undivided: int | None,
    ) -> _Search:  # fmt: skip
        """Check the options of the planner and return the search."""
        members = parse_order(order, request.collective)
        names = tuple(name.strip() for name in str(inside).split(",") if name.strip())
        for name in names:
            if find("planner", name).can.composes:
                raise Invalid(f"option inside: planner {name} composes itself; name one that plans directly")
        splits_found = [parse_split(str(groups), members)] if groups else find_splits(request.topology, members)
        if groups and not any(group.subgroups for group in splits_found[0].groups.subgroups):
            raise Invalid(f"option groups: {quote(groups)} is one group; give two levels or more, such as 4x2")
        aims = (best,) if best else tuple(AIMS)
        return _Search(
            request, splits_found, names or usual_planners(), aims, turn, undivided, inside=",".join(names) or None
        )


@dataclass(frozen=True, eq=False)
class _BuiltPlan:
    """A schedule with its exact seconds per byte: `unpipelined`, and `pipelined` in the limit of many slices.

    `shares`: of the data, one per rotation of the levels. `levels`: what each level does, in words.
    """

    schedule: Schedule
    aim: str
    split: Split
    shares: tuple[Fraction, ...]
    levels: tuple[str, ...]
    unpipelined: Fraction
    pipelined: Fraction
    undivided: int  # outer levels on which ranks of an allreduce combine whole vectors

    @property
    def steps(self) -> int:
        return self.schedule.steps

    def fastest_for(self, nbytes: int, pieces: int | None, ends: int | None, search: _Search) -> Schedule | None:
        """Return the schedule for a size; `pieces` and `ends` of None are chosen. None if the requested ones
        are impossible.
        """
        pipeline = self._make_pipeline(search)
        sizes = pipeline.choose_sizes(nbytes, pieces, ends)
        if sizes is None:
            return None
        return self._with_options(pipeline.to_schedule(sizes), sizes.pieces, len(sizes.before), search)

    def in_pieces(self, piece_numbers: Sequence[int], ends: int, search: _Search) -> Iterator[Schedule]:
        """Yield the schedule in each of these numbers of pieces that allows `ends` smaller parts at either end."""
        if not ends:  # no sizes to choose; the loads that they depend on take seconds on thousands of ranks
            for pieces in piece_numbers:
                yield self._with_options(replace(self.schedule, pieces=pieces), pieces, ends=0, search=search)
            return
        pipeline = self._make_pipeline(search)
        for pieces in piece_numbers:
            sizes = pipeline.sizes_with_ends(pieces, ends)
            if sizes is not None:
                yield self._with_options(pipeline.to_schedule(sizes), pieces, ends, search)

    def _make_pipeline(self, search: _Search) -> Pipeline:
        """Prepare the schedule for pipelining, on the machine with the profile's figures."""
        topology, profile = search.request.topology, search.request.profile
        return Pipeline(self.schedule, topology if profile is None else as_profile(profile).on(topology))

    def _with_options(self, schedule: Schedule, pieces: int, ends: int, search: _Search) -> Schedule:
        """Attach the options that reproduce the schedule."""
        seating = self.split.seating.tolist()
        is_sorted = seating == sorted(seating)
        has_undivided = self.aim == "steps" and search.request.collective.kind == "allreduce"
        options = {
            "groups": str(self.split), "order": None if is_sorted else ",".join(map(str, seating)), "best": self.aim,
            "inside": search.inside, "turn": len(self.shares) > 1,
            "undivided": self.undivided if has_undivided else None, "pieces": pieces, "ends": ends or None,
        }  # fmt: skip
        findings: dict[str, Any] = {"levels": list(self.levels)}
        if len(self.shares) > 1:
            findings["shares"] = [str(share) for share in self.shares]
        stated_options = {key: value for key, value in options.items() if value is not None}
        provenance = {"planner": "compose", "options": stated_options, "found": findings}
        return replace(schedule, provenance=provenance)


def _rank_splits(search: _Search, aim: str) -> list[RotatedPlan]:
    """Return the plans of all splits that look best for this aim, by estimate."""
    examined: list[tuple[tuple[Fraction | int, ...], int, RotatedPlan]] = []  # key by aim, number of the split, plan
    for number, split in enumerate(search.splits):
        # the first split is always examined, so that there is a plan; later aims see the same splits
        if number and search.spent:
            search.splits = search.splits[:number]
            break
        search.request.tell(f"groups {split}, for {aim}")
        try:
            staged_plans = [
                (undivided, search.stage_split(split, aim, undivided))
                for undivided in search.undivided_levels(split, aim)
            ]
        except AntiphonError as error:
            search.first_error = search.first_error or str(error)
            continue
        for undivided, staged in staged_plans:
            plan = RotatedPlan.of_one(staged)
            examined.append((AIMS[aim](plan), number, plan))
            # rotations of the levels balance their loads; with a root they cannot, and for few steps parts gain little
            if search.turn is not False and (aim != "steps" or undivided > 1) and not search.request.collective.roots:
                rotated_plan = _plan_with_rotations(search, staged, aim, undivided)
                if rotated_plan is not None:
                    examined.append((AIMS[aim](rotated_plan), number, rotated_plan))
    if search.turn:  # requested: plans without rotation only if there are no others
        examined = [(key, number, plan) for key, number, plan in examined if len(plan.shares) > 1] or examined
    search.all_examined = True
    ranked = [plan for _, _, plan in sorted(examined, key=lambda entry: entry[:2])]
    if search.wants_several(aim):
        return _drop_dominated(ranked)[:MOST_FEW_STEPS]
    return ranked[: 1 if aim == "steps" or search.large else MOST_BUILT]


def _drop_dominated(plans: Sequence[Costed]) -> list[Costed]:
    """Return the plans, in order, that no plan before them equals or beats in steps and time."""
    undominated: list[Costed] = []
    for plan in plans:
        if not any(other.steps <= plan.steps and other.unpipelined <= plan.unpipelined for other in undominated):
            undominated.append(plan)
    return undominated


def _for_size(ranked: Sequence[tuple[str, RotatedPlan]], search: _Search) -> Sequence[tuple[str, RotatedPlan]]:
    """For a size and very many ranks, keep only the plan with the best estimate: building one takes a minute."""
    nbytes = search.request.nbytes
    if nbytes is None or not search.large or not ranked:
        return ranked

    def seconds_of(aim_and_plan: tuple[str, RotatedPlan]) -> float:
        _, plan = aim_and_plan
        return plan.seconds(nbytes)

    return [min(ranked, key=seconds_of)]


def _best_of(search: _Search, aim: str, ranked: Sequence[RotatedPlan]) -> list[_BuiltPlan]:
    """Build these plans and compute their times; return the best for an aim, of few steps those for several sizes."""
    plans: list[_BuiltPlan] = []
    for plan in ranked:
        try:
            plans.append(_build_plan(search, plan, aim))
        except AntiphonError as error:
            search.first_error = search.first_error or str(error)
    plans.sort(key=AIMS[aim])
    return _drop_dominated(plans) if search.wants_several(aim) else plans[:1]


def _plan_with_rotations(search: _Search, staged: StagedPlan, aim: str, undivided: int) -> RotatedPlan | None:
    """Return the plan in which every cyclic order of the levels carries a share of the data; None if that gains
    nothing.
    """
    split = staged.split
    if split not in search.rotated:
        search.rotated[split] = rotate_levels(split)
    if len(search.rotated[split]) < 2:
        return None
    try:
        return share_data(
            [staged, *(search.stage_split(rotated, aim, undivided) for rotated in search.rotated[split][1:])]
        )
    except AntiphonError:
        return None


def _build_plan(search: _Search, plan: RotatedPlan, aim: str) -> _BuiltPlan:
    """Build the plan, in the best of its route variants. Plans with equal marks are built once."""
    request = search.request
    if plan.mark not in search.built:
        schedules = [variant.schedule(request.collective) for variant in plan.staged_plans]
        schedule = schedules[0] if len(schedules) == 1 else merge(schedules, plan.shares)
        variants = (schedule, *_routed_anew(schedule, request.topology))
        search.built[plan.mark] = [_compute_times(variant, request.topology, plan, aim) for variant in variants]
    # the variants may have been built for another aim
    return replace(min(search.built[plan.mark], key=AIMS[aim]), aim=aim)


def _compute_times(schedule: Schedule, topology: Topology, plan: RotatedPlan, aim: str) -> _BuiltPlan:
    """Return the built plan with its exact times, instead of the estimates of `plan`."""
    rate, unpipelined = throughput(schedule, topology), timeline(schedule, topology).total
    first = plan.staged_plans[0]
    return _BuiltPlan(
        schedule, aim, first.split, plan.shares, levels=first.descriptions, unpipelined=unpipelined,
        pipelined=1 / rate if rate else Fraction(0),  # no rate: no link has a load
        undivided=first.undivided,
    )  # fmt: skip


def _routed_anew(schedule: Schedule, topology: Topology) -> Iterator[Schedule]:
    """Yield the schedule with routes chosen for all groups together, as groups planned separately may share a path."""
    if schedule.route is not None and schedule.joint is None and schedule.transfers <= MOST_ROUTED:
        with suppress(AntiphonError):
            yield with_routes(replace(schedule, route=None, routes=NO_ROUTES), topology, "compose")


def _distinct_plans(plans: Sequence[_BuiltPlan]) -> list[_BuiltPlan]:
    """Drop plans with equal steps and times, keeping the last one, whose aim is tried in more numbers of pieces."""
    distinct: list[_BuiltPlan] = []
    for plan in plans[::-1]:
        figures = (plan.schedule.steps, plan.unpipelined, plan.pipelined)
        if not any((other.schedule.steps, other.unpipelined, other.pipelined) == figures for other in distinct):
            distinct.append(plan)
    return distinct[::-1]
