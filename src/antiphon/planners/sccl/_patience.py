"""Candidate points decided one after the other, each with a share of the time left."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterable

from antiphon.errors import TimedOut
from antiphon.planners.sccl._auto import Decided, decide
from antiphon.planners.sccl._search import Search

Candidate = tuple[int, int, int]  # parts, steps, rounds
Tell = Callable[[str], None]
LEAST = 1.0  # seconds


def in_order(
    search: Search, candidates: Iterable[Candidate], *, turns: int, memory: int | None, tell: Tell, share: float
) -> Generator[tuple[Candidate, Decided], None, None]:
    """Every candidate with what was decided of it.

    One candidate takes at most this share of the time left, so that easier ones get their turn. TimedOut at the
    deadline.
    """
    for candidate in candidates:
        yield candidate, _one(search, candidate, turns, memory, tell, share)


def _one(search: Search, candidate: Candidate, turns: int, memory: int | None, tell: Tell, share: float) -> Decided:
    whole = search.deadline
    seconds = math.inf if whole == math.inf else max(LEAST, share * search.left())
    search.deadline = min(time.monotonic() + seconds, whole + LEAST)
    try:
        return decide(search, *candidate, tell=tell, memory=memory, turns=turns)
    except TimedOut:
        search.deadline = whole
        search.left()
        return None
    finally:
        search.deadline = whole
