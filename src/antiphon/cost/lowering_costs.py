"""Lowerings of a plan on GPUs (SCCL, section 4), and what each costs in a profile.

    kernel        one kernel per GPU; ranks signal each other
    steps         the host launches a kernel per step; all GPUs end a step before the next begins
    copies        like steps, but copy engines move the data (cudaMemcpyAsync), and kernels only reduce
    ...-pull      receivers read, instead of senders writing

The time of a schedule is linear in the costs of a lowering:

    start + step * steps + copy * copies + seconds of the busiest links / share

Example: 2 steps by copies, each with up to 3 copies at a rank, with start 5 us, step 4 us and copy 2 us:
5 + 4 * 2 + 2 * 6 = 25 us without the bytes.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import msgspec

from antiphon.errors import Invalid, quote, unknown
from antiphon.units import exact, parse_seconds

KERNEL, STEPS, COPIES = "kernel", "steps", "copies"
PULL = "-pull"
LOWERINGS = tuple(kind + pull for kind in (KERNEL, STEPS, COPIES) for pull in ("", PULL))
MAX_SECONDS = 1.0  # greatest cost of a start, a step or a copy
MAX_SHARE = 1e6  # greatest share, and greatest inverse: threads that stand in for GPUs are far off nominal bandwidths


def check_lowering(name: str, label: str = "lowering") -> str:
    """Return the name of a lowering; "" stands for any."""
    if name and name not in LOWERINGS:
        raise unknown(label, name, LOWERINGS)
    return name


@dataclass(frozen=True)
class LoweringCosts:
    """The costs of one lowering; the module has the formula."""

    start: float = 0.0  # seconds per call
    step: float = 0.0  # seconds per step
    copy: float = 0.0  # seconds per copy, of the rank that has most copies in a step
    share: float = 1.0  # fraction of the links' bandwidth that data gets

    def __post_init__(self) -> None:
        for name in ("start", "step", "copy"):
            seconds = parse_seconds(getattr(self, name), name, bare=True)
            if not 0 <= seconds <= MAX_SECONDS:
                raise Invalid(f"{name}: expected 0 to {MAX_SECONDS:g} seconds, got {quote(getattr(self, name))}")
            object.__setattr__(self, name, float(seconds))
        share = exact(self.share, "share")
        if not 1 / MAX_SHARE <= share <= MAX_SHARE:
            raise Invalid(f"share: expected {1 / MAX_SHARE:g} to {MAX_SHARE:g} of the bandwidth, got {self.share}")
        object.__setattr__(self, "share", float(share))

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


class LoweringRow(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The costs of a lowering in a profile."""

    start: float | int | str = 0.0
    step: float | int | str = 0.0
    copy: float | int | str = 0.0
    share: float | int = 1.0

    def read(self) -> LoweringCosts:
        return LoweringCosts(self.start, self.step, self.copy, self.share)  # type: ignore[arg-type]  # parsed there
