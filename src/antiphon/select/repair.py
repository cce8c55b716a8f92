"""Repair the plans of a machine after failures: keep what still works, plan anew what does not.

`repair` takes a plan and the degraded machine, and returns a plan for that machine, verified and with its own bounds.
A schedule that uses no link that is gone or slower stays as it is. Every other schedule of the plan (one per range of
sizes) passes these steps:

    1. `repair_trees` reattaches what failures cut off (planners/shared/tree_repair.py), at the rate of the new bound
    2. the result is sliced for the size: as before, or in the number of pieces that model alpha-beta predicts is best
    3. if that is still far from the bound: an allreduce of the intact machine that fills its links sooner
       (`_repaired_rooted`) is repaired, too. On more than `CHEAP_RANKS` ranks only one of the two is repaired: the old
       schedule, or that allreduce if the old one was slow on the intact machine or has chunks along no trees
    4. if chunks move along no trees, or all candidates are far from the bound, the planner of the old schedule also
       plans anew, then those that work on any machine, until the rate of one is near the bound's. The fastest is kept,
       or a repaired one that is nearly as fast

Far from the bound (`_is_enough` is False) is a schedule whose latency is at most half of its time, if planning anew
could gain much. On up to `CHEAP_RANKS` ranks: the bound's rate is more than `REPLAN_ABOVE` times the schedule's, or the
time more than `REPLAN_SLOWER` times the bound's. On more ranks: the bound's rate divided by the schedule's is more than
`REPLAN_ABOVE` times what it was for the old schedule on the intact machine.

The field `repaired` of an entry's claims gives the number of transfers of the old schedule that were kept, and its
planner. No new plan can be faster than the bound, so `bandwidth_gap` also bounds what planning anew could gain.

Example: an allreduce of 1 GB on a torus of 512 ranks where 1 % of the links fail. The plan of 31 deep trees took 1.15
times the bound; a new one with 390 trees of half their depth, repaired, takes 1.1 times that of the degraded machine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from antiphon.core.bounds import Bound, bound
from antiphon.core.collective import Collective
from antiphon.core.columns import as_int32
from antiphon.core.loads import throughput
from antiphon.core.plan import Entry, Plan
from antiphon.core.request import silent
from antiphon.core.routes import Routes, resolve
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.cost import prepare
from antiphon.errors import Infeasible, Invalid, NotFound, TimedOut, Unsupported
from antiphon.planners.shared.pipelining import PIPELINING, best_pieces, max_pieces_for
from antiphon.planners.shared.tree_repair import match_links, repair_trees, surviving_collective
from antiphon.registry import table
from antiphon.select.figures import measure
from antiphon.select.plans import plan

REPAIRED = "repair"  # stands for the planner in plans that were repaired
REPLAN_ABOVE = Fraction(11, 10)  # the bound's rate divided by the schedule's: above, planning anew is tried, too
# The same for the time divided by that at the bound's rate: deep trees fill slowly, which their rate does not show.
REPLAN_SLOWER = 1.05
CHEAP_RANKS = 128  # planning anew takes seconds up to here, and minutes on many more ranks
MIN_SPEEDUP_ANEW = 1.03  # a new plan must be this much faster than a repaired one, which moves most data as before
MAX_PREDICTED = 500_000  # transfers of a schedule whose time is predicted for many numbers of slices
OPEN_RANGE_BYTES = 10**9  # an entry without an end is sliced for this size, or for its start if that is larger
ANY_MACHINE = ("trees", "relay")  # planners for degraded machines, if the plan's own does not support them


class _Candidate(NamedTuple):
    """A schedule that may take the place of the old one."""

    schedule: Schedule  # for the degraded machine
    kept_transfers: int  # of the old schedule; 0 if it is planned anew


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
    is planned anew. Raises Infeasible if the ranks no longer reach each other, or the root is lost. `tell` receives
    what is being done, in words.
    """
    collective, _ = surviving_collective(old.collective, topology)
    tell(f"bounding {collective.kind} on {topology.name}")
    bounds = bound(topology, collective)
    entries = []
    for entry in old.entries:
        size = nbytes or slicing_size(entry)
        if (untouched := _untouched_schedule(entry.schedule, old.topology, topology)) is not None:
            entries.append(_repaired_entry(entry, untouched, untouched.transfers, topology, bounds))
            continue
        by_time = topology.ranks <= CHEAP_RANKS  # planning anew takes seconds: a slow schedule is a reason, too
        candidates = [] if by_time else _repaired_if_deep(entry, old, topology, bounds, size, tell)
        if not candidates:
            candidates = [*_repaired(entry, old.topology, topology, bounds, size, tell)]
        # on many ranks only if the old schedule cannot be repaired (if it was slow, this has been tried above)
        if (by_time or not candidates) and not any(
            _is_enough(candidate.schedule, topology, bounds, size, by_time=True) for candidate in candidates
        ):
            candidates += _repaired_rooted(old, topology, bounds, size, tell)
        # On many ranks planning anew takes minutes, and hardly makes better trees than on the intact machine.
        above = REPLAN_ABOVE if by_time else REPLAN_ABOVE * _gap_of(entry.schedule, old)
        if not any(
            _is_enough(candidate.schedule, topology, bounds, size, by_time=by_time, above=above)
            for candidate in candidates
        ):
            options = {"nbytes": size, "budget": budget, "seed": seed}
            try:
                for candidate in _planned_anew(entry, collective, topology, options, tell):
                    candidates.append(candidate)
                    if _is_enough(candidate.schedule, topology, bounds, size):
                        break
            # A planner that spends the budget, or Ctrl-C, ends the search (TimedOut): no other planner is tried.
            except (Infeasible, Invalid, NotFound, TimedOut, Unsupported):
                if not candidates:
                    raise
        best = min(
            candidates,
            key=lambda candidate: (
                _seconds(candidate.schedule, topology, size) * (1 if candidate.kept_transfers else MIN_SPEEDUP_ANEW)
            ),
        )
        entries.append(_repaired_entry(entry, best.schedule, best.kept_transfers, topology, bounds))
    return Plan(topology, collective, tuple(entries))


def _untouched_schedule(schedule: Schedule, old: Topology, topology: Topology) -> Schedule | None:
    """Return the schedule with its routes on the degraded machine; None if it uses a link or shared limit that is gone
    or slower there, or if its collective loses a member.
    """
    surviving, _ = surviving_collective(schedule.collective, topology)
    if surviving != schedule.collective:
        return None
    if schedule.joint is not None and topology.abilities != old.abilities:
        return None
    # by row, `route` is the index of its path in `table`, -1 within a rank; `faulty_rows` have no valid path
    paths = resolve(old, schedule.src, schedule.dst, schedule.route, schedule.routes)
    matched = match_links(old, topology)  # by link of the intact machine its number here, -1 if it is gone
    used_routes = np.unique(paths.route[paths.route >= 0]).astype(np.int64)
    used_links = np.unique(paths.table.take(used_routes).links)
    if any(matched[link] < 0 or _is_slower(old, link, topology, matched[link]) for link in used_links.tolist()):
        return None
    if schedule.route is not None:
        # routes that no row uses may have lost links; they are dropped
        route_numbers = np.unique(schedule.route[schedule.route >= 0]).astype(np.int64)
        table = schedule.routes.take(route_numbers)
        route = np.where(schedule.route >= 0, np.searchsorted(route_numbers, schedule.route), -1)
        schedule = replace(schedule, route=route, routes=Routes(table.ptr, as_int32(matched[table.links])))
    # a row without a route takes the only path, which may be another one here
    paths_now = resolve(topology, schedule.src, schedule.dst, schedule.route, schedule.routes)
    rows = np.flatnonzero(paths.route >= 0)
    before, now = (resolved.table.take(resolved.route[rows].astype(np.int64)) for resolved in (paths, paths_now))
    is_same = not len(paths_now.faulty_rows) and Routes(before.ptr, as_int32(matched[before.links])) == now
    return schedule if is_same else None


def _is_slower(old: Topology, link: int, topology: Topology, link_now: int) -> bool:
    """Return whether a link, or a shared limit that it is under, is slower than on the intact machine.

    Limits correspond by name; as resources they are numbered after the links.
    """
    limit_before = {old.limits[i - old.links].name: old.resources.bytes_per_second(i)
                    for i in old.resources.limits_of(link)}  # fmt: skip
    limits_now = topology.resources.limits_of(link_now)
    return topology.bandwidth(link_now) < old.bandwidth(link) or any(
        topology.resources.bytes_per_second(i) < limit_before.get(topology.limits[i - topology.links].name, math.inf)
        for i in limits_now
    )


def _repaired_entry(
    entry: Entry, schedule: Schedule, kept_transfers: int, topology: Topology, bounds: Bound
) -> Entry:  # fmt: skip
    """Return the entry for the degraded machine: the schedule, verified, with its claims."""
    planner = _planner_of(entry) or "?"
    claims: dict[str, Any] = {
        "planner": REPAIRED, **measure(schedule, topology, bounds),
        "repaired": {"kept": kept_transfers, "transfers": entry.schedule.transfers, "planner": planner},
    }  # fmt: skip
    if entry.served_by:  # a library is faster at these sizes, so the plan leaves them to it; it still does
        claims["served_by"] = entry.served_by
    provenance = {"planner": REPAIRED, "options": {}, "found": {"of": planner}}
    return Entry(entry.start, entry.stop, replace(schedule, provenance=provenance), claims)


def _planner_of(entry: Entry) -> str:
    """Return the planner of an entry, "" if unknown; of a repaired one, the planner of the schedule before repairs."""
    claims = entry.claims
    if claims.get("planner") == REPAIRED and isinstance(claims.get("repaired"), dict):
        claims = claims["repaired"]
    return str(claims.get("planner") or entry.schedule.provenance.get("planner", ""))


def slicing_size(entry: Entry) -> int:
    """Return the size for which an entry is sliced: its largest; of one without an end, see OPEN_RANGE_BYTES."""
    return max(entry.start, OPEN_RANGE_BYTES) if entry.stop is None else max(entry.stop - 1, 1)


def _seconds(schedule: Schedule, topology: Topology, nbytes: int) -> float:
    """Return the time that model alpha-beta predicts."""
    return prepare("alpha-beta", schedule, topology)(nbytes).seconds


def _gap_of(schedule: Schedule, old: Plan) -> Fraction:
    """Return the rate of the bound on the intact machine divided by a schedule's there; 1 if nothing moves."""
    limit, rate = bound(old.topology, old.collective).bytes_per_second, throughput(schedule, old.topology)
    return max(Fraction(limit) / Fraction(rate), Fraction(1)) if limit and rate else Fraction(1)


def _is_enough(
    schedule: Schedule, topology: Topology, bounds: Bound, size: int, *, by_time: bool = False,
    above: Fraction = REPLAN_ABOVE,
) -> bool:  # fmt: skip
    """Return whether planning anew could gain little: the rate (with `by_time` also the time) is near the bound, or
    latency is more than half of the time. `above`: a rate is near if the bound's, divided by it, is at most this.
    """
    rate = throughput(schedule, topology)  # None for the schedule or the bound: nothing moves, so nothing can be gained
    if not rate or not bounds.bytes_per_second:
        return True
    seconds = _seconds(schedule, topology, size)
    is_slow = by_time and seconds * float(bounds.bytes_per_second) > REPLAN_SLOWER * size
    if not is_slow and bounds.bytes_per_second / rate <= above:
        return True
    latency = _seconds(schedule, topology, nbytes=0)
    return latency > seconds / 2


def _repaired(
    entry: Entry, old: Topology, topology: Topology, bounds: Bound, size: int, tell: Callable[[str], None]
) -> Iterator[_Candidate]:
    """Yield the repaired schedule, sliced as before and for the size; nothing if its chunks move along no trees."""
    before = entry.schedule
    tell(f"repairing {before.transfers} transfers on {topology.name}")
    try:
        # trees use no multicast or reduction of switches, so their bound is the one without
        trees = repair_trees(before, old, topology, bounds.without_help.bytes_per_second)
    except Unsupported as reason:
        tell(str(reason))
        return
    pieces = {_count_pieces(trees.schedule, topology, bounds, size)}
    # a number of slices for each old chunk (an array) does not fit the new chunks, so it is dropped
    pieces |= {before.pieces} if isinstance(before.pieces, int) else set()
    for number in sorted(pieces):
        yield _Candidate(replace(trees.schedule, pieces=number), trees.kept_transfers)


def _repaired_if_deep(
    entry: Entry, old: Plan, topology: Topology, bounds: Bound, size: int, tell: Callable[[str], None]
) -> list[_Candidate]:
    """Return `_repaired_rooted` if the old schedule was slow on the intact machine, since its pipeline fills slowly.

    On many ranks a repair takes 15 CPU seconds, so that either these trees or the old schedule is repaired, not both. A
    plan that `compose` made for the best rate is of such trees itself, and is not planned again.
    """
    provenance = entry.schedule.provenance
    if provenance.get("planner") == "compose" and provenance.get("options", {}).get("best") == "rate":
        return []
    intact_bounds = bound(old.topology, old.collective)
    if _is_enough(entry.schedule, old.topology, intact_bounds, size, by_time=True):
        return []
    return _repaired_rooted(old, topology, bounds, size, tell)


def _repaired_rooted(
    old: Plan, topology: Topology, bounds: Bound, size: int, tell: Callable[[str], None]
) -> list[_Candidate]:
    """Return an allreduce by trees out of every rank, planned on the intact machine and repaired; else nothing.

    Each link is near the root of some trees and far from others, so a pipeline keeps it busy from the first steps on.
    Planned on the degraded machine, where ranks have unequal links, such trees have a lower rate than repaired ones.
    On many ranks, `compose` plans such trees sooner than `trees`, and in chunks of equal size.
    """
    if old.collective.kind != "allreduce":
        return []
    tell(f"planning allreduce on {old.topology.name} by trees out of every rank")
    is_small = old.topology.ranks <= CHEAP_RANKS
    # `halves`: a reducescatter and then an allgather, each by trees of every rank. `_repaired` slices the result.
    planner, options = ("trees", {"halves": True, "pieces": 1}) if is_small else ("compose", {"best": "rate"})
    try:
        rooted = plan(old.collective, old.topology, planner=planner, nbytes=None if is_small else size, options=options)
    except (Infeasible, Invalid, NotFound, Unsupported):
        return []
    repaired = _repaired(rooted.entries[0], old.topology, topology, bounds, size, tell)
    # nothing is kept of the old schedule, only of this one
    return [candidate._replace(kept_transfers=0) for candidate in repaired]


def _count_pieces(schedule: Schedule, topology: Topology, bounds: Bound, size: int) -> int:
    """Return the number of slices for a size: the best by model alpha-beta, which tries many.

    Over MAX_PREDICTED transfers it is estimated by a formula, as if all steps took equally long: S steps in n slices
    take (S + n - 1) * (latency + bytes / (n * rate)), least at n = sqrt((S - 1) * bytes / rate / latency).
    """
    if schedule.transfers <= MAX_PREDICTED:
        return best_pieces(schedule, topology, size)
    latency = _seconds(schedule, topology, nbytes=0) / schedule.steps
    seconds = float(size / (bounds.bytes_per_second or 1))
    best = math.sqrt((schedule.steps - 1) * seconds / latency) if latency else PIPELINING.max_pieces
    return max(1, min(round(best), max_pieces_for(schedule, size)))


def _planned_anew(
    entry: Entry, collective: Collective, topology: Topology, options: dict[str, Any], tell: Callable[[str], None]
) -> Iterator[_Candidate]:
    """Yield new schedules by the old one's planner, and by those of ANY_MACHINE; raise if none supports the machine.

    Of ANY_MACHINE, "relay" plans every kind of collective, so at least one planner is tried.
    """
    planners = [_planner_of(entry), *ANY_MACHINE]
    registered = table("planner")
    failure: Exception | None = None
    any_schedule = False
    for planner in dict.fromkeys(planners):
        if planner not in registered or collective.kind not in registered[planner].can.collectives:
            continue
        tell(f"planning {collective.kind} anew by {planner}")
        try:
            schedule = plan(collective, topology, planner=planner, **options).entries[0].schedule
        except (Infeasible, Invalid, NotFound, Unsupported) as error:
            failure = failure or error
            continue
        any_schedule = True
        yield _Candidate(schedule, kept_transfers=0)
    if failure is not None and not any_schedule:
        raise failure
