"""Protocol regimes of LogGP: ranges of message sizes with one set of parameters, and the breaks between them.

MPI and NCCL change protocol with the size (eager, rendezvous, ...), and so do the parameters. Example: regime 1 B to 8
KB with L = 2 us, regime 16 KB to 1 MB with L = 6 us and another G, and a break between 8 and 16 KB.

A fit (loggp.py, which has the formulas) consists of these. L, o_s, o_r and g are in seconds, G in seconds per byte.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from antiphon.cost.fit.linear import NEGLIGIBLE, Estimate, Floats


@dataclass(frozen=True, eq=False)
class Regime:
    """A range of sizes with one set of parameters."""

    low: int  # bytes, the least measured size
    high: int  # bytes, the greatest measured size
    figures: Mapping[str, Estimate]  # g and G of the whole regime; L, o_s and o_r at the size `low`
    growth: Mapping[str, Estimate]  # of L, o_s and o_r, in seconds per byte beyond `low`; empty if they are constant
    start: Mapping[str, float]  # values of `figures`, 0 if undetermined; only L may be negative here
    slope: Mapping[str, float]  # values of `growth`, 0 if there is none

    def line(self, name: str, sizes: Floats) -> Floats:
        """Return a figure at these sizes (bytes), one element per size; only L may be negative."""
        start, growth = self.start[name], self.slope.get(name, 0.0) * (sizes - self.low)
        line: Floats = start + growth
        if name != "L":
            return np.maximum(line, 0.0)
        # Where both cancel, the sign of the remainder is rounding.
        return np.where(np.abs(line) <= NEGLIGIBLE * (abs(start) + np.abs(growth)), 0.0, line)

    def half_round_trip(self, sizes: Floats) -> Floats:
        """Return half a round trip, L + o_s + o_r + (s - 1) G, at these sizes s, in seconds."""
        seconds: Floats = sum((self.line(name, sizes) for name in ("L", "o_s", "o_r")), (sizes - 1) * self.start["G"])
        return seconds

    def model(self, sizes: Floats) -> dict[str, Floats]:
        """Return every figure at these sizes, none below 0, as a profile needs them.

        If overheads and transfer exceed half a round trip (L below 0), part of the overheads overlapped with the
        transfer; just that part is left out.
        """
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
    """A change of protocol between two measured sizes, in bytes."""

    after: int  # the last size of the earlier regime
    before: int  # the first measured size of the later regime
    earliest: int  # 95 % interval of the size at which the later regime begins: from here
    latest: int  # ... to here

    def as_json(self) -> dict[str, Any]:
        return {"between": [self.after, self.before], "plausible": [self.earliest, self.latest]}
