"""Plans put together: one after the other, or at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from functools import reduce

from antiphon.core.plan import Plan
from antiphon.core.schedule import Schedule
from antiphon.core.transform import compose, merge
from antiphon.errors import Invalid
from antiphon.select.plans import measure

TOGETHER = "composed"


def put_together(plans: Sequence[Plan], *, at_once: bool = False, shares: Sequence[Fraction] | None = None) -> Plan:
    """One plan: the schedules one after the other, or all at once, verified and measured. `shares`, at once: of the
    data, one for each, one after the other on the line of the data; without, every group has all of the data."""
    if not plans:
        raise Invalid("compose: give one plan or more")
    if shares is not None and not at_once:
        raise Invalid("compose: shares are of plans at once; say so, or leave them out")
    for number, one in enumerate(plans, start=1):
        if one.topology != plans[0].topology:
            raise Invalid(
                f"compose: plan {number} is for {one.topology.name}, plan 1 for {plans[0].topology.name}: not the same "
                "machine; plan groups of ranks of one machine (--ranks 0-7)"
            )
        if len(one.entries) > 1:
            raise Invalid(f"compose: plan {number} has {len(one.entries)} schedules by size; give a plan that has one")
    schedules = [one.entries[0].schedule for one in plans]
    made: Schedule = merge(schedules, shares) if at_once else reduce(compose, schedules)
    of = [str(one.entries[0].claims.get("planner", "?")) for one in plans]
    told = {"planner": TOGETHER, "options": {}, "found": {"of": of, "at_once": at_once}}
    made = replace(made, provenance=told)
    figures = measure(made, plans[0].topology)
    return Plan.of(plans[0].topology, made, {"planner": TOGETHER, **figures})
