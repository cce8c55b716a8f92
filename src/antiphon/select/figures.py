"""Compute the figures that a plan claims of its schedule.

These are counts (chunks, steps, rounds, transfers), gaps (figures divided by their lower bounds) and the bounds that
the schedule meets (`proof`). Further: whether its switches multicast or reduce, its rate (bandwidth in the limit of
many slices), and the order in which it combines values. `plan`, `tune`, `frontier` and the checks of plan files all use
these functions, so that their figures agree.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from antiphon.core.bounds import Bound, bound
from antiphon.core.bounds.memory import reached_json
from antiphon.core.interpret import order_of_combining
from antiphon.core.loads import claims, timeline
from antiphon.core.plan import Plan
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.core.transform import unjoined
from antiphon.core.verify import verify
from antiphon.errors import NotFound
from antiphon.select.provenance import findings_or_empty, rate_of, rate_text
from antiphon.select.uses import uses_claim

SEVERAL_ORDERS = "it combines the parts of the data in different orders, and --deterministic wants one"


class SeveralOrders(NotFound):
    """There are schedules, but none that combines every element in one and the same order."""


def measure(schedule: Schedule, topology: Topology, bounds: Bound | None = None) -> dict[str, Any]:
    """Verify a schedule and return what a plan claims of it: its figures and gaps. `bounds`: computed here if None."""
    verify(schedule, topology).or_raise()
    return figures_verified(schedule, topology, bounds or bound(topology, schedule.collective))


def figures_verified(schedule: Schedule, topology: Topology, bounds: Bound) -> dict[str, Any]:
    """Return what a plan claims of a schedule that is verified already: its figures and gaps."""
    figures = dict(claims(schedule, topology))
    figures |= gaps(figures, timeline(schedule, topology).total, bounds)
    figures |= uses_claim(schedule)
    if rate_of(schedule) is not None:
        figures["rate"] = rate_text(schedule, topology)
    return figures


def gaps(figures: Mapping[str, Any], seconds_per_byte: Fraction, bounds: Bound) -> dict[str, Any]:
    """Return bandwidth_gap and latency_gap of a verified schedule, its figures divided by their bounds, and proof.

    `figures`: with "steps". If switches of the machine can multicast or reduce, the result also has
    bandwidth_gap_without_switches, divided by the bound of schedules whose switches only forward. It is below 1 if
    the schedule is faster than any of those.
    """
    bound_per_byte = 1 / bounds.bytes_per_second if bounds.bytes_per_second else Fraction(0)
    bandwidth_gap = _gap_ratio(seconds_per_byte, bound_per_byte)
    latency_gap = _gap_ratio(Fraction(figures["steps"]), Fraction(bounds.latency_steps))
    if any(gap is not None and gap < 1 for gap in (bandwidth_gap, latency_gap)):
        raise RuntimeError(f"a verified schedule beats its bound: {bandwidth_gap}, {latency_gap}")
    # bytes/s of the bound if switches only forward; None: no switch can help
    forwarding_rate = bounds.unaided.bytes_per_second if bounds.unaided is not None else None
    return {
        "bandwidth_gap": None if bandwidth_gap is None else float(bandwidth_gap),
        "latency_gap": None if latency_gap is None else float(latency_gap),
        "proof": proof_of(bandwidth_gap, latency_gap),
        **({"bandwidth_gap_without_switches": float(seconds_per_byte * forwarding_rate)} if forwarding_rate else {}),
    }


def _gap_ratio(value: Fraction, lower_bound: Fraction) -> Fraction | None:
    """Return value / bound; None if the bound is 0 and the value is not."""
    return value / lower_bound if lower_bound else (None if value else Fraction(1))


def proof_of(bandwidth_gap: Fraction | None, latency_gap: Fraction | None) -> str | None:
    """Return which bounds the schedule meets: "latency", "bandwidth", "both" or None (SCCL, Tables 4 and 5)."""
    met = (latency_gap == 1, bandwidth_gap == 1)
    return {(True, True): "both", (True, False): "latency", (False, True): "bandwidth"}.get(met)


def exact_rounds(schedule: Schedule, topology: Topology) -> Fraction:
    """Return the rounds of a schedule, its time on the links in chunks of mean size, not rounded up in each step."""
    return timeline(schedule, topology).total * topology.unit / schedule.mean_chunk


def order_claim(schedule: Schedule) -> dict[str, str] | None:
    """Return what a deterministic plan claims of its order of combining; None if the schedule has several orders."""
    order = order_of_combining(schedule)
    return None if order is None else {"order": order}


def figures_of(plan: Plan) -> dict[str, Any]:
    """Return what `antiphon plan --json` prints: the request, and the claims of the entry for the largest sizes."""
    entry = plan.entries[-1]
    memory_and_incast = reached_json(entry.schedule, plan.topology)  # beside the least that any schedule needs
    planner_figures = dict(findings_or_empty(entry.schedule))  # what the planner itself reports, by its own names
    # keys are stable: those that not every plan claims have a default before the claims
    return {
        "planner": None, "collective": plan.collective.kind, "roots": list(plan.collective.roots),
        "topology": plan.topology.name, "assumes": [], "uses": [], "stopped": None,
        **entry.claims, **_unjoined_gap(plan), **memory_and_incast,
        **({"found": planner_figures} if planner_figures else {}), "verified": True,
        **({"groups": plan.collective.title} if plan.collective.groups else {}),
    }  # fmt: skip


def _unjoined_gap(plan: Plan) -> dict[str, float]:
    """Return the bandwidth gap of the schedule without joints, as on a runtime whose switches only forward; {} if the
    plan has no joints.
    """
    entry = plan.entries[-1]
    gap = entry.claims.get("bandwidth_gap")
    if not entry.claims.get("uses") or gap is None:
        return {}
    slowdown = timeline(unjoined(entry.schedule), plan.topology).total / timeline(entry.schedule, plan.topology).total
    return {"bandwidth_gap_alone": gap * float(slowdown)}
