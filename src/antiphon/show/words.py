"""Phrases that terminal texts and HTML pages share: speedups, libraries, bounds, options, notes of a tuning.

Each function takes a result of planning and returns a phrase or sentence, so that all texts use the same words. A
`Tuning` has candidates (schedules that were compared) and ranges of sizes, each with its best candidate. A `Limit` is
the lower bound of a collective. A `Loss` compares limits before and after a failure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from antiphon.core.plan import LIBRARY
from antiphon.cost.nccl.accuracy import accuracy_note
from antiphon.select import NONE_CAN_PLAN, Candidate, Limit, Loss, Range, Tuning
from antiphon.select.verdict import is_even
from antiphon.units import format_bandwidth, format_ends, plural

# Why a candidate ended early, in words
ENDINGS = {"budget": "stopped by their budget", "memory": "out of memory", "crash": "ended by a crash"}
MAX_NAMES = 5  # planners that are named; further ones are counted
MAX_VALUE_LENGTH = 72  # characters of an option's value that are still shown in full
SWITCHES_NOTE = "switches of this machine can do that, but the search did not use it"
FIGURES_NOTE = "predicted at size `at`, the largest evaluated in the range; a range ends before the next begins"


def library_name(served_by: str) -> str:
    """Return the name of the library that a table leaves sizes to."""
    return "the library" if served_by == LIBRARY else served_by.upper()


def planner_name(planner: str) -> str:
    """Return the name of a planner; in place of one, plans may name how else they were made."""
    return {"written": "hand", "composed": "composition"}.get(planner, planner)


def by_planner(planner: str) -> str:
    """Return the end of a title that names the machine: its planner. (No machine is "degraded by repair".)"""
    return ", repaired" if planner == "repair" else f" by {planner_name(planner)}"


def use_text(r: Range) -> str:
    """Return what to use in a range: Antiphon, or the library where our plan is not clearly faster."""
    return library_name(r.served_by) if r.served_by else "Antiphon"


def speedup_text(r: Range) -> str:
    """Return the speedup of our plan; ~1 where it is within the error of the library's model."""
    return "~1" if is_even(r) else ratio(r.speedup)


def use_lines(tuning: Tuning, kind: str = "") -> list[str]:
    """Return a sentence on each library that serves some sizes, for one collective or for all (`kind` is "")."""
    ranges = [r for r in tuning.ranges if not kind or r.collective == kind]
    return [
        f"use {name}: leave these sizes to it; our plan is slower, or faster by less than the model's error. "
        "The plan stays in the table for run and verify; exports leave it out"
        for name in sorted({library_name(r.served_by) for r in ranges if r.served_by})
    ]


def baseline_text(tuning: Tuning, kinds: Collection[str]) -> str:
    """Return the baseline of the speedups of these collectives; "" if there is none."""
    if tuning.library is not None:
        basis, calibrated = tuning.library.costs.basis(), bool(tuning.library.costs.gpu.calibrated_by)
        note = accuracy_note(kinds, tuning.library.layout.nodes, calibrated=calibrated)
        return f"what {tuning.library.name.upper()} would choose by its model, {basis}{note}"
    kinds_of: dict[tuple[str, ...], list[str]] = {}  # collectives by the planners that stand for NCCL
    for kind, names in tuning.baselines.items():
        if names and kind in kinds:
            kinds_of.setdefault(names, []).append(kind)
    if len(kinds_of) == 1:
        return f"{' or '.join(next(iter(kinds_of)))}, as NCCL would do"
    return "; ".join(f"{', '.join(kinds)}: {' or '.join(names)}" for names, kinds in kinds_of.items())


def ends_text(start: int, stop: int) -> tuple[str, str]:
    """Return first and last size of the range [start, stop) without rounding; the last is "" if there is one size."""
    return format_ends(start, stop if stop > start + 1 else None)


def assumed_text(assumes: Sequence[str]) -> str:
    """Return the note on figures that multicast or reduction in switches might improve."""
    return f"{', '.join(assumes)}: {SWITCHES_NOTE}"


def bound_text(tuning: Tuning) -> str:
    """Return the note on the bound, with its values without multicast and reduction in switches where they differ."""
    kinds_by_rate: dict[str, list[str]] = {}
    for kind, limit in tuning.limits.items():
        if forwarding_bound_text(limit) and limit.without_switches is not None:
            kinds_by_rate.setdefault(format_bandwidth(limit.without_switches), []).append(kind)
    texts = [f"{rate} for {', '.join(kinds)}" for rate, kinds in kinds_by_rate.items()]
    unaided = f" (bandwidth bound without the help of switches: {'; '.join(texts)})" if texts else ""
    return f"no schedule can beat by this model{unaided}"


def forwarding_bound_text(limit: Limit) -> str:
    """Return the bound if switches only forward; "" if they cannot help, or do not change it."""
    unaided = limit.without_switches
    if unaided is None or unaided == limit.bytes_per_second:
        return ""
    return f"without the help of switches no schedule moves more than {format_bandwidth(unaided)}"


def stopped_text(tunings: Sequence[Tuning]) -> str:
    """Return the last line of a tuning: the number of candidates that ended early, by cause, and of those not tried."""
    ended = [c for tuning in tunings for c in tuning.ended_early]
    texts = []
    for cause, words in ENDINGS.items():
        ended_by_this = [c for c in ended if c.ended_by == cause]
        names = list(dict.fromkeys(c.planner for c in ended_by_this))
        if ended_by_this or cause == "budget":  # that no budget ended a candidate is stated, too
            texts.append(
                f"{words}: {plural(len(ended_by_this), 'candidate') if ended_by_this else 'none'}" + _join_names(names)
            )
    untried = sum(tuning.untried for tuning in tunings)
    texts += [f"not tried: {plural(untried, 'candidate')}"] if untried else []
    better = "; more time (--budget) may find better" if any(tuning.stopped for tuning in tunings) else ""
    return "; ".join(texts) + better


def _join_names(names: Sequence[str]) -> str:
    omitted = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return f" ({', '.join(names[:MAX_NAMES])}{omitted})" if names else ""


def options_text(options: Mapping[str, Any], variant: int = 0) -> str:
    """Return a planner's options as on the command line; long values, such as an order of ranks, are shortened.

    `variant`: number of the candidate among those of the planner, shown if it has no options.

    >>> options_text({"order": ",".join(map(str, range(100))), "pieces": 1})
    'order=0,1,2,3,4,5,6,7,8,9,10,...,98,99, pieces=1'
    """
    text = ", ".join(f"{key}={_shorten_value(str(value))}" for key, value in options.items())
    return text or (f"#{variant + 1}" if variant else "")


def candidate_text(candidate: Candidate) -> str:
    """Return a planner and its options as one name."""
    return f"{candidate.planner} {options_text(candidate.options, candidate.variant)}".strip()


def _shorten_value(value: str) -> str:
    """Return a value with its middle left out if it is long; a list is cut at its commas."""
    if len(value) <= MAX_VALUE_LENGTH:
        return value
    begin, end = value[:24], value[-8:]
    return f"{begin[: begin.rfind(',') + 1] or begin}...{end[end.find(',') :] if ',' in end else end}"


def model_text(tuning: Tuning) -> str:
    """Return the name of the model, and of its profile, that predicted the times."""
    return f"the model `{tuning.model}`" + (f" with profile {tuning.profile}" if tuning.profile is not None else "")


def ratio(value: float | None) -> str:
    """Return a ratio with its unit: 1.5x."""
    return "-" if value is None else f"{value:.3g}x" if value < 1000 else f"{value:.0f}x"


def all_notes(tuning: Tuning) -> list[str]:
    """Return the notes on a tuning; if no planner can stand for NCCL, also that NCCL may fall back to PCIe."""
    texts = list(tuning.notes)
    kinds_without_baseline = [
        kind for kind, why in tuning.no_speedup.items() if why.endswith(NONE_CAN_PLAN) and kind in tuning.plans
    ]
    kinds = {tuning.topology.types[i].kind for i in set(tuning.topology.link_type.tolist())}
    if kinds_without_baseline and "nvlink" in kinds and "pcie" not in kinds and not tuning.topology.switches:
        texts.append(
            "where NVLinks form no ring NCCL falls back to PCIe (Blink, section 2), of which this machine's "
            "description says nothing"
        )
    return texts


def decisive_reasons(refused: Mapping[str, str]) -> Mapping[str, str]:
    """Return the reasons, by planner, that hold for all planners; all reasons if none does."""
    decisive = {planner: reason for planner, reason in refused.items() if reason.endswith("no planner can do that")}
    return decisive or refused


def _rate_text(limit: Limit | None) -> str:
    """Return the greatest rate that a bound allows, as text."""
    if limit is None:
        return "impossible"
    return format_bandwidth(limit.bytes_per_second) if limit.bytes_per_second else "unlimited"


def loss_text(loss: Loss) -> str:
    """Return one line on what a degraded machine, or an allocation of ranks, loses of the bandwidth bound.

    Compared are `loss.left`, on the machine as it is, and `loss.among`, for the same ranks on the intact machine
    `loss.whole`, on which other ranks may relay. `loss.all` is for all ranks of the intact machine.
    """
    change = ""
    if loss.left and loss.among and loss.left.bytes_per_second and loss.among.bytes_per_second:
        remaining = float(loss.left.bytes_per_second / loss.among.bytes_per_second)
        # over 1: the machine is no degraded one of `loss.whole`, so nothing is said
        change = f": {1 - remaining:.0%} of it lost" if remaining < 1 else ": nothing lost" if remaining == 1 else ""
    is_same_with_all_ranks = (
        loss.all is not None and loss.among is not None and loss.all.bytes_per_second == loss.among.bytes_per_second
    )
    baseline = f"the same ranks with all of {loss.whole}" if not is_same_with_all_ranks else f"with all of {loss.whole}"
    all_ranks = "" if is_same_with_all_ranks else f"; all its ranks {_rate_text(loss.all)}"
    now = f"at most {_rate_text(loss.left)}" if loss.left is not None else "impossible"
    return f"{loss.collective}: {now} here; {baseline} {_rate_text(loss.among)}{change}{all_ranks}"
