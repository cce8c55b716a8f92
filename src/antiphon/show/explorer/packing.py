"""Pack columns of numbers into text that a page unpacks, so that a million transfers take a few megabytes.

Each column is written in the narrowest whole type that holds it, or as the differences of neighbours where those
compress better (`delta`). All columns of a pack are deflated together and written as base64. Times are whole ticks:
their total is 2**30 ticks, so that a float error of 1e-9 is the whole loss.

Example: the steps 0, 0, 1, 1, 1 become the differences 0, 0, 1, 0, 0; `{"fields": [["step", "i4", 5, 1]], "data": ...}`
names the column, its type, its length and that it holds differences.
"""

from __future__ import annotations

import base64
import zlib
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from antiphon.core.columns import Floats, Longs

TICKS = 2**30  # of the total time
_TYPES = ("u1", "u2", "i4")  # of columns, narrowest first


class Pack:
    """Columns by name, packed together."""

    def __init__(self) -> None:
        self.fields: list[tuple[str, str, int, int]] = []  # name, type, length, 1 for differences
        self._pieces: list[bytes] = []

    def add(self, name: str, values: ArrayLike, delta: bool = False) -> None:
        """Add a column: whole numbers below 2**31, or floats."""
        column = np.asarray(values)
        count = len(column)
        if column.dtype.kind == "f":
            code = "f4"
        elif delta:
            column, code = np.diff(column.astype(np.int64), prepend=0), "i4"
        else:
            top, low = int(column.max(initial=0)), int(column.min(initial=0))
            code = next(t for t in _TYPES if low >= np.iinfo(t).min and top <= np.iinfo(t).max)
        data = column.astype("<" + code).tobytes()
        self._pieces.append(data + bytes(-len(data) % 4))
        self.fields.append((name, code, count, int(delta)))

    def as_json(self) -> dict[str, Any]:
        """Return the fields and the data as base64."""
        packed = zlib.compress(b"".join(self._pieces), 6)
        return {"fields": [list(field) for field in self.fields], "data": base64.b64encode(packed).decode()}


def ticks(seconds: Floats, total: float) -> Longs:
    """Return times as whole ticks of `total`."""
    scaled: Longs = np.rint(seconds * (TICKS / total if total else 0.0)).astype(np.int64)
    return np.clip(scaled, 0, 2**31 - 1)
