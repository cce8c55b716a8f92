"""Make a plan: by one planner, or from other plans.

    every_plan          a plan for each schedule that a planner yields, one by one
    plan                the best of these: for a size the fastest by a cost model, else the one with the least gaps
    put_together        one plan of the schedules of several plans, one after the other, or all at once
    run_plans_together  plans that share the links at the same time, as one plan for a cost model to price

The last is not verified. Every schedule of the others is, and passes these stages (`_plans_by`): planning; the lower
bound, once; verifying and measuring; with `deterministic`, the check that all elements are reduced in one order; its
certificate. `_rank_plans` adds a sort key; the plan with the least key is the best.

With a budget all this runs in a child process, which is stopped at the end of the budget. The child process sends each
plan, and each stage that it enters, so that an error can name the stage that took the time.

Example: a planner with gaps (bandwidth, latency) of (1, 3) in one schedule and (1.5, 1) in another. Without a size the
first is the best. For 1 KB, where latency decides, the model predicts 12 us and 4 us: the second.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import reduce
from typing import Any

from antiphon.core.bounds import Bound, bound
from antiphon.core.collective import Collective
from antiphon.core.plan import Entry, Plan
from antiphon.core.request import Request, silent
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.core.transform import compose, merge, run_together
from antiphon.cost import prepare
from antiphon.errors import AntiphonError, Infeasible, Invalid, NotFound, TimedOut, Unsupported
from antiphon.isolate import GRACE, Lost, PoolTerms, Send, Stopped, stream_job
from antiphon.registry import find, refuse_unless_able
from antiphon.select.figures import SEVERAL_ORDERS, SeveralOrders, figures_verified, measure, order_claim
from antiphon.select.libraries import CLASSICS
from antiphon.select.parse_request import budget_of, collective, machine_of
from antiphon.select.proofs import recheck_certificate
from antiphon.select.provenance import label_of
from antiphon.select.run_planner import run_planner
from antiphon.select.schedule_cache import ScheduleCache, verify_schedule
from antiphon.units import parse_size

DEFAULT_PLANNERS = ("ring", "relay")  # if no planner is named: the first that supports the collective
# If no planner is named and `deterministic` is set: all of these are tried. relay plans on any machine.
DETERMINISTIC_PLANNERS: tuple[tuple[str, Mapping[str, Any]], ...] = (
    *((name, {}) for name in CLASSICS),
    ("relay", {"by": "tree", "trees": 1}),
)
COMPOSED = "composed"  # stands for the planner in plans that are made of other plans


def plan(
    spec: Collective | str,
    topology: Topology | str,
    *,
    nbytes: int | None = None,
    model: str | None = None,
    tell: Callable[[str], None] | None = None,
    **options: Any,
) -> Plan:
    """Return the best plan of a planner: for `nbytes` the fastest by `model`, else the one of least bandwidth gap, then
    latency gap. `model` None: `own_model` of the planner, else alpha-beta.

    The other options are those of `every_plan`. `tell` receives lines of progress of a planner that searches; with it,
    Ctrl-C ends the search and returns the best plan so far. If the search ended early, the plan has a claim `stopped`:
    "interrupted", or the message of the effort or budget that ended it. Raises TimedOut if there is no plan by then.
    """
    if model is not None and nbytes is None:
        raise Invalid(f"model {model}: chooses the best for a size; give nbytes, too")
    task = _read_task(spec, topology, nbytes=nbytes, model=model, tell=tell, **options)
    if nbytes is not None and model is None:
        task = replace(task, model=own_model(task.planner) or "alpha-beta")
    best: tuple[_SortKey, Plan] | None = None
    try:
        with closing(_rank_plans(task)) as ranked_plans:
            for key, candidate in ranked_plans:
                if best is None or key < best[0]:
                    best = (key, candidate)
    except KeyboardInterrupt:
        if best is None or tell is None:  # without `tell`, nobody would learn that the plan is not final
            raise
        tell("no more is tried: interrupted; the best so far is kept")
        return _with_stop(best[1], "interrupted")
    except TimedOut as error:  # or EffortSpent, which is one
        if best is None:
            raise
        return _with_stop(best[1], str(error))
    assert best is not None
    return best[1]


def every_plan(
    spec: Collective | str, topology: Topology | str, *, tell: Callable[[str], None] | None = None, **options: Any
) -> Iterator[Plan]:
    """Yield a verified plan for each schedule of a planner, one by one; at least one.

    Parameters
    ----------
    planner, options
        The planner and its own options. Default: groups for a joint collective, else ring, or relay for a custom one.
    root, ranks
        Of the collective, if `spec` is a name.
    nbytes
        Plan for this size.
    deterministic
        Only schedules that combine every element in the same order, as in `tune`. Without `planner`: by all classic
        algorithms that can, and relay over one tree.
    seed, effort
        As in `Request`.
    tell
        Receives lines of progress; None: nobody does.
    budget
        CPU seconds for planning, verifying, the bound and the model together, in a child process.

    Raises
    ------
    EffortSpent
        After the last plan, if the effort ended the search.
    TimedOut
        After the last plan, if the budget ended the search.
    SeveralOrders
        No schedule combines all elements in one order, and `deterministic` is set.
    """
    task = _read_task(spec, topology, tell=tell, **options)
    with closing(_rank_plans(task)) as ranked_plans:
        for _, candidate in ranked_plans:
            yield candidate


def _with_stop(best_plan: Plan, why: str) -> Plan:
    """Return the plan with a claim of why nothing more was tried."""
    entry = best_plan.entries[0]
    return replace(best_plan, entries=(replace(entry, claims={**entry.claims, "stopped": why}),))


# ---- one planner, in this process or, with a budget, in a child process ----


def own_model(planner: str) -> str:
    """Return the model without barriers if the steps of a planner's plans only order sends, else ""."""
    return "critical-path" if planner and find("planner", planner).can.timed else ""


# The plan with the least key is the best: (seconds by the model, if it ranks; bandwidth gap; latency gap).
_SortKey = tuple[float, ...]


@dataclass(frozen=True)
class _PlanTask:
    """A request to a planner."""

    request: Request
    planner: str  # "": each of DETERMINISTIC_PLANNERS
    options: Mapping[str, Any]
    deterministic: bool
    model: str | None  # cost model that ranks the plans; None: they are ranked by their gaps


class _Stage(str):
    """A stage that the child process enters, in words. A type of its own, to tell it from lines of progress."""

    __slots__ = ()


PLANNING, VERIFYING, BOUNDING = _Stage("planning"), _Stage("verifying a schedule"), _Stage("computing the bound")
RANKING = _Stage("predicting how long a plan takes")


def _read_task(  # noqa: PLR0913
    spec: Collective | str, topology: Topology | str, *, planner: str = "", root: int | None = None,
    ranks: Sequence[int] | None = None, nbytes: int | None = None, budget: float | str | None = None,
    effort: float | None = None, seed: int = 0, options: Mapping[str, Any] | None = None, deterministic: bool = False,
    model: str | None = None, tell: Callable[[str], None] | None = None,
) -> _PlanTask:  # fmt: skip
    """Check the arguments, those of `plan` and `every_plan`, and return the task."""
    topology = machine_of(topology)
    target = spec if isinstance(spec, Collective) else collective(spec, topology, root=root, ranks=ranks)
    request = Request(
        topology, target, nbytes=None if nbytes is None else parse_size(nbytes, "nbytes"),
        budget=None if budget is None else budget_of(budget), effort=effort, seed=seed, tell=tell or silent,
    )  # fmt: skip
    if deterministic and not planner:
        if options:
            raise Invalid("options are for a planner; name it, too")
        return _PlanTask(request, planner="", options={}, deterministic=deterministic, model=model)
    if not planner:
        # a collective that keeps an order needs a planner that does; relay supports every kind
        abilities = ((name, find("planner", name).can) for name in DEFAULT_PLANNERS)
        planner = (
            "groups"
            if target.groups
            else next(
                name
                for name, can in abilities
                if target.kind in can.collectives and (can.ordered or not target.ordered)
            )
        )
    return _PlanTask(request, planner, options or {}, deterministic, model)


def _rank_plans(task: _PlanTask, enter: Callable[[str], None] = silent) -> Generator[tuple[_SortKey, Plan], None, None]:
    """Yield the verified plans of a task with their sort keys. `enter` receives every stage that begins.

    With a budget, the child process calls this function again, with its own `enter`.
    """
    request = task.request
    if request.budget is not None and enter is silent:
        yield from _rank_within_budget(task)
        return
    if task.planner:
        plans = _plans_by(task.planner, request, task.options, task.deterministic, enter=enter)
    else:
        plans = _deterministic_plans(request, enter)
    for candidate in plans:
        entry = candidate.entries[0]
        gaps = (entry.claims["bandwidth_gap"], entry.claims["latency_gap"])
        key = tuple(math.inf if gap is None else gap for gap in gaps)
        if task.model is not None and request.nbytes is not None:
            enter(RANKING)
            price = prepare(task.model, entry.schedule, request.topology)
            key = (float(price(request.nbytes).seconds), *key)
        yield key, candidate


def _rank_within_budget(task: _PlanTask) -> Generator[tuple[_SortKey, Plan], None, None]:
    """Yield what `_rank_plans` yields, from a child process; raise TimedOut when the budget stops it."""
    request, stage, any_plan = task.request, PLANNING, False
    subject = f"planner {task.planner}" if task.planner else "deterministic planners"
    terms = PoolTerms[_PlanTask](_rank_in_process, seconds=lambda task: task.request.budget, grace=GRACE)
    try:
        with closing(stream_job(replace(task, request=replace(request, tell=silent)), terms)) as messages:
            for message in messages:
                if isinstance(message, _Stage):
                    stage = message
                elif isinstance(message, str):
                    request.tell(message)
                else:
                    any_plan = True
                    yield message
    except Stopped as stop:
        if any_plan:
            raise TimedOut(f"{subject} was {stop}, while {stage}; a larger --budget may find better") from None
        raise TimedOut(
            f"{subject} was {stop}, while {stage}: no plan of {request.collective.title} on {request.topology.name} "
            "until then; raise --budget, or name another planner"
        ) from None
    except Lost as error:
        raise NotFound(f"{subject} failed: {error}") from None


def _rank_in_process(task: _PlanTask, send: Send) -> None:
    """Run a task in the child process; send plans with their sort keys, stages, and lines of progress."""
    for ranked_plan in _rank_plans(replace(task, request=replace(task.request, tell=send)), enter=send):
        send(ranked_plan)


def _plans_by(
    planner: str, request: Request, options: Mapping[str, Any], deterministic: bool, bounds: Bound | None = None,
    enter: Callable[[str], None] = silent,
) -> Iterator[Plan]:  # fmt: skip
    """Yield a verified plan for each schedule, with figures and gaps as claims. `bounds`: computed here if None.

    `enter` receives every stage that begins.
    """
    topology, target, entry = request.topology, request.collective, find("planner", planner)
    refuse_unless_able(planner, entry, target)
    any_schedule = any_plan = False
    cache = ScheduleCache()
    enter(PLANNING)
    for planned in run_planner(planner, entry, options, request):
        any_schedule = True
        if bounds is None:
            enter(BOUNDING)
            bounds = bound(topology, target)
        enter(VERIFYING)
        schedule = verify_schedule(cache, planned, topology)
        claims: dict[str, Any] = {"planner": planner, **figures_verified(schedule, topology, bounds)}
        order = order_claim(schedule) if deterministic else {}
        # this schedule combines in several orders and one is required: leave it out
        if order is None:
            continue
        if recheck_certificate(schedule, topology) is not None:
            claims["optimality"] = label_of(schedule)
        any_plan = True
        yield Plan(topology, target, (Entry(start=0, stop=None, schedule=schedule, claims={**claims, **order}),))
        enter(PLANNING)
    if not any_schedule:
        raise NotFound(f"planner {planner} found no schedule for {target.title} on {topology.name}")
    if not any_plan:
        raise SeveralOrders(f"planner {planner}: {SEVERAL_ORDERS}; name no planner to use the best one that can")


def _deterministic_plans(request: Request, enter: Callable[[str], None] = silent) -> Iterator[Plan]:
    """Yield the plans of all DETERMINISTIC_PLANNERS that combine in one order; planners that cannot are skipped."""
    enter(BOUNDING)
    bounds = bound(request.topology, request.collective)
    any_plan = any_several_orders = False
    refusal: AntiphonError | None = None
    for name, options in DETERMINISTIC_PLANNERS:
        try:
            for candidate in _plans_by(name, request, options, deterministic=True, bounds=bounds, enter=enter):
                any_plan = True
                yield candidate
        except SeveralOrders:
            any_several_orders = True
        except (Infeasible, Invalid, NotFound, Unsupported) as error:
            refusal = refusal or error
    if not any_plan and not any_several_orders and refusal is not None:
        raise refusal
    if not any_plan:
        raise SeveralOrders(
            f"none of {', '.join(name for name, _ in DETERMINISTIC_PLANNERS)} has a schedule for "
            f"{request.collective.kind} on {request.topology.name} that combines all data in one order; "
            "antiphon tune --deterministic asks all planners"
        )


# ---- plans from plans ----


def run_plans_together(plans: Sequence[Plan], nbytes: int) -> Plan:
    """Return one plan of the schedules that these plans have for a size, which run at the same time."""
    if not plans:
        raise Invalid("predict: give one plan or more")
    for number, each_plan in enumerate(plans, start=1):
        if each_plan.topology != plans[0].topology:
            raise Invalid(
                f"predict: plan {number} is for {each_plan.topology.name}, plan 1 for {plans[0].topology.name}; only "
                "plans of one machine share its links"
            )
    return Plan.of(plans[0].topology, run_together([each_plan.at(nbytes).schedule for each_plan in plans]))


def put_together(plans: Sequence[Plan], *, at_once: bool = False, shares: Sequence[Fraction] | None = None) -> Plan:
    """Return one plan, verified, of the schedules of several plans: one after the other, or all at once.

    `shares`, only with `at_once`: the share of the data that each plan gets, in order along the data. Default: every
    plan gets all data.
    """
    if not plans:
        raise Invalid("compose: give one plan or more")
    if shares is not None and not at_once:
        raise Invalid("compose: shares need at_once; set it, or leave shares out")
    topology = plans[0].topology
    for number, each_plan in enumerate(plans, start=1):
        if each_plan.topology != topology:
            raise Invalid(
                f"compose: plan {number} is for {each_plan.topology.name}, plan 1 for {topology.name}: not the same "
                "machine; plan groups of ranks of one machine, such as allreduce:ranks=0-7"
            )
        if len(each_plan.entries) > 1:
            raise Invalid(
                f"compose: plan {number} has {len(each_plan.entries)} schedules by size; give a plan that has one"
            )
    schedules = [each_plan.entries[0].schedule for each_plan in plans]
    composed: Schedule = merge(schedules, shares) if at_once else reduce(compose, schedules)
    planners = [str(each_plan.entries[0].claims.get("planner", "?")) for each_plan in plans]
    provenance = {"planner": COMPOSED, "options": {}, "found": {"of": planners, "at_once": at_once}}
    composed = replace(composed, provenance=provenance)
    return Plan.of(topology, composed, {"planner": COMPOSED, **measure(composed, topology)})
