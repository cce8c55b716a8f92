"""Commands whose names are settled but which are not there yet: each says so, and what would do."""

from __future__ import annotations

import typer

from antiphon.errors import Unsupported

_NAMES = (
    "lab",
)  # fmt: skip


def _refuser(name: str) -> None:
    raise Unsupported(f"{name} is not there yet (antiphon --help lists what is)")


def register(app: typer.Typer) -> None:
    for name in _NAMES:
        _register(app, name)


def _register(app: typer.Typer, name: str) -> None:
    settings = {"allow_extra_args": True, "ignore_unknown_options": True}

    @app.command(name, hidden=True, context_settings=settings, help="Not there yet.")
    def refuse(context: typer.Context) -> None:
        _refuser(name)
