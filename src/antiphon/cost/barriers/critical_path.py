"""The critical path without barriers: every message starts as soon as its data and its links allow.

Example: in step 0 rank 0 sends 1 MB and rank 1 sends 3 MB; in step 1 rank 2 forwards what rank 0 sent. At 1 GB/s and no
latency it is done after 2 ms and all after 3 ms; with barriers (alpha-beta) all takes 4 ms.
"""

from __future__ import annotations

from pathlib import Path

from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.core.transform import expand
from antiphon.cost.barriers._longest_path import Flow
from antiphon.cost.prediction import Predictor
from antiphon.cost.profile import Profile, as_profile
from antiphon.cost.steps import Barriers
from antiphon.cost.trace import Traced, expanded_rows, most_rows


def critical_path(schedule: Schedule, topology: Topology, *, profile: Profile | str | Path | None = None) -> Predictor:
    """Start each message when all data that it reads have arrived, and let it queue for each of its links and limits.

    Waits follow from the versions of cells (docs/schedule.md), never from steps: data are written when they have
    arrived, the previous value of their cell has been written, and all readers of that have sent it; until then they
    wait in a receive buffer. A link or limit serves messages one by one, step by step and in message order within a
    step (docs/program.md), at its full bandwidth; the links of a route are queues of their own, so that no message
    blocks another's link. A message has arrived when all its turns are over and its latency has passed.

    So the time is never above that of alpha-beta, never below the bound, and in nbytes monotone and convex (a maximum
    of straight lines): a size between two that lie on one line costs nothing. Other sizes cost O(E) NumPy work in rows
    times links per route, and about 0.2 ms per step. Pieces are expanded, up to 64 rows per transfer (at least 2^18, at
    most 2^22 in total); beyond that the result is that of alpha-beta, which is proved to be no less, and `note` states
    it.
    """
    profiled_topology = as_profile(profile).on(topology)
    rows, max_rows = expanded_rows(schedule), most_rows(schedule)
    if rows > max_rows:
        note = f"an upper bound: {rows} transfers with all pieces, more than {max_rows}, so steps count as barriers"
        barriers = Barriers(schedule, profiled_topology)
        return Traced(barriers.predictor(note), barriers)
    return Flow(expand(schedule).sorted(), profiled_topology)
