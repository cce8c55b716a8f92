"""From a schedule to its programs."""

from __future__ import annotations

import contextlib
from dataclasses import replace

from antiphon.core.joints import refuse_joints
from antiphon.core.program import Program
from antiphon.core.schedule import Schedule
from antiphon.errors import Invalid, Unsupported, quote
from antiphon.lower._operations import operations
from antiphon.lower.rows import prepare

MOST_CHANNELS = 2**15


def lower(
    schedule: Schedule, *, in_place: bool = False, channels: int = 1, lag: int = 1, joints: bool = False
) -> Program:
    """The program of a legal schedule, for any number of elements, type and operator.

    In place and out of place are two programs with the same messages, so ranks may mix them. `channels`: transfers
    are dealt to so many by chunk. `lag`: for how many steps scratch rests before it is used again; 0 needs the
    least, more lets receives begin earlier. `joints`: sends and receives say to which joint they belong; left out, a
    schedule with joints is refused. Invalid where a row is illegal; Unsupported for an alltoall in place
    whose counts differ both ways. O(n log n) for n rows, some microseconds each.
    """
    for what, value, low, high in (("channels", channels, 1, MOST_CHANNELS), ("lag", lag, 0, 2**20)):
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise Invalid(f"{what}: expected a whole number from {low} to {high}, got {quote(value)}")
    if not joints:
        refuse_joints(schedule, "programs")
    ordered = schedule.sorted()
    return operations(prepare(replace(ordered, joint=None), in_place), channels, lag, ordered.joint)


def both(schedule: Schedule, *, channels: int = 1, lag: int = 1) -> list[Program]:
    """Out of place, then in place where there is such a program: what belongs into one file."""
    made = [lower(schedule, channels=channels, lag=lag)]
    with contextlib.suppress(Unsupported):
        made.append(lower(schedule, in_place=True, channels=channels, lag=lag))
    return made
