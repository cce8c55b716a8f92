"""Float arithmetic that gives the same bits on every processor.

Products of matrices in NumPy (`@`, `dot`, `convolve`) call BLAS, whose order of summation depends on the kernel that it
chooses for the processor; `np.exp` has another implementation where there is AVX-512. Where the last bit may decide
between two answers, only the basic operations may be used: IEEE 754 rounds each of them in one way.
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
_EXP_RANGE = 700.0  # e to more than this is not far from the greatest float
_EXP_TERMS = [1 / math.factorial(n) for n in range(14)][::-1]


def dot(a: NDArray[Any], b: NDArray[Any]) -> Any:
    """Sum of products over the last axis, the others as NumPy broadcasts them: `matrix @ vector` without BLAS."""
    return (a * b).sum(axis=-1)


def matmul(a: Floats, b: Floats) -> Floats:
    """`a @ b` of two matrices without BLAS. O(rows * inner * columns) memory."""
    product: Floats = (a[:, :, None] * b[None, :, :]).sum(axis=1)
    return product


def convolve(rows: Floats, sizes: Floats) -> Floats:
    """The convolution of every row with the sizes, all of it. O(rows * columns * sizes)."""
    out = np.zeros((rows.shape[0], rows.shape[1] + len(sizes) - 1))
    for column in range(rows.shape[1]):
        out[:, column : column + len(sizes)] += rows[:, column, None] * sizes
    return out


def exp(x: Floats) -> Floats:
    """e to the power of x, to a unit or two in the last place; x is cut off at +-700."""
    x = np.clip(x, -_EXP_RANGE, _EXP_RANGE)
    # e^x = 2^k e^r with |r| <= ln(2) / 2, where 14 terms of the series suffice.
    k = np.rint(x * _LOG2_E)
    r = (x - k * _LN2_HIGH) - k * _LN2_LOW
    series = np.full_like(r, _EXP_TERMS[0])
    for term in _EXP_TERMS[1:]:
        series = series * r + term
    power: Floats = np.ldexp(series, k.astype(np.int64))
    return power


__all__ = ["convolve", "dot", "exp", "matmul"]
