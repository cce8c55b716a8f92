"""The result of tuning by measuring as text for the terminal: of our plans, or of a library's own algorithms."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from antiphon.cli.output import dash
from antiphon.formats.stock.measured import MPIS
from antiphon.registry import find
from antiphon.runtimes.measure.choose import MeasuredTuning
from antiphon.show.columns import paragraph, table_rows, under_names
from antiphon.show.words import library_name, options_text
from antiphon.units import format_ends, format_size, size_family

Row = Mapping[str, Any]
HEAD = ["from", "to", "planner", "measured at", "time", "the library's", "over it", "use"]
LIBRARY_HEAD = [
    "from", "to", "the library's algorithm", "time", "its own choice", "over it", "the best of ours", "time", "over it",
]  # fmt: skip
MAX_SIZES = 3  # measured sizes that are all listed


def measured_text(result: MeasuredTuning) -> str:
    """The ranges, with the measurements at the greatest size of each."""
    family = size_family(point["nbytes"] for row in result.ranges for point in row.get("measurements", ()))
    lines = [_title(result, f"measured on {result.on}"), "", *_table(result, HEAD, lambda row: _cells(row, family))]
    times = "time: ours, at the greatest size measured in the range"
    lines += ["", *paragraph(f"{times}; over it: ours over the library's, median of pairs", "  ", "    ")]
    for row in result.ranges:
        if row.get("ties"):
            rivals = ", ".join(_planner_text(tie) for tie in row["ties"])
            lines += paragraph(
                f"{row['collective']} of {format_size(row['at'], family)}: as fast may be {rivals}", "  ", "    "
            )
    served = {bool(row.get("served_by")) for row in result.ranges if row["measured"] is False}
    if True in served:
        lines += paragraph("what was not measured is left to the library", "  ", "    ")
    if False in served:
        lines += paragraph(
            "what was not measured goes by the nearest of ours, as the library adds in another order", "  ", "    "
        )
    missing = [kind for kind in result.tuning.collectives if kind not in result.plans]
    lines += [*_gains(result.ranges, family), *([f"  no planner could plan {', '.join(missing)}"] if missing else [])]
    return "\n".join(lines)


def library_text(result: MeasuredTuning) -> str:
    """The same where the algorithms of the library itself were measured."""
    library = next((row["library"] for row in result.ranges if "library" in row), None)
    name = f"{library['name']} {library['version']}" if library else "the library"
    family = size_family(row["nbytes"] for row in result.rows)
    lines = [
        _title(result, f"the algorithms of {name}"), "",
        *_table(result, LIBRARY_HEAD, lambda row: _library_cells(row, family)), "",
    ]  # fmt: skip
    times = (
        "times: at the greatest size measured in the range; over it: over what the library chooses by itself, median"
    )
    return "\n".join([*lines, *paragraph(f"{times} of pairs; what was not measured stays its choice", "  ", "    ")])


def use_text(result: MeasuredTuning, file: str) -> list[str]:
    """How programs use the table that was written."""
    use = find("runtime", result.on).can.use
    return [f"  use: {use.format(table=file, ranks=result.tuning.topology.ranks)}"] if use else []


def library_use(result: MeasuredTuning, file: str) -> list[str]:
    """How the library is made to choose so."""
    names = {row["library"]["name"] for row in result.ranges if "library" in row}
    return [f"  use: antiphon export {file} --to {MPIS[name]} -o rules" for name in sorted(names) if name in MPIS]


def _title(result: MeasuredTuning, subject: str) -> str:
    kinds = result.tuning.collectives
    ended = "" if result.complete else f" (ended early: {result.unmeasured} more were not made)"
    return (
        f"{kinds[0] if len(kinds) == 1 else f'{len(kinds)} collectives'} on {result.tuning.topology.name}, {subject}: "
        f"{len(result.rows)} measurements{ended}"
    )


def _table(result: MeasuredTuning, head: list[str], cells: Callable[[Row], list[str]]) -> list[str]:
    rows = {kind: [cells(row) for row in result.ranges if row["collective"] == kind] for kind in result.plans}
    top, *body = table_rows(head, [row for of_kind in rows.values() for row in of_kind])
    return [*top, *under_names(rows, body)]


def _gains(ranges: Sequence[Row], family: str) -> list[str]:
    """The measured advantage of this table over the library's own collectives."""
    measured = [row for row in ranges if row.get("over_library")]
    ours = [row for row in measured if not row.get("served_by")]
    if not measured:
        return []
    best: dict[str, Row] = {}
    for row in sorted(ours, key=lambda row: row["over_library"]):
        best.setdefault(row["collective"], row)
    speedups = [
        f"{kind} up to {1 / row['over_library']:.2f} times ({format_size(row['at'], family)})"
        for kind, row in best.items()
    ]
    faster = f": {', '.join(speedups)}" if speedups else ""
    return paragraph(f"faster than the library in {len(ours)} of {len(measured)} ranges measured{faster}", "  ")


def _cells(row: Row, family: str) -> list[str]:
    sizes = [format_size(point["nbytes"], family) for point in row.get("measurements", ())]
    listed = ", ".join(sizes) if len(sizes) <= MAX_SIZES else f"{sizes[0]} ... {sizes[-1]} ({len(sizes)})"
    is_unplanned = not row["measured"] and row.get("served_by")
    return [
        *format_ends(row["from"], row["to"], family), "-" if is_unplanned else _planner_text(row), listed or "-",
        dash(row["seconds"] if row["measured"] else None), dash(row.get("reference_seconds")),
        dash(row.get("over_library"), "{:.2f}".format),
        library_name(row["served_by"]) if row.get("served_by") else "ours",
    ]  # fmt: skip


def _library_cells(row: Row, family: str) -> list[str]:
    span = format_ends(row["from"], row["to"], family)
    if not row["measured"]:
        return [*span, "its own choice", *["-"] * 6]
    ratio = "{:.2f}".format
    name, parameters = row["library"]["algorithm"], row["library"]["parameters"]
    shown = {key: value for key, value in parameters.items() if key != "number" and value}
    return [
        *span, "its own choice" if name == "default" else f"{name} {options_text(shown)}".strip(),
        dash(row["library_seconds"]), dash(row["reference_seconds"]), dash(row["library_over_default"], ratio),
        _planner_text(row), dash(row["seconds"]), dash(row["over_library"], ratio),
    ]  # fmt: skip


def _planner_text(row: Row) -> str:
    return f"{row['planner']} {options_text(row['options'])}".strip()
