"""Memory that all ranks have alike, whoever gave it: by which addresses this process reaches that of each rank."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from antiphon.errors import Unsupported


class Symmetric(NamedTuple):
    """`places`: where each rank has it, as this process sees it (0: it is out of reach); `nbytes` at each. `multicast`:
    one address for all of them, at which switches load and store; 0: there is none."""

    places: tuple[int, ...]
    nbytes: int
    multicast: int = 0

    def reached(self, ranks: int) -> Symmetric:
        """Itself, where so many ranks have some that this process can reach; else Unsupported.

        >>> Symmetric((64, 128), 32).reached(2).places
        (64, 128)
        """
        if len(self.places) != ranks:
            raise Unsupported(f"memory of {len(self.places)} ranks, in a group of {ranks}")
        far = [rank for rank, place in enumerate(self.places) if not place]
        if far:
            raise Unsupported(f"memory of ranks {far} cannot be loaded from and stored to by this process")
        return self


class Source(Protocol):
    """Who gives such memory: a kind of it. All processes ask alike, in one order; each has one rank. What one of them
    can fail in alone comes first, so that all know of it before they meet in a library that waits for each of them."""

    def begun(self, nbytes: int) -> Any:
        """What this process alone can do for it; Unsupported where that is refused."""
        ...

    def dropped(self, begun: Any) -> None:
        """Where another process could not: by this one alone."""
        ...

    def taken(self, begun: Any, nbytes: int) -> Symmetric:
        """The rest, by all of them; Unsupported where there is none, and then nothing is left of it here."""
        ...

    def given_back(self, memory: Symmetric) -> None:
        """By all of them, or by none."""
        ...
