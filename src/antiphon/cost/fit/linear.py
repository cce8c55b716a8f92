"""Non-negative least squares that reports which combinations of its unknowns the measurements determine, and how well.

The times of collectives are linear in GenModel's parameters (alpha, beta, gamma, delta, epsilon) except for the incast
threshold w_t, which is an integer: so there is one linear model per threshold, and the caller (genmodel.py) chooses the
best. Rows are divided by the measured time, so that an error of 1 % weighs the same everywhere. Parameters are never
negative.

Measurements often determine only combinations. If every run has as many additions as memory accesses, only gamma +
delta can be known. The singular value decomposition of the matrix shows this: a combination w is determined if w lies
in the row space. `echelon_basis` lists a basis of all determined combinations in reduced row echelon form.

Example: rows (1, 1, 0) and (0, 0, 1) in (gamma, delta, epsilon): determined are gamma + delta and epsilon; gamma alone
is not.

An interval covers every model whose residual is within the tolerance of the best, over all thresholds, so an uncertain
threshold widens the intervals of the others. Results must not depend on the processor: comparisons have tolerances
above rounding, and no BLAS is called.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from antiphon.core.portable import row_dot  # a @ b for a vector b; of two matrices, row by row
from antiphon.cost.fit.least_squares import Decomposition, Floats, decompose_matrix, solve_nonnegative

Weights = Callable[[int | None], Mapping[str, float]]  # threshold -> weight of each unknown in a combination

# Fractions of a measured time:
NEGLIGIBLE = 1e-9  # no clock resolves less; a parameter that contributes less everywhere is zero
IMMATERIAL = 1e-6  # an interval whose half width changes every measurement by less is narrow, even around zero
ROUNDING = 1e-13  # error of the arithmetic
# Others:
DIGITS = 9  # significant digits that a fit reports; further ones would depend on the processor
TIE_TOLERANCE = 1e-7  # models whose sums of squares differ relatively by less fit equally well
ROUNDING_SQUARES = 1e-18  # a sum of squares below this per row is rounding
OUTSIDE = 1e-12  # a combination whose squared share outside of the row space is less lies in it
SAME_VALUE = 1e-4  # values of a combination that differ relatively by less, between models that fit equally well, agree
NO_PIVOT = 1e-7  # entries of the scaled row space below this are rounding
INDEPENDENT = 1e-6  # unit vectors whose least singular value exceeds this are linearly independent
CONFIDENCE = 0.95  # of intervals
MAX_HALF_WIDTH = 1.0  # greatest ratio of half the interval to the value of a parameter that counts as determined

INCAST = "epsilon"  # the unknown whose column is zero in the model without a threshold
# States of an estimate, see `Estimate`; UNSEEN is set by callers, for effects that may have been too small to see
GIVEN, DETERMINED, WEAK, UNSEEN, UNDETERMINED = "given", "determined", "weak", "unseen", "undetermined"


@dataclass(frozen=True)
class Estimate:
    """A parameter or a combination of parameters: its value and its 95 % interval.

    `state`: given by the user; determined; weak (half the interval exceeds the value, so it may be zero: do not use
    it); unseen (these measurements show nothing of it); undetermined (they leave its value open). `value`, `low` and
    `high` are None where they are not known.
    """

    name: str
    state: str
    value: float | None = None
    low: float | None = None
    high: float | None = None
    # weights of the parameters in a combination; None for a parameter, or where tied thresholds have different ones
    weights: Mapping[str, float] | None = None

    @property
    def usable(self) -> bool:
        return self.state in (GIVEN, DETERMINED)

    def as_json(self) -> dict[str, Any]:
        rows: dict[str, Any] = {"state": self.state, "value": self.value, "low": self.low, "high": self.high}
        return rows | ({"weights": dict(self.weights)} if self.weights is not None else {})


def round_portably(value: float) -> float:
    """Round to as many digits as do not depend on the processor."""
    return float(f"{value:.{DIGITS}g}")


def rounded_error(error: float) -> float:
    """Round a relative error to DIGITS decimals, so that one that is only rounding becomes zero."""
    return round(error, DIGITS)


def constant_weights(weights: Mapping[str, float]) -> Weights:
    """Return weights that are the same at every threshold."""
    return lambda _: weights


@dataclass(frozen=True, eq=False)
class FitSolution:
    """The non-negative least-squares solution of matrix @ values = target, and the combinations that it determines.

    matrix[measurement, unknown] and target[measurement] are divided by the measured time, so `target` is 1 minus
    the share that known parameters explain. A combination is a vector of weights, one per unknown.
    """

    matrix: Floats
    target: Floats

    @cached_property
    def scale(self) -> Floats:
        """The norm of each column; 1 for columns of zeros."""
        norms = np.sqrt(row_dot(self.matrix.T, self.matrix.T))
        return np.where(norms > 0, norms, 1.0)

    @cached_property
    def values(self) -> Floats:
        """The solution, computed on columns scaled to norm 1."""
        return solve_nonnegative(self.matrix / self.scale, self.target) / self.scale

    @cached_property
    def residuals(self) -> Floats:
        residuals: Floats = self.target - row_dot(self.matrix, self.values)
        return residuals

    def fitted_seconds(self, measured: Sequence[float]) -> Floats:
        """Return the seconds of every measurement according to the fit, from the measured ones."""
        seconds: Floats = np.array(measured) * (1 - self.residuals)
        return seconds

    @property
    def relative_errors(self) -> tuple[float, float]:
        """Relative error: root mean square, and largest."""
        return float(np.sqrt((self.residuals**2).mean())), float(np.abs(self.residuals).max())

    @property
    def squares(self) -> float:
        """The sum of squared residuals."""
        return float(row_dot(self.residuals, self.residuals))

    @cached_property
    def _row_space(self) -> Decomposition:
        """The row space of the matrix with columns scaled to norm 1."""
        return decompose_matrix(self.matrix / self.scale)

    @property
    def rank(self) -> int:
        """The rank of the matrix: the number of independent combinations that are determined."""
        return len(self._row_space.singular_values)

    @property
    def condition(self) -> float:
        """The greatest over the smallest singular value, among determined combinations."""
        values = self._row_space.singular_values
        return float(values[0] / values[-1]) if len(values) else 1.0

    @property
    def basis(self) -> Floats:
        """Rows (vectors of weights) that span the determined combinations."""
        rows: Floats = self._row_space.right_vectors * self.scale
        return rows

    def determines(self, weights: Floats) -> bool:
        """Return whether the combination is determined: it has the same value in every solution that fits as well."""
        # Determined = in the row space: the projection onto its orthogonal complement must vanish.
        scaled, right = weights / self.scale, self._row_space.right_vectors
        outside = scaled - row_dot(right.T, row_dot(right, scaled))
        return bool(row_dot(outside, outside) <= OUTSIDE * row_dot(scaled, scaled))

    def unconstrained_value(self, weights: Floats) -> float:
        """Return the combination's value by least squares without the sign constraint; it has no bias near zero."""
        return self.value_for_target(weights, self.target)

    def value_for_target(self, weights: Floats, target: Floats) -> float:
        """Return the combination's value by unconstrained least squares for another right-hand side."""
        left_vectors, singular_values, right = self._row_space
        return float(row_dot(row_dot(right, weights / self.scale), row_dot(left_vectors.T, target) / singular_values))

    def deviation(self, weights: Floats) -> float:
        """Return the combination's standard deviation, for errors of deviation 1 in every row."""
        _, singular_values, right = self._row_space
        by_vector = row_dot(right, weights / self.scale) / singular_values
        return float(np.sqrt(row_dot(by_vector, by_vector)))

    def data_scale(self, weights: Floats) -> float:
        """Return the sum over the combination's parameters of |weight| / greatest entry of the parameter's column.

        1 / entry is the value at which the parameter alone explains a whole measurement (rows are relative times). So
        values of the combination that are tiny compared with this sum are rounding.
        """
        has_weight = weights != 0
        greatest = np.abs(self.matrix[:, has_weight]).max(axis=0, initial=0.0)
        return float((np.abs(weights[has_weight]) / np.where(greatest > 0, greatest, np.inf)).sum())

    def resolution(self, weights: Floats) -> float:
        """Return the size below which the combination is indistinguishable from zero: negligible in every measurement,
        or rounding."""
        # Rounding errors of the rows add up like independent noise: sqrt(rows).
        rows = math.sqrt(len(self.target))
        return max(NEGLIGIBLE * self.data_scale(weights), ROUNDING * rows * self.deviation(weights))


@dataclass(frozen=True, eq=False)
class Models:
    """The models tried, one per threshold w_t of incast.

    All have a column for each unknown; in the model without incast (threshold None) that of INCAST is zero.
    """

    names: tuple[str, ...]  # the unknowns
    known_values: Mapping[str, float]  # parameters that the user knows, which are not fitted
    solutions: Mapping[int | None, FitSolution]  # by threshold; None: the model without incast
    # threshold of the model with the least squares; None (no incast) if incast improves the fit only by chance
    best: int | None
    degrees_of_freedom: int  # number of measurements beyond those that the parameters of the best model take up

    @property
    def solution(self) -> FitSolution:
        return self.solutions[self.best]

    @cached_property
    def tied_thresholds(self) -> list[int | None]:
        """The thresholds whose models fit as well as the best: these measurements cannot distinguish them."""
        return self._models_within(TIE_TOLERANCE, self.solution.squares)

    @cached_property
    def plausible_thresholds(self) -> list[int | None]:
        """The thresholds whose models fit nearly as well as any, within chance (F-test), and the best."""
        from scipy.special import fdtri

        tolerance = float(fdtri(1, self.degrees_of_freedom, CONFIDENCE)) / self.degrees_of_freedom
        plausible = self._models_within(tolerance, min(solution.squares for solution in self.solutions.values()))
        return list(dict.fromkeys([self.best, *self.tied_thresholds, *plausible]))

    def _models_within(self, tolerance: float, squares: float) -> list[int | None]:
        """Return the thresholds whose models have a sum of squares within the relative tolerance of `squares`; without
        None if the best model has a threshold: then incast was certainly seen."""
        upper_limit = squares * (1 + tolerance) + ROUNDING_SQUARES * len(self.solution.target)
        lower_limit = squares * (1 - tolerance) - ROUNDING_SQUARES * len(self.solution.target)
        thresholds = [threshold for threshold in self.solutions if threshold is not None or self.best is None]
        return [
            threshold for threshold in thresholds if lower_limit <= self.solutions[threshold].squares <= upper_limit
        ]

    def estimate(self, name: str, weights: Weights, *, with_weights: bool = False) -> Estimate:
        """Estimate a combination: its value if determined, with an interval over all plausible models.

        `with_weights`: the estimate lists the weights, if they do not depend on which of the tied thresholds holds.
        """
        listed_weights = dict(weights(self.best)) if with_weights and len(self.tied_thresholds) == 1 else None
        if not any(weight for parameter, weight in weights(self.best).items() if parameter in self.names):
            value = self._known_value(weights(self.best))
            return Estimate(name, GIVEN, value, value, value, listed_weights)
        # A combination is determined only if every model that fits equally well gives it the same value.
        values = []
        for threshold in self.tied_thresholds:
            if not self.solutions[threshold].determines(self.vector(weights(threshold), threshold)):
                return Estimate(name, UNDETERMINED, weights=listed_weights)
            values.append(self._value_at(threshold, weights(threshold)))
        value, vector = self._value_at(self.best, weights(self.best)), self.vector(weights(self.best), self.best)
        if max(values) - min(values) > SAME_VALUE * max(map(abs, values)) + self.solution.resolution(vector):
            return Estimate(name, UNDETERMINED, weights=listed_weights)
        # Never empty: the best model determines the combination, as checked above.
        spans = [
            span
            for threshold in self.plausible_thresholds
            if (span := self._value_span(threshold, weights(threshold))) is not None
        ]
        low, high = min(span[0] for span in spans), max(span[1] for span in spans)
        is_narrow = (high - low) / 2 <= max(MAX_HALF_WIDTH * abs(value), IMMATERIAL * self.solution.data_scale(vector))
        state = DETERMINED if is_narrow else WEAK
        return Estimate(name, state, round_portably(value), round_portably(low), round_portably(high), listed_weights)

    def vector(self, weights: Mapping[str, float], threshold: int | None) -> Floats:
        """Return the weights in the order of the unknowns; without a threshold there is no incast term."""
        return np.array(
            [0.0 if threshold is None and name == INCAST else weights.get(name, 0.0) for name in self.names]
        )

    def _value_at(self, threshold: int | None, weights: Mapping[str, float]) -> float:
        """Return the value of a combination in one model, known parameters included."""
        solution, vector = self.solutions[threshold], self.vector(weights, threshold)
        value = float(row_dot(solution.values, vector))
        return self._known_value(weights) + (0.0 if abs(value) <= solution.resolution(vector) else value)

    def _known_value(self, weights: Mapping[str, float]) -> float:
        """Return the contribution of the known parameters to a combination."""
        return sum(value * self.known_values[name] for name, value in weights.items() if name in self.known_values)

    def _value_span(self, threshold: int | None, weights: Mapping[str, float]) -> tuple[float, float] | None:
        """Return the interval of a combination in one model, or None if that model does not determine it."""
        from scipy.special import stdtrit

        solution, vector = self.solutions[threshold], self.vector(weights, threshold)
        if not solution.determines(vector):
            return None
        # Student's t interval around the unconstrained estimate, widened to contain the non-negative one.
        # The noise of the measurements is that around the best model, at every threshold.
        row_deviation = max(math.sqrt(self.solution.squares / self.degrees_of_freedom), NEGLIGIBLE)
        half_width = (
            float(stdtrit(self.degrees_of_freedom, (1 + CONFIDENCE) / 2)) * row_deviation * solution.deviation(vector)
        )
        middle = self._known_value(weights) + solution.unconstrained_value(vector)
        value = self._value_at(threshold, weights)
        minimum = 0.0 if min(weights.values()) >= 0 else -math.inf
        return max(minimum, min(middle - half_width, value)), max(middle + half_width, value)


def echelon_basis(solution: FitSolution) -> list[Floats]:
    """Return a basis of all determined combinations, each beginning with a 1 where the others have 0. O(k^3)."""
    rows = solution.basis / solution.scale
    pivots = 0  # number of rows, the first ones, that begin with a 1 in a column where all other rows have 0
    for column in range(rows.shape[1]):
        if pivots == len(rows):
            break
        # Gauss-Jordan elimination with partial pivoting; columns without a pivot are skipped.
        pivot = pivots + int(np.abs(rows[pivots:, column]).argmax())
        if abs(rows[pivot, column]) < NO_PIVOT:
            continue
        rows[[pivots, pivot]] = rows[[pivot, pivots]]
        rows[pivots] /= rows[pivots, column]
        other_rows = np.arange(len(rows)) != pivots
        rows[other_rows] -= np.outer(rows[other_rows, column], rows[pivots])
        pivots += 1
    rows[np.abs(rows) < NO_PIVOT] = 0.0
    unscaled = rows * solution.scale
    return [row / row[np.flatnonzero(row)[0]] for row in unscaled]


def are_independent(vectors: Sequence[Floats], scale: Floats) -> bool:
    """Return whether the vectors are linearly independent. `scale`: the norm of each unknown's column."""
    if len(vectors) > len(scale):
        return False
    scaled = np.array([vector / scale for vector in vectors])
    scaled /= np.sqrt(row_dot(scaled, scaled))[:, None]
    values = decompose_matrix(scaled.T).singular_values
    return len(values) == len(vectors) and bool(values[-1] > INDEPENDENT)
