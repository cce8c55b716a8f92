"""Helpers of the writers of rules for stock libraries (NCCL's tuner, MPI, UCC): merge size ranges, count rules.

Example: entries for 0 to 1 KB, 1 to 4 KB and from 4 KB on that all get the rule "ring" become one range from 0 on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from antiphon.core.plan import Entry, Plan
from antiphon.core.reshape import linked_ranks
from antiphon.errors import Unsupported

T = TypeVar("T")


@dataclass(frozen=True)
class RuleRange(Generic[T]):
    """The rule `value` for start <= nbytes < stop. `stop` None: without end; `value` None: no rule for these sizes."""

    start: int
    stop: int | None
    value: T | None


def merge_ranges(plan: Plan, rule_of: Callable[[Entry], T | None]) -> list[RuleRange[T]]:
    """Return the rule of each entry by range of sizes; neighbours with equal rules are merged. O(entries)."""
    merged: list[RuleRange[T]] = []
    for entry in plan.entries:
        value = rule_of(entry)
        # Entries are adjacent, so equal neighbours can be one range.
        if merged and merged[-1].value == value:
            merged[-1] = replace(merged[-1], stop=entry.stop)
        else:
            merged.append(RuleRange(entry.start, entry.stop, value))
    return merged


def notes_of(rules: int, library: str, reasons: Sequence[str]) -> list[str]:
    """Return notes: the number of rules written, and of ranges left to the library, by reason.

    `reasons`: one per range that was left. If no rule was written, the library is as good in every range: for any other
    reason, the writer has raised an error before.
    """
    if not rules:
        return [f"rules written: none: {library}'s own choice is as good"]
    reason_notes = [
        f"left to {library}: {count} {'range' if count == 1 else 'ranges'}: {reason}"
        for reason, count in Counter(reasons).items()
    ]
    return [f"rules written: {rules}", *reason_notes]


def planner_of(entry: Entry) -> str:
    """Return the name of the planner that the plan claims, or else the one in the schedule's provenance."""
    return str(entry.claims.get("planner") or entry.schedule.provenance.get("planner") or "")


def count_members(plan: Plan, format_name: str) -> int:
    """Return the number of ranks of the communicator that a library's rules are for: all that the machine has, or that
    an allocation (TOPO:only=RANKS) leaves. Raise Unsupported if the plan is for fewer."""
    members, available = plan.collective.members, linked_ranks(plan.topology) or range(plan.topology.ranks)
    if not {*available} <= {*members}:
        raise Unsupported(
            f"{format_name}: the plan is for {len(members)} of {len(available)} ranks; make one for a machine of just "
            "these (TOPO:only=RANKS)"
        )
    return len(members)


def first_plan(plans: Mapping[str, Plan]) -> Plan:
    """Return any of the plans of a table, to look up their common machine."""
    return next(iter(plans.values()))
