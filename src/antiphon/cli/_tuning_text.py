"""The result of tuning as text for the terminal."""

from __future__ import annotations

from antiphon.select import Range, Tuning
from antiphon.show._columns import paragraph
from antiphon.show._words import decisive, loss_text, model_text, notes, options_text, ratio
from antiphon.show.text import table
from antiphon.units import format_seconds, format_size


def tuning_text(tuning: Tuning) -> str:
    """The ranges, what they are measured by, what was lost, and what could not take part and why."""
    low, high = (format_size(size) for size in tuning.span)
    what = tuning.collectives[0] if len(tuning.collectives) == 1 else f"{len(tuning.collectives)} collectives"
    ok = sum(c.status == "ok" for c in tuning.candidates)
    lines = [
        *paragraph(
            f"{what} on {tuning.topology.name}, {low} to {high}, by {model_text(tuning)}: "
            + (f"{ok} schedules, all verified" if ok else "no schedule")
            + ("" if tuning.complete else " (interrupted: not all candidates were tried)"),
            "",
        ),
        "",
        *(_ranges(tuning) if tuning.ranges else ["  nothing could be planned"]),
        "",
    ]
    if tuning.ranges:
        lines += ["  time: predicted, at the greatest size of the range"]
        lines += ["  gap: time over the bound, which no schedule can beat"]
        if any(tuning.baselines.values()):
            lines += paragraph(f"speedup: over what NCCL would do: {_baselines(tuning)}", rest="    ")
        lines += [line for note in notes(tuning) for line in paragraph(note, rest="    ")]
    missing = [kind for kind in tuning.collectives if kind not in tuning.plans]
    if missing and tuning.plans:
        lines += paragraph(f"no planner could plan {', '.join(missing)}", rest="    ")
    for loss in tuning.losses:
        lines += paragraph(loss_text(loss), rest="    ")
    return "\n".join(lines + _others(tuning))


def _ranges(tuning: Tuning) -> list[str]:
    """One table; of several collectives each has its name above its rows."""
    kinds = [kind for kind in tuning.collectives if kind in tuning.plans]
    rows = [[_row(r) for r in tuning.ranges if r.collective == kind] for kind in kinds]
    head, *body = table(["from", "to", "planner", "time", "gap", "speedup"], [row for mine in rows for row in mine])
    if len(kinds) == 1:
        return [head, *body]
    left = iter(body)
    return [
        head,
        *(line for kind, mine in zip(kinds, rows, strict=True) for line in (kind, *(next(left) for _ in mine))),
    ]


def _row(r: Range) -> list[str]:
    who = f"{r.candidate.planner} {options_text(r.candidate.options, r.candidate.variant)}".strip()
    return [format_size(r.start), format_size(r.stop), who, format_seconds(r.seconds), ratio(r.gap), ratio(r.speedup)]


def _baselines(tuning: Tuning) -> str:
    said: dict[tuple[str, ...], list[str]] = {}
    for kind, names in tuning.baselines.items():
        if names:
            said.setdefault(names, []).append(kind)
    parts = [" or ".join(names) for names in said]
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
        for who, reason in said:
            lines += paragraph(f"{status}: {who}: {reason}", rest="    ")
    refused: dict[str, str] = {}
    for c in tuning.candidates:
        if c.status == "refused" and not c.reason.startswith("it does not plan"):
            refused.setdefault(c.planner, c.reason)
    if refused and tuning.plans:
        where = "some" if len(tuning.collectives) > 1 else "this"
        lines += paragraph(f"refused {where}: {', '.join(refused)} (--json and --report say why)", rest="    ")
    if not tuning.plans:
        alike: dict[str, list[str]] = {}
        for planner, reason in decisive(refused).items():
            alike.setdefault(_without(reason, planner), []).append(planner)
        for reason, planners in alike.items():
            lines += paragraph(f"refused: {', '.join(planners)}: {reason}", rest="    ")
    return lines


def _without(reason: str, planner: str) -> str:
    return reason.removeprefix(f"planner {planner}").removeprefix(":").strip()
