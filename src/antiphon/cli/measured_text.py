"""The result of tuning by measuring as text for the terminal: of our plans, or of a library's own algorithms.

First the verdict (for which sizes to use our plans), then the ranges with the measurements at the largest size of each.
`rows_of_kind` below holds the rows of `MeasuredTuning.ranges` by collective; `family` says whether sizes are printed in
KB or KiB. A row with "served_by" is a range of sizes that the library serves; all others use our plans. "over_library"
is our time over the library's, "library_over_default" the library's best time over that of its own choice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from antiphon.formats.stock.measured import RULE_FORMATS
from antiphon.registry import find
from antiphon.runtimes.measure.choose import MeasuredTuning
from antiphon.runtimes.measure.library_logs import LOGS
from antiphon.select.verdict import spans_text, speedups_text
from antiphon.show.columns import fitted_rows, paragraph, time_column, under_names
from antiphon.show.words import library_name, options_text, stopped_text
from antiphon.units import format_ends, format_size, size_family

Row = Mapping[str, Any]
# columns that a narrow terminal leaves out, first to last; times are in us or in ms
LEAST_USEFUL = ("at", "library us", "library ms", "ours us", "ours ms", "speedup")


def measured_text(result: MeasuredTuning, explain: bool = False) -> str:
    """Return the verdict, and the ranges with the measurements at the largest size of each."""
    family = size_family(point["nbytes"] for row in result.ranges for point in row.get("measurements", ()))
    rows_of_kind = {kind: [row for row in result.ranges if row["collective"] == kind] for kind in result.plans}
    verdicts = {kind: _verdict(rows, family) for kind, rows in rows_of_kind.items()}
    missing = [kind for kind in result.tuning.collectives if kind not in result.plans]
    verdicts |= dict.fromkeys(missing, "no planner could plan it")
    lines = [*_verdict_lines(result, verdicts), "", *_ranges_table(rows_of_kind, family)]
    legend = "at: greatest size measured in the range; speedup: over the library, median of pairs"
    lines += [*paragraph(legend), ""]
    unmeasured = [row for row in result.ranges if row["measured"] is False]
    notes = []
    if any(row.get("served_by") for row in unmeasured):
        notes.append("sizes that were not measured are left to the library")
    if not all(row.get("served_by") for row in unmeasured):
        notes.append("sizes that were not measured use the nearest plan, as the library adds in another order")
    lines += [line for note in [*notes, *_tuning_notes(result, explain)] for line in paragraph(note)]
    return "\n".join([*lines, *(_explanation(result.ranges, family) if explain else [])])


def _verdict_lines(result: MeasuredTuning, verdicts: Mapping[str, str]) -> list[str]:
    """Return the verdict of each collective; those with the same verdict share a line."""
    subject = f" on {result.tuning.topology.name}, measured on {result.on}"
    subject += "" if result.complete else f" (ended early: {result.unmeasured} measurements are missing)"
    if len(verdicts) == 1:
        ((kind, text),) = verdicts.items()
        return paragraph(f"{kind}{subject}: {text}", first="")
    kinds_of: dict[str, list[str]] = {}
    for kind, text in verdicts.items():
        kinds_of.setdefault(text, []).append(kind)
    lines = paragraph(f"{len(verdicts)} collectives{subject}:", first="")
    return lines + [
        line for text, kinds in kinds_of.items() for line in paragraph(f"{', '.join(kinds)}: {text}", rest="    ")
    ]


def _verdict(rows: Sequence[Row], family: str) -> str:
    """Return for which sizes to use the plans of one collective. `family`: units of sizes, KB or KiB."""
    our_rows = [row for row in rows if not row.get("served_by")]
    if not our_rows:
        return "leave all sizes to the library"
    points = [point for row in our_rows for point in row.get("measurements") or [row]]  # of all sizes measured
    speedups = [1 / point["over_library"] for point in points if point.get("over_library")]
    text = speedups_text(speedups, "the library")
    if len(our_rows) == len(rows):
        return f"use Antiphon's plans at all sizes{text}"
    spans = spans_text([(row["from"], row["to"], bool(row.get("served_by"))) for row in rows], family)
    return f"use Antiphon's plans {spans}{text}; elsewhere the library"


def _ranges_table(rows_of_kind: Mapping[str, Sequence[Row]], family: str) -> list[str]:
    """Return the table of ranges: what to use, and our time beside the library's."""
    rows = [row for kind_rows in rows_of_kind.values() for row in kind_rows]
    measured = [row for row in rows if row["measured"]]
    unit, time_text = time_column(row.get(key) for row in measured for key in ("seconds", "reference_seconds"))
    cells = []
    for row in rows:
        planner = "-" if row.get("served_by") and not row["measured"] else _planner_text(row)
        use = library_name(row["served_by"]).removeprefix("the ") if row.get("served_by") else "Antiphon"
        at = format_size(row["at"], family) if "at" in row else "-"
        ends = format_ends(row["from"], row["to"], family)
        times = [time_text(row["seconds"] if row["measured"] else None), time_text(row.get("reference_seconds"))]
        cells.append([*ends, use, planner, at, *times, _speedup_text(row.get("over_library"))])
    head = ["from", "to", "use", "our plan", "at", f"ours {unit}", f"library {unit}", "speedup"]
    (head_lines, *row_lines), _ = fitted_rows(head, cells, LEAST_USEFUL)
    return [*head_lines, *under_names(rows_of_kind, row_lines)]


def _speedup_text(ratio: float | None) -> str:
    """Return the speedup as text, from our time over the library's."""
    return f"{1 / ratio:.3g}x" if ratio else "-"


def _tuning_notes(result: MeasuredTuning, explain: bool) -> list[str]:
    """Return how candidates ended, and the number of measurements."""
    tuning = result.tuning
    notes = [stopped_text([tuning])] if explain or tuning.ended_early or tuning.untried else []
    hint = "" if explain else "; --explain: sizes measured, plans that may be as fast"
    return [*notes, f"{len(result.rows)} measurements{hint}"]


def _explanation(ranges: Sequence[Row], family: str) -> list[str]:
    """Return the sizes measured in each range, and the plans that may be as fast as the chosen one."""
    lines = [""]
    for row in ranges:
        if row.get("measurements"):
            sizes = ", ".join(format_size(point["nbytes"], family) for point in row["measurements"])
            ties = ", ".join(_planner_text(tie) for tie in row.get("ties", ()))
            text = f"{row['collective']} by {_planner_text(row)}: measured at {sizes}"
            lines += paragraph(text + (f"; as fast may be {ties}" if ties else ""), rest="    ")
    return lines


def library_text(result: MeasuredTuning, explain: bool = False) -> str:
    """Return the library's algorithms that are faster than the one it chooses by itself, beside our best plans."""
    library = next((row["library"] for row in result.ranges if "library" in row), None)
    name = f"{library['name']} {library['version']}".strip() if library else "the library"
    family = size_family(row["nbytes"] for row in result.rows)
    rows_of_kind = {kind: [row for row in result.ranges if row["collective"] == kind] for kind in result.plans}
    verdicts = {kind: _library_verdict(rows, family) for kind, rows in rows_of_kind.items()}
    lines = [*_verdict_lines(result, verdicts), "", *_library_table(rows_of_kind, family)]
    legend = f"algorithm: of {name}; times are at the greatest size measured in the range; speedup: over its own choice"
    legend += "" if result.on == LOGS else ", median of pairs"
    lines += [*paragraph(legend), "", *paragraph("sizes that were not measured keep the library's own choice")]
    notes = [*result.notes, *_tuning_notes(result, explain)]
    return "\n".join([*lines, *(line for note in notes for line in paragraph(note, rest="    "))])


def _library_verdict(rows: Sequence[Row], family: str) -> str:
    """Return for which sizes to set an algorithm of the library."""
    faster = [row for row in rows if row["measured"] and row["library"]["algorithm"] != "default"]
    if not faster:
        return "keep the library's own choice at all sizes"
    spans = spans_text([(row["from"], row["to"], row not in faster) for row in rows], family)
    speedups = [1 / row["library_over_default"] for row in faster if row["library_over_default"]]
    return f"set the library's algorithm {spans}{speedups_text(speedups, 'its own choice')}"


def _library_table(rows_of_kind: Mapping[str, Sequence[Row]], family: str) -> list[str]:
    """Return the table of ranges: the library's best algorithm beside its own choice and our best plan."""
    rows = [row for kind_rows in rows_of_kind.values() for row in kind_rows]
    keys = ("library_seconds", "reference_seconds", "seconds")
    unit, time_text = time_column(row[key] for row in rows if row["measured"] for key in keys)
    cells = []
    for row in rows:
        library_time, default_time, our_time = (time_text(row[key] if row["measured"] else None) for key in keys)
        algorithm, ratio, planner = "own choice", None, "-"
        if row["measured"]:
            name, parameters = row["library"]["algorithm"], row["library"]["parameters"]
            # `number`: the library's number of the algorithm, which its name says, too
            shown = {key: value for key, value in parameters.items() if key != "number" and value}
            algorithm = algorithm if name == "default" else f"{name} {options_text(shown)}".strip()
            ratio, planner = row["library_over_default"], _planner_text(row)
        ends = format_ends(row["from"], row["to"], family)
        cells.append([*ends, algorithm, library_time, default_time, _speedup_text(ratio), planner, our_time])
    head = ["from", "to", "algorithm", f"time {unit}", f"own choice {unit}", "speedup", "our best", f"ours {unit}"]
    if all(row.get("seconds") is None for row in rows if row["measured"]):  # read from logs, without plans of ours
        head, cells = head[:-2], [line[:-2] for line in cells]  # without the columns "our best" and "ours"
    (head_lines, *row_lines), _ = fitted_rows(
        head, cells, ("ours us", "ours ms", "our best", "own choice us", "own choice ms")
    )
    return [*head_lines, *under_names(rows_of_kind, row_lines)]


def use_text(result: MeasuredTuning, file: str) -> list[str]:
    """Return how programs use the table that was written."""
    use = find("runtime", result.on).can.use
    return [f"  use: {use.format(table=file, ranks=result.tuning.topology.ranks)}"] if use else []


def library_use(result: MeasuredTuning, file: str) -> list[str]:
    """Return how to make the library choose these algorithms."""
    names = {row["library"]["name"] for row in result.ranges if "library" in row}
    return [
        f"  use: antiphon export {file} --to {RULE_FORMATS[name]} -o rules"
        for name in sorted(names)
        if name in RULE_FORMATS
    ]


def _planner_text(row: Row) -> str:
    return f"{row['planner']} {options_text(row['options'])}".strip()
