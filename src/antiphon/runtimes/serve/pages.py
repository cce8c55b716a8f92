"""What a book holds, and what its pages say."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from antiphon.core.choose import Pages


@dataclass(frozen=True)
class Page:
    """Calls of this kind among these ranks with start <= nbytes < stop go by this program.

    `members` in the order of the process group; `root` a rank of the machine, -1 where there is none. `program` -1:
    left to the library, which was measured to be faster. `seconds`: what was predicted or measured, if anything was.
    `ordered`: values are combined in one order at all sizes, as promised.
    """

    kind: str
    members: tuple[int, ...]
    root: int
    start: int
    stop: int | None
    planner: str
    program: int
    measured: bool = False
    seconds: float | None = None
    ordered: bool = False


@dataclass(frozen=True)
class Book:
    """`hosts`: for each rank the number of its box, () where there is one only. `left`: what is no page, and why."""

    machine: str
    ranks: int
    hosts: tuple[int, ...]
    pages: tuple[Page, ...]
    programs: tuple[bytes, ...]
    left: tuple[str, ...] = field(default=(), compare=False)

    @cached_property
    def chooser(self) -> Pages[Page]:
        """Chooses the page of a call; calls bear their members."""
        found: Pages[Page] = Pages()
        for page in self.pages:
            found.add(page, page.start, page.stop, page.kind, page.root, page.members)
        return found
