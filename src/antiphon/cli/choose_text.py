"""The result of tuning by measuring, as text for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from antiphon.registry import find
from antiphon.runtimes.measure.choose import MeasuredTuning
from antiphon.show.columns import paragraph, table_rows, under_names
from antiphon.show.words import library_name, options_text
from antiphon.units import format_ends, format_seconds, format_size, size_family

HEAD = ["from", "to", "planner", "measured at", "time", "the library's", "over it", "use"]
FEW = 3  # sizes measured that are all told


def measured_text(found: MeasuredTuning) -> str:
    """The ranges, with what was measured at the greatest size of each."""
    tuning = found.tuning
    what = tuning.collectives[0] if len(tuning.collectives) == 1 else f"{len(tuning.collectives)} collectives"
    ended = "" if found.complete else f" (ended early: {found.unmeasured} more were not made)"
    lines = [f"{what} on {tuning.topology.name}, measured on {found.on}: {len(found.rows)} measurements{ended}", ""]
    family = size_family(point["nbytes"] for one in found.ranges for point in one.get("measurements", ()))
    rows = {kind: [_row(one, family) for one in found.ranges if one["collective"] == kind] for kind in found.plans}
    top, *body = table_rows(HEAD, [row for mine in rows.values() for row in mine])
    lines += [*top, *under_names(rows, body)]
    head = "time: ours, at the greatest size measured in the range"
    lines += ["", *paragraph(f"{head}; over it: ours over the library's, median of pairs", "  ", "    ")]
    for one in found.ranges:
        if one.get("ties"):
            others = ", ".join(f"{tie['planner']} {options_text(tie['options'])}".strip() for tie in one["ties"])
            lines += paragraph(
                f"{one['collective']} of {format_size(one['at'], family)}: as fast may be {others}", "  ", "    "
            )
    if any(one["measured"] is False and one.get("served_by") for one in found.ranges):
        lines += paragraph("what was not measured is left to the library", "  ", "    ")
    if any(one["measured"] is False and not one.get("served_by") for one in found.ranges):
        lines += paragraph(
            "what was not measured goes by the nearest of ours, as the library adds in another order", "  ", "    "
        )
    lines += _gains(found.ranges, family)
    return "\n".join([*lines, *_missing(tuning.collectives, found.plans)])


def _gains(ranges: Sequence[Mapping[str, Any]], family: str) -> list[str]:
    """What this table is worth over the library's own collectives, as was measured."""
    measured = [one for one in ranges if one.get("over_library")]
    ours = [one for one in measured if not one.get("served_by")]
    if not measured:
        return []
    best: dict[str, Mapping[str, Any]] = {}
    for one in sorted(ours, key=lambda one: one["over_library"]):
        best.setdefault(one["collective"], one)
    told = [
        f"{kind} up to {1 / one['over_library']:.2f} times ({format_size(one['at'], family)})"
        for kind, one in best.items()
    ]
    faster = f": {', '.join(told)}" if told else ""
    return paragraph(f"faster than the library in {len(ours)} of {len(measured)} ranges measured{faster}", "  ")


def use_text(found: MeasuredTuning, file: str) -> list[str]:
    """How programs come to run by the table that was written."""
    use = find("runtime", found.on).can.get("use")
    return [f"  use: {use.format(table=file, ranks=found.tuning.topology.ranks)}"] if use else []


def _missing(kinds: Sequence[str], plans: Mapping[str, Any]) -> list[str]:
    missing = [kind for kind in kinds if kind not in plans]
    return [f"  no planner could plan {', '.join(missing)}"] if missing else []


def _row(one: Mapping[str, Any], family: str) -> list[str]:
    reference, ratio = one.get("reference_seconds"), one.get("over_library")
    sizes = [format_size(point["nbytes"], family) for point in one.get("measurements", ())]
    told = ", ".join(sizes) if len(sizes) <= FEW else f"{sizes[0]} ... {sizes[-1]} ({len(sizes)})"
    left = not one["measured"] and one.get("served_by")
    return [
        *format_ends(one["from"], one["to"], family),
        "-" if left else f"{one['planner']} {options_text(one['options'])}".strip(), told or "-",
        format_seconds(one["seconds"]) if one["measured"] else "-",
        "-" if reference is None else format_seconds(reference),
        "-" if ratio is None else f"{ratio:.2f}", library_name(one["served_by"]) if one.get("served_by") else "ours",
    ]  # fmt: skip
