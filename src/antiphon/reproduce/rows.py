"""Rows of reproduced tables (published | ours | deviation), and how figures are compared.

A row is a dictionary, which `antiphon reproduce` prints or writes as JSON:

    {"name": "DGX-1 allgather, small sizes", "published": {"speedup": 2.2}, "ours": {"speedup": 2.25}, "ok": True, ...}
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from typing import Any

Row = dict[str, Any]
Times = dict[str, float]  # seconds by size
# Calls a function with each tuple of arguments, like itertools.starmap: calls that an engine may make anywhere, at the
# same time. Results come in order.
Each = Callable[[Callable[..., Any], Iterable[tuple[Any, ...]]], Iterator[Any]]
NEAR = 0.04  # relative deviation up to which a figure counts as reproduced


def row(
    name: str, published: Row | None, ours: Row | None, ok: bool | None, *, deviation: str | None = None,
    note: str = "", engine: str = "", proof: Sequence[str] = (),
) -> Row:  # fmt: skip
    """Return a row of a reproduced table.

    Parameters
    ----------
    name
        What is compared.
    published, ours
        Figures by name; None if the paper, or our computation, has none.
    ok
        Whether they agree; see `agreement`.
    deviation
        Why they differ.
    note
        Section of the paper, and remarks.
    engine
        What computed our figures.
    proof
        The evidence, line by line.

    The seconds that it took to compute the row are filled in by `reproduce`.
    """
    return {
        "name": name, "published": published, "ours": ours, "deviation": deviation, "ok": ok, "note": note,
        "engine": engine, "seconds": 0.0, "proof": list(proof),
    }  # fmt: skip


def claim(name: str, holds: bool, **details: Any) -> Row:
    """Return a row for a statement without figures, published as true: its only figure, `so`, is whether it holds."""
    return row(name, {"so": True}, {"so": holds}, holds, **details)


def agreement(figures: bool, shape: bool) -> bool | None:
    """Return True if `figures` holds (ours equal the published ones), None if only `shape` holds, else False.

    Shape means a trend: which of two is faster, what grows, or what exceeds a bound.
    """
    return True if figures else None if shape else False


def is_near(ours: float | Fraction, published: float) -> bool:
    """Return whether a figure is within `NEAR` of the published one."""
    return abs(ours - published) <= NEAR * published


def round_seconds(seconds_by_size: Times) -> Times:
    """Round to four significant digits."""
    return {key: float(f"{seconds:.4g}") for key, seconds in seconds_by_size.items()}


def relative_deviations(values: Sequence[float], published: Sequence[float]) -> list[float]:
    return [ours / theirs - 1 for ours, theirs in zip(values, published, strict=True)]


def percent_text(keys: Sequence[object], deviations: Sequence[float]) -> str:
    """Return deviations as text, such as "1e7 +0.3 %, 1e8 -1.2 %"."""
    return ", ".join(
        f"{key} {deviation:+.1%}".replace("%", " %") for key, deviation in zip(keys, deviations, strict=True)
    )


def all_near(deviations: Sequence[float], limit: float = NEAR) -> bool:
    return max(map(abs, deviations)) <= limit
