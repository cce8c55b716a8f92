"""Fit gamma and delta to the micro-benchmark of memory access (GenModel paper, section 3.1, equation 5).

Adding x vectors of S bytes in one pass reads x vectors and writes one, with x - 1 additions per element: T(x) = (x + 1)
S delta + (x - 1) S gamma. Input: rows (x, S, seconds). Several x separate gamma from delta; a single x determines only
a linear combination of them, which is listed instead. `antiphon.fit.memory` calls `fit_memory`. Example: at S = 1 byte,
T(2) = 3 delta + gamma and T(4) = 5 delta + 3 gamma.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from antiphon.cost.fit.linear import (
    UNDETERMINED,
    Estimate,
    FitSolution,
    Floats,
    Models,
    constant_weights,
    echelon_basis,
    round_portably,
    rounded_error,
)
from antiphon.cost.fit.tables import AdditionTime
from antiphon.errors import Invalid

NAMES = ("gamma", "delta")  # seconds per byte added, and per byte read or written
MAX_UNREPORTED_ERROR = 0.1  # a root mean square error above this is reported


@dataclass(frozen=True, eq=False)
class MemoryFit:
    """The fitted gamma and delta, in seconds per byte. `models`: the least-squares solution with its errors."""

    measured: Sequence[AdditionTime]
    models: Models

    @cached_property
    def parameters(self) -> dict[str, Estimate]:
        return {name: self.models.estimate(name, constant_weights({name: 1.0})) for name in NAMES}

    @cached_property
    def combinations(self) -> list[Estimate]:
        """The combination that measurements with only one number of vectors determine."""
        if all(estimate.state != UNDETERMINED for estimate in self.parameters.values()):
            return []
        (vector,) = echelon_basis(self.models.solution)  # (1, (x + 1) / (x - 1)), the weights of gamma and delta
        name = f"gamma + {vector[1]:.6g} delta"
        weights = dict(zip(NAMES, map(round_portably, vector.tolist()), strict=True))
        return [self.models.estimate(name, constant_weights(weights), with_weights=True)]

    @property
    def fitted(self) -> Floats:
        """Return the seconds that the fit predicts for each measurement."""
        return self.models.solution.fitted_seconds([row.seconds for row in self.measured])

    @property
    def relative_errors(self) -> tuple[float, float]:
        """Return the root mean square and the largest relative error."""
        return self.models.solution.relative_errors

    @cached_property
    def notes(self) -> list[str]:
        return list(self._list_notes())

    def _list_notes(self) -> Iterator[str]:
        """Yield remarks for the user: why gamma or delta is not determined, and what to measure so that it is."""
        if self.combinations:
            yield "one number of vectors does not distinguish gamma and delta: measure several (2 to 15, say)"
        for name, estimate in self.parameters.items():
            if estimate.state == "weak":
                yield f"{name} is not determined well enough to be used: measure more and longer vectors, more often"
        if self.relative_errors[0] > MAX_UNREPORTED_ERROR:
            yield (
                f"the model misses these measurements by {self.relative_errors[0]:.0%} (root mean square): other work "
                "may have run beside, or the vectors fit into a cache"
            )

    def as_json(self) -> dict[str, Any]:
        """Keys: parameters, combinations, error, rank, condition, measurements, rows, notes."""
        return {
            "parameters": {name: estimate.as_json() for name, estimate in self.parameters.items()},
            "combinations": [{"name": estimate.name, **estimate.as_json()} for estimate in self.combinations],
            "error": dict(zip(("rms", "largest"), map(rounded_error, self.relative_errors), strict=True)),
            "rank": self.models.solution.rank,
            "condition": round_portably(self.models.solution.condition),
            "measurements": len(self.measured),
            "rows": [
                {"vectors": row.vectors, "nbytes": row.nbytes, "seconds": row.seconds, "fitted": round_portably(fitted)}
                for row, fitted in zip(self.measured, self.fitted, strict=True)
            ],
            "notes": self.notes,
        }


def fit_memory(measured: Sequence[AdditionTime]) -> MemoryFit:
    """Fit gamma and delta to these times by least squares of relative errors. O(rows)."""
    seconds = np.array([row.seconds for row in measured])
    sizes = np.array([float(row.nbytes) for row in measured])
    vectors = np.array([row.vectors for row in measured])
    # Each row is divided by its measured time, so the target is 1 and residuals are relative errors.
    matrix = np.column_stack([(vectors - 1) * sizes / seconds, (vectors + 1) * sizes / seconds])
    solution = FitSolution(matrix, np.ones(len(measured)))
    degrees_of_freedom = len(measured) - solution.rank
    if degrees_of_freedom < 1:
        raise Invalid(f"{len(measured)} measurements are too few for gamma and delta: 3 at least, better many more")
    return MemoryFit(
        measured,
        Models(NAMES, known_values={}, solutions={None: solution}, best=None, degrees_of_freedom=degrees_of_freedom),
    )
