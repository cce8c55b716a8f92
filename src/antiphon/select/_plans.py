"""Plans: make one, state its figures, check all that it claims."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from antiphon.core.bounds import Bound, bound, recheck
from antiphon.core.collective import Collective
from antiphon.core.loads import claims, timeline
from antiphon.core.plan import Entry, Plan
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.core.verify import Fault, verify
from antiphon.errors import Infeasible, unknown
from antiphon.registry import call, find, refuse_unless_able
from antiphon.select._wish import collective


def _gap(value: Fraction, least: Fraction) -> Fraction | None:
    """How many times the least; None where nothing is needed at all, and yet something is done."""
    return value / least if least else (None if value else Fraction(1))


def proof_of(bandwidth_gap: Fraction | None, latency_gap: Fraction | None) -> str | None:
    """Which bounds the schedule meets: "latency", "bandwidth", "both" or None (SCCL, Tables 4 and 5)."""
    met = (latency_gap == 1, bandwidth_gap == 1)
    return {(True, True): "both", (True, False): "latency", (False, True): "bandwidth"}.get(met)


def gaps(figures: Mapping[str, Any], seconds_per_byte: Fraction, limits: Bound) -> dict[str, Any]:
    """How far a verified schedule is from the bounds: bandwidth_gap, latency_gap, proof."""
    least = 1 / limits.bytes_per_second if limits.bytes_per_second else Fraction(0)
    bandwidth_gap = _gap(seconds_per_byte, least)
    latency_gap = _gap(Fraction(figures["steps"]), Fraction(limits.latency_steps))
    if any(gap is not None and gap < 1 for gap in (bandwidth_gap, latency_gap)):
        raise RuntimeError(f"a verified schedule beats its bound: {bandwidth_gap}, {latency_gap}")
    return {
        "bandwidth_gap": None if bandwidth_gap is None else float(bandwidth_gap),
        "latency_gap": None if latency_gap is None else float(latency_gap),
        "proof": proof_of(bandwidth_gap, latency_gap),
    }


def measure(schedule: Schedule, topology: Topology, limits: Bound | None = None) -> dict[str, Any]:
    """Verify a schedule and state its figures beside the bounds: what a plan claims. `limits`: if known already."""
    verify(schedule, topology).or_raise()
    figures = dict(claims(schedule, topology))
    limits = limits or bound(topology, schedule.collective)
    return {**figures, **gaps(figures, timeline(schedule, topology).total, limits)}


def plan(
    wanted: Collective | str,
    topology: Topology,
    *,
    planner: str = "ring",
    root: int | None = None,
    ranks: Sequence[int] | None = None,
    nbytes: int | None = None,
    budget: float | None = None,
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
) -> Plan:
    """Let a planner plan. Every schedule it yields is verified; that of least bandwidth, then latency gap is kept."""
    target = collective(wanted, topology, root=root, ranks=ranks) if isinstance(wanted, str) else wanted
    entry = find("planner", planner)
    refuse_unless_able(planner, entry, target)
    known = entry.can["options"]
    for key in options or {}:
        if key not in known:
            raise unknown(f"option of planner {planner}", key, known)
    given = {"nbytes": nbytes, "profile": None, "budget": budget, "seed": seed, **(options or {})}
    best: tuple[tuple[float, ...], Schedule, dict[str, Any]] | None = None
    limits: Bound | None = None
    for schedule in call("planner", planner, entry.load(), given, topology, target):
        limits = limits or bound(topology, target)
        figures = measure(schedule, topology, limits)
        order = tuple(math.inf if figures[key] is None else figures[key] for key in ("bandwidth_gap", "latency_gap"))
        if best is None or order < best[0]:
            best = (order, schedule, figures)
    if best is None:
        raise Infeasible(f"planner {planner} found no schedule for {target.kind} on {topology.name}")
    _, schedule, figures = best
    return Plan(topology, target, (Entry(0, None, schedule, {"planner": planner, **figures}),))


def figures_of(plan: Plan) -> dict[str, Any]:
    """What `antiphon plan --json` says: the claims of the entry for the largest sizes, with what it is a plan for."""
    about = {"collective": plan.collective.kind, "topology": plan.topology.name}
    return {"planner": None, **about, **plan.entries[-1].claims, "verified": True}


def check(plan: Plan, topology: Topology, *, proof: bool = False, claims: bool = True) -> Fault | None:
    """Verify every schedule of a plan with all it claims. `proof`: recheck the bounds from their witnesses, too."""
    limits: Bound | None = None
    for entry in plan.entries:
        report = verify(entry.schedule, topology, entry.claims if claims else None)
        if report.fault is not None:
            return report.fault
        limits = limits or (bound(topology, plan.collective) if claims or proof else None)
        figures = measure(entry.schedule, topology, limits) if claims else {}
        for key, value in figures.items():
            if key in entry.claims and entry.claims[key] != value:
                return Fault("claim", f"the plan claims {key} = {entry.claims[key]!r}, but it is {value!r}")
    if proof and limits is not None:
        recheck(topology, plan.collective, limits)
    return None
