"""A ground to measure on that measures nothing: it makes times up, and notes what it was asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from antiphon.run._bench_wanted import How, Row, Wanted

asked: list[Wanted] = []
launches: list[int] = []
stop_after: list[int] = []  # of one: Ctrl-C comes before the row with this number


def speed(wanted: Wanted) -> tuple[float, float | None]:
    """Ours and the library's; tests put their own in its place."""
    return 1e-6 * (wanted.nbytes + 1), 2e-6 * (wanted.nbytes + 1)


def wrong(wanted: Wanted) -> int:
    return 0


def ready(mpiexec: str, compiler: str) -> None:
    pass


def measure(
    wanted: Sequence[Wanted], how: How, heard: Callable[[Row | None], None], enough: Callable[[], bool] = lambda: False
) -> None:
    launches.append(len(wanted))
    for one in wanted:
        if enough():
            return
        if stop_after and len(asked) == stop_after[0]:
            raise KeyboardInterrupt
        asked.append(one)
        if one.in_place and one.schedule.collective.kind == "gather":
            heard(None)
            continue
        ours, theirs = speed(one)
        ratio = None if theirs is None else ours / theirs
        told: dict[str, Any] = {
            "seconds": ours, "quartiles": [0.9 * ours, 1.1 * ours], "wrong": wrong(one), "reference_seconds": theirs,
            "reference_quartiles": theirs and [theirs, theirs], "reference_wrong": 0, "ratio": ratio,
            "ratio_quartiles": ratio and [ratio, ratio],
        }  # fmt: skip
        heard(told)
