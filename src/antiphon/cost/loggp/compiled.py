"""Compile functions with Numba if it is installed (extra [sim]); otherwise they run as plain Python, slowly.

The modules that use it are imported only when a simulation runs, as Numba takes a third of a second to load. Compiled
code is cached beside the source, or in the user's cache directory if that is not writable.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from numpy.typing import NDArray

F = TypeVar("F", bound=Callable[..., Any])

numba: Any
try:
    import numba
except ImportError:
    numba = None


def compiled(function: F) -> F:
    """Compile the function at its first call. Divisions by 0 give infinity, as in NumPy, and the GIL is released."""
    if numba is None:
        return function
    jitted: F = numba.njit(cache=True, nogil=True, error_model="numpy")(function)
    return jitted


def read_only(*columns: NDArray[Any]) -> list[NDArray[Any]]:
    """Return read-only views, as which compiled functions get all their inputs.

    Numba compiles a function again (up to two seconds) for each mix of writable and read-only arrays.

    >>> import numpy as np
    >>> column = np.array([1, 2])
    >>> (view,) = read_only(column)
    >>> view.tolist(), view.flags.writeable, column.flags.writeable
    ([1, 2], False, True)
    """
    views = [column.view() for column in columns]
    for view in views:
        view.flags.writeable = False
    return views


def inlined(function: F) -> F:
    """Inline the function wherever compiled code calls it: passing its many arrays costs more than the call does."""
    if numba is None:
        return function
    jitted: F = numba.njit(inline="always", error_model="numpy")(function)
    return jitted
