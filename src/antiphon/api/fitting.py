"""Parameters of cost models from measurements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from antiphon.api._checked import path, per_byte, public
from antiphon.errors import Invalid

if TYPE_CHECKING:
    from antiphon.api._kinds import Path
    from antiphon.cost.fit import Added, GenmodelFit, LogGPFit, Measured, MemoryFit, RoundTrip

R = TypeVar("R")


@public
def genmodel(
    measurements: Path | Sequence[Measured], *, beta: float | None = None, gamma: float | None = None,
    delta: float | None = None,
) -> GenmodelFit:  # fmt: skip
    """Fit GenModel's alpha, beta, gamma, delta, epsilon and w_t: `parameters`, `combinations`, `notes`, `as_json()`.

    `measurements`: what `antiphon.measure.genmodel` returned, or its CSV file.
    `beta`, `gamma`, `delta`: what is known already: seconds per byte moved, added, and read or written.
    """
    from antiphon.cost import fit

    known_seconds = {"beta": beta, "gamma": gamma, "delta": delta}
    values = {name: per_byte(value, name) for name, value in known_seconds.items() if value is not None}
    rows = (fit.Measured, fit.read_measured, "genmodel")
    return _fit(measurements, *rows, lambda measured: fit.fit_genmodel(measured, values))


@public
def loggp(measurements: Path | Sequence[RoundTrip]) -> LogGPFit:
    """Fit LogGP's L, o_s, o_r, g and G: `parameters`, `combinations`, `notes`, `as_json()`.

    `measurements`: what `antiphon.measure.loggp` returned, or its CSV file.
    """
    from antiphon.cost import fit

    return _fit(measurements, fit.RoundTrip, fit.read_round_trips, "loggp", fit.fit_loggp)


@public
def memory(measurements: Path | Sequence[Added]) -> MemoryFit:
    """Fit GenModel's gamma and delta alone: `parameters`, `combinations`, `notes`, `as_json()`.

    `measurements`: what `antiphon.measure.memory` returned, or its CSV file.
    """
    from antiphon.cost import fit

    return _fit(measurements, fit.Added, fit.read_added, "memory", fit.fit_memory)


def _fit(
    measurements: Any, kind: type, read: Callable[[str], list[Any]], name: str, find: Callable[[list[Any]], R]
) -> R:
    """Fit rows of one kind, given as they are or in a CSV file; an error names the file."""
    from antiphon.core.files import within

    where = "measurements"
    if isinstance(measurements, list | tuple):
        if not measurements or not all(isinstance(row, kind) for row in measurements):
            raise Invalid(f"measurements: expected rows that antiphon.measure.{name} returned, or their file")
        rows = list(measurements)
    else:
        where = path(measurements, "measurements")
        rows = read(where)
    with within(where):
        return find(rows)
