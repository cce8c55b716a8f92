"""The critical path without barriers: every message starts as soon as its data and its links allow.

Example: in step 0 rank 0 sends 1 MB and rank 1 sends 3 MB; in step 1 rank 2 forwards what rank 0 sent. At 1 GB/s and no
latency it is done after 2 ms and all after 3 ms; with barriers (alpha-beta) all takes 4 ms.
"""

from __future__ import annotations

from pathlib import Path

from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.core.transform import expand
from antiphon.cost.barriers._longest_path import SortedSchedule
from antiphon.cost.prediction import Predictor
from antiphon.cost.profile import Profile, as_profile
from antiphon.cost.steps import Barriers
from antiphon.cost.trace import TracedPredictor, expanded_rows, most_rows


def critical_path(schedule: Schedule, topology: Topology, *, profile: Profile | str | Path | None = None) -> Predictor:
    """Start each message when all data that it reads have arrived, and let it queue for each of its links and limits.

    - A message waits for the data that it reads (docs/schedule.md), not for the end of a step.
    - Data are written to their cell when they have arrived, the previous value of the cell has been written, and all
      messages that read this value have been sent; until then the data wait in a receive buffer.
    - A link or limit serves messages one by one at its full bandwidth, in the order of steps and within a step in the
      order of messages (docs/program.md). Each link of a route has its own queue: a message that waits for one link
      does not block another.
    - A message has arrived when its turns on all links are over and then its latency has passed.

    The time is at most that of alpha-beta and at least the lower bound. In nbytes it is monotone and convex (a maximum
    of straight lines), so a size between two with the same critical path costs nothing. Other sizes cost O(E) NumPy
    work in rows times links per route, and about 0.2 ms per step. Pieces are expanded, up to 64 rows per transfer (at
    least 2^18, at most 2^22 in total). Beyond that the result is that of alpha-beta, which is no less, and `note`
    states it. `profile`: figures that replace the topology's nominal ones; None: there are none.
    """
    profiled_topology = as_profile(profile).on(topology)
    rows, max_rows = expanded_rows(schedule), most_rows(schedule)
    if rows > max_rows:
        note = f"an upper bound: {rows} transfers with all pieces, more than {max_rows}, so steps count as barriers"
        barriers = Barriers(schedule, profiled_topology)
        return TracedPredictor(barriers.predictor(note), barriers)
    return SortedSchedule(expand(schedule).sorted(), profiled_topology)
