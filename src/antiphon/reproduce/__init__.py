"""Tables of the papers, computed again beside the published figures (docs/reproduction.md)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from antiphon.deprecations import stay_callable

stay_callable(__name__)


def names() -> list[dict[str, str]]:
    """What can be reproduced: name, what it is, and where it was published."""
    from antiphon.reproduce.table import TABLE

    return [{"name": name, "about": one.about, "source": str(one.can["source"])} for name, one in TABLE.items()]


def reproduce(name: str) -> Iterator[dict[str, Any]]:
    """The rows of one table or figure, each as soon as it is made: name, published, ours, deviation, ok, note, ...

    Plain JSON values. `ok`: what was published holds, or where it does not a proof says so; null: its shape only.
    `seconds`: CPU time from the row before to this one, unless the row itself says what of it counts.
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
