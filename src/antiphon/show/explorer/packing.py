"""Pack columns of numbers into text that the page (basics.js) unpacks: a million transfers take a few megabytes.

Each column is written in the narrowest integer type that holds it, or as the differences of neighbours where the caller
expects that to compress better (`delta`). All columns of a pack are deflated together and written as base64. Times are
integer ticks, 2**30 for the total, so that rounding loses at most 1e-9 of the total.

Example: the steps 0, 0, 1, 1, 1 become the differences 0, 0, 1, 0, 0; `{"fields": [["step", "i4", 5, 1]], "data": ...}`
has the column's name, type, length, and 1 for differences.
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
        self._encoded: list[bytes] = []  # columns, each padded to a multiple of 4 bytes

    def add(self, name: str, values: ArrayLike, delta: bool = False) -> None:
        """Add a column of integers below 2**31, or of floats. `delta`: write integers as differences."""
        column = np.asarray(values)
        count = len(column)
        if column.dtype.kind == "f":
            code = "f4"
        elif delta:
            column, code = np.diff(column.astype(np.int64), prepend=0), "i4"
        else:
            low, high = int(column.min(initial=0)), int(column.max(initial=0))
            code = next(t for t in _TYPES if low >= np.iinfo(t).min and high <= np.iinfo(t).max)
        data = column.astype("<" + code).tobytes()
        self._encoded.append(data + bytes(-len(data) % 4))  # the viewer reads arrays at multiples of 4 bytes
        self.fields.append((name, code, count, int(delta)))

    def as_json(self) -> dict[str, Any]:
        """Return the fields and the data as base64."""
        packed = zlib.compress(b"".join(self._encoded), level=6)
        return {"fields": [list(field) for field in self.fields], "data": base64.b64encode(packed).decode()}


def ticks(seconds: Floats, total: float) -> Longs:
    """Return times as whole ticks of `total`."""
    scaled: Longs = np.rint(seconds * (TICKS / total if total else 0.0)).astype(np.int64)
    return np.clip(scaled, 0, np.iinfo(np.int32).max)
