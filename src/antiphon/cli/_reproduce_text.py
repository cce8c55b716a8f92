"""What `antiphon reproduce` says to people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from antiphon.show.columns import paragraph, wrapped
from antiphon.units import format_bandwidth


def names_text(rows: Sequence[dict[str, str]]) -> str:
    return "\n".join(wrapped([], [[row["name"], f"{row['about']}\n{row['source']}"] for row in rows]))


def reproduced_text(rows: Sequence[dict[str, Any]]) -> str:
    """A line per row that is a point, a paragraph where it is several points or other figures, then what deviates."""
    several = [row for row in rows if isinstance(row["published"], list)]
    others = [row for row in rows if row not in several and not _is_point(row)]
    plain = [row for row in rows if row not in several and row not in others]
    head = ["", "published", "ours, CPU seconds", "by", ""]
    lines = wrapped(head, [_cells(row) for row in plain]) if plain else []
    for row in several:
        lines += _several(row)
    for row in others:
        lines += _figures(row)
    if several:
        lines += ["", *paragraph("k: proved for so few rounds, R <= S + k; all others: for any R")]
    deviating = [row for row in rows if row["deviation"]]
    if deviating:
        lines += ["", "deviations:"]
    for row in deviating:
        lines += paragraph(f"{row['name']}: {row['deviation']}", "  ", "      ")
    return "\n".join([*lines, "", *paragraph(summary(rows), "", "  ")])


def summary(rows: Sequence[dict[str, Any]]) -> str:
    """How many of the rows that something was published for are reproduced, how many in shape only, and which not."""
    counted = [row for row in rows if row["published"] is not None]
    shape = [row["name"] for row in rows if row["ok"] is None]
    failed = [row["name"] for row in rows if row["ok"] is False]
    told = f"{sum(row['ok'] is True for row in counted)} of {len(counted)} rows are reproduced"
    told += f", {len(shape)} in shape only ({'; '.join(shape)})" if shape else ""
    told += f"; not {'; '.join(failed)}" if failed else ""
    beside = len(rows) - len(counted)
    return told + (f" (beside {beside} for which nothing was published)" if beside else "")


def _cells(row: dict[str, Any]) -> list[str]:
    ours = row["ours"] and {**row["ours"], "seconds": row["seconds"]}
    return [
        row["name"],
        _side(row["name"], row["published"]),
        _side(row["name"], ours),
        row["engine"] or "",
        row["note"],
    ]


def _side(name: str, value: dict[str, Any] | None) -> str:
    """A point, unless the name says it already, with its label and time."""
    if value is None:
        return "-"
    told = [] if name.endswith(_point(value)) else [_point(value)]
    told += [value["optimal"]] if value.get("optimal") else []
    told += [f"{value['seconds']:.3g} s"] if value.get("seconds") is not None else []
    return " ".join(told)


def _several(row: dict[str, Any]) -> Iterator[str]:
    yield f"  {row['name']}: {row['note']}; {row['seconds']:.2f} CPU s, {row['engine']}"
    for side in ("published", "ours"):
        points = [_point(one) + _mark(one) for one in row[side]]
        yield from paragraph(f"{side + ':':<10} {' '.join(points) or '-'}", "    ", " " * 15)


def _is_point(row: dict[str, Any]) -> bool:
    return "chunks" in (row["published"] or row["ours"] or {})


def _figures(row: dict[str, Any]) -> Iterator[str]:
    by = f"{row['seconds']:.2f} CPU s" + (f", {row['engine']}" if row["engine"] else "")
    yield from paragraph(f"{row['name']}: {by}", "  ", "      ")
    for side in ("published", "ours"):
        figures = row[side] or {}
        told = ", ".join(_figure(key, value) for key, value in figures.items())
        yield from paragraph(f"{side + ':':<10} {told or '-'}", "    ", " " * 15)
    if row["note"]:
        yield from paragraph(f"{'note:':<10} {row['note']}", "    ", " " * 15)


def _figure(key: str, value: Any) -> str:
    if key.endswith("bytes_per_second"):
        return f"{key.removesuffix('bytes_per_second').replace('_', ' ')}{format_bandwidth(value)}"
    if isinstance(value, dict):
        return f"{key.replace('_', ' ')} {', '.join(f'{inner}: {one}' for inner, one in value.items())}"
    if isinstance(value, bool):
        return key if value else f"not {key}"
    return f"{key.replace('_', ' ')} {value:.4g}" if isinstance(value, float) else f"{key.replace('_', ' ')} {value}"


def _mark(value: dict[str, Any]) -> str:
    return {"proved-optimal": "", "proved-optimal-for-k": "k"}.get(value.get("proof", "proved-optimal"), "?")


def _point(value: dict[str, Any]) -> str:
    return f"({value['chunks']}, {value['steps']}, {value['rounds']})"
