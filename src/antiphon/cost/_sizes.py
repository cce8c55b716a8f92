"""Sizes to predict for, as people write them: one, or a range."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import numpy as np

from antiphon.errors import Invalid, quote
from antiphon.units import parse_size

MOST = 4096  # given one by one


def _one(wanted: object, what: str) -> int:
    return parse_size(int(wanted) if isinstance(wanted, np.integer) else wanted, what)  # type: ignore[arg-type]


def sizes(wanted: int | str | Sequence[int | str], what: str = "--nbytes") -> list[int]:
    """ "64KB"; a range "1KB:1GB", doubling from its first size up to at most its last; "1KB:1GB:4": fourfold."""
    if isinstance(wanted, int | np.integer):
        return [_one(wanted, what)]
    if not isinstance(wanted, str):
        try:
            parts = list(islice(wanted, MOST + 1))
        except TypeError:
            raise Invalid(
                f"{what}: expected a size such as 64KB, a range such as 1KB:1GB, or several, got {quote(wanted)}"
            ) from None
        if len(parts) > MOST:
            raise Invalid(f"{what}: more than {MOST} sizes; give fewer")
        return [size for one in parts for size in (sizes(one, what) if isinstance(one, str) else [_one(one, what)])]
    first, *rest = wanted.split(":")
    low = parse_size(first, what)
    if not rest:
        return [low]
    high = parse_size(rest[0], what)
    factor = int(rest[1]) if len(rest) == 2 and rest[1].isascii() and rest[1].isdigit() and len(rest[1]) < 10 else 2
    if len(rest) > 2 or (len(rest) == 2 and str(factor) != rest[1]) or factor < 2:
        raise Invalid(
            f"{what}: expected SIZE, FROM:TO or FROM:TO:FACTOR with a factor of 2 or more, got {quote(wanted)}"
        )
    if not 0 < low <= high:
        raise Invalid(f"{what}: the range {quote(wanted)} is empty; begin above 0 and at most where it ends")
    found = [low]
    while found[-1] * factor <= high:
        found.append(found[-1] * factor)
    return found
