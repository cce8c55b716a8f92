"""What `antiphon run`, on whatever it is, and `antiphon lab run` print."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from antiphon.cli.lab_text import remarks
from antiphon.registry import find
from antiphon.show.text import table
from antiphon.units import format_seconds, format_size, size_family

Row = Mapping[str, Any]
SLOW = 1e8  # bytes per second: below they are told in MB/s


def rows_text(rows: Sequence[Row]) -> str:
    """Measured runs, one line each, beside the library's own and what was predicted (-: there is none)."""
    unit, scale = ("MB/s", 1e6) if all(row["busbw"] < SLOW for row in rows) else ("GB/s", 1e9)
    family = size_family(row["nbytes"] for row in rows)
    columns: list[tuple[str, Callable[[Row], str]]] = [
        ("nbytes", lambda row: format_size(row["nbytes"], family)),
        ("time", lambda row: format_seconds(row["seconds"])),
        (f"algbw {unit}", lambda row: f"{row['algbw'] / scale:.3f}"),
        (f"busbw {unit}", lambda row: f"{row['busbw'] / scale:.3f}"),
    ]
    if beside := find("runtime", rows[0]["on"]).can["library"]:
        columns.append((beside, lambda row: _time(row["reference_seconds"])))
    if "predicted_seconds" in rows[0]:
        columns.append(("predicted", lambda row: _time(row["predicted_seconds"])))
        columns.append(("over predicted", lambda row: _ratio(row["over_predicted"])))
    columns.append(("correct", _right))
    lines = table([head for head, _ in columns], [[cell(row) for _, cell in columns] for row in rows])
    told = [f"  {line}" for line in choices_told(rows)]
    return "\n".join([*lines, *told, *(remarks(rows) if "links" in rows[0] else [])])


def choices_told(rows: Sequence[Row]) -> list[str]:
    """Return a line for each measured row whose call could be made in several ways: the fastest of them."""
    return [
        f"{format_size(row['nbytes'])}{' in place' if row['in_place'] else ''}: {_choice_text(row['choice'])}"
        for row in rows
        if "choice" in row
    ]


def _choice_text(choice: Mapping[str, Any]) -> str:
    """
    >>> _choice_text({"way": "kernel", "lanes": 8, "rounds": 4, "tables": "plain"})
    'one kernel, 8 lanes, 4 rounds'
    >>> _choice_text({"way": "steps", "lanes": 1, "rounds": 1, "tables": "arrival"})
    'by steps, 1 lane, 1 round, arrival'
    """
    lanes, rounds, tables = choice["lanes"], choice["rounds"], choice["tables"]
    way = "one kernel" if choice["way"] == "kernel" else f"by {choice['way']}"
    counts = f"{lanes} lane{'s' * (lanes != 1)}, {rounds} round{'s' * (rounds != 1)}"
    return f"{way}, {counts}{'' if tables == 'plain' else f', {tables}'}"


def trace_text(trace: Path | None) -> str:
    """Where a trace stands."""
    return "" if trace is None else f"\n  written: {trace} (open it in chrome://tracing or ui.perfetto.dev)"


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else format_seconds(seconds)


def _ratio(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.3f}"


def _right(row: Row) -> str:
    if not row["correct"]:
        return "NO"
    return "yes" if row.get("agree", True) else "yes, but ranks differ in bits"
