"""antiphon reproduce: the tables of papers, made again."""

from __future__ import annotations

from typing import Annotated

import typer

from antiphon.cli._reproduce_text import names_text, reproduced_text
from antiphon.cli.arguments import Json
from antiphon.cli.output import StoppedEarly, emit, working
from antiphon.reproduce import names, reproduce


def reproduce_command(
    name: Annotated[str, typer.Argument(metavar="NAME", help="which table; without it, what there is")] = "",
    json: Json = False,
) -> None:
    """A paper's table made again: published, ours, and how they deviate.

    Exit code 1 if a row is not reproduced, or in shape only.
    """
    if not name:
        emit(names(), names_text(names()), json)
        return
    rows = []
    stopped = False
    try:
        with working(f"reproducing {name}"):
            for row in reproduce(name):
                rows.append(row)
    except KeyboardInterrupt:  # what is there already is told
        stopped = True
    emit({"rows": rows}, reproduced_text(rows), json)
    if stopped:
        raise StoppedEarly("interrupted; the rows made until then are told")
    if not all(row["ok"] for row in rows):
        raise typer.Exit(1)
