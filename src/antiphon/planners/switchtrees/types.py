"""Plan types among the children of a switch (GenTree, Table 2): whose part goes to whom in which step.

A type is a tree per child d, towards d: every other child sends once. So whatever a block's holders are, one per
child, the type says how their parts are combined at the holder in child d.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from antiphon.core.columns import Ints

CPS, ACPS, RING, RHD = "CPS", "ACPS", "ring", "RHD"


@dataclass(frozen=True, eq=False)
class Moves:
    """A row per child that was asked for: the moves towards it, one per other child."""

    step: Ints
    src: Ints
    dst: Ints


def name_of(fans: Sequence[int]) -> str:
    """How people call levels of these fan-ins: co-located PS, recursive halving and doubling, or 8x4."""
    if len(fans) == 1:
        return CPS
    return RHD if set(fans) == {2} else "x".join(map(str, fans))


def fans_of(kind: str, count: int) -> list[int]:
    """The fan-ins of a type of levels among so many children."""
    if kind in (CPS, ACPS):
        return [count]
    return [2] * (count.bit_length() - 1) if kind == RHD else [int(f) for f in kind.split("x")]


def steps_of(kind: str, count: int) -> int:
    """How many steps the type takes among so many children."""
    if count < 2:
        return 0
    if kind in (CPS, ACPS):
        return 1
    if kind == RING:
        return count - 1
    if kind == RHD:
        return (count - 1).bit_length() if count & (count - 1) == 0 else count.bit_length() + 1
    return len(kind.split("x"))


def moves_of(kind: str, count: int, towards: Ints) -> Moves:
    """The moves of a type among so many children, a row per child of `towards`. O(rows * count)."""
    if kind in (CPS, ACPS):
        return _levels([count], count, towards)
    if kind == RING:
        return _ring(count, towards)
    if kind == RHD:
        return _halving(count, towards)
    return _levels(fans_of(kind, count), count, towards)


def _others(count: int, towards: Ints) -> tuple[Ints, Ints]:
    """(d, i) for every d and each child i other than d, as a column and a table."""
    d = towards.astype(np.int32)[:, None]
    return d, (d + np.arange(1, count, dtype=np.int32)[None, :]) % np.int32(count)


def _levels(fans: Sequence[int], count: int, towards: Ints) -> Moves:
    """Hierarchical co-located PS: a child sends in the step of the first digit in which it differs from d, to the one
    that agrees with d in this digit as well (section 3.3 and Figure 5)."""
    d, src = _others(count, towards)
    if len(fans) == 1:
        return Moves(np.zeros_like(src), src, np.broadcast_to(d, src.shape))
    step, dst = np.zeros_like(src), np.zeros_like(src)
    stride, same = 1, np.ones(src.shape, np.bool_)
    for level, fan in enumerate(fans):
        own_digit, other_digit = src // stride % fan, d // stride % fan
        now = same & (own_digit != other_digit)
        step[now] = level
        dst[now] = (src + (other_digit - own_digit) * stride)[now]
        same &= own_digit == other_digit
        stride *= fan
    return Moves(step, src, dst)


def _ring(count: int, towards: Ints) -> Moves:
    """Once around, in one direction: the child after d begins."""
    _, src = _others(count, towards)
    return Moves(np.broadcast_to(np.arange(count - 1, dtype=np.int32), src.shape), src, (src + 1) % np.int32(count))


def _halving(count: int, towards: Ints) -> Moves:
    """Recursive halving. Beyond the greatest power of two K, child K+i gives what it has to child i first, and is sent
    its part at the end (section 2.1)."""
    core = 1 << (count.bit_length() - 1)
    levels = core.bit_length() - 1
    if core == count:
        return _levels([2] * levels, count, towards)
    d, src = _others(count, towards)
    inner = d % core
    step, dst = np.zeros_like(src), src % core
    same = src < core
    for level in range(levels):
        now = same & ((src >> level) & 1 != (inner >> level) & 1)
        step[now], dst[now] = level + 1, (src ^ (1 << level))[now]
        same &= ~now
    last = same & (src == inner) & (d >= core)
    step[last], dst[last] = levels + 1, np.broadcast_to(d, src.shape)[last]
    return Moves(step, src, dst)
