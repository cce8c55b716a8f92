"""Planner `compose`: plans of other planners for groups of ranks, put together level by level.

An allgather is one among groups, then within them; a reducescatter the same backwards, an allreduce both. Where the
levels have links of their own (the dimensions of a torus), the data go in parts, each of which begins at another level,
so that all links work at once. Groups that are alike are planned once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

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
from antiphon.planners.compose.inside import Inside, usual
from antiphon.planners.compose.rotate import Mark, Plan, shared
from antiphon.planners.compose.split import Split
from antiphon.planners.compose.splits import given_split, splits, turned
from antiphon.planners.compose.stages import AIMS, Staged, staged
from antiphon.planners.shared.end_sizes import EndSizes, Pipeline
from antiphon.planners.shared.pipelining import RANGE, check_number
from antiphon.planners.shared.routing import with_routes
from antiphon.planners.shared.rows import Order, given_order
from antiphon.registry import find

EFFORT = 24.0  # kinds of groups that are planned, where no effort is given
MOST_BUILT = 2  # of those that look best for one aim, with one order of levels and with all
MOST_COMPARED = 2**22  # pairs of ranks: with more, plans are compared by what their levels take
MOST_ROUTED = 2**22  # transfers of a schedule for which other ways through switches are tried


def compose(
    request: Request, *, groups: str = "", order: Order = None, inside: str = "", best: str = "",
    turn: bool | None = None, pieces: int | None = None, ends: int | None = None,
) -> Iterator[Schedule]:  # fmt: skip
    """Yields the plans of fewest steps, of least time and of greatest rate, of all splits; for a size the fastest.

    `groups`: such as "8x4", four groups of eight, or "3+4"; by default what the places of the ranks and the widths of
    links show. `inside`: the planners that may plan within groups ("direct,trees"), by default all of the table that
    are quick. `best`: only that plan, steps, time or rate. `turn`: the data in parts that begin at different levels (by
    default where that is faster). `ends`: so many smaller parts before and behind the pieces (by default where that is
    faster). Effort is counted: a unit for each kind of group that is planned; then no more splits are looked at.
    """
    check_number("pieces", pieces, 1)
    check_number("ends", ends, 0)
    search = _Wanted.of(request, groups, order, inside, best, turn)
    likely = _for_size([(aim, plan) for aim in search.aims for plan in _likely(search, aim)], search)
    plans = [
        best_plan for aim in search.aims for best_plan in _best(search, aim, [plan for of, plan in likely if of == aim])
    ]
    if not plans:
        raise Unsupported(search.why or _NONE.format(search.request.topology.name))
    distinct = _distinct(plans)
    any_yielded = False
    for nbytes in request.sizes:
        for schedule in _ready(distinct, nbytes, pieces, ends, search):
            any_yielded = True
            yield schedule
    if not any_yielded:
        raise Invalid(_TOO_MANY.format(ends))


def _ready(
    plans: Sequence[_Made], nbytes: int | None, pieces: int | None, ends: int | None, search: _Wanted
) -> Iterator[Schedule]:
    """For a size the fastest, for None all, in several numbers of pieces. None of them, where so many parts at the ends
    as are given cannot be had."""
    if nbytes is None:
        for plan in plans:
            finer = RANGE if plan.aim == "rate" and plan.piped < plan.alone else RANGE[:1]
            schedules = (plan.ready(depth, ends or 0, search) for depth in (finer if pieces is None else (pieces,)))
            yield from (schedule for schedule in schedules if schedule is not None)
        return
    request = search.request
    fastest = (plan.fastest(nbytes, pieces, ends, search) for plan in plans)
    ready = [schedule for schedule in fastest if schedule is not None]
    if ready:
        price = [alpha_beta(plan, request.topology, profile=request.profile)(nbytes).seconds for plan in ready]
        yield ready[int(np.argmin(price))]


_NONE = (
    "planner compose: {} shows no groups of ranks, neither by places nor by the widths of its links; give --option "
    "groups=4x2, or use planner trees or relay"
)

_TOO_MANY = "option ends: {} parts at each end are more than the plans found here can have; give fewer, or leave it out"


@dataclass(eq=False)
class _Wanted:
    """What is asked for, and what was found while looking."""

    request: Request
    splits: list[Split]
    names: tuple[str, ...]
    aims: tuple[str, ...]
    turn: bool | None
    given: dict[str, Any]
    why: str = ""
    looked: bool = False  # at all splits that there is effort for
    laid: dict[Mark, list[_Made]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.forth = Inside(self.request, self.names)
        self.back = Inside(replace(self.request, topology=reverse(self.request.topology)), self.names)

    def staged(self, split: Split, aim: str) -> Staged:
        return staged(self.request.collective, split, self.forth, self.back, aim)

    @property
    def large(self) -> bool:
        """Whether plans are not laid just to be compared."""
        return len(self.request.collective.members) ** 2 > MOST_COMPARED

    @property
    def spent(self) -> bool:
        """Whether so many kinds of groups were planned as the effort allows, and this is the first time round."""
        effort = EFFORT if self.request.effort is None else self.request.effort
        return self.forth.tried + self.back.tried >= effort and not self.looked

    @staticmethod
    def of(request: Request, groups: str, order: Order, inside: str, best: str, turn: bool | None) -> _Wanted:
        members = given_order(order, request.collective)
        if best and best not in AIMS:
            raise Invalid(f"option best: expected {', '.join(AIMS)}, got {quote(best)}")
        if turn is not None and not isinstance(turn, bool):
            raise Invalid(f"option turn: expected yes or no, got {quote(turn)}")
        names = tuple(name.strip() for name in str(inside).split(",") if name.strip())
        for name in names:
            if find("planner", name).can.composes:
                raise Invalid(f"option inside: planner {name} composes itself; name one that plans directly")
        splits_found = [given_split(str(groups), members)] if groups else splits(request.topology, members)
        if groups and not any(group.parts for group in splits_found[0].groups.parts):
            raise Invalid(f"option groups: {quote(groups)} is one group; give two levels or more, such as 4x2")
        options = {"inside": ",".join(names) or None, "turn": turn}
        return _Wanted(request, splits_found, names or usual(), (best,) if best else tuple(AIMS), turn, options)


@dataclass(frozen=True, eq=False)
class _Made:
    schedule: Schedule
    aim: str
    split: Split
    shares: tuple[Fraction, ...]
    levels: tuple[str, ...]
    alone: Fraction
    piped: Fraction

    @property
    def steps(self) -> int:
        return self.schedule.steps

    def fastest(self, nbytes: int, pieces: int | None, ends: int | None, search: _Wanted) -> Schedule | None:
        """With as many pieces, and smaller parts at the ends, as are best for the size, where they are not given; None,
        where so many parts as are given cannot be had."""
        line = self._line(search)
        sizes = line.choose_sizes(nbytes, pieces, ends)
        return None if sizes is None else self._told(line.to_schedule(sizes), search)

    def ready(self, pieces: int, ends: int, search: _Wanted) -> Schedule | None:
        line = self._line(search)
        sizes = line.sizes_with_ends(pieces, ends)
        return None if sizes is None else self._told(line.to_schedule(sizes), search)

    def _line(self, search: _Wanted) -> Pipeline:
        topology, profile = search.request.topology, search.request.profile
        return Pipeline(self.schedule, topology if profile is None else as_profile(profile).on(topology))

    def _told(self, laid_out: tuple[Schedule, EndSizes], search: _Wanted) -> Schedule:
        """With the options that give it again."""
        schedule, sizes = laid_out
        seating = self.split.seating.tolist()
        plain = seating == sorted(seating)
        options = {
            "groups": str(self.split), "order": None if plain else ",".join(map(str, seating)), "best": self.aim,
            **search.given, "turn": len(self.shares) > 1, "pieces": sizes.pieces, "ends": len(sizes.before) or None,
        }  # fmt: skip
        findings: dict[str, Any] = {"levels": list(self.levels)}
        if len(self.shares) > 1:
            findings["shares"] = [str(share) for share in self.shares]
        stated = {key: value for key, value in options.items() if value is not None}
        provenance = {"planner": "compose", "options": stated, "found": findings}
        return replace(schedule, provenance=provenance)


def _likely(search: _Wanted, aim: str) -> list[Plan]:
    """Of all splits those that look best for this aim by what their levels take."""
    looked: list[tuple[tuple[Fraction | int, ...], int, Plan]] = []
    for number, split in enumerate(search.splits):
        if number and search.spent:
            search.splits = search.splits[:number]
            break
        search.request.tell(f"groups {split}, for {aim}")
        try:
            plan = Plan.single(search.staged(split, aim))
        except AntiphonError as error:
            search.why = search.why or str(error)
            continue
        looked.append((AIMS[aim](plan), number, plan))
        if search.turn is not False and aim != "steps" and not search.request.collective.roots:
            with_all = _turned(search, split, aim)
            if with_all is not None:
                looked.append((AIMS[aim](with_all), number, with_all))
    if search.turn:
        looked = [entry for entry in looked if len(entry[2].shares) > 1] or looked
    search.looked = True
    count = 1 if aim == "steps" or search.large else MOST_BUILT
    return [plan for _, _, plan in sorted(looked, key=lambda entry: entry[:2])[:count]]


def _for_size(likely: Sequence[tuple[str, Plan]], search: _Wanted) -> Sequence[tuple[str, Plan]]:
    """For the size asked for, among very many ranks: the one that looks fastest, as each takes a minute to lay."""
    nbytes = search.request.nbytes
    if nbytes is None or not search.large or not likely:
        return likely
    return [min(likely, key=lambda entry: entry[1].seconds(nbytes))]


def _best(search: _Wanted, aim: str, likely: Sequence[Plan]) -> list[_Made]:
    """The best of these for an aim: they are laid, and measured."""
    plans: list[_Made] = []
    for plan in likely:
        try:
            plans.append(_laid(search, plan, aim))
        except AntiphonError as error:
            search.why = search.why or str(error)
    if not plans:
        return []
    return [min(plans, key=AIMS[aim])]


def _turned(search: _Wanted, split: Split, aim: str) -> Plan | None:
    """The same split with its levels in every cyclic order, each with its share of the data."""
    turned_splits = turned(split)
    if len(turned_splits) < 2:
        return None
    try:
        return shared([search.staged(turned_split, aim) for turned_split in turned_splits])
    except AntiphonError:
        return None


def _laid(search: _Wanted, plan: Plan, aim: str) -> _Made:
    """Plans that are alike in all that is told of them are laid once."""
    request = search.request
    if plan.mark not in search.laid:
        schedules = [variant.schedule(request.collective) for variant in plan.each]
        schedule = schedules[0] if len(schedules) == 1 else merge(schedules, plan.shares)
        variants = (schedule, *_routed_anew(schedule, request.topology))
        search.laid[plan.mark] = [_measured(variant, request.topology, plan, aim) for variant in variants]
    return replace(min(search.laid[plan.mark], key=AIMS[aim]), aim=aim)


def _measured(schedule: Schedule, topology: Topology, plan: Plan, aim: str) -> _Made:
    rate, alone = throughput(schedule, topology), timeline(schedule, topology).total
    first = plan.each[0]
    return _Made(schedule, aim, first.split, plan.shares, first.told, alone, 1 / rate if rate else Fraction(0))


def _routed_anew(schedule: Schedule, topology: Topology) -> Iterator[Schedule]:
    """Groups that meet at switches may all have taken the same way through them: the same with ways chosen for all
    together, and over all that are equal."""
    if schedule.route is not None and schedule.joint is None and schedule.transfers <= MOST_ROUTED:
        with suppress(AntiphonError):
            yield with_routes(replace(schedule, route=None, routes=NO_ROUTES), topology, "compose")


def _distinct(plans: Sequence[_Made]) -> list[_Made]:
    """Each once: where one is as good for another aim, the later stands for both, as it comes in pieces."""
    distinct: list[_Made] = []
    for plan in plans[::-1]:
        same = (plan.schedule.steps, plan.alone, plan.piped)
        if not any((other.schedule.steps, other.alone, other.piped) == same for other in distinct):
            distinct.append(plan)
    return distinct[::-1]
