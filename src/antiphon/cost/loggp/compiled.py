"""Compiled loops: Numba where it is installed (extra [sim]), else the same functions as plain Python, slowly.

Modules that use this are imported only when they are needed: Numba takes a third of a second to load. What it
compiles is kept beside the source, or in the user's cache where that cannot be written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

numba: Any
try:
    import numba
except ImportError:
    numba = None


def compiled(function: F) -> F:
    """The function, compiled at its first call."""
    if numba is None:
        return function
    jitted: F = numba.njit(cache=True, nogil=True, error_model="numpy")(function)
    return jitted


def inlined(function: F) -> F:
    """The function, put in whole wherever compiled code calls it: handing over many arrays would cost more than it."""
    if numba is None:
        return function
    jitted: F = numba.njit(inline="always", error_model="numpy")(function)
    return jitted
