"""What tuning finds: every candidate with its times, the ranges of sizes, and a plan per collective."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from antiphon.core.bounds import Bound
from antiphon.core.bounds.latency_seconds import Quickest, quickest
from antiphon.core.bounds.needs import needs_of
from antiphon.core.collective import Collective
from antiphon.core.plan import Plan
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.errors import Invalid
from antiphon.select._baseline import BY_SWITCHES
from antiphon.select._gains import Gain, gains
from antiphon.select._sweep import Value
from antiphon.select._task import BUDGET, OK, REFUSED
from antiphon.units import format_seconds, format_size

if TYPE_CHECKING:
    from antiphon.select._losses import Damage

ENDED = ("collective", "planner", "options", "ended_by", "reason")  # what is told of a candidate that was ended
DEFINITIONS = {
    "seconds": "predicted by the model, at the greatest size that was priced in the range",
    "gap": "seconds over the bound, which is the greater of latency_seconds (of the quickest path between the two "
    "ranks that are farthest apart) and of nbytes over the bandwidth bound; no schedule takes less, "
    "without what `assumes` names",
    "speedup": "seconds of the best schedule of the baseline's planners over seconds; null where one of them failed "
    "or timed out (no_speedup says which)",
}


@dataclass(frozen=True, eq=False)
class Candidate:
    """A planner with its options, and what came of it. status: ok | refused | failed | timed out.

    `seconds` by size; `why` by size: (bottleneck, terms). `variant` counts the schedules of one planner call.
    `may_win`: False for what is only there to compare with. `also`: options by which the planner gives the same.
    `ended_by`: budget, memory or crash, where one of these ended it before it was done.
    """

    collective: str
    planner: str
    options: Mapping[str, Any]
    status: str
    reason: str = ""
    variant: int = 0
    seconds: Mapping[int, float] = field(default_factory=dict)
    why: Mapping[int, tuple[str, Mapping[str, float]]] = field(default_factory=dict)
    figures: Mapping[str, Any] = field(default_factory=dict)
    seconds_per_byte: Fraction = Fraction(0)
    may_win: bool = True
    also: tuple[Mapping[str, Any], ...] = ()
    ended_by: str = ""

    def __repr__(self) -> str:
        told = f"{len(self.seconds)} sizes" if self.status == OK else f"{self.status}: {self.reason}"
        return f"Candidate({self.collective} by {_who(self)}: {told})"

    def as_json(self) -> dict[str, Any]:
        keys = ("collective", "planner", "options", "status", "reason")
        found: dict[str, Any] = {key: getattr(self, key) for key in keys}
        found["options"] = dict(self.options)
        found["seconds"] = {str(size): seconds for size, seconds in self.seconds.items()}
        if self.status == OK:
            found["variant"] = self.variant
        if self.ended_by:
            found["ended_by"] = self.ended_by
        if self.also:
            found["also"] = [dict(options) for options in self.also]
        return found


@dataclass(frozen=True, eq=False)
class Range:
    """The best candidate for start <= nbytes < stop (the last range: for its stop, too).

    `at` is the greatest size priced in it, to which seconds, gap and speedup belong.
    """

    collective: str
    start: int
    stop: int
    at: int
    candidate: Candidate
    seconds: float
    gap: float | None
    speedup: float | None

    def __repr__(self) -> str:
        sizes = f"{format_size(self.start)} to {format_size(self.stop)}"
        figures = [f"{k} {v:.3g}" for k, v in (("gap", self.gap), ("speedup", self.speedup)) if v is not None]
        told = ", ".join([_who(self.candidate), format_seconds(self.seconds), *figures])
        return f"Range({self.collective}, {sizes}: {told})"

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
        }


@dataclass(frozen=True, eq=False)
class Limit:
    """The bounds of a collective on the machine, as a time by size."""

    steps: int
    latency: float  # seconds
    bytes_per_second: Fraction | None
    because: tuple[str, ...] = ()
    assumes: tuple[str, ...] = ()  # of switches, where the bandwidth bound takes something for granted

    @staticmethod
    def of(bound: Bound, topology: Topology, collective: Collective, latency: Quickest | None = None) -> Limit:
        """`latency`: where it is known already."""
        if latency is None:
            latency = quickest(topology, needs_of(collective), bound.latency_witness)
        why = (*bound.describe(topology, collective), *([latency.describe()] if latency else []))
        seconds = latency.seconds if latency else 0.0
        return Limit(bound.latency_steps, seconds, bound.bytes_per_second, why, bound.assumes)

    def seconds(self, nbytes: int) -> float:
        moving = float(nbytes / self.bytes_per_second) if self.bytes_per_second else 0.0
        return max(self.latency, moving)

    def rates(self) -> dict[str, Any]:
        """Steps and bandwidth as JSON: bytes per second as a number, and exactly, as a text such as "7/3"."""
        rate = self.bytes_per_second
        exact = {"bytes_per_second": float(rate), "bytes_per_second_exact": str(rate)} if rate else {}
        return {"latency_steps": self.steps, "bytes_per_second": None, "bytes_per_second_exact": None, **exact}

    def as_json(self, sizes: tuple[int, ...]) -> dict[str, Any]:
        return {
            **self.rates(),
            "latency_seconds": self.latency,
            "because": list(self.because),
            "assumes": list(self.assumes),
            "seconds": {str(size): self.seconds(size) for size in sizes},
        }


@dataclass(frozen=True, eq=False)
class Loss:
    """What a collective has lost against the whole machine: bounds in bytes per second of nbytes, and in steps.

    `all`: all ranks of the whole machine; `among`: the ranks that are left, the others relaying; `left`: here.
    """

    collective: str
    whole: str
    all: Limit | None
    among: Limit | None
    left: Limit | None

    def as_json(self) -> dict[str, Any]:
        def side(limit: Limit | None) -> dict[str, Any] | None:
            return limit.rates() if limit is not None else None

        sides = {name: side(getattr(self, name)) for name in ("all", "among", "left")}
        return {"collective": self.collective, "whole": self.whole, **sides}


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

    def __repr__(self) -> str:
        low, high = (format_size(size) for size in self.span)
        kinds = ", ".join(self.collectives)
        told = f"{len(self.ranges)} ranges of {len(self.candidates)} candidates"
        return f"Tuning({kinds} on {self.topology.name}, {low} to {high}: {told})"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plans: one collective as a plan, which every command takes, several as a table."""
        from antiphon.select._table import save_plans

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

    @property
    def assumes(self) -> list[str]:
        """What bounds, gaps and speedups take for granted of switches that can do more than forward."""
        told = dict.fromkeys(text for limit in self.limits.values() for text in limit.assumes)
        unpriced = [kind for kind, why in self.no_speedup.items() if why == BY_SWITCHES]
        return [*told, *([f"no speedup for {', '.join(unpriced)}: {BY_SWITCHES}"] if unpriced else [])]

    def of(self, collective: str) -> tuple[Candidate, ...]:
        return tuple(c for c in self.candidates if c.collective == collective)

    @property
    def gains(self) -> tuple[Gain, ...]:
        """What choosing the values of the options swept is worth, by collective and planner."""
        return gains(self)

    def baseline(self, collective: str, nbytes: int) -> float | None:
        """Seconds of the best schedule of the planners that stand for NCCL."""
        names = self.baselines.get(collective, ())
        times = [c.seconds[nbytes] for c in self.of(collective) if c.planner in names and nbytes in c.seconds]
        return min(times, default=None)

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
            "assumes": self.assumes,
            "lost": [loss.as_json() for loss in self.losses],
            "lost_links": self.damage.as_json() if self.damage is not None else None,
            "sweep": {key: list(values) for key, values in self.sweep.items()},
            "gains": [gain.as_json() for gain in self.gains],
            "notes": self.notes,
            "definitions": DEFINITIONS,
        }


def _who(candidate: Candidate) -> str:
    return " ".join([candidate.planner, *(f"{k}={v}" for k, v in candidate.options.items())])
