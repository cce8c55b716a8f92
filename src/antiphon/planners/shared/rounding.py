"""Shares rounded to whole numbers of parts."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
NOTHING = 1e-9
LONG = 8  # starts with equal parts, one after the other, from which on they are the pieces of one chunk
SIMPLE, NEAR = 256, 1e-7


def simple(sizes: Floats) -> list[int]:
    """The smallest number of parts of which all sizes are whole numbers, if there is one."""
    parts = sizes[sizes > NOTHING]
    return [k for k in range(1, SIMPLE + 1) if np.abs(parts * k - np.round(parts * k)).max(initial=0) < NEAR * k][:1]


def whole_numbers(values: Floats, total: int) -> NDArray[np.int64]:
    """Whole numbers near these proportions that sum to the total, by largest remainders."""
    exact = values / values.sum() * total
    found = np.floor(exact + NOTHING).astype(np.int64)
    order = np.argsort(found - exact, kind="stable")
    found[order[: total - int(found.sum())]] += 1
    return found


def whole_alike(values: Floats, total: int) -> NDArray[np.int64]:
    """The same, of which those of a long run of equal values stay equal."""
    start, length = longest_run(values)
    each = round(float(values[start] / values.sum()) * total)
    rest = total - each * length
    others = values.copy()
    others[start : start + length] = 0
    if length < LONG or rest < 0 or not (each and others.any()):
        return whole_numbers(values, total)
    found = whole_numbers(others, rest)
    found[start : start + length] = each
    return found


def longest_run(values: NDArray[Any]) -> tuple[int, int]:
    """Where the longest run of equal values that are not 0 begins, and its length."""
    edges = np.flatnonzero(np.diff(values, prepend=-1, append=-1))
    lengths = np.where(values[edges[:-1]] > 0, np.diff(edges), 0)
    at = int(lengths.argmax())
    return int(edges[at]), int(lengths[at])
