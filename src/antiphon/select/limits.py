"""The bounds of a collective as a time by size."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from antiphon.core.bounds import Bound
from antiphon.core.bounds.latency_seconds import Quickest, quickest
from antiphon.core.bounds.needs import needs_of
from antiphon.core.collective import Collective
from antiphon.core.topology import Topology


@dataclass(frozen=True, eq=False)
class Limit:
    """The bounds of a collective on the machine, as a time by size."""

    steps: int
    latency: float  # seconds
    bytes_per_second: Fraction | None
    because: tuple[str, ...] = ()
    without_switches: Fraction | None = None  # bytes per second where switches that may help only forward

    @staticmethod
    def of(bound: Bound, topology: Topology, collective: Collective, latency: Quickest | None = None) -> Limit:
        """`latency`: where it is known already."""
        if latency is None:
            latency = quickest(topology, needs_of(collective), bound.latency_witness)
        why = (*bound.describe(topology, collective), *([latency.describe()] if latency else []))
        seconds = latency.seconds if latency else 0.0
        alone = bound.without_switches if bound.unaided is not None else None
        return Limit(bound.latency_steps, seconds, bound.bytes_per_second, why, alone)

    def seconds(self, nbytes: int) -> float:
        moving = float(nbytes / self.bytes_per_second) if self.bytes_per_second else 0.0
        return max(self.latency, moving)

    def rates(self) -> dict[str, Any]:
        """Steps and bandwidth as JSON: bytes per second as a number, and exactly, as a text such as "7/3"."""
        rate = self.bytes_per_second
        exact = {"bytes_per_second": float(rate), "bytes_per_second_exact": str(rate)} if rate else {}
        alone = self.without_switches
        helped = {} if alone is None else {"without_switches": float(alone), "without_switches_exact": str(alone)}
        return {
            "latency_steps": self.steps,
            "bytes_per_second": None,
            "bytes_per_second_exact": None,
            **exact,
            **helped,
        }

    def as_json(self, sizes: tuple[int, ...]) -> dict[str, Any]:
        return {
            **self.rates(),
            "latency_seconds": self.latency,
            "because": list(self.because),
            "assumes": [],
            "seconds": {str(size): self.seconds(size) for size in sizes},
        }
