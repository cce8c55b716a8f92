"""A model whose first call in a process takes a second, as one that compiles does; worker processes import it."""

import time
from collections.abc import Callable
from typing import Any

from antiphon.core.schedule import Schedule
from antiphon.cost import Prediction

calls: list[int] = []


def slow(schedule: Schedule, topology: Any, *, profile: Any = None) -> Callable[[int], Prediction]:
    def price(nbytes: int) -> Prediction:
        calls.append(nbytes)
        if len(calls) == 1:
            time.sleep(1.0)
        return Prediction(1e-6 * (schedule.steps + nbytes), {"all": 1.0}, "all")

    return price
