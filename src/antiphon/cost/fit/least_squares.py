"""Least squares with reproducible results: singular values by one-sided Jacobi, solutions by modified Gram-Schmidt.

LAPACK may return other last digits on other processors, and a fit that decides "is this zero?" by them would give
other profiles. Both algorithms here use only sums and products in a fixed order.

One-sided Jacobi rotates pairs of columns until all are orthogonal; their norms are then the singular values (Demmel
and Veselic 1992). Modified Gram-Schmidt orthogonalises columns one after the other and is backward stable for least
squares (Bjorck 1967).

Example: columns (1, 0) and (1, 1). One rotation makes them orthogonal; the norms are 1.618 and 0.618.
"""

from __future__ import annotations

from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from antiphon.core.portable import row_dot  # sum of products over the last axis, broadcasting: a @ b for a vector b

Floats = NDArray[np.float64]

# A singular value below this fraction of the greatest is zero: far above rounding (1e-16), far below real differences.
# The same margin decides whether gradients are equal, and whether nothing but rounding is left of a column of norm 1.
RELATIVE_RANK = 1e-8
RELATIVE_ZERO = 1e-14  # a column whose norm is below this fraction of the greatest is zero
ORTHOGONAL = 1e-15  # cosine of the angle between two columns below which Jacobi's method does not rotate them
MAX_SWEEPS = 40  # sweeps of Jacobi's method, which converges quadratically: six or seven suffice
MIN_GRADIENT = 1e-13  # of the norm of the target: a column that correlates less with the residual improves nothing


class Decomposition(NamedTuple):
    """A singular value decomposition without the singular values that are zero, the greatest first.

    The matrix is `left_vectors` (columns) times the diagonal of `singular_values` times `right_vectors` (rows).
    """

    left_vectors: Floats
    singular_values: Floats
    right_vectors: Floats


def decompose_matrix(matrix: Floats) -> Decomposition:
    """Return the singular value decomposition of a matrix.

    One-sided Jacobi rotations (Hestenes 1958): pairs of columns are rotated until all are orthogonal.
    O(rows * columns^2) per sweep.
    """
    # Rows of both are columns of the matrix and of the rotations so far.
    columns, rotations = matrix.T.copy(), np.eye(matrix.shape[1])
    # squared norm below which a column counts as zero
    min_norm = float(row_dot(columns, columns).max(initial=0.0)) * RELATIVE_ZERO**2
    for _ in range(MAX_SWEEPS):
        rotated = False
        for p, q in combinations(range(len(columns)), 2):
            # the squared norms of both columns, and their inner product
            a, b, c = (float(row_dot(columns[i], columns[j])) for i, j in ((p, p), (q, q), (p, q)))
            if min(a, b) <= min_norm or abs(c) <= ORTHOGONAL * np.sqrt(a * b):
                continue
            rotated = True
            # The rotation that makes columns p and q orthogonal; of its two angles the smaller one.
            ratio = (b - a) / (2 * c)
            tangent = (1.0 if ratio >= 0 else -1.0) / (abs(ratio) + np.sqrt(1 + ratio * ratio))
            cosine = 1 / np.sqrt(1 + tangent * tangent)
            for vectors in (columns, rotations):
                first, second = vectors[p].copy(), vectors[q]
                vectors[p] = cosine * (first - tangent * second)
                vectors[q] = cosine * (tangent * first + second)
        if not rotated:
            break
    norms = np.sqrt(row_dot(columns, columns))
    order = np.argsort(-norms, kind="stable")
    order = order[norms[order] > RELATIVE_RANK * norms.max(initial=0.0)]
    return Decomposition((columns[order] / norms[order, None]).T, norms[order], rotations[order])


def pseudo_inverse(matrix: Floats) -> Floats:
    """Return the matrix that maps a target to its least-squares solution; columns are scaled to norm 1 first."""
    norms = np.sqrt(row_dot(matrix.T, matrix.T))
    norms = np.where(norms > 0, norms, 1.0)
    left_vectors, singular_values, right_vectors = decompose_matrix(matrix / norms)
    inverse: Floats = (
        row_dot((right_vectors.T / singular_values)[:, None, :], left_vectors[None, :, :]) / norms[:, None]
    )
    return inverse


def solve_nonnegative(matrix: Floats, target: Floats) -> Floats:
    """Solve least squares without negative values (Lawson and Hanson 1974). Columns must have norm 1, or be zero.

    Of columns that would improve the fit equally, the first enters; a column that depends on those in the solution
    never does.
    """
    count = matrix.shape[1]
    values, excluded = np.zeros(count), np.zeros(count, bool)
    passive: list[int] = []  # columns in the solution, with positive values, as Lawson and Hanson call them
    tolerance = MIN_GRADIENT * float(np.sqrt(row_dot(target, target)))
    for _ in range(10 * count):  # a column enters and leaves few times; rounding must not make this endless
        gradient = row_dot(matrix.T, target - row_dot(matrix, values))
        gradient[passive] = gradient[excluded] = 0.0
        if float(gradient.max(initial=0.0)) <= tolerance:
            break
        entering = int(np.flatnonzero(gradient >= gradient.max() * (1 - RELATIVE_RANK))[0])
        trial = _solve_orthogonal(matrix[:, [*passive, entering]], target)
        if trial is None or trial[-1] <= 0:  # dependent, or nothing but rounding: its gradient should have been zero
            excluded[entering] = True
            continue
        passive.append(entering)
        excluded[:] = False
        while trial is not None and trial.min(initial=1.0) <= 0:
            # Go from the values so far towards the trial until the first of them is zero; that one leaves.
            previous_values = values[passive]
            nonpositive = np.flatnonzero(trial <= 0)
            ratios = previous_values[nonpositive] / (previous_values[nonpositive] - trial[nonpositive])
            step = float(ratios.min())
            values[passive] = previous_values + step * (trial - previous_values)
            leaving = passive.pop(int(nonpositive[int(ratios.argmin())]))
            values[leaving] = 0.0
            trial = _solve_orthogonal(matrix[:, passive], target)
        if trial is not None:
            values[passive] = trial
    return values


def _solve_orthogonal(matrix: Floats, target: Floats) -> Floats | None:
    """Solve least squares by modified Gram-Schmidt; None if the columns (of norm 1) are dependent.

    Backward stable, as the target is orthogonalised like a column (Bjorck 1967).
    """
    count = matrix.shape[1]
    columns = np.vstack([matrix.T, target])
    triangle = np.zeros((count, count + 1))
    for j in range(count):
        norm = float(np.sqrt(row_dot(columns[j], columns[j])))
        if norm <= RELATIVE_RANK:
            return None
        triangle[j, j] = norm
        columns[j] /= norm
        triangle[j, j + 1 :] = row_dot(columns[j + 1 :], columns[j])
        columns[j + 1 :] -= triangle[j, j + 1 :, None] * columns[j]
    values = np.zeros(count)
    for j in reversed(range(count)):
        values[j] = (triangle[j, -1] - float(row_dot(triangle[j, :count], values))) / triangle[j, j]
    return values
