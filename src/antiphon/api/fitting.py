"""Fit the parameters of cost models to measurements: GenModel, LogGP, and GenModel's terms of memory alone.

Measurements are the results of `antiphon.measure`, or the CSV files that `antiphon bench genmodel` and `loggp` write.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from antiphon.api._checked import path, per_byte, public
from antiphon.errors import Invalid

if TYPE_CHECKING:
    from antiphon.api._kinds import Path, Row
    from antiphon.cost.fit import (
        AdditionTime,
        GenmodelFit,
        LogGPFit,
        LoweringFit,
        LoweringTime,
        MemoryFit,
        PlanTime,
        RoundTrip,
    )

Fit = TypeVar("Fit")


@public
def genmodel(
    measurements: Path | Sequence[PlanTime], *, beta: float | None = None, gamma: float | None = None,
    delta: float | None = None,
) -> GenmodelFit:  # fmt: skip
    """Fit GenModel's parameters to measurements: alpha, beta, gamma, delta, and those of incast, epsilon and w_t.

    epsilon: seconds per byte and sender beyond w_t; w_t: the number of senders up to which there is no incast.

    Parameters
    ----------
    measurements
        The result of `antiphon.measure.genmodel`, or its CSV file.
    beta, gamma, delta
        Parameters that are already known: seconds per byte moved, combined, and read or written.

    Returns
    -------
    GenmodelFit
        `.parameters`, `.combinations` (such as 2 beta + gamma, where the data determine no parameter alone), `.notes`
        and `.as_json()`.

    Raises
    ------
    Invalid
        The measurements do not determine the parameters.

    Examples
    --------
    ::

        antiphon.fit.genmodel("times.csv").parameters
    """
    from antiphon.cost import fit

    known_seconds = {"beta": beta, "gamma": gamma, "delta": delta}
    values = {name: per_byte(value, name) for name, value in known_seconds.items() if value is not None}
    return _fit_rows(
        measurements, fit.PlanTime, fit.read_plan_times, "genmodel", lambda rows: fit.fit_genmodel(rows, values)
    )


@public
def loggp(measurements: Path | Sequence[RoundTrip]) -> LogGPFit:
    """Fit LogGP's L, o_s, o_r, g and G to measurements.

    Parameters
    ----------
    measurements
        The result of `antiphon.measure.loggp`, or its CSV file.

    Returns
    -------
    LogGPFit
        `.parameters`, `.combinations`, `.notes` and `.as_json()`.

    Raises
    ------
    Invalid
        The measurements do not determine the parameters.

    Examples
    --------
    ::

        antiphon.fit.loggp("trips.csv").parameters
    """
    from antiphon.cost import fit

    return _fit_rows(measurements, fit.RoundTrip, fit.read_round_trips, "loggp", fit.fit_loggp)


@public
def memory(measurements: Path | Sequence[AdditionTime]) -> MemoryFit:
    """Fit GenModel's gamma and delta alone.

    Parameters
    ----------
    measurements
        The result of `antiphon.measure.memory`, or its CSV file.

    Returns
    -------
    MemoryFit
        `.parameters`, `.combinations`, `.notes` and `.as_json()`.

    Raises
    ------
    Invalid
        The measurements do not determine the parameters.

    Examples
    --------
    >>> from antiphon.cost.fit import AdditionTime
    >>> seconds = [(x + 1) * 2e-4 + (x - 1) * 1e-4 for x in range(2, 6)]  # delta = 2e-10, gamma = 1e-10
    >>> fitted = memory([AdditionTime(x, 10**6, s) for x, s in enumerate(seconds, start=2)])
    >>> sorted(fitted.parameters)
    ['delta', 'gamma']
    """
    from antiphon.cost import fit

    return _fit_rows(measurements, fit.AdditionTime, fit.read_addition_times, "memory", fit.fit_memory)


@public
def lowering(measurements: Path | Sequence[LoweringTime] | Sequence[Row]) -> LoweringFit:
    """Fit the costs of lowerings on GPUs, which model `lowering` reads from a profile.

    Parameters
    ----------
    measurements
        The rows of `antiphon.measure.bench(plan, on="cuda", lowering="copies")`, or the file of `antiphon bench --fit`.

    Returns
    -------
    LoweringFit
        `.parameters` and `.costs` by lowering, `.notes`, `.profile()` and `.as_json()`.

    Raises
    ------
    Invalid
        The measurements do not determine the costs.

    Examples
    --------
    ::

        antiphon.fit.lowering("ring.csv").costs
    """
    from antiphon.cost import fit

    # rows of `measure.bench` are dictionaries; a file of `bench --fit` holds LoweringTime already
    if isinstance(measurements, list | tuple) and all(isinstance(row, dict) for row in measurements):
        from antiphon.runtimes.measure.tables import lowering_times

        measurements = lowering_times([row for row in measurements if isinstance(row, dict)])
    return _fit_rows(measurements, fit.LoweringTime, fit.read_lowering_times, "bench", fit.fit_lowering)


def _fit_rows(
    measurements: Any, row_class: type, read: Callable[[str], list[Any]], measure: str,
    fit_rows: Callable[[list[Any]], Fit],
) -> Fit:  # fmt: skip
    """Fit rows of one class, or those of a CSV file. `measure`: the function of antiphon.measure that returns them."""
    from antiphon.core.files import within

    source = "measurements"  # what errors name
    if isinstance(measurements, list | tuple):
        if not measurements or not all(isinstance(row, row_class) for row in measurements):
            raise Invalid(f"measurements: expected rows that antiphon.measure.{measure} returned, or their file")
        rows = list(measurements)
    else:
        source = path(measurements, "measurements")
        rows = read(source)
    with within(source):
        return fit_rows(rows)
