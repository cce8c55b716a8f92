"""A model of a schedule whose messages a runtime cuts: prepared anew for each way in which they come to be cut."""

from __future__ import annotations

from collections.abc import Callable

from antiphon.core.schedule import Schedule
from antiphon.core.transform import Cuts, Cutting
from antiphon.cost.prediction import Prediction, Predictor


def as_cut(make: Callable[[Schedule], Predictor], schedule: Schedule, cuts: Cuts | None) -> Predictor:
    """`make` prepares the model; without `cuts`, or where they never cut this schedule, once and for all sizes."""
    cutting = None if cuts is None else Cutting(schedule, cuts)
    if cutting is None or cutting.idle:
        return make(schedule)
    ready: dict[tuple[int, ...] | None, Predictor] = {None: make(schedule)}

    def predict(nbytes: int) -> Prediction:
        pieces = cutting.pieces(nbytes)
        if pieces not in ready:
            ready[pieces] = make(cutting.at(nbytes))
        return ready[pieces](nbytes)

    return predict
