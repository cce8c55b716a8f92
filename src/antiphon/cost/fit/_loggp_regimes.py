"""Protocol regimes of LogGP: ranges of sizes with one set of parameters, and the breaks between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from antiphon.cost.fit.linear import NEGLIGIBLE, Estimate, Floats


@dataclass(frozen=True, eq=False)
class Regime:
    """A range of sizes with one set of parameters: [low, high] bytes.

    `figures`: L, o_s and o_r as they are at `low`, g and G. `growth`: what L, o_s and o_r grow by per byte, where they
    do. `start`, `slope`: the same as numbers, 0 where there is nothing: L may be below 0 here, the others not.
    """

    low: int
    high: int
    figures: Mapping[str, Estimate]
    growth: Mapping[str, Estimate]
    start: Mapping[str, float]
    slope: Mapping[str, float]

    def line(self, name: str, sizes: Floats) -> Floats:
        start, growth = self.start[name], self.slope.get(name, 0.0) * (sizes - self.low)
        line: Floats = start + growth
        if name != "L":
            return np.maximum(line, 0.0)
        # Where both cancel, the sign of the remainder is rounding.
        return np.where(np.abs(line) <= NEGLIGIBLE * (abs(start) + np.abs(growth)), 0.0, line)

    def half(self, sizes: Floats) -> Floats:
        """Return half a round trip by the fit."""
        seconds: Floats = sum((self.line(name, sizes) for name in ("L", "o_s", "o_r")), (sizes - 1) * self.start["G"])
        return seconds

    def model(self, sizes: Floats) -> dict[str, Floats]:
        """Every figure, none below 0: where overheads and transfer are more than half a round trip, some of the
        overheads was under way at the same time, and just that much of them is left out."""
        figures = {name: self.line(name, sizes) for name in ("L", "o_s", "o_r")}
        overheads = figures["o_s"] + figures["o_r"]
        factor = 1 - np.clip(-figures["L"], 0, overheads) / np.where(overheads > 0, overheads, 1.0)
        ones = np.ones_like(sizes)
        return {
            "L": np.maximum(figures["L"], 0.0), "o_s": figures["o_s"] * factor, "o_r": figures["o_r"] * factor,
            "g": ones * self.start["g"], "G": ones * self.start["G"],
        }  # fmt: skip

    def as_json(self) -> dict[str, Any]:
        groups = {"parameters": self.figures, "growth": self.growth}
        return {"from": self.low, "to": self.high} | {
            key: {name: estimate.as_json() for name, estimate in figures.items()} for key, figures in groups.items()
        }


@dataclass(frozen=True)
class Break:
    """A change of protocol between two sizes that were measured; `earliest`, `latest`: the first size of the later
    regime, if it begins elsewhere (95 of 100 cases)."""

    after: int
    before: int
    earliest: int
    latest: int

    def as_json(self) -> dict[str, Any]:
        return {"between": [self.after, self.before], "plausible": [self.earliest, self.latest]}
