"""Price the schedules of a plan at many sizes, so that a plan from a file shows what a tuning shows.

A plan file holds the winners of a search, not their times by size. Each distinct schedule becomes a `Candidate`, each
entry a `Range` with the figures that its claims state, or that the model gives where they state none.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from antiphon.core.bounds import Bound, bound
from antiphon.core.plan import Entry, Plan
from antiphon.cost import Predictor, prepare, usual_model
from antiphon.cost.basis import basis_of
from antiphon.cost.nccl.library import LibraryModel, find_library_model
from antiphon.cost.profile import Profile
from antiphon.errors import AntiphonError, Unsupported
from antiphon.select import Candidate, Limit, Range, least_times
from antiphon.select.ranges import ends_of
from antiphon.select.task import OK

TYPICAL_SIZE = 1_000_000  # bytes at which a plan for all sizes is shown, if the user names no size


@dataclass(frozen=True, eq=False)
class PlanFigures:
    """A plan with the times of its schedules by size."""

    plan: Plan
    model: str
    sizes: tuple[int, ...]
    candidates: tuple[Candidate, ...]
    ranges: tuple[Range, ...]
    limit: Limit | None
    library: LibraryModel | None
    predictors: tuple[Predictor, ...]  # one per entry


def price_plan(
    plan: Plan, sizes: Sequence[int], nbytes: int | None, model: str, profile: Profile | None,
    lower_bound: Bound | None = None,
) -> PlanFigures:  # fmt: skip
    """Price every schedule of a plan at these sizes, and at the size at which each entry is shown.

    `nbytes`: the entry for this size is shown at it. Any other is shown at the size that its claims name, else at
    TYPICAL_SIZE or the end of its range that is nearest to it. `lower_bound`: computed here if None.
    """
    claimed = {str(entry.claims["model"]) for entry in plan.entries if entry.claims.get("model")}
    if not model and profile is None and len(claimed) == 1 and not any("profile" in e.claims for e in plan.entries):
        (model,) = claimed
    model = model or usual_model(plan.topology, profile, wanted=(plan.collective,))
    shown = [_shown_size(entry, nbytes) for entry in plan.entries]
    sizes = sorted({*sizes, *shown})
    limit = None
    with suppress(AntiphonError):
        lower_bound = lower_bound or bound(plan.topology, plan.collective)
        times: dict[int, float] = {}
        if profile is None:
            with suppress(Unsupported):
                times = least_times(plan.collective, plan.topology, lower_bound, sizes, model)
        limit = Limit.of(lower_bound, plan.topology, plan.collective, model=model, times=times)
    priced: list[tuple[Entry, Predictor, Candidate]] = []  # each schedule once
    of_entry = []
    for entry in plan.entries:
        number = next((i for i, (other, _, _) in enumerate(priced) if entry.schedule.same_as(other.schedule)), -1)
        if number < 0:
            predictor = prepare(model, entry.schedule, plan.topology, profile=profile)
            priced.append((entry, predictor, _candidate(plan, entry, predictor, sizes, profile)))
        of_entry.append(priced[number])
    ranges = [
        _range(plan, entry, at, candidate, limit, sizes)
        for entry, at, (_, _, candidate) in zip(plan.entries, shown, of_entry, strict=True)
    ]
    library = find_library_model(plan.topology, (plan.collective,)) if model.partition(":")[0] == "calls" else None
    return PlanFigures(
        plan, model, tuple(sizes), tuple(candidate for _, _, candidate in priced), tuple(ranges), limit,
        # a cache of its own: bounds are computed when needed, instead of none (`find_library_model`)
        library=library and replace(library, lower_bounds={}),
        predictors=tuple(predictor for _, predictor, _ in of_entry),
    )  # fmt: skip


def _shown_size(entry: Entry, nbytes: int | None) -> int:
    """Return the size at which an entry is shown."""
    last = entry.stop - 1 if entry.stop is not None else 2**60  # above all sizes
    if nbytes is not None and entry.start <= nbytes <= last:
        return nbytes
    at = entry.claims.get("at")
    if isinstance(at, int) and not isinstance(at, bool) and entry.start <= at <= last and at > 0:
        return at
    return min(max(entry.start, TYPICAL_SIZE), last) or 1  # 1: the only size of the range is 0


def _candidate(
    plan: Plan, entry: Entry, predictor: Predictor, sizes: Sequence[int], profile: Profile | None
) -> Candidate:
    """Return the schedule of an entry with its times at all sizes."""
    predictions = {size: predictor(size) for size in sizes}
    schedule, claims = entry.schedule, entry.claims
    options, variant = claims.get("options"), claims.get("variant")
    figures = {key: claims[key] for key in ("chunks", "steps", "rounds", "transfers", "uses") if key in claims}
    return Candidate(
        plan.collective.kind, planner_of(entry), dict(options) if isinstance(options, dict) else {}, OK,
        variant=variant if isinstance(variant, int) else 0,
        seconds={size: prediction.seconds for size, prediction in predictions.items()},
        why={size: (prediction.bottleneck, dict(prediction.terms)) for size, prediction in predictions.items()},
        rests_on={size: basis_of(prediction, profile) for size, prediction in predictions.items()},
        figures={"steps": schedule.steps, "transfers": schedule.transfers, **figures},
    )  # fmt: skip


def planner_of(entry: Entry) -> str:
    """Return the planner that an entry names, or "schedule"."""
    return str(entry.claims.get("planner") or entry.schedule.provenance.get("planner") or "schedule")


def _number(value: Any) -> float | None:
    """Return a claim as a number; None if it is none."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _range(plan: Plan, entry: Entry, at: int, candidate: Candidate, limit: Limit | None, sizes: Sequence[int]) -> Range:
    """Return an entry as a range, with the speedup and the library that its claims name."""
    seconds, claims = candidate.seconds[at], entry.claims
    # the part of the range that the chart shows, from the least priced size on, if it is in the range
    if entry.stop is not None:
        start, stop = min(max(entry.start, sizes[0]), entry.stop - 1), entry.stop
    else:  # to the largest priced size, which belongs to it
        start, stop = entry.start or sizes[0], max(sizes[-1], entry.start)
    served_by = entry.served_by
    priced = [size for size in sizes if entry.start <= size and (entry.stop is None or size < entry.stop)]
    # of the model shown, which may be another than that of the claims
    gaps = [limit.gap(size, candidate.seconds[size]) for size in {*priced, at}] if limit is not None else []
    return Range(
        plan.collective.kind, start, stop, at, candidate, seconds,
        gap=limit.gap(at, seconds) if limit is not None else None, speedup=_number(claims.get("speedup")),
        over=str(claims.get("over") or ""),  # the algorithm of the library that `speedup` compares with
        rests_on=candidate.rests_on[at], served_by=served_by,
        reference=str(claims.get("reference") or served_by),  # the library
        gap_model=limit.model if limit is not None else "",
        largest_gap=ends_of(gaps)[1], least_speedup=_number(claims.get("least_speedup")),
        largest_speedup=_number(claims.get("largest_speedup")),
    )  # fmt: skip
