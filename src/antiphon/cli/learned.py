"""The commands `table show`, `merge` and `diff`: tables of times that jobs have learned (files of ANTIPHON_LEARNED)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from antiphon.api.replaying import learned
from antiphon.cli.output import dash, emit, written_lines
from antiphon.core.files import check_writable, write_bytes
from antiphon.errors import Invalid
from antiphon.runtimes.engine.learned import LearnedCalls, LearnedLine, diff_learned, format_learned, read_learned
from antiphon.show.columns import table
from antiphon.units import format_seconds, format_size

LearnedFiles = Annotated[list[Path], typer.Argument(metavar="FILE...", help="what jobs wrote to ANTIPHON_LEARNED")]
TwoFiles = Annotated[list[Path], typer.Argument(metavar="OLD NEW", help="what jobs wrote to ANTIPHON_LEARNED")]
MergedFile = Annotated[
    Path | None, typer.Option("-o", "--output", metavar="FILE", help="the file to write, such as learned.txt")
]


def show_learned_command(files: LearnedFiles) -> None:
    """Show what jobs have learned, several files merged: each candidate with its time, spread and number of samples."""
    lines = learned(files)
    emit({"rows": [line.as_json() for line in lines]}, learned_text(lines))


def merge_learned_command(files: LearnedFiles, output: MergedFile = None) -> None:
    """Merge files of what jobs have learned: samples add up, and of what was chosen the fastest stays."""
    if output is None:
        raise Invalid("table merge: name the file for the result: -o FILE")
    check_writable(output)
    lines = learned(files)
    write_bytes(output, format_learned(lines).encode())
    report_lines = [f"{len(lines)} candidates", *written_lines(output)]
    emit({"rows": [line.as_json() for line in lines]}, "\n".join(report_lines))


def diff_learned_command(files: TwoFiles) -> None:
    """Compare what two jobs have chosen."""
    if len(files) != 2:
        raise Invalid(f"table diff: expected two files, got {len(files)}")
    rows = diff_learned(*map(read_learned, files))
    head = ["collective", "ranks", "root", "nbytes", "old", "takes", "new", "takes"]
    cells = [
        [
            *_call_cells(LearnedCalls(row["collective"], row["ranks"], row["root"], row["nbytes"])),
            dash(row["old"], str), dash(row["old_seconds"]), dash(row["new"], str), dash(row["new_seconds"]),
        ]
        for row in rows
    ]  # fmt: skip
    changed = sum(row["old"] != row["new"] for row in rows)
    emit({"rows": rows}, "\n".join([f"{changed} of {len(rows)} choices differ", *table(head, cells)]))


def learned_text(lines: Sequence[LearnedLine]) -> str:
    """Return a table of candidates, with the median, least and greatest time of each; those in use are marked."""
    head = ["", "collective", "ranks", "root", "nbytes", "candidate", "takes", "least", "most", "samples"]
    cells = []
    for line in lines:
        times = map(format_seconds, (line.seconds, line.low, line.high))
        mark = "*" if line.chosen else ""
        cells.append([mark, *_call_cells(line.calls), line.name, *times, str(line.samples)])
    return "\n".join([*table(head, cells), "  *: in use; takes: latest median"])


def _call_cells(calls: LearnedCalls) -> list[str]:
    """Return the cells collective, ranks, root and nbytes of a table."""
    root = dash(calls.root if calls.root >= 0 else None, str)  # -1: no root
    return [calls.collective, str(calls.ranks), root, format_size(calls.nbytes)]
