"""Results of a tuning: candidates with their times, and the ranges of sizes for which one of them is best.

A `Candidate` is a planner with its options and the times of its schedule. A `Range` is a range of sizes with its best
candidate. If that candidate lets switches multicast or reduce, `ForwardingAlternatives` has the alternatives for
runtimes that cannot do this. These classes hold results and convert them to JSON; ledger.py computes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import msgspec

from antiphon.cost.basis import NOT_CALIBRATED, join_bases
from antiphon.errors import Invalid
from antiphon.options import name_with_options
from antiphon.select.task import OK
from antiphon.units import format_seconds, format_size


@dataclass(frozen=True, eq=False)
class Candidate:
    """A planner with its options, and its result. Mappings with key `int` are by size in bytes."""

    collective: str
    planner: str
    options: Mapping[str, Any]
    status: str  # ok, refused, failed, timed out or skipped
    reason: str = ""  # of a status that is not ok
    variant: int = 0  # number of the schedule among those of the same call of the planner
    seconds: Mapping[int, float] = field(default_factory=dict)  # predicted by the cost model
    why: Mapping[int, tuple[str, Mapping[str, float]]] = field(default_factory=dict)  # bottleneck, seconds by term
    rests_on: Mapping[int, str] = field(default_factory=dict)  # the measurements that calibrate the model, if any
    figures: Mapping[str, Any] = field(default_factory=dict)  # of the schedule: chunks, steps, rounds, transfers, ...
    seconds_per_byte: Fraction = Fraction(0)  # of the schedule at zero latency, by its busiest links
    may_win: bool = True  # False: the candidate only stands for the library that plans are compared with
    also: tuple[Mapping[str, Any], ...] = ()  # other options of this planner that lead to the same schedule
    ended_by: str = ""  # budget, memory or crash, if one of these ended it early
    # If switches multicast or reduce in this schedule: seconds of the same schedule if they only forward.
    alone: Mapping[int, float] = field(default_factory=dict)

    @property
    def uses(self) -> tuple[str, ...]:
        """Return what its schedule uses of switches beside forwarding: multicast, reduction."""
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
class ForwardingAlternatives:
    """The alternatives at one size for a runtime whose switches only forward."""

    alone: float | None  # seconds of the same schedule if switches only forward; None: the model does not price that
    # of the best candidate whose switches only forward; None: there is none
    planner: str | None = None
    options: Mapping[str, Any] | None = None
    seconds: float | None = None

    @staticmethod
    def of(best: Candidate, unaided: Sequence[Candidate], at: int) -> ForwardingAlternatives | None:
        """Return the alternatives to the best candidate at a size; None if its switches only forward.

        `unaided`: one candidate, the best whose switches only forward, or none.
        """
        if not best.uses:
            return None
        if not unaided:
            return ForwardingAlternatives(best.alone.get(at))
        other = unaided[0]
        return ForwardingAlternatives(best.alone.get(at), other.planner, other.options, other.seconds[at])

    def as_json(self) -> dict[str, Any]:
        options = None if self.options is None else dict(self.options)
        return {"alone": self.alone, "planner": self.planner, "options": options, "seconds": self.seconds}


class _RangeClaims(msgspec.Struct, frozen=True):
    """What `Range.as_json` states and `Range.from_claims` reads: fields of `Range` and of its `Candidate`."""

    planner: str
    options: dict[str, Any]
    variant: int
    at: int
    seconds: float
    gap: float | None
    gap_model: str | None
    speedup: float | None
    bottleneck: str
    rests_on: str
    served_by: str = ""
    over: str = ""
    reference: str = ""
    error: float | None = None
    library_gap: float | None = None
    largest_gap: float | None = None
    least_speedup: float | None = None
    largest_speedup: float | None = None
    sms: int | None = None
    sms_of: int | None = None
    uses: tuple[str, ...] = ()
    without_switches: ForwardingAlternatives | None = None


@dataclass(frozen=True, eq=False)
class Range:
    """The best candidate for start <= nbytes < stop (the last range: for its stop, too).

    All figures are those at the size `at`, but the three that are of all sizes priced in the range. The library is NCCL
    or RCCL, if its own choice of algorithm is known.
    """

    collective: str
    start: int
    stop: int
    at: int  # the greatest size priced in this range
    candidate: Candidate
    seconds: float
    gap: float | None  # None: no lower bound is known
    speedup: float | None  # over the library, or over the planners that stand for it
    without: ForwardingAlternatives | None = None  # without help of switches; None: the candidate does not use it
    over: str = ""  # the library's own choice of algorithm, over which `speedup` is
    rests_on: str = NOT_CALIBRATED  # the measurements that calibrate the model, if any
    sms: int | None = None  # multiprocessors of each GPU that the candidate takes at most, if known
    sms_of: int | None = None  # multiprocessors of a GPU
    # The library to use for these sizes, as the candidate is not faster by more than the error of the library's model;
    # "": use the candidate.
    served_by: str = ""
    error: float | None = None  # relative, of the library's model on machines held out of its fit, if known
    runners_up: tuple[Candidate, ...] = ()  # the next best candidates
    reference: str = ""  # the library, such as nccl
    gap_model: str = ""  # the model under which the gap's lower bound holds
    library_gap: float | None = None  # the gap of the library's own choice, if `served_by` is set
    # of all sizes priced in the range; None: unknown at one of them
    largest_gap: float | None = None
    least_speedup: float | None = None
    largest_speedup: float | None = None

    @property
    def beyond_error(self) -> bool | None:
        """Whether the speedup exceeds the error of the library's model; None: unknown."""
        return None if self.error is None or self.speedup is None else self.speedup > 1 + self.error

    def __repr__(self) -> str:
        sizes = f"{format_size(self.start)} to {format_size(self.stop)}"
        figures = [f"{k} {v:.3g}" for k, v in (("gap", self.gap), ("speedup", self.speedup)) if v is not None]
        name = name_with_options(self.candidate.planner, self.candidate.options)
        description = ", ".join([name, format_seconds(self.seconds), *figures, self.rests_on])
        description += f"; leave it to {self.served_by.upper()}" if self.served_by else ""
        return f"Range({self.collective}, {sizes}: {description})"

    @staticmethod
    def from_claims(collective: str, start: int, stop: int, claims: Mapping[str, Any]) -> Range:
        """Return the range from the claims of a plan's entry, which are those of `as_json`; without runners-up.

        Raises Invalid if a claim is missing or of a wrong type.
        """
        try:
            claimed = msgspec.convert(dict(claims), _RangeClaims)
        except msgspec.ValidationError as error:
            raise Invalid(f"its plan lacks a claim of tune, or has a wrong one: {error}") from None
        at, seconds = claimed.at, claimed.seconds
        candidate = Candidate(
            collective, claimed.planner, claimed.options, OK, variant=claimed.variant, seconds={at: seconds},
            why={at: (claimed.bottleneck, {})}, rests_on={at: claimed.rests_on}, figures={"uses": claimed.uses},
        )  # fmt: skip
        return Range(
            collective, start, stop, at, candidate, seconds, claimed.gap, claimed.speedup,
            without=claimed.without_switches, over=claimed.over, rests_on=claimed.rests_on, sms=claimed.sms,
            sms_of=claimed.sms_of, served_by=claimed.served_by, error=claimed.error, reference=claimed.reference,
            gap_model=claimed.gap_model or "", library_gap=claimed.library_gap, largest_gap=claimed.largest_gap,
            least_speedup=claimed.least_speedup, largest_speedup=claimed.largest_speedup,
        )  # fmt: skip

    def as_json(self) -> dict[str, Any]:
        bottleneck, _ = self.candidate.why[self.at]
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
            "largest_gap": self.largest_gap,
            "least_speedup": self.least_speedup,
            "largest_speedup": self.largest_speedup,
            "at": self.at,
            "variant": self.candidate.variant,
            "bottleneck": bottleneck,
            "rests_on": self.rests_on,
            "use": "library" if self.served_by else "ours",
            **({"served_by": self.served_by} if self.served_by else {}),
            **(
                {
                    "over": self.over,
                    "reference": self.reference,
                    "beyond_error": self.beyond_error,
                    "error": self.error,
                    "library_gap": self.library_gap,
                }
                if self.over
                else {}
            ),
            "runners_up": [
                {"planner": runner.planner, "options": dict(runner.options), "seconds": runner.seconds[self.at]}
                for runner in self.runners_up
            ],
            **({"sms": self.sms, "sms_of": self.sms_of} if self.sms is not None else {}),
            **({"uses": list(self.candidate.uses), "without_switches": self.without.as_json()} if self.without else {}),
        }
