"""The command `list`: the planners, models, runtimes, formats and topologies that exist, and what each supports."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer

from antiphon.api import machines
from antiphon.cli.output import emit
from antiphon.errors import unknown
from antiphon.show.columns import paragraph, wrap_table
from antiphon.show.listing import entries_text, entry_row, entry_text, runtimes_text

# What the command lists -> its kind in the registry
REGISTRY_KINDS = {
    "planners": "planner", "models": "model", "runtimes": "runtime", "formats": "backend", "topologies": "topology",
}  # fmt: skip
Kind = Annotated[str, typer.Argument(metavar="KIND", help=f"{', '.join(REGISTRY_KINDS)}")]
Name = Annotated[
    str, typer.Argument(metavar="[NAME]", help="show only this entry, with its options", show_default=False)
]


def list_command(kind: Kind, name: Name = "") -> None:
    """List planners, cost models, runtimes, formats or topologies, and what each supports."""
    if kind not in REGISTRY_KINDS:
        raise unknown("kind to list", kind, REGISTRY_KINDS)
    if name:
        row = entry_row(REGISTRY_KINDS[kind], name)
        emit(row, entry_text(REGISTRY_KINDS[kind], row))
        return
    rows = getattr(machines, kind)()  # each key of REGISTRY_KINDS is a function there
    texts: Mapping[str, Callable[[list[dict[str, Any]]], str]] = {"formats": _formats_text, "runtimes": runtimes_text}
    emit(rows, texts[kind](rows) if kind in texts else entries_text(REGISTRY_KINDS[kind]))


def _formats_text(rows: list[dict[str, Any]]) -> str:
    """Return the formats as text; `missing` is what must be installed first."""
    lines = [["FORMAT", "antiphon export PLAN --to FORMAT -o FOLDER writes files for:"]]
    for row in rows:
        # `needs` are options of `export` (--nbytes); `options` are written after the format's name (goal:order=rounds)
        needs, options = (", ".join(row.get(key, ())) for key in ("needs", "options"))
        about = [row["about"], *([f"needs: --{needs}"] if needs else []), *([f"options: {options}"] if options else [])]
        about += [f"writes {', '.join(row['files'])}"] if row.get("files") else []
        about += [f"missing: {row['missing']}"] if row["missing"] else []
        lines.append([row["name"], "\n".join(about)])
    note = (
        "Options follow a colon: --to goal:order=rounds; `antiphon list formats NAME` explains them. "
        "PLAN is a plan or a table of plans; formats for a library's own algorithms take a table by tune."
    )
    return "\n".join([*wrap_table(head=[], rows=lines), "", *paragraph(note)])
