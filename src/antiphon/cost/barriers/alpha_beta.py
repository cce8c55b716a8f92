"""The alpha-beta model, link by link, with a barrier after every step (SCCL, sections 2.3 and 3.6, generalised).

Example: 2 steps of one message each over links of 1 us and 1 GB/s, 1 MB per message: 2 * (1 us + 1 ms).
"""

from __future__ import annotations

from pathlib import Path

from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.cost.prediction import Predictor
from antiphon.cost.profile import Profile, as_profile
from antiphon.cost.steps import Barriers
from antiphon.cost.trace import TracedPredictor


def alpha_beta(schedule: Schedule, topology: Topology, *, profile: Profile | str | Path | None = None) -> Predictor:
    """Price each step by the latency of its slowest message plus the time of its most loaded link or shared limit.

    If all links have one latency alpha, and every step loads a whole number of chunks on each unit link, this is SCCL's
    S * alpha + (R / C) * L * beta exactly (section 3.6), L being the input of one rank. Otherwise each message has the
    summed latency of its route, and each link and shared limit its own beta. Latency counts per message, not per chunk.
    Pieces are not expanded: a pipelined step has the greatest latency and the greatest load of all messages in
    progress.

    `profile`: figures that replace the topology's nominal ones; None: there are none.

    Prepared once in O(E log E) for E = rows times links per route; then any size in O(1).
    """
    profiled_topology = as_profile(profile).on(topology)
    barriers = Barriers(schedule, profiled_topology)
    return TracedPredictor(barriers.predictor(), barriers)
