"""Schedules run on the runtime `local`, for tests of planners."""

from collections.abc import Sequence

from antiphon.core.schedule import Schedule
from antiphon.errors import Invalid
from antiphon.runtimes.measure.case import Row, Runnable
from antiphon.runtimes.measure.rows import run_schedule


def run_local(
    schedule: Schedule,
    nbytes: int | str | Sequence[int | str],
    dtype: str = "float32",
    op: str = "sum",
    seed: int = 0,
    repeat: int = 3,
    in_place: bool = False,
) -> list[Row]:
    """Run a schedule on random data of each size and check every element: a row for each (docs/bench.md).

    Invalid where a row of the schedule is illegal.
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise Invalid(f"seed: expected a whole number from 0, got {seed!r}")
    return run_schedule("local", Runnable(schedule), nbytes, dtype, op, seed, repeat, in_place) or []
