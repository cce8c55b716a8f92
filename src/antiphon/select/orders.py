"""One order of combining for every element at all sizes: what `tune` and `plan` are asked for by --deterministic."""

from __future__ import annotations

from antiphon.core.interpret import order_of_combining
from antiphon.core.schedule import Schedule
from antiphon.errors import NotFound

SEVERAL_ORDERS = "it combines the parts of the data in different orders, and --deterministic wants one"


class SeveralOrders(NotFound):
    """There are schedules, but none that combines every element in one and the same order."""


def order_claimed(schedule: Schedule) -> dict[str, str] | None:
    """What a plan of one order claims of it; None where the schedule has several orders."""
    order = order_of_combining(schedule)
    return None if order is None else {"order": order}
