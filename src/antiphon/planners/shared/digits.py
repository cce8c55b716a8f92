"""A number of ranks as a product of fan-ins, level by level: all such products, and the one that people write."""

from __future__ import annotations

import math
from collections.abc import Sequence

from antiphon.errors import Invalid, quote

MOST_FACTORISATIONS = 64


def factorisations(number: int) -> list[list[int]]:
    """Ordered factorisations into factors of 2 or more: fewest factors first, then the greatest first factor.

    At most MOST_FACTORISATIONS of them; a prime has only itself. The number itself comes first.

    >>> factorisations(12)
    [[12], [6, 2], [4, 3], [3, 4], [2, 6], [3, 2, 2], [2, 3, 2], [2, 2, 3]]
    """
    lists: list[list[int]] = []
    level: list[tuple[list[int], int]] = [([], number)]
    while level and len(lists) < MOST_FACTORISATIONS:
        lists += [[*head, rest] for head, rest in level]
        level = [
            ([*head, f], rest // f)
            for head, rest in level
            for f in range(rest // 2, 1, -1)
            if rest % f == 0
        ]  # fmt: skip
    return lists[:MOST_FACTORISATIONS]


def given_fans(fanins: str | int | Sequence[int], ranks: int, name: str = "fanins") -> list[int]:
    """An option such as "4x2": whole numbers of 2 or more whose product is the number of ranks that take part."""
    try:
        fans = [int(f) for f in (str(fanins).split("x") if isinstance(fanins, str | int) else fanins)]
    except ValueError:
        raise Invalid(f"option {name}: expected numbers such as 4x2, got {quote(fanins)}") from None
    if not fans or min(fans) < 2 or math.prod(fans) != ranks:
        raise Invalid(f"option {name}: the product of {quote(fanins)} must be {ranks}, each factor 2 or more")
    return fans
