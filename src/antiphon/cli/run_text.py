"""Format the output of `antiphon run` (on any runtime) and `antiphon lab run`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from antiphon.cli.output import dash
from antiphon.errors import list_first
from antiphon.registry import find
from antiphon.select.failures import DEAD, read_dead
from antiphon.show.columns import fitted_rows, paragraph, time_column
from antiphon.units import format_size, size_family

Row = Mapping[str, Any]
IN_PROCESS = ("local", "threads")
NUMPY_NOTE = "NumPy: the results of all ranks, computed directly from their inputs"
MAX_MB_RATE = 1e8  # bytes per second below which bandwidths are in MB/s


def rows_text(rows: Sequence[Row]) -> str:
    """Return measured runs, one line each, beside the library's own and the predicted times (-: none)."""
    unit, scale = ("MB/s", 1e6) if all(row["busbw"] < MAX_MB_RATE for row in rows) else ("GB/s", 1e9)
    family = size_family(row["nbytes"] for row in rows)
    times = ("seconds", "reference_seconds", "predicted_seconds")
    time_unit, time_text = time_column(row.get(key) for row in rows for key in times)
    columns: list[tuple[str, Callable[[Row], str]]] = [
        ("nbytes", lambda row: format_size(row["nbytes"], family)),
        (f"time {time_unit}", lambda row: time_text(row["seconds"])),
        (f"algbw {unit}", lambda row: f"{row['algbw'] / scale:.3f}"),
        (f"busbw {unit}", lambda row: f"{row['busbw'] / scale:.3f}"),
    ]
    if library := find("runtime", rows[0]["on"]).can.library:
        columns.append((f"{library} {time_unit}", lambda row: time_text(row["reference_seconds"])))
    if "predicted_seconds" in rows[0]:
        columns.append((f"predicted {time_unit}", lambda row: time_text(row["predicted_seconds"])))
        columns.append(("over predicted", lambda row: dash(row["over_predicted"], "{:.3f}".format)))
    columns.append(("correct", _correctness_text))
    head, cells = [name for name, _ in columns], [[cell(row) for _, cell in columns] for row in rows]
    fitted, _ = fitted_rows(head, cells, least_useful=(f"algbw {unit}", "over predicted", f"busbw {unit}"))
    lines = [line for row in fitted for line in row]
    legend = paragraph("; ".join(_legend_texts(rows[0]["on"], library)))
    choices = [f"  {line}" for line in choice_lines(rows)]
    notes = _lab_notes(rows) if "links" in rows[0] else []  # only rows of a lab have the loads of links
    return "\n".join([*lines, *legend, *choices, *notes])


def surviving_text(rows: Sequence[Row]) -> str:
    """Return which plan ran, if $ANTIPHON_DEAD chose it among those of a table; else nothing."""
    if not read_dead():
        return ""
    planners = list_first(list(dict.fromkeys(str(row["planner"]) for row in rows if row["planner"])), limit=4)
    plan = f"{rows[0]['collective']} on {rows[0]['topology']}{f', planner {planners}' if planners else ''}"
    return "\n".join(paragraph(f"the plan for what {DEAD} leaves: {plan}", first="")) + "\n"


def _legend_texts(on: str, library: str) -> list[str]:
    """Return where the ranks ran if in one process, and what the times of NumPy are."""
    where = (
        f"on {on}: all ranks in one process of this computer, to check the result; the times say nothing about the "
        "plan's machine (antiphon list runtimes: others)"
    )
    return [where] * (on in IN_PROCESS) + [NUMPY_NOTE] * (library == "NumPy")


def choice_lines(rows: Sequence[Row]) -> list[str]:
    """Return a line for each measured row whose call had several launch configurations: the fastest of them."""
    return [
        f"{format_size(row['nbytes'])}{' in place' if row['in_place'] else ''}: {_choice_text(row['choice'])}"
        for row in rows
        if "choice" in row
    ]


def _choice_text(choice: Mapping[str, Any]) -> str:
    """Return a launch configuration of the GPU engine as text.

    `rounds`: slices of the data of a thread block, one after another. `tables`: how data travel, a key of TABLES
    (runtimes/device/call_choices.py): "plain", as usual; "arrival": the output is filled in the order of arrival.

    >>> _choice_text({"way": "kernel", "lanes": 8, "rounds": 4, "tables": "plain"})
    'one kernel, 8 lanes, 4 rounds'
    >>> _choice_text({"way": "steps", "lanes": 1, "rounds": 1, "tables": "arrival"})
    'by steps, 1 lane, 1 round, arrival'
    """
    lanes, rounds, tables = choice["lanes"], choice["rounds"], choice["tables"]
    method = "one kernel" if choice["way"] == "kernel" else f"by {choice['way']}"
    counts = f"{lanes} lane{'s' * (lanes != 1)}, {rounds} round{'s' * (rounds != 1)}"
    return f"{method}, {counts}{'' if tables == 'plain' else f', {tables}'}"


def trace_text(trace: Path | None) -> str:
    """Return the file of a trace, and how to open it."""
    return "" if trace is None else f"\n  written: {trace} (open it in chrome://tracing or ui.perfetto.dev)"


def _correctness_text(row: Row) -> str:
    """Return whether the result is correct, and whether all ranks have the same bits."""
    if not row["correct"]:
        return "NO"
    return "yes" if row.get("agree", True) else "yes, but ranks differ in bits"


def _lab_notes(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the notes below the table of runs in a lab: sizes that links do not limit, and bytes on links.

    Per link, `expected` are the bytes that the plan sends over it, and `counted` those of its network device.
    """
    lines: list[str] = []
    # sizes without a figure in the column "over predicted", although there is a prediction
    small = [format_size(row["nbytes"]) for row in rows if row["over_predicted"] is None and row["predicted_seconds"]]
    if small:
        lines += paragraph(
            f"{', '.join(small)}: nothing over predicted: no link carries more than the {rows[0]['at_once']} "
            "bytes that the shapers let pass at once (their burst, and a packet of TCP), so links do not "
            "limit these times",
            first="  ",
        )
    for row in rows:
        links = [link for link in row["links"] if link["expected"]]
        if links:
            total, counted = sum(link["expected"] for link in links), sum(link["counted"] for link in links)
            worst = max(link["counted"] / link["expected"] for link in links)
            lines += paragraph(
                f"{format_size(row['nbytes'])}: {total} bytes expected on {len(links)} links, {counted} counted "
                f"with headers and replies; at most {100 * (worst - 1):.1f} % more than expected on a link", first="  "
            )  # fmt: skip
    return lines
