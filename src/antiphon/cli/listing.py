"""antiphon topologies, planners, runtimes: what there is, and what each can do."""

from __future__ import annotations

from antiphon.api import machines
from antiphon.cli.arguments import Json
from antiphon.cli.output import emit
from antiphon.show.listing import listed_text, runtimes_text


def topologies(json: Json = False) -> None:
    """The machines in the catalogue, and the sizes each takes."""
    emit(machines.topologies(), listed_text("topology"), json)


def planners(json: Json = False) -> None:
    """The ways to plan, what each can plan, and their options."""
    emit(machines.planners(), listed_text("planner"), json)


def runtimes(json: Json = False) -> None:
    """Where plans can run and be measured, beside whose collectives, and how each cuts messages."""
    rows = machines.runtimes()
    emit(rows, runtimes_text(rows), json)
