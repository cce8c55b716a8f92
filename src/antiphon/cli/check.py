"""antiphon check: will this really run?"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from antiphon.api.checking import check
from antiphon.cli.arguments import Json, PlanFile, WhichPlan
from antiphon.cli.output import emit, working
from antiphon.show.text import paragraph
from antiphon.show.words import plural
from antiphon.units import parse_size


def check_command(
    file: PlanFile,
    runtime: Annotated[str, typer.Option("--for", metavar="NAME", help="the runtime: msccl, rccl-6, mscclpp-0.9")],
    nbytes: Annotated[str, typer.Option("--nbytes", metavar="SIZE", help="of the call, e.g. 64MiB")],
    dtype: Annotated[str, typer.Option("--dtype", metavar="TYPE", help="float16, bfloat16, int32, ...")] = "float32",
    op: Annotated[str, typer.Option("--op", metavar="OP", help="sum, prod, min, max or avg")] = "sum",
    ranks: Annotated[int, typer.Option("--ranks", min=0, metavar="N", help="of the communicator (0: the plan's)")] = 0,
    root: Annotated[int, typer.Option("--root", min=-1, metavar="RANK", help="of the call, where it has one")] = -1,
    in_place: Annotated[
        bool | None, typer.Option("--in-place/--out-of-place", help="how it is called (left out: both are looked at)")
    ] = None,
    collective: WhichPlan = "",
    every: Annotated[bool, typer.Option("--all", help="also why the other files do not serve the call")] = False,
    json: Json = False,
) -> None:
    """Will a runtime of GPUs really run this plan, or ignore it, hang, or compute wrongly?

    A plan is written as the runtime's files first; its own files are taken as they are. All are executed block by
    block, then held to the runtime's rules. Shown are the files that serve the call; if none does, all of them, and
    the exit code is 1.
    """
    size = parse_size(nbytes, "--nbytes")
    with working(f"checking for {runtime}"):
        rows = check(
            file, runtime, size, dtype=dtype, op=op, processes=ranks or None, root=None if root < 0 else root,
            in_place=in_place, collective=collective,
        )  # fmt: skip
    runs = any(row["runs"] for row in rows)
    emit({"runs": runs, "files": rows}, "\n".join(_report_lines(runtime, rows, every)), json)
    if not runs:
        raise typer.Exit(1)


def _report_lines(runtime: str, rows: list[dict[str, Any]], every: bool) -> list[str]:
    """Files that serve the call come first; without `every` the others are only counted, unless none serves it."""
    serving = [row for row in rows if row["runs"]]
    others = [row for row in rows if not row["runs"]]
    lines = [f"{'will run' if serving else 'will NOT run'} by {runtime}"]
    for row in [*serving, *(others if every or not serving else ())]:
        lines += ["", f"  {row['file'] or 'no file'}: {'will run' if row['runs'] else 'will not run'}"]
        for finding in row["findings"]:
            what = f"{finding['outcome']}: {finding['why']}"
            lines += paragraph(what, "    ", " " * 6)
            if finding["instead"]:
                lines += paragraph(f"do this: {finding['instead']}", " " * 6, " " * 8)
    if serving and others and not every:
        lines += [
            "",
            *paragraph(f"{plural(len(others), 'file')} for other calls (--all shows why they cannot serve it)"),
        ]
    return lines
