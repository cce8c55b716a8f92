"""The asynchronous critical path: no barriers, every message starts as soon as it can."""

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
    """A message starts when all data that it reads has arrived, and queues for each of its links and limits.

    What waits for what is derived from versions (docs/schedule.md), never from steps: data lands when it has
    arrived, the previous value of its cell has been written, and all readers of that have sent it; until then
    it waits in a receive buffer. A link or limit serves messages one by one, step by step and in their order within
    each (docs/program.md), at its full bandwidth; the links of a route are queues of their own, so that no message
    blocks another's link. A message has arrived when all its turns are over and its latency has passed.

    So the time is never above that of alpha-beta, never below the bound, and in nbytes monotone and convex (a
    maximum of straight lines): a size between two that lie on one line costs nothing. Other sizes cost O(E)
    NumPy work in rows times hops, and some 0.2 ms per step. Pieces are expanded, up to 64 rows for each transfer (at
    least 2^18, at most 2^22 in all); beyond that the answer is that of alpha-beta, which is proved to be no less, and
    `note` states it.
    """
    profiled_topology = as_profile(profile).on(topology)
    rows, max_rows = expanded_rows(schedule), most_rows(schedule)
    if rows > max_rows:
        note = f"an upper bound: {rows} transfers with all pieces, more than {max_rows}, so steps count as barriers"
        barriers = Barriers(schedule, profiled_topology)
        return Traced(barriers.predictor(note), barriers)
    return Flow(expand(schedule).sorted(), profiled_topology)
