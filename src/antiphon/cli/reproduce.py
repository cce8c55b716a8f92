"""The command `reproduce`: compute the tables and figures of papers again, beside the published values.

A row has the `published` and `ours` figures of one name: a point (C, S, R) as a dictionary, a frontier as a list of
points, or other figures by name; None if there are none. It also has `seconds` (CPU time), `engine` (the method that
computed ours), `note`, `deviation` (why it differs; "" if it does not), and `ok`: True if it is reproduced, None if in
shape only, else False.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import typer

from antiphon.cli import arguments as arg
from antiphon.cli.output import StoppedEarly, emit, working
from antiphon.reproduce import names, reproduce
from antiphon.show.columns import paragraph, wrap_table
from antiphon.units import format_bandwidth

_INDENT = " " * 15  # of lines that go on under the text behind a label of ten letters


def reproduce_command(
    name: Annotated[str, typer.Argument(metavar="NAME", help="name of the table (default: list all)")] = "",
    engine: arg.Engine = "processes",
) -> None:
    """Recompute a table of a paper, beside the published figures.

    The engine computes independent parts of a table at the same time.
    Exit code 1 if a row is not reproduced, or in shape only.
    """
    if not name:
        reproductions = names()
        emit(reproductions, names_text(reproductions))
        return
    rows: list[dict[str, Any]] = []
    stopped = False
    try:
        with working(f"reproducing {name}"):
            for row in reproduce(name, engine):
                rows.append(row)
    except KeyboardInterrupt:  # the rows so far are printed
        stopped = True
    title = next(f"{row['about']}: {row['source']}" for row in names() if row["name"] == name)
    emit({"rows": rows}, "\n".join([*paragraph(title, first="", rest="  "), "", reproduced_text(rows)]))
    if stopped:
        raise StoppedEarly("interrupted; the rows computed so far are printed")
    if not all(row["ok"] for row in rows):
        raise typer.Exit(1)


# ---- text ----


def names_text(rows: Sequence[dict[str, str]]) -> str:
    """Return the names of all reproductions with what they show and where it was published."""
    return "\n".join(wrap_table(head=[], rows=[[row["name"], f"{row['about']}\n{row['source']}"] for row in rows]))


def reproduced_text(rows: Sequence[dict[str, Any]]) -> str:
    """Return a line per row that is a point (C, S, R), a paragraph per frontier or other row, then deviations."""
    frontiers = [row for row in rows if isinstance(row["published"], list)]
    other_rows = [row for row in rows if row not in frontiers and not _is_point(row)]
    points = [row for row in rows if row not in frontiers and row not in other_rows]
    head = ["", "published", "ours, CPU seconds", "by", ""]
    lines = wrap_table(head, [_point_cells(row) for row in points]) if points else []
    for row in frontiers:
        lines += _frontier_lines(row)
    for row in other_rows:
        lines += _figure_lines(row)
    if frontiers:
        lines += ["", *paragraph("k: proved for so few rounds, R <= S + k; all others: for any R")]
    deviating = [row for row in rows if row["deviation"]]
    if deviating:
        lines += ["", "deviations:"]
    for row in deviating:
        lines += paragraph(f"{row['name']}: {row['deviation']}", first="  ", rest="      ")
    return "\n".join([*lines, "", *paragraph(summary_text(rows), first="", rest="  ")])


def summary_text(rows: Sequence[dict[str, Any]]) -> str:
    """Count the rows with a published figure that are reproduced, and those in shape only; name the rest."""
    published_rows = [row for row in rows if row["published"] is not None]
    shape_only = [row["name"] for row in rows if row["ok"] is None]
    failed = [row["name"] for row in rows if row["ok"] is False]
    text = f"{sum(row['ok'] is True for row in published_rows)} of {len(published_rows)} rows are reproduced"
    text += f", {len(shape_only)} in shape only ({'; '.join(shape_only)})" if shape_only else ""
    text += f"; not {'; '.join(failed)}" if failed else ""
    unpublished = len(rows) - len(published_rows)
    return text + (f" (beside {unpublished} for which nothing was published)" if unpublished else "")


def _point_cells(row: dict[str, Any]) -> list[str]:
    """Return the cells of a row that is a point."""
    ours = row["ours"] and {**row["ours"], "seconds": row["seconds"]}
    sides = [_point_cell(row["name"], value) for value in (row["published"], ours)]
    return [row["name"], *sides, row["engine"] or "", row["note"]]


def _point_cell(name: str, value: dict[str, Any] | None) -> str:
    """Return a point as text, unless the name contains it already, with its label and time."""
    if value is None:
        return "-"
    words = [] if name.endswith(_point_text(value)) else [_point_text(value)]
    words += [value["optimal"]] if value.get("optimal") else []
    words += [f"{value['seconds']:.3g} s"] if value.get("seconds") is not None else []
    return " ".join(words)


def _frontier_lines(row: dict[str, Any]) -> Iterator[str]:
    """Yield a paragraph for a row with several points: published, then ours."""
    yield f"  {row['name']}: {row['note']}; {row['seconds']:.2f} CPU s, {row['engine']}"
    for side in ("published", "ours"):
        point_texts = [_point_text(point) + _proof_mark(point) for point in row[side]]
        yield from paragraph(f"{side + ':':<10} {' '.join(point_texts) or '-'}", first="    ", rest=_INDENT)


def _is_point(row: dict[str, Any]) -> bool:
    """Return whether a row that is no frontier is a point (C, S, R)."""
    return "chunks" in (row["published"] or row["ours"] or {})


def _figure_lines(row: dict[str, Any]) -> Iterator[str]:
    """Yield a paragraph for a row with other figures: published, ours, note."""
    effort_text = f"{row['seconds']:.2f} CPU s" + (f", {row['engine']}" if row["engine"] else "")
    yield from paragraph(f"{row['name']}: {effort_text}", first="  ", rest="      ")
    for side in ("published", "ours"):
        figures = ", ".join(_figure_text(key, value) for key, value in (row[side] or {}).items())
        yield from paragraph(f"{side + ':':<10} {figures or '-'}", first="    ", rest=_INDENT)
    if row["note"]:
        yield from paragraph(f"{'note:':<10} {row['note']}", first="    ", rest=_INDENT)


def _figure_text(key: str, value: Any) -> str:
    """Return a figure with its name as text."""
    name = key.replace("_", " ")
    if key.endswith("bytes_per_second"):
        return f"{name.removesuffix('bytes per second')}{format_bandwidth(value)}"
    if isinstance(value, dict):
        return f"{name} {', '.join(f'{inner}: {item}' for inner, item in value.items())}"
    if isinstance(value, bool):
        return key if value else f"not {key}"
    return f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"


def _proof_mark(value: dict[str, Any]) -> str:
    """Return the mark behind a point: what its certificate proves ("": optimal, "?": nothing)."""
    return {"proved-optimal": "", "proved-optimal-for-k": "k"}.get(value.get("proof", "proved-optimal"), "?")


def _point_text(value: dict[str, Any]) -> str:
    return f"({value['chunks']}, {value['steps']}, {value['rounds']})"
