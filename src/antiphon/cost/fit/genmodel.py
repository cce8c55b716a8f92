"""Fit GenModel's parameters to measured times of named algorithms (GenModel paper, section 3.4, as far as data allow).

Input: rows (plan, ranks, nbytes, seconds). A *plan* here is what the paper calls so, an algorithm by name such as ring
or cps, no plan file. Each plan's time is a sum of known factors times the parameters (plans.py):
alpha per step, beta per byte received, gamma per byte added, delta per byte of memory access, epsilon per byte and
sender beyond the threshold w_t. Plan cps shows most (co-located parameter servers: every rank receives from all
others at once). For a fixed w_t that is linear, so one non-negative least-squares problem is solved per
w_t and the best is kept (linear.py). Output: `GenmodelFit`, each parameter with a 95 % interval and a state; if data
determine only combinations (such as G = 2 beta + gamma from allreduces), these are listed instead.

Example: allreduces by plan cps at several sizes on 8 ranks determine alpha and the sum of all per-byte terms; with
several numbers of ranks, alpha, G, delta, w_t and epsilon separately.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from antiphon.cost.fit.linear import (  # fmt: skip
    DETERMINED,
    INCAST,
    ROUNDING_SQUARES,
    TIE_TOLERANCE,
    UNDETERMINED,
    UNSEEN,
    WEAK,
    Estimate,
    FitSolution,
    Floats,
    Models,
    Weights,
    are_independent,
    constant_weights,
    echelon_basis,
    round_portably,
    rounded_error,
)
from antiphon.cost.fit.plans import derive_factors
from antiphon.cost.fit.tables import PlanTime
from antiphon.errors import Invalid

UNKNOWNS = ("alpha", "beta", "gamma", "delta", "epsilon")  # GenModel's parameters in the linear fit
# What is reported, as combinations of unknowns: G = 2 beta + gamma
PARAMETERS: dict[str, dict[str, float]] = {
    "alpha": {"alpha": 1.0},
    "G": {"beta": 2.0, "gamma": 1.0},
    "beta": {"beta": 1.0},
    "gamma": {"gamma": 1.0},
    "delta": {"delta": 1.0},
    "epsilon": {"epsilon": 1.0},
}
INCAST_CONFIDENCE = 0.99  # confidence of the F-test that incast improves the fit
MAX_UNREPORTED_ERROR = 0.1  # root mean square of relative errors; above it the model does not describe the measurements
MIN_SIZES = 3  # least number of message sizes for checking that time is linear in size
MAX_THRESHOLD_DISTANCE = 1  # w_t is determined if its interval reaches at most this many senders to either side


@dataclass(frozen=True, eq=False)
class GenmodelFit:
    """The fitted parameters of GenModel, and how well the model describes the measurements."""

    measured: Sequence[PlanTime]
    models: Models  # the fits tried, one per threshold w_t
    plain: FitSolution  # the fit of alpha, beta and gamma alone
    can_show_incast: bool  # some measured plan has more than one sender to one receiver
    known: Mapping[str, float] = field(default_factory=dict)  # parameters that the user knows

    @cached_property
    def parameters(self) -> dict[str, Estimate]:
        estimates = {name: self._estimate_parameter(name) for name in PARAMETERS}
        if {"beta", "gamma"} <= self.known.keys():
            del estimates["G"]  # known, too
        return estimates

    def _estimate_parameter(self, name: str) -> Estimate:
        """Return the estimate; that of incast is "unseen" or "undetermined" if no threshold improves the fit."""
        estimate = self.models.estimate(name, constant_weights(PARAMETERS[name]))
        if name != INCAST or self.models.best is not None or estimate.state == UNDETERMINED:
            return estimate
        return replace(estimate, state=UNSEEN) if self.can_show_incast else Estimate(name, UNDETERMINED)

    @cached_property
    def w_t(self) -> Estimate:
        """The incast threshold: a whole number of senders, or none if no measurement exceeded it."""
        if self.models.best is None:
            return Estimate("w_t", self.parameters[INCAST].state)
        best = self.models.best
        # plausible: within the confidence interval; tied: equal sums of squares, so nothing distinguishes them
        thresholds = [key for key in self.models.plausible_thresholds if key is not None]
        low, high = min(thresholds), max(thresholds)
        if len(self.models.tied_thresholds) > 1:
            return Estimate("w_t", UNDETERMINED, value=None, low=float(low), high=float(high))
        is_narrow = best - low <= MAX_THRESHOLD_DISTANCE and high - best <= MAX_THRESHOLD_DISTANCE
        return Estimate("w_t", DETERMINED if is_narrow else WEAK, float(best), float(low), float(high))

    @cached_property
    def combinations(self) -> list[Estimate]:
        """The determined combinations that are independent of the determined parameters and of each other."""
        models = self.models
        vectors: list[Floats] = []  # weights of the unknowns; without a threshold epsilon is none of them
        for name, parameter in self.parameters.items():
            vector = models.vector(PARAMETERS[name], models.best)
            determined = parameter.state not in (UNDETERMINED, UNSEEN) and vector.any()
            if determined and are_independent([*vectors, vector], models.solution.scale):
                vectors.append(vector)
        estimates: list[Estimate] = []
        for name, weights in self._candidate_combinations():
            vector = models.vector(weights(models.best), models.best)
            if not vector.any() or not models.solution.determines(vector):
                continue
            estimate = models.estimate(name, weights, with_weights=True)
            if estimate.state != UNDETERMINED and are_independent([*vectors, vector], models.solution.scale):
                estimates.append(estimate)
                vectors.append(vector)
        return estimates

    def _candidate_combinations(self) -> Iterator[tuple[str, Weights]]:
        """Yield combinations by name: first those that are easy to read, then a basis of all determined ones.

        `Weights`: a function from the threshold (None: no incast) to the weight of each unknown.
        """
        g = PARAMETERS["G"]  # 2 beta + gamma
        sizes = sorted({row.nbytes for row in self.measured})
        if len(self.models.tied_thresholds) > 1:
            # Which w_t holds is open, yet the time per byte is known for the fewest and for the most senders measured.
            # receptions: pairs (number of senders, share of nbytes)
            receptions = [pair for row in self.measured for pair in derive_factors(row.plan, row.ranks).receptions]
            min_senders, max_senders = min(n for n, _ in receptions), max(n for n, _ in receptions)
            yield f"epsilon ({max_senders} - w_t)", lambda w: {"epsilon": float(max_senders - (w or 0))}
            yield (
                f"beta + epsilon ({min_senders} - w_t)",
                lambda w: {"beta": 1.0, "epsilon": float(min_senders - (w or 0))},
            )
            yield f"G + 2 epsilon ({min_senders} - w_t)", lambda w: {**g, "epsilon": 2.0 * (min_senders - (w or 0))}
        if len(sizes) == 1:
            (size,) = sizes
            allreduce = {"alpha": 2.0, "beta": 2.0 * size, "gamma": 1.0 * size, "delta": 1.0 * size}
            yield f"2 alpha + {size} (G + delta)", constant_weights(allreduce)
        # what few ranks or a single algorithm determine, where they determine neither delta nor G
        yield "delta - G", constant_weights({"beta": -2.0, "gamma": -1.0, "delta": 1.0})
        yield "G + delta", constant_weights({**g, "delta": 1.0})
        yield "G + 3 delta", constant_weights({**g, "delta": 3.0})
        if self.models.best is None:
            yield from self._incast_combinations()
        if len(self.models.tied_thresholds) == 1:
            for vector in echelon_basis(self.models.solution):
                weights = {name: round_portably(v) for name, v in zip(self.models.names, vector, strict=True) if v}
                yield _format_weights(weights), constant_weights(weights)

    def _incast_combinations(self) -> Iterator[tuple[str, Weights]]:
        """Yield the combinations of other terms and incast that the data cannot separate."""
        models = self.models
        incast_thresholds = [key for key in models.tied_thresholds if key is not None]
        incast_column = models.names.index(INCAST)
        for vector in echelon_basis(models.solution):
            if all(models.solutions[key].determines(vector) for key in incast_thresholds):
                continue
            weights = {name: round_portably(v) for name, v in zip(models.names, vector, strict=True) if v}
            columns = {key: models.solutions[key].matrix[:, incast_column] for key in incast_thresholds}
            # The data cannot tell incast from these terms, so epsilon is part of the combination. Its weight: what the
            # combination comes to if the other terms are fitted to times that are all incast, with epsilon = 1.
            incast_weights = {key: models.solution.value_for_target(vector, column) for key, column in columns.items()}
            yield f"{_format_weights(weights)} + incast", _weights_with_incast(weights, incast_weights)

    @property
    def fitted(self) -> Floats:
        """The seconds of every measurement according to the model."""
        return self.models.solution.fitted_seconds([row.seconds for row in self.measured])

    @property
    def relative_errors(self) -> tuple[float, float]:
        """Relative error of the fit: root mean square, and largest."""
        return self.models.solution.relative_errors

    @property
    def plain_relative_errors(self) -> tuple[float, float]:
        """Relative error of the best fit without incast and memory access."""
        return self.plain.relative_errors

    @cached_property
    def notes(self) -> list[str]:
        return list(self._list_notes())

    def _list_notes(self) -> Iterator[str]:
        """Yield remarks for the user: why a parameter is not determined, and what to measure so that it is."""
        parameters = self.parameters
        sizes = len({row.nbytes for row in self.measured})
        undetermined_names = [
            name for name in ("alpha", "G", "delta") if name in parameters and parameters[name].state == UNDETERMINED
        ]
        if undetermined_names and sizes == 1:
            yield (
                f"one size does not determine {', '.join(undetermined_names)}: measure at least "
                f"{MIN_SIZES} sizes, or plan ring, too"
            )
        elif undetermined_names and not len(self.models.tied_thresholds) > 1:
            yield f"{', '.join(undetermined_names)} not determined: measure plan cps with several numbers of ranks"
        if sizes < MIN_SIZES:
            sizes_text = "one size" if sizes == 1 else f"{sizes} sizes"
            yield (
                f"{sizes_text}: nothing here checks that time grows with size as the model says; "
                f"measure {MIN_SIZES} at least"
            )
        if parameters["beta"].state == UNDETERMINED and parameters["gamma"].state == UNDETERMINED:
            yield (
                "times of allreduces never distinguish beta and gamma, only G = 2 beta + gamma: give --known beta= or "
                "gamma=, or --memory, or measure plan incast as well"
            )
        if parameters["delta"].state != "given" and not parameters["delta"].usable:
            yield "delta is not determined well enough to be used: take it from `antiphon fit memory` (--memory)"
        if self.w_t.state == UNSEEN:
            rows = self.measured
            max_senders = max(n for row in rows for n, _ in derive_factors(row.plan, row.ranks).receptions)
            yield f"no incast was seen with up to {max_senders} senders to one receiver"
        elif self.w_t.state == WEAK:
            yield "w_t is not determined well enough to be used: measure plan cps with more rank counts, more often"
        elif self.w_t.state == UNDETERMINED and self.can_show_incast and self.models.best is None:
            yield "incast cannot be separated from other terms here: measure plan cps with fewer ranks and with more"
        elif self.w_t.state == UNDETERMINED and self.can_show_incast:
            yield "w_t and epsilon are not distinguished: measure plan cps with the numbers of ranks between as well"
        elif self.w_t.state == UNDETERMINED:
            yield "no plan here has more than one sender to a receiver, so incast cannot show: measure plan cps"
        if self.relative_errors[0] > MAX_UNREPORTED_ERROR:
            yield (
                f"the model misses these measurements by {self.relative_errors[0]:.0%} (root mean square): it does not "
                "describe them, or they are noisy; -o fit.svg shows where"
            )

    def as_json(self) -> dict[str, Any]:
        """Keys: parameters, w_t, combinations, error, error_without, rank, unknowns, condition, measurements, rows,
        notes."""
        w_t = self.w_t.as_json()
        threshold = {key: None if w_t[key] is None else int(w_t[key]) for key in ("value", "low", "high")}
        return {
            "parameters": {name: estimate.as_json() for name, estimate in self.parameters.items()},
            "w_t": {"state": w_t["state"], **threshold},
            "combinations": [{"name": estimate.name, **estimate.as_json()} for estimate in self.combinations],
            "error": dict(zip(("rms", "largest"), map(rounded_error, self.relative_errors), strict=True)),
            "error_without": dict(zip(("rms", "largest"), map(rounded_error, self.plain_relative_errors), strict=True)),
            "rank": self.models.solution.rank,
            "unknowns": list(self.models.names),
            "condition": round_portably(self.models.solution.condition),
            "measurements": len(self.measured),
            "rows": [
                {
                    "plan": row.plan.name, "collective": row.plan.collective, "ranks": row.ranks,
                    "nbytes": row.nbytes, "seconds": row.seconds, "fitted": round_portably(fitted),
                }
                for row, fitted in zip(self.measured, self.fitted, strict=True)
            ],
            "notes": self.notes,
        }  # fmt: skip


def fit_genmodel(measured: Sequence[PlanTime], known: Mapping[str, float] | None = None) -> GenmodelFit:
    """Fit alpha, beta, gamma, delta and epsilon for every integer threshold w_t and keep the best.

    `known`: beta, gamma or delta, in seconds per byte, as measured otherwise. Incast that does not improve the fit
    beyond chance is left out. O(rows * thresholds), with fewer thresholds than the greatest number of ranks.
    """
    known_values = dict(known or {})
    table = _count_factors(measured)
    fitted_names = tuple(name for name in UNKNOWNS if name != INCAST and name not in known_values)
    seconds = np.array([row.seconds for row in measured])
    # Subtract the known terms, then divide by the measured time: residuals are relative errors.
    known_seconds = sum((table[name] * value for name, value in known_values.items()), np.zeros(len(measured)))
    target = (seconds - known_seconds) / seconds
    _check_known_seconds(measured, known_seconds, known_values)
    columns = np.array([table[name] / seconds for name in fitted_names]).T
    counts_per_row = [derive_factors(row.plan, row.ranks) for row in measured]
    sizes = np.array([float(row.nbytes) for row in measured])
    max_senders = max(senders for c in counts_per_row for senders, _ in c.receptions)
    solutions: dict[int | None, FitSolution] = {}
    # w_t is an integer in a max(), so it is not linear: solve one linear problem per candidate.
    for w_t in (None, *range(1, max_senders)):
        incast_factor = np.array([0.0 if w_t is None else c.epsilon(w_t) for c in counts_per_row]) * sizes / seconds
        solutions[w_t] = FitSolution(np.column_stack([columns, incast_factor]), target)
    without_incast = solutions[None]
    best = _best_threshold(solutions)
    # Degrees of freedom: rows less determined combinations, less one for the threshold itself.
    degrees_of_freedom = len(measured) - solutions[best].rank - (best is not None)
    if degrees_of_freedom < 1:
        raise Invalid(
            f"{len(measured)} measurements are too few for {solutions[best].rank} combinations of parameters"
            f"{' and w_t' if best is not None else ''}: {1 - degrees_of_freedom} more at least, better many more"
        )
    if best is not None and not _incast_improves_fit(without_incast, solutions[best], degrees_of_freedom):
        best, degrees_of_freedom = None, len(measured) - without_incast.rank
    names = (*fitted_names, INCAST)
    plain = FitSolution(np.array([table[name] / seconds for name in fitted_names if name != "delta"]).T, target)
    return GenmodelFit(
        measured,
        Models(names, known_values, solutions, best, degrees_of_freedom),
        plain=plain,
        can_show_incast=max_senders > 1,
        known=known_values,
    )


def _count_factors(measured: Sequence[PlanTime]) -> dict[str, Floats]:
    """Return by parameter its factor in every measurement: its value times the factor is seconds."""
    factors = [(derive_factors(row.plan, row.ranks), float(row.nbytes)) for row in measured]
    return {
        "alpha": np.array([c.alpha for c, _ in factors]),
        "beta": np.array([c.beta * size for c, size in factors]),
        "gamma": np.array([c.gamma * size for c, size in factors]),
        "delta": np.array([c.delta * size for c, size in factors]),
    }


def _check_known_seconds(
    measured: Sequence[PlanTime], known_seconds: Floats, known_values: Mapping[str, float]
) -> None:
    """Raise Invalid if the known parameters alone take longer than a measurement."""
    for row, seconds in zip(measured, known_seconds.tolist(), strict=True):
        if seconds >= row.seconds:
            where = f"line {row.line}: " if row.line else ""
            raise Invalid(
                f"{where}{', '.join(sorted(known_values))} as given alone take {seconds:.4g} s, more than the "
                f"{row.seconds:.4g} s measured; give smaller ones (seconds per byte)"
            )


def _best_threshold(solutions: Mapping[int | None, FitSolution]) -> int | None:
    """Return the threshold that fits best; of thresholds that fit equally well, up to rounding, the smallest."""
    thresholds = [key for key in solutions if key is not None]
    min_squares = min((solutions[key].squares for key in thresholds), default=0.0)
    limit = min_squares * (1 + TIE_TOLERANCE) + ROUNDING_SQUARES * len(solutions[None].target)
    return next((key for key in thresholds if solutions[key].squares <= limit), None)


def _incast_improves_fit(without_incast: FitSolution, best: FitSolution, degrees_of_freedom: int) -> bool:
    """Return whether the threshold and its slope, two more parameters, improve the fit beyond chance (F-test)."""
    from scipy.special import fdtri

    # F-test with (2, degrees_of_freedom): gain per added parameter over the residual variance.
    improvement = without_incast.squares - best.squares
    rounding = ROUNDING_SQUARES * len(best.target)
    return improvement > max(
        2 * float(fdtri(2, degrees_of_freedom, INCAST_CONFIDENCE)) * best.squares / degrees_of_freedom, rounding
    )


def _weights_with_incast(weights: Mapping[str, float], incast_weights: Mapping[int, float]) -> Weights:
    """Return these weights plus that of incast, which depends on the threshold."""
    return lambda w_t: {**weights, INCAST: 0.0 if w_t is None else incast_weights.get(w_t, 0.0)}


def _format_weights(weights: Mapping[str, float]) -> str:
    """Return weights as text, such as "alpha + 2.5 delta - 3e+06 beta"."""
    text = ""
    for name, weight in weights.items():
        is_one = abs(abs(weight) - 1) <= 1e-9  # but for rounding
        size = "" if is_one else f"{abs(weight):.6g} "
        text += (" - " if weight < 0 else " + ") + size + name
    return text[3:] if text.startswith(" + ") else text.lstrip()
