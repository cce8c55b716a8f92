"""The result of tuning a library that stays as it is, as text for the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from antiphon.formats.stock.measured import MPIS
from antiphon.runtimes.measure.choose import MeasuredTuning
from antiphon.show.columns import paragraph, table_rows, under_names
from antiphon.show.words import options_text
from antiphon.units import format_ends, format_seconds, size_family

HEAD = [
    "from",
    "to",
    "the library's algorithm",
    "time",
    "its own choice",
    "over it",
    "the best of ours",
    "time",
    "over it",
]


def library_text(found: MeasuredTuning) -> str:
    """The ranges, with what was measured at the greatest size of each."""
    tuning = found.tuning
    what = tuning.collectives[0] if len(tuning.collectives) == 1 else f"{len(tuning.collectives)} collectives"
    ended = "" if found.complete else f" (ended early: {found.unmeasured} more were not made)"
    told = next((one["library"] for one in found.ranges if "library" in one), None)
    whose = f"{told['name']} {told['version']}" if told else "the library"
    head = f"{what} on {tuning.topology.name}, the algorithms of {whose}: {len(found.rows)} measurements{ended}"
    lines = [head, ""]
    family = size_family(row["nbytes"] for row in found.rows)
    rows = {kind: [_row(one, family) for one in found.ranges if one["collective"] == kind] for kind in found.plans}
    top, *body = table_rows(HEAD, [row for mine in rows.values() for row in mine])
    lines += [*top, *under_names(rows, body)]
    says = (
        "times: at the greatest size measured in the range; over it: over what the library chooses by itself, median "
    )
    return "\n".join([*lines, "", *paragraph(f"{says}of pairs; what was not measured stays its choice", "  ", "    ")])


def _row(one: Mapping[str, Any], family: str) -> list[str]:
    span = format_ends(one["from"], one["to"], family)
    if not one["measured"]:
        return [*span, "its own choice", *["-"] * 6]
    name, parameters = one["library"]["algorithm"], one["library"]["parameters"]
    shown = {key: value for key, value in parameters.items() if key != "number" and value}
    chosen = "its own choice" if name == "default" else f"{name} {options_text(shown)}".strip()
    theirs = [_time(one["library_seconds"]), _time(one["reference_seconds"]), _ratio(one["library_over_default"])]
    ours = f"{one['planner']} {options_text(one['options'])}".strip()
    return [*span, chosen, *theirs, ours, _time(one["seconds"]), _ratio(one["over_library"])]


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else format_seconds(seconds)


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def library_use(found: MeasuredTuning, file: str) -> list[str]:
    """How the library comes to choose so."""
    names = {one["library"]["name"] for one in found.ranges if "library" in one}
    return [f"  use: antiphon export {file} --to {MPIS[name]} -o rules" for name in sorted(names) if name in MPIS]
