"""What came of planning: candidates with their times, and the ranges of sizes for which each is best."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from antiphon.cost.basis import NOT_CALIBRATED, together
from antiphon.select.task import OK
from antiphon.select.uses import Without
from antiphon.units import format_seconds, format_size


@dataclass(frozen=True, eq=False)
class Candidate:
    """A planner with its options, and what came of it. status: ok | refused | failed | timed out.

    `seconds` by size; `why` by size: (bottleneck, terms). `variant` counts the schedules of one planner call.
    `rests_on` by size: what the figures are calibrated by, a profile, or that they are not calibrated.
    `may_win`: False for what is only there to compare with. `also`: options by which the planner gives the same.
    `ended_by`: budget, memory or crash, where one of these ended it before it was done. `alone`: where it uses
    switches, the seconds by size with every row alone.
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
        told = f"{len(self.seconds)} sizes" if self.status == OK else f"{self.status}: {self.reason}"
        return f"Candidate({self.collective} by {_who(self)}: {told})"

    def as_json(self) -> dict[str, Any]:
        keys = ("collective", "planner", "options", "status", "reason")
        found: dict[str, Any] = {key: getattr(self, key) for key in keys}
        found["options"] = dict(self.options)
        found["seconds"] = {str(size): seconds for size, seconds in self.seconds.items()}
        if self.status == OK:
            found["variant"] = self.variant
            found["rests_on"] = together(list(self.rests_on.values()))
        if self.ended_by:
            found["ended_by"] = self.ended_by
        if self.uses:
            found["uses"] = list(self.uses)
        if self.also:
            found["also"] = [dict(options) for options in self.also]
        return found


@dataclass(frozen=True, eq=False)
class Range:
    """The best candidate for start <= nbytes < stop (the last range: for its stop, too).

    `at` is the greatest size priced in it, to which seconds, gap and speedup belong. `without`: where the candidate
    uses switches, what there is for a runtime that cannot. `over`: what NCCL would choose at that size, where the model
    has its figures; `rests_on`: the measurements that the figures of this range are calibrated by, a profile, or
    that they are not calibrated. `sms`: multiprocessors of each GPU (of `sms_of`) that it takes at most, where known.
    `served_by`: the library to leave these sizes to, where its model says that the candidate is not faster at any of
    them; "": use the candidate. `beyond_error`: whether the speedup is more than the error of that model; None: the
    error is not known. `runners_up`: the next best at `at`. `reference`: the library that `over` is of, such as nccl.
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
        told = ", ".join([_who(self.candidate), format_seconds(self.seconds), *figures, self.rests_on])
        told += f"; leave it to {self.served_by.upper()}" if self.served_by else ""
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
            "rests_on": self.rests_on,
            "use": "library" if self.served_by else "ours",
            **({"served_by": self.served_by} if self.served_by else {}),
            **(
                {"over": self.over, "reference": self.reference, "beyond_error": self.beyond_error} if self.over else {}
            ),
            "runners_up": [
                {"planner": one.planner, "options": dict(one.options), "seconds": one.seconds[self.at]}
                for one in self.runners_up
            ],
            **({"sms": self.sms, "sms_of": self.sms_of} if self.sms is not None else {}),
            **self._helped(),
        }

    def _helped(self) -> dict[str, Any]:
        if self.without is None:
            return {}
        return {"uses": list(self.candidate.uses), "without_switches": self.without.as_json()}


def _who(candidate: Candidate) -> str:
    return " ".join([candidate.planner, *(f"{k}={v}" for k, v in candidate.options.items())])
