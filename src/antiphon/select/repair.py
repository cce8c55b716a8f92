"""Repair the plans of a machine after failures: keep what still works, plan anew what does not.

`repair` takes a plan and the degraded machine, and returns a plan for that machine, verified and with its own bounds.
Every schedule of the plan (one per range of sizes) passes these steps:

    1. `repair_trees` reattaches what failures cut off (planners/shared/tree_repair.py), at the rate of the new bound
    2. the result is sliced for the size: as before, or in the number of pieces that model alpha-beta predicts is best
    3. if chunks move along no trees, or the result takes over `REPLAN_ABOVE` times the lower bound, the planner of the
       old schedule also plans anew, else planners that work on any machine; the faster of both is kept

The claim `repaired` gives the number of transfers of the old schedule that were kept, and its planner. No new plan can
be faster than the bound, so `bandwidth_gap` also bounds what planning anew could gain.

Example: an allreduce on a torus of 512 ranks where 1 % of the links fail: 96 % of the transfers stay, and the rate
is 0.96 of the bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any

from antiphon.core.bounds import Bound, bound
from antiphon.core.collective import Collective
from antiphon.core.loads import throughput
from antiphon.core.plan import Entry, Plan
from antiphon.core.request import silent
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.cost import prepare
from antiphon.errors import Infeasible, Invalid, NotFound, TimedOut, Unsupported
from antiphon.planners.shared.pipelining import PIPELINING, best_pieces, max_pieces_for
from antiphon.planners.shared.tree_repair import repair_trees, surviving_collective
from antiphon.registry import table
from antiphon.select.figures import measure
from antiphon.select.plans import plan

REPAIRED = "repair"  # stands for the planner in plans that were repaired
REPLAN_ABOVE = Fraction(11, 10)  # of the lower bound: above, planning anew is tried, too
MAX_PRICED = 50_000  # transfers of a schedule that is priced with many numbers of slices
LARGE_BYTES = 2**33  # a plan for any size is sliced for this one, so that it is near the bandwidth bound
USUAL_BYTES = 10**9  # the size for which a schedule for large sizes is sliced
ANY_MACHINE = ("trees", "relay")  # planners for degraded machines, if the plan's own does not support them


def repair(
    old: Plan,
    topology: Topology,
    *,
    nbytes: int | None = None,
    budget: float | None = None,
    seed: int = 0,
    tell: Callable[[str], None] = silent,
) -> Plan:
    """Return the plan for a machine that lost links, ranks or bandwidth; ranks without links take part no more.

    `nbytes`: slice for this size; default: the sizes of the plan's ranges. `budget`: CPU seconds for each schedule that
    is planned anew. Raises Infeasible if the ranks no longer reach each other, or the root is lost.
    """
    collective, _ = surviving_collective(old.collective, topology)
    tell(f"bounding {collective.kind} on {topology.name}")
    bounds = bound(topology, collective)
    entries = []
    for entry in old.entries:
        size = nbytes or _size_of(entry)
        candidates = [*_repaired(entry, old.topology, topology, bounds, size, tell)]
        if not any(_is_enough(schedule, topology, bounds, size) for schedule, _ in candidates):
            options = {"nbytes": size, "budget": budget, "seed": seed}
            try:
                for candidate in _planned_anew(entry, collective, topology, options, tell):
                    candidates.append(candidate)
                    if _is_enough(candidate[0], topology, bounds, size):
                        break
            except (Infeasible, Invalid, NotFound, TimedOut, Unsupported):
                if not candidates:
                    raise
        schedule, kept = min(candidates, key=lambda candidate: _seconds(candidate[0], topology, size))
        claims: dict[str, Any] = {
            "planner": REPAIRED, **measure(schedule, topology, bounds),
            "repaired": {
                "kept": kept, "transfers": entry.schedule.transfers, "planner": str(entry.claims.get("planner", "?")),
            },
        }  # fmt: skip
        if entry.served_by:
            claims["served_by"] = entry.served_by
        provenance = {"planner": REPAIRED, "options": {}, "found": {"of": claims["repaired"]["planner"]}}
        entries.append(Entry(entry.start, entry.stop, replace(schedule, provenance=provenance), claims))
    return Plan(topology, collective, tuple(entries))


def _size_of(entry: Entry) -> int:
    """Return a size that stands for an entry: its largest, USUAL_BYTES, or LARGE_BYTES if it is for all sizes."""
    if entry.stop is not None:
        return max(entry.stop - 1, 1)
    return max(entry.start, USUAL_BYTES) if entry.start else LARGE_BYTES


def _seconds(schedule: Schedule, topology: Topology, nbytes: int) -> float:
    """Return the time that model alpha-beta predicts."""
    return prepare("alpha-beta", schedule, topology)(nbytes).seconds


def _is_enough(schedule: Schedule, topology: Topology, bounds: Bound, size: int) -> bool:
    """Return whether planning anew could gain little: the rate is near the bound, or latency is most of the time."""
    rate = throughput(schedule, topology)
    if not rate or not bounds.bytes_per_second or bounds.bytes_per_second / rate <= REPLAN_ABOVE:
        return True
    return _seconds(schedule, topology, size) < 2 * _seconds(schedule, topology, 0)


def _repaired(
    entry: Entry, old: Topology, topology: Topology, bounds: Bound, size: int, tell: Callable[[str], None]
) -> Iterator[tuple[Schedule, int]]:
    """Yield the repaired schedule, sliced as before and for the size, with the number of transfers kept."""
    before = entry.schedule
    tell(f"repairing {before.transfers} transfers on {topology.name}")
    try:
        trees = repair_trees(before, old, topology, bounds.without_help.bytes_per_second)
    except Unsupported as reason:
        tell(str(reason))
        return
    pieces = {_count_pieces(trees.schedule, topology, bounds, size)}
    pieces |= {before.pieces} if isinstance(before.pieces, int) else set()
    for number in sorted(pieces):
        yield replace(trees.schedule, pieces=number), trees.kept_transfers


def _count_pieces(schedule: Schedule, topology: Topology, bounds: Bound, size: int) -> int:
    """Return the number of slices for a size: the best, or on long schedules what the formula of equal steps gives.

    S steps in n slices take (S + n - 1) * (latency + bytes / (n * rate)), least at n = sqrt((S - 1) * time / latency).
    """
    if schedule.transfers <= MAX_PRICED:
        return best_pieces(schedule, topology, size)
    latency = _seconds(schedule, topology, 0) / schedule.steps
    seconds = float(size / (bounds.bytes_per_second or 1))
    best = math.sqrt((schedule.steps - 1) * seconds / latency) if latency else PIPELINING.max_pieces
    return max(1, min(round(best), max_pieces_for(schedule, size)))


def _planned_anew(
    entry: Entry, collective: Collective, topology: Topology, options: dict[str, Any], tell: Callable[[str], None]
) -> Iterator[tuple[Schedule, int]]:
    """Yield new schedules by the old one's planner, and by those of ANY_MACHINE; raise if none supports the machine."""
    planners = [str(entry.schedule.provenance.get("planner", "")), *ANY_MACHINE]
    failure, any_schedule = None, False  # type: Exception | None, bool
    for planner in dict.fromkeys(planners):
        if planner not in table("planner") or collective.kind not in table("planner")[planner].can.collectives:
            continue
        tell(f"planning {collective.kind} anew by {planner}")
        try:
            schedule = plan(collective, topology, planner=planner, **options).entries[0].schedule
        except (Infeasible, Invalid, NotFound, Unsupported) as error:
            failure = failure or error
            continue
        any_schedule = True
        yield schedule, 0
    if failure is not None and not any_schedule:
        raise failure
