"""antiphon topologies, planners, runtimes: what there is, and what each can do."""

from __future__ import annotations

from typing import Annotated

import typer

from antiphon.api import machines
from antiphon.cli.arguments import Json
from antiphon.cli.output import emit
from antiphon.show.listing import entry_row, entry_text, listed_text, runtimes_text

Name = Annotated[str, typer.Argument(metavar="[NAME]", help="just this one, with its options", show_default=False)]


def emit_entry(kind: str, name: str, json: bool) -> None:
    """One entry of a table."""
    row = entry_row(kind, name)
    emit(row, entry_text(kind, row), json)


def topologies(name: Name = "", json: Json = False) -> None:
    """The machines in the catalogue, and the sizes each takes."""
    if name:
        emit_entry("topology", name, json)
        return
    emit(machines.topologies(), listed_text("topology"), json)


def planners(name: Name = "", json: Json = False) -> None:
    """The planners, what each can plan, and their options."""
    if name:
        emit_entry("planner", name, json)
        return
    emit(machines.planners(), listed_text("planner"), json)


def runtimes(name: Name = "", json: Json = False) -> None:
    """Where plans can run and be measured, beside whose collectives, and how each cuts messages."""
    if name:
        emit_entry("runtime", name, json)
        return
    rows = machines.runtimes()
    emit(rows, runtimes_text(rows), json)
