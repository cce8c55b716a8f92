"""Write measured rows (the results of `antiphon bench`) as CSV: all of them, or those that `antiphon fit` reads."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from antiphon.cost.fit import LoweringTime, PlanTime, plan_of, write_lowering_times, write_plan_times
from antiphon.cost.fit.tables import write_rows
from antiphon.errors import AntiphonError, Invalid

Row = Mapping[str, Any]
COLUMNS = ("collective", "planner", "ranks", "nbytes", "count", "dtype", "op", "root", "in_place")
FIGURES = ("seconds", "algbw", "busbw", "wrong", "reference_seconds", "over_library", "predicted_seconds")
# (planner, collective) -> the name of GenModel's formula that its schedules match, in one piece and, of rings, in one
# direction. rhd: recursive halving and doubling; cps: co-located parameter server.
FORMULAS = {
    ("ring", "allreduce"): "ring", ("ring", "reducescatter"): "ring", ("ring", "allgather"): "ring",
    ("halving-doubling", "allreduce"): "rhd", ("halving-doubling", "reducescatter"): "rhd",
    ("halving-doubling", "allgather"): "rhd", ("colocated-ps", "allreduce"): "cps",
    ("direct", "reducescatter"): "cps", ("direct", "allgather"): "cps", ("parameter-server", "allreduce"):
    "reduce-broadcast",
}  # fmt: skip


def write_csv(rows: Sequence[Row], path: str | os.PathLike[str]) -> None:
    """Write a line per row, with its keys as columns. The quartiles are of seconds; predicted_by is the model and its
    basis (empty if the runtime predicts)."""
    cells = [[*(row[key] for key in (*COLUMNS, *FIGURES)), *row["quartiles"], row.get("predicted_by")] for row in rows]
    lines = [["" if cell is None else cell for cell in line] for line in cells]
    write_rows([*COLUMNS, *FIGURES, "first_quartile", "third_quartile", "predicted_by"], lines, path)


def write_fit(rows: Sequence[Row], path: str | os.PathLike[str]) -> int:
    """Write rows of float32 sums, out of place, for `fit genmodel`; return their number. Invalid if it is 0.

    If rows have `work` (steps and copies of a plan lowered to a GPU), they are written for `fit lowering` instead.
    """
    if any("work" in row for row in rows):
        lowered = lowering_times(rows)
        write_lowering_times(lowered, path)
        return len(lowered)
    measurements = [measured for row in rows if not row["in_place"] and (measured := _fit_row(row)) is not None]
    if not measurements:
        raise no_formula(path)
    write_plan_times(measurements, path)
    return len(measurements)


def no_formula(path: str | os.PathLike[str]) -> Invalid:
    """Return the error that a file for `fit genmodel` would have no rows."""
    names = ", ".join(dict.fromkeys(planner for planner, _ in FORMULAS))
    return Invalid(
        f"{os.fspath(path)}: no measurement of these plans could be fitted; there are formulas for float32 sums "
        f"in one piece by the planners {names} (ring: with directions=1; halving-doubling: of 2, 4, 8, ... ranks)"
    )


def has_formula(row: Row) -> bool:
    """Return whether `fit genmodel` has a formula for a row, which needs no measured times."""
    return _fit_row({**row, "seconds": 1.0}) is not None


def lowering_times(rows: Sequence[Row]) -> list[LoweringTime]:
    """Return the rows out of place that have `work`, as `fit lowering` reads them."""
    return [
        LoweringTime(
            row["lowering"], row["work"]["steps"], row["work"]["copies"],
            row["work"]["seconds_per_byte"] * row["nbytes"], row["seconds"],
        )
        for row in rows if "work" in row and not row["in_place"]
    ]  # fmt: skip


def _fit_row(row: Row) -> PlanTime | None:
    """Return a row as `fit genmodel` reads it, None if no formula is for it."""
    name, options = FORMULAS.get((row["planner"] or "", row["collective"]), ""), row["options"]
    float32_sum = row["dtype"] == "float32" and row["op"] in ("sum", None) and row["nbytes"] > 0
    in_one_piece = options.get("pieces", 1) == 1 and "pieces" not in row
    # the formulas are for rings in one direction, and halving and doubling for powers of two
    unlike_formula = (name == "ring" and options.get("directions") != 1) or (
        name == "rhd" and row["ranks"] & row["ranks"] - 1
    )
    if not name or not float32_sum or not in_one_piece or unlike_formula:
        return None
    try:
        plan = plan_of(name, row["ranks"], row["collective"])
    except AntiphonError:  # no formula for this collective, or this number of ranks
        return None
    return PlanTime(plan, row["ranks"], row["nbytes"], row["seconds"])
