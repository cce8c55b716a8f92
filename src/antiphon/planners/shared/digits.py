"""Allgather level by level: ranks numbered in mixed radix, one digit gathered after the other.

Recursive doubling, recursive halving-doubling, hierarchical rings and hierarchical parameter servers are all this,
with other radices, orders of digits and ways within a level.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from antiphon.core.columns import Longs
from antiphon.errors import Invalid, quote

DIRECT, RING, BACK = "direct", "ring", "back"  # everyone at once; around the ring; around it the other way
MOST_FACTORISATIONS = 64


@dataclass(frozen=True, eq=False)
class Moves:
    """At `step`, `src` sends to `dst` what began at `origin`: numbers of ranks in mixed radix."""

    step: Longs
    origin: Longs
    src: Longs
    dst: Longs


def gather_digits(fans: Sequence[int], order: Sequence[int], way: str = DIRECT) -> Moves:
    """Everyone gets everything: digit order[0] is gathered first, then order[1], ...

    `fans`: the radices, the fastest digit first. A level of radix f takes one step if everyone sends to everyone,
    f - 1 around a ring. O(P^2) rows, vectorised.

    Two times two: 0 and 1 exchange, 2 and 3; then 0 and 2 what both have, which is what began at 0 and 1, or 2 and 3.

    >>> rows = gather_digits([2, 2], [0, 1])
    >>> [column[:4].tolist() for column in (rows.step, rows.origin, rows.src, rows.dst)]
    [[0, 0, 0, 0], [0, 1, 2, 3], [0, 1, 2, 3], [1, 0, 3, 2]]
    >>> [column[4:].tolist() for column in (rows.step, rows.origin, rows.src, rows.dst)]
    [[1, 1, 1, 1, 1, 1, 1, 1], [0, 1, 0, 1, 2, 3, 2, 3], [0, 0, 1, 1, 2, 2, 3, 3], [2, 2, 3, 3, 0, 0, 1, 1]]
    """
    total = math.prod(fans)
    strides = [math.prod(fans[:i]) for i in range(len(fans))]
    here = np.arange(total)
    held = np.zeros(1, np.int64)  # what everyone holds of digits gathered so far, as offsets
    columns: list[tuple[Longs, ...]] = []
    step = 0
    done: list[int] = []
    for level in order:
        f, t = fans[level], strides[level]
        digit = here // t % f
        base = here - sum((here // strides[d] % fans[d] * strides[d] for d in done), np.zeros(total, np.int64))
        hop = np.arange(f - 1)[:, None]
        to = hop + 1 if way == DIRECT else np.full_like(hop, 1 if way == RING else -1)
        age = np.zeros_like(hop) if way == DIRECT else hop * to  # whose part is passed on, so many digits behind
        dst = here + ((digit + to) % f - digit) * t
        whose = base + ((digit - age) % f - digit) * t
        when = step + (hop * 0 if way == DIRECT else hop)
        shape = (f - 1, total, len(held))
        columns.append(
            tuple(
                np.broadcast_to(x, shape).ravel()
                for x in (when[:, :, None], whose[:, :, None] + held, here[None, :, None], dst[:, :, None])
            )
        )
        held = (held[None, :] + (np.arange(f) * t)[:, None]).ravel()
        done.append(level)
        step += 1 if way == DIRECT else f - 1
    nothing = [np.zeros(0, np.int64)] * 4
    return Moves(*(np.concatenate(c) for c in zip(*(columns or [tuple(nothing)]), strict=True)))


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
