"""Floating-point arithmetic that gives the same bits on every processor.

Products of matrices in NumPy (`@`, `dot`, `convolve`) call BLAS, whose order of summation depends on the kernel that it
chooses for the processor; `np.exp` has another implementation on processors with AVX-512. Where the last bit may decide
between two results, only the basic operations may be used: IEEE 754 defines how each of them is rounded.

HiGHS, which solves linear and integer programs, uses fused multiply-add on some processors (aarch64). Where several
solutions are equally good, its last bits decide which one it returns; `tie_breaks` leave only one that is best.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_LOG2_E = 1 / math.log(2)
_LN2_HIGH = 0.6931471803691238  # ln 2 in two parts; products of the first with whole numbers below 2^20 are exact
_LN2_LOW = 1.9082149292705877e-10
_EXP_RANGE = 700.0  # e^710 exceeds the greatest double
_EXP_TERMS = [1 / math.factorial(n) for n in range(14)][::-1]  # Taylor series of e^x, from the smallest term


def row_dot(a: NDArray[Any], b: NDArray[Any]) -> Any:
    """Return the sum of products over the last axis, broadcasting the others: `matrix @ vector` without BLAS, or of two
    matrices row by row."""
    return (a * b).sum(axis=-1)


def matmul(a: Floats, b: Floats) -> Floats:
    """Return `a @ b` of two matrices without BLAS. O(rows * inner * columns) memory."""
    product: Floats = (a[:, :, None] * b[None, :, :]).sum(axis=1)
    return product


def convolve(rows: Floats, kernel: Floats) -> Floats:
    """Return the full convolution of every row with `kernel`. O(rows * columns * length of the kernel)."""
    out = np.zeros((rows.shape[0], rows.shape[1] + len(kernel) - 1))
    for column in range(rows.shape[1]):
        out[:, column : column + len(kernel)] += rows[:, column, None] * kernel
    return out


def exp(x: Floats) -> Floats:
    """Return e to the power of x, to a unit or two in the last place; x is clipped to +-700."""
    x = np.clip(x, -_EXP_RANGE, _EXP_RANGE)
    # e^x = 2^k e^r with |r| <= ln(2) / 2, where 14 terms of the series suffice.
    k = np.rint(x * _LOG2_E)
    r = (x - k * _LN2_HIGH) - k * _LN2_LOW
    series = np.full_like(r, _EXP_TERMS[0])
    for term in _EXP_TERMS[1:]:
        series = series * r + term
    power: Floats = np.ldexp(series, k.astype(np.int64))
    return power


def tie_breaks(count: int) -> Floats:
    """Return `count` numbers between 0 and 1, the same every time; no two sums of few of them are equal.

    Added to the costs of a program, times a factor that lets no better solution lose, they make its optimum unique.
    """
    return np.random.default_rng(0).random(count)


__all__ = ["convolve", "exp", "matmul", "row_dot", "tie_breaks"]
