"""GenModel fitted to measurements (GenModel paper, section 3.4, as far as measurements allow)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from antiphon.cost.fit.linear import (  # fmt: skip
    DETERMINED,
    EQUAL,
    EXACT,
    INCAST,
    OPEN,
    UNSEEN,
    WEAK,
    Estimate,
    Floats,
    Models,
    Solution,
    Weights,
    always,
    echelon,
    independent,
    rounded,
    rounded_error,
)
from antiphon.cost.fit.plans import counts
from antiphon.cost.fit.tables import Measured
from antiphon.errors import Invalid

UNKNOWNS = ("alpha", "beta", "gamma", "delta", "epsilon")
PARAMETERS: dict[str, dict[str, float]] = {
    "alpha": {"alpha": 1.0},
    "G": {"beta": 2.0, "gamma": 1.0},
    "beta": {"beta": 1.0},
    "gamma": {"gamma": 1.0},
    "delta": {"delta": 1.0},
    "epsilon": {"epsilon": 1.0},
}
SURE = 0.99  # incast is seen where chance would improve the fit so much in 1 of 100 cases only
POOR = 0.1  # a model that misses by more than this on average is not the model of these measurements
SIZES = 3
NEAR = 1  # a threshold that may be off by more is not known


@dataclass(frozen=True, eq=False)
class GenmodelFit:
    """What the measurements say of GenModel's parameters, and how well it describes them."""

    measured: Sequence[Measured]
    models: Models
    plain: Solution  # alpha, beta and gamma alone
    threshold: bool  # some plan here has more than one sender to one receiver, so that incast could be seen
    known: Mapping[str, float] = field(default_factory=dict)

    @cached_property
    def parameters(self) -> dict[str, Estimate]:
        found = {name: self._parameter(name) for name in PARAMETERS}
        if {"beta", "gamma"} <= self.known.keys():
            del found["G"]
        return found

    def _parameter(self, name: str) -> Estimate:
        found = self.models.estimate(name, always(PARAMETERS[name]))
        if name != INCAST or self.models.best is not None or found.state == OPEN:
            return found
        return replace(found, state=UNSEEN) if self.threshold else Estimate(name, OPEN)

    @cached_property
    def w_t(self) -> Estimate:
        """The threshold: a whole number of senders, or none that was passed."""
        if self.models.best is None:
            return Estimate("w_t", self.parameters[INCAST].state)
        best = self.models.best
        low, high = (pick(key for key in self.models.plausible if key is not None) for pick in (min, max))
        if len(self.models.tied) > 1:
            return Estimate("w_t", OPEN, None, float(low), float(high))
        near = best - low <= NEAR and high - best <= NEAR
        return Estimate("w_t", DETERMINED if near else WEAK, float(best), float(low), float(high))

    @cached_property
    def combinations(self) -> list[Estimate]:
        """Of what is not determined alone: the combinations that are, and that no others imply."""
        models = self.models
        vectors: list[Floats] = []
        for name, parameter in self.parameters.items():
            vector = models.vector(PARAMETERS[name], models.best)
            told = parameter.state not in (OPEN, UNSEEN) and vector.any()
            if told and independent([*vectors, vector], models.solution.scale):
                vectors.append(vector)
        found: list[Estimate] = []
        for name, weights in self._candidates():
            vector = models.vector(weights(models.best), models.best)
            if not vector.any() or not models.solution.tells(vector):
                continue
            estimate = models.estimate(name, weights, listed=True)
            if estimate.state != OPEN and independent([*vectors, vector], models.solution.scale):
                found.append(estimate)
                vectors.append(vector)
        return found

    def _candidates(self) -> Iterator[tuple[str, Weights]]:
        """Combinations worth a name, then any that are left."""
        g = PARAMETERS["G"]
        sizes = sorted({row.nbytes for row in self.measured})
        if len(self.models.tied) > 1:
            senders = [pair[0] for row in self.measured for pair in counts(row.plan, row.ranks).received]
            few, many = min(senders), max(senders)
            yield f"epsilon ({many} - w_t)", lambda w: {"epsilon": float(many - (w or 0))}
            yield f"beta + epsilon ({few} - w_t)", lambda w: {"beta": 1.0, "epsilon": float(few - (w or 0))}
            yield f"G + 2 epsilon ({few} - w_t)", lambda w: {**g, "epsilon": 2.0 * (few - (w or 0))}
        if len(sizes) == 1:
            (size,) = sizes
            whole = {"alpha": 2.0, "beta": 2.0 * size, "gamma": 1.0 * size, "delta": 1.0 * size}
            yield f"2 alpha + {size} (G + delta)", always(whole)
        yield "delta - G", always({"beta": -2.0, "gamma": -1.0, "delta": 1.0})
        yield "G + delta", always({**g, "delta": 1.0})
        yield "G + 3 delta", always({**g, "delta": 3.0})
        if self.models.best is None:
            yield from self._with_incast()
        if len(self.models.tied) == 1:
            for vector in echelon(self.models.solution):
                weights = {name: rounded(v) for name, v in zip(self.models.names, vector, strict=True) if v}
                yield _words(weights), always(weights)

    def _with_incast(self) -> Iterator[tuple[str, Weights]]:
        """Where incast may hide in other terms: those combinations together with what hides in them."""
        models = self.models
        hiding = [key for key in models.tied if key is not None]
        place = models.names.index(INCAST)
        for vector in echelon(models.solution):
            if all(models.solutions[key].tells(vector) for key in hiding):
                continue
            plain = {name: rounded(v) for name, v in zip(models.names, vector, strict=True) if v}
            columns = {key: models.solutions[key].matrix[:, place] for key in hiding}
            extra = {key: models.solution.explained(vector, column) for key, column in columns.items()}
            yield f"{_words(plain)} + incast", _besides(plain, extra)

    @property
    def fitted(self) -> Floats:
        """Seconds by the model, for every measurement."""
        seconds = np.array([row.seconds for row in self.measured])
        fitted: Floats = seconds * (1 - self.models.solution.residuals)
        return fitted

    @property
    def misses(self) -> tuple[float, float]:
        """By what part the fit misses the measurements: root mean square, and at most."""
        return self.models.solution.misses

    @property
    def plain_misses(self) -> tuple[float, float]:
        """The same of the best fit without incast and memory access."""
        return self.plain.misses

    @cached_property
    def notes(self) -> list[str]:
        return list(self._notes())

    def _notes(self) -> Iterator[str]:
        parameters = self.parameters
        sizes = len({row.nbytes for row in self.measured})
        mixed = [name for name in ("alpha", "G", "delta") if name in parameters and parameters[name].state == OPEN]
        if mixed and sizes == 1:
            yield f"one size does not tell {', '.join(mixed)}: measure {SIZES} sizes at least, or plan ring as well"
        elif mixed and not len(self.models.tied) > 1:
            yield f"{', '.join(mixed)} not told: measure plan cps with several numbers of ranks"
        if sizes < SIZES:
            few = "one size" if sizes == 1 else f"{sizes} sizes"
            yield f"{few}: nothing here checks that time grows with size as the model says; measure {SIZES} at least"
        if parameters["beta"].state == OPEN and parameters["gamma"].state == OPEN:
            yield (
                "times of allreduces never tell beta and gamma apart, only G = 2 beta + gamma: give --beta, --gamma "
                "or --memory, or measure plan incast as well"
            )
        if parameters["delta"].state != "given" and not parameters["delta"].usable:
            yield "delta is not told well enough to be used: take it from `antiphon fit memory` (--memory)"
        if self.w_t.state == UNSEEN:
            most = max(pair[0] for row in self.measured for pair in counts(row.plan, row.ranks).received)
            yield f"no incast was seen with up to {most} senders to one receiver"
        elif self.w_t.state == WEAK:
            yield "w_t is not told well enough to be used: measure plan cps with more numbers of ranks, more often"
        elif self.w_t.state == OPEN and self.threshold and self.models.best is None:
            yield "incast cannot be told from other terms here: measure plan cps with fewer ranks and with more"
        elif self.w_t.state == OPEN and self.threshold:
            yield "w_t and epsilon are not told apart: measure plan cps with the numbers of ranks between as well"
        elif self.w_t.state == OPEN:
            yield "no plan here has more than one sender to a receiver, so incast cannot show: measure plan cps"
        if self.misses[0] > POOR:
            yield (
                f"the model misses these measurements by {self.misses[0]:.0%} (root mean square): it does not "
                "describe them, or they are noisy; --svg shows where"
            )

    def as_json(self) -> dict[str, Any]:
        """Keys: parameters, w_t, combinations, error, error_without, rank, unknowns, condition, measurements, rows,
        notes."""
        w_t = self.w_t.as_json()
        whole = {key: None if w_t[key] is None else int(w_t[key]) for key in ("value", "low", "high")}
        return {
            "parameters": {name: found.as_json() for name, found in self.parameters.items()},
            "w_t": {"state": w_t["state"], **whole},
            "combinations": [{"name": found.name, **found.as_json()} for found in self.combinations],
            "error": dict(zip(("rms", "largest"), map(rounded_error, self.misses), strict=True)),
            "error_without": dict(zip(("rms", "largest"), map(rounded_error, self.plain_misses), strict=True)),
            "rank": self.models.solution.rank,
            "unknowns": list(self.models.names),
            "condition": rounded(self.models.solution.condition),
            "measurements": len(self.measured),
            "rows": [
                {
                    "plan": row.plan.name, "collective": row.plan.collective, "ranks": row.ranks,
                    "nbytes": row.nbytes, "seconds": row.seconds, "fitted": rounded(fitted),
                }
                for row, fitted in zip(self.measured, self.fitted, strict=True)
            ],
            "notes": self.notes,
        }  # fmt: skip


def fit_genmodel(measured: Sequence[Measured], known: Mapping[str, float] | None = None) -> GenmodelFit:
    """alpha, beta, gamma, delta and epsilon that fit best, for every whole threshold w_t; of these the best.

    `known`: beta, gamma or delta, in seconds per byte, as measured otherwise. Incast that does not improve the fit
    beyond chance is left out. O(rows * thresholds), thresholds being at most the greatest number of ranks.
    """
    given = dict(known or {})
    table = _counted(measured)
    free = tuple(name for name in UNKNOWNS[:4] if name not in given)
    seconds = np.array([row.seconds for row in measured])
    spent = sum((table[name] * value for name, value in given.items()), np.zeros(len(measured)))
    target = (seconds - spent) / seconds
    _check(measured, spent, given)
    columns = np.array([table[name] / seconds for name in free]).T
    received = [counts(row.plan, row.ranks) for row in measured]
    sizes = np.array([float(row.nbytes) for row in measured])
    most = max(senders for c in received for senders, _ in c.received)
    solutions: dict[int | None, Solution] = {}
    for w_t in (None, *range(1, most)):
        slower = np.array([0.0 if w_t is None else c.epsilon(w_t) for c in received]) * sizes / seconds
        solutions[w_t] = Solution(np.column_stack([columns, slower]), target)
    without = solutions[None]
    best = _best_threshold(solutions)
    freedom = len(measured) - solutions[best].rank - (best is not None)
    if freedom < 1:
        raise Invalid(
            f"{len(measured)} measurements are too few for {solutions[best].rank} combinations of parameters"
            f"{' and w_t' if best is not None else ''}: {1 - freedom} more at least, better many more"
        )
    if best is not None and not _incast_seen(without, solutions[best], freedom):
        best, freedom = None, len(measured) - without.rank
    names = (*free, INCAST)
    plain = Solution(np.array([table[name] / seconds for name in free if name != "delta"]).T, target)
    return GenmodelFit(measured, Models(names, given, solutions, best, freedom), plain, most > 1, given)


def _counted(measured: Sequence[Measured]) -> dict[str, Floats]:
    """What multiplies each parameter in every measurement."""
    found = [(counts(row.plan, row.ranks), float(row.nbytes)) for row in measured]
    return {
        "alpha": np.array([c.alpha for c, _ in found]),
        "beta": np.array([c.beta * size for c, size in found]),
        "gamma": np.array([c.gamma * size for c, size in found]),
        "delta": np.array([c.delta * size for c, size in found]),
    }


def _check(measured: Sequence[Measured], spent: Floats, given: Mapping[str, float]) -> None:
    for row, part in zip(measured, spent.tolist(), strict=True):
        if part >= row.seconds:
            where = f"line {row.line}: " if row.line else ""
            raise Invalid(
                f"{where}{', '.join(sorted(given))} as given alone take {part:.4g} s, more than the "
                f"{row.seconds:.4g} s measured; give smaller ones (seconds per byte)"
            )


def _best_threshold(solutions: Mapping[int | None, Solution]) -> int | None:
    """The threshold that fits best; of those that fit equally well the least, whichever rounding favours."""
    thresholds = [key for key in solutions if key is not None]
    least = min((solutions[key].squares for key in thresholds), default=0.0)
    limit = least * (1 + EQUAL) + EXACT * len(solutions[None].target)
    return next((key for key in thresholds if solutions[key].squares <= limit), None)


def _incast_seen(without: Solution, best: Solution, freedom: int) -> bool:
    """Whether the threshold and its slope, two more parameters, improve the fit beyond chance (F-test)."""
    from scipy.special import fdtri

    gained = without.squares - best.squares
    rounding = EXACT * len(best.target)
    return gained > max(2 * float(fdtri(2, freedom, SURE)) * best.squares / freedom, rounding)


def _besides(plain: Mapping[str, float], extra: Mapping[int, float]) -> Weights:
    """These weights, and that of incast by threshold."""
    return lambda w_t: {**plain, INCAST: 0.0 if w_t is None else extra.get(w_t, 0.0)}


def _words(weights: Mapping[str, float]) -> str:
    """alpha + 2.5 delta - 3e+06 beta"""
    text = ""
    for name, weight in weights.items():
        size = f"{abs(weight):.6g} " if abs(abs(weight) - 1) > 1e-9 else ""
        text += (" - " if weight < 0 else " + ") + size + name
    return text[3:] if text.startswith(" + ") else text.lstrip()
