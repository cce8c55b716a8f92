"""SCCL's formula, rounds included: S * alpha + (R / C) * L * beta (SCCL, section 3.6).

Example: (C, S, R) = (2, 2, 3), alpha = 1 us, a rank's input of 2 MB, 1 GB/s per link: 2 us + 3/2 * 2 ms.
"""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np

from antiphon.core.loads import pipelined_steps, rounds
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.cost.prediction import LazyPath, Predictor
from antiphon.cost.profile import Profile, as_profile
from antiphon.cost.steps import Barriers, latency_name, price_linear
from antiphon.cost.trace import TracedPredictor
from antiphon.errors import Unsupported


def sccl(schedule: Schedule, topology: Topology, *, profile: Profile | str | Path | None = None) -> Predictor:
    """Price S steps of latency alpha each, and R rounds; in each round a unit link carries one chunk.

    C is the number of chunks that a rank has as its input, L the bytes of that input, 1/beta the bandwidth of a unit
    link. A step that loads a link with 1.5 chunks costs 2 rounds here; `alpha-beta` charges 1.5. Raises Unsupported if
    messages differ in latency: the formula has one alpha. Prepared in O(transfers * log transfers), then O(1) per size.
    `profile`: figures that replace the topology's nominal ones; None: there are none.
    """
    profiled_topology = as_profile(profile).on(topology)
    barriers = Barriers(schedule, profiled_topology)
    alphas = np.unique(barriers.paths.alpha[barriers.paths.route >= 0])  # route -1: a copy within a rank
    if len(alphas) > 1:
        raise Unsupported(
            f"model sccl has one latency, but the routes used here have {len(alphas)} ({alphas[0]:g} to {alphas[-1]:g} "
            "s); model alpha-beta prices each"
        )
    alpha = float(alphas[0]) if len(alphas) else 0.0
    steps = pipelined_steps(schedule)
    collective = schedule.collective
    input_share = Fraction(collective.input_weight, collective.buffer_weight)  # L over nbytes
    total_rounds = rounds(schedule, profiled_topology, barriers.timeline)
    # (R / C) * L * beta of the formula, per byte of nbytes; the unit link's bandwidth is 1 / beta
    seconds_per_byte = total_rounds * input_share / (max(schedule.chunks_per_rank, 1) * profiled_topology.unit)
    names = {"latency": latency_name(steps, alpha, steps * alpha), "bandwidth": barriers.busiest}
    predict = price_linear(steps * alpha, float(seconds_per_byte), names, LazyPath(barriers.path))
    return TracedPredictor(predict, barriers)
