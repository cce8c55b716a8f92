"""What a book holds, and what its pages say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Page:
    """Calls of this kind among these ranks with start <= nbytes < stop go by this program.

    `members` in the order of the process group; `root` a rank of the machine, -1 where there is none. `program` -1:
    left to the library, which was measured to be faster. `seconds`: what was predicted or measured, if anything was.
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


@dataclass(frozen=True)
class Book:
    """`hosts`: for each rank the number of its box, () where there is one only. `left`: what is no page, and why."""

    machine: str
    ranks: int
    hosts: tuple[int, ...]
    pages: tuple[Page, ...]
    programs: tuple[bytes, ...]
    left: tuple[str, ...] = field(default=(), compare=False)

    def find(self, kind: str, members: Sequence[int], nbytes: int, root: int = -1) -> Page | None:
        """The page for a call; None where there is none. O(pages)."""
        group = tuple(members)
        for page in self.pages:
            fits = page.start <= nbytes and (page.stop is None or nbytes < page.stop)
            if fits and page.kind == kind and page.root == root and page.members == group:
                return page
        return None
