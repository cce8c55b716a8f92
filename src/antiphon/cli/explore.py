"""The command `explore`: show a result as an interactive page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from antiphon.api.exploring import explore
from antiphon.cli import arguments as arg
from antiphon.cli.output import emit, origin_text, sort_outputs, working, written_lines
from antiphon.core.files import write_bytes
from antiphon.errors import Invalid


def explore_command(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...",
            help="a plan, table (table.json:allreduce: one plan), frontier (of frontier --certificate), sweep (.csv) "
            "or trace; after a plan, a trace of its run",
        ),
    ],
    nbytes: Annotated[str, typer.Option("--nbytes", metavar="SIZE", help="the size, e.g. 64MiB")] = "",
    model: arg.ModelName = "",
    profile: arg.ProfileFile = None,
    output: Annotated[list[Path], arg.output_option("explore")] = [Path("explorer.html")],  # noqa: B006
) -> None:
    """Write one HTML file to explore a result in a browser; it loads nothing.

    It shows the machine with the transfers of every moment, a timeline by rank and by link with the critical path,
    times by size, and the cut that limits every plan; of a frontier its points, of a sweep its machines, of a trace its
    messages. One model predicts all times; those of TRACE stand beside them.
    """
    # The page loads nothing, as its data and scripts are all in it. TRACE: the second file, of a run of the plan.
    out = sort_outputs("explore", output)["page"]
    if len(files) > 2:
        raise Invalid(f"{files[2]}: expected one file, or a plan and a trace of its run")
    path, collective = arg.split_plan(files[0])
    trace = files[1] if len(files) > 1 else None
    with working("gathering"):
        page = explore(
            path, collective=collective, nbytes=nbytes or None, model=model, profile=profile, trace=trace,
            origin=origin_text(),
        ).encode()  # fmt: skip
    for file in out:
        write_bytes(file, page)
    emit({"written": str(out[0]), "bytes": len(page)}, "\n".join([*written_lines(*out), "  open it in a browser"]))
