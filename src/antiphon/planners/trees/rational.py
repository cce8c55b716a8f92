"""Exact solutions of small linear systems whose float solution is at hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

PRIME = 2**26 - 5  # a row of a product stays below 2**63 for up to 2048 columns
_MOST_DIGITS = 4000

Matrix = NDArray[np.int64]


def solve(rows: Matrix, right: Sequence[int]) -> list[Fraction] | None:
    """The x with rows @ x == right; None where there is none, where it is not unique, or the prime is unlucky.

    `rows` may be more than columns. Dixon's p-adic lifting: one inverse modulo a prime, then a digit of x at a time,
    and rational reconstruction. The answer is checked in every row. O(columns^2 * rows + digits * columns^2).
    """
    count, width = rows.shape
    if width == 0:
        return [] if not any(right) else None
    if count < width or width > 2000:
        return None
    picked = _independent(rows % PRIME)
    if picked is None:
        return None
    square = rows[picked]
    inverse = _inverse(square % PRIME)
    wide = int(np.abs(rows).max(initial=0)) * width * PRIME >= 2**62
    exact: NDArray[Any] = square.astype(object) if wide else square
    rest: NDArray[Any] = np.array([int(right[i]) for i in picked], object)
    # Hadamard's bound: numerators and denominators of x fit below it, so this many digits are enough
    lengths = [math.isqrt(int(s)) + 1 for s in (square.astype(object) ** 2).sum(axis=1)]
    limit = math.prod(lengths) * (math.isqrt(sum(int(v) ** 2 for v in rest)) + 1)
    value, power = np.zeros(width, object), 1
    tried = 8
    for digit in range(1, _MOST_DIGITS):
        step = inverse @ (rest % PRIME).astype(np.int64) % PRIME
        value = value + step.astype(object) * power
        power *= PRIME
        rest = (rest - (exact @ (step.astype(object) if wide else step)).astype(object)) // PRIME
        done = power > 2 * limit * limit
        if digit == tried or done:
            tried *= 2
            found = _reconstructed(value.tolist(), power)
            if found is not None and _holds(rows, right, found):
                return found
        if done:
            return None
    return None


def _independent(matrix: Matrix) -> list[int] | None:
    """Rows that make a regular square matrix modulo PRIME; None where the columns depend on each other."""
    left = matrix.copy()
    count, width = left.shape
    free = np.ones(count, bool)
    picked = []
    for column in range(width):
        at = np.flatnonzero(free & (left[:, column] != 0))
        if not at.size:
            return None
        row = int(at[0])
        picked.append(row)
        free[row] = False
        left[row] = left[row] * pow(int(left[row, column]), -1, PRIME) % PRIME
        others = at[1:]
        left[others] = (left[others] - np.outer(left[others, column], left[row])) % PRIME
    return picked


def _inverse(matrix: Matrix) -> Matrix:
    """Gauss and Jordan modulo PRIME; the matrix is known to be regular."""
    width = len(matrix)
    both = np.concatenate([matrix, np.eye(width, dtype=np.int64)], axis=1)
    for column in range(width):
        row = column + int(np.flatnonzero(both[column:, column])[0])
        both[[column, row]] = both[[row, column]]
        both[column] = both[column] * pow(int(both[column, column]), -1, PRIME) % PRIME
        others = np.flatnonzero(both[:, column])
        others = others[others != column]
        both[others] = (both[others] - np.outer(both[others, column], both[column])) % PRIME
    return both[:, width:]


def _reconstructed(values: Sequence[int], modulus: int) -> list[Fraction] | None:
    """The fractions of small numerator and denominator that these numbers are modulo `modulus`."""
    bound = math.isqrt(modulus // 2)
    common, out = 1, []
    for value in values:
        # most denominators divide the one found so far
        before, now, low, high = modulus, value * common % modulus, 0, 1
        while now > bound:
            q = before // now
            before, now, low, high = now, before - q * now, high, low - q * high
        if abs(high) * common > bound or not high:
            return None
        sign = -1 if high < 0 else 1
        common *= abs(high)
        out.append(Fraction(sign * now, common))
    return out


def _holds(rows: Matrix, right: Sequence[int], x: Sequence[Fraction]) -> bool:
    common = math.lcm(*(v.denominator for v in x))
    whole = [int(v * common) for v in x]
    for row, want in zip(rows, right, strict=True):
        used = np.flatnonzero(row).tolist()
        if sum(int(row[i]) * whole[i] for i in used) != want * common:
            return False
    return True


def simple(values: NDArray[np.float64], most: int, close: float = 1e-7) -> list[int] | None:
    """Whole numbers in the ratio of these, none needing a denominator above `most`; None where there are none so
    close."""
    top = float(values.max(initial=0.0))
    if top <= 0:
        return None
    ratios = [Fraction(v / top).limit_denominator(most) if v > close * top else Fraction(0) for v in values.tolist()]
    if any(abs(float(r) - v / top) > close for r, v in zip(ratios, values.tolist(), strict=True)):
        return None
    common = math.lcm(*(r.denominator for r in ratios))
    return [int(r * common) for r in ratios]
