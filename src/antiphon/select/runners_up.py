"""Emit plans; replace schedules that a file format cannot express by runners-up, and note what that costs.

A tuning picks the fastest schedule, but not every format can express it (reduction in switches, uneven pieces, local
permutations). Each range of a tuned plan therefore lists the next best candidates (runners-up). For each entry of a
plan that the back end of a format (the code that writes it) refuses:

    1. Plan the runners-up anew, the fastest first, until one can be written and is as fast as it was priced.
    2. If that one is not clearly faster than the GPU library, leave these sizes to the library.
    3. A plan that was not tuned lists no runners-up: raise Unsupported, and report what the format's option `alone`
       would cost. With it every transfer is sent by itself: switches neither multicast nor reduce.

Example: nvls wins at 1 MB with 20 us, trees is next with 24 us, NCCL takes 30 us by its model. The format cannot
multicast, so trees is written, with a note that it takes 1.2 times as long, and is still 1.25 times as fast as NCCL.

Where a winner's chunks do not divide the size at which it won, as 12 chunks do no power of two, a format that can write
two schedules for a range gets a runner-up beside the winner, for the sizes that the winner leaves out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from antiphon.core.plan import GPU_LIBRARIES, Entry, Plan
from antiphon.core.transform import unjoined
from antiphon.cost import predict
from antiphon.cost.nccl.accuracy import error_at, is_clearly_faster
from antiphon.cost.nccl.layout import count_nodes
from antiphon.cost.nccl.library import find_library_model
from antiphon.errors import AntiphonError, NotFound, Unsupported, list_first
from antiphon.formats import emit, find_format
from antiphon.formats.files import FileContent, Files
from antiphon.options import name_with_options
from antiphon.registry import find
from antiphon.select.plans import every_plan
from antiphon.units import format_size, range_text

SAME_PRICE = 1e-6  # greatest relative difference of two predictions for one schedule: rounding of floats
PRICED_AT = 2**26  # bytes at which the option `alone` is priced, or the nearest size of the range: bandwidth dominates


def emit_with_runners_up(
    plans: Mapping[str, Plan], name: str, nbytes: int | str | None = None, options: Mapping[str, Any] | None = None
) -> tuple[Files[FileContent], dict[str, Plan], list[str]]:
    """Return what `emit` does, the plans that it wrote, and a note for each runner-up in them."""
    plans, notes = dict(plans), list[str]()
    try:
        emitted = emit(plans, name, nbytes=nbytes, options=options)
    except Unsupported:
        # only where a runtime uses the files in place of a GPU library's own choice: sizes may be left to that library
        if not find_format(name).can.replaces:
            raise
        for kind, plan in plans.items():
            plans[kind], plan_notes = _replace_unwritable(plan, name, options)
            notes += plan_notes
        emitted = emit(plans, name, nbytes=nbytes, options=options)
    count = len(notes)
    for kind, tuned_bytes in sorted(emitted.unserved):
        key = next(key for key, plan in plans.items() if plan.collective.kind == kind)
        plans[key], plan_notes = _add_other(plans[key], tuned_bytes, name, options)
        notes += plan_notes
    if len(notes) > count:
        emitted = emit(plans, name, nbytes=nbytes, options=options)
    return emitted, plans, notes


def _replace_unwritable(plan: Plan, name: str, options: Mapping[str, Any] | None) -> tuple[Plan, list[str]]:
    """Return the plan with runners-up in place of schedules that format `name` cannot express, and a note for each.

    `options`: of the format. If no runner-up is faster than the GPU library, its sizes are left to that library. Raises
    Unsupported if a range lists no runners-up, as it was not tuned, and NotFound if the library is left with all sizes.
    """
    entries, notes = list[Entry](), list[str]()
    for entry in plan.entries:
        try:
            if entry.served_by not in GPU_LIBRARIES:
                _emit_entry(plan, entry, name, options)
        except NotFound:  # the format itself leaves these sizes to the GPU library
            pass
        except Unsupported as fault:
            if not isinstance(entry.claims.get("runners_up"), list | tuple):
                raise Unsupported(f"{fault}{_unjoined_cost_text(plan, entry, name)}") from None
            substitute, note = _find_substitute(plan, entry, fault, name, options)
            entries.append(substitute)
            notes.append(f"{plan.collective.kind} from {format_size(entry.start)}: {note} ({fault})")
            continue
        entries.append(entry)
    if notes and all(entry.served_by in GPU_LIBRARIES for entry in entries):
        raise NotFound(f"{name}: nothing to write: {list_first(notes, limit=1)}")
    return replace(plan, entries=tuple(entries)), notes


def _add_other(plan: Plan, tuned_bytes: int, name: str, options: Mapping[str, Any] | None) -> tuple[Plan, list[str]]:
    """Return the plan with a runner-up that serves a tuned size beside the schedule that does not, and a note."""
    entry = plan.at(tuned_bytes)
    runner_up = _find_runner_up(plan, entry, name, options, serving=True) if "runners_up" in entry.claims else None
    if runner_up is None:
        return plan, []
    other, price = runner_up
    entries = tuple(replace(each, other=other) if each is entry else each for each in plan.entries)
    names = [f"{_name_of(each.claims)} of {len(each.schedule.chunks)} chunks" for each in (other, entry)]
    label = f"{plan.collective.kind} {range_text(entry.start, entry.stop)}"
    note = f"{label}: {names[0]}, {price}, for calls of sizes that {names[1]} cannot cut"
    return replace(plan, entries=entries), [note]


def _emit_entry(plan: Plan, entry: Entry, name: str, options: Mapping[str, Any] | None) -> Files[FileContent]:
    """Return what `emit` does for a plan of one entry alone, for all sizes."""
    return emit(Plan(plan.topology, plan.collective, (replace(entry, start=0, stop=None),)), name, options=options)


def _find_substitute(
    plan: Plan, entry: Entry, fault: Unsupported, name: str, options: Mapping[str, Any] | None
) -> tuple[Entry, str]:
    """Return the best runner-up that can be written, or the entry left to the library; and a note with what that
    costs.

    `fault`: why the format cannot express the entry itself.
    """
    claims, best_name = entry.claims, _name_of(entry.claims)
    runner_up = _find_runner_up(plan, entry, name, options)
    if runner_up is not None:
        substitute, price = runner_up
        return substitute, f"{best_name} cannot be written; {_name_of(substitute.claims)} instead, {price}"
    if not claims.get("reference") or not claims.get("speedup"):
        raise Unsupported(
            f"{name}: can write neither {best_name} ({fault}) nor any runner-up; if another schedule can be written, "
            "tune with its planner (--planner)"
        )
    library = str(claims["reference"])
    served = replace(entry, claims={**claims, "use": "library", "served_by": library})
    note = f"{best_name} cannot be written, and no runner-up that can be is clearly faster than {library.upper()}"
    return served, f"{note}: left to {library.upper()}"


def _find_runner_up(
    plan: Plan, entry: Entry, name: str, options: Mapping[str, Any] | None, *, serving: bool = False
) -> tuple[Entry, str] | None:
    """Return the fastest runner-up that the format can express, and what it costs in words; None if none of these is
    clearly faster than the GPU library.

    `serving`: only one with which the format serves the tuned size, and without relays outside of the group, which
    would change the files of all other ranges.
    """
    claims = entry.claims  # its figures are for the size claims["at"], in bytes
    seconds = float(claims["seconds"])
    # the library's time follows from the claimed speedup of the winner
    library_seconds = seconds * claims["speedup"] if claims.get("reference") and claims.get("speedup") else None
    error = _library_error(plan, int(claims["at"]))
    for runner in _list_runners_up(claims):
        speedup = None if library_seconds is None else library_seconds / runner["seconds"]
        if speedup is not None and not is_clearly_faster(speedup, error):
            break  # the next runners-up are even slower
        substitute = _plan_runner_up(plan, entry, {**runner, "speedup": speedup})
        if substitute is None:
            continue
        try:
            files = _emit_entry(plan, substitute, name, options)
        except (Unsupported, NotFound):
            continue
        ranks = {*substitute.schedule.src.tolist(), *substitute.schedule.dst.tolist()}
        if serving and (files.unserved or not ranks <= {*plan.collective.members}):
            continue
        versus_library = "" if speedup is None else f", {speedup:.3g}x {str(claims['reference']).upper()}"
        cost = f"{max(runner['seconds'] / seconds - 1, 0.0):.0%} slower" if seconds else "slower"
        return substitute, cost + versus_library
    return None


def _library_error(plan: Plan, nbytes: int) -> float | None:
    """Return the error of the GPU library's model on this machine; without figures of its GPUs, of any machine."""
    with suppress(AntiphonError):
        library = find_library_model(plan.topology, [plan.collective])
        if library is not None:
            return library.error_at(plan.collective.kind, nbytes)
    return error_at(plan.collective.kind, nbytes, count_nodes(plan.topology, plan.collective.members))


def _plan_runner_up(plan: Plan, entry: Entry, runner: Mapping[str, Any]) -> Entry | None:
    """Return the runner-up, planned anew and verified; None if it is now slower than it was priced.

    Of several schedules of the planner it is the one with the price that was stated, if any has it.
    """
    at, model = int(entry.claims["at"]), str(entry.claims.get("model", ""))
    # predictions by a user's profile cannot be repeated, as the plan does not contain the profile: take the fastest
    by_profile, highest = "profile" in entry.claims, runner["seconds"] * (1 + SAME_PRICE)
    planned, best = None, math.inf
    with suppress(AntiphonError):  # which may also end a search after its first schedules
        for candidate in every_plan(
            plan.collective, plan.topology, planner=runner["planner"], options=runner["options"], nbytes=at
        ):
            (predicted,) = predict(Plan.of(plan.topology, candidate.entries[0].schedule), at, model=model)
            distance = predicted["seconds"] if by_profile else highest - predicted["seconds"]
            if 0 <= distance < best:
                planned, best = candidate.entries[0], distance
            if best <= 2 * SAME_PRICE * runner["seconds"]:
                break
    if planned is None:
        return None
    # how the range was priced and compared stays as it is ("over": the algorithm that the library would choose)
    terms = ("at", "model", "over", "reference", "profile", "runners_up")
    pricing = {k: v for k, v in entry.claims.items() if k in terms}
    claims = {**planned.claims, **pricing, **runner, "instead_of": _name_of(entry.claims)}
    return replace(entry, schedule=planned.schedule, claims=claims)


def _list_runners_up(claims: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the runners-up that a plan lists, the fastest first; malformed rows are skipped."""
    rows = [
        row for row in claims["runners_up"]
        if isinstance(row, dict) and isinstance(row.get("planner"), str) and isinstance(row.get("options"), dict)
        and isinstance(row.get("seconds"), int | float) and row["seconds"] > 0
    ]  # fmt: skip
    yield from sorted(rows, key=lambda row: float(row["seconds"]))


def _name_of(row: Mapping[str, Any]) -> str:
    """Return planner and options of an entry's claims, or of a runner-up, as text."""
    return name_with_options(str(row.get("planner")), row.get("options", {}))


def _unjoined_cost_text(plan: Plan, entry: Entry, name: str) -> str:
    """Return in words what the format's option `alone` would cost, by the default model; "" if the format has no such
    option, or the model does not support the schedule.
    """
    if entry.schedule.joint is None or "alone" not in find("backend", name).options:
        return ""
    last = PRICED_AT if entry.stop is None else entry.stop - 1
    # the size in the range that is nearest to PRICED_AT
    nbytes = max(entry.start, min(PRICED_AT, last), 1)
    try:
        (joined_row,) = predict(Plan.of(plan.topology, entry.schedule), nbytes)
        (unjoined_row,) = predict(Plan.of(plan.topology, unjoined(entry.schedule)), nbytes)
        joined_seconds, unjoined_seconds = joined_row["seconds"], unjoined_row["seconds"]
    except AntiphonError:
        return ""
    with suppress(AntiphonError):  # raised if nothing is known of the GPUs of this machine
        library = find_library_model(plan.topology, [plan.collective])
        if library is not None:
            speedup = library.choice(plan.collective.kind, nbytes).seconds / unjoined_seconds
            if not is_clearly_faster(speedup, library.error_at(plan.collective.kind, nbytes)):
                # row by row: every transfer sent by itself, as `alone` does
                return f"; {library.name.upper()}'s own choice is as good as what can be written of it row by row"
    return (
        f"; option alone=yes writes it row by row, which takes {unjoined_seconds / joined_seconds:.3g} times as long "
        f"at {format_size(nbytes)} by the model"
    )
