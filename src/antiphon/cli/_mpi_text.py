"""What `antiphon run --on mpi` prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from antiphon.show.text import table
from antiphon.units import format_seconds, format_size


def mpi_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Measured runs, one line each, beside the library's own collective (-: it has none for this)."""
    listed = [
        [
            format_size(row["nbytes"]), format_seconds(row["seconds"]), f"{row['algbw'] / 1e9:.3f}",
            f"{row['busbw'] / 1e9:.3f}",
            "-" if row["reference_seconds"] is None else format_seconds(row["reference_seconds"]),
            "yes" if row["correct"] else "NO",
        ]
        for row in rows
    ]  # fmt: skip
    return "\n".join(table(["nbytes", "time", "algbw GB/s", "busbw GB/s", "the library's", "correct"], listed))
