"""The result of `tune`: every candidate with its times, the ranges of sizes, and a plan per collective.

`Tuning` is what `tune` returns, `as_json` what `antiphon tune --json` prints; DEFINITIONS explains the keys of a range.

A sweep tries several values of planner options; a setting is one combination of them. `measure_gains` computes what is
gained by choosing the best setting for every size instead of the first one for all sizes: the speedup over the first
setting, as a geometric mean over the sizes and as the maximum. Example: k = 2 takes 10 and 20 us at two sizes, k = 8
takes 12 and 5 us. The best is k = 2, then k = 8; the speedups are 1 and 4, their mean is 2.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from antiphon.core.display import Explorable
from antiphon.core.plan import Plan
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.cost.basis import NOT_CALIBRATED, join_bases
from antiphon.cost.nccl.library import LibraryModel
from antiphon.errors import Invalid, NotFound
from antiphon.options import name_with_options
from antiphon.select.candidate import Candidate, Range
from antiphon.select.counts import CountsLoss
from antiphon.select.limits import Damage, Limit, Loss
from antiphon.select.plan_files import save_plans
from antiphon.select.ranges import TIE, Key, choose_winners, merge_runs
from antiphon.select.sweep import Value
from antiphon.select.task import BUDGET, REFUSED
from antiphon.select.uses import format_switch_uses
from antiphon.select.verdict import verdict_of
from antiphon.units import format_seconds, format_size

ENDED_KEYS = ("collective", "planner", "options", "ended_by", "reason")  # JSON keys of candidates that ended early
NVLS_MIXTURE = "beside"  # option of planner nvls: plain transfers over links that its joints leave idle; NCCL has none
Sweep = Mapping[str, tuple[Value, ...]]  # option -> the values to try
Setting = tuple[tuple[str, Value], ...]  # the options swept, with the values of one candidate
DEFINITIONS = {
    "verdict": "by collective one sentence: which sizes to serve by these plans, and which to leave to the library",
    "seconds": "predicted by the model, at the greatest size that was priced in the range",
    "gap": "seconds over the least seconds that any schedule takes under the same model and profile (gap_model); null "
    "where no bound of the model is known",
    "speedup": "by model calls the seconds of what NCCL would choose (key over), divided by seconds; by others the "
    "seconds of the best schedule of the baseline's planners, divided by seconds, null where one of them failed or "
    "timed out (key no_speedup says which)",
    "largest_gap": "the greatest gap at any size that was priced in the range; null where one is not known",
    "least_speedup": "the least speedup at any size that was priced in the range; null where one is not known",
    "largest_speedup": "the greatest speedup at any size that was priced in the range; null where one is not known",
    "use": "ours, or library: leave these sizes to served_by, as ours is not faster by more than the error of the "
    "library's model",
    "beyond_error": "whether the speedup is more than the median error of the library's model; null: not known",
    "error": "the median error of the library's model at this size, relative; null: not known",
    "library_gap": "the gap of the library's own choice, where it serves the range",
    "reference": "the library that the speedup is over, by its model",
    "runners_up": "the next best at the size of key at, for runtimes that cannot take the best",
    "sms": "streaming multiprocessors of each GPU (key sms_of: out of how many) that it takes at most while it runs, "
    "where that is known",
    "rests_on": "the measurements that the figures of the line are calibrated by, a profile, or: not calibrated",
}


@dataclass(frozen=True, eq=False)
class Listed:
    """A schedule to be measured on hardware, with the claims that a plan makes of it."""

    candidate: Candidate
    schedule: Schedule
    claims: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class FailureTuning:
    """Single failures that leave isomorphic machines, and the tuning of the machine after the first of them.

    `tuning` is None if not all ranks reach each other then, or the root is lost.
    """

    names: tuple[str, ...]
    tuning: Tuning | None

    @property
    def complete(self) -> bool:
        return self.tuning is None or self.tuning.complete

    def as_json(self) -> dict[str, Any]:
        ranges = [] if self.tuning is None else [r.as_json() for r in self.tuning.ranges]
        return {"dead": list(self.names), "connected": self.tuning is not None, "ranges": ranges}


@dataclass(frozen=True, eq=False)
class Tuning(Explorable):
    """The result of `tune`. Mappings are by collective, unless stated otherwise."""

    topology: Topology
    model: str  # of costs, with its options
    span: tuple[int, int]  # the least and the greatest size requested
    sizes: tuple[int, ...]  # the sizes at which candidates were priced
    collectives: tuple[str, ...]
    candidates: tuple[Candidate, ...]
    ranges: tuple[Range, ...]
    limits: Mapping[str, Limit]  # lower bounds
    baselines: Mapping[str, tuple[str, ...]]  # the planners that stand for NCCL
    plans: Mapping[str, Plan]  # the winners
    losses: tuple[Loss, ...] = ()  # bounds on the degraded and the intact machine, if compared
    complete: bool = True  # False: it was interrupted
    profile: str | None = None  # its name
    no_speedup: Mapping[str, str] = field(default_factory=dict)  # why there is no speedup
    damage: Damage | None = None  # links that the degraded machine lost
    sweep: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)  # option -> values tried
    shortlist: Mapping[str, tuple[Listed, ...]] = field(default_factory=dict)  # schedules worth measuring, if requested
    untried: int = 0  # number of candidates that an interruption skipped
    no_bound: Mapping[str, str] = field(default_factory=dict)  # why the lower bounds are unknown
    library: LibraryModel | None = None  # the model of what NCCL would choose, if it has figures for this machine
    library_refused: str = ""  # why the model of NCCL is not used, though it has figures
    failures: tuple[FailureTuning, ...] = ()  # for single failures, if requested
    counts: CountsLoss | None = None  # what a plan for average counts of an alltoallv loses at other counts

    def __repr__(self) -> str:
        low, high = (format_size(size) for size in self.span)
        kinds = ", ".join(self.collectives)
        content = f"{len(self.ranges)} ranges of {len(self.candidates)} candidates"
        return f"Tuning({kinds} on {self.topology.name}, {low} to {high}: {content})"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plans: one collective as a plan, several, or plans for failures, as a table."""
        failures = [(each.names, each.tuning.plans if each.tuning is not None else {}) for each in self.failures]
        save_plans(path, self.plans, self.model, table=len(self.collectives) > 1, failures=failures)

    @property
    def plan(self) -> Plan:
        """Return the plan, if one collective was tuned; else raise Invalid. NotFound, with reasons: there is none."""
        if len(self.collectives) != 1:
            raise Invalid(f"{len(self.collectives)} collectives were tuned; take one of .plans by its name")
        if not self.plans:
            reasons = list(dict.fromkeys(c.reason for c in self.candidates if c.reason))  # named planners first
            why = self.unpriced or "; ".join(reasons[:2]) or "it was interrupted before any of them ended"
            raise NotFound(f"no planner could plan {self.collectives[0]}: {why}")
        return self.plans[self.collectives[0]]

    @property
    def unpriced(self) -> str:
        """Return the reason of the cost model, if it refused every schedule for this machine; else ""."""
        reasons = [c.reason for c in self.candidates if c.status == REFUSED and c.reason.startswith("model ")]
        return reasons[0] if reasons and not self.ranges else ""

    @property
    def notes(self) -> list[str]:
        """Return what users must know of the figures, a line each."""
        kinds_by_reason: dict[str, list[str]] = {}
        for kind, why in self.no_speedup.items():
            kinds_by_reason.setdefault(why, []).append(kind)
        lines = [f"no speedup for {', '.join(kinds)}: {why}" for why, kinds in kinds_by_reason.items()]
        lines += [f"speedups are over schedules that stand for NCCL: {why}"] if (why := self.library_refused) else []
        lines += [f"no gap for {kind}: its bounds were {why}" for kind, why in self.no_bound.items()]
        lines += [line for r in self.ranges if (line := _switches_note(r))]
        sms_taken = sorted({(r.sms, r.sms_of) for r in self.ranges if r.sms is not None})
        sms_text = " or ".join(f"{sms} of {of}" for sms, of in sms_taken)
        lines += [f"while it runs, communication takes up to {sms_text} SMs of each GPU"] if sms_taken else []
        damage_text = self.damage.describe() if self.damage is not None else ""
        return [line for line in (self.unpriced, *lines, damage_text) if line]

    @property
    def verdicts(self) -> dict[str, str]:
        """Return by collective one sentence: which sizes to serve by our plans, and which to leave to the library."""
        return {
            kind: verdict_of([r for r in self.ranges if r.collective == kind], self.baselines.get(kind, ()))
            for kind in self.collectives if kind in self.plans
        }  # fmt: skip

    @property
    def ended_early(self) -> tuple[Candidate, ...]:
        """Return the candidates that their budget, lack of memory or a crash ended; their results until then count."""
        return tuple(c for c in self.candidates if c.ended_by)

    @property
    def stopped(self) -> int:
        """Return the number of candidates that their budget ended: with more time they may improve."""
        return sum(c.ended_by == BUDGET for c in self.candidates)

    def rests_on(self, collective: str) -> str:
        """Return what the figures of this collective are calibrated by, at any size."""
        return join_bases([r.rests_on for r in self.ranges if r.collective == collective]) or NOT_CALIBRATED

    def of(self, collective: str) -> tuple[Candidate, ...]:
        """Return the candidates of a collective."""
        return tuple(c for c in self.candidates if c.collective == collective)

    @property
    def gains(self) -> tuple[Gain, ...]:
        """Return the speedup by choosing the best swept setting for every size, by collective and planner."""
        return measure_gains({kind: self.of(kind) for kind in self.collectives}, self.sweep, self.sizes)

    def baseline(self, collective: str, nbytes: int) -> float | None:
        """Return the seconds of NCCL's own choice if its figures are known, else those of the best schedule of the
        planners that stand for it; None if there is none.
        """
        if self.library is not None and collective in self.baselines:  # no baselines: no comparison is wanted
            return self.library.choice(collective, nbytes).seconds
        names = self.baselines.get(collective, ())
        stand_ins = (c for c in self.of(collective) if c.planner in names and not _is_beyond_nccl(c))
        return min((c.seconds[nbytes] for c in stand_ins if nbytes in c.seconds), default=None)

    def speedup(self, candidate: Candidate, nbytes: int) -> float | None:
        """Return the baseline's time over the candidate's; None without a baseline, or if the candidate takes none."""
        seconds, baseline_seconds = candidate.seconds[nbytes], self.baseline(candidate.collective, nbytes)
        return baseline_seconds / seconds if baseline_seconds is not None and seconds else None

    def gap(self, candidate: Candidate, nbytes: int) -> float | None:
        """Return the candidate's time over the lower bound; None if no bound is known."""
        limit = self.limits.get(candidate.collective)
        gap = limit.gap(nbytes, candidate.seconds[nbytes]) if limit is not None else None
        return 1.0 if gap is not None and abs(gap - 1) < TIE else gap  # equal to the bound, but for rounding

    def as_json(self) -> dict[str, Any]:
        """Return the result as JSON. Keys are stable; seconds, bytes, bytes per second."""
        return {
            "topology": self.topology.name,
            "model": self.model,
            "profile": self.profile,
            "nbytes": list(self.span),
            "sizes": list(self.sizes),
            "complete": self.complete,
            "stopped": self.stopped,
            "ended_early": [
                {key: value for key, value in c.as_json().items() if key in ENDED_KEYS} for c in self.ended_early
            ],
            "untried": self.untried,
            "verdict": self.verdicts,
            "ranges": [r.as_json() for r in self.ranges],
            "candidates": [c.as_json() for c in self.candidates],
            "bound": {kind: limit.as_json(self.sizes) for kind, limit in self.limits.items()},
            "baseline": {kind: list(names) for kind, names in self.baselines.items()},
            "no_speedup": dict(self.no_speedup),
            "no_bound": dict(self.no_bound),
            "assumes": [],  # bounds hold for any behaviour of switches
            "lost": [loss.as_json() for loss in self.losses],
            "lost_links": self.damage.as_json() if self.damage is not None else None,
            "sweep": {key: list(values) for key, values in self.sweep.items()},
            "gains": [gain.as_json() for gain in self.gains],
            "failures": [failure.as_json() for failure in self.failures],
            "counts": self.counts.as_json() if self.counts is not None else None,
            "notes": self.notes,
            "definitions": DEFINITIONS,
        }


def _is_beyond_nccl(candidate: Candidate) -> bool:
    """Return whether a schedule of a planner that stands for NCCL has options that NCCL lacks: it is no baseline."""
    options = candidate.options
    # NCCL has no direct exchange between boxes, and no pipeline with slices of several sizes (`steps`)
    has_own_tree = candidate.planner == "nvls-tree" and ("steps" in options or options.get("between") == "direct")
    return has_own_tree or bool(options.get(NVLS_MIXTURE))


def _switches_note(r: Range) -> str:
    """Return a note on what the best schedule of a range uses of switches, and on the alternatives; "" if it uses
    nothing, or if a library serves the range.
    """
    if r.without is None or r.served_by:
        return ""
    at, forwarding = format_size(r.at), r.without
    alone = (
        "is not priced by the model"
        if forwarding.alone is None
        else f"takes {format_seconds(forwarding.alone)} at {at}"
    )
    best = "no planner here does without"
    if forwarding.seconds is not None:
        name = name_with_options(str(forwarding.planner), forwarding.options or {})
        best = f"the best that does without, {name}, takes {format_seconds(forwarding.seconds)}"
    span = f"from {format_size(r.start)} to {format_size(r.stop)}" if r.stop > r.start else f"at {at}"
    return (
        f"{r.collective} {span} uses {format_switch_uses(r.candidate.uses)}; where a runtime cannot, the same "
        f"schedule with every row alone {alone}, and {best}"
    )


# ---- gains by choosing among swept settings ----


@dataclass(frozen=True)
class Gain:
    """The speedup of a planner with the best setting for each size over its first setting at all sizes."""

    collective: str
    planner: str
    first: Setting
    mean: float  # geometric mean over the sizes
    most: float  # the greatest speedup, at size `at`
    at: int  # the size of the greatest speedup, in bytes
    best: tuple[tuple[int, int, Setting], ...]  # (from, to, best setting for these sizes)
    rests_on: str  # what the figures are calibrated by

    def as_json(self) -> dict[str, Any]:
        return {
            "collective": self.collective,
            "planner": self.planner,
            "first": dict(self.first),
            "mean": self.mean,
            "most": self.most,
            "at": self.at,
            "rests_on": self.rests_on,
            "best": [{"from": start, "to": stop, "options": dict(setting)} for start, stop, setting in self.best],
        }


def settings(
    candidates: Sequence[Candidate], sweep: Sweep, sizes: Sequence[int]
) -> dict[str, dict[Setting, tuple[float, ...]]]:
    """Return the seconds per size of the candidates of one collective, by planner and by setting, in order of the
    sweep.

    Of several schedules of one setting the best counts at each size. Settings without a schedule are left out.
    """
    times_of: dict[str, dict[Setting, tuple[float, ...]]] = {}
    for c in candidates:
        for options in (c.options, *c.also):  # also: other options that lead to the same schedule
            setting = tuple((key, options[key]) for key in sweep if key in options)
            if setting and c.seconds and c.may_win:
                by_setting = times_of.setdefault(c.planner, {})
                times = tuple(c.seconds[size] for size in sizes)
                by_setting[setting] = tuple(map(min, by_setting[setting], times)) if setting in by_setting else times
    # by type, too: 1 and True are equal, and different values of an option
    position = {(key, type(v), v): i for key, values in sweep.items() for i, v in enumerate(values)}

    def swept_order(item: tuple[Setting, tuple[float, ...]]) -> list[int]:
        """Return the positions of a setting's values in the sweep, as a sort key of (setting, times)."""
        setting, _ = item
        return [position.get((key, type(v), v), 0) for key, v in setting]  # 0: a value that the planner chose itself

    return {planner: dict(sorted(by_setting.items(), key=swept_order)) for planner, by_setting in times_of.items()}


def measure_gains(
    candidates: Mapping[str, Sequence[Candidate]], sweep: Sweep, sizes: Sequence[int]
) -> tuple[Gain, ...]:
    """Return the gains of planners that have schedules with two settings or more."""
    rows = []
    for kind, kind_candidates in candidates.items() if sweep else ():
        for planner, by_setting in settings(kind_candidates, sweep, sizes).items():
            if len(by_setting) < 2:
                continue
            order = list(by_setting)
            # the settings are the candidates, with one variant each
            keyed_times = {Key(i, variant=0): by_setting[setting] for i, setting in enumerate(order)}
            chosen = [order[key.candidate] for key in choose_winners(keyed_times)]  # the best setting per size
            ratios = [_time_ratio(by_setting[order[0]][s], by_setting[setting][s]) for s, setting in enumerate(chosen)]
            best = tuple(  # each range ends where the next one begins
                (sizes[low], sizes[min(high + 1, len(sizes) - 1)], setting) for setting, low, high in merge_runs(chosen)
            )
            mean = math.exp(math.fsum(map(math.log, ratios)) / len(ratios))
            largest = max(range(len(ratios)), key=lambda s: ratios[s])
            rests = join_bases([c.rests_on[at] for c in kind_candidates if c.planner == planner for at in c.rests_on])
            rows.append(
                Gain(
                    kind, planner, first=order[0], mean=mean, most=ratios[largest], at=sizes[largest], best=best,
                    rests_on=rests,
                )
            )  # fmt: skip
    return tuple(rows)


def _time_ratio(first: float, best: float) -> float:
    """Return the speedup; 1 where a time is 0, as its logarithm is taken."""
    return first / best if best > 0 and first > 0 else 1.0
