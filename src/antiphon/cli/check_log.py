"""The command `check-log`: compare a log of nccl-tests, rccl-tests or OSU with a model, or with another log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from antiphon.api.benchmark_logs import check_log, compare_logs
from antiphon.cli.arguments import Only, RecordedLibrary, RecordedOn, old_option, split_machine
from antiphon.cli.output import emit, working
from antiphon.core.files import one_line
from antiphon.errors import Invalid
from antiphon.show.columns import natural_width, paragraph, table, time_column, width
from antiphon.units import format_size, size_family


def check_log_command(
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="LOG [AFTER]", show_default=False, help="the log, pasted as it is; two: before and after an upgrade"
        ),
    ] = None,
    topo: RecordedOn = "",
    only: Only = "",
    library: RecordedLibrary = "",
    before: Annotated[Path | None, old_option("--before", instead="check-log BEFORE AFTER")] = None,
    after: Annotated[Path | None, old_option("--after", instead="check-log BEFORE AFTER")] = None,
) -> None:
    """Check a log of nccl-tests, rccl-tests or OSU: is it what the machine should give, and if not, why?

    Prompts, prefixes of launchers, wrapped lines and several runs in a file are fine. Exit code 1: slow, or wrong
    results; of two logs: some size became slower by more than the noise.
    """
    logs = [path for path in (before, *(files or ()), after) if path is not None]
    if len(logs) == 2:
        if topo or only or library:
            raise Invalid("two logs are compared with each other; leave --topology and --library out")
        result = compare_logs(*logs)
        emit(result, "\n".join(comparison_lines(result)))
        if result["verdict"] == "slower":
            raise typer.Exit(1)
        return
    if len(logs) != 1 or not topo:
        raise Invalid("name a log and its machine (check-log LOG --topology hgx-h100), or two logs to compare")
    with working("checking the log"):
        name, kept_ranks = split_machine(topo, only)
        runs = check_log(logs[0], name, only=kept_ranks, library=library)
    emit({"runs": runs}, "\n".join(run_lines(runs)))
    if any(run["verdict"] in ("slow", "wrong") for run in runs):
        raise typer.Exit(1)


def run_lines(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the verdicts of all runs with their likely causes, then a table of sizes for each run."""
    lines = []
    for run in runs:
        lines += paragraph(one_line(f"{_title(run)}: {run['text']}"), first="", rest="  ")
        for number, cause in enumerate(run["causes"]):
            signs = f"the log says {', '.join(cause['evidence'])}; " if cause["evidence"] else ""
            text = f"{'or' if number else 'likely'}: {cause['text']} ({signs}misfit {cause['misfit']:.1f})"
            lines += paragraph(one_line(text), first="  ", rest="    ")
            lines += paragraph(f"check: {cause['check']}", first="    ", rest="      ")
        for note in run["notes"]:
            lines += paragraph(one_line(f"note: {note}"), first="  ", rest="    ")
    for run in runs:
        if run["rows"]:
            lines += ["", *([f"{_title(run)}"] if len(runs) > 1 else []), *_size_table(run["rows"])]
    if any(run["rows"] for run in runs):
        misfit = "misfit: 1 is the model's usual error; " if any(run["causes"] for run in runs) else ""
        lines += paragraph(
            f"{misfit}model: predicted time of the algorithm that the library chooses (see verdict); bound: no "
            "schedule is faster; of wire: bound / time"
        )
    return lines


def _title(run: Mapping[str, Any]) -> str:
    """Return a run in words: collective, ranks, and the library, or the program where the log names no library."""
    program = run["library"] or run["program"]
    return f"{run['collective']} of {run['ranks']} ranks ({program})"


def _size_table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a table of the sizes of one run; a narrow terminal lacks the lower bound. `share`: bound over time."""
    # whether sizes are written in KiB or in KB
    family = size_family(row["nbytes"] for row in rows)
    unit, cell = time_column(row["seconds"] for row in rows)

    def bound_cell(seconds: float | None) -> str:
        return "~0" if "e-" in cell(seconds) else cell(seconds)  # 4e-05 us is no useful figure

    head = ["nbytes", f"time {unit}", f"model {unit}", f"bound {unit}", "busbw GB/s", "of wire", "verdict"]
    cells = [
        [
            format_size(row["nbytes"], family), cell(row["seconds"]), cell(row["modelled"]), bound_cell(row["bound"]),
            f"{row['busbw'] / 1e9:.2f}", "-" if row["share"] is None else f"{row['share']:.0%}", row["verdict"],
        ]
        for row in rows
    ]  # fmt: skip
    if natural_width(head, cells) > width():
        head, *cells = ([*row[:3], *row[4:]] for row in (head, *cells))  # column 3: the bound
    return table(head, cells)


def comparison_lines(result: Mapping[str, Any]) -> list[str]:
    """Return the verdict of each collective, then a table of sizes for each."""
    lines = []
    titles = [entry["collective"] + " in place" * entry["in_place"] for entry in result["collectives"]]
    for title, entry in zip(titles, result["collectives"], strict=True):
        before, after = entry["libraries"]
        versions = f" ({before} to {after})" if before and after and before != after else ""
        lines += paragraph(one_line(f"{title}{versions}: {entry['text']}"), first="", rest="  ")
    for title, entry in zip(titles, result["collectives"], strict=True):
        rows = entry["rows"]
        family = size_family(row["nbytes"] for row in rows)
        unit, cell = time_column(seconds for row in rows for seconds in (row["before"], row["after"]))
        cells = [
            [
                format_size(row["nbytes"], family), cell(row["before"]), cell(row["after"]), f"{row['change']:+.1%}",
                "" if row["verdict"] == "same" else row["verdict"],
            ]
            for row in rows
        ]  # fmt: skip
        lines += ["", *([title] if len(titles) > 1 else [])]
        lines += table(["nbytes", f"before {unit}", f"after {unit}", "time", "beyond noise"], cells)
    return [*lines, *(line for note in result["notes"] for line in paragraph(note, first="  ", rest="  "))]
