"""The result of tuning: every candidate with its times, the ranges of sizes, and a plan per collective.

Also what choosing the value of an option is worth: the best value for every size, against the first one of a sweep.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from antiphon.core.plan import Plan
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.cost.basis import NOT_CALIBRATED, together
from antiphon.cost.nccl.library import Library
from antiphon.errors import Invalid
from antiphon.options import name_with_options
from antiphon.select.libraries import OURS_ALONE
from antiphon.select.limits import Damage, Limit, Loss
from antiphon.select.plan_files import save_plans
from antiphon.select.ranges import runs, winners
from antiphon.select.sweep import Value
from antiphon.select.task import BUDGET, OK, REFUSED
from antiphon.select.uses import uses_text
from antiphon.units import format_seconds, format_size

ENDED = ("collective", "planner", "options", "ended_by", "reason")  # JSON keys of candidates that were ended
Sweep = Mapping[str, tuple[Value, ...]]
Setting = tuple[tuple[str, Value], ...]  # the options swept, with the values of one candidate
DEFINITIONS = {
    "seconds": "predicted by the model, at the greatest size that was priced in the range",
    "gap": "seconds over the bound, which is the greater of latency_seconds (of the quickest path between the two "
    "ranks that are farthest apart) and of nbytes over the bandwidth bound; no schedule takes less",
    "speedup": "by model calls seconds of what NCCL would choose (over) over seconds; by others seconds of the best "
    "schedule of the baseline's planners over seconds, null where one of them failed or timed out (no_speedup says "
    "which)",
    "use": "ours, or library: leave these sizes to served_by, as its model predicts that ours is not faster "
    "(speedup below 1.005)",
    "beyond_error": "whether the speedup is more than the median error of the library's model; null: not known",
    "reference": "the library that the speedup is over, by its model",
    "runners_up": "the next best at the size at, for runtimes that cannot take the best",
    "sms": "streaming multiprocessors of each GPU (of sms_of) that it takes at most while it runs, where that is known",
    "rests_on": "the measurements that the figures of the line are calibrated by, a profile, or: not calibrated",
}


@dataclass(frozen=True, eq=False)
class Candidate:
    """A planner with its options, and its result. status: ok | refused | failed | timed out.

    `seconds` by size; `why` by size: (bottleneck, terms). `variant` counts the schedules of one planner call.
    `rests_on` by size: what the figures are calibrated by, a profile, or that they are not calibrated.
    `may_win`: False for candidates that are only compared with. `also`: other options with the same schedule.
    `ended_by`: budget, memory or crash, where one of these ended it early. `alone`: seconds by size with every row
    alone, where it uses switches.
    """

    collective: str
    planner: str
    options: Mapping[str, Any]
    status: str
    reason: str = ""
    variant: int = 0
    seconds: Mapping[int, float] = field(default_factory=dict)
    why: Mapping[int, tuple[str, Mapping[str, float]]] = field(default_factory=dict)
    rests_on: Mapping[int, str] = field(default_factory=dict)
    figures: Mapping[str, Any] = field(default_factory=dict)
    seconds_per_byte: Fraction = Fraction(0)
    may_win: bool = True
    also: tuple[Mapping[str, Any], ...] = ()
    ended_by: str = ""
    alone: Mapping[int, float] = field(default_factory=dict)

    @property
    def uses(self) -> tuple[str, ...]:
        """What it lets switches do beside forwarding."""
        return tuple(self.figures.get("uses", ()))

    def __repr__(self) -> str:
        result = f"{len(self.seconds)} sizes" if self.status == OK else f"{self.status}: {self.reason}"
        return f"Candidate({self.collective} by {name_with_options(self.planner, self.options)}: {result})"

    def as_json(self) -> dict[str, Any]:
        value: dict[str, Any] = {
            "collective": self.collective, "planner": self.planner, "options": dict(self.options),
            "status": self.status, "reason": self.reason,
            "seconds": {str(size): seconds for size, seconds in self.seconds.items()},
        }  # fmt: skip
        if self.status == OK:
            value["variant"] = self.variant
            value["rests_on"] = together(list(self.rests_on.values()))
        if self.ended_by:
            value["ended_by"] = self.ended_by
        if self.uses:
            value["uses"] = list(self.uses)
        if self.also:
            value["also"] = [dict(options) for options in self.also]
        return value


@dataclass(frozen=True)
class Without:
    """The alternatives at one size on a runtime that lets no switches help: `alone`, the seconds of the same schedule
    with every row alone (None: the model does not price that), and the best candidate that uses no switches (None:
    there is none)."""

    alone: float | None
    planner: str | None = None
    options: Mapping[str, Any] | None = None
    seconds: float | None = None

    def as_json(self) -> dict[str, Any]:
        options = None if self.options is None else dict(self.options)
        return {"alone": self.alone, "planner": self.planner, "options": options, "seconds": self.seconds}


@dataclass(frozen=True, eq=False)
class Range:
    """The best candidate for start <= nbytes < stop (the last range: for its stop, too).

    `at`: the greatest size priced in it, to which seconds, gap and speedup belong. `without`: where the candidate
    uses switches, the alternatives on a runtime that cannot. `over`: the choice of the library `reference` (such as
    nccl) at that size, where the model has its figures. `rests_on`: the measurements that calibrate the figures, a
    profile, or that they are not calibrated. `sms`: multiprocessors of each GPU (of `sms_of`) that it takes at most,
    if known. `served_by`: the library that should serve these sizes, since by its model the candidate is not faster at
    any of them; "": use the candidate. `beyond_error`: whether the speedup exceeds the error of that model; None:
    unknown. `runners_up`: the next best at `at`.
    """

    collective: str
    start: int
    stop: int
    at: int
    candidate: Candidate
    seconds: float
    gap: float | None
    speedup: float | None
    without: Without | None = None
    over: str = ""
    rests_on: str = NOT_CALIBRATED
    sms: int | None = None
    sms_of: int | None = None
    served_by: str = ""
    beyond_error: bool | None = None
    runners_up: tuple[Candidate, ...] = ()
    reference: str = ""

    def __repr__(self) -> str:
        sizes = f"{format_size(self.start)} to {format_size(self.stop)}"
        figures = [f"{k} {v:.3g}" for k, v in (("gap", self.gap), ("speedup", self.speedup)) if v is not None]
        name = name_with_options(self.candidate.planner, self.candidate.options)
        description = ", ".join([name, format_seconds(self.seconds), *figures, self.rests_on])
        description += f"; leave it to {self.served_by.upper()}" if self.served_by else ""
        return f"Range({self.collective}, {sizes}: {description})"

    def as_json(self) -> dict[str, Any]:
        return {
            "collective": self.collective,
            "from": self.start,
            "to": self.stop,
            "planner": self.candidate.planner,
            "options": dict(self.candidate.options),
            "seconds": self.seconds,
            "gap": self.gap,
            "speedup": self.speedup,
            "at": self.at,
            "variant": self.candidate.variant,
            "bottleneck": self.candidate.why[self.at][0],
            "rests_on": self.rests_on,
            "use": "library" if self.served_by else "ours",
            **({"served_by": self.served_by} if self.served_by else {}),
            **(
                {"over": self.over, "reference": self.reference, "beyond_error": self.beyond_error} if self.over else {}
            ),
            "runners_up": [
                {"planner": runner.planner, "options": dict(runner.options), "seconds": runner.seconds[self.at]}
                for runner in self.runners_up
            ],
            **({"sms": self.sms, "sms_of": self.sms_of} if self.sms is not None else {}),
            **({"uses": list(self.candidate.uses), "without_switches": self.without.as_json()} if self.without else {}),
        }


@dataclass(frozen=True, eq=False)
class Listed:
    """A schedule that is worth measuring, with what a plan claims of it."""

    candidate: Candidate
    schedule: Schedule
    claims: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Tuning:
    """The result of `tune`. `plans` holds the winners, by collective; `complete` is False if it was interrupted.

    `no_speedup`: by collective, why there is no speedup. `damage`: links lost against the machine compared with.
    `sweep`: the options swept with their values; `gains`: what choosing among them is worth. `shortlist`: by
    collective the schedules worth measuring, if requested. `untried`: the number of candidates that an interruption
    skipped. `no_bound`: by collective, why its bounds are unknown.
    """

    topology: Topology
    model: str
    span: tuple[int, int]
    sizes: tuple[int, ...]
    collectives: tuple[str, ...]
    candidates: tuple[Candidate, ...]
    ranges: tuple[Range, ...]
    limits: Mapping[str, Limit]
    baselines: Mapping[str, tuple[str, ...]]
    plans: Mapping[str, Plan]
    losses: tuple[Loss, ...] = ()
    complete: bool = True
    profile: str | None = None  # its name
    no_speedup: Mapping[str, str] = field(default_factory=dict)
    damage: Damage | None = None
    sweep: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)
    shortlist: Mapping[str, tuple[Listed, ...]] = field(default_factory=dict)
    untried: int = 0
    no_bound: Mapping[str, str] = field(default_factory=dict)
    library: Library | None = None  # what NCCL would choose, where the model has its figures

    def __repr__(self) -> str:
        low, high = (format_size(size) for size in self.span)
        kinds = ", ".join(self.collectives)
        counts = f"{len(self.ranges)} ranges of {len(self.candidates)} candidates"
        return f"Tuning({kinds} on {self.topology.name}, {low} to {high}: {counts})"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plans: one collective as a plan, which every command takes, several as a table."""
        save_plans(path, self.plans, self.model, table=len(self.collectives) > 1)

    @property
    def plan(self) -> Plan:
        """The plan, where one collective was tuned."""
        if len(self.collectives) != 1:
            raise Invalid(f"{len(self.collectives)} collectives were tuned; take one of .plans by its name")
        if not self.plans:
            why = self.unpriced or "see .candidates for the reasons"
            raise Invalid(f"no planner could plan {self.collectives[0]}: {why}")
        return self.plans[self.collectives[0]]

    @property
    def unpriced(self) -> str:
        """The model's reason, if it refused every schedule for this machine; else ""."""
        reasons = [c.reason for c in self.candidates if c.status == REFUSED and c.reason.startswith("model ")]
        return reasons[0] if reasons and not self.ranges else ""

    @property
    def notes(self) -> list[str]:
        """What a reader must know of the figures, a line each."""
        kinds_by_reason: dict[str, list[str]] = {}
        for kind, why in self.no_speedup.items():
            kinds_by_reason.setdefault(why, []).append(kind)
        lines = [f"no speedup is told for {', '.join(kinds)}: {why}" for why, kinds in kinds_by_reason.items()]
        lines += [f"no gap is told for {kind}: its bounds were {why}" for kind, why in self.no_bound.items()]
        lines += [line for r in self.ranges if (line := _switches_note(r))]
        sms_taken = sorted({(r.sms, r.sms_of) for r in self.ranges if r.sms is not None})
        counts = " or ".join(f"{sms} of {of}" for sms, of in sms_taken)
        lines += [f"while it runs, communication takes up to {counts} SMs of each GPU"] if sms_taken else []
        lost = self.damage.describe() if self.damage is not None else ""
        return [line for line in (self.unpriced, *lines, lost) if line]

    @property
    def ended_early(self) -> tuple[Candidate, ...]:
        """The candidates that their budget, lack of memory or a crash ended; their results until then count."""
        return tuple(c for c in self.candidates if c.ended_by)

    @property
    def stopped(self) -> int:
        """How many candidates their budget ended: with more of it, or on a less busy computer, they may find better."""
        return sum(c.ended_by == BUDGET for c in self.candidates)

    def rests_on(self, collective: str) -> str:
        """What calibrates the figures of this collective, at any size."""
        return together([r.rests_on for r in self.ranges if r.collective == collective]) or NOT_CALIBRATED

    def of(self, collective: str) -> tuple[Candidate, ...]:
        return tuple(c for c in self.candidates if c.collective == collective)

    @property
    def gains(self) -> tuple[Gain, ...]:
        """What choosing the values of the options swept is worth, by collective and planner."""
        return gains({kind: self.of(kind) for kind in self.collectives}, self.sweep, self.sizes)

    def baseline(self, collective: str, nbytes: int) -> float | None:
        """Seconds of NCCL's own choice, if its figures are known; else of the best schedule of the planners that stand
        for it."""
        if self.library is not None and collective in self.baselines:
            return self.library.at(collective, nbytes)[0].seconds
        names = self.baselines.get(collective, ())
        theirs = (c for c in self.of(collective) if c.planner in names and not c.options.get(OURS_ALONE))
        return min((c.seconds[nbytes] for c in theirs if nbytes in c.seconds), default=None)

    def as_json(self) -> dict[str, Any]:
        """Stable keys; times in seconds, sizes in bytes, bandwidths in bytes per second."""
        return {
            "topology": self.topology.name,
            "model": self.model,
            "profile": self.profile,
            "nbytes": list(self.span),
            "sizes": list(self.sizes),
            "complete": self.complete,
            "stopped": self.stopped,
            "ended_early": [
                {key: value for key, value in c.as_json().items() if key in ENDED} for c in self.ended_early
            ],
            "untried": self.untried,
            "ranges": [r.as_json() for r in self.ranges],
            "candidates": [c.as_json() for c in self.candidates],
            "bound": {kind: limit.as_json(self.sizes) for kind, limit in self.limits.items()},
            "baseline": {kind: list(names) for kind, names in self.baselines.items()},
            "no_speedup": dict(self.no_speedup),
            "no_bound": dict(self.no_bound),
            "assumes": [],  # bounds hold whatever switches do
            "lost": [loss.as_json() for loss in self.losses],
            "lost_links": self.damage.as_json() if self.damage is not None else None,
            "sweep": {key: list(values) for key, values in self.sweep.items()},
            "gains": [gain.as_json() for gain in self.gains],
            "notes": self.notes,
            "definitions": DEFINITIONS,
        }


def _switches_note(r: Range) -> str:
    """What a range's best lets switches do, and the alternatives; "" if nothing, or if a library serves the range."""
    if r.without is None or r.served_by:
        return ""
    at, without = format_size(r.at), r.without
    alone = "is not priced by the model" if without.alone is None else f"takes {format_seconds(without.alone)} at {at}"
    best = "no planner here does without"
    if without.seconds is not None:
        name = name_with_options(str(without.planner), without.options or {})
        best = f"the best that does without, {name}, takes {format_seconds(without.seconds)}"
    span = f"from {format_size(r.start)} to {format_size(r.stop)}" if r.stop > r.start else f"at {at}"
    return (
        f"{r.collective} {span} uses {uses_text(r.candidate.uses)}; where a runtime cannot, the same schedule with "
        f"every row alone {alone}, and {best}"
    )


# ---- what choosing among swept options is worth ----


@dataclass(frozen=True)
class Gain:
    """How many times faster a planner is with the best setting for each size than with its first one.

    `mean`: geometric, over the sizes; `most`: the greatest, at size `at`. `best`: (from, to, setting). `rests_on`: what
    calibrates the figures of all its settings.
    """

    collective: str
    planner: str
    first: Setting
    mean: float
    most: float
    at: int
    best: tuple[tuple[int, int, Setting], ...]
    rests_on: str

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
    """For candidates of one collective, by planner that was swept and by setting, in the order of the sweep: seconds
    per size, the best of several schedules of one setting. Settings without a schedule are left out."""
    times_of: dict[str, dict[Setting, tuple[float, ...]]] = {}
    for c in candidates:
        for options in (c.options, *c.also):
            setting = tuple((key, options[key]) for key in sweep if key in options)
            if setting and c.seconds and c.may_win:
                by_setting = times_of.setdefault(c.planner, {})
                times = tuple(c.seconds[size] for size in sizes)
                by_setting[setting] = tuple(map(min, by_setting[setting], times)) if setting in by_setting else times
    place = {(key, type(v), v): i for key, values in sweep.items() for i, v in enumerate(values)}

    def swept_order(item: tuple[Setting, tuple[float, ...]]) -> list[int]:
        return [place.get((key, type(v), v), 0) for key, v in item[0]]

    return {planner: dict(sorted(by_setting.items(), key=swept_order)) for planner, by_setting in times_of.items()}


def gains(candidates: Mapping[str, Sequence[Candidate]], sweep: Sweep, sizes: Sequence[int]) -> tuple[Gain, ...]:
    """By collective and planner; nothing where only one setting has a schedule."""
    rows = []
    for kind, of_kind in candidates.items() if sweep else ():
        for planner, by_setting in settings(of_kind, sweep, sizes).items():
            if len(by_setting) < 2:
                continue
            order = list(by_setting)
            chosen = winners({(i, 0): by_setting[setting] for i, setting in enumerate(order)})
            ratios = [_ratio(by_setting[order[0]][s], by_setting[order[key[0]]][s]) for s, key in enumerate(chosen)]
            best = tuple(
                (sizes[low], sizes[min(high + 1, len(sizes) - 1)], order[key[0]]) for key, low, high in runs(chosen)
            )
            mean = math.exp(math.fsum(map(math.log, ratios)) / len(ratios))
            largest = max(range(len(ratios)), key=lambda s: ratios[s])
            rests = together([c.rests_on[at] for c in of_kind if c.planner == planner for at in c.rests_on])
            rows.append(Gain(kind, planner, order[0], mean, ratios[largest], sizes[largest], best, rests))
    return tuple(rows)


def _ratio(first: float, best: float) -> float:
    return first / best if best > 0 and first > 0 else 1.0
