"""What writers of rules for stock libraries (NCCL's tuner, MPI) share: adjacent size ranges of a plan that get the same
rule are merged; notes count the rules written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from antiphon.core.plan import Entry, Plan
from antiphon.errors import Unsupported

T = TypeVar("T")


@dataclass(frozen=True)
class Range(Generic[T]):
    """`value` holds for start <= nbytes < stop (None: without end); None: no statement about these sizes."""

    start: int
    stop: int | None
    value: T | None


def merge_ranges(plan: Plan, of: Callable[[Entry], T | None]) -> list[Range[T]]:
    """Return the value that `of` gives each entry, by range of sizes, equal neighbours merged. O(entries)."""
    merged: list[Range[T]] = []
    for entry in plan.entries:
        value = of(entry)
        # Entries are adjacent, so equal neighbours can be one range.
        if merged and merged[-1].value == value:
            merged[-1] = replace(merged[-1], stop=entry.stop)
        else:
            merged.append(Range(entry.start, entry.stop, value))
    return merged


def notes_of(rules: int, library: str, reasons: Sequence[str]) -> list[str]:
    """Return notes: the number of rules written, and of ranges left to the library, by reason."""
    # without rules all reasons are alike: a writer that has others refuses to write a file without rules
    if not rules:
        return [f"rules written: none: {library}'s own choice is as good"]
    left_texts = [
        f"left to {library}: {count} {'range' if count == 1 else 'ranges'}: {reason}"
        for reason, count in Counter(reasons).items()
    ]
    return [f"rules written: {rules}", *left_texts]


def planner_of(entry: Entry) -> str:
    """Return the name of the planner: what the plan claims, else what the schedule says of itself."""
    return str(entry.claims.get("planner") or entry.schedule.provenance.get("planner") or "")


def refuse_subset(plan: Plan, who: str) -> None:
    """Raise Unsupported unless all ranks are members: a library's rules are for communicators of all ranks."""
    if len(plan.collective.members) != plan.topology.ranks:
        raise Unsupported(
            f"{who}: the plan is for {len(plan.collective.members)} of {plan.topology.ranks} ranks; make one for a "
            "machine of just these (--only)"
        )


def first_plan(plans: Mapping[str, Plan]) -> Plan:
    """Return any of the plans of a table, to look up the machine that all of them have."""
    return next(iter(plans.values()))
