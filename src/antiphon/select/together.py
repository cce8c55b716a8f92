"""Collectives that a recorded job runs at the same time in several groups: separate plans against one joint plan.

Calls run together if one runs at the middle of the other's time. Sets of such calls repeat in every step. For the
longest sets, two prices are compared: of the calls' separate plans while they share the links, and of one joint plan
for all groups (planners/compose/groups.py).

Example: two boxes, eight pairs of ranks with one rank in each box. A pair alone has 200 GB/s through eight network
cards; if every pair's plan does so, each card carries eight pairs. The joint plan gives each pair a card of its own.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

from antiphon.core.collective import Collective, joint
from antiphon.core.plan import Plan
from antiphon.core.transform import run_together
from antiphon.cost import predict
from antiphon.cost.replay.job import RecordedJob
from antiphon.errors import AntiphonError
from antiphon.select.plans import plan
from antiphon.select.prices import ByPlans, Call, members_of

MAX_SETS = 4  # sets that are planned jointly: each takes seconds
MAX_GROUPS_TOGETHER = 64  # calls in a set

CallSet = frozenset[Call]


def find_call_sets(job: RecordedJob) -> dict[CallSet, int]:
    """Return the sets of calls in different groups that run at the same time and how often; the longest first."""
    order = sorted(range(len(job.calls)), key=lambda call: job.calls[call].start)
    count: dict[CallSet, int] = defaultdict(int)
    seconds: dict[CallSet, float] = defaultdict(float)
    running: list[int] = []  # earlier calls that have not ended when this one starts
    for number, call in enumerate(order):
        own_call = job.calls[call]
        middle = own_call.start + own_call.seconds / 2
        running = [earlier for earlier in running if job.calls[earlier].end > own_call.start]
        later = number + 1
        while later < len(order) and job.calls[order[later]].start <= middle:
            later += 1
        overlapping = [c for c in [*running, *order[number:later]] if job.calls[c].end > middle or c == call]
        calls = frozenset((job.calls[c].kind, job.calls[c].nbytes, job.calls[c].group) for c in overlapping)
        if len({group for _, _, group in calls}) > 1:
            count[calls] += 1
            seconds[calls] += own_call.seconds
        running.append(call)
    # A set that occurs once has been counted once by each of its calls.
    sets = sorted(count, key=lambda calls: (-seconds[calls], sorted(calls)))
    return {calls: math.ceil(count[calls] / len(calls)) for calls in sets}


def compare_together(job: RecordedJob, prices: ByPlans) -> tuple[list[dict[str, Any]], list[str]]:
    """Return a row per set of calls with the seconds of plans apart and of a joint plan; and why some have none."""
    rows: list[dict[str, Any]] = []
    notes: list[str] = []
    for calls, count in find_call_sets(job).items():
        if len(rows) == MAX_SETS:
            break
        if len(calls) > MAX_GROUPS_TOGETHER:
            notes.append(
                f"{len(calls)} groups at the same time are not planned together; at most {MAX_GROUPS_TOGETHER}"
            )
            continue
        try:
            by_group = sorted((group, kind, nbytes) for kind, nbytes, group in calls)
            row = _price_set(job, [(kind, nbytes, group) for group, kind, nbytes in by_group], prices)
        except AntiphonError as error:
            notes.append(f"no joint plan for calls at the same time: {error}")
            continue
        if row is not None:
            rows.append({**row, "per_step": count / len(job.steps)})
    return rows, list(dict.fromkeys(notes))


def _price_set(job: RecordedJob, calls: list[Call], prices: ByPlans) -> dict[str, Any] | None:
    """Return the seconds of the plans of calls that share the links, and of a joint plan; None without these plans."""
    machine, plans = prices.machine, []
    for kind, nbytes, group in calls:
        separate_plan = prices.find_plan(kind, nbytes, group, job.groups[group])
        if separate_plan is None:
            return None
        plans.append(separate_plan.at(nbytes).schedule)
    sizes = [nbytes for _, nbytes, _ in calls]
    common = math.gcd(*sizes)
    shares = [size // common for size in sizes]
    apart = Plan.of(machine, run_together(plans, shares))
    groups = [Collective(kind, machine.ranks, members_of(job.groups[group], machine)) for kind, _, group in calls]
    together = plan(joint(groups, shares), machine, planner="groups", nbytes=max(sizes))  # size of the largest group
    # one row each, as there is one size
    (apart_row,), (joint_row,) = (
        predict(collective, max(sizes), model=prices.model, profile=prices.profile) for collective in (apart, together)
    )
    apart_seconds, joint_seconds = apart_row["seconds"], joint_row["seconds"]
    return {
        "calls": [
            {"collective": kind, "nbytes": nbytes, "group": job.groups[group].name} for kind, nbytes, group in calls
        ],
        "apart": apart_seconds, "joint": joint_seconds, "gain": max(apart_seconds - joint_seconds, 0.0),
    }  # fmt: skip
