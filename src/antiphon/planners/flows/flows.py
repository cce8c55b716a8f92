"""The planner `flows`: data that are only moved, along the paths of an optimal flow (docs/planners/index.md#flows).

Input: a scatter, gather or alltoall. Output: schedules that send each block along one or several paths, pipelined for
each message size, with the lower bound. These collectives neither copy nor combine data, so with fine slices they are
multicommodity flows: the least time is the optimum of a linear program over the loads of links, and no cleverer
schedule exists (core.bounds). Stages:

    1. `wants_of`         list how much each sender sends to whom (or each receiver receives from whom)
    2. `_find_flow`       find the flow with the fewest hops among the fastest (program.py; descent.py if too large)
    3. `paths_of`         decompose it into paths
    4. `shares_of`        round the paths' shares of their blocks to a small common denominator
    5. `schedule_paths`   make a schedule: a chunk per path, a transfer per hop
    6. `stage_plans`      pipeline it (shared/pipelining.py)

Example: alltoall on a ring of 4 with links both ways: neighbours directly, opposite ranks half each way: 1 + 2 * 1/2 =
2 block loads per link, which is the bound.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from antiphon.core.bounds import bound
from antiphon.core.loads import throughput
from antiphon.core.request import Request
from antiphon.core.schedule import Schedule
from antiphon.planners.flows.descent import descend
from antiphon.planners.flows.path_schedule import schedule_paths
from antiphon.planners.flows.paths import paths_of, shares_of
from antiphon.planners.flows.program import Flow, FlowProgram
from antiphon.planners.flows.wants import wants_of
from antiphon.planners.shared.pipelining import PipelineOptions, PipelinePlans, stage_plans
from antiphon.planners.shared.rows import PiecesOrBest, UnevenSteps

MOST_VARIABLES = 100_000  # of a linear program


def flows(request: Request, *, pieces: PiecesOrBest = None, steps: UnevenSteps = None) -> Iterator[Schedule]:
    """Yield schedules along the paths of the flow with the fewest hops among the fastest.

    `pieces`: number of equal slices. `steps`: number of steps for uneven parts. With neither, the fastest for each
    size; without a size, several.
    """
    topology, collective = request.topology, request.collective
    # stages 1 to 5: one unpipelined schedule for all sizes
    wants = wants_of(topology, collective, request.seed)
    rate_bound = bound(topology, collective)
    program = FlowProgram(topology, wants)
    time = rate_bound.inverse * collective.input_weight / topology.unit * topology.resources.scale
    flow = _find_flow(program, float(time), bool(rate_bound.tight))
    paths = paths_of(program, flow)
    shares = shares_of(program, paths, flow.time)
    schedule = schedule_paths(topology, collective, paths, shares, wants.group, wants.blocks)
    rate, limit = throughput(schedule, topology), rate_bound.bytes_per_second
    report: dict[str, Any] = {
        "rate": None if rate is None else str(rate / topology.unit),
        "optimal": rate == limit,
        "paths": int((shares.counts > 0).sum()) * len(wants.group),
        "deepest": schedule.steps,
        "denominator": schedule.chunks.denominator,
        "loss": 0.0 if rate is None or limit is None else float(1 - rate / limit),
    }
    stage_request = PipelineOptions("flows", pieces, steps, request.sizes, request.profile)
    for staged_plan in stage_plans(PipelinePlans([schedule], topology), stage_request):
        made_by = {"planner": "flows", "options": staged_plan.options, "seed": request.seed}
        yield replace(staged_plan.schedule, provenance={**made_by, "found": report, "bound": rate_bound.plan_json()})


def _find_flow(program: FlowProgram, time: float, tight: bool) -> Flow:
    """Return the flow with the fewest hops among the fastest, or an approximation if the program is too large or fails.

    `time`: a lower bound; `tight`: some flow is known to attain it.
    """
    if not program.wants:
        return Flow(np.zeros((0, program.links)), 0.0)
    if program.size > MOST_VARIABLES:
        return descend(program)
    flow = program.solve_shortest(time) if tight else None
    if flow is None:
        fastest = program.solve_fastest()
        flow = None if fastest is None else program.solve_shortest(fastest.time) or fastest
    return flow or descend(program)
