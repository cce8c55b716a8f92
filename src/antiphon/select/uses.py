"""What schedules let switches do, and what a runtime would have that cannot let them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from antiphon.core.joints import MULTICAST, REDUCTION, joints_of
from antiphon.core.schedule import Schedule
from antiphon.core.topology import FORWARDS, Topology
from antiphon.registry import Entry

IN_SWITCHES = " in switches"
CANNOT = (
    "its schedules let switches multicast or combine, which the runtime that this is for cannot; "
    "transform.unjoined makes every row go alone"
)


def uses_of(schedule: Schedule) -> tuple[str, ...]:
    """What of multicast and reduction it lets switches do; nothing where every row goes alone."""
    joints = joints_of(schedule)
    if joints is None:
        return ()
    kinds = set(np.unique(joints.kind).tolist())
    told = (("multicast", kinds != {REDUCTION}), ("reduction", kinds != {MULTICAST}))
    return tuple(f"{what}{IN_SWITCHES}" for what, used in told if used)


def uses_text(uses: Iterable[str]) -> str:
    """multicast and reduction in switches."""
    return " and ".join(what.removesuffix(IN_SWITCHES) for what in uses) + IN_SWITCHES


def needs_switches(entry: Entry) -> bool:
    """Whether all that this planner makes lets switches do more than forward."""
    return bool(entry.can.get("in_switches"))


def helpful(topology: Topology) -> bool:
    """Whether switches of this machine can do more than forward."""
    return topology.helpers != FORWARDS


@dataclass(frozen=True)
class Without:
    """What a runtime that lets no switches help would have instead, at one size: `alone`, the seconds of the same
    schedule with every row alone (None: the model does not price that), and the best that uses no switches, with its
    seconds (None: there is none)."""

    alone: float | None
    planner: str | None = None
    options: Mapping[str, Any] | None = None
    seconds: float | None = None

    def as_json(self) -> dict[str, Any]:
        options = None if self.options is None else dict(self.options)
        return {"alone": self.alone, "planner": self.planner, "options": options, "seconds": self.seconds}
