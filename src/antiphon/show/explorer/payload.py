"""Build the JSON that the explorer's page shows: the machine, and per collective its times, ranges, bound and plans.

`antiphon explore` calls the function for its input and passes the result to page.py:

    tuning_page    all candidates of a search, with the plans that won
    plans_page     the plans of a file, priced by one model
    frontier_page  the points of a frontier, as a chart of two figures, each with its plan
    sweep_page     the machines of a sweep, as a chart of two figures
    trace_page     the messages of a trace, between pairs of ranks, as it names no machine

One model, which the page names, predicts everything on it: times by size, the bound, and the transfers over time. The
page's scripts (*.js) read this JSON. Each collective is one of `groups`. Its `plans` have the transfers of each range
of sizes (timing.py); each of its `candidates` is a line of the chart, with a time for each of `sizes`. A chart of two
figures has `points`: `at` is the position (x, y), `front` whether a line joins the point (no other point is better in
both), `plan` the index in `plans`, `cells` the row of the table below the chart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from antiphon.core.plan import Entry, Plan
from antiphon.core.topology import LinkType, Topology, build
from antiphon.cost import Predictor, prepare
from antiphon.cost.basis import join_bases
from antiphon.cost.profile import Profile
from antiphon.errors import AntiphonError, Invalid
from antiphon.formats.trace_messages import TracedMessages
from antiphon.select import DEFINITIONS, Candidate, Frontier, Limit, Range, Tuning, format_switch_uses
from antiphon.select.tuning import Gain
from antiphon.select.verdict import verdict_of
from antiphon.show.explorer.figures import PlanFigures, price_plan
from antiphon.show.explorer.machine import cut_json, machine_json
from antiphon.show.explorer.packing import ticks
from antiphon.show.explorer.timing import MAX_ROWS, pack_times, timed_transfers
from antiphon.show.pictures.heatmap import heatmap_svg
from antiphon.show.words import (
    all_notes,
    candidate_text,
    ends_text,
    forwarding_bound_text,
    library_name,
    loss_text,
    model_text,
    options_text,
    ratio,
    stopped_text,
    use_lines,
)
from antiphon.sweeps.results import SweepResult, shared_prefix
from antiphon.units import format_seconds, format_size, plural

Baseline = Callable[[int], float | None]  # message size -> seconds that plans are compared with


class RowBudget:
    """The number of transfers (rows) that may still be listed in the page."""

    def __init__(self) -> None:
        self.free = MAX_ROWS


def tuning_page(tuning: Tuning) -> dict[str, Any]:
    """Return the page of a tuning."""
    rows = RowBudget()
    groups = []
    for kind in tuning.collectives:
        ranges = [r for r in tuning.ranges if r.collective == kind]
        plan = tuning.plans.get(kind)
        group = _group(
            tuning.topology, kind, tuning.of(kind), ranges, tuning.sizes, tuning.limits.get(kind),
            baseline=lambda size, kind=kind: tuning.baseline(kind, size),  # type: ignore[misc]
            baseline_name=_baseline_name(tuning, kind),
        )  # fmt: skip
        group["headline"] = tuning.verdicts.get(kind) or f"no planner could plan {kind} here"
        group["notes"] = use_lines(tuning, kind)
        group["plans"] = [
            _plan_json(entry, _predictor(tuning, entry), r, rows)
            for entry, r in zip(plan.entries if plan is not None else (), ranges, strict=True)
        ]
        groups.append(group)
    ok = [c for c in tuning.candidates if c.status == "ok"]
    low, high = (format_size(size) for size in tuning.span)
    facts = [
        f"{low} to {high}",
        f"{plural(len(ok), 'schedule')} by {plural(len({c.planner for c in ok}), 'planner')}, every one verified",
        stopped_text([tuning]),
        *([] if tuning.complete else ["interrupted: not everything was tried"]),
    ]
    page = _page(tuning.topology, groups, f"times by {model_text(tuning)}", facts)
    page["pictures"] = [_options_picture(tuning, kind) for kind in tuning.collectives if _gains_of(tuning, kind)]
    return page | {"notes": [*all_notes(tuning), *map(loss_text, tuning.losses)]}


def _gains_of(tuning: Tuning, kind: str) -> list[Gain]:
    return [gain for gain in tuning.gains if gain.collective == kind]


def _options_picture(tuning: Tuning, kind: str) -> dict[str, Any]:
    """Return the effect at each size of the options of which several values were tried, as a picture and in words."""
    # `gain.first`: the first setting that was tried, with which the best one for each size is compared
    lines = [
        f"{gain.planner}: the best value for each size is {ratio(gain.mean)} as fast as "
        f"{options_text(dict(gain.first))} on average, at most {ratio(gain.most)} at {format_size(gain.at)} "
        f"({gain.rests_on})"
        for gain in _gains_of(tuning, kind)
    ]
    svg = heatmap_svg(tuning, kind, standalone=False, max_width=1200)  # pixels that fit the page
    return {"title": f"Choosing {', '.join(tuning.sweep)} for {kind}", "svg": svg, "lines": lines}


def _predictor(tuning: Tuning, entry: Entry) -> Predictor | None:
    """Return the model of a tuning for a schedule; None if the tuning used a profile, as it has only its name."""
    return None if tuning.profile is not None else prepare(tuning.model, entry.schedule, tuning.topology)


def _baseline_name(tuning: Tuning, kind: str) -> str:
    """Return the name of the dashed line of the chart."""
    # without a model of the library, planners of ours stand for NCCL
    names = " or ".join(tuning.baselines.get(kind, ()))
    return f"{tuning.library.name.upper()}, by the model of it" if tuning.library is not None else f"{names}, for NCCL"


def plans_page(
    plans: Mapping[str, Plan], sizes: Sequence[int], nbytes: int | None, model: str, profile: Profile | None,
    traced: TracedMessages | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Return the page of plans for one machine. `traced`: the messages of a measured run of a plan, to show as well.

    `sizes`, `nbytes`, `model`, `profile`: as for `price_plan`, which evaluates them.
    """
    rows, groups, models, bases = RowBudget(), [], [], []
    for kind, plan in plans.items():
        figures = price_plan(plan, sizes, nbytes, model, profile)
        group = _group(
            plan.topology, kind, figures.candidates, figures.ranges, figures.sizes, figures.limit,
            baseline=_library_baseline(figures, kind),
            baseline_name=f"{figures.library.name.upper()}, by the model of it" if figures.library is not None else "",
        )  # fmt: skip
        group["headline"] = _plan_headline(figures, traced)
        run_entry = None if traced is None else plan.at(traced.nbytes)
        group["plans"] = [
            _plan_json(entry, predictor, r, rows, traced if entry is run_entry else None)
            for entry, predictor, r in zip(plan.entries, figures.predictors, figures.ranges, strict=True)
        ]
        if run_entry is not None:
            group["shown"] = next(i for i, entry in enumerate(plan.entries) if entry is run_entry)
        groups.append(group)
        models.append(figures.model)
        bases += [r.rests_on for r in figures.ranges]  # nominal, calibrated or measured figures
    topology = next(iter(plans.values())).topology
    names = ", ".join(dict.fromkeys(models))
    return _page(topology, groups, f"times by the model `{names}`, {join_bases(bases)}", facts=[])


def _library_baseline(figures: PlanFigures, kind: str) -> Baseline:
    """Return the seconds of the library's own choice, where its model has figures."""

    def seconds(size: int) -> float | None:
        if figures.library is None:
            return None
        try:
            return float(figures.library.choice(kind, size).seconds)
        except AntiphonError:
            return None

    return seconds


def _plan_headline(figures: PlanFigures, traced: TracedMessages | None) -> str:
    """Return one sentence: how long the traced run took; else which sizes to serve by the plans; for a plan of one size
    its time, gap and bottleneck."""
    ranges = figures.ranges
    if traced is not None and traced.measured_seconds:
        predicted = next(r.seconds for r in ranges if r.at == traced.nbytes)  # the caller prices the plan at that size
        return (
            f"{format_size(traced.nbytes)} took {format_seconds(traced.measured_seconds)}, "
            f"{ratio(traced.measured_seconds / predicted)} the predicted {format_seconds(predicted)}"
        )
    if len(ranges) > 1 or ranges[0].speedup is not None:
        return verdict_of(ranges)
    (r,) = ranges
    gap = f", {r.gap:.3g} times the lower bound" if r.gap is not None and r.gap > 1 else ""
    gap = ", and no plan is faster" if r.gap == 1 else gap
    bottleneck, _ = r.candidate.why[r.at]
    return (
        f"{candidate_text(r.candidate)} takes {format_seconds(r.seconds)} for {format_size(r.at)}{gap}; "
        f"limited by {bottleneck}"
    )


def frontier_page(frontier: Frontier, sizes: Sequence[int], nbytes: int | None, model: str) -> dict[str, Any]:
    """Return the page of a frontier: its points as a chart, each with its schedule.

    `sizes`, `nbytes`, `model`: as for `price_plan`, which evaluates them.
    """
    rows, figures = RowBudget(), None
    candidates: list[Candidate] = []
    ranges: list[Range] = []
    plans: list[dict[str, Any]] = []
    points: list[dict[str, Any]] = []
    for point in frontier.points:
        name = f"({point.chunks}, {point.steps}, {point.rounds})"
        # the page lists plans by planner; here by the point's figures
        plan = Plan.of(frontier.topology, point.schedule, {"planner": name, **point.claims})
        figures = price_plan(plan, sizes, nbytes, model, profile=None, lower_bound=frontier.limits)
        plans.append(_plan_json(plan.entries[0], figures.predictors[0], figures.ranges[0], rows))
        candidates += figures.candidates
        ranges += figures.ranges
        gap = ratio(point.claims["bandwidth_gap"])
        points.append({
            "label": name, "at": [point.steps, float(point.ratio)], "front": True, "plan": len(points),
            "lines": [f"{plural(point.steps, 'step')}, R/C {point.ratio}", point.meaning],
            "cells": [str(point.steps), str(point.ratio), gap, point.proof],
        })  # fmt: skip
    if figures is None:
        raise Invalid("this frontier holds no points, only bounds; there is nothing to explore")
    kind = frontier.collective.kind
    group = _group(
        frontier.topology, kind, candidates, ranges, figures.sizes, figures.limit,
        baseline=lambda size: None, baseline_name="",
    )  # fmt: skip
    count = plural(len(points), "point")
    group |= {"headline": f"{count} from the fewest steps to the least time on the links", "plans": plans, "shown": 0}
    page = _page(frontier.topology, [group], f"times by the model `{figures.model}`, {ranges[0].rests_on}", facts=[])
    impossible = [f"no {i.collective} of {i.steps} steps has R/C below {i.ratio}" for i in frontier.impossible]
    page["points"] = {
        "title": "Latency against bandwidth", "axes": ["steps S", "R/C: time on the links"], "points": points,
        "heads": ["(C, S, R)", "steps", "R/C", "gap", "proof"],
        "notes": ["C chunks of each rank's input, S steps, R rounds: time S * latency + R/C * (input / unit link).",
                  *impossible],
    }  # fmt: skip
    return page | {"notes": list(frontier.notes)}


def sweep_page(result: SweepResult) -> dict[str, Any]:
    """Return the page of a sweep: machines by price and relative time, without price by their ranks."""
    machines = [m for m in result.machines() if m.relative_time is not None]
    prices = list(result.request.prices)
    price = next((name for name in prices if any(m.price[name] for m in machines)), None)
    shared = shared_prefix([m.machine for m in machines]) if machines else ""
    points = []
    for m in machines:
        position = m.price[price] if price is not None else m.ranks
        if position and m.relative_time:
            # `on_front` compares by price; without prices only the fastest machine, the first, is marked
            front = price in m.on_front if price is not None else m is machines[0]
            figures = [f"{m.relative_time:.3f}x", ratio(m.gap), "-" if m.ranks is None else str(m.ranks)]
            costs = ["-" if m.price[name] is None else f"{m.price[name]:,.10g}" for name in prices]
            points.append({
                "label": m.machine[len(shared) :], "at": [position, m.relative_time], "front": front, "plan": None,
                "lines": [f"{figures[0]} the time of the fastest",
                          *(f"{name}: {cost}" for name, cost in zip(prices, costs, strict=True))],
                "cells": [*figures, *costs],
            })  # fmt: skip
    if not points:
        raise Invalid("no machine of this sweep has a plan for every collective; there is nothing to explore")
    kinds = list(dict.fromkeys(cell.collective for cell in result.request.cells))
    low, high = format_size(result.request.sizes[0]), format_size(result.request.sizes[-1])
    sizes = low if low == high else f"{low} to {high}"
    refused = [f"no figures for {m.machine}: {m.refused}" for m in result.machines() if m.refused]
    return {
        "title": f"{', '.join(kinds)} on {plural(len(machines), 'machine')}",
        "headline": f"the fastest of {plural(len(machines), 'machine')} is {machines[0].machine[len(shared) :]}",
        "facts": [sizes, *([f"all {shared}..."] if shared else [])],
        "model": "times of the fastest machine, geometric mean",
        "groups": [], "notes": refused, "definitions": {},
        "points": {
            "title": "Time against price" if price is not None else "Time against ranks",
            "axes": [f"price ({price})" if price is not None else "ranks", "time over that of the fastest machine"],
            "points": points, "heads": ["machine", "time", "worst gap", "ranks", *prices],
            "notes": ["The line joins the machines than which none is as fast for the same money."] if price else [],
        },
    }  # fmt: skip


def trace_page(traced: TracedMessages) -> dict[str, Any]:
    """Return the page of a trace: its messages over time, with a link for each pair of ranks that exchange messages."""
    ranks = int(max(traced.src.max(), traced.dst.max())) + 1
    between_ranks = np.flatnonzero(traced.src != traced.dst)
    pairs, pair = np.unique(traced.src[between_ranks] * ranks + traced.dst[between_ranks], return_inverse=True)
    link = LinkType("messages", Fraction(1), latency=0.0)
    machine = build(traced.title, ranks, [(each // ranks, each % ranks, link) for each in pairs.tolist()])
    total = float(traced.landed.max())
    # times in ticks: whole numbers, of which `total` has 2^30 (packing.py)
    pack = pack_times(traced.step, traced.src, traced.dst, ticks(traced.start, total), ticks(traced.landed, total),
                      traced.carried / traced.nbytes)  # fmt: skip
    # The other columns that timing.py packs for a plan. A trace does not name chunks.
    zeros = np.zeros(len(traced.step), np.int64)
    for name in ("op", "chunks"):
        pack.add(name, zeros)
    for name in ("chunk", "block"):
        pack.add(name, zeros[:0])
    # by link: how many messages use it, and which, in order of their numbers (stored as differences)
    pack.add("use_count", np.bincount(pair, minlength=len(pairs)))
    pack.add("use_message", between_ranks[np.argsort(pair, kind="stable")], delta=True)
    pack.add("critical", traced.critical)
    last = int(traced.landed.argmax())
    end = f"rank {traced.src[last]} to rank {traced.dst[last]}, step {traced.step[last]}"
    runs = traced.about.get("runs")
    group: dict[str, Any] = {key: [] for key in ("sizes", "candidates", "ranges", "proof", "notes")} | {
        "kind": traced.title, "headline": "", "bound": None, "baseline": None, "shown": 0, "cut": None,
        "plans": [{
            "name": "", "at": traced.nbytes, "seconds": total, "terms": {}, "bottleneck": "", "measured": [],
            "facts": {"messages": len(traced.step), "steps": len(np.unique(traced.step)), "lands last": end},
            "timed": {"rows": len(traced.step), "total": total, "messages": len(traced.step), "pack": pack.as_json()},
        }],
    }  # fmt: skip
    return {
        "title": traced.title,
        "headline": f"{plural(ranks, 'rank')} exchange {plural(len(traced.step), 'message')} in "
                    f"{format_seconds(total)} for {format_size(traced.nbytes)}; the last is from {end}",
        "facts": [f"the run of median time, of {runs}"] if runs else [],
        "model": f"times {traced.label}",
        "machine": machine_json(machine) | {"speeds": [], "latencies": []},  # a trace does not state them
        "groups": [group],
        "notes": ["A trace names no machine: a line joins two ranks that exchange messages."],
        "definitions": {},
        "recorded": True,
    }  # fmt: skip


def _page(topology: Topology, groups: list[dict[str, Any]], model: str, facts: list[str]) -> dict[str, Any]:
    """Return the fields that all pages of plans have."""
    kinds = [group["kind"] for group in groups]
    return {
        "title": f"{kinds[0] if len(kinds) == 1 else 'Collectives'} on {topology.name}",
        "headline": groups[0]["headline"] if len(groups) == 1 else "",
        "facts": facts,
        "model": model,
        "machine": machine_json(topology),
        "groups": groups,
        "notes": [],
        "definitions": DEFINITIONS,
    }


def _group(
    topology: Topology, kind: str, candidates: Sequence[Candidate], ranges: Sequence[Range], sizes: Sequence[int],
    limit: Limit | None, baseline: Baseline, baseline_name: str,
) -> dict[str, Any]:  # fmt: skip
    """Return the figures of one collective; the caller adds headline and plans."""
    numbers = {id(c): i for i, c in enumerate(candidates)}  # by identity: candidates have no equality
    proof = [] if limit is None else [*limit.because, *filter(None, [forwarding_bound_text(limit)])]
    baseline_seconds = [baseline(size) for size in sizes]
    return {
        "kind": kind,
        "sizes": list(sizes),
        "candidates": [_candidate_json(c, sizes) for c in candidates],
        "ranges": [_range_json(r, numbers[id(r.candidate)]) for r in ranges],
        "bound": [limit.times.get(size) for size in sizes] if limit is not None and limit.times else None,
        "proof": proof,
        "baseline": {"name": baseline_name, "seconds": baseline_seconds} if any(baseline_seconds) else None,
        "shown": _first_shown(ranges),
        "notes": [],
        "plans": [],
        "cut": cut_json(topology, limit),
    }


def _first_shown(ranges: Sequence[Range]) -> int:
    """Return the range whose plan is shown first: of ours that with the greatest speedup, else the last."""
    ours = [i for i, r in enumerate(ranges) if not r.served_by]
    return max(ours, key=lambda i: (ranges[i].speedup or 0.0, i), default=max(len(ranges) - 1, 0))


def _candidate_json(c: Candidate, sizes: Sequence[int]) -> dict[str, Any]:
    """Return a candidate: per size its seconds, the terms of these and the bottleneck; or why it has none.

    `limited`: per size the index of the bottleneck in `names`, -1 if unknown. `rival`: it stands for NCCL only.
    """
    value: dict[str, Any] = {"planner": c.planner, "options": options_text(c.options, c.variant)}
    if not c.seconds:
        return value | {"status": c.status, "reason": c.reason}
    names = list(dict.fromkeys(bottleneck for bottleneck, _ in c.why.values()))
    terms = list(dict.fromkeys(term for _, values in c.why.values() for term in values))
    return value | {
        "seconds": [_short(c.seconds.get(size)) for size in sizes],
        "names": names,
        "limited": [names.index(c.why[size][0]) if size in c.why else -1 for size in sizes],
        "terms": {
            term: [_short(c.why[size][1].get(term, 0.0)) if size in c.why else 0 for size in sizes] for term in terms
        },
        "figures": {key: c.figures[key] for key in ("chunks", "steps", "transfers") if key in c.figures},
        "rival": not c.may_win,
    }


def _short(value: float | None) -> float | None:
    """Return the value with five digits, so that the page stays small."""
    return None if value is None else float(f"{value:.5g}")


def _range_json(r: Range, candidate: int) -> dict[str, Any]:
    """Return a range of sizes with its figures."""
    return {
        "span": [*ends_text(r.start, r.stop)],
        "from": r.start,
        "to": r.stop,
        "at": r.at,
        "candidate": candidate,
        "seconds": r.seconds,
        "gap": r.gap,
        "speedup": r.speedup,
        "over": r.over,  # the library's own choice of algorithm, over which `speedup` is
        "served_by": library_name(r.served_by) if r.served_by else "",
        "uses": format_switch_uses(r.candidate.uses) if r.candidate.uses else "",
        "rests_on": r.rests_on,
    }


def _plan_json(
    entry: Entry, predictor: Predictor | None, size_range: Range, rows: RowBudget, traced: TracedMessages | None = None
) -> dict[str, Any]:
    """Return the schedule of a range with its transfers over time at the size `size_range.at`.

    `predictor`: None if only the name of the profile is known. `traced`: messages of a run of this schedule.
    """
    bottleneck, terms = size_range.candidate.why[size_range.at]
    if predictor is None:
        timed: dict[str, Any] = {"why": "to play it, write the plan and explore that with --profile"}
    else:
        timed = timed_transfers(entry.schedule, size_range.at, predictor, rows.free, traced)
    rows.free -= timed.get("rows", 0)
    facts = {
        key.replace("_", " "): value for key, value in entry.claims.items()
        if key in ("chunks", "steps", "rounds", "transfers") and value is not None
    }  # fmt: skip
    facts |= {key.replace("_", " "): ratio(entry.claims[key]) for key in ("bandwidth_gap", "latency_gap")
              if isinstance(entry.claims.get(key), float | int)}  # fmt: skip
    measured = _measurements(entry)
    if traced is not None and traced.measured_seconds:
        measured.append({"nbytes": traced.nbytes, "seconds": traced.measured_seconds})
        facts |= {"measured": format_seconds(traced.measured_seconds),
                  "over predicted": ratio(traced.measured_seconds / size_range.seconds)}  # fmt: skip
    return {
        "name": candidate_text(size_range.candidate),
        "at": size_range.at,
        "seconds": size_range.seconds,
        "terms": dict(terms),
        "bottleneck": bottleneck,
        # counts that the plan claims replace these
        "facts": {"steps": entry.schedule.steps, "transfers": entry.schedule.transfers, **facts},
        "measured": measured,
        "timed": timed,
    }


def _measurements(entry: Entry) -> list[dict[str, float]]:
    """Return the sizes and seconds that a measured entry claims."""
    rows = entry.claims.get("measurements")
    return [
        {"nbytes": row["nbytes"], "seconds": row["seconds"]}
        for row in (rows if isinstance(rows, list) else [])
        if isinstance(row, dict) and all(type(row.get(key)) in (int, float) for key in ("nbytes", "seconds"))
    ]
