"""What tuning finds: every candidate with its times, the ranges of sizes, and a plan per collective."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from antiphon.core.bounds import Bound
from antiphon.core.collective import Collective
from antiphon.core.plan import Plan
from antiphon.core.topology import Topology
from antiphon.errors import Invalid
from antiphon.select._task import OK
from antiphon.units import plain

DEFINITIONS = {
    "seconds": "predicted by the model, at the greatest size that was priced in the range",
    "gap": "seconds over the bound, which is the greater of latency_steps times the least link latency and of nbytes "
    "over the bandwidth bound; no schedule takes less",
    "speedup": "seconds of the best schedule of the baseline's planners over seconds",
}


@dataclass(frozen=True, eq=False)
class Candidate:
    """A planner with its options, and what came of it. status: ok | refused | failed | timed out.

    `seconds` by size; `why` by size: (bottleneck, terms). `variant` counts the schedules of one planner call.
    `chosen`: False for what is only there to compare with.
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

    def as_json(self) -> dict[str, Any]:
        keys = ("collective", "planner", "options", "status", "reason")
        found: dict[str, Any] = {key: getattr(self, key) for key in keys}
        found["options"] = dict(self.options)
        found["seconds"] = {str(size): seconds for size, seconds in self.seconds.items()}
        if self.status == OK:
            found["variant"] = self.variant
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
    latency: float  # of the link with the least
    bytes_per_second: Fraction | None
    because: tuple[str, ...] = ()

    @staticmethod
    def of(bound: Bound, topology: Topology, collective: Collective) -> Limit:
        used = {int(i) for i in topology.link_type.tolist()}
        least = min((topology.types[i].latency for i in used), default=0.0)
        why = tuple(bound.describe(topology, collective))
        return Limit(bound.latency_steps, least, bound.bytes_per_second, why)

    def seconds(self, nbytes: int) -> float:
        moving = float(nbytes / self.bytes_per_second) if self.bytes_per_second else 0.0
        return max(self.steps * self.latency, moving)

    def as_json(self, sizes: tuple[int, ...]) -> dict[str, Any]:
        return {
            "latency_steps": self.steps,
            "latency_seconds": self.steps * self.latency,
            "bytes_per_second": plain(self.bytes_per_second) if self.bytes_per_second else None,
            "because": list(self.because),
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
            full = limit.as_json(()) if limit is not None else {}
            return {key: full[key] for key in ("latency_steps", "bytes_per_second")} if full else None

        sides = {name: side(getattr(self, name)) for name in ("all", "among", "left")}
        return {"collective": self.collective, "whole": self.whole, **sides}


@dataclass(frozen=True, eq=False)
class Tuning:
    """The result of `tune`. `plans` holds the winners, by collective; `complete` is False if it was interrupted."""

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
            raise Invalid(f"no planner could plan {self.collectives[0]}; see .candidates for the reasons")
        return self.plans[self.collectives[0]]

    def of(self, collective: str) -> tuple[Candidate, ...]:
        return tuple(c for c in self.candidates if c.collective == collective)

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
            "nbytes": list(self.span),
            "sizes": list(self.sizes),
            "complete": self.complete,
            "ranges": [r.as_json() for r in self.ranges],
            "candidates": [c.as_json() for c in self.candidates],
            "bound": {kind: limit.as_json(self.sizes) for kind, limit in self.limits.items()},
            "baseline": {kind: list(names) for kind, names in self.baselines.items()},
            "lost": [loss.as_json() for loss in self.losses],
            "definitions": DEFINITIONS,
        }
