"""The result of tuning as text for the terminal."""

from __future__ import annotations

from antiphon.select import Tuning
from antiphon.show._words import loss_text, options_text, ratio
from antiphon.show.text import table
from antiphon.units import format_seconds, format_size


def tuning_text(tuning: Tuning) -> str:
    """The ranges, what they are measured by, what was lost, and what could not take part and why."""
    low, high = (format_size(size) for size in tuning.span)
    what = tuning.collectives[0] if len(tuning.collectives) == 1 else f"{len(tuning.collectives)} collectives"
    ok = sum(c.status == "ok" for c in tuning.candidates)
    lines = [
        f"{what} on {tuning.topology.name}, {low} to {high}, by model {tuning.model}: "
        f"{ok} schedules, all verified" + ("" if tuning.complete else " (interrupted: not all candidates were tried)"),
        "",
        *(_ranges(tuning) if tuning.ranges else ["  nothing could be planned"]),
        "",
        f"  gap: time over the bound, which none can beat; speedup: over what NCCL would do ({_baselines(tuning)})",
    ]
    for kind in tuning.collectives:
        if kind not in tuning.plans:
            lines.append(f"  {kind}: no planner could plan it")
    lines += [f"  {loss_text(loss)}" for loss in tuning.losses]
    return "\n".join(lines + _others(tuning))


def _ranges(tuning: Tuning) -> list[str]:
    several = len(tuning.collectives) > 1
    rows = []
    for r in tuning.ranges:
        row = [
            format_size(r.start), format_size(r.stop), r.candidate.planner,
            options_text(r.candidate.options, r.candidate.variant) or "-",
            format_seconds(r.seconds), ratio(r.gap), ratio(r.speedup),
        ]  # fmt: skip
        rows.append([r.collective, *row] if several else row)
    head = ["from", "to", "planner", "options", "time at the top", "gap", "speedup"]
    return table(["collective", *head] if several else head, rows)


def _baselines(tuning: Tuning) -> str:
    said: dict[tuple[str, ...], list[str]] = {}
    for kind, names in tuning.baselines.items():
        said.setdefault(names, []).append(kind)
    parts = [" or ".join(names) if names else "no planner here" for names in said]
    if len(parts) == 1:
        return parts[0]
    return "; ".join(f"{', '.join(kinds)}: {part}" for part, kinds in zip(parts, said.values(), strict=True))


def _others(tuning: Tuning) -> list[str]:
    """Who failed or timed out and why; who was refused, with reasons only where nothing else is to be said."""
    lines = []
    for status in ("failed", "timed out"):
        said: dict[tuple[str, str], None] = {}
        for c in tuning.candidates:
            if c.status == status:
                said.setdefault((f"{c.collective} by {c.planner} {options_text(c.options)}".strip(), c.reason))
        lines += [f"  {status}: {who}: {reason}" for who, reason in said]
    refused: dict[str, str] = {}
    for c in tuning.candidates:
        if c.status == "refused" and not c.reason.startswith("it does not plan"):
            refused.setdefault(c.planner, c.reason)
    if refused and tuning.plans:
        where = "some" if len(tuning.collectives) > 1 else "this"
        lines.append(f"  refused {where}: {', '.join(refused)} (--json and --report say why)")
    if not tuning.plans:
        lines += [f"  refused: {planner}: {_without(reason, planner)}" for planner, reason in refused.items()]
    return lines


def _without(reason: str, planner: str) -> str:
    return reason.removeprefix(f"planner {planner}").removeprefix(":").strip()
