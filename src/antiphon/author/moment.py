"""What happens at once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from antiphon.author.rows import Row
from antiphon.author.timing import Spot


@dataclass(slots=True)
class Moment:
    """Rows that happen at once, until their step is known. `step`: theirs, where it is fixed; `called`: it lasts until
    the next `w.step()`, not for a block; `writers`: of the rows, by where they write."""

    number: int
    step: int | None
    called: bool
    rows: list[Row] = field(default_factory=list)
    writers: dict[Spot, Row] = field(default_factory=dict)

    def clash(self, rows: Iterable[Row]) -> str:
        """Why these cannot happen at once with those ("": they can): several may write one place only if all add to
        it, and the same chunk."""
        for row in rows:
            other = self.writers.get(row.move.dst)
            if other is not None and (row.move.copy or other.move.copy or row.chunk != other.chunk):
                return f"{other.line} writes {row.dst} in this step, too"
        return ""

    def add(self, rows: list[Row]) -> None:
        self.rows += rows
        self.writers.update((row.move.dst, row) for row in rows)
