"""Cost models: what a schedule takes on a machine, and why. One file per model, one line each in table.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Prediction:
    """What a model predicts: seconds, the terms they are the sum of, and what holds it up.

    `bottleneck` names a link, limit or rank in the user's terms; `critical_path` lists (step, src, dst) in order.
    """

    seconds: float
    terms: Mapping[str, float]
    bottleneck: str
    critical_path: tuple[tuple[int, int, int], ...] = field(default=())
