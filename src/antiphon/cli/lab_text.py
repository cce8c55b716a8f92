"""What `antiphon lab` prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from antiphon.show.text import paragraph, table
from antiphon.units import format_size


def labs_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """The labs that are up."""
    listed = [
        [
            row["name"], str(row["ranks"]), str(row["links"]), _bits(row["slowest"]), _bits(row["fastest"]),
            str(row["keeper"]), "stays" if row["owner"] is None else f"with process {row['owner']}",
        ]
        for row in rows
    ]  # fmt: skip
    lines = table(["lab", "ranks", "cables", "slowest", "fastest", "keeper", "how long"], listed)
    cut = [row["name"] for row in rows if not row["reachable"]]
    told = paragraph(f"not all ranks of {', '.join(cut)} can reach each other", "  ") if cut else []
    return "\n".join([*lines, *told])


def _bits(rate: int) -> str:
    for scale, unit in ((10**9, "Gbit/s"), (10**6, "Mbit/s")):
        if rate >= scale:
            return f"{rate / scale:.4g} {unit}"
    return f"{rate / 1000:.4g} kbit/s"


def remarks(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the table of runs in a lab does not tell: where links limit nothing, and what they carried."""
    lines: list[str] = []
    small = [format_size(row["nbytes"]) for row in rows if row["over_predicted"] is None and row["predicted_seconds"]]
    if small:
        few = f"{', '.join(small)}: nothing over predicted: no link carries more than the {rows[0]['at_once']} bytes"
        why = "(their burst, and a packet of TCP), so these times say nothing of the links"
        lines += paragraph(f"{few} that the shapers let pass at once {why}", "  ")
    for row in rows:
        used = [link for link in row["links"] if link["expected"]]
        if used:
            total, counted = sum(link["expected"] for link in used), sum(link["counted"] for link in used)
            most = max(link["counted"] / link["expected"] for link in used)
            lines += paragraph(
                f"{format_size(row['nbytes'])}: {total} bytes were to cross {len(used)} links, {counted} were counted "
                f"there with headers and replies; on no link more than {100 * (most - 1):.1f} % above its load", "  "
            )  # fmt: skip
    return lines
