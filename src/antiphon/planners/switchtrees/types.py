"""Exchange patterns among the children of a switch (GenTree's plan types): who sends to whom in which step.

Paper: Xiong et al. 2024, "Revisiting the Time Cost Model of AllReduce", Table 2; sections cited below are its sections.

Children are the subtrees below a switch, each with one or more ranks (the paper's servers). Input: a plan type by name,
the number of children, and the child d with the rank that ends with the block (its owner). Output of `moves_of`: the
moves of the block, each from a child to another in some step. Every child but d sends exactly once, so the moves form a
tree towards d; if each child holds a partial sum of the block, the sum of all ends in d.

    CPS      co-located parameter servers: all send to d in one step
    ACPS     the same moves; the paper's name where children have different numbers of ranks
    8x4      hierarchical CPS: children are numbered by digits, here one of base 8 and one of base 4, with a step per
             digit. A child sends in the step of the first digit (least significant first) in which it differs from d,
             to the child that has d's digit there and otherwise its own
    RHD      recursive halving: all digits of base 2; if children are no power of two, a step before and one after
    ring     from child to child once around, ending at d

Example: 4 children, type RHD, towards d = 0: in step 0 children 1 and 3 send to 0 and 2, in step 1 child 2 sends to 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from antiphon.core.columns import Ints

CPS, ACPS, RING, RHD = "CPS", "ACPS", "ring", "RHD"  # names of plan types, see above


@dataclass(frozen=True, eq=False)
class ChildMoves:
    """Moves between children: in `step`, child `src` sends to child `dst`.

    Each is an array with a row per child d where a block ends, and a column per other child.
    """

    step: Ints
    src: Ints
    dst: Ints


def name_of(fans: Sequence[int]) -> str:
    """Return the name of the type whose levels have these fan-ins: CPS, RHD, or such as 8x4."""
    if len(fans) == 1:
        return CPS
    return RHD if set(fans) == {2} else "x".join(map(str, fans))


def fans_of(kind: str, count: int) -> list[int]:
    """Return the fan-in of each level of a type (not ring) among `count` children, for RHD a power of two.

    RHD among any other number has no levels: see `_halving_moves`.
    """
    if kind in (CPS, ACPS):
        return [count]
    return [2] * (count.bit_length() - 1) if kind == RHD else [int(f) for f in kind.split("x")]


def steps_of(kind: str, count: int) -> int:
    """Return the number of steps of the type."""
    if count < 2:
        return 0
    if kind in (CPS, ACPS):
        return 1
    if kind == RING:
        return count - 1
    if kind == RHD:
        # log2 of a power of two; else that of the largest one below, and a step before and one after
        return (count - 1).bit_length() if count & (count - 1) == 0 else count.bit_length() + 1
    return len(kind.split("x"))


def moves_of(kind: str, count: int, towards: Ints) -> ChildMoves:
    """Return the moves of a type among `count` children, towards each child of `towards`. O(rows * count)."""
    if kind in (CPS, ACPS):
        return _level_moves([count], count, towards)
    if kind == RING:
        return _ring_moves(count, towards)
    if kind == RHD:
        return _halving_moves(count, towards)
    return _level_moves(fans_of(kind, count), count, towards)


def _other_children(count: int, towards: Ints) -> tuple[Ints, Ints]:
    """Return `towards` as a column d, and a table with the children other than d in each row."""
    d = towards.astype(np.int32)[:, None]
    return d, (d + np.arange(1, count, dtype=np.int32)[None, :]) % np.int32(count)


def _level_moves(fans: Sequence[int], count: int, towards: Ints) -> ChildMoves:
    """Return the moves of hierarchical co-located parameter servers (section 3.3 and Figure 5).

    A child sends in the step of the first digit in which it differs from d, to the child that has d's digit there.
    """
    d, src = _other_children(count, towards)
    if len(fans) == 1:
        return ChildMoves(np.zeros_like(src), src, np.broadcast_to(d, src.shape))
    step, dst = np.zeros_like(src), np.zeros_like(src)
    stride, equal_so_far = 1, np.ones(src.shape, np.bool_)  # no digit differed yet
    for level, fan in enumerate(fans):
        src_digit, d_digit = src // stride % fan, d // stride % fan
        # the first digit (least significant level first) that differs from d's decides step and destination
        sends = equal_so_far & (src_digit != d_digit)
        step[sends] = level
        dst[sends] = (src + (d_digit - src_digit) * stride)[sends]
        equal_so_far &= ~sends
        stride *= fan
    return ChildMoves(step, src, dst)


def _ring_moves(count: int, towards: Ints) -> ChildMoves:
    """Return the moves once around, in one direction; the child after d begins."""
    _, src = _other_children(count, towards)
    return ChildMoves(
        np.broadcast_to(np.arange(count - 1, dtype=np.int32), src.shape), src, (src + 1) % np.int32(count)
    )


def _halving_moves(count: int, towards: Ints) -> ChildMoves:
    """Return the moves of recursive halving (section 2.1).

    With K the largest power of two up to `count`: child K+i first sends its data to child i, and receives its blocks in
    a last step.
    """
    core = 1 << (count.bit_length() - 1)
    levels = core.bit_length() - 1
    if core == count:
        return _level_moves([2] * levels, count, towards)
    d, src = _other_children(count, towards)
    core_d = d % core  # d, or its partner among the power of two
    step, dst = np.zeros_like(src), src % core
    equal_so_far = src < core
    for level in range(levels):
        sends = equal_so_far & ((src >> level) & 1 != (core_d >> level) & 1)
        step[sends], dst[sends] = level + 1, (src ^ (1 << level))[sends]
        equal_so_far &= ~sends
    # a destination beyond the power of two: its partner collected the block and returns it in a last step
    returns = equal_so_far & (src == core_d) & (d >= core)
    step[returns], dst[returns] = levels + 1, np.broadcast_to(d, src.shape)[returns]
    return ChildMoves(step, src, dst)
