"""How many pieces to pipeline: the best for a size by the model, or a range of them where no size is given."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.cost.barriers.alpha_beta import alpha_beta
from antiphon.errors import Invalid, quote

RANGE = (1, 4, 16, 64, 256, 1024)
MOST = 2**20
LEAST_BYTES = 64  # of a piece
GRID = 4  # pieces grow fourfold until time does, too; then the best lies within two of these steps


def check_number(option: str, number: object, least: int) -> None:
    """An option that is a number, where it is given."""
    if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < least):
        raise Invalid(f"option {option}: expected a whole number of {least} or more, got {quote(number)}")


def piped(
    schedule: Schedule, topology: Topology, pieces: int | None, sizes: Sequence[int | None], profile: Any
) -> Iterator[Schedule]:
    """With so many pieces; or, where they are not given, for every size the best, and for None several numbers."""
    check_number("pieces", pieces, 1)
    if pieces is not None:
        yield replace(schedule, pieces=pieces)
        return
    usual = RANGE if schedule.steps > 1 else (1,)
    found: dict[int, None] = {}
    for nbytes in sizes:
        found |= dict.fromkeys(usual if nbytes is None else [best_pieces(schedule, topology, nbytes, profile)])
    yield from (replace(schedule, pieces=number) for number in found)


def best_pieces(schedule: Schedule, topology: Topology, nbytes: int, profile: Any = None) -> int:
    """The number of pieces with which model alpha-beta is fastest, to within some thousandths of the time."""

    def seconds(pieces: int) -> float:
        return alpha_beta(replace(schedule, pieces=pieces), topology, profile=profile)(nbytes).seconds

    return least_of(seconds, most_pieces(schedule, nbytes))


def most_pieces(schedule: Schedule, nbytes: int) -> int:
    """As many as leave LEAST_BYTES of the smallest chunk; what takes one step gains by none."""
    if schedule.steps < 2:
        return 1
    weights, whole = schedule.chunks.weights(schedule.collective)
    least = min((weight for weight in weights.tolist() if weight), default=1)
    return max(1, min(MOST, nbytes * least // (whole * LEAST_BYTES)))


def least_of(seconds: Callable[[int], float], top: int) -> int:
    """The number from 1 to `top` that takes least, to within some thousandths of the time.

    Latency grows with pieces and the wait for the first piece falls: the time has one dip. Some 20 are tried.
    """
    seconds = cache(seconds)
    low = at = 1
    while at < top and seconds(min(at * GRID, top)) <= seconds(at):
        low, at = at, min(at * GRID, top)
    high = min(at * GRID, top)
    while high - low > 3 and high > 1.02 * low:  # golden section on a logarithmic scale
        span = math.log(high / low)
        left = min(max(round(low * math.exp(0.382 * span)), low + 1), high - 2)
        right = min(max(round(low * math.exp(0.618 * span)), left + 1), high - 1)
        low, high = (low, right) if seconds(left) <= seconds(right) else (left, high)
    tried = range(low, high + 1) if high - low <= 3 else (low, (low + high) // 2, high)
    return min(tried, key=lambda number: (seconds(number), number))
