"""Options that exports of messages share: the order of a rank's messages, the cost of combining, local work."""

from __future__ import annotations

from fractions import Fraction

from antiphon.core.schedule import Schedule
from antiphon.errors import Invalid, Unsupported, quote
from antiphon.units import exact, parse_bandwidth

ORDERS = ("rounds", "data")  # docs/program.md


def check_order(order: str) -> None:
    if order not in ORDERS:
        raise Invalid(f"order: expected {' or '.join(ORDERS)}, got {quote(order)}")


def read_gamma(gamma: object) -> Fraction:
    """Return the option gamma: seconds per byte that is combined."""
    seconds: Fraction = exact(gamma, "gamma")
    if not 0 <= seconds <= 1:
        raise Invalid(f"gamma: expected seconds per byte, from 0 to 1, got {quote(gamma)}")
    return seconds


def local_work(schedule: Schedule, nbytes: int, local: str, operation: str, per_second: int) -> int:
    """Duration of the work that every rank does at the end, in units of 1/`per_second` s; it is written as `operation`.

    `local`: bytes per second ("100GB/s"), or "off". Unsupported where the schedule has such work and neither is said.
    """
    if local == "off" or not schedule.local:
        return 0
    if not local:
        kinds = ", ".join(work.kind for work in schedule.local)
        raise Unsupported(
            f"the plan ends with local work ({kinds}); local=100GB/s writes it as a {operation} at that many bytes per "
            "second, local=off leaves it out, as our own runtimes do"
        )
    share = sum((work.share for work in schedule.local), start=Fraction(0))
    return round(share * nbytes / parse_bandwidth(local, "local") * per_second)
