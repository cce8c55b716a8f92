"""Count the calls of a group, for its report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass
class Row:
    """Calls of one kind that were served alike. `served_by`: antiphon, library, or nothing."""

    collective: str
    schedule: str
    served_by: str
    calls: int = 0
    nbytes: int = 0
    seconds: float = 0.0
    why: str = ""

    def as_json(self) -> dict[str, Any]:
        return dict(vars(self))


class Ledger:
    """The rows of a report, in the order of their first calls."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str, str, str], Row] = {}

    def row(self, collective: str, schedule: str, served_by: str, why: str = "") -> Row:
        key = (collective, schedule, served_by, why)
        row = self.rows.get(key)
        if row is None:
            row = self.rows[key] = Row(collective, schedule, served_by, why=why)
        return row

    def count(self, row: Row, nbytes: int, seconds: float) -> None:
        row.calls += 1
        row.nbytes += nbytes
        row.seconds += seconds

    def as_json(self) -> list[dict[str, Any]]:
        return [row.as_json() for row in list(self.rows.values())]
