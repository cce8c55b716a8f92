"""Options that the exports of messages (goal, chakra, piccl) share: order, cost of reducing, local work."""

from __future__ import annotations

from fractions import Fraction

from antiphon.core.schedule import Schedule
from antiphon.errors import Invalid, Unsupported, quote
from antiphon.units import exact, parse_bandwidth

ORDERS = ("rounds", "data")  # a send waits for all earlier steps, or only for its data (docs/program.md)


def check_order(order: str) -> None:
    if order not in ORDERS:
        raise Invalid(f"order: expected {' or '.join(ORDERS)}, got {quote(order)}")


def read_gamma(gamma: object) -> Fraction:
    """Return the option gamma: seconds per byte that is reduced."""
    seconds: Fraction = exact(gamma, "gamma")
    if not 0 <= seconds <= 1:
        raise Invalid(f"gamma: expected seconds per byte, from 0 to 1, got {quote(gamma)}")
    return seconds


def local_work(schedule: Schedule, nbytes: int, local: str, operation: str, per_second: int) -> int:
    """Return the duration of the work that every rank does at the end, in units of 1/`per_second` s.

    `local`: bytes per second ("100GB/s"), or "off". `operation`: the word of the format, for the error. Raises
    Unsupported if the schedule has such work and `local` is empty.
    """
    if local == "off" or not schedule.local:
        return 0
    if not local:
        kinds = ", ".join(work.kind for work in schedule.local)
        raise Unsupported(
            f"the plan ends with local work ({kinds}); local=100GB/s writes it as a {operation} at that many bytes per "
            "second, local=off leaves it out, as our own runtimes do"
        )
    share = sum((work.share for work in schedule.local), start=Fraction(0))  # of nbytes
    return round(share * nbytes / parse_bandwidth(local, "local") * per_second)
