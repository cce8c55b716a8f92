"""By how much the clocks of processes differ, and how well that is known."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from antiphon.runtimes.measure.loop import Together

ROUNDS = 32


def clock_name() -> str:
    """Equal where two processes read the very same clock: that of one start of one kernel, in one namespace of time."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/time')}"
    return f"process {os.getpid()} of {os.uname().nodename}"


def offset(
    together: Together, now: Callable[[], int] = time.monotonic_ns, name: str | None = None
) -> tuple[float, float]:
    """Nanoseconds by which the clock here is ahead of that of the first process, and by how many that may be wrong.

    Where all read one clock both are 0. Else nobody leaves an exchange before everybody has entered it: if this process
    entered when its clock said e, and the first left when its own said l, the clock here is ahead by at least e - l;
    the other way round by at most. Each round bounds it from both sides; between the closest bounds lies the truth, as
    long as the clocks run equally fast meanwhile. All processes must take part.
    """
    mine = clock_name() if name is None else name
    if len(set(together.all(mine))) == 1:
        return 0.0, 0.0
    least, most = -float("inf"), float("inf")
    entered = left = first_entered = 0
    for turn in range(ROUNDS + 1):
        before, entered_before, first_before = left, entered, first_entered
        entered = now()
        first_left, first_entered = together.all([before, entered])[0]
        left = now()
        if turn:  # of the round before all is known by now
            least, most = max(least, entered_before - first_left), min(most, before - first_before)
    return (0.0, 0.0) if together.first else ((least + most) / 2, (most - least) / 2)
