"""antiphon choices: how calls are made on GPUs, as it was timed and kept; and what of it a run took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from antiphon.api.running import choices
from antiphon.cli.arguments import Json
from antiphon.cli.output import emit
from antiphon.show.columns import table
from antiphon.units import format_size

Row = Mapping[str, Any]


def choices_told(rows: Sequence[Row]) -> list[str]:
    """For each measured row that has a choice: how the call was made, and where that is from."""
    return [
        f"{format_size(row['nbytes'])}{' in place' if row['in_place'] else ''}: {_choice_text(row['choice'])}; "
        f"{row['choice_from']}"
        for row in rows
        if "choice_from" in row
    ]


def _choice_text(choice: Mapping[str, Any]) -> str:
    """
    >>> _choice_text({"way": "kernel", "lanes": 8, "rounds": 4, "tables": "plain"})
    'one kernel, 8 lanes, 4 rounds'
    >>> _choice_text({"way": "steps", "lanes": 1, "rounds": 1, "tables": "arrival"})
    'by steps, 1 lane, 1 round, arrival'
    """
    lanes, rounds, tables = choice["lanes"], choice["rounds"], choice["tables"]
    way = "one kernel" if choice["way"] == "kernel" else f"by {choice['way']}"
    counts = f"{lanes} lane{'s' * (lanes != 1)}, {rounds} round{'s' * (rounds != 1)}"
    return f"{way}, {counts}{'' if tables == 'plain' else f', {tables}'}"


def choices_command(
    forget: Annotated[
        list[str] | None,
        typer.Option("--forget", metavar="NAME", help="remove the one whose name begins so, or all: all (repeatable)"),
    ] = None,
    json: Json = False,
) -> None:
    """How calls of plans are made on GPUs, as `run`, `bench` and `tune` timed it there and kept it.

    What is forgotten is timed again by the next run. ANTIPHON_CACHE=off keeps nothing, and looks at nothing.
    """
    from antiphon.runtimes.device.kept import forget as remove

    gone = remove(forget or [])
    rows = choices()
    told = "\n".join([*(f"forgotten: {file}" for file in gone), choices_text(rows)])
    emit({"choices": rows, "forgotten": gone}, told, json)


def choices_text(rows: Sequence[Row]) -> str:
    """A line for each, and behind them what would not be used."""
    if not rows:
        return "no choices are kept"
    good, bad = [row for row in rows if not row["wrong"]], [row for row in rows if row["wrong"]]
    head = ["name", "of", "ranks", "up to", "type", "choice", "on"]
    cells = [[row["name"], row["about"], str(row["ranks"]), format_size(row["to"]), _type(row),
              _choice_text(row["choice"]), f"{row['machine']}: {row['device']}"] for row in good]  # fmt: skip
    lines = table(head, cells) if good else []
    return "\n".join([*lines, *(f"{row['file']} is not used: {row['wrong']}" for row in bad)])


def _type(row: Row) -> str:
    return " ".join(filter(None, (row["dtype"], row["op"], "in place" if row["in_place"] else "")))
