"""Tables of the papers, computed again beside the published figures (docs/reproduction.md)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from antiphon.deprecations import stay_callable

stay_callable(__name__)  # as the function antiphon.reproduce() of the previous version, with a warning


def names() -> list[dict[str, str]]:
    """Return all tables and figures that can be reproduced: name, description, and where each was published."""
    from antiphon.reproduce.table import TABLE

    return [{"name": name, "about": entry.about, "source": entry.can.source} for name, entry in TABLE.items()]


def reproduce(name: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of one table or figure as they are computed: name, published, ours, deviation, ok, note, ...

    Plain JSON values. `ok`: the published figure holds, or a proof refutes it; null: only its shape holds.
    `seconds`: CPU time from the previous row to this one, unless the row states its own.
    """
    from time import process_time

    from antiphon.errors import unknown
    from antiphon.reproduce.table import TABLE

    if name not in TABLE:
        raise unknown("table to reproduce", name, TABLE)
    begin = process_time()
    rows: Iterator[dict[str, Any]] = TABLE[name].load()()
    for row in rows:
        yield row if row["seconds"] != 0 else {**row, "seconds": process_time() - begin}
        begin = process_time()
