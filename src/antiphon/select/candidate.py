"""Results of a tuning: candidates with their times, and the ranges of sizes for which one of them is best.

A `Candidate` is a planner with its options, a `Range` some sizes with their best candidate, `Without` what is best
there if switches can only forward. They hold results and print them as JSON; ledger.py computes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from antiphon.cost.basis import NOT_CALIBRATED, join_bases
from antiphon.options import name_with_options
from antiphon.select.task import OK
from antiphon.units import format_seconds, format_size


@dataclass(frozen=True, eq=False)
class Candidate:
    """A planner with its options, and its result. status: ok | refused | failed | timed out.

    `seconds` by size; `why` by size: (bottleneck, terms). `variant` counts the schedules of one planner call.
    `rests_on` by size: what the figures are calibrated by, a profile, or that they are not calibrated.
    `may_win`: False for candidates that are only compared with. `also`: other options with the same schedule.
    `ended_by`: budget, memory or crash, if one of these ended it early. `alone`: if its schedule uses multicast or
    reduction in switches, seconds by size of the same schedule without.
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
        """What its schedule uses of switches beside forwarding: multicast, reduction."""
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
            value["rests_on"] = join_bases(list(self.rests_on.values()))
        if self.ended_by:
            value["ended_by"] = self.ended_by
        if self.uses:
            value["uses"] = list(self.uses)
        if self.also:
            value["also"] = [dict(options) for options in self.also]
        return value


@dataclass(frozen=True)
class Without:
    """The alternatives at one size for a runtime without multicast and reduction in switches.

    `alone`: seconds of the same schedule without these (None: the model does not price that). `planner`, `options`,
    `seconds`: the best candidate that uses none (None: there is none).
    """

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

    `at`: the greatest size priced in it, to which seconds, gap and speedup belong. `without`: if the candidate uses
    multicast or reduction in switches, the alternatives. `over`: what the library `reference` (such as nccl) would
    choose at that size, if the model has its figures. `rests_on`: the measurements that calibrate the figures, a
    profile, or that they are not calibrated. `sms`: multiprocessors of each GPU (of `sms_of`) that it takes at most,
    if known. `served_by`: the library to use for these sizes, because the candidate is nowhere faster than it by more
    than the error of its model; "": use the candidate. `beyond_error`: whether the speedup exceeds the error of
    that model; None: unknown. `runners_up`: the next best at `at`.
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
    gap_model: str = ""  # the model under which the gap's lower bound holds
    library_gap: float | None = None  # of the choice of `served_by`

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
            "gap_model": self.gap_model or None,
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
