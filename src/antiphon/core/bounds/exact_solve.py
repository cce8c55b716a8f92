"""Solve linear systems with integral coefficients exactly, and find simple ratios near floats.

Input of `solve_exactly`: an integral matrix and right-hand side, for example the equations of a tree packing for its
used trees and full links (master.py). Output: the solution as fractions, or None.

Gaussian elimination in rationals would let numerators explode, so Dixon's p-adic lifting (1982) is used: invert the
matrix once modulo a prime p, then compute the solution's digits in base p one by one. Once there are twice as many
digits as numerators and denominators can have (Hadamard's bound on determinants), the fractions are uniquely determined
and found by the extended Euclidean algorithm, stopped halfway. Small fractions appear after fewer digits, so
reconstruction is tried earlier, too; as every result is checked in every row, none can be wrong.

Example: 3 x = 1 with p = 7: the inverse of 3 is 5. Digits 5, 4, 4, ...: 5 + 4 * 7 = 33, and 33 = 1/3 modulo 49.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.core.columns import SAFE_INT64, Longs

PRIME = 2**26 - 5  # the greatest prime below 2^26: 2048 products of remainders add up to less than 2^63
_MOST_DIGITS = 4000  # digits in base PRIME after which the result is None
_MOST_UNKNOWNS = 2000  # more would take too long; below the 2048 columns of PRIME
CLOSE = 1e-7  # relative tolerance when floats are taken for simple ratios


def solve_exactly(rows: Longs, right_side: Sequence[int]) -> list[Fraction] | None:
    """Return the x with rows @ x == right_side; None if there is none, or if it is not unique.

    Rarely None is returned by bad luck, too: if the matrix is singular modulo the prime. There may be more rows than
    columns. O(columns^2 * (rows + digits)).
    """
    count, width = rows.shape
    if width == 0:  # no unknowns: solvable if every equation says 0 = 0
        return [] if not any(right_side) else None
    if count < width or width > _MOST_UNKNOWNS:
        return None
    chosen_rows = _independent_rows(rows % PRIME)
    if chosen_rows is None:
        return None
    square = rows[chosen_rows]
    inverse = _invert_modulo(square % PRIME)
    # Python ints where int64 could overflow
    exceeds_int64 = int(np.abs(rows).max(initial=0)) * width * PRIME >= SAFE_INT64
    exact: NDArray[Any] = square.astype(object) if exceeds_int64 else square
    residual: NDArray[Any] = np.array([int(right_side[i]) for i in chosen_rows], object)
    # Hadamard's bound: numerators and denominators of x fit below it, so this many digits are enough
    row_lengths = [math.isqrt(int(s)) + 1 for s in (square.astype(object) ** 2).sum(axis=1)]
    limit = math.prod(row_lengths) * (math.isqrt(sum(int(v) ** 2 for v in residual)) + 1)
    value, power = np.zeros(width, object), 1
    next_attempt = 8  # an attempt costs more than a digit: made after 8, 16, 32, ... digits
    for digit in range(1, _MOST_DIGITS):
        step = inverse @ (residual % PRIME).astype(np.int64) % PRIME
        value = value + step.astype(object) * power
        power *= PRIME
        # invariant: square @ value + power * residual == right_side (for the chosen rows)
        residual = (residual - (exact @ (step.astype(object) if exceeds_int64 else step)).astype(object)) // PRIME
        enough_digits = power > 2 * limit * limit
        if digit == next_attempt or enough_digits:
            next_attempt *= 2
            solution = _reconstruct_fractions(value.tolist(), power)
            if solution is not None and _is_solution(rows, right_side, solution):
                return solution
        if enough_digits:
            return None
    return None


def _independent_rows(matrix: Longs) -> list[int] | None:
    """Return rows that form a nonsingular square matrix modulo PRIME; None where the columns are dependent.

    Gaussian elimination: `free` are the rows that no column has picked yet.
    """
    remaining = matrix.copy()
    count, width = remaining.shape
    free = np.ones(count, bool)
    picked = []
    for column in range(width):
        at = np.flatnonzero(free & (remaining[:, column] != 0))
        if not at.size:
            return None
        row = int(at[0])
        picked.append(row)
        free[row] = False
        remaining[row] = remaining[row] * pow(int(remaining[row, column]), -1, PRIME) % PRIME
        lower_rows = at[1:]
        product = np.outer(remaining[lower_rows, column], remaining[row])  # below 2^52, as remainders are below 2^26
        remaining[lower_rows] = (remaining[lower_rows] - product) % PRIME
    return picked


def _invert_modulo(matrix: Longs) -> Longs:
    """Invert a nonsingular matrix modulo PRIME (Gauss and Jordan)."""
    width = len(matrix)
    augmented = np.concatenate([matrix, np.eye(width, dtype=np.int64)], axis=1)
    for column in range(width):
        row = column + int(np.flatnonzero(augmented[column:, column])[0])
        augmented[[column, row]] = augmented[[row, column]]
        augmented[column] = augmented[column] * pow(int(augmented[column, column]), -1, PRIME) % PRIME
        other_rows = np.flatnonzero(augmented[:, column])
        other_rows = other_rows[other_rows != column]
        augmented[other_rows] = (
            augmented[other_rows] - np.outer(augmented[other_rows, column], augmented[column])
        ) % PRIME
    return augmented[:, width:]


def _reconstruct_fractions(values: Sequence[int], modulus: int) -> list[Fraction] | None:
    """Return the fractions with small numerator and denominator that these numbers represent modulo `modulus`."""
    bound = math.isqrt(modulus // 2)
    common, out = 1, []
    for value in values:
        # extended Euclid, stopped halfway (Wang 1981), on the value times the common denominator so far: most further
        # denominators divide that, and then the numbers stay small
        last_remainder, remainder, last_factor, factor = modulus, value * common % modulus, 0, 1
        while remainder > bound:
            q = last_remainder // remainder
            last_remainder, remainder = remainder, last_remainder - q * remainder
            last_factor, factor = factor, last_factor - q * factor
        if abs(factor) * common > bound or not factor:
            return None
        sign = -1 if factor < 0 else 1
        common *= abs(factor)
        out.append(Fraction(sign * remainder, common))
    return out


def _is_solution(rows: Longs, right_side: Sequence[int], x: Sequence[Fraction]) -> bool:
    """Return whether rows @ x == right_side, exactly."""
    common = math.lcm(*(v.denominator for v in x))
    numerators = [int(v * common) for v in x]
    return all(
        sum(int(row[i]) * numerators[i] for i in np.flatnonzero(row).tolist()) == want * common
        for row, want in zip(rows, right_side, strict=True)
    )


def simple_ratio(values: NDArray[np.float64], max_denominator: int) -> list[int] | None:
    """Return integers in the ratio of these values to within CLOSE; None where the denominators are larger."""
    top = float(values.max(initial=0.0))
    if top <= 0:
        return None
    fractions = (values / top).tolist()
    ratios = [Fraction(x).limit_denominator(max_denominator) if x > CLOSE else Fraction(0) for x in fractions]
    if any(abs(float(ratio) - x) > CLOSE for ratio, x in zip(ratios, fractions, strict=True)):
        return None
    common = math.lcm(*(ratio.denominator for ratio in ratios))
    return [int(ratio * common) for ratio in ratios]
