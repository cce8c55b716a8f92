"""antiphon topologies, antiphon planners: what there is, and what each can do."""

from __future__ import annotations

import typer

from antiphon.cli._arguments import Json
from antiphon.cli._output import emit
from antiphon.registry import table
from antiphon.show.text import table as columns


def register(app: typer.Typer) -> None:
    @app.command(epilog="Example: antiphon topologies")
    def topologies(json: Json = False) -> None:
        """The machines in the catalogue, and the sizes each takes."""
        entries = table("topology")
        rows = [[name, entry.can["ranks"], entry.about] for name, entry in sorted(entries.items())]
        text = "\n".join(columns(["topology", "ranks", ""], rows))
        keys = ("name", "ranks", "about")
        emit([dict(zip(keys, row, strict=True)) for row in rows], text, json)

    @app.command(epilog="Example: antiphon planners")
    def planners(json: Json = False) -> None:
        """The ways to plan, the collectives each can plan, and their options."""
        entries = sorted(table("planner").items())
        rows = [[name, ", ".join(e.can["collectives"]), ", ".join(e.can["options"]), e.about] for name, e in entries]
        text = "\n".join(columns(["planner", "collectives", "options", ""], rows))
        found = [
            {
                "name": name,
                "about": e.about,
                **{k: list(v) if isinstance(v, tuple) else v for k, v in e.can.items()},
            }
            for name, e in entries
        ]
        emit(found, text, json)
