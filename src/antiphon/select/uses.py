"""Find out what schedules and planners use of switches beside forwarding: multicast, and reduction.

Some switches (NVLS, SHARP) can multicast and reduce. A schedule uses that by joints: several of its rows (transfers)
that a switch turns into one multicast or one reduction. Runtimes that cannot do this cannot execute schedules with
joints.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from antiphon.core.joints import MULTICAST, REDUCTION, joints_of
from antiphon.core.schedule import Schedule
from antiphon.core.topology import FORWARD_ONLY, Topology
from antiphon.registry import Entry, PlannerCapabilities

IN_SWITCHES = " in switches"
SWITCH_USE_UNSUPPORTED = (
    "its schedules let switches multicast or combine, which the chosen runtime cannot; "
    "transform.unjoined makes every row go alone"
)


def list_switch_uses(schedule: Schedule) -> tuple[str, ...]:
    """Return which of multicast and reduction the schedule lets switches do; () if it has no joints."""
    joints = joints_of(schedule)
    if joints is None:
        return ()
    # a joint is a multicast, a reduction, or both
    kinds = set(np.unique(joints.kind).tolist())
    use_names = (("multicast", kinds != {REDUCTION}), ("reduction", kinds != {MULTICAST}))
    return tuple(f"{ability}{IN_SWITCHES}" for ability, is_used in use_names if is_used)


def uses_claim(schedule: Schedule) -> dict[str, list[str]]:
    """Return what a plan claims of its schedule's uses of switches: nothing where there are none."""
    uses = list_switch_uses(schedule)
    return {"uses": list(uses)} if uses else {}


def format_switch_uses(uses: Iterable[str]) -> str:
    """Return the uses in words, such as "multicast and reduction in switches"."""
    return " and ".join(use.removesuffix(IN_SWITCHES) for use in uses) + IN_SWITCHES


def needs_switches(entry: Entry[PlannerCapabilities]) -> bool:
    """Return whether all schedules of this planner let switches do more than forward."""
    return entry.can.in_switches


def has_helpful_switches(topology: Topology) -> bool:
    """Return whether switches of this machine can do more than forward."""
    return topology.joint_abilities != FORWARD_ONLY
