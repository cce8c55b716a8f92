"""Run a planner; of an ordered collective, only schedules that combine contributions in order count.

Most planners know nothing of an order. They plan the collective without it, and each schedule that keeps it anyway
(direct exchange, recursive doubling, a tree of neighbors) is one of the ordered collective.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from antiphon.core.request import Request
from antiphon.core.schedule import Schedule
from antiphon.core.verify import find_order_fault
from antiphon.errors import TimedOut, Unsupported
from antiphon.registry import Entry, PlannerCapabilities, call, table


def run_planner(
    name: str, entry: Entry[PlannerCapabilities], options: Mapping[str, Any], request: Request
) -> Iterator[Schedule]:
    """Yield the planner's schedules. Raises Unsupported if all of them combine contributions out of order."""
    target = request.collective
    if not target.ordered or entry.can.ordered:
        yield from call("planner", name, entry.load(), options, request)
        return
    any_schedule, any_in_order = False, False
    try:
        without_order = replace(request, collective=replace(target, ordered=False))
        for schedule in call("planner", name, entry.load(), options, without_order):
            any_schedule = True
            in_order = replace(schedule, collective=target)
            if find_order_fault(in_order) is None:
                any_in_order = True
                yield in_order
    except TimedOut as stop:
        raise type(stop)(str(stop)) from None  # without its best schedule, which may be out of order
    if any_schedule and not any_in_order:
        ordered_planners = ", ".join(other for other, candidate in table("planner").items() if candidate.can.ordered)
        raise Unsupported(
            f"planner {name} combines contributions of {target.title} on {request.topology.name} out of order, which "
            f"an ordered collective forbids; planners that always keep the order: {ordered_planners}"
        )
