"""Fit the costs of lowerings (cost/lowering_costs.py) to times from `antiphon bench --on cuda:lowering=... --fit FILE`.

The time of a plan is linear in the costs of its lowering, so each lowering is a least-squares problem of its own:

    seconds = start + step * steps + copy * copies + wire / share

`wire` is the time of the bytes on the busiest links at nominal bandwidth; `share` is the fraction of that bandwidth
that is reached. Plans with several numbers of steps separate step from start, plans with several numbers of copies per
step separate copy from both, and several sizes give share.
Example: with start 5 us and step 4 us, plans of 2 and 7 steps take 13 and 33 us at 1 byte.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from antiphon.cost.fit.linear import (
    UNDETERMINED,
    WEAK,
    Estimate,
    FitSolution,
    Models,
    constant_weights,
    round_portably,
    rounded_error,
)
from antiphon.cost.fit.tables import parse_positive_seconds, read_rows, write_rows
from antiphon.cost.lowering_costs import LoweringCosts, check_lowering
from antiphon.cost.profile import Profile
from antiphon.errors import Invalid, quote
from antiphon.units import exact

COLUMNS = ("lowering", "steps", "copies", "wire", "seconds")
NAMES = ("start", "step", "copy", "wire")  # wire: 1 / share
MAX_COUNT = 1e12  # steps, copies, or seconds of `wire`


@dataclass(frozen=True, slots=True)
class LoweringTime:
    """The measured seconds of a plan by a lowering, with its number of steps, the most copies at a rank in each step,
    summed, and the seconds of its bytes at nominal bandwidth (`wire`). `line`: of the file; 0: not read from one."""

    lowering: str
    steps: float
    copies: float
    wire: float
    seconds: float
    line: int = 0


def read_lowering_times(path: str | os.PathLike[str]) -> list[LoweringTime]:
    """Read the file of `fit lowering`. Linear."""
    return read_rows(path, COLUMNS, optional=(), parse_row=_parse_time)


def write_lowering_times(rows: Sequence[LoweringTime], path: str | os.PathLike[str]) -> None:
    """Write the file that `read_lowering_times` reads as the same rows."""
    write_rows(COLUMNS, [[row.lowering, *map(repr, _numbers(row))] for row in rows], path)


def _numbers(row: LoweringTime) -> tuple[float, float, float, float]:
    """Return the values of all of COLUMNS but the first."""
    return row.steps, row.copies, row.wire, row.seconds


def _parse_time(row: Mapping[str, str], line: int) -> LoweringTime:
    if not check_lowering(row["lowering"]):
        raise Invalid("lowering: expected its name, got nothing")
    steps, copies, wire = (_parse_number(row[name], name) for name in COLUMNS[1:4])
    return LoweringTime(row["lowering"], steps, copies, wire, parse_positive_seconds(row["seconds"]), line)


def _parse_number(text: str, name: str) -> float:
    number = exact(text, name)
    if not 0 <= number <= MAX_COUNT:
        raise Invalid(f"{name}: expected a number from 0 to {MAX_COUNT:g}, got {quote(text)}")
    return float(number)


@dataclass(frozen=True, eq=False)
class LoweringFit:
    """The fitted costs of each lowering. `models`: the least-squares solution with its errors, by lowering."""

    measured: Sequence[LoweringTime]
    models: Mapping[str, Models]

    @cached_property
    def parameters(self) -> dict[str, dict[str, Estimate]]:
        """The estimates of a lowering by name of the cost; `wire` is 1 / share."""
        return {
            lowering: {name: models.estimate(name, constant_weights({name: 1.0})) for name in models.names}
            for lowering, models in self.models.items()
        }

    @cached_property
    def costs(self) -> dict[str, LoweringCosts]:
        """The costs of each lowering for which all of them have a value: determined or weak (see `Estimate`)."""
        complete = {}
        for lowering, estimates in self.parameters.items():
            values = {name: estimate.value for name, estimate in estimates.items() if estimate.value is not None}
            if len(values) == len(estimates):
                share = 1 / values.pop("wire") if values.get("wire") else None
                if share is not None:
                    complete[lowering] = LoweringCosts(**values, share=round_portably(share))
        return complete

    @cached_property
    def notes(self) -> list[str]:
        """Remarks for the user: which costs are not determined, and what to measure so that they are."""
        remarks = []
        for lowering, estimates in self.parameters.items():
            for state, advice in (
                (UNDETERMINED, "measure plans with other numbers of steps and of copies in a step, at several sizes"),
                (WEAK, "measure more sizes, more often"),
            ):
                names = [name for name, estimate in estimates.items() if estimate.state == state]
                if names:
                    remarks.append(f"{lowering}: {', '.join(names)} {state}: {advice}")
            if lowering not in self.costs and all(e.state != UNDETERMINED for e in estimates.values()):
                remarks.append(f"{lowering}: the bytes take no time in these measurements: measure greater sizes")
        return remarks

    def as_json(self) -> dict[str, Any]:
        """Keys: lowerings (parameters, error), measurements, notes."""
        return {
            "lowerings": {
                lowering: {
                    "parameters": {name: estimate.as_json() for name, estimate in self.parameters[lowering].items()},
                    "error": dict(
                        zip(("rms", "largest"), map(rounded_error, models.solution.relative_errors), strict=True)
                    ),
                }
                for lowering, models in self.models.items()
            },
            "measurements": len(self.measured),
            "notes": self.notes,
        }

    def profile(self, name: str = "") -> Profile:
        """Return a profile with the costs; raise Invalid if no lowering has all of them determined."""
        if not self.costs:
            raise Invalid(f"nothing to write into a profile: {'; '.join(self.notes)}")
        return Profile(name, lowerings=self.costs)


def fit_lowering(measured: Sequence[LoweringTime]) -> LoweringFit:
    """Fit the costs of each lowering by least squares of relative errors. O(rows)."""
    models = {}
    for lowering in dict.fromkeys(row.lowering for row in measured):
        # Columns: those of NAMES (1 for start), then the seconds.
        rows = np.array([[1.0, *_numbers(row)] for row in measured if row.lowering == lowering])
        columns = [column for column in range(len(NAMES)) if rows[:, column].any()]  # costs that any plan pays
        # Each row is divided by its measured time, so that residuals are relative errors.
        solution = FitSolution(rows[:, columns] / rows[:, -1:], np.ones(len(rows)))
        degrees_of_freedom = len(rows) - solution.rank
        if degrees_of_freedom < 1:
            raise Invalid(
                f"{lowering}: {len(rows)} measurements are too few for {len(columns)} costs; measure more sizes"
            )
        models[lowering] = Models(
            tuple(NAMES[column] for column in columns),
            known_values={},
            solutions={None: solution},
            best=None,
            degrees_of_freedom=degrees_of_freedom,
        )
    return LoweringFit(measured, models)
