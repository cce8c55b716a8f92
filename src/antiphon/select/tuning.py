"""What tuning finds: every candidate with its times, the ranges of sizes, and a plan per collective."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from antiphon.core.plan import Plan
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.cost.basis import NOT_CALIBRATED, together
from antiphon.cost.nccl.library import Library
from antiphon.errors import Invalid
from antiphon.select._gains import Gain, gains
from antiphon.select._table import save_plans
from antiphon.select.candidates import Candidate, Range
from antiphon.select.libraries import OURS_ALONE
from antiphon.select.limits import Limit
from antiphon.select.losses import Damage, Loss
from antiphon.select.sweep import Value
from antiphon.select.task import BUDGET, REFUSED
from antiphon.select.uses import uses_text
from antiphon.units import format_seconds, format_size

ENDED = ("collective", "planner", "options", "ended_by", "reason")  # what is told of a candidate that was ended
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
class Listed:
    """A schedule that is worth measuring, with what a plan claims of it."""

    candidate: Candidate
    schedule: Schedule
    claims: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Tuning:
    """The result of `tune`. `plans` holds the winners, by collective; `complete` is False if it was interrupted.

    `no_speedup`: by collective, why no speedup is told. `damage`: links lost against the machine to compare with.
    `sweep`: the options swept with their values; `gains`: what choosing among them is worth. `shortlist`: by
    collective the schedules worth measuring, where they were asked for. `untried`: candidates that an interruption left
    out. `no_bound`: by collective, why its bounds are not known.
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
        told = f"{len(self.ranges)} ranges of {len(self.candidates)} candidates"
        return f"Tuning({kinds} on {self.topology.name}, {low} to {high}: {told})"

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
        """What the model says where it refused all that planners made for this machine; else nothing."""
        said = [c.reason for c in self.candidates if c.status == REFUSED and c.reason.startswith("model ")]
        return said[0] if said and not self.ranges else ""

    @property
    def notes(self) -> list[str]:
        """What must be known to read the figures right, a line each."""
        said: dict[str, list[str]] = {}
        for kind, why in self.no_speedup.items():
            said.setdefault(why, []).append(kind)
        lines = [f"no speedup is told for {', '.join(kinds)}: {why}" for why, kinds in said.items()]
        lines += [f"no gap is told for {kind}: its bounds were {why}" for kind, why in self.no_bound.items()]
        lines += [line for r in self.ranges if (line := _helped(r))]
        taken = sorted({(r.sms, r.sms_of) for r in self.ranges if r.sms is not None})
        told = " or ".join(f"{sms} of {of}" for sms, of in taken)
        lines += [f"while it runs, communication takes up to {told} SMs of each GPU"] if taken else []
        lost = self.damage.describe() if self.damage is not None else ""
        return [line for line in (self.unpriced, *lines, lost) if line]

    @property
    def ended_early(self) -> tuple[Candidate, ...]:
        """What its budget, too little memory or a crash ended; what was found until then counts."""
        return tuple(c for c in self.candidates if c.ended_by)

    @property
    def stopped(self) -> int:
        """How many candidates ended by their budget: with more of it, or on a computer with less to do, they may have
        found better."""
        return sum(c.ended_by == BUDGET for c in self.candidates)

    def rests_on(self, collective: str) -> str:
        """What figures of this collective are calibrated by, at some size or other."""
        return together([r.rests_on for r in self.ranges if r.collective == collective]) or NOT_CALIBRATED

    def of(self, collective: str) -> tuple[Candidate, ...]:
        return tuple(c for c in self.candidates if c.collective == collective)

    @property
    def gains(self) -> tuple[Gain, ...]:
        """What choosing the values of the options swept is worth, by collective and planner."""
        return gains({kind: self.of(kind) for kind in self.collectives}, self.sweep, self.sizes)

    def baseline(self, collective: str, nbytes: int) -> float | None:
        """Seconds of what NCCL would choose, where figures of it are known; else of the best schedule of the planners
        that stand for it."""
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


def _helped(r: Range) -> str:
    """What a range's best lets switches do, and what there is without; "" where nothing, or a library serves."""
    if r.without is None or r.served_by:
        return ""
    at, less = format_size(r.at), r.without
    alone = "is not priced by the model" if less.alone is None else f"takes {format_seconds(less.alone)} at {at}"
    best = "no planner here does without"
    if less.seconds is not None:
        who = " ".join([str(less.planner), *(f"{k}={v}" for k, v in (less.options or {}).items())])
        best = f"the best that does without, {who}, takes {format_seconds(less.seconds)}"
    span = f"from {format_size(r.start)} to {format_size(r.stop)}" if r.stop > r.start else f"at {at}"
    return (
        f"{r.collective} {span} uses {uses_text(r.candidate.uses)}; where a runtime cannot, the same schedule with "
        f"every row alone {alone}, and {best}"
    )
