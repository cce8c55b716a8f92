"""A mark by which equal schedules are known."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from antiphon.core.schedule import Schedule


def mark_of(schedule: Schedule) -> bytes:
    """Equal for schedules with the same rows in the same order, in as many pieces, whoever made them."""
    return marks_of(schedule)[1]


def marks_of(schedule: Schedule) -> tuple[bytes, bytes]:
    """A mark of the rows in whatever pieces, then that of all. O(rows), a gigabyte a second."""
    found = hashlib.blake2b(digest_size=16)
    chunks, routes = schedule.chunks, schedule.routes
    parts = {
        **schedule.columns(), "block": chunks.block, "offset": chunks.offset, "share": chunks.share,
        "denominator": chunks.denominator, "ptr": routes.ptr, "links": routes.links,
        "local": repr(schedule.local), "kind": repr(schedule.collective.key()),
    }  # fmt: skip
    for name, part in parts.items():
        _add(found, name, part)
    rows = found.digest()
    _add(found, "pieces", schedule.pieces)
    return rows, found.digest()


def _add(found: Any, name: str, part: object) -> None:
    values = part if isinstance(part, np.ndarray) and part.dtype != object else np.frombuffer(_text(part), np.uint8)
    found.update(f"{name} {values.dtype} {values.size} ".encode())
    found.update(np.ascontiguousarray(values).data)


def _text(value: object) -> bytes:
    return repr(value.tolist() if isinstance(value, np.ndarray) else value).encode()
