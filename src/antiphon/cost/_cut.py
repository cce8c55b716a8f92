"""Predict schedules whose messages a runtime splits: the model is prepared again for each way of splitting.

A runtime sends a message of a schedule without pieces in parts of its own choice, which depends on the size of the call
(`Cuts`). `Cutting` gives the schedule as it is then sent.
"""

from __future__ import annotations

from collections.abc import Callable

from antiphon.core.schedule import Schedule
from antiphon.core.transform import Cuts, Cutting
from antiphon.cost.prediction import Prediction, Predictor


def as_cut(make: Callable[[Schedule], Predictor], schedule: Schedule, cuts: Cuts | None) -> Predictor:
    """Return a predictor that prepares the model with `make` once per way of splitting.

    Without `cuts`, or if no message is split, the model is prepared once for all sizes.
    """
    cutting = None if cuts is None else Cutting(schedule, cuts)
    if cutting is None or cutting.cuts_nothing:
        return make(schedule)
    # by the pieces of each message; None: no message is split
    predictors: dict[tuple[int, ...] | None, Predictor] = {None: make(schedule)}

    def predict(nbytes: int) -> Prediction:
        pieces = cutting.pieces(nbytes)
        if pieces not in predictors:  # many sizes are split alike
            predictors[pieces] = make(cutting.at(nbytes))
        return predictors[pieces](nbytes)

    return predict
