"""Planner `groups`: several groups at the same time, each planned by another planner, merged into one schedule.

Groups that are planned as if alone may load the same links. So there are two ways to plan them:

    alone    each group on the links between its own ranks; groups that look alike are planned once (inside.py)
    shared   each group on a copy of the machine with a share of every link: a linear program routes the data of all
             groups so that the resource that ends last ends as early as possible (core/bounds/joint.py); on every link
             a group gets the bandwidth in proportion to its load there. So a group may take a detour over links that
             others leave idle

In either, the plans of the groups run in the same steps: their rows are concatenated, each on its own blocks. The
merged schedules are then pipelined for the message size, priced with the contention between groups.

Example: pairs (0, 2) and (1, 3) of a ring of 4 exchange data. No two ranks of a pair are linked, so neither can be
planned alone. Shared, both have half of every link: each pair sends half of its data each way round.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Annotated, Any, NamedTuple

import numpy as np

from antiphon.core.bounds import strip_abilities
from antiphon.core.bounds.joint import JointSearch
from antiphon.core.bounds.latency import latency_of
from antiphon.core.bounds.needs import needs_of
from antiphon.core.collective import Collective
from antiphon.core.columns import Floats, Ints, Longs
from antiphon.core.loads import throughput
from antiphon.core.request import Request
from antiphon.core.routes import resolve
from antiphon.core.schedule import MAX_DENOMINATOR, Schedule
from antiphon.core.topology import SharedLimit, Topology
from antiphon.core.transform import Placement, Spans, assemble_parts, round_borders
from antiphon.errors import AntiphonError, Invalid, Unsupported
from antiphon.options import Option
from antiphon.planners.compose.inside import GroupClass, GroupPlan, GroupPlanner, usual_planners
from antiphon.planners.compose.stages import AIMS
from antiphon.planners.shared.pipelining import PipelineOptions, PipelinePlans, stage_plans
from antiphon.planners.shared.rows import PiecesOrBest, UnevenSteps
from antiphon.registry import find

SHORT_ROUTE_WEIGHT = 1e-3  # in the linear program that shares the links: short routes may cost this share of the time
MIN_SHARE = 1e-6  # of a link: a smaller load is rounding of the solver
SIMPLE_DENOMINATOR = 64  # a group's share of a link is a fraction with at most this denominator where it is exact ...
FINE_DENOMINATOR = 5040  # ... else a multiple of 1 / 5040, rounded down; 5040 = 7! has many divisors
BEST_AT_RATE = ("trees", "flows", "relay")  # planners that are tried on shared links, where only the rate counts

InsidePlanners = Annotated[
    str, Option("the planners that may plan within groups, such as direct,trees (default: all quick ones)")
]
Links = Annotated[
    str | None, Option("how groups are planned (default: both)", choices=("alone", "shared"))
]  # fmt: skip


def groups(
    request: Request, *, inside: InsidePlanners = "", links: Links = None, pieces: PiecesOrBest = None,
    steps: UnevenSteps = None,
) -> Iterator[Schedule]:  # fmt: skip
    """Yield schedules of several groups at the same time, pipelined for each size of the request."""
    if not request.collective.groups:
        raise Unsupported(
            "planner groups: plans several groups at the same time, such as allreduce@rows; use another planner for one"
        )
    names = tuple(name.strip() for name in str(inside).split(",") if name.strip())
    for name in names:
        if find("planner", name).can.composes:
            raise Invalid(f"option inside: planner {name} composes itself; name one that plans directly")
    latency_of(request.topology, needs_of(request.collective))  # raises Invalid if links connect no ranks of a group
    merged: list[_Merged] = []
    refusals: list[AntiphonError] = []
    for method, plan in (("alone", _plan_alone), ("shared", _plan_shared)):
        best_rate = max((plan_of_all.rate for plan_of_all in merged), default=Fraction(0))
        try:
            merged += plan(request, names, best_rate) if links in (None, method) else ()
        except (Unsupported, Invalid) as error:
            refusals.append(error)
            request.tell(f"links={method}: {error}")
    if not merged:
        raise refusals[0]
    # `stage_plans` wants the plan with the greatest rate first. For uneven parts of any plan of a call it tries no more
    # steps than the plan has that is fastest in equal pieces, so each method has a call of its own.
    merged.sort(key=lambda plan: plan.rate, reverse=True)
    options = PipelineOptions("groups", pieces, steps, request.sizes, request.profile)
    for method in dict.fromkeys(plan.links for plan in merged):
        plans = [plan for plan in merged if plan.links == method]
        for staged in stage_plans(PipelinePlans([plan.schedule for plan in plans], request.topology), options):
            report = {"groups": list(plans[staged.plan].planners), "links": method}
            stated = {"inside": ",".join(names), "links": links, **staged.options}
            provenance = {"planner": "groups", "options": {k: v for k, v in stated.items() if v}, "seed": request.seed}
            yield replace(staged.schedule, provenance={**provenance, "found": report})


@dataclass(frozen=True, eq=False)
class _Merged:
    """A schedule of all groups. `planners`: in words, who planned how many of them. `links`: alone or shared."""

    schedule: Schedule
    rate: Fraction  # bytes per second with many slices
    planners: tuple[str, ...]
    links: str


class _PlannedClass(NamedTuple):
    """Isomorphic groups with equal collectives, and the plans that serve all of them."""

    group_class: GroupClass
    ranks: Longs  # of all groups with this collective, a row per group; `group_class.groups` are rows of it
    numbers: list[int]  # of the groups of this class, in the request's collective
    plans: list[GroupPlan]


def _plan_alone(request: Request, names: Sequence[str], _best_rate: Fraction) -> list[_Merged]:
    """Plan every group on the links between its ranks, and merge the plans that are best at each aim.

    `_best_rate` is not used: `groups` calls this function and `_plan_shared` alike.
    """
    planner = GroupPlanner(request, names or usual_planners())
    numbers: dict[Collective, list[int]] = {}  # by collective without its place in the machine: the groups
    for number, group in enumerate(request.collective.groups):
        numbers.setdefault(_renumbered(group), []).append(number)
    classes: list[_PlannedClass] = []
    for target, group_numbers in numbers.items():
        ranks = np.array([request.collective.groups[i].members for i in group_numbers])
        for group_class in planner.classify_groups(ranks):
            plans = planner.plans_for(group_class.machine, target)
            class_numbers = [group_numbers[i] for i in group_class.groups.tolist()]
            classes.append(_PlannedClass(group_class, ranks, class_numbers, plans))
    merged: dict[tuple[int, ...], _Merged] = {}
    for aim in AIMS:
        best = [min(planned.plans, key=AIMS[aim]) for planned in classes]
        if (key := tuple(map(id, best))) not in merged:
            placements = [
                _place(
                    request.collective,
                    planned.numbers,
                    _with_all_routes(plan.schedule, planned.group_class.machine),
                    planned.ranks[planned.group_class.groups],
                    planned.group_class.links,
                )
                for plan, planned in zip(best, classes, strict=True)
            ]
            merged[key] = _merge(request, placements, best, "alone")
    return list(merged.values())


def _plan_shared(request: Request, names: Sequence[str], best_rate: Fraction) -> list[_Merged]:
    """Plan every group on its share of the links, and merge the plans of the greatest rate.

    Return nothing if cuts prove that none is faster than `best_rate`.
    """
    topology, collective = strip_abilities(request.topology), request.collective
    search = JointSearch(topology, collective, needs_of(collective))
    # a lower bound on the seconds if a unit of weight is a byte; then nbytes is `buffer_weight`
    least_time = search.offer_simple_witnesses()
    if best_rate * least_time >= collective.buffer_weight:
        return []
    loads = search.find_loads(SHORT_ROUTE_WEIGHT)  # [group, link]
    if loads is None:
        raise Unsupported(
            f"planner groups: {len(collective.groups)} groups on {topology.links} links are too many for one linear "
            "program; give option links=alone"
        )
    planner = GroupPlanner(request, names or BEST_AT_RATE)
    machines: dict[Any, Topology] = {}  # equal machines are planned once
    placements, best = [], []
    for number, group in enumerate(collective.groups):
        machine, ranks, links = _own_machine(topology, group, loads, number)
        machine = machines.setdefault(machine.key(), machine)
        target = replace(_renumbered(group), ranks=machine.ranks, members=tuple(range(len(group.members))))
        plan = min(planner.plans_for(machine, target), key=AIMS["rate"])
        schedule = _with_all_routes(plan.schedule, machine)
        placements.append(_place(collective, [number], schedule, ranks[None], links[None]))
        best.append(plan)
    return [_merge(request, placements, best, "shared")]


def _renumbered(group: Collective) -> Collective:
    """Return a group's collective among its members only, numbered in their order."""
    roots = tuple(group.members.index(root) for root in group.roots)
    return Collective(group.kind, len(group.members), members=(), roots=roots, weights=group.weights)


def _own_machine(topology: Topology, group: Collective, loads: Floats, number: int) -> tuple[Topology, Longs, Ints]:
    """Return a machine of the group's shares of links; and for its ranks and links their numbers in the whole machine.

    The members come first, then the ranks that relay. `loads`: of every group (row) on every link.
    """
    total = loads.sum(axis=0)
    used = np.flatnonzero(loads[number] > MIN_SHARE * total)
    src, dst = topology.link_src[used], topology.link_dst[used]
    nodes = np.union1d(src, dst)
    relays = np.setdiff1d(nodes[nodes < topology.ranks], group.members)
    ranks = np.concatenate([np.array(group.members), relays]).astype(np.int64)
    all_nodes = np.concatenate([ranks, nodes[nodes >= topology.ranks]])
    new_number = np.zeros(topology.nodes, np.int32)
    new_number[all_nodes] = np.arange(len(all_nodes))
    # per link: its type in the whole machine, and the group's share of it
    kinds = [(int(topology.link_type[link]), _share(loads[number, link] / total[link])) for link in used.tolist()]
    types = {kind: i for i, kind in enumerate(dict.fromkeys(kinds))}
    limits = []
    new_link = {link: i for i, link in enumerate(used.tolist())}
    for limit in topology.limits:
        own_links = [new_link[link] for link in limit.links if link in new_link]
        if own_links:
            limited = list(limit.links)
            share = _share(float(loads[number, limited].sum() / total[limited].sum()))
            limits.append(SharedLimit(limit.name, tuple(own_links), limit.bandwidth * share))
    machine = Topology(
        topology.name, len(ranks), switches=len(all_nodes) - len(ranks), link_src=new_number[src],
        link_dst=new_number[dst], link_type=np.array([types[kind] for kind in kinds], np.int32),
        types=tuple(replace(topology.types[i], bandwidth=topology.types[i].bandwidth * share) for i, share in types),
        limits=tuple(limits),
    )  # fmt: skip
    return machine, ranks, used.astype(np.int32)


def _share(fraction: float) -> Fraction:
    """Return a share of a link as a fraction with a small denominator, rounded down unless it is one.

    So the shares of all groups sum to at most 1, but for MIN_SHARE, and shares below 1 / 5040, which become that.
    """
    nearest = Fraction(fraction).limit_denominator(SIMPLE_DENOMINATOR)
    if nearest and abs(float(nearest) - fraction) < MIN_SHARE:
        return nearest
    return Fraction(max(int(fraction * FINE_DENOMINATOR), 1), FINE_DENOMINATOR)


def _with_all_routes(schedule: Schedule, machine: Topology) -> Schedule:
    """Return the schedule with explicit routes: the whole machine may have more links between the same two ranks."""
    resolved = resolve(machine, schedule.src, schedule.dst, schedule.route, schedule.routes)
    return replace(schedule, route=resolved.route, routes=resolved.table)


def _place(collective: Collective, numbers: Sequence[int], schedule: Schedule, ranks: Longs, links: Ints) -> Placement:
    """Place copies of a group's schedule on the blocks of the groups `numbers`.

    `ranks` and `links`: of the whole machine, one row per group.
    """
    spans, blocks = Spans.side_by_side(collective.weights), collective.group_blocks
    owners = np.concatenate([np.arange(blocks[i].start, blocks[i].stop) for i in numbers])
    return Placement(schedule, ranks, spans.take(owners), links)


def _merge(request: Request, placements: Sequence[Placement], plans: Sequence[GroupPlan], links: str) -> _Merged:
    """Merge placed plans of all groups into one schedule."""
    collective, spans = request.collective, Spans.side_by_side(request.collective.weights)
    denominator = math.lcm(*(placement.grain for placement in placements))
    # Groups that are planned apart have denominators of their own, whose common multiple may exceed 64 bits.
    if denominator * int(collective.weights.sum()) >= MAX_DENOMINATOR:
        placements = [replace(placement, schedule=round_borders(placement.schedule)) for placement in placements]
    schedule = assemble_parts(placements, collective, spans)
    rate = throughput(schedule, request.topology) or Fraction(0)
    counts: Counter[str] = Counter()
    for plan, placement in zip(plans, placements, strict=True):
        kind = plan.schedule.collective
        counts[f"{kind.kind} of {len(kind.members)} by {plan.planner}"] += len(placement.ranks)
    return _Merged(schedule, rate, tuple(f"{count} x {text}" for text, count in counts.items()), links)
