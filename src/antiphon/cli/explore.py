"""The command `explore`: show a result as an interactive page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from antiphon.api.exploring import explore
from antiphon.cli import arguments as arg
from antiphon.cli.output import check_outputs, emit, origin_text, working, written_lines
from antiphon.core.files import write_bytes


def explore_command(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="a plan, a table (table.json:allreduce: one plan), a frontier (--certificate) or a sweep (.csv)",
        ),
    ],
    nbytes: Annotated[str, typer.Option("--nbytes", metavar="SIZE", help="the size, e.g. 64MiB")] = "",
    model: arg.Usual = "",
    profile: arg.ProfileFile = None,
    out: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="the page (.html)")] = Path(
        "explorer.html"
    ),
    json: arg.Json = False,
) -> None:
    """Write one HTML file to explore a result in a browser; it loads nothing.

    It shows the machine with the transfers of every moment, a timeline by rank and by link with the critical path,
    times by size, and the cut that limits every plan; of a frontier its points, of a sweep its machines. All times are
    by one model.
    """
    check_outputs({"-o": out}, forms={"-o": ".html"})
    path, collective = arg.split_plan(file)
    with working("gathering"):
        page = explore(
            path, collective=collective, nbytes=nbytes or None, model=model, profile=profile, origin=origin_text()
        )
    write_bytes(out, page.encode())
    emit({"written": str(out), "bytes": len(page)}, "\n".join([*written_lines(out), "  open it in a browser"]), json)
