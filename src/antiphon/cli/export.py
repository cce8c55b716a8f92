"""The command `export`: write a plan as files that another program runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from antiphon.api.files import export
from antiphon.cli.arguments import PlanFile, WhichPlan, split_options, split_plan
from antiphon.cli.output import emit, working
from antiphon.core.files import check_folder, check_writable
from antiphon.errors import Invalid
from antiphon.formats import find_format, names_file
from antiphon.show.columns import paragraph
from antiphon.units import format_size, parse_size


def export_command(
    file: PlanFile,
    to: Annotated[
        str,
        typer.Option("--to", metavar="NAME", help="format, with options msccl-xml:fused=no: see antiphon list formats"),
    ],
    out: Annotated[
        Path, typer.Option("-o", "--output", metavar="DIR", help="directory of the files; created if missing")
    ],
    nbytes: Annotated[
        str, typer.Option("--nbytes", metavar="SIZE", help="message size, for formats that need one, e.g. 64MiB")
    ] = "",
    collective: WhichPlan = "",
) -> None:
    """Write a plan as files for another program: all files or none, and only if the plan is correct."""
    plan_file, collective = split_plan(file, collective)
    to, options = split_options(to, "--to")
    entry = find_format(to)
    if "nbytes" in entry.can.needs and not nbytes:
        raise Invalid(f"format {to} writes the messages of one size; give it by --nbytes, e.g. --nbytes 64MiB")
    size = parse_size(nbytes, "--nbytes") if nbytes else None
    if names_file(to, out):  # the format writes one file, and -o names it
        check_writable(out)
    else:
        check_folder(out, parents=True)
    with working(f"writing {to}"):
        written = export(plan_file, to, out, nbytes=size, options=options, collective=collective)
    notes = list(written.notes)
    rows = [{"file": str(path), "bytes": count} for path, count in written]
    lines = []
    for path, count in written:
        purpose = written.purposes.get(path.name, "")
        lines.append(f"written: {path} ({format_size(count)}){purpose and f': {purpose}'}")
    lines += [line for note in notes for line in paragraph(note, first="")]
    emit({"backend": to, "files": rows, "notes": notes}, "\n".join(lines))
